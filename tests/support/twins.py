"""A random tiny model twice over: ours, and transformers' with what it answers to some prompts.

The answers are made once a test module; every comparison of outputs is against them.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import torch

from engine.config.model import ModelConfig
from engine.kernels.ops import ops_for
from engine.model.decoder import TextModel
from engine.model.load import Checkpoint, load_model
from tests.support.numerics import Answer, ForcedChoices, answer_of
from tests.support.tiny_model import VOCAB, tiny_config, write_checkpoint

CPU = torch.device("cpu")
# The plain case has a near-tie in the last rows of its longest prompt, after which outputs do part.
SEEDS = {"plain": 3, "grouped": 0, "wide-latents": 0}


class Twins(NamedTuple):
    folder: Path
    config: ModelConfig
    model: TextModel
    prompts: list[list[int]]
    answers: list[Answer]

    def forced(self) -> tuple[TextModel, ForcedChoices]:
        """The same weights with the reference's choices."""
        forced = ForcedChoices(ops_for(CPU), self.config)
        with Checkpoint(self.folder, self.config, CPU, torch.float32) as weights:
            return TextModel(weights, self.config, forced.ops), forced


def make_twins(case: str, folder: Path, lengths: tuple[int, ...], num_shared: int = 0) -> Twins:
    """`num_shared`: tokens with which all prompts begin."""
    reference = write_checkpoint(folder, tiny_config(case), SEEDS[case])
    config = ModelConfig.from_folder(folder)
    drawn = random.Random(SEEDS[case] + 100)
    shared = [drawn.randrange(4, VOCAB) for _ in range(num_shared)]
    prompts = [shared + [drawn.randrange(4, VOCAB) for _ in range(length - num_shared)] for length in lengths]
    model = load_model(folder, config, CPU, torch.float32)
    return Twins(folder, config, model, prompts, [answer_of(reference, config, ids) for ids in prompts])
