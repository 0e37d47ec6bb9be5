"""Run by test_trace_distributed.py in a process of its own, because tracing patches torch: prints what it finds as JSON.

With the argument "slow" the cases that only a full run looks at.
"""

import json
import sys
from dataclasses import replace
from functools import cache
from unittest.mock import patch

from memsheet.account import account
from memsheet.errors import InputError
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve
from memsheet.sheet import Component, Instant
from memsheet.spec.names import request_from
from memsheet.spec.plan import Implementation, Offload, Optimizer, OptimizerName, Schedule
from memsheet.timeline import alive, peaks, sheet_of, sizes
from memsheet.trace import fake_distributed
from memsheet.trace.distributed_job import trace_rank
from memsheet.trace.job import How

TINY = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
TIED = {**TINY, "tie_word_embeddings": True}
FOUR = {**TINY, "num_hidden_layers": 4}
LARGE = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip
HOW = How(scratch=False)
FSDP = {"engine": "fsdp2", "dp_shard": 8, "zero": 3}
ONE = {"engine": "transformers", "precision": "bf16-pure"}


def planned(config, mesh=None, **short):
    """A plan of short options, ``mesh`` set by hand: not every mesh that runs is one that is modelled."""
    spec = read_hf_config(config)
    plan = resolve({**request_from({"seq_len": 64, **short}), "task": "train"}, spec, real=True).plan
    return spec, replace(plan, mesh=replace(plan.mesh, **(mesh or {})))


def pipeline(schedule, rank, config=FOUR, microbatches=4, **mesh):
    _, plan = planned(config, {"pp": 2, **mesh}, **ONE, global_batch=microbatches)
    return facts(config, replace(plan, schedule=schedule), rank)


@cache
def traced(config, plan, rank, how=HOW):
    return trace_rank(dict(json.loads(config)), plan, how, rank)


def facts(config, plan, rank=0, how=HOW):
    timeline = traced(json.dumps(config), plan, rank, how)
    sheet = sheet_of(timeline)
    first = next((mark.at for mark in timeline.marks if mark.instant is Instant.BACKWARD), 0)
    paths = {}
    for item in sheet.items:
        paths.setdefault(item.component.value, {})[item.path] = item.largest.value
    return {
        "at": {i.value: sheet.at(i).value for i in sheet.instants}, "peaks": {i.value: p.bytes for i, p in peaks(timeline).items()},
        "of": {i.value: {c.value: sheet.of(c, instant=i).value for c in Component} for i in sheet.instants}, "paths": paths,
        "kept": sum(held(timeline, n) for n in alive(timeline, first - 1)), "largest": max(s.bytes for s in timeline.storages),
        "highest": max(sizes(timeline)), "streams": {s.path: s.stream for s in timeline.storages},
        "events": [seen(timeline, event) for event in timeline.events[timeline.start :]],
    }  # fmt: skip


def held(timeline, number):
    storage = timeline.storages[number]
    return storage.bytes if storage.component is Component.SAVED_ACTIVATIONS else 0


def seen(timeline, event):
    storage = timeline.storages[event if event >= 0 else ~event]
    return event >= 0, storage.bytes, storage.op, storage.path


def sharded(config=TINY, mesh=None, rank=0, **short):
    """FSDP2 beside the formulas."""
    spec, plan = planned(config, mesh, **{**FSDP, **short})
    sheet = account(spec, plan)
    return {**facts(config, plan, rank), "predicted": {i.value: sheet.at(i).value for i in sheet.instants}}


def phantoms():
    """The same with what hides DTensor's shape propagation left out."""
    _, plan = planned(TINY, **FSDP)
    rows = fake_distributed.bookkeeping
    with patch.object(fake_distributed, "bookkeeping", lambda: [row for row in rows() if "propagate" not in row.attribute]):
        return facts(TINY, replace(plan, seq_len=65))


def real():
    """The same step on tensors with memory, through collectives that send nothing; full sequences said so, as when fake."""
    from memsheet.trace.patches import UNPADDED, applied

    _, plan = planned(TINY, **FSDP)
    with applied(UNPADDED):
        return facts(TINY, plan, how=How(device="cpu", fake=False, scratch=False))


def on_cpu():
    _, plan = planned(TINY, **FSDP)
    return facts(TINY, plan, how=How(device="cpu", scratch=False))


def tracker(config, seq_len):
    """What torch's own tracker says of the same step, and the trace with the sizes rounded as it rounds them."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed.tensor import DTensor

    from memsheet.run.fsdp2 import apply_fsdp2
    from memsheet.run.mesh import build_mesh
    from memsheet.run.meta import materialize
    from memsheet.run.model import build_config, build_model
    from memsheet.run.optimizer import build_optimizer
    from memsheet.run.step import tokens
    from memsheet.trace.job import recording, timeline

    class Tracker(FSDPMemTracker):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            """It would count DTensor's arithmetic at global shape."""
            if any(issubclass(kind, DTensor) for kind in types):
                return NotImplemented
            return super().__torch_dispatch__(func, types, args, kwargs)

    _, plan = planned(config, **FSDP, seq_len=seq_len)
    settings = build_config(config, plan)
    with fake_distributed.distributed(8, 0):
        mesh = build_mesh(plan, "cuda")
        with recording(HOW) as recorder:
            model = build_model(settings, plan, "meta")
            apply_fsdp2(model, model, plan, mesh)
            materialize(model, "cuda")
            optimizer = build_optimizer(model.parameters(), plan)
            batch = tokens(settings, plan, "cuda")
            torchs = Tracker(model, optimizer)
            torchs.track_inputs(tuple(batch.values()))
            with torchs:
                for step in range(2):
                    loss = model(**batch).loss
                    loss.backward()
                    del loss
                    optimizer.step()
                    optimizer.zero_grad()
                    if step == 0:
                        torchs.reset_mod_stats()
    recorded = timeline(recorder)
    rounded = replace(recorded, storages=tuple(replace(s, bytes=-(-s.bytes // 512) * 512) for s in recorded.storages))
    (snapshot,) = torchs.get_tracker_snapshot("peak").values()
    return {"torch": snapshot["Total"], "ours": max(sizes(rounded))}


def undone():
    """What a trace leaves behind."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    def state():
        cuda = [getattr(torch.cuda, name) for name in ("Stream", "current_stream", "current_device", "_lazy_init", "get_rng_state")]
        return [sys.excepthook, torch.Tensor.record_stream, *cuda, *vars(DeviceMesh).values()]

    before = state()
    sharded(seq_len=66)
    return {"same": all(one is other for one, other in zip(before, state(), strict=True)), "group": dist.is_initialized()}


def refused():
    found = {}
    _, plan = planned(TINY, **FSDP)
    _, one = planned(FOUR, **ONE, global_batch=1)
    loop = Optimizer(name=OptimizerName.ADAMW, implementation=Implementation.LOOP)
    asked = {
        "offload": replace(plan, offload=Offload(parameters=1.0)), "context": replace(plan, mesh=replace(plan.mesh, cp=2)),
        "experts": replace(plan, mesh=replace(plan.mesh, ep=2)), "heads": replace(plan, mesh=replace(plan.mesh, tp=8)),
        "engine": replace(plan, engine="deepspeed"), "batches": replace(one, mesh=replace(one.mesh, pp=2), schedule=Schedule.ONE_F_ONE_B),
        "stages": replace(one, mesh=replace(one.mesh, pp=3)), "fused": replace(one, mesh=replace(one.mesh, tp=2)),
    }  # fmt: skip
    for name, wrong in asked.items():
        try:
            trace_rank(FOUR, wrong, HOW, 0)
        except InputError as error:
            found[name] = error.problems[0].field
    trace_rank(FOUR, replace(one, mesh=replace(one.mesh, tp=2), optimizer=loop), HOW, 0)
    return found


def replicas(zero=0, rank=0):
    spec, plan = planned(TINY, engine="transformers", precision="bf16-autocast", dp_replicate=2)
    return {**facts(TINY, replace(plan, zero=zero), rank), "predicted": account(spec, plan).peak.value}


CASES = {
    "fsdp": sharded,
    "zero 2": lambda: sharded(zero=2),
    "recomputed": lambda: sharded(recompute="full"),
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
    **{f"gpipe {rank}": lambda rank=rank: pipeline(Schedule.GPIPE, rank) for rank in range(2)},
    **{f"1f1b {rank}": lambda rank=rank: pipeline(Schedule.ONE_F_ONE_B, rank) for rank in range(2)},
    "interleaved 0": lambda: pipeline(Schedule.INTERLEAVED, 0, vpp=2),
    "pipeline of replicas": lambda: pipeline(Schedule.ONE_F_ONE_B, 0, microbatches=8, dp_replicate=2),
    "tied pipeline 1": lambda: pipeline(Schedule.ONE_F_ONE_B, 1, {**FOUR, "tie_word_embeddings": True}),
    "large": lambda: {**sharded(LARGE, seq_len=2048), "events": []},
    "large tracker": lambda: tracker(LARGE, 2048),
}
SLOW = (
    "pure", "tied and cut", "uneven first", "uneven last", "zero 1 rank 0", "zero 1 rank 1", "interleaved 0", "pipeline of replicas",
    "tied pipeline 1", "large", "large tracker",
)  # fmt: skip

if __name__ == "__main__":
    wanted = SLOW if sys.argv[1:] == ["slow"] else [name for name in CASES if name not in SLOW]
    json.dump({name: CASES[name]() for name in wanted}, sys.stdout)
