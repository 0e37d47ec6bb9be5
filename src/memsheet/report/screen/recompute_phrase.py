"""What recomputing every layer would do, where nobody said what to recompute: one phrase beside the
verdict.
"""

from __future__ import annotations

from memsheet.account import account_rank
from memsheet.budget import Answer, Result, Verdict, judge_on
from memsheet.errors import InputError
from memsheet.frozen import replace
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.plan import Recompute, RecomputeMode
from memsheet.report.shared.look import Look

UNSAID = "recompute.mode = none"
"""How ``Answer.assumed`` tells that nobody said what to recompute."""
WORDS = {Result.FITS: "fits", Result.UNCERTAIN: "uncertain", Result.DOES_NOT_FIT: "does not fit"}


def with_recompute(answer: Answer, look: Look) -> str:
    """The phrase, as "with --recompute full: 51.2 GiB, fits"; nothing where it was said, saves nothing, or is
    what is proposed anyway, or where no change was asked for.
    """
    verdict = answer.verdict
    if (
        verdict is None
        or not answer.seeks_changes
        or answer.ladder
        or answer.trace is not None
        or UNSAID not in answer.assumed
        or _is_proposed(verdict)
    ):
        return ""
    found = _full_recompute_verdict(answer)
    if found is None or found.device.value >= verdict.device.value:
        return ""
    return f"with --recompute full: {look.need(found.device.value, look.digits)}, {WORDS[found.result]}"


def _is_proposed(verdict: Verdict) -> bool:
    changes = verdict.cheapest_fix.changes if verdict.cheapest_fix else ()
    return any("recompute.mode" in (change.key, *(key for key, _, _ in change.also)) for change in changes)


def _full_recompute_verdict(answer: Answer) -> Verdict | None:
    """The verdict with every layer recomputed, None where the engine has no such thing."""
    cluster, plan = answer.cluster, answer.plan
    if cluster is None or not answer.model.model_type or RecomputeMode.FULL not in engine_of(plan).recompute:
        return None
    plan = replace(plan, recompute=Recompute(mode=RecomputeMode.FULL))
    try:
        return judge_on(
            tuple(
                account_rank(answer.model, plan, cluster, stage, replays=True)
                for stage in range(plan.mesh.pp)
            ),
            cluster,
        )
    except InputError:
        return None
