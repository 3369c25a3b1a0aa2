"""How one byte budget becomes cache rows: the layout of a page of each layer group, slabs, and the limits they allow.

Derived from model, engine settings and free memory, never written back into them. Allocates nothing.

Every slab belongs to one group at a time, so the groups share the budget and neither is padded to the other's width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from engine.config.engine import MAX_SPECULATIVE_TOKENS, CacheDtype, EngineConfig
from engine.config.model import ModelConfig

GroupName = Literal["dsa", "swa", "mtp"]
PartDtype = Literal["float32", "bfloat16", "float8_e4m3"]

_DTYPE_BYTES: dict[PartDtype, int] = {"float32": 4, "bfloat16": 2, "float8_e4m3": 1}
_ALIGNMENT_BYTES = 16  # of the parts of a page, so that each can be viewed in its own dtype and loaded in vectors
_FP8_BLOCK = 128  # latent values that share one fp32 scale; a narrower latent has one
_SLAB_WASTE = 1 / 64  # of a slab that may be too short for one more page
_MIN_SLABS = 32  # wanted: fewer would hardly move between the groups
_CPU_CACHE_BYTES = 1 << 30  # at most, unless asked for: a CPU has other users


@dataclass(frozen=True)
class RowPart:
    """One array of a page: [layers, page_size, width]."""

    name: str
    dtype: PartDtype
    width: int  # values of one token in one layer
    offset_bytes: int  # in the page

    @property
    def row_bytes(self) -> int:
        return self.width * _DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class GroupPlan:
    """Pages of one group. A page holds `page_size` tokens of all its layers, one part after the other."""

    name: GroupName
    num_layers: int
    window: int | None  # keys that a query sees, itself included; None: the whole history
    parts: tuple[RowPart, ...]
    page_bytes: int
    pages_per_slab: int

    @property
    def bytes_per_token(self) -> int:
        return self.num_layers * sum(part.row_bytes for part in self.parts)

    @property
    def grows(self) -> bool:
        return self.window is None

    def part(self, name: str) -> RowPart:
        return next(part for part in self.parts if part.name == name)


@dataclass(frozen=True)
class CapacityPlan:
    """What the cache holds and what a request may ask for. Page `p` of a group lies in slab `p // pages_per_slab`."""

    page_size: int  # tokens
    slab_bytes: int
    num_slabs: int
    dsa: GroupPlan
    swa: GroupPlan
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_encoder_tokens: int = 0  # media tokens encoded in one step, unless a single item is longer
    encoder_cache_tokens: int = 0  # media tokens whose embeddings are kept
    mtp: GroupPlan | None = None  # rows of the layer that drafts; None: nothing is drafted
    max_draft_rows: int = 0  # tokens of a step's sequences that decode, up to which drafts are added to them
    homes: int = 1  # ranks that each have such a cache of their own; a sequence's rows are in one of them
    spare_slabs: int = 0  # behind the others, of no sequence: for a recorded step, which has rows on idle ranks too

    @property
    def groups(self) -> tuple[GroupPlan, ...]:
        return (self.dsa, self.swa) if self.mtp is None else (self.dsa, self.swa, self.mtp)

    @property
    def cache_bytes(self) -> int:
        return self.all_slabs * self.slab_bytes

    @property
    def all_slabs(self) -> int:
        return self.num_slabs + self.spare_slabs

    @property
    def window(self) -> int:
        assert self.swa.window is not None
        return self.swa.window

    @property
    def window_bytes(self) -> int:
        """Rows of one sequence that do not grow with its length."""
        return self.window * self.swa.bytes_per_token

    def slabs_for(self, num_tokens: int) -> int:
        """Slabs in which one sequence can always be computed to this length, whatever order its pages came in."""
        dsa_pages = -(-num_tokens // self.page_size)
        return -(-dsa_pages // self.dsa.pages_per_slab) + self._window_slabs

    @property
    def max_sequence_tokens(self) -> int:
        """The longest sequence that the cache can hold alone."""
        slabs = self.num_slabs - self._window_slabs
        return max(0, slabs) * self.dsa.pages_per_slab * self.page_size

    @property
    def _window_slabs(self) -> int:
        """Slabs of the groups with a window, if each of their pages lies in one of its own."""
        return len(self.groups[1:]) * pages_of_window(self.window, self.page_size)

    def sequences_of(self, num_tokens: int) -> int:
        """How many sequences of this length fit at once, over all homes."""
        dsa_pages = -(-num_tokens // self.page_size)
        windowed = min(dsa_pages, pages_of_window(self.window, self.page_size))
        slabs = dsa_pages / self.dsa.pages_per_slab
        slabs += sum(windowed / group.pages_per_slab for group in self.groups[1:])
        return self.homes * int(self.num_slabs / slabs)

    def report(self, num_ranks: int = 1) -> str:
        """For the log. `num_ranks`: that share the model."""
        size = f"{self.cache_bytes / 2**30:.2f} GiB in {self.num_slabs} slabs of {self.slab_bytes / 2**20:.1f} MiB"
        window = f"for a window of {self.window}: {self.window_bytes / 1e6:.1f} MB a sequence, does not grow"
        short = min(4096, self.max_model_len)
        fit = f"{self.sequences_of(self.max_model_len)} of that length fit, or {self.sequences_of(short)} of {short:,}"
        lines = [
            f"cache {size}, pages of {self.page_size} tokens",
            f"  dsa: {self.dsa.num_layers} layers, {self.dsa.bytes_per_token:,} B/token, grows with the context",
            f"  swa: {self.swa.num_layers} layers, {self.swa.bytes_per_token:,} B/token {window}",
        ]
        if self.mtp is not None:
            lines.append(f"  mtp: drafts, {self.mtp.bytes_per_token:,} B/token for the same window")
        if self.homes > 1:
            lines[0] += f", on each of {self.homes} ranks, which hold the rows of different sequences"
        elif num_ranks > 1:
            lines[0] += f", on each of {num_ranks} ranks, which all hold the same rows"
        lines.append(f"  longest request {self.max_model_len:,} tokens; {fit}")
        return "\n".join(lines)


def pages_of_window(window: int, page_size: int) -> int:
    """Most pages that `window` consecutive tokens touch."""
    return (window - 2) // page_size + 2


def plan_capacity(model: ModelConfig, engine: EngineConfig, free_bytes: int) -> CapacityPlan:
    """`free_bytes`: memory of the device that the weights leave; not looked at where `cache_bytes` is given."""
    for kind in ("dsa", "swa"):
        if model.count(kind) == 0:
            raise ValueError(f"the cache is made for layers of both kinds, got none of kind {kind}")
    if engine.cache_dtype == "fp8":
        _check_fp8_ranks(model)
    budget = cache_budget(engine, free_bytes)
    quantised_index = engine.device == "cuda"
    windowed = _latent_rows(model.swa.kv_rank, model.swa.rope, engine.cache_dtype)
    dsa = _group("dsa", model.count("dsa"), None, _dsa_rows(model, engine, quantised_index), engine.page_size)
    swa = _group("swa", model.count("swa"), model.swa.window, windowed, engine.page_size)
    drafts = engine.speculative_tokens > 0
    mtp = _group("mtp", 1, model.swa.window, windowed, engine.page_size) if drafts else None
    slab_bytes = _slab_bytes(dsa.page_bytes, swa.page_bytes, budget)
    spare_slabs = int(engine.homes > 1 and engine.device == "cuda")
    plan = CapacityPlan(
        page_size=engine.page_size,
        slab_bytes=slab_bytes,
        num_slabs=budget // slab_bytes - spare_slabs,
        dsa=_in_slabs(dsa, slab_bytes),
        swa=_in_slabs(swa, slab_bytes),
        max_model_len=engine.max_model_len or model.max_position_embeddings,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_encoder_tokens=engine.max_encoder_tokens,
        encoder_cache_tokens=engine.encoder_cache_bytes // (model.hidden * _DTYPE_BYTES[engine.dtype]),
        mtp=None if mtp is None else _in_slabs(mtp, slab_bytes),
        max_draft_rows=min(engine.speculative_rows, engine.max_num_batched_tokens) if drafts else 0,
        homes=engine.homes,
        spare_slabs=spare_slabs,
    )
    return _limited(plan, engine.max_model_len, model.max_position_embeddings)


def recommended_drafts(model: ModelConfig, engine: EngineConfig) -> int:
    """How many drafts sped a lone stream up and slowed no load down, as measured (PERF.md); else 0."""
    measured = engine.device == "cpu" and engine.cache_dtype == "float32" and engine.tensor_parallel_size == 1
    return MAX_SPECULATIVE_TOKENS if measured and model.num_mtp_layers else 0


def cache_budget(engine: EngineConfig, free_bytes: int) -> int:
    if engine.cache_bytes is not None:
        return engine.cache_bytes
    if engine.device == "cpu":
        return min(_CPU_CACHE_BYTES, free_bytes // 4)
    return int(free_bytes * engine.gpu_memory_utilization)


def _check_fp8_ranks(model: ModelConfig) -> None:
    for name, rank in (("kv_lora_rank", model.dsa.kv_rank), ("swa_kv_lora_rank", model.swa.kv_rank)):
        if rank > _FP8_BLOCK and rank % _FP8_BLOCK:
            raise ValueError(
                f"{name} must be at most {_FP8_BLOCK} or a multiple of it for kv_cache_dtype fp8, got {rank}"
            )


def _latent_rows(rank: int, rope: int, dtype: CacheDtype) -> list[tuple[str, PartDtype, int]]:
    if dtype == "fp8":  # the rotary part stays exact: it is small, and rounding it costs most
        return [
            ("latent", "float8_e4m3", rank),
            ("latent_scale", "float32", -(-rank // _FP8_BLOCK)),
            ("rope", "bfloat16", rope),
        ]
    return [("latent", dtype, rank + rope)]


def _dsa_rows(model: ModelConfig, engine: EngineConfig, quantised_index: bool) -> list[tuple[str, PartDtype, int]]:
    dtype = engine.cache_dtype
    rows = _latent_rows(model.dsa.kv_rank, model.dsa.rope, dtype)
    width = model.indexer.width
    if quantised_index or dtype == "fp8":
        return [*rows, ("index_key", "float8_e4m3", width), ("index_scale", "float32", 1)]
    return [*rows, ("index_key", dtype, width)]


def _group(
    name: GroupName, num_layers: int, window: int | None, rows: list[tuple[str, PartDtype, int]], page_size: int
) -> GroupPlan:
    parts = []
    offset = 0
    for part_name, dtype, width in rows:
        part = RowPart(part_name, dtype, width, offset)
        parts.append(part)
        offset = _aligned(offset + num_layers * page_size * part.row_bytes)
    return GroupPlan(name, num_layers, window, tuple(parts), page_bytes=offset, pages_per_slab=0)


def _in_slabs(group: GroupPlan, slab_bytes: int) -> GroupPlan:
    return replace(group, pages_per_slab=slab_bytes // group.page_bytes)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def _slab_bytes(dsa_bytes: int, swa_bytes: int, budget: int) -> int:
    """The smallest size in which the pages of both groups fit with little waste, if the budget has room for enough."""
    largest = max(dsa_bytes, swa_bytes, budget // _MIN_SLABS)
    multiples = {page * count for page in (dsa_bytes, swa_bytes) for count in range(1, 65)}
    sizes = sorted(size for size in multiples if max(dsa_bytes, swa_bytes) <= size <= largest)

    def waste(size: int) -> float:
        return max(size % dsa_bytes, size % swa_bytes) / size

    return next((size for size in sizes if waste(size) <= _SLAB_WASTE), min(sizes, key=waste))


def _limited(plan: CapacityPlan, asked: int | None, trained: int) -> CapacityPlan:
    """With a `max_model_len` that one sequence can reach: asked for too much is an error, by default it is lowered."""
    if asked is not None and asked > trained:
        raise ValueError(f"max_model_len must be at most max_position_embeddings ({trained}), got {asked}")
    if (asked or 1) > plan.max_sequence_tokens:
        raise ValueError(
            f"the cache of {plan.cache_bytes} bytes holds {plan.max_sequence_tokens} tokens of one sequence, fewer than"
            f" max_model_len ({asked or 1}): give it"
            f" {(plan.slabs_for(asked or 1) + plan.spare_slabs) * plan.slab_bytes} bytes or more"
        )
    return replace(plan, max_model_len=min(plan.max_model_len, plan.max_sequence_tokens))
