"""How much more than its sheet a job may need that trains on preferences: several sequences an example where
the sheet is of one, logits of sequences beside those that are learnt from, and the reference model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from memsheet.budget import Answer, worst_sheet
from memsheet.exchange.joined_files import preferences_in
from memsheet.exchange.shared.file_format import FileReading, Together
from memsheet.exchange.verdict_doubts import Ask, Doubt, trainers_own_batch
from memsheet.plan.workload import Training
from memsheet.sheet import Component, Instant

if TYPE_CHECKING:
    from memsheet.exchange.shared.preference_methods import Preferences


LOGIT_BYTES = 2 + 4 + 4
"""Of a logit that is only read: as it is computed, as the fp32 that autocast hands out, and one tensor of
fp32 more: its log-softmax (hiyouga/LLaMA-Factory ff6d4d1 src/llamafactory/train/trainer_utils.py:612), or of
logits that are learnt from the second of the two gradients that are added up (huggingface/trl 016013e
trl/trainer/utils.py:507-510: of what is gathered, and of the log of a sum).
"""
FP32_BITS = 32


def preference_doubt(
    reads: Mapping[str, FileReading], whole: Together, answer: Answer | None, ask: Ask
) -> Doubt:
    """The range of a sheet whose files train on preferences, nothing of any other. Its least is the sheet's
    own.
    """
    method = preferences_in(reads)
    if method is None or answer is None or answer.verdict is None:
        return Doubt("")
    if method.scored and answer.model.head.kind == "none":  # all of it is in the sheet
        return Doubt("")
    job = answer.plan.workload
    if not isinstance(job, Training):
        return Doubt("")
    said = whole.request.get("microbatch") is not None
    examples = int(job.microbatch) // whole.rows if said else trainers_own_batch()
    most = ask({"microbatch": method.rows * examples, "global_batch": None, "loss": "plain"}) or answer
    needs = [int(one.verdict.device.high) for one in (answer, most) if one.verdict]
    logits = LOGIT_BYTES * method.beside * examples * int(job.seq_len or 0) * most.model.vocab
    more = logits + _reference_bytes(method, most)
    words = f"the range holds {method.widened_by}"
    return Doubt(words, int(answer.verdict.device.low), max(needs) + more)


def _reference_bytes(method: Preferences, answer: Answer) -> int:
    """Of the copy that gives the reference's logits, divided over ranks as the model is."""
    plan = answer.plan
    if not method.reference or (plan.adapter is not None and not method.own_copy):
        return 0
    held = int(worst_sheet(answer.sheets).of(Component.PARAMETERS, instant=Instant.LOAD).high)
    widened = method.widened and plan.precision.master_weights is None
    return held * FP32_BITS // int(plan.precision.parameters.bits) if widened else held
