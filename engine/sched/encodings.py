"""Which encoder outputs the runner keeps and which are to be made in a step. Owns both budgets, counted in tokens.

An output is held by each request that has begun to use it or to make it, until its last placeholder is computed; held
outputs outlive the others, also those of requests that were preempted. Tensors lie with the runner, which is told what
to make and what to forget.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from engine.sched.parts import Part, PartKey, parts_within
from engine.sched.request import Request, State


class _Output:
    __slots__ = ("holders", "num_tokens", "step")

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self.holders: list[Request] = []  # one that holds it for two items is there twice
        self.step = 0  # in which it was last wanted


class EncoderWork(NamedTuple):
    """What the runner does before a step, in this order."""

    forgotten: tuple[PartKey, ...]
    encodes: tuple[Part, ...]

    @property
    def num_tokens(self) -> int:
        return sum(part.num_tokens for part in self.encodes)


NO_WORK = EncoderWork((), ())


class Encodings:
    def __init__(self, capacity_tokens: int, step_tokens: int) -> None:
        """`capacity_tokens`: kept at most. `step_tokens`: encoded in one step, unless a single part is longer."""
        self._capacity = capacity_tokens
        self._step_tokens = step_tokens
        self._outputs: dict[PartKey, _Output] = {}
        self._idle: OrderedDict[PartKey, None] = OrderedDict()  # those that nobody holds, oldest first
        self._held: dict[Request, list[Part]] = {}
        self._num_tokens = 0
        self._step = 0
        self._forgotten: list[PartKey] = []
        self._encodes: list[Part] = []  # of this step; empty once it has run
        self._encoded_tokens = 0

    # ---- a step

    def begin_step(self) -> None:
        for part in self._encodes:  # the step before failed
            if part.key in self._outputs:
                self._forget(part.key)
        self._encodes = []
        self._encoded_tokens = 0
        self._step += 1

    def reserve(self, request: Request, start: int, num_tokens: int) -> int:
        """How many of the tokens from `start` can be computed in this step; what they need is held from now on."""
        for part in parts_within(request.parts, start, num_tokens):
            if not self._hold(request, part):
                return max(0, part.offset - start)
        return num_tokens

    def work(self) -> EncoderWork:
        """Of a step in which nothing is encoded there is none: what is forgotten can wait until its room is needed."""
        if not self._encodes:
            return NO_WORK
        work = EncoderWork(tuple(self._forgotten), tuple(self._encodes))
        self._forgotten.clear()
        return work

    def ran(self) -> None:
        """The step has run: what was to be made is there."""
        self._encodes = []

    # ---- requests

    def computed(self, request: Request, num_computed: int) -> None:
        """Lets go of what has filled its last placeholder."""
        held = self._held.get(request, [])
        for part in [part for part in held if part.end <= num_computed]:
            held.remove(part)
            self._let_go(request, part)

    def release(self, request: Request) -> None:
        for part in self._held.pop(request, ()):
            self._let_go(request, part)

    # ---- room

    def _hold(self, request: Request, part: Part) -> bool:
        output = self._outputs.get(part.key)
        if output is None:
            if self._encoded_tokens and self._encoded_tokens + part.num_tokens > self._step_tokens:
                return False
            if not self._make_room(request, part.num_tokens):
                return False
            output = self._outputs[part.key] = _Output(part.num_tokens)
            self._num_tokens += part.num_tokens
            self._encodes.append(part)
            self._encoded_tokens += part.num_tokens
        output.step = self._step
        held = self._held.setdefault(request, [])
        if part not in held:
            held.append(part)
            output.holders.append(request)
            self._idle.pop(part.key, None)
        return True

    def _make_room(self, request: Request, num_tokens: int) -> bool:
        while self._num_tokens + num_tokens > self._capacity:
            victim = self._victim(request)
            if victim is None:
                return False
            self._forget(victim)
        return True

    def _victim(self, request: Request) -> PartKey | None:
        """What nobody holds, then what only the preempted hold, then what only requests that do not rank above hold.

        So the best of the running requests, which is planned first, always finds room.
        """
        if self._idle:
            return next(iter(self._idle))
        spared = [key for key, output in self._outputs.items() if output.step != self._step]
        for key in spared:
            if all(holder.state is not State.RUNNING for holder in self._outputs[key].holders):
                return key
        for key in spared:
            if all(
                holder.state is not State.RUNNING or holder.rank >= request.rank
                for holder in self._outputs[key].holders
            ):
                return key
        return None

    def _let_go(self, request: Request, part: Part) -> None:
        holders = self._outputs[part.key].holders
        holders.remove(request)
        if not holders:
            self._idle[part.key] = None

    def _forget(self, key: PartKey) -> None:
        output = self._outputs.pop(key)
        self._num_tokens -= output.num_tokens
        for request in set(output.holders):
            self._held[request] = [part for part in self._held[request] if part.key != key]
        self._idle.pop(key, None)
        self._forgotten.append(key)

    def check_integrity(self, living: list[Request]) -> None:
        """For tests. `living`: requests that have not ended."""
        assert self._num_tokens == sum(output.num_tokens for output in self._outputs.values())
        assert self._num_tokens <= self._capacity
        assert self._idle.keys() == {key for key, output in self._outputs.items() if not output.holders}
        assert self._held.keys() <= set(living)
        for key, output in self._outputs.items():
            held = [request for request, parts in self._held.items() for part in parts if part.key == key]
            assert sorted(map(id, held)) == sorted(map(id, output.holders))
        assert all(part.key in self._outputs for parts in self._held.values() for part in parts)
        assert not any(part.end <= request.num_computed for request, parts in self._held.items() for part in parts)
