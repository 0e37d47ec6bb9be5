"""Engines of several ranks, run by two real processes: they train as one process does, and hold what a trace
says.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import warm_children

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.slow  # agreement and measured ranks are the quick ones

RUNS = Path(__file__).parents[2] / "rank_runs.py"
LAUNCH = [
    sys.executable,
    "-W",
    "ignore",
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    "2",
]
EXACT = (
    "fsdp2", "fsdp2 zero 2", "fsdp2 recompute", "fsdp2 accumulated", "fsdp2 replicated", "ddp", "ddp accumulated", "zero 1", "tensor",
    "tensor fsdp2", "gpipe", "1f1b", "1f1b fsdp2", "interleaved", "experts",
)  # fmt: skip
MEASURED = ("fsdp2", "ddp", "zero 1", "tensor", "pipeline")
REST = "unexplained: kernels"
BAR = 0.01


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    file = tmp_path_factory.mktemp("ranks") / "found.json"
    done = subprocess.run(
        [*LAUNCH, str(RUNS), str(file)], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return json.loads(file.read_text())


@pytest.fixture(scope="module")
def traces():
    return json.loads(warm_children.printed(RUNS, "traces"))


# ---- they train --------------------------------------------------------------------------------------------


def plain(runs, name):
    return runs["plain experts" if name == "experts" else "plain"]


@pytest.mark.parametrize("name", ["plain", *EXACT, "fsdp2 mixed"])
def test_the_loss_falls(runs, name):
    losses = runs[name]["losses"]
    assert losses[-1] < losses[0] - 0.4
    assert runs[name]["parameters"] == plain(runs, name)["parameters"]


@pytest.mark.parametrize("name", EXACT)
def test_parameters_go_where_those_of_one_process_go(runs, name):
    """Six steps of plain gradient descent at a rate that moves them far: every gradient is the whole
    batch's.
    """
    assert runs[name]["losses"] == pytest.approx(plain(runs, name)["losses"], rel=1e-5)
    assert runs[name]["apart"] < 1e-3


def test_mixed_precision_goes_nearly_there(runs):
    assert runs["fsdp2 mixed"]["losses"] == pytest.approx(runs["plain"]["losses"], rel=0.02)
    assert runs["fsdp2 mixed"]["apart"] > 1e-3


# ---- they hold what a trace says ---------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", MEASURED)
def test_each_rank_holds_at_its_peak_what_was_traced(runs, traces, name, rank):
    measured, traced = runs["measured"][name][rank], traces[name][rank]
    assert set(measured) == set(traced)
    peak = max(sum(items.values()) for items in traced.values())
    for instant, items in traced.items():
        assert abs(sum(measured[instant].values()) - sum(items.values())) <= BAR * peak, instant
    top = max(traced, key=lambda instant: sum(traced[instant].values()))
    assert sum(measured[top].values()) == max(sum(items.values()) for items in measured.values())


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", MEASURED)
def test_the_tensors_of_each_rank_are_those_traced_item_by_item(runs, traces, name, rank):
    for instant, items in traces[name][rank].items():
        found = {item: size for item, size in runs["measured"][name][rank][instant].items() if item != REST}
        assert found == items, instant


@pytest.mark.parametrize("rank", [0, 1])
def test_gloo_copies_what_it_reduces_and_gathers(runs, rank):
    backward = runs["measured"]["fsdp2"][rank]["backward"]  # at its high-water mark a layer is being gathered
    name = "model.layers.*/gloo_all_gather"
    assert (
        backward[f"communication: {name}"] == backward[f"unsharded_parameters: {name.replace('gloo_', '')}"]
    )
