import msgspec
import pytest

from engine.wire import codec
from engine.wire.codec import WireError, decode_to_gateway, decode_to_worker, encode
from engine.wire.grammar import (
    Choice,
    ContextFree,
    Function,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    Rule,
    ToolCalls,
)
from engine.wire.messages import (
    PROTOCOL_VERSION,
    Abort,
    Beat,
    Failed,
    Finished,
    GroupCapacity,
    MediaData,
    MediaItem,
    MediaSupport,
    Message,
    Ready,
    Sampling,
    Stop,
    Submit,
    TokenLogprobs,
    Tokens,
)

SAMPLING = Sampling(
    max_tokens=7,
    temperature=0.5,
    logit_bias={3: -1.5},
    allowed_token_ids=(1, 2),
    bad_words_ids=((4,), (5, 6)),
    seed=2**63 - 1,
    stop_token_ids=(9,),
    logprobs=0,
)
RULES: list[Rule] = [
    JsonObject(),
    JsonSchema('{"type": "integer"}'),
    Regex("a+"),
    Choice(("yes", "no")),
    ContextFree('start: "a"'),
    ToolCalls((Function("f", "{}"), Function("g", strict=False)), min_calls=0, max_calls=2, free_text=True),
]
TO_WORKER: list[Message] = [
    Submit("g-1", (1, 2, 3), SAMPLING, n=2, priority=-1, cache_salt="s", keep_offsets=(2,), deadline_s=1.5),
    Submit("g-2", (), Sampling(max_tokens=0)),
    *[Submit("g-3", (1,), SAMPLING, grammar=Grammar(rule, "in_thinking")) for rule in RULES],
    Submit(
        "g-3",
        (1, 7, 7, 2),
        SAMPLING,
        media=(MediaItem("image", 1, 2, (28, 56, 3), bytes(range(32)), start=8),),
        media_data=MediaData(4712, blob="dots3-blob-0"),
    ),
    Submit(
        "g-4",
        (9,),
        SAMPLING,
        media=(MediaItem("audio", 0, 1, (2,), bytes(32)),),
        media_data=MediaData(8, inline=b"\0\xff" * 4),
    ),
    Abort("g-1"),
    Stop("g-1", 1, 5),
]
TO_GATEWAY: list[Message] = [
    Ready(1, "w", 2, "cpu", "float32", "/m", 9, 8, 7, 6, 16, 5, (GroupCapacity("dsa", 100, True),)),
    Ready(1, "w", 2, "cpu", "float32", "/m", 9, 8, 7, 6, 16, 5, (), MediaSupport(("image", "audio"), 100, "probe")),
    Ready(1, "w", 2, "cuda", "bfloat16", "/m", 9, 8, 7, 6, 16, 5, (), None, "instance", "fp8"),
    Tokens("g-1", 0, (4, 5), (TokenLogprobs(-0.5, 1, (4, 9), (-0.5, -2.0)), TokenLogprobs(-1.0, 2)), "stop", (None,)),
    Finished("g-1", 3, 2, 2, 0.25),
    Failed("g-2", "code", "words"),
    Beat(1, True, 2, 3, {"dsa": 0.5}, 4, 5, 6),
]


def test_every_message_comes_back_as_it_was() -> None:
    assert decode_to_worker(encode(TO_WORKER)) == TO_WORKER
    assert decode_to_gateway(encode(TO_GATEWAY)) == TO_GATEWAY
    assert decode_to_worker(encode([])) == []


def test_an_items_bytes_follow_from_kind_and_shape() -> None:
    assert MediaItem("image", 0, 2, (28, 56, 3), bytes(32)).num_bytes == 4704
    assert MediaItem("audio", 0, 1, (321,), bytes(32)).num_bytes == 1284


@pytest.mark.parametrize("version", [0, PROTOCOL_VERSION + 1, 255])
def test_another_version_is_named(version: int) -> None:
    frame = bytes([version]) + encode(TO_WORKER)[1:]
    with pytest.raises(WireError, match=f"must be {PROTOCOL_VERSION}, got {version}"):
        decode_to_worker(frame)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x90\x90",
        b"\xc1",
        b"\x93\x01",
        b"\x91" * 100_000,
        msgspec.msgpack.encode(Abort("not in a list")),
        msgspec.msgpack.encode([{"type": "Unknown"}]),
        msgspec.msgpack.encode([{"type": "Abort", "request_id": 1}]),
        msgspec.msgpack.encode([{"type": "Submit", "request_id": "a"}]),
        msgspec.msgpack.encode(TO_GATEWAY),
        encode(TO_WORKER)[1:-1],
    ],
)
def test_what_is_no_frame_is_one_kind_of_error(body: bytes) -> None:
    with pytest.raises(WireError, match="undecodable frame"):
        decode_to_worker(bytes([PROTOCOL_VERSION]) + body)


def test_an_empty_frame_is_an_error() -> None:
    with pytest.raises(WireError, match="got nothing"):
        decode_to_gateway(b"")


def test_size_is_limited_on_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = encode(TO_WORKER)
    monkeypatch.setattr(codec, "MAX_FRAME_BYTES", len(frame))
    assert decode_to_worker(encode(TO_WORKER)) == TO_WORKER
    monkeypatch.setattr(codec, "MAX_FRAME_BYTES", len(frame) - 1)
    with pytest.raises(WireError, match=f"≤ {len(frame) - 1} bytes, got {len(frame)}"):
        encode(TO_WORKER)
    with pytest.raises(WireError, match=f"≤ {len(frame) - 1} bytes, got {len(frame)}"):
        decode_to_worker(frame)
