"""What every test gets: fixed seeds, no network, and a GPU or an honest word about its absence.

The markers themselves (e2e, gpu, slow) are declared in pyproject.toml.
"""

import gc
import os
import random
import subprocess
import sys
from functools import cache

import numpy as np
import pytest

# Set before any test imports the libraries that read them: nothing is fetched from a hub, and the tokenizer starts
# no thread pool, which would print a warning after every fork.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

SEED = 20_260_101

# Until all tests are known nothing becomes garbage but a million objects are made, and each pass looks at all of them.
gc.disable()


def pytest_collection_finish() -> None:
    """What the modules hold is there to stay: garbage is looked for among what the tests make."""
    gc.freeze()
    gc.enable()


@cache
def gpu_is_here() -> bool:
    """Asks the driver, not torch, whose import costs seconds that most test runs need not pay."""
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False, timeout=60).returncode == 0
    except FileNotFoundError:
        return False


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test marked gpu is skipped without a GPU; under REQUIRE_GPU=1 a missing GPU is a failure."""
    if item.get_closest_marker("gpu") is None or gpu_is_here():
        return
    if os.environ.get("REQUIRE_GPU") == "1":
        pytest.fail("REQUIRE_GPU=1, but no GPU answers to nvidia-smi", pytrace=False)
    pytest.skip("needs a GPU")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Figures that tests noted with `record_property`: a green run would hide them."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    figures = [
        f"{report.nodeid.rpartition('::')[2]}: {name}: {value}"
        for report in reports
        for name, value in report.user_properties
    ]
    if figures:
        terminalreporter.section("figures")
        for line in figures:
            terminalreporter.write_line(line)


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    """A test that forgets to seed its numbers still draws the same ones in every run and in every order."""
    random.seed(SEED)
    np.random.seed(SEED)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(SEED)
