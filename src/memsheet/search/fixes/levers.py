"""What practitioners change, in the order they do, when a job does not fit: each lever pulls one thing and
leaves the others as they are.

The order is that of what it costs: precision and recompute are a matter of flags, sharding costs exchanges,
8-bit states are another optimizer, tensor and pipeline parallelism another layout of the run, and host memory
the most time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memsheet.frozen import dataclass, replace
from memsheet.plan.device import Cluster
from memsheet.plan.engine import Engine
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.model import ModelSpec, Moe
from memsheet.plan.plan import Loss, OptimizerName, RecomputeMode
from memsheet.search.train.space import Request, divisors, uneven_stage_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPlan:
    """How a job is run, as far as levers change it; ``request`` makes a question of it. ``precision`` None is
    the engine's own; ``layers`` and ``experts`` are the model's (0 experts where a layer has none).
    """

    engine: Engine
    cluster: Cluster
    fixed: Mapping[str, Any]
    layers: int
    experts: int
    precision: str | None = "fp32"
    recompute: str = "none"
    loss: str
    zero: int
    optimizer: str = "adamw"
    ep: int = 1
    tp: int = 1
    pp: int = 1
    microbatch: int = 1
    offload: tuple[str, ...] = ()

    @property
    def named(self) -> str:
        """The engine that runs it."""
        copies = self.engine.whole_copies_by
        return copies if self.zero == 0 and copies is not None else self.engine.name

    @property
    def ranks(self) -> int:
        """Data-parallel ranks; 0 where the degrees do not divide the devices."""
        others = [
            int(self.fixed.get(f"mesh.{axis}") or degree)
            for axis, degree in (("tp", self.tp), ("pp", self.pp), ("cp", 1))
        ]
        each = others[0] * others[1] * others[2]
        return self.cluster.count // each if self.cluster.count % each == 0 else 0

    def _dealt(self) -> Request:
        """Layers of each stage where they do not come out even and the engine has no rule of its own."""
        uneven = self.pp > 1 and self.layers % self.pp and self.engine.stages is None
        return uneven_stage_layers(self.layers, self.pp) if uneven else {}

    def request(self) -> Request:
        """The question, with what was asked in the first place on top. A global batch that its ranks cannot
        share is left out: bytes are those of a micro-batch, and only its time is not known.
        """
        replicas = self.zero == 0
        made: dict[str, Any] = {
            "engine": self.named, "zero": self.zero, "mesh.dp_replicate": self.ranks if replicas else 1,
            "mesh.dp_shard": 1 if replicas else self.ranks, "mesh.tp": self.tp, "mesh.pp": self.pp, "recompute.mode": self.recompute,
            "loss": self.loss, "optimizer.name": self.optimizer, "microbatch": self.microbatch, "precision.name": self.precision,
            **({"mesh.ep": self.ep} if self.experts else {}), **self._dealt(), **{f"offload.{what}": 1 for what in self.offload},
        }  # fmt: skip
        asked = {key: value for key, value in {**made, **self.fixed}.items() if value is not None}
        together = int(asked["microbatch"]) * self.ranks
        if together and int(asked.get("global_batch", together)) % together:
            del asked["global_batch"]
        return asked


def default_precision(way: TrialPlan) -> str:
    """What the engine computes in unless it is told otherwise, by name."""
    engine = find_engine(way.named)
    return engine.default_precision if engine else ""


def naive_trial_plan(
    engine: Engine, cluster: Cluster, model: ModelSpec, fixed: Mapping[str, Any], microbatch: int
) -> TrialPlan:
    """A whole copy in fp32 on every device, everything kept for backward. What the question says itself
    stays.
    """
    losses = [loss.value for loss in engine.losses]
    whole = 0 if 0 in engine.zero or engine.whole_copies_by else engine.zero[0]
    blocks = model.blocks()
    dtypes = any(key.startswith("precision.") for key in fixed)
    return TrialPlan(
        engine=engine,
        cluster=cluster,
        fixed=fixed,
        zero=whole,
        loss=Loss.PLAIN.value if Loss.PLAIN.value in losses else losses[0],
        microbatch=microbatch,
        precision=None if dtypes else "fp32",
        layers=model.layers,
        experts=max((b.feed_forward.experts for b in blocks if isinstance(b.feed_forward, Moe)), default=0),
    )


Options = Callable[[TrialPlan], Iterator[tuple[str, str, TrialPlan]]]
"""What a lever can do: in words, as flags, and the way after it; the gentlest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """``asks``: the question that it answers; ``why``: what it does; ``spares``: it is taken back unless it
    makes the job fit, for it costs what a flag cannot buy back; ``keeps``: of activations rather than states.
    """

    name: str
    asks: str
    why: str
    options: Options
    spares: bool = False
    keeps: bool = False


def _default_precision_options(way: TrialPlan) -> Iterator[tuple[str, str, TrialPlan]]:
    if way.precision is not None:
        yield default_precision(way), "", replace(way, precision=None)


def _recompute_options(way: TrialPlan) -> Iterator[tuple[str, str, TrialPlan]]:
    modes = [
        mode for mode in way.engine.recompute if mode is not RecomputeMode.SELECTIVE or way.engine.selective
    ]
    for mode in (RecomputeMode.SELECTIVE, RecomputeMode.FULL):
        if way.recompute == "none" and mode in modes:
            yield f"recompute {mode.value}", f"--recompute {mode.value}", replace(way, recompute=mode.value)


def _loss_options(way: TrialPlan) -> Iterator[tuple[str, str, TrialPlan]]:
    for loss in (Loss.FUSED, Loss.CHUNKED):
        if way.loss == "plain" and loss in way.engine.losses:
            yield f"{loss.value} loss", f"--loss {loss.value}", replace(way, loss=loss.value)


def _zero_stage_options(stage: int) -> Options:
    def options(way: TrialPlan) -> Iterator[tuple[str, str, TrialPlan]]:
        if way.zero < stage and stage in way.engine.zero and way.ranks > 1:
            yield f"ZeRO-{stage} over {way.ranks}", f"--zero {stage}", replace(way, zero=stage)

    return options


def _eight_bit(way: TrialPlan) -> Iterator[tuple[str, str, TrialPlan]]:
    if way.optimizer == "adamw" and OptimizerName.ADAMW_8BIT in way.engine.optimizers:
        yield "8-bit AdamW", "--optimizer adamw_8bit", replace(way, optimizer="adamw_8bit")


def _expert_parallel_options(way: TrialPlan) -> Iterator[tuple[str, str, TrialPlan]]:
    if "ep" in way.engine.axes and way.experts:
        shared = (n for n in divisors(way.experts) if way.ep < n and way.ranks % n == 0)
        yield from ((f"ep {n}", f"--ep {n}", replace(way, ep=n)) for n in shared)


def _tensor_parallel_options(way: TrialPlan) -> Iterator[tuple[str, str, TrialPlan]]:
    if "tp" in way.engine.axes:
        yield from (
            (f"tp {n}", f"--tp {n}", replace(way, tp=n)) for n in divisors(way.cluster.per_node) if n > way.tp
        )


def _pipeline_parallel_options(way: TrialPlan) -> Iterator[tuple[str, str, TrialPlan]]:
    if "pp" in way.engine.axes:
        most = way.cluster.count // way.tp
        yield from (
            (f"pp {n}", f"--pp {n}", replace(way, pp=n)) for n in divisors(most) if way.pp < n <= MOST_STAGES
        )


MOST_STAGES = 64
"""More than any published run has."""


def _microbatch_options(way: TrialPlan) -> Iterator[tuple[str, str, TrialPlan]]:
    size = way.microbatch
    while size > 1 and size % 2 == 0:
        size //= 2
        yield f"micro-batch {size}", f"--microbatch {size}", replace(way, microbatch=size)


def _offload_options(way: TrialPlan) -> Iterator[tuple[str, str, TrialPlan]]:
    """Of the optimizer's states, then of all; DeepSpeed's sharding does it, on one rank too."""
    if way.offload:
        return
    stages = [stage for stage in way.engine.zero if stage >= way.zero]
    for what, words in (
        (("optimizer",), "optimizer states on the host"),
        (("optimizer", "parameters"), "all states on the host"),
    ):
        if set(what) <= set(way.engine.offload):
            yield from (
                (words, f"--offload {','.join(what)}", replace(way, zero=stage, offload=what))
                for stage in stages
            )


_RECOMPUTE = Lever(
    name="recompute", asks="Do activations fit beside them?", why="backward computes layers again instead of keeping them", options=_recompute_options
)  # fmt: skip
_LOSS = Lever(
    name="loss", asks="Do the logits fit beside them?", why="logits never exist whole", options=_loss_options
)
_MICROBATCH = Lever(
    name="microbatch",
    asks="A smaller micro-batch?",
    why="fewer activations at once, more steps",
    options=_microbatch_options,
)

LEVERS = (
    Lever(name="precision", asks="In lower precision?", why="matrices are multiplied in 16 bits, and activations take half", options=_default_precision_options),
    replace(_RECOMPUTE, asks="Do activations fit?", keeps=True),
    replace(_LOSS, asks="Do the logits fit?", keeps=True),
    Lever(name="zero 1", asks="Do optimizer states fit?", why="each rank keeps a share of the optimizer's states", options=_zero_stage_options(1)),
    Lever(name="zero 2", asks="Do gradients fit?", why="and of gradients", options=_zero_stage_options(2)),
    Lever(name="zero 3", asks="Does the whole budget fit, ZeRO-3?", why="and of parameters, gathered layer by layer", options=_zero_stage_options(3)),
    _RECOMPUTE,
    _LOSS,
    Lever(name="8-bit", asks="Do states fit in 8 bits?", why="both moments take a byte a parameter", options=_eight_bit, spares=True),
    Lever(name="ep", asks="Spread the experts (expert parallel)?", why="each rank has some of every layer's experts", options=_expert_parallel_options),
    Lever(name="tp", asks="Split every layer (tensor parallel)?", why="each rank has a part of every matrix", options=_tensor_parallel_options),
    Lever(name="pp", asks="Split the layers (pipeline)?", why="each rank has some of the layers", options=_pipeline_parallel_options),
    replace(_MICROBATCH, spares=True),
    Lever(name="offload", asks="Offload states to the host?", why="host memory keeps them, over PCIe", options=_offload_options),
    _RECOMPUTE,
    _LOSS,
    _MICROBATCH,
)  # fmt: skip
"""The last three again: what they save shows where states are gone."""
