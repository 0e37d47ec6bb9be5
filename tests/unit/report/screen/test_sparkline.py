"""The sparkline: what it shows, in any width, in ASCII too."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memsheet.errors import InputError
from memsheet.report.screen.layout import render_parts
from memsheet.report.screen.sparkline import HEIGHT, render_sparkline
from memsheet.report.shared.look import Look
from memsheet.sheet import Instant
from memsheet.timeline import Timeline, highest_peak
from timelines import timelines, training


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("case", ["step", "microbatches", "line", "ascii"])
def test_sparklines(case, width, snapshot):
    timeline = training(microbatches=3 if case == "microbatches" else 1)
    look = Look(width=width, ascii=case == "ascii", decimal=case == "line")
    assert render_sparkline(timeline, look, height=1 if case == "line" else HEIGHT).plain == snapshot


@given(timelines(), st.integers(40, 130), st.integers(1, 6))
def test_no_line_is_wider_than_the_screen_and_the_peak_is_in_it(timeline, width, height):
    lines = render_sparkline(timeline, Look(width=width), height=height).plain.splitlines()
    assert max(map(len, lines)) <= width
    assert sum(line.count("▼") for line in lines) == 1
    marked = next(line.index("▼") for line in lines if "▼" in line)
    first = next(number for number, line in enumerate(lines) if "▼" in line) + 1
    if highest_peak(timeline).bytes:
        assert lines[first][marked] == "█"  # nothing is higher, and it is as high as there is room


@given(timelines(), st.integers(40, 130))
def test_plain_ascii_is_plain_ascii_and_as_long(timeline, width):
    fine, plain = (
        render_sparkline(timeline, Look(width=width, ascii=ascii_)).plain for ascii_ in (False, True)
    )
    assert plain.isascii()
    assert [len(line) for line in plain.splitlines()] == [len(line) for line in fine.splitlines()]


def test_every_instant_is_named_under_the_column_where_it_begins():
    lines = render_sparkline(training(), Look(width=120)).plain.splitlines()
    named = "\n".join(lines[HEIGHT:])
    assert all(f"{name}" in named for name in ("forward", "loss", "backward", "optimizer step"))


def test_many_microbatches_name_each_instant_at_least_once():
    text = render_sparkline(training(layers=2, operations=2, microbatches=40), Look(width=80)).plain
    assert all(name in text for name in ("forward", "loss", "backward", "optimizer step"))


def test_the_peak_is_said_in_words():
    text = render_sparkline(training(), Look(width=120)).plain
    assert (
        "9.26 GiB in the loss · made by aten._log_softmax.default: 3.00 GiB of temporaries in loss/fp32 "
        "from train.py:43"
    ) in text


def test_colour_adds_nothing_but_colour():
    import re

    parts = [render_sparkline(training(), Look(width=90))]
    coloured = render_parts(parts, Look(width=90, colour=True))
    assert "\x1b" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == render_parts(parts, Look(width=90))


def test_names_are_printed_as_text():
    timeline = training()
    evil = [
        s
        if s.path != "loss/fp32"
        else type(s)(s.bytes, s.component, "[red]x\x1b[2J\n", s.op, s.stream, s.line)
        for s in timeline.storages
    ]
    text = render_sparkline(
        Timeline(storages=tuple(evil), events=timeline.events, marks=timeline.marks), Look(width=120)
    ).plain
    assert "\x1b" not in text
    assert "[red]x" in text


def test_without_a_steady_step_it_is_refused():
    with pytest.raises(InputError, match="nothing to draw"):
        render_sparkline(Timeline(storages=(), events=(), marks=()), Look())


def test_an_empty_step_is_drawn_empty():
    from memsheet.sheet import Component
    from timelines import Maker

    maker = Maker()
    maker.mark(Instant.LOAD)
    maker.take(0, Component.INPUTS)
    assert "0 B in loading" in render_sparkline(maker.made(), Look()).plain
