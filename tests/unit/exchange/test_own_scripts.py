"""Scripts of people's own: what their text says beside the flags that they are given, several trainings of
one script, and what nobody read of them.
"""

from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.errors import InputError
from memsheet.questions.launches import check_servers, started_servers
from memsheet.report.shared.checked import Checked

PLAIN = """\
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
mine, args = HfArgumentParser((Mine, TrainingArguments)).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained(mine.model_name_or_path, torch_dtype="bfloat16")
Trainer(model=model, args=args).train()
"""
ADAPTED = PLAIN.replace(
    "Trainer(",
    "from peft import LoraConfig, get_peft_model\n"
    'model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "v_proj"]))\nTrainer(',
)
FLAGS = (
    "own.py --model_name_or_path meta-llama/Llama-2-13b-hf --per_device_train_batch_size 1 --bf16 true "
    "--gradient_checkpointing true --output_dir o --model_max_length 1024"
)
LAUNCHERS = ("torchrun --nproc_per_node 8", "python", "accelerate launch --multi_gpu --num_processes 8")
EIGHT = {"python": "1xH100-80GB"}


def checked(folder: Path, text: str, script: str = "", **options: Any) -> Checked:
    (folder / "run.sh").write_text(f"{text}\n")
    if script:
        (folder / "own.py").write_text(script)
    return memsheet.check(folder / "run.sh", **{"gpus": "8xH100-80GB", **options})


def on_cards(launcher: str) -> dict[str, Any]:
    return {"gpus": EIGHT.get(launcher, "8xH100-80GB")}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_text_beside_is_read_with_its_flags(tmp_path: Path, launcher: str) -> None:
    """Adapters that only the text makes let a model fit that does not whole."""
    whole = checked(tmp_path, f"{launcher} {FLAGS}", PLAIN, **on_cards(launcher))
    assert whole.result is Result.DOES_NOT_FIT
    adapted = checked(tmp_path, f"{launcher} {FLAGS}", ADAPTED, **on_cards(launcher))
    assert adapted.result is Result.FITS
    assert adapted.answer is not None
    assert adapted.answer.plan.adapter is not None


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_script_that_nobody_has_is_sure_of_nothing(tmp_path: Path, launcher: str) -> None:
    """It may divide the states, train adapters, or hold another model beside."""
    flags = FLAGS.replace("meta-llama/Llama-2-13b-hf", "meta-llama/Llama-2-70b-hf")
    for asked in (flags, SMALL, SMALL.replace("--bf16 true ", "")):
        found = checked(tmp_path, f"{launcher} {asked}", **on_cards(launcher))
        assert found.result is Result.UNCERTAIN
        assert "not among the files" in str(found.doubt)


def test_a_text_that_says_no_training_is_not_understood(tmp_path: Path) -> None:
    found = checked(tmp_path, f"torchrun --nproc_per_node 8 {FLAGS}", "from mine import main\nmain()\n")
    assert found.result is Result.UNCERTAIN
    assert "not understood" in str(found.doubt)


@pytest.mark.parametrize(
    "flag", ["--pre_seq_len 128", "--freeze_layers 30", "--quantization_bit 4", "--use_lora true"]
)
def test_flags_that_a_text_was_read_without_are_told(tmp_path: Path, flag: str) -> None:
    found = checked(tmp_path, f"torchrun --nproc_per_node 8 {FLAGS} {flag}", PLAIN)
    assert found.result is Result.UNCERTAIN
    assert flag.partition(" ")[0] in str(found.doubt)


@pytest.mark.parametrize(
    "flag", ["--lora_alpha 16", "--use_lora False", "--data_path x", "--quantization_bit 0"]
)
def test_flags_that_hold_nothing_are_not(tmp_path: Path, flag: str) -> None:
    assert (
        checked(tmp_path, f"torchrun --nproc_per_node 8 {FLAGS} {flag}", PLAIN).result is Result.DOES_NOT_FIT
    )


RANKED = ADAPTED.replace("r=16", "r=mine.lora_r").replace(
    "mine, args",
    "@dataclass\nclass Mine:\n    model_name_or_path: str = ''\n    lora_r: int = 8\n\n\nmine, args",
)


def test_flags_that_the_text_takes_are_read(tmp_path: Path) -> None:
    found = checked(tmp_path, f"torchrun --nproc_per_node 8 {FLAGS} --lora_r 64", RANKED)
    assert found.answer is not None
    assert found.answer.plan.adapter is not None
    assert found.answer.plan.adapter.rank == 64
    assert found.result is Result.FITS


# ---- several trainings --------------------

SMALL = FLAGS.replace("meta-llama/Llama-2-13b-hf", "Qwen/Qwen2.5-0.5B")
BOTH = (
    f"python {SMALL}\npython {FLAGS}",
    f"python {SMALL} && python {FLAGS}",
    f"if [ -d x ]; then\n  python {SMALL}\nfi\npython {FLAGS}",
    (
        "swift sft --model Qwen/Qwen2.5-0.5B --train_type lora --max_length 1024\n"
        "swift sft --model Qwen/Qwen2.5-32B --train_type full --max_length 1024"
    ),
)


@pytest.mark.parametrize("text", BOTH)
def test_one_of_several_trainings_is_never_sure_to_fit(tmp_path: Path, text: str) -> None:
    found = checked(tmp_path, text, PLAIN, gpus="1xH100-80GB")
    assert found.result is Result.UNCERTAIN
    assert "further trainings (2" in str(found.doubt)


@pytest.mark.parametrize("text", BOTH)
def test_each_of_several_trainings_is_told_by_itself(tmp_path: Path, text: str) -> None:
    checked(tmp_path, text, PLAIN, gpus="1xH100-80GB")
    file = str(tmp_path / "run.sh")
    names = started_servers((file,))
    assert len(names) == 2
    machines = ("gpus", "nodes", "per_node", "host_memory", "cluster", "parameters", "plan", "model")
    found = check_servers(file, names, {**dict.fromkeys(machines), "gpus": "1xH100-80GB"}, {})
    assert all("further trainings" not in str(one.checked.doubt) for one in found if one.checked)
    assert [one.checked.result for one in found if one.checked] == [Result.FITS, Result.DOES_NOT_FIT]


@pytest.mark.parametrize(
    "text",
    [
        f"python {SMALL} --seed 1\npython {SMALL} --seed 2",
        f"python prepare.py --out data\npython {SMALL}",
        f"python {SMALL}\npython evaluate.py --model_path o",
    ],
)
def test_trainings_that_need_the_same_are_one(tmp_path: Path, text: str) -> None:
    found = checked(tmp_path, text, PLAIN, gpus="1xH100-80GB")
    assert found.result is Result.FITS
    assert started_servers((str(tmp_path / "run.sh"),)) == ()


STAGES = """\
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype="bfloat16")
first = SFTConfig(per_device_train_batch_size={first}, max_length=1024, output_dir="a")
SFTTrainer(model=model, args=first).train()
second = SFTConfig(per_device_train_batch_size=1, max_length=1024, output_dir="b")
SFTTrainer(model=model, args=second).train()
"""


@pytest.mark.parametrize(("first", "result"), [(64, Result.UNCERTAIN), (1, Result.FITS)])
def test_a_script_of_several_stages_is_sure_of_none(tmp_path: Path, first: int, result: Result) -> None:
    (tmp_path / "train.py").write_text(STAGES.format(first=first))
    found = memsheet.check(tmp_path / "train.py", gpus="1xH100-80GB")
    assert found.result is result
    assert ("several_trainings" in str(found.doubt)) is (result is Result.UNCERTAIN)


# ---- what starts it, and what else is open --------------------


@pytest.mark.parametrize(
    ("launcher", "sure"),
    [
        ("accelerate launch", False),
        ("accelerate launch --num_processes 1 --mixed_precision bf16", False),
        ("accelerate launch --multi_gpu --num_processes 1", True),
        ("python", True),
    ],
)
def test_accelerates_own_configuration_may_offload_on_one_card(
    tmp_path: Path, launcher: str, sure: bool
) -> None:
    found = checked(tmp_path, f"{launcher} {FLAGS}", PLAIN, gpus="1xH100-80GB")
    assert found.result is (Result.DOES_NOT_FIT if sure else Result.UNCERTAIN)
    assert ("user's home" in str(found.doubt)) is not sure


@pytest.mark.parametrize(("flag", "open_ended"), [("--use_lora true", True), ("", False)])
def test_no_change_is_sure_to_fit_beside_what_is_open(tmp_path: Path, flag: str, open_ended: bool) -> None:
    found = checked(tmp_path, f"torchrun --nproc_per_node 8 {FLAGS} {flag}", PLAIN)
    assert found.answer is not None
    assert found.answer.verdict is not None
    fix = found.answer.verdict.cheapest_fix
    assert fix is not None
    assert fix.open_ended is open_ended


def test_what_generates_is_no_training(tmp_path: Path) -> None:
    """A model, and how many tokens: no flag of a training."""
    text = "python own.py --model_name_or_path meta-llama/Llama-2-70b-hf --max_length 1024 --dataset_name x"
    with pytest.raises(InputError, match="is not there"):
        checked(tmp_path, text, gpus="1xH100-80GB")


@pytest.mark.parametrize(
    "flags",
    [
        "--model_name Qwen/Qwen2.5-0.5B --num_layers 24 --micro_batch_size 1 --seq_length 1024",
        "--base_model Qwen/Qwen2.5-0.5B --micro_batch_size 1 --num_epochs 3 --save_interval 9",
    ],
)
def test_underscores_alone_make_no_fork_of_megatron(tmp_path: Path, flags: str) -> None:
    found = checked(tmp_path, f"torchrun --nproc_per_node 8 own.py {flags} --lr 1e-5")
    assert "megatron" not in {read.form.name for read in found.reads.values()}
    assert found.answer is not None
    assert found.answer.model.name == "qwen2.5-0.5b"


@pytest.mark.parametrize("script", ["train_sft.py", "train_dpo.py"])
def test_a_scripts_name_alone_makes_no_project_of_it(tmp_path: Path, script: str) -> None:
    found = checked(tmp_path, f"deepspeed --num_gpus 8 {SMALL.replace('own.py', script)}")
    assert "openrlhf" not in {read.form.name for read in found.reads.values()}


def test_a_guessed_model_stops_no_server(tmp_path: Path) -> None:
    """A mount of that name may hold a model of experts."""
    text = "vllm serve {model} --enable-expert-parallel --tensor-parallel-size 4"
    assert not checked(tmp_path, text.format(model="/models/qwen3"), gpus="4xH100-80GB").stops
    assert checked(tmp_path, text.format(model="Qwen/Qwen3-8B"), gpus="4xH100-80GB").stops


@pytest.mark.parametrize(
    ("name", "sure"), [("train_dpo.py", False), ("run_grpo_v2.py", False), ("train_rms.py", True)]
)
def test_a_method_that_a_name_says_and_no_text_is_in_doubt(tmp_path: Path, name: str, sure: bool) -> None:
    (tmp_path / name).write_text(PLAIN)
    found = checked(tmp_path, f"torchrun --nproc_per_node 8 {SMALL.replace('own.py', name)}")
    assert found.result is (Result.FITS if sure else Result.UNCERTAIN)


UNCUT = """\
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B", torch_dtype="bfloat16")
args = SFTConfig(output_dir="o", per_device_train_batch_size=8, max_length=512{more})
SFTTrainer(model=model, args=args, data_collator=collate).train()
"""


@pytest.mark.parametrize(
    ("more", "cut"),
    [
        ("", True),
        (', dataset_kwargs={"skip_prepare_dataset": False}', True),
        (', dataset_kwargs={"skip_prepare_dataset": True}', False),
        (")\nargs.dataset_kwargs = dict(skip_prepare_dataset=True", False),
    ],
)
def test_rows_that_nothing_prepares_are_cut_to_no_length(tmp_path: Path, more: str, cut: bool) -> None:
    (tmp_path / "train.py").write_text(UNCUT.format(more=more))
    found = memsheet.check(tmp_path / "train.py", gpus="1xH100-80GB")
    assert found.answer is not None
    assert (found.answer.plan.training.seq_len == 512) is cut
    assert ("how many tokens" in str(found.doubt)) is not cut


def test_settings_that_skip_the_cut_are_in_doubt(tmp_path: Path) -> None:
    text = (
        "model_name_or_path: Qwen/Qwen2.5-0.5B\nper_device_train_batch_size: 1\nmax_length: 512\n"
        "dataset_name: x\ndataset_kwargs: {{skip_prepare_dataset: {skips}}}\n"
    )
    for skips, result in (("true", Result.UNCERTAIN), ("false", Result.FITS)):
        (tmp_path / "sft.yaml").write_text(text.format(skips=skips))
        assert memsheet.check(tmp_path / "sft.yaml", gpus="1xH100-80GB").result is result


GENERATES = """\
import argparse
from transformers import AutoModelForCausalLM, AutoTokenizer
parser = argparse.ArgumentParser()
parser.add_argument("--model_name_or_path", default="")
parser.add_argument("--batch_size", type=int, default=1)
args = parser.parse_args()
tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
model = AutoModelForCausalLM.from_pretrained(args.model_name_or_path, torch_dtype="float16").cuda()
rows = tokenizer(texts, max_length=512, truncation=True, padding=True, return_tensors="pt")
model.generate(**rows, max_new_tokens=64)
"""


@pytest.mark.parametrize(("flag", "told"), [("--adapter_path o", False), ("--quantization_bit 4", True)])
def test_adapters_of_what_generates_are_little(tmp_path: Path, flag: str, told: bool) -> None:
    text = f"python own.py --model_name_or_path Qwen/Qwen2.5-0.5B --batch_size 2 {flag}"
    found = checked(tmp_path, text, GENERATES, gpus="1xH100-80GB")
    assert ("unread_flags" in str(found.doubt)) is told
    assert found.answer is not None
    assert found.answer.plan.task == "infer"


@pytest.mark.parametrize(
    "path",
    [
        "models/models--Qwen--Qwen2.5-0.5B/snapshots/0a1b2c3d",
        "/root/.cache/huggingface/hub/models--Qwen--Qwen2.5-0.5B",
    ],
)
def test_a_path_into_the_hubs_cache_names_its_model(tmp_path: Path, path: str) -> None:
    flags = SMALL.replace("Qwen/Qwen2.5-0.5B", path)
    found = checked(tmp_path, f"torchrun --nproc_per_node 8 {flags}", PLAIN)
    assert found.result is Result.FITS
    assert found.answer is not None
    assert found.answer.model.name == "qwen2.5-0.5b"


VERL = (
    "python -m {module} data.train_batch_size=64 data.max_prompt_length=512 data.max_response_length=512 "
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B actor_rollout_ref.actor.ppo_mini_batch_size=64 "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 actor_rollout_ref.rollout.name=vllm "
    "algorithm.adv_estimator=grpo trainer.n_gpus_per_node=8 trainer.nnodes=1"
)


@pytest.mark.parametrize(
    ("module", "own"), [("verl.trainer.main_ppo", True), ("mine.trainer.main_ppo", False)]
)
def test_a_program_of_others_that_is_called_as_verls_is_in_doubt(
    tmp_path: Path, module: str, own: bool
) -> None:
    found = checked(tmp_path, VERL.format(module=module))
    assert found.answer is not None
    assert "verl" in {read.form.name for read in found.reads.values()}
    assert ("called as a program of verl" in str(found.doubt)) is not own


def test_vllms_server_for_demonstrations_is_read(tmp_path: Path) -> None:
    text = "python -m vllm.entrypoints.api_server --model Qwen/Qwen2.5-7B --max-model-len 4096"
    found = checked(tmp_path, text, gpus="1xH100-80GB")
    assert found.result is Result.FITS


def test_a_file_of_settings_makes_no_script_known(tmp_path: Path) -> None:
    found = checked(tmp_path, f"torchrun --nproc_per_node 8 {SMALL} --config own.yaml")
    assert found.result is Result.UNCERTAIN


def test_options_of_a_class_of_its_own_are_its_texts(tmp_path: Path) -> None:
    """A class that is called as TRL's says nothing of adapters: the text does."""
    own = ADAPTED.replace(
        "mine, args", "class ModelConfig:\n    model_name_or_path: str = ''\n\n\nmine, args", 1
    )
    found = checked(tmp_path, f"torchrun --nproc_per_node 8 {FLAGS}", own)
    assert found.answer is not None
    assert found.answer.plan.adapter is not None


OWN_ADAPTERS = """\
from dataclasses import dataclass, field
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
from peft import LoraConfig, get_peft_model
@dataclass
class Mine:
    model_name_or_path: str = field(default="facebook/opt-125m")
    lora_r: int = 8
    lora_target_modules: list[str] = field(default_factory=lambda: ["q_proj", "v_proj"])
mine, args = HfArgumentParser((Mine, TrainingArguments)).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained(mine.model_name_or_path, torch_dtype="bfloat16")
model = get_peft_model(model, LoraConfig(r=mine.lora_r, target_modules=mine.lora_target_modules))
Trainer(model=model, args=args).train()
"""


@pytest.mark.parametrize("rank", [8, 32])
def test_adapters_whose_layers_a_field_makes_are_read_and_their_rank_at_its_default(
    rank: int, tmp_path: Path
) -> None:
    found = checked(tmp_path, f"torchrun --nproc_per_node 8 {FLAGS} --lora_r {rank}", OWN_ADAPTERS)
    assert found.answer is not None, found.why_not
    assert found.answer.plan.adapter is not None
    assert (found.answer.plan.adapter.rank, found.answer.plan.adapter.targets) == (rank, ("q_proj", "v_proj"))
    assert found.result is Result.FITS, found.doubt


def test_a_script_whose_flags_nobody_gave_is_never_sure_to_fit(tmp_path: Path) -> None:
    """Its defaults are the library's, of a small model: a launch says others."""
    (script := tmp_path / "own.py").write_text(OWN_ADAPTERS)
    found = memsheet.check(script, gpus="1xH100-80GB", seq_len=512)
    assert found.answer is not None, found.why_not
    assert found.answer.model.name == "opt-125m"
    assert "command_flags" in found.doubt
    assert found.result is Result.UNCERTAIN
