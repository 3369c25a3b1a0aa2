"""The trainable twin gives what transformers gives, and its checkpoint loads there."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Dots3NoteForConditionalGeneration

from training.checkpoint_files import BUNDLED, write_side_files
from training.config import tiny_config
from training.encode import Encoder
from training.export import write_checkpoint
from training.model.blocks import Packing, routed_experts
from training.model.dots3 import Batch, Dots3, load_released, released_tensors
from training.model.mtp import MtpBlock
from training.packing import Caps, build
from training.tasks import TASKS

LENGTH = 90
TOP_K, WINDOW = 24, 9  # both far below the length


def small_config() -> dict[str, Any]:
    """The tiny model's widths, with selection and window short enough to matter in a short prompt."""
    config = copy.deepcopy(tiny_config(Encoder().tokenizer))
    return config | {"index_topk": TOP_K, "sliding_window_size": WINDOW}


def redraw(model: torch.nn.Module) -> None:
    """Give every tensor values that would be missed: fresh norms are one and fresh biases zero."""
    with torch.no_grad():
        for name, value in model.state_dict().items():
            spread = 0.2 if value.ndim < 2 else value.shape[-1] ** -0.5
            value.copy_(torch.randn_like(value) * spread + (1.0 if "norm" in name and "weight" in name else 0.0))


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dots3, Dots3NoteForConditionalGeneration]:
    """A random model and transformers' reading of its checkpoint, both with the weights as stored."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("checkpoint")
    config = small_config()
    model = Dots3(config)
    redraw(model)
    write_side_files(folder)
    write_checkpoint(model, folder)
    (folder / "config.json").write_text(json.dumps(config))
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if not name.endswith(("e_score_correction_bias", "router_bias")):
                value.copy_(value.bfloat16())
    reference, report = Dots3NoteForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["mismatched_keys"]
    drafts = f"layers.{config['num_hidden_layers']}."
    assert all(drafts in key or ".mtp." in key for key in report["unexpected_keys"])
    return model, reference.eval()


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    limit = 1e-4 * (theirs.max() - theirs.min())
    assert (ours - theirs).abs().max() <= limit


@pytest.mark.e2e
@torch.no_grad()
def test_text_with_selected_keys_gives_the_reference_logits(
    twins: tuple[Dots3, Dots3NoteForConditionalGeneration],
) -> None:
    model, reference = twins
    ids = torch.randint(0, 3000, (LENGTH,))
    packing = Packing(torch.tensor([0, LENGTH], dtype=torch.int32), LENGTH)
    decoded = model.model(model.model.embed_tokens(ids), torch.arange(LENGTH), packing, sparse=True)
    assert_close(model.lm_head(decoded.hidden), reference(input_ids=ids[None]).logits[0])


@pytest.mark.e2e
@torch.no_grad()
def test_packed_media_give_the_embeddings_of_each_item_alone(
    twins: tuple[Dots3, Dots3NoteForConditionalGeneration],
) -> None:
    model, reference = twins
    encoder = Encoder()
    examples = [encoder(TASKS[name].generate("test", 3)) for name in ("picture_compare", "sound_beeps", "film_at_tone")]
    caps = Caps(tokens=2048, learnt=2048, patches=4096, chunks=16, longest_picture=1024)
    batch = build(examples, caps, encoder.pad_id)
    embedded, _ = model.embed(batch)
    start = 0
    for example in examples:
        pixels = [torch.from_numpy(p.patches) for p in example.pictures]
        wanted = []
        for places, patches in zip((p.places for p in example.pictures), pixels, strict=True):
            rows, columns = (int(n) + 1 for n in places.max(axis=0))
            normal = (patches.view(-1, 3, 196).float() / 255 - _channel(MEAN)) / _channel(STD)
            grid = torch.tensor([[1, rows, columns]])
            wanted.append(reference.model.get_image_features(normal.flatten(1), grid).pooler_output[0])
        sounds = [
            reference.model.get_audio_features(torch.from_numpy(s.mel)[None], torch.tensor([s.samples])).pooler_output
            for s in example.sounds
        ]
        rows_of = start + torch.from_numpy(example.media_tokens)
        kinds = torch.from_numpy(example.media_kinds)
        for kind, parts in ((0, wanted), (1, sounds)):
            if parts:
                theirs = torch.cat(parts)
                ours = embedded[rows_of[kinds == kind]]
                assert (ours - theirs).abs().max() <= 3e-3 * theirs.abs().max()  # the batch keeps log-mel as fp16
        start += len(example.ids)


MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def _channel(values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values)[:, None]


@torch.no_grad()
def test_drafts_in_training_see_the_keys_that_they_see_when_serving() -> None:
    """Step by step with a growing list of rows, as a server drafts, against the unrolled block."""
    config = small_config()
    block = MtpBlock(config)
    redraw(block)
    ids = torch.randint(0, 3000, (40,))
    hidden = torch.randn(40, config["hidden_size"])
    unrolled = block(ids, torch.arange(40), torch.zeros(40, dtype=torch.long), hidden, 3)
    at = 30  # draft after this position: rows 0..at are the accepted ones
    tokens, places, states = ids[1 : at + 2], torch.arange(at + 1), hidden[: at + 1]
    g = block.layer.self_attn.geometry
    for step in range(3):
        x = block.join(tokens, places, states)
        projected = block.layer.project(x, g.angles(places))
        distance = places[:, None] - places[None, :]
        seen = (distance >= 0) & (distance < WINDOW)
        dots = torch.einsum("qhd,khd->hqk", projected.q, projected.k) * (g.nope + g.rope) ** -0.5
        weights = dots.masked_fill(~seen, float("-inf")).softmax(-1)
        attended = torch.einsum("hqk,khd->qhd", weights, projected.v)
        x, _ = block.layer.finish(x, attended, projected.gate)
        newest = torch.nn.functional.rms_norm(x, (x.shape[-1],), block.final_norm.weight, block.eps)[-1]
        assert torch.allclose(unrolled[step][at], newest, atol=1e-4)
        tokens = torch.cat([tokens, ids[at + 2 + step][None]])
        places = torch.cat([places, places[-1:] + 1])
        states = torch.cat([states, newest[None]])


@torch.no_grad()
def test_experts_computed_all_at_once_equal_the_chosen_ones_alone() -> None:
    experts, hidden, inter, top_k = 6, 16, 8, 2
    x, router, bias = torch.randn(5, hidden), torch.randn(experts, hidden), torch.randn(experts)
    gate, up = torch.randn(experts, inter, hidden), torch.randn(experts, inter, hidden)
    down = torch.randn(experts, hidden, inter)
    routed = routed_experts(x, router, bias, gate, up, down, top_k)
    for row, y in zip(x, routed.y, strict=True):
        p = torch.sigmoid(router @ row)
        chosen = torch.topk(p + bias, top_k).indices
        wanted = sum(
            p[e] / p[chosen].sum() * (down[e] @ (torch.nn.functional.silu(gate[e] @ row) * (up[e] @ row)))
            for e in chosen
        )
        assert torch.allclose(y, wanted, atol=1e-4)
    assert routed.load.sum() == len(x) * top_k


def test_a_checkpoint_that_does_not_fit_is_refused_by_name() -> None:
    model = Dots3(small_config())
    tensors = dict(released_tensors(model))
    del tensors["model.norm.weight"]
    with pytest.raises(ValueError, match=r"missing \['model\.norm\.weight'\]"):
        load_released(model, tensors)


@pytest.mark.e2e
def test_the_bundled_checkpoint_is_small_and_loads_in_transformers() -> None:
    shards = sorted(BUNDLED.glob("*.safetensors"))
    assert all(shard.stat().st_size <= 15_000_000 for shard in shards)
    assert sum(shard.stat().st_size for shard in shards) <= 32_000_000
    index = json.loads((BUNDLED / "model.safetensors.index.json").read_text())
    assert {shard.name for shard in shards} == set(index["weight_map"].values())
    _, report = Dots3NoteForConditionalGeneration.from_pretrained(BUNDLED, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["mismatched_keys"]
    config = json.loads((BUNDLED / "config.json").read_text())
    drafts = f"layers.{config['num_hidden_layers']}."
    assert report["unexpected_keys"]
    assert all(drafts in key or ".mtp." in key for key in report["unexpected_keys"])


def test_a_batch_holds_exactly_its_examples() -> None:
    encoder = Encoder()
    examples = [encoder(TASKS[name].generate("test", 1)) for name in ("arithmetic", "picture_shape", "identity")]
    caps = Caps(tokens=512, learnt=512, patches=1024, chunks=4, longest_picture=1024)
    batch: Batch = build(examples, caps, encoder.pad_id)
    bounds = batch.packing.bounds.tolist()
    assert bounds[-1] == caps.tokens
    for number, example in enumerate(examples):
        start, end = bounds[number : number + 2]
        assert batch.ids[start:end].tolist() == example.ids.tolist()
        assert batch.positions[start:end].tolist() == list(range(len(example.ids)))
        learnt = [(int(i) - start, int(t)) for i, t in zip(batch.learnt, batch.learnt_targets, strict=True)
                  if t >= 0 and start <= i < end]  # fmt: skip
        assert learnt == [(i, int(t)) for i, t in enumerate(example.targets) if t >= 0]
    assert int(batch.is_media.sum()) == sum(len(example.media_tokens) for example in examples)


def test_a_run_of_rows_pads_each_sequence_to_its_row() -> None:
    encoder = Encoder()
    examples = [encoder(TASKS["lookup"].generate("test", i)) for i in range(2)]
    caps = Caps(tokens=2048, learnt=512, patches=64, chunks=1, longest_picture=64, row=512)
    batch = build(examples, caps, encoder.pad_id)
    assert batch.packing.bounds.tolist() == [0, 512, 1024, 1536, 2048]
    assert batch.lengths.tolist() == [len(examples[0].ids), len(examples[1].ids), 1, 1]
