"""litgpt's YAML (``litgpt finetune_lora --config lora.yaml``) and commands, through Lightning Fabric.

In bf16 its own layers are accounted, with FSDP or fully_shard around them on several GPUs; those of a
program that compiles them, or under autocast, are the library's, which is told. Lines are of
Lightning-AI/litgpt at 2685705, under litgpt; of Lightning-AI/pytorch-lightning at 7f0c343 where Fabric
decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.formats.litgpt.commands import CONFIG, parse_litgpt_text
from memsheet.exchange.formats.litgpt.programs import (
    KINDS,
    LORA,
    METHOD,
    PRETRAIN,
    fabric_rank_count,
    is_divided,
    method_of,
    read_fabric_devices,
    read_litgpt_engine,
    runs_own_layers,
)
from memsheet.exchange.shared.file_format import Format, Moved, Values, plan_word
from memsheet.exchange.shared.read_only_rows import positive_count, read_elsewhere, read_only_row
from memsheet.exchange.shared.trainers import uniform_precision_keys
from memsheet.late import late_functions
from memsheet.plan.adapter_targets import LINEAR_MODULES

with late_functions(__name__):
    from memsheet.exchange.formats.litgpt.described import litgpt_described_config


VERSION = "litgpt 0.5"  # of its commit 2685705
F, P = "finetune/lora.py", "pretrain.py"
MICRO, STEP, LENGTH, TIED = (
    "train.micro_batch_size",
    "train.global_batch_size",
    "train.max_seq_length",
    "train.tie_embeddings",
)
QUANTIZE, OPTIMIZER = "quantize", "optimizer.class_path"
ACTIVATIONS, DATA, SEVERAL = "activations", "lengths of samples", "$.quantize"
EIGHT = 8
"""GPUs of a machine, where its own number is meant, to tell the rounds of a step."""
USUAL = {MICRO: (1, 4), STEP: (16, 512)}
"""Defaults of finetuning, and of pretraining (finetune/lora.py:71-79, pretrain.py:64-74)."""
OF_EITHER = {at: f"{tuned}, {pretrained} to pretrain" for at, (tuned, pretrained) in USUAL.items()}
OPTIMIZERS = {
    "AdamW": ("adamw", "foreach"), "Adam": ("adamw", "foreach"), "SGD": ("sgd", "foreach"), "AdamW8bit": ("adamw_8bit", "bnb"),
    "PagedAdamW": ("paged_adamw", "bnb"), "PagedAdamW8bit": ("paged_adamw_8bit", "bnb"),
}  # fmt: skip
TARGETS = {
    "lora_query": ("q_proj",), "lora_key": ("k_proj",), "lora_value": ("v_proj",), "lora_projection": ("o_proj",),
    "lora_mlp": ("gate_proj", "up_proj", "down_proj"),
}  # fmt: skip
TARGETED = ("lora_query", "lora_value")
"""On unless they are switched off (finetune/lora.py:60-65)."""
BITS = {"nf4": ("nf4", False), "nf4-dq": ("nf4", True), "fp4": ("fp4", False), "fp4-dq": ("fp4-double", None), "int8-training": ("int8", None)}  # fmt: skip


def _own_default(at: str, values: Values) -> int:
    return USUAL[at][method_of(values) == PRETRAIN]


def _value_or_default(at: str, values: Values) -> int | None:
    held = values.get(at)
    return positive_count(_own_default(at, values) if held is None or held == OF_EITHER[at] else held)


def _read_checkpoint(value: Any, _: Values) -> Mapping[str, Any]:
    """The organisation and the name, which are the last folders (utils.py, auto_download_checkpoint)."""
    parts = [part for part in str(value).strip("/").split("/") if part not in ("checkpoints", ".")]
    name = "/".join(parts[-2:])
    return {"@model": name} if name and "$" not in name else {}


def _read_micro_batch(value: Any, values: Values) -> Mapping[str, Any]:
    return {"microbatch": _value_or_default(MICRO, values) or value}


def _read_step_batch(_: Any, values: Values) -> Mapping[str, Any]:
    """Rounds of a step, divided and rounded down twice (args.py:54-64)."""
    micro, step = _value_or_default(MICRO, values), _value_or_default(STEP, values)
    ranks = fabric_rank_count(values) or EIGHT
    return {"@accumulation": max(1, step // ranks // micro)} if micro and step else {}


def _step_on_ranks(values: Values, ranks: int) -> Mapping[str, Any]:
    micro, step = _value_or_default(MICRO, values), _value_or_default(STEP, values)
    return {"global_batch": max(1, step // ranks // micro) * micro * ranks} if micro and step else {}


def _read_fabric_precision(value: Any, values: Values) -> Mapping[str, Any]:
    """All in one dtype; or fp32 that is computed in half under autocast, which FSDP gathers and reduces in
    that (fabric/plugins/precision/fsdp.py:70-105).
    """
    width, _, how = str(value).partition("-")
    width = plan_word({"16": "fp16", "32": "fp32"}, width)
    if how == "true":
        adapters = {"adapter.dtype": width} if method_of(values) in KINDS else {}
        return {**uniform_precision_keys(width), **adapters}
    adapters = {"adapter.dtype": "fp32"} if method_of(values) in KINDS else {}
    if not is_divided(values):
        return {"precision.name": f"{width}-autocast", **adapters}
    return {
        **uniform_precision_keys("fp32"),
        "precision.compute": width,
        "precision.reduce": width,
        **adapters,
    }


def _read_fabric_bits(value: Any, _: Values) -> Mapping[str, Any]:
    """Linear layers by bitsandbytes (finetune/lora.py:141-150)."""
    bits, double = BITS.get(str(value).removeprefix("bnb."), (str(value), None))
    return {"quantization.weights": bits, **({} if double is None else {"quantization.double_quant": double})}


def _read_adapter_rank(value: Any, values: Values) -> Mapping[str, Any]:
    return {"adapter.rank": value, "adapter.kind": KINDS[LORA]} if method_of(values) == LORA else {}


def _read_adapter_dropout(value: Any, values: Values) -> Mapping[str, Any]:
    return {"adapter.dropout": value} if method_of(values) == LORA else {}


def _read_lora_targets(_: Any, values: Values) -> Mapping[str, Any]:
    """Matrices that are trained beside, by the switches of all of them."""
    if method_of(values) != LORA:
        return {}
    on = [at for at in TARGETS if values.get(at, at in TARGETED) is True]
    named = [name for at in on for name in TARGETS[at]]
    return {"adapter.targets": [LINEAR_MODULES] if len(on) == len(TARGETS) else named}


def _read_adapter_method(value: Any, values: Values) -> Mapping[str, Any]:
    kind = KINDS.get(method_of(values))
    own = {"adapter.kind": kind} if kind and kind != KINDS[LORA] else {}
    pieces = {"loss": "chunked"} if kind and runs_own_layers(values) else {}  # finetune/lora.py:362-365
    return {**read_litgpt_engine(value, values), **own, **pieces}


def _read_fabric_optimizer(value: Any, values: Values) -> Mapping[str, Any]:
    """AdamW of torch, in one kernel to pretrain (pretrain.py:229); a paged one beside a quantized base
    (utils.py:619-633).
    """
    name = str(value).rpartition(".")[2]
    if values.get(QUANTIZE) and "AdamW" in name:
        name = "PagedAdamW"
    found, implementation = OPTIMIZERS.get(name, (name.lower(), None))
    fused = implementation == "foreach" and (
        method_of(values) == PRETRAIN or values.get("optimizer.init_args.fused") is True
    )
    return {"optimizer.name": found, "optimizer.implementation": "fused" if fused else implementation}


def _read_sample_length(value: Any, values: Values) -> Mapping[str, Any]:
    """The longest of a batch to finetune; packed to pretrain."""
    return {"seq_len": value, **({} if method_of(values) == PRETRAIN else {"?seq_len_kind": "maximum"})}


def _left_to_litgpt(values: Values) -> Mapping[str, Any]:
    """Whose layers the sheet is of, lengths that the data decides, and what litgpt refuses."""
    told = "are of litgpt's own layers, and the sheet is of the library's"
    own: dict[str, Any] = {} if runs_own_layers(values) else {ACTIVATIONS: told}
    if values.get(LENGTH) is None:
        block = "is the model's own block size" if method_of(values) == PRETRAIN else "is as the data has it"
        own[DATA] = f"{LENGTH} is not said: it {block}"
    if values.get(QUANTIZE) and is_divided(values):
        own[SEVERAL] = "is for one GPU alone (NotImplementedError on more)"
    if values.get(TIED) is True and litgpt_described_config(values) is None:
        own[TIED] = True
    return own


def _stable_embedding_bytes(values: Values, asked: Values) -> Iterator[Moved]:
    """A quantized base's embedding is made anew after the optimizer, so that a gradient of it is made and
    never freed, and its norm keeps what it is given (finetune/lora.py:222-232).
    """
    sizes = [asked.get(key) for key in ("@vocab", "@hidden", "@tokens")]
    if values.get(QUANTIZE) and all(isinstance(size, int) for size in sizes):
        vocab, hidden, tokens = (int(size or 0) for size in sizes)
        gradient = 2 * vocab * hidden
        kept = tokens * hidden * (2 + 4)
        yield Moved(
            at=QUANTIZE,
            why="the gradient of an embedding made anew",
            low_bytes=gradient,
            high_bytes=gradient + kept,
        )


KEYS = (
    read_only_row(METHOD, _read_adapter_method, "__main__.py:33-39", "as the file's keys tell"),
    read_only_row("checkpoint_dir", _read_checkpoint, f"{F}:52"), read_only_row("model_name", _read_checkpoint, f"{P}:55"),
    read_only_row("devices", read_fabric_devices, f"{F}:56; {P}:74", "1, all to pretrain"), read_only_row("num_nodes", read_elsewhere, f"{F}:57"),
    read_only_row(MICRO, _read_micro_batch, f"{F}:75; {P}:66", OF_EITHER[MICRO]), read_only_row(STEP, _read_step_batch, f"{F}:74; {P}:65", OF_EITHER[STEP]),
    read_only_row(LENGTH, _read_sample_length, "args.py:36"), read_only_row("precision", _read_fabric_precision, "utils.py:363-380", "bf16-mixed"),
    read_only_row(QUANTIZE, _read_fabric_bits, f"{F}:141-150"),
    read_only_row("lora_r", _read_adapter_rank, f"{F}:58", 8), read_only_row("lora_dropout", _read_adapter_dropout, f"{F}:60", 0.05),
    read_only_row("lora_query", _read_lora_targets, f"{F}:61-66", True), *(read_only_row(at, read_elsewhere, f"{F}:61-66") for at in list(TARGETS)[1:]),
    read_only_row("optimizer", _read_fabric_optimizer, f"{F}:85", "AdamW"), read_only_row(OPTIMIZER, _read_fabric_optimizer, "utils.py:654-664"),
    read_only_row("optimizer.init_args.fused", read_elsewhere, "utils.py:663"),
)  # fmt: skip

FORMAT = Format(
    name="litgpt", gradient_sync="last", file="litgpt.yaml", kind="yaml", tested=VERSION, engines=(), keys=KEYS, said={"task": "train"}, marks=frozenset({"checkpoint_dir", "model_name", METHOD}),
    parse=parse_litgpt_text, absent=_left_to_litgpt, refers=(CONFIG,), model=litgpt_described_config, moves=_stable_embedding_bytes, on_ranks=_step_on_ranks, own_processes=True, program_known=lambda _: False,
    unmodelled={ACTIVATIONS: (), DATA: (), SEVERAL: (), TIED: (False,), "lora_head": (False,), "optimizer.init_args.momentum": (0,)},
    known=frozenset({
        CONFIG, "out_dir", "data", "data.*", "eval.*", "log.*", "optimizer.*", "model_config", "model_config.*", "resume", "initial_checkpoint_dir", "tokenizer_dir", "logger_name", "seed",
        "access_token", "lora_alpha", *(f"train.{name}" for name in (
            "save_interval", "log_interval", "lr_warmup_steps", "lr_warmup_fraction", "epochs", "max_tokens", "max_steps", "max_time", "min_lr", "max_norm",
        )),
    }),
)  # fmt: skip
