"""A tree of several jobs: each launch by itself, the worst first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.questions import launches
from memsheet.questions.launches import launch_files

SERVE = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 4096 --dtype bfloat16\n"
FACTORY = """model_name_or_path: meta-llama/Llama-3.1-70B
stage: sft
do_train: true
finetuning_type: full
deepspeed: ds_z3.json
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 1
bf16: true
"""
ZERO = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 1}
REFUSED = "vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 3\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = {
        "serve/a.sh": SERVE,
        "train/big.yaml": FACTORY,
        "train/ds_z3.json": json.dumps(ZERO),
        "train/notes.yaml": "authors: [somebody]\n",
        ".hidden/b.sh": SERVE,
        "node_modules/c.sh": SERVE,
    }
    for name, text in files.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "tree"


def names(root: Path) -> list[str]:
    return [path.relative_to(root).as_posix() for path in launch_files((str(root),))]


def test_a_launch_names_a_model_and_nothing_refers_to_it(tree: Path) -> None:
    assert names(tree) == ["serve/a.sh", "train/big.yaml"]


def test_a_folder_of_one_job_is_not_taken_apart(tree: Path) -> None:
    assert names(tree / "train") == []
    (tree / "plan.json").write_text("{}")
    assert names(tree) == []


def test_what_a_job_left_below_its_folder_makes_no_tree_of_it(tree: Path) -> None:
    (tree / "train" / "output").mkdir()
    (tree / "train" / "output" / "trainer_state.json").write_text('{"train_batch_size": 1}')
    assert names(tree / "train") == []


def test_a_line_a_launch_the_worst_first(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tree), "--gpus", "8xH100-80GB"]) == 10
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 launches: 1 DOES NOT FIT, 1 FITS"
    assert [line.split()[-1] for line in lines if "/" in line] == ["train/big.yaml", "serve/a.sh"]


def test_one_object_holds_what_each_comes_to(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tree), "--gpus", "8xH100-80GB", "--json"]) == 10
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "memsheet/launches/1"
    assert [one["outcome"] for one in found["launches"]] == ["does_not_fit", "fits"]
    assert {file["format"] for file in found["launches"][0]["checked"]["files"]} == {
        "llamafactory",
        "deepspeed",
    }


def test_one_that_cannot_be_read_keeps_no_other_from_it(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "serve" / "z.sh").write_text(REFUSED)
    assert main(["check", str(tree), "--gpus", "8xH100-80GB"]) == 10
    assert "3 launches" in capsys.readouterr().out


def test_a_tree_of_too_much_is_refused_before_it_is_parsed(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launches, "MOST_TEXT", 10)
    with pytest.raises(InputError, match="a folder of it"):
        names(tree)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Modelfile", "FROM llama3.2:1b\nPARAMETER num_ctx 2048\n"),
        (
            "values.yaml",
            "servingEngineSpec:\n  modelSpec:\n  - {name: a, modelURL: meta-llama/Llama-3.1-8B}\n",
        ),
        ("go.sh", "llama-server -hf unsloth/Qwen3-8B-GGUF -c 2048\n"),
    ],
)
def test_servers_are_launches_too(tree: Path, name: str, text: str) -> None:
    (tree / "serve" / name).write_text(text)
    assert f"serve/{name}" in names(tree)


@pytest.mark.parametrize(
    ("placed", "sure"), [('device_map="sequential", ', False), ('device_map={"": 0}, ', True), ("", True)]
)
def test_layers_that_one_process_spreads_are_no_copies(placed: str, sure: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
        f'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-3B", {placed}dtype="bfloat16")\n'
        'args = TrainingArguments("o", per_device_train_batch_size=1, gradient_checkpointing=True)\n'
        "Trainer(model=model, args=args, train_dataset=d).train()\n"
    )
    for start, doubted in (("python", not sure), ("torchrun --nproc_per_node 2", False)):
        (tmp_path / "run.sh").write_text(f"{start} train.py\n")
        found = memsheet.check(tmp_path / "run.sh", tmp_path / "train.py", gpus="2xRTX4090", seq_len=512)
        assert ("one process spreads the layers" in found.doubt) is doubted


LOADS_AND_GENERATES = (
    "from transformers import AutoModelForCausalLM\n"
    'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-14B-Instruct", {}dtype="bfloat16")\n'
    "model.generate(**ids, max_new_tokens=16)\n"
)
PIPES = (
    "from transformers import pipeline\n"
    'pipe = pipeline("text-generation", model="Qwen/Qwen2.5-14B-Instruct", {}dtype="bfloat16")\n'
    'pipe("hello", max_new_tokens=16)\n'
)


@pytest.mark.parametrize("text", [LOADS_AND_GENERATES, PIPES])
@pytest.mark.parametrize(
    ("placed", "cards", "stages"),
    [
        ('device_map="auto", ', 2, 2),
        ('device_map="balanced", ', 3, 3),
        ('device_map="sequential", ', 2, 2),
        ('device_map="auto", ', 1, 1),
        ('device_map={"": 0}, ', 2, 1),
        ("", 2, 1),
    ],
)
def test_a_generation_spreads_whole_layers(
    text: str, placed: str, cards: int, stages: int, tmp_path: Path
) -> None:
    (tmp_path / "generate.py").write_text(text.format(placed))
    found = memsheet.check(tmp_path / "generate.py", gpus=f"{cards}xRTX3090")
    assert found.answer is not None
    assert found.answer.plan.mesh.pp == stages
    assert (found.result is Result.DOES_NOT_FIT) is (stages == 1)  # 27.5 GiB of weights on cards of 24
    if "sequential" in placed:  # which may give one card as many layers as there are
        assert found.result is not Result.FITS


def test_a_map_of_a_generation_is_said_as_stages() -> None:
    asked = {"gpus": "2xRTX3090", "engine": "transformers", "context": 512}
    with pytest.raises(InputError, match="--pp"):
        memsheet.infer("qwen2.5-14b", device_map="auto", **asked)
    answer = memsheet.infer("qwen2.5-14b", pp=2, **asked)
    assert answer.plan.mesh.pp == 2


def test_ranks_that_spread_each_have_a_copy(tmp_path: Path) -> None:
    (tmp_path / "generate.py").write_text(LOADS_AND_GENERATES.format('device_map="auto", '))
    (tmp_path / "run.sh").write_text("torchrun --nproc_per_node 2 generate.py\n")
    found = memsheet.check(tmp_path / "run.sh", tmp_path / "generate.py", gpus="2xRTX3090")
    assert found.answer is not None
    assert found.answer.plan.mesh.pp == 1


def test_a_training_beside_a_server_is_no_one_job(tmp_path: Path) -> None:
    trains = "from trl import SFTConfig, SFTTrainer\n"
    trains += "SFTTrainer('Qwen/Qwen2.5-0.5B', args=SFTConfig('o')).train()\n"
    (tmp_path / "train.py").write_text(trains)
    (tmp_path / "args.yaml").write_text("per_device_train_batch_size: 2\n")
    assert launch_files((str(tmp_path),)) == []
    (tmp_path / "serve.sh").write_text("vllm serve Qwen/Qwen2.5-0.5B\n")
    assert sorted(path.name for path in launch_files((str(tmp_path),))) == ["serve.sh", "train.py"]


SHARDED = "accelerate launch --use_fsdp --fsdp_version 2 --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP"


@pytest.mark.parametrize("dtype", ["", "torch_dtype: bfloat16"])
def test_sharding_is_mixed_whoever_says_so(tmp_path: Path, dtype: str) -> None:
    """The trainer's own switch makes of a launcher's sharding what the launcher's flag does: gradients are
    reduced in sixteen bits, and what was loaded in them is raised.
    """
    recipe = (
        f"model_name_or_path: Qwen/Qwen2.5-7B\ndataset_name: x/y\nbf16: true\nmax_length: 2048\n{dtype}\n"
    )
    (tmp_path / "sft.yaml").write_text(recipe)
    plans = []
    for mixed in ("", "--mixed_precision bf16"):
        (tmp_path / "run.sh").write_text(f"{SHARDED} {mixed} trl/scripts/sft.py --config sft.yaml\n")
        found = memsheet.check(tmp_path / "run.sh", tmp_path / "sft.yaml", gpus="8xA100-80GB")
        assert found.answer is not None
        plans.append(found.answer.plan.precision)
    assert plans[0] == plans[1]
    assert (plans[0].reduce.name, plans[0].parameters.name) == ("bf16", "fp32")


def test_what_is_loaded_in_sixteen_bits_and_not_mixed_stays_so_under_sharding(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text(
        "model_name_or_path: Qwen/Qwen2.5-7B\ndataset_name: x/y\nbf16: false\ntorch_dtype: bfloat16\n"
    )
    (tmp_path / "run.sh").write_text(f"{SHARDED} trl/scripts/sft.py --config sft.yaml\n")
    found = memsheet.check(tmp_path / "run.sh", tmp_path / "sft.yaml", gpus="8xA100-80GB")
    assert found.answer is not None
    assert found.answer.plan.precision.parameters.name == "bf16"
