"""A pass without gradients over rows of a training: log-probabilities, values, rewards.

It is the forward of a step that recomputes every layer, of which nothing is saved: a layer's own transients
are the same, and of the inputs of layers one is there at a time. Logits come by the phase, whole or not, as a
framework makes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from memsheet.frozen import replace
from memsheet.jobs.resident import is_gradient_bucket
from memsheet.plan.job import Residency, Role
from memsheet.sheet import STATES, Bytes, Component, Derived, Instant, Item, Sheet

CAST = "/cast"
"""Ends of the paths of weights that autocast keeps in its compute dtype: only of those that want gradients
(pytorch/pytorch cf30153c aten/src/ATen/autocast_mode.cpp, cached_cast).
"""
LEFT_OUT = (
    Component.GRADIENTS, Component.SAVED_ACTIVATIONS, Component.AUTOGRAD_DETAIL, Component.ALLOCATOR_SLACK,
)  # fmt: skip
"""What a step keeps for its backward, and a slack that is of the step's own peak."""
WIDEST = "widest_layer"
"""The path of a layer's transients while a model serves (formulas/serving)."""
ANGLES = "rotary_emb"
"""Ends of the paths of rotary angles, of every row's positions (huggingface/transformers v5.3.0
src/transformers/generation/utils.py, _prepare_position_ids_for_generation).
"""
TABLES = ("embed", "wte")
"""In the names of embeddings."""
PASS = Derived("the forward of a step that recomputes every layer, without what it saves")


def forward_items(role: Role, sheet: Sheet, how: Residency) -> Iterator[Item]:
    """Items of the pass at FORWARD, and at LOSS, where the logits are. ``sheet``: of the step that recomputes
    every layer.
    """
    for item in sheet.items:
        size = item.at.get(Instant.FORWARD)
        if item.component is Component.GRADIENTS and Instant.LOAD in item.at and _is_there(role, item, how):
            # a buffer that is there from the start, whoever works
            yield replace(item, at=dict.fromkeys((Instant.FORWARD, Instant.LOSS), item.at[Instant.LOAD]))
            continue
        if item.component in STATES and not _is_there(role, item, how):
            continue
        if size is None or item.component in LEFT_OUT or _reduces_gradients(role, item, how):
            continue
        if item.component is Component.TEMPORARIES:
            yield from _layer_transients(role, item, size)
        elif item.component is Component.UNSHARDED_PARAMETERS:
            yield replace(item, at={i: item.at[i] for i in (Instant.FORWARD, Instant.LOSS) if i in item.at})
        else:
            yield replace(item, at={Instant.FORWARD: size, Instant.LOSS: size})
    yield from _hidden_states(role, sheet)
    if any(item.path.endswith(CAST) for item in sheet.items):
        cast = cast_output_matrix(role)
        yield replace(cast, at={when: Bytes(0, 0, size.high) for when, size in cast.at.items()})


def cast_output_matrix(role: Role) -> Item:
    """The output matrix in the dtype of products, where autocast makes it of a wider one."""
    words = -(-int(role.model.head.width) // int(role.plan.mesh.tp))
    size = Bytes.exact(role.plan.precision.compute.nbytes(words * role.model.hidden))
    return Item(Component.TEMPORARIES, f"lm_head{CAST}", {Instant.LOSS: size}, PASS)


def generation_items(owner: Role, prompt: Sheet, rows: int, items: Iterable[Item]) -> Iterator[Item]:
    """A model that generates with ``owner``'s wider weights under autocast: its prompt is read as a pass of
    the owner, and every forward has the matrices in the dtype of products, of those that want gradients.
    ``prompt``: of the owner's step over ``rows`` prompts that recomputes every layer, each of which has
    positions of its own; ``items``: of the generating model's own sheet, all of whose tensors are in that
    dtype. The output matrix comes when the layers' transients are gone.
    """
    for item in items:
        if item.component is Component.TEMPORARIES and item.path == WIDEST:
            yield replace(
                item, at={when: size for when, size in item.at.items() if when is not Instant.PREFILL}
            )
        else:
            yield item
    casts = False
    for item in forward_items(owner, prompt, Residency.PARAMETERS):
        size = item.at.get(Instant.FORWARD)
        if item.component is not Component.TEMPORARIES or size is None:
            continue
        is_cast = item.path.endswith(CAST)
        casts |= is_cast
        if item.path.endswith(ANGLES):
            size = Bytes(size.low, size.value * rows, size.high * rows)
        yield replace(
            item, at=dict.fromkeys((Instant.PREFILL, *((Instant.DECODE,) if is_cast else ())), size)
        )
    if casts and owner.plan.adapter is None:
        size = cast_output_matrix(owner).at[Instant.LOSS]
        at = {Instant.PREFILL: Bytes(0, 0, size.high), Instant.DECODE: size}
        yield Item(Component.TEMPORARIES, f"lm_head{CAST}", at, PASS)


def _reduces_gradients(role: Role, item: Item, how: Residency) -> bool:
    """Whether they are buckets that are there from the start, which a frozen model has none of, and which
    leave the card with the optimizer's states.
    """
    if role.trained:
        return how is not Residency.WHOLE and is_gradient_bucket(item)
    return item.component is Component.COMMUNICATION and Instant.LOAD in item.at


def _is_there(role: Role, item: Item, how: Residency) -> bool:
    if item.component is Component.PARAMETERS:
        return how is not Residency.OFFLOADED
    return role.trained and how is Residency.WHOLE


def _layer_transients(role: Role, item: Item, size: Bytes) -> Iterator[Item]:
    """A layer's, gone where the logits are made; casts stay while the model runs, and are gone where the
    framework widens its logits outside of autocast.
    """
    if not item.path.endswith(CAST):
        yield replace(item, at={Instant.FORWARD: size})
        return
    held = size if role.trained else replace(size, low=0)
    kept = Bytes(0, 0, item.at.get(Instant.LOSS, size).high)
    yield replace(item, at={Instant.FORWARD: held, Instant.LOSS: kept})


def _has_embedded(sheet: Sheet) -> bool:
    """Whether the first layer's input is what embeddings give, which is an item of its own."""
    return any(
        item.component is Component.SAVED_ACTIVATIONS
        and any(table in item.path for table in TABLES)
        and Instant.FORWARD in item.at
        for item in sheet.items
    )


def _hidden_states(role: Role, sheet: Sheet) -> Iterator[Item]:
    """The input of the layer that runs, of those that a step saves of all; and what is made before the layers
    (embeddings, angles), which the model's own code holds until they have run.
    """
    layers = max(1, -(-role.model.layers // int(role.plan.mesh.pp)) - _has_embedded(sheet))
    for item in sheet.items:
        size = item.at.get(Instant.FORWARD)
        if size is None or item.component is not Component.SAVED_ACTIVATIONS:
            continue
        if "*" not in item.path:
            yield Item(Component.TEMPORARIES, item.path, {Instant.FORWARD: size}, PASS)
        elif item.path.endswith("*/input"):
            one = Bytes(size.low // layers, -(-size.value // layers), -(-size.high // layers))
            at = {Instant.FORWARD: one, Instant.LOSS: Bytes(0, 0, one.high)}  # gone when logits are widened
            yield Item(Component.TEMPORARIES, item.path, at, PASS)
