"""vLLM's `AsyncLLM` as the rest of this worker sees it. The only file that touches vLLM, which is imported when asked.

Owns making the engine and translating its outputs. Knows nothing of gateways or of how many choices a request has.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from engine.vllm.figures import POOL, Figures
from engine.wire.messages import (
    PROTOCOL_VERSION,
    FinishReason,
    GroupCapacity,
    MediaKind,
    MediaSupport,
    Ready,
    TokenLogprobs,
)
from engine.wire.refused import RefusedError

DOTS3 = "dots3_note"
# A size that only says how many blocks there are: what a token takes is vLLM's own business.
_BYTES_OF_A_TOKEN = 1

log = logging.getLogger(__name__)


class EngineDiedError(Exception):
    """vLLM's engine is gone; nothing that it was asked will be answered."""


class Ask(NamedTuple):
    """One choice, in the words of vLLM."""

    name: str  # unique among those that run
    prompt: Mapping[str, Any]
    sampling: Mapping[str, Any]
    grammar: str | None
    priority: int


class News(NamedTuple):
    """What a step brought for a choice."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None
    finish_reason: FinishReason | None
    cached_tokens: int
    queue_s: float | None  # once it is known


class HostedEngine:
    """Made inside a running event loop, which stands still until the model is loaded."""

    def __init__(self, arguments: Sequence[str]) -> None:
        """`arguments`: of vLLM's own command line."""
        import vllm
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.utils.argparse_utils import FlexibleArgumentParser
        from vllm.v1.engine.async_llm import AsyncLLM

        parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(prog="vLLM"))
        engine_args = AsyncEngineArgs.from_cli_args(parser.parse_args(list(arguments)))
        self.figures = Figures()
        self._engine = AsyncLLM.from_engine_args(engine_args, stat_loggers=[lambda _config, _index: self.figures])
        self._config = self._engine.vllm_config
        log.info("vLLM %s holds the model", vllm.__version__)

    @property
    def died(self) -> bool:
        return bool(self._engine.errored)

    @property
    def num_drafts(self) -> int:
        """Of each step."""
        speculative = self._config.speculative_config
        return 0 if speculative is None else int(speculative.num_speculative_tokens)

    def ready(self, worker_id: str, pid: int, folder: Path, instance: str, probe: str) -> Ready:
        from vllm.platforms import current_platform

        model, scheduler, cache = self._config.model_config, self._config.scheduler_config, self._config.cache_config
        kinds = media_kinds(folder)
        return Ready(
            protocol_version=PROTOCOL_VERSION,
            worker_id=worker_id,
            pid=pid,
            device=str(current_platform.device_type),
            dtype=str(model.dtype).removeprefix("torch."),
            model_path=str(folder),
            vocab_size=int(model.get_vocab_size()),
            max_model_len=int(model.max_model_len),
            max_num_seqs=int(scheduler.max_num_seqs) * int(self._config.parallel_config.data_parallel_size),
            max_num_batched_tokens=int(scheduler.max_num_batched_tokens),
            page_size=int(cache.block_size),
            cache_bytes=int(cache.num_gpu_blocks or 0) * int(cache.block_size) * _BYTES_OF_A_TOKEN,
            groups=(GroupCapacity(POOL, _BYTES_OF_A_TOKEN, grows=True),),
            media=MediaSupport(kinds, int(scheduler.max_num_batched_tokens), probe) if kinds else None,
            instance=instance,
            kv_cache_dtype=None if cache.cache_dtype == "auto" else str(cache.cache_dtype),
        )

    async def generate(self, ask: Ask) -> AsyncGenerator[News, None]:
        """Whoever stops listening aborts it. RefusedError for what vLLM refuses, EngineDiedError when it is gone."""
        from vllm import SamplingParams, TokensPrompt
        from vllm.exceptions import GracefulHTTPError, VLLMClientError
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            held = None if ask.grammar is None else StructuredOutputsParams(grammar=ask.grammar)
            sampling = SamplingParams(**ask.sampling, structured_outputs=held, output_kind=RequestOutputKind.DELTA)
            prompt = TokensPrompt(**ask.prompt)
            async for output in self._engine.generate(prompt, sampling, ask.name, priority=ask.priority):
                yield _news(output, ask.sampling)
        except VLLMClientError as error:
            raise RefusedError("invalid_value", str(error)) from error
        except GracefulHTTPError as error:
            raise RefusedError("queue_full", str(error)) from error
        except EngineDeadError as error:
            raise EngineDiedError(str(error)) from error

    def close(self) -> None:
        self._engine.shutdown()


def media_kinds(folder: Path) -> tuple[MediaKind, ...]:
    """Of the model: only placeholders of Dots3 NOTE are known here, whatever else vLLM can read."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config.get("model_type") != DOTS3:
        return ()
    kinds: dict[MediaKind, str] = {"image": "vision_config", "audio": "audio_config"}
    return tuple(kind for kind, section in kinds.items() if isinstance(config.get(section), dict))


def _news(output: Any, sampling: Mapping[str, Any]) -> News:
    [completion] = output.outputs
    token_ids = tuple(completion.token_ids)
    logprobs = None
    if completion.logprobs is not None:
        pairs = zip(token_ids, completion.logprobs, strict=True)
        logprobs = tuple(token_logprobs(token, position, sampling["logprobs"]) for token, position in pairs)
    prompt_logprobs = None
    if output.prompt_logprobs is not None:
        positions = zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
        most = sampling["prompt_logprobs"]
        prompt_logprobs = tuple(
            None if position is None else token_logprobs(token, position, most) for token, position in positions
        )
    queue_s = None
    if output.metrics is not None and output.metrics.scheduled_ts:
        queue_s = float(output.metrics.scheduled_ts - output.metrics.queued_ts)
    reason = _finish_reason(completion.finish_reason)
    return News(token_ids, logprobs, prompt_logprobs, reason, output.num_cached_tokens or 0, queue_s)


def token_logprobs(token: int, position: Mapping[int, Any], most: int) -> TokenLogprobs:
    """`position`: vLLM's, by token; beside the likeliest it holds the token itself."""
    own = position[token]
    likeliest = sorted((entry.rank, other) for other, entry in position.items() if entry.rank <= most)[:most]
    return TokenLogprobs(
        float(own.logprob),
        int(own.rank),
        tuple(other for _, other in likeliest),
        tuple(float(position[other].logprob) for _, other in likeliest),
    )


def _finish_reason(reason: str | None) -> FinishReason | None:
    if reason in (None, "stop", "length", "abort"):
        return reason  # type: ignore[return-value]
    raise RuntimeError(f"vLLM ended an answer with {reason!r}")
