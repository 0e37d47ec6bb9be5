"""Scripts with a loop of their own, and commands whose flags are read by their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.errors import InputError
from memsheet.exchange.shared.written_files import written_files
from memsheet.questions.recognised_files import recognise_files

HEAD = """import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
"""
LOOP = """
for batch in loader:
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
"""


def request_of(text: str, name: str = "train.py", **scripts: str) -> dict[str, Any]:
    """All that is read of a text, as keys of a plan."""
    reads, _ = recognise_files({name: text}, (), scripts={f"{at}.py": held for at, held in scripts.items()})
    return {key: held for read in reads.values() for key, held in read.request.items()}


def of_loop(before: str) -> dict[str, Any]:
    return request_of(f"{HEAD}{before}{LOOP}")


def test_constants_calls_and_keywords_are_read() -> None:
    found = of_loop("""
MODEL, BATCH_SIZE = "Qwen/Qwen2.5-0.5B", 4
model = AutoModelForCausalLM.from_pretrained(MODEL, torch_dtype=torch.bfloat16, attn_implementation="sdpa")
model.gradient_checkpointing_enable()
rows = tokenizer(texts, truncation=True, max_length=1024)
loader = DataLoader(rows, batch_size=BATCH_SIZE)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
""")
    assert {
        "@model": "Qwen/Qwen2.5-0.5B", "microbatch": 4, "seq_len": 1024, "recompute.mode": "full", "optimizer.name": "adamw",
        "optimizer.implementation": "fused", "precision.parameters": "bf16", "precision.compute": "bf16", "attention": "sdpa", "task": "train",
    }.items() <= found.items()  # fmt: skip


@pytest.mark.parametrize(
    ("wrap", "engine", "zero"),
    [
        ("model = FSDP(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)", "fsdp1", 2),
        ("model = FullyShardedDataParallel(model)", "fsdp1", 3),
        ("fully_shard(model, reshard_after_forward=False)", "fsdp2", 2),
        ("model = DDP(model)", "transformers", 0),
        ("engine, *_ = deepspeed.initialize(model=model, config={'zero_optimization': {'stage': 2}})", "deepspeed", 2),
    ],
)  # fmt: skip
def test_the_wrapper_says_the_engine(wrap: str, engine: str, zero: int) -> None:
    found = of_loop(f'model = AutoModelForCausalLM.from_pretrained("gpt2")\n{wrap}\n')
    assert (found["engine"], found["zero"]) == (engine, zero)


@pytest.mark.parametrize(
    ("line", "compute"),
    [
        ("with torch.autocast('cuda', dtype=torch.bfloat16): pass", "bf16"), ("with torch.cuda.amp.autocast(): pass", "fp16"),
        ("accelerator = Accelerator(mixed_precision='bf16')", "bf16"), ("with torch.autocast('cuda', enabled=False): pass", None),
    ],
)  # fmt: skip
def test_autocast_is_what_is_computed_in(line: str, compute: str | None) -> None:
    found = of_loop(f'model = AutoModelForCausalLM.from_pretrained("gpt2")\n{line}\n')
    assert found.get("precision.compute") == compute


def test_a_flag_of_a_command_stands_before_the_script_s_own_default() -> None:
    script = f"""{HEAD}
parser.add_argument("--model_name", default="gpt2")
parser.add_argument("--batch_size", type=int, default=2)
parser.add_argument("--gradient_checkpointing", action="store_true")
args = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained(args.model_name)
if args.gradient_checkpointing:
    model.gradient_checkpointing_enable()
loader = DataLoader(rows, batch_size=args.batch_size)
{LOOP}"""
    alone = request_of(script)
    assert (alone["@model"], alone["microbatch"], alone["recompute.mode"]) == ("gpt2", 2, "none")
    command = "torchrun --nproc_per_node 4 train.py --batch_size 8 --gradient_checkpointing\n"
    found = request_of(command, "run.sh", train=script)
    assert (found["@model"], found["microbatch"], found["recompute.mode"]) == ("gpt2", 8, "full")
    assert found["@gpus"] == 4


def test_flags_alone_are_read_by_their_names_and_that_is_a_doubt(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "python my_finetune.py --model_name Qwen/Qwen2.5-0.5B --batch_size 2 --max_length 512 --lr 1e-5\n"
    )
    checked = memsheet.check(tmp_path / "run.sh", gpus="1xH100-80GB")
    assert checked.answer is not None
    assert checked.answer.plan.training.microbatch == 2
    assert "--max-length" in checked.doubt


def test_what_neither_trains_nor_generates_is_no_job() -> None:
    with pytest.raises(InputError, match="is not there"):
        recognise_files({"run.sh": "python convert_weights.py --model a/b --out c\n"}, ())


def test_generation_has_whole_weights_in_each_process() -> None:
    found = request_of("python run_generation.py --model gpt2 --batch-size 8 --max_new_tokens 32\n", "run.sh")
    assert (found["task"], found["serving.max_sequences"], found["serving.output_tokens"]) == ("infer", 8, 32)
    assert found["mesh.tp"] == 1


def test_a_configuration_that_a_script_writes_itself_is_read() -> None:
    text = """BATCH=8
cat > "out/ds.json" << EOF
{"train_batch_size": $BATCH, "zero_optimization": {"stage": 3}}
EOF
deepspeed --num_gpus 2 train.py --deepspeed_config=out/ds.json --model_name gpt2 --lr 1e-4
"""
    assert written_files(text) == {
        "out/ds.json": '{"train_batch_size": 8, "zero_optimization": {"stage": 3}}\n'
    }
    found = request_of(text, "run.sh")
    assert (found["zero"], found["global_batch"], found["@gpus"], found["engine"]) == (3, 8, 2, "deepspeed")
    quoted = 'cat <<\'EOF\' > a.json\n{"x": "$BATCH"}\nEOF\n'
    assert written_files(quoted) == {"a.json": '{"x": "$BATCH"}\n'}
    assert written_files("cat > a.json << EOF\nnever ended\n") == {}


def test_a_job_of_one_process_is_of_one_card_where_the_named_ones_cannot_run_it(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"train_batch_size": 4, "zero_optimization": {"stage": 1}}')
    (tmp_path / "run.sh").write_text(
        "deepspeed --num_gpus=1 train.py --deepspeed_config ds.json --model_name gpt2 --batch_size 4\n"
    )
    checked = memsheet.check(tmp_path / "run.sh", gpus="8xH100-80GB")
    assert any("as many as the files are for" in one for one in checked.assumed)


def test_a_class_of_arguments_is_read_at_its_defaults() -> None:
    found = request_of(f"""{HEAD}
from dataclasses import dataclass, field
@dataclass
class ModelArguments:
    model_name_or_path: str = field(default="facebook/opt-125m")
@dataclass
class TrainingArguments(transformers.TrainingArguments):
    per_device_train_batch_size: int = field(default=3)
parser = transformers.HfArgumentParser((ModelArguments, TrainingArguments))
model_args, training_args = parser.parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path)
trainer = Trainer(model=model, args=training_args)
""")
    assert (found["@model"], found["microbatch"]) == ("facebook/opt-125m", 3)


def test_two_names_of_one_assignment_and_a_switch_of_the_file_s_own() -> None:
    found = of_loop("""
model_id, output_dir = "Qwen/Qwen2.5-0.5B", "out"
LONG = False
if LONG:
    MAX_LEN = 8192
else:
    MAX_LEN = 256
model = AutoModelForCausalLM.from_pretrained(model_id)
rows = tokenizer(texts, max_length=MAX_LEN)
""")
    assert (found["@model"], found["seq_len"]) == ("Qwen/Qwen2.5-0.5B", 256)


def test_a_loop_whose_model_another_file_loads_names_none() -> None:
    text = """import deepspeed, transformers
model = create_model(AutoModelForCausalLM, args.model_name_or_path)
engine, *_ = deepspeed.initialize(model=model, config=make_config())
loader = DataLoader(rows, batch_size=4)
engine.backward(loss)
"""
    found = request_of(text)
    assert (found.get("@model"), found["engine"], found["microbatch"]) == (None, "deepspeed", 4)


FED = """import deepspeed, transformers
parser.add_argument("--batch_size", type=int, required=True)
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
loader = DataLoader(rows, batch_size=1)
engine, _, loader, _ = deepspeed.initialize(args=args, model=model, training_data=rows)
engine.backward(loss)
"""


def test_rows_of_a_loader_that_deepspeed_makes_are_those_of_its_configuration() -> None:
    command = "deepspeed --num_gpus 2 train.py --model_name a/b --batch_size 8 --deepspeed_config ds.json"
    assert "microbatch" not in request_of(FED)
    assert "microbatch" not in request_of(command, "run.sh", train=FED)
    assert request_of(command, "run.sh", train=FED.replace(", training_data=rows", ""))["microbatch"] == 8


def test_a_sequence_that_several_cards_share_is_told() -> None:
    flag = 'parser.add_argument("--sp_size", type=int, default=2)'
    text = f'{HEAD}{flag}\nmodel = AutoModelForCausalLM.from_pretrained("a/b"){LOOP}'
    reads, _ = recognise_files({"train.py": text}, ())
    assert ("loop.sequence", 2) in reads["train.py"].unmodelled
    reads, _ = recognise_files({"train.py": text.replace("default=2", "default=1")}, ())
    assert not any(at == "loop.sequence" for at, _ in reads["train.py"].unmodelled)


def test_an_example_without_the_trainer_has_not_its_defaults() -> None:
    command = "python run_clm_no_trainer.py --model_name_or_path gpt2 --per_device_train_batch_size 2"
    reads, _ = recognise_files({"run.sh": f"{command} --num_train_epochs 1"}, ())
    (read,) = reads.values()
    assert (read.form.name, read.request["microbatch"], read.request.get("optimizer.name")) == (
        "pytorch",
        2,
        None,
    )


@pytest.mark.parametrize(
    "cast", ["model.bfloat16()", "model.to(torch.bfloat16)", "model.to('cuda', dtype=torch.bfloat16)"]
)
def test_a_model_that_is_cast_as_a_whole_has_that_dtype(cast: str) -> None:
    found = of_loop(f'model = AutoModelForCausalLM.from_pretrained("gpt2")\nmodel = {cast}\n')
    assert {found[f"precision.{key}"] for key in ("parameters", "gradients", "compute")} == {"bf16"}


DISTILLS = """import torch, torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer
teacher = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B", torch_dtype=torch.bfloat16).cuda()
{student}
opt = torch.optim.AdamW(student.parameters())
for b in torch.utils.data.DataLoader(rows, batch_size=2):
    loss = F.kl_div(student(**b).logits.log_softmax(-1), teacher(**b).logits.softmax(-1))
    loss.backward(); opt.step()
"""
LOADED = 'AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype=torch.bfloat16)'


@pytest.mark.parametrize(
    "student",
    [
        f"student = {LOADED}",
        f"base = {LOADED}\nstudent = get_peft_model(base, LoraConfig(r=8))",
        f"def load():\n    return {LOADED}\nstudent = load()",
    ],
)
def test_a_model_beside_the_one_that_trains_is_in_the_range(student: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DISTILLS.format(student=student))
    found = memsheet.check(tmp_path / "train.py", gpus="1xA100-80GB", seq_len=256)
    assert found.answer is not None
    assert found.answer.verdict is not None
    assert found.answer.model.name == "qwen2.5-0.5b"
    assert found.answer.verdict.result.name == "UNCERTAIN"
    assert "teacher = Qwen/Qwen2.5-7B" in found.doubt
    assert found.answer.verdict.device.high > 7.6e9 * 2


def test_a_model_that_is_loaded_once_the_training_is_over_is_beside_none() -> None:
    text = DISTILLS.format(student=f"student = {LOADED}").split("\n")
    text[2], late = "", text[2].replace("teacher", "merged")
    reads, _ = recognise_files({"train.py": "\n".join((*text, late))}, ())
    assert "script.further_models" not in reads["train.py"].values


@pytest.mark.parametrize(
    "rows",
    [
        "loader = DataLoader(rows, 8, shuffle=True)",
        "B = 8\nfor i in range(0, len(rows), B):\n    tok(rows[i : i + B], max_length=64)",
    ],
)
def test_rows_of_a_batch_are_found_however_they_are_cut(rows: str) -> None:
    found = of_loop(f'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")\n{rows}\n')
    assert found["microbatch"] == 8


def test_a_batch_that_no_text_says_keeps_the_verdict_unsure(tmp_path: Path) -> None:
    model = 'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")\n'
    (tmp_path / "train.py").write_text(f"{HEAD}{model}{LOOP}")
    found = memsheet.check(tmp_path / "train.py", gpus="1xA100-80GB", seq_len=64)
    assert found.answer is not None
    assert found.answer.verdict is not None
    assert found.answer.verdict.result.name == "UNCERTAIN"
    assert "micro-batch" in found.doubt


@pytest.mark.parametrize(
    ("wrap", "offloads"),
    [
        ("fully_shard(model, offload_policy=CPUOffloadPolicy())", True),
        ("how = dict(offload_policy=CPUOffloadPolicy())\nfully_shard(model, **how)", True),
        ("model = FSDP(model, cpu_offload=CPUOffload(offload_params=True))", True),
        ("model = FSDP(model, cpu_offload=CPUOffload(offload_params=False))", False),
    ],
)
def test_a_policy_of_sharding_that_keeps_states_on_the_host_is_read(wrap: str, offloads: bool) -> None:
    imports = "from torch.distributed.fsdp import CPUOffload, CPUOffloadPolicy, fully_shard\n"
    model = 'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")\n'
    found = of_loop(f"{imports}{model}{wrap}\n")
    assert (found.get("offload.parameters"), found.get("offload.optimizer")) == (
        (1, 1) if offloads else (None, None)
    )


@pytest.mark.parametrize(
    "freezes", ["for p in model.parameters():\n    p.requires_grad = False", "model.requires_grad_(False)"]
)
def test_a_model_of_which_parts_are_frozen_may_need_its_weights_alone(freezes: str, tmp_path: Path) -> None:
    model = (
        'model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B", torch_dtype=torch.bfloat16)'
    )
    text = f"{HEAD}{model}\n{freezes}\nopt = torch.optim.AdamW(model.parameters())\n"
    (tmp_path / "train.py").write_text(f"{text}loader = DataLoader(rows, batch_size=1)\n{LOOP}")
    of_one = memsheet.check(tmp_path / "train.py", gpus="1xRTX4090", seq_len=64)
    of_more = memsheet.check(tmp_path / "train.py", gpus="1xH200", seq_len=64)
    results = [
        found.answer.verdict.result.name
        for found in (of_one, of_more)
        if found.answer and found.answer.verdict
    ]
    assert results == ["UNCERTAIN", "FITS"]
    assert "script.frozen" in of_one.doubt


TRAINER = """from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments
{model}
Trainer(model=model, args=TrainingArguments("o", per_device_train_batch_size=1), train_dataset=None).train()
"""
WIDE = 'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype=torch.float32)'


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        (f"{WIDE}\nmodel = model.bfloat16().cuda()", "bf16"),
        (f"{WIDE}\nmodel.half()", "fp16"),
        (f"{WIDE}\nmodel = model.to(torch.bfloat16)", "bf16"),
        (
            'model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("Qwen/Qwen2.5-0.5B"))',
            "bf16",
        ),
    ],
)
def test_a_model_has_the_dtype_of_its_cast_or_of_its_configuration(
    model: str, dtype: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TRAINER.format(model=model))
    found = memsheet.check(tmp_path / "train.py", gpus="1xA100-80GB", seq_len=64)
    assert found.answer is not None
    assert found.answer.plan.precision.parameters.name == dtype


def test_a_value_of_a_table_of_words_is_read_by_its_word() -> None:
    table = 'config = {"bs": 2, "len": 2048}\n'
    model = 'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")\n'
    cut = 'rows = rows.map(lambda e: tok(e["text"], max_length=config["len"], truncation=True))\n'
    found = of_loop(f'{table}{model}{cut}loader = DataLoader(rows, batch_size=config["bs"])\n')
    assert (found["microbatch"], found["seq_len"]) == (2, 2048)


OWN_CLASS = """import transformers
from dataclasses import dataclass, field
@dataclass
class Arguments(transformers.TrainingArguments):
    model_max_length: int = field(default=512)
    use_mine: bool = False
args = transformers.HfArgumentParser(Arguments).parse_args_into_dataclasses()[0]
model = transformers.AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
transformers.Trainer(model=model, args=args, train_dataset=None).train()
"""


def test_fields_of_a_scripts_own_arguments_are_no_strange_keys() -> None:
    reads, _ = recognise_files({"train.py": OWN_CLASS}, ())
    assert (reads["train.py"].unknown, reads["train.py"].request["seq_len"]) == ((), 512)


REPLICATED = f"""{HEAD}
model = AutoModelForCausalLM.from_pretrained("gpt2", torch_dtype=torch.float32)
model = torch.nn.DataParallel(model).cuda()
optimizer = torch.optim.AdamW(model.parameters())
rows = tokenizer(texts, truncation=True, max_length=512)
loader = DataLoader(rows, batch_size=32)
{LOOP}"""


def test_one_process_divides_its_batch_and_the_first_card_gathers(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(REPLICATED)
    checked = memsheet.check(file, gpus="4xA100-80GB")
    assert checked.answer
    assert checked.answer.plan.training.microbatch == 8
    (moved,) = checked.moved
    assert (moved.at, moved.low_bytes < 0, moved.high_bytes > 4 * 32 * 512 * 50257) == (
        "nn.DataParallel",
        True,
        True,
    )
    of_one = memsheet.check(file, gpus="1xA100-80GB")
    assert of_one.answer
    assert of_one.answer.plan.training.microbatch == 32
    assert not of_one.moved


def test_listed_devices_are_as_many_parts_of_a_batch(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(REPLICATED.replace("DataParallel(model)", "DataParallel(model, device_ids=[0, 1])"))
    checked = memsheet.check(file, gpus="4xA100-80GB")
    assert checked.answer
    assert checked.answer.plan.training.microbatch == 16


def test_python_alone_makes_the_trainer_replicate_in_one_process(tmp_path: Path) -> None:
    flags = "--model_name_or_path gpt2 --block_size 512 --per_device_train_batch_size 4 --bf16"
    for start, told in (
        ("python", True),
        ("CUDA_VISIBLE_DEVICES=0,1 python", True),
        ("torchrun --nproc_per_node 2", False),
    ):
        file = tmp_path / "run.sh"
        file.write_text(f"{start} run_clm.py {flags}\n")
        checked = memsheet.check(file, gpus="2xA100-80GB")
        assert checked.answer
        assert any(one.at == "nn.DataParallel" for one in checked.moved) is told


def test_a_script_that_may_be_started_either_way_may_gather(tmp_path: Path) -> None:
    either = "model = torch.nn.DataParallel(model)\nif rank != -1:\n    model = DDP(model)\n"
    text = REPLICATED.replace("model = torch.nn.DataParallel(model).cuda()\n", either)
    (tmp_path / "train.py").write_text(text)
    alone = memsheet.check(tmp_path / "train.py", gpus="4xA100-80GB")
    assert alone.answer
    assert alone.answer.plan.training.microbatch == 32
    assert [one.at for one in alone.moved] == ["nn.DataParallel"]
    (tmp_path / "run.sh").write_text("torchrun --nproc_per_node 4 train.py\n")
    assert not memsheet.check(tmp_path / "run.sh", gpus="4xA100-80GB").moved
