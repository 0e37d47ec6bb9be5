"""Which parameter tensors a model has, and how many elements: exact, from the description alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain

from memsheet.patterns import late_pattern
from memsheet.plan.model import Block, Embeddings, Graded, ModelSpec, Moe, Norm, Role, Stack, Tower, Weight

START, JOIN = "start", "join"
"""Roles of the two ends of a vision tower that pictures pass through: modules by themselves, not lists of
layers.
"""
_INDEX = late_pattern(r"(?<=\.)\d+(?=\.|$)")


def fold_path_indices(path: str) -> str:
    """A module or tensor name with its indices replaced by ``*``, so that all layers share one name."""
    return _INDEX.sub("*", path)


def stack_prefix(stack: Stack) -> str:
    """The name under which a stack's layers have their tensors."""
    return stack.path if stack.role in (START, JOIN) else f"{stack.path}.*"


def layer_stacks(spec: ModelSpec) -> Iterator[Stack]:
    """Every stack of layers: the model's own, then those of its towers."""
    yield from spec.stacks
    yield from (tower.stack for tower in spec.towers)


def distinct_blocks(stack: Stack) -> Iterator[tuple[Block, int]]:
    """Each distinct block with the number of copies whose tensors exist; runs that share their tensors appear
    once.
    """
    seen: set[str] = set()
    for run in stack.runs:
        if run.shared is not None and run.shared in seen:
            continue
        if run.shared is not None:
            seen.add(run.shared)
        yield from ((block, run.count) for block in run.pattern)


def parameter_tensors(spec: ModelSpec) -> Iterator[tuple[str, Weight, int]]:
    """Each parameter tensor of the model once, as (path with indices folded, weight, how many layers have
    one).

    A path comes more than once where layers differ. Buffers are left out (see ``buffer_tensors``); a tied
    head has no tensor. The elements of an entry are ``weight.elements * multiplicity``.
    """
    return (entry for entry in _all_model_tensors(spec) if entry[1].role is not Role.BUFFER)


def tower_tensors(spec: ModelSpec) -> Iterator[tuple[str, Weight, int]]:
    """The parameter tensors that only pictures reach, listed as ``parameter_tensors`` lists them."""
    own = tuple(f"{tower.path}." for tower in spec.towers)
    extras = (entry for entry in _unstacked_tensors(spec.extras) if entry[0].startswith(own))
    return (
        entry
        for entry in chain(*map(_vision_tower_weights, spec.towers), extras)
        if entry[1].role is not Role.BUFFER
    )


def unreached_tensors(spec: ModelSpec) -> Iterator[tuple[str, Weight, int]]:
    """The parameter tensors that would take a gradient and get none, listed likewise."""
    return (entry for entry in parameter_tensors(spec) if entry[1].graded is Graded.IDLE)


def buffer_tensors(spec: ModelSpec) -> Iterator[tuple[str, Weight, int]]:
    """Tensors kept on the device and never trained, listed as ``parameter_tensors`` lists parameters."""
    return (entry for entry in _all_model_tensors(spec) if entry[1].role is Role.BUFFER)


@lru_cache(maxsize=64)
def parameter_count(spec: ModelSpec) -> int:
    """Parameters of the model, tied and shared ones once."""
    return sum(weight.elements * times for _, weight, times in parameter_tensors(spec))


def active_parameter_count(spec: ModelSpec) -> int:
    """Parameters that one token passes through: of the routed experts, only ``experts_per_token``."""
    return parameter_count(spec) - idle_parameter_count(spec)


@lru_cache(maxsize=64)
def idle_parameter_count(spec: ModelSpec) -> int:
    """Parameters of the routed experts that one token does not pass through."""
    return sum(
        _inactive_expert_elements(block) * times
        for stack in layer_stacks(spec)
        for block, times in distinct_blocks(stack)
    )


def _inactive_expert_elements(block: Block) -> int:
    moe = block.feed_forward
    if not isinstance(moe, Moe):
        return 0
    routed = sum(weight.elements for weight in moe.routed)
    return routed - routed * min(moe.experts_per_token, moe.experts) // moe.experts


def _all_model_tensors(spec: ModelSpec) -> Iterator[tuple[str, Weight, int]]:
    yield from _unstacked_tensors(_embedding_weights(spec.embeddings))
    for stack in spec.stacks:
        yield from _stack_tensors(stack)
    for tower in spec.towers:
        yield from _vision_tower_weights(tower)
    tables = {
        weight.path for weight in spec.embeddings.weights
    }  # which a head may have in a group of its own
    yield from _unstacked_tensors(tuple(w for w in spec.head.weights if w.path not in tables))
    yield from _unstacked_tensors(spec.extras)


@lru_cache(maxsize=1024)
def _block_tensors(block: Block, prefix: str) -> tuple[tuple[str, Weight], ...]:
    """A layer's tensors with the names that they have in its stack."""
    return tuple((fold_path_indices(f"{prefix}.{weight.path}"), weight) for weight in block.weights)


def _vision_tower_weights(tower: Tower) -> Iterator[tuple[str, Weight, int]]:
    yield from _unstacked_tensors(tower.embeddings)
    yield from _stack_tensors(tower.stack)
    yield from _unstacked_tensors(tower.projector)


def _unstacked_tensors(weights: tuple[Weight, ...]) -> Iterator[tuple[str, Weight, int]]:
    """Tensors whose path is already the full name."""
    return ((fold_path_indices(weight.path), weight, 1) for weight in weights)


def _embedding_weights(embeddings: Embeddings) -> tuple[Weight, ...]:
    return (*embeddings.weights, *_norm_weights(embeddings.norms))


def _norm_weights(norms: tuple[Norm, ...]) -> tuple[Weight, ...]:
    return tuple(weight for norm in norms for weight in norm.weights)


def _stack_tensors(stack: Stack) -> Iterator[tuple[str, Weight, int]]:
    own = stack_prefix(stack)
    for block, times in distinct_blocks(stack):
        yield from ((path, weight, times) for path, weight in _block_tensors(block, own))
    prefix = f"{stack.final_path}." if stack.final_path else ""
    yield from (
        (fold_path_indices(prefix + weight.path), weight, 1) for weight in _norm_weights(stack.final_norms)
    )
