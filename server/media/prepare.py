"""All media of one request: fetched side by side, decoded in the pool, films planned together, their frames read.

Owns which limits hold and that a failure names its content part. Knows nothing of HTTP requests or of the engine beyond
what its worker has announced.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from engine.wire.messages import Ready
from multimodal.audio import SAMPLE_RATE, SAMPLES_PER_TOKEN, num_audio_tokens
from multimodal.decode_jobs import DecodePicture, DecodeSound, Film, FramesMissing, Job, Picture, ProbeFilm, ReadFrames
from multimodal.file_limits import DEFAULT_LIMITS, FileLimits
from multimodal.film import ProbedFilm, film_sounds
from multimodal.film_file import PacketTimes
from multimodal.image import CHANNELS, ImageLimits, num_image_tokens
from multimodal.placeholders import AUDIO_PAD, IMAGE_PAD, VIDEO_PAD, film_placeholder
from multimodal.video import VideoPlan, flatten
from server.deltas import MediaReport
from server.errors import RequestError, shown
from server.media.decoded_cache import DecodedCache
from server.media.fetch import Downloads
from server.media.films import Asker, Turn, plan_films, turns_of
from server.media.pool import Decoded, DecodeError, DecodePool
from server.media.prepared import Piece, PreparedMedia
from server.media.sources import SourceError, base64_bytes, data_url_bytes, file_bytes
from server.media.together import all_of
from server.metrics import Metrics
from server.prompt import Prompts
from server.schemas.chat import ChatRequest
from server.schemas.media_knobs import MediaKnobs
from server.schemas.media_parts import MediaPart

_USUAL_DETAILS = ("auto", "low", "high")


@dataclass(frozen=True)
class MediaLimits:
    max_items: int = 512
    max_bytes: int = 256 * 2**20  # of one file
    max_request_bytes: int = 512 * 2**20  # of all files of a request
    cache_bytes: int = 256 * 2**20
    files: FileLimits = DEFAULT_LIMITS


class MediaPreparer:
    """Used from one event loop. Close it."""

    def __init__(
        self,
        prompts: Prompts,
        pool: DecodePool,
        downloads: Downloads,
        local_folder: str | None,
        metrics: Metrics,
        limits: MediaLimits = MediaLimits(),
    ) -> None:
        self.prompts = prompts
        self.pool = pool
        self.downloads = downloads
        self.local_folder = local_folder
        self.metrics = metrics
        self.limits = limits
        self.cache = DecodedCache(limits.cache_bytes)
        # One link at a time: each thread at work keeps the event loop waiting for its turn, and several do so in a row.
        self.reading = asyncio.Lock()

    async def prepare(self, request: ChatRequest, ready: Ready) -> PreparedMedia:
        """RequestError names the content part that is to blame."""
        turns = turns_of(request.messages)
        parts = [part for turn in turns for part in turn.parts]
        if self.prompts.image_limits is None:
            raise _refused(parts[0], "the model's folder has no preprocessor_config.json", "unsupported_value")
        self._check(parts, request.mm_processor_kwargs, ready)
        return await _Preparation(self, request, ready, turns, self.prompts.image_limits).run()

    def warm(self) -> None:
        self.pool.warm()
        self.downloads.warm()

    def close(self) -> None:
        self.pool.close()

    def _check(self, parts: Sequence[MediaPart], knobs: MediaKnobs, ready: Ready) -> None:
        kinds = () if ready.media is None else ready.media.kinds
        for part in parts:
            for needed in ("image",) if part.kind == "video" else (part.kind,):
                if needed not in kinds:
                    raise _refused(part, f"the worker that runs takes no {part.kind}", "unsupported_value")
        if len(parts) > self.limits.max_items:
            part = parts[self.limits.max_items]
            raise _refused(part, f"a request may hold {self.limits.max_items} media items at most, got {len(parts)}")
        pictures = sum(part.kind == "image" for part in parts)
        if isinstance(knobs.image_detail, list) and len(knobs.image_detail) != pictures:
            name = "mm_processor_kwargs.image_detail"
            text = f"`{name}` must hold one level for each of {pictures} pictures, got {len(knobs.image_detail)}"
            raise RequestError("invalid_value", text, name)


class _Preparation:
    """Of one request."""

    def __init__(
        self, of: MediaPreparer, request: ChatRequest, ready: Ready, turns: Sequence[Turn], limits: ImageLimits
    ) -> None:
        assert ready.media is not None
        self._of = of
        self._image_limits = limits
        self._request = request
        self._turns = turns
        self._parts = [part for turn in turns for part in turn.parts]
        self._max_model_len = ready.max_model_len
        self._max_item_tokens = min(ready.media.max_item_tokens, ready.max_model_len)
        self._hears = "audio" in ready.media.kinds
        self._details = self._details_of_pictures()
        # As many at a time as can be decoded, so that a request of many items does not keep out the others.
        self._places = asyncio.Semaphore(of.pool.num_processes)
        self._num_bytes = 0
        self._content: dict[str, bytes | bytearray] = {}
        self._keys: dict[str, bytes] = {}
        self._took_s: dict[str, float] = {}
        self._pieces: dict[str, Piece] = {}  # of pictures and sounds
        self._films: dict[str, ProbedFilm] = {}

    async def run(self) -> PreparedMedia:
        await all_of([self._load(part) for part in self._parts])
        films = [part for part in self._parts if part.kind == "video"]
        plans, frames = await self._planned_and_read(films) if films else ({}, {})
        for part in self._parts:
            self._of.metrics.media_items.labels(part.kind).inc()
            self._of.metrics.media_decode.labels(part.kind).observe(self._took_s.get(part.path, 0.0))
        return self._prepared(plans, frames)

    # ---- one by one

    async def _load(self, part: MediaPart) -> None:
        with _blamed_on(part):
            content = await self._fetched(part)
            digest = await asyncio.to_thread(hashlib.sha256, content)
            self._content[part.path], self._keys[part.path] = content, digest.digest()
            async with self._places:
                match part.kind:
                    case "image":
                        self._pieces[part.path] = await self._picture(part)
                    case "audio":
                        self._pieces[part.path] = await self._sound(part)
                    case "video":
                        self._films[part.path] = await self._film(part)
        if part.kind != "video":
            del self._content[part.path]
        self._check_room(part)

    async def _fetched(self, part: MediaPart) -> bytes | bytearray:
        limits, link = self._of.limits, part.link
        scheme = link[:8].partition(":")[0].lower()
        if part.is_content or scheme == "data":
            read = base64_bytes if part.is_content else data_url_bytes
            async with self._of.reading:
                content: bytes | bytearray = await asyncio.to_thread(read, link)
        elif scheme == "file":
            content = await asyncio.to_thread(file_bytes, link, self._of.local_folder, limits.max_bytes)
        else:
            return await self._of.downloads.get(link, self._count)
        self._count(len(content))
        if not content:
            raise SourceError("it holds no byte")
        return content

    def _count(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        if self._num_bytes > self._of.limits.max_request_bytes:
            raise SourceError(
                f"a request's media may have {self._of.limits.max_request_bytes} bytes together, got more"
            )

    async def _picture(self, part: MediaPart) -> Piece:
        knobs = self._request.mm_processor_kwargs
        limits = self._image_limits
        job = DecodePicture(
            self._of.limits.files,
            limits,
            Asker(knobs, "", limits, 0).overrides,
            self._details[part.path],
            self._max_item_tokens,
        )
        decoded = await self._decoded(part, job)
        assert isinstance(decoded.reply, Picture)
        size = decoded.reply.size
        return Piece("image", num_image_tokens(size, limits), (*size, CHANNELS), memoryview(decoded.data))

    async def _sound(self, part: MediaPart) -> Piece:
        files = self._of.limits.files
        longest_s = min(files.duration_s, self._max_item_tokens * SAMPLES_PER_TOKEN / SAMPLE_RATE)
        decoded = await self._decoded(part, DecodeSound(dataclasses.replace(files, duration_s=longest_s)))
        samples = len(decoded.data) // np.dtype(np.float32).itemsize
        return Piece("audio", num_audio_tokens(samples), (samples,), memoryview(decoded.data))

    async def _film(self, part: MediaPart, count_frames: bool = False) -> ProbedFilm:
        wants_sound = self._hears and self._request.mm_processor_kwargs.audio_cap != 0
        decoded = await self._decoded(part, ProbeFilm(self._of.limits.files, wants_sound, count_frames))
        assert isinstance(decoded.reply, Film)
        wave = np.frombuffer(decoded.data, dtype=np.float32) if decoded.data else None
        return ProbedFilm(decoded.reply.facts, decoded.reply.index, wave)

    async def _decoded(self, part: MediaPart, job: Job) -> Decoded:
        salt = self._request.cache_salt.encode()
        key = hashlib.sha256(self._keys[part.path] + salt + _parameters(job)).digest()
        if (known := self._of.cache.get(key)) is not None:
            return known
        began_s = time.monotonic()
        decoded = await self._of.pool.run(job, self._content[part.path])
        self._took_s[part.path] = self._took_s.get(part.path, 0.0) + time.monotonic() - began_s
        if not isinstance(decoded.reply, FramesMissing):
            self._of.cache.put(key, decoded)
        return decoded

    def _details_of_pictures(self) -> dict[str, str]:
        """By path: what a part says itself, else what the request says, else auto."""
        asked = self._request.mm_processor_kwargs.image_detail
        pictures = [part for part in self._parts if part.kind == "image"]
        usual = asked if isinstance(asked, list) else [asked or "auto"] * len(pictures)
        known = (*_USUAL_DETAILS, *self._image_limits.details)
        details = {}
        for part, level in zip(pictures, usual, strict=True):
            details[part.path] = part.detail or level
            if details[part.path] in known:
                continue
            text = f"must be one of {', '.join(known)}, got {shown(details[part.path])}"
            if part.detail:
                raise _refused(part, f"detail {text}")
            name = "mm_processor_kwargs.image_detail"
            raise RequestError("invalid_value", f"`{name}` {text}", name)
        return details

    def _check_room(self, part: MediaPart) -> None:
        """Before more is decoded of what can never be shown."""
        tokens = sum(piece.num_tokens for piece in self._pieces.values())
        if tokens >= self._max_model_len:
            text = (
                f"the pictures and sounds up to this one come to {tokens} tokens, the context to {self._max_model_len}"
            )
            raise _refused(part, text, "context_length_exceeded")

    # ---- films together

    async def _planned_and_read(self, films: Sequence[MediaPart]) -> tuple[dict[str, VideoPlan], dict[str, memoryview]]:
        plans: dict[str, VideoPlan] = {}
        frames: dict[str, memoryview] = {}
        while True:
            new = await asyncio.to_thread(self._plans)
            changed = [part for part in films if plans.get(part.path) != new[part.path]]
            if not changed:
                return plans, frames
            plans = new
            read = await all_of([self._frames(part, new[part.path]) for part in changed])
            for part, pixels in zip(changed, read, strict=True):
                if pixels is None:
                    del plans[part.path]
                else:
                    frames[part.path] = pixels

    def _plans(self) -> dict[str, VideoPlan]:
        knobs = self._request.mm_processor_kwargs
        detail = knobs.image_detail if isinstance(knobs.image_detail, str) else "auto"
        asker = Asker(knobs, detail, self._image_limits, self._max_model_len)
        tokens = {path: piece.num_tokens for path, piece in self._pieces.items()}
        return plan_films(self._turns, self._films, tokens, self._count_tokens, asker)

    def _count_tokens(self, num_messages: int) -> int:
        return self._of.prompts.num_tokens(self._request, num_messages)

    async def _frames(self, part: MediaPart, plan: VideoPlan) -> memoryview | None:
        """None: the film was not what its packets tell, and has been probed anew."""
        job = ReadFrames(self._films[part.path].index, plan.frame_indices, plan.target, plan.resized)
        async with self._places:
            with _blamed_on(part):
                decoded = await self._decoded(part, job)
                if isinstance(decoded.reply, FramesMissing):
                    if self._films[part.path].index.packets is None:
                        raise DecodeError("its frames change from one reading to the next")
                    self._films[part.path] = await self._film(part, count_frames=True)
                    return None
        return memoryview(decoded.data)

    # ---- the whole

    def _prepared(self, plans: Mapping[str, VideoPlan], frames: Mapping[str, memoryview]) -> PreparedMedia:
        replacements: dict[str, list[Any]] = {IMAGE_PAD: [], AUDIO_PAD: [], VIDEO_PAD: []}
        pieces, reports, warnings = list[Piece](), list[MediaReport](), list[str]()
        for part in self._parts:
            if part.kind != "video":
                piece = self._pieces[part.path]
                replacements[IMAGE_PAD if part.kind == "image" else AUDIO_PAD].append(piece.num_tokens)
                pieces.append(piece)
                reports.append(MediaReport(part.kind, piece.num_tokens))
                continue
            plan = plans[part.path]
            replacements[VIDEO_PAD].append(film_placeholder(plan))
            pieces += _film_pieces(plan, frames[part.path], self._films[part.path])
            reason = plan.audio_drop_reason
            reports.append(MediaReport("video", plan.prompt_tokens, reason is not None, reason))
            if reason is not None:
                warnings.append(f"{part.path}: the film's sound is left out ({reason})")
        return PreparedMedia(replacements, pieces, reports, warnings)


def _film_pieces(plan: VideoPlan, frames: memoryview, film: ProbedFilm) -> Iterator[Piece]:
    """In reading order. A frame's pixels are a slice of all, a sound's samples one of the film's."""
    sounds = film_sounds(film.wave, plan)
    frame_bytes = plan.resized.height * plan.resized.width * CHANNELS
    for kind, place in flatten(plan):
        if kind == "image":
            data = frames[place * frame_bytes : (place + 1) * frame_bytes]
            yield Piece("image", plan.image_tokens_per_frame, (*plan.resized, CHANNELS), data)
        elif kind == "audio":
            data = sounds[place].data.cast("B")
            yield Piece("audio", plan.audio_tokens_per_segment[place], sounds[place].shape, data)


def _parameters(job: Job) -> bytes:
    """All of it that the file does not determine: a film's index can be long."""
    if isinstance(job, ReadFrames):
        packets = None if job.index.packets is None else PacketTimes([], [])
        job = msgspec.structs.replace(job, index=job.index._replace(frame_times_s=[], packets=packets))
    return msgspec.msgpack.encode(job)


@contextlib.contextmanager
def _blamed_on(part: MediaPart) -> Iterator[None]:
    try:
        yield
    except (SourceError, DecodeError) as error:
        raise _refused(part, str(error)) from error


def _refused(part: MediaPart, text: str, code: str = "invalid_value") -> RequestError:
    return RequestError(code, f"`{part.path}`: {text}", part.path)
