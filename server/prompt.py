"""Requests become valid: a chat or a text turns into token ids that fit the model, and every choice is made.

Owns the model folder's template and tokenizer, and all limits that depend on the model. Knows nothing of HTTP or of the
engine's state. Its methods take CPU time that the event loop should not: they may run in any thread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jinja2
import msgspec

from engine.wire.grammar import Grammar
from engine.wire.messages import MediaKind, Sampling
from multimodal.image import ImageLimits
from multimodal.placeholders import AUDIO_PAD, IMAGE_PAD
from parsers.control_tags import CLOSE_CALL, CLOSE_THINKING, OPEN_CALL, OPEN_THINKING
from parsers.reasoning import Begin
from server.answer_grammar import begins, held_to
from server.chat_template import ChatTemplate, Segment, expand
from server.errors import RequestError
from server.generation_defaults import GenerationDefaults
from server.media.prepared import PlacedMedia, PreparedMedia, place
from server.sampling_choice import choose_sampling
from server.schemas.chat import ChatRequest
from server.schemas.completions import CompletionRequest
from server.schemas.sampling import GenerationFields
from server.tokenizer import Tokenizer, TooManyTokensError

END_OF_SYSTEM = "<|endofsystem|>"
END_OF_ASSISTANT = "<|endofassistant|>"
# A text is counted to its end up to so many tokens, and those that fit are always.
_COUNTED_TOKENS = 2**16  # of what the model should take whole
_MOST_TOKENS = 2**20  # of what it need not; they take some hundred megabytes for a while


@dataclass(frozen=True)
class ValidRequest:
    """Nothing in it needs to be checked again."""

    request_id: str
    kind: Literal["chat", "completion"]
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    begin: Begin = "turn"  # where the prompt leaves the model; without meaning for completions
    n: int = 1
    tools: tuple[dict[str, Any], ...] = ()  # that may be called, as in OpenAI's API
    max_calls: int | None = None  # the answer ends behind so many calls
    grammar: Grammar | None = None
    grammar_field: str | None = None  # of the request, that asked for it
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    return_token_ids: bool = False
    echo_text: str | None = None  # the prompt, where it is to stand before the completion
    priority: int = 0
    cache_salt: str = ""
    speculative_tokens: int | None = None
    keep_offsets: tuple[int, ...] = ()
    media: PlacedMedia | None = None


class Prompts:
    """Makes valid requests for one model folder. Safe to share between threads."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        defaults: GenerationDefaults,
        image_limits: ImageLimits | None = None,
    ) -> None:
        """Without `image_limits` there are no media."""
        self.tokenizer = tokenizer
        self.image_limits = image_limits
        self._template = template
        self._defaults = defaults
        longest_first = sorted(tokenizer.control_tokens, key=len, reverse=True)
        self._control = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    @classmethod
    def from_folder(cls, folder: Path, chat_template: Path | None = None) -> Prompts:
        tokenizer = Tokenizer.from_folder(folder)
        source = (chat_template or folder / "chat_template.jinja").read_text(encoding="utf-8")
        template = ChatTemplate(source, tokenizer.control_tokens)
        preprocessor = folder / "preprocessor_config.json"
        image_limits = None
        if preprocessor.is_file():
            image_limits = ImageLimits.from_preprocessor(json.loads(preprocessor.read_text(encoding="utf-8")))
        return cls(tokenizer, template, GenerationDefaults.from_folder(folder, tokenizer), image_limits)

    def chat(
        self,
        request: ChatRequest,
        request_id: str,
        max_model_len: int,
        vocab_size: int,
        media: PreparedMedia | None = None,
    ) -> ValidRequest:
        segments = self._rendered(request, media)
        ids = self._cut(request, self._encoded(segments, "messages", request, max_model_len), max_model_len)
        limit = _token_limit(request, request.token_limit, len(ids), max_model_len, "messages")
        tail = _last_turn(segments)
        valid = self._valid(request, request_id, "chat", ids, limit, vocab_size, _begin(tail))
        held = held_to(request)
        grammar = None if held is None else held.grammar(begins(valid.begin, Segment(CLOSE_THINKING, True) not in tail))
        return replace(
            valid,
            media=None if media is None else self._placed(media, ids),
            sampling=self._without_calls(valid.sampling) if request.tool_choice.mode == "none" else valid.sampling,
            tools=tuple(request.callable_tools),
            max_calls=None if request.parallel_tool_calls and request.tool_choice.mode != "named" else 1,
            grammar=grammar,
            grammar_field=None if held is None else held.field,
        )

    def completion(
        self, request: CompletionRequest, prompt: str | list[int], request_id: str, max_model_len: int, vocab_size: int
    ) -> ValidRequest:
        """One of the request's prompts. Control strings in it are control tokens."""
        if isinstance(prompt, str):
            ids = self._encoded(self._text_segments(prompt), "prompt", request, max_model_len)
        else:
            ids = prompt
        for token in ids:
            if token >= vocab_size:
                raise RequestError(
                    "invalid_value", f"`prompt` must hold token ids < {vocab_size}, got {token}", "prompt"
                )
        cut = self._cut(request, ids, max_model_len)
        asked = request.token_limit
        if "max_tokens" not in request.model_fields_set and asked is not None:
            asked = min(asked, max(max_model_len - len(cut), 1))
        limit = _token_limit(request, asked, len(cut), max_model_len, "prompt")
        echo = None
        if request.echo:
            echo = prompt if isinstance(prompt, str) and len(cut) == len(ids) else self.text(cut)
        valid = self._valid(request, request_id, "completion", cut, limit, vocab_size, begin="answer", echo_text=echo)
        form = request.answer_form
        return valid if form is None else replace(valid, grammar=Grammar(form.rule), grammar_field=form.field)

    def chat_ids(self, request: ChatRequest, media: PreparedMedia | None = None) -> list[int]:
        return self._encoded(self._rendered(request, media), "messages")

    def num_tokens(self, request: ChatRequest, num_messages: int) -> int:
        """Of a conversation when it had so many messages and was to be answered; each item of its media counts once."""
        then = {"messages": request.messages[:num_messages]}
        asked = {"add_generation_prompt": True, "continue_final_message": False}
        return len(self._encoded(self._rendered(request.model_copy(update=then | asked)), "messages"))

    def unused_template_kwargs(self, request: ChatRequest) -> list[str]:
        """Arguments that the template does not look at."""
        return [name for name in request.template_kwargs if name not in self._template.variables]

    def text_ids(self, text: str) -> list[int]:
        """Control strings in `text` are control tokens."""
        return self._encoded(self._text_segments(text), "prompt")

    def text(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids)

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """Tokens as the vocabulary spells them."""
        return [self.tokenizer.spelling(number) for number in ids]

    def _text_segments(self, text: str) -> list[Segment]:
        pieces = self._control.split(text)  # plain, control, plain, …, plain
        return [Segment(piece, place % 2 == 1) for place, piece in enumerate(pieces) if piece]

    def _encoded(
        self,
        segments: Sequence[Segment],
        param: str,
        request: GenerationFields | None = None,
        max_model_len: int = 0,
    ) -> list[int]:
        """`request`: what is to be generated from them. What is far too long is refused before it is counted."""
        whole = request is not None and request.truncate_prompt_tokens is None
        most = max(_COUNTED_TOKENS if whole else _MOST_TOKENS, 2 * max_model_len)
        try:
            return self.tokenizer.encode_segments(segments, most)
        except TooManyTokensError as error:
            text = f"`{param}` must come to ≤ {most} tokens, got more"
            if whole:
                text = _too_long(max_model_len, param, f"more than {most}")
            raise RequestError("context_length_exceeded", text, param) from error

    def _rendered(self, request: ChatRequest, media: PreparedMedia | None = None) -> list[Segment]:
        try:
            segments = self._template.render(
                request.messages,
                request.tools or None,
                enable_thinking=request.thinking,
                add_generation_prompt=request.add_generation_prompt,
                **request.template_kwargs,
            )
        # A template is a program over what a client sent; these are what its own faults look like.
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            param = "chat_template_kwargs" if request.template_kwargs else "messages"
            raise RequestError("invalid_value", f"the chat template cannot render `{param}`: {error}", param) from error
        if request.continue_final_message and segments and segments[-1] == Segment(END_OF_ASSISTANT, True):
            segments.pop()
        if media is None:
            return segments
        try:
            return [Segment(text, control) for text, control in expand(segments, media.replacements)]
        except ValueError as error:
            raise RequestError(
                "invalid_value", f"the chat template moves or drops media: {error}", "messages"
            ) from error

    def _placed(self, media: PreparedMedia, ids: Sequence[int]) -> PlacedMedia:
        pads: dict[MediaKind, int] = {
            "image": self.tokenizer.token_id(IMAGE_PAD),
            "audio": self.tokenizer.token_id(AUDIO_PAD),
        }
        try:
            return place(media, ids, pads)
        except ValueError as error:
            raise RequestError(
                "invalid_value", f"the prompt does not hold its media whole: {error}", "messages"
            ) from error

    def _cut(self, request: GenerationFields, ids: list[int], max_model_len: int) -> list[int]:
        """The last tokens of a prompt, as many as the client wants to keep."""
        keep = request.truncate_prompt_tokens
        if keep is None:
            return ids
        if keep > max_model_len:
            raise RequestError(
                "invalid_value",
                f"`truncate_prompt_tokens` must be ≤ {max_model_len}, got {keep}",
                "truncate_prompt_tokens",
            )
        if keep < 0:
            keep = max(max_model_len - (1 if request.token_limit is None else request.token_limit), 1)
        return ids[-keep:]

    def _valid(
        self,
        request: GenerationFields,
        request_id: str,
        kind: Literal["chat", "completion"],
        ids: list[int],
        max_tokens: int,
        vocab_size: int,
        begin: Begin,
        echo_text: str | None = None,
    ) -> ValidRequest:
        return ValidRequest(
            request_id=request_id,
            kind=kind,
            prompt_ids=tuple(ids),
            sampling=choose_sampling(request, self._defaults, max_tokens, vocab_size, self.tokenizer.encode_text),
            begin=begin,
            n=request.n,
            stop=tuple(request.stop),
            include_stop=request.include_stop_str_in_output,
            skip_special_tokens=request.skip_special_tokens,
            return_token_ids=request.return_token_ids,
            echo_text=echo_text,
            priority=request.priority,
            cache_salt=request.cache_salt,
            speculative_tokens=request.speculative_tokens,
            keep_offsets=self._end_of_system(ids),
        )

    def _without_calls(self, sampling: Sampling) -> Sampling:
        """The tokens that open and close a call are never chosen."""
        known = [tag for tag in (OPEN_CALL, CLOSE_CALL) if tag in self.tokenizer.control_tokens]
        masked = tuple((self.tokenizer.token_id(tag),) for tag in known)
        return msgspec.structs.replace(sampling, bad_words_ids=(*sampling.bad_words_ids, *masked))

    def _end_of_system(self, ids: list[int]) -> tuple[int, ...]:
        """Where another request is likely to go on, besides the end of this prompt, which the worker keeps anyway."""
        try:
            return (ids.index(self.tokenizer.token_id(END_OF_SYSTEM)) + 1,)
        except (KeyError, ValueError):
            return ()


def _token_limit(
    request: GenerationFields, asked: int | None, prompt_tokens: int, max_model_len: int, param: str
) -> int:
    """How many tokens may be generated; by default, all that the context leaves."""
    if prompt_tokens == 0:
        raise RequestError("invalid_value", f"`{param}` must come to at least 1 token, got 0", param)
    room = max_model_len - prompt_tokens
    if room < (1 if asked is None else min(asked, 1)):
        raise RequestError("context_length_exceeded", _too_long(max_model_len, param, str(prompt_tokens)), param)
    if asked is None:
        asked = room
    field = "max_tokens" if getattr(request, "max_completion_tokens", None) is None else "max_completion_tokens"
    if asked > max_model_len:
        raise RequestError("invalid_value", f"`{field}` must be ≤ {max_model_len}, got {asked}", field)
    if asked > room:
        raise RequestError(
            "context_length_exceeded",
            f"This model's maximum context length is {max_model_len} tokens; {prompt_tokens + asked} were requested: "
            f"{prompt_tokens} in `{param}` and {asked} by `{field}`.",
            field,
        )
    if request.min_tokens > asked:
        raise RequestError("invalid_value", f"`min_tokens` must be ≤ {asked}, got {request.min_tokens}", "min_tokens")
    return asked


def _too_long(max_model_len: int, param: str, prompt_tokens: str) -> str:
    return (
        f"This model's maximum context length is {max_model_len} tokens, the answer included; "
        f"`{param}` comes to {prompt_tokens} tokens."
    )


def _last_turn(segments: Sequence[Segment]) -> list[Segment]:
    """What stands behind the last mark of a turn."""
    tail: list[Segment] = []
    for segment in reversed(segments):
        if segment.control and segment.text not in (OPEN_THINKING, CLOSE_THINKING):
            break
        tail.insert(0, segment)
    return tail


def _begin(tail: Sequence[Segment]) -> Begin:
    """Where the end of a prompt leaves the model."""
    marks = [place for place, segment in enumerate(tail) if segment.control]
    said = "".join(segment.text for segment in tail[marks[-1] + 1 if marks else 0 :]).strip()
    if marks and tail[marks[-1]].text == OPEN_THINKING:
        return "thinking" if said else "opened"
    return "answer" if said else "turn"
