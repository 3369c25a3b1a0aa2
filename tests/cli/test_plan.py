"""`dots3 plan`: what is told of the released model, and of folders with and without weights."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app

ROOT = Path(__file__).resolve().parents[2]
RELEASED = str(ROOT / "tests/fixtures/chat/config.released.json")
FP8 = str(ROOT / "tests/fixtures/chat/config.released-fp8.json")
TINY = str(ROOT / "models/dots3-note-tiny")


EIGHT = ("--tensor-parallel-size", "8", "--enable-expert-parallel")


def plan(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["plan", *args])
    return result.exit_code, result.output


def test_the_released_model_takes_what_is_known_of_it() -> None:
    code, text = plan(RELEASED)
    assert code == 0
    assert "279,551,729,536 weights" in text
    assert "13 dsa layers: 16,692 B/token, grow" in text
    assert "36.8 MB for the window of 513 tokens" in text


def test_the_readme_quotes_what_is_told() -> None:
    _, text = plan(RELEASED)
    quoted = re.search(r"on the released configuration:\n\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert quoted is not None
    assert quoted[1] in text


@pytest.mark.parametrize(
    ("args", "number"),
    [((TINY, "--device", "cpu"), 3), ((TINY, "--device", "cpu", "--dtype", "bfloat16"), 0), ((TINY,), 0)],
)
def test_drafts_are_recommended_where_they_were_measured_to_pay(args: tuple[str, ...], number: int) -> None:
    assert f"--speculative-tokens {number} is recommended" in plan(*args)[1]


def test_fp8_rows_take_about_half() -> None:
    _, text = plan(RELEASED, "--kv-cache-dtype", "fp8")
    assert "13 dsa layers: 10,244 B/token" in text


def test_what_fits_is_told_by_length() -> None:
    code, text = plan(RELEASED, "--gpu-memory", "640GiB")
    assert code == 0
    assert "longest request: 524,288 tokens" in text
    assert "sequences of 8,192 tokens that fit at once" in text


def test_weights_larger_than_the_memory_do_not_fit() -> None:
    code, text = plan(RELEASED, "--gpu-memory", "80GiB")
    assert code == 1
    assert "does not fit: what comes before the cache takes 522.51 GiB of 80.00 GiB" in text


def test_a_cache_too_small_for_one_request_does_not_fit() -> None:
    code, text = plan(TINY, "--device", "cpu", "--gpu-memory", "125MiB", "--max-model-len", "8192")
    assert code == 1
    assert "does not fit: the cache of" in text


def test_weights_are_counted_from_the_headers_and_as_the_config_says(tmp_path: Path) -> None:
    _, counted = plan(TINY, "--device", "cpu")
    (tmp_path / "config.json").write_bytes(Path(TINY, "config.json").read_bytes())
    _, computed = plan(str(tmp_path), "--device", "cpu")
    text_model = "text model: 12,125,936 weights\n"
    assert counted.startswith(text_model)
    assert computed.startswith(text_model)
    assert "vision encoder: 1,397,896 weights\n" in counted
    assert "draft layer: 1,456,592 weights, not loaded\n" in counted
    assert "weights in float32: 56.62 MiB" in counted


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["nowhere"], "nowhere/config.json cannot be read"),
        ([TINY, "--device", "tpu"], "device must be one of cpu, cuda, got 'tpu'"),
        ([TINY, "--gpu-memory", "much"], "--gpu-memory must be a number of bytes"),
        ([TINY, "--kv-cache-dtype", "int8"], "kv_cache_dtype must be one of auto, fp8, got 'int8'"),
        ([TINY, "--gpu", "h300"], "--gpu must be one of h100-80gb, h200, got 'h300'"),
        ([FP8, "--tensor-parallel-size", "8"], "enable_expert_parallel spreads whole experts"),
        ([TINY, "--tensor-parallel-size", "0"], "greater than or"),
        ([TINY, "--tensor-parallel-size", "3"], "must divide heads of full-attention layers (8), got 3"),
        (
            [RELEASED, "--tensor-parallel-size", "128", "--no-attention-data-parallel"],
            "must divide heads of sliding-window layers (64), got 128",
        ),
        ([TINY, "--attention-data-parallel"], "needs a tensor_parallel_size of at least 2, got 1"),
    ],
)
def test_what_cannot_be_planned_is_refused(args: list[str], told: str) -> None:
    code, text = plan(*args)
    assert code == 2
    assert told in text


def test_a_file_that_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(json.loads(Path(TINY, "config.json").read_text())))
    (tmp_path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0not json")
    code, text = plan(str(tmp_path))
    assert code == 2
    assert "model.safetensors is no safetensors file" in text


def test_weights_of_a_rank_are_its_heads_its_widths_and_what_all_ranks_hold() -> None:
    code, text = plan(RELEASED, "--tensor-parallel-size", "8")
    assert code == 0
    assert "on each of 8 ranks: 67.73 GiB; heads 16 of 128 (dsa) and 8 of 64 (swa)" in text
    assert "dense width 1,728 of 13,824, shared 192 of 1,536, experts 256 of 256 in 192 of their width of 1,536" in text
    assert "attention by heads: every rank holds the rows of all tokens" in text
    assert "attention data-parallel (--attention-data-parallel): every rank holds the rows of its own" in text
    assert "heads 128 of 128 (dsa) and 64 of 64 (swa)" in text
    assert "chosen" not in text  # nobody said for what machine


def test_where_heads_cannot_be_shared_ranks_may_still_attend_for_their_own_sequences() -> None:
    code, text = plan(RELEASED, "--tensor-parallel-size", "128", "--gpu", "h200")
    assert code == 0
    assert "attention by heads cannot be: tensor_parallel_size must divide heads" in text
    assert "on each of 128 ranks" in text


def test_the_layout_that_alone_fits_is_chosen() -> None:
    """Whole attention on every rank takes 5.7 GiB more."""
    code, text = plan(FP8, "--gpu", "h200", "--gpu-memory", "39GiB", *EIGHT)
    assert code == 0
    assert "chosen: attention by heads, which alone fits" in text


def test_with_expert_parallelism_a_rank_holds_whole_experts_and_no_more_bytes() -> None:
    code, text = plan(RELEASED, "--tensor-parallel-size", "8", "--enable-expert-parallel")
    assert code == 0
    assert "on each of 8 ranks: 67.73 GiB" in text
    assert "experts 32 of 256 in 1,536 of their width of 1,536" in text


def test_a_model_too_large_for_one_device_fits_on_several() -> None:
    code, text = plan(RELEASED, "--gpu-memory", "141GiB", "--tensor-parallel-size", "8")
    assert code == 0
    assert "longest request: 524,288 tokens" in text
    assert plan(RELEASED, "--gpu-memory", "141GiB", "--tensor-parallel-size", "2")[0] == 1


def test_encoders_are_whole_on_every_rank() -> None:
    _, one = plan(TINY, "--device", "cpu")
    _, two = plan(TINY, "--device", "cpu", "--tensor-parallel-size", "2")
    parts = {name: int(count.replace(",", "")) for name, count in re.findall(r"(.+): ([\d,]+) weights", one)}
    mib = re.findall(r"on each of 2 ranks: ([\d.]+) MiB", two)[0]
    of_text = float(mib) * 2**20 / 4 - parts["vision encoder"] - parts["audio encoder"]
    assert 0.5 < of_text / parts["text model"] < 0.62
    assert "encoders are whole on every rank, which encodes its share of a step's pictures and sounds" in two


@pytest.mark.parametrize(
    ("gpu", "ranks", "weights", "cache", "tokens", "least_ms"),
    [
        ("h200", 8, "35.05", "93.54 GiB of the 103.95 GiB", "6,009,536", (0.7, 6.0, 10.3)),
        ("h200", 4, "67.81", "64.06 GiB of the 71.19 GiB", "4,113,408", (1.2, 11.3, 18.4)),
        ("h100-80gb", 8, "35.05", "39.54 GiB of the 43.95 GiB", "2,535,936", (1.0, 8.7, 14.8)),
    ],
)
def test_the_released_fp8_model_on_machines_that_hold_it(
    gpu: str, ranks: int, weights: str, cache: str, tokens: str, least_ms: tuple[float, ...]
) -> None:
    shared = ("--tensor-parallel-size", str(ranks), "--enable-expert-parallel", "--no-attention-data-parallel")
    code, text = plan(FP8, "--gpu", gpu, *shared)
    assert code == 0
    assert "weights in FP8, the others in bfloat16: 264.58 GiB" in text
    assert f"on each of {ranks} ranks: {weights} GiB" in text
    assert f"cache: {cache}" in text
    assert f"the cache holds {tokens} of one" in text
    assert tuple(map(float, re.findall(r"at least ([\d.]+) ms", text))) == least_ms
    expected = [float(ms) for ms in re.findall(r"expected ([\d.]+) ms", text)]
    assert len(expected) == 3
    assert all(one > least for one, least in zip(expected, least_ms, strict=True))


@pytest.mark.parametrize(
    ("gpu", "ranks", "weights", "cache", "tokens", "least_ms", "rates"),
    [
        ("h200", 8, "40.77", "707.23 GiB", 13_230_080, (1.8, 6.7, 9.6), ("11,713", "8,845")),
        ("h200", 4, "72.71", "238.61 GiB", 4_460_544, (2.1, 11.9, 17.8), ("8,395", "7,001")),
        ("h100-80gb", 8, "40.77", "275.23 GiB", 5_144_576, (2.5, 9.6, 13.8), ("9,278", "6,850")),
    ],
)
def test_the_released_fp8_model_with_ranks_that_attend_for_their_own_sequences(
    gpu: str,
    ranks: int,
    weights: str,
    cache: str,
    tokens: int,
    least_ms: tuple[float, ...],
    rates: tuple[str, str],
) -> None:
    code, text = plan(FP8, "--gpu", gpu, "--tensor-parallel-size", str(ranks), "--enable-expert-parallel")
    assert code == 0
    by_heads, own = text.split("attention data-parallel (--attention-data-parallel)")
    assert f"on each of {ranks} ranks: {weights} GiB; heads 128 of 128" in own
    assert f"on each rank, {cache} together" in own
    assert f"sequences of 1,024 tokens that fit at once: {tokens // 1024:,}, {tokens:,} tokens together" in own
    assert tuple(map(float, re.findall(r"at least ([\d.]+) ms", own))) == least_ms
    assert f"chosen: attention data-parallel: {rates[0]} tokens/s from 256 sequences of 2,048 tokens, and" in own
    assert f" {rates[1]} from 256 with attention by heads" in own
    [more] = [float(weights) - float(one) for one in re.findall(r"ranks: ([\d.]+) GiB", by_heads)]
    assert more == pytest.approx((1 - 1 / ranks) * attention_of_heads() / 2**30, abs=0.02)


def attention_of_heads() -> int:
    """Bytes that the released checkpoint has by head: query up-projections, outputs and gates in FP8; what takes
    latents up to keys and values in bfloat16, twice."""
    dsa = 128 * (192 * 1024 + 128 * 5120 + 5120) + 4 * 128 * (128 + 128) * 512
    swa = 64 * (256 * 1024 + 128 * 5120 + 5120) + 4 * 64 * (192 + 128) * 1024
    return 13 * dsa + 33 * swa
