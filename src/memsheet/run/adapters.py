"""LoRA adapters on a frozen base, by peft; a quantized base, by a documented stand-in where its library needs
real weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from transformers.pytorch_utils import Conv1D

from memsheet.errors import input_error
from memsheet.frozen import replace
from memsheet.plan.defaults import IA3_INPUTS
from memsheet.plan.dtypes import FP32, DType
from memsheet.plan.plan import AdapterKind, Plan, Quantization
from memsheet.plan.real_step import asks_embeddings
from memsheet.run.dtypes import torch_dtype
from memsheet.run.eight_bit import LinearInt8, lora_of_int8
from memsheet.run.four_bit import can_quantize, four_bit
from memsheet.run.model import layers_of
from memsheet.run.stacked_experts import quantize_stacked_experts

_ABSMAX_BLOCK, _NESTED_BLOCK, _CODE = 64, 256, 16
"""bitsandbytes functional.py quantize_4bit: a maximum every 64 weights; with double quantization those are
stored in 8 bits with a maximum every 256 and a table of 256 values, beside the format's own 16.
"""


STAND_IN = {
    "nf4": "bitsandbytes: Linear4bit",
    "fp4": "bitsandbytes: Linear4bit",
    "int8": "bitsandbytes: Linear8bitLt",
}
"""What a traced answer calls the layers below, by the format."""


def apply_served_adapters(model: nn.Module, plan: Plan) -> nn.Module:
    """The model with the adapters that it serves in its layers, none of them merged; the first of them is
    what it runs with.
    """
    if plan.served_adapters is None:
        return model
    adapted: Any = apply_adapter(model, replace(plan, adapter=plan.served_adapters.alone))
    for number in range(1, int(plan.served_adapters.slots)):
        adapted.add_adapter(f"served_{number}", adapted.peft_config["default"])
    inner: nn.Module = adapted.base_model.model
    return inner.requires_grad_(requires_grad=False)


def apply_adapter(model: nn.Module, plan: Plan) -> nn.Module:
    """The model with its adapters, everything else frozen; as it is where the plan has none."""
    if plan.adapter is None:
        return model
    try:
        with _disable_current_modes():  # what a library makes when it is imported belongs to no model
            from peft import LoraConfig, get_peft_model
    except ImportError:
        raise input_error(
            "adapter", "lora", "is peft's, which is not installed", "pip install peft"
        ) from None
    if asks_embeddings(plan):
        model.enable_input_require_grads()  # type: ignore[operator]
    if plan.adapter.kind not in (AdapterKind.LORA, AdapterKind.DORA, AdapterKind.LORA_FA):
        return _other_method(model, plan)
    rank = int(plan.adapter.rank)
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules=list(plan.adapter.targets),
        exclude_modules=_wrappers_beside_layers(model, plan.adapter.targets) or None,
        lora_dropout=plan.adapter.dropout,
        task_type=_task_type(model),
        use_dora=plan.adapter.kind is AdapterKind.DORA,
        modules_to_save=list(plan.adapter.full_modules) or None,
    )
    if plan.quantization is not None and plan.adapter.kind is not AdapterKind.LORA:
        raise input_error(
            "adapter.kind", plan.adapter.kind.value, "is not run over quantized weights", "lora"
        )
    config._register_custom_module({Linear4bit: _lora_of_4bit(), LinearInt8: lora_of_int8()})
    raised = (
        plan.adapter.dtype is not plan.precision.parameters
    )  # peft makes adapters in the base's dtype, and raises low ones to fp32
    if raised and plan.adapter.dtype is not FP32:
        raise input_error(
            "adapter.dtype",
            plan.adapter.dtype.name,
            "is not what peft makes on such a base",
            f"fp32 or {plan.precision.parameters.name}",
        )
    adapted: nn.Module = get_peft_model(model, config, autocast_adapter_dtype=raised)
    for module in adapted.modules():
        if plan.adapter.full_modules and type(module).__name__ == "ModulesToSaveWrapper":
            _copied_anew(module)
    if (
        plan.adapter.kind is AdapterKind.LORA_FA
    ):  # as peft's own function does it (optimizers/lorafa.py create_lorafa_optimizer)
        for name, parameter in adapted.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and "lora_A" not in name)
    if plan.quantization is not None:
        _lower_adapters(adapted, plan.adapter.dtype)
    return adapted


def _lower_adapters(adapted: nn.Module, dtype: DType) -> None:
    """Adapters in the dtype that is asked for: over whole numbers peft leaves them in torch's default (0.21.2
    tuners/tuners_utils.py:2182-2212, _move_adapter_to_device_of_base_layer), and scripts lower them.
    """
    for name, module in adapted.named_modules():
        if name.rpartition(".")[0].endswith((".lora_A", ".lora_B")):
            module.to(torch_dtype(dtype, "adapter.dtype"))


def _other_method(model: nn.Module, plan: Plan) -> nn.Module:
    """The model with what another method than LoRA trains, in the base's dtype or raised to fp32, or with a
    prompt's tokens.
    """
    from peft import (
        AdaLoraConfig,
        IA3Config,
        LNTuningConfig,
        LoHaConfig,
        LoKrConfig,
        OFTConfig,
        PeftConfig,
        PrefixTuningConfig,
        PromptEncoderConfig,
        PromptTuningConfig,
        VeraConfig,
        get_peft_model,
    )

    assert plan.adapter is not None
    if plan.quantization is not None:
        raise input_error(
            "adapter.kind", plan.adapter.kind.value, "is not run over quantized weights", "lora"
        )
    task, targets = _task_type(model), list(plan.adapter.targets)
    config: PeftConfig
    if plan.adapter.kind is AdapterKind.PROMPT_TUNING:
        config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=plan.adapter.prompt_length)
    elif plan.adapter.kind is AdapterKind.P_TUNING:
        length, width = plan.adapter.prompt_length, plan.adapter.encoder_width
        config = PromptEncoderConfig(
            task_type="CAUSAL_LM", num_virtual_tokens=length, encoder_hidden_size=width
        )
    elif plan.adapter.kind.before_keys:
        length, width = plan.adapter.prompt_length, plan.adapter.encoder_width
        projects = plan.adapter.kind is AdapterKind.PROJECTED_PREFIX
        config = PrefixTuningConfig(
            task_type="CAUSAL_LM",
            num_virtual_tokens=length,
            prefix_projection=projects,
            encoder_hidden_size=width or None,  # type: ignore[arg-type]
        )
    elif plan.adapter.kind is AdapterKind.ADALORA:
        rank, dropout = int(plan.adapter.rank), plan.adapter.dropout
        config = AdaLoraConfig(
            init_r=rank, target_modules=targets, lora_dropout=dropout, task_type=task, total_step=1000
        )
    elif plan.adapter.kind is AdapterKind.OFT:
        config = OFTConfig(oft_block_size=plan.adapter.block_size, target_modules=targets, task_type=task)
    elif plan.adapter.kind is AdapterKind.LN_TUNING:
        config = LNTuningConfig(target_modules=targets, task_type=task)
    elif plan.adapter.kind in (AdapterKind.LOHA, AdapterKind.LOKR):
        rank, made = (
            int(plan.adapter.rank),
            LoHaConfig if plan.adapter.kind is AdapterKind.LOHA else LoKrConfig,
        )
        config = made(r=rank, alpha=rank, target_modules=targets, task_type=task)
    elif plan.adapter.kind is AdapterKind.VERA:
        rank, dropout = int(plan.adapter.rank), plan.adapter.dropout
        config = VeraConfig(r=rank, target_modules=targets, vera_dropout=dropout, task_type=task)
    else:
        inputs = [name for name in targets if name in IA3_INPUTS]
        config = IA3Config(target_modules=targets, feedforward_modules=inputs, task_type=task)
    raised = plan.adapter.dtype is not plan.precision.parameters
    adapted: nn.Module = get_peft_model(model, config, autocast_adapter_dtype=raised)
    return adapted


def _wrappers_beside_layers(model: nn.Module, targets: Sequence[str]) -> list[str]:
    """Modules of towers that have a target's name and hold the linear layer instead of being one (Gemma 4's
    Gemma4ClippableLinear, transformers 5.23.0 modeling_gemma4.py:175), which peft refuses (0.21.2
    tuners/lora/model.py:559): what trains is the language model.
    """
    layers = layers_of(model)
    inside = set(layers.modules()) if layers is not None else set()
    ends = tuple(f".{target}" for target in targets)
    return [
        name
        for name, module in model.named_modules()
        if f".{name}".endswith(ends)
        and module not in inside
        and not isinstance(module, nn.MultiheadAttention)
        and any(isinstance(child, nn.Linear) for child in module.children())
    ]


def _task_type(model: Any) -> str | None:
    """What peft is told: its wrapper for a task hands its model ``inputs_embeds`` (peft 0.21 peft_model.py,
    PeftModelForCausalLM.forward), which one without such an argument may hand to a tower that has its own
    (BLIP).
    """
    takes = "inputs_embeds" in signature(model.forward).parameters
    return "CAUSAL_LM" if takes and hasattr(model, "prepare_inputs_for_generation") else None


def _copied_anew(wrapper: Any) -> None:
    """Parameters of a module's copy as clones: a deep copy of a fake tensor has two storages."""
    for copy in wrapper.modules_to_save.values():
        for name, parameter in list(copy.named_parameters()):
            setattr(
                copy,
                name,
                nn.Parameter(
                    wrapper.original_module.get_parameter(name).detach().clone(), parameter.requires_grad
                ),
            )


def apply_quantization(model: nn.Module, plan: Plan) -> nn.Module:
    """Linear layers with 4-bit or int8 weights, in place: bitsandbytes' own where they can be, else a
    stand-in; the output projection stays as it is (transformers quantizers/base.py:39-63
    get_keys_to_not_convert). Raises InputError for formats that have no stand-in.
    """
    how = plan.quantization
    if how is None:
        return model
    made = STAND_INS.get(how.weights.name.partition("-")[0])
    if made is None:
        raise input_error("quantize", how.weights.name, "has no stand-in on fake tensors", "nf4, fp4 or int8")
    if any(isinstance(module, Conv1D) for module in model.modules()):
        raise input_error("quantize", how.weights.name, "of Conv1D has no stand-in on fake tensors", "bf16")
    head, real = model.get_output_embeddings(), can_quantize(model) and made is Linear4bit  # type: ignore[operator]
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and module is not head and not _is_unquantized_module(name, how):
            parent, _, last = name.rpartition(".")
            setattr(
                model.get_submodule(parent), last, four_bit(module, how, plan) if real else made(module, plan)
            )
    if how.experts:
        quantize_stacked_experts(model, plan)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.is_loaded_in_4bit = real  # type: ignore[assignment]  # by which peft knows its own layers for them
    return model


def _is_unquantized_module(name: str, how: Quantization) -> bool:
    return any(name == skip or name.startswith(f"{skip}.") or f".{skip}." in f".{name}." for skip in how.skip)


class _Product(torch.autograd.Function):
    """As bitsandbytes' MatMul4Bit (autograd/_functions.py): the weight is dequantized for the product and
    again in backward.
    """

    @staticmethod
    def forward(
        ctx: object, x: Tensor, packed: Tensor, bias: Tensor | None, shape: tuple[int, int]
    ) -> Tensor:
        ctx.shape = shape  # type: ignore[attr-defined]
        ctx.packed = packed  # type: ignore[attr-defined]
        return nn.functional.linear(x, torch.empty(shape, dtype=x.dtype, device=x.device), bias)

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        weight = torch.empty(ctx.shape, dtype=gradient.dtype, device=gradient.device)  # type: ignore[attr-defined]
        return gradient @ weight, None, None, None


class Linear4bit(nn.Linear):
    """A stand-in for bitsandbytes' layer of that name, which cannot wrap a fake tensor: the same tensors, the
    same temporaries.
    """

    def __init__(self, like: nn.Linear, plan: Plan) -> None:
        nn.Module.__init__(self)
        assert plan.quantization is not None
        how = plan.quantization
        self.compute = torch_dtype(plan.precision.compute, "precision.compute")
        self.in_features, self.out_features = like.in_features, like.out_features
        elements, device = like.weight.numel(), like.weight.device
        blocks = -(-elements // _ABSMAX_BLOCK)
        double = len(how.weights.scales) > 1
        self.weight = nn.Parameter(
            torch.empty(((elements + 1) // 2, 1), dtype=torch.uint8, device=device), requires_grad=False
        )
        self.bias = like.bias
        self.register_buffer(
            "absmax", torch.empty(blocks, dtype=torch.uint8 if double else torch.float32, device=device)
        )
        self.register_buffer("code", torch.empty(_CODE, device=device))
        if double:
            self.register_buffer("nested_absmax", torch.empty(-(-blocks // _NESTED_BLOCK), device=device))
            self.register_buffer("nested_code", torch.empty(256, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """Computed in one dtype and handed back in the input's (bitsandbytes nn/modules.py:626-637)."""
        bias = None if self.bias is None else self.bias.to(self.compute)
        lowered = x.to(self.compute)  # named until the result is handed back
        result: Tensor = _Product.apply(lowered, self.weight, bias, (self.out_features, self.in_features)).to(
            x.dtype
        )
        return result


STAND_INS: dict[str, Callable[[nn.Linear, Plan], nn.Module]] = {
    "nf4": Linear4bit,
    "fp4": Linear4bit,
    "int8": LinearInt8,
}


def _lora_of_4bit() -> type:
    """The adapter that peft puts on bitsandbytes' layer (tuners/lora/bnb.py:513-561): a clone of the base's
    result, to which the branch is added in the base's dtype. Under autocast the input is left as it is.
    """
    from peft.tuners.lora.layer import Linear

    class Lora4bit(Linear):
        def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
            result = self.base_layer(x, *args, **kwargs).clone()
            for name in self.active_adapters:
                lowered = (
                    x
                    if torch.is_autocast_enabled()
                    else self._cast_input_dtype(x, next(self.lora_A[name].parameters()).dtype)
                )
                branch = (
                    self.lora_B[name](self.lora_A[name](self.lora_dropout[name](lowered)))
                    * self.scaling[name]
                )
                branch = branch if torch.is_autocast_enabled() else branch.to(result.dtype)
                result = result + branch
            return result

    return Lora4bit
