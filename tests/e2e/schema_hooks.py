"""Loaded by schemathesis: half of the generated requests for an answer are mended so far that they may reach the model.

They get a model that is served, few tokens, and something in place of an empty prompt. Of those that are right as they
stand and have no limit on tokens, one in four goes without: hundreds are alike.
"""

import os
from typing import Any

import schemathesis

MODEL = os.environ["SERVED_MODEL"]
EMPTY: tuple[Any, ...] = ("", [], [""])
FEW = 4  # tokens


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:  # noqa: ARG001  the hook's signature
    body = case.body
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        return
    size = len(str(body))
    if size % 2 == 0:
        body["model"] = MODEL
        if body.get("prompt") in EMPTY:
            body["prompt"] = "a"
        if body.get("truncate_prompt_tokens") == 0:
            del body["truncate_prompt_tokens"]
        if isinstance(body.get("max_tokens"), int | None):
            body["max_tokens"] = FEW
        if isinstance(body.get("max_completion_tokens"), int):
            body["max_completion_tokens"] = FEW
    elif size % 8 != 1 and body["model"] == MODEL and not {"max_tokens", "max_completion_tokens"} & body.keys():
        body["max_tokens"] = FEW
