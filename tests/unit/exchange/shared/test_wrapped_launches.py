"""What stands around a command, by whom it is started and where: the same job is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import memsheet
from laws import every
from memsheet.budget import Result
from memsheet.errors import InputError
from memsheet.exchange.shared.launched_script import script_launches
from memsheet.exchange.shared.plain_shell import plain_script
from memsheet.exchange.shared.wrapper_scripts import LONGEST_WRAPPER, wrapped_call
from memsheet.questions.recognised_files import recognise_files

MODEL = "meta-llama/Llama-3.2-1B"
TRAIN = f"train.py --model_name_or_path {MODEL} --per-device-train-batch-size=2 --bf16 --block_size 512"
START = f"torchrun --nproc_per_node=8 {TRAIN}"
SERVE = f"vllm serve {MODEL} --tensor-parallel-size 2"
AROUND = {
    "nohup": "nohup {} > log.txt 2>&1 &", "numactl": "numactl --cpunodebind=0 --membind=0 {}", "exec": "exec {}", "time": "time {}",
    "if not": "if ! {}; then echo no; exit 1; fi", "tee": "{} 2>&1 | tee -a log", "out": "{} 2>&1 > log", "both out": "{} &> log &",
    "subshell": "( cd x && {} )", "braces": "{{ {}; }} > log", "timeout": "timeout 3600 {}", "and": "cd x && source y && {}",
    "docker": "docker run --rm --gpus all -v /a:/b img:latest {}", "docker shell": 'docker run --gpus all img bash -c "cd /w && {}"',
    "apptainer": "apptainer exec --nv img.sif {}", "singularity": 'singularity exec --nv img.sif bash -c "{}"',
    "ray": "ray job submit --address http://a --runtime-env x.yaml -- {}", "ssh": 'ssh -p 22 user@host "cd /w && {}"',
    "ssh kept": "ssh host 'source a; nohup {} > log 2>&1 &'", "bash": 'bash -c "{}"', "login bash": "bash -lc '{}'",
    "eval": 'CMD="{}"\neval "$CMD"', "bare eval": 'CMD="{}"\neval $CMD', "variable": 'CMD="{}"\n$CMD &', "tmux": 'tmux new -d -s a "{}"',
    "variable over lines": 'CMD="srun \\\n {}"\necho $CMD\n$CMD 2>&1 | tee log', "list": 'CMD=({})\n"${{CMD[@]}}" &',
    "two variables": 'A="{}"\nB="env X=1 $A"\n$B', "screen": 'screen -dmS a bash -c "{}"', "wrap": 'sbatch --gpus=8 --wrap="{}"', "uv": "uv run {}",
    "poetry": "poetry run {}", "conda": "conda run -n env --no-capture-output {}", "srun": "srun --ntasks-per-node=1 {}", "env": "env A=b {}",
}  # fmt: skip


@every("around", AROUND)
@every("command", [START, SERVE])
def test_a_job_is_read_whatever_stands_around_it(around: str, command: str) -> None:
    reads, _ = recognise_files({"run.sh": AROUND[around].format(command) + "\n"}, ())
    asked = {key: held for read in reads.values() for key, held in read.request.items()}
    assert asked["@model"] == MODEL
    assert (asked["microbatch"], asked["@gpus"]) == (2, 8) if command == START else asked["mesh.tp"] == 2


COUNTED = {
    f"python -u -m torch.distributed.run --nproc_per_node 8 {TRAIN}": 8, f"python -m torch.distributed.launch --nproc_per_node=8 --use_env {TRAIN}": 8,
    f"python3 -m accelerate.commands.launch --num_processes 8 {TRAIN}": 8, f"mpirun -np 4 --hostfile h python {TRAIN}": 4,
    f"python -m accelerate.commands.accelerate_cli launch --num_processes 8 {TRAIN}": 8, f"mpiexec -n 2 python3 {TRAIN}": 2,
    f"torchx run -s local_cwd dist.ddp -j 2x8 --script {TRAIN.replace('.py', '.py --')}": 16, f"CUDA_VISIBLE_DEVICES=0,1 python {TRAIN}": 2,
    f"export CUDA_VISIBLE_DEVICES=0,1,2\npython -W ignore {TRAIN}": 3, f"env CUDA_VISIBLE_DEVICES=0,1 accelerate launch {TRAIN}": 2,
    f"CUDA_VISIBLE_DEVICES=0,1 deepspeed {TRAIN}": 2, f"CUDA_VISIBLE_DEVICES=0,1,2 torchrun --nproc_per_node=gpu {TRAIN}": 3,
    f"CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node=1 {TRAIN}": 1,
}  # fmt: skip


@pytest.mark.parametrize("text", COUNTED)
def test_the_processes_are_counted_where_they_are_said(text: str) -> None:
    reads, _ = recognise_files({"run.sh": text + "\n"}, ())
    asked = {key: held for read in reads.values() for key, held in read.request.items()}
    assert (asked["@model"], asked["@gpus"]) == (MODEL, COUNTED[text])


def test_a_module_of_peoples_own_is_a_script() -> None:
    (found,) = script_launches("python -m mine.train --batch_size 4\npython -m pip install --upgrade x\n")
    assert (found.script, found.arguments) == ("mine/train.py", {"batch_size": 4})


def test_what_is_printed_and_not_run_starts_nothing() -> None:
    text = 'NOTE="to train run it"\necho "$NOTE"\n'
    assert plain_script(text).text == text


OLDER_TRAINER = (
    "../train_sft.py --pretrain meta-llama/Llama-3.1-8B --max_len 2048 --train_batch_size 64 "
    "--micro_train_batch_size 2 --zero_stage 2 --bf16"
)
LAUNCHED_FILES = {
    "python": "python {}", "deepspeed": "deepspeed {}", "its flags": "deepspeed --num_gpus 8 {}", "torchrun": "torchrun --nproc_per_node 8 {}",
    "accelerate": "accelerate launch {}", "read into": "read -r -d '' words <<EOF\n{}\nEOF\nif [[ $1 != x ]]; then\n  deepspeed $words\nfi",
}  # fmt: skip


@pytest.mark.parametrize("launch", LAUNCHED_FILES)
def test_a_program_by_its_file_is_started_by_any_launcher(launch: str) -> None:
    reads, _ = recognise_files({"run.sh": LAUNCHED_FILES[launch].format(OLDER_TRAINER) + "\n"}, ())
    trained = [read for read in reads.values() if read.form.name == "openrlhf"]
    assert [read.request["@model"] for read in trained] == ["meta-llama/Llama-3.1-8B"]


def test_a_program_that_another_is_given_is_not_started() -> None:
    with pytest.raises(InputError, match="is not there"):
        recognise_files({"run.sh": f"deepspeed mine.py {OLDER_TRAINER}\n"}, ())


@pytest.mark.parametrize("entry", ["--entrypoint vllm img:1 serve", "--entrypoint=/usr/bin/vllm a/b:c serve", "--entrypoint python3 img -m vllm.entrypoints.openai.api_server --model"])  # fmt: skip
def test_a_container_is_entered_by_another_program(entry: str) -> None:
    text = f"ARGS=({entry.rsplit(' ', 1)[-1]} {MODEL} --tensor-parallel-size 2)\n"
    text += f'docker run -d --gpus all {entry.rpartition(" ")[0]} "${{ARGS[@]}}"\n'
    reads, _ = recognise_files({"run.sh": text}, ())
    (read,) = reads.values()
    assert (read.request["@model"], read.request["mesh.tp"]) == (MODEL, 2)


OWN = "torchrun --nproc_per_node=8 examples/finetuning.py --seq-length 4096 --micro-batch-size 2 --lr 1e-5"


def test_a_script_that_loads_a_hubs_model_is_none_of_megatrons_by_its_sizes() -> None:
    text = f"{OWN} --base-model /models/Mistral-7B-v0.1 --bf16 --sharding-strategy FULL_SHARD --fsdp-activation-checkpointing\n"  # fmt: skip
    asked = _request_of(text)
    told = tuple(asked[at] for at in ("@model", "engine", "zero", "seq_len", "microbatch", "recompute.mode"))
    assert told == ("/models/Mistral-7B-v0.1", "fsdp1", 3, 4096, 2, "full")


@pytest.mark.parametrize(
    "own", ["--tensor-model-parallel-size 2", "--num-layers 32", "--use-distributed-optimizer"]
)
def test_a_flag_of_megatrons_alone_keeps_a_script_its_own(own: str) -> None:
    assert _request_of(f"{OWN} --hf-model /models/Mistral-7B-v0.1 {own}\n")["engine"] == "megatron"


SIZES = "--num_layers=32 --hidden_width=4096 --num_heads=32 --num_key_value_heads=8 --intermediate_size=14336"


@pytest.mark.parametrize(
    ("family", "layers", "left"),
    [("llama_v3", "llama", "vocab_size"), ("mistral --vocab_size=32768", "mistral", ""), ("other", "llama", "not those of other")],
)  # fmt: skip
def test_flags_describe_a_model_by_its_sizes(family: str, layers: str, left: str) -> None:
    text = f"torchrun --nproc_per_node=8 train.py {SIZES} --model_type={family} --train_batch_size=1 --max_context_width=8192 --sharding_strategy=full\n"  # fmt: skip
    reads, _ = recognise_files({"run.sh": text}, ())
    read = next(read for read in reads.values() if read.form.name == "pytorch")
    built = read.form.model(read.values)
    assert built is not None
    told = tuple(
        built[at] for at in ("model_type", "num_hidden_layers", "hidden_size", "max_position_embeddings")
    )
    assert told == (layers, 32, 4096, 8192)
    assert left in str(dict(read.unmodelled).get("script.open_sizes", ""))


@pytest.mark.parametrize(("word", "stage"), [("SHARD_GRAD_OP", 2), ("NO_SHARD", 0), ("full", 3)])
def test_words_of_a_flag_divide_states(word: str, stage: int) -> None:
    assert _request_of(f"{OWN} --base-model a/b-7B --sharding-strategy {word}\n")["zero"] == stage


def _request_of(text: str) -> dict[str, object]:
    reads, _ = recognise_files({"run.sh": text}, ())
    return {key: held for read in reads.values() for key, held in read.request.items()}


SAYS_ITS_STEP = "torchrun --nproc_per_node=2 mine.py --model_name_or_path Qwen/Qwen2.5-0.5B --per_device_train_batch_size 1 --model_max_length 512 --bf16 --gradient_checkpointing --learning_rate 1e-5"  # fmt: skip


@pytest.mark.parametrize("more", ["", "--data_path a.json", "--vision_tower org/clip", "--lora_rank 8"])
def test_a_script_that_nobody_read_is_open_whatever_its_flags_say(tmp_path: Path, more: str) -> None:
    (tmp_path / "run.sh").write_text(f"{SAYS_ITS_STEP} {more}\n")
    found = memsheet.check(str(tmp_path / "run.sh"), gpus="2xH100-80GB")
    assert found.result is Result.UNCERTAIN
    assert "mine.py" in str(found.doubt) or "text is not among the files" in str(found.doubt)


FILLS = "from trl import GRPOConfig, ModelConfig, TrlParser, get_peft_config{more}\nargs, model_args = TrlParser((GRPOConfig, ModelConfig)).parse_args_and_config()\n{made}"  # fmt: skip
METHOD = "torchrun --nproc_per_node=8 train_grpo.py --model_name_or_path Qwen/Qwen2.5-0.5B --per_device_train_batch_size 1 --max_prompt_length 256 --max_completion_length 256 --num_generations 8 --bf16"  # fmt: skip


@pytest.mark.parametrize(
    ("more", "made", "own"),
    [
        (", GRPOTrainer", "GRPOTrainer(model=model_args.model_name_or_path, args=args).train()\n", ""),
        ("\nfrom mine import VLMTrainer", "VLMTrainer(model=model_args.model_name_or_path, args=args).train()\n", "VLMTrainer"),
        ("\nfrom mine import VLMTrainer", "trainer_cls = VLMTrainer\ntrainer_cls(args=args).train()\n", "VLMTrainer"),
        (", GRPOTrainer", "class Mine(GRPOTrainer):\n    pass\nclass MyTrainer(GRPOTrainer):\n    pass\nMyTrainer(args=args).train()\n", ""),
    ],
)  # fmt: skip
def test_a_trainer_of_somebodys_own_is_told(tmp_path: Path, more: str, made: str, own: str) -> None:
    (tmp_path / "train_grpo.py").write_text(FILLS.format(more=more, made=made))
    (tmp_path / "run.sh").write_text(METHOD + "\n")
    found = memsheet.check(str(tmp_path / "run.sh"), gpus="8xH100-80GB")
    told = [
        held for read in found.reads.values() for at, held in read.unmodelled if at == "script.own_trainer"
    ]
    assert told == ([own] if own else [])
    assert not own or found.result is Result.UNCERTAIN


LOOP = "from transformers import AutoTokenizer\nfrom mine import build\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(build(args))\nmodel(x).loss.backward()\n"  # fmt: skip


def test_flags_describe_the_model_of_a_script_whose_text_builds_it_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    (tmp_path / "run.sh").write_text(
        f"torchrun --nproc_per_node=8 train.py {SIZES} --vocab_size=32768 --model_type=mistral "
        "--train_batch_size=1 --max_context_width=2048\n"
    )
    found = memsheet.check(str(tmp_path / "run.sh"), gpus="8xH100-80GB")
    assert found.answer is not None
    assert (found.answer.model.layers, found.answer.model.hidden) == (32, 4096)


@pytest.mark.parametrize("start", ["deepspeed --module mine.trainers.text.rm", "python src/train/reward.py", "torchrun --nproc_per_node 8 rm.py --train_split train"])  # fmt: skip
def test_a_script_in_a_folder_of_trainers_trains(start: str) -> None:
    asked = _request_of(f"{start} --model_name_or_path {MODEL}\n")
    assert (asked["task"], asked["@model"]) == ("train", MODEL)


# ---- a script's own division, whatever starts its processes --------------------

HEAD = """\
import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype=torch.bfloat16{loads})
{wraps}
optimizer = torch.optim.AdamW(model.parameters())
for batch in loader:
    model(**batch).loss.backward()
    optimizer.step()
"""
OWN_DIVISION = {
    "fully_shard(model)": ("fsdp2", 3),
    "model = FSDP(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)": ("fsdp1", 2),
    "model = FullyShardedDataParallel(model)": ("fsdp1", 3),
    "model, *_ = deepspeed.initialize(model=model, config={'zero_optimization': {'stage': 2}})": ("deepspeed", 2),
    "model = DDP(model)": ("transformers", 0),
}  # fmt: skip
PROCESS_STARTS = (
    "torchrun --nnodes 4 --nproc_per_node 8 {}", "python -m torch.distributed.run --nproc_per_node 8 {}", "srun torchrun --nproc_per_node 8 {}",
    "accelerate launch --num_processes 8 {}", "accelerate launch --multi_gpu --num_processes 8 {}", "deepspeed --num_gpus 8 {}", "python {}",
)  # fmt: skip


def loop_text(wraps: str = "", loads: str = "", head: str = HEAD) -> str:
    return head.format(wraps=wraps, loads=loads)


@pytest.mark.parametrize("start", PROCESS_STARTS)
@pytest.mark.parametrize("wraps", OWN_DIVISION)
def test_a_launcher_leaves_a_scripts_own_division_as_it_is(tmp_path: Path, start: str, wraps: str) -> None:
    """Nothing that starts the processes divides a model that the script wraps itself."""
    text = loop_text(wraps).replace("from accelerate import Accelerator\n", "")
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "run.sh").write_text(start.format("train.py --batch_size 2") + "\n")
    alone = recognise_files({"train.py": text}, ())[0]["train.py"].request
    started = recognise_files({"run.sh": start.format("train.py")}, (), scripts={"train.py": text})[0]
    found = next((read for name, read in started.items() if name.endswith("train.py")), None)
    assert found is not None
    assert (
        (found.request["engine"], found.request["zero"])
        == (alone["engine"], alone["zero"])
        == OWN_DIVISION[wraps]
    )
    checked = memsheet.check(tmp_path / "run.sh", gpus="8xA100-80GB", seq_len=1024)
    assert not any("disagree" in rule.id for rule, _ in checked.mistakes)
    if wraps != "model = FSDP(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)":
        assert checked.answer is not None
        assert (checked.answer.plan.engine, int(checked.answer.plan.zero)) == OWN_DIVISION[wraps]


def test_a_launcher_makes_copies_of_what_divides_nothing() -> None:
    reads, _ = recognise_files(
        {"run.sh": "torchrun --nproc_per_node 8 train.py\n"}, (), scripts={"train.py": loop_text()}
    )
    (found,) = (read for name, read in reads.items() if name.endswith("train.py"))
    assert (found.request["engine"], found.request["zero"]) == ("transformers", 0)


UNREAD_DIVISION = {
    "a plugin": ("driver = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())", ""),
    "DeepSpeed's plugin": ("driver = Accelerator(deepspeed_plugin=DeepSpeedPlugin(zero_stage=3))", ""),
    "a plan of the loading call": ("", ', tp_plan="auto"'),
    "another package": ("from mine import divided\nmodel = divided(model)", ""),
    "of several results": ("import mine\nmodel, mesh = mine.divided(model, 8)", ""),
}


@pytest.mark.parametrize("how", UNREAD_DIVISION)
@pytest.mark.parametrize("start", ["torchrun --nproc_per_node 8", "python"])
def test_what_may_divide_the_model_unread_is_no_sure_failure(tmp_path: Path, how: str, start: str) -> None:
    wraps, loads = UNREAD_DIVISION[how]
    (tmp_path / "train.py").write_text(loop_text(wraps, loads).replace("0.5B", "32B"))
    (tmp_path / "run.sh").write_text(f"{start} train.py\n")
    found = memsheet.check(tmp_path / "run.sh", gpus="8xA100-80GB", seq_len=1024, microbatch=1)
    assert found.result is Result.UNCERTAIN
    assert "other_strategy" in str(found.doubt)


@pytest.mark.parametrize(
    "wraps", ["model = torch.compile(model)", "model = get_peft_model(model, LoraConfig(r=8))"]
)
def test_known_calls_divide_nothing(tmp_path: Path, wraps: str) -> None:
    text = loop_text(f"from peft import LoraConfig, get_peft_model\n{wraps}")
    (tmp_path / "train.py").write_text(text)
    found = memsheet.check(tmp_path / "train.py", gpus="1xA100-80GB", seq_len=1024, microbatch=1)
    assert "other_strategy" not in str(found.doubt)


CALLS_ALONE = """\"\"\"Starts it.\"\"\"
import os, sys
sys.path.append("./")
from own.train.train import train

if __name__ == "__main__":
    train()
"""


@pytest.mark.parametrize("call", ["train()", "train(attn_implementation='eager', steps=3)"])
def test_the_call_that_a_wrapper_makes_is_found(call: str) -> None:
    text = CALLS_ALONE.replace("train()", call)
    assert wrapped_call(text) == ("own/train/train.py", call)
    alias = text.replace("import train", "import train as run").replace(
        f"    {call}", f"    {call}".replace("train", "run")
    )
    assert wrapped_call(alias) == ("own/train/train.py", call)


@pytest.mark.parametrize(
    "text",
    [
        CALLS_ALONE.replace("train()", "train(steps=len(sys.argv))"),
        CALLS_ALONE.replace("if __name__", "from own.patch import patch\npatch()\n\nif __name__"),
        CALLS_ALONE.replace("if __name__", "lr = 1\nif __name__"),
        CALLS_ALONE.replace("from own.train.train", "from .train"),
        CALLS_ALONE.replace("    train()", "    main()"),
        CALLS_ALONE.replace("import os, sys", "x = ("),
        CALLS_ALONE + "#" * LONGEST_WRAPPER,
        "(" * 4000,
        "from a import a\n" + ".".join(["a"] * 1900) + "()",
        "",
    ],
)
def test_what_does_anything_itself_is_no_wrapper(text: str) -> None:
    assert wrapped_call(text) is None


CALLED = """
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

def train(attn=None):
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype="bfloat16", attn_implementation=attn)
    Trainer(model=model, args=args, train_dataset=rows).train()

if __name__ == "__main__":
    train()
"""
STARTS_IT = "deepspeed own/train/{}.py --bf16 True --per_device_train_batch_size 2 --output_dir out\n"


@pytest.mark.parametrize(("call", "attention"), [("train()", "sdpa"), ("train(attn='eager')", "eager")])
def test_a_started_wrapper_is_the_job_of_its_module(call: str, attention: str, tmp_path: Path) -> None:
    folder = tmp_path / "own" / "train"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(CALLED)
    (folder / "train_mem.py").write_text(CALLS_ALONE.replace("train()", call))
    found = []
    for name in ("train", "train_mem"):
        (tmp_path / "run.sh").write_text(STARTS_IT.format(name))
        found.append(memsheet.check(tmp_path / "run.sh", gpus="1xA100-80GB", seq_len=512))
    straight, wrapped = (one.answer for one in found)
    assert straight is not None
    assert wrapped is not None
    assert wrapped.plan.attention.value == attention
    assert replace(wrapped.plan, attention=straight.plan.attention) == straight.plan
    assert found[0].doubt == found[1].doubt
