"""Trains the tiny checkpoint's tokenizer on the texts of the training tasks.

Owns the tokenizer's kind (byte-level BPE as Qwen2's), its size and its special tokens. Deterministic: the same tasks
give the same file.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from server.chat_template import ChatTemplate
from training.checkpoint_files import BUNDLED, write_side_files
from training.config import VOCAB_SIZE
from training.tasks import TASKS

# In the order of the released ids. The released pad token's string is not known.
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_end|>",
    "<|system|>",
    "<|endofsystem|>",
    "<|pad|>",
    "<|imgpad|>",
    "<|img|>",
    "<|endofimg|>",
    "<|user|>",
    "<|endofuser|>",
    "<|assistant|>",
    "<|endofassistant|>",
    "<|video_pad|>",
    "<|audio_comp_start|>",
    "<|audio_comp_end|>",
    "<|audio_comp_pad|>",
    "<think>",
    "</think>",
    "<no_think>",
    "<dots_function_call>",
    "</dots_function_call>",
    "<dots_function_response>",
    "</dots_function_response>",
)

# Qwen2's: contractions, words with the blank before them, single digits, runs of signs, line ends, blanks.
_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)


def qwen2_kind(model: models.BPE) -> tokenizers.Tokenizer:
    """A tokenizer around `model` that cuts, normalises and decodes text as the released one does."""
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train(texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Exactly VOCAB_SIZE tokens: bytes, merges of the texts, then the special tokens."""
    num_ordinary = VOCAB_SIZE - len(SPECIAL_TOKENS)
    tokenizer = qwen2_kind(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=num_ordinary,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != num_ordinary:
        raise ValueError(f"the texts must give {num_ordinary} tokens, got {tokenizer.get_vocab_size()}")
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


def task_texts(max_conversations: int, max_characters: int) -> Iterator[str]:
    """The plain texts of the first training conversations of each task, so that no task outweighs the others.

    The template's own control strings are left out: they must not become merges.
    """
    template = ChatTemplate((BUNDLED / "chat_template.jinja").read_text(), SPECIAL_TOKENS)
    for task in TASKS.values():
        num_characters = 0
        for index in range(max_conversations):
            if num_characters >= max_characters:
                break
            conversation = task.generate("train", index)
            segments = template.render(
                conversation.messages,
                conversation.tools,
                enable_thinking=conversation.thinking,
                add_generation_prompt=False,
            )
            for text, control in segments:
                if not control:
                    num_characters += len(text)
                    yield text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=BUNDLED, help="folder that gets tokenizer.json and its side files")
    parser.add_argument("--conversations", type=int, default=4000, help="at most so many of each task")
    parser.add_argument("--characters", type=int, default=2_000_000, help="at most so many of each task")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    train(task_texts(options.conversations, options.characters)).save(str(options.out / "tokenizer.json"))
    write_side_files(options.out)


if __name__ == "__main__":
    main()
