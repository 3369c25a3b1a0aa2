"""Tools and forms through langchain-openai."""

from typing import Any

import pytest

from tests.clients.forecast import NO_THINKING, QUESTION, Forecast, get_weather
from tests.e2e.server_process import MODEL, ServerProcess

pytestmark = pytest.mark.slow


@pytest.fixture
def model(server: ServerProcess) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        model=MODEL,
        base_url=server.base_url,
        api_key="none",  # type: ignore[arg-type]
        max_retries=0,
        temperature=0,
        max_completion_tokens=400,
        extra_body=NO_THINKING,
    )


@pytest.mark.parametrize("choice", ["any", "get_weather"])
def test_a_bound_tool_is_called_with_valid_arguments(model: Any, choice: str) -> None:
    bound = model.bind_tools([get_weather], tool_choice=choice, parallel_tool_calls=False, strict=True)
    message = bound.invoke(QUESTION)
    assert not message.invalid_tool_calls
    [call] = message.tool_calls
    assert call["name"] == "get_weather"
    assert "windy in" in get_weather(**call["args"])
    assert message.response_metadata["finish_reason"] == "tool_calls"


def test_streamed_chunks_add_up_to_the_same_call(model: Any) -> None:
    bound = model.bind_tools([get_weather], tool_choice="get_weather")
    chunks = list(bound.stream(QUESTION))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert len([chunk for chunk in chunks if chunk.tool_call_chunks]) > 1
    assert [(call["name"], call["args"]) for call in whole.tool_calls] == [
        (call["name"], call["args"]) for call in bound.invoke(QUESTION).tool_calls
    ]


def test_a_tool_message_goes_back_into_the_conversation(model: Any) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage

    bound = model.bind_tools([get_weather])
    asked = HumanMessage(QUESTION)
    called = model.bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False).invoke([asked])
    result = ToolMessage("windy", tool_call_id=called.tool_calls[0]["id"])
    answer = bound.bind(max_completion_tokens=30).invoke([asked, called, result])
    assert answer.response_metadata["finish_reason"] in ("stop", "length", "tool_calls")


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_is_of_its_model(model: Any, method: str) -> None:
    assert isinstance(model.with_structured_output(Forecast, method=method).invoke(QUESTION), Forecast)
