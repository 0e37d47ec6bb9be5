"""A law of many quick cases as one test: pytest itself takes three milliseconds of each test, which is longer
than most cases of such a law take.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import pytest

SHOWN = 5
"""Failures that are shown whole; the others are named."""


class Going:
    """How far a run goes: ``first`` case only (``--quick``)."""

    first = False


def every(names: str, cases: Iterable[Any], ids: Callable[[Any], object] = repr) -> Callable[..., Any]:
    """In place of ``pytest.mark.parametrize``: one test goes over all cases, and fails with every case that
    does.

    For quick cases without fixtures that each is to have anew; ``ids`` names a value. A case that is skipped
    is passed over, and where all are the test is skipped. Raises ExceptionGroup where one fails.
    """
    fields, given = [name.strip() for name in names.split(",")], list(cases)

    def over(law: Callable[..., None]) -> Callable[..., None]:
        @wraps(law)
        def test(**fixtures: Any) -> None:
            failed: list[Exception] = []
            skipped: list[str] = []
            for case in given[:1] if Going.first else given:
                values = case if len(fields) > 1 else (case,)
                try:
                    law(**fixtures, **dict(zip(fields, values, strict=True)))
                except pytest.skip.Exception as left:
                    skipped.append(str(left))
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - each is told
                    found = error if isinstance(error, Exception) else AssertionError(str(error))
                    found.add_note(f"the case: {', '.join(str(ids(value)) for value in values):.300}")
                    failed.append(found)
            if failed:
                others = "".join(f"\n{error.__notes__[-1]}" for error in failed[SHOWN:])
                raise ExceptionGroup(f"{len(failed)} of {len(given)} cases fail{others}", failed[:SHOWN])
            if skipped and len(skipped) == len(given):
                pytest.skip(skipped[0])

        own = inspect.signature(law)
        assert set(fields) <= set(own.parameters), "a field that the test does not take"
        kept = [parameter for name, parameter in own.parameters.items() if name not in fields]
        test.__signature__ = own.replace(parameters=kept)  # type: ignore[attr-defined]
        return test

    return over
