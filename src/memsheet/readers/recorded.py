"""A recording of a model's own code → ModelSpec: its tensors as the code makes them, its layers by kind."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from memsheet.frozen import replace
from memsheet.plan.model import (
    Arrangement,
    Block,
    Embeddings,
    Graded,
    Head,
    ModelSpec,
    Norm,
    NormKind,
    Role,
    Run,
    Source,
    Stack,
    Weight,
)
from memsheet.readers.fields import Fields
from memsheet.readers.quantization import stored_quantization
from memsheet.readers.recorded_parts import recorded_layer_parts, vocabulary
from memsheet.recording import RecordedParameter, RecordedPart, Recording

ROLES = {
    "linear": Role.LINEAR, "conv1d": Role.LINEAR, "embedding": Role.EMBEDDING, "norm": Role.NORM, "bias": Role.BIAS, "expert": Role.EXPERT,
    "buffer": Role.BUFFER, "other": Role.OTHER,
}  # fmt: skip


def model_from_recording(
    recording: Recording, config: Mapping[str, Any], *, name: str = "", source: Source | None = None
) -> ModelSpec:
    """The model that a recording is of."""
    stack = recording.stack
    parts = (
        recorded_layer_parts(recording, number, tuple(map(_weight, layer)))
        for number, layer in enumerate(recording.layers)
    )
    blocks = tuple(
        Block(
            kind=recording.model_type,
            hidden=recording.hidden,
            arrangement=Arrangement.OTHER,
            extras=part.extras,
            recorded=RecordedPart(recording, number),
            mixers=part.mixers,
            feed_forward=part.feed_forward,
        )
        for number, part in enumerate(parts)
    )
    before, behind, norms, others = _split_ends(recording)
    fields = Fields(config)
    return ModelSpec(
        name=name or recording.model_type,
        model_type=recording.model_type,
        hidden=recording.hidden,
        vocab=recording.vocab,
        embeddings=Embeddings(weights=before),
        stacks=(
            Stack(
                path=stack,
                hidden=recording.hidden,
                runs=_runs(blocks, recording.kinds),
                final_norms=norms,
            ),
        ),
        head=Head(
            kind="causal_lm",
            width=recording.vocab,
            tied=recording.tied,
            weights=behind,
        ),
        extras=others,
        dtype=_text(config, "dtype") or _text(config, "torch_dtype"),
        max_positions=_usable_positions(recording, config),
        quantization=stored_quantization(fields),
        recording=recording,
        source=source or Source(kind="dict"),
    )


def _text(config: Mapping[str, Any], name: str) -> str | None:
    value = config.get(name)
    return value if isinstance(value, str) else None


def _whole(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    return value if type(value) is int else None


POSITIONS = ("max_position_embeddings", "max_target_positions", "n_positions")
"""What configs call the positions of the stack that reads words."""
BEHIND_PADDING = frozenset({
    "altclip", "bridgetower", "camembert", "data2vec-text", "esm", "evolla", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm", "mpnet",
    "roberta-prelayernorm", "xlm-roberta-xl", "xmod",
})  # fmt: skip
"""Families that count positions from the one after their padding token's, so that many rows of their tables
are never used (transformers 5.23.0 modeling_longformer.py:441, modeling_mpnet.py:110, modeling_esm.py:278).
"""


def _usable_positions(recording: Recording, config: Mapping[str, Any]) -> int | None:
    """Tokens that a sequence may have, where the config says."""
    rows = next((found for name in POSITIONS if (found := _whole(config, name)) is not None), None)
    if rows is None or recording.model_type not in BEHIND_PADDING:
        return rows
    padding = _whole(config, "pad_token_id")
    return max(rows - (1 if padding is None else padding) - 1, 1)


def _runs(blocks: tuple[Block, ...], kinds: tuple[int, ...]) -> tuple[Run, ...]:
    """Layers in order, a pattern that repeats written once."""
    for period in range(1, len(kinds) // 2 + 1):
        whole = len(kinds) // period
        if whole > 1 and kinds[: period * whole] == kinds[:period] * whole:
            runs = [Run(pattern=tuple(blocks[kind] for kind in kinds[:period]), count=whole)]
            rest = kinds[period * whole :]
            break
    else:
        runs, rest = [], kinds
    return (
        *runs,
        *(Run(pattern=(blocks[kind],), count=len(list(same))) for kind, same in groupby(rest)),
    )


def _split_ends(
    recording: Recording,
) -> tuple[tuple[Weight, ...], tuple[Weight, ...], tuple[Norm, ...], tuple[Weight, ...]]:
    """Tensors of no layer: the look-up's, those that make logits, norms beside the layers, the rest."""
    parent = recording.stack.rpartition(".")[0]
    owners = dict.fromkeys(one.path.rpartition(".")[0] for one in recording.others if one.kind == "norm")
    norms = {owner: list[Weight]() for owner in owners if owner.rpartition(".")[0] == parent}
    before, behind, others = list[Weight](), list[Weight](), list[Weight]()
    beside = tuple(f"{path}." for path in recording.head_group)
    for one in recording.others:
        weight, owner = _weight(one), one.path.rpartition(".")[0]
        if one.kind != "buffer" and recording.table and owner == recording.table:
            before.append(weight)
        elif one.kind != "buffer" and recording.projection and owner == recording.projection:
            behind.append(replace(weight, role=Role.HEAD) if one.kind == "linear" else weight)
        elif one.kind != "buffer" and f"{owner}.".startswith(beside):
            behind.append(weight)
        elif one.kind != "buffer" and owner in norms:
            norms[owner].append(weight)
        else:
            others.append(weight)
    return vocabulary(before), vocabulary(behind), tuple(map(_norm, norms.values())), tuple(others)


def _norm(weights: list[Weight]) -> Norm:
    path, size = weights[0].path.rpartition(".")[0], weights[0].shape[0]
    return Norm(path=path, kind=NormKind.RMS, size=size, weights=tuple(weights))


def _weight(one: RecordedParameter) -> Weight:
    return Weight(
        path=one.path,
        shape=one.shape,
        role=ROLES.get(one.kind, Role.OTHER),
        dtype=one.dtype,
        transposed=one.kind == "conv1d",
        graded=Graded(one.graded),
    )
