"""Weights of layers that a server keeps in host memory (``--cpu-offload-gb``), and reads from there.

Parameters of layers, in the order in which they are made, until as many bytes are on the host as are asked
for: the last one may go beyond it. Embeddings, the output and towers stay. Kernels read pinned host memory
themselves; where there is none to be pinned, a layer's weights are copied to the card while it runs
(v0.11.0 model_executor/models/utils.py:493-580, v0.33.0 model_executor/offloader/uva.py).
"""

from __future__ import annotations

from memsheet.arith import Count, maximum
from memsheet.engines.vllm.options import vllm_options
from memsheet.frozen import replace
from memsheet.patterns import late_pattern
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.references import PAGED_SERVER_CODE, formula
from memsheet.sheet import Bytes, Cited, Component, Instant, Item, sum_byte_ranges
from memsheet.units import GIB

SOURCE = Cited(PAGED_SERVER_CODE, "model_executor/offloader/uva.py: until cpu_offload_gb are on the host")
TOWER = late_pattern(r"visual|vision|audio|tower")
LARGEST_LAYERS = 2
"""Half of a model's layers or more are of its largest kind, so none is more than twice the mean."""


def with_host_weights(part: ModelSpec, plan: Plan, loaded: list[Item]) -> tuple[list[Item], list[Item]]:
    """Items of a rank's weights, in bytes, less what lies on the host; and the copy of a layer that a host
    without pinned memory needs, at the most.
    """
    asked = int(vllm_options(plan).host_weights_gib * GIB)
    moved = [item for item in loaded if _is_of_layers(item)]
    if not asked or not moved:
        return loaded, []
    whole = sum_byte_ranges(item.largest for item in moved).value
    layer = LARGEST_LAYERS * whole // maximum(1, part.layers)
    rest = bytes_left_on_card(whole, asked, layer)
    left = [_scaled_item(item, rest, whole) if item in moved else item for item in loaded]
    copied = dict.fromkeys((Instant.PREFILL, Instant.DECODE), Bytes(0, 0, layer))
    return left, [Item(Component.TEMPORARIES, "host_layer", copied, SOURCE)]


@formula(
    cites=PAGED_SERVER_CODE, at="model_executor/offloader/uva.py: per parameter, until the sum is reached"
)
def bytes_left_on_card(whole: Count, asked: Count, layer: Count) -> Bytes:
    """Bytes of ``whole`` layers' weights that stay where ``asked`` are to go: the parameter that reaches it
    goes whole, and is at most a ``layer``.
    """
    left = maximum(0, whole - asked)
    return Bytes(maximum(0, whole - asked - layer), left, left)


def _is_of_layers(item: Item) -> bool:
    return item.component is Component.PARAMETERS and "*" in item.path and not TOWER.search(item.path)


def _scaled_item(item: Item, rest: Bytes, whole: Count) -> Item:
    def resident_share(size: Bytes) -> Bytes:
        return Bytes(
            size.low * rest.low // whole, size.value * rest.value // whole, size.high * rest.high // whole
        )

    at: dict[Instant, Bytes] = {when: resident_share(size) for when, size in item.at.items()}
    return replace(item, at=at, evidence=SOURCE)
