"""The sound encoder as a trainable module: log-mel chunks in, one embedding per 80 ms out.

Parameter names are those of the released checkpoint. Chunks of a batch share one padded length.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.model.blocks import MASKED, rms_norm
from training.model.compiling import compiled_on_gpu
from training.model.text import Norm

EPS = 1e-6
ROTARY_SHARE = 0.5  # of each head's channels
SAMPLES_PER_FRAME = 160


class AudioAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.q_proj, self.v_proj, self.out_proj = (nn.Linear(width, width) for _ in range(3))
        self.k_proj = nn.Linear(width, width, bias=False)


def rotate_leading(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first channels of x [chunks, heads, tokens, dim], half-split; angles are [tokens, rotated / 2]."""
    half = cos.shape[-1]
    first, second, rest = x.split([half, half, x.shape[-1] - 2 * half], dim=-1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


class AudioLayer(nn.Module):
    def __init__(self, width: int, inter: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.self_attn_layer_norm, self.final_layer_norm = Norm(width), Norm(width)
        self.self_attn = AudioAttention(width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * inter), nn.Linear(inter, width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, seen: Tensor) -> Tensor:
        """x: [chunks, tokens, width]; seen: bool [chunks, 1, 1, tokens]."""
        a = self.self_attn
        normed = rms_norm(x, self.self_attn_layer_norm.weight, EPS)
        q, k, v = (p(normed).view(*x.shape[:2], self.heads, -1).transpose(1, 2) for p in (a.q_proj, a.k_proj, a.v_proj))
        q, k = rotate_leading(q, cos, sin), rotate_leading(k, cos, sin)
        scores = torch.matmul(q, k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
        weights = scores.masked_fill(~seen, MASKED).softmax(-1).to(v.dtype)
        x = x + a.out_proj(torch.matmul(weights, v).transpose(1, 2).flatten(2))
        gate, up = self.fc1(rms_norm(x, self.final_layer_norm.weight, EPS)).chunk(2, dim=-1)
        out: Tensor = x + self.fc2(F.silu(gate) * up)
        return out


class SpeechEncoder(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        sizes = config["whisper_config"]
        width, channels = sizes["d_model"], config["downsample_hidden_size"]
        self.conv2d1, self.conv2d2, self.conv2d3 = (
            nn.Conv2d(inputs, channels, 3, stride=2, padding=1) for inputs in (1, channels, channels)
        )
        self.conv_out = nn.Linear(channels * -(-sizes["num_mel_bins"] // 8), width, bias=False)
        heads = sizes["encoder_attention_heads"]
        self.layers = nn.ModuleList(
            AudioLayer(width, sizes["encoder_ffn_dim"], heads) for _ in range(sizes["encoder_layers"])
        )
        self.layer_norm = Norm(width)
        self.rotated = int(width // heads * ROTARY_SHARE)

    def forward(self, mel: Tensor, samples: Tensor) -> Tensor:
        return encode_speech(mel, samples, self)

    def encode(self, mel: Tensor, samples: Tensor) -> Tensor:
        valid = samples // SAMPLES_PER_FRAME
        x = _without_tail(mel[:, None], valid)
        for conv in (self.conv2d1, self.conv2d2, self.conv2d3):
            valid = (valid + 1) // 2
            x = _without_tail(F.gelu(conv(x)), valid)
        x = self.conv_out(x.permute(0, 3, 1, 2).flatten(2))  # [chunks, tokens, width]
        places = torch.arange(x.shape[1], device=x.device)
        frequency = 10_000.0 ** (-torch.arange(0, self.rotated, 2, device=x.device).float() / self.rotated)
        angle = places.float()[:, None] * frequency
        tokens = (samples + SAMPLES_PER_FRAME * 8 - 1) // (SAMPLES_PER_FRAME * 8)
        seen = places < tokens.clamp_min(1)[:, None]  # an unused chunk still attends to something
        for layer in self.layers:
            x = layer(x, angle.cos(), angle.sin(), seen[:, None, None])
        return rms_norm(x, self.layer_norm.weight, EPS)


@compiled_on_gpu
def encode_speech(mel: Tensor, samples: Tensor, encoder: SpeechEncoder) -> Tensor:
    return encoder.encode(mel, samples)


def _without_tail(x: Tensor, valid: Tensor) -> Tensor:
    """Zero the frames from `valid` on; x: [chunks, channels, bands, frames]."""
    inside = torch.arange(x.shape[-1], device=x.device) < valid[:, None]
    return x * inside[:, None, None].to(x.dtype)


class DotsEncoder(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.speech_encoder = SpeechEncoder(config)


class AudioAdapter(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, out = config["whisper_adapter_in_dim"], config["whisper_adapter_out_dim"]
        self.proj = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, out), nn.GELU(), nn.Linear(out, out))


class AudioEncoder(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.dots_encoder = DotsEncoder(config)
        self.audio_adapter = AudioAdapter(config)

    def forward(self, mel: Tensor, samples: Tensor) -> Tensor:
        """mel: [chunks, bands, frames], frames a multiple of 8; samples: [chunks]; out: [chunks, frames / 8, out]."""
        out: Tensor = self.audio_adapter.proj(self.dots_encoder.speech_encoder(mel, samples))
        return out
