"""How the worker is to run: every knob of the engine once, frozen and checked. Owns the defaults of each device.

Knows nothing of the model that is served; what follows from both is in `engine.config.capacity`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

Dtype = Literal["float32", "bfloat16"]
CacheDtype = Literal["float32", "bfloat16", "fp8"]
Device = Literal["cpu", "cuda"]

MAX_SPECULATIVE_TOKENS = 3  # for so many the layer that drafts was trained


@dataclass(frozen=True)
class EngineConfig:
    """The defaults are those of a CPU; `EngineConfig.for_device` gives those of any."""

    device: Device = "cpu"
    dtype: Dtype = "float32"
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"  # auto: rows as `dtype`, and FP8 index keys on a GPU
    page_size: int = 16  # tokens
    max_model_len: int | None = None  # tokens of prompt and answer; None: what model and cache allow
    max_num_seqs: int = 64  # sequences that run at once
    max_num_batched_tokens: int = 512  # of one step: bounds how long a prefill holds up the others
    # Of pictures and sounds encoded in one step, which holds up the others; a single item may have more. On a CPU many
    # together cost as much as one by one.
    max_encoder_tokens: int = 256
    encoder_cache_bytes: int = 64 << 20  # for their embeddings, so that the same item is not encoded again
    cache_bytes: int | None = None  # None: from the free memory
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool = True
    tensor_parallel_size: int = 1  # ranks that share every layer
    enable_expert_parallel: bool = False  # each of them holds whole experts
    attention_data_parallel: bool = False  # each of them attends for sequences of its own, whose rows it alone holds
    seed: int = 0  # of requests that bring none
    # Of a step's sequences that decode, up to which drafts are added to them: with more, drafts stop to pay (PERF.md).
    speculative_rows: int = 48
    speculative_tokens: int = 0  # drafted at most for each step of a sequence; 0: the layer that drafts is not loaded

    @classmethod
    def for_device(cls, device: Device, **given: Any) -> EngineConfig:
        """The device's defaults under what was given; None counts as not given."""
        defaults: dict[str, Any] = {"device": device}
        if device == "cuda":
            defaults |= {"dtype": "bfloat16", "page_size": 64, "max_num_seqs": 256, "max_num_batched_tokens": 8192}
            defaults |= {"speculative_rows": 64, "max_encoder_tokens": 8192, "encoder_cache_bytes": 1 << 30}
        known = {field.name for field in fields(cls)}
        if unknown := sorted(given.keys() - known):
            raise ValueError(f"the engine has no setting {', '.join(unknown)}")
        return cls(**(defaults | {name: value for name, value in given.items() if value is not None}))

    def __post_init__(self) -> None:
        for name, choices in (("device", Device), ("dtype", Dtype), ("kv_cache_dtype", Literal["auto", "fp8"])):
            if (value := getattr(self, name)) not in get_args(choices):
                raise ValueError(f"{name} must be one of {', '.join(get_args(choices))}, got {value!r}")
        for name in (
            *("page_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "cache_bytes"),
            *("max_encoder_tokens", "encoder_cache_bytes", "tensor_parallel_size", "speculative_rows"),
        ):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens must be at least max_num_seqs ({self.max_num_seqs}), so that every sequence"
                f" can take a token a step, got {self.max_num_batched_tokens}"
            )
        if self.attention_data_parallel and self.tensor_parallel_size < 2:
            raise ValueError(
                f"attention_data_parallel needs a tensor_parallel_size of at least 2, got {self.tensor_parallel_size}"
            )
        if not 0 <= self.speculative_tokens <= MAX_SPECULATIVE_TOKENS:
            raise ValueError(
                f"speculative_tokens must be from 0 to {MAX_SPECULATIVE_TOKENS}, got {self.speculative_tokens}"
            )
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(f"gpu_memory_utilization must be above 0 and at most 1, got {self.gpu_memory_utilization}")

    @property
    def homes(self) -> int:
        """Ranks with cached rows of their own."""
        return self.tensor_parallel_size if self.attention_data_parallel else 1

    @property
    def cache_dtype(self) -> CacheDtype:
        return "fp8" if self.kv_cache_dtype == "fp8" else self.dtype
