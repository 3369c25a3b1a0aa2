"""The attention layers of a config: which layer is of which kind, and the widths and the rotary base of each kind.

Owns how every layout on disk says so. All layers of a kind are equal in every width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from engine.config.keys import Keys

LayerKind = Literal["dsa", "swa"]

_KIND_NAMES: dict[str, LayerKind] = {"full_attention": "dsa", "indexed_attention": "dsa", "sliding_attention": "swa"}


@dataclass(frozen=True)
class Geometry:
    """Widths of one kind of attention layer."""

    heads: int
    q_rank: int
    kv_rank: int
    nope: int
    rope: int
    value: int
    theta: float
    window: int | None  # keys that a query sees, itself included; None: all of the past

    @property
    def row(self) -> int:
        """Values that a token leaves in the cache of one layer, the index key apart."""
        return self.kv_rank + self.rope

    @property
    def softmax_scale(self) -> float:
        return float((self.nope + self.rope) ** -0.5)


def read_layer_types(text: Keys, num_layers: int) -> tuple[LayerKind, ...]:
    sliding = text.flag("use_sliding_window", True)
    names = text.names("layer_types", num_layers, _KIND_NAMES)
    if names is None:
        kinds: tuple[LayerKind, ...] = tuple(
            "dsa" if not sliding or i < 2 or i % 4 == 1 else "swa" for i in range(num_layers)
        )
    else:
        kinds = tuple(_KIND_NAMES[name] for name in names)
        # Only the flat layout calls indexed layers "full"; beside `per_layer_config` the word means no indexer.
        if "full_attention" in names and text.raw("per_layer_config") is not None and text.raw("use_dsa") is None:
            raise text.refusal("layer_types", "full_attention", "'indexed_attention' beside per_layer_config")
    if set(kinds) != {"dsa", "swa"}:
        raise text.refusal("layer_types", sorted(set(kinds)), "of both kinds, full and sliding attention")
    return kinds


def read_geometries(text: Keys, layer_types: tuple[LayerKind, ...]) -> dict[LayerKind, Geometry]:
    window = text.count("sliding_window", 0) or text.count("sliding_window_size", 512)
    text.pass_over({"sliding_window_size"})
    thetas = _thetas(text)
    text.refuse_null("q_lora_rank", "a whole number: queries without a latent are not supported")
    dsa_widths = {
        "num_attention_heads": text.count("num_attention_heads", 128),
        "num_key_value_heads": text.count("num_key_value_heads", text.count("num_attention_heads", 128)),
        "q_lora_rank": text.count("q_lora_rank", 1024),
        "kv_lora_rank": text.count("kv_lora_rank", 512),
        "qk_nope_head_dim": text.count("qk_nope_head_dim", 128),
        "qk_rope_head_dim": text.count("qk_rope_head_dim", 64),
        "v_head_dim": text.count("v_head_dim", 128),
    }
    swa_widths = _flat_swa_widths(text)
    per_layer = _per_layer(text, len(layer_types))
    found: dict[LayerKind, Geometry] = {}
    for index, kind in enumerate(layer_types):
        if per_layer is None:
            widths = dsa_widths if kind == "dsa" else swa_widths
        else:
            widths = _layer_widths(text, per_layer.get(index, {}), index, dsa_widths)
        geometry = _geometry(text, widths, thetas[kind], window if kind == "swa" else None)
        if found.setdefault(kind, geometry) != geometry:
            raise text.refusal("per_layer_config", widths, f"the same for all {kind} layers; layer {index} differs")
    return found


def _flat_swa_widths(text: Keys) -> dict[str, int]:
    heads = text.count("swa_num_attention_heads", 64)
    nope, head = text.count("swa_qk_nope_head_dim", 192), text.raw("swa_head_dim")
    width = text.count("swa_head_dim", 256)
    rope = text.count("swa_qk_rope_head_dim", max(width - nope, 1))
    if head is not None and width != nope + rope:
        raise text.refusal("swa_head_dim", width, f"swa_qk_nope_head_dim + swa_qk_rope_head_dim ({nope + rope})")
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": text.count("swa_num_key_value_heads", heads),
        "q_lora_rank": text.count("swa_q_lora_rank", 1024),
        "kv_lora_rank": text.count("swa_kv_lora_rank", 1024),
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": text.count("swa_v_head_dim", 128),
    }


def _per_layer(text: Keys, num_layers: int) -> dict[int, Any] | None:
    """What `per_layer_config` says by layer. Its keys may be zero-padded; what it leaves out is as in all layers."""
    body = text.object("per_layer_config")
    if body is None:
        return None
    for key in body:
        if not key.isdecimal() or int(key) >= num_layers:
            raise text.refusal("per_layer_config", key, f"keyed by layers below {num_layers}")
    return {int(key): value for key, value in body.items()}


def _layer_widths(text: Keys, own: Any, index: int, common: dict[str, int]) -> dict[str, int]:
    keys = Keys(own, f"per_layer_config of layer {index}")
    widths = {name: keys.count(name, width) for name, width in common.items()}
    keys.pass_over({"head_dim"})
    if unknown := keys.unknown():
        raise text.refusal("per_layer_config", unknown, f"about {', '.join(common)} only")
    return widths


def _geometry(text: Keys, widths: dict[str, int], theta: float, window: int | None) -> Geometry:
    heads, kv_heads = widths["num_attention_heads"], widths["num_key_value_heads"]
    if kv_heads != heads:
        raise text.refusal("num_key_value_heads", kv_heads, f"equal to num_attention_heads ({heads})")
    if widths["qk_rope_head_dim"] % 2:
        raise text.refusal("qk_rope_head_dim", widths["qk_rope_head_dim"], "even")
    return Geometry(
        heads=heads,
        q_rank=widths["q_lora_rank"],
        kv_rank=widths["kv_lora_rank"],
        nope=widths["qk_nope_head_dim"],
        rope=widths["qk_rope_head_dim"],
        value=widths["v_head_dim"],
        theta=theta,
        window=window,
    )


def _thetas(text: Keys) -> dict[LayerKind, float]:
    thetas: dict[LayerKind, float] = {
        "dsa": text.number("rope_theta", 8e7),
        "swa": text.number("swa_rope_theta", 5e4),
    }
    for key in ("rope_scaling", "rope_parameters"):
        if (rope := text.object(key)) is None:
            continue
        # Either one entry for all layers or one a kind of layer.
        entries = {name: value for name, value in rope.items() if name in _KIND_NAMES} or dict.fromkeys(
            _KIND_NAMES, rope
        )
        for name, entry in entries.items():
            keys = Keys(entry, f"{key} of {name}")
            for word in ("rope_type", "type"):
                keys.require(word, "default")
            thetas[_KIND_NAMES[name]] = keys.number("rope_theta", thetas[_KIND_NAMES[name]])
            keys.pass_over({"partial_rotary_factor"})  # follows from the widths
            if unknown := keys.unknown():
                raise text.refusal(key, unknown, "free of scaling")
    return thetas
