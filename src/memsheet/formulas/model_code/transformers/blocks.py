"""Transformer blocks as the transformers library runs them, written over shape-only tensors.

Each function mirrors the order of operations of the model's own code, because the order decides what is alive
when. Axes: ``b`` sequences, ``s`` positions, ``h`` hidden, ``a`` query heads, ``k`` key/value heads, ``d``
head dim, ``f`` feed-forward width (``a``, ``k`` and ``f`` are a rank's share under tensor parallelism).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from memsheet.formulas.model_code.transformers.attention import attention, scores_dtype
from memsheet.formulas.model_code.transformers.families import (
    XIELU,
    FamilyTraits,
    family_traits,
    is_t5,
    of_tower,
)
from memsheet.formulas.model_code.transformers.feed_forward import ACTIVATIONS, dense_feed_forward
from memsheet.formulas.model_code.transformers.mixers import is_plain_attention, mixed_alone, mixer_problem
from memsheet.formulas.model_code.transformers.mixers import mixer_output as mix_otherwise
from memsheet.formulas.model_code.transformers.norms import apply_norm
from memsheet.formulas.numerics import AttentionKernel, RunConfig, run_checkpointed
from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.late import late_functions
from memsheet.plan.model import Arrangement, Attention, Block, Dense, Moe, Norm

with late_functions(__name__):
    from memsheet.formulas.model_code.transformers.cross_attention import t5_block
    from memsheet.formulas.model_code.transformers.experts import is_routed, moe_feed_forward
    from memsheet.formulas.model_code.transformers.picture_towers import tower_block


def decoder_block_forward(r: Recorder, x: Tensor, block: Block, how: RunConfig) -> Tensor:
    """One dense decoder block. Eager attention's probabilities stay to its end."""
    if is_t5(block.kind):
        return t5_block(r, x, block, how)
    if of_tower(block.kind):
        return tower_block(r, x, block, how)
    kept: list[Tensor | None] = []
    if (
        family_traits(block.kind).named_outputs
        and how.attention is AttentionKernel.EAGER
        and (r.offloads or not r.saves)
    ):
        kept.append(
            r.tensor(
                "/previous_probabilities", ("b", "a", "s", "s"), scores_dtype(how, family_traits(block.kind))
            )
        )
    out = _run_block_branches(r, x, block, how, kept)
    kept.clear()
    return out


def _run_block_branches(
    r: Recorder, x: Tensor, block: Block, how: RunConfig, kept: list[Tensor | None]
) -> Tensor:
    """The parts of a block by its arrangement of norms and residuals."""
    if block.arrangement is Arrangement.MIXER_ONLY:
        return mixed_alone(r, x, block, how)
    (at,), ff, norms = block.mixers, block.feed_forward, block.norms
    assert ff is not None
    own = family_traits(block.kind)
    inside: list[Tensor | None] = []

    def attend(y: Tensor) -> Tensor:
        if isinstance(at, Attention) and is_plain_attention(at, block.kind):
            mixed, probabilities = attention(r, y, at, how, own, inside)
        else:
            mixed, probabilities = mix_otherwise(r, y, at, how, block.kind)
        if not r.in_backward:
            if own.named_outputs and probabilities is not None:
                r.hand_on(probabilities)
            kept.extend((probabilities, mixed if own.summed_bias or own.named_mix else None))
            inside.append(y if own.named_outputs else None)
        return mixed

    def mix(y: Tensor) -> Tensor:
        return _residual_branch(r, run_checkpointed(r, attend, y, at.path, how), block, at.path, how)

    def feed(y: Tensor) -> Tensor:
        inner = kept if own.named_inner and not r.in_backward else None
        return _residual_branch(
            r,
            run_checkpointed(
                r,
                lambda z: (
                    moe_feed_forward(r, z, ff, how, block.kind)
                    if isinstance(ff, Moe)
                    else dense_feed_forward(r, z, ff, how, inner)
                ),
                y,
                ff.path,
                how,
            ),
            block,
            ff.path,
            how,
        )

    match block.arrangement:
        case Arrangement.PRE:
            x = r.add(mix(apply_norm(r, x, norms[0], how)), x, "/residual")
            inside.clear()
            return r.add(feed(apply_norm(r, x, norms[1], how)), x, "/residual")
        case Arrangement.SANDWICH:
            x = r.add(apply_norm(r, mix(apply_norm(r, x, norms[0], how)), norms[1], how), x, "/residual")
            return r.add(apply_norm(r, feed(apply_norm(r, x, norms[2], how)), norms[3], how), x, "/residual")
        case Arrangement.POST_BRANCH:
            x = r.add(apply_norm(r, mix(x), norms[0], how), x, "/residual")
            return r.add(apply_norm(r, feed(x), norms[1], how), x, "/residual")
        case Arrangement.POST:
            own_mix = lambda y: _residual_branch(r, attend(y), block, at.path, how)  # noqa: E731 - the module ends with the norm
            x = run_checkpointed(r, lambda y: _normalised_sum(r, own_mix, y, norms[0], how), x, at.path, how)
            return _normalised_sum(r, feed, x, norms[1], how)
        case Arrangement.PARALLEL:
            y = apply_norm(r, x, norms[0], how)
            return _parallel_residual_sum(r, mix(y), feed(y), x, how, own)
        case Arrangement.PARALLEL_TWO_NORMS:
            y = apply_norm(r, x, norms[0], how)
            if own.summed_in_place:  # both norms come first
                second = apply_norm(r, x, norms[1], how)
                return _parallel_residual_sum(r, mix(y), feed(second), x, how, own)
            mixed = mix(y)
            del y
            return _parallel_residual_sum(r, mixed, feed(apply_norm(r, x, norms[1], how)), x, how, own)
        case _:
            raise NotImplementedError(block.arrangement)


def _parallel_residual_sum(
    r: Recorder, mixed: Tensor, fed: Tensor, x: Tensor, how: RunConfig, own: FamilyTraits
) -> Tensor:
    if own.summed_in_place:
        both = r.apply(
            Tensor(fed.storage, fed.shape, fed.dtype),
            (fed, mixed),
            (),
            lambda g: [Grad(g.storage, g.shape, g.dtype)] * 2,
        )
        return r.add(r.dropout(both, "/residual_dropout", active=how.dropout), x, "/residual")
    return r.add(r.add(mixed, fed, "/residual"), x, "/residual")


def _normalised_sum(
    r: Recorder, part: Callable[[Tensor], Tensor], x: Tensor, norm: Norm, how: RunConfig
) -> Tensor:
    """A branch added to its input, normalised: both go by a name until their module returns."""
    branch = part(x)
    return apply_norm(r, r.add(branch, x, "/residual"), norm, how)


def _residual_branch(r: Recorder, y: Tensor, block: Block, path: str, how: RunConfig) -> Tensor:
    """What happens to a branch before it joins the stream: dropout, a constant factor."""
    y = r.dropout(
        y, path + "/residual_dropout", active=how.dropout and family_traits(block.kind).branch_dropout
    )
    return r.scale(y, path + "/scaled") if block.residual_scale else y


def served_as_trained(block: Block) -> bool:
    """Whether a block that is recorded runs the same with a cache: state spaces take other kernels, latents
    are expanded for all they hold.
    """
    return unmodelled_block_reason(block) is None and all(
        is_plain_attention(mixer, block.kind) for mixer in block.mixers
    )


@lru_cache(maxsize=1024)
def unmodelled_block_reason(block: Block) -> str | None:
    """Why a block cannot be recorded here, or None when it can."""
    if len(block.mixers) != 1:
        return f"its mixer is {' and '.join(type(m).__name__ for m in block.mixers) or 'missing'}"
    at = block.mixers[0]
    own = family_traits(block.kind)
    known = isinstance(at, Attention) and at.position_bias and (own.batched_bias or own.summed_bias)
    if not known and (why := mixer_problem(at)):
        return why
    if block.arrangement is Arrangement.MIXER_ONLY:
        return None
    if not isinstance(block.feed_forward, Dense) and not (
        isinstance(block.feed_forward, Moe) and is_routed(block.kind)
    ):
        return f"its feed-forward is {type(block.feed_forward).__name__}"
    if block.feed_forward.activation not in (*ACTIVATIONS, XIELU):
        return f"its activation {block.feed_forward.activation} is not listed"
    if block.arrangement in (Arrangement.OTHER, Arrangement.FEED_FORWARD_ONLY):
        return "its residual arrangement is not modelled"
    return None
