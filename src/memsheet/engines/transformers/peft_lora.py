"""LoRA adapters beside a model that transformers generates with: peft's layers, unmerged. A merged adapter is
the model itself and costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from memsheet.arith import Count, maximum
from memsheet.formulas.states.held import module_of
from memsheet.formulas.states.params import parameter_tensors, tower_tensors
from memsheet.plan.dtypes import DType
from memsheet.plan.model import ModelSpec, Role, Weight
from memsheet.plan.plan import Plan, ServedAdapters
from memsheet.references import LORA, formula
from memsheet.sheet import Bytes, Component, FromCode, Instant, Item

LAYERS = FromCode("huggingface/peft", "v0.21.2", "src/peft/tuners/lora/layer.py", 263)
FORWARD = FromCode("huggingface/peft", "v0.21.2", "src/peft/tuners/lora/layer.py", 1074)


def peft_items(part: ModelSpec, plan: Plan, instants: tuple[Instant, ...]) -> list[Item]:
    """The adapters on a rank, all that are loaded; nothing without."""
    served = plan.served_adapters
    if served is None:
        return []
    rows = pairs_of(part, served)
    return [
        Item(Component.PARAMETERS, f"{path}.lora", dict.fromkeys(instants, Bytes.exact(size)), LAYERS)
        for path, size in rows
    ]


def branch_item(part: ModelSpec, plan: Plan, tokens: Mapping[Instant, tuple[Count, Count]]) -> list[Item]:
    """What a layer's forward holds besides while so many tokens pass (as expected and at most), of layers
    that are not listed operation by operation.
    """
    served = plan.served_adapters
    if served is None:
        return []
    width = branch_width(part, served, plan.precision.compute)
    at = {when: Bytes(0, count * width, most * width) for when, (count, most) in tokens.items()}
    return [Item(Component.TEMPORARIES, "lora_branch", at, FORWARD)]


@formula(
    cites=LORA,
    at=(
        "section 4.1: A of rank x in and B of out x rank; peft keeps those of every adapter that is "
        "loaded, in fp32 unless told otherwise"
    ),
)
def pairs_of(part: ModelSpec, served: ServedAdapters) -> Iterator[tuple[str, Count]]:
    """(module, bytes of the pairs of all adapters) of every target."""
    for path, weight, times in _peft_target_weights(part, served):
        out, width = weight.shape
        yield module_of(path), times * served.dtype.nbytes(served.slots * served.rank * (width + out))


def _peft_target_weights(part: ModelSpec, served: ServedAdapters) -> Iterator[tuple[str, Weight, int]]:
    towers = {path for path, _, _ in tower_tensors(part)}
    for path, weight, times in parameter_tensors(part):
        linear = weight.role is Role.LINEAR and path.endswith(".weight") and len(weight.shape) == 2
        if (
            linear
            and path not in towers
            and (served.targets is None or path.split(".")[-2] in served.targets)
        ):
            yield path, weight, times


@formula(
    cites=LORA,
    at=(
        "peft v0.21.2 tuners/lora/layer.py Linear.forward: x cast, B(A(x)), its scaled copy and the sum in "
        "the adapter's dtype"
    ),
)
def branch_width(part: ModelSpec, served: ServedAdapters, computed: DType) -> Count:
    """Bytes a token of the widest target that stand beside the layer's own input and result: the cast input
    unless it is of that dtype, then the branch scaled and the sum.
    """
    widest: Count = 0
    for _, weight, _ in _peft_target_weights(part, served):
        out, width = weight.shape
        cast = 0 if served.dtype is computed else width
        widest = maximum(widest, served.dtype.nbytes(cast + 2 * out))
    return widest
