"""Reads one JSON object of a model's config by key: checks types and bounds, and remembers which keys nobody asked for.

Owns the wording of refusals. Knows nothing of what a key means.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


class ModelConfigError(ValueError):
    """The checkpoint's config asks for something that this engine does not do, or is not a config of this model."""


class Keys:
    """A JSON object being read. A key that is null counts as absent."""

    def __init__(self, body: Any, place: str) -> None:
        if not isinstance(body, dict):
            raise ModelConfigError(f"{place} must be an object, got {body!r}")
        self._body: dict[str, Any] = body
        self._place = place
        self._asked: set[str] = set()

    def raw(self, key: str) -> Any:
        self._asked.add(key)
        return self._body.get(key)

    def count(self, key: str, default: int, least: int = 1) -> int:
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.refusal(key, value, f"a whole number of {least} or more")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise self.refusal(key, value, "a number above 0")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refusal(key, value, "true or false")
        return value

    def names(self, key: str, length: int, allowed: Collection[str]) -> tuple[str, ...] | None:
        """A list of `length` names out of `allowed`."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != length:
            raise self.refusal(key, value, f"a list of {length}, one a layer")
        for name in value:
            if name not in allowed:
                raise self.refusal(key, name, " or ".join(map(repr, sorted(allowed))))
        return tuple(value)

    def object(self, key: str) -> dict[str, Any] | None:
        value = self.raw(key)
        if value is not None and not isinstance(value, dict):
            raise self.refusal(key, value, "an object")
        return value

    def token_ids(self, key: str) -> tuple[int, ...] | None:
        """One id or a list of ids."""
        value = self.raw(key)
        if value is None:
            return None
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in ids):
            raise self.refusal(key, value, "a token id or a list of them")
        return tuple(ids)

    def require(self, key: str, *supported: Any) -> None:
        """The key is absent or has one of these values."""
        value = self.raw(key)
        if value is not None and not any(value == one and type(value) is type(one) for one in supported):
            raise self.refusal(key, value, " or ".join(map(repr, supported)))

    def refuse_null(self, key: str, wanted: str) -> None:
        if key in self._body and self._body[key] is None:
            raise self.refusal(key, None, wanted)

    def pass_over(self, keys: Collection[str]) -> None:
        """These keys are known and change nothing here."""
        self._asked.update(keys)

    def unknown(self) -> list[str]:
        return sorted(set(self._body) - self._asked)

    def refusal(self, key: str, value: Any, wanted: str) -> ModelConfigError:
        shown = repr(value)
        shown = shown if len(shown) <= 200 else f"{shown[:200]}…"
        return ModelConfigError(f"{self._place}: `{key}` must be {wanted}, got {shown}")
