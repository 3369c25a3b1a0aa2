"""Several generations as one: their deltas as they come, choices numbered through, and one end with the sum.

Knows nothing of what generates or of who reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import msgspec

from server.deltas import ChoiceDelta, Done, Usage

Deltas = AsyncGenerator[ChoiceDelta | Done, None]


async def side_by_side(parts: Sequence[Deltas], choices_each: int) -> Deltas:
    """Takes over the generators and closes them. The first error ends all."""
    arrived: asyncio.Queue[tuple[int, ChoiceDelta | Done] | asyncio.Task[None]] = asyncio.Queue()
    tasks = [asyncio.create_task(_pump(part, place, arrived)) for place, part in enumerate(parts)]
    for task in tasks:
        task.add_done_callback(arrived.put_nowait)
    ends = list[Done]()
    try:
        running = len(tasks)
        while running:
            item = await arrived.get()
            if isinstance(item, asyncio.Task):
                item.result()  # raises what the part raised
                running -= 1
                continue
            place, event = item
            if isinstance(event, Done):
                ends.append(event)
            else:
                yield msgspec.structs.replace(event, index=place * choices_each + event.index)
        yield _sum(ends)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    part: Deltas, place: int, arrived: asyncio.Queue[tuple[int, ChoiceDelta | Done] | asyncio.Task[None]]
) -> None:
    try:
        async for event in part:
            arrived.put_nowait((place, event))
    finally:
        await part.aclose()


def _sum(ends: Sequence[Done]) -> Done:
    usage = Usage(
        prompt_tokens=sum(end.usage.prompt_tokens for end in ends),
        completion_tokens=sum(end.usage.completion_tokens for end in ends),
        cached_tokens=sum(end.usage.cached_tokens for end in ends),
        reasoning_tokens=sum(end.usage.reasoning_tokens for end in ends),
    )
    return Done(usage, max(end.queue_s for end in ends), any(end.aborted for end in ends))
