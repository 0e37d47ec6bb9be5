"""What an engine keeps and what it can do, as data. One file an engine fills this in (``memsheet/engines``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from memsheet.sheet import Evidence
from memsheet.spec.model import Role
from memsheet.spec.plan import AttentionKind, Implementation, Loss, OptimizerName, RecomputeMode, Schedule


class Sharding(Enum):
    """How data-parallel ranks divide states, which also decides the buffers."""

    REPLICATED = "replicated"  # DistributedDataParallel
    FSDP2 = "fsdp2"  # per parameter, along dimension 0, padded
    DEEPSPEED = "deepspeed"  # flat buffers

    @property
    def keeps_whole_gradients(self) -> bool:
        """Whether autograd's own gradients are what accumulates between micro-batches."""
        return self is Sharding.REPLICATED


class Code(Enum):
    """Whose model code runs: the transformers library's, or an engine's own (``formulas/model_code``)."""

    TRANSFORMERS = "transformers"
    MEGATRON = "megatron"
    TORCHTITAN = "torchtitan"
    TORCHTUNE = "torchtune"
    LITGPT = "litgpt"
    LLM_FOUNDRY = "llm_foundry"
    INTERNEVO = "internevo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Facts of one engine. ``evidence`` maps a fact's name to its source."""

    name: str
    tested: str  # the version whose source was read
    tasks: tuple[str, ...]
    axes: tuple[str, ...]  # mesh degrees that may exceed 1 in training
    serving_axes: tuple[str, ...] = ()  # and in inference
    real_axes: tuple[str, ...] = ()  # and, beyond those, where its own code is run instead of modelled
    real_schedules: tuple[Schedule, ...] = ()
    bare_axes: tuple[str, ...] = ()  # and those that may where only states are asked, which they divide evenly
    zero: tuple[int, ...]
    real_zero: tuple[int, ...] = ()
    default_zero: int
    sharding: Sharding
    code: Code = Code.TRANSFORMERS
    models: frozenset[str] = frozenset()  # keys of a plan that are refused elsewhere (``spec.defaults.UNMODELLED``) and accounted here
    default_precision: str
    precisions: tuple[str, ...]
    takes_remainder: bool = False  # a step's last micro-batch may be smaller than the others
    steps_in_backward: bool = False  # its optimizers can step a parameter when its gradient arrives
    autocast: bool  # parameters kept in fp32 are cast operation by operation, copies cached until forward ends
    attention: tuple[AttentionKind, ...] = (AttentionKind.SDPA, AttentionKind.EAGER, AttentionKind.FLASH)
    losses: tuple[Loss, ...] = (Loss.PLAIN, Loss.FUSED)
    recompute: tuple[RecomputeMode, ...] = (RecomputeMode.NONE, RecomputeMode.FULL)
    schedules: tuple[Schedule, ...] = ()
    optimizers: tuple[OptimizerName, ...]
    default_implementation: Implementation
    adapter_dtype: str = "fp32"  # that adapters are trained in; peft raises them unless the engine casts the whole model
    offload: tuple[str, ...] = ()
    processor: bool = False  # computes on a CPU, whose kernels are others; set by account, not by an engine's file
    whole_roles: frozenset[Role] = frozenset()  # tensors every tensor-parallel rank keeps whole
    whole_latent: bool = False  # latent attention is not split
    splits_experts_over_tp: bool = False  # routed experts are cut over the tensor-parallel ranks (etp = tp)
    evidence: dict[str, Evidence] = field(default_factory=dict)
