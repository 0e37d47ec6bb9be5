"""torchtitan's models besides its first Llama: what their layers keep, tables of rotations, tied tables."""

from __future__ import annotations

from typing import Any

import pytest

from memsheet import catalog
from memsheet.account import account_rank
from memsheet.errors import InputError
from memsheet.formulas.groups import StageLayers, walk_stage_layers
from memsheet.formulas.model_code import model_code
from memsheet.formulas.states.params import parameter_count
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.plan.words import request_from
from memsheet.readers.hf_config import read_hf_config
from memsheet.readers.model import read_model
from memsheet.resolve import resolve_request
from memsheet.sheet import Component, Instant, Sheet

LAYERS = 28
CONFIG = {
    "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": LAYERS, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 151936, "max_position_embeddings": 40960, "attention_bias": False, "tie_word_embeddings": False,
}  # fmt: skip
NEWEST, LAST_TOML, MID_2025 = "b5bcd76", "238fa99", "820504e"
TABLE = 151936 * 1024


def planned(kind: str = "qwen3", **options: Any) -> tuple[ModelSpec, Plan]:
    spec = read_hf_config({**CONFIG, "model_type": kind, **options.pop("config", {})}, name="small")
    given = {
        "engine": "torchtitan",
        "engine_version": NEWEST,
        "seq_len": 4096,
        "microbatch": 4,
        "dp_shard": 8,
    }
    return spec, resolve_request({**request_from({**given, **options}), "task": "train"}, spec).plan


def sheet(kind: str = "qwen3", **options: Any) -> Sheet:
    spec, plan = planned(kind, **options)
    return account_rank(spec, plan)


def walked(kind: str = "qwen3", **options: Any) -> StageLayers:
    spec, plan = planned(kind, **options)
    engine = find_engine("torchtitan")
    assert engine is not None
    return walk_stage_layers(model_code(engine.layers).built(spec, plan), plan, engine, release=False)


def kept(kind: str = "qwen3", **options: Any) -> int:
    """Bytes that a layer keeps for backward."""
    return int(walked(kind, **options).layers[0].pattern[0].part.retained.total)


# ---- against the real code ---------------------------------------------------------------------------------

TRACED = {"llama": (747765760, 988938240), "qwen3": (858390528, 1099563008)}
"""What one layer of torchtitan's at b5bcd76 keeps (the generator's 16 bytes aside), and the most there is in
its backward, under torch 2.13 on tensors without memory: norms and attention as functions that save what the
kernels save, everything else as it is written there.
"""


@pytest.mark.parametrize("kind", TRACED)
def test_a_layer_keeps_what_the_real_code_keeps(kind: str) -> None:
    generator = 16
    assert kept(kind) - generator == TRACED[kind][0]
    backward = walked(kind).layers[0].pattern[0].part.backward.total
    assert backward == TRACED[kind][1] + generator


def test_without_norms_of_heads_it_is_a_llama_with_a_wider_table() -> None:
    heads = {
        "q": 2 * 16384 * 16 * 128, "k": 2 * 16384 * 8 * 128, "statistics": 4 * 16384 * (16 + 8), "rows": 4 * 16384 * 128,
    }  # fmt: skip
    assert kept("qwen3") - kept("llama") == sum(heads.values())
    full = {"recompute": "full"}
    assert kept("qwen3", **full) == kept("llama", **full) == 2 * 16384 * 1024


def test_a_compiler_takes_rows_where_they_are_read() -> None:
    paths = [
        {path for _, path in walked(compile=on).layers[0].pattern[0].part.retained.held}
        for on in (False, True)
    ]
    rows = "layers.*.attention/rotary_rows"
    assert rows in paths[0]
    assert rows not in paths[1]


# ---- experts -----------------------------------------------------------------------------------------------

EXPERTS = {
    "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True,
}  # fmt: skip
ROUTED_KEPT, ROUTED_BACKWARD = 1620279808, 3264709120
"""The same of a layer with experts, whose grouped products and sum are functions that save what torch's
save.
"""


def routed(**options: Any) -> dict[str, Any]:
    return {"kind": "qwen3_moe", "microbatch": 2, "config": EXPERTS, **options}


def test_a_layer_with_experts_keeps_what_the_real_code_keeps() -> None:
    generator = 16
    assert kept(**routed()) - generator == ROUTED_KEPT
    backward = walked(**routed()).layers[0].pattern[0].part.backward.total
    assert backward == ROUTED_BACKWARD + generator


LATENT = {"deepseek-v3": (6434227200, 28248802304), "deepseek-v2-lite": (1769373952, 2861138176)}
"""The same of DeepSeek's last layer, with two sequences of 4,096 tokens."""


@pytest.mark.parametrize("name", LATENT)
def test_a_layer_of_deepseek_keeps_what_the_real_code_keeps(name: str) -> None:
    spec = read_model(name, catalog=catalog.find_model, names=catalog.model_names())
    asked = {
        "engine": "torchtitan",
        "engine_version": NEWEST,
        "seq_len": 4096,
        "microbatch": 2,
        "dp_shard": 64,
    }
    plan = resolve_request({**request_from(asked), "task": "train"}, spec).plan
    engine = find_engine("torchtitan")
    assert engine is not None
    built = model_code(engine.layers).built(spec, plan)
    assert parameter_count(built) == parameter_count(spec)
    part = walk_stage_layers(built, plan, engine, release=False).layers[-1].pattern[0].part
    generator = 16
    assert (part.retained.total - generator, part.backward.total - generator) == LATENT[name]


def test_the_policy_keeps_where_tokens_go_and_no_product_of_the_router() -> None:
    asked = {"recompute": "selective", "recompute_modules": ["op"]}
    held = walked(**routed(**asked)).layers[0].pattern[0].part.retained.held
    paths = {path for _, path in held}
    assert {"layers.*.moe.router.gate/topk", "layers.*.moe.router.gate/topk_values"} <= paths
    assert not any(path.startswith("layers.*.moe") and "topk" not in path for path in paths)
    assert "layers.*.attention.qkv_linear.wqkv/output" in paths


def test_experts_have_three_matrices_and_the_models_parameters() -> None:
    spec, plan = planned(**routed())
    engine = find_engine("torchtitan")
    assert engine is not None
    built = model_code(engine.layers).built(spec, plan)
    assert parameter_count(built) == parameter_count(spec)
    shapes = {h.path.rpartition(".")[2]: h.shape for h in walked(**routed()).layers[0].pattern[0].parameters}
    assert shapes["w1_EFD"] == shapes["w3_EFD"] == (128, 768, 2048)
    assert shapes["w2_EDF"] == (128, 2048, 768)


# ---- tables of rotations -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "width"), [("llama", 128), ("qwen3", 256)])
def test_each_layer_has_a_table_of_rotations_of_its_own(kind: str, width: int) -> None:
    buffers = [
        sheet(kind, engine_version=version).of(Component.BUFFERS, instant=Instant.BACKWARD).value
        for version in (NEWEST, LAST_TOML)
    ]
    one = 4 * 4096 * width
    assert buffers[0] - buffers[1] == (LAYERS - 1) * one


def test_a_table_that_is_handed_to_layers_is_cast_for_each() -> None:
    held = {item.path: item for item in sheet(engine_version=LAST_TOML, recompute="full").items}
    assert held["layers.*/rope_cache"].at[Instant.BACKWARD].value == LAYERS * 2 * 4096 * 256
    complex_ones = {item.path for item in sheet("llama", engine_version=LAST_TOML, recompute="full").items}
    assert "layers.*/rope_cache" not in complex_ones


# ---- tied tables -------------------------------------------------------------------------------------------


def tied(**options: Any) -> dict[str, Any]:
    return {**options, "config": {"tie_word_embeddings": True}}


def test_a_tied_table_is_one_group_that_stays_gathered() -> None:
    one = sheet(**tied(recompute="full"))
    root = {item.path: item for item in one.items if item.component is Component.UNSHARDED_PARAMETERS}
    for instant in (Instant.FORWARD, Instant.LOSS, Instant.BACKWARD):
        assert root["root/unsharded"].at[instant].value == 2 * (TABLE + 1024)
    parameters = one.of(Component.PARAMETERS, instant=Instant.OPTIMIZER_STEP).value
    two = sheet(recompute="full").of(Component.PARAMETERS, instant=Instant.OPTIMIZER_STEP).value
    assert two - parameters == 4 * TABLE / 8


def test_the_loss_leaves_the_tables_gradient_reduced() -> None:
    held = {
        item.path: item
        for item in sheet(**tied(recompute="full")).items
        if item.component is Component.GRADIENTS
    }
    assert held["root"].at[Instant.BACKWARD].value >= 4 * TABLE / 8


def test_a_table_in_two_groups_is_gathered_twice_and_stepped_once() -> None:
    asked = {"engine_version": LAST_TOML, "recompute": "full"}
    apart, two = sheet(**tied(**asked)), sheet(**asked)
    for component, width in (
        (Component.PARAMETERS, 4),
        (Component.OPTIMIZER_STATES, 8),
        (Component.GRADIENTS, 4),
    ):
        held = [one.of(component, instant=Instant.OPTIMIZER_STEP).value for one in (two, apart)]
        assert held[0] - held[1] == pytest.approx(width * TABLE / 8, abs=8)
    gathered = [one.of(Component.UNSHARDED_PARAMETERS, instant=Instant.LOSS).value for one in (two, apart)]
    assert gathered[0] == gathered[1]


def test_llama_ties_too_where_the_version_does() -> None:
    assert sheet("llama", **tied()).peak.value > 0


# ---- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"engine_version": MID_2025}, "model"),
        (tied(engine_version=MID_2025, kind="llama"), "model"),
        (tied(pp=2, dp_shard=4), "mesh.pp"),
        ({"config": {"attention_bias": True}}, "model"),
        ({"kind": "qwen2"}, "model"),
        (routed(engine_version=LAST_TOML), "model"),
        (routed(compile=True), "compile"),
        (routed(precision="fp32"), "precision.compute"),
        (routed(tp=2, dp_shard=4), "mesh.tp"),
        (routed(dp_shard=256), "mesh.dp_shard"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as error:
        sheet(**options)
    assert field in {problem.field for problem in error.value.problems}
