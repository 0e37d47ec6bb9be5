"""Sequences that were asked for: the verdict is about them, and `infer`, `plan infer` and `solve` say one
thing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
        room = tuple(min(count, sequences) for sequences in plan.sequences)
        alike = plan.plan.serving.max_sequences == one.plan.serving.max_sequences  # else its graphs differ
        assert plan.holds is Holds.YES or not alike or room == (asked["held_low"], asked["held"])
        assert plan.holds is Holds.YES or room[1] == asked["held"]
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


SERVED = {
    "vllm": ("vllm serve {model} --max-model-len {tokens} --max-num-seqs {count}", "max_num_seqs"),
    "sglang": (
        "sglang serve --model-path {model} --context-length {tokens} --max-running-requests {count}",
        "max_running_requests",
    ),
}


@pytest.mark.parametrize("engine", SERVED)
@pytest.mark.parametrize(
    ("model", "tokens", "count"), [("qwen3-8b", 8192, 4), ("qwen3-8b", 32768, 64), ("qwen3-32b", 4096, 16)]
)
def test_a_word_means_one_thing_in_a_file_and_on_the_line(
    engine: str, model: str, tokens: int, count: int, tmp_path: Path
) -> None:
    """The engine's own word is the most it starts, and everybody's asks for all at once, by either door."""
    command, word = SERVED[engine]
    (tmp_path / "serve.sh").write_text(command.format(model=model, tokens=tokens, count=count))
    (tmp_path / "plain.sh").write_text(
        command.format(model=model, tokens=tokens, count=count).rsplit(" --", 1)[0]
    )
    how: dict[str, Any] = {"gpus": "1xH100-80GB", "engine": engine, "max_model_len": tokens, "fix": False}
    limited, alone = memsheet.infer(model, **how, **{word: count}), memsheet.infer(model, **how)
    asked = memsheet.infer(model, **how, sequences=count)
    assert limited.verdict is not None
    assert alone.verdict is not None
    assert limited.verdict.result is alone.verdict.result
    by_file = memsheet.check(tmp_path / "serve.sh", gpus="1xH100-80GB")
    assert by_file.result is limited.verdict.result
    for file in ("serve.sh", "plain.sh"):
        checked = memsheet.check(tmp_path / file, gpus="1xH100-80GB", sequences=count).answer
        assert checked is not None
        assert checked.verdict.result is asked.verdict.result
        assert checked.serving["asked"]["held"] == asked.serving["asked"]["held"]


@pytest.mark.parametrize(
    ("model", "gpus", "counts"),
    [("gpt-oss-120b", "4xH100-80GB", (60, 100, 130)), ("llama-3.1-8b", "2xA100-40GB", (30, 42, 80))],
)
def test_the_room_of_a_cut_does_not_end_with_the_users_asked_for(
    model: str, gpus: str, counts: tuple[int, ...]
) -> None:
    """No row holds fewer than where nobody counts users, whose buffers are larger."""
    how: dict[str, Any] = {"gpus": gpus, "engine": "vllm", "context": 32768}
    rooms = {
        one.plan.mesh: one.sequences for one in memsheet.plan_serving(model, **how).plans if one.sequences[1]
    }
    for users in counts:
        found = {one.plan.mesh: one for one in memsheet.plan_serving(model, **how, users=users).plans}
        assert all(
            held >= usual
            for mesh, room in rooms.items()
            if mesh in found
            for held, usual in zip(found[mesh].sequences, room, strict=True)
        )
        assert all("own limit" not in reason.words for one in found.values() for reason in one.reasons)
