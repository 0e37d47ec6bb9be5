"""A settings file of people's own is read by its names: the same sheet as of a script that says the same, and
no sure verdict.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.errors import InputError

TRAINING: dict[str, Any] = {
    "per_device_train_batch_size": 2, "gradient_checkpointing": True, "bf16": True, "optim": "adamw_torch", "learning_rate": 1e-4, "num_train_epochs": 3,
}  # fmt: skip
OWN: dict[str, Any] = {
    "model": {"name": "Qwen/Qwen2.5-0.5B", "max_seq_length": 1024},
    "training": TRAINING,
    "data": {"path": "org/data", "max_length": 77},
}
LORA: dict[str, Any] = {**OWN, "lora": {"r": 16, "alpha": 32, "target_modules": ["q_proj", "v_proj"]}}
SCRIPT = """
import torch
from transformers import AutoModelForCausalLM, TrainingArguments
from peft import LoraConfig
from trl import SFTTrainer
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
args = TrainingArguments(output_dir="o", per_device_train_batch_size=2, gradient_checkpointing=True, bf16=True, optim="adamw_torch")
{lora}
SFTTrainer(model=model, args=args, max_seq_length=1024, {given}).train()
"""  # fmt: skip


def checked(folder: Path, tree: Any, name: str = "config.json") -> memsheet.Checked:
    (folder / name).write_text(tree if isinstance(tree, str) else json.dumps(tree))
    return memsheet.check(folder / name, gpus="1xH100-80GB")


def peak_of(found: memsheet.Checked) -> Any:
    assert found.answer is not None
    return found.answer.sheets[0].device.value


@pytest.mark.parametrize(
    ("own", "lora", "given"),
    [
        (OWN, "", ""),
        (LORA, "lora = LoraConfig(r=16, lora_alpha=32, target_modules=['q_proj', 'v_proj'])", "peft_config=lora"),
    ],
)  # fmt: skip
def test_it_is_the_sheet_of_a_script_of_the_same(tmp_path: Path, own: Any, lora: str, given: str) -> None:
    found = checked(tmp_path, own)
    assert found.result is Result.UNCERTAIN
    assert not found.stops
    assert "its own" in str(found.doubt) or "own file" in str(found.doubt)
    assert peak_of(found) == peak_of(checked(tmp_path, SCRIPT.format(lora=lora, given=given), "train.py"))


def test_answers_in_groups_are_taken_for_grpo(tmp_path: Path) -> None:
    found = checked(tmp_path, {**OWN, "training": {**TRAINING, "num_generations": 8}})
    named = checked(tmp_path, {**OWN, "method": "grpo", "training": {**TRAINING, "num_generations": 8}})
    assert peak_of(found) == peak_of(named)
    assert found.result is Result.UNCERTAIN


@pytest.mark.parametrize("named", [{"name": "a model of ours"}, {}])
def test_a_training_without_a_models_name_asks_for_it(tmp_path: Path, named: dict[str, str]) -> None:
    tree = {**OWN, "model": named, "dataset": {"config_name": "part-7b"}}
    assert "no model is named" in checked(tmp_path, tree).no_model


OTHER_NAMES = {
    "base_model": "Qwen/Qwen2.5-0.5B",
    "training": {"batch_size": 2, "lr": 1e-4, "epochs": 3, "use_gradient_checkpointing": True, "mixed_precision": "bf16", "optim": "adamw_torch"},
    "tokenizer": {"max_length": 1024},
    "evaluation": {"batch_size": 64, "max_seq_length": 9999},
}  # fmt: skip


def test_other_names_say_the_same(tmp_path: Path) -> None:
    assert peak_of(checked(tmp_path, OTHER_NAMES)) == peak_of(checked(tmp_path, OWN))


@pytest.mark.parametrize(
    "tree",
    [
        {**OWN, "training": {**TRAINING, "num_generations": 8}, "data": {"chosen_column": "better"}},
        {"model": {"name": "Qwen/Qwen2.5-0.5B"}, "training": {"epochs": 3, "lr": 1e-4}},
        {"model": {"name": "Qwen/Qwen2.5-0.5B"}, "evaluation": {"batch_size": 2, "lr": 1, "epochs": 2}},
        {**OWN, "training": {**TRAINING, "beta": 0.1}},
        {**OWN, "training": {**TRAINING, "max_prompt_length": 512}},
        {**OWN, "training": {**TRAINING, "algorithm": "reinforce++"}},
        {**OWN, "data": {"type": "preference"}},
        {**OWN, "method": "ppo"},
        {**OWN, "method": "dpo", "distillation": {"alpha": 0.5}},
        {**OWN, "method": "dpo", "second": {"loss_type": "kto"}},
        {**OWN, "method": "grpo", "critic": {"model_name": "Qwen/Qwen2.5-7B"}},
        {**OWN, "method": "grpo", "reward_model": "org/reward-7b"},
        {**OWN, "data": {"chosen_column": "better"}},
        {**OWN, "teacher": {"model_name": "Qwen/Qwen2.5-72B"}},
        {**OWN, "rollout": {"max_length": 30000}},
        {
            "actor": {"model_name": "Qwen/Qwen2.5-0.5B"},
            "b": {"model_name": "Qwen/Qwen2.5-7B"},
            "training": TRAINING,
        },
        {"model": OWN["model"], "train_metrics": {"train_batch_size": 4, "epoch": 3, "learning_rate": 0.1}},
        {"train_batch_size": 4, "max_steps": 100, "global_step": 100, "log_history": [{"loss": 1.0}]},
    ],
)
def test_what_is_another_training_or_none_is_not_read(tmp_path: Path, tree: Any) -> None:
    with pytest.raises(InputError, match="not recognised"):
        checked(tmp_path, tree)


@pytest.mark.parametrize(
    "said",
    [
        {"method": "dpo"},
        {"training_method": "DPO", "dpo": {"beta": 0.1}},
        {"dpo_file": "pairs.jsonl", "max_prompt_length": 512},
        {"trainer": "DPOTrainer"},
        {"training_type": "vlm_dpo", "reference": {"model_name": "Qwen/Qwen2.5-7B"}},
    ],
)
def test_a_method_widens_the_range(tmp_path: Path, said: Any) -> None:
    """Both sequences of a pair and a copy of the model, which it may keep beside adapters, too."""
    found = checked(tmp_path, {**LORA, **said})
    plain = checked(tmp_path, LORA, "plain.json")
    assert found.result is Result.UNCERTAIN
    assert "training by DPO" in str(found.doubt)
    assert found.answer is not None
    assert plain.answer is not None
    assert found.answer.plan.training.microbatch == 2 * plain.answer.plan.training.microbatch
    assert found.answer.job is not None
    assert "reference" in found.answer.job["roles"]


@pytest.mark.parametrize(
    "further",
    [
        {"dpo": {**TRAINING, "beta": 0.1, "per_device_train_batch_size": 9}, "dpo_enabled": True},
        {
            "dpo_config": {
                "batch_size": 9,
                "lr": 1e-6,
                "epochs": 1,
                "max_length": 8192,
                "max_prompt_length": 512,
            }
        },
        {"grpo": {**TRAINING, "num_generations": 8}, "data": {"pairs": {"dpo": 77}}},
    ],
)
def test_of_stages_one_after_another_the_first_is_read(tmp_path: Path, further: Any) -> None:
    own = {"model": OWN["model"], "sft_config": TRAINING}
    found = checked(tmp_path, {**own, **further})
    assert "of its trainings sft_config alone" in str(found.doubt)
    assert peak_of(found) == peak_of(checked(tmp_path, own, "same.json"))
    first = checked(tmp_path, {"model": OWN["model"], **further, "sft_config": TRAINING}, "other.json")
    assert "sft_config" not in str(first.doubt)


def test_a_policy_s_training_has_rows_of_both_parts(tmp_path: Path) -> None:
    grpo = {
        "num_generations": 8,
        "max_prompt_length": 256,
        "max_completion_length": 512,
        "vllm_gpu_memory_utilization": 0.3,
    }
    found = checked(tmp_path, {**OWN, "grpo": {**TRAINING, **grpo}, "training": {}})
    assert found.result is Result.UNCERTAIN
    assert found.answer is not None
    assert found.answer.plan.training.seq_len == 256 + 512
    assert found.answer.job is not None
    assert found.answer.job["roles"].keys() == {"actor", "rollout"}


DEEPSPEED = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
QUANTIZED = {**LORA, "quantization": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}}


@pytest.mark.parametrize(
    ("said", "same"),
    [
        ({**OWN, "training": {at: str(value) for at, value in TRAINING.items()}}, OWN),
        ({**OWN, "batch": 2, "training": {**TRAINING, "per_device_train_batch_size": "${batch}"}}, OWN),
        ({**OWN, "training": {**TRAINING, "per_device_train_batch_size": None, "batch_size": 2}}, OWN),
        ({**OWN, "training": {**TRAINING, "bf16": None, "precision": "bf16-mixed"}}, OWN),
        ({**OWN, "training": {**TRAINING, "mixed_precision": ["bf16"]}}, OWN),
        ({**OWN, "model": {**OWN["model"], "revision": "main", "max_length": 32768}, "training": {**TRAINING, "max_seq_length": 1024}}, OWN),
        ({**OWN, "sampling": {"max_length": 30000, "batch_size": 64}, "judge": {"model_name": "Qwen/Qwen2.5-72B"}}, OWN),
        ({**OWN, "train_stage2": {**TRAINING, "per_device_train_batch_size": 9, "max_length": 16384}}, OWN),
        ({**LORA, "quantization": {**QUANTIZED["quantization"], "enabled": False}}, LORA),
        ({**OWN, "training": {**TRAINING, "gradient_checkpointing": None}, "lora": {**LORA["lora"], "use_gradient_checkpointing": "unsloth"}}, LORA),
    ],
)  # fmt: skip
def test_a_value_is_the_training_s_own(tmp_path: Path, said: Any, same: Any) -> None:
    found = checked(tmp_path, said)
    assert found.result is Result.UNCERTAIN
    assert peak_of(found) == peak_of(checked(tmp_path, same, "same.json"))


def test_what_is_quantized_and_divided_is_as_it_says(tmp_path: Path) -> None:
    assert peak_of(checked(tmp_path, QUANTIZED)) < peak_of(checked(tmp_path, LORA))
    divided = checked(tmp_path, {**OWN, "training": {**TRAINING, "deepspeed": DEEPSPEED}})
    assert divided.answer is not None
    assert (divided.answer.plan.engine, divided.answer.plan.zero) == ("deepspeed", 3)


def test_an_open_value_is_none_of_ours(tmp_path: Path) -> None:
    steps = {**TRAINING, "gradient_accumulation_steps": "${oc.env:STEPS,4}"}
    assert "gradient_accumulation_steps" in str(checked(tmp_path, {**OWN, "training": steps}).doubt)


def test_a_switched_off_adapter_trains_the_whole_model(tmp_path: Path) -> None:
    off = {**OWN, "lora": {**LORA["lora"], "enabled": False}}
    assert peak_of(checked(tmp_path, off)) == peak_of(checked(tmp_path, OWN))


def test_an_adapter_that_is_only_switched_on_has_the_usual_rank(tmp_path: Path) -> None:
    switched = checked(tmp_path, {**OWN, "peft": {"use_lora": True, "target_modules": ["q_proj"]}})
    said = checked(tmp_path, {**OWN, "lora": {"r": 8, "target_modules": ["q_proj"]}})
    assert peak_of(switched) == peak_of(said)


FLAT = {
    "model_name_or_path": "Qwen/Qwen2.5-0.5B",
    "per_device_train_batch_size": 2,
    "gradient_checkpointing": True,
    "bf16": True,
    "learning_rate": 1e-5,
    "num_train_epochs": 3,
    "max_length": 1024,
}


def record_of(values: dict[str, Any]) -> str:
    """A run's record as Weights & Biases writes it, with keys of the model's configuration in it."""
    held = {at: {"desc": None, "value": value} for at, value in {**values, "vocab_size": 151936}.items()}
    own = {"_wandb": {"desc": None, "value": {"cli_version": "0.16.0"}}, "wandb_version": 1}
    return json.dumps({**own, **held})


def test_a_runs_record_is_its_values(tmp_path: Path) -> None:
    own, flat = tmp_path / "config.yaml", tmp_path / "flat.yaml"
    own.write_text(record_of(FLAT))
    flat.write_text(json.dumps(FLAT))
    found, same = (memsheet.check(file, gpus="1xH100-80GB") for file in (own, flat))
    assert peak_of(found) == peak_of(same)
    assert found.result is Result.UNCERTAIN
    assert not [rule for rule, _ in found.mistakes if rule.id == "unknown-key"]


def test_a_record_names_the_model_of_its_configuration(tmp_path: Path) -> None:
    rest = {at: value for at, value in FLAT.items() if at != "model_name_or_path"}
    (tmp_path / "config.yaml").write_text(record_of({**rest, "_name_or_path": "Qwen/Qwen2.5-0.5B"}))
    found = memsheet.check(tmp_path / "config.yaml", gpus="1xH100-80GB")
    assert found.answer is not None
    assert found.answer.model.name == "qwen2.5-0.5b"


SWEEP = """\
program: train.py
method: bayes
metric: {name: eval/loss, goal: minimize}
parameters:
  model_name_or_path: {value: Qwen/Qwen2.5-0.5B}
  per_device_train_batch_size: {values: [2, 64]}
  learning_rate: {min: 1.0e-6, max: 1.0e-4}
  bf16: {value: true}
  max_length: {value: 1024}
  dataset_name: {value: x}
"""


def test_a_sweep_is_in_doubt_of_what_it_tries(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    found = memsheet.check(tmp_path / "sweep.yaml", gpus="1xH100-80GB")
    assert found.result is Result.UNCERTAIN
    assert "per_device_train_batch_size of 2, 64" in str(found.doubt)


ANCHORS = """\
defaults: &defaults {per_device_train_batch_size: 2, bf16: true, gradient_checkpointing: true}
model: {name: Qwen/Qwen2.5-0.5B, max_seq_length: 1024}
training:
  <<: *defaults
  learning_rate: 1.0e-4
"""


def test_anchors_are_followed(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(ANCHORS)
    found = memsheet.check(tmp_path / "own.yaml", gpus="1xH100-80GB")
    assert found.answer is not None
    plan = found.answer.plan
    assert (plan.training.microbatch, plan.training.seq_len, plan.recompute.mode.value) == (2, 1024, "full")


GROUPS = {
    "model": {"name": "Qwen/Qwen2.5-0.5B", "quantization": "4bit"},
    "lora": {"r": 16, "target_modules": ["q_proj", "v_proj"]},
    "training": {"batch_size": 2, "epochs": 3, "max_seq_length": 1024, "bf16": True},
    "optimizer": {"name": "paged_adamw_8bit", "lr": 2e-4},
}


def as_toml(tree: dict[str, Any]) -> str:
    lines = []
    for table, held in tree.items():
        lines += [f"[{table}]", *(f"{at} = {json.dumps(value)}" for at, value in held.items())]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("name", "write"), [("a.json", json.dumps), ("a.yaml", json.dumps), ("a.toml", as_toml)]
)
def test_groups_say_the_optimizer_and_the_bits(tmp_path: Path, name: str, write: Any) -> None:
    (tmp_path / name).write_text(write(GROUPS))
    found = memsheet.check(tmp_path / name, gpus="1xH100-80GB")
    assert found.answer is not None
    plan = found.answer.plan
    assert plan.quantization is not None
    assert int(plan.quantization.weights.bits) == 4
    assert plan.optimizer.name.value == "paged_adamw_8bit"
    assert found.result is Result.UNCERTAIN


@pytest.mark.parametrize("word", [None, False, "none", "no", "16bit"])
def test_a_word_for_no_bits_quantizes_nothing(tmp_path: Path, word: Any) -> None:
    model = {**GROUPS["model"], "quantization": word}
    (tmp_path / "a.json").write_text(json.dumps({**GROUPS, "model": model}))
    found = memsheet.check(tmp_path / "a.json", gpus="1xH100-80GB")
    assert found.answer is not None
    assert found.answer.plan.quantization is None


def test_a_flat_table_is_read_as_the_same_yaml(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("\n".join(f"{at} = {json.dumps(value)}" for at, value in FLAT.items()))
    (tmp_path / "a.yaml").write_text(json.dumps(FLAT))
    found, same = (memsheet.check(tmp_path / name, gpus="1xH100-80GB") for name in ("a.toml", "a.yaml"))
    assert peak_of(found) == peak_of(same)
    assert found.result is Result.UNCERTAIN


@pytest.mark.parametrize("named", ["model_id", "model_name", "base_model"])
def test_flat_settings_of_an_own_script_have_its_adapters(tmp_path: Path, named: str) -> None:
    """No argument of the library's names the model so: the others are the script's, too."""
    flat = {(named if at == "model_name_or_path" else at): value for at, value in FLAT.items()}
    (tmp_path / "a.yaml").write_text(json.dumps({**flat, "lora_r": 16, "load_in_4bit": True}))
    found = memsheet.check(tmp_path / "a.yaml", gpus="1xH100-80GB")
    assert found.answer is not None
    assert found.answer.plan.adapter is not None
    assert found.answer.plan.quantization is not None


BARE = {"model": "Qwen/Qwen2.5-0.5B", "lr": 1e-4, "bf16": True, "optim": "adamw_torch", "save_steps": 100, "gradient_checkpointing": True}  # fmt: skip


@pytest.mark.parametrize(
    ("own", "lora"),
    [
        ({"batch_size": 2, "epochs": 3, "max_seq_length": 1024}, ""),
        ({"per_device_train_batch_size": 2, "num_train_epochs": 1, "max_seq_length": 1024, "lora_rank": 16}, "lora = LoraConfig(r=16)"),
    ],
)  # fmt: skip
def test_a_flat_file_with_names_of_ones_own_is_the_same_sheet(tmp_path: Path, own: Any, lora: str) -> None:
    found = checked(tmp_path, {**BARE, **own})
    assert found.result is Result.UNCERTAIN
    given = "peft_config=lora" if lora else ""
    assert peak_of(found) == peak_of(checked(tmp_path, SCRIPT.format(lora=lora, given=given), "train.py"))


def test_a_flat_file_of_a_method_is_read_by_its_own_names_too(tmp_path: Path) -> None:
    own = {
        "beta": 0.1,
        "loss_type": "sigmoid",
        "max_length": 1024,
        "max_prompt_length": 512,
        "per_device_train_batch_size": 1,
    }
    found = checked(tmp_path, {**BARE, **own, "num_train_epochs": 1})
    assert found.result is Result.UNCERTAIN
    assert "DPO" in str(found.doubt)


@pytest.mark.parametrize("start", ["python scripts/run_sft.py --config {}", "torchrun --nproc_per_node=1 src/train.py --config_path {} --seed 1", "accelerate launch --num_processes 1 train.py {}"])  # fmt: skip
def test_a_script_of_ones_own_is_given_its_settings(tmp_path: Path, start: str) -> None:
    own = {**BARE, "per_device_train_batch_size": 2, "num_train_epochs": 1, "max_seq_length": 1024}
    alone = checked(tmp_path, own, "settings.json")
    (tmp_path / "settings.yaml").write_text(json.dumps(own))
    (tmp_path / "train.py").write_text("import sys\nimport yaml\nrun(yaml.safe_load(open(sys.argv[1])))\n")
    found = checked(tmp_path, start.format("settings.yaml") + "\n", "run.sh")
    assert found.result is Result.UNCERTAIN
    assert "which is given a file of settings" in str(found.doubt)
    assert peak_of(found) == peak_of(alone)


def test_a_script_that_evaluates_is_given_no_trainings_settings(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text(json.dumps({**BARE, "per_device_train_batch_size": 2}))
    with pytest.raises(InputError):
        checked(tmp_path, "python evaluate.py --config settings.yaml\n", "run.sh")


@pytest.mark.parametrize("named", ["model_path", "model_id", "model_name"])
def test_a_batch_by_axolotls_name_beside_a_model_by_another_is_ones_own(tmp_path: Path, named: str) -> None:
    own = {named: "Qwen/Qwen2.5-0.5B", "micro_batch_size": 2, "max_length": 1024, "learning_rate": 1e-4, "epochs": 1, "lora_rank": 16}  # fmt: skip
    found = checked(tmp_path, own)
    assert found.answer is not None
    assert (found.answer.plan.workload.microbatch, found.result) == (2, Result.UNCERTAIN)


def test_a_model_without_an_owner_is_one_where_it_is_bundled(tmp_path: Path) -> None:
    tree = {**OWN, "model": {"name": "gpt2", "max_seq_length": 512}}
    found = checked(tmp_path, tree)
    assert found.answer is not None
    assert found.answer.model.name == "gpt2"


@pytest.mark.parametrize("name", ["num_generations", "rollout_n"])
def test_answers_that_are_judged_together_are_called_otherwise_too(tmp_path: Path, name: str) -> None:
    own = {"model_path": "Qwen/Qwen2.5-0.5B", "micro_batch_size": 2, "learning_rate": 1e-6, "epochs": 1, "max_completion_length": 256, name: 4}  # fmt: skip
    found = checked(tmp_path, own)
    assert "GRPO" in str(found.doubt)
    assert found.answer is not None
    assert found.answer.job is not None


SAID_ELSEWHERE = (
    "base_model='Qwen/Qwen2.5-0.5B', batch_size=2, learning_rate=1e-4, num_epochs=3, max_seq_length=1024"
)
HANDED_ON = {
    "call": f"from ours import train_model\ntrain_model({SAID_ELSEWHERE})\n",
    "config's call": f"from ours import TrainingConfig, run_all\nrun_all(TrainingConfig({SAID_ELSEWHERE}))\n",
    "constants": (
        "from ours import train\nBASE_MODEL = 'Qwen/Qwen2.5-0.5B'\nBATCH_SIZE = 2\nLEARNING_RATE = 1e-4\n"
        "NUM_EPOCHS = 3\nMAX_SEQ_LENGTH = 1024\ntrain()\n"
    ),
    "class": (
        "from dataclasses import dataclass\n@dataclass\nclass TrainConfig:\n    base_model: str = 'Qwen/Qwen2.5-0.5B'\n"
        "    batch_size: int = 2\n    learning_rate: float = 1e-4\n    num_epochs: int = 3\n    max_seq_length: int = 1024\n"
    ),
    "flags": (
        "import argparse\nfrom ours import train\np = argparse.ArgumentParser()\n"
        "p.add_argument('--base_model', default='Qwen/Qwen2.5-0.5B')\np.add_argument('--batch_size', type=int, default=2)\n"
        "p.add_argument('--learning_rate', type=float, default=1e-4)\np.add_argument('--num_epochs', type=int, default=3)\n"
        "p.add_argument('--max_seq_length', type=int, default=1024)\ntrain(p.parse_args())\n"
    ),
    "typer": (
        "import typer\nfrom ours import fit\napp = typer.Typer()\n@app.command()\n"
        "def train(base_model: str = typer.Option('Qwen/Qwen2.5-0.5B'), batch_size: int = typer.Option(2), "
        "learning_rate: float = 1e-4, num_epochs: int = 3, max_seq_length: int = 1024):\n    fit(base_model)\napp()\n"
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", HANDED_ON)
def test_what_a_script_says_of_a_training_elsewhere_is_read_by_its_names(kind: str, tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(HANDED_ON[kind])
    found = memsheet.check(tmp_path / "run.py", gpus="1xH100-80GB")
    assert found.answer is not None, found.why_not
    plan = found.answer.plan
    assert found.answer.model.name == "qwen2.5-0.5b"
    assert (plan.workload.microbatch, plan.workload.seq_len) == (2, 1024)  # type: ignore[union-attr]
    assert found.result is Result.UNCERTAIN


@pytest.mark.parametrize(
    "text",
    [
        "import openai\nopenai.OpenAI().chat.completions.create(model='Qwen/Qwen2.5-7B', max_tokens=9)\n",
        "from ours import train\ntrain(base_model='Qwen/Qwen2.5-7B')\n",  # of how much nothing is said
        "from ours import evaluate\nevaluate(base_model='Qwen/Qwen2.5-7B', batch_size=8)\n",
        "train: [\n",
    ],
)
def test_a_script_that_says_no_batch_of_a_training_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(text)
    with pytest.raises(InputError, match="not recognised"):
        memsheet.check(tmp_path / "run.py", gpus="1xH100-80GB")


def test_a_size_that_is_a_group_and_a_key_is_one_word(tmp_path: Path) -> None:
    own = {
        "model": {"base_model": "Qwen/Qwen2.5-0.5B"},
        "training": {
            "lora": {"rank": 8}, "epochs": 3, "optimization": {"learning_rate": 1e-4},
            "batch": {"size": 2, "gradient_accumulation_steps": 4}, "sequence": {"length": 512},
        },
    }  # fmt: skip
    (tmp_path / "own.json").write_text(json.dumps(own))
    found = memsheet.check(tmp_path / "own.json", gpus="1xH100-80GB")
    assert found.answer is not None, found.why_not
    plan = found.answer.plan
    assert (plan.workload.microbatch, plan.workload.seq_len) == (2, 512)  # type: ignore[union-attr]
    assert plan.adapter is not None
    assert (plan.adapter.rank, found.result) == (8, Result.UNCERTAIN)
