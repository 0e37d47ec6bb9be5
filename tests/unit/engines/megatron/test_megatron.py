"""Megatron-Core: bytes of its buffers and fused modules by hand, its schedules, the range that routing
leaves, and laws.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.budget import Answer
from memsheet.engines.megatron.layers.experts import capacity_of, given_copies
from memsheet.formulas.pipeline import peak_flights
from memsheet.plan.model import Moe
from memsheet.plan.plan import Mesh, Plan, Routing, Schedule, Spread
from memsheet.resolve import resolve_request
from memsheet.sheet import Component, Instant, Sheet

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

TINY: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4, "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip
SPARSE: dict[str, Any] = {
    "model_type": "mixtral", "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": False,
}  # fmt: skip


def trained(config: dict[str, Any] = TINY, **options: Any) -> Answer:
    return memsheet.train(config, **{"engine": "megatron", "seq_len": 512, **options})


def sheet(config: dict[str, Any] = TINY, **options: Any) -> Sheet:
    return trained(config, **options).sheets[0]


def size(found: Sheet, component: Component, path: str, instant: Instant = Instant.BACKWARD) -> int:
    return sum(
        i.at[instant].value
        for i in found.items
        if i.component is component and i.path == path and instant in i.at
    )


# ---- states ------------------------------------------------------------------------------------------------


def states(**options: Any) -> dict[Component, int]:
    found = sheet(**options)
    kept = (Component.PARAMETERS, Component.GRADIENTS, Component.MASTER_WEIGHTS, Component.OPTIMIZER_STATES)
    return {
        c: sum(i.at[Instant.LOAD].value for i in found.items if i.component is c and "padding" not in i.path)
        for c in kept
    }


def test_a_parameter_takes_two_and_four_bytes_and_twelve_over_the_data_parallel_ranks() -> None:
    """bf16 parameter, fp32 main gradient on every rank; fp32 copy and two fp32 moments divided
    (distrib_optimizer.py).
    """
    count = trained().parameters
    alone, four = states(), states(dp_shard=4)
    assert alone == dict(zip(alone, (2 * count, 4 * count, 4 * count, 8 * count), strict=True))
    assert four[Component.GRADIENTS] == 4 * count
    assert (
        4 * count / 4 <= four[Component.MASTER_WEIGHTS] <= 4 * count / 4 + 4 * 40
    )  # at most an element a tensor more
    assert 8 * count / 4 <= four[Component.OPTIMIZER_STATES] <= 8 * count / 4 + 8 * 40


def test_context_parallel_ranks_divide_the_optimizer_too() -> None:
    assert states(dp_shard=2, cp=2, seq_len=512) == states(dp_shard=4)


def test_experts_divide_their_states_over_the_ranks_that_have_the_same_experts() -> None:
    """Eight ranks, ep 4: an expert is on two of them, dense parameters on all eight."""
    found = sheet(SPARSE, dp_shard=8, ep=4)
    experts = 2 * 8 * 3 * 256 * 128 // 4  # two layers' experts of one rank
    moments = size(found, Component.OPTIMIZER_STATES, "model.layers.*.mlp.experts", Instant.LOAD)
    assert moments == 2 * 4 * experts // 2


def test_what_autograd_is_given_for_weights_is_one_tensor_a_shape() -> None:
    """qkv 512 x 256, proj 256 x 256, fc1 1024 x 256 like the head's 1024 x 256, fc2 256 x 512: bf16, however
    many layers.
    """
    rows = {i.path: i.at[Instant.LOAD].value for i in sheet().items if i.path.startswith("dummy_wgrad")}
    assert sum(rows.values()) == 2 * (512 * 256 + 256 * 256 + 1024 * 256 + 256 * 512)
    assert sum(rows.values()) == sum(
        i.at[Instant.LOAD].value
        for i in sheet({**TINY, "num_hidden_layers": 8}).items
        if i.path.startswith("dummy_wgrad")
    )


def test_buffers_are_padded_to_the_ranks_times_128_elements() -> None:
    """The tiny model's tensors are multiples of 64 elements, so only the end of the buffer is padded."""
    count, found = trained().parameters, sheet(dp_shard=24)
    padded = -(-count // (24 * 128)) * 24 * 128
    assert size(found, Component.GRADIENTS, "buffer/padding", Instant.LOAD) == 4 * (padded - count)


@pytest.mark.parametrize(
    ("version", "master", "raised"), [("core 0.14", 2, 0), ("Megatron-Bridge 600d069", 4, 4)]
)
def test_megatron_bridge_keeps_whole_copies_though_remainders_are_asked_for(
    tmp_path: Path, version: str, master: int, raised: int
) -> None:
    """Its default eight-bit recipe reaches the optimizer (Megatron-LM 24bad8e
    optimizer/optimizer_config.py:404-411).
    """
    precision = {
        "parameters": "bf16",
        "compute": "bf16",
        "gradients": "bf16",
        "reduce": "bf16",
        "master_weights": "int16-remainder",
        "moments": "bf16",
    }
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"engine_version": version, "precision": precision}), encoding="utf-8")
    answer = trained(plan=str(file))
    found, count = answer.sheets[0], answer.parameters
    assert found.of(Component.MASTER_WEIGHTS, instant=Instant.LOAD).value == master * count
    assert size(found, Component.TEMPORARIES, "optimizer", Instant.OPTIMIZER_STEP) == raised * count
    assert any("fp8_recipe" in note for note in found.notes) is bool(raised)


# ---- activations -------------------------------------------------------------------------------------------


def saved(**options: Any) -> int:
    """Bytes that one more layer keeps for backward, rotary angles and what each pass adds aside."""
    more, fewer = (sheet({**TINY, "num_hidden_layers": n}, **options) for n in (6, 5))
    return more.of(Component.SAVED_ACTIVATIONS).value - fewer.of(Component.SAVED_ACTIVATIONS).value


def test_a_layer_keeps_what_its_fused_modules_save() -> None:
    """Per token in bf16: input and normed rows twice (4 h), queries, context (2 h), keys, values (h), both
    halves (2 f) and their product (f); fp32 statistics: log-sum-exp of every head, one of every norm. h 256,
    8 heads, 4 groups, f 512.
    """
    per_token = 2 * (4 * 256 + 2 * 256 + 2 * 128 + 3 * 512) + 4 * (8 + 2)
    assert saved() == 512 * per_token


def test_sequence_parallel_divides_what_tensor_parallel_alone_repeats() -> None:
    """With tp 2 heads and widths halve; the stream's rows (4 h) halve only with sequence_parallel."""
    narrow = 2 * (2 * 128 + 2 * 64 + 3 * 256) + 4 * 4
    assert saved(tp=2) == 512 * (narrow + 2 * 4 * 256 + 4 * 2)
    assert saved(tp=2, sequence_parallel=True) == 512 * (narrow + 4 * 256 + 4)


def test_a_ring_divides_tokens_and_keeps_keys_and_values_joined() -> None:
    assert saved(cp=2) == saved() // 2


def test_gathering_keys_and_values_keeps_the_context_twice() -> None:
    """In halves, as the two kernels of a rank's two pieces made it, and joined for the projection."""
    assert saved(cp=2, context_parallel_comm="all_gather") == saved() // 2 + 256 * 2 * 256


def test_all_to_all_keeps_the_context_twice() -> None:
    """As the kernel made it, for all positions of some heads, and exchanged again for the projection."""
    assert saved(cp=2, context_parallel_comm="all_to_all") == saved() // 2 + 256 * 2 * 256


@pytest.mark.parametrize(("module", "attention"), [("core_attn", "eager"), ("mlp", "flash")])
def test_recomputing_a_module_keeps_less(module: str, attention: str) -> None:
    assert saved(recompute="selective", recompute_modules=[module], attention=attention) < saved(
        attention=attention
    )


def test_recomputing_a_fused_kernel_keeps_the_joint_product_that_values_are_a_slice_of() -> None:
    """Without it values are copied and the joint product (a + 2 k) goes; with it the checkpoint holds on to
    the slice.
    """
    joint, values, rows = 2 * 512, 2 * 128, 4 * 8
    assert saved(recompute="selective", recompute_modules=["core_attn"]) == saved() + 512 * (
        joint - values - rows
    )


def test_recomputing_layers_keeps_their_inputs_alone() -> None:
    assert saved(recompute="full") == 512 * 2 * 256


def test_scores_in_full_and_dropout_are_the_terms_of_the_published_formula() -> None:
    """Korthikanti et al. 2022, section 4.1: 34 s b h + 5 a s² b for a layer of GPT with dropout, besides
    statistics of norms.
    """
    gpt = {"model_type": "gpt2", "vocab_size": 1024, "n_embd": 256, "n_head": 8, "n_positions": 512}
    options = {"attention": "eager", "dropout": 0.1, "precision": "bf16-master"}
    more, fewer = (
        sheet({**gpt, "n_layer": n}, **options).of(Component.SAVED_ACTIVATIONS).value for n in (6, 5)
    )
    assert more - fewer == 34 * 512 * 256 + 5 * 8 * 512 * 512 + 2 * 4 * 512


def test_scores_in_full_read_a_buffer_that_stays() -> None:
    """dot_product_attention.py:150-165: the scores of eight heads of 512 positions in bf16."""
    buffers = [
        sum(item.largest.value for item in sheet(attention=how).items if item.path == "global_memory_buffer")
        for how in ("eager", "flash")
    ]
    assert buffers == [2 * 8 * 512 * 512, 0]


# ---- pipelines ---------------------------------------------------------------------------------------------


def plan(pp: int, vpp: int, microbatches: int) -> Plan:
    schedule = {"schedule": "interleaved" if vpp > 1 else "1f1b"} if pp > 1 else {}
    request = {
        "task": "train",
        "engine": "megatron",
        "seq_len": 8,
        "mesh.pp": pp,
        "mesh.vpp": vpp,
        "global_batch": microbatches,
        **schedule,
    }
    return resolve_request(request, None).plan


@pytest.mark.parametrize("stage", range(4))
def test_under_1f1b_a_stage_keeps_as_many_others_as_stages_follow(stage: int) -> None:
    assert {f.others for f in peak_flights(plan(4, 1, 16), stage)} == {(3 - stage,)}


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("microbatches", [4, 8, 32])
def test_interleaving_keeps_as_many_chunks_as_its_warm_up_sends_ahead(stage: int, microbatches: int) -> None:
    """min(m v, 2 (p - r - 1) + (v - 1) p + 1) chunks at the most, the running one among them (Megatron-Core
    schedules.py).
    """
    stages, chunks = 4, 2
    most = max(sum(f.others) + 1 for f in peak_flights(plan(stages, chunks, microbatches), stage))
    assert most == min(microbatches * chunks, 2 * (stages - stage - 1) + (chunks - 1) * stages + 1)


def test_a_pipeline_without_a_batch_is_taken_to_be_full() -> None:
    answer = trained(pp=2)
    assert any("global_batch = 2" in line for line in answer.assumed)
    first, last = answer.sheets
    assert first.of(Component.SAVED_ACTIVATIONS).value > last.of(Component.SAVED_ACTIVATIONS).value


def test_every_chunk_of_a_rank_is_counted_once() -> None:
    """Four layers over two stages of two chunks: every rank has half of the layers' parameters, as without
    chunks.
    """
    plain, chunked = (
        trained(pp=2, global_batch=4, **more) for more in ({}, {"vpp": 2, "schedule": "interleaved"})
    )
    for one, other in zip(plain.sheets, chunked.sheets, strict=True):
        held = [
            sum(i.at[Instant.LOAD].value for i in s.items if i.component is Component.PARAMETERS)
            for s in (one, other)
        ]
        assert held[0] == held[1]


# ---- experts -----------------------------------------------------------------------------------------------


def moe() -> Moe:
    return Moe(path="mlp", experts=8, experts_per_token=2, intermediate=128, activation="silu", weights=())


def given(spread: Spread, ep: int, **routing: Any) -> Any:
    request = {"task": "train", "engine": "megatron", "seq_len": 512, "mesh.dp_shard": 8, "mesh.ep": ep}
    asked = resolve_request(request, None).plan
    return given_copies(moe(), 512, 1024, asked, Routing(spread=spread, **routing))


def test_experts_are_given_what_was_sent_when_balanced_and_all_ranks_tokens_at_worst() -> None:
    assert given(Spread.BALANCED, 4) == 1024
    assert given(Spread.WORST, 4) == 512 * 4 * 2
    assert 1024 < given(Spread.EXPECTED, 4) < 1.1 * 1024
    assert given(Spread.WORST, 4, balanced=True) == 1024


def test_what_a_router_saves_waits_for_the_gradient_of_the_experts_shares() -> None:
    """Per token its normed input in bf16 and of 8 experts two fp32 scores and a mark, besides two indices;
    two layers (moe_utils.py, RouterGatingLinearFunction).
    """
    found = sheet(SPARSE)
    kept = {
        i.path: i.at[Instant.LOSS].value
        for i in found.items
        if i.component is Component.SAVED_ACTIVATIONS and Instant.LOSS in i.at
        if i.path.endswith("pre_mlp_layernorm") or ".mlp.router" in i.path
    }
    assert sum(kept.values()) == 2 * 512 * (2 * 256 + 8 * (4 + 4 + 1) + 2 * 8)


def test_one_rank_with_all_experts_leaves_routing_nothing_to_decide() -> None:
    assert given(Spread.WORST, 1) == given(Spread.BALANCED, 1) == 1024


def test_capacity_bounds_what_an_expert_takes() -> None:
    """ceil(1024 copies / 8 experts · 1.25) = 160 of each of four ranks, for two experts."""
    assert capacity_of(moe(), 1024, 1.25) == 160
    assert given(Spread.WORST, 4, capacity_factor=1.25) == 4 * 2 * 160


def test_free_routing_is_a_range_and_balanced_routing_a_number() -> None:
    free, even = (
        sheet(SPARSE, dp_shard=8, ep=8, **more).of(Component.SAVED_ACTIVATIONS)
        for more in ({}, {"moe_balanced": True})
    )
    assert even.low == even.value == even.high == free.low
    assert free.low < free.value < free.high


# ---- laws and refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", ["tp", "dp_shard", "cp"])
def test_more_ranks_never_cost_a_rank_more(axis: str) -> None:
    peaks = [sheet(**{axis: n}).peak.value for n in (1, 2, 4)]
    assert peaks == sorted(peaks, reverse=True)


def test_eight_bit_products_keep_less_for_backward(tmp_path: Path) -> None:
    """Of the normed rows, the activation and the context, which products read, the casts are kept: half the
    bytes, but of the context, which attention keeps too.
    """
    file = tmp_path / "plan.json"
    file.write_text(
        json.dumps({"schema": "memsheet/plan/1", "fp8": {"recipe": "tensorwise"}}), encoding="utf-8"
    )
    assert saved(plan=str(file)) == saved() - 512 * (2 * 256 + 512) + 512 * 256


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"zero": 3}, "zero"), ({"sequence_parallel": True}, "sequence_parallel"), ({"compile": True}, "compile"),
        ({"recompute": "selective", "recompute_modules": ["gate"]}, "recompute.modules"),
        ({"cp": 8, "context_parallel_comm": "all_to_all"}, "mesh.cp"), ({"schedule": "1f1b"}, "schedule"),
        ({"cp": 2, "attention": "eager"}, "mesh.cp"),
    ],
)  # fmt: skip
def test_what_is_not_modelled_is_refused_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(memsheet.InputError) as caught:
        trained(**options)
    assert field in {problem.field for problem in caught.value.problems}


def test_only_interleaved_stages_take_micro_batches_in_groups() -> None:
    """pipeline_parallel/schedules.py raises for vpp above 1: three micro-batches over two stages."""
    assert trained(pp=2, global_batch=3).sheets
    assert trained(pp=2, global_batch=4, vpp=2, schedule="interleaved").sheets
    with pytest.raises(memsheet.InputError, match="no multiple of 2 stages"):
        trained(pp=2, global_batch=3, vpp=2, schedule="interleaved")


def test_a_mesh_knows_its_schedule() -> None:
    assert plan(4, 2, 8).schedule is Schedule.INTERLEAVED
    assert Mesh(pp=2, vpp=2).gpus == 2


# ---- against what was measured -----------------------------------------------------------------------------


@pytest.mark.parametrize("group", ["simumax_70b", "simumax_70b_cp", "simumax_dsv2"])
def test_published_runs_are_within_half_a_percent(group: str) -> None:
    """Allocated on every rank: mean within 0.5 %, none beyond 1.2 %; reserved inside the range on nine of
    ten ranks, which is what a range means.
    """
    from asking import run_case

    cases = json.loads((BENCHMARKS / "data" / "cases.json").read_text(encoding="utf-8"))["cases"]
    rows = [
        row
        for case in cases
        if case["group"] == group and case["kind"] == "train"
        for row in run_case(case).rows
    ]
    inside = [row.inside for row in rows if row.metric == "peak_reserved_bytes"]
    assert sum(inside) >= 0.9 * len(inside)
    rows = [row for row in rows if row.metric == "peak_allocated_bytes"]
    errors = [abs(row.error) for row in rows]
    assert len(rows) >= 2
    assert sum(errors) / len(errors) <= 0.005
    assert max(errors) <= 0.012
