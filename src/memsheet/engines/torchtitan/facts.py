"""torchtitan: model code of its own under fully_shard, and what changed of it between the versions that were
read.
"""

from __future__ import annotations

from enum import Enum

from memsheet.engines.shared.whole_tensors import SHARDED_TENSORS
from memsheet.frozen import dataclass, replace
from memsheet.plan.engine import Engine, Sharding, UnitWrapping
from memsheet.plan.plan import (
    AttentionKind,
    ContextParallel,
    GradientSync,
    Implementation,
    Loss,
    OptimizerName,
    RecomputeMode,
    Schedule,
)
from memsheet.references import TORCH_FSDP2, TORCH_OPTIM
from memsheet.sheet import Cited, Evidence, FromCode

COMMIT = "b5bcd76c66d0acb1a08b176d9639425bc55e0b2a"
MID_2025 = "820504e20d1149fbf0b98c567af24c4b0433b22d"
END_2024 = "9dec370ad26b5f8e9a7333a0e36165018262644b"


class Rotations(Enum):
    """Where a layer has its table of rotations from."""

    SHARED = "shared"  # the model's, handed to each layer
    OWN = "own"  # its own, of which it takes the rows of its tokens

    __hash__ = object.__hash__


class Ties(Enum):
    """Whether embeddings and head may share a table, and in how many groups it is then."""

    NEVER = "never"
    APART = "apart"  # one tensor in two groups: each gathers it, and both reduce into it
    TOGETHER = "together"

    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """What one version does otherwise than another.

    ``ends_in_root``: embeddings, final norm and head are one group with the root, gathered from the first
    forward to the end of backward. ``last_stays``: the last layer stays gathered between its forward and its
    backward. ``fused_norm``: norms are one kernel and not written out in fp32. ``repeats_kv``: keys and
    values are repeated for every query head. ``ends_count``: embeddings and head count as a layer each when a
    pipeline is cut. ``fuses_qkv``: queries, keys and values are one product. ``chunks_loss``: the head's
    table is ``lm_head`` and the loss takes it chunk by chunk unless one asks otherwise. ``compiles_loss``:
    where the model is compiled, so is the loss. ``keeps_outputs``: the last stage of a pipeline keeps the
    logits of every micro-batch to the end of a step. ``expands``: its launch script sets
    ``expandable_segments:True``. ``kinds``: blocks that it has model code for, by the
    library's names.
    """

    ends_in_root: bool
    last_stays: bool
    fused_norm: bool
    repeats_kv: bool
    ends_count: bool
    fuses_qkv: bool
    chunks_loss: bool
    compiles_loss: bool
    keeps_outputs: bool = False
    expands: bool = True
    rotations: Rotations = Rotations.SHARED
    kinds: frozenset[str] = frozenset({"llama"})
    ties: Ties = Ties.NEVER


_END_2024 = Version(
    ends_in_root=True,
    last_stays=True,
    fused_norm=False,
    repeats_kv=True,
    ends_count=False,
    fuses_qkv=False,
    chunks_loss=False,
    compiles_loss=False,
    keeps_outputs=True,
)
_OCT_2024 = replace(_END_2024, compiles_loss=True, expands=False)
_MID_2025 = Version(
    ends_in_root=True,
    last_stays=True,
    fused_norm=False,
    repeats_kv=True,
    ends_count=False,
    fuses_qkv=False,
    chunks_loss=False,
    compiles_loss=True,
    keeps_outputs=True,
)
_NEWEST = Version(
    ends_in_root=False,
    last_stays=False,
    fused_norm=True,
    repeats_kv=False,
    ends_count=True,
    fuses_qkv=True,
    chunks_loss=True,
    compiles_loss=True,
    rotations=Rotations.OWN,
    kinds=frozenset({"llama", "qwen3", "qwen3_moe", "deepseek_v2", "deepseek_v3"}),
    ties=Ties.TOGETHER,
)
_LAST_TOML = replace(
    _NEWEST,
    fuses_qkv=False,
    chunks_loss=False,
    rotations=Rotations.SHARED,
    kinds=frozenset({"llama", "qwen3"}),
    ties=Ties.APART,
)
_END_2025 = replace(_LAST_TOML, repeats_kv=True)
VERSIONS: dict[str, Version] = {
    "b5bcd76": _NEWEST,
    "238fa99": _LAST_TOML,
    "v0.2.2": _LAST_TOML,
    "v0.2.1": _END_2025,
    "v0.2.0": replace(_END_2025, keeps_outputs=True),
    "v0.1.0": _MID_2025,
    "820504e": _MID_2025,
    "9dec370": _END_2024,
    "e10cb94": _OCT_2024,
    "2024-04..2024-08": replace(_END_2024, expands=False),
}
"""By commit or tag (or the months of a figure): parallelize_llama.py:323-339 and models/norms.py:77 of
END_2024, train.py:131 for its loss, which e10cb94 of 2024-10-22 compiled with the model, e8977b0 of
2024-12-18 no longer, and d1f62be of 2025-02-20 again (components/loss.py:26-31 of MID_2025);
parallelize_llama.py:345-367 of MID_2025; distributed/fsdp.py:238-265, models/common/attention.py:403 and
distributed/pipeline_parallel.py:357 of COMMIT. 238fa99 of 2026-02-23 is the last that reads TOML:
models/llama4/infra/parallelize.py:353-427 and models/llama3/infra/parallelize.py for its groups,
models/qwen3/model/model.py:156-208 for three projections, fused norms and heads that are not repeated,
distributed/pipeline_parallel.py:267 for its stages, components/loss.py for its loss. Each layer has a table
of rotations since 02d24f0 of 2026-06-05 (models/common/rope.py:107, attention.py:902 of COMMIT). A table is
in one group at distributed/fsdp.py:224-237 of COMMIT; at 238fa99 embeddings and head are sharded each for
itself and tied again when they are initialised (models/qwen3/model/model.py:496-501), which torch 2.13 no
longer runs (_fsdp_state.py:223). Of the tags (2025-06-17 to 2026-02-20) v0.2.0 has groups of their own for
embeddings and head, and repeats heads of keys still (models/llama3/infra/parallelize.py:299-318,
models/llama3/model/model.py:143-237); v0.2.2 no longer does. From v0.2.1 on a pipeline is asked for no
outputs (train.py, return_outputs), which torch's schedules keep unless they are. run_llama_train.sh, later
run_train.sh, sets PYTORCH_CUDA_ALLOC_CONF since a5e57e4 of 2024-10-22, which comes after e10cb94;
multinode_trainer.slurm does not.
"""
TESTED = "b5bcd76"


def version_of(name: str | None) -> Version:
    """The facts of a version, by a prefix of its commit or by its tag; of one that was not read, those of
    the newest that was.
    """
    found = [
        version
        for known, version in VERSIONS.items()
        if name and (name.startswith(known) or known.startswith((name, f"v{name}")))
    ]
    return found[0] if found else VERSIONS[TESTED]


def layers_of_stages(layers: int, stages: int, version: str | None) -> tuple[int, ...] | None:
    """Layers of each stage of a pipeline, None where one would have none.

    The newest counts embeddings and head as a layer each and gives the first stages what is left over
    (distributed/pipeline_parallel.py:396-455 of COMMIT, weights of 1 from config/configs.py:197); before,
    stages in the middle took it (parallelisms/pipelining_utils.py:18-57 of END_2024), and the last had the
    rest.
    """
    counted = version_of(version).ends_count
    even, extra = divmod(layers + 2 * counted, stages)
    if counted:
        found = [even + (stage < extra) - (stage in (0, stages - 1)) for stage in range(stages)]
    else:
        found = [even + (0 < stage <= extra) for stage in range(stages - 1)]
        found.append(layers - sum(found))
    return tuple(found) if min(found) > 0 else None


def usual_loss(tp: int, version: str | None) -> Loss:
    """Chunked where that exists (b5bcd76, models/llama3/config_registry.py:197); else cut over
    tensor-parallel ranks, where there are any.
    """
    if version_of(version).chunks_loss:
        return Loss.CHUNKED
    return Loss.VOCAB_PARALLEL if tp > 1 else Loss.PLAIN


def _torchtitan_source(file: str, line: int, commit: str = COMMIT) -> Evidence:
    return FromCode("pytorch/torchtitan", commit, f"torchtitan/{file}", line)


ENGINE = Engine(
    name="torchtitan",
    tested=TESTED,
    tasks=("train",),
    axes=("dp_replicate", "dp_shard", "cp", "tp", "pp"),
    zero=(2, 3),
    default_zero=3,
    sharding=Sharding.PER_PARAMETER_SHARDS,
    layers="torchtitan",
    unit_wrapping=lambda name: UnitWrapping(
        version_of(name).ends_in_root,
        version_of(name).last_stays,
        loss_reduces=version_of(name).chunks_loss,
        keeps_outputs=version_of(name).keeps_outputs,
        loss_outside=True,  # train.py:303-304 of END_2024; components/loss.py of COMMIT unshards the head first, while nothing else runs
    ),
    launched_expandable=lambda name: version_of(name).expands,
    models=frozenset({
        "compile", "sequence_parallel", "async_tp", "fp8.recipe", "fp8.all_gather", "fp8.skip",
    }),
    default_precision="fsdp2-mixed",
    precisions=("fp32", "fsdp2-mixed"),
    autocast=False,
    attention=(AttentionKind.SDPA, AttentionKind.FLASH),
    context_parallel=(ContextParallel.ALL_GATHER, ContextParallel.RING),
    losses=(Loss.PLAIN, Loss.VOCAB_PARALLEL, Loss.CHUNKED),
    recompute=(RecomputeMode.NONE, RecomputeMode.SELECTIVE, RecomputeMode.FULL),
    selective=("op",),
    policies=frozenset({"op", "layer"}),
    stages=layers_of_stages,
    torch_pipelining=True,
    whole_in_pipelines=True,
    gradient_sync=GradientSync.EVERY,  # b5bcd76c6 torchtitan/trainer.py leaves it on
    usual_loss=usual_loss,
    replays=True,
    schedules=(Schedule.ONE_F_ONE_B, Schedule.GPIPE),
    optimizers=(OptimizerName.ADAMW,),
    implementations=SHARDED_TENSORS,
    default_implementation=Implementation.FUSED,
    never_offloads={  # distributed/fsdp.py:231 moves parameters and states; experiments/graph_trainer/cpu_offload.py is another program
        "activations": "is nothing that torchtitan's trainer does: it moves parameters and states alone, and its experiment graph_trainer is another program",
    },
    evidence={
        "activations": _torchtitan_source("models/llama/model.py", 172, END_2024),
        "recompute": _torchtitan_source("parallelisms/parallelize_llama.py", 214, END_2024),
        "context_parallel": _torchtitan_source("config_manager.py", 356, MID_2025),
        "context_parallel of the newest": _torchtitan_source("models/common/decoder_sharding.py", 276),
        "sharding": Cited(TORCH_FSDP2, "_fsdp_param.py: every rank keeps the padded dim-0 chunk"),
        "unsharded_parameters": _torchtitan_source("parallelisms/parallelize_llama.py", 339, END_2024),
        "unsharded_parameters of the newest": _torchtitan_source("distributed/fsdp.py", 252),
        "pipeline": _torchtitan_source("distributed/pipeline_parallel.py", 357),
        "optimizer": Cited(TORCH_OPTIM),
        "optimizer_states": _torchtitan_source("components/optimizer/optimizer.py", 109),
    },
)  # fmt: skip
