"""``memsheet.assert_fits``: silent where a job fits, plain where it does not."""

import subprocess
import sys

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.questions import fit as fitting

SMALL = {"seq_len": 512, "microbatch": 1}
LARGE = {"seq_len": 4096, "microbatch": 1, "gpus": "8xA100-80GB", "zero": 0}


def test_a_job_that_fits_gives_its_answer() -> None:
    answer = memsheet.assert_fits("llama-3.2-1b", gpus="1xH100-80GB", **SMALL)
    assert answer.verdict is not None
    assert answer.verdict.result is Result.FITS


def test_a_job_that_does_not_fit_says_the_verdict_the_need_and_the_cure() -> None:
    with pytest.raises(AssertionError) as failed:
        memsheet.assert_fits("llama-3.1-8b", **LARGE)
    first, needs, *rest = str(failed.value).splitlines()
    assert first == "llama-3.1-8b does not fit on 8xA100-80GB"
    assert needs.startswith("  needs ")
    assert any(line.startswith("  cheapest fix, to ") for line in rest)
    assert "zero 0 → 3" in rest[-1]


def test_the_cure_that_is_told_is_a_job_that_fits() -> None:
    with pytest.raises(memsheet.DoesNotFitError) as failed:
        memsheet.assert_fits("llama-3.1-8b", **LARGE)
    fix = failed.value.answer.verdict.cheapest_fix
    changes = {
        key: after
        for change in fix.changes
        for key, _, after in ((change.key, None, change.after), *change.also)
    }
    memsheet.assert_fits(
        "llama-3.1-8b",
        gpus=LARGE["gpus"],
        plan={**{key: LARGE[key] for key in ("seq_len", "microbatch")}, **changes},
    )


def test_an_uncertain_job_is_as_bad_as_none_unless_a_warning_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fitting.TASKS, "train", _uncertain)
    with pytest.raises(memsheet.DoesNotFitError, match="may not fit"):
        memsheet.assert_fits("llama-3.2-1b", gpus="1xH100-80GB", **SMALL)
    with pytest.warns(UserWarning, match="may not fit"):
        answer = memsheet.assert_fits("llama-3.2-1b", gpus="1xH100-80GB", uncertain="warn", **SMALL)
    assert answer.verdict.result is Result.UNCERTAIN


def _uncertain(model: object, **options: object) -> memsheet.Answer:
    from dataclasses import replace

    answer = memsheet.train(model, **options)
    return replace(answer, verdict=replace(answer.verdict, result=Result.UNCERTAIN))


def test_a_warning_will_not_do_where_a_job_does_not_fit() -> None:
    with pytest.raises(memsheet.DoesNotFitError):
        memsheet.assert_fits("llama-3.1-8b", uncertain="warn", **LARGE)


def test_serving() -> None:
    with pytest.raises(memsheet.DoesNotFitError, match="does not fit on 1xA100-80GB"):
        memsheet.assert_fits(
            "llama-3.1-70b", gpus="1xA100-80GB", task="infer", max_model_len=4096, engine="vllm"
        )


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({}, "gpus"),
        ({"gpus": "1xH100-80GB", "task": "dream"}, "task"),
        ({"gpus": "1xH100-80GB", "uncertain": "pass"}, "uncertain"),
    ],
)
def test_what_is_no_question_is_no_failed_assertion(options: dict[str, str], field: str) -> None:
    with pytest.raises(memsheet.InputError) as refused:
        memsheet.assert_fits("llama-3.2-1b", **SMALL, **options)
    assert [problem.field for problem in refused.value.problems] == [field]


def test_a_check_needs_no_torch() -> None:
    code = (
        "import sys, memsheet; memsheet.assert_fits('llama-3.2-1b', gpus='1xH100-80GB', seq_len=512, "
        "microbatch=1); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
