"""Tools and forms through litellm."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import openai
import pytest

from tests.clients.forecast import NO_THINKING, QUESTION, Forecast
from tests.e2e.server_process import MODEL, ServerProcess

pytestmark = [
    pytest.mark.slow,
    # Pydantic of today warns of litellm's own types.
    pytest.mark.filterwarnings("default::UserWarning", "default::DeprecationWarning"),
]

TOOL: Any = openai.pydantic_function_tool(Forecast)
NAMED = {"type": "function", "function": {"name": "Forecast"}}


@pytest.fixture
def ask(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would ask the network for prices
    import litellm

    fixed: dict[str, Any] = {
        "model": f"openai/{MODEL}",
        "api_base": server.base_url,
        "api_key": "none",
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 400,
        "temperature": 0,
        "extra_body": NO_THINKING,
    }
    asyncio.set_event_loop(loop := asyncio.new_event_loop())  # it asks for one, which nobody would close
    with closing(loop), openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        yield lambda **fields: litellm.completion(**fixed | fields, client=client)


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_call_has_valid_arguments(ask: Any, choice: Any) -> None:
    [made] = ask(tools=[TOOL], tool_choice=choice, parallel_tool_calls=False).choices
    assert made.finish_reason == "tool_calls"
    [call] = made.message.tool_calls
    Forecast.model_validate_json(call.function.arguments)


def test_streamed_chunks_are_built_to_the_same_call(ask: Any) -> None:
    import litellm

    chunks = list(ask(tools=[TOOL], tool_choice=NAMED, stream=True, stream_options={"include_usage": True}))
    built: Any = litellm.stream_chunk_builder(chunks)
    [call] = built.choices[0].message.tool_calls
    Forecast.model_validate_json(call.function.arguments)
    [whole] = ask(tools=[TOOL], tool_choice=NAMED).choices[0].message.tool_calls
    assert call.function.arguments == whole.function.arguments
    assert built.usage.completion_tokens > 5


def test_a_form_is_kept(ask: Any) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "forecast", "schema": Forecast.model_json_schema()}}
    Forecast.model_validate(json.loads(ask(response_format=schema).choices[0].message.content))


def test_a_refusal_is_a_bad_request(ask: Any) -> None:
    import litellm

    with pytest.raises(litellm.BadRequestError, match="declared tool"):
        ask(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "nothing"}})
