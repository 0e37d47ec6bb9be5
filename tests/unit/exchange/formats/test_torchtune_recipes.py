"""torchtune's YAML: components by their Python names, and a recipe's switches."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

import memsheet
from memsheet.cli import main
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.formats.torchtune import shipped
from memsheet.exchange.shared.config_commands import TUNE_FILE
from memsheet.exchange.shared.file_format import FileReading
from memsheet.guard import parse_json, parse_yaml
from memsheet.plan.workload import Training
from memsheet.report.shared.checked import Checked
from memsheet.report.shared.exit_codes import checked_exit_code

FULL = """model:
  _component_: torchtune.models.llama3_1.llama3_1_8b
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 2048}
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: checkpoints/Meta-Llama-3.1-8B-Instruct/
dataset: {_component_: torchtune.datasets.alpaca_dataset, packed: true}
optimizer: {_component_: torch.optim.AdamW, fused: true, lr: 2e-5}
batch_size: 2
gradient_accumulation_steps: 4
dtype: bf16
enable_activation_checkpointing: true
"""
LORA = FULL.replace(
    "llama3_1.llama3_1_8b",
    "llama3_1.lora_llama3_1_8b\n  lora_attn_modules: [q_proj, output_proj]\n  apply_lora_to_mlp: true\n"
    "  lora_rank: 16\n  lora_alpha: 32",
)
QLORA = LORA.replace(".lora_", ".qlora_")


def reading(text: str) -> FileReading:
    return read_text("config.yaml", text, {"json": parse_json, "yaml": parse_yaml})


def test_a_builder_that_is_told_to_quantize_is_qlora() -> None:
    told = reading(LORA.replace("  lora_rank", "  quantize_base: true\n  lora_rank"))
    assert told.request == reading(QLORA).request
    assert dict(told.unmodelled) == dict(reading(QLORA).unmodelled)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (FULL, {"@model": "Meta-Llama-3.1-8B-Instruct", "microbatch": 2, "@accumulation": 4, "seq_len": 2048, "recompute.mode": "full"}),
        (FULL, {"precision.parameters": "bf16", "precision.moments": "bf16", "optimizer.implementation": "fused", "adapter.rank": None}),
        (LORA, {"adapter.rank": 16, "adapter.targets": ["down_proj", "gate_proj", "o_proj", "q_proj", "up_proj"]}),
        (LORA, {"adapter.dtype": "bf16", "quantization.weights": None}),
        (QLORA, {"quantization.weights": "nf4", "adapter.rank": 16}),
        (FULL.replace("_checkpointing: true", "_checkpointing: false"), {"recompute.mode": "none"}),
        (FULL + "enable_activation_offloading: true\n", {"offload.activations": True}),
        (FULL.replace("torch.optim.AdamW", "bitsandbytes.optim.PagedAdamW8bit"), {"optimizer.name": "paged_adamw_8bit"}),
        (FULL + "tensor_parallel_dim: 2\n", {"mesh.tp": 2}),
    ],
)  # fmt: skip
def test_what_is_read_of_it(text: str, wanted: dict) -> None:
    found = reading(text)
    assert (found.form.name, found.unknown) == ("torchtune", ())
    assert {key: found.request.get(key) for key in wanted} == wanted


@pytest.mark.parametrize("text", [FULL, LORA, QLORA])
def test_models_whose_layers_are_written_down_are_torchtunes(text: str) -> None:
    assert reading(text).request["engine"] == "torchtune"
    assert not reading(text).unmodelled


@pytest.mark.parametrize(
    "builder", ["llama3_2.llama3_2_1b", "qwen2_5.lora_qwen2_5_1_5b_base", "qwen2.qwen2_0_5b"]
)
def test_models_with_a_tied_table_are_torchtunes(builder: str) -> None:
    found = reading(FULL.replace("llama3_1.llama3_1_8b", builder))
    assert found.request["engine"] == "torchtune"


UNWRITTEN = FULL.replace("llama3_1.llama3_1_8b", "qwen3.qwen3_8b_instruct").replace(
    "Meta-Llama-3.1-8B-Instruct", "Qwen3-8B"
)


@pytest.mark.parametrize("text", [UNWRITTEN, UNWRITTEN + "a_key_of_tomorrow: 3\n"])
def test_a_sheet_that_says_whose_layers_it_is_of(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(text)
    main(["check", str(tmp_path / "config.yaml"), "--gpus", "2xH100-80GB", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["sheet"], found["why_not"]
    assert found["starts"]
    assert found["result"] == "does not fit" or "torchtune's own layers" in found["doubt"]


def test_lengths_that_the_data_decides_make_no_sure_verdict() -> None:
    found = reading(FULL.replace(", max_seq_len: 2048", ", max_seq_len: null"))
    assert [at for at, _ in found.unmodelled] == ["lengths of samples"]


def _told(tmp_path: Path, command: str) -> Checked:
    (tmp_path / "run.sh").write_text(f"{command}\n")
    return memsheet.check(tmp_path / "run.sh", gpus="8xA100-80GB")


def test_a_configuration_that_is_shipped_is_read_by_its_name(tmp_path: Path) -> None:
    named = "tune run lora_finetune_single_device --config llama3_1/8B_lora_single_device"
    found = _told(tmp_path, f"{named} batch_size=4 tokenizer.max_seq_len=2048 model.lora_rank=16")
    assert found.answer is not None
    plan = found.answer.plan
    assert isinstance(plan.workload, Training)
    assert (found.answer.model.name, plan.engine) == ("llama-3.1-8b", "torchtune")
    assert (plan.workload.microbatch, plan.workload.seq_len, plan.accumulation) == (4, 2048, 8)
    assert plan.adapter is not None
    assert plan.adapter.rank == 16
    assert any("13 keys as the configuration says" in line for line in found.assumed)


def test_every_configuration_that_is_shipped_names_its_model() -> None:
    names = tomllib.loads(Path(shipped.__file__).with_name("configs.toml").read_text())["configs"]
    assert len(names) > 150
    for name in names:
        values = shipped.shipped_values({TUNE_FILE: name})
        assert {"model._component_", "checkpointer.checkpoint_dir", "batch_size"} <= values.keys()
        assert ("model.lora_rank" in values) == ("lora" in values["model._component_"].rpartition(".")[2])
    assert shipped.shipped_values({TUNE_FILE: "mine/8B_lora"}) == {}


def test_steps_inside_backward_leave_no_gradients(tmp_path: Path) -> None:
    named = "tune run full_finetune_single_device --config llama3_1/8B_full_single_device"
    found = _told(tmp_path, f"{named} tokenizer.max_seq_len=2048")
    assert found.answer is not None
    assert found.answer.plan.optimizer_in_backward
    whole = _told(tmp_path, f"{named} tokenizer.max_seq_len=2048 optimizer_in_bwd=False")
    assert whole.answer is not None
    saved = whole.answer.sheets[0].allocated.value - found.answer.sheets[0].allocated.value
    assert saved > 8e9


def test_pairs_of_its_dpo_are_counted(tmp_path: Path) -> None:
    named = "tune run --nproc_per_node 8 full_dpo_distributed --config llama3_1/8B_full_dpo"
    found = _told(tmp_path, named)
    assert found.answer is not None
    assert isinstance(found.answer.plan.workload, Training)
    assert found.answer.plan.workload.microbatch == 8
    assert "reference model" in found.doubt


@pytest.mark.parametrize("key", ["template: {_component_: torchtune.data.SummarizeTemplate}", "stage: sft"])
def test_a_recipe_is_torchtunes_whatever_stands_beside(key: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(f"{FULL}{key}\n")
    found = memsheet.check(tmp_path / "recipe.yaml", gpus="1xH100-80GB")
    assert [read.form.name for read in found.reads.values()] == ["torchtune"]
    assert found.answer is not None


@pytest.mark.parametrize(
    ("builder", "model"),
    [
        ("qwen2.lora_qwen2_0_5b", "qwen2-0.5b"),
        ("qwen2_5.lora_qwen2_5_1_5b_instruct", "qwen2.5-1.5b-instruct"),
        ("phi4.lora_phi4_14b", "phi-4"),
        ("llama3_1.lora_llama3_1_8b", "llama3.1-8b"),
    ],
)
@pytest.mark.parametrize("folder", ["{{ model_dir }}", "/models/ours"])
def test_a_folder_that_tells_no_model_leaves_it_to_the_builder(builder: str, model: str, folder: str) -> None:
    text = (
        f"model:\n  _component_: torchtune.models.{builder}\n  lora_attn_modules: [q_proj]\n  lora_rank: 8\n"
        f"checkpointer:\n  checkpoint_dir: {folder}\n"
        "optimizer:\n  _component_: torch.optim.AdamW\nbatch_size: 2\n"
    )
    found = read_text("a.yaml", text, {"json": parse_json, "yaml": parse_yaml})
    assert found.request["@model"] == model


def test_adapters_of_matrices_that_the_library_joins_are_of_the_joined_ones() -> None:
    text = (
        "model:\n  _component_: torchtune.models.phi3.lora_phi3_mini\n"
        "  lora_attn_modules: [q_proj, v_proj, output_proj]\n  apply_lora_to_mlp: True\n  lora_rank: 8\n"
        "checkpointer:\n  checkpoint_dir: /m/Phi-3-mini-4k-instruct\n"
        "optimizer:\n  _component_: torch.optim.AdamW\n"
    )
    found = read_text("a.yaml", text, {"json": parse_json, "yaml": parse_yaml})
    assert found.request["adapter.targets"] == ["down_proj", "gate_up_proj", "o_proj", "qkv_proj"]


@pytest.mark.parametrize(
    ("recipe", "more", "stopped"),
    [
        ("full_finetune_single_device", "gradient_accumulation_steps=4", True), ("full_finetune_single_device", "clip_grad_norm=1.0", True),
        ("full_finetune_single_device", "gradient_accumulation_steps=1", False), ("./mine_single_device.py", "clip_grad_norm=1.0", False),
        ("full_finetune_single_device", "gradient_accumulation_steps=4 optimizer_in_bwd=False", False),
    ],
)  # fmt: skip
def test_its_recipes_refuse_what_gathers_gradients_beside_steps_in_backward(
    recipe: str, more: str, stopped: bool, tmp_path: Path
) -> None:
    named = f"tune run {recipe} --config llama3_1/8B_full_single_device tokenizer.max_seq_len=2048"
    found = _told(tmp_path, f"{named} {more}")
    stops = [one for rule, one in found.mistakes if rule.id == "refused-together" and one.stops]
    assert bool(stops) is stopped
    assert all(f"{more.partition('=')[0]}: " in one.cure for one in stops)
    assert not stopped or checked_exit_code(found) == 10
