"""What configurations leave to the training script: "auto", and what DeepSpeed's file need not say. Where
nothing else says it, no verdict that a job fits is sure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.config_commands import OF_FILES, SWIFT_FILE, SWIFT_MEGATRON_FILE
from memsheet.exchange.shared.file_format import AUTO, FileReading
from memsheet.patterns import late_pattern

LAUNCHED = ("deepspeed", "accelerate", "torchrun", "slurm", "kubernetes", "trainjob", "skypilot")
"""Formats that a training script stands beside; the others say their engine's whole batch, or its defaults
are taken.
"""
ASK_FOR_CARDS = ("slurm", "kubernetes", "skypilot")
"""Files that ask a cluster for GPUs, whatever is started on them."""
LOOPS = "pytorch"
"""Loops of scripts' own, which have no batch by default."""
WIDTHS = ("bf16.enabled", "fp16.enabled")
BATCH, MICRO, ROUNDS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


def of_the_script(
    reads: Mapping[str, FileReading], request: Mapping[str, Any], told: tuple[Mapping[str, Any], ...]
) -> tuple[str, ...]:
    """Reasons for doubt. ``request``: of all files and flags; ``told``: what a plan and flags say alone."""
    if request.get("task", "train") != "train" or not any(
        read.form.name in (*LAUNCHED, LOOPS) for read in reads.values()
    ):
        return ()
    return (*_microbatch_remarks(request), *_open_precision_remarks(reads, told))


NAMED_SETTINGS = "settings"
"""Where a start of people's own has the file of settings that its script is given."""
KINDS = {
    NAMED_SETTINGS: "transformers",
    "config_file": "accelerate",
    "config": "trl",
    "--config": "vllm",
    "extra_llm_api_options": "tensorrt-llm",
    "--config-name": "verl",
    "$.config": "litgpt",
    "$.parameters": "llm-foundry",
    SWIFT_FILE: "swift",
    SWIFT_MEGATRON_FILE: "swift-megatron",
    **OF_FILES,
}
"""Which format a file is of that a key names; of DeepSpeed's for every other."""


MOVED = late_pattern(r"(?<!no_)(?<!no-)(?<!without_)offload")
STAGE = late_pattern(
    r"(?<![a-z])(?:zero|stage|ds|z)[-_]?(?:stage[-_]?)?([0-3])(?![0-9])|zero[-_]?([0-3])(?![0-9])"
)
SHARDED = late_pattern(r"fsdp[-_]?(?:v)?([12])?(?![0-9])")


def named_config_values(kind: str, name: str) -> dict[str, Any]:
    """What a configuration of DeepSpeed's or accelerate's says by its name alone (``zero3.yaml``,
    ``ds_config_zero2_offload.json``, ``multi_gpu.yaml``); nothing where that says no sharding.
    """
    word = name.rpartition("/")[2].rpartition(".")[0].lower()
    found, flat = STAGE.search(word), SHARDED.search(word)
    stage = int(found[1] or found[2]) if found else None
    away = ("optimizer", *(("param",) if stage == 3 else ())) if MOVED.search(word) else ()
    if kind == "deepspeed":
        auto = {"bf16.enabled": "auto", "fp16.enabled": "auto"}
        moved = {f"zero_optimization.offload_{one}.device": "cpu" for one in away}
        return {} if stage is None else {"zero_optimization.stage": stage, **auto, **moved}
    if stage is not None:
        moved = {f"deepspeed_config.offload_{one}_device": "cpu" for one in away}
        return {"distributed_type": "DEEPSPEED", "deepspeed_config.zero_stage": stage, **moved}
    if flat:
        own = {"fsdp_version": int(flat[1] or 1), "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
        return {"distributed_type": "FSDP", **{f"fsdp_config.{at}": held for at, held in own.items()}}
    return {"distributed_type": "MULTI_GPU"} if "multi_gpu" in word or "ddp" in word else {}


def absent_files(reads: Mapping[str, FileReading]) -> list[str]:
    """Files that others name and that are not among them."""
    named = (
        (read, KINDS.get(at, "deepspeed"), read.values.get(at))
        for read in reads.values()
        for at in (() if read.form.shipped(read.values) else read.form.refers)
    )
    return [
        value
        for read, kind, value in named
        if isinstance(value, str)
        and not any(
            _is_file(at, value) for at, other in reads.items() if other is not read and not other.shipped
        )
        and not any(
            other.form.name == kind and other is not read and not other.shipped for other in reads.values()
        )
    ]


def _is_file(at: str, value: str) -> bool:
    """Whether a read's name is that of the file that is named, and of no part of it."""
    return at.rpartition("/")[2] == value.rpartition("/")[2]


def _microbatch_remarks(request: Mapping[str, Any]) -> Iterator[str]:
    if request.get("microbatch") is None:
        # transformers 5.23 training_args.py:777
        yield (
            "the micro-batch is the training script's: --microbatch (the sheet is of 1, and the "
            "Trainer's own default is 8)"
        )


def _open_precision_remarks(
    reads: Mapping[str, FileReading], told: tuple[Mapping[str, Any], ...]
) -> Iterator[str]:
    """DeepSpeed's file leaves it open by "auto", or by silence: accelerate then writes its own word in
    (1.15.0 utils/dataclasses.py:1422-1427).
    """
    own = next((read for read in reads.values() if read.form.name == "deepspeed"), None)
    if own is None or own.request.get("precision.compute") is not None:
        return
    others = (*told, *(read.request for read in reads.values() if read is not own))
    if not any(
        key.lstrip("?").startswith("precision.") and held is not None
        for one in others
        for key, held in one.items()
    ):
        taken = "bf16" if any(own.values.get(at) == AUTO for at in WIDTHS) else "fp32"
        yield f"the precision is the training script's: --precision (the sheet is of {taken})"


def derived_microbatch(
    reads: Mapping[str, FileReading], request: Mapping[str, Any], ranks: int | None
) -> int | None:
    """What DeepSpeed makes of the whole batch alone: all of it in one round, or in as many as it says (0.19.8
    runtime/config.py:961-975).
    """
    own = next((read.values for read in reads.values() if read.form.name == "deepspeed"), None)
    if own is None or not ranks or request.get("microbatch") is not None or own.get(MICRO) is not None:
        return None
    whole, rounds = own.get(BATCH), own.get(ROUNDS, 1)
    if (
        not isinstance(whole, int)
        or not isinstance(rounds, int)
        or rounds < 1
        or request.get("global_batch") != whole
    ):
        return None
    return whole // ranks // rounds or None
