"""Drives a TextModel over a real page pool without scheduler or runner: sequences grow by whatever chunks a test wants.

Unused memory is NaN, pages are handed out in random order, and pages that the window has left are filled with NaN
again, so that reading a wrong row shows.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from engine.config.capacity import CapacityPlan, GroupPlan, plan_capacity
from engine.config.engine import Device, Dtype, EngineConfig
from engine.config.model import ModelConfig
from engine.model.context import ForwardContext
from engine.model.decoder import TextModel
from engine.model.kv_pool import KvPool


@dataclass
class _Sequence:
    tokens: int = 0
    pages: dict[str, list[int]] = field(default_factory=lambda: {"dsa": [], "swa": []})


class PagedRun:
    def __init__(
        self,
        model: TextModel,
        *,
        page_size: int = 4,
        cache_bytes: int = 1 << 24,
        dtype: Dtype = "float32",
        layout: Device = "cpu",
        kv_cache_dtype: Literal["auto", "fp8"] = "auto",
    ) -> None:
        """`layout`: the device whose cache layout is used, whatever device the model is on."""
        self.model = model
        engine = EngineConfig(
            layout, dtype, kv_cache_dtype, page_size, cache_bytes=cache_bytes, max_num_batched_tokens=4096
        )
        self.plan = plan_for(model.config, engine)
        self.pool = KvPool(self.plan, model.device)
        self.pool.buffer.view(torch.float32).fill_(float("nan"))
        self._sequences: dict[int, _Sequence] = {}
        self._shared: set[tuple[str, int]] = set()  # pages that are never handed back
        self._random = random.Random(0)
        slabs = list(range(self.plan.num_slabs))
        self._random.shuffle(slabs)
        half = len(slabs) // 2
        self._free = {
            group.name: [
                slab * group.pages_per_slab + place for slab in own for place in range(group.pages_per_slab)
            ]
            for group, own in ((self.plan.dsa, slabs[:half]), (self.plan.swa, slabs[half:]))
        }  # fmt: skip
        for pages in self._free.values():
            self._random.shuffle(pages)

    def step(
        self,
        new: Mapping[int, Sequence[int]],
        *,
        prefill: frozenset[int] = frozenset(),
        embedded: bool = False,
        apart: bool = False,
    ) -> dict[int, Tensor]:
        """Runs these tokens of these sequences → final hidden states of each, by sequence.

        A sequence with one token is a decode if it has tokens before, unless named in `prefill`. `embedded`: the model
        is given embeddings instead of ids. `apart`: the tokens of the only sequence are a decode each, as drafts are.
        """
        decodes = [s for s, ids in new.items() if len(ids) == 1 and self._of(s).tokens and s not in prefill]
        order = decodes + [s for s in new if s not in decodes]
        starts, lens, ids, positions = [0], [], [], []
        for name in order:
            sequence = self._of(name)
            positions += range(sequence.tokens, sequence.tokens + len(new[name]))
            sequence.tokens += len(new[name])
            ids += new[name]
            starts.append(len(ids))
            lens.append(sequence.tokens)
            for group in self.plan.groups:
                self._grow(sequence, group)
        owners = [name for name in order for _ in new[name]]
        num_decodes = len(decodes)
        if apart:
            (name,) = new
            order, num_decodes = [name] * len(ids), len(ids)
            starts, lens = list(range(len(ids) + 1)), [position + 1 for position in positions]
        context = ForwardContext(
            positions=torch.tensor(positions, device=self.model.device),
            query_starts=starts,
            seq_lens=lens,
            num_decodes=num_decodes,
            dsa_slots=self._slots("dsa", owners, positions),
            swa_slots=self._slots("swa", owners, positions),
            dsa_table=self._table("dsa", order),
            swa_table=self._table("swa", order),
            one_sequence=apart,
        )
        tokens = torch.tensor(ids, device=self.model.device)
        hidden = self.model.forward(self.model.embed(tokens) if embedded else tokens, context, self.pool)
        for name in new:
            self._leave_window(self._of(name))
        if apart:
            return {name: hidden}
        return {name: hidden[start:end] for name, start, end in zip(order, starts, starts[1:], strict=False)}

    def end(self, name: int) -> None:
        """The sequence is gone; its pages are used by others."""
        for group, pages in self._sequences.pop(name).pages.items():
            self._free[group] += [page for page in pages if page >= 0 and (group, page) not in self._shared]
            self._random.shuffle(self._free[group])

    def share(self, old: int, new: int) -> None:
        """A new sequence begins with all tokens of an old one, in the same pages; both may go on. Only whole pages."""
        sequence = self._sequences[old]
        if sequence.tokens % self.plan.page_size:
            raise ValueError(f"only whole pages can be shared, got {sequence.tokens} tokens")
        self._shared |= {(group, page) for group, pages in sequence.pages.items() for page in pages}
        copies = {group: list(pages) for group, pages in sequence.pages.items()}
        self._sequences[new] = _Sequence(sequence.tokens, copies)

    def _of(self, name: int) -> _Sequence:
        return self._sequences.setdefault(name, _Sequence())

    def _grow(self, sequence: _Sequence, group: GroupPlan) -> None:
        pages = sequence.pages[group.name]
        while len(pages) * self.plan.page_size < sequence.tokens:
            pages.append(self._free[group.name].pop())

    def _leave_window(self, sequence: _Sequence) -> None:
        pages = sequence.pages["swa"]
        for number, page in enumerate(pages):
            if page >= 0 and (number + 1) * self.plan.page_size <= sequence.tokens - self.plan.window + 1:
                pages[number] = -1
                if ("swa", page) not in self._shared:
                    self._poison(self.plan.swa, page)
                    self._free["swa"].insert(0, page)

    def _poison(self, group: GroupPlan, page: int) -> None:
        slab, place = divmod(page, group.pages_per_slab)
        start = slab * self.plan.slab_bytes + place * group.page_bytes
        self.pool.buffer[start : start + group.page_bytes].view(torch.float32).fill_(float("nan"))

    def _slots(self, group: str, owners: list[int], positions: list[int]) -> Tensor:
        size = self.plan.page_size
        return torch.tensor(
            [self._of(s).pages[group][p // size] * size + p % size for s, p in zip(owners, positions, strict=True)],
            device=self.model.device,
        )

    def _table(self, group: str, order: list[int]) -> Tensor:
        width = max(len(self._of(name).pages[group]) for name in order)
        rows = [self._of(name).pages[group] for name in order]
        padded = [row + [-1] * (width - len(row)) for row in rows]
        return torch.tensor(padded, dtype=torch.int32, device=self.model.device)


def plan_for(config: ModelConfig, engine: EngineConfig) -> CapacityPlan:
    return plan_capacity(config, engine, free_bytes=0)
