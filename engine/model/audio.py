"""The sound encoder: log-mel of any number of chunks, packed, → one embedding for every 80 ms.

A chunk, of a minute at most, is a sequence of its own. Owns the weights and how chunks lie beside each other on one
strip of frames. Knows nothing of samples' origin, placeholders or of who asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.config.encoders import CHUNK_TOKENS, MEL_BANDS, AudioConfig
from engine.kernels.ops import Norm, Ops
from engine.model.blocks import LayerNorm, Weights
from engine.model.packed import Packing, attention

FRAMES_PER_TOKEN = 8  # three convolutions halve the frames
_GAP_FRAMES = FRAMES_PER_TOKEN  # of silence after each chunk: a convolution looks one frame back
_EPS = 1e-6
_ADAPTER_EPS = 1e-5


class Chunk(NamedTuple):
    mel: Tensor  # fp32 [bands, FRAMES_PER_TOKEN · tokens], on any device
    valid_frames: int  # whole frames of real sound; the encoder sees nothing of the others

    @property
    def num_tokens(self) -> int:
        return self.mel.shape[1] // FRAMES_PER_TOKEN


class _Linear(NamedTuple):
    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class _Layer:
    def __init__(self, weights: Weights, prefix: str, config: AudioConfig, ops: Ops) -> None:
        width = config.width
        self._ops = ops
        self._heads = config.heads
        self._attention_norm = Norm.of([weights.take_float(f"{prefix}.self_attn_layer_norm.weight", width)], _EPS)
        self._qkv = _qkv(weights, f"{prefix}.self_attn", width)
        self._out = _linear(weights, f"{prefix}.self_attn.out_proj", width, width)
        self._mlp_norm = Norm.of([weights.take_float(f"{prefix}.final_layer_norm.weight", width)], _EPS)
        self._gate_up = _linear(weights, f"{prefix}.fc1", 2 * config.inter, width)
        self._down = _linear(weights, f"{prefix}.fc2", width, config.inter)

    def forward(self, hidden: Tensor, turns: tuple[Tensor, Tensor], packing: Packing) -> Tensor:
        x = self._ops.rms_norm(hidden, self._attention_norm)
        q, k, v = self._qkv(x).view(len(x), 3, self._heads, -1).unbind(1)
        attended = attention(_turned(q, turns), _turned(k, turns), v.contiguous(), packing)
        hidden = hidden + self._out(attended)
        x = self._ops.rms_norm(hidden, self._mlp_norm)
        return hidden + self._down(self._ops.silu_mul(self._gate_up(x)))


class AudioEncoder:
    """Runs in inference mode: what it returns is not for autograd."""

    def __init__(self, weights: Weights, config: AudioConfig, ops: Ops) -> None:
        self.config = config
        self._ops = ops
        prefix, adapter = "audio_encoder.dots_encoder.speech_encoder", "audio_encoder.audio_adapter.proj"
        width, channels, out = config.width, config.channels, config.out_width
        self._convolutions = [
            _Linear(
                weights.take(f"{prefix}.conv2d{number}.weight", channels, inputs, 3, 3),
                weights.take(f"{prefix}.conv2d{number}.bias", channels),
            )
            for number, inputs in ((1, 1), (2, channels), (3, channels))
        ]
        self._projection = weights.take(f"{prefix}.conv_out.weight", width, channels * MEL_BANDS // FRAMES_PER_TOKEN)
        self._layers = [
            _Layer(weights, f"{prefix}.layers.{index}", config, ops) for index in range(config.num_layers)
        ]  # fmt: skip
        self._norm = Norm.of([weights.take_float(f"{prefix}.layer_norm.weight", width)], _EPS)
        self._adapter_norm = LayerNorm(weights, f"{adapter}.0", width, _ADAPTER_EPS)
        self._inner = _linear(weights, f"{adapter}.1", out, width)
        self._outer = _linear(weights, f"{adapter}.3", out, out)
        self._cos, self._sin = _turns(config, self._projection)

    @torch.inference_mode()
    def forward(self, chunks: Sequence[Chunk], on_layer: Callable[[], None] | None = None) -> Tensor:
        """→ [tokens of all chunks, out_width]. `on_layer`: after each layer, convolutions included."""
        hidden = self._stem(chunks, on_layer)
        lengths = [chunk.num_tokens for chunk in chunks]
        places = torch.cat([torch.arange(length) for length in lengths]).to(hidden.device)
        turns = (self._cos[places].unsqueeze(1), self._sin[places].unsqueeze(1))
        packing = Packing(lengths, hidden.device)
        for layer in self._layers:
            hidden = layer.forward(hidden, turns, packing)
            if on_layer is not None:
                on_layer()
        hidden = self._ops.rms_norm(hidden, self._norm)
        return self._outer(F.gelu(self._inner(self._adapter_norm(hidden))))

    def _stem(self, chunks: Sequence[Chunk], on_layer: Callable[[], None] | None) -> Tensor:
        """All chunks on one strip of frames, gaps between them, through the convolutions → [tokens, width]."""
        weight = self._projection
        starts, end = [], 0
        for chunk in chunks:
            starts.append(end)
            end += chunk.mel.shape[1] + _GAP_FRAMES
        strip = torch.zeros(1, 1, MEL_BANDS, end, dtype=weight.dtype, device=weight.device)
        for start, chunk in zip(starts, chunks, strict=True):
            heard = chunk.valid_frames
            strip[0, 0, :, start : start + heard] = chunk.mel[:, :heard].to(weight)
        valid = [chunk.valid_frames for chunk in chunks]
        for convolution in self._convolutions:
            strip = F.gelu(F.conv2d(strip, *convolution, stride=2, padding=1))
            starts, valid, end = [start // 2 for start in starts], [(frames + 1) // 2 for frames in valid], end // 2
            # A convolution of nothing is not nothing, and the next one would see it. Filled, not multiplied: what one
            # sound has of infinities must not get into its neighbour.
            strip.masked_fill_(~_mask(starts, valid, end).to(strip.device), 0.0)
            if on_layer is not None:
                on_layer()
        rows = strip[0].permute(2, 0, 1).flatten(1)  # [frames / 8, channels · bands / 8]
        kept = _mask(starts, [chunk.num_tokens for chunk in chunks], end).nonzero().view(-1)
        return F.linear(rows[kept.to(rows.device)], weight)


def _mask(starts: Sequence[int], lengths: Sequence[int], end: int) -> Tensor:
    """bool [end], true in `lengths` frames from each start."""
    mask = torch.zeros(end, dtype=torch.bool)
    for start, length in zip(starts, lengths, strict=True):
        mask[start : start + length] = True
    return mask


def _linear(weights: Weights, prefix: str, outputs: int, inputs: int) -> _Linear:
    return _Linear(weights.take(f"{prefix}.weight", outputs, inputs), weights.take(f"{prefix}.bias", outputs))


def _qkv(weights: Weights, prefix: str, width: int) -> _Linear:
    """Queries, keys and values in one; keys have no bias."""
    weight = torch.cat([weights.take(f"{prefix}.{name}_proj.weight", width, width) for name in "qkv"])
    q, v = (weights.take(f"{prefix}.{name}_proj.bias", width) for name in "qv")
    return _Linear(weight, torch.cat([q, torch.zeros_like(q), v]))


def _turns(config: AudioConfig, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [place in the chunk, half of the rotary channels], worked out in fp32."""
    frequencies = 1.0 / config.theta ** (torch.arange(0, config.rotary, 2, dtype=torch.float32) / config.rotary)
    angles = torch.arange(CHUNK_TOKENS, dtype=torch.float32)[:, None] * frequencies
    return angles.cos().to(like), angles.sin().to(like)


def _turned(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """The first channels of each head [tokens, heads, channels] rotated: channel i with i + half of them."""
    cos, sin = turns
    half = cos.shape[-1]
    first, second, rest = torch.split(x, [half, half, x.shape[-1] - 2 * half], dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)
