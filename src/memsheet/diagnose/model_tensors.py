"""Tensors of a model that a text names: its weights, what is gathered or kept of them at once, and what its
layers make of tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from memsheet.catalog import find_model
from memsheet.diagnose.named_models import named_entries
from memsheet.errors import InputError
from memsheet.plan.model import Block, ModelSpec, Moe, Role, Weight
from memsheet.readers.model import read_model

MATRICES = (Role.LINEAR, Role.EMBEDDING, Role.HEAD, Role.EXPERT)
MOST_NAMES, MOST_MODELS = 3, 8
"""Weights of one shape that are named; models that are looked into."""
_WORLD = re.compile(
    r"\b(?:world_?size|nproc_per_node|num_processes|n_gpus_per_node|num_gpus|data_parallel_size|dp_size|dp_degree)[\"']?\s{0,3}[:=]?\s{0,3}(\d{1,5})\b",
    re.IGNORECASE,
)  # fmt: skip
"""Ranks that share states, as launchers and configurations call them."""


class Shape(NamedTuple):
    """Axes of a tensor and what it is."""

    axes: tuple[int, ...]
    words: str

    @property
    def elements(self) -> int:
        return math.prod(self.axes)


@lru_cache(maxsize=8)
def named_specs(text: str) -> tuple[ModelSpec, ...]:
    """The models that a text names whose code is written down."""
    found = []
    for entry in islice(named_entries(text), MOST_MODELS):
        with suppress(InputError):
            found.append(read_model(dict(entry), catalog=find_model))
    return tuple(found)


@lru_cache(maxsize=8)
def weights_of_models(text: str, *, fused: bool) -> tuple[Shape, ...]:
    """The matrices of the models that a text names, each shape once; ``fused``: and those that servers keep
    as one.
    """
    named: dict[tuple[int, ...], dict[str, tuple[int, ...]]] = {}
    for axes, words in _matrices_of_models(text, fused=fused):
        named.setdefault(tuple(sorted(axes)), {}).setdefault(
            words, axes
        )  # or its transpose, which is as large
    return tuple(
        Shape(next(iter(alike.values())), " or ".join(list(alike)[:MOST_NAMES])) for alike in named.values()
    )


def _matrices_of_models(text: str, *, fused: bool) -> Iterator[tuple[tuple[int, ...], str]]:
    for spec in named_specs(text):
        for weight in (*spec.embeddings.weights, *spec.head.weights):
            if weight.role in MATRICES:
                yield weight.shape, "embedding or output projection"
        for block in spec.blocks():
            yield from (
                (w.shape, w.path.removesuffix(".weight")) for w in block.weights if w.role in MATRICES
            )
            yield from _fused_weights(block) if fused else ()


def _fused_weights(block: Block) -> Iterator[tuple[tuple[int, ...], str]]:
    """Projections of one module that read the same input, as one matrix."""
    rows: dict[str, list[Weight]] = {}
    for weight in block.weights:
        module, _, name = weight.path.removesuffix(".weight").rpartition(".")
        kind = {
            "q_proj": "qkv",
            "k_proj": "qkv",
            "v_proj": "qkv",
            "gate_proj": "gate_up",
            "up_proj": "gate_up",
        }.get(name)
        if kind and len(weight.shape) == 2:
            rows.setdefault(f"{module}.{kind}_proj", []).append(weight)
    for name, parts in rows.items():
        if len({weight.shape[1] for weight in parts}) == 1 and len(parts) > 1:
            yield (sum(weight.shape[0] for weight in parts), parts[0].shape[1]), name


@lru_cache(maxsize=8)
def units_of_models(text: str) -> tuple[Shape, ...]:
    """Elements that a wrapper gathers or keeps at once: a layer, what lies outside of layers, all of it."""
    shapes: dict[int, str] = {}
    for spec in named_specs(text):
        outer = sum(weight.elements for weight in (*spec.embeddings.weights, *spec.head.weights))
        outer += sum(w.elements for stack in spec.stacks for norm in stack.final_norms for w in norm.weights)
        whole = outer + sum(weight.elements for weight in spec.extras)
        for stack in spec.stacks:
            for run in stack.runs:
                for block in run.pattern:
                    layer = sum(weight.elements for weight in block.weights if weight.role is not Role.BUFFER)
                    shapes.setdefault(layer, "a layer's weights")
                    whole += run.count * layer
        shapes.setdefault(outer, "the weights outside of layers")
        if not spec.towers:
            shapes.setdefault(whole, "all weights")
    return tuple(Shape((elements,), words) for elements, words in shapes.items())


@lru_cache(maxsize=8)
def widths_of_models(text: str) -> tuple[Shape, ...]:
    """Elements of a token in what the decoders' layers make: the input and output of each matrix, and of its
    experts, to which a token goes several times.
    """
    shapes: dict[tuple[int, ...], str] = {}
    for spec in named_specs(text):
        for stack in spec.stacks:
            if stack.role == "decoder":
                for block in (block for run in stack.runs for block in run.pattern):
                    for axes, words in _widths_of_block(block):
                        shapes.setdefault(axes, words)
    return tuple(Shape(axes, words) for axes, words in shapes.items())


def _widths_of_block(block: Block) -> Iterator[tuple[tuple[int, ...], str]]:
    yield (block.hidden,), "hidden states"
    moe = block.feed_forward if isinstance(block.feed_forward, Moe) else None
    if moe is not None:
        of_token = moe.experts_per_token
        yield (of_token, block.hidden), f"hidden states, once for each of a token's {of_token} experts,"
        yield (of_token, moe.intermediate), f"what {of_token} experts make inside"
        if moe.gated:
            yield (of_token, 2 * moe.intermediate), f"gate and up of {of_token} experts"
    for weight in block.weights:
        if weight.role is Role.LINEAR and len(weight.shape) == 2:
            rows, columns = reversed(weight.shape) if weight.transposed else weight.shape
            name = weight.path.removesuffix(".weight")
            yield (rows,), f"what {name} makes"
            yield (columns,), f"what {name} reads"


def ranks_in_text(text: str) -> tuple[int, ...]:
    """Over how many ranks a text says that states lie; 1 first."""
    counts = (int(number) for number in _WORLD.findall(text))
    return tuple(dict.fromkeys((1, *(count for count in counts if 1 < count <= 65_536))))[:6]
