"""What tells one engine's serving from another's, as data: its cache, its start, its groups of ranks, and how
its passes run. An engine's file says what differs from the usual (``memsheet/engines/<name>/facts.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from memsheet.frozen import dataclass, field
from memsheet.plan.dtypes import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class HeededCache:
    """How a server heeds the format that a checkpoint names for its cache: since which release, where nobody
    says another; ``fixed_scales``: only with one fixed scale a tensor; ``overrules``: from which release to
    before which it takes that format whatever it is told.
    """

    since: tuple[int, int, int]
    fixed_scales: bool = False
    overrules: tuple[tuple[int, int, int], tuple[int, int, int]] | None = None


@dataclass(frozen=True, slots=True)
class EightBitDefault:
    """A family whose cache a server keeps in fp8 where nobody says: on cards from ``units`` on and before
    ``below``, since which release.
    """

    units: tuple[int, int]
    below: tuple[int, int]
    since: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class LengthLimit:
    """A server that stops at a length beyond the one it derives from a config: what it calls the environment
    that lets longer ones through, and since when it stops.
    """

    lets: str
    since: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class Unserved:
    """A family that an engine has no code for: since which release, why, and what helps where it is not just
    another server.
    """

    since: tuple[int, int, int]
    why: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryCode:
    """How a server runs the library's own code for families that it has none for. ``tag``: the release that
    was read, ``since`` the first that it stands for; ``own``: of the families that no reader knows, the
    architectures that it has code for, which was not read; ``file``, ``line``: where its code of this is;
    ``layouts``: of those, the ones whose latents and states it was read to keep as it does its other
    families'.

    What it refuses: ``asks_declared``, models that do not declare that others may run their attention, even
    where their file would let it; ``asks_every_layer``, layers that do not hand their attention over;
    ``plan_words``, words of a tensor-parallel plan beyond these, and several ranks without a plan; None where
    it takes any; ``repeats_heads``: more ranks than key and value heads are taken.
    """

    tag: str
    since: tuple[int, int, int]
    own: frozenset[str]
    file: str
    line: int
    asks_declared: bool = False
    asks_every_layer: bool = False
    plan_words: frozenset[str] | None = None
    repeats_heads: bool = True
    layouts: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingFacts:
    """Facts of an engine's inference, by what they mean.

    Of its cache: ``pools_cache``, one pool takes the memory that is left, and more sequences may be
    started than it holds; ``shares_length``, all sequences share the tokens of max_model_len;
    ``usual_dtype``, of keys and values where nobody says, None for the one they are computed in;
    ``heeded_caches``, by a checkpoint's method of quantization, where it heeds what that names;
    ``eight_bits``, by model type, where fp8 is what it takes by itself;
    ``length_limit``, None where it goes on with longer sequences and answers worse.
    ``torch_memory``: its tensors are torch's, and so are the totals.

    Of weights: ``dequantizes_below``, by a released format the compute capability below which it is
    dequantized. Of families: ``unserved``, by a layer's kind, those that it has no code for;
    ``served_since``, by model type, the release that first has code for one, where an older one was read;
    ``trains_since``, it trains none earlier either; ``release_form``, how a version begins that is a
    release's, a pattern;
    ``pooled``, kinds of encoders that it makes vectors or scores with, without a cache; ``pools_embedders``,
    it looks for how a checkpoint is pooled before it makes tokens with it; ``embeds_both_ways``, model types
    of such decoders that attend both ways, and so keep no cache; ``leaves_towers_since``, the release that
    first leaves out every tower of what a prompt may have none of, None where none is known to;
    ``sees_pictures_alone``, model types whose towers are of pictures and no videos; ``library_code``,
    how it runs families that it has no code for, None where it runs none.

    Of its start: ``profiles_batch``, a batch of all sequences is run first, so that fewer of them and no
    graphs leave more for the pool; ``compiles``, whether a release compiles its passes by itself, None
    where they run as a plan says; ``checks_free_memory``, its fraction of the whole card must be free once
    its own context is there; ``needs_longest``, it does not start unless one sequence of
    max_model_len has room.

    Of groups of ranks that attend by themselves: ``limits_all_groups``, sequences and a chunk's tokens
    are those of all groups together; ``cuts_dense_over_groups``, feed-forward layers without experts are
    cut over all groups too, as experts are; ``replicas_share_experts``, its replicas are such groups of
    one server wherever there are experts, and a model without has a server on each; ``cuts_dealt_experts``,
    experts may be dealt to fewer groups than there are ranks, and are cut in each; ``grouped_families``,
    those whose attention is cut over a group, where not all are.

    Of adapters: ``adapts_whole_queries``, they may stand on latent attention's queries of full rank.

    Of drafts: ``whole_drafts``, a draft is told about whole and not as one GPU's share;
    ``own_draft_outputs``, families whose layers for further tokens keep an output of their own, of a
    version.

    Of its passes: ``batched_tokens``, computed at once where nobody says and there is no pool;
    ``layer_calls``, operations that the host starts for a layer where no graph is replayed
    (a server's fused kernels are two each for its 13 operators, formulas/step_time/kernels.py, CALLS);
    ``joins_projections``, matrices of one input are kept as one; ``quantizes_head``, the output matrix is
    quantized as linear layers are; ``compiles_sampler``, the choice of a token is compiled with the
    model; ``captures_compiled``, compiled decoding replays a graph; ``stages_at_once``, pipeline stages
    work at the same time; ``own_all_reduce``, ranks of a node sum by a kernel of the engine's own.

    Of bitsandbytes' formats: ``few_bit_experts``, the release since which experts are stored in them, too,
    and scales of scales are made whole as they are loaded; () where none does.

    Of what is offered: ``planned``, `memsheet plan infer` weighs its cuts; ``fewer_bits``, formats of
    weights that it makes itself or that files are published in, the mildest first;
    ``fewer_bit_caches``, types of a cache of full attention that are offered.
    """

    pools_cache: bool = False
    shares_length: bool = False
    usual_dtype: DType | None = None
    heeded_caches: Mapping[str, HeededCache] = field(default_factory=dict)
    eight_bits: Mapping[str, EightBitDefault] = field(default_factory=dict)
    length_limit: LengthLimit | None = None
    torch_memory: bool = True
    dequantizes_below: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    unserved: Mapping[str, Unserved] = field(default_factory=dict)
    served_since: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    trains_since: bool = False
    release_form: str = ""
    pooled: frozenset[str] = frozenset()
    pools_embedders: bool = False
    embeds_both_ways: frozenset[str] = frozenset()
    leaves_towers_since: tuple[int, int] | None = None
    sees_pictures_alone: frozenset[str] = frozenset()
    library_code: LibraryCode | None = None
    profiles_batch: bool = False
    compiles: Callable[[str | None], bool] | None = None
    checks_free_memory: bool = False
    needs_longest: bool = False
    limits_all_groups: bool = False
    cuts_dense_over_groups: bool = False
    replicas_share_experts: bool = False
    cuts_dealt_experts: bool = False
    grouped_families: frozenset[str] | None = None
    adapts_whole_queries: bool = True
    whole_drafts: bool = False
    own_draft_outputs: Callable[[str | None], frozenset[str]] = lambda _: frozenset()
    batched_tokens: int | None = None
    layer_calls: int = 26
    joins_projections: bool = False
    quantizes_head: bool = False
    compiles_sampler: bool = False
    captures_compiled: bool = False
    stages_at_once: bool = False
    own_all_reduce: bool = False
    planned: bool = False
    few_bit_experts: tuple[int, ...] = ()
    fewer_bits: tuple[str, ...] = ()
    fewer_bit_caches: tuple[str, ...] = ()
