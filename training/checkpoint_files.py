"""The files that lie beside a checkpoint's weights, as servers and transformers look for them.

Owns their contents, all derived from the folder's tokenizer.json. Knows nothing of weights or of their index.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from server.tokenizer import Tokenizer
from training.config import stop_ids, tiny_config

BUNDLED = Path(__file__).parent.parent / "models" / "dots3-note-tiny"


def write_side_files(folder: Path) -> None:
    """Write every side file; a folder without tokenizer and template first gets the bundled ones."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "chat_template.jinja"):
        if not (folder / name).exists():
            shutil.copyfile(BUNDLED / name, folder / name)
    tokenizer = Tokenizer.from_folder(folder)
    control_ids = {token: tokenizer.token_id(token) for token in tokenizer.control_tokens}
    control_ids = dict(sorted(control_ids.items(), key=lambda item: item[1]))
    _write(folder / "config.json", tiny_config(tokenizer))
    _write(folder / "generation_config.json", _generation(tokenizer))
    _write(folder / "preprocessor_config.json", _preprocessor())
    _write(folder / "added_tokens.json", control_ids)
    _write(folder / "special_tokens_map.json", _special_tokens(control_ids))
    _write(folder / "tokenizer_config.json", _tokenizer(control_ids))


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n")


def _generation(tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "bos_token_id": tokenizer.token_id("<|endoftext|>"),
        "eos_token_id": stop_ids(tokenizer),
        "pad_token_id": tokenizer.token_id("<|pad|>"),
        "do_sample": True,
        "temperature": 1.0,
        "top_p": 0.95,
    }


def _preprocessor() -> dict[str, Any]:
    vision = {
        "min_pixels": 3136,
        "max_pixels": 1_016_064,
        "patch_size": 14,
        "temporal_patch_size": 1,
        "merge_size": 2,
        "pre_pixel_shuffle": True,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }
    sound = {
        "feature_size": 128,
        "sampling_rate": 16_000,
        "n_fft": 400,
        "hop_length": 160,
        "chunk_length": 60,
        "padding_value": 0.0,
    }
    # transformers reads the top level, for pictures and for sound; other servers read the nested copy. It finds the
    # classes by the model type: a class named here would stand for pictures, sound and films at once.
    return {
        "processor_class": "Dots3NoteProcessor",
        **vision,
        "size": {"shortest_edge": vision["min_pixels"], "longest_edge": vision["max_pixels"]},
        **sound,
        "vision_config": vision,
    }


def _special_tokens(control_ids: dict[str, int]) -> dict[str, Any]:
    return {
        "bos_token": None,
        "eos_token": "<|endoftext|>",
        "pad_token": "<|pad|>",
        "additional_special_tokens": [t for t in control_ids if t not in ("<|endoftext|>", "<|pad|>")],
    }


def _tokenizer(control_ids: dict[str, int]) -> dict[str, Any]:
    return {
        "tokenizer_class": "Qwen2Tokenizer",
        "added_tokens_decoder": {
            str(number): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
            for token, number in control_ids.items()
        },
        **_special_tokens(control_ids),
        "unk_token": None,
        "add_prefix_space": False,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": False,
        "errors": "replace",
        "model_max_length": 8192,
    }
