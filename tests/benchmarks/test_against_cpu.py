"""A trace beside a real step on the processor: benchmarks/against_cpu.py in a process of its own, because
tracing patches torch.
"""

import json
import sys
from pathlib import Path

import pytest

import warm_children

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from against_cpu import TECHNIQUES, cases, difference  # noqa: E402

from memsheet.sheet import Component, Instant  # noqa: E402
from memsheet.timeline import Mark, Storage, Timeline  # noqa: E402

NO_MORE_THAN = 0.001  # of the profiler's peak
PREDICTED = 0.005  # of the traced peak
# of an instant that is not the peak: what a processor's kernels take for themselves, bf16 products above all
SCRATCH = 0.03


def rows(*flags):
    said = warm_children.printed(BENCHMARKS / "against_cpu.py", "--json", *flags)
    return json.loads(said[said.index("[{") :])


def check(rows):
    assert {row["name"]: row["failure"] for row in rows if row["failure"]} == {}
    assert {row["name"]: row["differs"] for row in rows if row["differs"]} == {}
    assert {row["name"]: row["error"] for row in rows if abs(row["error"]) > NO_MORE_THAN} == {}
    assert {
        row["name"]: row["off"] for row in rows if row["off"] is not None and abs(row["off"]) > PREDICTED
    } == {}
    for row in rows:  # a trace sees no more than there is
        assert row["traced_bytes"] <= row["real_bytes"], row["name"]


@pytest.mark.slow
def test_a_trace_is_what_a_real_step_allocates():
    """Kinds of models, attention, recomputation, optimizers and techniques in turn; the formulas say the same
    where they model it.
    """
    found = rows("--every", "28")
    assert len(found) >= 2
    check(found)


@pytest.mark.slow
def test_every_third_configuration():
    """All of them: benchmarks/against_cpu.py."""
    found = rows("--every", "3")
    assert len(found) >= 8
    check(found)
    for row in found:
        for instant, (traced, real) in row["instants"].items():
            assert traced <= real <= traced * (1 + SCRATCH), (row["name"], instant)
            assert traced > real * (1 - NO_MORE_THAN) or row["unseen"][instant], "what is not seen is named"


def test_the_configurations_cover_what_is_said():
    names = [case.name.split() for case in cases()]
    for family in ("dense", "gpt2", "moe", "latent", "window", "encoder", "seq2seq"):
        crossed = {(name[1], name[2]) for name in names if name[0] == family}
        assert crossed >= {
            (attention, recompute) for attention in ("sdpa", "eager") for recompute in ("none", "full")
        }
    for technique in TECHNIQUES:
        assert any(
            case.name.startswith("deep") and technique.items() <= dict(case.request).items()
            for case in cases()
        )
    for optimizer in ("foreach", "loop", "fused", "sgd", "sgd_momentum"):
        assert any(optimizer in name for name in names)


def timeline(*events, size=10):
    storages = tuple(Storage(size + number, Component.TEMPORARIES, "model", "aten.mm") for number in range(3))
    return Timeline(storages=storages, events=events, marks=(Mark(0, Instant.LOAD),))


def test_a_difference_is_found():
    same = timeline(0, 1, ~0, ~1)
    assert difference(same, timeline(0, 1, ~0, ~1)) == ""
    assert "event 0" in difference(same, timeline(0, 1, ~0, ~1, size=12))
    assert "event 2" in difference(same, timeline(0, 1, ~1, ~0))
    assert "event 3" in difference(same, timeline(0, 1, ~0))


def test_the_order_of_releases_may_be_left_out_where_it_is_that_of_a_hash():
    assert difference(timeline(0, 1, ~0, ~1), timeline(0, 1, ~1, ~0), any_order=True) == ""
    assert difference(timeline(0, 1, ~0, ~1), timeline(0, ~0, 1, ~1), any_order=True) != ""
