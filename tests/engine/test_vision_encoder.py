"""The picture encoder against transformers': fp32 on the CPU, random weights, several pictures packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from engine.config.encoders import MediaConfig
from engine.config.model import ModelConfig
from engine.model.load import load_encoders
from engine.model.vision import Grid, PixelScale, VisionEncoder
from multimodal.image import ImageLimits, normalise, order_patches
from tests.support.tiny_media_model import PREPROCESSOR, VISION_CASES, media_config, write_media_checkpoint

pytestmark = pytest.mark.e2e

LIMITS = ImageLimits.from_preprocessor(PREPROCESSOR)
SCALE = PixelScale(LIMITS.mean, LIMITS.std)


class Pair(NamedTuple):
    encoder: VisionEncoder
    reference: Any


@pytest.fixture(scope="module", params=list(VISION_CASES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder: Path = tmp_path_factory.mktemp(request.param)
    config = media_config(request.param)
    reference = write_media_checkpoint(folder, config)
    encoders = load_encoders(
        folder,
        ModelConfig.from_folder(folder),
        MediaConfig.from_json(config, config["hidden_size"]),
        SCALE,
        torch.device("cpu"),
        torch.float32,
    )
    assert encoders.vision is not None
    return Pair(encoders.vision, reference.model.vision_tower)


def pictures(*grids: Grid, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 256, (14 * grid.rows, 14 * grid.columns, 3), dtype=np.uint8) for grid in grids]


def encode(pair: Pair, *grids: Grid, seed: int = 0) -> torch.Tensor:
    patches = np.concatenate([order_patches(picture) for picture in pictures(*grids, seed=seed)])
    return pair.encoder.forward(torch.from_numpy(patches), grids)


@torch.no_grad()
def expected(pair: Pair, *grids: Grid, seed: int = 0) -> torch.Tensor:
    pixels = np.concatenate([normalise(order_patches(picture), LIMITS) for picture in pictures(*grids, seed=seed)])
    sizes = torch.tensor([[1, grid.rows, grid.columns] for grid in grids])
    return pair.reference(torch.from_numpy(pixels), grid_thw=sizes).pooler_output


@pytest.mark.parametrize(
    "grids",
    [
        [Grid(2, 2)],
        [Grid(6, 10)],
        [Grid(2, 38), Grid(26, 2)],
        [Grid(4, 6), Grid(4, 6), Grid(6, 4), Grid(2, 2), Grid(4, 6)],
        [Grid(34, 48), Grid(14, 22)],
    ],
    ids=str,
)
def test_embeddings_are_those_of_the_reference(pair: Pair, grids: list[Grid]) -> None:
    ours, theirs = encode(pair, *grids), expected(pair, *grids)
    assert ours.shape == (sum(grid.rows * grid.columns for grid in grids) // 4, 96)
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


def test_a_picture_does_not_see_its_neighbours(pair: Pair) -> None:
    small, large = Grid(4, 6), Grid(10, 8)
    together = encode(pair, small, large)
    torch.testing.assert_close(together[:6], encode(pair, small), rtol=1e-5, atol=1e-5)


def test_places_change_the_result(pair: Pair) -> None:
    """A picture whose patches are all alike still gives tokens that know where they are."""
    grid = Grid(8, 8)
    patches = torch.zeros(64, 588, dtype=torch.uint8)
    patches[0] = 255
    rows = pair.encoder.forward(patches, [grid])
    assert (rows[1] - rows[-1]).abs().max() > 1e-3


def test_every_block_tells_of_itself(pair: Pair) -> None:
    calls: list[int] = []
    pair.encoder.forward(torch.zeros(4, 588, dtype=torch.uint8), [Grid(2, 2)], lambda: calls.append(1))
    assert len(calls) == len(pair.encoder.config.experts)
