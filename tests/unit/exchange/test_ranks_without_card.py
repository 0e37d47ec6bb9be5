"""Files that say how many processes start, and no card: the sheet is of a GPU of as many, as it is where a
card is named.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.questions.check import check_configuration_files
from memsheet.report.screen.checked import render_checked
from memsheet.report.shared.checked import Checked
from memsheet.report.shared.exit_codes import checked_exit_code
from memsheet.report.shared.look import Look

WHERE = {
    "nodes": None,
    "per_node": None,
    "host_memory": None,
    "cluster": None,
    "parameters": None,
    "plan": None,
}
ARGS = (
    "per_device_train_batch_size: 2\ngradient_accumulation_steps: 4\nbf16: "
    "true\ngradient_checkpointing: true\n"
)
MEGATRON = (
    "--seq-length 1024 --micro-batch-size 1 --global-batch-size 64 --bf16 --hidden-dropout 0 "
    "--attention-dropout 0"
)


def accelerate(processes: int, **more: Any) -> dict[str, str]:
    return {
        "accelerate.yaml": json.dumps({"mixed_precision": "bf16", "num_processes": processes, **more}),
        "args.yaml": ARGS,
    }


STARTED: dict[str, tuple[int, dict[str, str]]] = {
    "zero3": (8, accelerate(8, distributed_type="DEEPSPEED", deepspeed_config={"zero_stage": 3})),
    "zero2": (4, accelerate(4, distributed_type="DEEPSPEED", deepspeed_config={"zero_stage": 2})),
    "fsdp": (16, accelerate(16, distributed_type="FSDP", num_machines=2, fsdp_config={"fsdp_version": 2, "fsdp_reshard_after_forward": True})),
    "replicas": (8, accelerate(8, distributed_type="MULTI_GPU")),
    "one": (1, accelerate(1, distributed_type="NO")),
    "slurm": (16, {"job.slurm": (
        "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:8\nsrun torchrun --nnodes 2 --nproc_per_node 8 train.py --fsdp full_shard"
        " --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --bf16 True\n"
    )}),
    "megatron": (8, {"pretrain.sh": f"torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 2 --use-distributed-optimizer {MEGATRON}\n"}),
    "megatron replicas": (8, {"pretrain.sh": f"torchrun --nproc_per_node 4 --nnodes 2 pretrain_gpt.py --pipeline-model-parallel-size 2 {MEGATRON}\n"}),
}  # fmt: skip


def checked(folder: Path, files: dict[str, str], gpus: str | None) -> Checked:
    for name, text in files.items():
        (folder / name).write_text(text)
    return check_configuration_files(
        tuple(str(folder / name) for name in files),
        "llama-3.2-1b",
        {**WHERE, "gpus": gpus},
        {"seq_len": 1024},
    )


@pytest.mark.parametrize("job", STARTED)
def test_processes_of_the_files_are_the_gpus_of_the_sheet(job: str, tmp_path: Path) -> None:
    count, files = STARTED[job]
    bare, named = (checked(tmp_path, files, gpus).answer for gpus in (None, f"{count}xA100-80GB"))
    assert bare is not None
    assert named is not None
    assert bare.verdict is None
    assert bare.plan.mesh == named.plan.mesh
    assert (bare.plan.zero, bare.plan.training.global_batch, bare.plan.accumulation) == (
        named.plan.zero,
        named.plan.training.global_batch,
        named.plan.accumulation,
    )
    kept = [
        {component: int(size.value) for component, size in answer.sheets[0].states.items()}
        for answer in (bare, named)
    ]
    assert kept[0] == kept[1]


def test_the_card_is_asked_for(tmp_path: Path) -> None:
    assert any(
        "8 GPUs" in one and "--gpus" in one for one in checked(tmp_path, STARTED["zero3"][1], None).assumed
    )
    assert not any("--gpus" in one for one in checked(tmp_path, STARTED["zero3"][1], "8xA100-80GB").assumed)


OPEN_BATCH = {
    "accelerate fsdp": accelerate(
        8, distributed_type="FSDP", fsdp_config={"fsdp_version": 2, "fsdp_reshard_after_forward": True}
    ),
    "accelerate zero": accelerate(8, distributed_type="DEEPSPEED", deepspeed_config={"zero_stage": 3}),
    "replicas": accelerate(8, distributed_type="MULTI_GPU"),
    "deepspeed": {
        "ds.json": json.dumps(
            {
                "bf16": {"enabled": True},
                "zero_optimization": {"stage": 2},
                "train_micro_batch_size_per_gpu": "auto",
            }
        )
    },
    "deepspeed without a precision": {
        "ds.json": json.dumps({"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"})
    },
}


@pytest.mark.parametrize("job", OPEN_BATCH)
def test_an_open_batch_ranges_from_one_sequence_to_the_trainers_own(job: str, tmp_path: Path) -> None:
    files = {name: text for name, text in OPEN_BATCH[job].items() if name != "args.yaml"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    def needed(**said: Any) -> tuple[Result, int, int, int]:
        found = check_configuration_files(
            tuple(str(tmp_path / name) for name in files),
            "llama-3.2-1b",
            {**WHERE, "gpus": "8xA100-80GB"},
            {"seq_len": 1024, **said},
        )
        assert found.answer is not None
        assert found.answer.verdict is not None
        need = found.answer.verdict.device
        return found.answer.verdict.result, int(need.low), int(need.value), int(need.high)

    whole, one, eight = (needed(**said) for said in ({}, {"microbatch": 1}, {"microbatch": 8}))
    assert whole[0] is Result.UNCERTAIN
    assert 0 < whole[1] <= one[2] == whole[2]
    assert whole[3] == max(one[3], eight[3]) > one[3]
    if "without" not in job:
        assert whole[1] == one[1]


@pytest.mark.parametrize("gpus", ["1xT4", "1xA100-80GB"])
def test_a_batch_of_an_argument_nobody_sets_is_at_least_one_sequence(gpus: str, tmp_path: Path) -> None:
    (tmp_path / "tune.py").write_text(
        "import argparse\nfrom transformers import AutoModelForCausalLM, TrainingArguments\np = "
        "argparse.ArgumentParser()\n"
        "p.add_argument('--bs', type=int)\na = p.parse_args()\nmodel = "
        "AutoModelForCausalLM.from_pretrained('meta-llama/Llama-3.2-1B')\n"
        "args = TrainingArguments('out', per_device_train_batch_size=a.bs, bf16=True)\n"
    )
    lows = []
    for said in ({}, {"microbatch": 1}):
        found = check_configuration_files(
            (str(tmp_path / "tune.py"),), "llama-3.2-1b", {**WHERE, "gpus": gpus}, {"seq_len": 512, **said}
        )
        assert found.answer is not None
        assert found.answer.verdict is not None
        assert bool(said) or found.result is not Result.FITS
        lows.append(int(found.answer.verdict.device.low))
    assert lows[0] == lows[1] > 0


@pytest.mark.parametrize(("degrees", "ranks"), [("", 4), ("--tensor-model-parallel-size 2", 4), ("--pipeline-model-parallel-size 2", 8)])  # fmt: skip
def test_experts_are_dealt_to_as_few_ranks_as_they_need(degrees: str, ranks: int, tmp_path: Path) -> None:
    """Where a launcher of the cluster's own starts the processes and nothing says how many."""
    script = (
        "python pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 8 --num-experts 16 "
        "--moe-router-topk 2 --moe-token-dispatcher-type alltoall --expert-model-parallel-size 4 --bf16 "
        "--expert-tensor-parallel-size 1 --seq-length 1024 --micro-batch-size 1 --use-distributed-optimizer "
        f"--vocab-size 32000 --sequence-parallel {degrees}\n"
    )
    (tmp_path / "train.sh").write_text(script)
    found = check_configuration_files((str(tmp_path / "train.sh"),), None, {**WHERE, "gpus": None})
    assert found.answer is not None, found.why_not
    mesh = found.answer.plan.mesh
    assert mesh.dp_shard * mesh.dp_replicate * mesh.tp * mesh.pp == ranks


@pytest.mark.parametrize("gpus", ["1xH100-80GB", "8xH100-80GB"])
def test_a_model_that_the_usual_engine_does_not_train_is_whole_on_each(gpus: str, tmp_path: Path) -> None:
    """Where nobody says what divides it."""
    script = (
        "python3 -m app.main --pretrained_model t5-base --train --epochs 3 --batch_size 2 --max_length 512\n"
    )
    (tmp_path / "train.sh").write_text(script)
    found = check_configuration_files((str(tmp_path / "train.sh"),), None, {**WHERE, "gpus": gpus})
    assert found.answer is not None, found.why_not
    assert (found.answer.plan.zero, found.answer.plan.mesh.dp_replicate) == (0, int(gpus[0]))
    assert found.result is Result.UNCERTAIN


# ---- more ranks than the GPUs that are named --------------------

SERVE = "vllm serve Qwen/Qwen3-8B"
MODEL_SIZES = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --max-position-embeddings 1024 --tokenizer-type NullTokenizer --vocab-size 1000"
)  # fmt: skip
RANKS_ABOVE = {
    f"{SERVE} -tp 4": (4, 1), f"{SERVE} -tp 2 -pp 2": (4, 2), f"{SERVE} -tp 2 --data-parallel-size 2": (4, 3),
    "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 8": (8, 4),
    f"torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 8 {MODEL_SIZES} {MEGATRON}": (8, 4),
    f"{SERVE} -tp 8 --nnodes 2 --node-rank 0": (8, 2),
}  # fmt: skip


@pytest.mark.parametrize("command", RANKS_ABOVE)
def test_more_ranks_than_named_gpus_do_not_start(tmp_path: Path, command: str) -> None:
    """However well they fit on as many as they are for, which the sheet is of."""
    ranks, named = RANKS_ABOVE[command]
    (tmp_path / "run.sh").write_text(f"{command}\n")
    few = memsheet.check(tmp_path / "run.sh", gpus=f"{named}xH100-80GB")
    assert [rule.id for rule, found in few.mistakes if found.stops] == ["ranks-above-named-cards"]
    assert (few.result, checked_exit_code(few), few.cards_words) == (Result.DOES_NOT_FIT, 10, "")
    assert few.answer
    assert few.answer.cluster
    assert few.answer.cluster.count == ranks
    assert "DOES NOT START" in render_checked(few, Look()).splitlines()[0]
    for gpus in (f"{ranks}xH100-80GB", "H100-80GB"):
        enough = memsheet.check(tmp_path / "run.sh", gpus=gpus)
        assert not enough.stops
        assert enough.answer
        assert enough.answer.cluster
        assert enough.answer.cluster.count == ranks


@pytest.mark.parametrize(
    ("command", "nodes"),
    [(f"{SERVE} -tp 8 --nnodes 2", 2), (f"torchrun --nnodes 4 --nproc_per_node 2 pretrain_gpt.py --tensor-model-parallel-size 8 {MODEL_SIZES} {MEGATRON}", 4)],
)  # fmt: skip
def test_the_gpus_of_one_of_the_nodes_that_files_say_are_told(
    tmp_path: Path, command: str, nodes: int
) -> None:
    (tmp_path / "run.sh").write_text(f"{command}\n")
    found = memsheet.check(tmp_path / "run.sh", gpus=f"{8 // nodes}xH100-80GB")
    assert not found.stops
    assert f"one of the {nodes} nodes" in render_checked(found, Look()).splitlines()[0]
    assert memsheet.check(tmp_path / "run.sh", gpus="1xH100-80GB").stops


@pytest.mark.parametrize(
    ("more", "several"),
    [
        ("#SBATCH -N 2\n", True), ("ray start --head\n", True), ("# kind: RayService\n", True), ("#SBATCH --nodes=4\n", True),
        ("", False), ("#SBATCH -N 1\n", False), ("# the nodes are busy\n", False), ("export NNODES=1\n", False),
    ],
)  # fmt: skip
def test_where_files_start_several_machines_the_named_gpus_may_be_ones(
    tmp_path: Path, more: str, several: bool
) -> None:
    (tmp_path / "run.sh").write_text(f"#!/bin/bash\n{more}{SERVE} -tp 4 -pp 2\n")
    found = memsheet.check(tmp_path / "run.sh", gpus="4xH100-80GB")
    assert found.stops is not several
    assert ("one of 2 nodes" in found.cards_words) is several


@pytest.mark.parametrize(("started", "named"), [(2, 8), (8, 2), (4, 4)])
def test_a_training_on_other_cards_than_its_processes_says_so_first(
    tmp_path: Path, started: int, named: int
) -> None:
    (tmp_path / "run.sh").write_text(
        f"torchrun --nproc_per_node {started} train.py --model_name_or_path Qwen/Qwen2.5-0.5B "
        "--per_device_train_batch_size 1 --model_max_length 512 --bf16 --gradient_checkpointing\n"
    )
    found = memsheet.check(tmp_path / "run.sh", gpus=f"{named}xH100-80GB")
    assert found.answer is not None
    lines = render_checked(found, Look()).splitlines()
    assert (f"starts {started} processes" in lines[0]) is (started != named)
