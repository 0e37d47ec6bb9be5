"""What a micro-batch is made of: token ids and labels, pictures and their classes, pairs of texts."""

from __future__ import annotations

from memsheet.arith import Count
from memsheet.formulas.model_code.transformers.language_stacks import has_pictures
from memsheet.formulas.tapes.bytes_by_path import BytesByPath
from memsheet.late import late_functions
from memsheet.plan.dtypes import INT64
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import ModelSpec, Stack
from memsheet.plan.plan import Plan
from memsheet.references import TRANSFORMERS, formula
from memsheet.sheet import Component

with late_functions(__name__):
    from memsheet.formulas.model_code.transformers.picture_towers import pixel_bytes
    from memsheet.formulas.model_code.transformers.pictures import of_pictures, picture_bytes
    from memsheet.formulas.model_code.transformers.ring import shared_inputs


@formula(cites=TRANSFORMERS, at="modeling files: arguments of the models' forward; ids and labels are int64")
def microbatch_inputs(model: ModelSpec, plan: Plan) -> BytesByPath:
    """On the device at every instant of a step."""
    tokens, sequences = (
        INT64.nbytes(plan.training.microbatch * plan.training.seq_len),
        INT64.nbytes(plan.training.microbatch),
    )
    if of_pictures(model.embeddings):
        return _input_rows({"pixel_values": picture_bytes(model, plan), "labels": sequences})
    if has_pictures(model):
        grid = INT64.nbytes(
            3 * plan.training.microbatch
        )  # one picture a sequence: frames, rows and columns of patches
        seen = {"pixel_values": pixel_bytes(model, plan), "image_grid_thw": grid, "mm_token_type_ids": tokens}
        return _input_rows({"input_ids": tokens, "labels": tokens, **seen})
    whole = model.head.kind == "classification" and any(
        "pooler" in w.path or "classifier.dense" in w.path for w in model.head.weights
    )
    labels = sequences if whole else tokens
    if plan.context_parallel is not None and engine_of(plan).layers is None:
        return _input_rows(shared_inputs(plan, tokens, sequences))
    pair = {"decoder_input_ids": tokens} if _is_pair(model.stacks) else {}
    return _input_rows({"input_ids": tokens, "labels": labels, **pair})


def _is_pair(stacks: tuple[Stack, ...]) -> bool:
    return {"encoder", "decoder"} <= {stack.role for stack in stacks}


def _input_rows(sizes: dict[str, Count]) -> BytesByPath:
    return BytesByPath.of(((Component.INPUTS, name), size) for name, size in sizes.items())
