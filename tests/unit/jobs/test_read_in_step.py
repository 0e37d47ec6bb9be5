"""A frozen model that reads within another's step: its pass stands on all that the step saves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.sheet import Component

SIZES = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 32,
}  # fmt: skip
ROWS, LENGTH = 4, 256
FORWARD, LOSS = memsheet.Instant("update/forward"), memsheet.Instant("update/loss")


def step(folder: Path, *, beside: bool = True, phase_of_its_own: bool = False, **said: Any) -> memsheet.Sheet:
    (folder / "config.json").write_text(json.dumps(SIZES))
    model = str(folder / "config.json")
    plan = {
        "task": "train", "engine": "transformers", "seq_len": LENGTH, "microbatch": ROWS, "precision": "bf16-autocast", "recompute": {"mode": "none"},
        "attention": "eager", "loss": "fused", **said,
    }  # fmt: skip
    roles: dict[str, Any] = {"actor": {"model": model, "plan": plan, "process": "trainer"}}
    if beside:
        roles["reference"] = {"model": model, "plan": plan, "trained": False, "process": "trainer"}
    phases = [{"name": "update", "active": "actor", "logits": {"bytes": 12}}]
    if phase_of_its_own:
        phases.append({"name": "ref", "active": "reference", "work": "forward", "logits": {"bytes": 6}})
    return memsheet.job({"gpus": "1xH100-80GB", "roles": roles, "phases": phases}).sheets[0]


def bytes_of(sheet: memsheet.Sheet, path: str, when: memsheet.Instant) -> int:
    return sum(int(item.at[when].value) for item in sheet.items if item.path == path and when in item.at)


def test_its_layer_runs_beside_what_the_step_saved(tmp_path: Path) -> None:
    """Of every layer that is not recomputed, transients of one more, scores in fp32 among them."""
    scores = 4 * ROWS * SIZES["num_attention_heads"] * LENGTH**2
    assert bytes_of(step(tmp_path), "actor/reference_pass", FORWARD) > scores


@pytest.mark.parametrize("how", [{"beside": False}, {"phase_of_its_own": True}])
def test_nothing_reads_where_there_is_none_or_it_has_a_phase(tmp_path: Path, how: dict[str, bool]) -> None:
    assert bytes_of(step(tmp_path, **how), "actor/reference_pass", FORWARD) == 0


def test_it_is_in_the_range_and_not_in_its_least(tmp_path: Path) -> None:
    items = [item for item in step(tmp_path).items if item.path == "actor/reference_pass"]
    assert [int(item.at[FORWARD].low) for item in items] == [0]
    assert all(item.component is Component.TEMPORARIES for item in items)


@pytest.mark.parametrize("precision", ["bf16-autocast", "bf16-pure", "fp32"])
def test_the_output_matrix_saves_what_it_multiplies(tmp_path: Path, precision: str) -> None:
    """For its gradient, whether autocast casts it or not."""
    held = bytes_of(step(tmp_path, precision=precision), "actor/lm_head/input", LOSS)
    assert held == ROWS * LENGTH * SIZES["hidden_size"] * (4 if precision == "fp32" else 2)


def test_a_frozen_output_matrix_saves_nothing(tmp_path: Path) -> None:
    adapter = {"kind": "lora", "rank": 8, "targets": ["q_proj"]}
    assert bytes_of(step(tmp_path, adapter=adapter), "actor/lm_head/input", LOSS) == 0
