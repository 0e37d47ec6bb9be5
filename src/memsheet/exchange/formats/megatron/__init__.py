"""Megatron-LM's flags, in a script around ``torchrun pretrain_gpt.py``. The model, its tokenizer, the data
and learning rates follow as the script's own arguments (``bash pretrain_gpt.sh --num-layers …``).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.errors import Problem
from memsheet.exchange.formats.megatron import graphs, multimodal
from memsheet.exchange.formats.megatron.described import (
    OBJECTIVE,
    VOCABULARY,
    described_model,
    left_open_sizes,
)
from memsheet.exchange.formats.megatron.stages import STAGES, unequal_stage_problems
from memsheet.exchange.shared.config_commands import STARTS
from memsheet.exchange.shared.file_format import UNSET, Format, Key, Moved, Values, plan_word
from memsheet.exchange.shared.megatron_flags import (
    ALLOCATOR,
    LAUNCHER,
    OF_DEEPSPEED,
    PROGRAM,
    SWITCHES,
    VALUED,
    flags_of,
)
from memsheet.exchange.shared.program_releases import keys_of_one_program
from memsheet.patterns import late_pattern
from memsheet.plan.dtypes import FP32
from memsheet.sheet import Instant

VERSION = (
    "Megatron-LM core 0.14"  # every line below is of 23e00ed0963c35382dfe8a5a94fb3cda4d21e133, under megatron
)
ARGS = "training/arguments.py"
_FIELDS = ("parameters", "compute", "gradients", "reduce", "master_weights", "moments")
DISPATCHER, GATHERED, EXCHANGED, GATHERING = (
    "--moe-token-dispatcher-type",
    "allgather",
    "alltoall",
    "$.dispatcher",
)
ON = "expandable_segments:True"
ONE = "one micro-batch for each rank"
TP = "--tensor-model-parallel-size"
FUSION, FUSED_BY, NATIVE = "--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl", "native"
OWN = ("pretrain_gpt.py", "pretrain_bert.py", "pretrain_t5.py", "pretrain_mamba.py")
"""Programs of its own that add no flags to the ones read here; others have more."""
MARKS = frozenset(
    {
        TP,
        "--pipeline-model-parallel-size",
        "--micro-batch-size",
        "--seq-length",
        "--use-distributed-optimizer",
    }
)
BACKENDS = {
    "flash": "flash",
    "cudnn": "fused",
    "eager": "unfused",
}  # core/transformer/enums.py:59, AttnBackend


def _read_nproc_per_node(value: Any, values: Values) -> Mapping[str, Any]:
    nodes = values.get("--nnodes", 1)
    return (
        {"@per_node": value, "@gpus": value * nodes}
        if isinstance(value, int) and isinstance(nodes, int)
        else {}
    )


def _read_bf16_flag(value: Any, values: Values) -> Mapping[str, Any]:
    """Of all switches: sixteen bits with fp32 copies, gradients in fp32 unless that is switched off
    (:643-667); else fp32.
    """
    if value is True:
        reduced = "bf16" if values.get("--grad-reduce-in-bf16") else "fp32"
        made = ("bf16", "bf16", reduced, reduced, "fp32", "fp32")
    elif values.get("--fp16"):
        reduced = "fp32" if values.get("--accumulate-allreduce-grads-in-fp32") else "fp16"
        made = ("fp16", "fp16", reduced, reduced, "fp32", "fp32")
    else:
        return {"precision.name": "fp32"}
    return dict(zip((f"precision.{name}" for name in _FIELDS), made, strict=True))


def _read_recompute_granularity(value: Any, values: Values) -> Mapping[str, Any]:
    """Every layer in stretches, the first so many layers of a stage, or modules
    (core/transformer/transformer_config.py:825-880).
    """
    if value == "selective":
        return {
            "recompute.mode": value,
            "recompute.modules": _as_flag_list(values.get("--recompute-modules", ["core_attn"])),
        }
    if value != "full":
        return {"recompute.mode": value}
    count = values.get("--recompute-num-layers")
    if values.get("--recompute-method") == "block":
        return {"recompute.mode": "full", "recompute.layers": count}
    return {"recompute.mode": "full", **({"recompute.every": count} if count not in (None, 1) else {})}


def _as_flag_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _is_full_granularity(asked: Values) -> bool:
    return asked.get("recompute.mode") == "full"


def _recompute_num_layers(asked: Values) -> Any:
    return (
        (asked.get("recompute.layers") or asked.get("recompute.every") or 1)
        if _is_full_granularity(asked)
        else None
    )


DEALT_MUON = "dist_muon"
"""Muon with matrices dealt to ranks, by its older name (d98e8a6 training/arguments.py:1727)."""
OF_OLDER, OLDER = "--checkpoint-activations", "$.older"
"""Layers run forward twice, to Megatron-DeepSpeed and to releases before core's, which stops at it."""
SHARDS, SHARDED_MUON = "--use-distributed-optimizer", "$.muon"


def _muon_with_shards(values: Values) -> Mapping[str, Any]:
    """Core 0.16 and 0.17 stop at a distributed optimizer beside muon, and core 0.18 deals its matrices then
    (training/arguments.py: core_v0.16.0 :1184, core_v0.17.1 :1490, core_v0.18.0 :1561).
    """
    both = values.get("--optimizer") in ("muon", DEALT_MUON) and values.get(SHARDS) is True
    return {SHARDED_MUON: f"with {SHARDS}: core 0.16 and 0.17 refuse it"} if both else {}


def _read_optimizer_flag(value: Any, _: Values) -> Mapping[str, Any]:
    name = {"adam": "adamw", DEALT_MUON: "muon"}.get(value, value) if isinstance(value, str) else value
    known = name in ("adamw", "muon")
    return {"optimizer.name": name, **({"optimizer.implementation": "distributed"} if known else {})}


VIRTUAL = ("virtual-stages-per-pipeline-rank", "layers-per-virtual-pipeline-stage")


def _read_pipeline_size(value: Any, values: Values) -> Mapping[str, Any]:
    several = isinstance(value, int) and value > 1
    parts, layers = (values.get(f"--num-{name}") for name in VIRTUAL)
    chunks = _read_virtual_stage_layers(layers, values)["mesh.vpp"] if layers else parts
    virtual = chunks not in (None, 1)  # of one chunk it makes none (training/arguments.py:977)
    return {"mesh.pp": value, **({"schedule": "interleaved" if virtual else "1f1b"} if several else {})}


def _read_virtual_stage_layers(value: Any, values: Values) -> Mapping[str, Any]:
    """Stages of a rank, of their layers (:495-513); the model's layers must stand in the file."""
    layers, pp = values.get("--num-layers"), values.get("--pipeline-model-parallel-size", 1)
    if (
        all(isinstance(count, int) and count > 0 for count in (value, layers, pp))
        and layers % (value * pp) == 0
    ):
        return {"mesh.vpp": layers // (value * pp)}
    return {"mesh.vpp": f"{layers} layers in {pp} stages by {value}"}


def _read_vocab_divisor(value: Any, values: Values) -> Any:
    """A size for each tensor-parallel rank, of all of them (training/tokenizer/tokenizer.py:115,
    _vocab_size_with_padding).
    """
    tp = values.get(TP, 1)
    return (
        {"vocab_multiple": value * tp}
        if isinstance(value, int) and isinstance(tp, int)
        else {"vocab_multiple": value}
    )


def _vocab_size_divisor(asked: Values) -> Any:
    multiple, tp = asked.get("vocab_multiple"), asked.get("mesh.tp") or 1
    return multiple // tp if multiple and multiple % tp == 0 else None


def _expert_split(value: Any, values: Values) -> Mapping[str, Any]:
    """As many as tensor-parallel ranks unless it is said (:395), where there are experts."""
    if value != TP:
        return {"mesh.etp": value}
    return {"mesh.etp": values[TP]} if TP in values and _has_expert_flags(values) else {}


def _has_expert_flags(values: Values) -> bool:
    """Whether there are experts; of Megatron-DeepSpeed one is none (megatron/arguments.py:608)."""
    count = values.get("--num-experts")
    if OF_DEEPSPEED.keys() & values.keys():
        return count not in (None, 1)
    return bool(count) or values.get("--expert-model-parallel-size", 1) != 1


def _read_token_dispatcher(value: Any, values: Values) -> Mapping[str, Any]:
    """The word as it stands; for gathering, which is not modelled, exchange stands in, and that is told."""
    there = _has_expert_flags(values) or "--moe-token-dispatcher-type" in values
    return {"moe.dispatch": EXCHANGED if value == GATHERED else value} if there else {}


def _read_dropout_rates(_: Any, values: Values) -> Mapping[str, Any]:
    """The larger of both: a mask is kept wherever anything is dropped, so that unlike rates are over-counted
    and not under.
    """
    rates = [values.get(f"--{name}-dropout", 0.1) for name in ("hidden", "attention")]
    return {"dropout": max(rates) if all(isinstance(rate, int | float) for rate in rates) else str(rates)}


def _read_optimizer_instances(value: Any, values: Values) -> Mapping[str, Any]:
    return {"mesh.dp_replicate": value} if values.get("--use-distributed-optimizer") else {}


def _read_cp_comm_type(value: Any, _: Values) -> Mapping[str, Any]:
    kinds = {"p2p": "ring", "all_gather": "all_gather", "allgather": "all_gather", "a2a": "all_to_all"}
    return {"context_parallel_comm": plan_word(kinds, value)}


def _megatron_plan_problems(asked: Values) -> Iterator[Problem]:
    yield from unequal_stage_problems(asked)
    pieces, length = 2 * (asked.get("mesh.cp") or 1), asked.get("seq_len") or 0
    if pieces > 2 and length % pieces:  # training/arguments.py:757
        reason = f"is not a multiple of {pieces}, two pieces for each context-parallel rank"
        yield Problem(field="seq_len", value=length, reason=reason, hint=f"{-(-length // pieces) * pieces}")
    if asked.get("recompute.layers") and asked.get("mesh.pp", 1) > 1:
        reason = "counts layers of the whole model, and Megatron-LM's block those of each stage"
        yield Problem(
            field="recompute.layers",
            value=asked["recompute.layers"],
            reason=reason,
            hint="recompute full, or every",
        )
    if asked.get("sequence_parallel") and asked.get("mesh.tp", 1) == 1:  # :838-844 switches it off
        yield Problem(
            field="sequence_parallel",
            value=True,
            reason="is switched off by Megatron-LM at tp 1",
            hint="leave it out",
        )


def _compose_megatron_script(values: Values, asked: Values) -> str:
    """One connection, which tensor and context parallelism ask for on cards before Blackwell (:850-875);
    every value is quoted.
    """
    split = asked.get("mesh.tp", 1) > 1 or asked.get("mesh.cp", 1) > 1
    exports = ["export CUDA_DEVICE_MAX_CONNECTIONS=1"] if split else []
    exports += [f"export {ALLOCATOR}={shlex.quote(str(values[ALLOCATOR]))}"] if ALLOCATOR in values else []
    launch = [
        f"{at}={shlex.quote(str(values[at]))}" for at in ("--nnodes", "--nproc-per-node") if at in values
    ]
    if asked["@nodes"] > 1:
        launch += [
            '--node-rank="${NODE_RANK:?}"',
            "--rdzv-backend=c10d",
            '--rdzv-endpoint="${MASTER_ADDR:?}:${MASTER_PORT:-29500}"',
        ]
    flags = [
        _render_megatron_flag(at, value)
        for at, value in values.items()
        if at.startswith("--") and at not in ("--nnodes", "--nproc-per-node")
    ]
    script = '"${PRETRAIN_SCRIPT:-pretrain_gpt.py}"'
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            "set -euo pipefail",
            *exports,
            " \\\n  ".join(["exec torchrun", *launch, script, *flags, '"$@"']),
            "",
        ]
    )


def _render_megatron_flag(at: str, value: Any) -> str:
    return at if value is True else " ".join([at, *(shlex.quote(str(word)) for word in _as_flag_list(value))])


def _plan_switch_row(at: str, key: str, line: int) -> Key:
    """A switch that a plan has, too."""
    return Key(
        at=at,
        out=lambda a: True if a.get(key) else None,
        back=lambda v, _: {key: v is True},
        source=f"{ARGS}:{line}",
    )


KEYS = (
    Key(
        at=ALLOCATOR, out=lambda a: ON if a.get("allocator.expandable_segments") else None,
        back=lambda v, _: {"allocator.expandable_segments": ON.lower() in str(v).lower()}, source="torch/cuda/memory.py:1202",
    ),
    Key(at="--nnodes", says="@nodes", usual=1, source="torch/distributed/run.py"),
    Key(at="--nproc-per-node", says="@per_node", back=_read_nproc_per_node, source="torch/distributed/run.py"),
    Key(at=TP, says="mesh.tp", usual=1, source=f"{ARGS}:2319"),
    Key(at="--pipeline-model-parallel-size", says="mesh.pp", back=_read_pipeline_size, usual=1, source=f"{ARGS}:2321"),
    Key(
        at="--num-virtual-stages-per-pipeline-rank", out=lambda a: n if (n := a.get("mesh.vpp") or 1) > 1 else None,
        back=lambda v, _: {"mesh.vpp": v}, source=f"{ARGS}:2345",
    ),
    Key(at="--num-layers-per-virtual-pipeline-stage", out=lambda _: None, back=_read_virtual_stage_layers, source=f"{ARGS}:2343"),
    Key(at="--context-parallel-size", says="mesh.cp", usual=1, source=f"{ARGS}:2455"),
    Key(
        at="--cp-comm-type", says="context_parallel_comm", names={"ring": "p2p", "all_gather": "all_gather", "all_to_all": "a2a"},
        back=_read_cp_comm_type, source=f"{ARGS}:2457",
    ),
    Key(at="--expert-model-parallel-size", says="mesh.ep", usual=1, source=f"{ARGS}:2777"),
    Key(at="--expert-tensor-parallel-size", says="mesh.etp", back=_expert_split, usual=TP, source=f"{ARGS}:2779, 395"),
    Key(
        at="--sequence-parallel", out=lambda a: True if a.get("sequence_parallel") else None,
        back=lambda v, values: {"sequence_parallel": v is True and values.get(TP, 1) not in (1, UNSET)}, usual=False, source=f"{ARGS}:1996, 838",
    ),
    Key(
        at="--use-distributed-optimizer", out=lambda a: True if a.get("zero") == 1 else None,
        back=lambda v, values: {"zero": int(v is True or values.get("--optimizer") == DEALT_MUON)},
        usual=False, source=f"{ARGS}:2412",
    ),
    Key(
        at="--num-distributed-optimizer-instances", out=lambda a: a.get("mesh.dp_replicate") if a.get("zero") == 1 else None, back=_read_optimizer_instances,
        usual=1, source=f"{ARGS}:2447",
    ),
    Key(at="--use-megatron-fsdp", says="megatron_fsdp", source=f"{ARGS}:2425"),
    Key(at="--micro-batch-size", says="microbatch", source=f"{ARGS}:1746"),
    Key(
        at="--global-batch-size", says="global_batch", back=lambda v, _: {"@accumulation": 1} if v == ONE else {"global_batch": v}, usual=ONE,
        source=f"{ARGS}:1753, 458",
    ),
    Key(at="--seq-length", says="seq_len", back=multimodal.read_text_length, source=f"{ARGS}:2594"),
    Key(at="--make-vocab-size-divisible-by", out=_vocab_size_divisor, back=_read_vocab_divisor, usual=128, source=f"{ARGS}:1476"),
    Key(at="--bf16", out=lambda a: True if a.get("precision.parameters") == "bf16" else None, back=_read_bf16_flag, usual=False, source=f"{ARGS}:2277"),
    Key(at="--fp16", out=lambda _: None, back=lambda *_: {}, source=f"{ARGS}:2275"),
    Key(
        at="--grad-reduce-in-bf16", out=lambda a: True if a.get("precision.gradients") == "bf16" else None, back=lambda *_: {},
        source=f"{ARGS}:2279, 662",
    ),
    Key(
        at="--fp8-format", out=lambda a: "hybrid" if a.get("fp8.recipe") else None,
        back=lambda _, values: {"fp8.recipe": values.get("--fp8-recipe", "delayed")}, source=f"{ARGS}:1219",
    ),
    Key(at="--fp8-recipe", says="fp8.recipe", back=lambda *_: {}, source=f"{ARGS}:1224"),
    Key(
        at="--optimizer", out=lambda a: "adam" if a.get("optimizer.name") == "adamw" else None, back=_read_optimizer_flag,
        usual="adam", source=f"{ARGS}:1969",
    ),
    Key(
        at="--optimizer-cpu-offload", out=lambda _: None,
        back=lambda v, values: {"offload.optimizer": values.get("--optimizer-offload-fraction", 1)} if v is True else {}, source=f"{ARGS}:1972",
    ),
    Key(
        at="--recompute-granularity", out=lambda a: mode if (mode := a.get("recompute.mode")) != "none" else None, back=_read_recompute_granularity, usual="none",
        source=f"{ARGS}:1782",
    ),
    Key(
        at="--recompute-activations", out=lambda _: None, back=lambda v, values: _read_recompute_granularity("selective", values) if v is True else {},
        source=f"{ARGS}:416",
    ),
    Key(
        at=OF_OLDER, out=lambda _: None, back=lambda v, _: {"recompute.mode": "full"} if v is True else {},
        source=f"deepspeedai/Megatron-DeepSpeed 207b2d5 megatron/arguments.py; {ARGS}:601 stops at it",
    ),
    Key(
        at="--recompute-method", out=lambda a: ("block" if a.get("recompute.layers") else "uniform") if _is_full_granularity(a) else None,
        back=lambda *_: {}, source=f"{ARGS}:1803",
    ),
    Key(at="--recompute-num-layers", out=_recompute_num_layers, back=lambda *_: {}, source=f"{ARGS}:1812"),
    Key(at="--recompute-modules", out=lambda a: a.get("recompute.modules") or None, back=lambda *_: {}, source=f"{ARGS}:1817"),
    Key(
        at="--attention-backend", says="attention", names=BACKENDS, usual="auto", source=f"{ARGS}:1426",
        back=lambda v, _: {"?attention": "flash"} if v == "auto" else {"attention": next((k for k, n in BACKENDS.items() if n == v), v)},
    ),
    Key(at="--hidden-dropout", says="dropout", back=_read_dropout_rates, usual=0.1, source=f"{ARGS}:1716"),
    Key(at="--attention-dropout", says="dropout", back=_read_dropout_rates, usual=0.1, source=f"{ARGS}:1714"),
    Key(
        at=FUSION, out=lambda a: True if a.get("loss") == "fused" else None,
        back=lambda v, values: {"loss": "fused" if v is True and values.get(FUSED_BY) == "te" else "plain"}, usual=False, source=f"{ARGS}:1954",
    ),
    Key(at="--moe-token-dispatcher-type", says="moe.dispatch", back=_read_token_dispatcher, usual="allgather", source=f"{ARGS}:2869"),
    Key(at="--moe-expert-capacity-factor", says="moe.capacity_factor", source=f"{ARGS}:2880"),
    _plan_switch_row("--moe-pad-expert-input-to-capacity", "moe.pad_to_capacity", 2882),
    _plan_switch_row("--moe-router-force-load-balancing", "moe.balanced", 2852),
    _plan_switch_row("--moe-grouped-gemm", "moe.grouped_gemm", 2802),
    _plan_switch_row("--moe-permute-fusion", "moe.permute_fusion", 2877),
    *graphs.KEYS,
    *STAGES,
)  # fmt: skip

UNMODELLED: dict[str, tuple[Any, ...]] = {
    **multimodal.UNHELD,
    **{f"--{name}": (False,) for name in (
        "use-torch-fsdp2", "fp8-param-gather", "first-last-layers-bf16", "reuse-grad-buf-for-mxfp8-param-ag", "keep-fp8-transpose-cache",
        "use-precision-aware-optimizer", "fp32-residual-connection", "apply-query-key-layer-scaling", "distribute-saved-activations",
        "moe-layer-recompute", "no-gradient-accumulation-fusion", "no-bias-swiglu-fusion", "no-bias-gelu-fusion", "no-rope-fusion",
        "no-bias-dropout-fusion",
        "tp-comm-overlap", "defer-embedding-wgrad-compute", "overlap-moe-expert-parallel-comm", "delay-wgrad-compute", "use-nccl-ub",
        "overlap-param-gather-with-optimizer-step", "ddp-pad-buckets-for-high-nccl-busbw", "moe-enable-deepep", "moe-shared-expert-overlap",
        "account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split", "use-legacy-models", "moe-use-legacy-grouped-gemm",
        "reset-attention-mask", "enable-full-sharding-in-hsdp", "fsdp-double-buffer",
    )},
    "--data-parallel-sharding-strategy": ("no_shard",),
    "--pipeline-model-parallel-layout": (), "--transformer-impl": ("transformer_engine",), "--main-grads-dtype": ("fp32",),
    "--padded-vocab-size": (), "--empty-unused-memory-level": (0,), "--mtp-num-layers": (0,), "--hierarchical-context-parallel-sizes": (),
    "--heterogeneous-layers-config-path": (), "--spec": (), "--yaml-cfg": (), "--ddp-bucket-size": (),
    "--ddp-num-buckets": (), "--kitchen-config-file": (), "--kitchen-recipe-number": (), "--model-parallel-size": (), "--batch-size": (),
    OLDER: (), "--moe-extended-tp": (False,), "--use-checkpoint-args": (False,),
    "--use-mp-args-from-checkpoint-args": (False,), **{f"--megatron-fsdp-{name}-dtype": ("auto", "fp32") for name in ("main-grads", "grad-comm", "main-params")}, VOCABULARY: (), OBJECTIVE: (), **OF_DEEPSPEED, GATHERING: (), graphs.ALONE: (), SHARDED_MUON: (),
}  # fmt: skip


def _default_or_open(values: Values) -> Mapping[str, Any]:
    gathers = _has_expert_flags(values) and values.get(DISPATCHER, GATHERED) == GATHERED
    exchange = {GATHERING: f"{GATHERED} (the sheet is of {EXCHANGED})"} if gathers else {}
    return {
        **exchange,
        **({OLDER: f"{OF_OLDER}, at which core stops"} if values.get(OF_OLDER) is True else {}),
        **graphs.scope_alone(values),
        **_muon_with_shards(values),
        **left_open_sizes(values),
    }


def _beside_the_sheet(values: Values, asked: Values) -> Iterator[Moved]:
    yield from multimodal.tower_beside(values, asked)
    yield from compiled_loss_moves(values, asked)


def compiled_loss_moves(values: Values, asked: Values) -> Iterator[Moved]:
    """The native kernel is the unfused functions compiled, of which the sheet is: what is written over in
    place there may be written beside (core/fusions/fused_cross_entropy.py at d98e8a6, jit_fuser).
    """
    if values.get(FUSION) is not True or values.get(FUSED_BY, NATIVE) != NATIVE:
        return
    degree = values.get(TP, 1)
    ranks = degree if isinstance(degree, int) and degree > 0 else 1
    elements = asked.get("@tokens", 0) * asked.get("@vocab", 0) // ranks
    why = "logits in fp32 may stand once more where a compiled function writes them"
    high = int(FP32.nbytes(elements))
    yield Moved(at=FUSED_BY, why=why, low_bytes=0, high_bytes=high, instant=Instant.LOSS)


BESIDE_BYTES = late_pattern(
    r"^--(?:wandb|tensorboard|log|logging|structured[-_]logs|dataset|use[-_]mpi|epochs|debug|keep[-_]last)"
    r"(?:[-_]|$)"
    r"|[-_](?:path|dir|file|folder|entity|project|iters|epochs|interval|rate|seed|workers|data|tensorboard)$"
    r"|[-_]tokenizer[-_]type$"
)
"""Flags of forks that name files, trackers and times, by their words."""


def _may_change_bytes(at: str) -> bool:
    return at.startswith("--") and not BESIDE_BYTES.search(at)


def _is_own_release(values: Values) -> bool:
    """Whether a program of its own is started, with no flag that the release which was read refuses: a fork,
    or an older release, takes such, and may have other defaults (--recompute-num-layers was 1).
    """
    own = values.get(PROGRAM) in OWN and not OF_DEEPSPEED.keys() & values.keys()
    return own and keys_of_one_program(FORMAT, values)


LOADS_HUB = frozenset({"base-model", "base-model-path", "model-name-or-path", "hf-model", "hf-transformer-model-dir", "pretrained-model-name-or-path", "model-id"})  # fmt: skip
OF_MEGATRON_ALONE = MARKS - {"--micro-batch-size", "--seq-length"} | {"--num-layers", "--use-checkpoint-args", "--use-mcore-models", "--transformer-impl"}  # fmt: skip
"""Flags without which a script that is given a model of a hub's only calls its sizes as Megatron-LM does."""


def _parse_megatron_script(text: str) -> Mapping[str, Any]:
    """The flags of a command of Megatron-LM's; nothing of a script of people's own, which loads a model of a
    hub's and has none of the flags that are Megatron-LM's alone.
    """
    found = {} if STARTS.search(text) else flags_of(text, MARKS)
    named = {at.lstrip("-").replace("_", "-") for at in found if at.startswith("--")}
    return {} if named & LOADS_HUB and not OF_MEGATRON_ALONE & found.keys() else found


FORMAT = Format(
    name="megatron", file="pretrain_gpt.sh", kind="shell", tested=VERSION, engines=("megatron",), keys=KEYS, compose=_compose_megatron_script, problems=_megatron_plan_problems,
    program_known=_is_own_release, opens=_may_change_bytes,
    parse=_parse_megatron_script, said={"task": "train", "engine": "megatron"}, keeps_engine=True,
    marks=MARKS,
    fixed=lambda a: {FUSED_BY: "te"} if a.get("loss") == "fused" else {},  # core/fusions: the native kernel is another
    absent=_default_or_open, model=described_model, moves=_beside_the_sheet,
    differs={"loss": "one loss, always over each rank's part of the vocabulary (core/tensor_parallel/cross_entropy.py:20)"},
    strict=("",),  # training/arguments.py:105: parse_args stops at what it does not know
    beside=frozenset({"mesh.dp_shard", "mesh.dp_replicate", "layers_per_stage"}), describes={"--num-layers": "layers", "--hidden-size": "hidden"},
    unmodelled=UNMODELLED, known=(SWITCHES | VALUED | LAUNCHER | multimodal.KNOWN_FLAGS | {"$.*"}) - set(UNMODELLED) - {key.at for key in KEYS},
)  # fmt: skip
