"""TRL's arguments are transformers' and its own: a mistake in the one is told in the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import memsheet
from memsheet.cli import main

PLAIN = "per_device_train_batch_size: 1\n"
MISTAKES = {
    "recompute-gathers": "bf16: true\ngradient_checkpointing: true\nfsdp: full_shard\n",
    "recomputes-twice": (
        "bf16: true\ngradient_checkpointing: true\nfsdp: full_shard\nfsdp_config: "
        "{activation_checkpointing: true}\n"
    ),
    "full-width": "bf16: false\nfp16: false\n",
    "loads": "bf16: true\nfsdp: full_shard\nfsdp_config: {cpu_ram_efficient_loading: false}\n",
    "empties": "bf16: true\ntorch_empty_cache_steps: 1\n",
    "finds-batch": "bf16: true\nauto_find_batch_size: true\n",
    "tokens": "bf16: true\naverage_tokens_across_devices: false\n",
    "reenters": (
        "bf16: true\ngradient_checkpointing: true\ngradient_checkpointing_kwargs: {use_reentrant: true}\n"
    ),
    "optim": "bf16: true\noptim: adamw_torch\n",
    "yaml-trap": "bf16: true\nlearning_rate: 2e-5\n",
}
OF_TRL = "max_length: 512\ndataset_name: x\nmodel_name_or_path: llama-3.2-1b\nloss_type: nll\n"


def rules(folder: Path, text: str, form: str, capsys: pytest.CaptureFixture[str]) -> set[tuple[str, bool]]:
    (folder / "args.yaml").write_text(text)
    main(
        [
            "check",
            str(folder / "args.yaml"),
            "--model",
            "llama-3.2-1b",
            "--seq-len",
            "512",
            "--gpus",
            "8xA100-80GB",
            "--json",
        ]
    )
    found = json.loads(capsys.readouterr().out)
    assert [one["format"] for one in found["files"]] == [form]
    return {(one["rule"], one["stops"]) for one in found["mistakes"]}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_of_the_trainers_arguments_is_one_of_trls(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none = rules(tmp_path, f"{PLAIN}bf16: true\n", "transformers", capsys)
    trainer = rules(tmp_path, PLAIN + MISTAKES[name], "transformers", capsys) - none
    trl = rules(tmp_path, PLAIN + MISTAKES[name] + OF_TRL, "trl", capsys)
    assert trainer
    assert trainer <= trl


@pytest.mark.parametrize(
    ("version", "told", "stops"),
    [
        (None, True, False),
        ("trl==0.19.1", False, False),
        ("trl==0.20.0", True, True),
        ("trl==1.6", True, True),
    ],
)
def test_a_length_by_its_older_name_is_read_and_told(
    version: str | None, told: bool, stops: bool, tmp_path: Path
) -> None:
    command = "trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name d --max_seq_length 512\n"
    (script := tmp_path / "a.sh").write_text(command)
    found = memsheet.check(script, gpus="1xH100-80GB", engine_version=version)
    assert found.answer is not None, found.why_not
    assert int(found.answer.plan.workload.seq_len) == 512
    assert ("key-of-older-release" in {rule.id for rule, _ in found.mistakes}) is told
    assert found.stops is stops


FOUR_BITS = """load_in_4bit: true
use_peft: true
lora_r: 8
model_name_or_path: meta-llama/Llama-3.1-8B
max_length: 1024
bf16: true
"""
LAUNCH = "distributed_type: FSDP\nnum_processes: 8\nmixed_precision: bf16\nfsdp_config: {fsdp_version: 2}\n"


@pytest.mark.parametrize(("storage", "told"), [("", True), ("bnb_4bit_quant_storage: bfloat16\n", False)])
def test_four_bits_that_fsdp2_leaves_whole_are_told(storage: str, told: bool, tmp_path: Path) -> None:
    """accelerate 1.14 utils/fsdp_utils.py:789-811."""
    recipe, launch = tmp_path / "recipe.yaml", tmp_path / "launch.yaml"
    recipe.write_text(FOUR_BITS + storage)
    launch.write_text(LAUNCH)
    found = memsheet.check(recipe, launch, gpus="8xH100-80GB")
    assert ("packs-whole" in {rule.id for rule, _ in found.mistakes}) is told
