"""Two sheets side by side: known numbers, what is joined with what, what is said first, and what is
refused.
"""

import io
import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import answers
from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.readers.sheet_json import Document, read_sheets
from memsheet.report.json.sheet import sheet_document
from memsheet.report.screen.comparison_table import percent_of_whole, render_comparison
from memsheet.report.shared.comparison import compare_sheets, comparison_document
from memsheet.report.shared.json_text import dump_json_line
from memsheet.report.shared.look import Look
from memsheet.sheet import Bytes, Component, Derived, Instant, Item, Sheet, Witness
from memsheet.units import GIB, MIB

C, T = Component, Instant


def sheet(rows, *, rank=0, same_as=(), witness=Witness.PREDICTED) -> Sheet:
    """Rows of (component, path, {instant: bytes})."""
    items = tuple(
        Item(c, path, {i: Bytes.exact(b) for i, b in at.items()}, Derived("")) for c, path, at in rows
    )
    return Sheet(rank=rank, same_as=same_as, witness=witness, items=items)


def document(*sheets, file="a.json", model="llama-tiny") -> Document:
    return Document(file=file, witness=sheets[0].witness, model=model, sheets=sheets)


def both(size):
    return {T.FORWARD: size, T.BACKWARD: size}


LEFT = document(
    sheet(
        [
            (C.PARAMETERS, "m.q_proj", both(4 * GIB)),
            (C.SAVED_ACTIVATIONS, "m.q_proj/output", both(2 * GIB)),
            (C.SAVED_ACTIVATIONS, "m.q_proj/cast", both(GIB)),
            (C.TEMPORARIES, "m.norm", {T.BACKWARD: GIB}),
        ]
    )
)
RIGHT = document(
    sheet(
        [
            (C.PARAMETERS, "m.q_proj", both(4 * GIB)),
            (C.SAVED_ACTIVATIONS, "m.q_proj/mm", both(3 * GIB + 512 * MIB)),
            (C.TEMPORARIES, "m.norm", {T.BACKWARD: GIB - 128 * MIB}),
            (C.BUFFERS, "m.rotary", both(8)),
        ],
        witness=Witness.TRACED,
    ),
    file="b.json",
)


def test_known_numbers():
    (pair,) = compare_sheets(LEFT, RIGHT).pairs
    assert pair.sizes == (8 * GIB, 8 * GIB + 384 * MIB + 8)
    assert pair.bytes == 384 * MIB + 8
    assert [(row.component, row.path, row.bytes) for row in pair.rows] == [
        (C.SAVED_ACTIVATIONS, "m.q_proj", 512 * MIB),
        (C.TEMPORARIES, "m.norm", -128 * MIB),
        (C.BUFFERS, "m.rotary", 8),
        (C.PARAMETERS, "m.q_proj", 0),
    ]


def test_parts_are_joined_by_themselves_where_they_are_asked_for():
    (pair,) = compare_sheets(LEFT, RIGHT, parts=True).pairs
    assert [(row.path, row.bytes) for row in pair.rows][:3] == [
        ("m.q_proj/mm", 3 * GIB + 512 * MIB),
        ("m.q_proj/output", -2 * GIB),
        ("m.q_proj/cast", -GIB),
    ]


def test_the_verdict_comes_first_in_words():
    first = " ".join(render_comparison(compare_sheets(LEFT, RIGHT), Look(width=80)).split("\n\n")[0].split())
    assert first == (
        "TRACED 4.7% MORE traced 8.38 GiB, predicted 8.00 GiB · 384.01 MiB more (402,653,192 bytes) · "
        "outside predicted's range, 7.99 GiB to 8.02 GiB · both in backward · "
        "most of it saved activations +512.00 MiB · the rest, -128.00 MiB: temporaries -128.00 MiB, "
        "buffers +8 B"
    )


def test_the_other_way_round_it_is_less():
    first = render_comparison(compare_sheets(RIGHT, LEFT), Look(width=80)).splitlines()[0]
    assert first.startswith("PREDICTED 4.5% LESS")


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("case", ["compared", "full", "equal", "ranks", "instant", "ranges"])
def test_screens(case, width, snapshot):
    fit = answers.answer()
    ranges = (
        document(*fit.sheets, file="c.json"),
        document(*answers.answer(activations=150).sheets, file="d.json"),
    )
    several = [
        document(
            *(sheet([(C.INPUTS, "x", both((n + more) * MIB))], rank=n, same_as=(n + 10,)) for n in (1, 2, 3))
        )
        for more in (0, 4)
    ]
    found = {
        "compared": lambda: compare_sheets(LEFT, RIGHT),
        "full": lambda: compare_sheets(LEFT, RIGHT, parts=True),
        "equal": lambda: compare_sheets(LEFT, LEFT),
        "ranks": lambda: compare_sheets(*several),
        "instant": lambda: compare_sheets(LEFT, RIGHT, instant=T.FORWARD),
        "ranges": lambda: compare_sheets(*ranges),
    }[case]()
    text = render_comparison(found, Look(width=width, full=case == "full"))
    assert max(map(len, text.splitlines())) <= width
    assert text == snapshot


def test_an_instant_is_compared_with_itself():
    (pair,) = compare_sheets(LEFT, RIGHT, instant=T.FORWARD).pairs
    assert pair.at == (T.FORWARD, T.FORWARD)
    assert pair.sizes == (7 * GIB, 7 * GIB + 512 * MIB + 8)


def test_ranks_are_compared_with_themselves_however_they_are_folded():
    left = document(
        sheet([(C.INPUTS, "x", both(1))], same_as=(1, 2)), sheet([(C.INPUTS, "x", both(5))], rank=3)
    )
    right = document(
        sheet([(C.INPUTS, "x", both(1))]), sheet([(C.INPUTS, "x", both(8))], rank=1, same_as=(2, 3))
    )
    pairs = compare_sheets(left, right).pairs
    assert [(pair.ranks, pair.bytes) for pair in pairs] == [((1, 2), 7), ((3,), 3), ((0,), 0)]
    assert [pair.ranks for pair in compare_sheets(left, right, rank=3).pairs] == [(3,)]


def test_without_a_rank_in_common_the_first_ones_are_compared():
    (pair,) = compare_sheets(document(sheet([(C.INPUTS, "x", both(1))], rank=4)), LEFT).pairs
    assert (pair.left.rank, pair.right.rank, pair.ranks) == (4, 0, ())


@pytest.mark.parametrize(
    ("options", "said"),
    [({"rank": 7}, "rank = 7: is not in a.json"), ({"instant": T.DECODE}, "decode: is not in a.json")],
)
def test_what_is_not_there_is_refused(options, said):
    with pytest.raises(InputError, match=said):
        compare_sheets(LEFT, RIGHT, **options)


def test_slack_and_context_are_left_out_and_rows_add_up():
    outside = [
        Item(c, "", {T.BACKWARD: Bytes.exact(9 * GIB)}, Derived("")) for c in (C.ALLOCATOR_SLACK, C.CONTEXT)
    ]
    more = document(replace(LEFT.sheets[0], items=(*LEFT.sheets[0].items, *outside)))
    (pair,) = compare_sheets(more, RIGHT).pairs
    assert sum(row.bytes for row in pair.rows) == pair.bytes == 384 * MIB + 8


SIZES = st.dictionaries(st.sampled_from([T.LOAD, T.FORWARD, T.BACKWARD]), st.integers(0, 2**40), min_size=1)
ROWS = st.lists(
    st.tuples(
        st.sampled_from([C.PARAMETERS, C.TEMPORARIES, C.CONTEXT]),
        st.sampled_from(["a", "a/x", "b/x", ""]),
        SIZES,
    ),
    min_size=1,
)


@given(ROWS, ROWS, st.booleans())
def test_rows_components_and_sizes_always_add_up(left, right, parts):
    (pair,) = compare_sheets(document(sheet(left)), document(sheet(right)), parts=parts).pairs
    assert (
        sum(row.bytes for row in pair.rows)
        == sum(row.bytes for row in pair.components().values())
        == pair.bytes
    )
    assert [abs(row.bytes) for row in pair.rows] == sorted(
        (abs(row.bytes) for row in pair.rows), reverse=True
    )
    (turned,) = compare_sheets(document(sheet(right)), document(sheet(left)), parts=parts).pairs
    assert turned.bytes == -pair.bytes
    text = render_comparison(
        compare_sheets(document(sheet(left)), document(sheet(right)), parts=parts), Look(width=80)
    )
    assert ("EQUAL" in text.split("\n")[0]) == (pair.bytes == 0)


@pytest.mark.parametrize(
    ("part", "whole", "said"),
    [(1, 10**9, "+<0.01%"), (-7, 1000, "-0.70%"), (35, 1000, "+3.5%"), (2000, 100, "+2000%"), (1, 0, "")],
)
def test_percent_is_never_rounded_to_nothing(part, whole, said):
    assert percent_of_whole(part, whole) == said


def test_the_document_has_whole_numbers_and_says_which_way():
    found = comparison_document(compare_sheets(LEFT, RIGHT))
    assert found["schema"] == "memsheet/comparison/1"
    assert (found["left"]["witness"], found["right"]["witness"]) == ("predicted", "traced")
    (rank,) = found["ranks"]
    assert (rank["left_bytes"], rank["right_bytes"], rank["difference_bytes"]) == (
        8 * GIB,
        8 * GIB + 384 * MIB + 8,
        384 * MIB + 8,
    )
    assert rank["rows"][0] == {
        "component": "saved_activations",
        "path": "m.q_proj",
        "left_bytes": 3 * GIB,
        "right_bytes": 3 * GIB + 512 * MIB,
        "difference_bytes": 512 * MIB,
    }
    sizes = [
        value
        for each in (rank, *rank["rows"], *rank["instants"], *rank["components"])
        for key, value in each.items()
        if key.endswith("_bytes")
    ]
    assert {type(size) for size in sizes} == {int}


def test_names_are_printed_as_text_and_never_obeyed():
    evil = "[red]x[/red]\x1b[2J\u202e\nEQUAL"
    text = render_comparison(
        compare_sheets(document(sheet([(C.INPUTS, evil, both(2))]), file=evil), LEFT), Look(width=120)
    )
    assert "\x1b" not in text
    assert "[red]x[/red]" in text
    assert not any(line.startswith("EQUAL") for line in text.splitlines())


def test_plain_ascii_is_plain_ascii():
    assert render_comparison(compare_sheets(LEFT, RIGHT), Look(width=80, ascii=True)).isascii()


# ---- documents read back -----------------------------------------------------------------------------------


def written(tmp_path, answer, name="a.json") -> str:
    path = tmp_path / name
    path.write_text(dump_json_line(sheet_document(answer)))
    return str(path)


def test_a_document_reads_back_as_its_sheets(tmp_path):
    answer = answers.answer()
    found = read_sheets(written(tmp_path, answer))
    assert (found.witness, found.model) == (Witness.PREDICTED, "llama-3-70b")
    (read,), (made,) = found.sheets, answer.sheets
    assert (read.rank, read.same_as, read.instants) == (made.rank, made.same_as, made.instants)
    for total in ("allocated", "reserved", "device"):
        assert getattr(read, total) == getattr(made, total)
    assert [(i.component, i.path, i.largest) for i in read.items] == [
        (i.component, i.path, i.largest) for i in made.items
    ]


def asked(capsys, *arguments):
    code = main(("compare", *map(str, arguments)))
    return code, *capsys.readouterr()


def test_the_command_compares_two_files(tmp_path, capsys):
    one, other = (
        written(tmp_path, answers.answer()),
        written(tmp_path, answers.answer(activations=150), "b.json"),
    )
    code, out, err = asked(capsys, one, other)
    assert (code, err) == (0, "")
    assert out.startswith("B 3.3% LESS")
    code, out, err = asked(capsys, one, other, "--json", "--instant", "optimizer-step", "--rank", "5")
    assert (code, err, out.count("\n")) == (0, "", 1)
    (rank,) = json.loads(out)["ranks"]
    assert (rank["left_instant"], rank["ranks"], rank["difference_bytes"]) == ("optimizer_step", [5], 0)
    assert asked(capsys, one, one, "--units", "GB")[1].startswith("EQUAL")


def test_one_of_the_two_may_come_through_a_pipe(tmp_path, capsys, monkeypatch):
    one = written(tmp_path, answers.answer())
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO((tmp_path / "a.json").read_bytes())))
    code, out, _ = asked(capsys, "-", one)
    assert (code, out[:5]) == (0, "EQUAL")


def edited(document, **changes):
    """The document with values put at dotted places: ``ranks.0.items.0.at.forward``."""
    found = json.loads(json.dumps(document))
    for place, value in changes.items():
        *way, last = [int(step) if step.isdecimal() else step for step in place.split("__")]
        held = found
        for step in way:
            held = held[step]
        if value is KeyError:
            del held[last]
        else:
            held[last] = value
    return found


HOSTILE = {
    "another schema": ({"schema": "memsheet/plan/1"}, "is not memsheet/sheet/1"),
    "no schema": ({"schema": KeyError}, "is not memsheet/sheet/1"),
    "unknown witness": ({"witness": "guessed"}, "is none of predicted"),
    "no witness": ({"witness": None}, "witness: is missing"),
    "no ranks": ({"ranks": []}, "has at least one rank"),
    "ranks of nothing": ({"ranks": [1, 2]}, "is not a list of objects"),
    "ranks as an object": ({"ranks": {}}, "is not a list of objects"),
    "a rank twice": ({"ranks__0__same_as": [1, 2, 0]}, "stands there twice"),
    "no rank number": ({"ranks__0__rank": KeyError}, "ranks[0].rank: is missing"),
    "no items": ({"ranks__0__items": []}, "hold nothing at any instant"),
    "items as text": ({"ranks__0__items": "all"}, "is not a list of objects"),
    "unknown component": ({"ranks__0__items__0__component": "magic"}, "is none of parameters"),
    "a path that obeys": ({"ranks__0__items__0__path": "a\x1b[2J"}, "cannot be printed"),
    "a path without end": ({"ranks__0__items__0__path": "a" * 501}, "is longer than 500"),
    "unknown instant": ({"ranks__0__items__0__at": {"later": 1}}, "is no instant"),
    "a negative size": ({"ranks__0__items__0__at__forward": -1}, "is outside 0 to"),
    "a size beyond machines": ({"ranks__0__items__0__at__forward": 2**62}, "is outside 0 to"),
    "a broken size": ({"ranks__0__items__0__at__forward": 1.5}, "is not a whole number"),
    "a size as text": ({"ranks__0__items__0__at__forward": "1"}, "is text, where a whole number is expected"),
    "a size that is true": ({"ranks__0__items__0__at__forward": True}, "is not a whole number"),
    "a size that is null": ({"ranks__0__items__0__at__forward": None}, "is not a whole number"),
    "at as a list": ({"ranks__0__items__0__at": [1]}, "is not an object"),
    "a range inside out": ({"ranks__0__items__0__low_bytes": 2**59}, "outside its own range"),
    "rows that do not add up": ({"ranks__0__items__0__at__forward": 5}, "is not what its items add up to"),
    "a model as a list": ({"model": []}, "is not an object"),
    "a name that obeys": ({"model__name": "x\x1b[2J"}, "cannot be printed"),
    "same_as as text": ({"ranks__0__same_as": "all"}, "is not a list of whole numbers"),
    "too many ranks": ({"ranks": [{}] * 5000}, "has more than 4096 rows"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_documents_are_told_in_one_error(case, tmp_path, capsys):
    changes, said = HOSTILE[case]
    good, bad = written(tmp_path, answers.answer()), tmp_path / "bad.json"
    bad.write_text(json.dumps(edited(sheet_document(answers.answer()), **changes)))
    code, out, err = asked(capsys, good, bad)
    assert (code, out) == (2, "")
    assert said in err
    assert "bad.json" in err
    assert len(err.splitlines()) <= 12
    assert "Traceback" not in err
    assert "\x1b" not in err


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{",
        '{"schema": NaN}',
        '{"a": 1, "a": 2}',
        "[" * 100_000,
        '{"schema": "memsheet/sheet/1"}',
        "\ufeff",
        "{}" * 9,
    ],
)
def test_texts_that_are_no_document_are_refused(text, tmp_path, capsys, monkeypatch):
    (tmp_path / "bad.json").write_text(text)
    assert asked(capsys, tmp_path / "bad.json", tmp_path / "bad.json")[0] == 2
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
    code, out, err = asked(capsys, "-", written(tmp_path, answers.answer()))
    assert (code, out) == (2, "")
    assert "stdin" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-", "-"), "named twice"),
        (("nowhere.json", "nowhere.json"), "does not exist"),
        ((".", "."), "is a folder"),
        (("a", "b", "--instant", "bakward"), "did you mean backward?"),
        (("a", "b", "--rank", "one"), "is not a whole number"),
        (("a", "b", "--units", "PB"), "is not a unit"),
        (("a",), "B.json: is missing"),
    ],
)
def test_bad_questions_are_told_on_stderr_and_are_two(arguments, said, capsys):
    code, out, err = asked(capsys, *arguments)
    assert (code, out) == (2, "")
    assert said.lower() in err.lower()
