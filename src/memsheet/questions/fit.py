"""A job that must fit, said in a script or a test: ``memsheet.assert_fits("llama-3.1-8b", gpus="8xA100-80GB",
seq_len=4096)``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Unpack

from memsheet.budget import Answer, Result, Verdict
from memsheet.errors import input_error, printable_line
from memsheet.plan.options import InferOptions, Model, TrainOptions
from memsheet.plan.workload import Training
from memsheet.questions import accounted
from memsheet.report.shared.uncertain_fit import in_vain_words
from memsheet.units import format_bytes

TASKS: Mapping[str, Callable[..., Answer]] = {"train": accounted.train, "infer": accounted.infer}
UNCERTAIN = ("raise", "warn")
WORDS = {Result.FITS: "fits", Result.UNCERTAIN: "may not fit", Result.DOES_NOT_FIT: "does not fit"}


class DoesNotFitError(AssertionError):
    """A job that does not fit, or that may not. ``answer`` is all that is known of it."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        super().__init__("\n".join(verdict_lines(answer)))


def assert_fits(
    model: Model | None = None,
    *,
    task: Literal["train", "infer"] = "train",
    uncertain: Literal["raise", "warn"] = "raise",
    **options: Unpack[InferOptions],
) -> Answer:
    """The answer to ``train`` or ``infer`` if the job fits; else DoesNotFitError with the verdict, what is
    needed, and the cheapest fix.

    ``uncertain``: what a job comes to whose range lies across the budget: ``raise``, or ``warn`` and go on.
    The other arguments are those of ``train``. Raises InputError for what cannot be answered: one without
    GPUs is no question of fitting.
    """
    __tracebackhide__ = True  # a test's report ends at the line that asked
    if task not in TASKS:
        raise input_error("task", task, "is none", f"one of {', '.join(TASKS)}")
    if uncertain not in UNCERTAIN:
        raise input_error("uncertain", uncertain, "is not known", f"one of {', '.join(UNCERTAIN)}")
    answer = TASKS[task](model, **options)
    if answer.verdict is None:
        raise input_error("gpus", None, "is missing", "for example 8xH100-80GB")
    if answer.ladder:
        raise input_error(
            "seq_len", None, "is missing, and whether it fits depends on it", "for example seq_len=4096"
        )
    if answer.verdict.result is Result.FITS:
        return answer
    if answer.verdict.result is Result.UNCERTAIN and uncertain == "warn":
        warnings.warn("\n".join(verdict_lines(answer)), stacklevel=2)
        return answer
    raise DoesNotFitError(answer)


def trainer_callback(model: Model | None = None, **options: Unpack[TrainOptions]) -> Any:
    """A callback for transformers' Trainer that logs what ``train`` predicts beside what the GPU counts.
    Arguments as for ``train``.

    ``Trainer(..., callbacks=[memsheet.trainer_callback("llama-3.2-1b", gpus="8xA100-80GB",
    plan="plan.json")])``
    """
    from memsheet.run.callback import prediction_callback

    return prediction_callback(accounted.train(model, **options).sheets)


def lightning_callback(model: Model | None = None, **options: Unpack[TrainOptions]) -> Any:
    """The same for Lightning's Trainer; InputError where Lightning is not installed.

    ``Trainer(..., callbacks=[memsheet.lightning_callback("llama-3.2-1b", gpus="8xA100-80GB",
    plan="plan.json")])``
    """
    from memsheet.run.lightning_callback import lightning_prediction_callback

    return lightning_prediction_callback(accounted.train(model, **options).sheets)


def verdict_lines(answer: Answer) -> Iterator[str]:
    """The verdict first, then what the worst rank holds, then what would help."""
    cluster, verdict = answer.cluster, answer.verdict
    if cluster is None or verdict is None:
        return
    low, high = int(verdict.device.low), int(verdict.device.high)
    room = format_bytes(cluster.device.framework_bytes, headroom=True)
    yield (
        f"{printable_line(answer.model.name)} {WORDS[verdict.result]} on "
        f"{cluster.count}x{cluster.device.name}"
    )
    yield (
        f"  needs {format_bytes(int(verdict.device.value))} ({format_bytes(low, headroom=True)} to "
        f"{format_bytes(high)}) of {room} a GPU, "
        f"rank {verdict.rank} in {verdict.instant.value}"
    )
    if lacking := pool_words(answer):
        yield f"  {lacking}"
    elif verdict.headroom_bytes < 0:
        yield f"  {format_bytes(-verdict.headroom_bytes)} too much"
    if verdict.host_short_bytes:
        yield f"  a node lacks {format_bytes(verdict.host_short_bytes)} of host memory"
    largest = ", ".join(
        f"{component.value.replace('_', ' ')} {format_bytes(int(held.value))}"
        for component, held in verdict.largest
    )
    yield f"  largest: {largest}"
    yield from _cheapest_fix_lines(
        verdict, tried=isinstance(answer.plan.workload, Training) and bool(answer.model.model_type)
    )


def pool_words(answer: Answer) -> str:
    """What a server's pool lacks, which a card with room left does not help; nothing where it is large
    enough.
    """
    facts, plan = answer.serving or {}, answer.plan
    short = facts.get("short_bytes")
    if short is None or short.high <= 0:
        return ""
    tokens = int(facts["budget"].get("needs_tokens") or plan.serving.max_model_len or 0)
    sure = "lacks" if short.low > 0 else "may lack"
    missing = format_bytes(int(short.value if short.value > 0 else short.high))
    whom = f" for one sequence of {tokens:,} tokens" if tokens > 1 else ""
    if flag := facts["budget"].get("pool_flag"):
        return f"the cache {sure} {missing}{whom}: {flag} sizes it (max_model_len)"
    share = f"{plan.cache.memory_fraction:g} of the card" if plan.cache.memory_fraction else "the card"
    return (
        f"the cache {sure} {missing}{whom}: {plan.engine} may take {share}, beside which room is of no "
        "use (max_model_len, memory_fraction)"
    )


def _cheapest_fix_lines(verdict: Verdict, *, tried: bool) -> Iterator[str]:
    fix = verdict.cheapest_fix
    if fix is None:
        if tried:
            yield f"  {in_vain_words(verdict)}"
        return
    yield f"  cheapest fix, to {format_bytes(int(fix.device.high))}:"
    for change in fix.changes:
        also = "".join(f", {key} {before} → {after}" for key, before, after in change.also)
        needs = f" (needs {change.needs})" if change.needs else ""
        yield f"    {change.words}: {change.key} {change.before} → {change.after}{also}{needs}"
