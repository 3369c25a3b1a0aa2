"""Makes the FP8 copy of a checkpoint: `python -m training.quantise SOURCE OUT`.

Owns which weights become FP8 (those of the released FP8 checkpoint) and how: tiles of 128 × 128, a float32 scale each.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from safetensors.torch import load_file
from torch import Tensor

from training.export import write_shards

TILE = 128
QUANTIZATION_CONFIG = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [TILE, TILE],
}
_LARGEST = torch.finfo(torch.float8_e4m3fn).max
_INDEX = "model.safetensors.index.json"

# The blocks of text and of drafts. The config has no list of exceptions: whoever loads the copy knows the same rule.
_QUANTISED = re.compile(
    r"model\.layers\.\d+\."
    r"(self_attn\.(q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj|o_proj|g_proj)"
    r"|self_attn\.indexer\.(wq_b|wk|weights_proj)"
    r"|mlp\.((experts\.\d+|shared_experts)\.)?(gate_proj|up_proj|down_proj)"
    r"|eh_proj)\.weight"
)


def is_quantised(name: str) -> bool:
    return _QUANTISED.fullmatch(name) is not None


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[rows, columns] -> FP8 of that shape, and the factor of each tile; tiles at the ends may be smaller."""
    rows, columns = weight.shape
    tiles = _tiles(weight.float())
    scale = tiles.abs().amax(dim=(1, 3)) / _LARGEST
    scale = torch.where(scale > 0, scale, 1.0)  # a tile of zeros
    scaled = (tiles / scale[:, None, :, None]).clamp(-_LARGEST, _LARGEST)  # a division may round past the end
    flat = scaled.reshape(tiles.shape[0] * TILE, tiles.shape[2] * TILE)
    return flat[:rows, :columns].to(torch.float8_e4m3fn).contiguous(), scale


def dequantise(weight: Tensor, scale: Tensor) -> Tensor:
    rows, columns = weight.shape
    return weight.float() * scale.repeat_interleave(TILE, 0)[:rows].repeat_interleave(TILE, 1)[:, :columns]


def _tiles(weight: Tensor) -> Tensor:
    """[rows, columns] -> [tiles down, 128, tiles across, 128], filled up with zeros."""
    rows, columns = weight.shape
    filled = F.pad(weight, (0, -columns % TILE, 0, -rows % TILE))
    return filled.reshape(filled.shape[0] // TILE, TILE, filled.shape[1] // TILE, TILE)


def write_quantised(source: Path, out: Path) -> None:
    config = json.loads((source / "config.json").read_text())
    if "quantization_config" in config:
        raise ValueError(f"{source} is quantised already")
    if out.resolve() == source.resolve():
        raise ValueError(f"the copy must lie in another folder than {source}")
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(json.loads((source / _INDEX).read_text())["weight_map"].values())):
        for name, value in load_file(source / file).items():
            if is_quantised(name):
                tensors[name], tensors[f"{name}_scale_inv"] = quantise(value)
            else:
                tensors[name] = value
    out.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        # The model card tells of the weights that are not copied.
        if path.is_file() and path.suffix != ".safetensors" and path.name not in ("config.json", _INDEX, "README.md"):
            shutil.copyfile(path, out / path.name)
    config |= {"quantization_config": QUANTIZATION_CONFIG}
    (out / "config.json").write_text(json.dumps(config, ensure_ascii=False, indent=2) + "\n")
    write_shards(tensors, out)


def main(
    source: Annotated[Path, typer.Argument(help="folder of a bf16 checkpoint")],
    out: Annotated[Path, typer.Argument(help="folder for the FP8 copy")],
) -> None:
    write_quantised(source, out)
    size = sum(path.stat().st_size for path in out.glob("*.safetensors"))
    typer.echo(f"{out}: {size / 1e6:.1f} MB of weights")


if __name__ == "__main__":
    typer.run(main)
