"""Megatron-LM's flags: what is written, what its own definitions take, and what is read of other people's
scripts.
"""

import argparse
import re
import shlex
from typing import Any

import pytest

from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.exchange import find_format
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.formats.megatron.multimodal import UNHELD
from memsheet.exchange.plan_files import engine_differences, write_format_files
from memsheet.exchange.shared.megatron_flags import OF_DEEPSPEED, SWITCHES, VALUED
from memsheet.guard import parse_json, parse_yaml

PARSERS = {"json": parse_json, "yaml": parse_yaml}
ASKED: dict[str, Any] = {
    "task": "train", "engine": "megatron", "zero": 1, "microbatch": 2, "global_batch": 64, "seq_len": 512, "mesh.dp_replicate": 1,
    "mesh.dp_shard": 2, "mesh.tp": 4, "mesh.pp": 1, "mesh.vpp": 1, "mesh.cp": 1, "mesh.ep": 1, "mesh.etp": 1, "sequence_parallel": True,
    "vocab_multiple": 512, "precision.parameters": "bf16", "precision.compute": "bf16", "precision.gradients": "fp32",
    "precision.reduce": "fp32", "precision.master_weights": "fp32", "precision.moments": "fp32", "optimizer.name": "adamw",
    "optimizer.implementation": "distributed", "attention": "flash", "loss": "plain", "recompute.mode": "none", "dropout": 0.0,
    "@gpus": 8, "@nodes": 1, "@per_node": 8, "@accumulation": 16, "@model": "m",
}  # fmt: skip
PIPED = {
    "mesh.tp": 1,
    "mesh.pp": 4,
    "mesh.vpp": 2,
    "schedule": "interleaved",
    "sequence_parallel": False,
    "vocab_multiple": 128,
}
# megatron/training/arguments.py of 23e00ed, lines beside
TYPES: dict[str, type] = {
    "--tensor-model-parallel-size": int, "--pipeline-model-parallel-size": int, "--context-parallel-size": int,  # 2319, 2321, 2455
    "--num-virtual-stages-per-pipeline-rank": int, "--expert-model-parallel-size": int, "--expert-tensor-parallel-size": int,  # 2345, 2777
    "--num-distributed-optimizer-instances": int, "--micro-batch-size": int, "--global-batch-size": int, "--seq-length": int,  # 2447, 1746
    "--make-vocab-size-divisible-by": int, "--recompute-num-layers": int, "--hidden-dropout": float, "--attention-dropout": float,  # 1476
    "--moe-expert-capacity-factor": float,  # 2880
}  # fmt: skip
CHOICES = {
    "--optimizer": ("adam", "sgd"), "--recompute-granularity": ("full", "selective"), "--recompute-method": ("uniform", "block"),  # 1969, 1782
    "--attention-backend": ("flash", "fused", "unfused", "local", "auto"), "--cross-entropy-fusion-impl": ("native", "te"),  # 1426, 1957
    "--fp8-format": ("e4m3", "hybrid"), "--fp8-recipe": ("tensorwise", "delayed", "mxfp8", "blockwise"),  # 1219, 1224
    "--moe-token-dispatcher-type": ("allgather", "alltoall", "flex"),  # 2869
}  # fmt: skip


def reading(text: str) -> Any:
    return read_text("a.sh", text, PARSERS)


def written(**changes: Any) -> str:
    form = find_format("megatron")
    return write_format_files(form, {**ASKED, **changes})[form.file]


def definitions() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name in sorted(SWITCHES):
        parser.add_argument(name, action="store_true")
    for name, kind in TYPES.items():
        parser.add_argument(name, type=kind)
    for name, choices in CHOICES.items():
        parser.add_argument(name, choices=choices)
    parser.add_argument("--recompute-modules", nargs="*")
    parser.add_argument("--cp-comm-type", nargs="+")
    return parser


CHANGES: list[dict[str, Any]] = [
    {}, PIPED, {"recompute.mode": "full"}, {"recompute.mode": "full", "recompute.layers": 3}, {"recompute.mode": "full", "recompute.every": 2},
    {"recompute.mode": "selective", "recompute.modules": ["core_attn", "mlp"]}, {"loss": "fused"}, {"fp8.recipe": "mxfp8"},
    {"zero": 0, "mesh.dp_shard": 1, "mesh.dp_replicate": 2}, {"precision.gradients": "bf16", "precision.reduce": "bf16"},
    {"mesh.cp": 2, "context_parallel_comm": "all_to_all", "mesh.dp_shard": 1}, {"attention": "eager"}, {"dropout": 0.1},
    {"mesh.ep": 2, "mesh.etp": 1, "moe.dispatch": "alltoall", "moe.capacity_factor": 1.5, "moe.pad_to_capacity": True},
]  # fmt: skip


@pytest.mark.parametrize("changes", CHANGES)
def test_its_own_definitions_take_what_is_written(changes: dict[str, Any]) -> None:
    made = written(**changes)
    words = shlex.split(made.replace("\\\n", " "), comments=True)
    start = next(at for at, word in enumerate(words) if word.endswith("pretrain_gpt.py}")) + 1
    taken = definitions().parse_args(words[start:-1])
    asked = {**ASKED, **changes}
    assert words[-1] == "$@"
    assert (taken.tensor_model_parallel_size, taken.micro_batch_size, taken.seq_length) == (
        asked["mesh.tp"],
        2,
        512,
    )
    assert taken.make_vocab_size_divisible_by * taken.tensor_model_parallel_size == asked["vocab_multiple"]
    assert (taken.use_distributed_optimizer, taken.bf16) == (asked["zero"] == 1, True)
    assert (taken.recompute_granularity or "none") == asked["recompute.mode"]
    found = reading(made)
    assert (found.form.name, found.unknown, found.unmodelled, found.problems) == ("megatron", (), (), ())
    assert {key: asked.get(key) for key in found.request if key not in ("@gpus", "@per_node", "@nodes")} | {
        "task": "train"
    } == {key: value for key, value in found.request.items() if key not in ("@gpus", "@per_node", "@nodes")}


def test_the_flags_are_switches_or_take_values() -> None:
    form = find_format("megatron")
    assert not SWITCHES & VALUED
    assert {
        at for at in (*form.unmodelled, *(key.at for key in form.keys)) if at.startswith("--")
    } <= SWITCHES | VALUED | OF_DEEPSPEED.keys() | UNHELD.keys() | {
        "--nnodes",
        "--nproc-per-node",
    }


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"engine": "fsdp2"}, "engine"), ({"recompute.mode": "full", "recompute.segments": 2}, "recompute.segments"),
        ({**PIPED, "recompute.mode": "full", "recompute.layers": 2}, "recompute.layers"), ({**PIPED, "schedule": "1f1b"}, "schedule"),
        ({**PIPED, "layers_per_stage": [1, 1, 1, 1, 2, 2, 2, 2]}, "layers_per_stage"), ({"optimizer.name": "muon"}, "optimizer.name"),
        ({"optimizer.implementation": "apex"}, "optimizer.implementation"), ({"adapter.rank": 8}, "adapter.rank"), ({"zero": 3}, "zero"),
        ({"precision.moments": "bf16"}, "precision.moments"), ({"compile": True}, "compile"), ({"attention": "sdpa"}, "attention"),
        ({"fp8.recipe": "mxfp8", "fp8.param_storage": True}, "fp8.param_storage"), ({"vocab_multiple": 130}, "vocab_multiple"),
        ({"mesh.tp": 1, "vocab_multiple": 128}, "sequence_parallel"), ({"offload.optimizer": 1}, "offload.optimizer"),
    ],
)  # fmt: skip
def test_what_it_cannot_do_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as refused:
        written(**changes)
    assert field in {problem.field for problem in refused.value.problems}


def test_one_loss_by_two_names_is_told() -> None:
    form = find_format("megatron")
    assert ["loss" in line for line in engine_differences(form, {**ASKED, "loss": "vocab_parallel"})] == [
        True
    ]
    assert list(engine_differences(form, ASKED)) == []


SCRIPT = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=2
X=recompute
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr $MASTER_ADDR
)
MODEL_ARGS=(
    --num-layers 32
    --seq-length 2048
    --attention-backend auto # Can use (flash/fused/unfused/local)
)
TRAINING_ARGS=(--micro-batch-size 1 --global-batch-size 1536 --rampup-batch-size 16 16 5859375
    --bf16
    --lr 6.0e-5)
OPTIONS=" \\
    --tensor-model-parallel-size 8 \\
    --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 4 --sequence-parallel "
if [ -n "$X" ]; then
  TRAINING_ARGS+=(--recompute-activations)
fi
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
    ${MODEL_ARGS[@]} \\
    ${TRAINING_ARGS[@]} $OPTIONS ${MORE[@]} "$@"
"""  # the shape of NVIDIA/Megatron-LM 23e00ed examples/gpt3/train_gpt3_175b_distributed.sh


def test_a_script_of_arrays_and_variables() -> None:
    found = reading(SCRIPT)
    assert (found.form.name, found.unknown, found.unmodelled, found.problems) == (
        "megatron", (), (("further arguments", "${MORE[@]}"),), (),
    )  # fmt: skip
    wanted = {
        "engine": "megatron", "@gpus": 16, "@nodes": 2, "seq_len": 2048, "microbatch": 1, "global_batch": 1536, "mesh.tp": 8, "mesh.pp": 2,
        "mesh.vpp": 4, "schedule": "interleaved", "sequence_parallel": True, "precision.gradients": "fp32", "vocab_multiple": 1024, "zero": 0,
        "recompute.mode": "selective", "recompute.modules": ["core_attn"], "dropout": 0.1,
    }  # fmt: skip
    assert {key: found.request.get(key) for key in wanted} == wanted
    assert found.values["--rampup-batch-size"] == [16, 16, 5859375]


def test_a_launch_in_a_string() -> None:
    found = reading(
        'options="--use-distributed-optimizer --bf16 --micro-batch-size 4"\nrun="python -u '
        '${D}/pretrain_gpt.py ${options}"\nsrun -l sh -c "$run"\n'
    )
    assert (found.request["zero"], found.request["microbatch"], found.unknown) == (1, 4, ())


def test_a_line_of_flags_with_the_engines_defaults() -> None:
    found = reading(
        "--micro-batch-size 1 --seq-length 64 --tensor-model-parallel-size 2 --num-experts 8 "
        "--micro_batch_size 2"
    )
    assert found.request["precision.name"] == "fp32"
    assert (found.request["moe.dispatch"], found.request["mesh.etp"], found.request["@accumulation"]) == (
        "alltoall",
        2,
        1,
    )
    assert found.unknown == (("--micro_batch_size", "--micro-batch-size"),)


@pytest.mark.parametrize(
    ("flags", "at"),
    [
        ("--use-nccl-ub", "--use-nccl-ub"),
        ("--pipeline-model-parallel-layout 't|t'", "--pipeline-model-parallel-layout"), ("--transformer-impl local", "--transformer-impl"),
        ("--use-precision-aware-optimizer --exp-avg-dtype bf16", "--use-precision-aware-optimizer"), ("--use-torch-fsdp2", "--use-torch-fsdp2"),
    ],
)  # fmt: skip
def test_what_moves_bytes_and_is_not_accounted_is_told(flags: str, at: str) -> None:
    assert at in dict(reading(f"--micro-batch-size 1 {flags}").unmodelled)


@pytest.mark.parametrize(
    ("flags", "loss", "more"),
    [("", "plain", 0), ("--cross-entropy-loss-fusion", "plain", 4 * 1000 * 50),
     ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl native", "plain", 4 * 1000 * 50),
     ("--cross-entropy-loss-fusion --tensor-model-parallel-size 2", "plain", 4 * 1000 * 25),
     ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", "fused", 0)],
)  # fmt: skip
def test_the_native_fused_loss_is_the_unfused_one_compiled(flags: str, loss: str, more: int) -> None:
    found = reading(f"--micro-batch-size 1 --seq-length 1000 {flags}")
    assert found.request.get("loss", "plain") == loss
    moved = found.form.moves(found.values, {"@tokens": 1000, "@vocab": 50})
    assert sum(one.high_bytes for one in moved) == more
    assert not found.unmodelled


@pytest.mark.parametrize(
    "text",
    [
        "A=(" * 500,
        "--micro-batch-size",
        "A=$A\n$A --seq-length $A",
        "A='--x $A $A'\n$A",
        "--seq-length 1 2 3 $(",
    ],
)
def test_odd_scripts_are_read_or_refused(text: str) -> None:
    try:
        found = reading(text)
    except InputError:
        return
    assert found.form.name == "megatron"


def test_a_degree_in_a_variable_that_nobody_set_leaves_no_sure_verdict(tmp_path, capsys):
    script = tmp_path / "run.sh"
    flags = (
        "--tensor-model-parallel-size $TP --seq-length 512 --micro-batch-size 1 --global-batch-size 8 "
        "--bf16 --use-distributed-optimizer"
    )
    script.write_text(f"torchrun --nproc-per-node 8 pretrain_gpt.py {flags}\n")
    asked = ["check", str(script), "--model", "llama-tiny", "--gpus", "8xA100-80GB"]
    assert main(asked) == 11
    assert "a variable that nobody set" in " ".join(capsys.readouterr().out.split())
    script.write_text(f"TP=2\n{script.read_text()}")
    assert main(asked) == 0


def test_a_script_of_another_model_leaves_no_sure_verdict(tmp_path, capsys):
    script = tmp_path / "run.sh"
    flags = "--seq-length 512 --micro-batch-size 1 --global-batch-size 8 --bf16 --use-distributed-optimizer"
    asked = ["check", str(script), "--model", "llama-tiny", "--gpus", "8xA100-80GB"]
    for layers, code in ((4, 0), (40, 11)):
        script.write_text(
            f"torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers {layers} --hidden-size 256 {flags}\n"
        )
        assert main(asked) == code
    assert "--num-layers 40, and the model has 4" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("flags", "captured"),
    [
        ("--enable-cuda-graph", ["local", "full"]),
        ("--external-cuda-graph --cuda-graph-scope attn", ["transformer_engine", "attn"]),
        ("--cuda-graph-impl transformer_engine --cuda-graph-modules attn moe_router", ["transformer_engine", "attn", "moe_router"]),
        ("--cuda-graph-impl local --cuda-graph-modules attn,mlp", ["local", "attn", "mlp"]),
        ("--enable-cuda-graph --cuda-graph-scope full_iteration", ["full_iteration"]),
        ("--cuda-graph-impl full_iteration", ["full_iteration"]),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration_inference", None),
        ("--cuda-graph-impl none", None),
        ("", None),
    ],
)  # fmt: skip
def test_cuda_graphs_are_what_is_captured_and_by_whom(flags: str, captured: list[str] | None) -> None:
    found = reading(f"--micro-batch-size 1 {flags}")
    assert found.request.get("cuda_graphs") == captured
    assert not any("cuda-graph" in at for at, _ in (*found.unmodelled, *found.unknown))
    if captured is None or captured in (
        ["local", "full"],
        ["transformer_engine", "attn"],
        ["full_iteration"],
    ):
        back = written(cuda_graphs=captured or False)
        assert ("cuda-graph" in back) is (captured is not None)
        assert reading(back).request.get("cuda_graphs") == captured
    else:  # of later releases than the one that is written for
        with pytest.raises(InputError, match="cuda_graphs"):
            written(cuda_graphs=captured)


@pytest.mark.parametrize(
    ("flags", "zero"),
    [("--optimizer muon", 0), ("--optimizer muon --use-distributed-optimizer", 1), ("--optimizer dist_muon --muon-tp-mode blockwise", 1)],
)  # fmt: skip
def test_muon_deals_its_matrices_where_the_optimizer_is_distributed(flags: str, zero: int) -> None:
    found = reading(f"--micro-batch-size 1 {flags}")
    assert (found.request["optimizer.name"], found.request["zero"]) == ("muon", zero)
    assert not found.unknown


PLAIN = "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --vocab-size 50304 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 4 --bf16"  # fmt: skip


def test_flags_of_a_fork_with_underscores_are_read_and_told() -> None:
    fork = re.sub(r"(?<=[a-z])-(?=[a-z])", "_", PLAIN)
    plain, forked = (reading(f"torchrun --nproc-per-node 8 pretrain_gpt.py {text}") for text in (PLAIN, fork))
    assert forked.request == plain.request
    assert "fork" not in str(plain.unmodelled)
    assert "fork" in str(forked.unmodelled)


def test_arms_of_a_case_are_no_launch() -> None:
    arms = """
while [ "$1" ]; do
  case $1 in
    --micro-batch-size )
      M=$2
      ;;
    --seq-length) S=$2 ;;
  esac
done
"""
    assert reading(f"{arms}torchrun pretrain_gpt.py {PLAIN}").request["microbatch"] == 4


def test_an_empty_variable_is_no_value() -> None:
    text = f"E=\ntorchrun pretrain_gpt.py {PLAIN} --hidden-dropout 0.0 $E --attention-dropout 0.0 ${{E}}"
    assert reading(text).request["dropout"] == 0.0
