"""What a model is made of, as data: every parameter tensor once, and the shapes its operations work on.

A reader writes a ModelSpec; formulas only read it. Shapes are those of the model's own code
(``out, in`` for a linear layer), paths are its own module names with layer indices folded to ``*``.
"""

from __future__ import annotations

from enum import Enum
from math import prod
from typing import TYPE_CHECKING

from memsheet.frozen import dataclass, field, hash_once

if TYPE_CHECKING:
    from memsheet.recording import RecordedCache, RecordedPart, Recording


class Role(Enum):
    """What a parameter tensor is used for; decides quantization, adapters and sharding."""

    LINEAR = "linear"  # the matrix of a linear layer (or convolution used as one)
    EXPERT = "expert"  # matrices of routed experts, dimension 0 counts the experts
    EMBEDDING = "embedding"
    HEAD = "head"  # output projection to the vocabulary
    NORM = "norm"
    BIAS = "bias"
    EXPERT_BIAS = "expert_bias"
    ROUTER = "router"
    OTHER = "other"  # anything else that trains: state-space parameters, sinks, gates
    BUFFER = "buffer"  # kept on the device, never trained, not counted as a parameter

    __hash__ = object.__hash__  # see sheet.Component


class Graded(Enum):
    """Whether a step leaves a gradient of a parameter."""

    TRAINED = "trained"
    IDLE = "idle"  # it would take one, and no step of words alone reaches it
    FROZEN = "frozen"  # the model's code asks for none

    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """One parameter tensor.

    ``cut``: the dimension that tensor parallelism may split (expert tensor parallelism for experts), or None
    where every rank keeps a copy (norms, routers, latent down-projections). ``units``: how many indivisible
    pieces lie along that dimension (heads); 0 when elements may be split freely. ``padded``: a vocabulary
    dimension that an engine may pad. ``even``: whole where ranks do not divide the units.
    ``least``: elements along the cut that a rank of several is padded to.
    ``repeated``: elements along the cut that lie in ``groups``, which ranks
    that outnumber those repeat. ``transposed``: a linear layer's that is kept as (in, out), as
    transformers' Conv1D keeps it.
    """

    path: str
    shape: tuple[int, ...]
    role: Role
    cut: int | None = None
    units: int = 0
    even: bool = False
    least: int = 0
    repeated: int = 0
    groups: int = 0
    padded: bool = False
    transposed: bool = False
    copies: int = 1
    dtype: str | None = None  # fixed by the model's code whatever the run's precision
    adapter: bool = (
        False  # an adapter's own by the model's code: trains beside a frozen base, in the adapter's dtype
    )
    graded: Graded = Graded.TRAINED

    @property
    def elements(self) -> int:
        return prod(self.shape) * self.copies


class NormKind(Enum):
    """How a norm is computed, which decides what it saves for backward."""

    RMS = "rms"  # x in fp32, normalised, cast back, then times the weight
    RMS_OFFSET = "rms_offset"  # times (1 + weight) in fp32, then cast back
    RMS_FP32_SCALE = "rms_fp32_scale"  # times the weight in fp32, then cast back
    # squares in fp32, the input as it is times their root, cast where the weight is low (t5)
    RMS_UNCAST = "rms_uncast"
    LAYER = "layer"  # torch's fused layer norm
    LAYER_NO_AFFINE = "layer_no_affine"
    LAYER_WIDE = "layer_wide"  # without affine, on the input raised to fp32, the result lowered again (olmo)
    LAYER_OFFSET = (
        "layer_offset"  # times (1 + weight); under autocast cast by hand to the low dtype (nemotron)
    )
    LAYER_UNFUSED = "layer_unfused"  # written out in elementwise operations (cohere)
    GATED_RMS = "gated_rms"  # multiplied by an activated gate (state-space models)
    L2 = "l2"

    __hash__ = object.__hash__  # see sheet.Component


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """A normalisation over the last ``size`` elements. ``path`` is its module's name inside the block."""

    path: str
    kind: NormKind
    size: int
    weights: tuple[Weight, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Softmax attention over grouped keys and values; ``window`` is a sliding window in tokens, ``chunk`` a
    chunk length.
    """

    path: str
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int | None = None  # elements of a value's head where they are not head_dim
    rotary_dim: int = 0
    causal: bool = True
    window: int | None = None
    chunk: int | None = None
    caches_all: bool = False  # the window masks scores alone: every token stays in the cache
    qk_norm: Norm | None = None  # size is head_dim (per head) or the whole projection width
    fused_qkv: bool = False
    softcap: float | None = None
    sinks: bool = False
    position_bias: bool = False  # relative (T5) or linear (ALiBi) bias added to the scores
    gated_output: bool = False  # output multiplied by a sigmoid gate from the query projection
    shares_kv: bool = False  # reads the keys and values of an earlier layer, and keeps none
    value_is_key: bool = False  # values are what the key projection makes; there is no other matrix
    index_dim: int = 0  # elements of the key by which an indexer picks the blocks that are attended to
    weights: tuple[Weight, ...]

    @property
    def kv_width(self) -> int:
        """Elements of a token's key and value in one head."""
        return 2 * self.head_dim if self.value_dim is None else self.head_dim + self.value_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttention:
    """Attention whose keys and values come from another sequence (encoder output, image tokens) of width
    ``memory_hidden``.
    """

    path: str
    heads: int
    kv_heads: int
    head_dim: int
    memory_hidden: int
    qk_norm: Norm | None = None
    weights: tuple[Weight, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention: keys and values come from one latent of ``kv_lora_rank`` and a shared
    rotary key.
    """

    path: str
    heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    rotates: bool = True  # whether what heads share has a position
    index_dim: int = (
        0  # elements of the key by which an indexer picks a token's few others (sparse attention)
    )
    index_tokens: int = 0  # how many others it picks
    weights: tuple[Weight, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpace:
    """A selective state-space mixer. State kept for a sequence: ``state_elements`` plus ``conv_elements``."""

    path: str
    kind: str  # mamba, mamba2, short_conv
    inner: int
    state: int
    conv_kernel: int
    heads: int = 0
    groups: int = 0
    chunk: int = 0  # tokens that are scanned at once (mamba2)
    state_elements: int
    conv_elements: int
    state_dtype: str | None = None  # that its config names for a server's recurrent state
    weights: tuple[Weight, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttention:
    """Attention with a matrix state in place of a cache (gated delta net, lightning)."""

    path: str
    kind: str
    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    state_elements: int
    conv_elements: int
    state_dtype: str | None = None  # that its config names for a server's recurrent state
    weights: tuple[Weight, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent:
    """A recurrent mixer with a vector state (RG-LRU, RWKV time mix)."""

    path: str
    kind: str
    width: int
    state_elements: int
    conv_elements: int = 0
    weights: tuple[Weight, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMixer:
    """A mixer of which only its cache is known: what its own code keeps between tokens."""

    path: str
    cache: RecordedCache
    weights: tuple[Weight, ...] = ()


Mixer = (
    Attention | CrossAttention | LatentAttention | StateSpace | LinearAttention | Recurrent | RecordedMixer
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """A feed-forward layer; ``gated`` ones have two input projections, ``fused`` ones keep them in one
    matrix.
    """

    path: str
    intermediate: int
    activation: str
    gated: bool
    fused: bool = False
    weights: tuple[Weight, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """Routed experts: each token goes to ``experts_per_token`` of ``experts``, and through ``shared``
    always.
    """

    path: str
    experts: int
    experts_per_token: int
    intermediate: int
    activation: str
    gated: bool = True
    shared: Dense | None = None
    groups: int = 1  # of experts, of which the router takes the best first
    weights: tuple[Weight, ...]  # router and routed experts; the shared expert carries its own

    @property
    def routed(self) -> tuple[Weight, ...]:
        return tuple(w for w in self.weights if w.role in (Role.EXPERT, Role.EXPERT_BIAS))


FeedForward = Dense | Moe


class Arrangement(Enum):
    """How a block joins mixer, feed-forward, norms and residuals."""

    PRE = "pre"  # x + mix(norm(x)); x + ff(norm(x))
    POST = "post"  # norm(x + mix(x)); norm(x + ff(x))                      (bert, the first gpt)
    SANDWICH = "sandwich"  # x + norm(mix(norm(x))), the same for ff         (gemma2)
    POST_BRANCH = "post_branch"  # x + norm(mix(x)); x + norm(ff(x))         (olmo2)
    PARALLEL = "parallel"  # x + mix(norm(x)) + ff(norm(x)), one norm        (phi, gptj, cohere)
    PARALLEL_TWO_NORMS = "parallel_two_norms"  # the same with a norm each   (gpt_neox, falcon-40b)
    MIXER_ONLY = "mixer_only"  # x + mix(norm(x))                            (mamba)
    FEED_FORWARD_ONLY = "feed_forward_only"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One layer. ``kind`` names the code that runs it (usually the model_type), which decides what it
    saves.
    """

    __hash__ = hash_once

    kind: str
    hidden: int
    arrangement: Arrangement
    mixers: tuple[Mixer, ...] = ()
    feed_forward: FeedForward | None = None
    norms: tuple[Norm, ...] = ()
    extras: tuple[Weight, ...] = ()  # tensors of the block that belong to none of its parts
    residual_scale: bool = False  # branches multiplied by a constant before the residual (granite)
    wide_residual: bool = False  # what it hands on is fp32 whatever the parameters' dtype (mamba)
    wide_input: bool = False  # so is what it is handed
    recorded: RecordedPart | None = None  # where its own code is on record
    streams: int = 1  # hidden states of a token that layers hand on, mixed before and after each (AltUp)

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Every parameter tensor of the block, once."""
        ff = self.feed_forward
        shared = ff.shared.weights if isinstance(ff, Moe) and ff.shared else ()
        qk = tuple(
            w
            for m in self.mixers
            if isinstance(m, Attention | CrossAttention) and m.qk_norm
            for w in m.qk_norm.weights
        )
        return (
            *(w for m in self.mixers for w in m.weights),
            *qk,
            *(ff.weights if ff else ()),
            *shared,
            *(w for n in self.norms for w in n.weights),
            *self.extras,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """``pattern`` repeated ``count`` times. Runs of a stack that name the same ``shared`` key hold the same
    tensors, counted once.
    """

    pattern: tuple[Block, ...]
    count: int
    shared: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Layers in order of execution. ``path`` is the module list's name (``model.layers``)."""

    path: str
    hidden: int
    runs: tuple[Run, ...]
    final_norms: tuple[Norm, ...] = ()
    final_path: str = ""  # the module that owns the final norms (``model``)
    role: str = "decoder"  # decoder, encoder, vision

    @property
    def layers(self) -> int:
        return sum([len(run.pattern) * run.count for run in self.runs])


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What turns the last hidden state into logits. A tied head has no matrix of its own."""

    kind: str  # causal_lm, masked_lm, classification, sequence_to_sequence, none
    width: int  # vocabulary, or number of labels
    tied: bool = False
    softcap: float | None = None
    scaled: bool = False  # logits multiplied by a constant
    wide: bool = False  # computed in the matrix's dtype, then raised to fp32 (mamba)
    weights: tuple[Weight, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The largest picture that a tower is shown: what it becomes, the places it takes in the text, and the
    numbers it is made of.
    """

    embeddings: int
    places: int  # with what stands between its rows and around it
    pixels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """A vision (or audio) encoder and the projector that feeds its tokens to the language model."""

    path: str
    stack: Stack
    embeddings: tuple[Weight, ...]
    projector: tuple[Weight, ...]
    tokens_per_image: int | None = None  # or per tile that pictures are cut into; None: depends on the image
    largest: Picture | None = None  # None: no config says
    widest: int = 0  # elements of the largest tensor that convolutions make of one picture
    deepstack: int = 0  # of its layers, how many hand their outputs to the decoder's first layers too


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    """Token and position tables and what is applied to them. Paths are full module names."""

    weights: tuple[Weight, ...]
    norms: tuple[Norm, ...] = ()
    scaled: bool = False  # multiplied by a constant after look-up
    dropout: bool = False  # the model's code applies dropout to them
    layer_elements: int = 0  # of a token's vectors for all layers, which a table beside the words' holds

    @property
    def own_module(self) -> bool:
        """Whether look-ups are made in a module of their own, which forgets them when it returns."""
        return any(".embeddings." in f".{weight.path}" for weight in self.weights[:1])


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredQuantization:
    """How a released checkpoint stores its linear weights."""

    method: str
    weights: str  # a dtype's name
    group_size: int | None = None
    skip: tuple[str, ...] = ()  # module names kept in the model's dtype
    experts: str | None = None  # a GGUF type that routed experts have, whatever the rest of a file is in
    cache: str | None = None  # the dtype that it names for keys and values
    cache_fixed: bool = False  # with one symmetric scale a tensor that it brings


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a model description came from."""

    kind: str  # bundled, file, dict, hub, safetensors, gguf
    path: str = ""
    revision: str | None = None
    notes: tuple[str, ...] = ()
    tensors: tuple[
        tuple[str, str, tuple[int, ...]], ...
    ] = ()  # of a GGUF file: each one's name, type and dimensions
    assumed: tuple[str, ...] = ()  # what its name was taken to mean
    base: str = ""  # the bundled model that a copy is of
    attention_open: bool = False  # its name says that it is quantized, and not whether attention is
    positions_open: bool = False  # by its name it was tuned of ``base``, and nobody says for which length
    own_code: str = ""  # the family of the hub whose own code runs it, of which the library has none


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A whole model: embeddings, stacks of blocks, a head and towers."""

    __hash__ = hash_once

    name: str
    model_type: str
    hidden: int
    vocab: int
    embeddings: Embeddings
    stacks: tuple[Stack, ...]
    head: Head
    towers: tuple[Tower, ...] = ()
    max_positions: int | None = None
    scaled_positions: int | None = None  # that rope_scaling gives beyond those
    windows_rotate_apart: bool = False  # layers with a window turn by other angles than those without
    dtype: str | None = None  # dtype of the released weights
    quantization: StoredQuantization | None = None
    router_loss: bool = False  # training adds a loss of the routers' own (output_router_logits)
    extras: tuple[
        Weight, ...
    ] = ()  # tensors that belong to none of the parts above (poolers, multi-token heads); full paths
    # layers of the checkpoint that predict further tokens, in no part above: nobody loads them unless asked
    ahead: int = 0
    recording: Recording | None = None  # of its own code, where nobody has written it down
    draft: ModelSpec | None = None  # a model that drafts for it (``Plan.speculative``)
    source: Source = field(default=Source(kind="dict"))

    @property
    def in_gguf(self) -> bool:
        """Whether its weights are those of a GGUF file, read or named."""
        stored = self.quantization.method if self.quantization else ""
        return self.source.kind == "gguf" or stored == "gguf"

    @property
    def layers(self) -> int:
        """Layers of all stacks."""
        return sum([stack.layers for stack in self.stacks])

    def blocks(self) -> tuple[Block, ...]:
        """The blocks of all runs in order, each once however often it is repeated."""
        return tuple(block for stack in self.stacks for run in stack.runs for block in run.pattern)

    def mixers(self) -> tuple[Mixer, ...]:
        """What mixes tokens in those blocks, in order."""
        return tuple(mixer for block in self.blocks() for mixer in block.mixers)
