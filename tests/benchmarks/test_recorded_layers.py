"""Plans drawn for comparing records are such that both authors know."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import recorded_layers
from recorded_layers import DEEPSPEED, EIGHT_BIT, drawn_plan, or_instead


def drawn_plans(*, traced: bool) -> list[dict[str, object]]:
    draw = random.Random(0)
    return [drawn_plan(draw, 2048, traced=traced) for _ in range(200)]


def test_a_trace_is_asked_for_no_package_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_layers, "runs_here", lambda _: False)
    plans = drawn_plans(traced=True)
    assert {plan.get("engine") for plan in plans} == {None, "fsdp2"}
    assert EIGHT_BIT not in {plan["optimizer"] for plan in plans}


def test_layers_are_asked_whatever_is_installed() -> None:
    plans = drawn_plans(traced=False)
    assert EIGHT_BIT in {plan["optimizer"] for plan in plans}
    assert {plan["optimizer"] for plan in plans if plan.get("engine") == "deepspeed"} == {
        DEEPSPEED["optimizer"]
    }


def test_a_family_is_asked_for_what_its_code_has() -> None:
    def row(plan: dict[str, object]) -> dict[str, object]:
        if plan["attention"] == "sdpa":
            return {"plan": plan, "refused": "other: attention: does not exist for gptj"}
        if plan["recompute"] == "full":
            return {"plan": plan, "refused": "predicted: recompute: Some cannot recompute its layers"}
        return {"plan": plan, "refused": "other: precision: is not modelled"}

    asked = or_instead(row, {"attention": "sdpa", "recompute": "full"})
    assert asked["plan"] == {"attention": "eager", "recompute": "none"}
    assert asked["refused"] == "other: precision: is not modelled"
