"""What a job is told whose tensors fit, and which the allocator's segments bring above the card."""

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.report.shared.uncertain_fit import SEGMENTS, beside_segments, deciding_notes
from memsheet.sheet import Component

TIGHT = {"gpus": "16xH100-80GB", "engine": "fsdp2", "zero": 3, "recompute": "full"}


def told(answer: memsheet.Answer) -> bool:
    return any(note.startswith(SEGMENTS) for note in answer.notes)


def test_a_job_whose_tensors_fit_is_told_that_segments_decide():
    answer = memsheet.train("llama-3.1-70b", **TIGHT, seq_len=8192)
    need = beside_segments(answer.verdict, answer.sheets[0], answer.cluster)
    assert answer.verdict.result is Result.UNCERTAIN
    assert need.high <= answer.cluster.device.framework_low_bytes < answer.verdict.device.high
    assert deciding_notes(answer)[0].startswith(SEGMENTS)


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"seq_len": 2048, "zero": 3}, id="it fits"),
        pytest.param({"seq_len": 65536}, id="its tensors do not"),
        pytest.param(
            {"seq_len": 8192, "expandable_segments": True, "gpus": "8xH100-80GB"}, id="on half the cards"
        ),
    ],
)
def test_others_are_not(asked):
    answer = memsheet.train("llama-3.1-70b", **{**TIGHT, **asked})
    need = answer.sheets[0].beside(Component.ALLOCATOR_SLACK)
    sure = answer.verdict.result is not Result.UNCERTAIN
    assert sure or need.high > answer.cluster.device.framework_low_bytes
    assert not told(answer)


def test_the_need_beside_slack_is_at_least_the_tensors():
    (sheet, *_) = memsheet.train(
        "llama-3.1-8b", gpus="8xH100-80GB", engine="fsdp2", zero=3, seq_len=4096
    ).sheets
    assert sheet.allocated.value <= sheet.beside(Component.ALLOCATOR_SLACK).value <= sheet.device.value
