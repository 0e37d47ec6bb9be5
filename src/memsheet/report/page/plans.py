"""A search for plans as the page shows it: the screen, and each plan as options that can be taken over."""

from __future__ import annotations

from typing import Any

from memsheet.report.page.sheet import resolved_options
from memsheet.report.screen.plans.ranking import render_plans
from memsheet.report.shared.look import Look
from memsheet.report.shared.plan_phrases import plan_choice_phrases
from memsheet.search.advice import Advice
from memsheet.search.train.timed import Planned


def plans_view(advice: Advice, look: Look) -> dict[str, Any]:
    """What was found, the best first."""
    ranking = advice.ranking
    best = ranking.plans or tuple(filter(None, (ranking.least,)))
    return {
        "screen": render_plans(advice, look),
        "plans": [_planned_row(planned, look) for planned in best],
    }


def _planned_row(planned: Planned, look: Look) -> dict[str, Any]:
    verdict, time = planned.verdict, planned.time
    return {
        "result": verdict.result.value,
        "words": [phrase for phrase in plan_choice_phrases(planned.plan) if phrase],
        "needs": look.need(verdict.device.value, 2),
        "device_bytes": int(verdict.device.value),
        "step_time_s": None if time is None else float(time.value),
        "apply": resolved_options(planned.tried.answer),
    }
