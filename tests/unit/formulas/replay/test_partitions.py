"""Steps under DeepSpeed, played by hand: 40 elements of embeddings, 24 of each of two layers, 12 of a head,
in bf16, over four ranks.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from memsheet.formulas.groups import Group, Layers, StageLayers
from memsheet.formulas.replay import partitioned
from memsheet.formulas.replay.order import StepContext
from memsheet.formulas.replay.script import Script
from memsheet.formulas.replay.steps import script_of_steps
from memsheet.formulas.replay.tape_logs import GATHERS, REDUCES, Lifetimes
from memsheet.formulas.sharding.partitioned_buckets import Buckets
from memsheet.formulas.sharding.partitioned_states import zero_of
from memsheet.plan.dtypes import BF16
from memsheet.plan.engine import Sharding
from small_stage import group, part, planned

TOLD = StepContext(9)
BUCKET = "1000000000"
"""Bytes of 5e8 elements."""


def in_bf16(one: Group) -> Group:
    return replace(one, parameters=tuple(replace(h, dtype=BF16) for h in one.parameters))


def stage(*, tied: bool = False) -> StageLayers:
    passes, backward = "+1", "+2 +3 g3 +4 -2 -4"
    embeddings = group("embeddings", (10, 4), part((40, 40, 80), "+0", "+1 +2 g2 -1", set(), 0))
    layer = group("layer", (8, 3), part((40, 40, 40, 48, 40), passes, backward, {0}, 1))
    width = 80 if tied else 24
    head = group("head", (6, 2), part((40, 60, 60, width, 40), passes, backward, {0}, 1))
    loss = part((60, 4, 60), "+1", "+2 -2", {0}, 1)
    head = replace(head, parameters=()) if tied else head
    return StageLayers(in_bf16(embeddings), (Layers((in_bf16(layer),), 2),), in_bf16(head), loss, tied)


def told(script: Script, events: range) -> list[str]:
    streams = {GATHERS: "g", REDUCES: "r"}
    return [
        f"{'+' if event >= 0 else '-'}{script.sizes[number]}{streams.get(script.streams[number], '')}"
        for event in script.events[events.start : events.stop]
        for number in [event if event >= 0 else ~event]
    ]


def played(zero: int, how: StepContext = TOLD, *, tied: bool = False, **request: Any) -> tuple[str, str, str]:
    """What is made before the first step; it; and the second."""
    plan = planned(4, engine="deepspeed", zero=zero, **request)
    script, start = script_of_steps(stage(tied=tied), plan, Lifetimes.RECORDED, how, Sharding.PARTITIONED)
    begin = next(at for at, event in enumerate(script.events) if event >= 0 and script.sizes[event] == 384)
    ends = range(begin), range(begin, start), range(start, len(script.events))
    before, first, last = (" ".join(told(script, one)) for one in ends)
    return before, first, last


FORWARD = "+384 +384 +40 +40 +40 +60 +4 +60 -60"
BACKWARD = "+24 +40 -60 -40 +48 +40 -40 -40 +48 +40 -40 -40 +80 -40 -384 -384"
RELEASED = "+40 -60 -40 +48 -48 +40 -40 -40 +48 -48 +40 -40 -40 +80 -80 -40"
"""The same, each gradient copied into the bucket."""
CHECKS = "+104 +26 +26 +26 +104 -104 -26 -26 -26 -104 +208 -208"
"""Of a partition's 26 elements: in fp32 twice and as truth values, then in double precision."""


def test_parameters_are_joined_beside_their_originals() -> None:
    """100 elements, padded to 104 for two a rank; a partition of 26 is copied, raised, and stepped with."""
    assert played(2)[0] == "+9 +80 +48 +48 +24 +208 -80 -48 -48 -24 +52 +104 -52 +104 -104"


def test_parameters_that_are_joined_on_the_host_leave_no_blocks() -> None:
    assert played(2, StepContext(9, joined_on_host=True))[0] == "+9 +208 +52 +104 -52 +104 -104"


def test_stage_two_fills_a_bucket_as_gradients_come() -> None:
    """From the first on it is there; at the end its copy is reduced, and the rank's part taken out of it."""
    _, first, last = played(2)
    reduced = f"+200 -200 +52 -{BUCKET} -384 -384"
    passes = f"{FORWARD} +24 +{BUCKET} -24 {RELEASED} {reduced} {CHECKS} +52 +104 -52 -52"
    assert first == f"{passes} +104 +104 -104"  # two moments
    assert last == f"{passes} -104"


def test_stage_two_adds_the_parts_of_later_micro_batches() -> None:
    last = played(2, global_batch=24)[2]
    reduced = f"+200 -200 +52 -{BUCKET}"
    one = f"{FORWARD} +24 +{BUCKET} -24 {RELEASED} {reduced}"
    assert last == f"{one} -384 -384 {one} -52 -384 -384 {CHECKS} +52 +104 -52 -52 -104"


def test_stage_one_reduces_whole_gradients_in_the_order_of_parameters() -> None:
    last = played(1)[2]
    backward = BACKWARD.replace("+24 ", f"+24 +{BUCKET} ", 1)
    reduced = f"-80 -48 -48 -24 +200 -200 +52 -{BUCKET}"
    assert last == f"{FORWARD} {backward} {reduced} {CHECKS} +52 +104 -52 -52 -104"


def test_without_zero_gradients_are_raised_one_by_one_and_joined() -> None:
    before, _, last = played(0)
    clones = "+80 +48 +48 +24 +200 -80 -48 -48 -24 -80 -48 -48 -24"
    assert before == f"+9 +80 +48 +48 +24 {clones} +200 +400 -200 +400 +400 +400 -400"
    raised = "+160 +96 +96 +48 +400 -160 -96 -96 -48 -80 -48 -48 -24 -400"
    assert last == f"{FORWARD} {BACKWARD} +200 -200 {raised}"


def test_a_gradient_that_is_wider_than_the_bucket_stays_until_it_is_reduced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bucket of 20 elements: the head's 12 lie in it, each later gradient is reduced as it is. All but the
    head's are of two ranks' parts, each 26 elements, and are copied for it.
    """
    monkeypatch.setattr(partitioned, "zero_of", partial(zero_of, buckets=Buckets(reduce_bucket=20)))
    last = played(2)[2]
    assert last.startswith(
        f"{FORWARD} +24 +40 -24 +40 -60 -40 "
        "+48 +52 +40 -40 -40 "
        "+48 +48 -48 -48 +40 -40 -40 "
        "+80 +48 -48 -48 -40 +80 -80 -80 -40"
    )


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_a_tied_tables_gradient_waits_for_the_look_ups(zero: int) -> None:
    last = played(zero, tied=True)[2]
    backward = last.split("+60 -60 ")[1]
    assert backward.startswith("+80 +40 -60 -40 +48")
    assert " +80 -80" in backward


# ---- stage 3 -----------------------------------------------------------------------------------------------


def buckets(monkeypatch: pytest.MonkeyPatch, **sizes: int) -> None:
    monkeypatch.setattr(partitioned, "zero_of", partial(zero_of, buckets=Buckets(persistence=0, **sizes)))


STEPPED = "+50 +100 -50 -100"


def test_small_parameters_stay_but_for_the_step() -> None:
    before, _, last = played(3)
    assert before == f"+9 +50 +100 +100 -100 +100 -100 +{BUCKET} +50 +80 +48 +48 +24"
    reduced = "+200r -200r -384 -384"
    assert last == (f"{FORWARD} +24 -24 {RELEASED} {reduced} -80 -48 -48 -24 {STEPPED} +80 +48 +48 +24")


def test_parameters_are_gathered_ahead_until_enough_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 60 elements, 20 at once, and one tensor beyond. While the second layer runs, the head and the
    first layer's backward are next: two that arrive in one buffer, which stays until both have been used.
    """
    buckets(monkeypatch, prefetch=20, max_live=60, max_reuse=10)
    last = played(3)[2]
    assert last == (
        "+384 +384 +80g +48g +40 -80g +48g +40 -48g +72g +40 +24g +48g +60 +4 +60 -60 "
        "+24 -24 +40 -60 -40 -24g +80g +48 -48 +40 -40 -40 -48g -72g +48 -48 +40 -40 -40 -48g "
        f"+80 -80 -40 -80g +200r -200r -384 -384 {STEPPED}"
    )


def test_parameters_that_are_used_again_soon_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    buckets(monkeypatch, prefetch=1000, max_live=1000, max_reuse=1000)
    forward, backward = played(3)[2].split("+4 +60 -60 ")
    assert "-80g" not in forward
    assert [word for word in backward.split() if "g" in word] == ["-24g", "-48g", "-48g", "-80g"]


def test_a_host_ahead_keeps_what_it_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    buckets(monkeypatch, prefetch=20, max_live=60, max_reuse=10)
    now, later = (
        [word for word in played(3, StepContext(9, host_ahead=ahead))[2].split() if "g" in word]
        for ahead in (False, True)
    )
    assert sorted(now) == sorted(later)
    assert [word for word in now if word[0] == "+"] == [word for word in later if word[0] == "+"]
    assert later.index("-80g") > now.index("-80g")


def test_one_gradient_alone_is_reduced_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket of 50 elements: 12 and 24 are joined, 24 alone and 40 alone are not."""
    buckets(monkeypatch, reduce_bucket=50)
    assert [word for word in played(3)[2].split() if "r" in word] == ["+72r", "-72r"]
