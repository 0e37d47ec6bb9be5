"""Where even the low end is above the card the verdict is no, whatever is unsure besides; and no range that
is unsure lies above it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memsheet
from memsheet.budget import Budget, Result, judge_on, judge_sheets, verdict_on_start
from memsheet.catalog import find_device
from memsheet.cli import main
from memsheet.exchange.verdict_doubts import Doubt, widen_verdict
from memsheet.plan.device import Cluster
from memsheet.sheet import Bytes, Component, Derived, Instant, Item, Sheet

CONFIGS = sorted(
    path for path in (Path(__file__).parents[1] / "configs").iterdir() if path.name != "index.json"
)
GIB = 2**30
sizes = st.tuples(*[st.integers(0, 300 * GIB)] * 3).map(lambda three: Bytes(*sorted(three)))
sheets = st.lists(st.tuples(sizes, sizes), min_size=1, max_size=4).map(
    lambda rows: tuple(
        Sheet(rank=rank, items=(
            Item(Component.PARAMETERS, "p", {Instant.LOAD: states, Instant.BACKWARD: states}, Derived("drawn")),
            Item(Component.SAVED_ACTIVATIONS, "a", {Instant.BACKWARD: saved}, Derived("drawn")),
        ))
        for rank, (states, saved) in enumerate(rows)
    )
)  # fmt: skip
PLAIN = memsheet.train("llama-tiny", gpus="8xA100-80GB", seq_len=8, fix=False)
CARD = Cluster(device=find_device("A100-80GB"), per_node=8, nodes=1)


@given(sheets, sizes, st.integers(0, 80 * GIB))
def test_every_verdict_denies_what_cannot_fit(drawn: tuple[Sheet, ...], short: Bytes, reserve: int) -> None:
    room = CARD.device.framework_high_bytes
    budget = Budget(
        low_bytes=room - reserve,
        capacity_bytes=room - reserve,
        high_bytes=room - reserve,
        reserve_bytes=reserve,
    )
    lowest, highest = max(sheet.device.low for sheet in drawn), max(sheet.device.high for sheet in drawn)
    for verdict, limit in ((judge_sheets(drawn, budget), room - reserve), (judge_on(drawn, CARD), room)):
        assert (verdict.result is Result.DOES_NOT_FIT) == (lowest > limit)
        assert (verdict.result is Result.FITS) == (highest <= limit)
        later = verdict_on_start(verdict, short)
        assert (
            later.result is Result.DOES_NOT_FIT
            if lowest > limit or short.low > 0
            else later.result is not Result.DOES_NOT_FIT
        )


@given(sheets, st.integers(0, 300 * GIB))
def test_a_doubt_leaves_no_range_above_the_card_unsure(drawn: tuple[Sheet, ...], least: int) -> None:
    room = CARD.device.framework_high_bytes
    answer = widen_verdict(
        replace(PLAIN, cluster=CARD, sheets=drawn, verdict=judge_on(drawn, CARD)),
        Doubt("something is open", least),
    )
    assert answer is not None
    assert answer.verdict is not None
    assert answer.verdict.result is (
        Result.DOES_NOT_FIT if answer.verdict.device.low > room else Result.UNCERTAIN
    )
    assert answer.verdict.device.low == min(least, judge_on(drawn, CARD).device.low)


def checked(path: Path, model: str, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any] | None:
    """What `check` says of a file; None where it cannot be read."""
    code = main(["check", str(path), "--model", model, "--gpus", "1xA100-80GB", *flags, "--json"])
    printed = capsys.readouterr().out
    found: dict[str, Any] = json.loads(printed) if printed.startswith("{") else {}
    return found if code in (0, 2, 10, 11) and found.get("sheet") else None


@pytest.mark.parametrize("model", ["llama-3-8b", "llama-3.1-405b"])
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_no_file_leaves_a_range_above_the_card_unsure(
    path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    serves = path.name.startswith(("vllm", "sglang"))
    found = checked(path, model, capsys, *(() if serves else ("--seq-len", "4096")))
    if found is None:
        return
    verdict, room = found["sheet"]["verdict"], CARD.device.framework_high_bytes
    above = verdict["device_low_bytes"] > room
    if any(one["rule"] == "ranks-above-named-cards" for one in found["mistakes"]):
        assert (found["result"], found["starts"]) == ("does_not_fit", False)  # however it fits more cards
        return
    assert (
        (found["result"] == "does_not_fit") == above or verdict["host_short_bytes"] or (serves and not above)
    )


@pytest.mark.parametrize(
    ("text", "result"),
    [
        (
            '{"round_robin_gradients": true, "stage": 2}',
            "does_not_fit",
        ),  # an order of gradients takes nothing from the states
        ('{"contiguous_gradients": false, "stage": 2}', "does_not_fit"),
        ('{"stage": 2, "cpu_offload": true}', "uncertain"),  # which moves them to the host
    ],
)
def test_what_is_open_decides_where_it_can(
    tmp_path: Path, text: str, result: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ds_config.json"
    file.write_text(
        f'{{"bf16": {{"enabled": true}}, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {text}}}'
    )
    found = checked(file, "llama-3-70b", capsys, "--seq-len", "2048")
    assert found is not None
    assert found["doubt"]
    assert found["result"] == result
