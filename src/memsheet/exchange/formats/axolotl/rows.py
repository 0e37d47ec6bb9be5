"""Keys of axolotl's YAML that say a plan. Lines are of ``src/axolotl`` at its commit 067b021 (0.18.0)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange import find_format
from memsheet.exchange.shared.file_format import AUTO, Key, Values
from memsheet.exchange.shared.flat_gathers import flat_gather_rows
from memsheet.exchange.shared.trainers import (
    inline_deepspeed_values,
    inside_rows,
    parse_switch,
    plain_recompute,
    row_of,
    uniform_precision_keys,
    with_master,
)
from memsheet.plan.adapter_targets import LINEAR_MODULES
from memsheet.plan.library_defaults import own_default

VERSION = "axolotl 0.18.0"
DEEPSPEED = find_format("deepspeed")
OPTIM = row_of(find_format("transformers"), "optim")
F = "fsdp_config"
S, C = "utils/schemas", "utils/schemas/config.py"
FLAGS = {
    "xformers_attention": "xformers", "sage_attention": "sage", "flex_attention": "flex_attention", "flash_attention": "flash",
    "sdp_attention": "sdpa", "eager_attention": "eager",
}  # fmt: skip
"""Older switches, the first that is on wins (schemas/enums.py:118-125)."""
KERNELS = {
    "flash": "flash_attention_2", "sdpa": "sdpa", "eager": "eager", "xformers": "xformers",
}  # fmt: skip
_FLASH = (
    "flash_attention_2", "flash_attention_3", "kernels-community/flash-attn2", "kernels-community/flash-attn3", "kernels-community/vllm-flash-attn3",
)  # fmt: skip
_PLAIN, XFORMERS = ("eager", "sdpa"), "xformers"
OTHER_KERNEL = "attn_implementation (a kernel that is not accounted; the sheet is of sdpa)"
"""sage's, flex_attention's and others' out of the hub (schemas/enums.py:104-115, 117-125), and
xformers' in layers that are sharded.
"""


TOP_VERSION = "fsdp_version"
RAISED = ("sdpa", "eager")  # utils/schemas/enums.py:158: "Backends for which embeddings stay in fp32"


def fully_sharded(values: Values) -> bool:
    """Whether FSDP is set up: by its group, of which a version alone is none, or by the words of older
    files.
    """
    return bool(values.get("fsdp")) or any(
        at.startswith(f"{F}.") and at != f"{F}.fsdp_version" for at in values
    )


BUILT_IN = ("lora", "qlora")


def adapter_word(values: Values) -> str:
    """The adapter that a file means: ``q-lora`` and ``QLoRA`` are qlora, at which its parser stops."""
    said = str(values.get("adapter") or "")
    meant = "".join(filter(str.isalnum, said.lower()))
    return meant if meant in BUILT_IN else said


def by_deepspeed(values: Values) -> bool:
    return bool(values.get("deepspeed")) or bool(inline_deepspeed_values(values))


def model_dtype(values: Values) -> str:
    """What a model is loaded and computed in (utils/config/__init__.py:156-196). Set to nothing, bf16 is off;
    left out, it is "auto".
    """
    half = parse_switch(values.get("fp16"))
    told = values.get("bf16", AUTO)
    if (not half if told == AUTO else parse_switch(told) or told == "full") or parse_switch(
        values.get("bfloat16")
    ):
        return "bf16"
    return (
        "fp16"
        if half or parse_switch(values.get("float16")) or parse_switch(values.get("load_in_8bit"))
        else "fp32"
    )


def _read_axolotl_precision(_: Any, values: Values) -> Mapping[str, Any]:
    """Adapters train in fp32 beside a base in ``model_dtype`` (peft's autocast_adapter_dtype); without one
    everything has that dtype, but under FSDP1, whose flat parameters accelerate raises where precision is
    mixed (accelerate 1.15.0 accelerator.py:1995-2035): all but bf16: full is (axolotl 067b021
    utils/trainer.py:684-691).
    """
    own = model_dtype(values)
    if by_deepspeed(values):
        return with_master(own)
    if not values.get("adapter"):
        raised = own != "fp32" and values.get("bf16") != "full" and _flat_parameters(values)
        kept = uniform_precision_keys("fp32" if raised else own)
        return {**kept, "precision.compute": own, "precision.reduce": own} if raised else kept
    reduced = {"precision.reduce": own} if fully_sharded(values) else {}
    return {"precision.parameters": own, "precision.compute": own, **reduced}


def _flat_parameters(values: Values) -> bool:
    """Whether FSDP1 divides the model."""
    version = values.get(TOP_VERSION) or values.get(f"{F}.fsdp_version")
    return fully_sharded(values) and not by_deepspeed(values) and str(version) != "2"


def _computes_in(word: str) -> Any:
    """Whether it is what products are in: with which the rest goes, or the plan is refused."""
    return lambda asked: asked.get("precision.compute") == word


def _read_axolotl_engine(_: Any, values: Values) -> Mapping[str, Any]:
    """Where nothing divides it, replicas, unless another file says how it is launched."""
    if fully_sharded(values) or by_deepspeed(values):
        return {"engine": "deepspeed"} if inline_deepspeed_values(values) else {}
    return {"?engine": "transformers", "?zero": 0}


def _read_fsdp_version(value: Any, values: Values) -> Mapping[str, Any]:
    """FSDP1 where no version is said (schemas/validation.py:1119-1122)."""
    return (
        {"engine": "fsdp2" if str(value) == "2" else "fsdp1"}
        if fully_sharded(values) and not by_deepspeed(values)
        else {}
    )


def _read_group_version(value: Any, values: Values) -> Mapping[str, Any]:
    """The version in the group, where none is at the top (schemas/validation.py:1105-1113)."""
    return {} if values.get(TOP_VERSION) else _read_fsdp_version(value, values)


def _of_fsdp(make: Any) -> Any:
    return lambda asked: make(asked) if asked["engine"] == "fsdp2" else None


def _read_fsdp_reshard(value: Any, values: Values) -> Mapping[str, Any]:
    return {"zero": 3 if parse_switch(value) else 2} if fully_sharded(values) else {}


def _read_fsdp_offload(value: Any, values: Values) -> Mapping[str, Any]:
    return (
        {"offload.optimizer": int(parse_switch(value)), "offload.parameters": int(parse_switch(value))}
        if fully_sharded(values)
        else {}
    )


def _offloads_all_states(asked: Values) -> bool:
    return asked.get("offload.optimizer") == 1 and asked.get("offload.parameters") == 1


OFFLOADS = {"offload": "offload", "offload_disk": "offload_disk", "unsloth": "offload"}
"""Words of gradient_checkpointing that move what is kept, the last an older one
(utils/schemas/validation.py).
"""


def _read_axolotl_checkpointing(value: Any, values: Values) -> Mapping[str, Any]:
    """TRL's way of moving activations takes recompute's place beside adapters (core/builders/base.py:592-598,
    loaders/model.py:358).
    """
    moves = (
        values.get("activation_offloading") not in (None, False, "hidden_states") or str(value) in OFFLOADS
    )
    if not parse_switch(value) and str(value) not in OFFLOADS:
        return {"?recompute.mode": "none"}
    return {"?recompute.mode": "none"} if moves and values.get("adapter") else {"recompute.mode": "full"}


def _is_full_recompute(asked: Values) -> bool:
    return asked.get("recompute.mode") == "full" and plain_recompute(asked)


def kernel_word(values: Values) -> str:
    """The kernel as the file says it, or as transformers takes it by itself: nothing."""
    if (named := values.get("attn_implementation")) is not None:
        return str(named)
    word = next((name for flag, name in FLAGS.items() if parse_switch(values.get(flag))), "")
    return "flash_attention_2" if word == "flash" else word


def has_other_kernel(values: Values) -> bool:
    return _kernel_key(values) is None


def _kernel_key(values: Values) -> str | None:
    """The kernel as a plan has it, nothing where the file says none; None of what is not accounted.
    xformers' takes keys and values repeated for all heads, and packed rows as a bias of their lengths
    (monkeypatch/attention/xformers.py:66-148).
    """
    word, sharded = kernel_word(values), fully_sharded(values) or by_deepspeed(values)
    own = {"": "", **dict.fromkeys(_FLASH, "flash"), **{name: name for name in _PLAIN}}
    return {**own, **({} if sharded else {XFORMERS: XFORMERS})}.get(word)


def read_attention_kernel(_: Any, values: Values) -> Mapping[str, Any]:
    """Named, by an older switch, or as transformers takes it by itself, which is sdpa where it has that
    (loaders/model.py:757). Others keep no more than sdpa, and are told.
    """
    own = _kernel_key(values)
    return {"?attention": "sdpa"} if own == "" else {"attention": own or "sdpa"}


CUT = "cut_cross_entropy"


def cuts_logits(values: Values) -> bool:
    """Whether the loss makes no logits: said, or by the plugin alone
    (integrations/cut_cross_entropy/args.py:33).
    """
    said = values.get(CUT)
    return (
        parse_switch(said)
        if said is not None
        else "CutCrossEntropy" in str(plugin_list(values.get("plugins")))
    )


def plugin_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def keeps_embeddings_fp32(values: Values) -> bool:
    """Whether embeddings, the output layer and norms are left in fp32 beside sixteen bits
    (loaders/model.py:422-476).
    """
    whole = not (values.get("adapter") or fully_sharded(values) or by_deepspeed(values))
    return (
        whole
        and model_dtype(values) != "fp32"
        and (kernel_word(values) or "sdpa") in RAISED
        and not cuts_logits(values)
    )


def _default_attention(value: Any, values: Values) -> Mapping[str, Any]:
    return (
        {} if any(parse_switch(values.get(flag)) for flag in FLAGS) else read_attention_kernel(value, values)
    )


def _read_sequence_len(value: Any, values: Values) -> Mapping[str, Any]:
    """Batches are padded to a multiple of 64 tokens, unless that is switched off
    (core/builders/causal.py:386-395), or to whole rows of packed sequences and of a reward model's
    (schemas/validation.py:229-253).
    """
    pads, multiple = values.get("pad_to_sequence_len"), values.get("pad_to_multiple_of") or 64
    whole = isinstance(value, int) and isinstance(multiple, int) and multiple > 0
    fills = any(parse_switch(values.get(at)) for at in ("sample_packing", "reward_model"))
    exact = parse_switch(pads) or (pads is None and fills)
    length = -(-value // multiple) * multiple if whole and pads is not False else value
    return {"seq_len": length, **({} if exact else {"?seq_len_kind": "maximum"})}


def _read_adapter_kind(value: Any, values: Values) -> Mapping[str, Any]:
    """Neither lora nor qlora is a plugin's, which the plan refuses by its name."""
    if value in ("", None):
        return {}
    kind = "dora" if parse_switch(values.get("peft_use_dora")) else "lora"
    kept = (
        model_dtype(values)
        if by_deepspeed(values) or values.get("peft_autocast_adapter_dtype") is False
        else "fp32"
    )
    return {"adapter.kind": kind if adapter_word(values) in BUILT_IN else value, "adapter.dtype": kept}


def _adapter_value_reader(key: str) -> Any:
    return lambda value, values: {key: value} if values.get("adapter") else {}


def _read_lora_target_modules(value: Any, values: Values) -> Mapping[str, Any]:
    if not values.get("adapter") or parse_switch(values.get("lora_target_linear")):
        return {}
    return {"adapter.targets": [value] if isinstance(value, str) else value}


def _all_linear(value: Any, values: Values) -> Mapping[str, Any]:
    return {"adapter.targets": [LINEAR_MODULES]} if parse_switch(value) and values.get("adapter") else {}


def _read_load_in_4bit(value: Any, values: Values) -> Mapping[str, Any]:
    """Only beside the adapter that goes with it (loaders/model.py:712-750): NF4 with scales in eight bits, or
    LLM.int8.
    """
    return (
        {"quantization.weights": "nf4", "quantization.double_quant": True}
        if parse_switch(value) and adapter_word(values) == "qlora"
        else {}
    )


def _read_quantized_experts(value: Any, values: Values) -> Mapping[str, Any]:
    """Experts that are one parameter a layer, quantized as they are loaded (monkeypatch/moe_quant.py) where
    the rest is.
    """
    quantized = _read_load_in_4bit(values.get("load_in_4bit"), values) or _read_load_in_8bit(
        values.get("load_in_8bit"), values
    )
    return {"quantization.experts": True} if parse_switch(value) and quantized else {}


def _read_load_in_8bit(value: Any, values: Values) -> Mapping[str, Any]:
    return {"quantization.weights": "int8"} if parse_switch(value) and adapter_word(values) == "lora" else {}


def _load_in_4bit(asked: Values) -> Any:
    plain = asked.get("quantization.double_quant") is True and not asked.get("quantization.skip")
    return True if asked.get("quantization.weights") == "nf4" and plain else None


def _axolotl_adapter_name(asked: Values) -> Any:
    return None if not asked.get("adapter.rank") else "qlora" if _load_in_4bit(asked) else "lora"


def _read_axolotl_optimizer(value: Any, values: Values) -> Mapping[str, Any]:
    return {"optimizer.name": "muon"} if value == "muon" else OPTIM.read(value, values)


def _no_axolotl_keys(*_: Any) -> Mapping[str, Any]:
    return {}


def _axolotl_helper_row(at: str, source: str, out: Any = lambda _: None) -> Key:
    """A key that another row reads."""
    return Key(at=at, out=out, back=_no_axolotl_keys, source=source)


def _parallel_degree_row(at: str, key: str, line: int) -> Key:
    axes = ("mesh.dp_replicate", "mesh.tp")
    return Key(
        at=at,
        out=_of_fsdp(lambda a: a.get(key, 1) if any(a.get(axis, 1) > 1 for axis in axes) else None),
        back=lambda v, _: {key: v},
        source=f"{C}:{line}; utils/distributed.py:320",
    )


def _read_own_ring(value: Any, _: Values) -> Mapping[str, Any]:
    """Ranks that share sequences by the ring-flash-attn package (monkeypatch/ring_attn), and not by torch."""
    shared = isinstance(value, int) and value > 1
    return {"mesh.cp": value} | ({"context_parallel_comm": "ring"} if shared else {})


def _only_with_adapter(make: Any) -> Any:
    return lambda asked: make(asked) if asked.get("adapter.rank") else None


KEYS = (
    Key(at="base_model", says="@model", source=f"{S}/model.py:17"),
    Key(at="sequence_len", says="seq_len", back=_read_sequence_len, usual=own_default("axolotl", "sequence_len"), source=f"{C}:665"),
    _axolotl_helper_row("pad_to_sequence_len", f"{C}:722", lambda _: True),
    _axolotl_helper_row("pad_to_multiple_of", f"{C}:728", lambda a: 1 if a["seq_len"] % 64 else None),
    Key(at="micro_batch_size", says="microbatch", usual=own_default("axolotl", "micro_batch_size"), source=f"{S}/training.py:77"),
    Key(at="gradient_accumulation_steps", says="@accumulation", usual=1, source=f"{S}/training.py:71"),
    Key(at="bf16", out=_computes_in("bf16"), back=_read_axolotl_precision, usual=own_default("axolotl", "bf16"), auto=True, source=f"{C}:559; utils/config/__init__.py:156"),
    _axolotl_helper_row("fp16", f"{C}:565", _computes_in("fp16")),
    _axolotl_helper_row("bfloat16", f"{C}:582"),
    _axolotl_helper_row("float16", f"{C}:588"),
    Key(at="fsdp", out=lambda _: None, back=_read_axolotl_engine, usual=False, source=f"{C}:1044"),
    Key(at=TOP_VERSION, out=lambda _: None, back=_read_fsdp_version, source=f"{C}:1052"),
    Key(at=f"{F}.fsdp_version", out=lambda _: None, back=_read_group_version, usual=1, source=f"{C}:1052; {S}/fsdp.py:15"),
    *flat_gather_rows(f"{F}.", _flat_parameters, "axolotl 0.19.0 core/builders/base.py:694; transformers 5.23 training_args.py:2872-2884", engines=()),
    Key(at=f"{F}.reshard_after_forward", out=_of_fsdp(lambda a: a.get("zero") == 3), back=_read_fsdp_reshard, usual=True, source=f"{S}/fsdp.py:75"),
    Key(at=f"{F}.offload_params", out=_of_fsdp(_offloads_all_states), back=_read_fsdp_offload, usual=False, source=f"{S}/fsdp.py:24"),
    Key(
        at=f"{F}.activation_checkpointing", out=_of_fsdp(_is_full_recompute),
        back=lambda v, values: {"recompute.mode": "full"} if parse_switch(v) and fully_sharded(values) else {}, source=f"{S}/fsdp.py:20",
    ),
    _parallel_degree_row("dp_shard_size", "mesh.dp_shard", 1091),
    _parallel_degree_row("dp_replicate_size", "mesh.dp_replicate", 1097),
    _parallel_degree_row("tensor_parallel_size", "mesh.tp", 1125),
    Key(at="context_parallel_size", out=lambda _: None, back=_read_own_ring, source=f"{C}:1107"),
    Key(at="expert_parallel_size", out=lambda _: None, back=lambda v, _: {"mesh.ep": v}, source="integrations/expert_parallel/args.py:23"),
    Key(
        at="deepspeed", out=lambda a: "ds_config.json" if a["engine"] == "deepspeed" else None, back=lambda *_: {"engine": "deepspeed"},
        source=f"{C}:1032",
    ),
    Key(
        at="gradient_checkpointing", out=lambda a: _is_full_recompute(a) if a["engine"] != "fsdp2" else None, back=_read_axolotl_checkpointing, usual=own_default("axolotl", "gradient_checkpointing"),
        source=f"{C}:600",
    ),
    row_of(find_format("transformers"), "gradient_checkpointing_kwargs.use_reentrant"),
    Key(
        at="attn_implementation", out=lambda a: KERNELS.get(str(a.get("attention"))), back=_default_attention, usual="sdpa", source=f"{C}:839",
    ),
    *(Key(at=flag, out=lambda _: None, back=read_attention_kernel, source=f"{S}/enums.py:118") for flag in FLAGS),
    Key(
        at="liger_fused_linear_cross_entropy", out=lambda a: True if a.get("loss") == "fused" else None,
        back=lambda v, values: {"loss": "fused" if parse_switch(v) or cuts_logits(values) else "plain"}, usual=False,
        source="integrations/liger/args.py:55; integrations/cut_cross_entropy/args.py:33",
    ),
    Key(at="torch_compile", out=lambda a: True if a.get("compile") else None, back=lambda v, _: {"compile": parse_switch(v)}, auto=True, source=f"{C}:1148"),
    Key(at="optimizer", out=OPTIM.write, back=_read_axolotl_optimizer, usual=own_default("axolotl", "optimizer"), source=f"{S}/training.py:122"),
    Key(at="adapter", out=_axolotl_adapter_name, back=_read_adapter_kind, source=f"{S}/peft.py:41"),
    Key(at="lora_r", out=_only_with_adapter(lambda a: a["adapter.rank"]), back=_adapter_value_reader("adapter.rank"), source=f"{S}/peft.py:53"),
    Key(at="lora_dropout", out=_only_with_adapter(lambda a: a.get("adapter.dropout")), back=_adapter_value_reader("adapter.dropout"), source=f"{S}/peft.py:80"),
    Key(at="lora_target_modules", out=_only_with_adapter(lambda a: a.get("adapter.targets")), back=_read_lora_target_modules, source=f"{S}/peft.py:56"),
    Key(at="lora_target_linear", out=lambda _: None, back=_all_linear, source=f"{S}/peft.py:58; loaders/adapter.py:54"),
    Key(
        at="lora_modules_to_save", out=_only_with_adapter(lambda a: a.get("adapter.full_modules")), back=_adapter_value_reader("adapter.full_modules"),
        source=f"{S}/peft.py:62",
    ),
    _axolotl_helper_row("peft_use_dora", f"{S}/peft.py:89", lambda a: True if a.get("adapter.kind") == "dora" else None),
    _axolotl_helper_row(
        "peft_autocast_adapter_dtype", f"{S}/peft.py:124",
        lambda a: False if a.get("adapter.dtype") == "bf16" and a["engine"] != "deepspeed" else None,
    ),
    Key(at="load_in_4bit", out=_load_in_4bit, back=_read_load_in_4bit, source=f"{S}/peft.py:37"),
    Key(at="quantize_moe_experts", out=lambda a: True if a.get("quantization.experts") else None, back=_read_quantized_experts, source=f"{C}:923"),
    Key(at="load_in_8bit", out=lambda a: True if a.get("quantization.weights") == "int8" and a.get("adapter.kind") == "lora" else None, back=_read_load_in_8bit, source=f"{S}/peft.py:31"),
    *inside_rows(DEEPSPEED),
)  # fmt: skip
