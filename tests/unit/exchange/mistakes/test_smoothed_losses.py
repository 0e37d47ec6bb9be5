"""Noise on embeddings, smoothed labels and an emptied cache widen the range by a bound, in each tool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memsheet.cli import main

FACTORY = """model_name_or_path: Qwen/Qwen3-0.6B
stage: {stage}
finetuning_type: full
cutoff_len: 1024
per_device_train_batch_size: 2
bf16: true
"""
TRL = (
    "trl sft --model_name_or_path Qwen/Qwen3-0.6B --max_length 1024 --per_device_train_batch_size 2 "
    "--bf16 true"
)
SWIFT = (
    "swift sft --model Qwen/Qwen3-0.6B --tuner_type full --max_length 1024 --torch_dtype bfloat16 "
    "--per_device_train_batch_size 2"
)
AXOLOTL = """base_model: Qwen/Qwen3-0.6B
sequence_len: 1024
micro_batch_size: 2
bf16: true
optimizer: adamw_torch
flash_attention: true
sample_packing: true
"""
NOISE, SMOOTH, EMPTIES = "neftune_noise_alpha", "label_smoothing_factor", "torch_empty_cache_steps"
CASES = [
    ("sft.yaml", FACTORY.format(stage="sft"), ": ", (NOISE, SMOOTH, EMPTIES)),
    ("dpo.yaml", FACTORY.format(stage="dpo"), ": ", (NOISE, EMPTIES)),
    ("trl.sh", TRL, " ", (NOISE, SMOOTH, EMPTIES)),
    ("swift.sh", SWIFT, " ", (NOISE, SMOOTH, EMPTIES)),
    ("axolotl.yaml", AXOLOTL, ": ", (NOISE, EMPTIES)),
]
VALUES = {NOISE: 5, SMOOTH: 0.1, EMPTIES: 4}


def checked(capsys: pytest.CaptureFixture[str], path: Path) -> dict[str, Any]:
    main(["check", str(path), "--gpus", "1xH200", "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def highest(found: dict[str, Any]) -> int:
    most: int = found["sheet"]["verdict"]["device_high_bytes"]
    return most


@pytest.mark.parametrize(("name", "text", "joint", "options"), CASES, ids=lambda held: str(held)[:10])
def test_an_option_with_a_bound_leaves_the_verdict_and_adds_to_the_most(
    name: str,
    text: str,
    joint: str,
    options: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / name
    path.write_text(text)
    plain = checked(capsys, path)
    for option in options:
        written = f" --{option}{joint}" if path.suffix == ".sh" else f"{option}{joint}"
        path.write_text(f"{text}{written}{VALUES[option]}\n")
        found = checked(capsys, path)
        assert found["doubt"] == plain["doubt"], option
        assert any(option in str(moved) for moved in found["moved"]), option
        assert highest(found) >= highest(plain) + (0 if option == EMPTIES else 1)
        assert found["sheet"]["verdict"]["result"] == plain["sheet"]["verdict"]["result"]


def test_smoothed_labels_need_whole_logits_beside_a_loss_in_pieces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grown = {}
    for liger in ("false", "true"):
        path = tmp_path / f"{liger}.yaml"
        text = f"{FACTORY.format(stage='sft')}enable_liger_kernel: {liger}\n"
        path.write_text(text)
        before = highest(checked(capsys, path))
        path.write_text(f"{text}{SMOOTH}: 0.1\n")
        grown[liger] = highest(checked(capsys, path)) - before
    logits = 2 * 1024 * 151_936 * 4
    assert grown["false"] >= 3 * logits
    assert grown["true"] >= 5 * logits
