"""A JSON object becomes a request type or a refusal that names the field, the limit and the value given.

Owns which top-level fields are ignored on purpose and how a validation error reads. Knows no single API.
"""

from __future__ import annotations

import difflib
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from server.errors import RequestError, shown

# OpenAI fields without meaning here: accepted, and without effect.
IGNORED_FIELDS = frozenset(
    "user store metadata service_tier prediction prompt_cache_key prompt_cache_retention safety_identifier verbosity "
    "web_search_options".split()
)
_LIMITS = {
    "greater_than_equal": ("≥", "ge"),
    "greater_than": (">", "gt"),
    "less_than_equal": ("≤", "le"),
    "less_than": ("<", "lt"),
}
_LENGTHS = {
    "too_short": ("at least", "min_length", "items"),
    "too_long": ("at most", "max_length", "items"),
    "string_too_short": ("at least", "min_length", "characters"),
    "string_too_long": ("at most", "max_length", "characters"),
}
_KINDS = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
_MAX_NAMED = 8
_FIRST_INEXACT = 2.0**53  # from here on, neighbouring integers are one double

Model = TypeVar("Model", bound=BaseModel)


class PassedOver(NamedTuple):
    """How much of a request had no effect and was not refused either."""

    fields: int = 0  # unknown ones at the top
    keys: int = 0  # unknown ones inside messages and tools
    kwargs: int = 0  # of `chat_template_kwargs`, which the template does not look at

    @property
    def warnings(self) -> list[str]:
        told = [
            ("unknown fields", self.fields),
            ("unknown keys inside messages or tools", self.keys),
            ("chat_template_kwargs that the template does not use", self.kwargs),
        ]
        return [f"ignored {what}: {count}" for what, count in told if count]


def validated(model: type[Model], fields: dict[str, Any], refuse_unknown: bool) -> tuple[Model, PassedOver]:
    present = {name: value for name, value in fields.items() if value is not None and name not in IGNORED_FIELDS}
    unknown = [name for name in present if name not in model.model_fields]
    if unknown and refuse_unknown:
        raise _unknown_fields(unknown, list(model.model_fields))
    for name in unknown:
        del present[name]
    for name in _integer_fields(model):
        # JSON has one kind of number, and some clients write each with a point.
        if type(value := present.get(name)) is float and value.is_integer() and abs(value) < _FIRST_INEXACT:
            present[name] = int(value)
    try:
        return model.model_validate(present), PassedOver(fields=len(unknown))
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_context=True)[0]) from error


@cache
def _integer_fields(model: type[BaseModel]) -> tuple[str, ...]:
    """Those that take a number only if it is whole."""
    kinds = {name: {field.annotation, *get_args(field.annotation)} for name, field in model.model_fields.items()}
    return tuple(name for name, kind in kinds.items() if int in kind and float not in kind)


def wrong(path: str, wanted: str, got: object) -> RequestError:
    """Of a value that is read by hand. Null counts as absent."""
    if got is None:
        return RequestError("missing_field", f"`{path}` is required and must be {wanted}", path)
    return RequestError("invalid_value", f"`{path}` must be {wanted}, got {shown(got)}", path)


def _unknown_fields(unknown: list[str], known: list[str]) -> RequestError:
    names = ", ".join(_named(name, known) for name in unknown[:_MAX_NAMED])
    rest = f" and {len(unknown) - _MAX_NAMED} more" if len(unknown) > _MAX_NAMED else ""
    return RequestError("unknown_field", f"Unknown field: {names}{rest}", unknown[0])


def _named(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name[:64], known, n=1, cutoff=0.8)
    return f"`{name[:64]}`" + (f" (did you mean `{near[0]}`?)" if near else "")


def _refusal(details: ErrorDetails) -> RequestError:
    kind, context = details["type"], details.get("ctx", {})
    param = _path(details["loc"])
    if kind == "fault":
        message = str(context["text"])
        if message.startswith("`"):  # about several fields; the first is the one to change
            return RequestError("invalid_value", message, message.split("`")[1])
        return RequestError("invalid_value", f"`{param}` {message}", param)
    if kind == "missing":
        return RequestError("missing_field", f"`{param}` is required", param)
    if kind == "extra_forbidden":
        return RequestError("unknown_field", f"Unknown field: `{param}`", param)
    got = f"got {shown(details['input'])}"
    if kind in _LIMITS:
        sign, name = _LIMITS[kind]
        return RequestError("invalid_value", f"`{param}` must be {sign} {_number(context[name])}, {got}", param)
    if kind in _LENGTHS:
        bound, name, unit = _LENGTHS[kind]
        text = f"`{param}` must have {bound} {context[name]} {unit}, got {len(details['input'])}"
        return RequestError("invalid_value", text, param)
    if kind in _KINDS:
        return RequestError("invalid_value", f"`{param}` must be {_KINDS[kind]}, {got}", param)
    if kind == "literal_error":
        return RequestError("invalid_value", f"`{param}` must be {context['expected']}, {got}", param)
    text = details["msg"][:1].lower() + details["msg"][1:]
    return RequestError("invalid_value", f"`{param}`: {text}, {got}", param)


def _number(limit: float) -> str:
    return f"{limit:g}" if isinstance(limit, float) else str(limit)


def _path(loc: tuple[int | str, ...]) -> str:
    path = ""
    for step in loc:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step != "[key]":
            path += f".{step}" if path else step
    return path
