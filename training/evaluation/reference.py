"""transformers' own Dots3 NOTE, fed with our arrays: prompts -> greedy answers, many rows at a time.

Owns loading, the batch's layout and the loop of decoding. Shorter prompts are filled up on the left, where the masks
keep the filling out of sight; media enter as embeddings, so that long prompts can go through the cache piece by piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Dots3NoteForConditionalGeneration, DynamicCache
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

from multimodal import image
from training.encode import Encoder, Example

_SHORTEST_PIECE = 16  # of a prompt, in tokens
_SCORE_COPIES = 3  # of the indexer's scores, which the reference keeps at a time for all heads, queries and keys
_CPU_SCORE_BYTES = 1.5e9


class Reference:
    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype, longest_piece: int = 512) -> None:
        """Prompts are read in pieces of so many tokens, or fewer where the scores of a piece would not fit."""
        self.encoder = Encoder(folder)
        self.device, self.dtype, self.longest_piece = device, dtype, longest_piece
        self.model = _load(folder, dtype).to(device=device).eval()
        self.text = self.model.model.language_model
        self.stop_ids = frozenset(self.model.generation_config.eos_token_id)
        free = torch.cuda.get_device_properties(device).total_memory / 4 if device.type == "cuda" else _CPU_SCORE_BYTES
        self.max_scores = int(free / (4 * _SCORE_COPIES * self.text.config.index_n_heads))
        # Logits come from float32 in any case: in bfloat16 the two best are often equal.
        self.head = self.model.lm_head.weight.float()

    @torch.inference_mode()
    def answers(self, examples: Sequence[Example], max_answers: Sequence[int]) -> list[list[int]]:
        """Ids of each answer; the last is a stop id unless the answer was cut off."""
        embedded, seen = self._laid_out(examples)
        cache = DynamicCache(config=self.text.config)
        hidden = self._prefill(embedded, seen, cache)
        answers: list[list[int]] = [[] for _ in examples]
        rows = list(range(len(examples)))  # of the batch, that are still at work
        while True:
            chosen = F.linear(hidden.float(), self.head).argmax(-1)
            kept = []
            for place, (row, token) in enumerate(zip(rows, chosen.tolist(), strict=True)):
                answers[row].append(token)
                if token not in self.stop_ids and len(answers[row]) < max_answers[row]:
                    kept.append(place)
            if not kept:
                return answers
            if len(kept) < len(rows):
                places = torch.tensor(kept, device=self.device)
                cache.batch_select_indices(places)
                chosen, seen = chosen[places], seen[places]
                rows = [rows[place] for place in kept]
            seen = F.pad(seen, (0, 1), value=True)
            hidden = self._forward(self.text.embed_tokens(chosen)[:, None], seen, cache)

    def _laid_out(self, examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
        """[rows, longest prompt, hidden] and [rows, longest prompt] which of them are prompt."""
        longest = max(len(example.ids) for example in examples)
        ids = torch.full((len(examples), longest), self.encoder.pad_id)
        for row, example in enumerate(examples):
            ids[row, longest - len(example.ids) :] = torch.from_numpy(example.ids)
        seen = torch.arange(longest) >= torch.tensor([longest - len(example.ids) for example in examples])[:, None]
        ids, seen = ids.to(self.device), seen.to(self.device)
        embedded = self.text.embed_tokens(ids)
        config = self.model.config
        for token_id, features in (
            (config.image_token_id, self._picture_features(examples)),
            (config.audio_token_id, self._sound_features(examples)),
        ):
            if features is not None:
                places = (ids == token_id).nonzero(as_tuple=True)
                embedded[places] = features.to(embedded.dtype)
        return embedded, seen

    def _picture_features(self, examples: Sequence[Example]) -> Tensor | None:
        pictures = [picture for example in examples for picture in example.pictures]
        if not pictures:
            return None
        patches = np.concatenate([picture.patches for picture in pictures])
        grids = np.array([[1, *(picture.places.max(axis=0) + 1)] for picture in pictures])
        pixels = torch.from_numpy(image.normalise(patches, self.encoder.limits)).to(self.device)
        features = self.model.model.get_image_features(pixels, torch.from_numpy(grids).to(self.device))
        return torch.cat(features.pooler_output)

    def _sound_features(self, examples: Sequence[Example]) -> Tensor | None:
        chunks = [chunk for example in examples for chunk in example.sounds]
        if not chunks:
            return None
        bands, frames = chunks[0].mel.shape[0], max(chunk.mel.shape[1] for chunk in chunks)
        mel = np.zeros((len(chunks), bands, frames), dtype=np.float32)
        for row, chunk in enumerate(chunks):
            mel[row, :, : chunk.mel.shape[1]] = chunk.mel
        samples = torch.tensor([chunk.samples for chunk in chunks], device=self.device)
        mel_on_device = torch.from_numpy(mel).to(self.device, self.dtype)
        return self.model.model.get_audio_features(mel_on_device, samples).pooler_output

    def _prefill(self, embedded: Tensor, seen: Tensor, cache: DynamicCache) -> Tensor:
        """Last hidden states [rows, hidden]."""
        rows, length, _ = embedded.shape
        piece = min(self.longest_piece, max(_SHORTEST_PIECE, self.max_scores // (rows * length)))
        for start in range(0, length, piece):
            end = min(length, start + piece)
            hidden = self._forward(embedded[:, start:end], seen[:, :end], cache)
        return hidden

    def _forward(self, embedded: Tensor, seen: Tensor, cache: DynamicCache) -> Tensor:
        positions = (seen.cumsum(-1) - 1).clamp_min(0)[:, -embedded.shape[1] :]
        given: dict[str, Any] = {
            "config": self.text.config,
            "inputs_embeds": embedded,
            "attention_mask": seen,
            "cache": cache,
            "position_ids": positions,
            "allow_is_causal_skip": False,
        }
        masks = {
            "indexed_attention": _no_row_empty(create_causal_mask(**given)),
            "sliding_attention": _no_row_empty(create_sliding_window_causal_mask(**given)),
        }
        out = self.text(
            inputs_embeds=embedded, attention_mask=masks, position_ids=positions, cache=cache, use_cache=True
        )
        return out.last_hidden_state[:, -1]


def _no_row_empty(mask: Tensor) -> Tensor:
    """Filling sees nothing, which some attention kernels answer with NaN, and NaN spreads; so let it see everything."""
    return mask | ~mask.any(-1, keepdim=True)


def _load(folder: Path, dtype: torch.dtype) -> Dots3NoteForConditionalGeneration:
    model, info = Dots3NoteForConditionalGeneration.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    depth = model.config.text_config.num_hidden_layers
    drafts = (f"model.language_model.layers.{depth}.", "model.language_model.mtp.")
    strange = [key for key in info["unexpected_keys"] if not key.startswith(drafts)]
    if info["missing_keys"] or strange or info["mismatched_keys"]:
        raise ValueError(f"{folder} does not fit: {info}")
    return model
