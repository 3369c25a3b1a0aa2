"""Models, tokens, probes, metrics and the page about the API, on a real port."""

import pytest

from engine.wire.messages import Beat
from server.schemas.refusal import IGNORED_FIELDS
from tests.server.test_routes_http import assert_refused
from tests.support.live_gateway import MODEL, LiveGateway, ids_of, live_gateway, says


def test_models_are_listed_with_their_length_and_found_by_name() -> None:
    with live_gateway({"served_model_name": ["org/tiny", "tiny"]}) as gateway:
        cards = gateway.client.get("/v1/models").json()
        assert [card["id"] for card in cards["data"]] == ["org/tiny", "tiny"]
        assert {card["max_model_len"] for card in cards["data"]} == {8192}
        assert gateway.client.get("/v1/models/org/tiny").json() == cards["data"][0]
        assert_refused(gateway.client.get("/v1/models/org"), 404, "model_not_found")
        assert_refused(gateway.client.get("/v1/models/"), 404, "model_not_found")
        assert_refused(gateway.chat(), 404, "model_not_found")
        assert gateway.chat(model="tiny").json()["model"] == "org/tiny"


def test_text_becomes_ids_and_back(gateway: LiveGateway) -> None:
    answer = gateway.client.post("/tokenize", json={"prompt": "Hé<|user|>", "return_token_strs": True}).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 8192
    assert answer["token_strs"][-1] == "<|user|>"
    back = gateway.client.post("/detokenize", json={"model": MODEL, "tokens": answer["tokens"]})
    assert back.json() == {"prompt": "Hé<|user|>"}


def test_messages_become_the_ids_that_a_chat_would_submit(gateway: LiveGateway) -> None:
    messages = [{"role": "user", "content": "<|user|> Hi"}]
    answer = gateway.client.post("/tokenize", json={"messages": messages, "reasoning_effort": "none"}).json()
    gateway.chat(messages=messages, reasoning_effort="none")
    assert tuple(answer["tokens"]) == gateway.engine.submitted[-1].prompt_ids


@pytest.mark.parametrize(
    ("path", "body", "code", "param"),
    [
        ("/tokenize", {}, "missing_field", "prompt"),
        ("/tokenize", {"prompt": 1}, "invalid_value", "prompt"),
        ("/tokenize", {"prompt": "x", "nonsense": 1}, "unknown_field", "nonsense"),
        ("/tokenize", {"messages": []}, "invalid_value", "messages"),
        ("/detokenize", {}, "missing_field", "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "invalid_value", "tokens[0]"),
        ("/detokenize", {"tokens": [-1]}, "invalid_value", "tokens[0]"),
        ("/detokenize", {"tokens": [3072]}, "invalid_value", "tokens"),
    ],
)
def test_token_requests_are_refused_by_name(
    gateway: LiveGateway, path: str, body: dict[str, object], code: str, param: str
) -> None:
    assert assert_refused(gateway.client.post(path, json=body), 400, code)["param"] == param


def test_an_unknown_model_has_no_tokens(gateway: LiveGateway) -> None:
    assert_refused(gateway.client.post("/tokenize", json={"model": "x", "prompt": "x"}), 404, "model_not_found")
    assert_refused(gateway.client.post("/detokenize", json={"model": "x", "tokens": []}), 404, "model_not_found")


@pytest.mark.parametrize("path", ["/health", "/readyz"])
def test_health_names_each_worker_with_process_and_state(gateway: LiveGateway, path: str) -> None:
    answer = gateway.client.get(path)
    assert answer.status_code == 200
    body = answer.json()
    assert body["status"] == "ok"
    assert [(worker["name"], worker["pid"], worker["state"]) for worker in body["workers"]] == [
        ("fake-0", 4242, "ready")
    ]


@pytest.mark.parametrize("state", ["starting", "stalled", "dead"])
def test_health_is_503_without_a_worker_that_would_serve(gateway: LiveGateway, state: str) -> None:
    gateway.engine.state = state  # type: ignore[assignment]
    answer = gateway.client.get("/health")
    error = assert_refused(answer, 503, "engine_not_ready")
    assert f"worker fake-0 is {state} since 20" in error["message"]
    assert answer.json()["workers"][0]["state"] == state
    assert int(answer.headers["retry-after"]) >= 1
    assert gateway.client.get("/livez").status_code == 200


def test_draining_makes_health_503_and_refuses_requests_but_not_life(gateway: LiveGateway) -> None:
    gateway.admission.drain()
    assert_refused(gateway.client.get("/readyz"), 503, "draining")
    assert_refused(gateway.chat(), 503, "draining")
    assert gateway.client.get("/livez").json() == {"status": "ok"}


def test_before_a_worker_has_announced_itself_requests_are_503_and_models_have_no_length(gateway: LiveGateway) -> None:
    gateway.engine.ready = None
    answer = gateway.chat()
    assert_refused(answer, 503, "engine_not_ready")
    assert int(answer.headers["retry-after"]) >= 1
    assert_refused(gateway.client.post("/tokenize", json={"prompt": "x"}), 503, "engine_not_ready")
    assert gateway.client.get("/v1/models").json()["data"][0]["max_model_len"] is None


NAMES = [
    "dots3_requests_running",
    "dots3_requests_waiting",
    'dots3_requests_total{finish_reason="stop"}',
    'dots3_request_errors_total{code="queue_full"}',
    "dots3_prompt_tokens_total",
    "dots3_generation_tokens_total",
    "dots3_prefix_cache_queries_total",
    "dots3_prefix_cache_hits_total",
    "dots3_preemptions_total",
    "dots3_time_to_first_token_seconds_count",
    "dots3_inter_token_latency_seconds_count",
    "dots3_request_latency_seconds_count",
    "dots3_queue_time_seconds_count",
    'dots3_media_items_total{kind="image"}',
    'dots3_media_decode_seconds_count{kind="video"}',
    'dots3_spec_drafted_tokens_total{position="3"}',
    'dots3_spec_accepted_tokens_total{position="1"}',
    'dots3_worker_up{worker="fake-0"}',
    'dots3_worker_requests_running{worker="fake-0"}',  # which has told nothing yet
    "dots3_worker_restarts_total",
]


@pytest.mark.parametrize("name", NAMES)
def test_every_metric_exists_from_the_start(gateway: LiveGateway, name: str) -> None:
    assert name in gateway.counts()


def test_requests_tokens_and_times_are_counted() -> None:
    num_tokens = len(ids_of("One two."))
    with live_gateway(script=says("One two.")) as gateway:
        gateway.chat(n=2)
        gateway.chat(stream=True)
        counted = gateway.counts()
        num_prompt_tokens = len(gateway.engine.submitted[0].prompt_ids)
    assert counted['dots3_requests_total{finish_reason="stop"}'] == 3
    assert counted["dots3_generation_tokens_total"] == 3 * num_tokens
    assert counted["dots3_prompt_tokens_total"] == 2 * num_prompt_tokens
    assert counted["dots3_time_to_first_token_seconds_count"] == 2
    assert counted["dots3_inter_token_latency_seconds_count"] == 3 * (num_tokens - 1)
    assert counted["dots3_request_latency_seconds_count"] == 2
    assert counted["dots3_queue_time_seconds_count"] == 2


def test_nothing_that_a_client_sends_becomes_a_label(gateway: LiveGateway) -> None:
    before = gateway.counts()
    gateway.chat(model="evil")
    gateway.chat(evil=1)
    gateway.client.get("/evil", headers={"X-Request-Id": "evil"})
    gateway.client.request("EVIL", "/livez")
    after = gateway.counts()
    assert set(after) == set(before)
    name = 'dots3_request_errors_total{code="model_not_found"}'
    assert after[name] == before[name] + 1


def test_keys_that_had_no_effect_are_counted_and_warned_of(gateway: LiveGateway) -> None:
    before = gateway.count("dots3_ignored_keys_total")
    answer = gateway.chat(messages=[{"role": "user", "content": "Hi", "cache_control": {}}])
    assert answer.headers["x-dots3-warning"] == "ignored unknown keys inside messages or tools: 1"
    assert gateway.count("dots3_ignored_keys_total") == before + 1


def test_figures_of_workers_come_from_their_beats() -> None:
    beat = Beat(1, True, 3, 4, {"dsa": 0.5, "swa": 0.25}, 2, 100, 60, (9, 8), (7, 5))
    with live_gateway() as gateway:
        told = gateway.engine.health()[0]
        gateway.engine.health = lambda: (told.__class__(**{**told.__dict__, "beat": beat, "restarts": 5}),)  # type: ignore[method-assign]
        figures = gateway.counts()
    assert figures["dots3_requests_running"] == 3
    assert figures["dots3_requests_waiting"] == 4
    assert figures['dots3_kv_cache_usage_ratio{group="swa"}'] == 0.25
    assert figures["dots3_preemptions_total"] == 2
    assert figures["dots3_prefix_cache_hits_total"] == 60
    drafted = [figures[f'dots3_spec_drafted_tokens_total{{position="{place}"}}'] for place in (1, 2, 3)]
    assert drafted == [9, 8, 0]
    assert figures['dots3_spec_accepted_tokens_total{position="2"}'] == 5
    assert figures["dots3_worker_restarts_total"] == 5


def test_the_api_describes_itself_without_422_or_dangling_references(gateway: LiveGateway) -> None:
    spec = gateway.client.get("/openapi.json")
    assert "422" not in spec.text
    assert "#/$defs" not in spec.text
    paths = spec.json()["paths"]
    assert {"/v1/chat/completions", "/v1/models/{model}", "/health"} <= set(paths)
    assert set(paths["/v1/completions"]["post"]["responses"]["200"]["content"]) == {
        "application/json",
        "text/event-stream",
    }


def test_the_page_about_the_api_names_ignored_fields_and_loads_nothing(gateway: LiveGateway) -> None:
    page = gateway.client.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert all(f"<code>{name}</code>" in page.text for name in IGNORED_FIELDS)
    assert "http" not in page.text
    assert "<script" not in page.text


def test_version_is_the_packages(gateway: LiveGateway) -> None:
    assert set(gateway.client.get("/version").json()) == {"version"}
