"""One rank of many beside PyTorch's own FSDP2 tracker in the same step, and how long such traces take.
Printed, nothing is asserted.

    python benchmarks/distributed.py [--full] [--json]

``--full``: the jobs are also traced layer by layer, beside the trace in which a layer stands for its like.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from memsheet.plan.plan import Plan
from memsheet.plan.words import request_from
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.timeline import held_bytes_after_events

GIB = 2**30
BLOCK = 512  # what torch's tracker rounds to (torch/distributed/_tools/mem_tracker.py, _PYTORCH_MIN_ALLOCATE)
LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip
EIGHT = {"engine": "fsdp2", "dp_shard": 8, "zero": 3, "seq_len": 2048}
JOBS = {
    "70B, fully_shard × tp 8, 64 ranks": (
        "llama-3.1-70b --gpus 64xH100-80GB --engine fsdp2 --tp 8 --zero 3 --seq-len 8192 --recompute full"
    ),
    "70B, fully_shard, 512 ranks": (
        "llama-3.1-70b --gpus 512xH100-80GB --engine fsdp2 --zero 3 --seq-len 8192 --recompute full"
    ),
    "8B, fully_shard, 8 ranks": "llama-3.1-8b --gpus 8xH100-80GB --engine fsdp2 --zero 3 --seq-len 2048",
}


def planned(config: Mapping[str, Any], **short: Any) -> Plan:
    """A plan of short options for a model that memsheet knows."""
    return resolve_request({**request_from(short), "task": "train"}, read_hf_config(config), real=True).plan


def layers_and_rest(root: Any, model: Any, plan: Plan, mesh: Any) -> None:
    """The plainest grouping, of PyTorch's tutorial: each layer, and one group of embeddings, norm and head
    that stays gathered.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    from memsheet.run.dtypes import torch_dtype
    from memsheet.run.model import layers_of

    policy = MixedPrecisionPolicy(
        param_dtype=torch_dtype(plan.precision.compute), reduce_dtype=torch_dtype(plan.precision.reduce)
    )
    for layer in layers_of(model) or ():
        fully_shard(layer, mesh=mesh["dp_shard"], mp_policy=policy)
    fully_shard(root, mesh=mesh["dp_shard"], mp_policy=policy)


def beside_torch(config: Mapping[str, Any], plan: Plan, shard: Callable[..., None]) -> dict[str, int]:
    """Two steps seen by both: the bytes of torch's tracker at its peak, and the trace's with sizes rounded as
    it rounds them.
    """
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed.tensor import DTensor

    from memsheet.run.mesh import build_mesh
    from memsheet.run.meta import materialize_meta_tensors
    from memsheet.run.model import build_config, build_model
    from memsheet.run.optimizer import build_optimizer
    from memsheet.run.step import random_token_batch
    from memsheet.trace.fake_distributed import fake_process_group
    from memsheet.trace.job import How, recorded_timeline, recording_context

    class Tracker(FSDPMemTracker):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            """It would count DTensor's arithmetic at global shape."""
            if any(issubclass(kind, DTensor) for kind in types):
                return NotImplemented
            return super().__torch_dispatch__(func, types, args, kwargs)

    settings, held = build_config(config, plan), []
    with fake_process_group(int(plan.mesh.gpus), 0):
        mesh = build_mesh(plan, "cuda")
        with recording_context(How(scratch=False)) as recorder:
            model = build_model(settings, plan, "meta")
            shard(model, model, plan, mesh)
            materialize_meta_tensors(model, "cuda")
            held.append(len(recorder.events))
            optimizer, batch = (
                build_optimizer(model.parameters(), plan),
                random_token_batch(settings, plan, "cuda"),
            )
            tracker = Tracker(model, optimizer)
            tracker.track_inputs(tuple(batch.values()))
            with tracker:
                for step in range(2):
                    model(**batch).loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    held.append(len(recorder.events))
                    if step == 0:
                        tracker.reset_mod_stats()
    recorded = recorded_timeline(recorder)
    rounded = replace(
        recorded, storages=tuple(replace(s, bytes=-(-s.bytes // BLOCK) * BLOCK) for s in recorded.storages)
    )
    (snapshot,), curve = tracker.get_tracker_snapshot("peak").values(), list(held_bytes_after_events(rounded))
    return {
        "torch": snapshot["Total"],
        "ours": max(curve),
        "before": curve[held[0] - 1],
        "after": curve[held[1] - 1],
    }


def compared() -> list[dict[str, Any]]:
    """The 8B on 8 ranks, grouped both ways."""
    from memsheet.run.fsdp2 import apply_fsdp2

    plan = planned(LLAMA_8B, **EIGHT)
    ways = {"layers and the rest": layers_and_rest, "as accelerate groups": apply_fsdp2}
    return [{"groups": name, **beside_torch(LLAMA_8B, plan, shard)} for name, shard in ways.items()]


def timed(*, full: bool) -> list[dict[str, Any]]:
    """Seconds of whole commands, and of the trace in them."""
    rows = []
    for name, flags in JOBS.items():
        for layers in ("folded", "every layer") if full else ("folded",):
            command = [
                sys.executable,
                "-m",
                "memsheet",
                "trace",
                *flags.split(),
                "--json",
                *(["--full"] if layers == "every layer" else []),
            ]
            start = time.perf_counter()
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            whole, found = time.perf_counter() - start, json.loads(done.stdout)
            rows.append({
                "job": name, "layers": layers, "command_s": round(whole, 2), "trace_s": found["trace"]["seconds"],
                "events": found["trace"]["events"], "peak_bytes": found["trace"]["peak"]["bytes"],
            })  # fmt: skip
    return rows


def main() -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    times, beside = timed(full=asked.full), compared()
    if asked.json:
        print(json.dumps({"times": times, "beside_torch": beside}))
        return 0
    print("8B on 8 ranks, 2048 tokens, GiB   before   after a step   peak   PyTorch's FSDPMemTracker")
    for row in beside:
        before, after, ours, torchs = (row[key] / GIB for key in ("before", "after", "ours", "torch"))
        print(f"{row['groups']:30} {before:9.3f} {after:12.3f} {ours:10.3f} {torchs:12.3f}")
    print("\njob                                  layers        command     trace    events  peak GiB")
    for row in times:
        print(
            f"{row['job']:36} {row['layers']:12} {row['command_s']:8.1f} s {row['trace_s']:7.1f} s "
            f"{row['events']:9,} "
            f"{row['peak_bytes'] / GIB:9.3f}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
