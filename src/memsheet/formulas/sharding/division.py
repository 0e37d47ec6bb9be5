"""What differs between algorithms that divide states tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable

from memsheet.arith import Count
from memsheet.formulas.groups import StageLayers
from memsheet.formulas.sharding.overhead import ShardingOverhead
from memsheet.formulas.sharding.resident_state import ResidentState
from memsheet.formulas.states.held import HeldTensor, whole_parameter
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath
from memsheet.frozen import dataclass
from memsheet.plan.engine import Engine
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan


def wrapping_notes(model: ModelSpec) -> tuple[str, ...]:
    """What to name to accelerate so that its units are the whole layers which are counted; nothing where they
    are anyway (1.15, utils/fsdp_utils.py:847-885 wraps the library's ``_no_split_modules``).
    """
    classes = model.recording.wrapped_classes if model.recording else ()
    said = (
        f"layers are wrapped whole, which accelerate does of {model.model_type} when told so: "
        f"fsdp_transformer_layer_cls_to_wrap: {','.join(classes)}. Its own choice is parts of them"
    )
    return (said,) if classes else ()


Shards = tuple[tuple[HeldTensor, Count], ...]
"""Tensors that train, and how much of each a rank keeps."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Division:
    """``overhead``: around the layers. ``shard``: elements of a tensor that a rank keeps. ``gradients``: all
    of them, as they stand before the optimizer's step, where layers decide them; None: each tensor's shard.
    ``waiting``: bytes of whole gradients, where they may wait for the last micro-batch. ``gathered``:
    elements of a tensor that stays whole from forward to backward. ``offloaded``: what is left of a state
    whose parameters or optimizer are on the host. ``root_weights``: what stands around the layers in no group
    of its own; ``root_gather``: what that is gathered into when forward begins; ``beside_gradients``:
    gradients of what is in no part of a model that its code tells apart.
    ``accumulates_whole``: whether autograd adds a gradient, as soon as it is made, to one that is there.
    ``raises_gradients``: to the copies' precision, before those are stepped. ``keeps_reduced``: gradients
    that went to the host stay on the device until backward is over. ``notes``: what a reader of the sheet is
    told of a model's division.
    """

    overhead: Callable[[Plan, Engine, tuple[HeldTensor, ...], StageLayers], ShardingOverhead]
    shard: Callable[[HeldTensor, Plan], Count] = whole_parameter
    gradients: Callable[[StageLayers, Plan], BytesByPath] | None = None
    waiting: Callable[[tuple[HeldTensor, ...], Plan], Count] | None = None
    gathered: Callable[[HeldTensor, Plan], Count] | None = None
    offloaded: Callable[[ResidentState, Plan, StageLayers, tuple[HeldTensor, ...]], ResidentState] | None = (
        None
    )
    root_weights: Callable[[ModelSpec, Plan], BytesByPath] | None = None
    root_gather: Callable[[ModelSpec, Plan], BytesByPath] = lambda *_: EMPTY
    beside_gradients: Callable[[ModelSpec, Plan], BytesByPath] | None = None
    accumulates_whole: Callable[[Plan, Engine], bool] = lambda *_: False
    raises_gradients: bool = False
    keeps_reduced: bool = False
    notes: Callable[[ModelSpec], tuple[str, ...]] = lambda _: ()
    padding_notes: Callable[[tuple[HeldTensor, ...], Plan], tuple[str, ...]] = lambda *_: ()
