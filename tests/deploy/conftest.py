"""What tests of the deployment share: its files, read once, and a place for the figures that README quotes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import yaml

from bench import report
from tests.deploy.images import Images
from tests.deploy.tools import ROOT


@cache
def _images() -> Images:
    return Images()


@pytest.fixture(scope="session")
def images() -> Images:
    return _images()


@pytest.fixture(scope="session")
def compose() -> dict[str, Any]:
    content = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


@pytest.fixture(scope="session")
def dashboard() -> dict[str, Any]:
    content = json.loads((ROOT / "deploy" / "grafana" / "dashboards" / "dots3.json").read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


@pytest.fixture(scope="session")
def figures() -> Iterator[dict[str, Any]]:
    """Of the images; kept once all tests that measure have run."""
    facts = report.machine()
    found: dict[str, Any] = {}
    yield found
    if {"server", "gateway"} <= found.keys():
        report.keep("docker", facts, found, ROOT / "bench" / "results")
