"""Kernels run in Triton's interpreter on a machine without GPU, which has to be chosen before Triton is loaded.

A test with the fixture `device` runs in both places; in `make test-gpu` it is the compiled kernel that is tested.
"""

from __future__ import annotations

import os
import sys

import pytest

from tests.conftest import gpu_is_here

_TOO_LATE = "triton" in sys.modules and "TRITON_INTERPRET" not in os.environ
if not gpu_is_here() and not _TOO_LATE:
    os.environ["TRITON_INTERPRET"] = "1"


# Interpreted kernels take seconds: together too long for `make check`.
@pytest.fixture(
    params=[pytest.param("interpreter", marks=pytest.mark.e2e), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda":
        return "cuda"
    if gpu_is_here():
        pytest.skip("kernels are compiled where there is a GPU")
    if _TOO_LATE:
        pytest.fail("other tests have loaded Triton without its interpreter: run tests/kernels in a process of its own")
    return "cpu"
