"""Servers of the fault suite: real processes, and a worker that goes wrong when it is asked to."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import start_server  # noqa: F401  a fixture
from tests.e2e.server_process import ServerProcess
from tests.faults.faulty_worker import as_python

Start = Callable[..., ServerProcess]


@pytest.fixture
def start_faulty(start_server: Start, tmp_path: Path) -> Start:  # noqa: F811
    python = as_python(tmp_path)
    return lambda *flags: start_server("--worker-python", str(python), *flags)
