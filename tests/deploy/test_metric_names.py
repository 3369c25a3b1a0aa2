"""Dashboard and alert rules ask for metrics that the gateway has, by labels and values that these carry."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from engine.wire.messages import Beat
from server.engine_client import WorkerHealth
from server.metrics import Metrics
from tests.deploy.tools import ROOT
from tests.support.fake_engine import FakeEngine

# What the contract with users promises: names as they are exposed, without the endings of a histogram's series.
CONTRACT = """
    dots3_requests_running dots3_requests_waiting dots3_kv_cache_usage_ratio dots3_requests_total
    dots3_request_errors_total dots3_prompt_tokens_total dots3_generation_tokens_total
    dots3_prefix_cache_queries_total dots3_prefix_cache_hits_total dots3_preemptions_total
    dots3_time_to_first_token_seconds dots3_inter_token_latency_seconds dots3_request_latency_seconds
    dots3_queue_time_seconds dots3_media_items_total dots3_media_decode_seconds dots3_spec_drafted_tokens_total
    dots3_spec_accepted_tokens_total dots3_worker_up dots3_worker_restarts_total
""".split()
# What an operator must be able to see.
SUBJECTS = """
    dots3_requests_total dots3_time_to_first_token_seconds_bucket dots3_inter_token_latency_seconds_bucket
    dots3_request_latency_seconds_bucket dots3_kv_cache_usage_ratio dots3_prefix_cache_hits_total
    dots3_requests_waiting dots3_queue_time_seconds_bucket dots3_request_errors_total dots3_worker_restarts_total
""".split()
_METRIC = re.compile(r"\b((?:dots3|process)_[a-z0-9_]+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'([a-z_]+)\s*(=~|=|!=|!~)\s*"([^"]*)"')
_GROUPED = re.compile(r"\bby \(([a-z_, ]+)\) \((?:rate\(|increase\()?((?:dots3|process)_[a-z0-9_]+)")
_OF_THE_SCRAPE = {"job", "instance"}


class Use(NamedTuple):
    metric: str
    labels: set[str]
    wanted: dict[str, str]  # label to the expression that its value must match


class OneWorker(FakeEngine):
    """Its worker has told of itself."""

    def health(self) -> tuple[WorkerHealth, ...]:
        usage = {"dsa": 0.5, "swa": 0.25}
        beat = Beat(
            progress=1,
            busy=True,
            running=1,
            waiting=0,
            cache_usage=usage,
            preemptions=0,
            prefix_queries=2,
            prefix_hits=1,
        )
        return (WorkerHealth("worker-0", 1, "ready", 0.0, beat),)


@pytest.fixture(scope="module")
def exposed() -> dict[str, list[dict[str, str]]]:
    """Every sample of the gateway's /metrics: name to the labels of its series."""
    found: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(Metrics(OneWorker(lambda _: ())).text().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def uses_in(query: str) -> list[Use]:
    uses = []
    for match in _METRIC.finditer(query):
        matchers = _MATCHER.findall(match[2] or "")
        wanted = {
            label: value if kind == "=~" else re.escape(value) for label, kind, value in matchers if "!" not in kind
        }
        uses.append(Use(match[1], {label for label, _, _ in matchers}, wanted))
    for labels, metric in _GROUPED.findall(query):
        uses.append(Use(metric, {label.strip() for label in labels.split(",")}, {}))
    return uses


def faults_of(query: str, exposed: dict[str, list[dict[str, str]]]) -> list[str]:
    faults = []
    for use in uses_in(query):
        if (series := exposed.get(use.metric)) is None:
            faults.append(f"no metric {use.metric}")
            continue
        unknown = use.labels - _OF_THE_SCRAPE - {label for labels in series for label in labels}
        faults += [f"{use.metric} has no label {label}" for label in sorted(unknown)]
        for label, pattern in use.wanted.items():
            values = {labels[label] for labels in series if label in labels}
            alternatives = pattern.split("|") if label not in _OF_THE_SCRAPE else []
            missing = [one for one in alternatives if not any(re.fullmatch(one, value) for value in values)]
            faults += [f"{use.metric}: no {label} is {one}" for one in missing]
    return faults


def test_the_gateway_has_every_metric_of_the_contract(exposed: dict[str, list[dict[str, str]]]) -> None:
    assert [name for name in CONTRACT if name not in exposed and f"{name}_bucket" not in exposed] == []


def test_every_query_of_the_dashboard_finds_its_metrics(
    dashboard: dict[str, Any], exposed: dict[str, list[dict[str, str]]]
) -> None:
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert {query: faults for query in queries if (faults := faults_of(query, exposed))} == {}
    assert all(uses_in(query) for query in queries)
    assert set(SUBJECTS) <= {use.metric for query in queries for use in uses_in(query)}


def test_every_alert_rule_finds_its_metrics(exposed: dict[str, list[dict[str, str]]]) -> None:
    content = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
    [group] = content["groups"]
    queries = {rule["alert"]: rule["expr"] for rule in group["rules"]}
    assert len(queries) == 5
    assert {name: faults for name, query in queries.items() if (faults := faults_of(query, exposed))} == {}
    assert all(uses_in(query) for query in queries.values())


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("sum(dots3_request_total)", "no metric dots3_request_total"),
        ("sum(rate(dots3_queue_time_seconds[1m]))", "no metric dots3_queue_time_seconds"),
        ('dots3_requests_total{reason="stop"}', "dots3_requests_total has no label reason"),
        ("sum by (model) (rate(dots3_requests_total[1m]))", "dots3_requests_total has no label model"),
        ('dots3_request_errors_total{code=~"queue_full|busy"}', "dots3_request_errors_total: no code is busy"),
    ],
)
def test_a_query_that_would_stay_empty_is_found(
    exposed: dict[str, list[dict[str, str]]], query: str, fault: str
) -> None:
    faults = faults_of(query, exposed)
    assert fault in faults


def test_dashboard_panels_lie_beside_each_other_and_read_the_provisioned_source(dashboard: dict[str, Any]) -> None:
    folder = ROOT / "deploy" / "grafana" / "provisioning" / "datasources"
    [source] = yaml.safe_load((folder / "prometheus.yml").read_text(encoding="utf-8"))["datasources"]
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
                assert x < 24
        for target in panel.get("targets", ()):
            assert target["datasource"] == {"type": source["type"], "uid": source["uid"]}
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
