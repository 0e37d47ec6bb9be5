"""One question over values of its options."""

from typing import Any

import pytest

import memsheet
from memsheet.report.shared.frames import LIBRARIES

JOB = {"gpus": "8xA100-40GB", "engine": "fsdp2"}


@pytest.mark.parametrize(
    ("gpus", "layout"),
    [("256xH100-80GB", {"pp": 4, "microbatch": 2}), ("512xH100-80GB", {"pp": 8, "microbatch": 4})],
)
def test_bounds_have_the_verdict_and_the_range_of_a_replay_where_a_job_may_fit(
    gpus: str, layout: dict[str, int]
) -> None:
    """What the allocator reserves of a pipeline's step is more than a share of its tensors."""
    job: dict[str, Any] = {"gpus": gpus, "engine": "megatron", "tp": 4, "recompute": "full", "fix": False}
    row = memsheet.sweep("llama-3.1-70b", **job, **layout, seq_len=[8192]).rows()[0]
    verdict = memsheet.train("llama-3.1-70b", **job, **layout, seq_len=8192).verdict
    assert verdict is not None
    assert row["result"] == verdict.result.value == "uncertain"
    sizes = (row["low_bytes"], row["device_bytes"], row["high_bytes"])
    assert sizes == (verdict.device.low, verdict.device.value, verdict.device.high)


def test_every_combination_is_the_answer_to_its_own_question() -> None:
    found = memsheet.sweep("llama-3.2-1b", **JOB, seq_len=[512, 1024], microbatch=[1, 2])
    assert [(row["seq_len"], row["microbatch"]) for row in found.rows()] == [
        (512, 1),
        (512, 2),
        (1024, 1),
        (1024, 2),
    ]
    for row in found.rows():
        one = memsheet.train(
            "llama-3.2-1b", **JOB, seq_len=row["seq_len"], microbatch=row["microbatch"], slack="bounds"
        )
        assert (row["device_bytes"], row["result"]) == (one.verdict.device.value, one.verdict.result.value)


def test_cards_and_models_may_vary_and_what_is_no_plan_has_a_reason() -> None:
    found = memsheet.sweep("llama-3.2-1b", gpus=["1xT4", "8xH100-80GB", "3xNoSuch"], seq_len=512)
    assert [row["result"] is not None for row in found.rows()] == [True, True, False]
    assert "NoSuch" in found.rows()[2]["reason"]


def test_a_server_is_swept_too() -> None:
    found = memsheet.sweep(
        "llama-3.2-1b", gpus="1xL4", engine="vllm", max_model_len=[1024, 2048], sequences=[1, 4]
    )
    assert len(found.cells) == 4


def test_a_notebook_shows_a_table() -> None:
    text = memsheet.sweep("llama-3.2-1b", **JOB, seq_len=[512, 1024], microbatch=[1, 2])._repr_html_()
    assert text.count("<tr>") == 3
    assert "fits" in text


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"seq_len": []},
        {"seq_len": list(range(1, 100)), "microbatch": list(range(1, 100))},
        {"seq_len": [-1, -2]},
    ],
)
def test_what_is_no_sweep_is_refused(options: dict) -> None:
    with pytest.raises(memsheet.InputError):
        memsheet.sweep("llama-3.2-1b", **JOB, **options)


def test_rows_are_a_frame_of_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memsheet.report.shared.frames.find_spec", lambda _: None)
    with pytest.raises(memsheet.InputError, match="none is installed"):
        memsheet.train("llama-tiny", seq_len=64).to_frame()
    assert LIBRARIES[0] == "pandas"


def test_models_and_cards_side_by_side_are_what_each_is_alone() -> None:
    models, cards = ["llama-3.2-1b", "llama-3.1-8b"], ["1xL4", "8xA100-80GB"]
    found = memsheet.sweep(models, gpus=cards, seq_len=512, slack="replay").rows()
    assert [(row["model"], row["gpus"]) for row in found] == [(m, g) for m in models for g in cards]
    for row in found:
        alone = memsheet.train(row["model"], gpus=row["gpus"], seq_len=512, fix=False)
        assert alone.verdict is not None
        assert (row["device_bytes"], row["result"]) == (
            alone.verdict.device.value,
            alone.verdict.result.value,
        )


def test_a_sweep_is_printed_as_a_table() -> None:
    found = memsheet.sweep("llama-3.2-1b", **JOB, seq_len=[512, 1024], tp=[1, 3])
    head, *lines = str(found).splitlines()
    assert head.split() == ["seq_len", "tp", "needs", "range", "result"]
    assert len(lines) == len(found.cells)
    for line, cell in zip(lines, found.cells, strict=True):
        assert line.split()[:2] == [str(value) for value in cell.options.values()]
        assert line.endswith("fits") is (cell.result == "fits")
