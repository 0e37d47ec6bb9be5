"""The picture: well-formed, whole, the peak named, no word on another, the same for everybody."""

import sys
import xml.etree.ElementTree as ET
from itertools import combinations

import pytest

from memsheet.errors import InputError
from memsheet.report.chart.palette import COLOURS
from memsheet.report.chart.scene import Scene
from memsheet.report.chart.timeline import check_picture_format, draw_timeline, figure_of
from memsheet.report.shared.curve import timeline_columns
from memsheet.sheet import Component, Instant
from memsheet.timeline import Timeline
from memsheet.units import GIB
from timelines import Maker, training

pytest.importorskip("matplotlib")
SVG = "{http://www.w3.org/2000/svg}"
LONG = "model.layers.*." + "a_module_of_a_very_long_name." * 8 + "q_proj/output_of_$x^2$"


def everything() -> Timeline:
    """All components, a long name at the peak, names that look like mathematics and markup."""
    maker = Maker()
    maker.mark(Instant.PREFILL)
    for number, component in enumerate(Component):
        if number == 15:
            maker.mark(Instant.DECODE)
        maker.take(GIB, component, LONG, "aten.<b>&" * 20, line="train.py:1234")
    return maker.made()


def crowded() -> Timeline:
    """Three instants in the first few events of many."""
    maker = Maker()
    for instant in (Instant.FORWARD, Instant.LOSS, Instant.BACKWARD):
        maker.mark(instant)
        maker.take(GIB, Component.TEMPORARIES, "m")
    maker.mark(Instant.OPTIMIZER_STEP)
    for _ in range(2000):
        maker.give(maker.take(GIB // 2, Component.TEMPORARIES, "m"))
    return maker.made()


def tiny() -> Timeline:
    maker = Maker()
    maker.mark(Instant.LOAD)
    maker.take(8, Component.PARAMETERS)
    return maker.made()


SCENES = {
    "training": Scene(timeline=training(), title="llama-tiny, transformers", capacity_bytes=12 * GIB),
    "decimal": Scene(timeline=training(), title="x" * 119, capacity_bytes=8 * GIB, decimal=True),
    "far": Scene(timeline=training(microbatches=3), capacity_bytes=1000 * GIB),
    "many": Scene(timeline=training(layers=2, operations=2, microbatches=30)),
    "everything": Scene(timeline=everything(), title="$x^2$ <b>&", capacity_bytes=18 * GIB),
    "crowded": Scene(timeline=crowded(), title="x"),
    "tiny": Scene(timeline=tiny()),
}


@pytest.fixture(params=SCENES)
def scene(request) -> Scene:
    return SCENES[request.param]


def words_of(figure):
    """Every text that is drawn, with its box in pixels."""
    from matplotlib.text import Text

    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    texts = (text for text in figure.findobj(Text) if text.get_visible() and text.get_text())
    return [(text.get_text(), text.get_window_extent(renderer)) for text in texts]


def test_no_word_lies_on_another_or_leaves_the_page(scene):
    figure = figure_of(scene)
    words, page = words_of(figure), figure.bbox
    ticks = {text for text, _ in words if text.replace(",", "").replace(".", "").isdigit()}
    for text, box in words:
        inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= page.x1 and box.y1 <= page.y1
        assert inside or text in ticks, text  # a tick beyond the end of its axis is not drawn
    for (one, box), (other, another) in combinations(words, 2):
        apart = (
            box.x1 <= another.x0
            or another.x1 <= box.x0
            or box.y1 <= another.y0 + 1
            or another.y1 <= box.y0 + 1
        )
        assert apart or {one, other} <= ticks, (one, other)


def test_every_instant_is_named(scene):
    named = {text for text, _ in words_of(figure_of(scene))}
    said = {"forward": "forward", "loss": "loss", "optimizer_step": "optimizer step", "load": "loading"}
    assert {said.get(mark.instant.value, mark.instant.value) for mark in scene.timeline.marks} <= named


def test_the_peak_says_bytes_instant_operation_path_and_line(tmp_path):
    draw_timeline(training(), tmp_path / "a.svg", title="<llama> & co", capacity_bytes=12 * GIB)
    text = (tmp_path / "a.svg").read_text()
    root = ET.fromstring(text)  # well-formed, whatever the names
    assert root.tag == f"{SVG}svg"
    for said in (
        "9.26 GiB at the peak, in the loss",
        "made by aten._log_softmax.default: 3.00 GiB of temporaries",
        "in loss/fp32",
        "from train.py:43",
        "a device gives 12.00 GiB",
        "&lt;llama&gt; &amp; co",
        "saved activations",
        "3.25 GiB",
        "optimizer step",
    ):
        assert f"<!-- {said} -->" in text.replace(
            "<!-- <llama> & co -->", "<!-- &lt;llama&gt; &amp; co -->"
        ), said
    drawn = {group.get("id") for group in root.iter(f"{SVG}g")}
    assert {"parameters", "gradients", "optimizer_states", "saved_activations", "temporaries"} <= drawn
    assert "kv_cache" not in drawn


def test_the_stack_reaches_the_peak():
    figure = figure_of(SCENES["training"])
    tops = {
        patch.get_gid(): patch.get_path().get_extents().y1
        for patch in figure.axes[0].patches
        if patch.get_gid()
    }
    assert max(tops.values()) == pytest.approx(9.25 + 2 / 1024)
    assert tops["parameters"] == pytest.approx(
        max(column.held[0] for column in timeline_columns(training(), 10)) / GIB
    )
    assert figure.axes[0].get_ylim()[1] > 12  # the capacity is in the picture


@pytest.mark.slow
def test_png_and_svg_are_whole_small_and_the_same_every_time(tmp_path, scene):
    for name in ("a.svg", "a.png"):
        drawn = []
        for _ in range(2):
            draw_timeline(
                scene.timeline,
                tmp_path / name,
                title=scene.title,
                capacity_bytes=scene.capacity_bytes,
                decimal=scene.decimal,
            )
            drawn.append((tmp_path / name).read_bytes())
        assert drawn[0] == drawn[1]
        assert len(drawn[0]) < 2**20
        assert drawn[0].startswith((b"\x89PNG", b"<?xml"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "a.svg"]


def test_a_long_step_is_drawn_in_columns_and_small(tmp_path):
    many = training(layers=60, operations=200)
    assert len(many.events) > 48_000
    draw_timeline(many, tmp_path / "a.svg")
    assert (tmp_path / "a.svg").stat().st_size < 2**20
    assert "9.26 GiB at the peak" in (tmp_path / "a.svg").read_text()


def test_settings_of_the_user_neither_matter_nor_change(tmp_path):
    import matplotlib as mpl

    draw_timeline(training(), tmp_path / "a.svg")
    with mpl.rc_context(
        {"text.usetex": True, "axes.facecolor": "red", "svg.fonttype": "none", "savefig.bbox": "tight"}
    ):
        before = settings(mpl)
        draw_timeline(training(), tmp_path / "b.svg")
        assert settings(mpl) == before
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def settings(mpl):
    return {
        key: mpl.rcParams[key] for key in mpl.rcParams if key != "backend"
    }  # to ask for the backend is to load one


def test_no_window_is_ever_prepared(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it would now fail
    draw_timeline(training(), tmp_path / "a.png")


@pytest.mark.parametrize("name", ["a", "a.pdf", "a.svgz", "svg", ".png"])
def test_only_svg_and_png_can_be_drawn(tmp_path, name):
    with pytest.raises(InputError, match=r"svg or \.png"):
        draw_timeline(training(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_suffix_may_be_in_capitals(tmp_path):
    assert (check_picture_format(tmp_path / "A.PNG"), check_picture_format(tmp_path / "a.Svg")) == (
        "png",
        "svg",
    )


def test_without_matplotlib_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match="matplotlib") as refused:
        draw_timeline(training(), tmp_path / "a.svg", field="picture")
    assert refused.value.problems[0].hint == "pip install 'memsheet[trace]'"


def test_an_empty_timeline_and_a_missing_folder_are_refused(tmp_path):
    with pytest.raises(InputError, match="nothing to draw"):
        draw_timeline(Timeline(storages=(), events=(), marks=()), tmp_path / "a.svg")
    with pytest.raises(InputError, match="does not exist"):
        draw_timeline(training(), tmp_path / "nowhere" / "a.svg")
    assert list(tmp_path.iterdir()) == []


# ---- colours -----------------------------------------------------------------------------------------------

# What a dichromat sees of linear RGB: Machado, Oliveira and Fernandes, A Physiologically-based Model for
# Simulation of Color Vision
# Deficiency, IEEE TVCG 15(6), 2009, severity 1.0
EYES = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
TOGETHER = [
    Component.PARAMETERS, Component.MASTER_WEIGHTS, Component.GRADIENTS, Component.OPTIMIZER_STATES, Component.SAVED_ACTIVATIONS,
    Component.TEMPORARIES, Component.AUTOGRAD_DETAIL, Component.UNSHARDED_PARAMETERS, Component.COMMUNICATION,
]  # fmt: skip


def lab(colour: str, eye) -> tuple[float, ...]:
    """CIE L*a*b* (D65) of an sRGB colour seen with an eye."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    seen = [min(max(sum(a * b for a, b in zip(row, linear, strict=True)), 0), 1) for row in eye]
    to_xyz = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = [
        sum(a * b for a, b in zip(row, seen, strict=True)) / white
        for row, white in zip(to_xyz, (0.9505, 1, 1.089), strict=True)
    ]
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def test_every_component_has_a_colour_of_its_own():
    assert set(COLOURS) == set(Component)
    assert len(set(COLOURS.values())) == len(Component)


@pytest.mark.parametrize("eye", EYES)
def test_what_lies_together_can_be_told_apart_by_every_eye(eye):
    seen = {component: lab(COLOURS[component], EYES[eye]) for component in TOGETHER}
    distances = {
        (a, b): sum((p - q) ** 2 for p, q in zip(seen[a], seen[b], strict=True)) ** 0.5
        for a, b in combinations(TOGETHER, 2)
    }
    assert min(distances.values()) > 12, min(distances, key=distances.get)
