"""What libraries do in training that an engine's sheet does not hold, in bytes beside it: of questions that
name one, and of its files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.budget import Answer, Change, Fix
from memsheet.exchange import find_format
from memsheet.exchange.shared.file_format import Moved
from memsheet.frozen import replace
from memsheet.plan.dtypes import FP32
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import AttentionKind, Loss, Plan
from memsheet.plan.workload import Training
from memsheet.units import format_bytes

WIDER = 2 + 2 + 2 * 2 + 2
"""Bytes more of an element that is kept in fp32 beside sixteen bits: itself, its gradient, two moments, and
the copy that products are made of.
"""


def moved_by(library: str, model: ModelSpec, plan: Plan) -> Iterator[Moved]:
    """Bytes that the library adds or saves."""
    if library == "trl" and plan.loss is Loss.CHUNKED and (moves := find_format("trl").moves) is not None:
        width = "float32" if plan.precision.parameters is FP32 else "bfloat16"
        sizes = {
            "@tokens": int(plan.training.microbatch) * int(plan.training.seq_len),
            "@vocab": model.vocab,
            "@hidden": model.hidden,
            "@loss": plan.loss.value,
        }
        yield from moves({"dtype": width}, {**sizes, "precision.gradients": plan.precision.gradients.name})
    if library == "unsloth" and plan.loss is Loss.CHUNKED:
        sizes = {
            "@tokens": int(plan.training.microbatch) * int(plan.training.seq_len),
            "@vocab": model.vocab,
            "@hidden": model.hidden,
        }
        if (moves := find_format("transformers").moves) is not None:
            adapter = {"script.lora_rank": int(plan.adapter.rank)} if plan.adapter is not None else {}
            yield from moves({"script.unsloth": True, **adapter}, sizes)
    if (
        library == "axolotl"
        and plan.adapter is None
        and plan.precision.parameters is not FP32
        and plan.attention in (AttentionKind.SDPA, AttentionKind.EAGER)
    ):
        wide = 2 * model.vocab + 8 * model.layers + 1  # both tables, and every norm of a layer
        why = (
            "axolotl leaves embeddings, output layer and norms in fp32 with this attention "
            "(src/axolotl/loaders/model.py:422-476)"
        )
        yield Moved(at="attention", why=why, low_bytes=0, high_bytes=wide * model.hidden * WIDER)


def beside_the_sheet(found: Answer, library: str, own: Mapping[str, Any]) -> Answer:
    """The answer with what a library does that the sheet does not hold in notes. Changes to another engine
    say what was the library's ``own``, which is gone with it.
    """
    fix = found.verdict.cheapest_fix if found.verdict else None
    if found.verdict and fix and own:
        fix = replace(fix, changes=tuple(_with_own(change, fix, own) for change in fix.changes))
        found = replace(found, verdict=replace(found.verdict, cheapest_fix=fix))
    ways = tuple(
        replace(way, changes={**own, **way.changes}) if "engine" in way.changes else way
        for way in found.ways_to_fit
    )
    found = replace(found, ways_to_fit=ways)
    moved = moved_by(library, found.model, found.plan)
    notes = tuple(
        f"{one.why} ({format_bytes(one.low_bytes)} to {format_bytes(one.high_bytes)} beside the sheet)"
        for one in moved
    )
    return replace(found, notes=(*notes, *found.notes))


def bytes_beside(library: str | None, model: ModelSpec, plan: Plan) -> tuple[int, int]:
    """What a library holds beside the sheet of a plan, at the least and at the most."""
    moved = tuple(moved_by(library, model, plan)) if library and isinstance(plan.workload, Training) else ()
    return sum(one.low_bytes for one in moved), sum(one.high_bytes for one in moved)


def _with_own(change: Change, fix: Fix, own: Mapping[str, Any]) -> Change:
    """The change of the engine with a library's own values, but those that change."""
    if "engine" not in (change.key, *(key for key, _, _ in change.also)):
        return change
    changed = {key for one in fix.changes for key in (one.key, *(key for key, _, _ in one.also))}
    return replace(
        change,
        also=(*change.also, *((key, value, value) for key, value in own.items() if key not in changed)),
    )
