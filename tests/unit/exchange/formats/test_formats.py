"""The formats one by one: what stands where, what each engine takes where nothing is said, what is
refused.
"""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from laws import every
from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.exchange import NAMES, find_format
from memsheet.exchange.file_texts import DATA, read_text
from memsheet.exchange.plan_files import engine_differences, write_format_files
from memsheet.exchange.shared.dotted_places import nest_dotted_keys
from memsheet.exchange.shared.file_format import _value_text, read_format_values
from memsheet.guard import parse_json, parse_yaml
from memsheet.plan.check import RULES

PARSERS = {"json": parse_json, "yaml": parse_yaml}
ASKED: dict[str, Any] = {
    "task": "train", "engine": "deepspeed", "zero": 2, "microbatch": 2, "global_batch": 64, "seq_len": 512, "mesh.dp_shard": 8,
    "precision.parameters": "bf16", "precision.compute": "bf16", "precision.gradients": "bf16", "precision.reduce": "bf16",
    "precision.master_weights": "fp32", "precision.moments": "fp32", "optimizer.name": "adamw", "optimizer.implementation": "fused",
    "attention": "sdpa", "loss": "plain", "recompute.mode": "none", "@gpus": 8, "@nodes": 1, "@per_node": 8, "@accumulation": 4, "@model": "m",
}  # fmt: skip
OF_UNSLOTH = {
    **ASKED, "engine": "transformers", "zero": 0, "mesh.dp_shard": 1, "@gpus": 1, "loss": "chunked", "adapter.rank": 8, "adapter.kind": "lora", "adapter.dtype": "fp32",
    "adapter.targets": ["q_proj"], "quantization.weights": "nf4", "quantization.double_quant": True, "recompute.mode": "full",
    "precision.gradients": "fp32", "precision.reduce": "fp32", "precision.master_weights": None,
}  # fmt: skip
FSDP = {
    **ASKED, "engine": "fsdp2", "zero": 3, "precision.parameters": "fp32", "precision.gradients": "fp32", "precision.reduce": "fp32",
    "precision.master_weights": None,
}  # fmt: skip
TUNED = {
    **ASKED, "engine": "torchtune", "zero": 3, "precision.master_weights": None, "precision.moments": "bf16", "@model": "meta-llama/Llama-3.1-8B",
}  # fmt: skip


def reading(name: str, text: str) -> Any:
    return read_text(name, text, PARSERS)


def written(name: str, asked: dict[str, Any]) -> str:
    form = find_format(name)
    return write_format_files(form, asked)[form.file]


def test_every_key_has_a_source_and_says_keys_of_a_plan() -> None:
    for form in map(find_format, NAMES):
        assert all(key.source for key in form.keys)
        assert all(key.says in RULES or key.says[:1] in ("", "@") for key in form.keys)
        assert all(
            key in RULES for key in (*form.said, *(form.differs.keys() - {"@model"}), *(form.beside - {"*"}))
        )
        assert not {key.at for key in form.keys} & (form.known | set(form.unmodelled))


def test_the_three_batch_sizes_of_deepspeed_multiply() -> None:
    made = json.loads(written("deepspeed", ASKED))
    assert (
        made["train_batch_size"]
        == made["train_micro_batch_size_per_gpu"] * made["gradient_accumulation_steps"] * 8
        == 64
    )
    assert made["bf16"] == {"enabled": True}
    assert "gradient_clipping" not in made


def test_offload_of_deepspeed() -> None:
    made = json.loads(
        written("deepspeed", {**ASKED, "zero": 3, "offload.optimizer": 0.5, "offload.parameters": 1})
    )["zero_optimization"]
    assert made["offload_optimizer"] == {"device": "cpu", "ratio": 0.5}
    assert made["offload_param"] == {"device": "cpu"}
    assert made["stage3_max_live_parameters"] == 1_000_000_000


@every(
    "name, changes, field",
    [
        ("deepspeed", {"engine": "fsdp2"}, "engine"),
        ("deepspeed", {"mesh.tp": 2}, "mesh.tp"),
        ("deepspeed", {"mesh.dp_replicate": 2}, "mesh.dp_replicate"),
        ("deepspeed", {"offload.parameters": 1}, "offload.parameters"),
        ("deepspeed", {"compile": True}, "compile"),
        ("deepspeed", {"precision.moments": "bf16"}, "precision.moments"),
        ("accelerate", {**FSDP, "offload.optimizer": 1}, "offload.optimizer"),
        ("accelerate", {**FSDP, "mesh.pp": 2}, "mesh.pp"),
        ("transformers", {"optimizer.implementation": "loop"}, "optimizer.implementation"),
        ("transformers", {"optimizer.name": "muon"}, "optimizer.name"),
        ("trl", {"optimizer.name": "muon"}, "optimizer.name"),
        ("trl", {"adapter.rank": 8, "adapter.kind": "lora", "adapter.dtype": "fp32"}, "adapter.dtype"),
        ("trl", {"compile": True}, "compile"),
        ("swift", {"offload.optimizer": 1, "zero": 1}, "zero"),
        ("swift", {"precision.master_weights": None, "precision.parameters": "fp32"}, "precision.parameters"),
        ("swift", {"@nodes": 2}, "nodes"),
        ("swift", {"@model": "a\nb"}, "model"),
        ("unsloth", {**OF_UNSLOTH, "@gpus": 2}, "gpus"),
        ("unsloth", {**OF_UNSLOTH, "loss": "plain"}, "loss"),
        ("unsloth", {**OF_UNSLOTH, "attention": "eager"}, "attention"),
        ("unsloth", {**OF_UNSLOTH, "adapter.kind": "dora"}, "adapter.kind"),
        ("unsloth", {**OF_UNSLOTH, "quantization.weights": "fp4"}, "quantization.weights"),
        ("unsloth", {**OF_UNSLOTH, "quantization.double_quant": False}, "quantization.double_quant"),
        ("unsloth", {**OF_UNSLOTH, "offload.activations": True, "seq_len": 256}, "offload.activations"),
        ("verl", {**FSDP, "loss": "plain"}, "loss"),
        ("verl", {**FSDP, "loss": "fused", "@model": "a b"}, "model"),
        ("verl", {**FSDP, "loss": "fused", "offload.optimizer": 1}, "offload.optimizer"),
        ("verl", {**FSDP, "loss": "fused", "quantization.weights": "nf4"}, "quantization.weights"),
        ("verl", {**FSDP, "engine": "megatron", "vocab_multiple": 256, "mesh.tp": 2}, "vocab_multiple"),
        ("torchtune", {**TUNED, "@model": "someone/unknown"}, "model"),
        ("torchtune", {**TUNED, "adapter.rank": 8, "adapter.targets": ["gate_proj"]}, "adapter.targets"),
        ("torchtune", {**TUNED, "offload.activations": True}, "offload.activations"),
        ("torchtune", {**TUNED, "offload.optimizer": 1}, "offload.optimizer"),
    ],
)
def test_what_an_engine_cannot_do_is_refused_by_name(name: str, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as refused:
        written(name, {**ASKED, **changes})
    assert field in {problem.field for problem in refused.value.problems}


def test_a_recipe_of_torchtune_names_its_builder_and_as_many_files_as_there_are() -> None:
    lora = {
        "adapter.rank": 8,
        "adapter.kind": "lora",
        "adapter.targets": ["q_proj", "o_proj"],
        "adapter.dtype": "bf16",
    }
    made = yaml.safe_load(written("torchtune", {**TUNED, **lora, "@model": "Qwen/Qwen2.5-14B-Instruct"}))
    assert made["model"]["_component_"] == "torchtune.models.qwen2_5.lora_qwen2_5_14b_instruct"
    assert made["model"]["lora_attn_modules"] == ["q_proj", "output_proj"]
    assert made["checkpointer"]["checkpoint_files"]["max_filename"] == "00008"
    assert made["tokenizer"]["merges_file"].endswith("/merges.txt")


def test_commands_of_swift_take_its_own_deepspeed_files_by_name() -> None:
    plain = shlex.split(written("swift", ASKED), comments=True)
    assert {"--deepspeed=zero2", "--tuner_type=full", "--torch_dtype=bfloat16"} <= {*plain}
    assert "NPROC_PER_NODE=8" in plain
    host = written("swift", {**ASKED, "zero": 3, "offload.optimizer": 1, "offload.parameters": 1})
    assert "--deepspeed=zero3_offload" in host


def test_a_recipe_of_trl_says_its_loss_and_its_precision() -> None:
    made = yaml.safe_load(written("trl", FSDP | {"precision.compute": "bf16"}))
    assert (made["loss_type"], made["bf16"], made["dtype"], made["fsdp"]) == ("nll", True, "float32", True)
    fused = yaml.safe_load(written("trl", {**FSDP, "loss": "fused"}))
    assert (fused["use_liger_kernel"], "loss_type" in fused) == (True, False)


def test_fsdp2_of_accelerate() -> None:
    made = yaml.safe_load(
        written("accelerate", {**FSDP, "mesh.dp_replicate": 2, "mesh.dp_shard": 4, "recompute.mode": "full"})
    )
    assert made["distributed_type"] == "FSDP"
    assert made["fsdp_config"]["fsdp_reshard_after_forward"] is True
    assert made["fsdp_config"]["fsdp_activation_checkpointing"] is True
    assert made["parallelism_config"]["parallelism_config_dp_replicate_size"] == 2


def test_a_reduction_in_another_dtype_is_told() -> None:
    assert ["precision.reduce" in line for line in engine_differences(find_format("accelerate"), FSDP)] == [
        True
    ]
    assert list(engine_differences(find_format("accelerate"), {**FSDP, "precision.reduce": "bf16"})) == []


def test_a_word_that_yaml_takes_for_false_is_no_mixed_precision() -> None:
    bare = reading("a.yaml", "distributed_type: MULTI_GPU\nmixed_precision: no\nnum_processes: 2\n")
    quoted = reading("a.yaml", "distributed_type: MULTI_GPU\nmixed_precision: 'no'\nnum_processes: 2\n")
    assert bare.request == quoted.request
    assert bare.request["?precision.name"] == "fp32"


def test_defaults_are_the_engines_own() -> None:
    args = reading("a.yaml", "output_dir: x\noptim: adamw_torch\n")
    assert (
        args.request["microbatch"],
        args.request["@accumulation"],
        args.request["optimizer.implementation"],
    ) == (8, 1, "foreach")
    assert any("per_device_train_batch_size = 8" in line for line in args.assumed)
    fsdp = reading("a.yaml", "distributed_type: FSDP\nnum_processes: 8\n")
    assert fsdp.request["engine"] == "fsdp1"
    assert reading("d.json", '{"zero_optimization": {}}').request["zero"] == 0


def test_auto_is_left_to_the_training_script() -> None:
    text = (
        '{"train_batch_size": "auto", "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2, '
        '"reduce_bucket_size": "auto"}}'
    )
    found = reading("d.json", text)
    assert "global_batch" not in found.request
    assert not any(key.startswith("precision") for key in found.request)
    assert sum("auto" in line for line in found.assumed) == 2


def test_scripts_are_read_and_never_run(tmp_path: Any) -> None:
    text = (
        f"export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\ntouch {tmp_path}/ran\ntorchrun "
        "--nproc_per_node 4 --nnodes=2 \\\n  train.py --x 1\n"
    )
    found = reading("run.sh", text)
    assert found.request == {
        "task": "train",
        "@gpus": 8,
        "@per_node": 4,
        "@nodes": 2,
        "allocator.expandable_segments": True,
    }
    assert not list(tmp_path.iterdir())


def test_a_batch_script() -> None:
    found = reading(
        "job.sh",
        (
            "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:a100:8\n#SBATCH --tmie=1:00\nsrun torchrun "
            "train.py\n"
        ),
    )
    assert (found.request["@gpus"], found.request["@nodes"]) == (16, 2)
    assert found.unknown == (("#tmie", "#time"),)


SHORT_AND_LONG = [
    ("-N 2", "--nodes=2"), ("-N2", "--nodes 2"), ("-N 2 -n 16", "--nodes=2 --ntasks=16"), ("-J 7b -t 1:00 -p gpu", "--job-name=7b --time=1:00 --partition=gpu"),
    ("-G 16", "--gpus=16"), ("-G a100:16", "--gpus=a100:16"), ("-c 12 -C 'a100&ib'", '--cpus-per-task=12 --constraint="a100&ib"'),
]  # fmt: skip


@pytest.mark.parametrize(("short", "long"), SHORT_AND_LONG)
@pytest.mark.parametrize(
    "more", ["", "#SBATCH --gres=gpu:a100:8\n", "#SBATCH --nodes=4 --gpus-per-node=8 # a comment -N 9\n"]
)
def test_a_letter_of_sbatch_says_what_its_word_says(short: str, long: str, more: str) -> None:
    made = [
        reading(
            "job.sh",
            f"#!/bin/bash\n#SBATCH --ntasks-per-node=8\n{more}#SBATCH {told}\nsrun torchrun train.py\n",
        )
        for told in (short, long)
    ]
    assert (made[0].request, made[0].values, made[0].unknown) == (
        made[1].request,
        made[1].values,
        made[1].unknown,
    )
    assert not made[0].unknown


@pytest.mark.parametrize(
    "told",
    [
        "-N 2 --gres=gpu:8", "-N 2 -G 16", "--nodes=2 --ntasks-per-node=8 --gpus-per-task=1", "-n 16 --ntasks-per-node=8 --gres=gpu:a100:8",
        "-N2 -n16 --gpus-per-task=1", "-N 2 --gpus-per-node=a100:8", "-N 2 --gres gpu:8 --exclusive -c 4",
    ],
)  # fmt: skip
def test_every_way_to_ask_for_two_nodes_of_eight(told: str) -> None:
    """On one line, or each option on its own."""
    found = reading("job.sh", f"#!/bin/bash\n#SBATCH {told}\nsrun torchrun train.py\n").request
    assert (found["@gpus"], found["@per_node"], found["@nodes"]) == (16, 8, 2)


def test_a_name_in_a_directive_has_plain_letters_only() -> None:
    made = written("slurm", {**ASKED, "@model": "x\n#SBATCH --wrap=$(id)"})
    assert made.count("#SBATCH --wrap") == 0
    assert "#SBATCH --job-name=x-SBATCH---wrap-id-" in made.splitlines()


def test_several_nodes_take_their_addresses_from_the_environment() -> None:
    made = written("torchrun", {**ASKED, "@nodes": 2, "@gpus": 16})
    assert "--nnodes=2" in shlex.split(made, comments=True)
    assert "MASTER_ADDR" in made
    assert "MASTER_ADDR" not in written("torchrun", ASKED)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[1]", "hello", "a: 1", "{", "x: [", '{"zero_optimization": 1', "\x00", "torchrun 'open"],
)
def test_what_is_no_configuration_is_refused(text: str) -> None:
    for name in ("a.json", "a.yaml", "a.sh"):
        with pytest.raises(InputError):
            reading(name, text)


@pytest.mark.parametrize("value", ['"4"', "1.5", "true", "-1", "[]", "{}", "1e12", "99999999999"])
def test_sizes_that_are_none_are_refused_or_told(value: str) -> None:
    found = reading(
        "d.json", f'{{"zero_optimization": {{"stage": 1}}, "gradient_accumulation_steps": {value}}}'
    )
    assert found.problems or "gradient_accumulation_steps" in dict(found.unknown)


FSDP2_YAML = """compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
enable_cpu_affinity: false
fsdp_config: {fsdp_activation_checkpointing: false, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, fsdp_cpu_ram_efficient_loading: true,
  fsdp_offload_params: false, fsdp_reshard_after_forward: true, fsdp_state_dict_type: SHARDED_STATE_DICT, fsdp_version: 2}
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 8
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""  # the keys of huggingface/trl a91c73c examples/accelerate_configs/fsdp2.yaml
ZERO3_YAML = """distributed_type: DEEPSPEED
deepspeed_config: {deepspeed_multinode_launcher: standard, gradient_accumulation_steps: 1, offload_optimizer_device: none,
  offload_param_device: none, zero3_init_flag: true, zero3_save_16bit_model: true, zero_stage: 3}
mixed_precision: 'fp16'
num_machines: 1
num_processes: 8
"""  # huggingface/trl 7d75884 examples/accelerate_configs/deepspeed_zero3.yaml
ZERO3_JSON = """{"fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2},
 "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true}, "offload_param": {"device": "cpu"},
  "overlap_comm": true, "contiguous_gradients": true, "sub_group_size": 1e14, "reduce_bucket_size": 0,
  "stage3_prefetch_bucket_size": 0, "stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 1e9,
  "stage3_gather_fp16_weights_on_model_save": true},
 "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.8, 0.999]}},
 "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0}}, "steps_per_print": 2000, "wall_clock_breakdown": false}
"""  # huggingface/transformers 61c7ec9 tests/deepspeed/ds_config_zero3.json


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            FSDP2_YAML,
            {"engine": "fsdp2", "zero": 3, "@gpus": 8, "precision.reduce": "bf16", "offload.parameters": 0},
        ),
        (ZERO3_YAML, {"engine": "deepspeed", "zero": 3, "@accumulation": 1, "precision.parameters": "fp16"}),
        (
            ZERO3_JSON,
            {
                "engine": "deepspeed",
                "zero": 3,
                "offload.optimizer": 1,
                "offload.parameters": 1,
                "optimizer.name": "adamw",
            },
        ),
    ],
)
def test_files_as_the_engines_own_examples_have_them(text: str, said: dict[str, Any]) -> None:
    found = reading("a.json" if text.startswith("{") else "a.yaml", text)
    assert (found.unknown, found.problems, found.unmodelled) == ((), (), ())
    assert said.items() <= found.request.items()


def test_keys_with_another_prefix_are_read_as_the_engine_reads_them() -> None:
    args = reading("a.yaml", "fsdp: true\nfsdp_config: {fsdp_version: 1, fsdp_cpu_offload: true}\n")
    assert (args.request["engine"], args.request["offload.parameters"], args.unknown) == ("fsdp1", 1, ())
    launched = reading(
        "a.yaml", "distributed_type: FSDP\nfsdp_config: {version: 2, reshard_after_forward: false}\n"
    )
    assert (launched.request["engine"], launched.request["zero"], launched.unknown) == ("fsdp2", 2, ())


def test_an_empty_group_says_nothing() -> None:
    found = reading(
        "d.json",
        '{"zero_optimization": {"stage": 1}, "optimizer": {"type": "AdamW", "params": {}}, "bf16": {}}',
    )
    assert found.unknown == ()
    assert found.request["?precision.name"] == "fp32"


def test_too_many_keys_are_refused() -> None:
    with pytest.raises(InputError, match="more than"):
        reading("a.yaml", "distributed_type: FSDP\n" + "".join(f"k{number}: 1\n" for number in range(3000)))


def test_places_nest_and_flatten() -> None:
    assert nest_dotted_keys({"a.b.c": 1, "a.d": 2, "e": 3}) == {"a": {"b": {"c": 1}, "d": 2}, "e": 3}


SAID = (True, 2, 0.5, "full", "selective", "bf16")


@every("name", NAMES)
def test_a_default_that_another_key_replaces_is_not_assumed(name: str) -> None:
    form = find_format(name)
    for row in form.keys:
        for word in SAID:
            try:
                found = read_format_values(form, {row.at: word})
            except (InputError, TypeError, ValueError):
                continue
            for other in form.keys:
                if f"{other.at} = {_value_text(other.usual)} ({form.tested}'s default)" not in found.assumed:
                    continue
                said = {
                    key: held
                    for key, held in other.read(other.usual, found.values).items()
                    if held is not None
                }
                assert said.items() <= found.request.items(), (row.at, word, other.at)


def test_a_shorthand_for_recomputing_is_said_and_its_default_is_not() -> None:
    found = reading(
        "pretrain.sh",
        "torchrun pretrain_gpt.py --seq-length 4096 --micro-batch-size 1 --recompute-activations\n",
    )
    assert found.request["recompute.mode"] == "selective"
    assert not any("--recompute-granularity" in line for line in found.assumed)


def test_what_is_passed_over_without_being_loaded_is_data_alone() -> None:
    forms = {name: find_format(name) for name in NAMES}
    data = {name: form.kind for name, form in forms.items() if form.parse is None and form.also is None}
    assert data == DATA


def test_a_plan_of_layers_that_one_process_spreads_is_written_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spread = [
        "train",
        "llama-tiny",
        "--gpus",
        "2xRTX3090",
        "--schedule",
        "naive",
        "--seq-len",
        "64",
        "--json",
    ]
    assert main(spread) == 0
    (plan := tmp_path / "plan.json").write_text(capsys.readouterr().out)
    assert main(["export", str(plan), "--to", "transformers"]) == 0
    assert 'device_map="auto"' in capsys.readouterr().out
    assert main(["export", str(plan), "--to", "axolotl"]) == 2
    assert "schedule" in capsys.readouterr().err
