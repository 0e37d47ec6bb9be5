"""How a part's tapes become allocations: parts of a handful of storages, played by hand.

A log is written as ``+1 -1 g1``: storage 1 comes, goes, is a parameter's gradient from here on. In a script
``n`` is the n-th allocation, ``~n`` its end.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from memsheet.formulas.replay.script import Recorded, Script, play_backward, play_forward
from memsheet.formulas.replay.tape_logs import Lifetimes, Sized
from memsheet.formulas.tapes.tape import Entry, Event, Log, Tape
from memsheet.frozen import replace
from memsheet.plan.dtypes import INT8

EVENTS = {"+": Event.ALLOC, "-": Event.FREE, "g": Event.GRADIENT}
INPUT, KEPT, SCRATCH, OUTPUT, ARRIVING, WEIGHT, BACK = range(7)
SIZES = (100, 30, 7, 80, 80, 50, 100)
FORWARD, BACKWARD = "+1 +2 +3 -2", "+4 -1 +5 g5 +6 -4 -0 -6"


def log(text: str) -> Log:
    return tuple((EVENTS[word[0]], int(word[1:])) for word in text.split())


def tape(
    forward: str = FORWARD, backward: str = BACKWARD, sizes: Sequence[int] = SIZES, **more: frozenset[int]
) -> Tape:
    """A layer that keeps its input and one storage more, and hands on the fourth."""
    said = {"saved": {INPUT, KEPT}, "cached": (), "outputs": {OUTPUT}, "handed": {INPUT}, **more}
    entries = tuple(Entry(str(at), (size,), INT8, gradient=at == WEIGHT) for at, size in enumerate(sizes))
    kept = {name: frozenset(numbers) for name, numbers in said.items()}
    return Tape(entries=entries, forward=log(forward), backward=log(backward), **kept)


def part(own: Tape, light: Tape | None = None, lifetimes: Lifetimes = Lifetimes.RECORDED) -> Recorded:
    first = Sized.of(light, {}, lifetimes) if light else None
    return Recorded(Sized.of(own, {}, Lifetimes.RECORDED if light else lifetimes), first)


def test_a_forward_keeps_what_is_saved_and_hands_on_its_output() -> None:
    script = Script()
    given = script.take(100)
    played, out = play_forward(script, part(tape()), given)
    assert [*script.sizes] == [100, 30, 7, 80]
    assert [*script.events] == [0, 1, 2, 3, ~2]
    assert (out, played.held, played.lingering) == (3, {INPUT: 0, KEPT: 1}, [])


def test_a_backward_leaves_gradients_and_hands_back_that_of_its_input() -> None:
    """The gradient that arrives is not made again; what was kept goes."""
    script = Script()
    played, out = play_forward(script, part(tape()), script.take(100))
    assert out is not None
    before, arriving = len(script.events), script.take(80)
    assert play_backward(script, played, arriving) == ([5], 6)
    assert [*script.events[before:]] == [4, ~1, 5, 6, ~4, ~0]
    assert [*script.sizes[4:]] == [80, 50, 100]


@pytest.mark.parametrize(
    ("changed", "gone"),
    [
        (tape(sizes=(*SIZES[:BACK], 99)), [~1, ~4, ~0, ~6]),  # is not as large as what came in
        (tape(backward="+4 +6 +5 g5 -4 -1 -0 -6 -5", sizes=(*SIZES[:WEIGHT], 100, 100)), [~4, ~1, ~0, ~5, ~6]),  # a parameter's
        (tape(backward="+4 +5 g5 -4 -1 -0 +6"), [~4, ~1, ~0]),  # stays
        (tape(handed=frozenset(), saved=frozenset({KEPT})), [~1, ~4, ~6]),  # nothing came in
    ],
)  # fmt: skip
def test_what_goes_last_is_no_gradient_of_the_input(changed: Tape, gone: list[int]) -> None:
    script = Script()
    played, _ = play_forward(script, part(changed), script.take(100))
    before, arriving = len(script.events), script.take(80)
    _, returned = play_backward(script, played, arriving)
    assert returned is None
    assert [event for event in script.events[before:] if event < 0][: len(gone)] == gone


def test_a_gradient_takes_the_place_of_one_of_its_size() -> None:
    """A part on record may begin with the loss's own gradient, of a number, before that of its output."""
    entries = tuple(
        replace(entry, path="/gradient") if at in (BACK + 1, ARRIVING) else entry
        for at, entry in enumerate(tape(sizes=(*SIZES, 4)).entries)
    )
    own = replace(tape(backward=f"+{BACK + 1} {BACKWARD}", sizes=(*SIZES, 4)), entries=entries)
    script = Script()
    played, _ = play_forward(script, part(own), script.take(100))
    before, arriving = len(script.events), script.take(80)
    play_backward(script, played, arriving)
    assert [script.sizes[event] for event in script.events[before:] if event >= 0] == [80, 4, 50, 100]
    assert ~arriving in script.events[before:]


def test_something_is_done_on_the_way_of_a_forward() -> None:
    """Between the second event and the third, told of what is there."""
    script, seen = Script(), list[list[int]]()
    play_forward(script, part(tape()), script.take(100), stops=[(2, lambda held: seen.append([*held]))])
    assert seen == [[INPUT, KEPT, SCRATCH]]
    assert [*script.events] == [0, 1, 2, 3, ~2]


def test_without_a_gradient_backward_makes_its_own() -> None:
    script = Script()
    played, _ = play_forward(script, part(tape()), script.take(100))
    assert play_backward(script, played, None) == ([5], 6)
    assert [*script.sizes[4:]] == [80, 50, 100]


def test_what_a_local_variable_holds_lingers_where_it_is_asked_to() -> None:
    """Until the model's forward is over; else to the end of the part's own."""
    cached = tape(cached=frozenset({SCRATCH}))
    for lingers, left, last in ((True, [2], 3), (False, [], ~2)):
        script = Script()
        played, _ = play_forward(script, part(cached), script.take(100), lingers=lingers)
        assert (played.lingering, script.events[-1]) == (left, last)


def test_a_forward_that_runs_again_stops_at_what_is_saved_last() -> None:
    """The first forward keeps its input alone. Again: the input is there, its results are made anew as far
    as the last one that is saved; what its frames hold then goes, before backward begins.
    """
    light = tape(forward="+1 -1 +2 -2 +3", backward="", saved=frozenset())
    script = Script()
    given = script.take(100)
    played, out = play_forward(script, part(tape(forward="+2 +1 -2 +3"), light), given)
    assert (out, played.held) == (3, {INPUT: 0})
    assert [*script.events] == [0, 1, ~1, 2, ~2, 3]
    assert [*script.sizes] == [100, 30, 7, 80]
    arriving = script.take(80)
    assert play_backward(script, played, arriving) == ([7], 8)
    assert [*script.sizes[5:]] == [7, 30, 50, 100]
    assert [*script.events[6:]] == [4, 5, 6, ~5, ~6, 7, 8, ~4, ~0]


def test_what_a_selective_checkpoint_kept_is_not_made_again() -> None:
    """The storages that the first forward kept are those that the second has before it begins, in order."""
    light = tape(forward="+1 +2 -2 +3", backward="", saved=frozenset({KEPT}))
    own = tape(before=frozenset({KEPT}), saved=frozenset({INPUT, KEPT, SCRATCH}), forward="+1 +2 +3")
    script = Script()
    played, _ = play_forward(script, part(own, light), script.take(100))
    arriving = script.take(80)
    before = len(script.events)
    play_backward(script, played, arriving)
    assert [*script.sizes[5:]] == [7, 50, 100]  # the scratch, saved now, and both gradients
    assert {~0, ~1} <= set(script.events[before:])


@pytest.mark.parametrize(
    ("lifetimes", "sizes", "events"),
    [
        (Lifetimes.RECORDED, [100, 30, 7, 7, 80], [0, 1, 2, ~2, 3, 4, ~3]),
        (Lifetimes.NONE, [100, 30, 0, 0, 80], [0, 1, 2, ~2, 3, 4, ~3]),
        (Lifetimes.LATE, [100, 30, 7, 7, 80], [0, 1, 2, 3, 4, ~2, ~3]),
        (Lifetimes.REUSED, [100, 30, 7, 80], [0, 1, 2, 3, ~2]),
    ],
)
def test_how_long_a_forward_has_what_it_makes_for_itself(
    lifetimes: Lifetimes, sizes: list[int], events: list[int]
) -> None:
    """Two storages of seven bytes one after another: made, made of no size, kept to the end, and the second
    in the place of the first.
    """
    own = tape(forward="+1 +2 -2 +4 +3 -4", backward="", sizes=(100, 30, 7, 80, 7))
    script = Script()
    play_forward(script, part(own, lifetimes=lifetimes), script.take(100))
    assert ([*script.sizes], [*script.events]) == (sizes, events)


def test_a_place_is_taken_by_what_is_as_large() -> None:
    """The second is a byte larger: the first's place stays empty until the forward is over."""
    own = tape(forward="+1 +2 -2 +4 +3 -4", backward="", sizes=(100, 30, 7, 80, 8))
    script = Script()
    play_forward(script, part(own, lifetimes=Lifetimes.REUSED), script.take(100))
    assert [*script.events] == [0, 1, 2, ~2, 3, 4, ~3]


def test_what_a_recording_keeps_of_the_first_forward_goes_with_its_backward() -> None:
    """Of a record, whose second forward does not know it."""
    light = tape(forward="+1 +2 +3", backward="", saved=frozenset({KEPT, SCRATCH}))
    script = Script()
    played, _ = play_forward(script, part(tape(), light), script.take(100))
    arriving = script.take(80)
    before = len(script.events)
    assert play_backward(script, played, arriving) == ([6], 7)
    assert [*script.sizes[5:]] == [30, 50, 100]  # again as far as what is saved
    assert {event for event in script.events[before:] if event < 0} == {~0, ~1, ~2, ~4, ~5}
