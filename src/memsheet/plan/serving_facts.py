"""What tells one engine's serving from another's, as data: its cache, its start, its groups of ranks, and how
its passes run. An engine's file says what differs from the usual (``memsheet/engines/<name>/facts.py``).
"""

from __future__ import annotations

from collections.abc import Callable

from memsheet.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingFacts:
    """Facts of an engine's inference, by what they mean.

    Of its cache: ``pools_cache``, one pool takes the memory that is left, and more sequences may be
    started than it holds; ``shares_length``, all sequences share the tokens of max_model_len.
    ``torch_memory``: its tensors are torch's, and so are the totals.

    Of its start: ``profiles_batch``, a batch of all sequences is run first, so that fewer of them and no
    graphs leave more for the pool; ``needs_longest``, it does not start unless one sequence of
    max_model_len has room.

    Of groups of ranks that attend by themselves: ``limits_all_groups``, sequences and a chunk's tokens
    are those of all groups together; ``cuts_dense_over_groups``, feed-forward layers without experts are
    cut over all groups too, as experts are; ``replicas_share_experts``, its replicas are such groups of
    one server wherever there are experts.

    Of drafts: ``whole_drafts``, a draft is told about whole and not as one GPU's share;
    ``own_draft_outputs``, families whose layers for further tokens keep an output of their own, of a
    version.

    Of its passes: ``layer_calls``, operations that the host starts for a layer where no graph is replayed
    (a server's fused kernels are two each for its 13 operators, formulas/step_time/kernels.py, CALLS);
    ``joins_projections``, matrices of one input are kept as one; ``quantizes_head``, the output matrix is
    quantized as linear layers are; ``compiles_sampler``, the choice of a token is compiled with the
    model; ``captures_compiled``, compiled decoding replays a graph; ``stages_at_once``, pipeline stages
    work at the same time; ``own_all_reduce``, ranks of a node sum by a kernel of the engine's own;
    ``unpacks_in_profile``, latent attention's unpacked earlier tokens count to its widest layer.

    Of what is offered: ``planned``, `memsheet plan infer` weighs its cuts; ``fewer_bits``, formats of
    weights that it makes itself or that files are published in, the mildest first.
    """

    pools_cache: bool = False
    shares_length: bool = False
    torch_memory: bool = True
    profiles_batch: bool = False
    needs_longest: bool = False
    limits_all_groups: bool = False
    cuts_dense_over_groups: bool = False
    replicas_share_experts: bool = False
    whole_drafts: bool = False
    own_draft_outputs: Callable[[str | None], frozenset[str]] = lambda _: frozenset()
    layer_calls: int = 26
    joins_projections: bool = False
    quantizes_head: bool = False
    compiles_sampler: bool = False
    captures_compiled: bool = False
    stages_at_once: bool = False
    own_all_reduce: bool = False
    unpacks_in_profile: bool = False
    planned: bool = False
    fewer_bits: tuple[str, ...] = ()
