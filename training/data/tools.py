"""Tool calling: one call, several calls in a turn, no call, the answer from results, and dialogues of several turns."""

from __future__ import annotations

import random

from training.data.conversation import Conversation, seeded
from training.data.tool_exchanges import can_be_parallel, direct, following, parallel, refused, single
from training.data.tool_schemas import toolbox
from training.data.tool_turns import Exchange, conversation_of
from training.data.tool_values import below, pick


def tool_single(split: str, index: int, *, num_tools: int | None = None) -> Conversation:
    rng = seeded(split, "tool_single", index)
    tools = toolbox(rng, num_tools or _num_tools(rng))
    return conversation_of(rng, "tool_single", tools, [single(rng, pick(rng, tools))], 1)


def tool_parallel(split: str, index: int) -> Conversation:
    rng = seeded(split, "tool_parallel", index)
    tools = toolbox(rng, _num_tools(rng))
    while not can_be_parallel(tools):
        tools = toolbox(rng, _num_tools(rng))
    return conversation_of(rng, "tool_parallel", tools, [parallel(rng, tools)], 1)


def tool_none(split: str, index: int) -> Conversation:
    rng = seeded(split, "tool_none", index)
    tools = toolbox(rng, _num_tools(rng))
    exchange = refused(rng, tools) if rng.random() < 0.65 else direct(rng)
    return conversation_of(rng, "tool_none", tools, [exchange], 1)


def tool_result(split: str, index: int) -> Conversation:
    rng = seeded(split, "tool_result", index)
    tools = toolbox(rng, _num_tools(rng))
    several = rng.random() < 0.4 and can_be_parallel(tools)
    exchange = parallel(rng, tools) if several else single(rng, pick(rng, tools))
    return conversation_of(rng, "tool_result", tools, [exchange], len(exchange.steps))


def tool_dialogue(split: str, index: int) -> Conversation:
    """Two or three exchanges, cut at any step of the last one."""
    rng = seeded(split, "tool_dialogue", index)
    num_exchanges = 2 + (rng.random() < 0.35)
    tools = toolbox(rng, min(_num_tools(rng), 6 - num_exchanges))
    exchanges: list[Exchange] = []
    for _ in range(num_exchanges):
        exchanges.append(following(rng, tools, exchanges[-1] if exchanges else None))
    return conversation_of(rng, "tool_dialogue", tools, exchanges, 1 + below(rng, len(exchanges[-1].steps)))


def _num_tools(rng: random.Random) -> int:
    return pick(rng, (1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6))
