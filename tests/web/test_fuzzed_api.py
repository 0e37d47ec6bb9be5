"""Questions drawn from the API's own description: whatever is asked, it is answered, and never by a fault."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from memsheet.questions.asked import ASKED
from memsheet.web.app import make_app
from memsheet.web.searches import SLOW

pytestmark = pytest.mark.web
CASES = int(os.environ.get("CASES", "1000"))
"""Of each operation."""


@pytest.fixture(scope="module")
def schema() -> Any:
    schemathesis = pytest.importorskip("schemathesis")
    return schemathesis.openapi.from_asgi("/openapi.json", make_app(("testserver",)))


@pytest.mark.parametrize("question", [question for question in ASKED if question not in SLOW])
def test_no_question_is_a_fault(schema: Any, question: str) -> None:
    operation = schema[f"/api/v1/{question}"]["POST"]

    @settings(
        max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck), database=None, phases=[Phase.generate]
    )  # fmt: skip
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        found = case.call()
        assert found.status_code < 500, (case.body, found.text)
        assert found.headers["content-type"][0] in ("application/json", "application/problem+json")

    ask()
