import json
from argparse import BooleanOptionalAction, Namespace
from dataclasses import dataclass, fields
from typing import Any, Self

from vllm.utils.argparse_utils import FlexibleArgumentParser


@dataclass
class EngineArgs:
    model: str
    dtype: str
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    block_size: int | None
    structured_outputs_config: dict[str, Any]
    speculative_config: dict[str, Any] | None

    @classmethod
    def from_cli_args(cls, args: Namespace) -> Self:
        return cls(**{field.name: getattr(args, field.name) for field in fields(cls)})


class AsyncEngineArgs(EngineArgs):
    @staticmethod
    def add_cli_args(parser: FlexibleArgumentParser, async_args_only: bool = False) -> FlexibleArgumentParser:
        del async_args_only
        for flag in ("--model", "--dtype", "--kv-cache-dtype", "--scheduling-policy"):
            parser.add_argument(flag)
        for flag in ("--max-model-len", "--max-num-seqs", "--max-num-batched-tokens", "--block-size", "--seed"):
            parser.add_argument(flag, type=int)
        for flag in ("--kv-cache-memory-bytes", "--max-logprobs", "--tensor-parallel-size"):
            parser.add_argument(flag, type=int)
        for flag in ("--structured-outputs-config", "--speculative-config"):
            parser.add_argument(flag, type=json.loads)
        for flag in ("--enable-prefix-caching", "--enforce-eager", "--enable-expert-parallel"):
            parser.add_argument(flag, action=BooleanOptionalAction)
        parser.add_argument("--gpu-memory-utilization", type=float)
        return parser
