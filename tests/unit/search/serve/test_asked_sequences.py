"""Sequences that were asked for: the verdict is about them, and `infer`, `plan infer` and `solve` say one
thing.
"""

from __future__ import annotations

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.search.serve.load import Holds

SAME = {Holds.YES: Result.FITS, Holds.PERHAPS: Result.UNCERTAIN, Holds.NO: Result.DOES_NOT_FIT}
CASES = [
    ("llama-3.1-8b", "1xH100-80GB", 32768, (1, 8, 12, 13, 14, 15, 16, 40)), ("llama-3.1-8b", "1xA100-40GB", 8192, (1, 16, 19, 20, 21, 24)),
    ("gemma-3-27b", "1xH100-80GB", 16384, (2, 6, 7, 8, 30)), ("deepseek-v2-lite", "1xH100-80GB", 32768, (8, 40, 60, 400)),
]  # fmt: skip


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(("name", "gpus", "tokens", "counts"), CASES)
def test_infer_and_plan_infer_give_one_answer(
    engine: str, name: str, gpus: str, tokens: int, counts: tuple[int, ...]
) -> None:
    more = {"memory_fraction": 0.85} if name.startswith("gemma") and engine == "sglang" else {}
    results = list[Result]()
    for count in counts:
        one = memsheet.infer(
            name, gpus=gpus, engine=engine, max_model_len=tokens, sequences=count, fix=False, **more
        )
        plan = memsheet.plan_serving(
            name, gpus=gpus, engine=engine, context=tokens, users=count, **more
        ).plans[0]
        assert one.verdict is not None
        assert one.serving is not None
        asked = one.serving["asked"]
        assert SAME[plan.holds] is one.verdict.result
        assert plan.holds is Holds.YES or plan.sequences == (asked["held_low"], asked["held"])
        assert one.verdict.result is not Result.FITS or asked["held_low"] == asked["sequences"] == count
        results.append(one.verdict.result)
    order = [Result.FITS, Result.UNCERTAIN, Result.DOES_NOT_FIT]
    assert [order.index(result) for result in results] == sorted(order.index(result) for result in results)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_what_is_said_to_hold_instead_holds(engine: str) -> None:
    from memsheet.plan.names import SHORT

    short = {key: name for name, key in SHORT.items()}
    asked = {"gpus": "1xH100-80GB", "engine": engine, "max_model_len": 32768, "sequences": 40}
    found = memsheet.infer("llama-3.1-8b", **asked).serving
    assert found is not None
    ways = found["asked"]["holds_instead"]
    assert len(ways) >= 2
    for change in ways:
        again = memsheet.infer(
            "llama-3.1-8b", **{**asked, **{short[key]: value for key, value in change.items()}}
        )
        assert again.verdict is not None
        assert again.verdict.result is Result.FITS


def test_a_limit_in_a_file_asks_for_nothing() -> None:
    """What nobody asked for is a limit: a server with its usual one starts, and the verdict is about that."""
    usual = memsheet.infer("llama-3.1-8b", gpus="1xH100-80GB", engine="vllm", max_model_len=32768)
    assert usual.verdict is not None
    assert usual.verdict.result is Result.FITS
    again = memsheet.infer(
        "llama-3.1-8b",
        gpus="1xH100-80GB",
        plan={"task": "infer", "engine": "vllm", "serving": {"max_model_len": 32768, "max_sequences": 256}},
    )
    assert again.verdict is not None
    assert again.verdict.result is Result.FITS
    assert "asked" not in (again.serving or {})
