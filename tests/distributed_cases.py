"""Run by test_trace_distributed.py in a process of its own, because tracing patches torch: prints what it
finds as JSON.
"""

import json
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

from memsheet.account import account_rank
from memsheet.errors import InputError
from memsheet.plan.plan import Implementation, Offload, Optimizer, OptimizerName, Schedule
from memsheet.plan.words import request_from
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.run.fsdp2 import apply_fsdp2
from memsheet.sheet import Component, Instant
from memsheet.timeline import held_bytes_after_events, instant_peaks, live_storages, sheet_of
from memsheet.trace import distributed_job, fake_distributed
from memsheet.trace.distributed_job import trace_rank
from memsheet.trace.fold import Depth, depth_of
from memsheet.trace.job import How

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from distributed import LLAMA_8B, beside_torch

TINY = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
SEVEN = {**TINY, "num_hidden_layers": 7}  # enough that one can stand for others
DEEP = {**TINY, "num_hidden_layers": 14}  # enough on each of two stages
EXPERTS = {
    **SEVEN, "model_type": "qwen3_moe", "head_dim": 16, "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2,
    "decoder_sparse_step": 1, "norm_topk_prob": True,
}  # fmt: skip
WINDOWS = {**TINY, "model_type": "mistral", "sliding_window": 32}
TIED = {**TINY, "tie_word_embeddings": True}
FOUR = {**TINY, "num_hidden_layers": 4}
HOW = How(scratch=False)
FSDP = {"engine": "fsdp2", "dp_shard": 8, "zero": 3}
ONE = {"engine": "transformers", "precision": "bf16-pure"}


def planned(config, mesh=None, **short):
    """A plan of short options, ``mesh`` set by hand: not every mesh that runs is one that is modelled."""
    spec = read_hf_config(config)
    plan = resolve_request({**request_from({"seq_len": 64, **short}), "task": "train"}, spec, real=True).plan
    return spec, replace(plan, mesh=replace(plan.mesh, **(mesh or {})))


def pipeline(schedule, rank, config=FOUR, microbatches=4, **mesh):
    _, plan = planned(config, {"pp": 2, **mesh}, **ONE, global_batch=microbatches)
    return facts(config, replace(plan, schedule=schedule), rank)


@cache
def traced(config, plan, rank, how=HOW, depth=None):
    return trace_rank(dict(json.loads(config)), plan, how, rank, depth)


def facts(config, plan, rank=0, how=HOW, depth=None):
    timeline = traced(json.dumps(config), plan, rank, how, depth)
    sheet = sheet_of(timeline)
    first = next((mark.at for mark in timeline.marks if mark.instant is Instant.BACKWARD), 0)
    paths = {}
    for item in sheet.items:
        paths.setdefault(item.component.value, {})[item.path] = item.largest.value
    return {
        "at": {i.value: sheet.at(i).value for i in sheet.instants}, "peaks": {i.value: p.bytes for i, p in instant_peaks(timeline).items()},
        "of": {i.value: {c.value: sheet.of(c, instant=i).value for c in Component} for i in sheet.instants}, "paths": paths,
        "kept": sum(held(timeline, n) for n in live_storages(timeline, first - 1)), "largest": max(s.bytes for s in timeline.storages),
        "highest": max(held_bytes_after_events(timeline)), "streams": {s.path: s.stream for s in timeline.storages},
        "events": [seen(timeline, event) for event in timeline.events[timeline.start :]],
    }  # fmt: skip


def held(timeline, number):
    storage = timeline.storages[number]
    return storage.bytes if storage.component is Component.SAVED_ACTIVATIONS else 0


def seen(timeline, event):
    storage = timeline.storages[event if event >= 0 else ~event]
    return event >= 0, storage.bytes, storage.op, storage.path


def sharded(config=TINY, mesh=None, rank=0, depth=None, **short):
    """FSDP2 beside the formulas."""
    spec, plan = planned(config, mesh, **{**FSDP, **short})
    return {**facts(config, plan, rank, depth=depth), "predicted": predicted(spec, plan)}


def predicted(spec, plan):
    try:
        sheet = account_rank(spec, plan)
    except InputError:  # not modelled
        return {}
    return {instant.value: sheet.at(instant).value for instant in sheet.instants}


def folded(config=SEVEN, mesh=None, rank=0, schedule=None, **short):
    """A trace of all layers beside one in which a layer stands for its like."""
    spec, plan = planned(config, mesh, **{**FSDP, **short})
    plan = replace(plan, schedule=schedule or plan.schedule)
    depth = depth_of(spec.stacks[0])
    written = []
    deepen = distributed_job.extend_timeline_layers
    with patch.object(
        distributed_job,
        "extend_timeline_layers",
        lambda *given: written.append(deepen(*given)) or written[-1],
    ):
        found = trace_rank(config, plan, HOW, rank, depth)
    return {
        "folds": len(written),
        "same": found == trace_rank(config, plan, HOW, rank),
        "events": len(found.events),
    }


def experts(rank=0, **mesh):
    """Experts shared out among as many ranks as fully_shard has."""
    few = {**EXPERTS, "num_hidden_layers": 3}
    _, plan = planned(few, mesh, **FSDP)
    return facts(few, replace(plan, mesh=replace(plan.mesh, dp_shard=8 // int(plan.mesh.tp))), rank)


def context(rank=0):
    _, plan = planned(TINY, {"cp": 2}, **{**FSDP, "dp_shard": 4})
    return facts(TINY, plan, rank)


def phantoms():
    """The same with what hides DTensor's shape propagation left out."""
    _, plan = planned(TINY, **FSDP)
    rows = fake_distributed.mesh_patches
    with patch.object(
        fake_distributed, "mesh_patches", lambda: [row for row in rows() if "propagate" not in row.attribute]
    ):
        return facts(TINY, replace(plan, workload=replace(plan.training, seq_len=65)))


def real():
    """The same step on tensors with memory, through collectives that send nothing; full sequences said so, as
    when fake.
    """
    from memsheet.trace.patches import UNPADDED, apply_patches

    _, plan = planned(TINY, **FSDP)
    with apply_patches(UNPADDED):
        return facts(TINY, plan, how=How(device="cpu", fake=False, scratch=False))


def beside_real(config, mesh, rank=0, schedule=None, zero=None, **short):
    """Fake tensors beside real ones in the same step of another kind of job."""
    from memsheet.trace.patches import UNPADDED, apply_patches

    _, plan = planned(config, mesh, **short)
    plan = replace(plan, schedule=schedule or plan.schedule, zero=plan.zero if zero is None else zero)
    with apply_patches(UNPADDED):
        found = facts(config, plan, rank, How(device="cpu", fake=False, scratch=False))
    fake = facts(config, plan, rank, How(device="cpu", scratch=False))
    return {"same": found["events"] == fake["events"], "events": len(fake["events"])}


def on_cpu():
    _, plan = planned(TINY, **FSDP)
    return facts(TINY, plan, how=How(device="cpu", scratch=False))


def tracker(config, seq_len):
    """What torch's own tracker says of the same step."""
    _, plan = planned(config, **FSDP, seq_len=seq_len)
    return beside_torch(config, plan, apply_fsdp2)


def undone():
    """What a trace leaves behind."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    def state():
        cuda = [
            getattr(torch.cuda, name)
            for name in ("Stream", "current_stream", "current_device", "_lazy_init", "get_rng_state")
        ]
        return [sys.excepthook, torch.Tensor.record_stream, *cuda, *vars(DeviceMesh).values()]

    before = state()
    sharded(seq_len=66)
    return {
        "same": all(one is other for one, other in zip(before, state(), strict=True)),
        "group": dist.is_initialized(),
    }


def refused():
    found = {}
    _, plan = planned(TINY, **FSDP)
    _, one = planned(FOUR, **ONE, global_batch=1)
    loop = Optimizer(name=OptimizerName.ADAMW, implementation=Implementation.LOOP)
    asked = {
        "offload": replace(plan, offload=Offload(parameters=1.0)), "context": replace(plan, mesh=replace(plan.mesh, cp=2, pp=2)),
        "pieces": replace(plan, mesh=replace(plan.mesh, cp=2), workload=replace(plan.training, seq_len=66)), "splits": replace(plan, mesh=replace(plan.mesh, ep=2, etp=2)),
        "experts": replace(plan, mesh=replace(plan.mesh, ep=2)), "heads": replace(plan, mesh=replace(plan.mesh, tp=8)),
        "engine": replace(plan, engine="deepspeed"), "batches": replace(one, mesh=replace(one.mesh, pp=2), schedule=Schedule.ONE_F_ONE_B),
        "stages": replace(one, mesh=replace(one.mesh, pp=3)), "fused": replace(one, mesh=replace(one.mesh, tp=2)),
    }  # fmt: skip
    for name, wrong in asked.items():
        try:
            trace_rank(FOUR, wrong, HOW, 0)
        except InputError as error:
            found[name] = error.problems[0].field
    ring = replace(plan, mesh=replace(plan.mesh, cp=2))
    for name, config, wrong, how in (
        ("windows", WINDOWS, ring, HOW),
        ("cpu", TINY, ring, How(device="cpu")),
        ("shares", EXPERTS, replace(plan, mesh=replace(plan.mesh, ep=3)), HOW),
    ):
        try:
            trace_rank(config, wrong, how, 0)
        except InputError as error:
            found[name] = error.problems[0].field
    trace_rank(FOUR, replace(one, mesh=replace(one.mesh, tp=2), optimizer=loop), HOW, 0)
    return found


def replicas(zero=0, rank=0, **mesh):
    spec, plan = planned(TINY, engine="transformers", precision="bf16-autocast", dp_replicate=2)
    predicted = account_rank(spec, plan).peak.value
    return {
        **facts(TINY, replace(plan, zero=zero, mesh=replace(plan.mesh, **mesh)), rank),
        "predicted": predicted,
    }


FOLDED = {
    "fsdp": lambda: folded(recompute="full"),
    "context": lambda: folded(mesh={"cp": 2}, dp_shard=2, rank=3),
    "stage": lambda: folded(DEEP, {"pp": 2}, 8, Schedule.ONE_F_ONE_B, global_batch=32),
    "zero 2": lambda: folded(zero=2),
    "replicated": lambda: folded(mesh={"dp_replicate": 2}, dp_shard=4, rank=5),
    "uneven": lambda: folded(dp_shard=7, rank=6),
    "cut": lambda: folded(mesh={"tp": 2}, dp_shard=4),
    "tied": lambda: folded({**SEVEN, "tie_word_embeddings": True}),
    "loop": lambda: folded(optimizer_implementation="loop"),
    "foreach": lambda: folded(optimizer_implementation="foreach"),
    "accumulated": lambda: folded(global_batch=16),
    "cut experts": lambda: folded(EXPERTS, {"ep": 4, "tp": 2}, 3, dp_shard=4),
}  # fmt: skip
DDP = {"engine": "transformers", "precision": "bf16-autocast", "dp_replicate": 2}
REAL = {
    "cut": lambda: beside_real(TINY, {"tp": 2}, **{**FSDP, "dp_shard": 4}),
    "replicated": lambda: beside_real(TINY, {"dp_replicate": 2}, **{**FSDP, "dp_shard": 4}),
    "experts": lambda: beside_real({**EXPERTS, "num_hidden_layers": 2}, {"ep": 4}, **FSDP),
    "stage": lambda: beside_real(FOUR, {"pp": 2}, 1, Schedule.ONE_F_ONE_B, **ONE, global_batch=4),
    "replica": lambda: beside_real(TINY, None, **DDP),
    "shared moments": lambda: beside_real(TINY, None, 1, zero=1, **DDP),
}
CASES = {
    "fsdp": sharded,
    "zero 2": lambda: sharded(zero=2),
    "recomputed": lambda: sharded(recompute="full"),
    "offloaded": lambda: sharded(offload=("optimizer", "parameters")),
    "tied": lambda: sharded(TIED),
    "pure": lambda: sharded(precision="bf16-pure"),
    "four": lambda: sharded(dp_shard=4),
    "replicated": lambda: sharded(dp_shard=4, mesh={"dp_replicate": 2}, rank=5),
    "cut": lambda: sharded(dp_shard=4, mesh={"tp": 2}),
    "tied and cut": lambda: sharded(TIED, dp_shard=4, mesh={"tp": 2}),
    "uneven first": lambda: sharded(dp_shard=7),
    "uneven last": lambda: sharded(dp_shard=7, rank=6),
    "phantoms": phantoms,
    "on cpu": on_cpu,
    "real": real,
    "tracker": lambda: tracker(TINY, 64),
    "undone": undone,
    "refused": refused,
    "replicas": replicas,
    **{f"zero 1 rank {rank}": lambda rank=rank: replicas(1, rank) for rank in range(2)},
    **{
        f"zero 1 third {rank}": lambda rank=rank: replicas(1, rank, dp_replicate=1, dp_shard=3)
        for rank in range(3)
    },
    **{f"third {rank}": lambda rank=rank: sharded(dp_shard=3, rank=rank) for rank in range(3)},
    "context": context,
    "context 7": lambda: context(7),
    "experts": lambda: experts(ep=4),
    "no experts": experts,
    **{f"folded {name}": make for name, make in FOLDED.items()},
    **{f"beside real {name}": make for name, make in REAL.items()},
    **{f"gpipe {rank}": lambda rank=rank: pipeline(Schedule.GPIPE, rank) for rank in range(2)},
    **{f"1f1b {rank}": lambda rank=rank: pipeline(Schedule.ONE_F_ONE_B, rank) for rank in range(2)},
    "interleaved 0": lambda: pipeline(Schedule.INTERLEAVED, 0, vpp=2),
    "pipeline of replicas": lambda: pipeline(Schedule.ONE_F_ONE_B, 0, microbatches=8, dp_replicate=2),
    "tied pipeline 1": lambda: pipeline(Schedule.ONE_F_ONE_B, 1, {**FOUR, "tie_word_embeddings": True}),
    "large": lambda: {
        **sharded(
            LLAMA_8B, depth=Depth(path="model.layers", layers=32, start=0, period=1, count=32), seq_len=2048
        ),
        "events": [],
    },
    "large tracker": lambda: tracker(LLAMA_8B, 2048),
}
if __name__ == "__main__":
    json.dump({name: make() for name, make in CASES.items()}, sys.stdout)
