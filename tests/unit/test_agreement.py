"""The formulas and the trace say the same, item by item: small models of real families; the real sizes are benchmarks/agreement.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "agreement.py"
PEAK, ITEM = 0.005, 0.01


def rows(*arguments):
    done = subprocess.run([sys.executable, str(BENCHMARK), "--small", "--json", *arguments], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(found):
    assert [row for row in found if row["refused"]] == []
    assert {row["plan"]: row["error"] for row in found if abs(row["error"]) > PEAK} == {}
    assert {row["plan"]: row["item"] for row in found if abs(row["item"]["share"]) > ITEM} == {}


def test_formulas_and_trace_agree_on_one_gpu_sharded_and_cut():
    found = rows("--model", "llama-3.1-8b", "--place", "1 gpu", "fsdp2 1", "fsdp2 8", "fsdp2 64 tp 8")
    assert len(found) == 12 + 4 + 8 + 8
    check(found)


def test_formulas_and_trace_agree_on_routed_experts():
    found = rows("--model", "qwen3-30b-a3b", "--place", "1 gpu", "fsdp2 8")
    assert len(found) == 12 + 8
    check(found)


@pytest.mark.parametrize(("model", "place", "count"), [("gemma-3-1b", "1 gpu", 12), ("llama-3.1-8b", "fsdp2 8", 8)])
def test_formulas_and_trace_agree_on_a_processor(model, place, count):
    found = rows("--model", model, "--place", place, "--device", "cpu")
    assert len(found) == count
    check(found)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama-2-7b", "qwen2.5-7b", "llama-3.1-8b"])
def test_formulas_and_trace_agree_in_every_place_with_every_optimizer(model):
    pytest.importorskip("peft")
    check(rows("--model", model, "--every"))
