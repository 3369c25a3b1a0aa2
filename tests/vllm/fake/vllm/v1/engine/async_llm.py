import asyncio
import itertools
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError

_DEATH = -1
_BLOCK = 16
_VOCAB = 3072


class AsyncLLM:
    def __init__(self, engine_args: AsyncEngineArgs, stat_loggers: list[Any]) -> None:
        self._told = json.loads(os.environ["FAKE_VLLM"])
        args = engine_args
        drafts = args.speculative_config
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(
                dtype=f"torch.{args.dtype}", get_vocab_size=lambda: _VOCAB, max_model_len=args.max_model_len or 8192
            ),
            scheduler_config=SimpleNamespace(
                max_num_seqs=args.max_num_seqs or 256, max_num_batched_tokens=args.max_num_batched_tokens or 2048
            ),
            cache_config=SimpleNamespace(block_size=args.block_size or _BLOCK, num_gpu_blocks=1000, cache_dtype="auto"),
            parallel_config=SimpleNamespace(data_parallel_size=1),
            speculative_config=None if drafts is None else SimpleNamespace(**drafts),
        )
        self._loggers = [make(self.vllm_config, 0) for make in stat_loggers]
        self._known: set[tuple[int, ...]] = set()
        self._running = 0
        self._core = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", "the stand-in's engine"])
        self.errored = False

    @classmethod
    def from_engine_args(
        cls,
        engine_args: AsyncEngineArgs,
        start_engine_loop: bool = True,
        usage_context: Any = None,
        stat_loggers: list[Any] | None = None,
    ) -> "AsyncLLM":
        del start_engine_loop, usage_context
        return cls(engine_args, stat_loggers or [])

    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        prompt_text: str | None = None,
        lora_request: Any = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
        session_id: str | None = None,
        kv_hints: Any = None,
        reasoning_ended: bool | None = None,
        reasoning_parser_kwargs: dict[str, Any] | None = None,
    ) -> AsyncGenerator[Any, None]:
        del prompt_text, lora_request, tokenization_kwargs, trace_headers, data_parallel_rank, session_id, kv_hints
        del reasoning_ended, reasoning_parser_kwargs
        if sampling_params.output_kind is not RequestOutputKind.DELTA:
            raise ValueError("the stand-in tells what is new, and nothing else")
        self._log("begins", request_id, fields=repr(sampling_params), priority=priority, prompt=_described(prompt))
        self._running += 1
        end = "aborted"
        try:
            ids = tuple(prompt["prompt_token_ids"])
            cached = len(ids) // _BLOCK * _BLOCK if ids in self._known else 0
            for number, (token, reason) in enumerate(self._answer(sampling_params)):
                await asyncio.sleep(self._told.get("step_s", 0))
                self.errored = self.errored or token == _DEATH
                if self.errored:
                    end = "dead"
                    raise EngineDeadError
                self._known.add(ids)
                self._record(len(ids) if number == 0 else 0, cached if number == 0 else 0)
                yield self._output(ids, token, reason, number == 0, cached, sampling_params)
            end = "ended"
        finally:
            self._running -= 1
            self._log(end, request_id)

    def _answer(self, params: SamplingParams) -> Iterator[tuple[int, str | None]]:
        said = self._told["say"]
        chosen = said[(params.seed or 0) % len(said)] if params.temperature > 0 else said[0]
        if params.structured_outputs is not None:
            chosen = self._told["held"]
        # What nothing can stop goes on and on.
        for number, token in enumerate(chosen if params.stop_token_ids else itertools.cycle(chosen), 1):
            stops = number > params.min_tokens and token in (params.stop_token_ids or ())
            ended = "length" if number == params.max_tokens else None
            yield token, "stop" if stops else ended
            if stops or ended:
                return

    def _output(
        self, ids: tuple[int, ...], token: int, reason: str | None, is_first: bool, cached: int, params: SamplingParams
    ) -> Any:
        completion = SimpleNamespace(
            index=0,
            token_ids=[token],
            logprobs=None if params.logprobs is None else [self._position(token, params.logprobs)],
            finish_reason=reason,
        )
        asked = params.prompt_logprobs if is_first else None
        before = None if asked is None else [None, *(self._position(one, asked) for one in ids[1:])]
        return SimpleNamespace(
            outputs=[completion],
            prompt_token_ids=list(ids),
            prompt_logprobs=before,
            num_cached_tokens=cached,
            metrics=SimpleNamespace(queued_ts=1.0, scheduled_ts=1.25),
        )

    def _position(self, token: int, most: int) -> dict[int, Any]:
        """The token itself is the second likeliest."""
        likeliest = [token + 1, token, token + 2][:most]
        found = {one: SimpleNamespace(logprob=-0.5 * rank, rank=rank) for rank, one in enumerate(likeliest, 1)}
        return {token: SimpleNamespace(logprob=-1.0, rank=2)} | found

    def _record(self, queries: int, hits: int) -> None:
        stats = SimpleNamespace(
            num_running_reqs=self._running,
            num_waiting_reqs=0,
            kv_cache_usage=0.25,
            prefix_cache_stats=SimpleNamespace(queries=queries, hits=hits),
            spec_decoding_stats=None,
        )
        for logger in self._loggers:
            logger.record(stats, SimpleNamespace(num_preempted_reqs=0), mm_cache_stats=None, engine_idx=0)

    def _log(self, event: str, name: str, **more: Any) -> None:
        if "log" in self._told:
            with open(self._told["log"], "a", encoding="utf-8") as log:
                log.write(json.dumps({"event": event, "name": name, **more}) + "\n")

    def shutdown(self, timeout: float | None = None) -> None:
        del timeout
        self._core.kill()
        self._core.wait()


def _described(prompt: Mapping[str, Any]) -> dict[str, Any]:
    """Pictures and sounds by their sizes."""
    media = prompt.get("multi_modal_data") or {}
    sizes = {
        kind: [item.size if kind == "image" else [len(item[0]), item[1]] for item in items]
        for kind, items in media.items()
    }
    return {**prompt, "multi_modal_data": sizes}
