"""Parts of a screen are laid out without rich as rich lays them out."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from memsheet.report.screen.layout import render_parts
from memsheet.report.screen.written.coloured import rich_lines
from memsheet.report.screen.written.parts import Group, Part, Table, Text
from memsheet.report.screen.written.plain import plain_lines
from memsheet.report.shared.look import Look

WORDS = (
    "a",
    "needs",
    "73.16 GiB",
    "of",
    "deepspeed.runtime.zero.partitioned_param_coordinator",
    "·",
    "→ --tp 2",
    "   ",
    "",
    "│█▓",
    "=",
    "l\nm",
    "end ",
)
STYLES = ("", "bold", "dim", "bold red", "not bold")


def some_text(draw: random.Random) -> str:
    return draw.choice((" ", "")).join(draw.choices(WORDS, k=draw.randrange(9)))


def some_part(draw: random.Random, *, deep: bool = True) -> Part:
    kind = draw.randrange(4 if deep else 2)
    if kind == 0:
        return some_text(draw)
    if kind == 1:
        text = Text(some_text(draw), draw.choice(STYLES), no_wrap=draw.random() < 0.3)
        return text.append(some_text(draw), draw.choice(STYLES)).append(Text(some_text(draw), "dim"))
    if kind == 2:
        return Group(*(some_part(draw) for _ in range(draw.randrange(1, 4))))
    title = Text(some_text(draw)) if draw.random() < 0.3 else None
    table = Table(
        gap=draw.choice((1, 2)),
        show_header=draw.random() < 0.6,
        title=title,
        title_justify=draw.choice(("left", "center")),
    )
    for _ in range(draw.randrange(5)):
        table.add_column(
            some_text(draw), justify=draw.choice(("left", "right")), overflow=draw.choice(("fold", "ellipsis")), no_wrap=draw.random() < 0.5,
            width=draw.choice((None, None, None, 9)), vertical=draw.choice(("top", "bottom")),
        )  # fmt: skip
    for _ in range(draw.randrange(5)):
        cells = max(len(table.columns), draw.randrange(1, 5))  # a row makes the columns that it has cells for
        table.add_row(*(some_part(draw, deep=False) for _ in range(cells)), style=draw.choice(("", "dim")))
    return table


def trimmed(lines: list[str]) -> list[str]:
    return [line.rstrip() for line in lines]


@pytest.mark.parametrize("seed", range(8))
def test_parts_are_laid_out_as_rich_lays_them_out(seed: int) -> None:
    draw, compared = random.Random(seed), 0
    for _ in range(60):
        parts = [some_part(draw) for _ in range(draw.randrange(1, 4))]
        width = draw.choice((30, 46, 80, 120))
        lines = plain_lines(parts, width)
        if lines is not None:
            compared += 1
            assert trimmed(lines) == trimmed(rich_lines(parts, Look(width=width))), (seed, parts)
    assert compared > 30


def test_colour_adds_nothing_but_colour() -> None:
    parts = [Text("a ", "bold").append("b", "red"), Group("c", Text("d", "dim"))]
    assert plain_lines(parts, 80) == ["a b", "", "c", "d"]
    assert "\x1b[1m" in render_parts(parts, Look(width=80, colour=True))


@pytest.mark.parametrize("text", ["模型", "e\u0301", "a\tb", "👍", "\u200b", "\xad"])
def test_letters_that_take_another_room_are_left_to_rich(text: str) -> None:
    assert plain_lines([text], 80) is None
    assert render_parts([text], Look(width=80)).strip() != ""


def test_letters_that_are_laid_out_take_one_cell_each() -> None:
    from rich.cells import cell_len

    taken = [chr(code) for code in range(32, 0x2700) if plain_lines([chr(code)], 80) is not None]
    assert len(taken) > 1000
    assert [letter for letter in taken if cell_len(letter) != 1] == []


def test_a_screen_without_colours_needs_no_rich() -> None:
    asked = "['train', 'llama-tiny', '--seq-len', '64', '--gpus', '1xH100-80GB']"
    code = f"import sys; from memsheet.cli import main; main({asked}); sys.exit('rich' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0
    )
