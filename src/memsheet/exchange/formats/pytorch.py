"""Scripts with a training loop of their own on PyTorch, as far as their text tells, and commands that start
some script with flags that no format has: those are read by their names (``shared/loop_script``,
``shared/loop_commands``, ``shared/role_names``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange import find_format
from memsheet.exchange.shared.built_models import BUILT, OPEN_SIZES, OWN_CODE, built_config
from memsheet.exchange.shared.file_format import Format, Key, Moved, Values
from memsheet.exchange.shared.flat_gathers import WRAPPED_KEYS
from memsheet.exchange.shared.frozen_towers import FROZEN_TOWER
from memsheet.exchange.shared.further_models import FROZEN, FURTHER, OWN_LOSS, WEIGHTS, further_moves
from memsheet.exchange.shared.gathered_outputs import DATA_PARALLEL, DEVICES, gathered_moves, rows_of_card
from memsheet.exchange.shared.generation_settings import generation_settings
from memsheet.exchange.shared.lightning_settings import lightning_settings
from memsheet.exchange.shared.lightning_trainer import ONE_UNIT, OTHER_STRATEGY
from memsheet.exchange.shared.loop_commands import BY_NAMES
from memsheet.exchange.shared.loop_places import DRIVER
from memsheet.exchange.shared.loop_script import (
    DIVIDED,
    FED,
    MESH,
    SEQUENCE,
    WHOLE_OUTPUTS,
    WHOLE_ROWS,
    loop_values,
)
from memsheet.exchange.shared.peft_configs import OPEN_RANK, READ, trains_beside
from memsheet.exchange.shared.prepared_base import prepared_precision
from memsheet.exchange.shared.python_module import argument_remarks
from memsheet.exchange.shared.read_only_rows import Back, read_elsewhere, read_only_row
from memsheet.exchange.shared.script_places import (
    ASKS_CARD,
    BITS,
    FAMILY_CLASS,
    LIKELY_NAME,
    LOOP,
    NO_PROMPT,
    SCRIPT,
    SEVERAL_LOADS,
    SPREADS,
    UNMADE,
    UNREAD_FLAGS,
    UNSAID,
)
from memsheet.exchange.shared.trainers import inside_moves, inside_names, inside_rows, row_of, with_master
from memsheet.frozen import replace

TRANSFORMERS, DEEPSPEED = find_format("transformers"), find_format("deepspeed")
VERSION = "PyTorch 2.13"
SHARDED = ("fsdp1", "fsdp2")
STAGES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3}
"""torch/distributed/fsdp/api.py, ShardingStrategy."""
WORDS = {
    "bf16": "bf16",
    "fp16": "fp16",
    "fp32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "half": "fp16",
}
INSIDE_KNOWN, INSIDE_UNMODELLED, INSIDE_WEIGHED = inside_names(DEEPSPEED)


def _generates(values: Values) -> bool:
    return values.get(f"{LOOP}.task") == "infer"


def _read_task(value: Any, values: Values) -> Mapping[str, Any]:
    """A process that generates has the whole model."""
    shortest = {"serving.prompt_tokens": 1} if values.get(f"{LOOP}.prompt") == NO_PROMPT else {}
    return {
        "task": value,
        **({"engine": "transformers", "mesh.tp": 1, **shortest} if value == "infer" else {}),
    }


def _read_wrap(value: Any, values: Values) -> Mapping[str, Any]:
    """What runs a step: a wrapper of the whole model, or one process on a card of its own."""
    if _generates(values):
        return {}
    if value == "deepspeed":
        return {"engine": "deepspeed"}
    strategy = str(values.get(f"{LOOP}.strategy", "")).upper()
    if value in SHARDED:
        kept = values.get(f"{LOOP}.reshard") is False
        return {
            "engine": "fsdp2" if value == "fsdp2" else "fsdp1",
            "zero": 2 if kept else STAGES.get(strategy, 3),
        }
    weak = "?" if value in ("accelerate", "none") else ""
    return {f"{weak}engine": "transformers", f"{weak}zero": 0}


def _read_offload(value: Any, values: Values) -> Mapping[str, Any]:
    """Parameters, and with them gradients and what the optimizer makes of them, on the host."""
    sharded = values.get(f"{LOOP}.wrap") in SHARDED and not _generates(values)
    return {"offload.optimizer": 1, "offload.parameters": 1} if value is True and sharded else {}


def _computes_in(values: Values) -> Any:
    """The dtype of a step where it is not that of the parameters."""
    told = values.get(f"{LOOP}.gathered", values.get(f"{LOOP}.autocast"))
    return told if told in ("bf16", "fp16") else None


def _read_autocast(value: Any, values: Values) -> Mapping[str, Any]:
    if _generates(values):
        return {}
    if values.get(f"{LOOP}.wrap") == "deepspeed":
        return with_master(value) if value in ("bf16", "fp16") else {}
    if _computes_in(values) is None:
        return {"?precision.name": "fp32"}
    kept = {f"?precision.{key}": "fp32" for key in ("parameters", "gradients", "moments", "reduce")}
    return {"precision.compute": _computes_in(values), **kept}


def _read_dtype(value: Any, values: Values) -> Mapping[str, Any]:
    """What the model is loaded in, or cast to; its gradients and moments have the same, adapters not."""
    word = WORDS.get(str(value), str(value))
    if values.get(f"{LOOP}.wrap") == "deepspeed" or str(value) == UNSAID:
        return {}
    if _generates(values):
        return {} if values.get(f"{SCRIPT}.quantized") else {"precision.parameters": word}
    if values.get(f"{SCRIPT}.quantized"):
        return {}
    computed = _computes_in(values) or word
    if trains_beside(values):
        return {"precision.parameters": word, "precision.compute": computed}
    told = {f"precision.{name}": word for name in ("parameters", "gradients", "moments")}
    return {**told, "precision.compute": computed, "precision.reduce": values.get(f"{LOOP}.reduced", word)}


def _read_batch(value: Any, values: Values) -> Mapping[str, Any]:
    if values.get(f"{LOOP}.wrap") == DATA_PARALLEL and not _generates(values):
        return {}  # of all cards together, which are counted later
    return {"serving.max_sequences" if _generates(values) else "microbatch": value}


def _part_of_card(values: Values, ranks: int) -> Mapping[str, Any]:
    """A card's part of a batch that one process divides over its cards."""
    divides = values.get(f"{LOOP}.wrap") == DATA_PARALLEL and not _generates(values)
    rows = rows_of_card(values.get(f"{LOOP}.batch"), values.get(f"{LOOP}.{DEVICES}"), ranks)
    return {"microbatch": rows} if divides and rows else {}


def _read_length(value: Any, values: Values) -> Mapping[str, Any]:
    """Rows as long as they may be, or just so long; a prompt, where nothing else is said of it."""
    if not _generates(values):
        return {
            "seq_len": value,
            **({} if values.get(f"{LOOP}.{WHOLE_ROWS}") else {"?seq_len_kind": "maximum"}),
        }
    return {} if values.get(f"{LOOP}.prompt") else {"serving.prompt_tokens": value}


def _read_optimizer(value: Any, values: Values) -> Mapping[str, Any]:
    how = values.get(f"{LOOP}.implementation")
    return {"optimizer.name": value, **({"optimizer.implementation": how} if how else {})}


def _of_training(key: str) -> Any:
    return lambda value, values: {} if _generates(values) else {key: value}


def _of_flat(key: str) -> Any:
    return lambda value, values: {key: value} if values.get(f"{LOOP}.wrap") == "fsdp1" else {}


def _loop_row(at: str, back: Back, source: str = "the script's own text", usual: Any = None) -> Key:
    return read_only_row(f"{LOOP}.{at}", back, source, usual)


def _read_prepared(value: Any, values: Values) -> Mapping[str, Any]:
    """Of a loop that divides nothing, under autocast."""
    divided = values.get(f"{LOOP}.wrap") in (*SHARDED, "deepspeed")
    known = value is True and not divided and not _generates(values)
    return prepared_precision(str(_computes_in(values)), values) if known else {}


OF_LOADING = (
    "attention", "fused", ASKS_CARD, FAMILY_CLASS, "lora_rank", OPEN_RANK, "adapter_kind", "prompt_length", "encoder_width", "block_size", "lora_targets", "lora_full_modules", "lora_dropout", "quantized", "double_quant", "storage", "model",
)  # fmt: skip
KEYS = (
    _loop_row("task", _read_task, usual="train"),
    _loop_row("wrap", _read_wrap),
    *(_loop_row(name, read_elsewhere) for name in ("strategy", "reshard", "gathered", "reduced", "implementation")),
    *(_loop_row(name, _of_flat(name), source="torch/distributed/fsdp/fully_sharded_data_parallel.py:404-411") for name in WRAPPED_KEYS),
    _loop_row("offload", _read_offload, source="torch/distributed/fsdp/_fully_shard/_fsdp_api.py: CPUOffloadPolicy"),
    _loop_row("batch", _read_batch),
    _loop_row("length", _read_length),
    replace(_loop_row("prompt", lambda value, values: {"serving.prompt_tokens": value} if _generates(values) else {}), decides=(NO_PROMPT,)),
    _loop_row("answer", lambda value, values: {"serving.output_tokens": value} if _generates(values) else {}),
    _loop_row("processes", _of_training("@gpus"), source="lightning/pytorch/trainer/trainer.py: devices, num_nodes"),
    _loop_row("accumulation", _of_training("@accumulation")),
    _loop_row("autocast", _read_autocast, usual="no", source="torch/amp/autocast_mode.py: a dtype where it is on"),
    _loop_row("recompute", lambda value, values: {} if _generates(values) else {"recompute.mode": "full" if value is True else "none"}, usual=False, source="modeling_utils.py, gradient_checkpointing_enable"),
    _loop_row("optimizer", _read_optimizer, source="torch/optim/adamw.py: foreach on a GPU unless told otherwise"),
    _loop_row("compile", _of_training("compile")),
    _loop_row("zero", lambda value, values: {"zero": value} if values.get(f"{LOOP}.wrap") == "deepspeed" else {}),
    read_only_row(f"{SCRIPT}.dtype", _read_dtype, "modeling_utils.py, from_pretrained: dtype"),
    *(replace(row_of(TRANSFORMERS, f"{SCRIPT}.{name}"), usual=None) for name in OF_LOADING),
    replace(row_of(TRANSFORMERS, f"{SCRIPT}.prepared"), back=_read_prepared),
    *inside_rows(DEEPSPEED),
)  # fmt: skip


TWICE_FP32 = 8


def _loop_moves(values: Values, asked: Values) -> Iterator[Moved]:
    """What the configuration inside moves, and what preparing a quantized model casts."""
    yield from inside_moves(DEEPSPEED)(values, asked)
    yield from further_moves(SCRIPT, values, asked)
    length, rows = values.get(f"{LOOP}.length"), values.get(f"{LOOP}.batch", 1)
    if (
        values.get(f"{SCRIPT}.{OWN_CODE}") == WHOLE_OUTPUTS
        and isinstance(length, int)
        and isinstance(rows, int)
    ):
        why = "outputs of every token, in the model's dtype or fp32, and once more where a script casts them"
        yield Moved(
            at="logits", why=why, low_bytes=0, high_bytes=rows * length * asked["@vocab"] * TWICE_FP32
        )
    replicated = values.get(f"{LOOP}.wrap") == DATA_PARALLEL or values.get(f"{LOOP}.{DATA_PARALLEL}") is True
    if replicated and not _generates(values):
        yield from gathered_moves(asked, own_loop=True)
    if TRANSFORMERS.moves is not None and not _generates(values):
        prepared = {at: held for at, held in values.items() if at == f"{SCRIPT}.prepared"}
        if not _read_prepared(values.get(f"{SCRIPT}.prepared"), values):
            yield from TRANSFORMERS.moves(prepared, asked)


FORMAT = Format(
    name="pytorch", file="train.py", kind="yaml", tested=VERSION, engines=(), keys=KEYS, marks=frozenset({LOOP}), also=loop_values, started=loop_values, by_groups=lambda tree: lightning_settings(tree) or generation_settings(tree),
    program_known=lambda _: False, taken=argument_remarks, stored=f"{SCRIPT}.dtype", rename=DEEPSPEED.rename,
    refers=(f"{LOOP}.deepspeed_file",), moves=_loop_moves, weighed=INSIDE_WEIGHED, on_ranks=_part_of_card,
    unmodelled={
        **INSIDE_UNMODELLED, **{f"{SCRIPT}.{name}": () for name in (*READ, BITS, UNMADE, LIKELY_NAME, OPEN_SIZES, OWN_CODE, FURTHER, FROZEN, UNREAD_FLAGS, SEVERAL_LOADS)}, f"{LOOP}.{BY_NAMES}": (), f"{LOOP}.tensor": (1,),
        f"{LOOP}.{DIVIDED}": (), f"{LOOP}.{SEQUENCE}": (1,), f"{LOOP}.{MESH}": (), f"{LOOP}.{OTHER_STRATEGY}": (),
    },
    known=INSIDE_KNOWN | {f"{LOOP}.reads", f"{LOOP}.{DRIVER}", f"{LOOP}.{FED}", f"{LOOP}.{WHOLE_ROWS}", f"{LOOP}.{DEVICES}", f"{LOOP}.{DATA_PARALLEL}", f"{LOOP}.{ONE_UNIT}", f"{LOOP}.deepspeed_file", f"{SCRIPT}.{BUILT}.*", f"{SCRIPT}.{WEIGHTS}", f"{SCRIPT}.{OWN_LOSS}", f"{SCRIPT}.{FROZEN_TOWER}", f"{SCRIPT}.{SPREADS}"},
    model=lambda values: built_config(values, SCRIPT),
)  # fmt: skip
