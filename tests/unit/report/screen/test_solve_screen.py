"""What was solved for, as a screen at 80 and 120 columns and as JSON, from hand-made answers."""

from dataclasses import replace

import pytest

import answers
from memsheet.budget import Result, budget_of, judge_sheets
from memsheet.report.json.solution import solution_document
from memsheet.report.screen.solution import render_solution
from memsheet.report.shared.json_text import dump_json_line
from memsheet.report.shared.look import Look
from memsheet.resolve import Resolved
from memsheet.search.solve.sizes import Curve, Size
from memsheet.search.solve.targets import Skipped, Solution, Target
from memsheet.search.trials import Tried
from memsheet.sheet import Sheet
from memsheet.units import GIB


def tried(value: int, activations: float, *, gpus: str = "8xB200", replayed: bool = True) -> Tried:
    made = answers.answer(activations=activations, gpus=gpus, fix=0)
    assert made.cluster is not None
    assert made.verdict is not None
    return Tried(
        value=value,
        model=made.model,
        cluster=made.cluster,
        replayed=replayed,
        sheets=made.sheets,
        verdict=made.verdict,
        resolved=Resolved(
            plan=replace(made.plan, workload=replace(made.plan.training, seq_len=value)), assumed=made.assumed
        ),
    )


def solution(target: Target = Target.SEQ_LEN, **changes) -> Solution:
    found, beyond, expected = tried(32_768, 30), tried(32_832, 34.9), tried(34_176, 34.9, replayed=False)
    made = Solution(
        target=target,
        found=found,
        beyond=beyond,
        expected=expected,
        least=None,
        values="multiples of 64 up to 131,072 tokens",
        skipped=(Skipped(value=32_800, reason="seq_len = 32800: is odd"),),
        tried=(found, expected),
        notes=("a note",),
    )
    return replace(made, **changes)


def nothing() -> Solution:
    return solution(
        found=None,
        beyond=None,
        expected=None,
        least=tried(64, 160),
        skipped=(),
        tried=(tried(64, 160, replayed=False),),
    )


CURVES = tuple(
    Curve(name=name, zero=zero, engine=engine, points=tuple(Size(gpus=n, parameters=size) for n, size in zip((1, 8, 64), sizes, strict=True)))
    for zero, (name, engine, sizes) in enumerate(
        (
            ("DDP", "transformers", (2 * 10**9, 2 * 10**9, 2 * 10**9)), ("ZeRO-1", "deepspeed", (2 * 10**9, 6 * 10**9, 8 * 10**9)),
            ("ZeRO-2", "fsdp2", (0, 0, 0)), ("ZeRO-3", "fsdp2", (2 * 10**9, 12 * 10**9, 70 * 10**9)),
        )
    )
)  # fmt: skip
CASES = {
    "unsure": (solution(found=None, beyond=None, least=tried(64, 34.9), skipped=()), ()),
    "seq-len": (solution(), ()),
    "nothing": (nothing(), ()),
    "gpus": (
        solution(
            Target.GPUS,
            values="powers of two within a node of 8, then whole nodes, up to 16,384 GPUs",
            notes=(),
        ),
        (),
    ),
    "parameters": (solution(Target.PARAMETERS), CURVES),
}


def screen(case: str, **look) -> str:
    made, curves = CASES[case]
    return render_solution(made, Look(**look), curves)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("case", CASES)
def test_screens(case, width, snapshot):
    assert screen(case, width=width) == snapshot


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("case", CASES)
def test_no_line_is_wider_than_the_screen(case, width):
    for full in (False, True):
        assert max(map(len, screen(case, width=width, full=full).splitlines())) <= width


def test_the_verdict_comes_first_with_its_headroom():
    first = " ".join(screen("seq-len").split("\n\n", maxsplit=1)[0].split())
    assert first.startswith("FITS sequences of up to 32,768 tokens · needs 173.37 GiB of 178.34 GiB per GPU")
    assert "rank 0 of 8, peak in backward" in first
    assert " free · " in first
    least = " ".join(screen("nothing").split("\n\n", maxsplit=1)[0].split())
    assert least.startswith("NOTHING FITS the least, 64 tokens, needs 303.37 GiB")
    assert "too much" in least


def test_what_lies_between_is_said_to_be_uncertain():
    text = " ".join(screen("seq-len").split())
    assert "Between 32,768 tokens and 34,176 tokens it may fit" in text
    assert "skipped: 32,800 tokens" in text
    assert "may fit" not in screen("nothing")


def test_what_only_may_fit_is_uncertain():
    first = " ".join(screen("unsure").split())
    assert first.startswith(
        "UNCERTAIN sequences of up to 34,176 tokens may fit, nothing is sure to · needs 178.27 GiB"
    )
    assert "the least" in first


def test_everything_that_was_tried_is_shown_on_demand():
    assert "\ntried " not in screen("seq-len")
    assert screen("seq-len", full=True).count("\ntried ") == 2


def test_where_verdicts_alternate_both_ends_are_named():
    last, between = tried(33_792, 30), tried(33_024, 34.9)
    made = solution(last_fitting=last)
    text = " ".join(
        render_solution(
            replace(made, tried=(made.found, made.beyond, between, last, made.expected)), Look(width=120)
        ).split()
    )
    assert "sequences of up to 32,768 tokens" in text
    assert (
        "Every value tried up to 32,768 tokens fits; the last one tried that fits is 33,792 tokens." in text
    )
    assert "Of those between, 32,832, 33,024 may not" in text
    assert "Between 33,792 tokens and 34,176 tokens it may fit" in text
    assert "the last tried that fits" in text
    document = solution_document(made)
    assert (document["value"], document["last_fitting"]["value"]) == (32_768, 33_792)


def test_a_screen_in_plain_ascii_and_in_decimal_units():
    assert screen("parameters", ascii=True).isascii()
    assert "GiB" not in screen("seq-len", decimal=True)


def test_of_several_stages_the_one_that_decides_is_named():
    one = tried(1024, 30)
    other = Sheet(rank=4, stage=1, same_as=(5, 6, 7), items=answers.items(activations=31))
    sheets = (replace(one.sheets[0], same_as=(1, 2, 3)), other)
    staged = replace(one.resolved, plan=replace(one.plan, mesh=replace(one.plan.mesh, pp=2)))
    made = replace(one, sheets=sheets, verdict=judge_sheets(sheets, budget_of(one.cluster)), resolved=staged)
    assert made.stage == 1
    assert "rank 4 of stage 1 of 8" in " ".join(render_solution(solution(found=made), Look()).split())


def test_json_says_the_same_in_bytes():
    document = solution_document(*CASES["parameters"])
    assert document["schema"] == "memsheet/solution/1"
    assert document["solve"] == "parameters"
    assert document["value"] == document["found"]["value"] == 70_553_706_496
    assert document["found"]["result"] == Result.FITS.value
    assert document["found"]["device_high_bytes"] >= document["found"]["device_bytes"] > 100 * GIB
    assert document["next"]["result"] != Result.FITS.value
    assert document["plan"]["seq_len"] == 32_768
    assert [curve["name"] for curve in document["sizes"]] == ["DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"]
    assert document["sizes"][2]["points"][0] == {"gpus": 1, "parameters": None}
    assert dump_json_line(document).isascii()
    empty = solution_document(nothing())
    assert (empty["value"], empty["found"], empty["next"]) == (None, None, None)
    assert empty["least"]["value"] == 64
