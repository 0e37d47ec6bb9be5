"""An error names the field, the value, the reason and what to do."""

from __future__ import annotations

import pytest

from memsheet.errors import InputError, Problem, input_error, printable_line, raise_if_problems


def test_a_problem_reads_as_one_sentence_and_a_hint() -> None:
    assert (
        str(Problem(field="mesh.tp", value=3, reason="does not divide 32 heads", hint="use 4"))
        == "mesh.tp = 3: does not divide 32 heads\n  hint: use 4"
    )
    assert str(Problem(field="seq_len", reason="is missing")) == "seq_len: is missing"


def test_all_problems_are_told_at_once() -> None:
    problems = [Problem(field=name, reason="is wrong") for name in "abc"]
    with pytest.raises(InputError) as caught:
        raise_if_problems(iter(problems))
    assert caught.value.problems == tuple(problems)
    assert str(caught.value).count("\n") == 2


def test_no_problem_is_no_error() -> None:
    raise_if_problems([])


def test_refuse_is_an_error_with_one_problem() -> None:
    assert [p.reason for p in input_error("gpus", "0x", "counts no device").problems] == ["counts no device"]


def test_a_strangers_text_cannot_write_to_the_terminal() -> None:
    assert printable_line("a\x1b[31mb\nc") == "a�[31mb�c"


@pytest.mark.parametrize("value", ["x" * 10**6, 10**100_000, ["y" * 200] * 3], ids=["text", "number", "list"])
def test_a_value_is_shown_on_one_short_line(value: object) -> None:
    shown = printable_line(value)
    assert len(shown) <= 120
    assert "\n" not in shown
