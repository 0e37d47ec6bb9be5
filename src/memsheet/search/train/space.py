"""Every way to train a model on a cluster that an engine offers: the choices to combine, and the counts that
divide the devices.

A *choice* (recompute, ZeRO stage, loss, pipeline) is some keys of a request; a *count* (a degree, the
micro-batch) is a number. What the request says itself is pinned; what it leaves open is searched. Numbers
that do not divide are counted by reason, never lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from memsheet.errors import input_error, raise_if_problems
from memsheet.frozen import dataclass
from memsheet.plan.check import check_request
from memsheet.plan.device import Cluster
from memsheet.plan.engine import Engine
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.model import ModelSpec, Moe
from memsheet.plan.plan import Loss, OptimizerName, RecomputeMode, Schedule

Request = Mapping[str, Any]
AXES = ("dp_replicate", "dp_shard", "cp", "tp", "ep", "etp")
"""Degrees that are counts of a stratum; pp and vpp order the step, so they are choices."""
OFFLOAD = ("offload.optimizer", "offload.parameters", "offload.activations")
"""What a plan may keep on the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What is searched. ``choices``: all combinations of options, as keys of a request; ``pipelines``: of pp,
    vpp and schedule.
    """

    model: ModelSpec
    cluster: Cluster
    engine: Engine
    request: Request
    choices: tuple[Request, ...]
    pipelines: tuple[Request, ...]
    every: bool = False

    @property
    def plain_replicas(self) -> bool:
        """Whether stage 0 is looked at for replicas of the whole model alone. Elsewhere stage 1, which
        divides the optimizer's states and sends as much (ZeRO, section 7.1), takes its place.
        """
        return not self.every and "zero" not in self.request and 1 in self.engine.zero

    @property
    def global_batch(self) -> int:
        """Sequences of a step."""
        return int(self.request["global_batch"])

    @property
    def experts(self) -> bool:
        """Whether the model has experts, which ep and etp divide."""
        blocks = self.model.blocks()
        return any(isinstance(block.feed_forward, Moe) for block in blocks)


def divisors(number: int) -> tuple[int, ...]:
    """Every divisor, smallest first."""
    low = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return tuple(sorted({*low, *(number // n for n in low)}))


def space_of(model: ModelSpec, cluster: Cluster, request: Request, *, every: bool = False) -> Space:
    """The space that a request leaves open. ``every``: also the options that cost memory and buy nothing:
    optimizer states on every rank, losses beside the engine's first, sequences that tensor-parallel ranks do
    not share; other optimizers; more chunks a stage than are run.

    Raises InputError where the engine is not modelled, or the length or the batch of a step is missing.
    """
    engine = find_engine(str(request.get("engine")))
    if engine is None:
        raise input_error("engine", request.get("engine"), "is not modelled", "name one engine")
    if "train" not in engine.tasks:
        raise input_error("engine", engine.name, "does not train", "memsheet plan infer")
    raise_if_problems(check_request({key: value for key, value in request.items() if value is not None}))
    for key in ("seq_len", "global_batch"):
        if not request.get(key):
            raise input_error(
                key, request.get(key), "is missing; a search needs to know what a step trains", f"give {key}"
            )
    fixed = {key: value for key, value in request.items() if value is not None} | {
        "task": "train",
        "engine": engine.name,
    }
    return Space(
        model=model,
        cluster=cluster,
        engine=engine,
        request=fixed,
        choices=tuple(_open_choices(engine, fixed, every=every, alone=cluster.count == 1)),
        pipelines=tuple(_pipeline_alternatives(engine, fixed, model, cluster, every=every)),
        every=every,
    )


def _open_choices(engine: Engine, fixed: Request, *, every: bool, alone: bool = False) -> Iterator[Request]:
    """All combinations of what is open, each as keys of a request. ``alone``: on one GPU, where no state is
    divided and a stage only lets states be moved to the host.
    """
    tables = [
        _key_alternatives(fixed, "zero", engine.zero),
        _recompute_alternatives(engine, fixed),
        _key_alternatives(fixed, "loss", [loss.value for loss in (engine.losses if every else _searched_losses(engine))]),
        _key_alternatives(fixed, "optimizer.name", [name.value for name in _searched_optimizers(engine, every=every)]),
        _offload_alternatives(engine, fixed),
        _axis_option_alternatives(engine, fixed, "sequence_parallel", "tp", _sequences_cut(engine, every=every)),
        _axis_option_alternatives(engine, fixed, "context_parallel_comm", "cp", [how.value for how in engine.context_parallel[: None if every else 1]]),
    ]  # fmt: skip
    for combination in product(*tables):
        choice = {key: value for part in combination for key, value in part.items()}
        if (
            alone
            and not every
            and choice.get("zero")
            and "zero" not in fixed
            and not any(choice.get(key) for key in OFFLOAD[:2])
        ):
            if choice["zero"] != min(engine.zero):
                continue
            choice = {key: value for key, value in choice.items() if key != "zero"}
        if every or not (
            choice.get("offload.optimizer") and choice.get("optimizer.name") == OptimizerName.ADAMW_8BIT.value
        ):
            # states on the host save nothing there by having 8 bits, and its kernels are the device's
            yield choice


def _searched_losses(engine: Engine) -> tuple[Loss, ...]:
    """The engine's first. Where that is the plain one, the fused one too, which needs a library of its
    own.
    """
    return (
        tuple(loss for loss in (Loss.PLAIN, Loss.FUSED) if loss in engine.losses)
        if engine.losses[0] is Loss.PLAIN
        else engine.losses[:1]
    )


def _key_alternatives(fixed: Request, key: str, values: Any) -> list[Request]:
    return [{key: fixed[key]}] if key in fixed else [{key: value} for value in values]


def _axis_option_alternatives(
    engine: Engine, fixed: Request, key: str, axis: str, values: Any
) -> list[Request]:
    """An option that only ranks of an axis have; each plan drops it where it has none."""
    return _key_alternatives(fixed, key, values) if values and axis in engine.axes else [{}]


def _sequences_cut(engine: Engine, *, every: bool) -> tuple[bool, ...]:
    """Whether tensor-parallel ranks share sequences between the regions that they cut, where the engine
    says.
    """
    return () if "sequence_parallel" not in engine.models else (False, True) if every else (True,)


def _searched_optimizers(engine: Engine, *, every: bool) -> tuple[OptimizerName, ...]:
    """Those that step as AdamW does, in 32 or in 8 bits: others train differently."""
    alike = tuple(
        name for name in (OptimizerName.ADAMW, OptimizerName.ADAMW_8BIT) if name in engine.optimizers
    )
    return engine.optimizers if every else alike


def _recompute_alternatives(engine: Engine, fixed: Request) -> list[Request]:
    given = {key: value for key, value in fixed.items() if key.startswith("recompute.")}
    if given:
        return [given]
    modes = [mode for mode in engine.recompute if mode is not RecomputeMode.SELECTIVE or engine.selective]
    return [{"recompute.mode": mode.value} for mode in modes]


def _offload_alternatives(engine: Engine, fixed: Request) -> list[Request]:
    given = {key: value for key, value in fixed.items() if key.startswith("offload.")}
    if given:
        return [given]
    found: list[Request] = [{}]
    if "optimizer" in engine.offload:
        found.append({"offload.optimizer": 1})
    if {"optimizer", "parameters"} <= set(engine.offload):
        found.append({"offload.optimizer": 1, "offload.parameters": 1})
    return [*found, {"offload.activations": True}] if "activations" in engine.offload else found


USUAL_CHUNKS = 20
"""The most chunks a stage of the recipes that an engine publishes: Llama 3 70B on GB200 and B200
(NVIDIA-NeMo/Megatron-Bridge 067f987, perf_recipes/llama/gb200/llama3.py:615).
"""


def _pipeline_alternatives(
    engine: Engine, fixed: Request, model: ModelSpec, cluster: Cluster, *, every: bool
) -> Iterator[Request]:
    """Stages, chunks of each and the schedule. One that leaves layers over is refused later, by reason."""
    layers = model.layers
    stages = divisors(cluster.count) if "pp" in engine.axes else (1,)
    deals = engine.stages is None and "layers_per_stage" not in fixed
    odd = all(layers % pp for pp in stages if pp > 1)
    parts = sorted(
        {*divisors(layers), *divisors(layers + ENDS), *(divisors(DEALT_PARTS) if odd and deals else ())}
    )
    chunks = tuple(n for n in parts if every or n <= USUAL_CHUNKS) if "vpp" in engine.axes else (1,)
    for pp, vpp in product(_fixed_or_all(fixed, "mesh.pp", stages), _fixed_or_all(fixed, "mesh.vpp", chunks)):
        if pp == 1 and vpp == 1:
            yield {"mesh.pp": 1, "mesh.vpp": 1}
        for schedule in _schedules_for_chunks(engine, vpp) if pp > 1 and pp * vpp <= layers else ():
            if fixed.get("schedule") in (None, schedule.value):
                uneven = (
                    deals
                    and layers % (pp * vpp)
                    and (
                        (odd and (vpp == 1 or pp * vpp == DEALT_PARTS or "mesh.vpp" in fixed))
                        or (layers + ENDS) % (pp * vpp) == 0
                    )
                )
                yield {
                    "mesh.pp": pp,
                    "mesh.vpp": vpp,
                    "schedule": schedule.value,
                    **(uneven_stage_layers(layers, pp * vpp) if uneven else {}),
                }


ENDS = 2
"""Embeddings and head, each of which may count as a layer where a pipeline is cut, so that the first and the
last part have one less: of 126 layers 128 parts (Megatron-Core, transformer/transformer_block.py,
get_num_layers_to_build, account_for_embedding_in_pipeline_split and account_for_loss_in_pipeline_split; Llama
3, arXiv:2407.21783, section 3.3.2).
"""


DEALT_PARTS = 16
"""Into how many parts layers that no number of stages divides are dealt, several to a stage, where nobody
asks for a number: as the recipes for DeepSeek-V3's 61 do on 2, 4 and 8 stages (NVIDIA-NeMo/Megatron-Bridge
067f987, recipes/deepseek/h100/deepseek_v3.py:55-60).
"""


def uneven_stage_layers(layers: int, parts: int) -> Request:
    """Layers of each stage where no number of stages divides them: those next to embeddings and head get one
    less before the others do.
    """
    each, more = divmod(layers, parts)
    inner = sorted(range(parts), key=lambda part: (-min(part, parts - 1 - part), part))[:more]
    return {"layers_per_stage": tuple(each + (part in inner) for part in range(parts))}


def _schedules_for_chunks(engine: Engine, vpp: int) -> tuple[Schedule, ...]:
    interleaved = vpp > 1
    return tuple(
        schedule for schedule in engine.schedules if (schedule is Schedule.INTERLEAVED) == interleaved
    )


def _fixed_or_all(fixed: Request, key: str, values: tuple[int, ...]) -> tuple[int, ...]:
    return (int(fixed[key]),) if key in fixed else values


def counts_of(space: Space, pp: int) -> Mapping[str, tuple[int, ...]]:
    """What each count may be on the ranks of a pipeline of ``pp`` stages, dp_replicate and dp_shard aside:
    they share what is left.
    """
    ranks = divisors(space.cluster.count // pp) if space.cluster.count % pp == 0 else ()
    engine, fixed, batch = space.engine, space.request, space.global_batch
    open_ = {axis for axis in ("tp", "cp", "dp_shard", "ep", "etp") if axis in engine.axes}
    if not space.experts or engine.splits_experts_over_tp:
        open_ -= {"ep", "etp"}
    degrees = {
        axis: _fixed_or_all(fixed, f"mesh.{axis}", ranks if axis in open_ else (1,))
        for axis in ("tp", "cp", "dp_shard", "ep", "etp")
    }
    return {**degrees, "microbatch": _fixed_or_all(fixed, "microbatch", divisors(batch))}
