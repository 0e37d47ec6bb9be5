"""axolotl's and LLaMA-Factory's YAML: what each key comes to, what the trainers do where nothing is said,
what is refused or told.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import memsheet
from memsheet.budget import Result
from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.exchange import find_format
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.joined_files import join_files
from memsheet.exchange.plan_files import write_format_files
from memsheet.exchange.shared.file_format import FileReading
from memsheet.formulas.states.params import tower_tensors
from memsheet.guard import parse_json, parse_yaml

PARSERS = {"json": parse_json, "yaml": parse_yaml}
AXOLOTL: dict[str, Any] = {
    "base_model": "m", "sequence_len": 4096, "micro_batch_size": 2, "gradient_accumulation_steps": 4, "attn_implementation": "flash_attention_2",
    "pad_to_sequence_len": True,
}  # fmt: skip
FACTORY: dict[str, Any] = {
    "model_name_or_path": "m", "stage": "sft", "do_train": True, "cutoff_len": 4096, "template": "default", "finetuning_type": "full", "packing": True,
}  # fmt: skip
PLAN: dict[str, Any] = {
    "task": "train", "engine": "transformers", "zero": 0, "microbatch": 2, "global_batch": 64, "seq_len": 512, "mesh.dp_replicate": 8,
    "precision.parameters": "bf16", "precision.compute": "bf16", "precision.gradients": "bf16", "precision.reduce": "bf16",
    "precision.moments": "bf16", "optimizer.name": "adamw", "optimizer.implementation": "fused", "attention": "flash", "loss": "plain",
    "recompute.mode": "full", "@gpus": 8, "@nodes": 1, "@per_node": 8, "@accumulation": 4, "@model": "m",
}  # fmt: skip
SIXTEEN = ("parameters", "compute", "gradients", "reduce", "moments")


def reading(base: dict[str, Any], **changes: Any) -> FileReading:
    return read_text("a.yaml", yaml.safe_dump({**base, **changes}), PARSERS)


def axolotl(**changes: Any) -> FileReading:
    return reading(AXOLOTL, **changes)


def factory(**changes: Any) -> FileReading:
    return reading(FACTORY, **changes)


def precision(found: FileReading) -> dict[str, Any]:
    return {
        key.rpartition(".")[2]: value
        for key, value in found.request.items()
        if "precision." in key and key.partition(".")[2] != "name"
    }


# ---- axolotl -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "width"),
    [
        ({}, "bf16"), ({"bf16": "auto"}, "bf16"), ({"bf16": True}, "bf16"), ({"bf16": "full"}, "bf16"), ({"bf16": False}, "fp32"),
        ({"bf16": None}, "fp32"), ({"fp16": True}, "fp16"), ({"bf16": True, "fp16": True}, "bf16"), ({"bf16": False, "bfloat16": True}, "bf16"),
        ({"bf16": False, "float16": True}, "fp16"), ({"float16": True}, "bf16"),
    ],
)  # fmt: skip
def test_axolotl_trains_in_what_it_loads_in(changes: dict[str, Any], width: str) -> None:
    assert precision(axolotl(**changes)) == dict.fromkeys(SIXTEEN, width)


def test_adapters_train_in_fp32_beside_a_base_in_sixteen_bits() -> None:
    found = axolotl(adapter="lora", lora_r=8, lora_target_linear=True, lora_dropout=0.05).request
    assert (found["precision.parameters"], found["adapter.dtype"], found["adapter.targets"]) == (
        "bf16",
        "fp32",
        ["all"],
    )
    assert "precision.gradients" not in found
    assert (
        axolotl(adapter="lora", lora_r=8, peft_autocast_adapter_dtype=False).request["adapter.dtype"]
        == "bf16"
    )
    assert axolotl(adapter="lora", lora_r=8, deepspeed="z.json").request["adapter.dtype"] == "bf16"
    assert axolotl(adapter="qlora", lora_r=8, load_in_4bit=True).request["quantization.weights"] == "nf4"
    assert "quantization.weights" not in axolotl(load_in_4bit=True).request
    assert not [
        key
        for key in axolotl(lora_r=8, lora_dropout=0.1, lora_target_modules=["q_proj"]).request
        if key.startswith("adapter")
    ]


@pytest.mark.parametrize(
    ("changes", "engine"),
    [
        ({"fsdp_version": 2, "fsdp_config": {"reshard_after_forward": True}}, "fsdp2"), ({"fsdp_config": {"fsdp_version": 2, "offload_params": False}}, "fsdp2"),
        ({"fsdp_config": {"version": 2, "fsdp_offload_params": False}}, "fsdp2"), ({"fsdp_config": {"offload_params": False}}, "fsdp1"),
        ({"fsdp": ["full_shard", "auto_wrap"]}, "fsdp1"), ({"deepspeed": "zero3.json"}, "deepspeed"),
        ({"deepspeed": "zero3.json", "fsdp_version": 2}, "deepspeed"),
    ],
)  # fmt: skip
def test_what_launches_axolotl(changes: dict[str, Any], engine: str) -> None:
    found = axolotl(**changes)
    assert found.request["engine"] == engine
    assert found.unknown == ()
    assert "?engine" not in found.request


def test_alone_it_makes_replicas_unless_another_file_says_otherwise() -> None:
    for found in (axolotl(), factory(), axolotl(fsdp_version=2)):
        assert (found.request["?engine"], found.request["?zero"], "engine" in found.request) == (
            "transformers",
            0,
            False,
        )


def test_flat_parameters_of_axolotl_are_raised_where_precision_is_mixed() -> None:
    flat = {"fsdp": ["full_shard", "auto_wrap"], "bf16": True}
    mixed = precision(axolotl(**flat))
    assert (mixed["parameters"], mixed["gradients"], mixed["moments"]) == ("fp32",) * 3
    assert (mixed["compute"], mixed["reduce"]) == ("bf16", "bf16")
    for changes in ({"bf16": "full"}, {"fsdp_version": 2}):
        assert precision(axolotl(**{**flat, **changes}))["parameters"] == "bf16"


@pytest.mark.parametrize(
    ("changes", "synced"),
    [
        ({"fsdp": ["full_shard"]}, "last"),
        ({"fsdp": ["full_shard"], "fsdp_version": 2}, "last"),
        ({"deepspeed": "zero3.json"}, None),
        (
            {
                "fsdp": ["full_shard"],
                "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}},
            },
            "every",
        ),
    ],
)
def test_a_trainer_reduces_units_with_the_last_microbatch(
    changes: dict[str, Any], synced: str | None
) -> None:
    request = join_files({"job.yaml": axolotl(**changes)}, {}, {}, 8).request
    assert request.get("gradient_sync") == synced


def test_fsdp_of_axolotl() -> None:
    found = axolotl(
        fsdp_version=2,
        fsdp_config={
            "fsdp_reshard_after_forward": False,
            "offload_params": True,
            "activation_checkpointing": True,
        },
    )
    wanted = {
        "zero": 2,
        "offload.optimizer": 1,
        "offload.parameters": 1,
        "recompute.mode": "full",
        "precision.reduce": "bf16",
    }
    assert wanted.items() <= found.request.items()


def test_a_deepspeed_configuration_inside() -> None:
    found = axolotl(
        deepspeed={
            "zero_optimization": {"stage": 3, "max_live_parameters": 1, "stagee": 1},
            "bf16": {"enabled": True},
        }
    )
    assert (found.request["engine"], found.request["zero"], found.request["precision.master_weights"]) == (
        "deepspeed",
        3,
        "fp32",
    )
    assert [at for at, _ in found.unknown] == ["deepspeed.zero_optimization.stagee"]


@pytest.mark.parametrize(
    ("changes", "attention"),
    [
        ({"attn_implementation": None}, None), ({"attn_implementation": None, "flash_attention": True}, "flash"),
        ({"attn_implementation": None, "sdp_attention": True, "flash_attention": True}, "flash"), ({"attn_implementation": "flash_attention_3"}, "flash"),
        ({"attn_implementation": None, "flash_attention": False, "eager_attention": True}, "eager"), ({"attn_implementation": "sage"}, "sdpa"),
        ({"attn_implementation": None, "xformers_attention": True, "flash_attention": True}, "xformers"),
        ({"attn_implementation": "xformers", "fsdp_config": {"fsdp_version": 2, "reshard_after_forward": True}}, "sdpa"),
    ],
)  # fmt: skip
def test_attention_of_axolotl(changes: dict[str, Any], attention: str | None) -> None:
    """A kernel that is not accounted is sdpa in the sheet, and told."""
    read = axolotl(**changes)
    assert read.request.get("attention") == attention
    assert (attention is None) == (read.request.get("?attention") == "sdpa")
    other = {"sage", "xformers"} & {str(held) for _, held in read.unmodelled}
    assert bool(other) == (attention == "sdpa")


@pytest.mark.parametrize(
    ("changes", "mode"),
    [
        ({"gradient_checkpointing": True}, "full"), ({"gradient_checkpointing": "offload"}, "full"), ({}, None),
        ({"gradient_checkpointing": True, "activation_offloading": True, "adapter": "lora"}, None),
        ({"gradient_checkpointing": True, "activation_offloading": "hidden_states", "adapter": "lora"}, "full"),
    ],
)  # fmt: skip
def test_recompute_of_axolotl(changes: dict[str, Any], mode: str | None) -> None:
    assert axolotl(**changes).request.get("recompute.mode") == mode


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"plugins": ["a.b.C"]}, "plugins"), ({"gradient_checkpointing": "offload"}, "activation_offloading"), ({"rl": "dpo"}, "rl"),
        ({"qat": {"weight_dtype": "int8"}}, "qat"), ({"unfrozen_parameters": ["lm_head"]}, "unfrozen_parameters"),
        ({"attn_implementation": "sdpa"}, "attn_implementation (embeddings, output layer and norms stay in fp32)"),
        ({"adapter": "lora", "fsdp_version": 2, "fsdp_config": {"offload_params": False}}, "lora_mlp_kernel (which leaves fully_shard's adapters whole)"),
    ],
)  # fmt: skip
def test_what_axolotl_does_that_nobody_accounts_is_told(changes: dict[str, Any], key: str) -> None:
    assert key in dict(axolotl(**changes).unmodelled)
    assert axolotl().unmodelled == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"adapter": "lora", "lora_r": 8}, {"plugins": ["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"]},
        {"adapter": "lora", "lora_mlp_kernel": False}, {"adapter": "lora", "trust_remote_code": True}, {"adapter": "lora", "load_in_8bit": True},
        {"plugins": ["axolotl.integrations.liger.LigerPlugin"], "liger_fused_linear_cross_entropy": True},
        {"attn_implementation": "sdpa", "bf16": False}, {"attn_implementation": "sdpa", "deepspeed": "z.json"}, {"sample_packing": True},
        {"adapter": "lora", "fsdp_config": {"offload_params": False}},
        {"adapter": "lora", "fsdp_config": {"fsdp_version": 2, "offload_params": False}},
    ],
)  # fmt: skip
def test_and_only_that(changes: dict[str, Any]) -> None:
    assert axolotl(**changes).unmodelled == ()


@pytest.mark.parametrize(
    ("changes", "length"),
    [
        ({"sequence_len": 100}, 128), ({"sequence_len": 100, "pad_to_sequence_len": None}, 128), ({"sequence_len": 100, "pad_to_sequence_len": False}, 100),
        ({"sequence_len": 100, "pad_to_multiple_of": 10}, 100), ({"sequence_len": None}, 512),
    ],
)  # fmt: skip
def test_rows_of_axolotl_are_padded(changes: dict[str, Any], length: int) -> None:
    assert axolotl(**changes).request["seq_len"] == length


def test_rows_that_are_not_packed_are_a_bound() -> None:
    assert (
        axolotl(pad_to_sequence_len=None).request["?seq_len_kind"]
        == factory(packing=False).request["?seq_len_kind"]
        == "maximum"
    )
    for filled in ("sample_packing", "reward_model"):
        assert "?seq_len_kind" not in axolotl(**{filled: True}, pad_to_sequence_len=None).request
    assert "?seq_len_kind" not in factory(stage="pt", packing=None).request


@pytest.mark.parametrize(
    ("base", "named", "wanted"),
    [
        ({"base_model": "Qwen/Qwen2.5-0.5B"}, "deepspeed_configs/zero3_bf16_cpuoffload_all.json", (3, 1, 1)),
        ({"base_model": "Qwen/Qwen2.5-0.5B"}, "../axolotl/deepspeed_configs/zero2.json", (2, 1, None)),
        ({"base_model": "Qwen/Qwen2.5-0.5B"}, "mine/zero3.json", (3, None, None)),
        ({"base_model": "Qwen/Qwen2.5-0.5B"}, "ds/stage2_no_offloading.conf", (2, None, None)),
        ({"base_model": "Qwen/Qwen2.5-0.5B"}, "ds/zero-3-offload.json", (3, 1, 1)),
        ({"base_model": "Qwen/Qwen2.5-0.5B"}, "ds/mine.json", None),
        ({"model_name_or_path": "Qwen/Qwen2.5-0.5B"}, "examples/deepspeed/ds_z3_offload_config.json", (3, 1, 1)),
        ({"model_name_or_path": "Qwen/Qwen2.5-0.5B"}, "ds_z0_config.json", (0, None, None)),
    ],
)  # fmt: skip
def test_a_file_of_the_projects_own_is_known_by_its_name_and_told(
    tmp_path: Path, base: dict[str, Any], named: str, wanted: tuple[int | None, ...] | None
) -> None:
    (tmp_path / "job.yaml").write_text(
        yaml.safe_dump({**(AXOLOTL if "base_model" in base else FACTORY), **base, "deepspeed": named})
    )
    found = memsheet.check(tmp_path / "job.yaml", gpus="2xH100-80GB")
    read = found.reads.get(named)
    assert (read is not None) is (wanted is not None)
    doubted = read is None or read.guessed
    assert (f"{named} is named and is not among the files" in found.doubt) is doubted
    if read is not None:
        assert (
            tuple(read.request.get(key) for key in ("zero", "offload.optimizer", "offload.parameters"))
            == wanted
        )
        assert any("lies nowhere here" in one for one in found.assumed)


def test_a_launchers_file_that_lies_nowhere_is_what_its_name_says(tmp_path: Path) -> None:
    start = (
        "accelerate launch --config_file {} sft.py --model_name_or_path Qwen/Qwen2.5-0.5B --output_dir o\n"
    )
    for named, engine, zero in (
        ("zero2.yaml", "deepspeed", 2),
        ("my_fsdp2.yaml", "fsdp2", 3),
        ("ddp.yml", "transformers", 0),
    ):
        (tmp_path / "run.sh").write_text(start.format(named))
        found = memsheet.check(tmp_path / "run.sh", gpus="2xH100-80GB")
        assert found.answer is not None
        assert (found.answer.plan.engine, found.answer.plan.zero) == (engine, zero)
        assert f"{named} is named and is not among the files" in found.doubt


def test_a_batch_size_changes_no_accumulation() -> None:
    found = read_text("a.yaml", "sequence_len: 64\nmicro_batch_size: 2\nbatch_size: 32\n", PARSERS)
    assert (found.request["@accumulation"], found.unknown) == (1, ())


# ---- LLaMA-Factory -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "dtypes"),
    [
        ({"bf16": True}, ("fp32", "bf16", "fp32", "fp32", "fp32")), ({"fp16": True}, ("fp32", "fp16", "fp32", "fp32", "fp32")),
        ({}, ("fp32",) * 5), ({"pure_bf16": True}, ("bf16",) * 5),
        ({"use_badam": True}, ("bf16",) * 5),
    ],
)  # fmt: skip
def test_llamafactory_raises_what_trains(changes: dict[str, Any], dtypes: tuple[str, ...]) -> None:
    assert precision(factory(**changes)) == dict(zip(SIXTEEN, dtypes, strict=True))


def test_llamafactory_takes_lora_of_rank_8_and_recompute_where_nothing_is_said() -> None:
    found = factory(finetuning_type=None, bf16=True).request
    wanted = {
        "adapter.kind": "lora",
        "adapter.rank": 8,
        "adapter.targets": ["all"],
        "adapter.dtype": "fp32",
        "recompute.mode": "full",
    }
    assert wanted.items() <= found.items()
    assert found["precision.parameters"] == "bf16"
    assert not [key for key in factory().request if key.startswith("adapter")]


def test_recompute_is_off_only_where_both_switches_are() -> None:
    assert factory(disable_gradient_checkpointing=True).request["?recompute.mode"] == "none"
    assert (
        factory(disable_gradient_checkpointing=True, gradient_checkpointing=True).request["recompute.mode"]
        == "full"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"finetuning_type": "lora", "quantization_bit": 4}, {"quantization.weights": "nf4", "quantization.double_quant": True}),
        ({"quantization_bit": 4, "quantization_type": "fp4", "double_quantization": False}, {"quantization.weights": "fp4", "quantization.double_quant": False}),
        ({"quantization_bit": 8}, {"quantization.weights": "int8"}), ({"use_galore": True, "galore_rank": 64}, {"optimizer.name": "galore", "optimizer.rank": 64}),
        ({"use_adam_mini": True, "optim": "adamw_torch"}, {"optimizer.name": "adam_mini"}), ({"enable_liger_kernel": True}, {"loss": "fused"}),
        ({"enable_liger_kernel": True, "stage": "dpo"}, {"loss": "plain"}), ({"cutoff_len": 101}, {"seq_len": 104}), ({"use_liger_kernel": True}, {"loss": "fused"}),
        ({"cutoff_len": 101, "stage": "dpo"}, {"seq_len": 104}), ({"cutoff_len": 101, "stage": "pt"}, {"seq_len": 100}),
        ({"cutoff_len": 101, "stage": "pt", "packing": None}, {"seq_len": 101}), ({"cutoff_len": 101, "stage": "ppo"}, {"seq_len": 101}),
        ({"flash_attn": "disabled"}, {"attention": "eager"}), ({"flash_attn": "fa2"}, {"attention": "flash"}), ({}, {"attention": "sdpa", "microbatch": 8}),
        ({"finetuning_type": "freeze"}, {"adapter.kind": "lora"}), ({"finetuning_type": "freeze", "use_llama_pro": True}, {"adapter.kind": None}), ({"finetuning_type": "oft"}, {"adapter.kind": "lora"}), ({"finetuning_type": "lora", "lora_target": "q_proj, v_proj"}, {"adapter.targets": ["q_proj", "v_proj"]}),
        ({"finetuning_type": "lora", "additional_target": "embed_tokens"}, {"adapter.full_modules": ["embed_tokens"]}),
        ({"finetuning_type": "lora", "use_dora": True}, {"adapter.kind": "dora"}), ({"deepspeed": "z.json", "bf16": True}, {"engine": "deepspeed", "?precision.parameters": "bf16"}),
    ],
)  # fmt: skip
def test_keys_of_llamafactory(changes: dict[str, Any], said: dict[str, Any]) -> None:
    found = factory(**changes).request
    assert {key: found.get(key) for key in said} == said


def test_which_of_torchs_ways_recomputes_is_said_in_each_files_own_words() -> None:
    how = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}
    for found in (axolotl(**how), factory(use_reentrant_gc=True)):
        assert found.request["recompute.reentrant"] is True
        assert found.request["recompute.mode"] == "full"
    assert "recompute.reentrant" not in axolotl(gradient_checkpointing=True).request


@pytest.mark.parametrize("more", [{}, {"double_quantization": False}, {"quantization_type": "fp4"}])
@pytest.mark.parametrize("bits", [4, 8])
def test_the_older_spelling_of_bitsandbytes_quantizes(bits: int, more: dict[str, Any]) -> None:
    older, newer = (
        factory(quantization_bit=bits, quantization_method=name, **more) for name in ("bitsandbytes", "bnb")
    )
    assert (older.request, older.unmodelled) == (newer.request, newer.unmodelled)
    assert older.request["quantization.weights"]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"do_train": None}, "do_train"), ({"stage": "dpo"}, "stage"), ({"upcast_layernorm": True}, "upcast_layernorm"), ({"use_unsloth": True}, "use_unsloth"),
        ({"enable_liger_kernel": True}, "enable_liger_kernel (RoPE, norms, SwiGLU)"), ({"use_badam": True}, "use_badam"), ({"shift_attn": True}, "shift_attn"),
        ({"quantization_bit": 4, "quantization_method": "hqq"}, "quantization_method"), ({"use_galore": True, "galore_layerwise": True}, "galore_layerwise"),
        ({"tensor_model_parallel_size": 2}, "tensor_model_parallel_size"),
    ],
)  # fmt: skip
def test_what_llamafactory_does_that_nobody_accounts_is_told(changes: dict[str, Any], key: str) -> None:
    assert key in dict(factory(**changes).unmodelled)
    assert factory(neat_packing=True, flash_attn="fa2").unmodelled == ()
    assert list(dict(factory(neat_packing=True).unmodelled)) == [
        "neat_packing (a mask of each pair of tokens)"
    ]


# ---- out ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("axolotl", {"attention": "sdpa"}, "attention"), ("axolotl", {"precision.parameters": "fp32"}, "precision.parameters"),
        ("axolotl", {"recompute.every": 2}, "recompute.every"), ("axolotl", {"mesh.dp_shard": 8}, "mesh.dp_shard"), ("axolotl", {"attention": "cudnn"}, "attention"),
        ("axolotl", {"loss": "chunked"}, "loss"), ("axolotl", {"adapter.kind": "lora-fa", "adapter.rank": 8}, "adapter.kind"), ("axolotl", {"mesh.pp": 2}, "mesh.pp"),
        ("axolotl", {"engine": "megatron"}, "engine"), ("axolotl", {"dropout": 0.1}, "dropout"), ("axolotl", {"offload.activations": True}, "offload.activations"),
        ("llamafactory", {"recompute.mode": "selective"}, "recompute.mode"), ("llamafactory", {"mesh.cp": 2}, "mesh.cp"),
        ("llamafactory", {"@model": "${HOME}"}, "model"), ("llamafactory", {"quantization.weights": "int8", "adapter.rank": 8}, "quantization.weights"),
        ("llamafactory", {"compile": True}, "compile"),
    ],
)  # fmt: skip
def test_what_cannot_be_said_is_refused_by_name(name: str, changes: dict[str, Any], field: str) -> None:
    form = find_format(name)
    write_format_files(form, PLAN)
    with pytest.raises(InputError) as refused:
        write_format_files(form, {**PLAN, **changes})
    assert field in {problem.field for problem in refused.value.problems}


def test_fused_adapters_are_switched_off_where_the_sheet_is_of_plain_ones() -> None:
    asked = {**PLAN, "adapter.rank": 8, "adapter.kind": "lora", "adapter.targets": ["q_proj"], "adapter.dtype": "fp32", "precision.gradients": "fp32",
             "precision.moments": "fp32", "precision.reduce": "fp32", "quantization.weights": "nf4", "quantization.double_quant": True}  # fmt: skip
    made = yaml.safe_load(write_format_files(find_format("axolotl"), asked)["axolotl.yaml"])
    assert (made["adapter"], made["load_in_4bit"], made["lora_mlp_kernel"], made["lora_r"]) == (
        "qlora",
        True,
        False,
        8,
    )
    assert made["learning_rate"] == 0.0
    other = yaml.safe_load(write_format_files(find_format("llamafactory"), asked)["llamafactory.yaml"])
    assert (other["quantization_bit"], other["quantization_type"], other["lora_target"]) == (
        4,
        "nf4",
        "q_proj",
    )


@pytest.mark.parametrize(
    ("engine", "name", "files"),
    [
        ("deepspeed", "axolotl", {"axolotl.yaml", "ds_config.json"}), ("fsdp2", "axolotl", {"axolotl.yaml"}),
        ("fsdp2", "llamafactory", {"llamafactory.yaml", "accelerate.yaml"}), ("deepspeed", "llamafactory,deepspeed", {"llamafactory.yaml", "ds_config.json"}),
        ("transformers", "llamafactory", {"llamafactory.yaml"}),
    ],
)  # fmt: skip
def test_files_that_one_needs_come_along_and_check_as_planned(
    capsys: Any, tmp_path: Path, engine: str, name: str, files: set[str]
) -> None:
    plan = {
        "schema": "memsheet/plan/1", "model": "llama-3.2-1b", "gpus": "8xA100-80GB", "task": "train", "engine": engine, "seq_len": 2048,
        "microbatch": 1, "global_batch": 64, "recompute": {"mode": "full"}, "adapter": {"rank": 8}, "attention": "sdpa",
    }  # fmt: skip
    (tmp_path / "asked.json").write_text(json.dumps(plan))
    run = tmp_path / "run"
    assert main(("export", str(tmp_path / "asked.json"), "--to", name, "--out", str(run))) == 0
    assert {path.name for path in run.iterdir()} == files | {"plan.json", "sheet.json"}
    assert (
        yaml.safe_load((run / f"{name.partition(',')[0]}.yaml").read_text()).get(
            "base_model", "meta-llama/Llama-3.2-1B"
        )
        == "meta-llama/Llama-3.2-1B"
    )
    capsys.readouterr()
    assert main(("check", str(run), "--json")) == 0
    found, sheet = json.loads(capsys.readouterr()[0]), json.loads((run / "sheet.json").read_text())
    differs = engine == "fsdp2"  # in which dtype gradients are reduced
    assert found["doubt"] is None
    assert found["sheet"]["plan"]["recompute"] == sheet["plan"]["recompute"]
    assert differs or found["sheet"]["ranks"] == sheet["ranks"]


def test_a_file_names_its_model_and_an_unknown_key_stops_llamafactory(capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        yaml.safe_dump(
            {**FACTORY, "model_name_or_path": "meta-llama/Llama-3.2-1B", "bf16": True, "cutof_len": 1}
        )
    )
    assert main(("check", str(tmp_path / "a.yaml"), "--gpus", "1xA100-80GB")) == 10
    out = capsys.readouterr()[0]
    assert out.startswith("DOES NOT START")
    assert "cutoff_len" in out
    assert "llama-3.2-1b" in out


# ---- the trainers' own fields ------------------------------------------------------------------------------


def strange(name: str, fields: set[str]) -> list[str]:
    """Fields at a file's top that a format does not know, whatever stands in them."""
    form = find_format(name)
    every = {key.at for key in form.keys} | form.known | set(form.unmodelled) | form.removed
    tops = {at.partition(".")[0] for at in every}
    return sorted(
        field
        for field in fields
        if (form.rename(field) if form.rename else field).partition(".")[0] not in tops
    )


def test_every_field_of_axolotl_is_known() -> None:
    config = pytest.importorskip("axolotl.utils.schemas.config")
    fields = config.AxolotlInputConfig.model_fields
    assert strange("axolotl", {*fields, *(field.alias for field in fields.values() if field.alias)}) == []


def test_every_field_of_llamafactory_is_known() -> None:
    import dataclasses

    hparams = pytest.importorskip("llamafactory.hparams")
    parts = (
        hparams.ModelArguments,
        hparams.DataArguments,
        hparams.TrainingArguments,
        hparams.FinetuningArguments,
        hparams.GeneratingArguments,
    )
    assert (
        strange(
            "llamafactory", {field.name for part in parts for field in dataclasses.fields(part) if field.init}
        )
        == []
    )


FROZEN = (
    "model_name_or_path: Qwen/Qwen2.5-VL-7B-Instruct\nstage: sft\ndo_train: true\nfinetuning_type: full\n"
    "template: qwen2_vl\ncutoff_len: 512\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 1\n"
    "bf16: true\npacking: true\n"
)


@pytest.mark.parametrize(
    ("said", "doubted"),
    [
        ("", False),
        ("freeze_vision_tower: true\nfreeze_multi_modal_projector: false\n", False),
        ("freeze_language_model: true\n", False),
        ("freeze_vision_tower: false\n", True),
    ],
)
def test_frozen_parts_of_a_model_with_a_tower(said: str, doubted: bool, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(FROZEN + said)
    found = memsheet.check(tmp_path / "job.yaml", gpus="1xB300")
    assert found.answer is not None
    assert bool(found.doubt) is doubted
    frozen = [one.at for one in found.moved if one.low_bytes < 0]
    assert frozen == ([] if doubted else ["freeze_vision_tower"])


# ---- ranks that share sequences ----------------------------------------------------------------------------

SHARING_SCRIPT = """
from accelerate import ParallelismConfig
from accelerate.utils import DeepSpeedSequenceParallelConfig
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

parallel = ParallelismConfig(
    dp_shard_size=2, sp_size=2, sp_backend="deepspeed",
    sp_handler=DeepSpeedSequenceParallelConfig(sp_attn_implementation="sdpa", sp_seq_length_is_variable=True),
)
model = AutoModelForCausalLM.from_pretrained("unsloth/Llama-3.2-1B", dtype="bfloat16", attn_implementation="sdpa")
args = TrainingArguments("out", bf16=True, deepspeed="ds.json", parallelism_config=parallel)
Trainer(model=model, args=args, train_dataset=rows).train()
"""
STAGE_THREE = '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}'


LAUNCHER = Path(__file__).parents[3] / "configs" / "accelerate-trl-alst-ulysses-4gpu.yaml"


def checked_plan(capsys: Any, folder: Path, *options: str) -> dict[str, Any]:
    """The plan of a folder's files, none of which is left out."""
    capsys.readouterr()
    main(
        (
            "check",
            str(folder),
            "--gpus",
            "4xH100-80GB",
            "--seq-len",
            "4096",
            "--microbatch",
            "1",
            *options,
            "--json",
        )
    )
    found = json.loads(capsys.readouterr()[0])
    assert found["doubt"] is None
    plan: dict[str, Any] = found["sheet"]["plan"]
    return plan


def test_a_script_and_its_launcher_share_sequences_alike(capsys: Any, tmp_path: Path) -> None:
    """And what is planned is written as it was read."""
    script, launcher, written = (tmp_path / name for name in ("script", "launcher", "written"))
    for folder, files in (
        (script, {"train.py": SHARING_SCRIPT, "ds.json": STAGE_THREE}),
        (launcher, {"a.yaml": LAUNCHER.read_text()}),
    ):
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
    first, second = checked_plan(capsys, script), checked_plan(capsys, launcher, "--model", "llama-3.2-1b")
    (tmp_path / "plan.json").write_text(json.dumps(second))
    assert (
        main(
            (
                "export",
                str(tmp_path / "plan.json"),
                "--to",
                "accelerate,deepspeed,transformers",
                "--out",
                str(written),
            )
        )
        == 0
    )
    third = checked_plan(capsys, written, "--model", "llama-3.2-1b")
    for plan, attention in ((first, "sdpa"), (second, "flash"), (third, "flash")):
        assert (plan["mesh"]["dp_shard"], plan["mesh"]["cp"], plan["zero"]) == (2, 2, 3)
        assert (plan["context_parallel_comm"], plan["attention"]) == ("all_to_all", attention)


@pytest.mark.parametrize(("key", "exchange"), [("cp_size", None), ("sp_size", "all_to_all")])
def test_degrees_in_a_script_are_no_unknown_keys(key: str, exchange: str | None) -> None:
    made = f"TrainingArguments('out', parallelism_config=ParallelismConfig({key}=2))"
    text = f"from transformers import TrainingArguments\n{made}\n"
    read = read_text("train.py", text, PARSERS)
    assert (read.request["mesh.cp"], read.request.get("context_parallel_comm")) == (2, exchange)
    assert not read.unknown


def test_ranks_that_exchange_heads_are_of_deepspeed_alone(capsys: Any, tmp_path: Path) -> None:
    """accelerate reads their number nowhere else (1.15.0 accelerator.py:2155-2158, _prepare_deepspeed)."""
    text = LAUNCHER.read_text().replace("distributed_type: DEEPSPEED", "distributed_type: FSDP")
    (tmp_path / "a.yaml").write_text(text)
    asked = ("--model", "llama-3.2-1b", "--gpus", "4xH100-80GB", "--seq-len", "4096", "--microbatch", "1")
    main(("check", str(tmp_path), *asked, "--json"))
    assert "context_parallel_comm" in json.loads(capsys.readouterr()[0])["doubt"]


SFT = """from trl import {kind}Config, {kind}Trainer
args = {kind}Config(output_dir="o", per_device_train_batch_size=4, max_length=4096, bf16=True{more})
{kind}Trainer(model="meta-llama/Llama-3.2-1B", args=args, train_dataset=rows).train()
"""
SAID = ", gradient_checkpointing=True, loss_type='nll'"


@pytest.mark.parametrize(
    ("kind", "more", "gpus"),
    [
        ("SFT", "", "1xA100-40GB"), ("SFT", ", gradient_checkpointing=True", "1xA100-40GB"), ("SFT", ", loss_type='chunked_nll'", "1xA100-40GB"),
        ("DPO", "", "1xH200"),
    ],
)  # fmt: skip
def test_a_release_that_nobody_says_may_have_had_other_defaults(
    kind: str, more: str, gpus: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SFT.format(kind=kind, more=more))
    found = memsheet.check(script, gpus=gpus)
    assert found.result is Result.UNCERTAIN
    assert "which releases run" in found.doubt
    for at in ("gradient_checkpointing", "loss_type"):
        assert not (at in more and f"unless {at}" in found.doubt)
    newer = memsheet.check(script, gpus=gpus, engine_version="1.9")
    assert newer.result is Result.FITS
    assert newer.answer is not None
    assert found.answer is not None
    assert newer.answer.verdict is not None
    assert found.answer.verdict is not None
    assert found.answer.verdict.device.high > newer.answer.verdict.device.high


def test_a_training_that_fits_by_any_release_fits(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    for more, gpus in (("", "1xB200"), (SAID, "1xH100-80GB")):
        script.write_text(SFT.format(kind="SFT", more=more))
        assert memsheet.check(script, gpus=gpus).result is Result.FITS


def test_a_file_of_arguments_is_of_any_release_alike(tmp_path: Path) -> None:
    file = tmp_path / "sft.yaml"
    text = "model_name_or_path: meta-llama/Llama-3.2-1B\nper_device_train_batch_size: 4\nmax_length: 4096\nbf16: true\npacking: true\ngradient_checkpointing: true\n"  # fmt: skip
    file.write_text(text)
    assert memsheet.check(file, gpus="1xA100-40GB").result is Result.UNCERTAIN
    file.write_text(f"{text}use_liger_kernel: true\n")
    assert memsheet.check(file, gpus="1xA100-40GB").result is Result.FITS


def test_a_recipe_without_data_is_of_no_known_program_to_stop(tmp_path: Path) -> None:
    """A script of one's own may say what the file leaves out; TRL's own needs data said."""
    file = tmp_path / "sft.yaml"
    text = "model_name_or_path: meta-llama/Llama-3.2-1B\nmax_length: 512\nload_best_model_at_end: true\n"
    for data, stops in (("", False), ("dataset_name: trl-lib/Capybara\n", True)):
        file.write_text(text + data)
        found = memsheet.check(file, gpus="1xH100-80GB")
        assert "refused-together" in {rule.id for rule, _ in found.mistakes}
        assert found.stops is stops


RECIPE = """base_model: meta-llama/Meta-Llama-3-8B
adapter: {adapter}
load_in_4bit: true
sequence_len: {length}
lora_r: 32
lora_alpha: 16
lora_target_linear: true
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_bnb_8bit
gradient_checkpointing: true
bf16: auto
datasets:
  - path: tatsu-lab/alpaca
    type: alpaca
"""


@pytest.mark.parametrize(("adapter", "length"), [("q-lora", "4096"), ("qlora", "4k"), ("q_lora", "4K")])
def test_a_slip_stops_the_job_and_its_sheet_is_of_what_is_meant(
    adapter: str, length: str, tmp_path: Path
) -> None:
    (file := tmp_path / "a.yaml").write_text(RECIPE.format(adapter=adapter, length=length))
    found = memsheet.check(file, gpus="1xH100-80GB")
    (file := tmp_path / "b.yaml").write_text(RECIPE.format(adapter="qlora", length="4096"))
    meant = memsheet.check(file, gpus="1xH100-80GB")
    assert found.answer is not None, found.why_not
    assert meant.answer is not None
    assert found.answer.sheets == meant.answer.sheets
    assert [mistake.id for mistake, _ in found.mistakes if mistake.id == "value-not-taken"]
    assert (found.stops, meant.stops) == (True, False)


def test_an_adapter_of_a_plugin_is_no_slip(tmp_path: Path) -> None:
    (file := tmp_path / "a.yaml").write_text(RECIPE.format(adapter="mora", length="4096"))
    assert memsheet.check(file, gpus="1xH100-80GB").stops is False


PICTURES = """from transformers import Gemma3ForConditionalGeneration, Trainer, TrainingArguments
model = Gemma3ForConditionalGeneration.from_pretrained("google/gemma-3-4b-it", dtype="bfloat16")
{freezes}
args = TrainingArguments("o", per_device_train_batch_size=1, bf16=True)
Trainer(model=model, args=args, train_dataset=d).train()
"""
UNDER_TEST = "for n, p in model.named_parameters():\n    if {test}:\n        p.requires_grad = False"


@pytest.mark.parametrize(
    ("freezes", "tower"),
    [
        (UNDER_TEST.format(test='"vision_tower" in n'), True),
        (UNDER_TEST.format(test='n.startswith("model.vision_tower.")'), True),
        ("for p in model.vision_tower.parameters():\n    p.requires_grad = False", True),
        ("model.vision_tower.requires_grad_(False)", True),
        (UNDER_TEST.format(test='"vision_tower" not in n'), False),
        (UNDER_TEST.format(test='"layers" in n'), False),
        ("for p in model.parameters():\n    p.requires_grad = False", False),
        ("model.requires_grad_(False)", False),
    ],
)
def test_a_frozen_tower_takes_its_states_off_the_sheet_and_what_else_is_frozen_is_open(
    freezes: str, tower: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(PICTURES.format(freezes=freezes))
    found = memsheet.check(tmp_path / "train.py", gpus="1xH200", seq_len=512)
    moved = [one for one in found.moved if one.at == "script.frozen_tower"]
    assert bool(moved) is tower
    (read,) = found.reads.values()
    assert ("script.frozen" in dict(read.unmodelled)) is not tower
    if tower:
        assert found.answer is not None
        count = sum(weight.elements * times for _, weight, times in tower_tensors(found.answer.model))
        assert moved[0].low_bytes == pytest.approx(-count * (2 + 2 + 2), rel=0.01)  # a gradient, two moments
        assert moved[0].low_bytes <= moved[0].high_bytes <= 0
