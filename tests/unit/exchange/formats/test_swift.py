"""ms-swift's commands: what its own words and defaults come to, over both of its programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import memsheet
from memsheet.cli import main
from memsheet.exchange.file_texts import TRAINS_TOO, read_text
from memsheet.exchange.shared.file_format import FileReading
from memsheet.guard import parse_json, parse_yaml

LORA = """NPROC_PER_NODE=2 \\
swift sft \\
    --model Qwen/Qwen2.5-7B-Instruct \\
    --dataset org/data#500 \\
"""
MEGATRON = "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen2.5-7B-Instruct --max_length 2048 "


PARSERS = {"json": parse_json, "yaml": parse_yaml}


def reading(text: str) -> FileReading:
    return read_text("train.sh", text, PARSERS)


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ("", {"microbatch": 1, "recompute.mode": "full", "adapter.rank": 8, "adapter.targets": ["all"], "@gpus": 2, "@accumulation": 8}),
        ("--per_device_train_batch_size 4", {"microbatch": 4, "@accumulation": 2}),
        ("--gradient_accumulation_steps $(expr 32 / 8)", {"@accumulation": 4}),
        ("--max_length 2048 --packing true", {"seq_len": 2048}),
        ("--tuner_type full", {"adapter.rank": None, "precision.parameters": "bf16", "precision.compute": "bf16"}),
        ("--train_type full", {"adapter.rank": None}),
        ("--lora_rank 16 --target_modules q_proj v_proj", {"adapter.rank": 16, "adapter.targets": ["q_proj", "v_proj"]}),
        ("--deepspeed zero2", {"engine": "deepspeed", "zero": 2, "adapter.dtype": None}),
        ("--deepspeed zero3_offload", {"zero": 3, "offload.optimizer": 1, "offload.parameters": 1}),
        ("--quant_method bnb --quant_bits 4", {"quantization.weights": "nf4", "quantization.double_quant": True}),
        ("--gradient_checkpointing false --attn_impl flash_attn", {"recompute.mode": "none", "attention": "flash"}),
        ("--use_liger_kernel true", {"loss": "fused"}),
    ],
)  # fmt: skip
def test_its_words_and_defaults(more: str, wanted: dict) -> None:
    found = reading(LORA + f"    {more}\n")
    assert found.form.name == "swift"
    assert found.request["@model"] == "Qwen/Qwen2.5-7B-Instruct"
    assert found.unknown == ()
    assert {key: found.request.get(key) for key in wanted} == wanted


def test_flags_after_a_data_sets_number_are_read() -> None:
    """``#500`` inside a word begins no comment."""
    assert reading(LORA + "    --lora_rank 32\n").request["adapter.rank"] == 32


@pytest.mark.parametrize(
    ("more", "weights"),
    [
        ("--quant_bits 4", None), ("--quant_bits 4 --quant_method bnb", "nf4"), ("--quant_bits 4 --tuner_backend unsloth", "nf4"),
        ("--quant_bits 8 --quant_method bnb", "int8"), ("--quant_bits 4 --quant_method hqq", "hqq 4"),
    ],
)  # fmt: skip
def test_bits_without_a_method_quantize_nothing(more: str, weights: str | None) -> None:
    assert reading(f"{LORA}    {more}").request.get("quantization.weights") == weights


@pytest.mark.parametrize(
    ("command", "rounds"),
    [("swift sft", 16), ("swift rlhf --rlhf_type dpo", 16), ("swift rlhf --rlhf_type grpo", 1), ("swift rlhf --rlhf_type gkd", 16)],
)  # fmt: skip
def test_a_step_of_grpo_is_one_round(command: str, rounds: int) -> None:
    assert reading(f"{command} --model Qwen/Qwen2.5-7B-Instruct").request["@accumulation"] == rounds


@pytest.mark.parametrize(
    ("more", "wanted", "told"),
    [
        ("--deepspeed ./ds.json", {"engine": "deepspeed", "zero": None}, ""),
        ("""--deepspeed '{"zero_optimization":{"stage":2}}'""", {"engine": "deepspeed", "zero": None}, "deepspeed (a"),
        ("--fsdp fsdp2 --gradient_checkpointing false", {"engine": "fsdp2", "zero": 3, "recompute.mode": "full"}, ""),
        ("--fsdp ./own.json --gradient_checkpointing false", {"engine": "fsdp2", "recompute.mode": "none"}, "fsdp (a file"),
        ("--gradient_checkpointing false", {"engine": None, "recompute.mode": "none"}, ""),
    ],
)  # fmt: skip
def test_an_engine_that_a_file_of_ones_own_says_is_no_default(more: str, wanted: dict, told: str) -> None:
    found = reading(f"{LORA}    {more}\n")
    assert {key: found.request.get(key) for key in wanted} == wanted
    assert [at[: len(told)] for at, _ in found.unmodelled] == ([told] if told else [])


def test_a_deepspeed_file_is_read_with_the_command_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}')
    (tmp_path / "run.sh").write_text(LORA + "    --tuner_type full --deepspeed ./ds.json\n")
    found = memsheet.check(tmp_path / "run.sh", gpus="2xH100-80GB", seq_len=1024).answer
    assert found is not None
    assert (found.plan.engine, found.plan.zero, found.plan.precision.parameters.name) == (
        "deepspeed",
        3,
        "bf16",
    )


@pytest.mark.parametrize(
    ("more", "length"),
    [
        ("--packing true --packing_length 16384", 16384),
        ("--packing true", 4096),
        ("--packing_length 16384", 4096),
    ],
)
def test_packed_rows_have_their_own_length(more: str, length: int) -> None:
    assert reading(f"{LORA}    --max_length 4096 {more}").request["seq_len"] == length


@pytest.mark.parametrize(
    ("more", "compute"),
    [("", "bf16"), ("--torch_dtype float16", "fp16"), ("--torch_dtype float32", "fp16"), ("--torch_dtype float32 --bf16 true --fp16 false", "bf16")],
)  # fmt: skip
def test_switches_of_mixed_precision_go_before_the_dtype(more: str, compute: str) -> None:
    found = reading(f"{LORA}    --tuner_type full {more}")
    assert (found.request["precision.compute"], found.unknown) == (compute, ())


@pytest.mark.parametrize(
    ("started", "processes", "spread"),
    [
        ("CUDA_VISIBLE_DEVICES=0,1,2,3 torchrun --nproc_per_node=4 --nnodes=2 swift/cli/sft.py", (4, 8), None),
        ("deepspeed --num_gpus 4 swift/cli/sft.py", (4, 4), None),
        ("accelerate launch --num_processes 8 --num_machines 2 swift/cli/sft.py", (4, 8), None),
        ("CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=2 swift sft", (2, 2), None),
        ("CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=2 swift sft", (2, 2), 2),
        ("CUDA_VISIBLE_DEVICES=0,1 swift sft", (None, None), 2),
        ("CUDA_VISIBLE_DEVICES=0 swift sft", (None, None), None),
        ("CUDA_VISIBLE_DEVICES=0,1 accelerate launch --config_file own.yaml swift/cli/sft.py", (None, None), None),
    ],
)  # fmt: skip
def test_processes_are_those_of_what_starts_it(
    started: str, processes: tuple[int, int], spread: int | None
) -> None:
    found = reading(f"{started} --model Qwen/Qwen2.5-7B-Instruct")
    assert (found.request.get("@per_node"), found.request.get("@gpus")) == processes
    assert [held for at, held in found.unmodelled if at.startswith("device_map")] == [spread] * bool(spread)


def test_a_launcher_says_the_sharding_of_the_file_that_it_starts(tmp_path: Path) -> None:
    (tmp_path / "fsdp.json").write_text(
        '{"distributed_type": "FSDP", "num_processes": 2, "fsdp_config": {"fsdp_version": 2}}'
    )
    started = "accelerate launch --config_file fsdp.json swift/cli/sft.py --model Qwen/Qwen2.5-7B-Instruct"
    (tmp_path / "run.sh").write_text(f"{started} --tuner_type lora")
    found = memsheet.check(tmp_path / "run.sh", gpus="2xH100-80GB", seq_len=1024).answer
    assert found is not None
    assert (found.plan.engine, found.plan.zero) == ("fsdp2", 3)


def test_the_trainers_own_arguments_are_known_and_those_with_bytes_told() -> None:
    plain = reading(
        f"{LORA}    --warmup_steps 10 --tf32 true --train_dataloader_shuffle false --callbacks_dir x"
    )
    assert [at for at, _ in plain.unknown] == ["callbacks_dir"]
    told = reading(f"{LORA}    --torch_compile true --callbacks lisa --auto_find_batch_size true")
    assert {at for at, _ in told.unmodelled} == {"torch_compile", "callbacks", "auto_find_batch_size"}


def test_a_prompt_with_signs_of_a_shell_ends_no_command() -> None:
    prompt = 'PROMPT="Show your work:\n<think> ... </think>\n#### 42"\n'
    found = reading(f'{prompt}{LORA}    --system "$PROMPT" \\\n    --deepspeed zero3 > train.log\n')
    assert (found.request["zero"], found.unknown) == (3, ())


@pytest.mark.parametrize("method", ["grpo", "dpo", "kto"])
def test_another_method_is_told(method: str) -> None:
    found = reading(LORA.replace("sft", "rlhf") + f"    --rlhf_type {method}\n")
    assert ("$.method", method) in found.unmodelled


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ("", {"microbatch": 1, "global_batch": 16, "zero": 1, "precision.parameters": "bf16", "dropout": 0.0, "recompute.mode": "selective"}),
        ("--tensor_model_parallel_size 4 --sequence_parallel true", {"mesh.tp": 4, "sequence_parallel": True, "vocab_multiple": 512}),
        ("--recompute_granularity full --recompute_method uniform --recompute_num_layers 1", {"recompute.mode": "full"}),
        ("--tuner_type lora", {"adapter.rank": 8, "adapter.targets": ["all-linear"]}),
        ("--expert_model_parallel_size 4", {"mesh.ep": 4, "mesh.etp": 1, "moe.dispatch": "alltoall"}),
    ],
)  # fmt: skip
def test_over_megatron_its_own_defaults(more: str, wanted: dict) -> None:
    found = reading(MEGATRON + more)
    assert (found.form.name, found.request["seq_len"]) == ("swift-megatron", 2048)
    assert {key: found.request.get(key) for key in wanted} == wanted
    assert "$.dispatcher" not in dict(found.unmodelled)
    assert "adapter.rank" in wanted or "adapter.rank" not in found.request


@pytest.mark.parametrize(
    ("more", "length"),
    [
        ("--rlhf_type dpo", 2048), ("--rlhf_type grpo", 2560), ("--rlhf_type gkd --max_completion_length 1024", 3072),
        ("--rlhf_type ppo --response_length 256", 2304),
        ("--rlhf_type grpo --use_vllm true --vllm_mode colocate --vllm_max_model_len 2100", 2100),
        ("--rlhf_type grpo --use_vllm true --vllm_mode server --vllm_max_model_len 2100", 2560),
    ],
)  # fmt: skip
def test_an_answer_comes_behind_the_prompt_where_the_method_generates(more: str, length: int) -> None:
    found = reading(f"swift rlhf --model Qwen/Qwen2.5-7B-Instruct --max_length 2048 {more}")
    assert (found.request["seq_len"], found.request["?seq_len_kind"]) == (length, "maximum")


@pytest.mark.parametrize(
    "text", [LORA, MEGATRON, LORA + "    --a_key_of_tomorrow 1\n", MEGATRON + "--a_key_of_tomorrow 1"]
)
def test_a_command_gives_a_sheet_and_never_stops(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.sh").write_text(text)
    main(["check", str(tmp_path / "train.sh"), "--gpus", "8xH100-80GB", "--seq-len", "1024", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["starts"]
    assert found.get("sheet"), found["why_not"]


@pytest.mark.parametrize(
    ("more", "loss"),
    [("", "fused"), ("--loss_scale last_round", "fused"), ("--loss_scale react", "plain"), ("--enable_dft_loss true", "plain")],
)  # fmt: skip
def test_liger_makes_no_loss_where_the_trainer_weighs_tokens(more: str, loss: str) -> None:
    assert reading(f"{LORA}    --use_liger_kernel true {more}").request["loss"] == loss


def test_a_script_that_trains_beside_its_server_is_read_as_the_training(tmp_path: Path) -> None:
    serves = "swift rollout --model Qwen/Qwen3-1.7B --vllm_max_model_len 4096\n"
    trains = "swift rlhf --rlhf_type grpo --model Qwen/Qwen3-1.7B --use_vllm true --vllm_mode server\n"
    for text, trained in ((serves, False), (serves + trains, True)):
        (tmp_path / "run.sh").write_text(text)
        found = memsheet.check(tmp_path / "run.sh", gpus="1xA100-80GB")
        assert found.answer is not None
        assert bool(found.answer.job) is trained
        assert any("swift rollout of run.sh" in line for line in found.assumed) is trained


def test_a_server_that_is_asked_about_is_read_beside_a_training() -> None:
    serves = "swift rollout --model Qwen/Qwen3-1.7B --vllm_max_model_len 4096\n"
    for program in ("swift", "megatron"):
        trains = f"{program} rlhf --rlhf_type grpo --model Qwen/Qwen3-1.7B --vllm_mode server\n"
        found = read_text(
            "run.sh", serves + trains, {"yaml": parse_yaml, "json": parse_json}, "swift rollout"
        )
        assert found.unmodelled == (TRAINS_TOO,)


FILE = """model: Qwen/Qwen2.5-7B-Instruct
tuner_type: lora
target_modules: [q_proj, v_proj]
per_device_train_batch_size: 2
max_length: 1024
deepspeed: zero2
"""
OVER_MEGATRON = """ENV:
  NPROC_PER_NODE: '4'
model: Qwen/Qwen3-8B
tuner_type: lora
micro_batch_size: 2
max_length: 1024
"""
RAY = """rlhf_type: grpo
model: Qwen/Qwen3-8B
micro_batch_size: 2
max_length: 1024
colocate_groups: [[train, rollout]]
train:
  gpus: 4
  tuner_type: lora
  tensor_model_parallel_size: 2
rollout:
  gpus: 4
  vllm_tensor_parallel_size: 2
"""
RANKS = """use_ray: true
device_groups:
  nproc_per_node: 4
  default: {device: GPU, ranks: 'list(range(0, 4))', workers: [default]}
"""


@pytest.mark.parametrize(
    ("text", "form", "wanted"),
    [
        (FILE, "swift", {"engine": "deepspeed", "zero": 2, "microbatch": 2, "adapter.rank": 8, "seq_len": 1024}),
        (FILE + RANKS, "swift", {"@gpus": 4}),
        (json.dumps({"model": "Qwen/Qwen3-8B", "tuner_type": "full", "max_length": 64}), "swift", {"seq_len": 64}),
        (OVER_MEGATRON, "swift-megatron", {"@gpus": 4, "microbatch": 2, "adapter.rank": 8, "seq_len": 1024}),
        (RAY, "swift-megatron", {"@gpus": 4, "mesh.tp": 2, "adapter.rank": 8}),
    ],
)  # fmt: skip
def test_a_file_in_place_of_flags_is_read_with_the_same_rows(text: str, form: str, wanted: dict) -> None:
    found = read_text("job.json" if text[0] == "{" else "job.yaml", text, PARSERS)
    assert found.form.name == form
    assert {key: found.request.get(key) for key in wanted} == wanted
    assert not found.unknown
    assert ("colocate_groups" in dict(found.unmodelled)) is (text == RAY)


@pytest.mark.parametrize("said", ["sft conf/job.yaml", "sft --config $(dirname $0)/conf/job.yaml"])
def test_flags_go_over_the_file_that_a_command_names(said: str, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "job.yaml").write_text(FILE)
    (tmp_path / "run.sh").write_text(f"NPROC_PER_NODE=2 swift {said} --max_length 512\n")
    found = memsheet.check(tmp_path / "run.sh", gpus="2xA100-80GB")
    assert found.answer is not None
    plan = found.answer.plan
    assert (plan.training.seq_len, plan.engine, plan.zero) == (512, "deepspeed", 2)
    assert not any(read.unknown for read in found.reads.values())


def test_files_of_other_trainers_stay_theirs() -> None:
    other = "model_name_or_path: Qwen/Qwen3-8B\nper_device_train_batch_size: 2\nbf16: true\n"
    assert read_text("args.yaml", other, PARSERS).form.name == "transformers"


def checked_over_megatron(more: str, tmp_path: Path, **options: object) -> memsheet.Checked:
    (tmp_path / "train.sh").write_text(f"{MEGATRON}{more}\n")
    return memsheet.check(tmp_path / "train.sh", **options)


@pytest.mark.parametrize(("packing", "result"), [("true", "does_not_fit"), ("false", "uncertain")])
def test_rows_over_megatron_may_stay_below_their_limit_unless_they_are_packed(
    packing: str, result: str, tmp_path: Path
) -> None:
    """A batch of short rows was told not to fit: rows are filled up to the longest of them alone."""
    more = f"--tensor_model_parallel_size 4 --micro_batch_size 32 --global_batch_size 64 --packing {packing}"
    found = checked_over_megatron(more, tmp_path, gpus="8xA100-40GB")
    assert found.result is not None
    assert found.result.value == result
    assert ("rows are counted with the 2,048 tokens" in found.doubt) == (packing == "false")


EXPERTS = (
    "--model Qwen/Qwen3-30B-A3B --tensor_model_parallel_size 2 --expert_model_parallel_size 2 "
    "--pipeline_model_parallel_size 2 --sequence_parallel true --recompute_granularity full "
    "--recompute_method uniform --recompute_num_layers 1 --packing true "
)


@pytest.mark.parametrize(
    ("more", "result", "told"),
    [
        ("", "uncertain", True),
        ("--expert_tensor_parallel_size 1", "does_not_fit", False),
        ("--expert_tensor_parallel_size 2", "fits", False),
    ],
)
def test_what_an_earlier_release_took_unasked_leaves_a_verdict_open(
    more: str, result: str, told: bool, tmp_path: Path
) -> None:
    """Experts were cut over the ranks of tensor parallelism before they had a number of their own."""
    found = checked_over_megatron(f"{EXPERTS}{more}", tmp_path, gpus="8xA100-80GB")
    assert (found.result and found.result.value, "ms-swift before 3.9" in found.doubt) == (result, told)
