"""A step's seconds by what takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memsheet.arith import at_least, where
from memsheet.formulas.step_time.numbers import Real
from memsheet.formulas.step_time.parts import Part
from memsheet.formulas.step_time.replicas import Passes

NAMES: Mapping[str, str] = {
    "compute": "operators but attention, forward and backward",
    "attention": "scores and values, forward and backward",
    "recompute": "operators that run a second time",
    "kernel_starts": "the device waits for the host to start kernels",
    "tensor_parallel": (
        "exchanges of ranks that share a layer, as far as nothing hides them; with those of recompute"
    ),
    "context_parallel": "the same of ranks that share a sequence",
    "expert_parallel": "tokens to their experts and back",
    "parameters_gathered": (
        "data-parallel ranks gather parameters (ZeRO-3 for every pass, ZeRO-1 once a "
        "step), as far as no pass hides it"
    ),
    "gradients_reduced": "data-parallel ranks sum gradients, as far as no pass hides it",
    "bubble": "a pipeline fills and drains",
    "pipeline_sends": "activations from stage to stage",
    "optimizer": "the optimizer's step on the device",
    "offload": "states, parameters and activations to the host and back, and the optimizer's step there",
}
"""Every part of a step. They add up to its value: those of a micro-batch are of the slowest stage, times the
micro-batches.
"""
OF_UNITS = {
    "recompute": "recompute_s", "kernel_starts": "waited_s", "tensor_parallel": "tensor_s", "context_parallel": "context_s",
    "expert_parallel": "routed_s", "attention": "attention_s",
}  # fmt: skip


def of_passes(
    stages: Sequence[Sequence[Part]], run: Sequence[Sequence[Passes]], times: Real
) -> dict[str, Real]:
    """Parts of the passes of a step's micro-batches, ``times`` of them, on the stage where they take
    longest.
    """
    named = [_of_stage(parts, passes) for parts, passes in zip(stages, run, strict=True)]
    slowest, *others = named
    for other in others:
        first = at_least(slowest["all"], other["all"])
        slowest = {key: where(first, slowest[key], other[key]) for key in slowest}
    return {key: times * value for key, value in slowest.items() if key != "all"}


def _of_stage(parts: Sequence[Part], passes: Sequence[Passes]) -> dict[str, Real]:
    found = {name: sum((part.total(field) for part in parts), 0.0) for name, field in OF_UNITS.items()}
    found["parameters_gathered"] = sum((one.gathered_s for one in passes), 0.0)
    found["gradients_reduced"] = sum((one.reduced_s for one in passes), 0.0)
    whole = sum((one.forward_s + one.backward_s for one in passes), 0.0)
    return {"compute": whole - sum(found.values(), 0.0), **found, "all": whole}
