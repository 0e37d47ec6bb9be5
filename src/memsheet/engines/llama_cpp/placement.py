"""Tensors that lie elsewhere than their layer does: experts that the host keeps (--n-cpu-moe, or a share of
the model), and what rules of names say (-ot).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memsheet.engines.llama_cpp.gemma4 import GEMMA_4
from memsheet.engines.llama_cpp.options import llama_cpp_options
from memsheet.engines.llama_cpp.weights import MODULES, Stored
from memsheet.errors import input_error
from memsheet.frozen import dataclass, replace
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.plan.tensor_rules import CPU, Rules, ruled_device, tensor_rules
from memsheet.references import LLAMA_CPP, formula

NAMES = {module: label for label, module in MODULES.items()} | {
    "gate": "ffn_gate_inp", "router": "ffn_gate_inp", "shared_expert_gate": "ffn_gate_inp_shexp", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm", "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm", "q_a_layernorm": "attn_q_a_norm", "kv_a_layernorm": "attn_kv_a_norm", "kv_b_proj": "attn_kv_b", "sinks": "attn_sinks",
    "e_score_correction_bias": "exp_probs_b", "gate_up_proj": "ffn_up",
}  # fmt: skip
"""Names in a file by those in the model's own code (src/llama-arch.cpp)."""
JOINED = "gate_up_proj"
"""Both input matrices of experts in one, which a file keeps apart, but for Gemma 4's (ffn_gate_up_exps)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDevices:
    """Where layers lie: a device for each, and for the output. The host is number ``host``."""

    layers: tuple[int, ...]
    output: int
    host: int

    @property
    def whole(self) -> bool:
        """Whether everything but the table of tokens is on devices."""
        return self.host not in (*self.layers, self.output)


@formula(
    cites=LLAMA_CPP,
    at=(
        "common/arg.cpp --n-cpu-moe: the routed experts of the first layers stay on the host; "
        "--override-tensor, llama-model-loader.cpp create_tensor: any tensor where the first rule that is "
        "found in its name says"
    ),
    counts="int",
)
def placed_tensors(
    spec: ModelSpec, plan: Plan, tensors: tuple[Stored, ...], where: LayerDevices
) -> tuple[Stored, ...]:
    """Tensors with the device of those that do not lie with their layer. Rules of names go before the count
    of layers. ``parameters`` of the plan's offload is experts of as many layers as make up its share of the
    model, off every device alike: rules that name tensors are written for each device, and a share is no
    rule of one.

    Raises InputError where a share is given of a model without experts, and of rules for devices that are
    not there.
    """
    own = llama_cpp_options(plan)
    rules = tensor_rules(own.tensor_overrides) or () if own.tensor_overrides else ()
    _check_devices(rules, where.host, own.tensor_overrides)
    kept = _host_expert_layers(tensors, plan, where)
    if not rules and not kept:
        return tensors

    def placed(t: Stored) -> Stored:
        device = ruled_device(rules, _file_name(t)) if rules else None
        if device is None:
            return replace(t, device=where.host) if t.expert and t.layer in kept else t
        return replace(t, device=where.host if device == CPU else device)

    return tuple(map(placed, _as_in_a_file(spec, tensors) if rules else tensors))


def _check_devices(rules: Rules, devices: int, text: str) -> None:
    beyond = [device for _, device in rules if device >= devices]
    if beyond:
        raise input_error(
            "serving.tensor_overrides",
            text,
            f"names CUDA{beyond[0]}, and there are {devices} devices: llama.cpp stops at it",
            f"--gpus with {beyond[0] + 1} or more, or another device",
        )


def _as_in_a_file(spec: ModelSpec, tensors: Sequence[Stored]) -> Iterator[Stored]:
    joined = any(
        block.kind in GEMMA_4 for stack in spec.stacks for run in stack.runs for block in run.pattern
    )
    for t in tensors:
        if joined or not t.expert or t.module != JOINED or t.kind.endswith("_exps"):
            yield t
            continue
        low, high = (end if end < 0 else end // 2 for end in (t.low, t.high))
        for module in ("gate_proj", "up_proj"):
            kind = NAMES[module]
            yield replace(t, kind=kind, module=module, nbytes=t.nbytes // 2, low=low, high=high)


def _file_name(t: Stored) -> str:
    """A tensor's name in a GGUF file."""
    if t.layer < 0:
        return f"{t.kind}.weight"
    shared = t.module.startswith("shared.")
    module = t.module.removeprefix("shared.")
    label = t.kind if t.kind.endswith(("_exps", "_shexp")) else NAMES.get(module, t.kind)
    if t.expert and not label.endswith("_exps"):
        label = f"{'ffn_gate_up' if module == JOINED else label}_exps"
    elif shared and not label.endswith("_shexp"):
        label += "_shexp"
    return f"blk.{t.layer}.{label}.weight"


def _host_expert_layers(tensors: tuple[Stored, ...], plan: Plan, where: LayerDevices) -> frozenset[int]:
    """Layers whose experts the host holds: the first ones as the plan counts them, or those of its share."""
    if not plan.offload.parameters:
        return frozenset(range(llama_cpp_options(plan).host_experts))
    routed = sorted({t.layer for t in tensors if t.expert})
    a_layer = sum(t.nbytes for t in tensors if t.expert) // max(1, len(routed))
    if not a_layer:
        raise input_error(
            "offload.parameters",
            plan.offload.parameters,
            "is experts on the host in llama.cpp, and the model has none",
            "--gpu-layers",
        )
    return _even_share(
        routed, where.layers, round(plan.offload.parameters * sum(t.nbytes for t in tensors) / a_layer)
    )


def _even_share(routed: list[int], devices: tuple[int, ...], count: int) -> frozenset[int]:
    """So many layers, the same part of every device's, its first ones."""
    on = [devices[layer] for layer in routed]
    share = [
        (on[: number + 1].count(device) / on.count(device), routed[number])
        for number, device in enumerate(on)
    ]
    return frozenset(layer for _, layer in sorted(share)[:count])
