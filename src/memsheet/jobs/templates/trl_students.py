"""TRL's trainers that are taught by themselves, by a copy, or by a larger model on answers of the moment:
SDPO, SDFT, SSD, MiniLLM, and A*-PO, which regresses onto values of its reference's answers.

Lines are of huggingface/trl f2cd577, under trl/experimental. Bytes of a logit were counted of its own
functions with torch 2.13: sdpo/loss_utils.py, minillm_trainer.py:300-345, a2po_trainer.py
(_get_sequence_logps).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.file_format import UNSET
from memsheet.frozen import NamedTuple
from memsheet.jobs.templates.generation import generating_phase, own_generation
from memsheet.jobs.templates.liger import student_chunk_items
from memsheet.jobs.templates.option import logits_key
from memsheet.jobs.templates.planned import JobDraft, Sizes, planned_actor, planned_reference
from memsheet.jobs.templates.trl import GRPO, PROMPT
from memsheet.jobs.templates.trl_values import SHORT, UNSAID_PROMPT, generating_document

Values = Mapping[str, Any]
Range = tuple[int, int, int]
SAMPLED, LIKELY, ALL = "sampled_token", "topk_logits", "full_logits"


class Student(NamedTuple):
    """What a method takes where nothing is said: which copy teaches, and what of its logits is compared."""

    teacher: str = "live"
    mode: str = SAMPLED
    alpha: float = 1.0


STUDENTS: Mapping[str, Student] = {
    "SDPO": Student("ema"), "SDFT": Student("base", LIKELY, 0.5), "SSD": Student(), "MiniLLM": Student(),
}  # fmt: skip
"""sdpo_config.py:499-541, sdft_config.py:373-401. SSD has no teacher but its own answers."""
COMPARED: Mapping[str, Mapping[bool, Range]] = {
    SAMPLED: {True: (6, 16, 20), False: (2, 10, 10)}, LIKELY: {True: (6, 20, 20), False: (2, 10, 10)},
    ALL: {True: (6, 32, 32), False: (2, 16, 16)},
}  # fmt: skip
"""Bytes of a logit of the student's, with the teacher's: where accelerate makes them fp32, and as
computed.
"""
BETWEEN: Mapping[bool, Range] = {True: (6, 56, 56), False: (2, 28, 28)}
"""Of all words, where the divergence is of neither end."""
LEARNT: Mapping[bool, Range] = {True: (6, 16, 16), False: (2, 4, 6)}
READ: Mapping[bool, Range] = {True: (6, 6, 6), False: (2, 3, 4)}
OF_MINILLM: Mapping[bool, Range] = {True: (8, 44, 44), False: (4, 22, 22)}
"""With the second pass of the student, which GRPO's own loss makes (minillm_trainer.py:387)."""
REPROMPT = 10240
"""``max_reprompt_len`` (sdpo_config.py:554)."""
COPIES = ("ema", "base")
VALUE_ANSWERS = 8
"""``num_value_samples`` (a2po_config.py), which its reference gives of each prompt at once."""


def student_document(
    method: str, values: Values, plan: Mapping[str, Any], model: str, token_elements: int, sizes: Sizes
) -> JobDraft | None:
    """The job of one of ``STUDENTS``. ``values``: with ``@seq_len`` as of ``generating_document``; a teacher
    of MiniLLM's by its name.
    """
    own = STUDENTS[method]
    quiet = {at: held for at, held in values.items() if at not in ("beta", "use_liger_kernel")}
    made = generating_document(method, quiet, plan, model, token_elements, sizes)
    if made is None:
        return None
    document = dict(made.document)
    roles, phases = dict(document["roles"]), list(document["phases"])
    actor = dict(roles["actor"]["plan"])
    mode, alpha = values.get("distillation_mode", own.mode), values.get("distillation_alpha", own.alpha)
    teacher = _teacher_of(method, values, actor, model, own)
    if teacher is UNSET or mode not in COMPARED or not isinstance(alpha, int | float):
        return None
    widened = actor.get("engine") != "deepspeed"
    update = dict(phases.pop())
    if not _reads_before(method, values):
        phases = [one for one in phases if one["name"] != "old_log_prob"]
    new = int(
        values.get("max_completion_length")
        or (GRPO if method == "MiniLLM" else SHORT)["max_completion_length"].usual
    )
    rows, length = int(actor["microbatch"]), int(actor["seq_len"])
    if teacher is not None:
        roles["teacher"] = teacher
    why = "of the student and of what teaches it, with their gradients"
    if method == "SSD":
        each: Range = LEARNT[widened]
    elif method == "MiniLLM":
        actor |= {
            "microbatch": 2 * rows,
            **({"global_batch": 2 * whole} if isinstance(whole := actor.get("global_batch"), int) else {}),
        }
        roles["actor"] = {**roles["actor"], "plan": actor}
        each = _over_rows(OF_MINILLM[widened], 10 if widened else 6, length, new)
    else:
        phases.append(
            _teaching(values, method, update, rows, new, length, role="teacher" if teacher else "actor")
        )
        each = BETWEEN[widened] if mode == ALL and 0 < alpha < 1 else COMPARED[mode][widened]
    if values.get("use_liger_kernel") is True and mode == ALL:
        update.pop("logits", None)
        items = student_chunk_items(sizes, rows * new, between=0 < alpha < 1)
        update["items"] = [*update.get("items", ()), *items]
    else:
        update["logits"] = logits_key(rows * (new + 1), each, why)
    document |= {"name": f"trl-{method.lower()}", "roles": roles, "phases": [*phases, update]}
    return made._replace(document=document)


def _over_rows(each: Range, whole: int, length: int, new: int) -> Range:
    """Bytes of a logit of an answer, where ``whole`` of them are of whole rows."""
    low, value, high = each
    more = whole * (length - new) // (new + 1)
    return low, min(256, value + more), min(256, high + more)


def _teacher_of(method: str, values: Values, actor: Mapping[str, Any], model: str, own: Student) -> Any:
    """A second model that teaches, None where the student's own weights do, UNSET where its name is not told
    (sdpo_trainer.py:693-765; sdft_trainer.py:488-560; minillm_trainer.py:195-215).
    """
    if method == "MiniLLM":
        given = (values.get(at) for at in ("teacher_model_name_or_path", "teacher_model"))
        named = next((one for one in given if isinstance(one, str) and one != UNSET and " " not in one), None)
        return planned_reference(actor, named) if named else UNSET
    kind = values.get("teacher_model_kind", own.teacher)
    copied = kind in COPIES and not actor.get("adapter")
    return planned_reference(actor, model) if copied else None


def _reads_before(method: str, values: Values) -> bool:
    """Whether log-probabilities are made before the update (sdpo_trainer.py:1064-1086)."""
    if method == "MiniLLM":
        return True
    apart = ("num_iterations", "steps_per_generation", "generation_batch_size")
    return method != "SSD" and any(values.get(at) not in (None, 1) for at in apart)


def _teaching(
    values: Values, method: str, update: Mapping[str, Any], rows: int, new: int, length: int, *, role: str
) -> dict[str, Any]:
    """The pass that teaches, whose prompt may be longer than the student's (sdpo_trainer.py:280-300)."""
    given = values.get("max_reprompt_len", REPROMPT)
    longest = given + new if method == "SDPO" and type(given) is int else length
    beside = {at: update[at] for at in ("residents", "items") if at in update}
    plan = {"microbatch": rows, "seq_len": max(length, longest)}
    logits = {
        "logits": logits_key(rows * (new + 1), (2, 6, 10), "of answers, read only (sdpo_trainer.py:1330)")
    }
    return {"name": "teacher", "active": role, "work": "forward", "plan": plan, **logits, **beside}


def regressing_document(
    values: Values, plan: Mapping[str, Any], model: str, token_elements: int
) -> JobDraft | None:
    """The job of ``A2POTrainer``: values of the reference's answers first, all of a prompt's at once, then
    answers of the model, which it regresses onto them (a2po_trainer.py:100-376).
    """
    actor, _ = planned_actor(plan)
    new, several = values.get("max_completion_length", 256), values.get("num_value_samples", VALUE_ANSWERS)
    prompt, rows = values.get("max_prompt_length", PROMPT), actor.get("microbatch")
    counts = [one for one in (new, several, prompt, rows) if type(one) is int and one > 0]
    if len(counts) < 4:
        return None
    new, several, prompt, rows = counts
    said = values.get("@seq_len")
    actor["seq_len"] = said if isinstance(said, int) and said > new else prompt + new
    widened = actor.get("engine") != "deepspeed"
    tokens = rows * (new + 1)
    roles = {
        "actor": {"model": model, "plan": actor, "trained": True, "process": "trainer"}, "reference": planned_reference(actor, model),
        "rollout": own_generation(actor, model, rows=rows * several, new=new),
    }  # fmt: skip
    why = "of answers (a2po_trainer.py, _get_sequence_logps)"
    away = {"residents": {"rollout": "absent"}}
    phases = [
        generating_phase(actor, token_elements * rows * several * int(actor["seq_len"])),
        {"name": "ref", "active": "reference", "work": "forward", "logits": logits_key(tokens, READ[widened], why), **away},
        {"name": "update_actor", "active": "actor", "logits": logits_key(tokens, LEARNT[widened], why), **away},
    ]  # fmt: skip
    document = {"schema": "memsheet/job/1", "name": "trl-a2po", "roles": roles, "phases": phases, "notes": []}
    words = () if isinstance(said, int) or values.get("max_prompt_length") else (UNSAID_PROMPT,)
    return JobDraft(document, words, shorter_rows=True)
