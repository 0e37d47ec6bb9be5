"""The formats one by one: what stands where, what each engine takes where nothing is said, what is refused."""

import json
import shlex
from typing import Any

import pytest
import yaml

from memsheet.errors import InputError
from memsheet.exchange import NAMES, find_format, nested, read_text, told, write
from memsheet.readers.guard import parse_json, parse_yaml
from memsheet.spec.check import RULES

PARSERS = {"json": parse_json, "yaml": parse_yaml}
ASKED: dict[str, Any] = {
    "task": "train", "engine": "deepspeed", "zero": 2, "microbatch": 2, "global_batch": 64, "seq_len": 512, "mesh.dp_shard": 8,
    "precision.parameters": "bf16", "precision.compute": "bf16", "precision.gradients": "bf16", "precision.reduce": "bf16",
    "precision.master_weights": "fp32", "precision.moments": "fp32", "optimizer.name": "adamw", "optimizer.implementation": "fused",
    "attention": "sdpa", "loss": "plain", "recompute.mode": "none", "@gpus": 8, "@nodes": 1, "@per_node": 8, "@accumulation": 4, "@model": "m",
}  # fmt: skip
FSDP = {
    **ASKED, "engine": "fsdp2", "zero": 3, "precision.parameters": "fp32", "precision.gradients": "fp32", "precision.reduce": "fp32",
    "precision.master_weights": None,
}  # fmt: skip


def reading(name: str, text: str) -> Any:
    return read_text(name, text, PARSERS)


def written(name: str, asked: dict[str, Any]) -> str:
    form = find_format(name)
    return write(form, asked)[form.file]


def test_every_key_has_a_source_and_says_keys_of_a_plan() -> None:
    for form in map(find_format, NAMES):
        assert all(key.source for key in form.keys)
        assert all(key.says in RULES or key.says[:1] in ("", "@") for key in form.keys)
        assert all(key in RULES for key in (*form.said, *form.differs, *(form.beside - {"*"})))
        assert not {key.at for key in form.keys} & (form.known | set(form.unmodelled))


def test_the_three_batch_sizes_of_deepspeed_multiply() -> None:
    made = json.loads(written("deepspeed", ASKED))
    assert made["train_batch_size"] == made["train_micro_batch_size_per_gpu"] * made["gradient_accumulation_steps"] * 8 == 64
    assert made["bf16"] == {"enabled": True}
    assert "gradient_clipping" not in made


def test_offload_of_deepspeed() -> None:
    made = json.loads(written("deepspeed", {**ASKED, "zero": 3, "offload.optimizer": 0.5, "offload.parameters": 1}))["zero_optimization"]
    assert made["offload_optimizer"] == {"device": "cpu", "ratio": 0.5}
    assert made["offload_param"] == {"device": "cpu"}
    assert made["stage3_max_live_parameters"] == 1_000_000_000


@pytest.mark.parametrize(
    ("name", "changes", "field"),
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
    ],
)
def test_what_an_engine_cannot_do_is_refused_by_name(name: str, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as refused:
        written(name, {**ASKED, **changes})
    assert field in {problem.field for problem in refused.value.problems}


def test_fsdp2_of_accelerate() -> None:
    made = yaml.safe_load(written("accelerate", {**FSDP, "mesh.dp_replicate": 2, "mesh.dp_shard": 4, "recompute.mode": "full"}))
    assert made["distributed_type"] == "FSDP"
    assert made["fsdp_config"]["fsdp_reshard_after_forward"] is True
    assert made["fsdp_config"]["fsdp_activation_checkpointing"] is True
    assert made["parallelism_config"]["parallelism_config_dp_replicate_size"] == 2


def test_a_reduction_in_another_dtype_is_told() -> None:
    assert ["precision.reduce" in line for line in told(find_format("accelerate"), FSDP)] == [True]
    assert list(told(find_format("accelerate"), {**FSDP, "precision.reduce": "bf16"})) == []


def test_a_word_that_yaml_takes_for_false_is_no_mixed_precision() -> None:
    bare = reading("a.yaml", "distributed_type: MULTI_GPU\nmixed_precision: no\nnum_processes: 2\n")
    quoted = reading("a.yaml", "distributed_type: MULTI_GPU\nmixed_precision: 'no'\nnum_processes: 2\n")
    assert bare.request == quoted.request
    assert bare.request["?precision.name"] == "fp32"


def test_defaults_are_the_engines_own() -> None:
    args = reading("a.yaml", "output_dir: x\noptim: adamw_torch\n")
    assert (args.request["microbatch"], args.request["@accumulation"], args.request["optimizer.implementation"]) == (8, 1, "foreach")
    assert any("per_device_train_batch_size = 8" in line for line in args.assumed)
    fsdp = reading("a.yaml", "distributed_type: FSDP\nnum_processes: 8\n")
    assert fsdp.request["engine"] == "fsdp1"
    assert reading("d.json", '{"zero_optimization": {}}').request["zero"] == 0


def test_auto_is_left_to_the_training_script() -> None:
    text = '{"train_batch_size": "auto", "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}'
    found = reading("d.json", text)
    assert "global_batch" not in found.request
    assert not any(key.startswith("precision") for key in found.request)
    assert sum("auto" in line for line in found.assumed) == 2


def test_scripts_are_read_and_never_run(tmp_path: Any) -> None:
    text = f"export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\ntouch {tmp_path}/ran\ntorchrun --nproc_per_node 4 --nnodes=2 \\\n  train.py --x 1\n"
    found = reading("run.sh", text)
    assert found.request == {"task": "train", "@gpus": 8, "@per_node": 4, "@nodes": 2, "allocator.expandable_segments": True}
    assert not list(tmp_path.iterdir())


def test_a_batch_script() -> None:
    found = reading("job.sh", "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:a100:8\n#SBATCH --tmie=1:00\nsrun torchrun train.py\n")
    assert (found.request["@gpus"], found.request["@nodes"]) == (16, 2)
    assert found.unknown == (("#tmie", "#time"),)


def test_a_name_in_a_directive_has_plain_letters_only() -> None:
    made = written("slurm", {**ASKED, "@model": "x\n#SBATCH --wrap=$(id)"})
    assert made.count("#SBATCH --wrap") == 0
    assert "#SBATCH --job-name=x-SBATCH---wrap-id-" in made.splitlines()


def test_several_nodes_take_their_addresses_from_the_environment() -> None:
    made = written("torchrun", {**ASKED, "@nodes": 2, "@gpus": 16})
    assert "--nnodes=2" in shlex.split(made, comments=True)
    assert "MASTER_ADDR" in made
    assert "MASTER_ADDR" not in written("torchrun", ASKED)


@pytest.mark.parametrize("text", ["", "{}", "[1]", "hello", "a: 1", "{", "x: [", '{"zero_optimization": 1', "\x00", "torchrun 'open"])
def test_what_is_no_configuration_is_refused(text: str) -> None:
    for name in ("a.json", "a.yaml", "a.sh"):
        with pytest.raises(InputError):
            reading(name, text)


@pytest.mark.parametrize("value", ['"4"', "1.5", "true", "-1", "[]", "{}", "1e12", "99999999999"])
def test_sizes_that_are_none_are_refused_or_told(value: str) -> None:
    found = reading("d.json", f'{{"zero_optimization": {{"stage": 1}}, "gradient_accumulation_steps": {value}}}')
    assert found.problems or "gradient_accumulation_steps" in dict(found.unknown)


def test_places_nest_and_flatten() -> None:
    assert nested({"a.b.c": 1, "a.d": 2, "e": 3}) == {"a": {"b": {"c": 1}, "d": 2}, "e": 3}
