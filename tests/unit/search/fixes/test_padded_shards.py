"""A job that no number of GPUs holds, as shards are padded: why, and who divides otherwise."""

from __future__ import annotations

import pytest

import memsheet
from memsheet.budget import Result

ASKED = {"engine": "fsdp2", "zero": 3, "seq_len": 512, "recompute": "full"}
SAID = "divides a tensor's first dimension alone"


def told(model: str, gpus: str, **more: object) -> bool:
    answer = memsheet.train(model, gpus=gpus, **{**ASKED, **more})
    return any(SAID in note for sheet in answer.sheets for note in sheet.notes)


@pytest.mark.parametrize(
    ("model", "gpus", "more", "says"),
    [
        ("mixtral-8x7b", "64xH200", {}, True),
        ("mixtral-8x7b", "8xH200", {}, False),
        ("mixtral-8x7b", "64xH200", {"dp_replicate": 8, "dp_shard": 8}, False),
        ("mixtral-8x7b", "64xH200", {"engine": "deepspeed"}, False),
        ("llama-3-8b", "64xH200", {}, False),
    ],
)
def test_experts_that_are_gathered_at_a_row_a_rank_are_named(
    model: str, gpus: str, more: dict[str, object], says: bool
) -> None:
    assert told(model, gpus, **more) is says


def test_an_engine_that_divides_otherwise_is_offered_with_its_fewest_gpus() -> None:
    solution = memsheet.solve("gpus", "mixtral-8x22b", gpus="H200", **ASKED)
    assert solution.result is Result.DOES_NOT_FIT
    engines = [way for way in solution.ways_to_fit if "engine" in way.changes]
    assert engines
    for way in engines:
        again = memsheet.train("mixtral-8x22b", **{**ASKED, **way.changes})
        assert again.verdict is not None
        assert again.verdict.result is Result.FITS
