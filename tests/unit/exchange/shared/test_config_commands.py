"""Commands that train what a file says, with words over it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memsheet

AXOLOTL = (
    "base_model: NousResearch/Llama-3.2-1B\nsequence_len: 512\nmicro_batch_size: 1\nbf16: true\n"
    "gradient_accumulation_steps: 1\noptimizer: adamw_torch_fused\nflash_attention: true\n"
)
TUNE = (
    "model: {_component_: torchtune.models.llama3_1.llama3_1_8b}\n"
    "tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 512}\n"
    "checkpointer:\n  _component_: torchtune.training.FullModelHFCheckpointer\n"
    "  checkpoint_dir: /m/Llama-3.1-8B\n"
    "dataset: {_component_: torchtune.datasets.alpaca_dataset, packed: true}\n"
    "optimizer: {_component_: torch.optim.AdamW, fused: true}\nbatch_size: 2\ndtype: bf16\n"
    "loss: {_component_: torchtune.modules.loss.CEWithChunkedOutputLoss}\ngradient_accumulation_steps: 1\n"
)
RECIPE = (
    "model_name_or_path: Qwen/Qwen2.5-0.5B\ndtype: bfloat16\nmax_length: 512\npacking: true\n"
    "per_device_train_batch_size: 2\n"
)


def checked(folder: Path, command: str, said: str, gpus: str) -> Any:
    (folder / ".git").mkdir()
    (folder / "runs").mkdir()
    (folder / "recipes").mkdir()
    (folder / "recipes" / "job.yaml").write_text(said)
    (folder / "runs" / "run.sh").write_text(f"{command}\n")
    found = memsheet.check(folder / "runs" / "run.sh", gpus=gpus)
    assert found.answer is not None
    return found.answer


@pytest.mark.parametrize("file", ["recipes/job.yaml", "../recipes/job.yaml", "$ROOT/recipes/job.yaml"])
@pytest.mark.parametrize(
    "command",
    [
        "axolotl train {file} --micro-batch-size 4",
        "accelerate launch -m axolotl.cli.train {file} --micro_batch_size=4",
        "python -m axolotl.cli.train {file} --micro_batch_size 4",
        "axolotl train {file} --micro-batch-size 4 --launcher torchrun -- --nproc_per_node=2",
    ],
)
def test_axolotl_by_its_command_and_its_module(command: str, file: str, tmp_path: Path) -> None:
    found = checked(tmp_path, command.format(file=file), AXOLOTL, "2xA100-80GB")
    assert (found.model.name, found.plan.training.microbatch, found.plan.training.seq_len) == (
        "llama-3.2-1b",
        4,
        512,
    )


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        ("tune run --nproc_per_node 2 full_finetune_distributed --config {file} batch_size=1", 2),
        ("tune run full_finetune_single_device --config={file} batch_size=1", 1),
    ],
)
def test_torchtunes_command(command: str, ranks: int, tmp_path: Path) -> None:
    found = checked(tmp_path, command.format(file="recipes/job.yaml"), TUNE, "2xA100-80GB")
    assert (found.model.name, found.plan.training.microbatch, found.plan.loss.value) == (
        "llama-3.1-8b",
        1,
        "chunked",
    )
    assert found.plan.mesh.data_parallel == ranks


def test_trls_command_with_a_configuration_that_it_brings_along(tmp_path: Path) -> None:
    command = "trl sft --config recipes/job.yaml --accelerate_config zero3 --num_processes 2"
    plan = checked(tmp_path, command, RECIPE, "2xA100-80GB").plan
    assert (plan.engine, plan.zero, plan.mesh.dp_shard) == ("deepspeed", 3, 2)


def test_a_launcher_and_a_command_that_variables_hold(tmp_path: Path) -> None:
    command = (
        "MODEL=job\nCONFIG=recipes/$MODEL.yaml\n"
        'export LAUNCHER="ACCELERATE_LOG_LEVEL=info accelerate launch \\\n'
        '    --num_processes 2 "\nexport CMD="src/own/sft.py --config $CONFIG"\n'
        'srun bash -c "$LAUNCHER $CMD"'
    )
    found = checked(tmp_path, command, RECIPE, "2xA100-80GB")
    assert (found.model.name, found.plan.training.microbatch) == ("qwen2.5-0.5b", 2)


FACTORY = (
    "stage: sft\ndo_train: true\nmodel_name_or_path: Qwen/Qwen2.5-0.5B\nfinetuning_type: lora\n"
    "quantization_bit: 4\n"
    "template: qwen\ncutoff_len: 512\nper_device_train_batch_size: 2\nbf16: true\n"
)
RUNS = "from llamafactory.train.tuner import run_exp\n\nrun_exp()\n"


@pytest.mark.parametrize(
    ("script", "text", "read"),
    [
        ("src/train.py", RUNS, True), ("src/train.py", "print()\n", False),
        ("../LLaMA-Factory/src/train.py", "", True), ("../other/src/train.py", "", False),
    ],
)  # fmt: skip
def test_llama_factorys_script_takes_the_file_of_its_command(
    tmp_path: Path, script: str, text: str, read: bool
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "job.yaml").write_text(FACTORY)
    (tmp_path / "src" / "train.py").write_text(text)
    (tmp_path / "run.sh").write_text(f"torchrun --nproc_per_node 2 {script} job.yaml cutoff_len=256\n")
    found = memsheet.check(tmp_path / "run.sh", gpus="2xA100-80GB").answer
    assert (found is not None) is read
    if found is not None:
        assert (found.plan.training.microbatch, found.plan.training.seq_len) == (2, 256)
        assert found.plan.quantization is not None
