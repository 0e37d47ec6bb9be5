"""The largest share of the card that a job's server may take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.jobs.shorter import with_rows_of
from memsheet.questions.job import answer_job
from memsheet.questions.solve_job import largest_micro_batch, largest_share, longest_rows, with_share

JOB: dict[str, Any] = {
    "schema": "memsheet/job/1", "gpus": "1xA100-80GB",
    "roles": {
        "actor": {"model": "qwen3-0.6b", "plan": {"task": "train", "engine": "transformers", "seq_len": 1024, "microbatch": 4, "recompute": {"mode": "full"}}},
        "rollout": {"model": "qwen3-0.6b", "plan": {"task": "infer", "engine": "vllm", "serving": {"max_model_len": 2048, "max_sequences": 16}}},
    },
    "phases": [
        {"name": "gen", "active": "rollout"},
        {"name": "update_actor", "active": "actor", "residents": {"rollout": "asleep-2"}},
    ],
}  # fmt: skip


def test_one_hundredth_more_does_not_fit() -> None:
    found = largest_share(JOB)
    assert found.largest is not None
    for share, fits in ((found.largest, True), (found.largest - 0.01, True), (found.largest + 0.01, False)):
        verdict = answer_job(with_share(JOB, "rollout", round(share, 2))).verdict
        assert verdict is not None
        assert (verdict.result is memsheet.Result.FITS) is fits


def test_a_server_that_stays_awake_may_take_less() -> None:
    awake = {**JOB, "phases": [JOB["phases"][0], {"name": "update_actor", "active": "actor"}]}
    shares = [largest_share(job).largest for job in (awake, JOB)]
    assert None not in shares
    assert shares[0] < shares[1]


def test_a_pool_without_room_for_one_sequence_does_not_start() -> None:
    job = with_share(JOB, "rollout", 0.03)
    job["roles"]["rollout"]["plan"]["serving"]["max_model_len"] = 32768
    answer = answer_job(job)
    assert answer.verdict is not None
    assert answer.verdict.result is memsheet.Result.DOES_NOT_FIT
    assert any("pool lacks" in note for note in answer.notes)


def test_the_command_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps(JOB))
    assert main(["solve", "gpu-memory-utilization", str(file)]) == 0
    assert f"up to {largest_share(JOB).largest:g}" in capsys.readouterr().out
    assert main(["solve", "gpu-memory-utilization", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "memsheet/sheet/1"


def test_no_server_has_no_share() -> None:
    job = {
        **JOB,
        "roles": {"actor": JOB["roles"]["actor"]},
        "phases": [{"name": "update_actor", "active": "actor"}],
    }
    with pytest.raises(memsheet.InputError, match="0 servers"):
        largest_share(job)


@pytest.mark.parametrize("solve", [longest_rows, largest_micro_batch])
def test_one_part_more_does_not_fit(solve: Any) -> None:
    """Of rows as many tokens as are looked at at once, of a micro-batch a row."""
    plan = {**JOB["roles"]["actor"]["plan"], "seq_len": 2048, "microbatch": 8}
    logits = {"tokens": 8 * 1025, "bytes": [8, 16, 16], "why": "x"}
    half = with_share(JOB, "rollout", 0.5)
    job = {
        **half,
        "roles": {**half["roles"], "actor": {"model": "qwen3-0.6b", "plan": plan}},
        "phases": [JOB["phases"][0], {**JOB["phases"][1], "logits": logits}],
    }
    found = solve(job)
    assert found.largest is not None
    assert found.answer.verdict is not None
    assert found.answer.verdict.result is memsheet.Result.FITS
    assert found.beyond is not None
    assert found.beyond.verdict is not None
    assert found.beyond.verdict.result is not memsheet.Result.FITS
    assert found.counted == (2048 if solve is longest_rows else 8 * 2048)
    assert found.largest % (64 if solve is longest_rows else 2048) == 0


def test_longer_rows_are_served_and_read_as_long() -> None:
    changed = with_rows_of(JOB, 2048, 1024)
    assert changed["roles"]["actor"]["plan"]["seq_len"] == 2048
    assert changed["roles"]["rollout"]["plan"]["serving"]["max_model_len"] == 4096
    phase = {"name": "ref", "active": "actor", "work": "forward", "plan": {"seq_len": 512}, "logits": {"tokens": 100, "bytes": 2}}  # fmt: skip
    (read,) = with_rows_of({**JOB, "phases": [phase]}, 2048, 1024)["phases"]
    assert (read["plan"]["seq_len"], read["logits"]["tokens"]) == (1024, 200)


def test_a_job_whose_rows_nobody_says_is_refused() -> None:
    roles = {"rollout": JOB["roles"]["rollout"]}
    with pytest.raises(InputError, match="trains nothing"):
        longest_rows({**JOB, "roles": roles, "phases": JOB["phases"][:1]})


def test_the_command_says_the_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.json"
    half = with_share(JOB, "rollout", 0.5)
    file.write_text(json.dumps(half))
    for what, solve in (("row-tokens", longest_rows), ("micro-batch-tokens", largest_micro_batch)):
        assert main(["solve", what, str(file)]) == 0
        assert f"{what} up to {solve(half).largest:,}" in capsys.readouterr().out
