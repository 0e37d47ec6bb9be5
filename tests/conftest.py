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


LONG = (
    "test_agreement", "test_against_cpu", "test_trace_distributed", "test_measure_ranks", "test_safe_path", "test_run_ranks", "test_verify",
    "test_trace", "test_solve_as_answered", "test_search_optimum", "test_ways_to_fit", "test_typed_ways", "test_techniques_offload",
    "test_ends", "test_trace_families", "test_exchange_laws", "test_techniques_lora", "test_plan_pictures", "test_amplifiers",
)  # fmt: skip
"""Files that take longest, which begin first: files are shared out whole, and one that began last would keep
the others waiting.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In this order on every worker; the rest stays as it was found."""
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


@pytest.fixture(scope="module")
def warm_children():
    """What traces and measures in a child is forked from a process that has imported the libraries
    (warm_children.py): for tests of what a child answers, not of how it starts.
    """
    from warm_children import POPEN

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("memsheet.trace.parent"), "subprocess", POPEN)
        yield
