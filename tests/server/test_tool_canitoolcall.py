"""The cases of the public suite `canitoolcall`, told in the Dots format: each answer that it wants, as our template
writes it, comes out of the gateway's token path unchanged, however the tokens come together.

Its 35 cases without a wanted answer are damage of other formats, which has no counterpart here.
"""

import asyncio
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from canitoolcall.chunking import DEFAULT_STRATEGIES, split
from canitoolcall.fixtures import Fixture, load_fixtures
from canitoolcall.pytest_plugin import assert_conforms
from canitoolcall.results import ParsedToolCall, ParseResult

from parsers.control_tags import STRUCTURE
from parsers.events import ReasoningDelta, TextDelta, ToolArgs, ToolStart
from server.deltas import ChoiceDelta
from server.generation import Generation
from server.prompt import ValidRequest
from server.schemas.chat import read_chat
from tests.support.fake_engine import FakeEngine, Say
from tests.support.live_gateway import prompts

FAMILIES = ("deepseek", "gemma4", "glm", "gpt-oss", "kimi", "llama", "mistral", "qwen3-hermes", "qwen3-xml")
# What the Dots format cannot say.
LEFT_OUT = {
    "kimi/k3-bug-truncated-reasoning-recorded": "the template trims thinking",
    "kimi/k3-vllm-call-thinking-disabled": "a number for a parameter that is not declared",
    "kimi/k3-xtml-attr-escaping": 'a parameter whose name holds a "',
    "llama/l3-meta-python-tag-type-function": "the text 10 for a parameter of no known type",
}
USER = {"role": "user", "content": "?"}


@cache
def fixtures(family: str) -> tuple[Fixture, ...]:
    wanted = [one for one in load_fixtures(None, families=[family]) if one.expected is not None]
    return tuple(one for one in wanted if one.id not in LEFT_OUT)


def said(fixture: Fixture) -> list[int]:
    """The tokens of the wanted answer."""
    assert fixture.expected is not None
    calls = [
        {"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
        for call in fixture.expected.tool_calls
    ]
    message = {
        "role": "assistant",
        "content": fixture.expected.content or "",
        "reasoning_content": fixture.expected.reasoning_content or "",
        "tool_calls": calls,
    }
    request, _ = read_chat(
        {
            "model": "m",
            "messages": [USER, message],
            "tools": list(fixture.tools) or None,
            "add_generation_prompt": False,
        },
        refuse_unknown=True,
    )
    ids = prompts().chat_ids(request)
    begin = len(ids) - ids[::-1].index(prompts().tokenizer.token_id("<|assistant|>"))
    return ids[begin:]


def asked_with(fixture: Fixture, messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {"model": "m", "messages": messages, "tools": list(fixture.tools) or None}


def asked(fixture: Fixture) -> ValidRequest:
    request, _ = read_chat(asked_with(fixture, [USER]), refuse_unknown=True)
    return prompts().chat(request, fixture.id, 8192, 3072)


async def read(generation: Generation, engine: FakeEngine, request: ValidRequest, groups: Sequence[list[int]]) -> Any:
    engine.script = lambda _: [Say(group, together=True) for group in groups]
    content, reasoning, calls = "", "", list[list[str]]()
    async for delta in generation(request):
        for event in delta.events if isinstance(delta, ChoiceDelta) else ():
            if isinstance(event, TextDelta):
                content += event.text
            elif isinstance(event, ReasoningDelta):
                reasoning += event.text
            elif isinstance(event, ToolStart):
                calls.append([event.name, ""])
            elif isinstance(event, ToolArgs):
                calls[event.index][1] += event.text
    return ParseResult(content or None, reasoning or None, tuple(ParsedToolCall(*call) for call in calls))


async def faults(family: str) -> list[str]:
    engine = FakeEngine(lambda _: [])
    generation = Generation(engine, prompts().tokenizer)
    special = {prompts().tokenizer.token_id(tag) for tag in STRUCTURE}
    wrong = list[str]()
    for fixture in fixtures(family):
        ids = said(fixture)
        for strategy in DEFAULT_STRATEGIES:
            found = await read(generation, engine, asked(fixture), split(ids, strategy, special=special))
            try:
                assert_conforms(fixture, found)
            except AssertionError as error:
                wrong.append(f"{strategy.id}: {error}")
    return wrong


@pytest.mark.e2e
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_that_the_suite_wants_are_read_as_it_wants(family: str) -> None:
    wrong = asyncio.run(faults(family))
    assert not wrong, "\n\n".join(wrong[:5])


def test_no_case_is_missing() -> None:
    assert sum(len(fixtures(family)) for family in FAMILIES) == 430
