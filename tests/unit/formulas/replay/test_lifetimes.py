"""A script whose parts have other lifetimes is made of the one that is there, as a run would write it."""

from __future__ import annotations

from typing import Any

import pytest

from memsheet.account import replayed_rank_sheet
from memsheet.catalog import find_gpus, find_model
from memsheet.formulas.replay import steps
from memsheet.formulas.replay.script import Recorded, Script, play_backward, play_forward
from memsheet.formulas.replay.tape_logs import Lifetimes, Sized
from memsheet.formulas.tapes.tape import Entry, Event, Tape
from memsheet.frozen import replace
from memsheet.plan.device import cluster_of
from memsheet.plan.dtypes import INT8
from memsheet.questions.accounted import answer_for_model
from memsheet.readers.hf_config import read_hf_config

ALLOC, FREE = Event.ALLOC, Event.FREE
NESTED = Tape(
    entries=tuple(
        Entry(path, (1,), INT8)
        for path in ("mlp.up/dequantized", "mlp.up/output", "mlp/activation", "mlp/output", "norm/output")
    ),
    forward=(
        (ALLOC, 0), (ALLOC, 1), (FREE, 0), (ALLOC, 2), (FREE, 1), (ALLOC, 3), (FREE, 2), (ALLOC, 4), (FREE, 3),
    ),
    backward=(),
    saved=frozenset(),
    cached=frozenset(),
    outputs=frozenset({4}),
    handed=frozenset(),
)  # fmt: skip
"""A module within a module, and what comes behind both."""


def test_what_a_call_made_goes_when_it_has_returned_and_its_result_with_the_call_around_it() -> None:
    called, late = (Sized.of(NESTED, {}, kind).forward for kind in (Lifetimes.CALLED, Lifetimes.LATE))
    assert called == (
        (ALLOC, 0), (ALLOC, 1), (FREE, 0), (ALLOC, 2), (ALLOC, 3), (FREE, 1), (FREE, 2), (ALLOC, 4), (FREE, 3),
    )  # fmt: skip
    assert [event for event, _ in late] == [ALLOC] * 5 + [FREE] * 4


QUESTIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gathered": ("llama-3.2-1b", "4xRTX4090", {"engine": "fsdp2", "zero": 3, "recompute.mode": "full"}),
    "gathered, nothing recomputed": ("gemma-2-2b", "8xA100-80GB", {"engine": "fsdp2", "zero": 3}),
    "flat units": ("llama-3.2-1b", "8xA100-80GB", {"engine": "fsdp1", "zero": 3}),
    "partitioned": ("llama-3.2-1b", "4xA100-80GB", {"engine": "deepspeed", "zero": 2, "recompute.mode": "full"}),
    "fetched": ("llama-3.2-1b", "4xA100-80GB", {"engine": "deepspeed", "zero": 3}),
    "buffers": ("llama-3.2-1b", "8xA100-80GB", {"engine": "megatron", "mesh.pp": 4, "global_batch": 16}),
    "buffers, a part recomputed": ("mixtral-8x7b", "64xH100-80GB", {"engine": "megatron", "mesh.ep": 8, "recompute.mode": "selective"}),
    "buffers, chunks": ("llama-3.2-1b", "8xA100-80GB", {"engine": "megatron", "mesh.pp": 4, "mesh.vpp": 2, "global_batch": 16}),
    "whole": ("qwen2.5-0.5b", "1xRTX4090", {}),
    "adapters": ("llama-3.2-1b", "1xRTX4090", {"adapter.rank": 8}),
}  # fmt: skip


def contents(script: Script | None) -> tuple[list[int], bytes, list[int]]:
    assert script is not None
    return [*script.sizes], bytes(script.streams), [*script.events]


def numbered_anew(script: Script) -> list[tuple[int, int, int]]:
    """The events with their sizes and streams, requests numbered as they are made."""
    numbers: dict[int, int] = {}
    found = list[tuple[int, int, int]]()
    for event in script.events:
        request = event if event >= 0 else ~event
        number = numbers.setdefault(request, len(numbers))
        found.append((number if event >= 0 else ~number, script.sizes[request], script.streams[request]))
    return found


@pytest.mark.parametrize("name", QUESTIONS)
def test_other_lifetimes_are_what_a_run_of_theirs_writes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = runs_of(QUESTIONS[name], monkeypatch)
    assert asked
    assert {args[2] for args in asked} == {Lifetimes.RECORDED}  # none of the others was written
    for walk, plan, _, *rest in asked[:2]:
        recorded, start = steps.script_of_steps(walk, plan, Lifetimes.RECORDED, *rest[:2])
        before, seen = contents(recorded), set[str]()
        for lifetimes in (Lifetimes.NONE, Lifetimes.LATE):
            other, begin = steps.script_of_steps(walk, plan, lifetimes, *rest[:2])
            assert contents(recorded.of_lifetimes(lifetimes)) == contents(other)
            assert begin == start
            seen.add(repr(contents(other)))
        assert contents(recorded) == before
        assert len(seen | {repr(before)}) == 3


@pytest.mark.parametrize("lifetimes", [Lifetimes.RECORDED, Lifetimes.LATE])
@pytest.mark.parametrize(
    "name", ["fetched", "partitioned", "buffers", "buffers, chunks", "buffers, a part recomputed"]
)
def test_a_run_that_is_told_otherwise_is_made_of_one_that_is_written(
    name: str, lifetimes: Lifetimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or not at all: of parameters that the host lets go of later, and of another share of the states. How
    its requests are numbered may differ.
    """
    walk, plan, _, told, sharding, *_ = runs_of(QUESTIONS[name], monkeypatch)[0]
    run, start = steps.run_of_steps(walk, plan, lifetimes, told, sharding)
    others = type(run).others(plan, told)
    made = [run.other_script(other, start) for other in others]
    assert [one is not None for one in made] == [name != "partitioned"] * len(others)
    for other, one in zip(others, made, strict=True):
        if one is not None:
            written, begin = steps.script_of_steps(walk, plan, lifetimes, other, sharding)
            assert (numbered_anew(one[0]), one[1]) == (numbered_anew(written), begin)
            assert one[0] is run.script or numbered_anew(one[0]) != numbered_anew(run.script)
    assert run.other_script(replace(told, workspace=told.workspace + 512), start) is None


def runs_of(question: tuple[str, str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a question's scripts are written of."""
    asked, written = list[Any](), steps.run_of_steps

    def noted(*args: Any) -> Any:
        asked.append(args)
        return written(*args)

    monkeypatch.setattr(steps, "run_of_steps", noted)
    monkeypatch.setattr(steps, "_replayed", {})
    model, gpus, request = question
    count, device = find_gpus(gpus)
    spec = read_hf_config((find_model(model) or {})["config"], name=model)
    replayed_rank_sheet.cache_clear()
    answer_for_model(spec, {"task": "train", "seq_len": 512, **request}, cluster_of(device, count or 1))
    monkeypatch.undo()
    return asked


def part_of(forward: str, backward: str, sizes: tuple[int, ...]) -> Sized:
    """As ``+1 -1 g1`` says: comes, goes, is a parameter's gradient."""
    events = {"+": Event.ALLOC, "-": Event.FREE, "g": Event.GRADIENT}
    logs = [tuple((events[word[0]], int(word[1:])) for word in log.split()) for log in (forward, backward)]
    entries = tuple(Entry(str(at), (size,), INT8) for at, size in enumerate(sizes))
    kept = {
        "saved": frozenset({0}),
        "cached": frozenset[int](),
        "outputs": frozenset({1}),
        "handed": frozenset({0}),
    }
    return Sized.of(Tape(entries=entries, forward=logs[0], backward=logs[1], **kept), {}, Lifetimes.RECORDED)


@pytest.mark.parametrize(
    ("forward", "backward", "sizes"),
    [
        (
            "+2 -2 +2 +1 -2",
            "+3 -0 -3",
            (9, 9, 4, 9),
        ),  # one comes a second time, which one that stays does not
        (
            "+2 +1 -2",
            "+3 g2 -0 -3",
            (9, 9, 4, 9),
        ),  # a gradient that a forward without anything would not make
        ("+2 +1", "+3 -0 -3 -2", (9, 9, 9, 9)),  # what is handed back is what a forward made
    ],
)
def test_where_lifetimes_decide_more_than_when_a_script_is_written_anew(
    forward: str, backward: str, sizes: tuple[int, ...]
) -> None:
    sized, script = part_of(forward, backward, sizes), Script()
    played, out = play_forward(script, Recorded(sized, None), script.take(9))
    play_backward(script, played, out)
    assert None in [script.of_lifetimes(lifetimes) for lifetimes in (Lifetimes.NONE, Lifetimes.LATE)]
