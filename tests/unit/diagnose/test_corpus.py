"""Messages of many programs → verdict, term, cures that help and that do not."""

from __future__ import annotations

from tests.unit.diagnose.corpus import TEXTS, Case

from laws import every
from memsheet.diagnose.message import MAYBE, NO, YES
from memsheet.diagnose.verdict import Diagnosis, diagnose_texts


def words_of(found: Diagnosis) -> str:
    return "\n".join((found.because, *found.arithmetic, *found.notes, found.term.words if found.term else ""))


def cures_that(found: Diagnosis, helps: str) -> set[str]:
    return {cure.change for cure in found.cures if cure.helps == helps}


@every("case", TEXTS, ids=lambda case: case.name)
def test_a_text_comes_to_its_verdict(case: Case) -> None:
    found = diagnose_texts({"log": case.text})
    assert (found.cause.value, found.found) == (case.verdict, case.found), words_of(found)
    assert {cause.value for cause in found.open_between} >= set(case.open_between)
    assert len(found.open_between) == len(case.open_between) or not case.open_between
    if case.term is not None:
        assert found.term is not None
        assert found.term.path == case.term
    assert set(case.yes) <= cures_that(found, YES)
    assert set(case.maybe) <= cures_that(found, MAYBE)
    assert set(case.no) <= cures_that(found, NO)
    assert [said for said in case.says if said not in words_of(found)] == []


@every("case", TEXTS, ids=lambda case: case.name)
def test_no_more_than_four_cures_and_none_sure_that_is_not(case: Case) -> None:
    found = diagnose_texts({"log": case.text})
    assert len(found.cures) <= 4
    assert cures_that(found, YES) == set(case.yes)
