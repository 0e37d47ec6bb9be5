"""Run by test_run_ranks.py under torchrun, two processes: every engine of several ranks trains the same model
on the same words, beside a plain run of one process; and some are measured. Rank 0 writes what it finds as
JSON into the file that is named.

With the argument "traces", in one process: what a trace says of each rank of those.
"""

import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.tensor import DTensor

from memsheet.measure.ranks import answer_together, join_process_group
from memsheet.plan.document import plan_document
from memsheet.plan.plan import Schedule
from memsheet.plan.words import request_from
from memsheet.questions.measured import measured_sheet
from memsheet.resolve import resolve_request
from memsheet.run.train import build_trainer
from memsheet.timeline import sheet_of
from memsheet.trace.distributed_job import trace_rank
from memsheet.trace.job import How
from memsheet.trace.parent import read_answer

CONFIG = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS = {
    **CONFIG, "model_type": "qwen3_moe", "head_dim": 8, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2,
    "decoder_sparse_step": 1, "norm_topk_prob": True,
}  # fmt: skip
ROWS, LENGTH, STEPS, RATE = 4, 16, 6, 0.5
SGD = {"seq_len": LENGTH, "precision": "fp32", "optimizer": "sgd", "optimizer_implementation": "loop"}
ALONE = {**SGD, "engine": "transformers", "microbatch": ROWS}
SHARED = {**SGD, "engine": "fsdp2", "microbatch": ROWS // 2, "global_batch": ROWS}
COPIES = {**SGD, "engine": "transformers", "microbatch": ROWS // 2, "global_batch": ROWS}
PIECES = {**SGD, "engine": "transformers", "microbatch": 1, "global_batch": ROWS}
CASES = {
    "fsdp2": (SHARED, {"dp_shard": 2}, {}),
    "fsdp2 zero 2": ({**SHARED, "zero": 2}, {"dp_shard": 2}, {}),
    "fsdp2 recompute": ({**SHARED, "recompute": "full"}, {"dp_shard": 2}, {}),
    "fsdp2 accumulated": ({**SHARED, "microbatch": 1}, {"dp_shard": 2}, {}),
    "fsdp2 mixed": ({**SHARED, "precision": "fsdp2-mixed"}, {"dp_shard": 2}, {}),
    "fsdp2 replicated": (SHARED, {"dp_replicate": 2}, {}),
    "ddp": (COPIES, {"dp_replicate": 2}, {}),
    "ddp accumulated": ({**COPIES, "microbatch": 1}, {"dp_replicate": 2}, {}),
    "zero 1": (COPIES, {"dp_replicate": 2}, {"zero": 1}),
    "tensor": (ALONE, {"tp": 2}, {}),
    "tensor fsdp2": ({**SHARED, "microbatch": ROWS}, {"tp": 2}, {}),
    "gpipe": (PIECES, {"pp": 2}, {"schedule": Schedule.GPIPE}),
    "1f1b": (PIECES, {"pp": 2}, {"schedule": Schedule.ONE_F_ONE_B}),
    "1f1b fsdp2": ({**SHARED, "microbatch": 1}, {"pp": 2}, {"schedule": Schedule.ONE_F_ONE_B}),
    "interleaved": (PIECES, {"pp": 2, "vpp": 2}, {"schedule": Schedule.INTERLEAVED}),
    "experts": (SHARED, {"dp_shard": 2, "ep": 2}, {}),
}
CONFIGS = {"experts": EXPERTS}


def planned(short, mesh, more):
    """A plan of short options, the mesh and what else ``resolve`` may not model set by hand."""
    plan = resolve_request({**request_from(short), "task": "train"}, None, real=True).plan
    return replace(plan, mesh=replace(plan.mesh, **mesh), **more)


def words():
    torch.manual_seed(1)
    return torch.randint(0, CONFIG["vocab_size"], (ROWS, LENGTH))


def mine(plan, rank):
    """The rows of this rank: ranks of a data-parallel group have their own."""
    ids = words()
    share = ids.chunk(int(plan.mesh.data_parallel))[rank % int(plan.mesh.data_parallel)]
    return {"input_ids": share, "labels": share.clone()}


def whole(parameter):
    found = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
    return found.detach().clone()


def trained(config, plan, start, rank):
    """Losses of this rank by step, and where its parameters end; ``start``: where they begin."""
    losses, steps = [], []
    torch.manual_seed(0)
    micro = int(plan.accumulation)
    train = build_trainer(
        config, plan, "cpu", lambda _: None, micro, seen=lambda loss: losses.append(loss.item())
    )
    job = getattr(train, "job", None)
    models = job.models if job else [train.model]
    for model in models:
        if start:
            options = StateDictOptions(full_state_dict=True, strict=False)
            set_model_state_dict(
                model, {n: start[n].clone() for n, _ in model.named_parameters()}, options=options
            )
    begin = {name: whole(p) for model in models for name, p in model.named_parameters()}
    for group in (job or train).optimizer.param_groups:
        group["lr"] = RATE
    for _ in range(STEPS):
        losses.clear()
        train(mine(plan, rank))
        steps.append(sum(losses) if losses else None)
    return steps, begin, {name: whole(p) for model in models for name, p in model.named_parameters()}


def alone(config):
    """The plain run."""
    losses, begin, end = trained(config, planned(ALONE, {}, {}), None, 0)
    return {"losses": losses, "begin": begin, "end": end}


def compared(name, plain):
    """A case's losses beside the plain run's, and how far its parameters are from those, as a share of how
    far those have moved.
    """
    plan = planned(*CASES[name])
    steps, _, end = trained(CONFIGS.get(name, CONFIG), plan, plain["begin"], dist.get_rank())
    apart = max(
        ((end[n] - plain["end"][n]).norm() / (plain["end"][n] - plain["begin"][n]).norm()).item() for n in end
    )
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, {"losses": steps, "apart": apart, "names": sorted(end)})
    told = [each["losses"] for each in everyone if None not in each["losses"]]
    return {
        "losses": [sum(each) / len(told) for each in zip(*told, strict=True)], "apart": max(each["apart"] for each in everyone),
        "parameters": len({n for each in everyone for n in each["names"]}),
    }  # fmt: skip


# ---- measured ----------------------------------------------------------------------------------------------

LARGER = {
    **CONFIG,
    "hidden_size": 128,
    "intermediate_size": 384,
    "vocab_size": 256,
    "max_position_embeddings": 256,
}
LONG = {"seq_len": 128, "microbatch": 2}
MEASURED = {
    "fsdp2": ({**LONG, "engine": "fsdp2", "zero": 3}, {"dp_shard": 2}, {}),
    "ddp": ({**LONG, "engine": "transformers", "precision": "bf16-autocast"}, {"dp_replicate": 2}, {}),
    "zero 1": (
        {**LONG, "engine": "transformers", "precision": "bf16-autocast"},
        {"dp_replicate": 2},
        {"zero": 1},
    ),
    "tensor": ({**LONG, "engine": "fsdp2", "recompute": "full"}, {"tp": 2}, {}),
    "pipeline": (
        {**LONG, "engine": "transformers", "precision": "bf16-pure", "global_batch": 8},
        {"pp": 2},
        {"schedule": Schedule.ONE_F_ONE_B},
    ),
}


def described(sheet):
    return {
        instant.value: {
            f"{item.component.value}: {item.path}": item.at[instant].value
            for item in sheet.items
            if instant in item.at
        }
        for instant in sheet.instants
    }


def measured(name):
    """The items of each rank and instant."""
    plan = planned(*MEASURED[name])
    asked = {
        "config": LARGER,
        "plan": plan_document(plan),
        "device": "cpu",
        "steps": 1,
        "stages": plan.mesh.pp,
    }
    return [described(measured_sheet(run)) for run in read_answer(answer_together(asked))]


def traces():
    how = How(device="cpu", scratch=False)
    return {
        name: [described(sheet_of(trace_rank(LARGER, planned(*case), how, rank))) for rank in range(2)]
        for name, case in MEASURED.items()
    }


def main(file):
    warnings.simplefilter("ignore")
    join_process_group("cpu", 2, 60)
    torch.set_num_threads(1)
    plain = {name: alone(config) for name, config in (("", CONFIG), *CONFIGS.items())}
    found = {name: compared(name, plain[name if name in CONFIGS else ""]) for name in CASES}
    found |= {
        f"plain {name}".strip(): {"losses": run["losses"], "parameters": len(run["end"])}
        for name, run in plain.items()
    }
    found["measured"] = {name: measured(name) for name in MEASURED}
    if dist.get_rank() == 0:
        Path(file).write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1] == "traces":
        json.dump(traces(), sys.stdout)
    else:
        main(sys.argv[1])
