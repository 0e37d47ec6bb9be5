"""What PyTorch's profiler calls what memsheet measures: a table, read from its rules. No torch here.

Facts from torch 2.13.0, torch/profiler/_memory_profiler.py, whose classifier runs on Python stacks and the
flow of data; over two steps of the smallest model it takes a minute, so it is not run, and its rules are
applied to what is known of each tensor instead:

* PARAMETER, OPTIMIZER_STATE, GRADIENT: by the module, the optimizer and ``.grad`` that hold them (:840, :994,
  :820);
* INPUT: what gradients need and do not reach: token ids, labels, tables of positions (:848);
* ACTIVATION: what forward makes of them, kept for backward or not (:972);
* AUTOGRAD_DETAIL: what backward makes and is no gradient (:1002);
* TEMPORARY: what comes and goes inside one operation (:836), which memsheet counts beside the tensors it
  sees, as unexplained;
* no name: what the optimizer makes on its way, and all of inference, where there are no gradients to tell by.
"""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.sheet import Component, Instant, Sheet

UNNAMED = "unknown"
ALWAYS: Mapping[Component, str] = {
    Component.PARAMETERS: "PARAMETER", Component.MASTER_WEIGHTS: "OPTIMIZER_STATE", Component.GRADIENTS: "GRADIENT",
    Component.OPTIMIZER_STATES: "OPTIMIZER_STATE", Component.BUFFERS: "INPUT", Component.INPUTS: "INPUT",
    Component.SAVED_ACTIVATIONS: "ACTIVATION", Component.UNEXPLAINED: "TEMPORARY", Component.AUTOGRAD_DETAIL: "AUTOGRAD_DETAIL",
    Component.UNSHARDED_PARAMETERS: "PARAMETER",
}  # fmt: skip
BY_INSTANT: Mapping[Instant, str] = {
    Instant.FORWARD: "ACTIVATION", Instant.LOSS: "ACTIVATION", Instant.BACKWARD: "AUTOGRAD_DETAIL",
}  # fmt: skip
"""Of what is there for a moment: temporaries."""
SERVING = (Instant.PREFILL, Instant.DECODE)


def profiler_category(component: Component, instant: Instant) -> str:
    """The profiler's name for a component at an instant."""
    if instant in SERVING and component is not Component.PARAMETERS:
        return UNNAMED
    return ALWAYS.get(component) or BY_INSTANT.get(instant, UNNAMED)


def profiler_category_bytes(sheet: Sheet) -> dict[str, dict[str, int]]:
    """Bytes at each instant by the profiler's names, the largest first; what lies outside tensors has
    none.
    """
    found: dict[str, dict[str, int]] = {}
    for instant, row in sheet.sums().items():
        sums: dict[str, int] = {}
        for component, size in row.items():
            if component not in (Component.ALLOCATOR_SLACK, Component.CONTEXT):
                name = profiler_category(component, instant)
                sums[name] = sums.get(name, 0) + int(size.value)
        found[instant.value] = dict(sorted(sums.items(), key=lambda pair: -pair[1]))
    return found
