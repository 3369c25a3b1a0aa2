"""What the gateway processes of one server have in common, so that limits and figures are the whole server's.

Owns the names of what they count together and the places of their files. A gateway that is alone has none of the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from server.shared_numbers import Number, SharedNumbers

NUM_GAPS = 14  # buckets of the time between tokens
GAPS = tuple(f"gaps_{place}" for place in range(NUM_GAPS))
# What a process holds, and what is true of it, while it lives.
_HELD = ("sequences", "prompt_tokens", "pid", "beat_ms")
_HELD_BY_KEY = "key_"
_HELD_BY_WORKER = "outstanding_"
# What it has counted, and when things happened.
_COUNTED = ("left", "generated", *GAPS, "gap_sum_ns", "blamed_at_ms", "gateway_restarts")
_RESTARTS = "restarts_"


@dataclass(frozen=True)
class Siblings:
    """As one of them sees it. Rows are the gateway processes, and a last one is their parent's."""

    numbers: SharedNumbers
    place: int  # of this process among them
    num_keys: int
    num_workers: int = 0
    folder: Path | None = None  # None: there are no others

    @classmethod
    def none(cls, num_keys: int = 0) -> Siblings:
        return cls(SharedNumbers.alone(_names(num_keys, 0)), 0, num_keys)

    @classmethod
    def of_group(cls, folder: Path, place: int, num_gateways: int, num_keys: int, num_workers: int) -> Siblings:
        """`place` of the parent: `num_gateways`."""
        names = _names(num_keys, num_workers)
        numbers = SharedNumbers.in_file(folder / "numbers", names, num_gateways + 1, place)
        return cls(numbers, place, num_keys, num_workers, folder)

    @property
    def metrics_folder(self) -> Path | None:
        return None if self.folder is None else self.folder / "metrics"

    @property
    def lane_file(self) -> Path | None:
        """Whoever has it locked tries a request for the second time."""
        return None if self.folder is None else self.folder / "lane"

    @property
    def pids(self) -> dict[int, int]:
        """Of the gateway processes that live, by their places."""
        return {place: pid for place, pid in enumerate(self.numbers["pid"].all()) if pid}

    @property
    def gateway_restarts(self) -> Number:
        """Written by the parent."""
        return self.numbers["gateway_restarts"]

    def running_of_keys(self) -> list[Number]:
        """Requests that run with each key."""
        return [self.numbers[name] for name in _numbered(_HELD_BY_KEY, self.num_keys)]

    def outstanding(self, worker: int) -> Number:
        """Tokens that are asked of a worker."""
        return self.numbers[f"{_HELD_BY_WORKER}{worker}"]

    def restarts(self, worker: int) -> Number:
        """Written by the parent, which alone sees all of them."""
        return self.numbers[f"{_RESTARTS}{worker}"]

    def clear(self, place: int) -> None:
        """The process there has ended, and with it all that it held."""
        for name in _held(self.num_keys, self.num_workers):
            self.numbers.of(place, name).set(0)


def _names(num_keys: int, num_workers: int) -> Sequence[str]:
    return (*_held(num_keys, num_workers), *_COUNTED, *_numbered(_RESTARTS, num_workers))


def _held(num_keys: int, num_workers: int) -> Sequence[str]:
    return (*_HELD, *_numbered(_HELD_BY_KEY, num_keys), *_numbered(_HELD_BY_WORKER, num_workers))


def _numbered(name: str, count: int) -> list[str]:
    return [f"{name}{place}" for place in range(count)]
