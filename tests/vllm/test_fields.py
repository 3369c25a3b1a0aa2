"""What a request says becomes what vLLM is told, field by field; what it cannot do is refused by name."""

from pathlib import Path

import msgspec
import pytest

from engine.vllm.arguments import parser, vllm_arguments
from engine.vllm.sampling import check_drafts, choice_seed, sampling_fields
from engine.wire.grammar import Grammar, JsonObject
from engine.wire.messages import Sampling, Submit
from engine.wire.refused import RefusedError

EVERYTHING = Sampling(
    max_tokens=9,
    min_tokens=2,
    temperature=0.5,
    top_k=40,
    top_p=0.9,
    min_p=0.1,
    repetition_penalty=1.1,
    presence_penalty=0.2,
    frequency_penalty=0.3,
    logit_bias={5: -1.0},
    allowed_token_ids=(1, 2, 5),
    bad_words_ids=((7,), (8, 9)),
    seed=3,
    stop_token_ids=(1, 4),
    logprobs=2,
    prompt_logprobs=1,
)


def submit(**changes: object) -> Submit:
    return Submit("r", (1, 2, 3), msgspec.structs.replace(EVERYTHING, **changes), n=2)


def test_every_field_arrives() -> None:
    assert sampling_fields(submit(), 0) == {
        "n": 1,
        "max_tokens": 9,
        "min_tokens": 2,
        "temperature": 0.5,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "logit_bias": {5: -1.0},
        "allowed_token_ids": [1, 2, 5],
        "_bad_words_token_ids": [[7], [8, 9]],
        "seed": 3,
        "stop_token_ids": [1, 4],
        "ignore_eos": True,
        "logprobs": 2,
        "prompt_logprobs": 1,
        "detokenize": False,
    }


def test_no_field_of_the_wire_is_forgotten() -> None:
    """Each changes what vLLM is told, so that a new one fails here."""
    plain = Submit("r", (1,), Sampling(max_tokens=1))
    for field in msgspec.structs.fields(Sampling):
        changed = msgspec.structs.replace(plain.sampling, **{field.name: getattr(EVERYTHING, field.name)})
        told = sampling_fields(msgspec.structs.replace(plain, sampling=changed), 0)
        assert told != sampling_fields(plain, 0), field.name


def test_the_second_choice_has_a_seed_of_its_own_and_no_prompt_logprobs() -> None:
    first, second = (sampling_fields(submit(), index) for index in (0, 1))
    assert {name for name in first if first[name] != second[name]} == {"seed", "prompt_logprobs"}
    assert second["prompt_logprobs"] is None


def test_seeds_of_choices_are_fixed_and_fit_64_bits() -> None:
    seeds = [choice_seed(seed, index) for seed in (-(2**63), -1, 0, 1, 2**63 - 1) for index in range(20)]
    assert len(set(seeds)) == len(seeds)
    assert all(-(2**63) <= seed < 2**63 for seed in seeds)
    assert choice_seed(7, 0) == 7
    assert choice_seed(7, 1) == choice_seed(7, 1)


def test_without_a_seed_no_choice_has_one() -> None:
    assert sampling_fields(submit(seed=None), 1)["seed"] is None


def test_no_mass_is_the_likeliest_token() -> None:
    fields = sampling_fields(submit(top_p=0.0), 0)
    assert (fields["top_p"], fields["top_k"]) == (1.0, 1)


def test_an_answer_in_a_grammar_ends_by_the_end_of_text() -> None:
    held = msgspec.structs.replace(submit(), grammar=Grammar(JsonObject()))
    assert sampling_fields(held, 0)["ignore_eos"] is False


@pytest.mark.parametrize(("asked", "drafted"), [(None, 0), (None, 3), (0, 0), (3, 3), (5, 3), (2, 0)])
def test_at_most_so_many_drafts_as_asked_are_made(asked: int | None, drafted: int) -> None:
    check_drafts(msgspec.structs.replace(submit(), speculative_tokens=asked), drafted)


def test_fewer_drafts_than_vllm_makes_are_refused_by_name() -> None:
    with pytest.raises(RefusedError, match=r"`speculative_tokens` must be ≥ 3, which vLLM .* got 2"):
        check_drafts(msgspec.structs.replace(submit(), speculative_tokens=2), 3)


# ---- the command line


def chosen(folder: Path, model_type: str, *arguments: str) -> list[str]:
    (folder / "config.json").write_text(f'{{"model_type": "{model_type}"}}')
    flags, further = parser().parse_known_args(["--listen", "ipc:///w", "--model", str(folder), *arguments])
    return vllm_arguments(flags, further)


def test_flags_that_are_not_ours_go_to_vllm_behind_everything_else(tmp_path: Path) -> None:
    words = chosen(
        tmp_path, "qwen2", "--vllm-args", "--block-size 16 --x 'a b'", "--data-parallel-size", "2", "--seed=1"
    )
    assert words[-6:] == ["--block-size", "16", "--x", "a b", "--data-parallel-size", "2"]
    assert words[words.index("--seed") + 1] == "1"


def test_dots3_gets_what_is_known_to_be_good_and_may_overrule_it(tmp_path: Path) -> None:
    assert chosen(tmp_path, "dots3_note")[-2:] == ["--block-size", "64"]
    assert chosen(tmp_path, "dots3_note", "--block-size", "128")[-4:] == ["--block-size", "64", "--block-size", "128"]
    assert "--block-size" not in chosen(tmp_path, "qwen2")


def test_drafts_are_those_of_the_models_own_layer(tmp_path: Path) -> None:
    words = chosen(tmp_path, "dots3_note", "--speculative-tokens", "2")
    assert words[words.index("--speculative-config") + 1] == '{"method": "mtp", "num_speculative_tokens": 2}'
    assert "--speculative-config" not in chosen(tmp_path, "dots3_note", "--speculative-tokens", "0")


def test_arguments_that_cannot_be_split_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--vllm-args cannot be read: .* got \"--x 'a\""):
        chosen(tmp_path, "qwen2", "--vllm-args", "--x 'a")
