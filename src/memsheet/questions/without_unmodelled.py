"""The sheet of a job without what a file asks for and nobody accounts: it is told, and no verdict is sure. A
refusal is for what flags ask for; what somebody's file says is run, whatever is known of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memsheet.budget import Answer, Result
from memsheet.errors import InputError, Problem
from memsheet.exchange.verdict_doubts import BY_SIZE, Doubt, Left, least_of
from memsheet.late import late_functions
from memsheet.patterns import late_pattern
from memsheet.plan.adapter_targets import OUTSIDE, passed_over_targets
from memsheet.plan.defaults import NEEDS_WEIGHTS
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.workload import Training
from memsheet.questions.sized_models import NO_EXPERTS
from memsheet.units import format_bytes

with late_functions(__name__):
    from memsheet.questions.sized_models import is_without_experts
    from memsheet.questions.stand_ins import stood_in


UNACCOUNTED = late_pattern(r"\bnot (?:modelled|recorded)\b|the host one by one")
"""What a refusal says of an option that exists and that is not accounted (``resolve``, ``plan/check.py``)."""
EXPERTS = "moe."
TARGETS, FULL = "adapter.targets", "adapter.full_modules"
ABSENT = late_pattern(f"names no linear layer|{OUTSIDE}")
"""What peft passes over where other names match, and what it adapts that is not accounted."""
OTHER_TARGETS = "the sheet is of the other targets"
TABLES = ("lm_head", "embed_tokens", "wte", "word_embeddings")
COPY_GRADIENT_MOMENTS = 4 + 4 + 8
"""Bytes an element of what trains whole beside adapters, at the most: a copy, its gradient and two moments,
all in fp32 (huggingface/peft 0.21.2 src/peft/utils/other.py, ModulesToSaveWrapper).
"""
NEVER = (
    "engine",
    "model",
    "mesh",
    "gpus",
    "task",
    "batch",
    "microbatch",
    "seq_len",
    "precision",
    "zero",
    "adapter.rank",
)
"""Keys without which it is another job."""
TOGETHER = {
    "optimizer.name": ("optimizer.implementation",),
    "quantization.weights": NEEDS_WEIGHTS,
    "moe.dispatch": (),
    "fp8.recipe": ("fp8.param_storage", "fp8.all_gather"),
}
"""Keys that go with one that is left out."""
MOST = 6

Ask = Callable[[Mapping[str, Any]], Answer]


def answer_without(
    request: Mapping[str, Any], said: Mapping[str, Any], ask: Ask, refused: InputError
) -> Left:
    """The answer to a request without the keys that are not accounted. ``said``: what flags ask for, which is
    never left out. Raises InputError where other keys keep the sheet from being made.
    """
    kept, words, error = dict(request), list[str](), refused
    for _ in range(MOST):
        for problem in error.problems:
            if _is_gone(problem, kept, request):
                continue
            if (other := stood_in(problem, kept, said)) is not None:
                kept, told = dict(other[0]), other[1]
            elif (left := _left_out(problem, kept, said)) is not None:
                kept, told = left, _problem_words(problem)
            else:
                raise error
            words.append(told)
        try:
            answer = ask(kept)
        except InputError as another:
            error = another
        else:
            full = request.get(FULL) if FULL not in kept else None
            changed = [key for key in {*request, *kept} if request.get(key) != kept.get(key)]
            least = least_of(answer, changed) if answer.verdict else 0
            over = _passed_over(request, kept, answer) | _without_expert_keys(request, kept, answer)
            over |= _by_same_kernel(request, kept, answer, words)
            doubts = [one for one in dict.fromkeys(words) if one not in over]
            most = _most_with_tables(answer, full)
            beside = any(
                OUTSIDE in one for one in doubts
            )  # adapters whose products are as wide as the logits
            doubt = Doubt("; ".join(doubts), least if doubts else 0, most, no_most=beside)
            return Left(kept, answer, doubt, tuple(over.values()))
    raise error


def _passed_over(request: Mapping[str, Any], kept: Mapping[str, Any], answer: Answer) -> dict[str, str]:
    """The targets that were left out and that are no module of the model, as remarks, by how each is told
    where it may be one: peft gives adapters to the others and says nothing.
    """
    rest = list(map(str, kept.get(TARGETS) or ()))
    gone = [str(one) for one in request.get(TARGETS) or () if str(one) not in rest]
    engine = find_engine(answer.plan.engine)
    if engine is None or answer.model.name.endswith(BY_SIZE):
        return {}
    reason = f"names no linear layer of {answer.model.name}"
    return {
        f"{OTHER_TARGETS}: {one} {reason}": f"{TARGETS} = {','.join(rest)} (no module is called {one})"
        for one in passed_over_targets(gone, answer.model, engine)
    }


def _without_expert_keys(
    request: Mapping[str, Any], kept: Mapping[str, Any], answer: Answer
) -> dict[str, str]:
    """What was left out of how experts are run, as remarks, by how each is told where there may be some: a
    model whose layers have none runs nothing of it.
    """
    if not is_without_experts(answer.model.name):
        return {}
    gone = [key for key in request if key.startswith(EXPERTS) and key not in kept]
    reason = f"{NO_EXPERTS}{answer.model.name} has none"
    return {
        f"the sheet is without {word}, which {reason}": f"{word} moves nothing: {reason}"
        for word in (f"{key} = {request[key]}" for key in gone)
    }


FLASH = ("flash", "sdpa")
FLASH_MORE = 28
"""Bytes a token and hidden unit of a layer that the flash-attn package may have beside what sdpa's own flash
kernel has: copies of queries, keys and values without padding in two bytes, and queries' gradient in four
with up to as many rows of padding, of heads twice as wide together as the model (transformers 5.23.0
modeling_flash_attention_utils.py, _upad_input; Dao-AILab/flash-attention csrc/flash_attn/flash_api.cpp,
mha_varlen_bwd: dq_accum).
"""


def _by_same_kernel(
    request: Mapping[str, Any], kept: Mapping[str, Any], answer: Answer, words: list[str]
) -> dict[str, str]:
    """That sdpa stands for the flash-attn package, as a remark, where the job fits with all that this may
    have beside: sdpa is of the same kernel.
    """
    verdict, job, cluster = answer.verdict, answer.plan.workload, answer.cluster
    if (request.get("attention"), kept.get("attention")) != FLASH or verdict is None or cluster is None:
        return {}
    if not isinstance(job, Training) or verdict.result is not Result.FITS:
        return {}
    more = FLASH_MORE * int(job.microbatch) * int(job.seq_len or 0) * answer.model.hidden
    if int(verdict.device.high) + more > cluster.device.framework_low_bytes:
        return {}
    told = next((one for one in words if "attention = sdpa" in one), "")
    room = format_bytes(more)
    remark = (
        f"attention = sdpa, whose flash kernel keeps what flash-attn's does; with up to {room} more it fits"
    )
    return {told: remark} if told else {}


def _most_with_tables(answer: Answer, full: Any) -> int:
    """What a GPU needs at the most where tables of words that were left out train whole; nothing where none
    was.
    """
    names = full if isinstance(full, list) else []
    tables = sum(str(name).rpartition(".")[2] in TABLES for name in names)
    if not tables or answer.verdict is None:
        return 0
    table = answer.model.vocab * answer.model.hidden
    return int(answer.verdict.device.high) + tables * table * COPY_GRADIENT_MOMENTS


def _is_gone(problem: Problem, kept: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    """Whether a problem is about a key that went with another one, or a target that did."""
    if problem.field == TARGETS and problem.value in (request.get(TARGETS) or ()):
        return problem.value not in (kept.get(TARGETS) or ())
    held = [key for key in request if key == problem.field or key.startswith(f"{problem.field}.")]
    return bool(held) and not any(key in kept for key in held)


def _left_out(problem: Problem, request: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any] | None:
    """The request without what a problem is about; nothing where that is no key of it, or no option that is
    only not accounted.
    """
    field = problem.field
    if field == TARGETS and ABSENT.search(problem.reason):
        names = list(request.get(TARGETS) or ())
        rest = [name for name in names if name != problem.value]
        return {**request, TARGETS: rest} if rest and len(rest) < len(names) else None
    keys = [key for key in request if key == field or key.startswith(f"{field}.")]
    if (
        not keys
        or field in NEVER
        or any(key in said for key in keys)
        or not (UNACCOUNTED.search(problem.reason) or _is_of_experts(problem))
    ):
        return None
    dropped = {*keys, *TOGETHER.get(field, ())}
    return {key: held for key, held in request.items() if key not in dropped}


def _is_of_experts(problem: Problem) -> bool:
    """Whether it is about how experts are run, of a model that has none as far as is known."""
    return problem.field.startswith(EXPERTS) and problem.reason.startswith(NO_EXPERTS)


def _problem_words(problem: Problem) -> str:
    if problem.field == TARGETS and ABSENT.search(problem.reason):
        return f"{OTHER_TARGETS}: {problem.value} {problem.reason}"
    near = NEAREST.match(problem.hint)
    told = f" ({near[0]})" if near else ""
    return f"the sheet is without {problem.field} = {problem.value}, which {problem.reason}{told}"


OTHER_JOB = late_pattern(
    r"the sheet is (?:without (?:mesh|quantization|adapter\.(?:rank|kind)|offload|loss)\b"
    r"|of (?:model|quantization\.weights|adapter\.kind) = )[^;]*"
)
"""Of what is told, what makes the sheet one of a job that needs several times as much, or a part."""


def other_job_words(words: str) -> str:
    """That the sheet is of another job than the files ask for, and of which; empty where it is of theirs."""
    told = [one[0].removeprefix("the sheet is ") for one in OTHER_JOB.finditer(words)]
    return f"below, the sheet of another job: {'; '.join(told)}" if told else ""


NEAREST = late_pattern(r"did you mean [^?]+\?")
