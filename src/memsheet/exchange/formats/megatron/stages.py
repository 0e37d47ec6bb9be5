"""Stages of unlike sizes: Megatron-LM says how many layers the first and the last have, and the others share
the rest evenly.

With stages of several parts each, a stage's layers are divided over them evenly
(core/transformer/transformer_block.py:66-137 of 23e00ed0963c35382dfe8a5a94fb3cda4d21e133); a plan lists parts
in the order in which a micro-batch runs through them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.errors import Problem
from memsheet.exchange.shared.file_format import Key, Values

FIRST, LAST, LAYERS = (
    "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
    "--num-layers",
)
PP, PARTS = "--pipeline-model-parallel-size", "--num-virtual-stages-per-pipeline-rank"
ARGS = "training/arguments.py"
Sizes = tuple[int, ...]


def sizes_of(asked: Values) -> Sizes | None:
    """Layers of each stage that a plan lists, where that is what Megatron-LM can say: parts alike, and alike
    in the middle.
    """
    listed, parts = tuple(asked.get("layers_per_stage") or ()), asked.get("mesh.vpp") or 1
    stages = len(listed) // parts
    if (
        not listed
        or len(listed) != stages * parts
        or listed != listed[:stages] * parts
        or len(set(listed[1 : stages - 1])) > 1
    ):
        return None
    return tuple(count * parts for count in listed[:stages])


def _uneven_stage_sizes(asked: Values) -> Sizes | None:
    sizes = sizes_of(asked)
    return sizes if sizes and len(set(sizes)) > 1 else None


def _end_stage_layers(at: int) -> Any:
    """The first or the last stage's layers, where they are not those of the middle; of two stages both."""

    def out(asked: Values) -> Any:
        sizes = _uneven_stage_sizes(asked)
        return sizes[at] if sizes and (len(sizes) < 3 or sizes[at] != sizes[1]) else None

    return out


def _read_layers_per_stage(_: Any, values: Values) -> Mapping[str, Any]:
    """Of both flags and the model's layers; where they do not come out even, words that no plan takes."""
    first, last, layers = values.get(FIRST), values.get(LAST), values.get(LAYERS)
    stages, parts = values.get(PP, 1), values.get(PARTS, 1)
    ends = [count for count in (first, last) if count is not None]
    told = [f"{count} {where}" for count, where in ((first, "first"), (last, "last")) if count is not None]
    of_all = f"{layers} layers" if layers is not None else "layers whose number is not said"
    wrong = {"layers_per_stage": f"{' and '.join(told)} of {of_all} in {stages} stages"}
    if (
        not all(
            isinstance(count, int) and not isinstance(count, bool) and count > 0
            for count in (*ends, layers, stages, parts)
        )
        or stages < 2
    ):
        return wrong
    middle, rest = stages - len(ends), layers - sum(ends)
    if (
        rest < 0
        or (rest % middle if middle else rest)
        or any(count % parts for count in (*ends, rest // middle if middle else 0))
    ):
        return wrong
    row = [
        *([first] if first is not None else []),
        *([rest // middle] * middle if middle else []),
        *([last] if last is not None else []),
    ]
    return {"layers_per_stage": [count // parts for count in row] * parts} if all(row) else wrong


def unequal_stage_problems(asked: Values) -> Iterator[Problem]:
    """Problem of stages that the flags cannot say."""
    listed = asked.get("layers_per_stage")
    if listed and sizes_of(asked) is None:
        reason = "differ in the middle, and Megatron-LM's flags set the first and the last stage alone"
        yield Problem(
            field="layers_per_stage",
            value=list(listed),
            reason=reason,
            hint="stages alike but for the first and the last",
        )


STAGES = (
    Key(
        at=LAYERS,
        out=lambda a: sum(sizes) if (sizes := _uneven_stage_sizes(a)) else None,
        back=lambda *_: {},
        source=f"{ARGS}:1413",
    ),
    Key(at=FIRST, out=_end_stage_layers(0), back=_read_layers_per_stage, source=f"{ARGS}:2322"),
    Key(at=LAST, out=_end_stage_layers(-1), back=_read_layers_per_stage, source=f"{ARGS}:2326"),
)
