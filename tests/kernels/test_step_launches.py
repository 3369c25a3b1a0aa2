"""How many launches a recorded decode step is at the released geometry: everything is fused with its neighbours."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise

import pytest

from tests.arch.sources import ROOT

DSA, SWA, DENSE, MOE = 14, 9, 4, 7  # at most


@pytest.mark.e2e
@pytest.mark.parametrize("num_sequences", [1, 32])
def test_a_step_is_few_launches_and_of_torch_only_the_product_of_the_head(num_sequences: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.step_launches", str(num_sequences)]
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, check=True, timeout=600)
    launches = done.stdout.splitlines()
    norms = [place for place, name in enumerate(launches) if "_rms_norm" in name]
    assert launches[: norms[0]] == ["_known_ids", "_begin_decode"]
    assert launches[norms[-1] :] == ["_rms_norm", "torch mm", "_best_of_stretch", "_best_of_row"]
    assert sum(name.startswith("torch") for name in launches) == 1
    halves = [end - start for start, end in pairwise(norms)]
    for count, most in zip(halves, (DSA, DENSE, DSA, MOE, SWA, MOE, SWA, MOE, SWA, MOE, DSA, MOE), strict=True):
        assert count <= most
