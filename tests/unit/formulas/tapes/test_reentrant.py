"""When a layer that is computed again is: as soon as backward reads something saved, or before any of it."""

from __future__ import annotations

from memsheet.formulas.tapes.evaluate import evaluate_tape
from memsheet.formulas.tapes.graph import Pass
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Entry, Event, Tape, as_reentrant
from memsheet.frozen import replace
from memsheet.plan.dtypes import FP32, INT8
from memsheet.sheet import Component

ALLOC, FREE = Event.ALLOC, Event.FREE
X, KEPT, OUT, ARRIVING, WEIGHT, INNER, BACK = range(7)
SIZES = {X: 1, KEPT: 100, OUT: 1, ARRIVING: 1, WEIGHT: 50, INNER: 1, BACK: 1}
NAMES = ("/input", "act/output", "down/output", "/gradient", "down/dequantized", "down/grad", "act/grad")
ENTRIES = tuple(Entry(name, (SIZES[number],), INT8) for number, name in enumerate(NAMES))
FORWARD = ((ALLOC, X), (ALLOC, KEPT), (ALLOC, OUT))
AGAIN = Tape(
    entries=ENTRIES, forward=FORWARD, saved=frozenset({KEPT}), cached=frozenset(), outputs=frozenset({OUT}),
    handed=frozenset({X}), waiting=frozenset({INNER}),
    backward=(
        (ALLOC, ARRIVING), (ALLOC, WEIGHT), (ALLOC, INNER), (FREE, WEIGHT), (FREE, ARRIVING), (ALLOC, BACK),
        (FREE, KEPT), (FREE, INNER), (FREE, BACK),
    ),
)  # fmt: skip
"""A product that saves nothing, over a weight that is made for it, behind one whose result is saved."""
LIGHT = Tape(
    entries=ENTRIES, forward=(*FORWARD, (FREE, KEPT)), backward=(), saved=frozenset(), cached=frozenset(),
    outputs=frozenset({OUT}), handed=frozenset({X}),
)  # fmt: skip


def most(tape: Tape) -> dict[str, int]:
    held = evaluate_tape(tape, {}, "", release=False, forward=LIGHT).backward.held
    return {path: int(size) for (_, path), size in held.items()}


def test_what_backward_makes_before_it_reads_what_was_saved_lies_beside_none_of_it() -> None:
    assert AGAIN.ahead_of_recompute == 5
    assert most(AGAIN) == {"/input": 1, "act/output": 100, "down/grad": 1, "act/grad": 1}


def test_a_reentrant_layer_runs_to_its_end_first_and_its_result_stays() -> None:
    again = as_reentrant(AGAIN)
    assert again.recomputed == FORWARD
    assert again.ahead_of_recompute == 0
    assert most(again) == {
        "/input": 1,
        "act/output": 100,
        "down/output": 1,
        "/gradient": 1,
        "down/dequantized": 50,
        "down/grad": 1,
    }


def test_a_layer_runs_again_until_the_last_time_that_it_saves() -> None:
    """What it makes between a tensor and the operation that saves it is there, too."""
    forward = ((ALLOC, X), (ALLOC, KEPT), (ALLOC, WEIGHT), (ALLOC, INNER), (FREE, WEIGHT), (ALLOC, OUT))
    later = replace(AGAIN, forward=forward, last_save=4)
    assert later.recomputed == forward[:4]
    assert replace(later, last_save=None).recomputed == forward[:2]


def test_one_part_is_one_tape() -> None:
    assert as_reentrant(AGAIN) is as_reentrant(AGAIN)


def test_what_is_saved_is_told_as_that() -> None:
    held = evaluate_tape(as_reentrant(AGAIN), {}, "", release=False, forward=LIGHT).backward.held
    assert (Component.SAVED_ACTIVATIONS, "act/output") in held


def test_what_is_handed_on_stays_and_has_zeros_for_its_gradient() -> None:
    """A reentrant checkpoint names the gradients that it was handed, and zeros beside them, to its end."""

    def recorded(*, reentrant: bool) -> Tape:
        r = Recorder(pass_=Pass.RECOMPUTED, reentrant=reentrant)
        x = r.arriving(("s",), FP32)
        beside = r.unary(x, "beside", saves="output")
        r.hand_on(beside)
        y = r.add(r.unary(beside, "act", saves="input"), x, "/residual")
        del beside
        return r.finish(y, x)

    plain, again = recorded(reentrant=False), recorded(reentrant=True)
    zeros = [n for n, entry in enumerate(again.entries) if entry.path.endswith("/zeros")]
    assert len(zeros) == 1
    assert not any(entry.path.endswith("/zeros") for entry in plain.entries)
    arriving = as_reentrant(again, 1).waiting
    assert len(arriving) == 2
    assert arriving >= set(zeros)
    freed = [index for event, index in again.backward if event is FREE]
    others = {index for event, index in again.backward if event is ALLOC} - arriving
    assert max(map(freed.index, others & set(freed))) < min(map(freed.index, arriving & set(freed)))
