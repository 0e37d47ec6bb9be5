"""Jobs that train on preferences: what learns, on one or two sequences of an example, and the frozen model
that it is compared with, whichever program's words say the method.

Bytes of a logit were counted of the programs' own loss functions with torch 2.13: huggingface/trl f2cd577
trl/trainer/dpo_trainer.py:1320-1600, kto_trainer.py:1478-1640, experimental/{orpo/orpo,cpo/cpo}_trainer.py
(concatenated_forward, get_batch_logps), which axolotl 067b021 trains by (core/builders/rl.py, of TRL 1.8),
tpo/tpo_trainer.py (_compute_loss); hiyouga/LLaMA-Factory ff6d4d1 src/llamafactory/train/{dpo,kto}/trainer.py,
trainer_utils.py:593-612.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.preference_methods import Preferences
from memsheet.frozen import NamedTuple
from memsheet.jobs.templates.planned import (
    ENTROPY,
    ENTROPY_BYTES,
    ENTROPY_ROWS,
    WAITING,
    extra_item,
    planned_actor,
    planned_reference,
)

Range = tuple[int, int, int]
NOTHING_SAID: Mapping[str, Any] = {}
TRL, SCRIPTS, AXOLOTL, FACTORY, SWIFT = "trl", "transformers", "axolotl", "llamafactory", "swift"
"""Names of formats: TRL's own words, scripts that call its trainers, and programs that train on preferences.
"""


class Learnt(NamedTuple):
    """Bytes of a logit that is learnt from, at the least, expected and at the most: where the program's
    wrapper makes them fp32, and where they stay as the head computes them (DeepSpeed).
    """

    widened: Range
    computed: Range


PAIRS, MARGINS = Learnt((6, 12, 16), (4, 7, 12)), Learnt((6, 14, 18), (4, 6, 10))
"""Logits and two gradients of them, or the reference's and a copy for the entropy; or beside a loss of the
chosen alone, whose gradient is one of a part.
"""
MARKED = Learnt((6, 14, 16), (4, 10, 16))
"""Logits, the reference's, copies of those of either mark, and of the answers among them."""
OF_TRL: Mapping[str, Learnt] = {
    "DPO": PAIRS, "IPO": PAIRS, "KTO": MARKED, "BCO": MARKED,
    "ORPO": MARGINS, "CPO": MARGINS, "SIMPO": MARGINS, "TPO": MARGINS,
}  # fmt: skip
VALUES = Learnt((2, 6, 6), (2, 6, 6))
"""Its reward model has the vocabulary's head beside the one of values: logits that nothing is learnt from
(train/rm/trainer.py, compute_loss; huggingface/trl v0.9.6 trl/models/modeling_value_head.py, forward).
"""
OF_FACTORY: Mapping[str, Learnt] = {
    "DPO": Learnt((8, 16, 16), (8, 16, 16)), "KTO": Learnt((8, 20, 20), (8, 20, 20)), "ORPO": Learnt((8, 12, 16), (8, 12, 16)),
    "SIMPO": Learnt((8, 12, 16), (8, 12, 16)), "the reward model": VALUES,
}  # fmt: skip
"""It makes them fp32 itself and keeps their logarithms, and those of KTO's answers with the others'."""
OF_ONE_READING = Learnt((2, 16, 16), (2, 7, 8))
OF_SWIFT: Mapping[str, Learnt] = {
    "DPO": OF_ONE_READING, "KTO": OF_ONE_READING, "ORPO": MARGINS, "CPO": MARGINS, "SIMPO": MARGINS,
}  # fmt: skip
"""Of answers alone at the least, without copies of marked ones (modelscope/ms-swift 3602360
swift/rlhf_trainers/{dpo,kto}_trainer.py, rlhf_mixin.py:142-180); the rest are TRL's own.
"""


class Added(NamedTuple):
    """What a word of the trainer's adds to the bytes of a logit: of which methods, by which value of it."""

    methods: tuple[str, ...]
    word: str
    value: Any
    widened: Range
    computed: Range


ADDED_BY_WORDS = (
    Added(("DPO", "IPO"), "use_weighting", True, (0, 4, 4), (0, 0, 4)),
    Added(("DPO", "IPO"), "loss_type", "sft", (0, 2, 4), (0, 0, 4)),
    Added(("CPO", "SIMPO"), "cpo_alpha", 0, (0, -2, 0), (0, 0, 0)),
)
"""Twice the logits and their exponentials in place of what the figures take; logits of chosen answers that a
loss of their own saves; and no gradient of a part where that loss has no weight (trainer/dpo_trainer.py:
1542-1576; experimental/cpo/cpo_trainer.py:841-844).
"""
PROGRAMS: Mapping[str, Mapping[str, Learnt]] = {
    TRL: OF_TRL, AXOLOTL: OF_TRL, FACTORY: OF_FACTORY, SWIFT: OF_SWIFT,
}  # fmt: skip
READ_OF_KTO: Range = (2, 6, 6)
"""Of the mismatched answers, which are whole whatever the loss is made of (trainer/kto_trainer.py:1305-1327).
"""
OWN_FUSED = ("DPO", "IPO", "KTO")
"""Methods that have a loss without whole logits (LigerFusedLinearDPOLoss, LigerFusedLinearKTOLoss)."""
WHY = "with their gradients, of every sequence that is learnt from, and those of the reference"


def preference_document(
    program: str,
    method: Preferences,
    plan: Mapping[str, Any],
    model: str,
    *,
    fused: bool = False,
    widened_bytes: int = 0,
    named: str = "",
    said: Mapping[str, Any] = NOTHING_SAID,
    vocab: int = 0,
) -> dict[str, Any] | None:
    """The job as ``memsheet/job/1``; None of a method whose loss is not known. ``plan``: of what trains, of
    all sequences, as its own sheet has it; ``fused``: whether the loss makes no whole logits;
    ``widened_bytes``: what the reference has more where it is loaded in fp32 beside a model that is not;
    ``named``: the reference, where it is another checkpoint than the model that trains; ``said``: by
    TRL's trainer's words; ``vocab``: words that the model has logits of.
    """
    learnt = PROGRAMS.get(program, {}).get(method.method)
    if learnt is None or not method.sure:
        return None
    actor, _ = planned_actor(plan)
    roles: dict[str, Any] = {"actor": {"model": model, "plan": actor, "trained": True, "process": "trainer"}}
    if method.reference and (method.own_copy or not actor.get("adapter")):
        roles["reference"] = planned_reference(actor, named or model)
    widened = actor.get("engine") != "deepspeed"
    each = _with_words(learnt.widened if widened else learnt.computed, method.method, said, widened=widened)
    phase: dict[str, Any] = {"name": "update_actor", "active": "actor"}
    if not (fused and method.method in OWN_FUSED):
        phase["logits"] = {"bytes": list(each), "why": WHY}
        if method.reference and learnt in READ_IN_STEP:
            phase["items"] = [_waiting_item(actor, vocab, widened=widened)]
        if learnt in READ_IN_STEP and widened and method.reference and said.get("use_weighting") is not True:
            phase["items"] = [
                *phase.get("items", ()),
                _entropy_item(actor, vocab, learnt.widened[1] - AT_ENTROPY),
            ]
    elif method.method == "KTO":
        phase["logits"] = {"bytes": list(READ_OF_KTO), "why": "of the mismatched answers, read only"}
    if "reference" in roles and widened_bytes:
        why = "the reference is loaded in fp32 where nothing else is said (trainer/utils.py:1144)"
        wider = extra_item("parameters", "reference_in_fp32", (0, widened_bytes, widened_bytes), why)
        phase["items"] = [*phase.get("items", ()), wider]
    return {
        "schema": "memsheet/job/1",
        "name": job_name(program, method.method),
        "roles": roles,
        "phases": [phase],
    }


def _with_words(each: Range, method: str, said: Mapping[str, Any], *, widened: bool) -> Range:
    """Bytes of a logit with what the trainer's words add to them."""
    found = each
    for one in ADDED_BY_WORDS:
        held = said.get(one.word)
        if method in one.methods and one.value in (held if isinstance(held, list) else [held]):
            more = one.widened if widened else one.computed
            found = (found[0] + more[0], found[1] + more[1], found[2] + more[2])
    return found


READ_IN_STEP = (PAIRS, MARKED)
"""Losses for which the reference reads after what trains has run forward."""


def _waiting_item(actor: Mapping[str, Any], vocab: int, *, widened: bool) -> dict[str, Any]:
    """Logits of what trains while the reference reads: its pass has what the forward before it had, beside
    them (trainer/dpo_trainer.py:1340-1385, kto_trainer.py:1505-1545).
    """
    size = (4 if widened else 2) * vocab * int(actor.get("microbatch") or 1) * int(actor.get("seq_len") or 0)
    why = "of what trains, while the reference reads"
    return extra_item("temporaries", WAITING, (0, size, size), why, "forward")


AT_ENTROPY = 12
"""Bytes of a logit while an entropy is made, in fp32: itself, the reference's and a whole copy."""


def _entropy_item(actor: Mapping[str, Any], vocab: int, counted: int) -> dict[str, Any]:
    """What an entropy of the moment takes, which the figures of newer releases have
    (trainer/dpo_trainer.py:1587), beyond ``counted`` bytes of a logit that are there at another moment.
    """
    positions = int(actor.get("microbatch") or 1) * int(actor.get("seq_len") or ENTROPY_ROWS)
    taken = ENTROPY_BYTES * min(positions, ENTROPY_ROWS) - max(0, counted) * positions
    most = max(0, taken) * vocab
    return extra_item("temporaries", ENTROPY, (0, most, most), "of 128 positions at a time", "loss")


def job_name(program: str, method: str) -> str:
    """A job's name, by which the words of its cures are found."""
    short = method.lower().rpartition(" ")[2]
    return f"{program}-{short}"
