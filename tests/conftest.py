"""Shared by all tests; its place also puts this folder on the import path, so that tests may import
``oracle``.
"""

from __future__ import annotations

import os
from importlib import import_module

import pytest
from hypothesis import HealthCheck, settings

os.environ["HF_HUB_OFFLINE"] = "1"  # no test may reach for the network
os.environ.pop("COLUMNS", None)  # a terminal that says its width must not wrap what tests look for
os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # small tensors: threads of several tests at once wait for one another

# a machine that is shared is slow at times: how long an example takes is no failure; and a run finds what the
# run before it found
settings.register_profile(
    "memsheet", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("memsheet")


@pytest.fixture(scope="module")
def warm_children():
    """What traces and measures in a child is forked from a process that has imported the libraries
    (warm_children.py): for tests of what a child answers, not of how it starts.
    """
    from warm_children import POPEN

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("memsheet.trace.parent"), "subprocess", POPEN)
        yield
