"""Checkpoint folder → TextModel, Drafter, Encoders. Memory-mapped, in layer order; owns which tensor is of which part.

Any tensor that is missing, of another shape or of no known part is an error that names it. Tensors of parts that are
not loaded are known and left alone. FP8 weights can be had as they are, for devices that multiply them, or widened.
For a GPU what lies in one piece is not mapped but read (`engine.model.shard_reader`).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import Progress
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.config.encoders import MediaConfig
from engine.config.model import FP8_TILE, ModelConfig
from engine.config.sharding import Cut, Cuts
from engine.kernels.ops import AttentionSizes, Fp8Weight, IndexSizes, check_sizes, ops_for
from engine.model.audio import AudioEncoder
from engine.model.decoder import TextModel
from engine.model.mtp import Drafter
from engine.model.ranks import Ranks
from engine.model.shard_reader import Shard, ShardReader
from engine.model.vision import PixelScale, VisionEncoder

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_SCALE_SUFFIX = "_scale_inv"
_VISION, _AUDIO = "vision_encoder.", "audio_encoder."


class CheckpointError(ValueError):
    """The weights do not fit the config, or the folder's files do not fit each other."""


def load_model(
    folder: Path,
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    max_positions: int | None = None,
    ranks: Ranks | None = None,
) -> TextModel:
    """`max_positions`: how long a sequence may get; by default as long as the model can. Of several `ranks`, this one's
    part alone is read."""
    attention = tuple(AttentionSizes(g.kv_rank, g.nope, g.rope, g.value) for g in (config.dsa, config.swa))
    check_sizes(device, attention, IndexSizes(config.indexer.heads, config.indexer.width))
    cuts = None if ranks is None else Cuts(config, ranks.share, ranks.rank)
    held = config if ranks is None else ranks.share.config
    with Checkpoint(folder, config, device, dtype, cuts=cuts) as weights:
        model = TextModel(weights, held, ops_for(device), max_positions, ranks)
        weights.check_all_taken()
    return model


def load_drafter(
    folder: Path, config: ModelConfig, device: torch.device, dtype: torch.dtype, max_positions: int | None = None
) -> Drafter:
    """`max_positions`: how long a sequence may get; by default as long as the model can."""
    if config.num_mtp_layers < 1:
        raise CheckpointError(f"{folder} has no layer that drafts (num_nextn_predict_layers is 0)")
    own = (f"model.layers.{config.num_layers}.", "model.mtp.")
    with Checkpoint(folder, config, device, dtype, lambda name: not name.startswith(own)) as weights:
        drafter = Drafter(weights, config, ops_for(device), max_positions)
        weights.check_all_taken()
    return drafter


class Encoders(NamedTuple):
    """None where the checkpoint lacks one."""

    vision: VisionEncoder | None
    audio: AudioEncoder | None


def load_encoders(
    folder: Path, config: ModelConfig, media: MediaConfig, scale: PixelScale, device: torch.device, dtype: torch.dtype
) -> Encoders:
    """Those that the config describes and the folder has tensors of. `scale`: of pixels, as the model learnt them."""
    parts = {name.partition(".")[0] + "." for name in _files_by_tensor(folder)[0]}
    vision = media.vision if _VISION in parts else None
    audio = media.audio if _AUDIO in parts else None
    plain = ops_for(torch.device("cpu"))  # on every device: the kernels are made for the text model's sizes
    loaded = tuple(prefix for prefix, part in ((_VISION, vision), (_AUDIO, audio)) if part is not None)
    with Checkpoint(folder, config, device, dtype, lambda name: not name.startswith(loaded)) as weights:
        encoders = Encoders(
            None if vision is None else VisionEncoder(weights, vision, scale, plain),
            None if audio is None else AudioEncoder(weights, audio, plain),
        )
        weights.check_all_taken()
    return encoders


class Checkpoint:
    """The tensors of a folder's safetensors files, handed out by name."""

    def __init__(
        self,
        folder: Path,
        config: ModelConfig,
        device: torch.device,
        dtype: torch.dtype,
        passes_over: Callable[[str], bool] | None = None,
        cuts: Cuts | None = None,
    ) -> None:
        """`passes_over`: which names are of parts that are not loaded; by default those outside the text model. `cuts`:
        of a rank that holds a part of each tensor; shapes are then asked for as the rank holds them."""
        self._folder = folder
        self._config = config
        self._device = device
        self._dtype = dtype
        self._files, metadata = _files_by_tensor(folder)
        self._left = set(self._files)
        self._tail_rope = _has_tail_rope(folder, metadata)
        self._open: dict[str, Any] = {}
        self._shards: dict[str, Shard] = {}
        self._reader = ShardReader(device) if device.type == "cuda" else None
        self._closing = ExitStack()
        self._cuts = cuts
        self._passes_over = passes_over or (
            lambda name: _is_passed_over(name, config) or (cuts is not None and cuts.is_of_others(name))
        )
        known = sum(not self._passes_over(name) for name in self._files)
        self._progress = Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True)
        self._task = self._progress.add_task(f"loading {folder.name}", total=known)

    def __enter__(self) -> Checkpoint:
        self._closing.enter_context(self._progress)
        if self._reader is not None:
            self._closing.callback(self._reader.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.clear()
        self._shards.clear()
        self._closing.close()

    def take(self, name: str, *shape: int) -> Tensor:
        return self._take(name, shape, self._dtype)

    def take_float(self, name: str, *shape: int) -> Tensor:
        return self._take(name, shape, torch.float32)

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def is_fp8(self, name: str) -> bool:
        coded = name + _SCALE_SUFFIX in self._files and not (self._tail_rope and ".indexer." in name)
        return coded and _keeps_tiles(self._cut_of(name))

    def take_fp8(self, name: str, *shape: int) -> Fp8Weight:
        cut = self._cut_of(name)
        codes = self._read(name, shape, cut)
        if codes.dtype != torch.float8_e4m3fn:
            raise CheckpointError(f"{self._folder}: {name} must be float8_e4m3fn beside its scales, got {codes.dtype}")
        scales = self._read(name + _SCALE_SUFFIX, _scale_shape(shape, cut), _scale_cut(cut))
        return Fp8Weight.of(codes.to(self._device), scales.to(self._device))

    def check_all_taken(self) -> None:
        unexpected = sorted(name for name in self._left if not self._passes_over(name))
        if unexpected:
            raise CheckpointError(f"{self._folder}: unexpected {_listed(unexpected)}")

    def _take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        cut = self._cut_of(name)
        tensor = self._read(name, shape, cut)
        if tensor.dtype == torch.float8_e4m3fn:
            scale = self._read(name + _SCALE_SUFFIX, _scale_shape(shape, cut), _scale_cut(cut))
            tensor = _dequantised(tensor, scale, cut)
        elif tensor.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise CheckpointError(f"{self._folder}: {name} is {tensor.dtype}, not a floating type that is supported")
        if self._tail_rope:
            tensor = _leading_rope(name, tensor, self._config)
        # On a CPU always a copy, so that no weight keeps a file mapped.
        return tensor.to(device=self._device, dtype=dtype, copy=self._device.type == "cpu")

    def _cut_of(self, name: str) -> Cut | None:
        return None if self._cuts is None else self._cuts.of(name)

    def _read(self, name: str, shape: tuple[int, ...], cut: Cut | None) -> Tensor:
        if name not in self._left:
            near = [other for other in sorted(self._left) if other.rpartition(".")[0] == name.rpartition(".")[0]]
            hint = f"; beside it there is {_listed(near)}" if near else ""
            raise CheckpointError(f"{self._folder}: missing tensor {name}{hint}")
        file = self._files[name]
        try:
            handle = self._handle(file)
            tensor, whole = self._read_straight(file, name, cut) or _part(handle, name, cut)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{self._folder / file}: {name} cannot be read: {error}") from error
        wanted = list(shape)
        if cut is not None:
            wanted[cut.dim] = cut.whole
        if whole != wanted:
            raise CheckpointError(f"{self._folder / file}: {name} must have shape {wanted}, got {whole}")
        self._left.remove(name)
        self._progress.advance(self._task)
        return tensor

    def _read_straight(self, file: str, name: str, cut: Cut | None) -> tuple[Tensor, list[int]] | None:
        """As `_part`; None where the device is a CPU, and of what lies in many pieces or is not known here."""
        if self._reader is None:
            return None
        if file not in self._shards:
            self._shards[file] = Shard(self._folder / file)
            self._closing.callback(self._shards[file].close)
        stored = self._shards[file].stored(name)
        if stored is None:
            return None
        rows = stored.shape[0] if stored.shape else 1
        if cut is None:
            return self._reader.read(self._shards[file], stored, 0, rows), list(stored.shape)
        if cut.dim or rows != cut.whole or cut.start + cut.length > rows:
            return None
        return self._reader.read(self._shards[file], stored, cut.start, cut.length), list(stored.shape)

    def _handle(self, file: str) -> Any:
        if file not in self._open:
            self._open[file] = self._closing.enter_context(_opened(self._folder / file))
        return self._open[file]


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _files_by_tensor(folder: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """File of each tensor, and the index's metadata; the index counts where there is one."""
    index = folder / _INDEX
    if index.exists():
        try:
            body = json.loads(index.read_text(encoding="utf-8"))
            return dict(body["weight_map"]), dict(body.get("metadata") or {})
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{index} is no index of weights: {error!r}") from error
    if not (folder / _SINGLE).exists():
        raise CheckpointError(f"{folder} has neither {_INDEX} nor {_SINGLE}")
    with _opened(folder / _SINGLE) as file:
        return dict.fromkeys(file.keys(), _SINGLE), dict(file.metadata() or {})


def _has_tail_rope(folder: Path, metadata: dict[str, Any]) -> bool:
    """Whether the rotary channels of index heads are the last ones; a checkpoint that does not say has them first."""
    layout = metadata.get("indexer_rope_layout", "leading")
    if layout not in ("leading", "tail"):
        raise CheckpointError(f"{folder}: indexer_rope_layout must be 'leading' or 'tail', got {layout!r}")
    return bool(layout == "tail")


def _leading_rope(name: str, tensor: Tensor, config: ModelConfig) -> Tensor:
    """The rotary channels of each index head moved to the front."""
    if not re.search(r"\.indexer\.(wq_b|wk|k_norm)\.", name):
        return tensor
    by_head = tensor.view(-1, config.indexer.width, *tensor.shape[1:])
    return by_head.roll(config.dsa.rope, dims=1).view_as(tensor)


def _part(file: Any, name: str, cut: Cut | None) -> tuple[Tensor, list[int]]:
    """Of a rank, of which no other byte is read; and the shape of the whole."""
    if cut is None:
        tensor: Tensor = file.get_tensor(name)
        return tensor, list(tensor.shape)
    stored = file.get_slice(name)
    shape = list(stored.get_shape())
    if cut.dim >= len(shape) or shape[cut.dim] != cut.whole:
        return torch.empty(0), shape
    start, end = min(cut.start, cut.whole), min(cut.start + cut.length, cut.whole)
    part: Tensor = stored[start:end] if cut.dim == 0 else stored[:, start:end]
    if end - start == cut.length:
        return part, shape
    padded = part.new_zeros(*shape[: cut.dim], cut.length, *shape[cut.dim + 1 :])
    padded.narrow(cut.dim, 0, end - start).copy_(part)
    return padded, shape


def _scale_shape(shape: tuple[int, ...], cut: Cut | None) -> tuple[int, ...]:
    tiles = [-(-length // FP8_TILE) for length in shape]
    if (scales := _scale_cut(cut)) is not None:
        tiles[scales.dim] = scales.length
    return tuple(tiles)


def _scale_cut(cut: Cut | None) -> Cut | None:
    """Of the scales of all tiles that the part touches."""
    if cut is None:
        return None
    first, end = cut.start // FP8_TILE, -(-(cut.start + cut.length) // FP8_TILE)
    return Cut(cut.dim, first, end - first, -(-cut.whole // FP8_TILE))


def _keeps_tiles(cut: Cut | None) -> bool:
    """Whether the part has a scale wherever FP8 products look for one: every FP8_TILE from its own first row."""
    if cut is None or cut.start % FP8_TILE == 0:
        return True
    return cut.start // FP8_TILE == (cut.start + cut.length - 1) // FP8_TILE


def _dequantised(weight: Tensor, scale: Tensor, cut: Cut | None) -> Tensor:
    """fp32; each tile of rows and columns times its scale, tiles at the ends cut off."""
    for dim, length in enumerate(weight.shape):
        first = cut.start % FP8_TILE if cut is not None and cut.dim == dim else 0
        scale = scale.float().repeat_interleave(FP8_TILE, dim).narrow(dim, first, length)
    return weight.float() * scale


def _is_passed_over(name: str, config: ModelConfig) -> bool:
    """Parts of the whole model that this one does not have."""
    if name.startswith((_VISION, _AUDIO, "model.mtp.")):
        return True
    layer = re.match(r"model\.layers\.(\d+)\.(self_attn\.indexer\.)?", name)
    if layer is None:
        return name == "lm_head.weight" and config.tied_embeddings
    index = int(layer[1])
    if index < config.num_layers:
        return layer[2] is not None and config.layer_types[index] == "swa"  # some checkpoints carry unused indexers
    return index < config.num_layers + max(1, config.num_mtp_layers)


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{'tensor' if len(names) == 1 else 'tensors'} {shown}{rest}"
