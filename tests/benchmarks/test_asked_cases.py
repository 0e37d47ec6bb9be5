"""How a measured case is asked: its card by the source's name, and what its source says and it leaves out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from asking import SAID, cluster_for  # noqa: E402

from memsheet.catalog import find_device  # noqa: E402
from memsheet.plan.check import RULES  # noqa: E402


@pytest.mark.parametrize(
    ("name", "gigabytes", "found"),
    [("RTX A6000", 48, "RTXA6000"), ("Tesla T4", 16, "T4"), ("V100 SXM2 32GB", 32, "V100-32GB")],
)
def test_a_card_that_the_catalogue_knows_by_name_is_that_card(name: str, gigabytes: int, found: str) -> None:
    cluster = cluster_for({"device": None, "name": name, "memory_gb": gigabytes, "count": 1})
    assert cluster is not None
    assert cluster.device == find_device(found)


@pytest.mark.parametrize("name", ["RTX A6000", "single GPU (not stated)", "80 GB GPU (79.22 GiB)", ""])
def test_a_name_of_another_size_or_of_none_is_taken_by_its_box(name: str) -> None:
    cluster = cluster_for({"device": None, "name": name, "memory_gb": 80, "count": 1})
    assert cluster is not None
    assert cluster.device.name == "unlisted"
    assert cluster_for({"device": None, "name": name, "memory_gb": None, "count": 1}) is None


def test_what_sources_say_besides_is_of_cases_that_leave_it_open() -> None:
    cases = {
        case["id"]: case
        for case in json.loads((BENCHMARKS / "data" / "cases.json").read_text(encoding="utf-8"))["cases"]
    }
    for name, said in SAID.items():
        for key in said:
            assert key in RULES
            section, _, field = key.partition(".")
            assert (cases[name]["plan"].get(section) or {}).get(field) is None
