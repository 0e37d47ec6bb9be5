"""A model that nobody has written down in a server that runs the library's code, or code of its own that was
not read: its matrices as the tensor-parallel plan cuts them, and what of it is not known as a range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memsheet.arith import Count, agreed, ceil_div
from memsheet.formulas.states.held import module_of
from memsheet.formulas.states.params import parameter_tensors
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.model import Attention, Block, ModelSpec, Role
from memsheet.plan.plan import Plan
from memsheet.references import PAGED_SERVER_CODE, formula
from memsheet.sheet import Bytes, Component, Evidence, Instant, Item

MERGED_PATCHES = 4
"""Patches that one image token stands for, where a tower merges two by two."""


def uncut_ranges(
    part: ModelSpec, plan: Plan, sizes: Mapping[tuple[Component, str], Count]
) -> dict[str, Bytes]:
    """Bytes by module path of the matrices that no pattern cuts, from cut to whole."""
    if part.recording is None or agreed(plan.mesh.tp == 1):
        return {}
    uncut = {
        module_of(path)
        for path, weight, _ in parameter_tensors(part)
        if weight.cut is None and weight.role in (Role.LINEAR, Role.OTHER) and len(weight.shape) > 1
    }
    return {
        path: Bytes(least_share_bytes(size, plan.mesh.tp), size, size)
        for (component, path), size in sizes.items()
        if component is Component.PARAMETERS and path in uncut
    }


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.33.0 model_executor/models/transformers/base.py:478: what no pattern of the plan names is whole "
        "on every rank, or cut where projections are joined; SGLang v0.5.23 srt/models/transformers.py:760 "
        "whole"
    ),
)
def least_share_bytes(size: Count, tp: Count) -> Count:
    """Bytes of a matrix that no pattern names where a rank has the least of it."""
    return ceil_div(size, tp)


@formula(
    cites=PAGED_SERVER_CODE,
    at="v0.11.0 rotary_embedding/__init__.py get_rope: a table of cosines and sines, where code has one",
)
def position_table_bytes(positions: Count, width: Count, plan: Plan) -> Count:
    """Bytes of a table of rotary positions."""
    return plan.precision.compute.nbytes(positions * width)


def unread_table_items(
    part: ModelSpec, plan: Plan, instants: Sequence[Instant], source: Evidence
) -> list[Item]:
    """The table of rotary positions that a server's own code may keep of a recorded model."""
    widths = [mixer.head_dim for mixer in part.mixers() if isinstance(mixer, Attention)]
    if part.recording is None or not widths or not part.max_positions:
        return []
    most = position_table_bytes(part.max_positions, max(widths), plan)
    return [Item(Component.BUFFERS, "rotary_emb", dict.fromkeys(instants, Bytes(0, 0, most)), source)]


@formula(
    cites=PAGED_SERVER_CODE,
    at="v0.33.0 model_executor/models/transformers/base.py: the library's modules, one after another",
)
def all_outputs_bytes(made: Count, hidden: int, plan: Plan, tokens: Count) -> Count:
    """Bytes of everything that a layer's matrices make of a batch, ``made`` elements a token, as if nothing
    were let go before its end: a high end.
    """
    return plan.precision.compute.nbytes(tokens * (made + 3 * hidden))


def _made_elements(block: Block) -> int:
    """Elements a token that a recorded layer's matrices make."""
    if block.recorded is None:
        return 0
    matrices = (w for w in block.weights if w.role is Role.LINEAR and len(w.shape) == 2)
    return sum(weight.shape[0] for weight in matrices)


@formula(
    cites=PAGED_SERVER_CODE,
    at="v0.11.0 gpu_model_runner.py:3336: as many pictures as fill a batch, at once",
)
def tower_pass_bytes(width: Count, plan: Plan, tokens: Count) -> Count:
    """Bytes of a batch of pictures or sounds through a tower nobody has written down: twice what its widest
    matrix reads and makes of all patches, a high end.
    """
    return plan.precision.compute.nbytes(2 * MERGED_PATCHES * tokens * width)


def _tower_widths(part: ModelSpec) -> list[int]:
    """What each matrix beside a recorded model's layers reads and makes of a patch."""
    if part.recording is None:
        return []
    return [sum(w.shape) for w in part.extras if w.role is Role.LINEAR and len(w.shape) == 2]


def unread_highs(part: ModelSpec, plan: Plan, tokens: Count) -> list[Count]:
    """High ends of the widest layer of a recorded model, whose code may free at other places than those that
    were read.
    """
    layers = [
        all_outputs_bytes(made, block.hidden, plan, tokens)
        for block in dict.fromkeys(part.blocks())
        if (made := _made_elements(block))
    ]
    return [*layers, *(tower_pass_bytes(width, plan, tokens) for width in _tower_widths(part))]


def recorded_serving_notes(spec: ModelSpec, plan: Plan) -> tuple[str, ...]:
    """Whose code runs a model that nobody has written down, and what of it is a range."""
    engine = find_engine(plan.engine)
    code = engine.serving.library_code if engine else None
    if spec.recording is None or code is None:
        return ()
    assert spec.recording.handing is not None
    kind, handing = spec.recording.model_type, spec.recording.handing
    whose = (
        f"has code of its own for {kind}, which was not read: weights are those of transformers' code"
        if handing.architecture in code.own
        else f"has no code of its own for {kind} and runs transformers' (read at {code.tag}, {code.file})"
    )
    kept = (
        "keys and values that this code keeps of each token"
        if all(isinstance(mixer, Attention) for mixer in spec.mixers())
        else f"keys, values, latents and states of its layers as {code.tag} lays them out"
    )
    said = [f"{plan.engine} {whose}, its cache the {kept}"]
    if agreed(plan.mesh.tp > 1):
        by = "its config's tensor-parallel plan" if handing.plan_words else "no plan, for its config has none"
        said.append(
            f"matrices are cut over {plan.mesh.tp} GPUs by {by}; what none names is counted whole, at the "
            "low end cut"
        )
    unread = "the widest layer"
    if _tower_widths(spec):
        unread += " and what pictures or sounds take"
    said.append(f"{unread}: from transformers' matrices, a range and not read in {plan.engine}'s code")
    return tuple(said)
