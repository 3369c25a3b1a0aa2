"""The request of /v1/chat/completions. Owns what only chat has: messages, tools, thinking, response formats."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema, field_validator, model_validator

from engine.wire.grammar import JsonObject, JsonSchema
from server.errors import RequestError, shown
from server.schemas.messages import MESSAGE_SCHEMA, MessageReader
from server.schemas.refusal import PassedOver, validated
from server.schemas.sampling import MAX_LOGPROBS, fault
from server.schemas.structured import StructuredFields
from server.schemas.tool_choice import TOOL_CHOICE_SCHEMA, ToolChoice, read_function_call, read_tool_choice

_NO_THINKING = ("none", "minimal")
# Names that the template or Jinja itself gives a meaning; a client's value would take their place.
_RESERVED_KWARGS = frozenset(
    "messages tools add_generation_prompt continue_final_message self range dict lipsum cycler joiner namespace".split()
)


class ChatRequest(StructuredFields):
    """`messages`, `tools` and `tool_choice` are already checked, the first two in OpenAI's form."""

    messages: list[dict[str, Any]] = Field(json_schema_extra={"minItems": 1, "items": MESSAGE_SCHEMA})
    tools: list[dict[str, Any]] = Field([])
    tool_choice: Annotated[ToolChoice, WithJsonSchema(TOOL_CHOICE_SCHEMA)] = Field(default_factory=ToolChoice)
    parallel_tool_calls: bool = True
    max_tokens: int | None = Field(None, ge=1, le=2**63 - 1)
    max_completion_tokens: int | None = Field(None, ge=1, le=2**63 - 1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    modalities: list[Literal["text"]] = Field(["text"])
    chat_template_kwargs: dict[str, Any] = Field({})
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    @field_validator("chat_template_kwargs")
    @classmethod
    def _kwargs_take_no_reserved_name(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if name in _RESERVED_KWARGS:
                raise fault(f"must not set {name}")
        if not isinstance(value.get("enable_thinking", True), bool | None):
            raise fault(f"must set enable_thinking to true or false, got {shown(value['enable_thinking'])}")
        return value

    @model_validator(mode="after")
    def _chat_fields_agree(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise fault("`top_logprobs` is only allowed with `logprobs`: true")
        if self.continue_final_message:
            if self.add_generation_prompt:
                raise fault("`continue_final_message` needs `add_generation_prompt`: false")
            if self.messages[-1]["role"] != "assistant":
                raise fault("`continue_final_message` needs a last message from the assistant")
        form = self.answer_form
        if self.callable_tools and form is not None and not isinstance(form.rule, JsonObject | JsonSchema):
            raise fault(
                f"`{form.field}` leaves no room for calls, which `tool_choice`: {self.tool_choice.mode} allows; "
                "it needs `tool_choice`: none, or no `tools`"
            )
        return self

    @property
    def callable_tools(self) -> list[dict[str, Any]]:
        """Of the tools, those that the answer may call; the prompt declares them all."""
        if self.tool_choice.mode == "none":
            return []
        names = self.tool_choice.names
        return self.tools if names is None else [tool for tool in self.tools if tool["function"]["name"] in names]

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def holds_media(self) -> bool:
        contents = (message["content"] for message in self.messages)
        return any("media" in part for content in contents if not isinstance(content, str) for part in content)

    @property
    def thinking(self) -> bool:
        switch = self.chat_template_kwargs.get("enable_thinking")
        if switch is not None:
            return bool(switch)
        return self.reasoning_effort not in _NO_THINKING

    @property
    def template_kwargs(self) -> dict[str, Any]:
        return {name: value for name, value in self.chat_template_kwargs.items() if name != "enable_thinking"}


def read_chat(fields: dict[str, Any], refuse_unknown: bool) -> tuple[ChatRequest, PassedOver]:
    fields = {name: value for name, value in fields.items() if value is not None}
    if "messages" not in fields:
        raise RequestError("missing_field", "`messages` is required", "messages")
    reader = MessageReader()
    fields["messages"] = reader.messages(fields["messages"])
    if "functions" in fields:
        if "tools" in fields:
            raise RequestError("invalid_value", "`functions` and `tools` exclude each other", "functions")
        fields["tools"] = reader.tools(fields.pop("functions"), "functions")
    elif "tools" in fields:
        fields["tools"] = reader.tools(fields["tools"])
    _take_tool_choice(fields)
    request, passed_over = validated(ChatRequest, fields, refuse_unknown)
    return request, passed_over._replace(keys=reader.ignored)


def _take_tool_choice(fields: dict[str, Any]) -> None:
    """`function_call` is the name that it had before."""
    tools = fields.get("tools", [])
    if "tool_choice" in fields:
        if "function_call" in fields:
            raise RequestError("invalid_value", "`function_call` and `tool_choice` exclude each other", "function_call")
        fields["tool_choice"] = read_tool_choice(fields["tool_choice"], tools)
    elif "function_call" in fields:
        fields["tool_choice"] = read_function_call(fields.pop("function_call"), tools)
