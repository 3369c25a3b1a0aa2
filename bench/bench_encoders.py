"""What pictures and sounds cost in the encoders, beside transformers' own, in turns: CPU time of one thread.

Both get the same patches and log-mel, and have to agree before anything is timed. Ours packs items of several lengths;
the other pads sounds to the longest and takes pictures one by one.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bench.report import ROOT, Row, add_out, keep, machine, show, spread
from engine.config.model import ModelConfig
from engine.model.audio import Chunk
from engine.model.load import Encoders
from engine.model.vision import Grid
from engine.runtime.media import load_media
from multimodal.audio import SAMPLE_RATE, log_mel, valid_mel_frames
from multimodal.image import ImageLimits, normalise, order_patches

MODEL = ROOT / "models" / "dots3-note-tiny"
LARGEST_ERROR = 1e-4  # of the largest value


class Pair(NamedTuple):
    """One workload on both sides; each gives its embeddings."""

    ours: Callable[[], Tensor]
    theirs: Callable[[], Tensor]


def of_pictures(encoders: Encoders, reference: Any, grids: Sequence[Grid]) -> Pair:
    limits = ImageLimits.from_preprocessor(json.loads((MODEL / "preprocessor_config.json").read_text(encoding="utf-8")))
    random = np.random.default_rng(0)
    shapes = [(14 * grid.rows, 14 * grid.columns, 3) for grid in grids]
    patches = np.concatenate([order_patches(random.integers(0, 256, shape, dtype=np.uint8)) for shape in shapes])
    pixels, sizes = torch.from_numpy(normalise(patches, limits)), torch.tensor([[1, *grid] for grid in grids])
    vision, packed = encoders.vision, torch.from_numpy(patches)
    assert vision is not None
    return Pair(
        lambda: vision.forward(packed, grids),
        lambda: reference.vision_tower(pixels, grid_thw=sizes).pooler_output,
    )


def of_sounds(encoders: Encoders, reference: Any, seconds: Sequence[int]) -> Pair:
    random = np.random.default_rng(0)
    lengths = [length * SAMPLE_RATE for length in seconds]
    waves = [(0.1 * random.standard_normal(length)).astype(np.float32) for length in lengths]
    chunks = [Chunk(torch.from_numpy(log_mel(wave)[0]), valid_mel_frames(wave.size)) for wave in waves]
    padded = torch.zeros(len(chunks), *max((chunk.mel for chunk in chunks), key=lambda mel: mel.shape[1]).shape)
    for row, chunk in zip(padded, chunks, strict=True):
        row[:, : chunk.mel.shape[1]] = chunk.mel
    audio, samples = encoders.audio, torch.tensor(lengths)
    assert audio is not None
    return Pair(
        lambda: audio.forward(chunks),
        lambda: reference.audio_tower(padded, chunk_sample_lengths=samples).pooler_output,
    )


def cpu_ms(work: Callable[[], Tensor]) -> float:
    began_s = time.process_time()
    work()
    return 1000 * (time.process_time() - began_s)


def load_reference() -> Any:
    from transformers import Dots3NoteForConditionalGeneration, logging

    logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    whole = Dots3NoteForConditionalGeneration.from_pretrained(MODEL, dtype=torch.float32).eval()
    whole.set_attn_implementation("sdpa")
    return whole.model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    add_out(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    facts = machine("torch", "transformers")
    media = load_media(MODEL, ModelConfig.from_folder(MODEL), torch.device("cpu"), torch.float32)
    assert media is not None
    encoders, reference = media.encoders, load_reference()
    cases = {
        "a picture of 1,296 tokens": of_pictures(encoders, reference, [Grid(72, 72)]),
        "12 frames of 88 tokens": of_pictures(encoders, reference, [Grid(16, 22)] * 12),
        "4 pictures of several sizes": of_pictures(
            encoders, reference, [Grid(16, 22), Grid(34, 48), Grid(4, 4), Grid(10, 20)]
        ),
        "a minute of sound": of_sounds(encoders, reference, [60]),
        "12 sounds of 5 s": of_sounds(encoders, reference, [5] * 12),
        "a minute and 11 sounds of 3 s": of_sounds(encoders, reference, [60, *[3] * 11]),
    }
    rows, figures = [], dict[str, Any]()
    with torch.inference_mode():
        for name, pair in cases.items():
            ours, theirs = pair.ours(), pair.theirs()
            if (error := float((ours - theirs).abs().max() / theirs.abs().max())) > LARGEST_ERROR:
                raise SystemExit(f"{name}: embeddings differ by {error:.1e} of the largest, more than {LARGEST_ERROR}")
            turns = [(cpu_ms(pair.ours), cpu_ms(pair.theirs)) for _ in range(options.rounds)]
            own, other = (spread(values) for values in zip(*turns, strict=True))
            ratio = spread([second / first for first, second in turns])
            figures[name] = {"ours_ms": own, "theirs_ms": other, "ratio": ratio, "error": error}
            rows.append(Row(name, f"{own} ms, ratio {ratio}"))
    show("encoders beside transformers, CPU time of one thread", rows)
    keep("encoders", facts, figures, options.out)


if __name__ == "__main__":
    main()
