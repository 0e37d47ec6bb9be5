"""The older TOML, as it stood in mid 2025. Model and data are the file's other keys, or flags:
``./run_train.sh --job.config_file torchtitan.toml --model.name llama3 --model.flavor 8B``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.errors import Problem
from memsheet.exchange.formats.torchtitan.both import MIXED, STEPS, above, mixed, zero
from memsheet.exchange.shared.file_format import Format, Key, Values, plan_word
from memsheet.guard.toml import parse_toml

COMMIT = "820504e"  # every line below is of 820504e20d1149fbf0b98c567af24c4b0433b22d torchtitan/config_manager.py
VERSION = f"torchtitan {COMMIT}"
C = "config_manager.py"
LATER = "08b8b244f torchtitan/config/job_config.py"  # its last TOML is of 9810191bb^, 2026-02-23
P, T, AC = "parallelism", "training", "activation_checkpoint"
PP, TP = f"{P}.pipeline_parallel_degree", f"{P}.tensor_parallel_degree"
SLICE = f"{P}.pipeline_parallel_microbatch_size"


def _micro(value: Any, values: Values) -> Mapping[str, Any]:
    """A rank's sequences, which a pipeline cuts into slices (:345)."""
    if not above(values.get(PP, 1), 1):
        return {"microbatch": value}
    own = values.get(SLICE, 1)
    whole = above(own, 0) and above(value, 0) and value % own == 0
    return {"microbatch": own, **({"@accumulation": value // own} if whole else {})}


def _batch(value: Any, values: Values) -> Mapping[str, Any]:
    """-1 is one pass of every rank (:202)."""
    if value != -1:
        return {"global_batch": value}
    return {} if above(values.get(PP, 1), 1) else {"@accumulation": 1}


def _tensor(value: Any, _: Values) -> Mapping[str, Any]:
    """Norms between are always cut along the sequence (models/llama3/parallelize_llama.py, apply_tp)."""
    return {"mesh.tp": value, "sequence_parallel": above(value, 1)}


def _loss(value: Any, values: Values) -> Mapping[str, Any]:
    return {"loss": "vocab_parallel" if value is not True and above(values.get(TP, 1), 1) else "plain"}


def _schedule(value: Any, values: Values) -> Mapping[str, Any]:
    return {"schedule": plan_word({"1F1B": "1f1b", "GPipe": "gpipe"}, value)} if above(values.get(PP, 1), 1) else {}


def _rotation(value: Any, values: Values) -> Mapping[str, Any]:
    known = {"allgather": "all_gather", "alltoall": "ring"}
    return {"context_parallel_comm": plan_word(known, value)} if above(values.get(f"{P}.context_parallel_degree", 1), 1) else {}


def _recompute(value: Any, values: Values) -> Mapping[str, Any]:
    """Chosen operations, or every so many-th layer (:463-472)."""
    option = str(values.get(f"{AC}.selective_ac_option", "2"))
    if value != "selective":
        return {"recompute.mode": value}
    if option.isdecimal() and len(option) < 6:
        return {"recompute.mode": value, "recompute.modules": ["layer"], "recompute.every": int(option)}
    return {"recompute.mode": value, "recompute.modules": [option]}


def _option(asked: Values) -> Any:
    modules = asked.get("recompute.modules")
    return None if not modules else str(asked.get("recompute.every") or 1) if list(modules) == ["layer"] else modules[0]


def _cannot(asked: Values) -> Iterator[Problem]:
    if asked.get("mesh.pp", 1) > 1:
        yield Problem(field="mesh.pp", value=asked["mesh.pp"], reason="is not written for torchtitan yet", hint="pp 1")
    if len(asked.get("recompute.modules") or ()) > 1:
        yield Problem(field="recompute.modules", value=asked["recompute.modules"], reason="are several, and torchtitan takes one option")


def _compose(values: Values, _: Values) -> str:
    """Tables of plain values; JSON's strings, numbers and switches are TOML's."""
    tables: dict[str, list[str]] = {}
    for at, value in values.items():
        table, name = at.split(".")
        tables.setdefault(table, []).append(f"{name} = {json.dumps(value, allow_nan=False)}")
    return "\n".join("\n".join((f"[{table}]", *lines, "")) for table, lines in tables.items())


def _parse(text: str) -> Mapping[str, Any]:
    return parse_toml(text.encode(), "file")


def _switch(at: str, key: str, line: int) -> Key:
    return Key(
        at=at, out=lambda a: True if a.get(key) else None, back=lambda v, _: {key: v}, usual=False, source=f"{C}:{line}",
    )  # fmt: skip


KEYS = (
    Key(at=f"{T}.local_batch_size", says="microbatch", back=_micro, usual=8, source=f"{C}:199"),
    Key(at=f"{T}.global_batch_size", says="global_batch", back=_batch, usual=-1, source=f"{C}:202"),
    Key(at=f"{T}.seq_len", says="seq_len", usual=2048, source=f"{C}:207"),
    Key(
        at=f"{T}.mixed_precision_param", out=lambda a: next((name for name, own in MIXED.items() if own == a.get("precision.compute")), None),
        back=mixed, usual="bfloat16", source=f"{C}:221-231",
    ),
    _switch(f"{T}.compile", "compile", 233),
    Key(at="compile.enable", out=lambda _: None, back=lambda v, _: {"compile": v}, source=f"{LATER}:551"),  # in its place since 2025-08-20
    Key(at=f"{P}.data_parallel_replicate_degree", says="mesh.dp_replicate", usual=1, source=f"{C}:256"),
    Key(
        at=f"{P}.data_parallel_shard_degree", says="mesh.dp_shard", back=lambda v, _: {} if v == -1 else {"mesh.dp_shard": v}, usual=-1,
        source=f"{C}:270",
    ),
    Key(
        at=f"{P}.fsdp_reshard_after_forward", out=lambda a: {3: "always", 2: "never"}.get(a.get("zero", 0)), back=zero, usual="default",
        source=f"{C}:282",
    ),
    Key(at=TP, says="mesh.tp", back=_tensor, usual=1, source=f"{C}:295"),
    Key(
        at=f"{P}.disable_loss_parallel", out=lambda a: True if a.get("mesh.tp", 1) > 1 and a.get("loss") == "plain" else None, back=_loss,
        usual=False, source=f"{C}:298",
    ),
    _switch(f"{P}.enable_async_tensor_parallel", "async_tp", 301),
    Key(at=PP, says="mesh.pp", usual=1, source=f"{C}:304"),
    Key(at=f"{P}.pipeline_parallel_schedule", out=lambda _: None, back=_schedule, usual="1F1B", source=f"{C}:329"),
    Key(at=SLICE, out=lambda _: None, back=lambda *_: {}, source=f"{C}:345"),
    Key(at=f"{P}.context_parallel_degree", says="mesh.cp", usual=1, source=f"{C}:353"),
    Key(
        at=f"{P}.context_parallel_rotate_method", says="context_parallel_comm", names={"all_gather": "allgather", "ring": "alltoall"},
        back=_rotation, usual="allgather", source=f"{C}:356",
    ),
    Key(at=f"{AC}.mode", says="recompute.mode", back=_recompute, usual="selective", source=f"{C}:463"),
    Key(at=f"{AC}.selective_ac_option", out=_option, back=lambda *_: {}, source=f"{C}:466"),
    Key(
        at="optimizer.name", says="optimizer.name", names={"adamw": "AdamW"}, usual="AdamW", source=f"{C}:123",
        back=lambda v, _: {"optimizer.name": str(v).lower()},
    ),
    Key(at="optimizer.implementation", says="optimizer.implementation", names=STEPS, usual="fused", source=f"{C}:139"),
    _switch("optimizer.early_step_in_backward", "optimizer_in_backward", 148),
)  # fmt: skip

FORMAT = Format(
    name="torchtitan-toml", file="torchtitan.toml", kind="toml", tested=VERSION, engines=("torchtitan",), keys=KEYS, problems=_cannot,
    compose=_compose, parse=_parse, marks=frozenset({P, AC, T}),
    said={"task": "train", "engine": "torchtitan", "engine_version": COMMIT},  # others have other files, and other bytes
    beside=frozenset({"attention", "allocator.expandable_segments"}),
    unmodelled={
        f"{T}.enable_cpu_offload": (False,), "model.converters": ([],), f"{P}.pipeline_parallel_split_points": ([],),
        f"{P}.pipeline_parallel_layers_per_stage": (), f"{P}.pipeline_parallel_schedule_csv": ("",),
        f"{P}.enable_compiled_autograd": (False,), "fault_tolerance.enable": (False,), "experimental.custom_import": ("",),
        "experimental.custom_args_module": ("",), "compile.components": (["model", "loss"],), f"{T}.mixed_precision_reduce": ("float32",),
    },
    known=frozenset({
        *(f"{table}.*" for table in (
            "job", "profiling", "metrics", "lr_scheduler", "checkpoint", "comm", "float8", "mx", "memory_estimation", "fault_tolerance",
        )),
        "compile.backend", *(f"model.{name}" for name in ("name", "flavor", "tokenizer_path", "print_after_conversion")),
        *(f"optimizer.{name}" for name in ("lr", "beta1", "beta2", "eps", "weight_decay")),
        *(f"{T}.{name}" for name in ("dataset", "dataset_path", "max_norm", "steps", "gc_freq", "gc_debug", "seed", "deterministic")),
    }),
)  # fmt: skip
