"""Changes of a job that may help where a phase does not fit: each as the changed document, and in the words
of the framework that it is of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from memsheet.frozen import dataclass
from memsheet.jobs.shorter import batch_of_pass, with_smaller_batches, with_smaller_pass
from memsheet.jobs.templates.generation import is_own_generation
from memsheet.jobs.templates.liger import FusedLoss
from memsheet.jobs.templates.planned import MADE_OF_LOGITS
from memsheet.plan.engine_registry import find_engine, sharding_counterpart
from memsheet.plan.job import Residency, Work
from memsheet.sheet import Component

CACHE = Component.KV_CACHE.value
SLEEP, OFFLOAD, LOGITS, SHARE, BATCH, SHARD = "sleep", "offload", "logits", "share", "batch", "shard"
ROWS, TOKENS = "rows", "tokens"
"""Kinds of changes of one phase's own batch."""
OF_PPO, VALUES = "-ppo", "values"
"""The end of names of jobs whose trainer divides its reward model, too; and the head of one."""
READ = Work.FORWARD.value
NO_LOGITS = FusedLoss([])
SIXTEEN = ("bf16", "fp16")
MIXED = {"bf16-autocast": "fsdp2-mixed"}
"""By the name of a whole model's precision that of the same one divided (``templates.trl.PRECISIONS``)."""
PLAIN: Mapping[str, str] = {
    SLEEP: "the server asleep while others work (residents: asleep-2)", OFFLOAD: "what trains on the host while the server works (residents: offloaded)",
    LOGITS: "no whole logits (a fused loss)", SHARE: "a share of {share:g} for the server",
    BATCH: "micro-batches of {rows}, {rounds} of them a step", SHARD: "parameters and states divided over the ranks (ZeRO-3, FSDP)",
}  # fmt: skip
"""Of a document that no framework's template made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cure:
    """A change: its kind, what keeps the phase from fitting, the document with it, the numbers in its words,
    and the role that it moves away.
    """

    kind: str
    says: str
    document: Mapping[str, Any]
    numbers: tuple[tuple[str, int | str], ...] = ()
    role: str = ""


def job_cures(
    document: Mapping[str, Any],
    phase: str,
    *,
    moved: Residency = Residency.OFFLOADED,
    raised: bool = True,
    fused: FusedLoss = NO_LOGITS,
    ranks: int = 1,
) -> Iterator[Cure]:
    """What may help a job whose fullest phase is ``phase``, one change a cure. ``moved``: how what trains is
    after the framework's own offloading; ``raised``: whether its sharding keeps what learns in fp32;
    ``fused``: what its fused loss makes in place of logits; ``ranks``: of data, where a plan says none.
    """
    found = next((one for one in document["phases"] if one["name"] == phase), None)
    if found is None:
        return
    servers = [name for name, role in document["roles"].items() if role["plan"].get("task") == "infer"]
    active = found.get("active")
    for server in servers:
        if server != active and _residency_in(found, server) is Residency.WHOLE:
            says = f"{server} keeps its share of the card while {active or 'weights are sent'} works"
            yield Cure(kind=SLEEP, says=says, document=_put_away(document, server, Residency.ASLEEP_2))
    if active in servers:
        held = [
            name for name, role in document["roles"].items()
            if name not in servers and role.get("trained", True) and _residency_in(found, name) not in (moved, Residency.OFFLOADED)
        ]  # fmt: skip
        for name in held:
            what = "states" if moved is Residency.PARAMETERS else "parameters and states"
            says = f"{name}'s {what} stay on the card while {active} generates"
            yield Cure(kind=OFFLOAD, says=says, document=_put_away(document, name, moved), role=name)
    divided = _with_divided_states(document, ranks, raised=raised) if active not in servers else None
    if divided is not None:
        says = f"every card has all of {active or 'what trains'}'s parameters and states"
        width = _mixed_width(document)
        mixed = f" --mixed_precision {width}" if width else ""
        yield Cure(kind=SHARD, says=says, document=divided, numbers=(("mixed", mixed),))
    if "logits" in found and not (fused.reads and found.get("work") == READ):
        says = f"whole logits stand in {phase}"
        yield Cure(kind=LOGITS, says=says, document=_without_logits(document, fused))


def smaller_batches(
    document: Mapping[str, Any], phase: str, *, ranks: int, rounds: int, together: int = 1
) -> Iterator[Cure]:
    """The same rows in smaller micro-batches, the largest first, where the fullest ``phase`` is one of what
    trains. ``ranks``: that share a batch; ``rounds``: micro-batches of a step as it is; ``together``:
    sequences of an example, which stay in one micro-batch and are one of its rows by the framework's words.
    """
    roles = document["roles"]
    active = next((one.get("active") for one in document["phases"] if one["name"] == phase), None)
    rows = roles[active]["plan"].get("microbatch") if active in roles else None
    if not isinstance(rows, int) or roles[active]["plan"].get("task") != "train":
        return
    examples, left = divmod(rows, together)
    for times in range(2, 1 if left else examples + 1):
        if examples % times == 0:
            says = f"{rows} rows at once stand in {phase}"
            changed = with_smaller_batches(document, times, ranks)
            numbers = (("rows", examples // times), ("rounds", rounds * times))
            yield Cure(kind=BATCH, says=says, document=changed, numbers=numbers)


def smaller_passes(document: Mapping[str, Any], name: str) -> Iterator[Cure]:
    """Fewer rows at once in one phase alone, the most first; or where rows are packed into one, fewer tokens,
    which are no fewer than those of the longest row, by the server's longest sequence.
    """
    phase = next((one for one in document["phases"] if one["name"] == name), None)
    role = document["roles"].get(phase.get("active") or "") if phase is not None else None
    if phase is None or role is None or role["plan"].get("task") != "train":
        return
    rows, tokens = batch_of_pass(document, phase)
    least = max(_longest_sequences(document), default=0)
    says = (
        f"{rows} rows at once stand in {name}" if rows > 1 else f"{tokens:,} tokens at once stand in {name}"
    )
    while rows > 1:
        rows = -(-rows // 2)
        yield Cure(kind=ROWS, says=says, document=with_smaller_pass(document, name, "microbatch", rows), numbers=(("count", rows),))  # fmt: skip
        if rows == 1:
            return
    while least and tokens > least:
        tokens = max(least, -(-tokens // 2))
        yield Cure(kind=TOKENS, says=says, document=with_smaller_pass(document, name, "seq_len", tokens), numbers=(("count", tokens),))  # fmt: skip


def _longest_sequences(document: Mapping[str, Any]) -> Iterator[int]:
    """Of a job's servers, where the document says them."""
    for role in document["roles"].values():
        longest = (role["plan"].get("serving") or {}).get("max_model_len")
        if role["plan"].get("task") == "infer" and isinstance(longest, int):
            yield longest


def _residency_in(phase: Mapping[str, Any], name: str) -> Residency:
    return Residency((phase.get("residents") or {}).get(name, Residency.WHOLE.value))


def _put_away(document: Mapping[str, Any], name: str, how: Residency) -> dict[str, Any]:
    """The document with a role away in every phase in which it does not work, but where weights are sent:
    there a server that sleeps has its weights and no cache yet.
    """
    changed = deepcopy(dict(document))
    for phase in changed["phases"]:
        if phase.get("active") is None and how is Residency.ASLEEP_2:
            phase["residents"] = {**(phase.get("residents") or {}), name: Residency.PARAMETERS.value}
        if phase.get("active") not in (None, name):
            phase["residents"] = {**(phase.get("residents") or {}), name: how.value}
            if how is Residency.ASLEEP_2:
                phase["items"] = [one for one in phase.get("items", ()) if one.get("component") != CACHE]
            if not phase.get("items", True):
                del phase["items"]
    return changed


def _with_divided_states(document: Mapping[str, Any], count: int, *, raised: bool) -> dict[str, Any] | None:
    """The document with what every rank has whole divided over all of them, under the engine that divides
    the same model code; None where nothing is whole on several ranks, or nobody divides it, or where what
    trains generates by itself, which is not accounted with layers that are gathered one by one.
    """
    if any(is_own_generation(role) for role in document["roles"].values()):
        return None
    changed, any_divided = deepcopy(dict(document)), False
    whole = "" if str(document.get("name")).endswith(OF_PPO) else VALUES
    for role in changed["roles"].values():
        if whole and role.get("head") == whole and not role.get("trained", True):
            continue  # accelerate leaves a model that rewards alone (``templates.planned.planned_reward``)
        plan, mesh = role["plan"], role["plan"].get("mesh") or {}
        engine = find_engine(str(plan.get("engine")))
        partner = sharding_counterpart(engine) if engine else None
        ranks = int(mesh.get("dp_replicate", 1)) * int(mesh.get("dp_shard", 1)) if mesh else count
        if plan.get("task") != "train" or plan.get("zero") or partner is None or ranks == 1:
            continue
        any_divided = True
        if isinstance(plan.get("precision"), Mapping):
            plan["precision"] = _mixed_precision(plan["precision"], raised=raised and not plan.get("adapter"))
        elif plan.get("precision") in MIXED:
            plan["precision"] = MIXED[plan["precision"]]
        plan.pop("engine_version", None)
        if (plan.get("global_batch") or 0) > (plan.get("microbatch") or 1) * ranks:
            plan["gradient_sync"] = "last"  # accelerate: gradients are whole until a step's last micro-batch
        plan |= {
            "engine": partner, "zero": 3, "reshard_after_forward": True, "mesh": {**mesh, "dp_replicate": 1, "dp_shard": ranks},
        }  # fmt: skip
    return changed if any_divided else None


def _mixed_width(document: Mapping[str, Any]) -> str:
    """Sixteen bits that what trains computes in, by the word of mixed precision; empty where it is fp32."""
    computed = (
        str(role["plan"]["precision"].get("compute"))
        for role in document["roles"].values()
        if role["plan"].get("task") == "train" and isinstance(role["plan"].get("precision"), Mapping)
    )
    return next((width for width in computed if width in SIXTEEN), "")


def _mixed_precision(precision: Mapping[str, Any], *, raised: bool) -> dict[str, Any]:
    """Precision under sharding with mixed precision: reduced as it computes, and whatever learns in
    fp32 (huggingface/accelerate v1.15.0 utils/dataclasses.py:2137, utils/fsdp_utils.py:814-820).
    """
    if precision.get("compute") not in SIXTEEN:
        return dict(precision)
    learnt = ("parameters", "gradients", "moments") if raised else ()
    return {**precision, **dict.fromkeys(learnt, "fp32"), "reduce": precision["compute"]}


def _without_logits(document: Mapping[str, Any], fused: FusedLoss) -> dict[str, Any]:
    changed = deepcopy(dict(document))
    for phase in changed["phases"]:
        if "logits" not in phase or (fused.reads and phase.get("work") == READ):
            continue
        del phase["logits"]
        if fused.logits:
            phase["logits"] = fused.logits
        kept = [item for item in phase.pop("items", ()) if item["path"] not in MADE_OF_LOGITS]
        if items := [*kept, *fused.items]:
            phase["items"] = items
    return changed
