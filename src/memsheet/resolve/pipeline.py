"""What is dealt over pipeline stages and replicas: layers, the schedule, the global batch, the vocabulary's
rows.
"""

from __future__ import annotations

from memsheet.plan.engine import Engine
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Loss, Mesh, Schedule


def _even_stages(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of stages that differ by one at the most, the last having fewer."""
    return tuple(layers // stages + (at < layers % stages) for at in range(stages))


def spreads_layers(gaps: RequestResolver, engine: Engine, task: str) -> bool:
    """Whether one process has all cards, which run their layers one after another."""
    return engine.spreads_layers and task == "train" and gaps.request.get("schedule") == Schedule.NAIVE.value


def usual_loss(gaps: RequestResolver, engine: Engine, mesh: Mesh) -> Loss:
    return engine.usual_loss(mesh.tp, gaps.request.get("engine_version")) if engine.usual_loss else Loss.PLAIN


def layers_per_stage_of(
    gaps: RequestResolver, engine: Engine, mesh: Mesh, model: ModelSpec | None
) -> tuple[int, ...] | None:
    given, stages = gaps.request.get("layers_per_stage"), mesh.pp * mesh.vpp
    layers = model.layers if model else None
    if given is None and spreads_layers(gaps, engine, gaps.request.get("task") or "train"):
        return None
    if engine.dealt is not None and layers is not None:
        dealt = engine.dealt(layers, stages, gaps.request)
        if dealt is not None and given is not None and tuple(given) != dealt:
            gaps.wrong(
                "layers_per_stage", given, f"is not how these shares deal them: {dealt}", "leave it out"
            )
        if dealt is not None:
            return dealt
    if given is None and engine.stages is not None and stages > 1 and layers is not None:
        found = engine.stages(layers, stages, gaps.request.get("engine_version"))
        gaps.assumed += (
            [f"layers_per_stage = {','.join(map(str, found))} ({engine.name}'s own rule)"] if found else []
        )
        if found is None:
            gaps.wrong("mesh.pp", mesh.pp, f"leaves stages of {layers} layers without any", "fewer stages")
        return found
    if given is None:
        if layers is not None and layers % stages:
            gaps.wrong(
                "mesh.pp",
                mesh.pp,
                f"does not divide {layers} layers over {stages} stages",
                f"--layers-per-stage {','.join(map(str, _even_stages(layers, stages)))}",
            )
        return None
    if len(given) != stages or (layers is not None and sum(given) != layers):
        gaps.wrong("layers_per_stage", given, f"must list {stages} stages that sum to {layers} layers")
    return tuple(given)


def schedule_of(gaps: RequestResolver, engine: Engine, mesh: Mesh, task: str) -> Schedule | None:
    given = gaps.request.get("schedule")
    if spreads_layers(gaps, engine, task):
        gaps.assumed += [] if mesh.pp > 1 else ["schedule = naive (changes nothing on one card)"]
        return Schedule.NAIVE if mesh.pp > 1 else None
    if given == Schedule.NAIVE.value and task == "train":
        gaps.wrong(
            "schedule",
            given,
            f"puts no layers on cards of one process under {engine.name}",
            "engine transformers",
        )
        return None
    if mesh.pp == 1 and task == "train" and given is not None:
        gaps.wrong(
            "schedule", given, "orders the stages of a pipeline, and there is one stage", "leave it out"
        )
    if mesh.pp == 1 or task != "train":
        return None
    return gaps.choice("schedule", Schedule.ONE_F_ONE_B, engine.schedules, engine.name)


def global_batch_of(gaps: RequestResolver, engine: Engine, mesh: Mesh) -> int | None:
    """Sequences of a step. Where they are no multiple, the last micro-batch is smaller, if the engine takes
    one and all ranks have as many.
    """
    batch, micro = gaps.request.get("global_batch"), gaps.request.get("microbatch") or 1
    ranks = mesh.dp_replicate * mesh.dp_shard
    stages = 1 if spreads_layers(gaps, engine, "train") else mesh.pp
    if not batch and stages > 1:  # fewer micro-batches than stages would keep less, and leave stages idle
        batch = micro * ranks * mesh.pp
        gaps.assumed.append(f"global_batch = {batch} (a micro-batch for each of {mesh.pp} stages)")
    if batch and batch % (micro * ranks):
        if not engine.takes_remainder or stages > 1 or batch % ranks:
            gaps.wrong(
                "global_batch",
                batch,
                f"is not a multiple of microbatch · data-parallel ranks = {micro * ranks}",
            )
        else:
            gaps.assumed.append(
                f"the last micro-batch of a step has {batch // ranks % micro} of {micro} sequences"
            )
    return batch or None


def vocab_multiple_of(gaps: RequestResolver, engine: Engine, mesh: Mesh) -> int:
    """What the vocabulary is padded to: as the plan says, else the engine's own multiple for every
    tensor-parallel rank.
    """
    own = engine.vocab_multiple * int(mesh.tp) if engine.vocab_multiple > 1 else 1
    multiple: int = gaps.get("vocab_multiple", own, silent=own == 1)
    if multiple % int(mesh.tp) and engine.vocab_multiple > 1:
        gaps.wrong(
            "vocab_multiple",
            multiple,
            f"is no multiple of the {mesh.tp} tensor-parallel ranks that share the vocabulary",
        )
    return multiple
