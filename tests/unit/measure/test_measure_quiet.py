"""A measured step prints nothing of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

STEP = """
import torch, memsheet
def build():
    model = torch.nn.Linear(8, 8)
    return lambda: model(torch.randn(4, 8)).sum().backward()
memsheet.measure_step(build, steps=1)
"""


@pytest.mark.slow
def test_no_line_of_the_profiler_comes_into_the_callers_output() -> None:
    done = subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert "profiler" not in done.stderr
