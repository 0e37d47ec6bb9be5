"""The mistakes that other estimators make most, one test each: what is wrong is written beside what is right.

Numbers are those of public configurations, worked by hand. ``test_nothing_is_forgotten`` keeps the list in
order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import memsheet
from memsheet import catalog
from memsheet.account import account_rank
from memsheet.formulas.pipeline import stage_model
from memsheet.formulas.serving.kv_cache import bytes_per_token, cache_bytes
from memsheet.formulas.states.held_shapes import elements_of, held_shape
from memsheet.formulas.states.params import active_parameter_count, parameter_count, parameter_tensors
from memsheet.plan.dtypes import BF16, FP8, MXFP8, dtype_named
from memsheet.plan.model import ModelSpec, Role
from memsheet.plan.plan import Mesh
from memsheet.readers.model import read_model
from memsheet.sheet import STATES, Component, Instant, Sheet

C, At = Component, Instant


def model(name: str) -> ModelSpec:
    return read_model(name, catalog=catalog.find_model, names=catalog.model_names())


def trained(name: str = "llama-3-8b", **options: Any) -> Sheet:
    return memsheet.train(name, fix=False, **{"seq_len": 512, **options}).sheets[0]


def served(name: str, **options: Any) -> Sheet:
    return memsheet.infer(name, **{"max_model_len": 1024, **options}).sheets[0]


def kv(name: str, tokens: int = 1024) -> int:
    return sum(cache_bytes(model(name), BF16, tokens, 1).values())


def paths(sheet: Sheet, component: Component, instant: Instant) -> dict[str, int]:
    return {
        i.path: i.at[instant].value
        for i in sheet.items
        if i.component is component and instant in i.at and i.at[instant].value
    }


# ---- cache -------------------------------------------------------------------------------------------------


def test_01_kv_heads_not_query_heads() -> None:
    """llama-3-70b: 64 heads, 8 KV heads; the mistake is 8 times too large."""
    assert kv("llama-3-70b") == 1024 * 80 * 2 * 8 * 128 * 2


def test_02_the_head_dim_that_is_stated() -> None:
    """qwen3-0.6b: hidden 1,024 over 16 heads would be 64; the config says 128."""
    assert kv("qwen3-0.6b") == 1024 * 28 * 2 * 8 * 128 * 2


def test_03_a_latent_is_neither_doubled_nor_multiplied_by_heads() -> None:
    """deepseek-v3: 512 + 64 elements a token and layer; as ordinary attention of 128 heads it would be 71
    times that.
    """
    assert kv("deepseek-v3") == 1024 * 61 * (512 + 64) * 2


def test_04_recurrent_layers_keep_a_state_not_a_cache() -> None:
    """jamba-v0.1: 4 attention layers in 32; the other 28 keep the same for any length."""
    assert kv("jamba-v0.1", 2048) - kv("jamba-v0.1", 1024) == 1024 * 4 * 2 * 8 * 128 * 2
    assert kv("mamba-2.8b", 4096) == kv("mamba-2.8b", 1) > 0


def test_05_windows_cap_the_layers_that_have_one() -> None:
    """gemma-3-1b: 26 layers, each sixth full (4 of them), the others 512 tokens."""
    a_layer_token = 2 * 1 * 256 * 2
    assert kv("gemma-3-1b", 10_000) == a_layer_token * (4 * 10_000 + 22 * 512)


def test_06_keys_and_values_and_heads_that_repeat_and_the_caches_own_dtype() -> None:
    spec = model("llama-3-8b")
    assert bytes_per_token(spec, BF16) == 2 * (32 * 8 * 128) * 2
    assert bytes_per_token(spec, BF16, tp=32) == 2 * (32 * 1 * 128) * 2  # one head at least, not a quarter
    whole, half = (
        served("llama-3-8b", kv_dtype=dtype).of(C.KV_CACHE, instant=At.DECODE).value
        for dtype in ("bf16", "fp8")
    )
    assert whole == 2 * half


# ---- weights -----------------------------------------------------------------------------------------------


def test_07_a_caches_scales_count_and_a_hybrid_gains_less_than_its_format() -> None:
    """MXFP8 keeps an eighth byte for 32 elements beside them; the states of recurrent layers are in no cache
    format.
    """
    plain, scaled = (sum(cache_bytes(model("llama-3-8b"), dtype, 1024, 1).values()) for dtype in (FP8, MXFP8))
    assert scaled * 32 == plain * 33
    dense, hybrid = (
        [served(name, kv_dtype=kind).of(C.KV_CACHE, instant=At.DECODE).value for kind in ("bf16", "fp8")]
        for name in ("llama-3-8b", "jamba-v0.1")
    )
    assert dense[0] == 2 * dense[1]
    assert hybrid[0] < 2 * hybrid[1]


def test_08_all_experts_are_resident_scales_cost_and_embeddings_and_head_stay_as_they_were() -> None:
    mixtral = model("mixtral-8x7b")
    assert active_parameter_count(mixtral) < parameter_count(mixtral) / 3
    assert served("mixtral-8x7b").of(C.PARAMETERS, instant=At.LOAD).value == 2 * parameter_count(mixtral)
    awq = served("llama-3-8b", quantize="awq-int4")
    ends = 2 * 128_256 * 4096  # embeddings and head
    linear, norms = parameter_count(model("llama-3-8b")) - ends - 65 * 4096, 65 * 4096
    assert awq.of(
        C.PARAMETERS, instant=At.LOAD
    ).value == linear // 2 + linear // 128 * 2 + linear // 128 // 2 + 2 * (ends + norms)


def test_08_tied_embeddings_once_on_a_rank_and_on_both_ends_of_a_pipeline() -> None:
    tied = model("llama-3.2-1b")
    assert tied.head.tied
    assert parameter_count(tied) == 1_235_814_400
    plan = replace(memsheet.train("llama-3.2-1b", seq_len=8).plan, mesh=Mesh(pp=2))
    both = sum(parameter_count(stage_model(tied, plan, stage)) for stage in (0, 1))
    assert both == 1_235_814_400 + 128_256 * 2048


def test_09_norms_routers_and_latent_projections_are_whole_experts_divide_by_ep_and_etp() -> None:
    for name in ("deepseek-v3", "mixtral-8x7b"):
        for path, weight, _ in parameter_tensors(model(name)):
            held, whole = (
                elements_of(held_shape(weight, Mesh(tp=8, ep=4, etp=2))),
                weight.elements // weight.copies,
            )
            if weight.role in (Role.NORM, Role.ROUTER) or "_a_proj" in path:
                assert held == whole, path
            if weight.role is Role.EXPERT:
                assert held == whole // 8, path


def test_09_a_padded_vocabulary_is_a_multiple_for_every_rank() -> None:
    table = next(w for _, w, _ in parameter_tensors(model("gpt2")) if w.role is Role.EMBEDDING)
    assert held_shape(table, Mesh(tp=8), 128 * 8)[0] * 8 % (128 * 8) == 0


# ---- states ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "bytes_each"),
    [
        ({"engine": "transformers", "precision": "fp32"}, 16), ({"engine": "transformers", "precision": "bf16-pure"}, 8),
        ({"engine": "transformers", "precision": "bf16-autocast"}, 16), ({"engine": "transformers", "precision": "fp32", "optimizer": "sgd"}, 8),
    ],
)  # fmt: skip
def test_10_bytes_a_parameter_are_the_engines_and_the_dtypes(
    options: dict[str, Any], bytes_each: int
) -> None:
    held = trained("llama-tiny", optimizer_implementation="foreach", **options)
    assert held.of(*STATES, instant=At.OPTIMIZER_STEP).value == bytes_each * parameter_count(
        model("llama-tiny")
    )


def test_11_22_a_maximum_over_instants_of_sums() -> None:
    held = trained()
    sums, maxima = held.sums(), dict[Component, int]()
    for row in sums.values():
        for component, size in row.items():
            maxima[component] = max(maxima.get(component, 0), size.value)
    assert held.allocated.value == max(sum(size.value for size in row.values()) for row in sums.values())
    assert held.allocated.value < sum(maxima.values())


def test_12_zero_divides_by_the_data_parallel_ranks_alone() -> None:
    """tp · pp divide the model, dp_shard what is left: 70e9 over 8 · 4, optimizer states over 4 more."""
    held = memsheet.train(parameters=70e9, engine="deepspeed", tp=8, pp=4, dp_shard=4, zero=1).sheets[0]
    rank = 70_000_000_000 // 32
    assert held.of(C.PARAMETERS, instant=At.BACKWARD).value == 2 * rank
    assert held.of(C.MASTER_WEIGHTS, C.OPTIMIZER_STATES, instant=At.BACKWARD).value == 12 * rank // 4


def test_13_frozen_parameters_have_no_gradients_and_no_states() -> None:
    held = trained(lora_rank=16, lora_targets=("q_proj", "v_proj"), optimizer_implementation="foreach")
    adapters = 32 * (16 * (4096 + 4096) + 16 * (4096 + 1024))
    assert held.of(C.GRADIENTS, instant=At.OPTIMIZER_STEP).value == 4 * adapters
    assert held.of(C.OPTIMIZER_STATES, instant=At.OPTIMIZER_STEP).value == 8 * adapters


def test_14_gathered_is_the_layer_at_work_the_one_fetched_ahead_and_the_root() -> None:
    held = trained(gpus="8xA100-80GB", engine="fsdp2", zero=3, recompute="full")
    layer = 2 * sum(w.elements for w in model("llama-3-8b").stacks[0].runs[0].pattern[0].weights)
    forward = held.of(C.UNSHARDED_PARAMETERS, instant=At.FORWARD).value
    assert forward >= 2 * layer
    backward = max(
        held.of(C.UNSHARDED_PARAMETERS, C.COMMUNICATION, instant=instant).value
        for instant in (At.LOSS, At.BACKWARD)
    )
    assert backward > layer


# ---- activations -------------------------------------------------------------------------------------------


def test_15_a_gated_feed_forward_keeps_three_tensors_of_its_width() -> None:
    """gate, up, activation and their product: each f wide, where the constant of 2022 knows two of 4 h."""
    kept = paths(trained("llama-3-8b", precision="bf16-pure"), C.SAVED_ACTIVATIONS, At.LOSS)
    wide = [path for path, size in kept.items() if ".mlp" in path and size == 32 * 512 * 14336 * 2]
    assert len(wide) >= 3


def test_16_fused_attention_has_no_scores_but_a_log_sum_exp() -> None:
    scores = 32 * 32 * 512 * 512 * 2
    fused, eager = (
        paths(trained(precision="bf16-pure", attention=kind), C.SAVED_ACTIVATIONS, At.LOSS)
        for kind in ("sdpa", "eager")
    )
    assert max(size for path, size in fused.items() if "self_attn" in path) < scores
    assert any(size >= scores for path, size in eager.items() if "self_attn" in path)
    assert 32 * 32 * 512 * 4 in [
        size for path, size in fused.items() if "self_attn" in path
    ]  # fp32, a number a head and position


def test_17_recompute_keeps_the_inputs_and_brings_one_layer_back() -> None:
    held, plain = (
        trained("llama-2-7b", precision="bf16-pure", recompute=mode, seq_len=4096)
        for mode in ("full", "none")
    )
    start = 4096 * 4096 * 2
    kept = sum(
        size
        for path, size in paths(held, C.SAVED_ACTIVATIONS, At.LOSS).items()
        if path.startswith(("model.layers.", "model.embed_tokens/"))
    )
    layer = (
        sum(
            size
            for path, size in paths(plain, C.SAVED_ACTIVATIONS, At.LOSS).items()
            if path.startswith(("model.layers.", "model.embed_tokens/"))
        )
        // 32
    )
    assert kept == 32 * start
    again = held.of(C.SAVED_ACTIVATIONS, C.TEMPORARIES, instant=At.BACKWARD).value
    assert again >= layer


def test_18_logits_in_bf16_their_fp32_copy_and_the_log_softmax() -> None:
    held = trained(precision="bf16-pure", seq_len=8192)
    logits = 8192 * 128_256
    assert held.of(C.SAVED_ACTIVATIONS, C.TEMPORARIES, instant=At.LOSS).value >= (2 + 4 + 4) * logits
    fused = trained(precision="bf16-pure", loss="fused", seq_len=8192)
    assert fused.at(At.LOSS).value < held.at(At.LOSS).value - 4 * logits


# ---- the rest ----------------------------------------------------------------------------------------------


def test_19_expert_parallelism_spreads_experts_and_not_tokens() -> None:
    """Every rank's tokens go to topk experts wherever they are: with balanced routing a rank is given as many
    copies as it sent, and keeps them as they came, sorted by expert, and between the expert's products.
    """
    sheets = [
        trained("mixtral-8x7b", engine="megatron", dp_shard=8, ep=ep, moe_balanced=True) for ep in (2, 8)
    ]
    kept = [paths(sheet, C.SAVED_ACTIVATIONS, At.BACKWARD) for sheet in sheets]
    inner = "model.layers.*.mlp.experts.linear_fc1/output"
    assert kept[0][inner] == kept[1][inner] == 32 * 512 * 2 * 2 * 14336 * 2
    assert "model.layers.*.mlp/sorted" in kept[0]


def test_20_each_stage_has_its_own_micro_batches_and_the_last_one_the_logits() -> None:
    """Under 1F1B stage r of p keeps p - r micro-batches, all of them where there are fewer; one chunk a stage
    costs nothing more.
    """
    stages = memsheet.train(
        "llama-2-7b", engine="megatron", seq_len=512, pp=4, global_batch=16, fix=False
    ).sheets
    held = [
        sum(
            size
            for path, size in paths(s, C.SAVED_ACTIVATIONS, At.BACKWARD).items()
            if "linear_fc1/output" in path
        )
        for s in stages
    ]
    assert [round(size / held[-1]) for size in held] == [4, 3, 2, 1]
    assert not any(
        "lm_head/output" in path for s in stages[:-1] for path in paths(s, C.SAVED_ACTIVATIONS, At.LOSS)
    )
    assert any("lm_head/output" in item.path for item in stages[-1].items)
    few = memsheet.train(
        "llama-2-7b", engine="megatron", seq_len=512, pp=4, global_batch=2, fix=False
    ).sheets[0]
    assert few.of(C.SAVED_ACTIVATIONS).value < stages[0].of(C.SAVED_ACTIVATIONS).value
    single = memsheet.train(
        "llama-2-7b", engine="megatron", seq_len=512, pp=4, vpp=1, global_batch=16, fix=False
    ).sheets[0]
    assert single.peak == stages[0].peak


def test_21_norms_and_residuals_are_whole_on_tensor_parallel_ranks_without_sequence_parallel() -> None:
    """Megatron's Llama-3-8B: the stream, 2 bytes of 4096 a token, is kept four times a layer; only
    sequence_parallel divides it.
    """
    one, split, both = (
        trained(engine="megatron", **more) for more in ({}, {"tp": 8}, {"tp": 8, "sequence_parallel": True})
    )
    stream = [
        paths(sheet, C.SAVED_ACTIVATIONS, At.BACKWARD)["model.layers.*.mlp.linear_fc1/normed"]
        for sheet in (one, split, both)
    ]
    assert stream[0] == stream[1] == 8 * stream[2]
    wide = [
        paths(sheet, C.SAVED_ACTIVATIONS, At.BACKWARD)["model.layers.*.mlp.linear_fc1/output"]
        for sheet in (one, split, both)
    ]
    assert wide[0] == 8 * wide[1] == 8 * wide[2]


def test_22_the_optimizers_step_and_its_temporaries_are_an_instant() -> None:
    held = trained("llama-3.2-1b", optimizer_implementation="foreach", precision="fp32")
    assert held.at(At.OPTIMIZER_STEP).value >= 20 * parameter_count(model("llama-3.2-1b"))


def test_23_slack_is_a_row_of_its_own_and_no_factor_on_anything() -> None:
    alone, card = trained(), trained(gpus="1xA100-80GB")
    assert C.ALLOCATOR_SLACK not in alone.sums()[alone.peak_instant]
    assert C.ALLOCATOR_SLACK in card.sums()[card.peak_instant]
    assert [i.at for i in alone.items if i.component is C.PARAMETERS] == [
        i.at for i in card.items if i.component is C.PARAMETERS
    ]


def test_24_an_idle_servers_length_does_not_grow_its_decoding_temporaries() -> None:
    short, long = (
        paths(served("llama-3-8b", max_model_len=n, prompt_tokens=16), C.TEMPORARIES, At.DECODE)
        for n in (1024, 65536)
    )
    assert short["widest_layer"] == long["widest_layer"]
    assert short["logits"] == long["logits"]


@pytest.mark.parametrize("ask", [memsheet.train, memsheet.infer])
def test_25_cuda_graphs_are_neither_free_nor_guessed(ask: Any) -> None:
    lengths = {"seq_len": 512} if ask is memsheet.train else {"max_model_len": 512}
    with pytest.raises(memsheet.InputError, match=r"cuda_graphs.*not modelled"):
        ask("llama-tiny", cuda_graphs=True, engine="transformers", **lengths)
    captured = trained("llama-tiny", cuda_graphs=True, engine="megatron")
    assert captured.of(C.CUDA_GRAPHS).high > captured.of(C.CUDA_GRAPHS).low == 0


def test_26_gb_is_not_gib_and_a_card_gives_less_than_its_box_says() -> None:
    from memsheet.units import parse_bytes

    assert parse_bytes("80GB") < parse_bytes("80GiB")
    assert catalog.find_device("A100-80GB").framework_bytes < parse_bytes("80GiB")


@pytest.mark.parametrize(
    "options",
    [
        {"compile": True},
        {"engine": "nanotron"},
        {"sequence_parallel": True},
        {"optimizer": "shampoo"},
        {"cp": 2, "engine": "transformers"},
    ],
)
def test_27_what_is_not_modelled_is_refused_never_ignored(options: dict[str, Any]) -> None:
    with pytest.raises(memsheet.InputError, match="not modelled"):
        trained(**options)


def test_27_every_answer_names_engine_version_dtypes_and_instant() -> None:
    answer = memsheet.train("llama-tiny", seq_len=8, gpus="1xA100-80GB")
    assert answer.plan.engine
    assert answer.plan.engine_version
    assert dtype_named(answer.plan.precision.parameters.name) is answer.plan.precision.parameters
    assert answer.verdict is not None
    assert answer.verdict.instant in answer.sheets[0].instants
    assert account_rank(answer.model, answer.plan).witness.value == "predicted"


def test_nothing_is_forgotten() -> None:
    """Each of the 27 mistakes has a test that is named after it."""
    tested = {
        int(n) for name in globals() if name.startswith("test_") for n in name.split("_")[1:3] if n.isdigit()
    }
    assert tested == set(range(1, 28))
