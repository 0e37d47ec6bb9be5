"""Changes of a job that may help where a phase does not fit: each as the changed document, and in the words
of the framework that it is of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from memsheet.frozen import dataclass
from memsheet.jobs.shorter import with_smaller_batches
from memsheet.plan.engine_registry import find_engine, sharding_counterpart
from memsheet.plan.job import Residency
from memsheet.sheet import Component

CACHE = Component.KV_CACHE.value
SLEEP, OFFLOAD, LOGITS, SHARE, BATCH, SHARD = "sleep", "offload", "logits", "share", "batch", "shard"
PLAIN: Mapping[str, str] = {
    SLEEP: "the server asleep while others work (residents: asleep-2)", OFFLOAD: "what trains on the host while the server works (residents: offloaded)",
    LOGITS: "no whole logits (a fused loss)", SHARE: "a share of {share:g} for the server",
    BATCH: "micro-batches of {rows}, {rounds} of them a step", SHARD: "parameters and states divided over the ranks (ZeRO-3, FSDP)",
}  # fmt: skip
"""Of a document that no framework's template made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cure:
    """A change: its kind, what keeps the phase from fitting, the document with it, and the numbers in its
    words.
    """

    kind: str
    says: str
    document: Mapping[str, Any]
    numbers: tuple[tuple[str, int], ...] = ()


def job_cures(
    document: Mapping[str, Any], phase: str, *, moved: Residency = Residency.OFFLOADED
) -> Iterator[Cure]:
    """What may help a job whose fullest phase is ``phase``, one change a cure. ``moved``: how what trains is
    after the framework's own offloading.
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
            yield Cure(kind=OFFLOAD, says=says, document=_put_away(document, name, moved))
    divided = _with_divided_states(document) if active not in servers else None
    if divided is not None:
        says = f"every card has all of {active or 'what trains'}'s parameters and states"
        yield Cure(kind=SHARD, says=says, document=divided)
    if "logits" in found:
        says = f"whole logits stand in {phase}"
        yield Cure(kind=LOGITS, says=says, document=_without_logits(document))


def smaller_batches(document: Mapping[str, Any], phase: str, *, ranks: int, rounds: int) -> Iterator[Cure]:
    """The same rows in smaller micro-batches, the largest first, where the fullest ``phase`` is one of what
    trains. ``ranks``: that share a batch; ``rounds``: micro-batches of a step as it is.
    """
    roles = document["roles"]
    active = next((one.get("active") for one in document["phases"] if one["name"] == phase), None)
    rows = roles[active]["plan"].get("microbatch") if active in roles else None
    if not isinstance(rows, int) or roles[active]["plan"].get("task") != "train":
        return
    for times in (2**power for power in range(1, rows.bit_length())):
        if rows % times == 0:
            says = f"{rows} rows at once stand in {phase}"
            changed = with_smaller_batches(document, times, ranks)
            numbers = (("rows", rows // times), ("rounds", rounds * times))
            yield Cure(kind=BATCH, says=says, document=changed, numbers=numbers)


def _residency_in(phase: Mapping[str, Any], name: str) -> Residency:
    return Residency((phase.get("residents") or {}).get(name, Residency.WHOLE.value))


def _put_away(document: Mapping[str, Any], name: str, how: Residency) -> dict[str, Any]:
    """The document with a role away in every phase in which it does not work, but where weights are sent."""
    changed = deepcopy(dict(document))
    for phase in changed["phases"]:
        if phase.get("active") not in (None, name):
            phase["residents"] = {**(phase.get("residents") or {}), name: how.value}
            if how is Residency.ASLEEP_2:
                phase["items"] = [one for one in phase.get("items", ()) if one.get("component") != CACHE]
            if not phase.get("items", True):
                del phase["items"]
    return changed


def _with_divided_states(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """The document with what every rank has whole divided over all of them, under the engine that divides
    the same model code; None where nothing is whole on several ranks, or nobody divides it.
    """
    changed, any_divided = deepcopy(dict(document)), False
    for role in changed["roles"].values():
        plan, mesh = role["plan"], role["plan"].get("mesh") or {}
        engine = find_engine(str(plan.get("engine")))
        partner = sharding_counterpart(engine) if engine else None
        ranks = int(mesh.get("dp_replicate", 1)) * int(mesh.get("dp_shard", 1))
        if plan.get("task") != "train" or plan.get("zero") or partner is None or ranks == 1:
            continue
        any_divided = True
        precision = plan.get("precision") or {}
        if precision.get(
            "compute"
        ):  # huggingface/accelerate v1.15.0 utils/dataclasses.py: set_mixed_precision
            plan["precision"] = {**precision, "reduce": precision["compute"]}
        plan.pop("engine_version", None)
        if (plan.get("global_batch") or 0) > (plan.get("microbatch") or 1) * ranks:
            plan["gradient_sync"] = "last"  # accelerate: gradients are whole until a step's last micro-batch
        plan |= {
            "engine": partner, "zero": 3, "reshard_after_forward": True, "mesh": {**mesh, "dp_replicate": 1, "dp_shard": ranks},
        }  # fmt: skip
    return changed if any_divided else None


def _without_logits(document: Mapping[str, Any]) -> dict[str, Any]:
    changed = deepcopy(dict(document))
    for phase in changed["phases"]:
        phase.pop("logits", None)
    return changed
