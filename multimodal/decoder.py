"""A decoding process: `python -m multimodal.decoder DESCRIPTOR BYTES NICENESS`, with a socket that jobs come from.

It is given files that strangers made, so it has little: a limit on its memory, no core file, a low priority, no way to
open another file; and it ends with its gateway. Whoever gave a job watches the time. Knows nothing of requests.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from engine.config.log_format import set_up_logging
from multimodal.confinement import confine
from multimodal.decode_jobs import (
    DecodePicture,
    DecodeSound,
    Film,
    Frames,
    FramesMissing,
    Index,
    IndexFilm,
    Job,
    Picture,
    ProbeFilm,
    ReadTrack,
    Refused,
    Reply,
    Sound,
    Track,
    beside,
    job_decoder,
    receive,
    send,
)
from multimodal.film import content_sha1, film_pictures, film_sound, probe_film
from multimodal.film_file import FrameMissingError, index_film
from multimodal.image import num_image_tokens, plan_size, resize_picture, upright_picture
from multimodal.sound_file import read_sound

_DESCRIPTORS = 64


class _Done(NamedTuple):
    reply: Reply
    arrays: Sequence[memoryview] = ()


def main() -> None:
    set_up_logging("warning", sys.argv[4])
    channel = socket.socket(fileno=int(sys.argv[1]))
    os.nice(int(sys.argv[3]))
    _limit(memory_bytes=int(sys.argv[2]))
    # Pillow warns of large pictures; which ones are refused is decided here.
    warnings.simplefilter("ignore")
    # Libraries load parts of theirs when they need them.
    confine([sys.prefix, sys.base_prefix, os.path.dirname(__file__)])
    while True:
        try:
            message, data = receive(channel)
        except (EOFError, ConnectionError):
            return
        reply, arrays = _done(job_decoder.decode(message), data)
        descriptor = beside(arrays)
        try:
            send(channel, reply, descriptor)
        except ConnectionError:
            return  # nobody waits for it any more
        os.close(descriptor)


def _limit(memory_bytes: int) -> None:
    for what, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, _DESCRIPTORS),
    ):
        resource.setrlimit(what, (most, most))


def _done(job: Job, data: bytes) -> _Done:
    """Any other error ends the process: what a file has done to it is unknown, and the next one gets a new process."""
    try:
        return _work(job, data)
    except FrameMissingError:
        return _Done(FramesMissing())
    except ValueError as error:
        return _Done(Refused(str(error)))


def _work(job: Job, data: bytes) -> _Done:
    match job:
        case DecodePicture():
            picture = upright_picture(data, job.file_limits)
            size = plan_size(picture.height, picture.width, job.limits, job.overrides, job.detail)
            if (tokens := num_image_tokens(size, job.limits)) > job.max_tokens:
                raise ValueError(f"a picture may have {job.max_tokens} tokens at most, got {tokens}")
            return _Done(Picture(size), [np.ascontiguousarray(resize_picture(picture, *size)).data])
        case DecodeSound():
            return _Done(Sound(), [read_sound(data, job.file_limits).data])
        case ProbeFilm():
            film = probe_film(data, job.decode_sound, job.count_frames, job.file_limits)
            return _Done(Film(film.facts, film.index), () if film.wave is None else (film.wave.data,))
        case IndexFilm():
            return _Done(Index(index_film(data, job.count_frames, job.file_limits), content_sha1(data)))
        case ReadTrack():
            sound = film_sound(data, True, job.file_limits)
            return _Done(Track(sound.present, sound.start_s), () if sound.wave is None else (sound.wave.data,))
        case _:
            frames = film_pictures(data, job.index, job.numbers, job.target, job.resized, job.num_threads)
            return _Done(Frames(), [np.ascontiguousarray(frame).data for frame in frames])


if __name__ == "__main__":
    main()
