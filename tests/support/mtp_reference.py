"""The layer that drafts, put together from transformers' own decoder layer, and its tensors in the released layout.

Transformers has no module for it: it counts as one more sliding-window layer with a dense MLP.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.support.tiny_model import redraw


class ReferenceDrafter(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        from transformers.models.dots3_note import Dots3NoteTextConfig
        from transformers.models.dots3_note import modeling_dots3_note as released

        super().__init__()
        self.number: int = config["num_hidden_layers"]
        body = copy.deepcopy({name: v for name, v in config.items() if name not in ("architectures", "model_type")})
        body["layer_types"] = [*body["layer_types"], "sliding_attention"]
        body["num_hidden_layers"] = self.number + 1
        body["first_k_dense_replace"] = self.number + 1  # no layer of this config has experts; only its last is built
        self.config = Dots3NoteTextConfig(**body)
        self.config._attn_implementation = "eager"
        width, eps = config["hidden_size"], config["rms_norm_eps"]
        self.embedding = nn.Embedding(config["vocab_size"], width)
        self.enorm, self.hnorm, self.norm = (released.Dots3NoteRMSNorm(width, eps) for _ in range(3))
        self.join = nn.Linear(2 * width, width, bias=False)
        self.layer = released.Dots3NoteTextDecoderLayer(self.config, self.number)
        self.rotary = released.Dots3NoteTextRotaryEmbedding(self.config)
        self.window: int = config["sliding_window_size"]

    def released_tensors(self) -> dict[str, Tensor]:
        prefix = f"model.layers.{self.number}"
        named = {
            "model.mtp.embed_tokens.weight": self.embedding.weight,
            f"{prefix}.enorm.weight": self.enorm.weight,
            f"{prefix}.hnorm.weight": self.hnorm.weight,
            f"{prefix}.eh_proj.weight": self.join.weight,
            f"{prefix}.shared_head.norm.weight": self.norm.weight,
        }
        named |= {f"{prefix}.{name}": tensor for name, tensor in self.layer.state_dict().items()}
        return {name: tensor.detach().contiguous().clone() for name, tensor in named.items()}

    def forward(self, tokens: Tensor, hidden: Tensor, start: int = 0) -> Tensor:
        """tokens: [rows], those at the positions after the rows'; hidden: [rows, hidden]. Position 0 has no token."""
        positions = torch.arange(start, start + len(tokens))
        embedded = self.embedding(tokens) * (positions > 0)[:, None]
        x = self.join(torch.cat([self.enorm(embedded), self.hnorm(hidden)], dim=-1))[None]
        distance = positions[:, None] - positions
        seen = (distance >= 0) & (distance < self.window)
        mask = torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))[None, None]
        turns = self.rotary(x, positions[None], "sliding_attention")
        out = self.layer(x, attention_mask=mask, position_embeddings=turns, position_ids=positions[None])
        return self.norm(out if isinstance(out, Tensor) else out[0])[0]


@torch.no_grad()
def write_drafter(folder: Path, config: dict[str, Any], seed: int = 1) -> ReferenceDrafter:
    """Adds its tensors to a checkpoint that lies there in shards with an index."""
    import json

    drafter = ReferenceDrafter(config).eval()
    redraw({name: tensor for name, tensor in drafter.state_dict().items() if "inv_freq" not in name}, seed)
    tensors = drafter.released_tensors()
    save_file(tensors, folder / "drafts.safetensors")
    index = folder / "model.safetensors.index.json"
    body = json.loads(index.read_text())
    body["weight_map"] |= dict.fromkeys(tensors, "drafts.safetensors")
    index.write_text(json.dumps(body))
    written = json.loads((folder / "config.json").read_text()) | {"num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(written))
    return drafter
