"""One batch through the model: input arrays, forward pass, logits of the rows that need them, sampled tokens.

Owns the sampler, the step's buffers, the prompt log-probabilities under way and, on the device, the ids sampled last,
which the step after may be launched with. Does not choose what is in a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np
import torch

from engine.config.capacity import CapacityPlan
from engine.model.context import ForwardContext
from engine.model.decoder import TextModel
from engine.model.kv_pool import KvPool
from engine.runtime.drafted import DraftedStep, DraftedSteps
from engine.runtime.drafts import Drafts
from engine.runtime.draws import Drawn, draw
from engine.runtime.graphs import DecodeGraphs, Stepped
from engine.runtime.logprobs import token_logprobs
from engine.runtime.loop import StepResult
from engine.runtime.masks import Masked, MaskJobs
from engine.runtime.media_encoder import MediaEncoder
from engine.runtime.parallel import LeadModel, RanksError, Recorded
from engine.runtime.sampler import Chosen, Sampler, asks_the_host
from engine.runtime.step_inputs import StepInputBuilder, StepInputs
from engine.runtime.transfers import Fetched, Fetcher, to_device
from engine.sched.batch import UNKNOWN_TOKEN, Scheduled, ScheduledBatch
from engine.sched.request import Request, State
from engine.wire.messages import TokenLogprobs

_PROMPT_ROWS_AT_ONCE = 256  # bounds the logits [rows, vocab] in memory

Ids = torch.Tensor | np.ndarray  # on the device; or, where a recorded step takes them from, as `DecodeGraphs.step` says


class LaunchedStep:
    """A step that the device has been given."""

    def __init__(self, requests: Sequence[Request], chosen: Chosen, fetched: Fetched) -> None:
        """`chosen`: on the device, for each of `requests`; `fetched`: its tensors."""
        self.requests = requests
        self.token_ids = chosen.token_ids
        self._chosen = chosen
        self._fetched = fetched

    def result(self) -> StepResult:
        """Waits for it."""
        sampled = self._chosen.fetched(self._fetched.wait()).sampled()
        tokens = zip(sampled.token_ids, strict=True)
        logprobs = zip(self.requests, sampled.logprobs or (), strict=False)
        return StepResult(
            dict(zip(self.requests, tokens, strict=True)),
            {request: (entry,) for request, entry in logprobs if entry is not None},
            {},
        )

    def wait(self) -> None:
        """Until what it drew may be overwritten."""
        self._fetched.wait()


class Runner:
    def __init__(
        self,
        model: TextModel | LeadModel,
        pool: KvPool,
        plan: CapacityPlan,
        sampler: Sampler,
        on_layer: Callable[[], None] | None,
        media: MediaEncoder | None = None,
        graphs: DecodeGraphs | Recorded | None = None,
        drafts: Drafts | None = None,
        drafted: DraftedSteps | None = None,
    ) -> None:
        """`on_layer` is called whenever the model has moved on by a layer. Without `media` there are only ids, without
        `graphs` steps of decodes alone are launched like any other, without `drafts` nothing is drafted, and without
        `drafted` no step with drafts is launched."""
        self._model = model
        self._pool = pool
        self._sampler = sampler
        self._media = media
        self._graphs = graphs
        self._drawing = graphs if isinstance(graphs, DecodeGraphs) and graphs.draws else None
        self._drafts = drafts
        self._drafted = drafted
        self._on_layer = on_layer
        self._homes = plan.homes
        self._device = model.device
        self._inputs = StepInputBuilder(
            plan.page_size, plan.max_model_len, plan.max_num_seqs, plan.max_num_batched_tokens
        )
        self._prompt_logprobs: dict[Request, list[TokenLogprobs | None]] = {}
        self._masks = MaskJobs(sampler.vocab_size)
        self._known: set[Request] = set()  # of whom anything is kept
        self._fetcher = Fetcher(self._device)
        self._launched: deque[LaunchedStep] = deque(maxlen=2)  # the last ones

    @torch.inference_mode()
    def run(self, batch: ScheduledBatch) -> StepResult:
        self.release_ended()  # first: this batch may run in the place of requests that ended just before it
        if self._drafted is not None:
            batch = self._drafted.known(batch)
        requests = [item.request for item in batch.items]
        self._known.update(requests)
        only_decodes = batch.num_decodes == len(requests)
        sampling = batch.items if only_decodes else [item for item in batch.items if item.samples]
        masks = self._begin_masks(sampling)
        inputs = self._inputs.build(requests, batch.items)
        step = self._step(batch, inputs, None)
        prompt_logprobs = self._read_prompts(batch, inputs, step.hidden)
        drawn = Drawn()
        if sampling:
            logits = self._logits(batch, inputs, step)
            drawn = draw(self._sampler, logits, sampling, None if masks is None else masks.result(), step.ids)
        drafts = {}
        if self._drafts is not None:
            drafts = self._drafts.make(batch.items, inputs.starts, step.hidden, drawn.tokens)
        return StepResult(drawn.tokens, drawn.logprobs, prompt_logprobs, drawn.stuck, drafts)

    def takes(self, batch: ScheduledBatch) -> bool:
        """Whether it can be launched: nothing to come of it is needed on the host before the next step is launched."""
        drafts = any(item.num_drafts or item.draft_rows for item in batch.items)
        if drafts and (self._drafted is None or batch.num_decodes < len(batch.items)):
            return False
        return all(
            item.samples
            and not item.request.reads_prompt
            and (item.request.sampling.logprobs is None if drafts else item.request.matcher is None)
            and not asks_the_host(item.request.sampling)
            for item in batch.items
        )

    @torch.inference_mode()
    def launch(self, batch: ScheduledBatch) -> LaunchedStep | DraftedStep:
        """As `run`, but does not wait for the device. Where tokens are unknown they are those of the last launch."""
        self.release_ended()
        requests = [item.request for item in batch.items]
        self._known.update(requests)
        self._admit(requests)
        inputs = self._inputs.build(requests, batch.items)
        if self._drafted is not None and any(item.num_drafts or item.draft_rows for item in batch.items):
            return self._launch_drafted(self._drafted, batch, inputs)
        if len(self._launched) == 2:
            self._launched[0].wait()  # its ids lie where this one's will; whoever launches has been told of them by now
        known = inputs.token_ids[0] != UNKNOWN_TOKEN  # all of them or none
        step = self._step(batch, inputs, None if known else self._last_ids(requests))
        chosen = self._sampler.choose(self._logits(batch, inputs, step), requests, None, step.ids)
        if step.ids is None and self._drawing is not None:
            self._drawing.keep_ids(chosen.token_ids)
        self._launched.append(LaunchedStep(requests, chosen, self._fetcher.fetch(chosen.tensors)))
        return self._launched[-1]

    def _launch_drafted(self, drafted: DraftedSteps, batch: ScheduledBatch, inputs: StepInputs) -> DraftedStep:
        """Grammars say what they allow while the model runs, for which they need the drafts."""
        held = any(item.request.matcher is not None for item in batch.items)
        masks = self._begin_masks(drafted.known(batch).items) if held else None
        tokens = drafted.tokens(batch, inputs)
        step = self._step(batch, inputs, tokens)
        return drafted.finish(batch, tokens, step.hidden, self._logits(batch, inputs, step), masks)

    def _admit(self, requests: Sequence[Request]) -> None:
        for request in self._sampler.unknown(requests):
            self._sampler.add(request, request.sampling, request.index, request.tokens)

    def _last_ids(self, requests: Sequence[Request]) -> Ids:
        """What the last launch brings for each of these."""
        last = self._launched[-1]
        rows = np.arange(len(requests))
        if requests != last.requests:
            row_of = {request: row for row, request in enumerate(last.requests)}
            rows = np.array([row_of[request] for request in requests])
        return last.token_ids[self._to_device(rows)] if self._drawing is None else -1 - rows

    def _logits(self, batch: ScheduledBatch, inputs: StepInputs, step: Stepped) -> torch.Tensor:
        """Of the rows that are sampled."""
        if step.logits is not None:
            return step.logits
        return self._model.logits(self._sampled_rows(batch, inputs, step.hidden))

    def _sampled_rows(self, batch: ScheduledBatch, inputs: StepInputs, hidden: torch.Tensor) -> torch.Tensor:
        """Of each item that samples the last row that is not of a draft, and those of its drafts."""
        count = batch.num_decodes
        if count == len(batch.items):
            return hidden
        rows = list(range(inputs.starts[count]))  # all of the decodes'
        ends = zip(batch.items[count:], inputs.starts[count + 1 :], strict=True)
        rows += [end - 1 for item, end in ends if item.samples]
        return hidden if len(rows) == batch.num_tokens else hidden[self._to_device(np.array(rows))]

    def release_ended(self) -> None:
        gone = [request for request in self._known if request.state is not State.RUNNING]
        if not gone:
            return
        self._known.difference_update(request for request in gone if request.state is State.ENDED)
        self._inputs.keep(lambda request: request.state is State.RUNNING)
        if self._drafts is not None:
            self._drafts.keep(lambda request: request.state is State.RUNNING)
        self._sampler.keep(lambda request: request.state is not State.ENDED)
        for request in [one for one in self._prompt_logprobs if one.state is State.ENDED]:
            del self._prompt_logprobs[request]

    def is_fatal(self, error: Exception) -> bool:
        """A GPU that reported anything but a lack of memory goes on reporting it; ranks that parted stay apart."""
        if isinstance(error, RanksError):
            return True
        return self._device.type == "cuda" and not isinstance(error, torch.OutOfMemoryError | ValueError)

    def _step(self, batch: ScheduledBatch, inputs: StepInputs, ids: Ids | None) -> Stepped:
        """`ids`: on the device, or where there, if they are not known here."""
        if self._media is not None:
            self._media.do(batch.encoder)  # also in a step of decodes alone, where whoever needs it found no pages
        if self._graphs is not None and batch.num_decodes == len(batch.items):
            return self._recorded(self._graphs, batch, inputs, ids)
        context = _context(inputs, batch, self._to_device, self._homes)
        if ids is None:
            ids = self._tokens(batch, inputs)
        assert isinstance(ids, torch.Tensor)
        return Stepped(self._model.forward(ids, context, self._pool, self._on_layer), None, None)

    def _recorded(
        self, graphs: DecodeGraphs | Recorded, batch: ScheduledBatch, inputs: StepInputs, ids: Ids | None
    ) -> Stepped:
        context = _context(inputs, batch, torch.from_numpy, self._homes)
        if not isinstance(graphs, DecodeGraphs):
            return Stepped(graphs.forward(torch.from_numpy(inputs.token_ids), context), None, None)
        token_ids = inputs.token_ids if ids is None else ids
        if batch.num_tokens > len(batch.items):  # each of a burst's rows is drawn as if those before it had been said
            return graphs.step(token_ids, context, None)._replace(ids=None)
        requests = [item.request for item in batch.items]
        self._admit(requests)
        return graphs.step(token_ids, context, self._sampler.draws(requests))

    def _tokens(self, batch: ScheduledBatch, inputs: StepInputs) -> torch.Tensor:
        """Ids, or embeddings where media stand among them."""
        ids = self._to_device(inputs.token_ids)
        if self._media is None or not any(item.media for item in batch.items):
            return ids
        embeddings = self._model.embed(ids)
        self._media.fill(embeddings, batch.items, inputs.starts)
        return embeddings

    def _begin_masks(self, items: Sequence[Scheduled]) -> Future[list[Masked]] | None:
        """Of those that have a grammar, in their order, while the model runs."""
        held = [(matcher, item) for item in items if (matcher := item.request.matcher) is not None]
        if not held:
            return None
        return self._masks.begin([matcher for matcher, _ in held], [item.drafts for _, item in held])

    def _read_prompts(
        self, batch: ScheduledBatch, inputs: StepInputs, hidden: torch.Tensor
    ) -> dict[Request, tuple[TokenLogprobs | None, ...]]:
        """Those that are complete with this step."""
        complete = {}
        prefills = slice(batch.num_decodes, len(batch.items))
        for item, start in zip(batch.items[prefills], inputs.starts[prefills], strict=True):
            if not item.request.reads_prompt:
                continue
            if item.start == 0:  # also when it was preempted half way
                self._prompt_logprobs[item.request] = [None]
            entries = self._prompt_logprobs[item.request]
            entries += self._prompt_entries(item, hidden[start : start + item.num_tokens])
            if len(entries) == item.request.num_prompt:
                complete[item.request] = tuple(self._prompt_logprobs.pop(item.request))
        return complete

    def _prompt_entries(self, item: Scheduled, hidden: torch.Tensor) -> list[TokenLogprobs]:
        """Of the tokens that follow those of `item` in the prompt."""
        following = item.request.tokens[item.start + 1 : item.start + 1 + item.num_tokens]
        wanted = item.request.sampling.prompt_logprobs or 0
        entries = []
        for first in range(0, len(following), _PROMPT_ROWS_AT_ONCE):
            targets = self._to_device(np.array(following[first : first + _PROMPT_ROWS_AT_ONCE]))
            logits = self._model.logits(hidden[first : first + len(targets)])
            entries += token_logprobs(logits.float().log_softmax(-1), targets, [wanted] * len(targets))
        return entries

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return to_device(array, self._device)


def _context(
    inputs: StepInputs, batch: ScheduledBatch, tensor: Callable[[np.ndarray], torch.Tensor], homes: int
) -> ForwardContext:
    return ForwardContext(
        positions=tensor(inputs.positions),
        query_starts=inputs.query_starts,
        seq_lens=inputs.seq_lens,
        num_decodes=len(inputs.seq_lens) - (len(batch.items) - batch.num_decodes),  # those for drafts are decodes too
        dsa_slots=tensor(inputs.dsa_slots),
        swa_slots=tensor(inputs.swa_slots),
        dsa_table=tensor(inputs.dsa_table),
        swa_table=tensor(inputs.swa_table),
        homes=[item.home for item in batch.items for _ in range(1 + item.num_drafts)] if homes > 1 else None,
        one_sequence=len(batch.items) == 1,
    )
