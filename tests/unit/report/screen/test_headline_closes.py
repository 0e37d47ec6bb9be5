"""The sizes of a headline close: what is needed and what is free are what a GPU gives."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import memsheet
from memsheet.budget import Answer
from memsheet.catalog import catalog_devices
from memsheet.cli import main
from memsheet.report.screen.table import render_answer
from memsheet.report.shared.look import Look
from memsheet.report.shared.sizes import device_capacity_words
from memsheet.sheet import Bytes

RANGED = [
    one.name
    for one in catalog_devices()
    if one.framework_low_bytes != one.framework_high_bytes and one.engines is None and not one.unified
]
GIVEN = re.compile(
    r"needs (?P<need>[\d.]+) (?:GiB )?(?:of (?P<room>[\d.]+) GiB(?: \([\d.]+ GiB on some\))? )?per GPU"
    r"(?: · range (?P<low>[\d.]+)(?: GiB)? to (?P<high>[\d.]+) GiB)?(?: · a card gives (?P<least>[\d.]+) "
    r"to (?P<most>[\d.]+) GiB)?"
)
LEFT = re.compile(r"([\d.]+) (KiB|MiB|GiB) (free|too much|more than the least)")
PARTS = {"KiB": 2**20, "MiB": 2**10, "GiB": 1}


def closes(answer: Answer) -> re.Match[str]:
    head = " ".join(render_answer(answer, Look(width=200)).split("\n\n")[0].split())
    return closing_of(head)


def closing_of(head: str) -> re.Match[str]:
    """What a headline says of a need and of a room, each within its own range, with what is left between
    them.
    """
    sizes, left = GIVEN.search(head), LEFT.search(head)
    assert sizes, head
    assert left, head
    room = float(sizes["room"] or sizes["least"])
    rest = float(left[1]) / PARTS[left[2]] * (1 if left[3] == "free" else -1)
    assert float(sizes["need"]) + rest == pytest.approx(room, abs=0.021), head
    assert not sizes["low"] or float(sizes["low"]) <= float(sizes["need"]) <= float(sizes["high"]), head
    assert (sizes["room"] is None) is ("the least it gives" in head), head
    return sizes


RANGES = (
    "train llama-3.2-1b --gpus 1x24GB --seq-len 2048", "train llama-3.2-1b --gpus 2x16GB --seq-len 512 --engine deepspeed --zero 2",
    "train gpt2 --gpus 1x24GB --seq-len 512", "infer llama-3.2-1b --gpus 1x24GB --engine transformers", "train llama-3.1-70b --gpus 8x80GB --seq-len 512",
    "solve seq-len llama-3.2-1b --gpus 1x24GB", "solve gpus llama-3.1-8b --gpus 24GB --seq-len 1024", "plan train llama-3.2-1b --gpus 2x24GB --seq-len 512",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("line", RANGES)
def test_a_card_of_a_size_has_a_range_of_its_own(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A need and what a card gives are two ranges, and no phrase joins the ends of both."""
    monkeypatch.setenv("COLUMNS", "80")
    main(line.split())
    out = capsys.readouterr().out
    head = " ".join(out.split("\n\n")[0].split())
    sizes = closing_of(head)
    assert float(sizes["least"]) < float(sizes["most"])
    assert max(map(len, out.splitlines())) <= 80
    assert not re.search(r" of [\d.]+ to ", head)


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
    assert (
        "on some" in device_capacity_words(device, replace(answer.verdict, device=needed), Look())
    ) == told
    assert closes(memsheet.infer("mixtral-8x7b", gpus="2xMI300X", engine="vllm", tp=2, memory_fraction=0.998))


def test_a_length_fits_by_the_sheet_alone_where_more_is_expected(tmp_path: Path) -> None:
    """A launch of which one role is accounted: its logits stand beside the sheet."""
    file = tmp_path / "run.sh"
    file.write_text(
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B "
        "data.max_prompt_length=long "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 trainer.n_gpus_per_node=8\n"
    )
    found = memsheet.check(file, gpus="8xH100-80GB")
    assert found.answer is not None
    screen = render_answer(found.answer, Look(width=120))
    rows = [line for line in screen.splitlines() if re.search(r"\d  fits", line)]
    assert rows
    assert all(line.endswith("fits, without what is beside the sheet") for line in rows)
