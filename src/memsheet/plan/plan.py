"""How a job is run, whole and legal: every choice made, nothing left to a default. ``resolve`` makes
these.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from memsheet.arith import Count, agreed, ceil_div, maximum
from memsheet.frozen import dataclass, hash_once
from memsheet.plan import packages
from memsheet.plan.dtypes import DType
from memsheet.plan.engine_options import EngineOptions
from memsheet.plan.workload import KvCache, Serving, Training, Workload


class RecomputeMode(Enum):
    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"

    __hash__ = object.__hash__  # see sheet.Component


class AttentionKind(Enum):
    EAGER = "eager"
    SDPA = "sdpa"
    FLASH = "flash"
    CUDNN = "cudnn"
    XFORMERS = "xformers"  # memory_efficient_attention of the xformers package

    __hash__ = object.__hash__  # see sheet.Component


class Loss(Enum):
    PLAIN = "plain"
    FUSED = "fused"
    CHUNKED = "chunked"
    VOCAB_PARALLEL = "vocab_parallel"

    __hash__ = object.__hash__  # see sheet.Component


class ContextParallel(Enum):
    """How ranks that share a sequence see each other's keys and values."""

    RING = "ring"
    ALL_GATHER = "all_gather"
    ALL_TO_ALL = "all_to_all"

    __hash__ = object.__hash__  # see sheet.Component


class OptimizerName(Enum):
    ADAMW = "adamw"
    ADAMW_8BIT = "adamw_8bit"
    ADAMW_4BIT = "adamw_4bit"
    SGD = "sgd"
    SGD_MOMENTUM = "sgd_momentum"
    LION = "lion"
    LION_8BIT = "lion_8bit"
    PAGED_ADAMW = "paged_adamw"
    PAGED_ADAMW_8BIT = "paged_adamw_8bit"
    PAGED_LION = "paged_lion"
    PAGED_LION_8BIT = "paged_lion_8bit"
    ADEMAMIX = "ademamix"
    ADEMAMIX_8BIT = "ademamix_8bit"
    PAGED_ADEMAMIX = "paged_ademamix"
    PAGED_ADEMAMIX_8BIT = "paged_ademamix_8bit"
    RMSPROP = "rmsprop"
    RMSPROP_8BIT = "rmsprop_8bit"
    ADAGRAD = "adagrad"
    ADAFACTOR = "adafactor"
    MUON = "muon"
    ADAM_MINI = "adam_mini"
    GALORE = "galore"
    LORA_FA = "lora_fa"

    __hash__ = object.__hash__  # see sheet.Component


PAGED = frozenset({
    OptimizerName.PAGED_ADAMW, OptimizerName.PAGED_ADAMW_8BIT, OptimizerName.PAGED_LION, OptimizerName.PAGED_LION_8BIT,
    OptimizerName.PAGED_ADEMAMIX, OptimizerName.PAGED_ADEMAMIX_8BIT,
})  # fmt: skip
"""bitsandbytes', whose large states are in memory that driver and host share page by page."""
EIGHT_BITS = frozenset({
    OptimizerName.ADAMW_8BIT, OptimizerName.LION_8BIT, OptimizerName.ADEMAMIX_8BIT, OptimizerName.RMSPROP_8BIT,
    OptimizerName.PAGED_ADAMW_8BIT, OptimizerName.PAGED_LION_8BIT, OptimizerName.PAGED_ADEMAMIX_8BIT,
})  # fmt: skip
"""Whose states have eight bits an element."""


class Implementation(Enum):
    FOREACH = "foreach"
    FUSED = "fused"
    LOOP = "loop"
    BNB = "bnb"
    TORCHAO = "torchao"
    APEX = "apex"
    DISTRIBUTED = "distributed"
    TRANSFORMERS = packages.TRANSFORMERS  # its own AdamW

    __hash__ = object.__hash__  # see sheet.Component


class GradientSync(Enum):
    """Which micro-batches of a step reduce gradients over the ranks that share parameters."""

    EVERY = "every"
    LAST = "last"

    __hash__ = object.__hash__  # see sheet.Component


class BackwardPrefetch(Enum):
    """When the flat parameter whose backward is next is gathered: while one runs backward, after it, or when
    its own turn comes (torch 2.13 distributed/fsdp/api.py, BackwardPrefetch).
    """

    PRE = "pre"
    POST = "post"
    NONE = "none"

    __hash__ = object.__hash__  # see sheet.Component


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathers:
    """Gathers of divided parameters. ``secondary_shard``: ranks that divide a second copy, to gather from.
    Of flat parameters ahead of time: ``backward``, None as the engine does it; ``forward``, the next one's
    while one runs forward; ``limited``, the host waits for the device before a third is gathered.
    """

    secondary_shard: int = 1
    backward: BackwardPrefetch | None = None
    forward: bool = False
    limited: bool = True


class AdapterKind(Enum):
    """What is trained beside a frozen model."""

    LORA = "lora"
    DORA = "dora"  # and a magnitude for each output
    LORA_FA = "lora-fa"  # of which only the second matrix is trained
    LLAMA_ADAPTER = "llama-adapter"  # prompts that the last layers attend to
    LLAMA_ADAPTER_V2 = "llama-adapter-v2"  # and norms, scales and biases of every linear layer
    IA3 = "ia3"  # a factor for each output of a layer, or for each input of one of the feed-forward

    VERA = "vera"  # vectors around two matrices of some rank that all layers share and nothing trains
    ADALORA = "adalora"  # LoRA with a factor for each of its ranks, kept near orthogonal by the loss
    OFT = "oft"  # rotations of blocks of what a layer is given
    LOHA = "loha"  # the product, number by number, of two products of two matrices each
    LOKR = "lokr"  # the Kronecker product of two matrices, the second of them of some rank
    LN_TUNING = "ln-tuning"  # copies of norms
    PROMPT_TUNING = "prompt-tuning"  # learned tokens before every sequence
    P_TUNING = "p-tuning"  # the same, made by a small network
    PREFIX_TUNING = "prefix-tuning"  # learned keys and values before those of every layer
    PROJECTED_PREFIX = "prefix-projection"  # the same, made by a small network

    __hash__ = object.__hash__  # see sheet.Component

    @property
    def prompts(self) -> bool:
        """Whether it has prompts in place of matrices of some rank."""
        return self.layered or self.before_text or self.before_keys

    @property
    def ranked(self) -> bool:
        """Whether it has matrices or vectors of some rank."""
        return not self.prompts and self not in (AdapterKind.IA3, AdapterKind.OFT, AdapterKind.LN_TUNING)

    @property
    def before_text(self) -> bool:
        """Whether its prompts are tokens before every sequence."""
        return self in (AdapterKind.PROMPT_TUNING, AdapterKind.P_TUNING)

    @property
    def before_keys(self) -> bool:
        """Whether its prompts are keys and values that attention is given as those of earlier tokens."""
        return self in (AdapterKind.PREFIX_TUNING, AdapterKind.PROJECTED_PREFIX)

    @property
    def whole_product(self) -> bool:
        """Whether its factors are multiplied into a matrix as large as the layer's."""
        return self in (AdapterKind.LOHA, AdapterKind.LOKR)

    @property
    def layered(self) -> bool:
        """Whether its prompts are of single layers, from one on."""
        return self in (AdapterKind.LLAMA_ADAPTER, AdapterKind.LLAMA_ADAPTER_V2)


class Schedule(Enum):
    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZERO_BUBBLE = "zero_bubble"
    DUALPIPE = "dualpipe"
    NAIVE = "naive"  # one process, whose cards work one after another

    __hash__ = object.__hash__  # see sheet.Component


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Degrees of parallelism; dp_replicate · dp_shard · cp · tp · pp ranks. ep and etp reuse those ranks, and
    so does attn_dp: groups of the tp ranks of a server that attend to requests of their own (data-parallel
    attention), while the rest of a layer is of all of them.
    """

    dp_replicate: Count = 1
    dp_shard: Count = 1
    cp: Count = 1
    tp: Count = 1
    pp: int = 1
    vpp: int = 1
    ep: Count = 1
    etp: Count = 1
    attn_dp: Count = 1

    @property
    def attention_tp(self) -> Count:
        """Ranks that cut the heads of a layer: all of tp, or those of one group."""
        return self.tp // self.attn_dp

    @property
    def sharded(self) -> Count:
        """Ranks that FSDP2 divides parameters over: those that share a sequence are among them."""
        return self.dp_shard * self.cp

    @property
    def gpus(self) -> Count:
        return self.dp_replicate * self.dp_shard * self.cp * self.tp * self.pp

    @property
    def data_parallel(self) -> Count:
        return self.dp_replicate * self.dp_shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Declared dtypes. ``autocast``: parameters stay as they are and operations run in ``compute`` with
    cached casts.
    """

    parameters: DType
    compute: DType
    gradients: DType
    reduce: DType
    master_weights: DType | None
    moments: DType

    @property
    def casts(self) -> bool:
        """Whether the parameters are computed with in another dtype than they are kept in."""
        return self.compute is not self.parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """``every``: stretches of so many layers are recomputed together; ``segments``: the stack cut into so
    many stretches; ``layers``: only the first so many are recomputed, each on its own; ``modules``:
    selective, every module of these names. ``reentrant``: whole layers, by torch's checkpoint that runs a
    layer to its end before its backward begins, and names the result until that is over.
    """

    mode: RecomputeMode = RecomputeMode.NONE
    every: int = 1
    layers: int | None = None
    segments: int | None = None
    modules: tuple[str, ...] = ()
    reentrant: bool = False

    @property
    def by_layers(self) -> bool:
        """Whether every so many-th layer is recomputed, and the others are not."""
        return self.mode is RecomputeMode.SELECTIVE and self.modules == ("layer",)

    @property
    def stretched(self) -> bool:
        """Whether several layers are recomputed together."""
        return self.mode is RecomputeMode.FULL and (self.segments is not None or self.every > 1)

    def starts(self, layers: int) -> tuple[int, ...]:
        """The first layer of each stretch; segments differ by one layer at most."""
        if self.segments is None:
            return tuple(range(0, layers, self.every))
        return tuple(number * layers // self.segments for number in range(self.segments))


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    name: OptimizerName
    implementation: Implementation
    rank: Count = 0  # of the projections that some keep moments of


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """LoRA matrices of ``rank`` on the linear layers whose last name is in ``targets``; modules named in
    ``full_modules`` are trained whole.

    A llama-adapter has no rank: ``prompt_length`` learned positions for each layer from ``start_layer`` on.
    Prompt tuning has that many tokens before every sequence, and no targets; those of p-tuning are made by a
    network that is ``encoder_width`` wide inside. OFT rotates blocks of ``block_size`` inputs.
    """

    rank: Count
    targets: tuple[str, ...]
    dtype: DType
    dropout: float = 0.0
    kind: AdapterKind = AdapterKind.LORA
    full_modules: tuple[str, ...] = ()
    prompt_length: int = 0
    start_layer: int = 0
    encoder_width: int = 0
    block_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAdapters:
    """Room that a server keeps for LoRA adapters of up to ``rank``: ``slots`` on the device, ``host`` beside
    it. ``targets``: layers that have it, None for all that the engine puts one on; ``sharded``: tensor
    parallelism cuts both matrices, not one.
    """

    slots: Count
    rank: Count
    targets: tuple[str, ...] | None
    dtype: DType
    host: Count
    sharded: bool = False

    @property
    def alone(self) -> Adapter:
        """One of them as peft has it beside a model."""
        return Adapter(rank=self.rank, targets=self.targets or (), dtype=self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """Storage of the linear weights; modules named in ``skip`` keep the parameters' dtype. ``experts``:
    stacked experts are stored so, too, where the format's library has them as they are. ``storage``: the
    dtype that the packed numbers are kept in, where ranks may divide them.
    """

    weights: DType
    skip: tuple[str, ...] = ()
    experts: bool = False
    storage: DType | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Shares kept in host memory."""

    optimizer: float = 0.0
    parameters: float = 0.0
    activations: bool = False


class Spread(Enum):
    """Which routing of tokens to experts is accounted."""

    BALANCED = "balanced"
    EXPECTED = "expected"
    UNEVEN = "uneven"  # as uneven as trained routers were found to be
    WORST = "worst"

    __hash__ = object.__hash__  # see sheet.Component


ENDS_OF_ROUTING = (Spread.EXPECTED, Spread.BALANCED, Spread.WORST)
"""What is expected of a routing that is open, and its low and high ends."""

MAX_VIOLATION = 0.72
"""How far the most loaded expert was above an even share in a trained model that an auxiliary loss balances:
MaxVio_global of the 1B model of arXiv:2408.15664 (table 2); 0.52 for its 3B, 0.04 for both where biases
balance instead. A rank with several experts has no more than its fullest; it is counted over a whole
validation set (section 2 there), and a single micro-batch may be less even.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How tokens go to experts. ``capacity_factor``: tokens an expert takes, in shares of an even split; None
    drops nothing. ``padded``: experts compute on their whole capacity. ``balanced``: the routing is even by
    decree, else by what the model learned.
    """

    dispatch: str = "alltoall"
    capacity_factor: float | None = None
    padded: bool = False
    balanced: bool = False
    spread: Spread | Any = Spread.EXPECTED
    """Set by account, which asks for ``ENDS_OF_ROUTING``; of a stratum all of them at once: their places
    there, one below the other.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8:
    """Eight-bit matrix products: the scaling ``recipe``, whether weights are kept in 8 bits, whether they are
    gathered so.
    """

    recipe: str
    stored: bool = False
    gathered: bool = False
    skip: tuple[str, ...] = ()


class SpeculativeMethod(Enum):
    """Who drafts the tokens that a server verifies: a smaller model, a head on the model's hidden states, or
    the prompt itself.
    """

    DRAFT = "draft"
    EAGLE = "eagle"
    EAGLE3 = "eagle3"  # on hidden states of three layers, with a vocabulary of its own
    MTP = "mtp"  # the checkpoint's own layers for further tokens (NEXTN)
    NGRAM = "ngram"

    @property
    def headed(self) -> bool:
        """Whether it reads the hidden states of the model it drafts for."""
        return self in (SpeculativeMethod.EAGLE, SpeculativeMethod.EAGLE3, SpeculativeMethod.MTP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculative:
    """``tokens``: drafted for each sequence and verified at once, one after another (no tree); ``model``: the
    name of who drafts them.
    """

    method: SpeculativeMethod
    tokens: Count
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One way to run a job on a cluster."""

    __hash__ = hash_once

    workload: Workload
    engine: str
    engine_version: str | None
    mesh: Mesh
    zero: int
    reshard_after_forward: bool
    schedule: Schedule | None
    layers_per_stage: tuple[int, ...] | None
    vocab_multiple: int
    precision: Precision
    optimizer: Optimizer | None
    recompute: Recompute
    attention: AttentionKind
    loss: Loss
    dropout: float
    adapter: Adapter | None = None
    quantization: Quantization | None = None
    offload: Offload = Offload()
    expandable_segments: bool = False
    cache: KvCache = KvCache()
    options: EngineOptions = EngineOptions()  # the engine's own
    served_adapters: ServedAdapters | None = None
    optimizer_in_backward: bool = False
    gradient_sync: GradientSync | None = None  # None: nobody says
    gathers: Gathers = Gathers()
    sequence_parallel: bool = False
    context_parallel: ContextParallel | None = None
    compile: bool = False
    async_tp: bool = False
    routing: Routing | None = None
    fp8: Fp8 | None = None
    cuda_graphs: tuple[str, ...] = ()
    speculative: Speculative | None = None
    end_stages: tuple[int, int] | None = None  # of embeddings and head, if others
    before_ampere: bool = False  # the card is known to have no bf16 units, and no flash kernels

    @property
    def staged(self) -> bool:
        """Whether micro-batches wait in a pipeline for their backward: not where one process has it."""
        return self.mesh.pp > 1 and self.schedule is not Schedule.NAIVE

    @property
    def task(self) -> str:
        """What documents and screens call the kind of workload."""
        return "train" if isinstance(self.workload, Training) else "infer"

    @property
    def training(self) -> Training:
        """The workload of a plan that trains."""
        assert isinstance(self.workload, Training)
        return self.workload

    @property
    def serving(self) -> Serving:
        """The workload of a plan that serves."""
        assert isinstance(self.workload, Serving)
        return self.workload

    @property
    def virtual_tokens(self) -> int:
        """Learned tokens that an adapter puts before every sequence (peft 0.21.2 config.py
        PromptLearningConfig.num_virtual_tokens).
        """
        return self.workload.virtual_tokens if isinstance(self.workload, Training) else 0

    @property
    def past_tokens(self) -> int:
        """Learned keys and values of each layer before those of every sequence."""
        return self.adapter.prompt_length if self.adapter is not None and self.adapter.kind.before_keys else 0

    @property
    def accumulation(self) -> Count:
        """Micro-batches per optimizer step on one data-parallel rank."""
        batch = self.training
        if batch.global_batch is None:
            return 1
        per_pass = batch.microbatch * self.mesh.data_parallel
        return maximum(1, ceil_div(batch.global_batch, maximum(1, per_pass)))

    @property
    def last_microbatch(self) -> Count:
        """Sequences of the last micro-batch of a step, which is smaller where the global batch is no
        multiple.
        """
        batch = self.training
        if batch.global_batch is None:
            return batch.microbatch
        return batch.global_batch // self.mesh.data_parallel - batch.microbatch * (self.accumulation - 1)


def depends_on_routing(plan: Plan) -> bool:
    """Whether the number of copies that a rank's experts are given depends on the routing."""
    routing = plan.routing
    return (
        routing is not None
        and routing.spread is Spread.EXPECTED
        and not routing.balanced
        and not routing.padded
        and not agreed(plan.mesh.ep == 1)
    )
