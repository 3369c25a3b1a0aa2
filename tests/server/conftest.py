"""The gateway that the tests of a module share, before a scripted engine."""

from collections.abc import Iterator

import pytest

from tests.support.live_gateway import LiveGateway, live_gateway


@pytest.fixture(scope="module")
def shared() -> Iterator[LiveGateway]:
    with live_gateway() as running:
        yield running


@pytest.fixture
def gateway(shared: LiveGateway) -> LiveGateway:
    """As it began, but for its metrics."""
    return shared.fresh()
