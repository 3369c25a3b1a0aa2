"""A request that a worker will not serve: told to its gateway as `Failed`, before any token."""

from __future__ import annotations


class RefusedError(ValueError):
    """`code` is one of server/errors.py; the message is for the client."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
