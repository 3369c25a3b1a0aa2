"""What is called of vLLM is there, under these names: the stand-in has the shape that was read from its wheel."""

import argparse
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from engine.vllm.arguments import parser, vllm_arguments
from engine.vllm.figures import Figures
from engine.vllm.sampling import sampling_fields
from engine.wire.messages import Sampling, Submit
from tests.vllm.signatures import FAKE, FIXTURE, fields_of, signatures_of

REAL: dict[str, Any] = json.loads(FIXTURE.read_text(encoding="utf-8"))
FAKED = signatures_of(FAKE)
EVERY_FLAG = [
    *("--listen", "ipc:///w", "--kv-cache-dtype", "fp8", "--max-model-len", "100", "--max-num-seqs", "3"),
    *("--max-num-batched-tokens", "64", "--gpu-memory-utilization", "0.5", "--kv-cache-memory-bytes", "1000"),
    *("--no-enable-prefix-caching", "--enforce-eager", "--tensor-parallel-size", "2", "--enable-expert-parallel"),
    *("--speculative-tokens", "2", "--seed", "7"),
]


@pytest.mark.parametrize("method", sorted(REAL["methods"]))
def test_methods_of_the_stand_in_take_what_those_of_vllm_take(method: str) -> None:
    assert FAKED["methods"][method] == REAL["methods"][method]


@pytest.mark.parametrize("name", ["SamplingParams", "StructuredOutputsParams", "RequestOutputKind"])
def test_the_stand_in_has_no_field_that_vllm_lacks(name: str) -> None:
    from_source = fields_of(FAKE / "vllm" / "sampling_params.py", name)
    assert from_source
    assert set(from_source) <= set(REAL["fields"][name])


def test_prompts_have_the_keys_that_vllm_reads() -> None:
    keys = {"prompt_token_ids", "multi_modal_data", "multi_modal_uuids", "mm_processor_kwargs", "cache_salt"}
    assert keys <= {*REAL["fields"]["_PromptOptions"], *REAL["fields"]["TokensPrompt"]}


def test_exceptions_are_where_they_are_looked_for() -> None:
    assert FAKED["exceptions"] == REAL["exceptions"]


def test_every_field_of_a_request_is_one_of_vllms() -> None:
    fields = sampling_fields(Submit("r", (1,), Sampling(max_tokens=1)), 0)
    assert set(fields) <= set(REAL["fields"]["SamplingParams"])


def test_figures_are_read_from_fields_that_vllm_has() -> None:
    source = inspect.getsource(Figures.record)
    there = REAL["fields"]
    assert set(re.findall(r"scheduler_stats\.(\w+)", source)) <= set(there["SchedulerStats"])
    assert set(re.findall(r"prefix_cache_stats\.(\w+)", source)) <= set(there["BaseCacheStats"])
    assert set(re.findall(r"drafts\.(\w+)", source)) <= set(there["SpecDecodingStats"])


def test_every_flag_is_one_of_vllms(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "dots3_note"}')
    flags: argparse.Namespace = parser().parse_args([*EVERY_FLAG, "--model", str(tmp_path)])
    chosen = [word for word in vllm_arguments(flags, []) if word.startswith("--")]
    assert "--block-size" in chosen
    assert {word.replace("--no-", "--") for word in chosen} <= set(REAL["flags"])
