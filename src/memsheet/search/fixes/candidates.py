"""Changes that may make a job fit, each with its price: what is edited of a question, what it is called and
what it costs. The search for the cheapest list of them is in ``cheapest``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any

from memsheet.budget import Change, LibraryUse, Result, Verdict
from memsheet.frozen import dataclass, field
from memsheet.plan.device import MAX_DEVICES, ONE_NODE, Cluster
from memsheet.plan.dtypes import FP32, INT8
from memsheet.plan.engine_registry import SEVERAL_GPUS, engine_of, find_engine
from memsheet.plan.plan import (
    AttentionKind,
    GradientSync,
    Implementation,
    Loss,
    OptimizerName,
    Plan,
    RecomputeMode,
)
from memsheet.plan.workload import Training
from memsheet.sheet import Sheet

Edits = Mapping[str, Any]


class Price(IntEnum):
    """What a change costs, the least first."""

    NOTHING = 0  # neither time nor quality that is worth a word
    TIME = 1
    LAYOUT = 2  # another layout of the same GPUs
    HOST = 3  # host memory, and a much slower step
    NUMERICS = 4  # another optimizer, fewer bits
    ADAPTERS = 5  # another kind of training, or of nothing but few bits
    QUANTIZED = 6  # and that of a base in fewer bits
    MACHINES = 7  # more GPUs


@dataclass(frozen=True, slots=True)
class ChangedJob:
    """A request after some changes, and what it comes to. ``made``: the candidates of ``changes``."""

    request: Mapping[str, Any]
    cluster: Cluster
    plan: Plan
    sheets: tuple[Sheet, ...]
    verdict: Verdict
    changes: tuple[Change, ...]
    library: LibraryUse | None = None
    made: tuple[Candidate, ...] = ()
    further: dict[tuple[str, bool], ChangedJob | None] = field(default_factory=dict, compare=False)
    """What became of changes on top of these, by their words and whether steps were replayed: several lists
    begin alike.
    """

    @property
    def bytes(self) -> int:
        """What a search goes by: the high end, which must fit."""
        return int(self.verdict.device.high)

    @property
    def expected_bytes(self) -> int:
        return int(self.verdict.device.value)

    @property
    def falls(self) -> bool:
        """Whether every change so far lowers what is expected."""
        return all(change.after_bytes < change.before_bytes for change in self.changes)

    @property
    def fits(self) -> bool:
        """Whether it is a way to make the job fit."""
        return self.verdict.result is Result.FITS and self.falls

    def names(self, prefix: str) -> bool:
        """Whether the question gives a key of that kind."""
        return any(key.startswith(prefix) and value is not None for key, value in self.request.items())

    @property
    def host_bytes(self) -> int:
        return max(sheet.host_bytes for sheet in self.sheets)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kind of change: the keys it sets on top of a question (None where it does not apply), what it is
    called and what it costs.

    An edit names every key that must change, so that a person who adds them to the question gets what was
    promised.
    """

    price: Price
    words: str
    edit: Callable[[ChangedJob], Edits | None]
    needs: str = ""
    again: str = ""  # what it is called where it was made several times: from ``{before}`` to ``{after}``


def _unwritten_scores(state: ChangedJob) -> Edits | None:
    """Where scores are written out: sdpa where somebody said so, else FlashAttention, as code that writes
    them of itself knows no other.
    """
    plan = state.plan
    if plan.attention is not AttentionKind.EAGER or not isinstance(plan.workload, Training):
        return None
    kind = AttentionKind.SDPA if state.request.get("attention") else AttentionKind.FLASH
    return {"attention": kind.value} if kind in engine_of(plan).attention else None


def _fused_loss(asked: ChangedJob) -> Edits | None:
    return {"loss": "fused"} if asked.plan.loss is Loss.PLAIN else None


def _sequence_parallel_edit(asked: ChangedJob) -> Edits | None:
    """The same exchanges as tensor parallelism's own, cut in two (arXiv:2205.05198, section 4.2)."""
    plan = asked.plan
    cuts = "sequence_parallel" in engine_of(plan).models and plan.mesh.tp > 1
    return {"sequence_parallel": True} if cuts and not plan.sequence_parallel else None


def _every_sync_edit(asked: ChangedJob) -> Edits | None:
    """Gradients that no rank keeps whole from one micro-batch to the next."""
    waits = (asked.plan.gradient_sync or engine_of(asked.plan).gradient_sync) is GradientSync.LAST
    return {"gradient_sync": "every"} if waits and asked.plan.accumulation > 1 else None


def _divided_optimizer_edit(asked: ChangedJob) -> Edits | None:
    """The optimizer's states over the ranks of one model, which exchange as many bytes as before
    (arXiv:1910.02054, section 7).
    """
    plan, engine = asked.plan, engine_of(asked.plan)
    divides = plan.zero == 0 and 1 in engine.zero and plan.mesh.data_parallel > 1
    return {"zero": 1} if divides else None


def _expandable_segments(asked: ChangedJob) -> Edits | None:
    return None if asked.plan.expandable_segments else {"allocator.expandable_segments": True}


def _full_recompute_edit(asked: ChangedJob) -> Edits | None:
    return {"recompute.mode": "full"} if asked.plan.recompute.mode is not RecomputeMode.FULL else None


def _graphs_off(asked: ChangedJob) -> Edits | None:
    """No graphs of a step, whose static buffers and pool are tensors of its own."""
    trains = isinstance(asked.plan.workload, Training)
    return {"cuda_graphs": False} if trains and asked.plan.cuda_graphs else None


def _full_recompute_without_graphs(asked: ChangedJob) -> Edits | None:
    """For engines that capture no layer that is recomputed whole."""
    graphs, recompute = _graphs_off(asked), _full_recompute_edit(asked)
    return {**recompute, **graphs} if graphs and recompute else None


def _smaller_microbatch(asked: ChangedJob) -> Edits | None:
    """The next smaller micro-batch that divides it; the global batch stays what it was, so gradients
    accumulate.
    """
    job = asked.plan.workload
    if not isinstance(job, Training) or job.microbatch < 2:
        return None
    size = next(n for n in range(int(job.microbatch) // 2, 0, -1) if job.microbatch % n == 0)
    return {"microbatch": size, **_same_global_batch(asked)}


def _same_global_batch(asked: ChangedJob) -> Edits:
    """The global batch as it is, of more micro-batches, whose gradients are divided one after another where
    they would be kept whole.
    """
    plan, job = asked.plan, asked.plan.training
    batch = job.global_batch or job.microbatch * plan.mesh.data_parallel
    waits = (plan.gradient_sync or engine_of(plan).gradient_sync) is not GradientSync.EVERY
    chosen = GRADIENT_SYNC in engine_of(plan).models and plan.mesh.dp_shard > 1 and plan.accumulation == 1
    return {"global_batch": batch, **({GRADIENT_SYNC: "every"} if chosen and waits else {})}


GRADIENT_SYNC = "gradient_sync"


def _activation_offload_edit(asked: ChangedJob) -> Edits | None:
    """What recomputed layers keep: to move what others keep takes longer than to recompute it."""
    plan = asked.plan
    known = "activations" in engine_of(plan).offload and plan.recompute.mode is RecomputeMode.FULL
    if not known or plan.offload.activations:
        return None
    states = {"optimizer": plan.offload.optimizer, "parameters": plan.offload.parameters}
    # said again: the flag replaces what it said before
    return {"offload.activations": True, **{f"offload.{what}": 1 for what, share in states.items() if share}}


def _zero_up(asked: ChangedJob) -> Edits | None:
    plan, engine = asked.plan, find_engine(asked.plan.engine)
    if engine is None or asked.cluster.count == 1 or plan.zero >= 3:
        return None
    reshard = {"reshard_after_forward": True} if asked.request.get("reshard_after_forward") is False else {}
    if engine.divides_states:
        return {"zero": plan.zero + 1, **reshard}
    mesh = {"mesh.dp_replicate": 1, "mesh.dp_shard": asked.cluster.count} if asked.names("mesh.") else {}
    sharder = find_engine(SEVERAL_GPUS)
    assert sharder is not None
    precision = _named_precision_edit(asked, sharder.default_precision)
    return {"engine": sharder.name, "zero": 3, **reshard, **mesh, **precision}


def _named_precision_edit(asked: ChangedJob, name: str) -> Edits:
    """A named precision in place of the one that was asked for, if one was."""
    return {"precision.name": name} if asked.names("precision.") else {}


def _eight_bit(asked: ChangedJob) -> Edits | None:
    return _optimizer_edit(asked, OptimizerName.ADAMW, OptimizerName.ADAMW_8BIT)


def _paged_eight_bit(asked: ChangedJob) -> Edits | None:
    return _optimizer_edit(asked, OptimizerName.ADAMW, OptimizerName.PAGED_ADAMW_8BIT)


def _paged_states(asked: ChangedJob) -> Edits | None:
    """The same eight bits, in pages that the driver moves to the host."""
    return _optimizer_edit(asked, OptimizerName.ADAMW_8BIT, OptimizerName.PAGED_ADAMW_8BIT)


def _optimizer_edit(asked: ChangedJob, before: OptimizerName, after: OptimizerName) -> Edits | None:
    """Another optimizer of the engine's own in the place of one whose states are on the card."""
    optimizer = asked.plan.optimizer
    if optimizer is None or optimizer.name is not before or asked.plan.offload.optimizer:
        return None
    engine = engine_of(asked.plan)
    way = Implementation.TORCHAO if engine.sharding.hands_out_dtensors else Implementation.BNB
    implementation = (
        {"optimizer.implementation": way.value} if asked.names("optimizer.implementation") else {}
    )
    known = after in engine.optimizers
    return {"optimizer.name": after.value, **implementation} if known else None


def _state_offload_edit(asked: ChangedJob) -> Edits | None:
    plan, engine = asked.plan, find_engine(asked.plan.engine)
    if engine is None or "optimizer" not in engine.offload or plan.offload.optimizer:
        return None
    kept = (
        {"offload.activations": True} if plan.offload.activations else {}
    )  # said again: the flag replaces what it said before
    if plan.zero < engine.offloads_parameters_at:
        return {"offload.optimizer": 1, **kept}
    return {"offload.optimizer": 1, "offload.parameters": 1, **kept}


def _more_tensor_parallel(asked: ChangedJob) -> Edits | None:
    """Twice the ranks that share a layer, of one node and of half as many replicas; the global batch stays
    what it was. Of a job that shares its layers already: elsewhere nobody chose an engine for it.
    """
    mesh = asked.plan.mesh
    return _fewer_replicas(asked, "tp") if 1 < mesh.tp <= asked.cluster.per_node // 2 else None


def _more_context_parallel(asked: ChangedJob) -> Edits | None:
    """Twice the ranks that share a sequence, where the engine lets them."""
    return _fewer_replicas(asked, "cp") if "cp" in engine_of(asked.plan).axes else None


def _fewer_replicas(asked: ChangedJob, axis: str) -> Edits | None:
    """Twice the ranks along an axis, of half as many replicas; the global batch stays what it was."""
    given = asked.plan.mesh
    halved = next((name for name in ("dp_shard", "dp_replicate") if getattr(given, name) % 2 == 0), None)
    if halved is None or not isinstance(asked.plan.workload, Training):
        return None
    key = f"mesh.{halved}"
    mesh = {key: getattr(given, halved) // 2} if asked.names(key) else {}
    return {f"mesh.{axis}": getattr(given, axis) * 2, **_same_global_batch(asked), **mesh}


def _more_gpus(asked: ChangedJob) -> Edits | None:
    cluster = asked.cluster
    only = cluster.file or cluster.device.alone
    if not asked.plan.zero or cluster.count * 2 > MAX_DEVICES or only:
        return None
    mesh = {"mesh.dp_shard": asked.plan.mesh.dp_shard * 2} if asked.names("mesh.dp_shard") else {}
    gpus = {"gpus": f"{cluster.count * 2}x{cluster.device.name}"}
    batch = asked.request.get("global_batch")  # said again: as many rounds of more ranks are another batch
    return {**gpus, **_nodes_edit(cluster), **mesh, **({"global_batch": batch} if batch else {})}


def _nodes_edit(cluster: Cluster) -> Edits:
    """The nodes of twice the GPUs, where their number alone lays them out in others."""
    device, count = cluster.device, cluster.count * 2
    usual = min(count, device.per_node or ONE_NODE)
    room = cluster.nodes == 1 and count <= (device.per_node or cluster.per_node)
    per_node = count if room else cluster.per_node
    known = device.per_node is not None or count <= ONE_NODE
    return {} if known and per_node == usual else {"nodes": count // per_node}


def _lora_edit(asked: ChangedJob) -> Edits | None:
    if asked.plan.adapter or engine_of(asked.plan).adapters_apart:
        return None
    return {"adapter.rank": 16, **_named_precision_edit(asked, "bf16-pure")}


def _sixteen_bit_base(asked: ChangedJob) -> Edits | None:
    """A frozen base that is loaded in fp32, in sixteen bits."""
    plan = asked.plan
    wide = plan.precision.parameters is FP32 and plan.quantization is None
    return {"precision.name": "bf16-pure"} if plan.adapter and wide else None


def _sixteen_bit_states(asked: ChangedJob) -> Edits | None:
    plan = asked.plan
    wide = plan.precision.parameters is FP32 or plan.precision.master_weights is not None
    return {"precision.name": "bf16-pure"} if wide and not plan.adapter else None


def _four_bit_base(asked: ChangedJob) -> Edits | None:
    """A base that bitsandbytes holds in eight bits, in four."""
    quantized = asked.plan.quantization
    eight = asked.plan.adapter is not None and quantized is not None and quantized.weights is INT8
    return {"quantization.weights": "nf4"} if eight else None


def _qlora_edit(asked: ChangedJob) -> Edits | None:
    if asked.plan.quantization is not None or engine_of(asked.plan).adapters_apart:
        return None
    return {**(_lora_edit(asked) or {}), "quantization.weights": "nf4"}


CANDIDATES = (
    Candidate(Price.NOTHING, "attention that writes no scores", _unwritten_scores),
    Candidate(Price.NOTHING, "fused loss (logits never exist whole)", _fused_loss),
    Candidate(
        Price.NOTHING, "sequence parallelism (norms and dropouts cut over tp)", _sequence_parallel_edit
    ),
    Candidate(Price.NOTHING, "divide the optimizer's states over replicas (zero 1)", _divided_optimizer_edit),
    Candidate(
        Price.NOTHING,
        "reduce gradients after every micro-batch",
        _every_sync_edit,
        "a reduction each micro-batch (accelerate's sync_each_batch)",
    ),
    Candidate(Price.NOTHING, "expandable segments (fewer gaps in the allocator)", _expandable_segments),
    Candidate(Price.TIME, "no CUDA graphs", _graphs_off, "kernels launched one by one"),
    Candidate(Price.TIME, "recompute every layer", _full_recompute_edit, "about a third more time"),
    Candidate(
        Price.TIME,
        "recompute every layer, without CUDA graphs",
        _full_recompute_without_graphs,
        "about a third more time, kernels launched one by one",
    ),
    Candidate(
        Price.TIME,
        "a smaller micro-batch",
        _smaller_microbatch,
        "the same global batch in more steps",
        "micro-batch {before} to {after}",
    ),
    Candidate(
        Price.TIME,
        "shard more states (ZeRO up)",
        _zero_up,
        "more communication",
        "shard more states (zero {before} to {after})",
    ),
    Candidate(Price.TIME, "frozen base in bf16", _sixteen_bit_base, "the base rounded to bf16"),
    Candidate(
        Price.TIME,
        "offload activations to host memory",
        _activation_offload_edit,
        "host memory, and copies beside the passes",
    ),
    Candidate(
        Price.TIME, "8-bit states in pages of host memory", _paged_states, "host memory and a slower step"
    ),
    Candidate(
        Price.LAYOUT,
        "twice the context parallelism",
        _more_context_parallel,
        "fewer replicas of the model, exchanges in every attention",
        "context parallelism {before} to {after}",
    ),
    Candidate(
        Price.LAYOUT,
        "twice the tensor parallelism",
        _more_tensor_parallel,
        "fewer replicas of the model, more communication in every layer",
        "tensor parallelism {before} to {after}",
    ),
    Candidate(
        Price.HOST, "offload states to host memory", _state_offload_edit, "host memory and a much slower step"
    ),
    Candidate(Price.NUMERICS, "8-bit AdamW", _eight_bit, "another optimizer"),
    Candidate(
        Price.NUMERICS,
        "8-bit AdamW in pages of host memory",
        _paged_eight_bit,
        "another optimizer, host memory",
    ),
    Candidate(Price.NUMERICS, "nf4 base in place of int8", _four_bit_base, "the base rounded to four bits"),
    Candidate(
        Price.ADAPTERS,
        "weights and states in bf16",
        _sixteen_bit_states,
        "no fp32 copy that small updates add up in",
    ),
    Candidate(Price.ADAPTERS, "LoRA, rank 16", _lora_edit, "trains adapters only"),
    Candidate(
        Price.QUANTIZED, "QLoRA, nf4 base and rank 16", _qlora_edit, "trains adapters on a quantized base"
    ),
    Candidate(Price.MACHINES, "twice the GPUs", _more_gpus, "more GPUs", "from {before} to {after}"),
)
"""Of one price the first that fits is taken."""
