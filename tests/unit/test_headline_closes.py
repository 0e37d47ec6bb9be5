"""The sizes of a headline close: what is needed and what is free are what a GPU gives."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import memsheet
from memsheet.budget import Answer
from memsheet.catalog import devices
from memsheet.report.bars import Look
from memsheet.report.sizes import capacity
from memsheet.report.table import render
from memsheet.sheet import Bytes

RANGED = [one.name for one in devices() if one.framework_low_bytes != one.framework_high_bytes and one.engines is None and not one.unified]
GIVEN = re.compile(r"needs ([\d.]+) (?:GiB )?of ([\d.]+)(?: to [\d.]+)? GiB(?: \(([\d.]+) GiB on some\))? per GPU")
FREE = re.compile(r"([\d.]+) (KiB|MiB|GiB) free")
PARTS = {"KiB": 2**20, "MiB": 2**10, "GiB": 1}


def closes(answer: Answer) -> re.Match[str]:
    head = " ".join(render(answer, Look(width=200)).split("\n\n")[0].split())
    sizes, free = GIVEN.search(head), FREE.search(head)
    assert sizes, head
    assert free, head
    assert float(sizes[1]) + float(free[1]) / PARTS[free[2]] == pytest.approx(float(sizes[2]), abs=0.021), head
    return sizes


@pytest.mark.parametrize("name", RANGED)
def test_need_and_room_are_what_a_card_gives(name: str) -> None:
    """Of every card that is known as a range."""
    closes(memsheet.train(parameters="100e6", gpus=f"1x{name}"))


@pytest.mark.parametrize(("share", "told"), [(0.92, False), (1.0, True), (1.01, False)])
def test_less_on_some_cards_is_told_where_it_decides(share: float, told: bool) -> None:
    """Of a card whose usual size is not its least: only where the need lies between the two."""
    answer = memsheet.infer("mixtral-8x7b", gpus="2xMI300X", engine="vllm", tp=2)
    closes(answer)
    assert answer.cluster is not None
    assert answer.verdict is not None
    device = answer.cluster.device
    needed = Bytes.exact(int(device.framework_bytes * share))
    assert ("on some" in capacity(device, replace(answer.verdict, device=needed), Look())) == told
    assert closes(memsheet.infer("mixtral-8x7b", gpus="2xMI300X", engine="vllm", tp=2, memory_fraction=0.998))
