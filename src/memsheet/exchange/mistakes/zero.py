"""Mistakes of DeepSpeed's file beyond its words: what switches nothing on, what is slower or larger than
meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.mistakes.case import TRAINERS, Case, FoundMistake, Rule
from memsheet.formulas.sharding.partitioned_buckets import BUCKETS
from memsheet.units import format_bytes

Z, A = "zero_optimization", "activation_checkpointing"
_HELD = ("offload_optimizer", "offload_param")


def _batch_size_mismatches(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values("deepspeed"):
        sizes = [
            values.get(key)
            for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
        ]
        told = [size for size in sizes if isinstance(size, int) and size > 0]
        gpus = case.together.gpus if values.get("sequence_parallel_size") in (None, 1) else None
        if len(told) == len(sizes):
            whole, micro, rounds = told
            product = micro * rounds * (gpus or 1)
            if (gpus and whole != product) or whole % product:
                over = f"{gpus} GPUs" if gpus else "any number of GPUs"
                yield FoundMistake(
                    where=f"{name}: train_batch_size",
                    says=f"{whole} is not {micro} sequences · {rounds} rounds · {over}",
                    cure=f"train_batch_size {product}" if gpus else "leave one of the three out",
                    stops=_is_certain_mismatch(case, whole, micro * rounds),
                )


def _is_certain_mismatch(case: Case, whole: int, product: int) -> bool:
    """Whether no number of data-parallel ranks makes it right, or they are known: where further files say
    them, or the sheet is of a job that has a sequence on each.
    """
    mesh = case.trained.mesh if case.trained else None
    alone = mesh is not None and mesh.tp == mesh.pp == mesh.cp == 1
    return (
        bool(whole % product)
        or alone
        or any(name != "deepspeed" for name in (read.form.name for read in case.reads.values()))
    )


TRAINERS_TOO: Mapping[str, tuple[str, str]] = {
    "train_micro_batch_size_per_gpu": ("per_device_train_batch_size", "microbatch"),
    "gradient_accumulation_steps": ("gradient_accumulation_steps", "@accumulation"),
    "gradient_clipping": ("max_grad_norm", ""),
    "bf16.enabled": ("bf16", "precision."),
    "fp16.enabled": ("fp16", "precision."),
    "optimizer.params.lr": ("learning_rate", ""),
    "optimizer.params.eps": ("adam_epsilon", ""),
    "optimizer.params.weight_decay": ("weight_decay", ""),
    "scheduler.params.warmup_max_lr": ("learning_rate", ""),
}
"""By DeepSpeed's key the Trainer's argument that has to be the same, and how keys of a plan begin that both
say (transformers 5.23.0 integrations/deepspeed.py, trainer_config_process).
"""


def mismatched_settings(case: Case) -> Iterator[tuple[str, FoundMistake]]:
    """What DeepSpeed's file says otherwise than the Trainer's arguments that name one, by the keys of a plan
    that both say.
    """
    launched = any(values.get("distributed_type") == "DEEPSPEED" for _, values in case.values("accelerate"))
    for name, file in case.values("deepspeed"):
        for trainer, values in case.values(*TRAINERS):
            for key, (argument, keys) in TRAINERS_TOO.items() if values.get("deepspeed") or launched else ():
                one, two = _as_number(file.get(key)), _as_number(values.get(argument))
                if one is not None and two is not None and one != two:
                    says = f"{file[key]}, and {argument} of {trainer} is {values[argument]}"
                    where = f"{name}: {key}"
                    yield (
                        keys,
                        FoundMistake(
                            where=where,
                            says=f"{says}: the Trainer refuses values that mismatch",
                            cure='"auto"',
                            stops=True,
                        ),
                    )


def _as_number(value: Any) -> float | None:
    """A number or a switch, in figures or in a text; None of all else, as of a word for the program to fill
    in.
    """
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except ValueError:
        return None


def _not_switched(case: Case) -> Iterator[FoundMistake]:
    """The group only says how: a layer is recomputed where the model calls
    ``deepspeed.checkpointing.checkpoint``.
    """
    for name, values in case.values("deepspeed"):
        told = any(at.startswith(f"{A}.") for at in values)
        if told and case.request.get("recompute.mode") in (None, "none"):
            yield FoundMistake(
                where=f"{name}: {A}",
                says="says how to recompute and switches nothing on: the model's own code has to call it",
                cure="gradient_checkpointing: true in the training script",
                changes={"recompute.mode": "full"},
            )


def _nothing_to_partition(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values("deepspeed"):
        if values.get(f"{A}.partition_activations") is True and (case.request.get("mesh.tp") or 1) == 1:
            yield FoundMistake(
                where=f"{name}: {A}.partition_activations",
                says="divides what is kept over tensor-parallel ranks, and there are none",
                cure="leave it out",
            )


def _unpartitioned_memory(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values("deepspeed"):
        if (
            values.get(f"{A}.contiguous_memory_optimization") is True
            and values.get(f"{A}.partition_activations") is not True
        ):
            yield FoundMistake(
                where=f"{name}: {A}.contiguous_memory_optimization",
                says="is for partition_activations: DeepSpeed stops where a model calls it",
                cure="partition_activations: true, or leave it out",
            )


def _torch_on_host(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values("deepspeed"):
        moved = values.get(f"{Z}.offload_optimizer.device") in ("cpu", "nvme")
        if moved and values.get("zero_force_ds_cpu_optimizer") is False:
            yield FoundMistake(
                where=f"{name}: zero_force_ds_cpu_optimizer",
                says="lets torch's own optimizer step on the host, slower than DeepSpeed's",
                cure="leave it out, so that DeepSpeedCPUAdam is asked for",
            )


def _kept_alive(case: Case) -> Iterator[FoundMistake]:
    """Parameters stay gathered up to so many elements: above the model's own, stage 3 need not free any
    before backward ends.
    """
    for name, values in case.values("deepspeed"):
        most = values.get(f"{Z}.stage3_max_live_parameters")
        if (
            case.answer is None
            or values.get(f"{Z}.stage") != 3
            or not isinstance(most, int | float)
            or isinstance(most, bool)
        ):
            continue
        held = case.answer.parameters
        if most > max(held, BUCKETS.max_live):
            yield FoundMistake(
                where=f"{name}: {Z}.stage3_max_live_parameters",
                says=f"{most:,.0f} elements for {held:,} parameters: all may stay gathered",
                cure=f"{BUCKETS.max_live:,} elements, its default, or fewer",
                saves_bytes=int((held - min(held, BUCKETS.max_live)) * 2),
            )


def _unpinned_offload_memory(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values("deepspeed"):
        for held in _HELD:
            if (
                values.get(f"{Z}.{held}.device") == "cpu"
                and values.get(f"{Z}.{held}.pin_memory") is False
                and _host_has_room(case)
            ):
                yield FoundMistake(
                    where=f"{name}: {Z}.{held}.pin_memory",
                    says="pageable host memory is copied at a part of the link's speed, and nothing overlaps",
                    cure="pin_memory: true, its default, where the host's limit allows",
                )


def _pins_more_than_there_is(case: Case) -> Iterator[FoundMistake]:
    """What torch pins is rounded up to powers of two, so that up to twice as much is taken from what no page
    may leave.
    """
    answer = case.answer
    if answer is None or answer.cluster is None or not answer.cluster.host_bytes:
        return
    needed = max(sheet.host_bytes for sheet in answer.sheets) * answer.cluster.per_node
    for name, values in case.values("deepspeed"):
        pinned = [
            held
            for held in _HELD
            if values.get(f"{Z}.{held}.device") == "cpu"
            and values.get(f"{Z}.{held}.pin_memory", True) is True
        ]
        if pinned and needed * 2 > answer.cluster.host_bytes:
            says = (
                f"a node's ranks pin {format_bytes(needed)}, rounded up to as much as "
                f"{format_bytes(needed * 2)}, of {format_bytes(answer.cluster.host_bytes)}"
            )
            yield FoundMistake(
                where=f"{name}: {Z}.{pinned[0]}.pin_memory",
                says=says,
                cure="pin_memory: false, or less offloaded",
            )


def _host_has_room(case: Case) -> bool:
    answer = case.answer
    if answer is None or answer.cluster is None or not answer.cluster.host_bytes:
        return True
    return (
        max(sheet.host_bytes for sheet in answer.sheets) * answer.cluster.per_node * 2
        <= answer.cluster.host_bytes
    )


def _no_folder(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values("deepspeed"):
        for held in _HELD:
            if values.get(f"{Z}.{held}.device") == "nvme" and not values.get(f"{Z}.{held}.nvme_path"):
                yield FoundMistake(
                    where=f"{name}: {Z}.{held}.nvme_path",
                    says="is not said, and nvme needs a folder",
                    cure='"nvme_path": "/local_nvme"',
                    stops=True,
                )


def _scattered_gradients(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values("deepspeed"):
        if values.get(f"{Z}.contiguous_gradients") is False and _zero_stage(values) in (1, 2):
            yield FoundMistake(
                where=f"{name}: {Z}.contiguous_gradients",
                says="gradients lie where backward makes them, between activations: memory in pieces",
                cure="true, its default",
            )


def _zero_stage(values: Mapping[str, Any]) -> Any:
    return values.get(f"{Z}.stage") or 0


def _synchronising_timers(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values("deepspeed"):
        for at in ("wall_clock_breakdown", "memory_breakdown", "flops_profiler.enabled"):
            if values.get(at) is True:
                yield FoundMistake(
                    where=f"{name}: {at}",
                    says="measures the parts of every step, and waits for the GPU to do so",
                    cure="false once it was looked at",
                )


def _slow_gather(case: Case) -> Iterator[FoundMistake]:
    """At every save rank 0 holds the whole model in host memory."""
    for name, values in case.values("deepspeed"):
        gathers = any(
            values.get(f"{Z}.stage3_gather_{word}_weights_on_model_save") is True
            for word in ("16bit", "fp16")
        )
        answer = case.answer
        if (
            gathers
            and answer is not None
            and answer.cluster
            and answer.cluster.host_bytes
            and _zero_stage(values) == 3
        ):
            whole = answer.parameters * 2
            offloaded = max(sheet.host_bytes for sheet in answer.sheets) * answer.cluster.per_node
            if whole + offloaded > answer.cluster.host_bytes:
                says = (
                    f"a save gathers {format_bytes(whole)} on one host of "
                    f"{format_bytes(answer.cluster.host_bytes)}"
                )
                cure = "false, and zero_to_fp32.py on another machine"
                yield FoundMistake(
                    where=f"{name}: {Z}.stage3_gather_16bit_weights_on_model_save", says=says, cure=cure
                )


_DS = "DeepSpeed 0.19.8 (edaa7221) deepspeed/runtime"
ZERO = (
    Rule(id="batch-product", source=f"{_DS}/config.py:937", looks=_batch_size_mismatches),
    Rule(id="recompute-not-switched", source=f"{_DS}/activation_checkpointing/checkpointing.py:1132: the group is read by configure()", looks=_not_switched),
    Rule(id="partition-without-tp", source=f"{_DS}/activation_checkpointing/checkpointing.py:1181: across model-parallel ranks", looks=_nothing_to_partition),
    Rule(id="contiguous-without-partition", source=f"{_DS}/activation_checkpointing/checkpointing.py:1239", looks=_unpartitioned_memory),
    Rule(id="torch-optimizer-on-host", source=f"{_DS}/engine.py:2040-2044", looks=_torch_on_host),
    Rule(id="live-above-model", source=f"{_DS}/zero/config.py:238", looks=_kept_alive),
    Rule(id="unpinned-offload", source=f"{_DS}/zero/offload_config.py:45-52, 75-82", looks=_unpinned_offload_memory),
    Rule(id="pinned-above-host", source=f"{_DS}/zero/offload_config.py:75-82; docs/_pages/config-json.md:712-718", looks=_pins_more_than_there_is),
    Rule(id="nvme-without-folder", source=f"{_DS}/zero/stage3.py:791; zero/partition_parameters.py:1215", looks=_no_folder),
    Rule(id="scattered-gradients", source=f"{_DS}/zero/config.py:102", looks=_scattered_gradients),
    Rule(id="timers-wait", source=f"{_DS}/engine.py:462, 2723; deepspeed/utils/timer.py:40", looks=_synchronising_timers),
    Rule(id="gather-at-save", source=f"{_DS}/zero/config.py:250; engine.py:5491", looks=_slow_gather),
)  # fmt: skip
