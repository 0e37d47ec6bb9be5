"""torchtitan's TOML: what is written, what is refused, and its own example."""

import contextlib
import tomllib
from typing import Any

import pytest

import memsheet
from memsheet.errors import InputError
from memsheet.exchange import find_format
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.plan_files import write_format_files
from memsheet.guard import parse_json, parse_yaml

PARSERS = {"json": parse_json, "yaml": parse_yaml}
ASKED: dict[str, Any] = {
    "task": "train", "engine": "torchtitan", "engine_version": "820504e", "zero": 3, "microbatch": 2, "global_batch": 64, "seq_len": 512,
    "mesh.dp_replicate": 2, "mesh.dp_shard": 2, "mesh.tp": 2, "mesh.cp": 1, "mesh.pp": 1, "sequence_parallel": True, "loss": "vocab_parallel",
    "precision.parameters": "fp32", "precision.compute": "bf16", "precision.gradients": "fp32", "precision.reduce": "fp32",
    "precision.moments": "fp32", "optimizer.name": "adamw", "optimizer.implementation": "fused", "attention": "sdpa", "dropout": 0.0,
    "recompute.mode": "selective", "recompute.modules": ["op"], "@gpus": 8, "@nodes": 1, "@per_node": 8, "@accumulation": 8, "@model": "m",
}  # fmt: skip


def reading(text: str) -> Any:
    return read_text("a.toml", text, PARSERS)


def written(**changes: Any) -> str:
    form = find_format("torchtitan-toml")
    return write_format_files(form, {**ASKED, **changes})[form.file]


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"zero": 2}, {"loss": "plain"}, {"recompute.mode": "full", "recompute.modules": None}, {"compile": True},
        {"recompute.modules": ["layer"], "recompute.every": 3}, {"recompute.mode": "none", "recompute.modules": None}, {"async_tp": True, "compile": True},
        {"mesh.tp": 1, "mesh.cp": 2, "context_parallel_comm": "ring", "loss": "plain", "sequence_parallel": False},
        {"optimizer.implementation": "loop"}, {"precision.compute": "fp32"},
    ],
)  # fmt: skip
def test_what_is_written_says_the_plan(changes: dict[str, Any]) -> None:
    text = written(**changes)
    asked = {**ASKED, **changes}
    made = tomllib.loads(text)
    assert made["training"]["local_batch_size"] == 2
    assert made["parallelism"]["tensor_parallel_degree"] == asked["mesh.tp"]
    assert made["activation_checkpoint"]["mode"] == asked["recompute.mode"]
    found = reading(text)
    assert (found.form.name, found.unknown, found.unmodelled, found.problems) == (
        "torchtitan-toml",
        (),
        (),
        (),
    )
    assert all(asked.get(key, False) == value for key, value in found.request.items())


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"engine_version": "b5bcd76"}, "engine_version"), ({"mesh.pp": 2}, "mesh.pp"), ({"loss": "chunked"}, "loss"),
        ({"sequence_parallel": False}, "sequence_parallel"), ({"fp8.recipe": "tensorwise"}, "fp8.recipe"), ({"zero": 1}, "zero"),
        ({"recompute.mode": "full", "recompute.modules": None, "recompute.every": 2}, "recompute.every"), ({"mesh.ep": 2}, "mesh.ep"),
        ({"optimizer.name": "sgd"}, "optimizer.name"), ({"precision.moments": "bf16"}, "precision.moments"),
    ],
)  # fmt: skip
def test_what_it_cannot_do_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as refused:
        written(**changes)
    assert field in {problem.field for problem in refused.value.problems}


EXAMPLE = """
[job]
dump_folder = "./outputs"
[metrics]
log_freq = 10
[model]
name = "llama3"
flavor = "8B"
tokenizer_path = "./assets/tokenizer/original/tokenizer.model"
[optimizer]
name = "AdamW"
lr = 3e-4
[lr_scheduler]
warmup_steps = 200
[training]
local_batch_size = 1
seq_len = 8192
compile = false
[parallelism]
data_parallel_shard_degree = -1
[checkpoint]
enable_checkpoint = false
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
[float8]
filter_fqns = ["output"]
"""  # the keys of pytorch/torchtitan 820504e torchtitan/models/llama3/train_configs/llama3_8b.toml


def test_its_own_example() -> None:
    found = reading(EXAMPLE)
    assert (found.unknown, found.unmodelled, found.problems) == ((), (), ())
    wanted = {
        "microbatch": 1,
        "seq_len": 8192,
        "zero": 3,
        "recompute.modules": ["op"],
        "precision.compute": "bf16",
        "@accumulation": 1,
    }
    assert {key: found.request.get(key) for key in wanted} == wanted


def test_a_pipeline_cuts_a_ranks_batch() -> None:
    found = reading(
        "[training]\nlocal_batch_size = 8\n[parallelism]\npipeline_parallel_degree = "
        "2\npipeline_parallel_microbatch_size = 2\n"
    )
    assert (found.request["microbatch"], found.request["@accumulation"], found.request["zero"]) == (2, 4, 2)
    assert found.request["schedule"] == "1f1b"


def test_unknown_and_unmodelled_keys_are_told() -> None:
    found = reading(
        '[training]\nlocal_batch_szie = 8\nenable_cpu_offload = true\n[model]\nconverters = ["float8"]\n'
    )
    assert found.unknown == (("training.local_batch_szie", "training.local_batch_size"),)
    assert dict(found.unmodelled) == {"training.enable_cpu_offload": True, "model.converters": ["float8"]}


def test_text_that_is_no_configuration_is_refused() -> None:
    for text in ("a = " + "[" * 30000, "training = 3 4", "x = 1"):
        with pytest.raises(InputError):
            reading(text)


@pytest.mark.parametrize(
    ("name", "flavor", "model", "version"),
    [
        ("llama3", "8B", "meta-llama/Llama-3.1-8B", "820504e"), ("llama3", "debugmodel", None, "820504e"), ("mine", "8B", None, "820504e"),
        ("qwen3", "0.6B", "Qwen/Qwen3-0.6B", "238fa99"), ("qwen3", "debugmodel", None, "238fa99"),
        ("deepseek_v3", "16B", "deepseek-ai/DeepSeek-V2-Lite", "238fa99"), ("deepseek_v3", "671B", "deepseek-ai/DeepSeek-V3", "238fa99"),
    ],
)  # fmt: skip
def test_a_name_and_a_flavor_are_a_model(name: str, flavor: str, model: str | None, version: str) -> None:
    text = f'[model]\nname = "{name}"\nflavor = "{flavor}"\n[training]\nseq_len = 512\n[parallelism]\n'
    assert reading(text).request.get("@model") == model
    assert reading(text).request["engine_version"] == version


def test_keys_of_the_last_version_with_toml_are_known() -> None:
    text = "[training]\nseq_len = 512\n[parallelism]\nexpert_parallel_degree = 1\n"
    text += "expert_tensor_parallel_degree = 1\n"
    found = reading(f'{text}[quantize.linear.float8]\nfilter_fqns = ["output"]\n[debug]\nseed = 1\n')
    assert (found.unknown, found.unmodelled) == ((), ())
    several = reading(text.replace("expert_parallel_degree = 1", "expert_parallel_degree = 8"))
    assert dict(several.unmodelled) == {"parallelism.expert_parallel_degree": 8}


OLDER = """
[model]
name = "llama2"
flavor = "13B"
[optimizer]
name = "AdamW"
[training]
batch_size = 3
seq_len = 4096
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 4
tensor_parallel_degree = 2
[experimental]
pipeline_parallel_degree = 1
[activation_checkpoint]
mode = "full"
"""


def test_an_older_file_is_read_by_its_own_places_and_says_so() -> None:
    found = reading(OLDER)
    said = {"microbatch": 3, "mesh.dp_replicate": 2, "mesh.dp_shard": 4, "mesh.tp": 2, "mesh.pp": 1}
    assert said.items() <= found.request.items()
    assert found.request["@model"] == "meta-llama/Llama-2-13b-hf"
    assert found.request["optimizer.implementation"] == "foreach"
    assert not found.unknown
    ((at, told),) = found.unmodelled
    assert at == "release"
    assert "training.batch_size" in told


def test_a_present_place_is_never_overwritten_by_an_older_one() -> None:
    found = reading(OLDER.replace("batch_size = 3", "batch_size = 3\nlocal_batch_size = 5"))
    assert found.request["microbatch"] == 5
    assert any("batch_size" in at for at, _ in found.unknown)
    both = reading(OLDER.replace("batch_size = 3", "data_parallel_degree = 7"))
    assert both.request["mesh.dp_shard"] == 4
    assert not reading(written()).unmodelled


@pytest.mark.parametrize("held", ["5", "[1]", "'a'"])
def test_an_older_key_beside_no_table_is_read_without_a_fault(held: str) -> None:
    with contextlib.suppress(InputError):
        reading(f"parallelism = {held}\n{OLDER}")


@pytest.mark.parametrize(("gpus", "result"), [("8xH100-80GB", "fits"), ("1xRTX4090", "does_not_fit")])
def test_a_step_in_backward_needs_no_more_than_one_behind_it(tmp_path: Any, gpus: str, result: str) -> None:
    text = '[model]\nname = "llama3"\nflavor = "8B"\n[optimizer]\nearly_step_in_backward = true\n'
    text += '[training]\nlocal_batch_size = 1\nseq_len = 2048\n[activation_checkpoint]\nmode = "full"\n'
    (tmp_path / "train.toml").write_text(text)
    assert memsheet.check(tmp_path / "train.toml", gpus=gpus).result.value == result


@pytest.mark.parametrize(("degree", "asked"), [(1, None), (2, True)])
def test_asynchronous_tensor_parallelism_is_nothing_without_tensor_parallelism(
    degree: int, asked: bool | None
) -> None:
    own = f"tensor_parallel_degree = {degree}\nenable_async_tensor_parallel = true\n"
    found = reading(f"[training]\nseq_len = 64\n[parallelism]\n{own}")
    assert (found.request.get("async_tp"), found.unmodelled) == (asked, ())
