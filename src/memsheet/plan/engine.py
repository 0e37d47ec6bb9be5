"""What an engine keeps and what it can do, as data. One file an engine fills this in
(``memsheet/engines``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from memsheet.frozen import dataclass, field
from memsheet.plan.defaults import CACHE_DTYPES
from memsheet.plan.dtypes import DType
from memsheet.plan.engine_options import EngineOptions
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.model import ModelSpec, Role, StoredQuantization
from memsheet.plan.packages import TRANSFORMERS
from memsheet.plan.plan import (
    AdapterKind,
    AttentionKind,
    BackwardPrefetch,
    ContextParallel,
    GradientSync,
    Implementation,
    Loss,
    Mesh,
    OptimizerName,
    Precision,
    RecomputeMode,
    Schedule,
    ServedAdapters,
)
from memsheet.plan.server_limits import ServerLimits
from memsheet.plan.serving_facts import ServingFacts
from memsheet.plan.speculative import Drafting
from memsheet.sheet import Evidence


class Sharding(Enum):
    """By which algorithm data-parallel ranks divide states, which also decides the buffers: a module each of
    ``formulas/sharding``.
    """

    REPLICATED = "replicated"  # every rank has all, as under DistributedDataParallel
    FLAT_SHARDS = "flat_shards"  # a flat parameter for each wrapped module
    PER_PARAMETER_SHARDS = "per_parameter_shards"  # each along dimension 0, padded
    PARTITIONED = "partitioned"  # flat buffers, cut evenly: ZeRO's stages
    DISTRIBUTED_OPTIMIZER = (
        "distributed_optimizer"  # a buffer of parameters and one of gradients on every rank
    )
    WHOLE_PARAMETER_OWNERS = "whole_parameter_owners"  # parameters dealt to ranks, which keep their states

    @property
    def gathers(self) -> bool:
        """Whether parameters are gathered unit by unit, cast to the dtype they are computed in."""
        return self in (Sharding.FLAT_SHARDS, Sharding.PER_PARAMETER_SHARDS)

    @property
    def leaves_tensors(self) -> bool:
        """Whether no rank's optimizer has states of a part of a tensor each, cut wherever its share ends."""
        return self is not Sharding.DISTRIBUTED_OPTIMIZER

    @property
    def nests_units(self) -> bool:
        """Whether what a unit inside a layer gathers and reduces apart from it is written down here."""
        return self is Sharding.PER_PARAMETER_SHARDS

    @property
    def casts_arguments(self) -> bool:
        """Whether every unit's floating arguments are cast as its parameters are (torch
        _fsdp_state.py:240-250, MixedPrecisionPolicy.cast_forward_inputs; FSDP1 casts the root's alone).
        """
        return self is Sharding.PER_PARAMETER_SHARDS

    @property
    def divides_tensors(self) -> bool:
        """Whether a parameter is divided by itself, whatever stands beside it."""
        return self in (Sharding.PER_PARAMETER_SHARDS, Sharding.PARTITIONED)

    @property
    def divides_floating(self) -> bool:
        """Whether packed parameters are divided where their dtype is a floating one alone (accelerate 1.14
        utils/fsdp_utils.py:789-811).
        """
        return self is Sharding.PER_PARAMETER_SHARDS

    @property
    def hands_out_dtensors(self) -> bool:
        """Whether the parameters that an optimizer is given are DTensors. bitsandbytes' steps are operators
        without a sharding strategy, which are given them beside plain tensors: torch stops at the first step
        (bitsandbytes 0.50.2 functional.py:1192, optimizer_update_8bit_blockwise, and :1137,
        optimizer_update_32bit; torch 2.13 distributed/tensor/_dispatch.py).
        """
        return self is Sharding.PER_PARAMETER_SHARDS

    @property
    def frees_as_asked(self) -> bool:
        """Whether ``reshard_after_forward`` is a choice of its own there."""
        return self is Sharding.PER_PARAMETER_SHARDS


class Runner(Enum):
    """How an engine's real step is run here (``run``)."""

    WHOLE_MODULE = "whole module"  # called as it is; DistributedDataParallel is around it on several ranks
    SHARDED_UNITS = "sharded units"  # each gathered by fully_shard before it is called
    OWN_ENGINE = "own engine"  # handed to the library's own engine, which steps and keeps its own copies

    @property
    def needs_group(self) -> bool:
        """Whether there is a process group on one device, too."""
        return self is not Runner.WHOLE_MODULE


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanArrays:
    """How far an engine's formulas account many plans as one whose counts are arrays (``search``).
    ``pipelines``: numbers of layers and stages, too, as nothing is gathered for a layer. ``one_by_one``: not
    at all, whole parameters being dealt to ranks.
    ``adds_to_buffer``: gradients are added to a buffer that is there anyway, accumulating or not.
    """

    pipelines: bool = False
    one_by_one: bool = False
    adds_to_buffer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatWrapping:
    """How parameters are flattened unit by unit. ``backward_prefetch``: where a plan does not say it.
    ``keeps_outputs``: the trainer names what the model returned until its next forward is over.
    ``table_apart``: a tied table is a unit of its own, gathered for embeddings, then for the head and from
    there through backward. ``loss_outside``: the loss is taken of what the root's forward has returned, and
    its tape has what is gathered when backward comes to that.
    """

    backward_prefetch: BackwardPrefetch = BackwardPrefetch.PRE  # fully_sharded_data_parallel.py:404
    keeps_outputs: bool = False
    table_apart: bool = False
    loss_outside: bool = False


@dataclass(frozen=True, slots=True)
class UnitWrapping:
    """How parameters are gathered unit by unit where each is sharded by itself, besides one unit a layer."""

    joined: bool = False  # embeddings and head with the root, each with its own table
    last_stays: bool = False  # the last layer is not resharded after its forward
    loss_reduces: bool = False  # a loss in chunks reduces the head's gradient itself, before backward begins
    loss_outside: bool = False  # the loss is taken of what the root's forward has returned
    keeps_outputs: bool = False  # a pipeline's last stage keeps what it returned of every micro-batch


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKernels:
    """What decides, besides shapes, how long an engine's layers take. ``fused``: norms, rotations and gates
    are kernels of their own, and queries, keys and values one matrix. ``attention``: whose.
    ``adds_in_products``: a weight's gradient is added to an fp32 buffer inside its product.
    ``recomputes_whole``: recompute runs a layer to its end. ``balances_ranks``: ranks that share a sequence
    take a chunk from each end of it. ``attends_to_gathered``: to gathered keys all at once, not rank by rank.
    ``hides_tensor_exchanges``: backward's of tensor parallelism run beside products.
    """

    fused: bool = False
    attention: str = "fa2"  # torch's and flash-attn's own are FlashAttention-2
    adds_in_products: bool = False
    recomputes_whole: bool = False
    balances_ranks: bool = False
    attends_to_gathered: bool = False
    hides_tensor_exchanges: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Facts of one engine. ``evidence`` maps a fact's name to its source."""

    name: str
    tested: str  # the version whose source was read
    tasks: tuple[str, ...]
    axes: tuple[str, ...]  # mesh degrees that may exceed 1 in training
    serving_axes: tuple[str, ...] = ()  # and in inference
    cache_dtypes: (
        tuple[str, ...] | None
    ) = ()  # of keys and values besides the one they are computed in; None has a list of its own
    real_axes: tuple[str, ...] = ()  # and, beyond those, where its own code is run instead of modelled
    real_schedules: tuple[Schedule, ...] = ()
    bare_axes: tuple[
        str, ...
    ] = ()  # and those that may where only states are asked, which they divide evenly
    zero: tuple[int, ...]
    real_zero: tuple[int, ...] = ()
    default_zero: int
    sharding: Sharding
    layers: str | None = None  # the engine's folder whose model code it runs; None is the library's
    layer_kernels: LayerKernels = LayerKernels()
    server: str = TRANSFORMERS  # the folder whose ``server`` accounts its inference
    served: Callable[..., Mapping[str, Any]] | None = (
        None  # a server's defaults: of (request, card, mesh, latent=, sparse=whether attention is, model=)
    )
    serving: ServingFacts = ServingFacts()  # how it serves, where that differs from others
    limits: ServerLimits = ServerLimits()  # what it does not take of cards and dtypes when it serves
    drafting: Drafting = Drafting()  # how it drafts tokens to verify
    cache_names: tuple[str, ...] = CACHE_DTYPES  # dtypes that a plan may name for the cache
    one_cache: bool = False  # its sequences share one, so that a batch may be smaller than what is allowed
    stores_gguf: bool = False  # its weights are tensors of GGUF files, in their types and mixes of them
    version_form: str = r"\d"  # what a version has that names a release, a pattern
    version_example: str = "a release, a commit or a date, for example 5.13.1 (torch 2.13.0)"
    experts_whole: bool = False  # with expert parallelism every expert is whole on its rank
    models: frozenset[str] = (
        frozenset()
    )  # keys of a plan that are refused elsewhere (``plan.defaults.UNMODELLED``) and accounted here
    default_precision: str
    precisions: tuple[str, ...]
    adapter_precisions: tuple[str, ...] = ()  # and those it may beside an adapter
    copies_adapters: bool = False  # its optimizer keeps copies of adapters in higher precision, too
    adapters_apart: str = ""  # who else adds adapters, where it has none of its own: no search takes it then
    takes_remainder: bool = False  # a step's last micro-batch may be smaller than the others
    steps_in_backward: bool = False  # its optimizers can step a parameter when its gradient arrives
    autocast: (
        bool  # parameters kept in fp32 are cast operation by operation, copies cached until forward ends
    )
    attention: tuple[AttentionKind, ...] = (AttentionKind.SDPA, AttentionKind.EAGER, AttentionKind.FLASH)
    usual_attention: Callable[[set[str], str | None], AttentionKind] | None = (
        None  # of layers' kinds and version; None is the first that it has
    )
    context_parallel: tuple[
        ContextParallel, ...
    ] = ()  # how its ranks share a sequence where ``cp`` may exceed 1; the first is the default
    losses: tuple[Loss, ...] = (Loss.PLAIN, Loss.FUSED)
    recompute: tuple[RecomputeMode, ...] = (RecomputeMode.NONE, RecomputeMode.FULL)
    usual_recompute: RecomputeMode = RecomputeMode.NONE  # where nobody says
    schedules: tuple[Schedule, ...] = ()
    spreads_layers: bool = False  # one process may put layers on several cards, which work in turn
    policies: frozenset[str] = (
        frozenset()
    )  # what it may recompute besides modules: chosen operations, every so many-th layer
    dealt: Callable[[int, int, Mapping[str, Any]], tuple[int, ...] | None] | None = (
        None  # and where a request says of its own how layers are dealt, None where it does not
    )
    stages: Callable[[int, int, str | None], tuple[int, ...] | None] | None = (
        None  # layers of each pipeline stage, of layers, stages, version
    )
    torch_pipelining: bool = False  # its stages are those of torch's distributed/pipelining
    whole_in_pipelines: bool = (
        False  # parameters stay gathered from forward to backward where there are several stages
    )
    gradient_sync: GradientSync | None = None  # of its own loop; None leaves it open
    varies: bool = False  # pads a batch to its longest sample: a maximum of lengths says that they differ
    replays: bool = False  # its step's allocations can be played through the allocator
    usual_loss: Callable[[int, str | None], Loss] | None = (
        None  # of tensor-parallel ranks and version; None is plain
    )
    optimizers: tuple[OptimizerName, ...]
    default_implementation: Implementation
    implementations: Mapping[OptimizerName, tuple[Implementation, ...]] = field(
        default_factory=dict
    )  # how its optimizers can be stepped, the usual way first, where that is not as in most engines
    own_kernel_steps: bool = False  # a fused kernel of its own steps its flat buffers, and nothing else can
    adapters: tuple[AdapterKind, ...] = (AdapterKind.LORA,)
    usual_targets: tuple[str, ...] = ()  # of LoRA where its scripts have a default of their own
    targets: frozenset[str] = (
        frozenset()
    )  # of LoRA, that its own model code has whatever a model calls its layers
    adapter_dtype: str = (
        "fp32"  # that adapters are trained in; peft raises them unless the engine casts the whole model
    )
    offload: tuple[str, ...] = ()
    never_offloads: Mapping[str, str] = field(
        default_factory=dict
    )  # what the release that was read cannot move to the host, and why
    trains_towers: bool = False  # text alone beside a vision tower was compared with its real code
    trains_other_heads: bool = (
        False  # and so were models that are not one row of layers with words at its end
    )
    offloads_unrecomputed: bool = False  # activations of layers that are not recomputed, too
    casts_whole_model: bool = False  # and runs nothing under autocast, which the Trainer has on for bf16 too
    older_releases: bool = False  # what torch and the Trainer did otherwise in older releases is modelled
    eight_bit_embeddings: bool = (
        False  # embeddings have 8-bit states as well; the Trainer keeps 32 bits there
    )
    streams_offload: bool = False  # activations are copied to the host beside the passes
    processor: bool = (
        False  # computes on a CPU, whose kernels are others; set by account, not by an engine's file
    )
    whole_roles: frozenset[Role] = frozenset()  # tensors every tensor-parallel rank keeps whole
    divides_scales: bool = False  # its four bits are tensors of torchao's, whose scales are cut as they are
    whole_latent: bool = False  # latent attention is not split
    splits_experts_over_tp: bool = False  # routed experts are cut over the tensor-parallel ranks (etp = tp)
    vocab_multiple: int = 1  # that it pads the vocabulary to, times tp, unless the plan says another
    scatters_for_experts: bool = (
        False  # it trains experts over tensor-parallel ranks with sequence_parallel only
    )
    selective: tuple[str, ...] = ()  # what selective recompute recomputes unless the plan names modules
    workspaces: tuple[str, ...] = ()  # entries of overheads.toml that its libraries take besides cuBLAS
    roots_frozen_ends: bool = (
        False  # fully_shard leaves embeddings and head to the root where an adapter trains
    )
    launched_expandable: Callable[[str | None], bool] = (
        lambda _: False  # whether a version's own launch script asks for the allocator's expandable segments
    )
    alone: Engine | None = None  # its facts on one GPU, where they are others
    adapted: Engine | None = None  # and on several where an adapter trains
    flat_wrapping: FlatWrapping = FlatWrapping()  # where parameters are flattened
    unit_wrapping: Callable[[str | None], UnitWrapping] = lambda _: UnitWrapping()  # of a version, where not
    runner: Runner | None = None  # how its real step is run here; None is not at all
    searched: int | None = (
        None  # its place among those that a search tries unasked: they train any model from its configuration
    )
    arrays: PlanArrays = PlanArrays()
    whole_copies_by: str | None = (
        None  # the engine that trains the same model code as whole copies, where it has no stage 0
    )
    offloads_parameters_at: int = 0  # the stage of ZeRO from which parameters may lie on the host
    prefill_unknown: bool = (
        False  # prefill is a range up to the whole batch at once where nobody says how long prompts are
    )
    evidence: dict[str, Evidence] = field(default_factory=dict)

    @property
    def divides_states(self) -> bool:
        """Whether it has a stage of ZeRO at all."""
        return any(self.zero)


def server_engine(**facts: Any) -> Engine:
    """The facts of an engine that only serves: what it would say of training is said once, here. ``facts``
    are its own.
    """
    common: dict[str, Any] = {
        "tasks": ("infer",), "axes": (), "zero": (0,), "default_zero": 0, "sharding": Sharding.REPLICATED, "default_precision": "bf16-pure",
        "precisions": ("bf16-pure",), "autocast": False, "losses": (), "recompute": (RecomputeMode.NONE,), "optimizers": (OptimizerName.ADAMW,),
        "default_implementation": Implementation.FUSED,
    }  # fmt: skip
    return Engine(**{**common, **facts})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRules:
    """Whole rules of one engine about a request, where a field of its facts would not do: what only it
    refuses, or takes where nobody says. ``engines/<name>/defaults.py`` holds them as ``RULES`` and is found
    by ``engine_registry.rules_of``; an engine without that file has these. A rule is asked after what holds
    for every engine, and reports to ``gaps``; ``gaps.is_wrong`` says what was refused before it.
    """

    own_options: Callable[[RequestResolver], EngineOptions] = lambda _: EngineOptions()
    # of what is taken where nobody says, what the model changes
    usual_options: Callable[[RequestResolver, ModelSpec | None, Mapping[str, Any]], Mapping[str, Any]] = (
        lambda _, __, usual: usual
    )
    check_pages: Callable[[RequestResolver, int, ModelSpec | None], None] = lambda *_: None
    check_mesh: Callable[[RequestResolver, Mesh, ModelSpec | None], None] = lambda *_: None
    check_cache: Callable[[RequestResolver, DType, Precision, ModelSpec | None], None] = lambda *_: None
    # of weights, by a name that only its files have
    stored_dtype: Callable[[str], DType | None] = lambda _: None
    # whether released weights stay as they are stored
    keeps_stored: Callable[[StoredQuantization], bool] = lambda _: True
    # the room for adapters that is asked for; None where no such room is modelled
    served_adapters: Callable[[RequestResolver, ModelSpec | None, Mesh, Precision], ServedAdapters] | None = (
        None
    )
