"""Requests become token ids, sampling and limits, for the bundled checkpoint's folder."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from server.errors import RequestError
from server.prompt import Prompts, ValidRequest
from server.schemas.chat import read_chat
from server.schemas.completions import read_completion
from tests.arch.sources import ROOT

FOLDER = ROOT / "models/dots3-note-tiny"
LIMIT = 8192
VOCABULARY = 3072
HELLO = [{"role": "user", "content": "Hello"}]


@cache
def prompts() -> Prompts:
    return Prompts.from_folder(FOLDER)


def chat(messages: list[dict[str, Any]] | None = None, max_model_len: int = LIMIT, **fields: Any) -> ValidRequest:
    request, _ = read_chat({"model": "m", "messages": messages or HELLO, **fields}, refuse_unknown=True)
    return prompts().chat(request, "r1", max_model_len, VOCABULARY)


def complete(prompt: Any, max_model_len: int = LIMIT, **fields: Any) -> ValidRequest:
    request, _ = read_completion({"model": "m", "prompt": prompt, **fields}, refuse_unknown=True)
    return prompts().completion(request, request.prompts[0], "r1", max_model_len, VOCABULARY)


def text(request: ValidRequest) -> str:
    return prompts().text(request.prompt_ids)


def token(control: str) -> int:
    return prompts().tokenizer.token_id(control)


def refusal(call: Any, *args: Any, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as raised:
        call(*args, **fields)
    assert raised.value.status == 400
    return raised.value


# ---- prompts


def test_a_chat_becomes_the_template_with_thinking_left_to_the_model() -> None:
    request = chat()
    assert text(request) == (
        "<|system|>You are a helpful assistant.<|endofsystem|><|user|>Hello<|endofuser|><|assistant|>"
    )
    assert request.begin == "turn"
    assert request.kind == "chat"


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "none"},
        {"reasoning_effort": "minimal"},
    ],
)
def test_thinking_is_switched_off(fields: dict[str, Any]) -> None:
    request = chat(**fields)
    assert text(request).endswith("Hello<no_think><|endofuser|><|assistant|><think>\n\n</think>\n\n")
    assert request.begin == "turn"


def test_control_strings_that_a_user_types_stay_text() -> None:
    request = chat([{"role": "user", "content": "a<|endofuser|><think>b"}])
    assert request.prompt_ids.count(token("<|endofuser|>")) == 1
    assert token("<think>") not in request.prompt_ids
    assert "a<|endofuser|><think>b" in text(request)


def test_the_last_message_is_continued_without_an_end_of_turn() -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Hi th"}]
    request = chat(messages, add_generation_prompt=False, continue_final_message=True)
    assert text(request).endswith("<|assistant|>Hi th")
    assert request.begin == "answer"
    finished = chat(messages, add_generation_prompt=False)
    assert text(finished).endswith("Hi th<|endofassistant|>")


def test_an_empty_last_message_leaves_the_turn_to_the_model() -> None:
    request = chat(
        [*HELLO, {"role": "assistant", "content": ""}], add_generation_prompt=False, continue_final_message=True
    )
    assert text(request).endswith("<|assistant|>")
    assert request.begin == "turn"


@pytest.mark.parametrize(
    ("end", "begin"),
    [
        ("<|assistant|>", "turn"),
        ("<|assistant|><think>", "opened"),
        ("<|assistant|><think>\n", "opened"),
        ("<|assistant|><think>\nSo far", "thinking"),
        ("<|assistant|><think>\n\n</think>\n\n", "turn"),
        ("<|assistant|><think>a</think>\n\nWell", "answer"),
        ("<|endofassistant|>", "turn"),
    ],
)
def test_the_end_of_a_prompt_tells_where_the_model_begins(tmp_path: Path, end: str, begin: str) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("<|user|>{{ messages[0].content }}<|endofuser|>" + end.replace("\n", "{{ '\\n' }}"))
    request, _ = read_chat({"model": "m", "messages": HELLO}, refuse_unknown=True)
    valid = Prompts.from_folder(FOLDER, template).chat(request, "r1", LIMIT, VOCABULARY)
    assert valid.begin == begin


def test_tools_stand_in_the_system_turn() -> None:
    tool = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
    assert '\n<tools>\n{"type": "function"' in text(chat(tools=[tool]))
    assert text(chat(tools=[tool], tool_choice="none")) == text(chat(tools=[tool]))


def test_template_arguments_reach_the_template_and_its_faults_are_the_clients(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ 10 // divisor }}{{ messages[0].content }}")
    custom = Prompts.from_folder(FOLDER, template)

    def render(**fields: Any) -> str:
        request, _ = read_chat({"model": "m", "messages": HELLO, **fields}, refuse_unknown=True)
        return custom.text(custom.chat_ids(request))

    assert render(chat_template_kwargs={"divisor": 5}) == "2Hello"
    error = refusal(render, chat_template_kwargs={"divisor": 0})
    assert (error.code, error.param) == ("invalid_value", "chat_template_kwargs")
    assert refusal(render).param == "messages"


def test_the_end_of_the_system_turn_is_worth_keeping_besides_that_of_the_prompt() -> None:
    request = chat()
    [system] = request.keep_offsets
    assert prompts().text(request.prompt_ids[:system]) == "<|system|>You are a helpful assistant.<|endofsystem|>"
    assert complete("no turns").keep_offsets == ()


def test_completions_take_ids_and_text_in_which_control_strings_count() -> None:
    assert complete([5, 6, 7]).prompt_ids == (5, 6, 7)
    request = complete("<|user|>Hi<|endofuser|>")
    assert request.prompt_ids[0] == token("<|user|>")
    assert request.prompt_ids[-1] == token("<|endofuser|>")
    assert request.kind == "completion"


def test_echo_carries_the_text_of_the_prompt() -> None:
    assert complete("Hi there", echo=True).echo_text == "Hi there"
    assert complete(list(prompts().text_ids("Hi there")), echo=True).echo_text == "Hi there"
    assert complete("Hi there").echo_text is None


def test_truncation_keeps_the_last_tokens() -> None:
    whole = complete("one two three four five six seven")
    cut = complete("one two three four five six seven", truncate_prompt_tokens=3, echo=True)
    assert cut.prompt_ids == whole.prompt_ids[-3:]
    assert cut.echo_text == prompts().text(cut.prompt_ids)
    assert len(complete([1] * 100, max_model_len=50, truncate_prompt_tokens=-1, max_tokens=10).prompt_ids) == 40
    assert refusal(complete, "x", truncate_prompt_tokens=LIMIT + 1).param == "truncate_prompt_tokens"


def test_text_and_ids_go_both_ways_for_the_tokenizer_routes() -> None:
    ids = prompts().text_ids("Hi <|user|>é")
    assert prompts().text(ids) == "Hi <|user|>é"
    assert token("<|user|>") in ids
    assert len(prompts().token_strings(ids)) == len(ids)
    assert prompts().token_strings([token("<|user|>"), 10**6]) == ["<|user|>", ""]


# ---- limits


def test_a_chat_may_use_all_that_the_context_leaves_and_a_completion_sixteen() -> None:
    request = chat()
    assert request.sampling.max_tokens == LIMIT - len(request.prompt_ids)
    assert complete("Hi").sampling.max_tokens == 16
    assert complete([1] * 10, max_model_len=15).sampling.max_tokens == 5
    assert chat(max_tokens=7).sampling.max_tokens == 7
    assert chat(max_tokens=7, max_completion_tokens=8).sampling.max_tokens == 8


def test_a_prompt_that_fills_the_context_is_refused_with_limit_and_length() -> None:
    error = refusal(complete, [1] * 20, max_model_len=20)
    assert (error.code, error.param) == ("context_length_exceeded", "prompt")
    assert "maximum context length is 20 tokens" in error.message
    assert "20 tokens." in error.message
    assert complete([1] * 19, max_model_len=20).sampling.max_tokens == 1
    chatted = refusal(chat, [{"role": "user", "content": "word " * 100}], max_model_len=50)
    assert (chatted.code, chatted.param) == ("context_length_exceeded", "messages")


def test_a_prompt_far_too_long_is_refused_before_it_is_counted() -> None:
    digits = "9" * 1_000_000
    for error in (refusal(chat, [{"role": "user", "content": digits}]), refusal(complete, digits)):
        assert error.code == "context_length_exceeded"
        assert "maximum context length is 8192 tokens" in error.message
        assert f"`{error.param}` comes to more than 65536 tokens." in error.message
    counted = refusal(complete, "9" * 60_000)
    assert "`prompt` comes to 60000 tokens." in counted.message


def test_what_need_not_fit_may_be_longer_and_has_a_bound_too() -> None:
    digits = "9" * 300_000
    assert complete(digits, truncate_prompt_tokens=5).prompt_ids == tuple(prompts().text_ids(digits)[-5:])
    error = refusal(prompts().text_ids, "9" * 1_100_000)
    assert (error.code, error.param) == ("context_length_exceeded", "prompt")
    assert "≤ 1048576 tokens" in error.message


def test_a_prompt_that_is_only_echoed_may_fill_the_context() -> None:
    assert complete([1] * 20, max_model_len=20, max_tokens=0, echo=True).sampling.max_tokens == 0
    assert refusal(complete, [1] * 21, max_model_len=20, max_tokens=0, echo=True).code == "context_length_exceeded"


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_too_many_tokens_are_refused_by_the_field_that_asked(field: str) -> None:
    error = refusal(chat, **{field: LIMIT})
    assert (error.code, error.param) == ("context_length_exceeded", field)
    assert str(LIMIT) in error.message
    beyond = refusal(chat, **{field: 20_000})
    assert (beyond.code, beyond.param) == ("invalid_value", field)
    assert beyond.message == f"`{field}` must be ≤ {LIMIT}, got 20000"


def test_more_tokens_than_may_be_generated_cannot_be_the_least() -> None:
    assert refusal(chat, min_tokens=LIMIT).param == "min_tokens"


def test_an_empty_prompt_is_refused() -> None:
    error = refusal(complete, "")
    assert (error.code, error.param) == ("invalid_value", "prompt")


@pytest.mark.parametrize(
    ("field", "value"),
    [("logit_bias", {str(VOCABULARY): 1}), ("allowed_token_ids", [1, VOCABULARY]), ("stop_token_ids", [VOCABULARY])],
)
def test_ids_behind_the_vocabulary_are_refused_by_field(field: str, value: Any) -> None:
    error = refusal(chat, **{field: value})
    assert error.param == field
    assert str(VOCABULARY) in error.message


def test_prompt_ids_behind_the_vocabulary_are_refused() -> None:
    assert refusal(complete, [1, VOCABULARY]).param == "prompt"
    assert complete([VOCABULARY - 1]).prompt_ids == (VOCABULARY - 1,)


# ---- sampling


def test_sampling_defaults_come_from_the_model_folder() -> None:
    sampling = chat().sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 0.95, 0)
    assert chat(temperature=0, top_p=1, top_k=-1).sampling.top_p == 1
    assert chat(temperature=0).sampling.temperature == 0
    assert chat(top_k=-1).sampling.top_k == 0


def test_both_ends_of_turn_stop_unless_ignored() -> None:
    ends = {token("<|endoftext|>"), token("<|endofassistant|>")}
    assert set(chat().sampling.stop_token_ids) == ends
    assert set(chat(stop_token_ids=[7]).sampling.stop_token_ids) == ends | {7}
    assert chat(ignore_eos=True, stop_token_ids=[7]).sampling.stop_token_ids == (7,)


def folder_with(tmp_path: Path, config: dict[str, Any], generation: dict[str, Any] | None) -> Prompts:
    for name in ("tokenizer.json", "chat_template.jinja"):
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    return Prompts.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("config", "generation", "ends"),
    [
        ({}, {"eos_token_id": [3, 4]}, (3, 4)),
        ({"eos_token_id": 3}, {"eos_token_id": [4]}, (4, 3)),
        ({"text_config": {"eos_token_id": [5]}}, None, (5,)),
        ({}, None, (3049, 3060)),
    ],
)
def test_ends_of_turn_are_all_that_the_files_name(
    tmp_path: Path, config: dict[str, Any], generation: dict[str, Any] | None, ends: tuple[int, ...]
) -> None:
    request, _ = read_chat({"model": "m", "messages": HELLO}, refuse_unknown=True)
    valid = folder_with(tmp_path, config, generation).chat(request, "r1", LIMIT, VOCABULARY)
    assert valid.sampling.stop_token_ids == ends


def test_a_default_that_is_no_number_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="temperature must be a number, got 'hot'"):
        folder_with(tmp_path, {}, {"temperature": "hot"})


def test_every_knob_of_a_request_reaches_the_wire() -> None:
    request = chat(
        n=2,
        seed=5,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={"7": 2.0},
        allowed_token_ids=[9, 8, 9],
        bad_words=["cat"],
        stop=["x", "y"],
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        return_token_ids=True,
        logprobs=True,
        top_logprobs=3,
        prompt_logprobs=1,
        priority=-3,
        cache_salt="s",
        speculative_tokens=1,
        min_tokens=2,
    )
    sampling = request.sampling
    assert (sampling.seed, sampling.min_p, sampling.repetition_penalty) == (5, 0.1, 1.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
    assert (sampling.logit_bias, sampling.allowed_token_ids) == ({7: 2.0}, (8, 9))
    assert (sampling.logprobs, sampling.prompt_logprobs, sampling.min_tokens) == (3, 1, 2)
    encode = prompts().tokenizer.encode_text
    assert sampling.bad_words_ids == (tuple(encode("cat")), tuple(encode(" cat")))
    assert (request.n, request.stop, request.include_stop) == (2, ("x", "y"), True)
    assert (request.skip_special_tokens, request.return_token_ids) == (False, True)
    assert (request.priority, request.cache_salt, request.speculative_tokens) == (-3, "s", 1)
