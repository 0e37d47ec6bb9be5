"""What an engine refuses stands above the verdict, and its exit code is that of a job that does not run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.cli import main
from memsheet.plan.plan import Schedule
from memsheet.report.shared.checked import Checked
from memsheet.report.shared.exit_codes import checked_exit_code

DS = {"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}
TRAINER = """from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B", torch_dtype="bfloat16"{loads})
args = TrainingArguments(output_dir="o", per_device_train_batch_size=1, bf16=True, gradient_checkpointing=True)
Trainer(model=model, args=args).train()
"""
ARGS = "model_name_or_path: meta-llama/Llama-3.2-1B\nper_device_train_batch_size: 1\nbf16: true\n"
FSDP = """distributed_type: FSDP
num_processes: 8
mixed_precision: bf16
fsdp_config:
  fsdp_version: 2
  fsdp_activation_checkpointing: {}
"""


def checked(folder: Path, files: dict[str, str], gpus: str = "8xA100-80GB", **options: Any) -> Checked:
    for name, text in files.items():
        (folder / name).write_text(text)
    return memsheet.check(*(str(folder / name) for name in files), gpus=gpus, **options)


def stops(found: Checked) -> list[str]:
    return [rule.id for rule, one in found.mistakes if one.stops]


def deepspeed(folder: Path, **more: Any) -> Checked:
    return checked(folder, {"ds.json": json.dumps({**DS, **more})}, model="llama-3.2-1b", seq_len=512)


def test_a_batch_that_is_no_product_stops_where_the_ranks_are_known(tmp_path: Path) -> None:
    whole = {"train_batch_size": 128, "gradient_accumulation_steps": 4}
    assert not stops(deepspeed(tmp_path, **whole))
    found = deepspeed(tmp_path, **{**whole, "train_batch_size": 64})
    assert (stops(found), checked_exit_code(found)) == (["batch-product"], 10)


@pytest.mark.parametrize(
    "more",
    [
        {"zero_optimization": {"stage": 3, "stage3_max_live_params": 1e9}},
        {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_mem": True}}},
        {"bf16": {"enable": True}},
    ],
)
def test_a_key_that_no_release_takes_stops(more: dict[str, Any], tmp_path: Path) -> None:
    found = deepspeed(tmp_path, **more)
    assert (stops(found), checked_exit_code(found)) == (["unknown-key"], 10)


def test_a_key_that_older_releases_ignore_leaves_a_verdict_open(tmp_path: Path) -> None:
    copied = {"bf16": {"enabled": True, "loss_scale": 0}}
    found = deepspeed(tmp_path, **copied)
    assert (stops(found), checked_exit_code(found)) == ([], 11)
    assert "before 0.17.1 ignore it" in found.doubt
    ds = {"ds.json": json.dumps({**DS, **copied})}
    newer, older = (
        checked(tmp_path, ds, model="llama-3.2-1b", seq_len=512, engine_version=release)
        for release in ("0.18.0", "0.16.0")
    )
    assert (stops(newer), checked_exit_code(older)) == (["unknown-key"], 0)


def test_a_key_that_is_not_heard_stands_above_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ds = {**DS, "zero_optimisation": {"stage": 3}}
    del ds["zero_optimization"]
    (tmp_path / "ds.json").write_text(json.dumps(ds))
    main(
        [
            "check",
            str(tmp_path / "ds.json"),
            "--model",
            "llama-3.2-1b",
            "--gpus",
            "8xA100-80GB",
            "--seq-len",
            "512",
        ]
    )
    head = capsys.readouterr().out.partition("train llama")[0]
    assert "zero_optimisation.stage" in head
    assert "zero_optimization.stage?" in head


@pytest.mark.parametrize(("own", "sure"), [("4", False), ("8", True)])
def test_settings_that_mismatch_the_trainers_stop(own: str, sure: bool, tmp_path: Path) -> None:
    args = ARGS.replace("size: 1", f"size: {own}") + "deepspeed: ds.json\n"
    found = checked(tmp_path, {"ds.json": json.dumps(DS), "args.yaml": args}, seq_len=512)
    assert (stops(found) == ["files-disagree"]) is sure


@pytest.mark.parametrize("trainers", [True, False])
@pytest.mark.parametrize("launchers", [True, False])
def test_recompute_of_the_launcher_and_of_the_trainer_stop(
    trainers: bool, launchers: bool, tmp_path: Path
) -> None:
    args = f"{ARGS}gradient_checkpointing: {str(trainers).lower()}\n"
    files = {"acc.yaml": FSDP.format(str(launchers).lower()), "args.yaml": args}
    found = checked(tmp_path, files, seq_len=512)
    assert (stops(found) == ["recomputes-twice"]) is (trainers and launchers)


@pytest.mark.parametrize(("held", "code"), [("true", 10), ("false", 0), (None, 11)])
def test_the_file_that_fsdp_config_names_is_read(
    held: str | None, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(TRAINER.format(loads="").replace("TrainingArguments(", "parsed("))
    if held:
        (tmp_path / "fsdp.json").write_text(f'{{"fsdp_version": 2, "activation_checkpointing": {held}}}')
    args = f"{ARGS}gradient_checkpointing: true\nfsdp: full_shard auto_wrap\nfsdp_config: fsdp.json\n"
    monkeypatch.chdir(tmp_path)
    Path("args.yaml").write_text(args)
    found = memsheet.check("args.yaml", gpus="8xA100-80GB", seq_len=512)
    assert checked_exit_code(found) == code
    assert ("fsdp_config" in found.doubt) is (held is None)


@pytest.mark.parametrize(("maps", "launch", "refused"), [
    (', device_map="auto"', "torchrun --nproc_per_node 2", True),
    (', device_map="sequential"', "accelerate launch --num_processes 2", True),
    (', device_map={"": 0}', "torchrun --nproc_per_node 2", False),
    (', device_map="auto"', "python", False),
    (', device_map="auto"', "torchrun --nproc_per_node 1", False),
    (', device_map="auto"', "ACCELERATE_BYPASS_DEVICE_MAP=true torchrun --nproc_per_node 2", False),
])  # fmt: skip
def test_layers_that_are_spread_are_trained_by_one_process(
    maps: str, launch: str, refused: bool, tmp_path: Path
) -> None:
    files = {"run.sh": f"{launch} train.py\n", "train.py": TRAINER.format(loads=maps)}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = memsheet.check(str(tmp_path / "run.sh"), gpus="2xA100-80GB", seq_len=512)
    assert ("spread-over-ranks" in stops(found)) is refused


def test_what_one_process_spreads_is_no_whole_copy_on_each(tmp_path: Path) -> None:
    adapters = (
        "from peft import LoraConfig, get_peft_model\nmodel = get_peft_model(model, LoraConfig(r=16))\nargs ="
    )

    def needs(loads: str) -> Checked:
        text = TRAINER.format(loads=loads).replace("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-14B")
        (tmp_path / "train.py").write_text(text.replace("args =", adapters, 1))
        return memsheet.check(str(tmp_path / "train.py"), gpus="2xRTX4090", seq_len=512)

    spread, copies = needs(', device_map="auto"'), needs("")
    assert spread.answer is not None
    assert copies.answer is not None
    assert spread.answer.verdict is not None
    assert copies.answer.verdict is not None
    mine, whole = spread.answer.verdict.device, copies.answer.verdict.device
    states = 14_768_307_200 * 2
    assert whole.value - mine.value > states // 4
    assert mine.value > states // 2
    assert spread.answer.plan.schedule is Schedule.NAIVE
    assert len(spread.answer.sheets) == 2
    assert any("one process spreads the layers" in words for words in spread.assumed)
    for loads in (', device_map="sequential"', ', device_map="auto", max_memory={0: "8GiB", 1: "22GiB"}'):
        other = needs(loads)  # a map that is not modelled
        assert other.result is Result.UNCERTAIN
        assert "one process spreads the layers" in other.doubt


@pytest.mark.parametrize(("start", "cards", "spread"), [
    ("CUDA_VISIBLE_DEVICES=0,1 python", 2, True), ("env CUDA_VISIBLE_DEVICES=0,1 python", 2, True),
    ("export CUDA_VISIBLE_DEVICES=0,1,2,3\npython", 4, True), ("HIP_VISIBLE_DEVICES=1,2 python3 -u", 2, True),
    ("CUDA_VISIBLE_DEVICES=0 python", 1, False), ("python", 4, True), ("CUDA_VISIBLE_DEVICES=0,1 mpirun -np 2 python", 4, False),
])  # fmt: skip
def test_visible_cards_are_those_of_one_process(start: str, cards: int, spread: bool, tmp_path: Path) -> None:
    files = {"run.sh": f"{start} train.py\n", "train.py": TRAINER.format(loads=', device_map="auto"')}
    found = checked(tmp_path, files, "4xA100-80GB", seq_len=512)
    assert found.answer is not None
    assert found.answer.cluster is not None
    assert found.answer.cluster.count == cards
    assert (found.answer.plan.schedule is Schedule.NAIVE) is spread
    refused = "mpirun" in start
    assert ("spread-over-ranks" in stops(found)) is refused
    assert any("takes no more of 4xA100-80GB" in words for words in found.assumed) is (cards < 4)


_HEADER = "#!/bin/bash\n#SBATCH --nodes={}\n#SBATCH --gres=gpu:a100:2\n#SBATCH {}\n{} train.py\n"


@pytest.mark.parametrize(("text", "spread"), [
    (_HEADER.format(1, "--ntasks=1", "python"), True), (_HEADER.format(1, "--ntasks=1", "srun python"), True),
    (_HEADER.format(1, "--mem=64G", "srun -n1 python"), True), (_HEADER.format(1, "--ntasks=2", "python"), True),
    (_HEADER.format(1, "--ntasks-per-node=2", "srun python"), False), (_HEADER.format(2, "--ntasks=1", "python"), False),
    (_HEADER.format(1, "--mem=64G", "srun --ntasks=$N python"), False), (_HEADER.format(1, "--mem=64G", "torchrun --nproc_per_node 2"), False),
    (_HEADER.format(1, "--ntasks=1", "accelerate launch --num_processes 1"), True),
    ("accelerate launch --num_processes 1 --mixed_precision bf16 train.py\n", True), ("accelerate launch train.py\n", False),
    ("accelerate launch --num_processes 1 --gpu_ids 0 train.py\n", False), ("accelerate launch --num_processes 2 train.py\n", False),
    ("CUDA_VISIBLE_DEVICES=0 accelerate launch --num_processes 1 train.py\n", False),
])  # fmt: skip
def test_what_starts_one_process_lets_it_spread_its_layers(text: str, spread: bool, tmp_path: Path) -> None:
    loads = TRAINER.format(loads=', device_map="auto"')
    name = "job.sbatch" if "#SBATCH" in text else "run.sh"
    for at, held in ((name, text), ("train.py", loads)):
        (tmp_path / at).write_text(held)
    found = memsheet.check(
        tmp_path / name, gpus="4xA100-80GB" if "nodes=2" in text else "2xA100-80GB", seq_len=512
    )
    assert found.answer is not None
    assert (found.answer.plan.schedule is Schedule.NAIVE) is spread
    if spread:
        assert found.answer.cluster is not None
        assert found.answer.cluster.count == 2
        assert found.result is Result.FITS


@pytest.mark.parametrize(("seen", "cards"), [("0", 1), ("0,1", 2), ("0,1,2,3,4,5,6,7", 8)])
def test_a_command_that_starts_a_process_on_each_visible_card_takes_no_other(
    seen: str, cards: int, tmp_path: Path
) -> None:
    command = (
        f"CUDA_VISIBLE_DEVICES={seen} llamafactory-cli train --model_name_or_path Qwen/Qwen3-8B --stage sft "
        "--do_train true --finetuning_type lora --cutoff_len 512 --bf16 true --output_dir out\n"
    )
    found = checked(tmp_path, {"run.sh": command}, "8xA100-80GB")
    assert found.answer is not None
    assert found.answer.cluster is not None
    assert found.answer.cluster.count == cards


@pytest.mark.parametrize(("card", "code"), [("T4", 10), ("L4", 0)])
def test_an_attention_that_the_card_has_not_stops(card: str, code: int, tmp_path: Path) -> None:
    loads = ', attn_implementation="flash_attention_2"'
    text = TRAINER.format(loads=loads).replace("Llama-3.1-8B", "Llama-3.2-1B")
    found = checked(tmp_path, {"train.py": text}, f"8x{card}", seq_len=128)
    assert checked_exit_code(found) == code
    assert (stops(found) == ["engine-refuses"]) is (code == 10)
    assert not any("compute capability" in line for line in found.why_not)


@pytest.mark.parametrize(("release", "code"), [("0.11.0", 10), ("0.28.0", 11), (None, 11), ("0.33.0", 0)])
def test_experts_that_are_cut_inside_a_block_load_by_release(
    release: str | None, code: int, tmp_path: Path
) -> None:
    command = "vllm serve Qwen/Qwen3-235B-A22B-Instruct-2507-FP8 -tp {} --max-model-len 32768\n"
    options = {"engine_version": release} if release else {}
    found = checked(tmp_path, {"serve.sh": command.format(8)}, "8xH200", **options)
    assert checked_exit_code(found) == code
    assert checked_exit_code(checked(tmp_path, {"serve.sh": command.format(4)}, "4xH200", **options)) == 0


COMPOSE = """services:
  chat:
    image: vllm/vllm-openai:v0.10.2
    command: --model Qwen/Qwen3-8B --max-model-len 8192 --gpu-memory-utilization 0.6
    deploy: {{resources: {{reservations: {{devices: [{{driver: nvidia, device_ids: ["0"], capabilities: [gpu]}}]}}}}}}
  embed:
    image: vllm/vllm-openai:v0.10.2
    command: --model BAAI/bge-m3 --gpu-memory-utilization {share}
    deploy: {{resources: {{reservations: {{devices: [{{driver: nvidia, device_ids: ["{card}"], capabilities: [gpu]}}]}}}}}}
"""


@pytest.mark.parametrize(("share", "card", "code"), [("0.5", "0", 11), ("0.3", "0", 0), ("0.5", "1", 0)])
def test_shares_of_one_card_are_added(share: str, card: str, code: int, tmp_path: Path) -> None:
    """Which server starts first is open, and an embedder makes no pool of its share."""
    (tmp_path / "compose.yml").write_text(COMPOSE.format(share=share, card=card))
    assert main(["check", str(tmp_path / "compose.yml"), "--gpus", "1xA100-80GB", "--json"]) == code


EIGHT = """base_model: Qwen/Qwen3-8B
sequence_len: 2048
micro_batch_size: 1
gradient_accumulation_steps: 1
optimizer: {optimizer}
bf16: true
gradient_checkpointing: true
datasets: [{{path: tatsu-lab/alpaca, type: alpaca}}]
fsdp_version: {version}
fsdp_config:
  auto_wrap_policy: TRANSFORMER_BASED_WRAP
  transformer_layer_cls_to_wrap: Qwen3DecoderLayer
  offload_params: {offload}
"""


@pytest.mark.parametrize(
    ("optimizer", "version", "offload", "stopped"),
    [
        ("adamw_bnb_8bit", 2, "false", True), ("adamw_8bit", 2, "false", True), ("adamw_torch_8bit", 2, "false", False), ("adamw_torch_fused", 2, "false", False),
        ("adamw_bnb_8bit", 1, "false", False), ("adamw_bnb_8bit", 1, "true", True), ("adamw_torch_fused", 1, "true", False),
    ],
)  # fmt: skip
def test_axolotl_refuses_eight_bit_optimizers_that_fsdp_cannot_divide(
    optimizer: str, version: int, offload: str, stopped: bool, tmp_path: Path
) -> None:
    text = EIGHT.format(optimizer=optimizer, version=version, offload=offload)
    found = checked(tmp_path, {"a.yaml": text}, "8xH100-80GB")
    assert (len(stops(found)) == 1) is stopped
    assert (checked_exit_code(found) == 10) is stopped


ACCELERATE = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_processes: 8
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
"""
SHARDED_TRAINER = """model_name_or_path: Qwen/Qwen3-8B
bf16: true
gradient_checkpointing: true
per_device_train_batch_size: 1
optim: {optim}
"""


@pytest.mark.parametrize(
    ("optim", "stopped"),
    [("adamw_bnb_8bit", True), ("adamw_8bit", True), ("paged_adamw_8bit", True), ("lion_8bit", True), ("adamw_torch_8bit", False)],
)  # fmt: skip
def test_bitsandbytes_stops_at_the_first_step_where_parameters_are_dtensors(
    optim: str, stopped: bool, tmp_path: Path
) -> None:
    files = {"fsdp.yaml": ACCELERATE, "args.yaml": SHARDED_TRAINER.format(optim=optim)}
    found = checked(tmp_path, files, "8xH100-80GB", seq_len=1024)
    assert stops(found) == (["engine-refuses"] if stopped else [])
    assert found.answer is not None
    assert (checked_exit_code(found) == 10) is stopped


def test_which_fsdp_divides_states_is_no_stop_where_the_release_decides(tmp_path: Path) -> None:
    args = SHARDED_TRAINER.format(optim="adamw_bnb_8bit") + "fsdp: full_shard auto_wrap\n"
    found = checked(tmp_path, {"args.yaml": args}, "8xH100-80GB", seq_len=1024)
    assert not stops(found)
    assert checked_exit_code(found) == 11
