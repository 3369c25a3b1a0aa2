"""The engine itself, without gateway or processes: prompts of text -> greedy answers, all of them in its own scheduler.

For machines that have a GPU but no server. Knows nothing of scores. Items must be without media, whose way leads
through the gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from engine.config.engine import EngineConfig
from engine.config.model import ModelConfig
from engine.model.load import load_model
from engine.runtime.assembly import hold, runner_of
from engine.sched.scheduler import Scheduler
from engine.wire.messages import Sampling, Submit
from training.encode import Encoder
from training.evaluation.answer_text import read_answer
from training.evaluation.batches import Prompt
from training.evaluation.held_out import Key, Outcome
from training.evaluation.prompts import prompts

_CACHE_BYTES = 1 << 30


class Engine:
    def __init__(self, folder: Path, settings: EngineConfig) -> None:
        device = torch.device(settings.device)
        config = ModelConfig.from_folder(folder)
        self.settings = settings
        self.encoder = Encoder(folder)
        self.stop_ids = frozenset(config.eos_token_ids)
        model = load_model(folder, config, device, getattr(torch, settings.dtype), settings.max_model_len)
        held = hold(model, settings, _CACHE_BYTES)
        self.runner = runner_of(held, settings)
        self.scheduler = Scheduler(settings, held.plan)

    def answers(self, asked: Iterable[Prompt], answered: Callable[[Prompt, list[int]], None]) -> None:
        """`answered` gets each prompt's ids as they are complete; the last is a stop id unless it was cut off."""
        waiting: dict[str, Prompt] = {}
        for number, prompt in enumerate(asked):
            waiting[str(number)] = prompt
            sampling = Sampling(prompt.max_answer, temperature=0.0, stop_token_ids=tuple(self.stop_ids))
            self.scheduler.submit(Submit(str(number), tuple(prompt.example.ids.tolist()), sampling))
        while (batch := self.scheduler.schedule()) is not None:
            for output in self.scheduler.advance(batch, self.runner.run(batch).tokens):
                if output.finish_reason is not None:
                    answered(waiting.pop(output.request.request_id), output.request.output_ids)
        if waiting:
            raise RuntimeError(f"{len(waiting)} prompts were never answered, first that of {next(iter(waiting))}")


def load_engine(folder: Path, device: str | None, dtype: str | None, fp8_cache: bool) -> Engine:
    """Without a device the GPU if there is one, and its own dtype without one."""
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    cache = "fp8" if fp8_cache else "auto"
    return Engine(folder, EngineConfig.for_device(kind, dtype=dtype, kv_cache_dtype=cache, cache_bytes=_CACHE_BYTES))


def ask_engine(engine: Engine, keys: Iterable[Key], record: Callable[[Outcome], None]) -> None:
    def answered(prompt: Prompt, ids: list[int]) -> None:
        finished = ids[-1] in engine.stop_ids
        text = engine.encoder.tokenizer.decode(ids[:-1] if finished else ids)
        question = prompt.question
        record(Outcome(question, read_answer(text, question.thinking, question.tools, finished)))

    engine.answers(prompts(list(keys), engine.encoder), answered)
