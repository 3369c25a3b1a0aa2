"""What ranks read of each tensor, what they tell each other, and how whole experts are shared."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from engine.config.model import FP8_TILE, ModelConfig
from engine.config.sharding import Cut, Cuts, share_of_rank
from engine.model.context import ForwardContext
from engine.model.load import Checkpoint
from engine.model.ranks import ExpertShare
from engine.runtime.parallel import Forward, LeadModel, Logits, RanksError, Told, context_of, told
from engine.runtime.parallel_encode import shares_of
from engine.runtime.parallel_spread import split
from engine.sched.parts import Part
from tests.support.tiny_model import tiny_config, write_checkpoint

ROOT = Path(__file__).resolve().parents[2]
RELEASED = ModelConfig.from_json(json.loads((ROOT / "tests/fixtures/chat/config.released-fp8.json").read_text()))
DSA, SWA = "model.layers.1.self_attn", "model.layers.2.self_attn"


def cuts_of(name: str, ranks: int, expert_parallel: bool = True, config: ModelConfig = RELEASED) -> list[Cut | None]:
    share = share_of_rank(config, ranks, expert_parallel)
    return [Cuts(config, share, rank).of(name) for rank in range(ranks)]


@pytest.mark.parametrize(
    ("name", "dim", "whole", "length"),
    [
        ("model.layers.0.mlp.gate_proj.weight", 0, 13_824, 1792),  # 108 tiles: 14 a rank, and 10 for the last
        ("model.layers.0.mlp.down_proj.weight", 1, 13_824, 1792),
        ("model.layers.1.mlp.shared_experts.up_proj.weight", 0, 1536, 256),  # 12 tiles: the last two ranks have none
        (f"{DSA}.g_proj.weight", 0, 128, 16),
        (f"{SWA}.g_proj.weight", 0, 64, 8),
        (f"{DSA}.q_b_proj.weight", 0, 24_576, 3072),
        (f"{SWA}.kv_b_proj.weight", 0, 20_480, 2560),
        (f"{SWA}.o_proj.weight", 1, 8192, 1024),
        ("lm_head.weight", 0, 152_064, 19_008),
    ],
)
def test_eight_ranks_read_each_value_once(name: str, dim: int, whole: int, length: int) -> None:
    cuts = [cut for cut in cuts_of(name, 8) if cut is not None]
    assert [cut[0] for cut in cuts] == [dim] * 8
    assert {(cut.length, cut.whole) for cut in cuts} == {(length, whole)}
    read = [range(min(cut.start, whole), min(cut.start + length, whole)) for cut in cuts]
    assert [place for part in read for place in part] == list(range(whole))
    if name != "lm_head.weight":  # FP8 products look for a scale every FP8_TILE of their own
        begins_a_tile = [part.start % FP8_TILE == 0 for part in read]
        within_one = [part.start // FP8_TILE == (part.stop - 1) // FP8_TILE for part in read]
        assert all(map(max, begins_a_tile, within_one))


@pytest.mark.parametrize(
    "name",
    [
        f"{DSA}.kv_a_proj_with_mqa.weight",  # 576 rows
        f"{SWA}.kv_a_proj_with_mqa.weight",  # 1,088
        f"{DSA}.indexer.wq_b.weight",
        "model.embed_tokens.weight",
        "model.layers.1.mlp.gate.weight",
        "model.layers.1.mlp.experts.3.up_proj.weight",
    ],
)
def test_what_every_rank_needs_is_whole(name: str) -> None:
    assert cuts_of(name, 8) == [None] * 8


@pytest.mark.parametrize("matrix", ["q_b_proj", "kv_b_proj", "g_proj", "o_proj"])
def test_where_ranks_attend_for_their_own_sequences_each_reads_all_of_attention(matrix: str) -> None:
    share = share_of_rank(RELEASED, 8, expert_parallel=True, attention_data_parallel=True)
    cuts = Cuts(RELEASED, share, 3)
    assert cuts.of(f"{DSA}.{matrix}.weight") is None
    assert cuts.of("model.layers.0.mlp.up_proj.weight") == Cut(0, 3 * 1792, 1792, 13_824)


def test_experts_are_cut_or_shared_whole() -> None:
    name = "model.layers.1.mlp.experts.200.down_proj.weight"
    assert cuts_of(name, 4, expert_parallel=False) == [Cut(1, 384 * rank, 384, 1536) for rank in range(4)]
    share = share_of_rank(RELEASED, 8, expert_parallel=True)
    assert [rank for rank in range(8) if not Cuts(RELEASED, share, rank).is_of_others(name)] == [6]


@pytest.mark.e2e
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_parts_of_fp8_tensors_are_those_of_the_whole(tmp_path: Path) -> None:
    """Rows and columns that begin amid a tile, and what lies beyond the end."""
    from training.quantise import write_quantised

    write_checkpoint(tmp_path / "plain", tiny_config(v_head_dim=44, intermediate_size=352))
    write_quantised(tmp_path / "plain", tmp_path / "fp8")
    config = ModelConfig.from_folder(tmp_path / "fp8")
    share = share_of_rank(config, 2, expert_parallel=True)
    shapes = {f"{DSA}.o_proj.weight": (96, 176), f"{DSA}.g_proj.weight": (4, 96)}
    shapes["model.layers.0.mlp.gate_proj.weight"] = (352, 96)

    def checkpoint(rank: int | None) -> Checkpoint:
        cuts = None if rank is None else Cuts(config, share, rank)
        return Checkpoint(tmp_path / "fp8", config, torch.device("cpu"), torch.float32, cuts=cuts)

    with checkpoint(None) as whole, checkpoint(0) as first, checkpoint(1) as second:
        for name, shape in shapes.items():
            cut = Cuts(config, share, 0).of(name)
            assert cut is not None
            held = [cut.length if dim == cut.dim else length for dim, length in enumerate(shape)]
            parts = torch.cat([one.take(name, *held) for one in (first, second)], dim=cut.dim)
            assert torch.equal(parts.narrow(cut.dim, 0, cut.whole), whole.take(name, *shape))
            assert not parts.narrow(cut.dim, cut.whole, parts.shape[cut.dim] - cut.whole).any()
        assert first.is_fp8(f"{DSA}.o_proj.weight")
        assert not second.is_fp8(f"{DSA}.o_proj.weight")  # its columns 88 to 175 are of two tiles


def context(tables: tuple[int, int] = (3, 5)) -> ForwardContext:
    def ints(*shape: int) -> torch.Tensor:
        return torch.randint(0, 99, shape)

    return ForwardContext(ints(6), (0, 1, 6), [9, 7], 1, ints(6), ints(6), *(ints(2, width).int() for width in tables))


@pytest.mark.parametrize("recorded", [False, True])
def test_a_step_arrives_as_it_was_told(recorded: bool) -> None:
    tokens, sent = torch.arange(6), context()
    frame = msgspec.msgpack.encode(told(tokens, sent, recorded=recorded))
    message = msgspec.msgpack.decode(frame, type=Told)
    assert isinstance(message, Forward)
    assert (message.recorded, message.embedded) == (recorded, False)
    ids, got = context_of(message, torch.device("cpu"))
    assert torch.equal(ids, tokens)
    for name in ("positions", "dsa_slots", "swa_slots", "dsa_table", "swa_table"):
        assert torch.equal(getattr(got, name), getattr(sent, name))
        assert getattr(got, name).dtype == getattr(sent, name).dtype
    assert (list(got.query_starts), list(got.seq_lens), got.num_decodes) == ([0, 1, 6], [9, 7], 1)


def test_a_batch_is_split_by_the_homes_of_its_sequences() -> None:
    """Two decodes, and parts of prompts of 3 and 2 tokens; one rank has nobody."""
    rows = torch.arange(7)
    tables = torch.arange(4).int().unsqueeze(1)
    batch = ForwardContext(
        rows + 10, (0, 1, 2, 5, 7), [11, 12, 15, 17], 2, rows + 20, rows + 30, tables, tables + 4, homes=[2, 0, 0, 2]
    )
    order, parts = split(batch, 3)
    assert order.tolist() == [1, 2, 3, 4, 0, 5, 6]
    assert [part.positions.tolist() for part in parts] == [[11, 12, 13, 14], [], [10, 15, 16]]
    assert [part.dsa_slots.tolist() for part in parts] == [[21, 22, 23, 24], [], [20, 25, 26]]
    assert [part.swa_slots.tolist() for part in parts] == [[31, 32, 33, 34], [], [30, 35, 36]]
    assert [list(part.query_starts) for part in parts] == [[0, 1, 4], [0], [0, 1, 3]]
    assert [(part.seq_lens, part.num_decodes) for part in parts] == [([12, 15], 1), ([], 0), ([11, 17], 1)]
    assert [part.dsa_table.tolist() for part in parts] == [[[1], [2]], [], [[0], [3]]]
    assert [part.swa_table.tolist() for part in parts] == [[[5], [6]], [], [[4], [7]]]
    assert all(part.ranks == ([4, 0, 3], 17) for part in parts)
    message = msgspec.msgpack.decode(msgspec.msgpack.encode(told(rows[:0], parts[1], recorded=False)), type=Told)
    assert isinstance(message, Forward)
    ids, got = context_of(message, torch.device("cpu"))
    assert (len(ids), len(got.positions), list(got.seq_lens), got.ranks) == (0, 0, [], ([4, 0, 3], 17))


def test_items_are_shared_by_their_tokens_the_longest_first() -> None:
    parts = [
        Part("image", (b"", number), 0, tokens, (1,), memoryview(b"")) for number, tokens in enumerate((3, 9, 4, 5))
    ]
    shares = shares_of(parts, 3)
    assert [[part.num_tokens for part in share] for share in shares] == [[9], [5], [4, 3]]
    assert shares_of(parts[:2], 3) == [[parts[1]], [parts[0]], []]


def test_embeddings_are_not_told_but_follow() -> None:
    message = told(torch.zeros(6, 8), context(), recorded=False)
    assert (message.embedded, message.num_tokens, message.arrays[0]) == (True, 6, b"")


def test_a_step_that_fails_amid_the_ranks_is_not_survived() -> None:
    class Model:
        config = device = dtype = embed = None

        def forward(self, *_: Any) -> Any:
            raise ValueError("no such row")

    class Team:
        def __init__(self) -> None:
            self.told: list[Forward | Logits] = []

        def tell(self, message: Forward | Logits) -> None:
            self.told.append(message)

    team = Team()
    lead = LeadModel(Model(), team)  # type: ignore[arg-type]
    with pytest.raises(RanksError, match="no such row"):
        lead.forward(torch.arange(6), context(), None)  # type: ignore[arg-type]
    assert len(team.told) == 1


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_rank_keeps_its_own_pairs_and_counts_those_of_all(dtype: torch.dtype) -> None:
    share = ExpertShare(1, 4, 2, torch.device("cpu"))
    ids = torch.tensor([[0, 2, 7], [3, 2, 5]], dtype=dtype)
    weights = torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
    own, own_weights = share.own(ids, weights)
    assert own.tolist() == [[2, 0, 2], [1, 0, 2]]
    assert own_weights.tolist() == torch.tensor([[0, 0.2, 0], [0.4, 0.5, 0]]).tolist()
    assert share.load() == (1, 3, 1, 1)
    assert own.dtype == dtype


def test_an_odd_vocabulary_leaves_the_last_rank_with_less() -> None:
    config = replace(RELEASED, vocab_size=10)
    assert cuts_of("lm_head.weight", 4, config=config) == [Cut(0, 3 * rank, 3, 10) for rank in range(4)]
