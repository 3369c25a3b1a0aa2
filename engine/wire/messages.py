"""What gateway and worker say to each other: frozen, typed, versioned. Owns the fields and their meaning.

Knows nothing of sockets, encodings or of how either side works. Every accepted `Submit` is answered by any number of
`Tokens` and then by exactly one `Finished` or `Failed`.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from engine.wire.grammar import Grammar

PROTOCOL_VERSION = 2

FinishReason = Literal["stop", "length", "abort"]


class Message(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Base of everything on the wire; the class name is the tag."""


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How tokens are chosen. Bounds are the gateway's to check; the worker takes them as given."""

    max_tokens: int
    min_tokens: int = 0  # stop ids are masked until then
    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output
    presence_penalty: float = 0.0  # over output
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words_ids: tuple[tuple[int, ...], ...] = ()  # token sequences that must not be completed
    seed: int | None = None  # a token then depends on (seed, choice index, position) and the logits alone
    stop_token_ids: tuple[int, ...] = ()  # the end-of-turn ids included, unless they are ignored
    logprobs: int | None = None  # how many alternatives with each token; 0: the token's own only
    prompt_logprobs: int | None = None


# ---- gateway to worker

MediaKind = Literal["image", "audio"]  # films come as the pictures and sounds that they are shown as


class MediaItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """A picture or a sound, and the placeholders in the prompt that it fills.

    Pictures are upright RGB, uint8 [height, width, 3], resized so that both sides are multiples of a token's; sounds
    are mono at 16 kHz, float32 [samples]. Both little-endian, C order, without gaps.
    """

    kind: MediaKind
    offset: int  # of its first placeholder in `prompt_ids`; the others follow it at once
    num_tokens: int  # placeholders
    shape: tuple[int, ...]
    identity: bytes  # 32 bytes, a digest of all that changes the result: kind, shape, content, processing parameters
    start: int = 0  # of its bytes in the request's `MediaData`; items of equal content may share them

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * (1 if self.kind == "image" else 4)


class MediaData(msgspec.Struct, frozen=True, omit_defaults=True):
    """The bytes of a request's media: in one shared blob (`engine.wire.blobs`) or in the message itself."""

    num_bytes: int
    blob: str = ""  # its name; the worker takes it, once
    inline: bytes = b""


class Submit(Message, frozen=True):
    """One request of one or more choices over one prompt."""

    request_id: str  # unique in the worker: the gateway puts its own id in front
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    n: int = 1
    priority: int = 0  # lower runs first
    cache_salt: str = ""
    keep_offsets: tuple[int, ...] = ()  # where another is likely to go on, besides this prompt's own end
    deadline_s: float | None = None  # seconds from receipt; then it is aborted
    media: tuple[MediaItem, ...] = ()  # in the order of their offsets
    media_data: MediaData | None = None  # there if there are media
    grammar: Grammar | None = None
    speculative_tokens: int | None = None  # drafted at most for each step; None: as many as the worker drafts


class Abort(Message, frozen=True):
    """End a request; idempotent. It still gets its one terminal message."""

    request_id: str


class Stop(Message, frozen=True):
    """End one choice as finished: the gateway found a stop string. Its last tokens were `num_tokens`."""

    request_id: str
    index: int
    num_tokens: int


# ---- worker to gateway


class GroupCapacity(msgspec.Struct, frozen=True):
    """One group of cache rows, as announced and logged."""

    name: str  # dsa, swa, mtp
    bytes_per_token: int
    grows: bool  # with the context, or bounded by a window


class MediaSupport(msgspec.Struct, frozen=True):
    """Which media a worker takes, and how."""

    kinds: tuple[MediaKind, ...]
    max_item_tokens: int  # of one picture or sound
    probe: str  # name of a blob of the worker: a gateway to which it `is_here` may send its data in blobs


class Ready(Message, frozen=True):
    """First message of a worker to each gateway: what it serves and its limits."""

    protocol_version: int
    worker_id: str
    pid: int
    device: str
    dtype: str
    model_path: str
    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    page_size: int  # tokens
    cache_bytes: int
    groups: tuple[GroupCapacity, ...]
    media: MediaSupport | None = None  # None: text only
    instance: str | None = None  # new with every start; a pid may be the same, in a container of its own
    kv_cache_dtype: str | None = None  # of latent rows; None: as `dtype`


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities at one position."""

    logprob: float  # of the token itself
    rank: int  # 1: the likeliest
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


class Tokens(Message, frozen=True, gc=False):  # one a token: it holds nothing that could hold it
    """New tokens of one choice, in order."""

    request_id: str
    index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None  # of this choice; the stop token itself is in token_ids
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None  # with the first tokens of choice 0


class Finished(Message, frozen=True):
    """All choices have ended."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int  # of the prompt, taken from the cache
    completion_tokens: int  # over all choices
    queue_s: float  # from receipt to the first step
    aborted: bool = False


class Failed(Message, frozen=True):
    """The request cannot be served; nothing more comes."""

    request_id: str
    code: str  # of server/errors.py
    message: str


class Beat(Message, frozen=True):
    """Sent a few times a second, and the worker's only source of figures. `progress` changes whenever work moves."""

    progress: int
    busy: bool  # there is work that ought to move
    running: int
    waiting: int
    cache_usage: dict[str, float]  # share of the byte budget by group
    preemptions: int
    prefix_queries: int  # prompt tokens looked up since start
    prefix_hits: int
    drafted_tokens: tuple[int, ...] = ()  # that were checked since start, by position behind the last token
    accepted_tokens: tuple[int, ...] = ()  # of them
    progress_deadline_s: float = 2.0  # busy and without a change of `progress` for longer: it hangs
    expert_load: tuple[int, ...] = ()  # by rank that holds whole experts: pairs of token and expert since start
    draining: bool = False  # it ends soon: what it has is finished, and so is what still comes, but nothing should


ToWorker = Submit | Abort | Stop
ToGateway = Ready | Tokens | Finished | Failed | Beat
