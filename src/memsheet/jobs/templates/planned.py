"""Parts of a document that jobs of several frameworks make alike, of the plan of what trains."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from memsheet.frozen import NamedTuple

SCHEMA = "memsheet/job/1"
DESCRIBED = ("schema", "model", "gpus", "phase")
"""Keys of a plan's document that no role's plan needs."""
ENTROPY_ROWS, ENTROPY_BYTES = 128, 12
"""Positions whose logarithms, probabilities and their product are there at once, in fp32, beside logits and a
whole copy of them (huggingface/trl f2cd577
trl/trainer/utils.py:526-560, entropy_from_logits): of few tokens the most.
"""
WAITING, ENTROPY = MADE_OF_LOGITS = ("waiting_logits", "entropy")
"""Items of a phase that a loss without whole logits has not."""


class Sizes(NamedTuple):
    """What of the model a job needs besides its name. ``queries``, ``keys``: elements of a token's queries
    and of its keys in the widest layer, 0 where a layer has other attention; ``key_heads``: the fewest.
    """

    vocab: int
    hidden: int
    layers: int = 0
    queries: int = 0
    keys: int = 0
    key_heads: int = 0


class TrainedBytes(NamedTuple):
    """Bytes of what trains on a card between its steps, and of all its weights in the dtype of products."""

    parameters: int
    master: int
    gradients: int
    weights: int


class JobDraft(NamedTuple):
    """A job that files start: its document, what of it stays open, in words, whether its rows are counted as
    long as the longest, which shorter ones may be, what else is counted that may not be there, further keys
    of the file that it accounts, roles that may be on other cards, and the key that would say a server's
    longest sequence, where it is counted as a prompt and an answer and may be as long as its model takes.
    """

    document: dict[str, Any]
    open_words: tuple[str, ...] = ()
    shorter_rows: bool = False
    over_words: tuple[str, ...] = ()
    accounted: frozenset[str] = frozenset()
    elsewhere: tuple[str, ...] = ()
    unsaid_longest: str = ""
    row_ranks: int = 1
    """Ranks that share a row, whose plans are of a rank's part of it."""
    length_flag: str = ""
    """What says how long rows are in every pass."""
    unbounded: bool = False
    """Whether what is open may be of any size."""


def planned_actor(plan: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """The plan of what trains without whole logits, which its phase has; and whether there are any."""
    actor = {key: held for key, held in plan.items() if key not in DESCRIBED}
    return {**actor, "loss": "fused"}, actor.get("loss") != "fused"


def planned_reference(actor: Mapping[str, Any], model: str) -> dict[str, Any]:
    """A frozen model beside what trains, without its adapters, which DeepSpeed divides where it divides the
    model's parameters, and of which it keeps no part on the host otherwise (huggingface/trl f2cd577
    trl/models/utils.py:236-265).
    """
    still = {key: held for key, held in actor.items() if key != "adapter"}
    if actor.get("engine") == "deepspeed" and actor.get("zero") != 3:
        still.pop("offload", None)
        still["zero"] = 0
        still["mesh"] = {**still.get("mesh", {}), "dp_replicate": ranks_of_data(still), "dp_shard": 1}
    return {"model": model, "plan": still, "trained": False, "process": "trainer"}


def known_share(given: Any, usual: float) -> float | None:
    """The share of a card that a server is given; the usual one in the place of a number that is no share, at
    which the server stops, so that its role stays. None where a variable stands.
    """
    if not isinstance(given, int | float) or isinstance(given, bool):
        return None
    return given if 0 < given <= 1 else usual


WHOLE_ON_RANKS = ("fsdp1", "fsdp2")


def planned_reward(actor: Mapping[str, Any], model: str) -> dict[str, Any]:
    """A model that rewards, with a head of one value, in no bits of the trained one's, which is loaded by
    itself: whole on every rank where FSDP trains, for which accelerate leaves it alone
    (huggingface/accelerate 1.15.0 accelerator.py, prepare_model: evaluation_mode).
    """
    still = planned_reference({key: held for key, held in actor.items() if key != "quantization"}, model)
    plan = still["plan"]
    if plan.get("engine") in WHOLE_ON_RANKS:
        ranks = ranks_of_data(plan)
        kept = ("task", "precision", "attention", "microbatch", "seq_len", "loss", "dropout")
        plan = {at: plan[at] for at in kept if at in plan}
        plan |= {"engine": "transformers", "mesh": {"dp_replicate": ranks}}
        if isinstance(precision := plan.get("precision"), Mapping):  # nothing of it is reduced
            plan["precision"] = {at: held for at, held in precision.items() if at != "reduce"}
    return {**still, "plan": plan, "head": "values"}


def ranks_of_data(plan: Mapping[str, Any]) -> int:
    mesh = plan.get("mesh", {})
    return int(mesh.get("dp_replicate", 1)) * int(mesh.get("dp_shard", 1))


def on_cards(plan: Mapping[str, Any], count: int) -> dict[str, Any]:
    """The plan with its states over another number of cards, and as many rows of a step, but for what fills
    up its last round.
    """
    axis = "dp_shard" if plan.get("zero") else "dp_replicate"
    mesh = plan.get("mesh", {})
    shared = int(mesh.get("cp", 1)) * int(mesh.get("tp", 1)) * int(mesh.get("pp", 1))
    ranks = max(1, count // shared)
    rows, at_once = plan.get("global_batch"), (plan.get("microbatch") or 0) * ranks
    filled = -(-rows // at_once) * at_once if isinstance(rows, int) and at_once else None
    ones = {"dp_replicate": 1, "dp_shard": 1}
    return {**plan, "mesh": {**mesh, **ones, axis: ranks}, "global_batch": filled}


def card_count(plan: Mapping[str, Any]) -> int:
    """Cards of a plan by its degrees."""
    mesh = plan.get("mesh", {})
    return prod(int(mesh.get(axis, 1)) for axis in ("dp_replicate", "dp_shard", "cp", "tp", "pp"))


def extra_item(
    component: str, path: str, sizes: tuple[int, int, int], why: str, *instants: str
) -> dict[str, Any]:
    """Bytes of a phase that are of no role's own step, as the document has them. ``instants``: of the step
    those at which they are there, all where none is named.
    """
    found = {"component": component, "path": path, "bytes": list(sizes), "why": why}
    return {**found, **({"instants": list(instants)} if instants else {})}
