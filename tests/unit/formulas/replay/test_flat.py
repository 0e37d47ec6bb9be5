"""Steps under FullyShardedDataParallel, played by hand: on each of four ranks 6 elements of a layer's 24 and
13 of the root's 52, kept and reduced in fp32, gathered in bf16.
"""

from __future__ import annotations

from typing import Any

import pytest

from memsheet.formulas.groups import Layers, StageLayers
from memsheet.formulas.replay.flat import FlatUnits
from memsheet.formulas.replay.order import StepContext
from memsheet.formulas.replay.steps import script_of_steps
from memsheet.formulas.replay.tape_logs import CASTS, GATHERS, REDUCES, Lifetimes
from memsheet.plan.engine import Sharding
from small_stage import group, part, planned

TOLD = StepContext(9)


def stage() -> StageLayers:
    backward = "+2 +3 g3 +4 -2 -4"
    embeddings = group("embeddings", (10, 4), part((40, 40, 80), "+0", "+1 +2 g2 -1", set(), 0))
    layer = group("layer", (8, 3), part((40, 40, 40, 48, 40), "+1", backward, {0}, 1))
    head = group("head", (6, 2), part((40, 60, 60, 24, 40), "+1", backward, {0}, 1))
    loss = part((60, 4, 60), "+1", "+2 -2", {0}, 1)
    return StageLayers(embeddings, (Layers((layer,), 2),), head, loss, False)


def played(how: StepContext = TOLD, **request: Any) -> tuple[str, str]:
    """What is made before the first step, and the second one."""
    plan = planned(4, **{"engine": "fsdp1", **request})
    script, start = script_of_steps(stage(), plan, Lifetimes.RECORDED, how, Sharding.FLAT_SHARDS)
    streams = {GATHERS: "g", REDUCES: "r", CASTS: "c"}
    words = [
        f"{'+' if event >= 0 else '-'}{script.sizes[number]}{streams.get(script.streams[number], '')}"
        for event in script.events
        for number in [event if event >= 0 else ~event]
    ]
    return " ".join(words[: words.index("+384")]), " ".join(words[start:])


LAZY = "+26 -26 +104 -104 +208 -208 +12 -12 +48 -48 +96 -96 +12 -12 +48 -48 +96 -96"


def test_units_are_joined_on_the_device_before_they_are_cut() -> None:
    """Layers, then the root; and when the first forward comes, each once in every form that it will have."""
    layer = "+96 +96 -96 +24 -96"
    assert played()[0] == f"+9 {layer} {layer} +160 +48 +208 -160 -48 +52 -208 {LAZY}"
    assert played(StepContext(9, joined_on_host=True))[0] == f"+9 +24 +24 +52 {LAZY}"


def test_the_root_stays_gathered_and_comes_last() -> None:
    """torch 2.13 _runtime_utils.py: the unit before is gathered ahead in backward (630-695); gradients are
    joined, cast, and reduced (701-775).
    """
    gathered = "+12c +48g -12c"
    reduced = "+48 -48 -48g +96r +24r -96r -48"
    assert played()[1] == (
        f"-24r -24r -52r +384 +384 +26c +104g -26c +40 {gathered} +40 -48g {gathered} +40 -48g +60 +4 "
        f"{gathered} +60 -60 +24 +40 -60 -40 {gathered} "
        f"+48 +40 -40 -40 {reduced} +48 +40 -40 -40 {reduced} "
        "+80 -40 +104 -24 -80 -104g +208r +52r -208r -104 -384 -384"
    )


def test_a_host_ahead_waits_for_the_first_of_two() -> None:
    """_limiter_utils.py: what was let go of comes back when the second unit after it is gathered."""
    units = [word for word in played(StepContext(9, host_ahead=True))[1].split() if word[-1] == "g"]
    steady = [word for word in played()[1].split() if word[-1] == "g"]
    assert [word for word in units if word[0] == "+"] == [word for word in steady if word[0] == "+"]
    assert steady[:4] == ["+104g", "+48g", "-48g", "+48g"]
    assert units[:6] != steady[:6]
    assert len(units) == len(steady)  # as many come back as in a step before


GATHERED = [(48, True), (48, False)]
"""A unit that is gathered and let go of before another is."""


def gathers_of(how: StepContext = TOLD, steps: int = 1, **request: Any) -> list[tuple[int, bool]]:
    """Sizes of what is gathered and let go of in the last of so many steps."""
    run = FlatUnits(stage(), planned(4, engine="fsdp1", **request), Lifetimes.RECORDED, how)
    run.load()
    for _ in range(steps):
        begin = len(run.script.events)
        run.step()
    return [
        (run.script.sizes[event if event >= 0 else ~event], event >= 0)
        for event in run.script.events[begin:]
        if run.script.streams[event if event >= 0 else ~event] == GATHERS
    ]


@pytest.mark.parametrize("when", ["post", "none"])
def test_units_that_are_not_gathered_ahead_are_there_one_at_a_time(when: str) -> None:
    assert gathers_of(backward_prefetch=when) == [(104, True), *GATHERED * 4, (104, False)]


def test_a_unit_is_gathered_while_the_one_before_runs_forward_where_that_is_asked_for() -> None:
    """_pre_forward_unshard: the root's forward gathers the first layer's, and that the second's."""
    ahead = [(104, True), (48, True), (48, True), (48, False), (48, False), *GATHERED * 2, (104, False)]
    assert gathers_of(backward_prefetch="none", forward_prefetch=True) == ahead


def test_a_host_that_waits_for_nothing_gives_back_what_a_whole_step_has_let_go_of() -> None:
    """_unshard: without limit_all_gathers nothing waits for the device to be through with a unit."""
    ahead = StepContext(9, host_ahead=True)
    first, later = (gathers_of(ahead, steps, limit_all_gathers=False) for steps in (1, 3))
    assert all(made for _, made in first)
    assert sorted(size for size, made in later if made) == sorted(size for size, made in later if not made)
    assert not all(made for _, made in gathers_of(ahead))


def test_the_first_rank_steps_what_lies_in_its_part() -> None:
    run = FlatUnits(stage(), planned(4, engine="fsdp1"), Lifetimes.RECORDED, StepContext())
    assert [(h.path, elements) for h, elements in run.stepped()] == [
        ("layer", 6),
        ("layer", 6),
        ("embeddings", 13),
    ]
