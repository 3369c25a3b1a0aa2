"""Tools and forms through OpenAI's own client, with the helpers that it has for them."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.clients.forecast import NO_THINKING, QUESTION, Forecast
from tests.e2e.server_process import MODEL, ServerProcess

pytestmark = pytest.mark.slow

ASK: Any = {
    "model": MODEL,
    "messages": [{"role": "user", "content": QUESTION}],
    "max_tokens": 400,
    "extra_body": NO_THINKING,
}
NAMED: Any = {"type": "function", "function": {"name": "Forecast"}}


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        yield client


def test_a_parsed_tool_call_is_of_its_model(client: openai.OpenAI) -> None:
    tools = [openai.pydantic_function_tool(Forecast)]
    answer = client.chat.completions.parse(**ASK, tools=tools, tool_choice=NAMED)
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    [call] = choice.message.tool_calls
    assert isinstance(call.function.parsed_arguments, Forecast)


def test_a_parsed_answer_is_of_its_model(client: openai.OpenAI) -> None:
    message = client.chat.completions.parse(**ASK, response_format=Forecast).choices[0].message
    assert isinstance(message.parsed, Forecast)


def test_streamed_helpers_come_to_the_same(client: openai.OpenAI) -> None:
    tools = [openai.pydantic_function_tool(Forecast)]
    with client.chat.completions.stream(**ASK, temperature=0, tools=tools, tool_choice="required") as stream:
        kinds = [event.type for event in stream]
        choice = stream.get_final_completion().choices[0]
    assert kinds.count("tool_calls.function.arguments.done") >= 1
    assert "tool_calls.function.arguments.delta" in kinds
    assert choice.message.tool_calls is not None
    assert isinstance(choice.message.tool_calls[0].function.parsed_arguments, Forecast)
    with client.chat.completions.stream(**ASK, temperature=0, response_format=Forecast) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Forecast)


def test_a_call_and_its_result_go_back_into_the_conversation(client: openai.OpenAI) -> None:
    tools: Any = [openai.pydantic_function_tool(Forecast)]
    message = client.chat.completions.create(**ASK, tools=tools, tool_choice=NAMED).choices[0].message
    assert message.tool_calls is not None
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "windy"}
    history: Any = [*ASK["messages"], message, result]
    answer = client.chat.completions.create(**ASK | {"messages": history, "max_tokens": 30}, tools=tools)
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 50
