"""The tiny tokenizer's recipe, and the files beside the checkpoint as servers and transformers read them."""

import json
import math
import random
from pathlib import Path

import pytest

from server.chat_template import ChatTemplate
from server.tokenizer import Tokenizer
from training.checkpoint_files import BUNDLED, write_side_files
from training.config import VOCAB_SIZE, tiny_config
from training.tokenizer import SPECIAL_TOKENS, task_texts, train

CHAT = Path(__file__).parent.parent / "fixtures" / "chat"
SIDE_FILES = (
    *("config.json", "generation_config.json", "preprocessor_config.json", "added_tokens.json"),
    *("special_tokens_map.json", "tokenizer_config.json", "tokenizer.json", "chat_template.jinja"),
)


def random_texts(num_words: int) -> list[str]:
    drawn = random.Random(0)
    return [" ".join("".join(drawn.choices("abcdefgh", k=5)) for _ in range(20)) + "12\n" for _ in range(num_words)]


def test_special_tokens_are_the_released_ones_in_their_order() -> None:
    released = {
        name: number
        for name, number in json.loads((CHAT / "special_tokens.json").read_text()).items()
        if name[0] == "<"
    }
    assert set(SPECIAL_TOKENS) == {*released, "<|pad|>"}
    known = [name for name in SPECIAL_TOKENS if released.get(name)]
    assert known == sorted(known, key=released.__getitem__)


def test_training_fills_the_vocabulary_and_puts_special_tokens_last() -> None:
    backend = train(random_texts(600))
    first = VOCAB_SIZE - len(SPECIAL_TOKENS)
    added = backend.get_added_tokens_decoder()
    assert backend.get_vocab_size() == VOCAB_SIZE
    assert {number: token.content for number, token in added.items()} == dict(enumerate(SPECIAL_TOKENS, first))
    assert all(token.special for token in added.values())


def test_training_twice_gives_the_same_file() -> None:
    texts = random_texts(600)
    assert train(texts).to_str() == train(texts).to_str()


def test_too_little_text_is_refused() -> None:
    with pytest.raises(ValueError, match="the texts must give 3049 tokens, got"):
        train(["a b c"])


def test_no_control_string_of_the_template_is_learnt() -> None:
    texts = list(task_texts(max_conversations=3, max_characters=10_000))
    assert texts
    assert not [text for text in texts for token in SPECIAL_TOKENS if token in text]


def test_digits_are_single_tokens_and_text_comes_back() -> None:
    tokenizer = Tokenizer.from_folder(BUNDLED)
    assert len(tokenizer.encode_text("1234567890")) == 10
    for text in ("12 + 30 = 42", "  a\n\n\tb\r\n", "Größe 北京 🙂", "<tools>\n</tools>"):
        assert tokenizer.decode(tokenizer.encode_text(text)) == text


@pytest.mark.parametrize("word", ["You", " helpful", " assistant", " function", "parameters", "properties"])
def test_words_of_every_prompt_are_single_tokens(word: str) -> None:
    assert len(Tokenizer.from_folder(BUNDLED).encode_text(word)) == 1


@pytest.mark.parametrize("name", SIDE_FILES)
def test_bundled_files_are_what_the_recipe_writes(name: str, tmp_path: Path) -> None:
    write_side_files(tmp_path)
    assert (tmp_path / name).read_bytes() == (BUNDLED / name).read_bytes()


def test_bundled_template_is_the_one_that_meets_the_goldens() -> None:
    assert (BUNDLED / "chat_template.jinja").read_bytes() == (CHAT / "chat_template.jinja").read_bytes()


def test_both_stop_tokens_are_listed() -> None:
    tokenizer = Tokenizer.from_folder(BUNDLED)
    stops = [tokenizer.token_id("<|endoftext|>"), tokenizer.token_id("<|endofassistant|>")]
    for name in ("generation_config.json", "config.json"):
        assert json.loads((BUNDLED / name).read_text())["eos_token_id"] == stops


def test_picture_settings_stand_nested_and_at_top_level() -> None:
    settings = json.loads((BUNDLED / "preprocessor_config.json").read_text())
    nested = settings["vision_config"]
    assert (nested["min_pixels"], nested["max_pixels"], nested["temporal_patch_size"]) == (3136, 1016064, 1)
    assert {key: settings[key] for key in nested} == nested


def test_config_has_every_released_key() -> None:
    """`rope_scaling`, null in the released file, is left out: transformers warns of the key itself."""
    config, released = (
        tiny_config(Tokenizer.from_folder(BUNDLED)),
        json.loads((CHAT / "config.released.json").read_text()),
    )
    assert set(released) - set(config) == {"rope_scaling"}
    assert set(released["vision_config"]) <= set(config["vision_config"])
    assert set(released["audio_config"]) <= set(config["audio_config"])
    assert set(released["audio_config"]["whisper_config"]) == set(config["audio_config"]["whisper_config"])


@pytest.mark.e2e
def test_transformers_reads_the_tokenizer_alike() -> None:
    from transformers import AutoTokenizer

    theirs, ours = AutoTokenizer.from_pretrained(BUNDLED), Tokenizer.from_folder(BUNDLED)
    template = ChatTemplate((BUNDLED / "chat_template.jinja").read_text(), ours.control_tokens)
    assert len(theirs) == VOCAB_SIZE
    assert (theirs.eos_token, theirs.pad_token, theirs.bos_token) == ("<|endoftext|>", "<|pad|>", None)
    assert set(theirs.all_special_tokens) == set(SPECIAL_TOKENS)
    messages = [{"role": "system", "content": "Größe  12\n\n"}, {"role": "user", "content": "it's 北京, you'll see"}]
    tools = [{"type": "function", "function": {"name": "f", "description": "<b> & é", "parameters": {}}}]
    for thinking in (True, False):
        rendered = theirs.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
        )
        segments = template.render(messages, tools, enable_thinking=thinking)
        assert rendered == "".join(text for text, _ in segments)
        ids = ours.encode_segments(segments)
        assert theirs(rendered, add_special_tokens=False).input_ids == ids
        assert theirs.decode(ids) == ours.decode(ids) == rendered


@pytest.mark.e2e
def test_transformers_reads_the_processor_settings() -> None:
    from transformers import AutoFeatureExtractor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    pictures = Qwen2VLImageProcessorPil.from_pretrained(BUNDLED)
    assert (pictures.size["shortest_edge"], pictures.size["longest_edge"]) == (3136, 1016064)
    assert (pictures.patch_size, pictures.temporal_patch_size, pictures.merge_size) == (14, 1, 2)
    sounds = AutoFeatureExtractor.from_pretrained(BUNDLED)
    assert type(sounds).__name__ == "Dots3NoteFeatureExtractor"
    assert (sounds.feature_size, sounds.n_samples, sounds.hop_length) == (128, 960_000, 160)


@pytest.mark.e2e
def test_transformers_builds_the_model_small_enough_for_the_repository() -> None:
    import torch
    from transformers import AutoConfig, GenerationConfig
    from transformers.models.dots3_note import Dots3NoteForConditionalGeneration

    config = AutoConfig.from_pretrained(BUNDLED)
    assert config.dtype == torch.bfloat16
    assert GenerationConfig.from_pretrained(BUNDLED).eos_token_id == config.text_config.eos_token_id
    with torch.device("meta"):
        model = Dots3NoteForConditionalGeneration(config)
    text = config.text_config
    assert [kind == "indexed_attention" for kind in text.layer_types] == [i in (0, 1, 5, 9) for i in range(10)]
    assert (text.sliding_window, text.shared_experts_intermediate_size, text.index_topk) == (65, 64, 256)
    sliding = sum(math.prod(t.shape) for t in model.model.language_model.layers[2].self_attn.parameters())
    dense = 3 * text.hidden_size * text.intermediate_size
    draft = text.vocab_size * text.hidden_size + 2 * text.hidden_size**2 + sliding + dense + 5 * text.hidden_size
    total = draft + sum(math.prod(tensor.shape) for tensor in model.state_dict().values())
    assert total == 15_824_456
