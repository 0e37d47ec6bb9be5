"""The screen: what it says, at 80 and 120 columns, with and without colour, for names that mean harm."""

from dataclasses import replace

import pytest

import answers
from memsheet.budget import Answer
from memsheet.report.screen.table import render_answer
from memsheet.report.shared.look import Look
from memsheet.sheet import Component, Item, Sheet
from memsheet.units import GIB


def screen(answer: Answer, **look) -> str:
    return render_answer(answer, Look(**look))


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("case", ["does_not_fit", "fits", "uncertain", "no_gpus", "full"])
def test_screens(case, width, snapshot):
    made = {
        "does_not_fit": answers.answer(), "fits": answers.answer(activations=2, gpus="8xB200"), "uncertain": tight(),
        "no_gpus": answers.answer(gpus=None), "full": answers.answer(fix=0),
    }[case]  # fmt: skip
    assert screen(made, width=width, full=case == "full") == snapshot


def tight() -> Answer:
    """So near to the capacity that the range straddles it."""
    capacity = answers.cluster("8xB200").device.framework_bytes
    return answers.answer(activations=2 + (capacity - 145.37 * GIB) / GIB, gpus="8xB200", fix=1)


@pytest.mark.parametrize("width", [60, 80, 100, 120])
@pytest.mark.parametrize("full", [False, True])
def test_no_line_is_wider_than_the_screen(width, full):
    for made in (answers.answer(), answers.answer(gpus=None), tight()):
        assert max(map(len, screen(made, width=width, full=full).splitlines())) <= width


def test_columns_of_a_small_job_are_in_a_unit_that_shows_it():
    small = Look().fitted(3 * 2**20)
    assert (small.unit, small.cell(3 * 2**20), small.cell(1)) == ("MiB", "3.00", "0.01")
    assert Look(decimal=True).fitted(10**9 - 1).unit == "MB"
    assert Look().fitted(GIB).unit == "GiB"
    assert small.fitted(GIB).cell(GIB) == "1.00"


def test_the_verdict_comes_first_in_words_with_its_headroom():
    first = " ".join(screen(answers.answer(), width=80).split("\n\n")[0].split())
    assert first.startswith("DOES NOT FIT needs 303.37 GiB of 79.25 GiB per GPU")
    assert "too much" in first
    assert "all 8 ranks alike" in first
    assert "peak in backward" in first
    assert screen(answers.answer(activations=2, gpus="8xB200")).startswith("FITS")
    assert screen(tight()).startswith("UNCERTAIN")


def test_a_need_is_rounded_up_and_a_headroom_down():
    text = screen(answers.answer(activations=2, gpus="8xB200"), width=120)
    assert "needs 145.37 GiB of 178.34 GiB" in text  # 145.366 and 178.349
    assert "32.98 GiB free" in text  # 32.983
    assert text.count("145.37") == 2  # as in the table


def test_the_three_totals_are_all_there_and_differ():
    rows = [
        line.split()
        for line in screen(answers.answer(), width=120).splitlines()
        if line.strip().startswith("=")
    ]
    assert [(row[1], row[2]) for row in rows] == [
        ("allocated", "300.17"),
        ("reserved", "302.17"),
        ("device", "303.37"),
    ]


def test_the_states_are_said_in_gb_and_gib():
    assert "141.09 GB a GPU (131.40 GiB)" in " ".join(screen(answers.answer()).split())


def test_without_gpus_there_is_no_verdict():
    text = screen(answers.answer(gpus=None))
    assert text.startswith("PREDICTED")
    assert not any(word in text for word in ("FITS", "FIT ", "UNCERTAIN", "free"))
    assert "--gpus" in text


def test_decimal_units_are_used_throughout():
    text = screen(answers.answer(), width=120, decimal=True)
    assert "needs 325.74 GB of 85.09 GB per GPU" in text
    lines = [line for line in text.splitlines() if "GiB" in line]
    assert len(lines) == 1  # the sentence that says both
    assert lines[0].startswith("Model states")


def test_colour_adds_nothing_but_colour():
    import re

    plain, coloured = (screen(answers.answer(), width=100, colour=colour) for colour in (False, True))
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert "\x1b" in coloured
    assert "\x1b" not in plain
    assert [line.rstrip() for line in stripped.splitlines()] == plain.splitlines()


def test_plain_ascii_is_plain_ascii():
    assert screen(answers.answer(), full=True, ascii=True).isascii()


def test_names_are_printed_as_text_and_never_obeyed():
    made = answers.answer()
    evil = "[red]x[/red]\x1b[2J\u202e\nFITS"
    item = answers.item(Component.TEMPORARIES, f"model.{evil}", 900.0)
    sheet = replace(made.sheets[0], items=(*made.sheets[0].items, item), notes=(evil,))
    text = screen(
        replace(made, model=replace(made.model, name=evil), sheets=(sheet,), assumed=(evil,), notes=(evil,)),
        full=True,
        width=120,
    )
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[red]x[/red]" in text
    assert not any(line.startswith("FITS") for line in text.splitlines())


def test_kinds_of_rank_are_folded_and_the_worst_is_told():
    made = answers.answer()
    small = tuple(
        Item(i.component, i.path, i.at, i.evidence)
        for i in made.sheets[0].items
        if i.component is not Component.GRADIENTS
    )
    sheets = (
        *made.sheets,
        *(
            Sheet(rank=8 * n, stage=n, items=small, same_as=tuple(range(8 * n + 1, 8 * n + 8)))
            for n in (1, 2, 3)
        ),
    )
    plan = replace(made.plan, mesh=replace(made.plan.mesh, pp=4))
    text = screen(replace(made, sheets=sheets, plan=plan), width=120)
    assert "rank 0 of 32 (stage 0, 8 alike)" in " ".join(text.split())
    assert "stages 1-3" in text


def test_a_bar_is_as_long_as_its_share():
    bar = next(
        line for line in screen(answers.answer(), width=120).splitlines() if line.startswith("each GPU")
    )
    body = bar.removeprefix("each GPU").strip()
    assert body.count("▓") / len(body) == pytest.approx(65.7 / 303.37, abs=0.02)
