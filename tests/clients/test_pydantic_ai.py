"""Tools and forms through pydantic-ai."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest

from tests.clients.forecast import NO_THINKING, QUESTION, Forecast, get_weather
from tests.e2e.server_process import MODEL, ServerProcess

pytestmark = pytest.mark.slow

SETTINGS: Any = {"temperature": 0, "max_tokens": 400, "parallel_tool_calls": False, "extra_body": NO_THINKING}


@pytest.fixture
def run(server: ServerProcess) -> Any:
    """Does what it is given with a model, whose connections are closed afterwards."""
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async def with_model(work: Callable[[Any], Awaitable[Any]]) -> Any:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
            return await work(OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client)))

    return lambda work: asyncio.run(with_model(work))


@pytest.mark.parametrize("kind", ["ToolOutput", "NativeOutput"])
def test_output_is_of_its_model(run: Any, kind: str) -> None:
    import pydantic_ai

    async def work(model: Any) -> Any:
        form = getattr(pydantic_ai, kind)(Forecast)
        return (await pydantic_ai.Agent(model, output_type=form, model_settings=SETTINGS).run(QUESTION)).output

    assert isinstance(run(work), Forecast)


def test_streamed_output_is_of_its_model(run: Any) -> None:
    import pydantic_ai

    async def work(model: Any) -> Any:
        agent = pydantic_ai.Agent(model, output_type=Forecast, model_settings=SETTINGS)
        async with agent.run_stream(QUESTION) as answer:
            return await answer.get_output()

    assert isinstance(run(work), Forecast)


def test_a_tool_runs_and_its_result_goes_back(run: Any) -> None:
    """Every step of the agent's loop is a required call: of the tool, or of the one that ends the loop."""
    import pydantic_ai

    ran = list[str]()

    def weather(**arguments: Any) -> str:
        ran.append(get_weather(**arguments))
        return ran[-1]

    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"enum": [1, 2, 3]}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }

    async def work(model: Any) -> Any:
        tool = pydantic_ai.Tool.from_schema(weather, "weather", "Get the weather.", schema)
        agent = pydantic_ai.Agent(model, output_type=Forecast, tools=[tool], model_settings=SETTINGS)
        limits = pydantic_ai.UsageLimits(request_limit=4)
        return (await agent.run(QUESTION, usage_limits=limits)).output

    try:
        assert isinstance(run(work), Forecast)
    except pydantic_ai.UsageLimitExceeded:
        assert len(ran) == 4  # weak weights may call the tool again and again
