"""Weights and blocks that vLLM's own model code makes, kept with its version, are those that memsheet
predicts; what differs is named, by its bytes and its reason (benchmarks/served_families.py makes the record).
"""

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import served_agreement  # noqa: E402

RECORDED = json.loads(served_agreement.RECORD.read_text())["models"]
KNOWN = served_agreement.known_differences()


SERVED = frozenset(
    [
        "llama-4-scout",
        "gemma-3-4b",
        "gpt-oss-20b",
        "deepseek-v2",
        "deepseek-v3.2",
        "qwen3-coder-480b-a35b",
        "qwen3-next-80b-a3b",
        "qwen3.6-35b-a3b",
        "glm-4.7",
        "kimi-linear-48b-a3b",
        "minimax-m2.7",
        "mimo-v2-flash",
        "nemotron-nano-9b-v2",
        "falcon-h1-0.5b",
        "qwen3-vl-8b",
        "internvl3.5-8b",
        "smollm3-3b",
    ]
)
"""One of each way to cut, to cache and to serve; the others with the slow tests."""


def found(name: str):
    rows = {tp: served_agreement.differing_bytes(name, tp, row) for tp, row in RECORDED[name].items()}
    return {tp: row for tp, row in rows.items() if row and not isinstance(row, str)}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in SERVED else pytest.mark.slow) for n in sorted(RECORDED)]
)
def test_a_model_is_as_vllm_builds_it_or_differs_as_is_known(name: str) -> None:
    assert found(name) == KNOWN.get(name, {}).get("found", {})


def test_every_known_difference_has_a_reason() -> None:
    unexplained = [name for name, row in KNOWN.items() if not row["why"]]
    assert unexplained == []


def test_a_byte_more_or_less_is_noticed() -> None:
    row = RECORDED["glm-4.7"]["8"]
    assert served_agreement.differing_bytes("glm-4.7", "8", row) == {}
    heavier = {**row, "weights_bytes": row["weights_bytes"] + 1, "block_bytes": row["block_bytes"] - 1}
    assert served_agreement.differing_bytes("glm-4.7", "8", heavier) == {
        "weights_bytes": -1,
        "block_bytes": 1,
    }


@pytest.mark.slow
def test_the_page_says_what_was_found() -> None:
    page = (BENCHMARKS.parent / "docs" / "served_families.md").read_text()
    assert served_agreement.table_text(dict(served_agreement.compared())) == page
