"""The planner's pictures, on paper and on a terminal: whole, no word on another, readable in grey and without
colours, the same for everybody.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import combinations
from xml.etree import ElementTree as ET

import pytest

import answers
from memsheet.budget import Result
from memsheet.catalog import model_names
from memsheet.cli import main
from memsheet.cli.commands import PICTURE_FLAGS
from memsheet.cli.line import Given
from memsheet.cli.plan_pictures import KINDS, check_picture_flags, draw_pictures
from memsheet.errors import InputError
from memsheet.questions.question_parts import catalog_entry
from memsheet.readers.model import read_model
from memsheet.report.chart import front as picture_front
from memsheet.report.chart import heat as picture_heat
from memsheet.report.chart import waterfall as picture_waterfall
from memsheet.report.chart.front import draw_front
from memsheet.report.chart.heat import COLOURS, draw_heat
from memsheet.report.chart.waterfall import draw_waterfall
from memsheet.report.screen.plans.charts import render_front, render_heat, render_waterfall
from memsheet.report.shared.look import Look
from memsheet.report.shared.plans.waterfall_bars import bars_of, saved_size_text, step_time_change_text
from memsheet.search.fixes.savings_story import Step
from memsheet.search.train.axes import Axis
from memsheet.search.train.heat_map import Cell, Heat, Shows
from memsheet.search.train.rank import rank_training_plans
from memsheet.sheet import Bytes
from memsheet.units import GIB

SVG = "{http://www.w3.org/2000/svg}"
TITLE = "From the naive run to a plan that fits: llama-3-70b on 8×A100-80GB"
CARD = answers.cluster().device.framework_bytes
VERDICTS = (Result.FITS, Result.UNCERTAIN, Result.DOES_NOT_FIT)


def drawing(**flags):
    """The picture's flags of a line, as it gives them."""
    return Given(**{flag.field: flag.default for flag in PICTURE_FLAGS} | flags)


def cell(
    gib: float, result: Result = Result.FITS, *, seconds: float | None = None, host_short: bool = False
) -> Cell:
    size = int(gib * GIB)
    request = {"mesh.dp_shard": 8, "zero": 3, "microbatch": 1}
    return Cell(
        result=result,
        device=Bytes(size, size, 2 * size),
        engine="fsdp2",
        request=request,
        plans=9,
        fit=3,
        seconds=seconds,
        host_short=host_short,
    )


def heat(
    across: tuple = (512, 2048, 8192),
    down: tuple = (1, 2, 4),
    *,
    shows: Shows = Shows.FASTEST,
    names=("seq_len", "microbatch"),
) -> Heat:
    cells = {}
    for x, one in enumerate(across):
        for y, other in enumerate(down):
            result = VERDICTS[min(2, (x + y) // 2)]
            if (x, y) != (len(across) - 1, 0):
                seconds = 1.5 * (x + 1) if result is Result.FITS and shows is Shows.FASTEST else None
                cells[one, other] = cell(
                    7.3 * 2 ** (x + y), result, seconds=seconds, host_short=(x, y) == (2, 2)
                )
    return Heat(
        model=answers.model(),
        cluster=answers.cluster(),
        request={"seq_len": 2048, "global_batch": 32},
        shows=shows,
        cells=cells,
        across=Axis(name=names[0], values=across),
        down=Axis(name=names[1], values=down),
    )


HEATS = {
    "three": heat(),
    "twelve": heat(tuple(1024 << n for n in range(12)), tuple(1 << n for n in range(12)), shows=Shows.LEAST),
    "words": heat(("none", "selective", "full"), ("none", "activations", "optimizer", "optimizer + parameters"), names=("recompute", "offload")),
    "one": heat((8,), (0, 1), names=("gpus", "zero")),
}  # fmt: skip


def step(change: str, gib: float, before: float, flag: str = "", **more) -> Step:
    value = int(gib * GIB)
    made = Step(
        change=change,
        flag=flag,
        why="",
        device=Bytes(int(value * 0.9), value, int(value * 1.1)),
        saves_bytes=int((before - gib) * 1.1 * GIB),
        seconds=20.0,
        costs_s=None,
        fits=False,
    )
    return replace(made, **more)


STEPS = (
    step("fp32, a copy on every GPU", 1682, 1682, seconds=215.0),
    step("", 1682, 1682, asks="Do activations fit?"),
    step("recompute full", 1650, 1682, "--recompute full", costs_s=3.8),
    step("ZeRO-3 over 8", 159, 1650, "--zero 3", costs_s=-0.6),
    step("micro-batch 1", 148, 159, "--microbatch 1", taken=False, costs_s=2.0),
    step("optimizer states on the host", 38.8, 159, "--offload optimizer", fits=True, costs_s=5.8),
)
STORIES = {
    "whole": STEPS,
    "at once": (step("bf16-mixed, everything kept", 20, 20, fits=True, seconds=None),),
    "alone": STEPS[:1],
}


@pytest.fixture(scope="module")
def ranking():
    model = read_model("llama-3.2-1b", catalog=catalog_entry, names=model_names())
    return rank_training_plans(
        model,
        answers.cluster("8xA100-40GB"),
        {"seq_len": 4096, "global_batch": 64},
        ("fsdp2", "megatron"),
        top=2,
    )


@pytest.fixture(scope="module")
def hopeless():
    model = read_model("llama-3.1-405b", catalog=catalog_entry, names=model_names())
    return rank_training_plans(
        model, answers.cluster("2xL4"), {"seq_len": 4096, "global_batch": 2}, ("fsdp2",), top=2
    )


@pytest.fixture(
    params=[*(f"heat {name}" for name in HEATS), *(f"story {name}" for name in STORIES), "front", "no front"]
)
def figure(request, ranking, hopeless):
    kind, _, name = request.param.partition(" ")
    if kind == "heat":
        return picture_heat.figure_of(HEATS[name])
    if kind == "story":
        return picture_waterfall.figure_of(
            bars_of(STORIES[name], ranking.plans[0] if name == "whole" else None), TITLE, CARD
        )
    return picture_front.figure_of(ranking if kind == "front" else hopeless)


def words_of(figure):
    """Every text that is drawn, with the box of its words in pixels."""
    from matplotlib.text import Text

    figure.canvas.draw()
    pen = figure.canvas.get_renderer()
    texts = (text for text in figure.findobj(Text) if text.get_visible() and text.get_text())
    return [(text.get_text(), Text.get_window_extent(text, pen)) for text in texts]


def test_no_word_lies_on_another_or_leaves_the_page(figure):
    words, page = words_of(figure), figure.bbox
    frame = figure.axes[0].get_window_extent()
    across, up = (
        {text.get_text() for text in axis.get_ticklabels()}
        for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis)
    )
    shown = [
        (text, box)
        for text, box in words
        if (
            text not in across or frame.x0 - 1 <= (box.x0 + box.x1) / 2 <= frame.x1 + 1
        )  # a tick beyond the end of its axis is not drawn
        and (text not in up or frame.y0 - 1 <= (box.y0 + box.y1) / 2 <= frame.y1 + 1)
    ]
    for text, box in shown:
        assert box.x0 >= 0, text
        assert box.y0 >= 0, text
        assert box.x1 <= page.x1 + 1, text
        assert box.y1 <= page.y1, text
    for (one, box), (other, another) in combinations(shown, 2):
        apart = (
            box.x1 <= another.x0 + 1
            or another.x1 <= box.x0 + 1
            or box.y1 <= another.y0 + 1.5
            or another.y1 <= box.y0 + 1.5
        )
        assert apart, (one, other)


def drawings(ranking):
    yield "heat", lambda path: draw_heat(HEATS["three"], path)
    yield "front", lambda path: draw_front(ranking, path)
    yield (
        "waterfall",
        lambda path: draw_waterfall(
            STEPS, path, title="<llama> & co", capacity_bytes=CARD, chosen=ranking.plans[0]
        ),
    )


@pytest.mark.slow
def test_files_are_whole_small_and_the_same_for_everybody(ranking, tmp_path):
    import matplotlib as mpl

    for name, draw in drawings(ranking):
        for kind in ("svg", "png"):
            one, other = tmp_path / f"{name}.{kind}", tmp_path / f"{name}2.{kind}"
            draw(one)
            with mpl.rc_context({"font.size": 30, "axes.facecolor": "black"}):
                draw(other)
            assert one.read_bytes() == other.read_bytes()
            assert one.read_bytes().startswith((b"\x89PNG", b"<?xml"))
            assert one.stat().st_size < 2**20
        assert ET.parse(tmp_path / f"{name}.svg").getroot().tag == f"{SVG}svg"


def test_without_matplotlib_they_say_what_to_install(ranking, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name, draw in drawings(ranking):
        with pytest.raises(InputError, match="needs matplotlib"):
            draw(tmp_path / f"{name}.svg")
    assert list(tmp_path.iterdir()) == []


def test_every_cell_says_its_figure_and_its_verdict():
    said = [text for text, _ in words_of(picture_heat.figure_of(HEATS["three"]))]
    for one in HEATS["three"].cells.values():
        mark = {"fits": "✓", "uncertain": "?", "does_not_fit": "✗"}[one.result.value]
        assert any(
            text.endswith(mark) and text.split()[0] in ("7.3", "14.6", "29.2", "58.4", "117") for text in said
        )
    assert "–" in said
    assert "host" in said
    assert any("memory is short" in " ".join(text.split()) for text in said)
    assert "1.5 s" in said


def lightness(colour: str) -> float:
    red, green, blue = (int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_verdicts_differ_in_lightness():
    fits, uncertain, not_at_all = (lightness(COLOURS[result]) for result in VERDICTS)
    assert uncertain - fits > 0.2
    assert not_at_all - fits > 0.25  # between these and uncertain the stripes tell


def test_the_front_is_drawn_whole_with_the_plan_to_take(ranking):
    figure = picture_front.figure_of(ranking)
    lines = {line.get_gid(): line for line in figure.axes[0].get_lines() if line.get_gid()}
    assert len(lines["front"].get_xdata()) == len(ranking.front)
    said = [text for text, _ in words_of(figure)]
    assert sum("take first" in text for text in said) == 1
    assert any("A100-40GB gives" in text for text in said)
    assert any(
        text.startswith("no plan fits")
        for text, _ in words_of(picture_front.figure_of(replace(ranking, plans=(), front=(), cloud=())))
    )


def test_bars_tell_the_way_and_what_was_taken_back(ranking):
    bars = bars_of(STEPS, ranking.plans[0])
    assert [bar.name for bar in bars[:-1]] == [step.change for step in STEPS if step.change]
    assert [bar.taken for bar in bars] == [True, True, True, False, True, True]
    assert bars[4].before_bytes == bars[2].high  # not what was taken back
    assert saved_size_text(bars[2], decimal=False) == "−1,640.2 GiB"
    assert (
        step_time_change_text(bars[1]),
        step_time_change_text(bars[2]),
        step_time_change_text(bars[0]),
    ) == ("+3.8 s", "−0.6 s", "")
    assert bars[-1].chosen
    assert saved_size_text(bars[-1], decimal=False) == ""
    dear = bars_of((STEPS[0], step("more", 1700, 1682)))
    assert saved_size_text(dear[1], decimal=False).startswith("+")


def test_a_bar_beyond_the_scale_is_cut_and_says_so():
    text = render_waterfall(STEPS, Look(width=80), title=TITLE, capacity_bytes=CARD)
    first = next(line for line in text.splitlines() if "fp32" in line)
    assert "»" in first
    assert "1,850.2 GiB" in first


def screens(ranking, hopeless, look: Look):
    yield from (render_heat(one, look) for one in HEATS.values())
    yield from (render_front(one, look) for one in (ranking, hopeless))
    yield from (
        render_waterfall(steps, look, title=TITLE, capacity_bytes=CARD, chosen=ranking.plans[0])
        for steps in STORIES.values()
    )
    yield render_waterfall((), look, title=TITLE, capacity_bytes=CARD)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_screen(ranking, hopeless, width):
    for full in (False, True):
        for text in screens(ranking, hopeless, Look(width=width, full=full)):
            assert text.endswith("\n")
            assert max(map(len, text.splitlines())) <= width, text


def test_screens_in_plain_ascii_and_in_decimal_units(ranking, hopeless):
    assert all(text.isascii() for text in screens(ranking, hopeless, Look(ascii=True)))
    for text in screens(ranking, hopeless, Look(decimal=True)):
        assert "GiB" not in text


def test_screens_in_colour_say_the_same(ranking, hopeless):
    import re

    plain, coloured = (list(screens(ranking, hopeless, Look(colour=colour))) for colour in (False, True))
    bare = [re.sub("\x1b\\[[0-9;]*m", "", text) for text in coloured]
    assert ["\n".join(line.rstrip() for line in text.splitlines()) for text in bare] == [
        text.rstrip("\n") for text in plain
    ]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", HEATS)
def test_heat_on_a_terminal(name, width, snapshot):
    assert render_heat(HEATS[name], Look(width=width)) == snapshot


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", STORIES)
def test_waterfall_on_a_terminal(name, width, snapshot):
    assert render_waterfall(STORIES[name], Look(width=width), title=TITLE, capacity_bytes=CARD) == snapshot


def test_a_front_on_a_terminal_names_what_it_marks(ranking):
    text = render_front(ranking, Look(width=100))
    _, *chart, listed = text.split("\n\n")
    for line in listed.splitlines():
        if not line.startswith(" "):
            assert line[0] in "".join(chart)
    assert "take first" in listed
    assert len([line for line in listed.splitlines() if line[0] != " "]) <= 1 + 8


# flags


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"show": "haet"}, "did you mean heat?"),
        ({"show": "heat", "axes": "tp"}, "does not name two axes"),
        ({"axes": "tp,pp"}, "--show heat"),
        ({"show": "front", "cells": "least"}, "--show heat"),
        ({"show": "heat", "cells": "most"}, "one of least, fastest"),
        ({"picture": "a.gif"}, r"name it \.svg or \.png"),
    ],
)
def test_flags_are_refused_before_anything_takes_time(flags, said):
    with pytest.raises(InputError, match=said):
        check_picture_flags(drawing(**flags))


def test_a_folder_that_is_none_and_json_on_the_terminal_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is not a folder"):
        check_picture_flags(drawing(picture=str(tmp_path / "file" / "a.svg")))
    with pytest.raises(InputError, match="where JSON goes"):
        check_picture_flags(drawing(show="front"), json=True)
    check_picture_flags(drawing(show="front", picture=str(tmp_path / "a.svg")), json=True)


@pytest.mark.slow
def test_what_is_asked_for_is_drawn(ranking, tmp_path):
    look = Look(width=80)
    assert draw_pictures(ranking, STEPS, drawing(), look) == ""
    for kind in KINDS:
        flags = drawing(show=kind, axes="tp,zero" if kind == "heat" else None)
        assert "llama-3.2-1b" in draw_pictures(ranking, STEPS, flags, look)
        file = tmp_path / f"{kind}.svg"
        assert draw_pictures(ranking, STEPS, drawing(**{**vars(flags), "picture": str(file)}), look) == ""
        assert file.stat().st_size > 1000
    file = tmp_path / "usual.svg"
    draw_pictures(ranking, STEPS, drawing(picture=str(file)), look)
    assert file.read_bytes() == (tmp_path / "front.svg").read_bytes()


def test_where_nothing_fits_the_way_ends_at_the_least(hopeless):
    text = draw_pictures(hopeless, STEPS[:2], drawing(show="waterfall"), Look(width=100))
    assert text.startswith("From the naive run to the plan that needs least")
    assert "the plan that needs least, of every legal one" in " ".join(text.split())
    assert "no plan fits" in draw_pictures(hopeless, (), drawing(show="front"), Look(width=100))


# the command


TINY = (
    "plan",
    "train",
    "llama-tiny",
    "--gpus",
    "4xA100-80GB",
    "--seq-len",
    "256",
    "--global-batch",
    "8",
    "--engine",
    "fsdp2",
)


@pytest.mark.slow
def test_a_drawing_follows_the_plans(capsys):
    assert main([*TINY, "--show", "heat", "--axes", "tp,seq_len=128:256", "--cells", "fastest"]) == 0
    out = capsys.readouterr().out
    assert out.index("BEST PLAN") < out.index(
        "What fits: llama-tiny by tensor parallel and tokens of a sequence"
    )
    assert "✓ fits" in out


def test_a_picture_beside_json(capsys, tmp_path):
    file = tmp_path / "front.svg"
    assert main([*TINY, "--picture", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "memsheet/plans/1"
    assert "Memory against time: llama-tiny" in file.read_text()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--show", "pie"), "one of front, heat, waterfall"),
        (("--show", "heat", "--axes", "tp,zero", "--tp", "2"), "leave --tp out"),
        (("--show", "heat", "--axes", "gpus=3:12,zero"), "fill whole nodes"),
        (("--show", "heat", "--json"), "add --picture FILE"),
        (("--picture", "nowhere/../file.pdf"), "name it .svg or .png"),
    ],
)
def test_what_cannot_be_drawn_is_bad_input(capsys, flags, said):
    assert main([*TINY, *flags]) == 2
    assert said in capsys.readouterr().err
