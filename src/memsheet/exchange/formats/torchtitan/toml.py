"""The older TOML, as it stood in mid 2025. Model and data are the file's other keys, or flags:
``./run_train.sh --job.config_file torchtitan.toml --model.name llama3 --model.flavor 8B``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.errors import Problem
from memsheet.exchange.formats.torchtitan.both import (
    MIXED,
    QWEN3_FLAVORS,
    STEPS,
    is_count_above,
    read_async_tensor_parallel,
    read_mixed_precision_param,
    read_reshard_policy,
)
from memsheet.exchange.shared.file_format import Format, Key, Values, plan_word
from memsheet.guard.toml import parse_toml

COMMIT = (
    "820504e"  # every line below is of 820504e20d1149fbf0b98c567af24c4b0433b22d torchtitan/config_manager.py
)
VERSION = f"torchtitan {COMMIT}"
C = "config_manager.py"
LATER = "08b8b244f torchtitan/config/job_config.py"  # its last TOML is of 9810191bb^, 2026-02-23
P, T, AC = "parallelism", "training", "activation_checkpoint"
PP, TP = f"{P}.pipeline_parallel_degree", f"{P}.tensor_parallel_degree"
SLICE = f"{P}.pipeline_parallel_microbatch_size"
IN_BACKWARD = "optimizer.early_step_in_backward"


def _read_local_batch_size(value: Any, values: Values) -> Mapping[str, Any]:
    """A rank's sequences, which a pipeline cuts into slices (:345)."""
    if not is_count_above(values.get(PP, 1), 1):
        return {"microbatch": value}
    own = values.get(SLICE, 1)
    whole = is_count_above(own, 0) and is_count_above(value, 0) and value % own == 0
    return {"microbatch": own, **({"@accumulation": value // own} if whole else {})}


def _read_global_batch_size(value: Any, values: Values) -> Mapping[str, Any]:
    """-1 is one pass of every rank (:202)."""
    if value != -1:
        return {"global_batch": value}
    return {} if is_count_above(values.get(PP, 1), 1) else {"@accumulation": 1}


def _read_tensor_parallel_degree(value: Any, _: Values) -> Mapping[str, Any]:
    """Norms between are always cut along the sequence (models/llama3/parallelize_llama.py, apply_tp)."""
    return {"mesh.tp": value, "sequence_parallel": is_count_above(value, 1)}


def _read_loss_parallel_switch(value: Any, values: Values) -> Mapping[str, Any]:
    return {
        "loss": "vocab_parallel" if value is not True and is_count_above(values.get(TP, 1), 1) else "plain"
    }


def _read_toml_schedule(value: Any, values: Values) -> Mapping[str, Any]:
    return (
        {"schedule": plan_word({"1F1B": "1f1b", "GPipe": "gpipe"}, value)}
        if is_count_above(values.get(PP, 1), 1)
        else {}
    )


def _read_cp_rotate_method(value: Any, values: Values) -> Mapping[str, Any]:
    known = {"allgather": "all_gather", "alltoall": "ring"}
    return (
        {"context_parallel_comm": plan_word(known, value)}
        if is_count_above(values.get(f"{P}.context_parallel_degree", 1), 1)
        else {}
    )


def _read_ac_mode(value: Any, values: Values) -> Mapping[str, Any]:
    """Chosen operations, or every so many-th layer (:463-472)."""
    option = str(values.get(f"{AC}.selective_ac_option", "2"))
    if value != "selective":
        return {"recompute.mode": value}
    if option.isdecimal() and len(option) < 6:
        return {"recompute.mode": value, "recompute.modules": ["layer"], "recompute.every": int(option)}
    return {"recompute.mode": value, "recompute.modules": [option]}


def _selective_ac_option(asked: Values) -> Any:
    modules = asked.get("recompute.modules")
    return (
        None
        if not modules
        else str(asked.get("recompute.every") or 1)
        if list(modules) == ["layer"]
        else modules[0]
    )


def _toml_plan_problems(asked: Values) -> Iterator[Problem]:
    if asked.get("mesh.pp", 1) > 1:
        yield Problem(
            field="mesh.pp", value=asked["mesh.pp"], reason="is not written for torchtitan yet", hint="pp 1"
        )
    if len(asked.get("recompute.modules") or ()) > 1:
        yield Problem(
            field="recompute.modules",
            value=asked["recompute.modules"],
            reason="are several, and torchtitan takes one option",
        )


def _compose_toml_tables(values: Values, _: Values) -> str:
    """Tables of plain values; JSON's strings, numbers and switches are TOML's."""
    tables: dict[str, list[str]] = {}
    for at, value in values.items():
        table, name = at.split(".")
        tables.setdefault(table, []).append(f"{name} = {json.dumps(value, allow_nan=False)}")
    return "\n".join("\n".join((f"[{table}]", *lines, "")) for table, lines in tables.items())


OLDER_PLACES = {
    **{f"{T}.{name}": f"{P}.{name}" for name in (
        "data_parallel_replicate_degree", "data_parallel_shard_degree", "tensor_parallel_degree", "disable_loss_parallel",
    )},
    **{f"experimental.{name}": f"{P}.{name}" for name in (
        "pipeline_parallel_degree", "pipeline_parallel_schedule", "pipeline_parallel_split_points", "context_parallel_degree",
        "context_parallel_rotate_method", "enable_async_tensor_parallel", "enable_compiled_autograd",
    )},
    f"{T}.data_parallel_degree": f"{P}.data_parallel_shard_degree", f"{T}.batch_size": f"{T}.local_batch_size",
}  # fmt: skip
"""Where releases before mid 2025 had what is read (4b3f2e4 torchtitan/config_manager.py:203-330)."""
OWN_MARKS = (("model", "flavor"), ("job", "config_file"), ("job", "dump_folder"))
"""Keys that nobody else has beside such places: other tools say ``training.batch_size``, too."""
OLDER = "release"


def _parse_toml_text(text: str) -> Mapping[str, Any]:
    """Tables with the keys of an older release in their present places, and which they were."""
    found = parse_toml(text.encode(), "file")
    tables = {name: dict(held) if isinstance(held, Mapping) else held for name, held in found.items()}
    own = any(isinstance(tables.get(table), Mapping) and key in tables[table] for table, key in OWN_MARKS)
    older = [at for at, now in OLDER_PLACES.items() if own and _is_moved(tables, at, now)]
    if not older:
        return found
    optimizer = tables.get("optimizer")
    if isinstance(optimizer, dict) and "implementation" not in optimizer:
        # 4b3f2e4 torchtitan/optimizer.py:23-31
        optimizer["implementation"] = "fused" if optimizer.pop("fused", False) is True else "foreach"
    return {**tables, OLDER: f"older than {VERSION}, by its {', '.join(older)}: a step may keep other bytes"}


def _is_moved(tables: dict[str, Any], at: str, now: str) -> bool:
    """Whether a key stands at its older place alone, and is brought to its present one."""
    (table, key), (newer, name) = at.split("."), now.split(".")
    held, kept = tables.get(table), tables.setdefault(newer, {})
    if not isinstance(held, dict) or not isinstance(kept, dict) or key not in held or name in kept:
        return False
    kept[name] = held.pop(key)
    return True


def _toml_switch_row(at: str, key: str, line: int) -> Key:
    return Key(
        at=at,
        out=lambda a: True if a.get(key) else None,
        back=lambda v, _: {key: v},
        usual=False,
        source=f"{C}:{line}",
    )


LAST = "238fa99"
MODELS = {
    **{("llama2", size): f"meta-llama/Llama-2-{size.lower()}-hf" for size in ("7B", "13B", "70B")},
    **{("llama3", size): f"meta-llama/Llama-3.1-{size}" for size in ("8B", "70B", "405B")},
    **{("qwen3", size): f"Qwen/Qwen3-{size}" for size in QWEN3_FLAVORS},
    ("deepseek_v3", "16B"): "deepseek-ai/DeepSeek-V2-Lite",
    ("deepseek_v3", "236B"): "deepseek-ai/DeepSeek-V2",
    ("deepseek_v3", "671B"): "deepseek-ai/DeepSeek-V3",
}
"""Sizes that a name and a flavor stand for (820504e torchtitan/models/llama3/__init__.py, llama3_configs;
238fa99, the last that reads TOML, torchtitan/models/qwen3/__init__.py:32-191 and deepseek_v3/__init__.py,
whose two smaller ones have the sizes of DeepSeek-V2-Lite and -V2; 4b3f2e4, of September 2024,
torchtitan/models/llama/__init__.py:15-32).
"""
RECENT = ("qwen3", "deepseek_v3")
"""Models that there were not yet in mid 2025."""


def _read_model_flavor(value: Any, values: Values) -> Mapping[str, Any]:
    """The model; a recent one is of the last version with TOML."""
    name = str(values.get("model.name"))
    named = MODELS.get((name, str(value)))
    later = {"engine_version": LAST} if name in RECENT else {}
    return {**({"@model": named} if named else {}), **later}


KEYS = (
    Key(at="model.flavor", out=lambda _: None, back=_read_model_flavor, source=f"{C}:96"),
    Key(at=f"{T}.local_batch_size", says="microbatch", back=_read_local_batch_size, usual=8, source=f"{C}:199"),
    Key(at=f"{T}.global_batch_size", says="global_batch", back=_read_global_batch_size, usual=-1, source=f"{C}:202"),
    Key(at=f"{T}.seq_len", says="seq_len", usual=2048, source=f"{C}:207"),
    Key(
        at=f"{T}.mixed_precision_param", out=lambda a: next((name for name, own in MIXED.items() if own == a.get("precision.compute")), None),
        back=read_mixed_precision_param, usual="bfloat16", source=f"{C}:221-231",
    ),
    _toml_switch_row(f"{T}.compile", "compile", 233),
    Key(at="compile.enable", out=lambda _: None, back=lambda v, _: {"compile": v}, source=f"{LATER}:551"),  # in its place since 2025-08-20
    Key(at=f"{P}.data_parallel_replicate_degree", says="mesh.dp_replicate", usual=1, source=f"{C}:256"),
    Key(
        at=f"{P}.data_parallel_shard_degree", says="mesh.dp_shard", back=lambda v, _: {} if v == -1 else {"mesh.dp_shard": v}, usual=-1,
        source=f"{C}:270",
    ),
    Key(
        at=f"{P}.fsdp_reshard_after_forward", out=lambda a: {3: "always", 2: "never"}.get(a.get("zero", 0)), back=read_reshard_policy, usual="default",
        source=f"{C}:282",
    ),
    Key(at=TP, says="mesh.tp", back=_read_tensor_parallel_degree, usual=1, source=f"{C}:295"),
    Key(
        at=f"{P}.disable_loss_parallel", out=lambda a: True if a.get("mesh.tp", 1) > 1 and a.get("loss") == "plain" else None, back=_read_loss_parallel_switch,
        usual=False, source=f"{C}:298",
    ),
    Key(
        at=f"{P}.enable_async_tensor_parallel", out=lambda a: True if a.get("async_tp") else None, back=read_async_tensor_parallel, usual=False,
        source=f"{C}:301",
    ),
    Key(at=PP, says="mesh.pp", usual=1, source=f"{C}:304"),
    Key(at=f"{P}.pipeline_parallel_schedule", out=lambda _: None, back=_read_toml_schedule, usual="1F1B", source=f"{C}:329"),
    Key(at=SLICE, out=lambda _: None, back=lambda *_: {}, source=f"{C}:345"),
    Key(at=f"{P}.context_parallel_degree", says="mesh.cp", usual=1, source=f"{C}:353"),
    Key(
        at=f"{P}.context_parallel_rotate_method", says="context_parallel_comm", names={"all_gather": "allgather", "ring": "alltoall"},
        back=_read_cp_rotate_method, usual="allgather", source=f"{C}:356",
    ),
    Key(at=f"{AC}.mode", says="recompute.mode", back=_read_ac_mode, usual="selective", source=f"{C}:463"),
    Key(at=f"{AC}.selective_ac_option", out=_selective_ac_option, back=lambda *_: {}, source=f"{C}:466"),
    Key(
        at="optimizer.name", says="optimizer.name", names={"adamw": "AdamW"}, usual="AdamW", source=f"{C}:123",
        back=lambda v, _: {"optimizer.name": str(v).lower()},
    ),
    Key(at="optimizer.implementation", says="optimizer.implementation", names=STEPS, usual="fused", source=f"{C}:139"),
)  # fmt: skip

OWN_PLACES = frozenset({
    P, AC, "job", "model.flavor", "experimental", "float8", "compile.enable",
    *(f"{T}.{name}" for name in (
        "seq_len", "local_batch_size", "global_batch_size", "mixed_precision_param", "enable_cpu_offload", "compile", "data_parallel_degree",
        "tensor_parallel_degree", "dataset_path", "deterministic", "gc_freq",
    )),
})  # fmt: skip
"""Of which each of its files has one, and people's own tables of a training none."""


FORMAT = Format(
    name="torchtitan-toml", file="torchtitan.toml", kind="toml", tested=VERSION, engines=("torchtitan",), keys=KEYS, problems=_toml_plan_problems,
    compose=_compose_toml_tables, parse=_parse_toml_text, marks=frozenset({P, AC, T}),
    needs_one=OWN_PLACES,
    said={"task": "train", "engine": "torchtitan", "engine_version": COMMIT},  # others have other files, and other bytes
    beside=frozenset({"attention", "allocator.expandable_segments"}),
    unmodelled={
        OLDER: (), IN_BACKWARD: (False,), f"{T}.enable_cpu_offload": (False,), "model.converters": ([],), f"{P}.pipeline_parallel_split_points": ([],),
        f"{P}.pipeline_parallel_layers_per_stage": (), f"{P}.pipeline_parallel_schedule_csv": ("",),
        f"{P}.enable_compiled_autograd": (False,), "fault_tolerance.enable": (False,), "experimental.custom_import": ("",),
        "experimental.custom_args_module": ("",), "compile.components": (["model", "loss"],), f"{T}.mixed_precision_reduce": ("float32",),
        f"{T}.dtype": ("float32",), f"{P}.expert_parallel_degree": (1,), f"{P}.pipeline_parallel_first_stage_less_layers": (1,),
        f"{P}.pipeline_parallel_last_stage_less_layers": (1,), f"{P}.module_fqns_per_model_part": (),
    },
    known=frozenset({
        *(f"{table}.*" for table in (
            "job", "profiling", "metrics", "lr_scheduler", "checkpoint", "comm", "float8", "mx", "memory_estimation", "fault_tolerance", "quantize", "debug",
            "validation",
        )),
        "compile.backend", f"{P}.expert_tensor_parallel_degree", f"{P}.expert_parallel_comm_backend", f"{P}.context_parallel_load_balancer", *(f"model.{name}" for name in ("name", "tokenizer_path", "hf_assets_path", "print_after_conversion")),
        *(f"optimizer.{name}" for name in ("lr", "beta1", "beta2", "eps", "weight_decay")),
        *(f"{T}.{name}" for name in ("dataset", "dataset_path", "max_norm", "steps", "gc_freq", "gc_debug", "seed", "deterministic")),
    }),
)  # fmt: skip
