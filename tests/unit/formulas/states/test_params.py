"""Counting parameters: experts that a token skips, layers that share their tensors, indices in names."""

from __future__ import annotations

from dataclasses import replace

from memsheet.formulas.states.params import (
    active_parameter_count,
    buffer_tensors,
    fold_path_indices,
    parameter_count,
    parameter_tensors,
)
from memsheet.plan.model import ModelSpec, Moe, Role, Run, Weight
from memsheet.readers.hf_config import read_hf_config

SMALL = {
    "model_type": "llama",
    "hidden_size": 8,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "num_hidden_layers": 4,
    "vocab_size": 10,
}
LAYER = 4 * 8 * 8 + 3 * 8 * 12 + 2 * 8
OUTSIDE = 2 * 10 * 8 + 8


def with_runs(spec: ModelSpec, *runs: Run) -> ModelSpec:
    return replace(spec, stacks=(replace(spec.stacks[0], runs=runs),))


def test_llama_7b() -> None:
    assert (
        parameter_count(read_hf_config({"model_type": "llama"})) == 6_738_415_616
    )  # Touvron et al. 2023, table 2: 6.7B


def test_every_layer_counts() -> None:
    spec = read_hf_config(SMALL)
    assert parameter_count(spec) == 4 * LAYER + OUTSIDE == active_parameter_count(spec)


def test_runs_that_share_their_tensors_count_once() -> None:
    spec = read_hf_config(SMALL)
    (run,) = spec.stacks[0].runs
    shared = replace(run, count=1, shared="a")
    assert parameter_count(with_runs(spec, shared, run, shared)) == 5 * LAYER + OUTSIDE


def test_a_token_passes_through_its_experts_only() -> None:
    spec = read_hf_config(SMALL)
    block = spec.stacks[0].runs[0].pattern[0]
    weights = (
        Weight(path="mlp.up", shape=(8, 5, 7), role=Role.EXPERT),
        Weight(path="mlp.gate.weight", shape=(8, 5), role=Role.ROUTER),
    )
    moe = Moe(path="mlp", experts=8, experts_per_token=2, intermediate=7, activation="silu", weights=weights)
    sparse = with_runs(spec, Run(pattern=(replace(block, feed_forward=moe),), count=3))
    assert parameter_count(sparse) - active_parameter_count(sparse) == 3 * 6 * 5 * 7


def test_buffers_are_no_parameters() -> None:
    spec = read_hf_config({"model_type": "gpt_bigcode"})
    assert [path for path, _, _ in buffer_tensors(spec)] == ["transformer.bias"]
    assert all(weight.role is not Role.BUFFER for _, weight, _ in parameter_tensors(spec))


def test_indices_fold_wherever_they_stand() -> None:
    assert (
        fold_path_indices("model.layers.12.mlp.experts.3.w1.weight")
        == "model.layers.*.mlp.experts.*.w1.weight"
    )
    assert fold_path_indices("visual.merger.mlp.0") == "visual.merger.mlp.*"
    assert fold_path_indices("layers2.fc1.weight") == "layers2.fc1.weight"
