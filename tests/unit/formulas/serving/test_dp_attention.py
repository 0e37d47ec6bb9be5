"""Data-parallel attention: groups of a server's ranks with requests of their own, against sums by hand from
the engines' source.
"""

from __future__ import annotations

from typing import Any

import pytest

import memsheet
from memsheet.engines.sglang.deepep import far_bytes, fast_bytes, near_bytes
from memsheet.errors import InputError
from memsheet.exchange.file_texts import read_text
from memsheet.formulas.serving.dp_attention import group_plan
from memsheet.guard import parse_json, parse_yaml
from memsheet.report.shared.plans.serving_words import parallel_group_words
from memsheet.sheet import Bytes, Component, Instant

LAYERS, HIDDEN, VOCAB, HEADS, LATENT = 61, 7168, 129_280, 128, 512
"""Of DeepSeek-V3 (its config.json): one latent of 512 and a rotary key of 64 a token, heads of 128 + 64 and
128.
"""
CUT = 1536 * HEADS * 192 + LATENT * HEADS * 256 + HEADS * 128 * HIDDEN
"""q_b_proj, kv_b_proj and o_proj of a layer, which ranks of attention cut; q_a_proj and kv_a_proj are whole
on every rank.
"""
DENSE, EXPERT = 3 * HIDDEN * 18_432, 3 * HIDDEN * 2048
"""The feed-forward of the first three layers, and the shared expert of the other 58."""


def served(
    engine: str = "sglang", model: str = "deepseek-v3", gpus: str = "8xH200", **options: Any
) -> memsheet.Answer:
    return memsheet.infer(model, gpus=gpus, engine=engine, **{"max_model_len": 8192, "tp": 8, **options})


def weights(answer: memsheet.Answer) -> int:
    return int(answer.sheets[0].of(Component.PARAMETERS).value)


def fp8(elements: float) -> float:
    """Bytes in fp8 with an fp32 scale for each block of 128 by 128."""
    return elements * (1 + 4 / 128**2)


def test_sglang_keeps_attention_and_the_embedding_whole_in_each_group_and_cuts_the_rest() -> None:
    """v0.5.23 models/deepseek_v2.py: attn_tp for attention (2089) and the embedding (2946); tp for the rest,
    and the head unless it is told.
    """
    whole, grouped, headed = served(), served(attn_dp=8), served(attn_dp=8, dp_lm_head=True)
    more = 7 / 8 * (LAYERS * fp8(CUT) + 2 * VOCAB * HIDDEN)
    assert weights(grouped) - weights(whole) == pytest.approx(more, rel=1e-9)
    assert weights(headed) - weights(grouped) == pytest.approx(7 / 8 * 2 * VOCAB * HIDDEN, rel=1e-9)


def test_vllm_shares_experts_alone() -> None:
    """v0.33.0 layers/fused_moe/config.py:1207: experts over tp · dp ranks; every other layer is of a rank of
    data parallelism.
    """
    whole, dealt, shared = served("vllm"), served("vllm", attn_dp=8, ep=8), served("vllm", attn_dp=8)
    more = 7 / 8 * (LAYERS * fp8(CUT) + 2 * 2 * VOCAB * HIDDEN + fp8(3 * DENSE + 58 * EXPERT))
    assert weights(dealt) - weights(whole) == pytest.approx(more, rel=1e-6)
    assert weights(dealt) == pytest.approx(weights(shared), rel=1e-6)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_latent_is_kept_once_and_not_on_every_rank(engine: str) -> None:
    """What it is for: a rank keeps as many bytes of a token, and other tokens than its neighbours."""
    whole, grouped = served(engine).serving, served(engine, attn_dp=8).serving
    assert whole is not None
    assert grouped is not None
    assert (
        whole["kv_bytes_per_token_per_rank"]
        == grouped["kv_bytes_per_token_per_rank"]
        == LAYERS * (LATENT + 64) * 2
    )
    assert 8 * grouped["kv_tokens"] > 2 * whole["kv_tokens"]
    assert grouped["capacity"]["replicas"] == 8


@pytest.mark.parametrize(("groups", "heads"), [(1, 1), (2, 1), (4, 2), (8, 4)])
def test_heads_that_are_fewer_than_ranks_are_not_copied_inside_groups(groups: int, heads: int) -> None:
    """Qwen3-30B-A3B: 4 key/value heads of 128 in 48 layers."""
    found = served(model="qwen3-30b-a3b", gpus="8xH100-80GB", attn_dp=groups).serving
    assert found is not None
    assert found["kv_bytes_per_token_per_rank"] == 48 * 2 * heads * 128 * 2


def test_sglang_divides_a_chunk_and_the_requests_among_its_groups() -> None:
    """v0.5.23 arg_groups/parallel_hook.py:331, mem_cache/kv_cache_configurator.py:3128."""
    found = served(attn_dp=8, sequences=256).serving
    assert found is not None
    assert "chunked_prefill_size=1024, max_running_requests=32" in found["start_up"][-1]
    one = served("vllm", attn_dp=8, sequences=256).serving
    assert one is not None
    assert one["capacity"]["limit"] == 256, "vllm's limit is of each of its ranks"


@pytest.mark.parametrize(
    ("version", "kept_mib"),
    [
        ("0.5.23", 512 + 1.5 * 8192 + 1024 + 2 * 512 + 512 * 8 * (3 + 1.5) + 1536),
        (
            "0.5.12",
            512 + 1.5 * 8192 + 1024 + 2 * 512 + 512 * 8 * (3 + 1.5),
        ),  # which records no chunks of groups
        ("0.5.4", 512 + 1.5 * 8192 + 1024 + 2 * 512 + 512 * 8 * (3 + 1.5)),
        ("0.4.8", (12 + 8 / 2 + 4) * 1024),
    ],
)
def test_the_fraction_leaves_room_for_graphs_of_all_groups(version: str, kept_mib: float) -> None:
    """v0.5.23 arg_groups/memory_hook.py:303-378, v0.4.8.post1 server_args.py:274-312; nvidia-smi counts
    143,771 MiB of an H200.
    """
    assert served(attn_dp=8, engine_version=version).plan.cache.memory_fraction == round(
        1 - kept_mib / 143_771, 3
    )


def test_a_batch_of_all_groups_goes_through_the_experts() -> None:
    """vLLM v0.33.0 all2all.py:116: tokens of all ranks are gathered before experts; a server alone has its
    own.
    """
    alone, grouped = served("vllm", sequences=8), served("vllm", attn_dp=8, sequences=8)

    def working(answer: memsheet.Answer) -> int:
        return int(answer.sheets[0].of(Component.TEMPORARIES).value)

    gathered = 2 * 8 * 8192 * HIDDEN
    assert working(grouped) - working(alone) > gathered


def test_groups_of_one_are_no_groups() -> None:
    plain, told = served(), served(attn_dp=1)
    assert plain.plan == told.plan
    assert group_plan(plain.plan) is plain.plan


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_more_groups_keep_more_weights_and_hold_more(engine: str) -> None:
    found = [served(engine, "qwen3-30b-a3b", "8xH100-80GB", attn_dp=groups) for groups in (1, 2, 4, 8)]
    sizes = [weights(one) for one in found]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == len(sizes)


def test_replicas_that_share_experts_are_groups_of_one_server() -> None:
    old, new = served("vllm", tp=1, dp_replicate=8, ep=8), served("vllm", attn_dp=8, ep=8)
    assert old.plan == new.plan
    assert any("mesh.attn_dp = 8" in said for said in old.assumed)
    by_default = served("vllm", "qwen3-30b-a3b", "8xH100-80GB", tp=1, dp_replicate=8)
    assert by_default.plan.mesh.attn_dp == 8, "one command's ranks cut their experts together"
    apart = served("vllm", "qwen3-30b-a3b", "8xH100-80GB", tp=1, dp_replicate=8, attn_dp=1)
    assert (apart.plan.mesh.attn_dp, apart.plan.mesh.dp_replicate) == (1, 8)
    assert weights(apart) > 4 * weights(by_default)


def test_a_model_without_experts_is_a_server_on_each_of_vllms_ranks() -> None:
    """v0.33.0 v1/engine/core.py:1552."""
    found = served("vllm", "llama-3.1-8b", "8xH100-80GB", attn_dp=8)
    assert (found.plan.mesh.dp_replicate, found.plan.mesh.tp, found.plan.mesh.attn_dp) == (8, 1, 1)


@pytest.mark.parametrize(
    ("engine", "options", "why"),
    [
        ("sglang", {"model": "llama-3.1-8b", "attn_dp": 8}, "sglang's code of llama"),
        ("sglang", {"attn_dp": 3}, "does not divide the 8"),
        ("sglang", {"dp_lm_head": True}, "is of data-parallel attention"),
        ("sglang", {"attn_dp": 8, "engine_version": "0.4.3"}, "0.4.6 on"),
        ("sglang", {"attn_dp": 4, "engine_version": "0.5.8"}, "read at sglang 0.5.23 alone"),
        ("vllm", {"attn_dp": 8, "engine_version": "0.7.3"}, "0.8 or newer"),
        ("vllm", {"attn_dp": 8, "dp_lm_head": True}, "is not modelled"),
        ("transformers", {"attn_dp": 8, "tp": 1, "pp": 8}, "attn_dp"),
    ],
)
def test_what_there_is_not_is_refused_by_name(engine: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        served(engine, **options)


# ---- what a prompt's earlier tokens take -------------------------------------------------------------------


def prefilling(answer: memsheet.Answer) -> Bytes:
    return next(item.at[Instant.PREFILL] for item in answer.sheets[0].items if item.path == "widest_layer")


@pytest.mark.parametrize(("groups", "heads"), [(1, 16), (8, 128)])
def test_earlier_tokens_are_unpacked_for_all_of_a_ranks_heads(groups: int, heads: int) -> None:
    """v0.5.23 forward_mha.py:540: keys without position and values of 128 each in one, and keys of 192
    beside; 128k tokens of a batch at most.
    """
    short, long = served(attn_dp=groups), served(attn_dp=groups, max_model_len=163_840)
    token = heads * (128 + 128 + 192) * 2
    beside = 8192 // groups * (3 * HIDDEN + 3 * heads * 192) * 2 + 2**28
    for size in (prefilling(short).high, prefilling(long).value):
        assert 131_072 * token <= size <= 131_072 * token + beside
    assert prefilling(short).value >= (8192 - 8192 // groups) * token
    assert prefilling(served(attn_dp=groups, engine_version="0.5.12")).high >= 131_072 * token


# ---- commands ----------------------------------------------------------------------------------------------


def reading(text: str) -> dict[str, Any]:
    return dict(read_text("serve.sh", text, {"json": parse_json, "yaml": parse_yaml}).request)


@pytest.mark.parametrize(
    "text",
    [
        "python -m sglang.launch_server --model-path m --tp 8 --dp 8 --enable-dp-attention",
        "python -m sglang.launch_server --model-path m --enable-dp-attention --dp-size 8 --tp-size 8",
        "sglang serve --model-path m --tp 8 --attn-dp-size 8",
    ],
)
def test_both_spellings_of_sglang(text: str) -> None:
    found = reading(text)
    assert [found[f"mesh.{axis}"] for axis in ("tp", "attn_dp", "dp_replicate")] == [8, 8, 1]
    assert found["@gpus"] == 8, "groups are among the ranks of tp"


def test_ranks_of_vllm_that_are_said_to_share_experts() -> None:
    found = reading("vllm serve m -tp 2 -dp 4 --enable-expert-parallel")
    assert [found[f"mesh.{axis}"] for axis in ("tp", "attn_dp", "dp_replicate", "ep")] == [8, 4, 1, 8]
    assert found["@gpus"] == 8
    plain = reading("vllm serve m -tp 2 -dp 4")
    assert [plain.get(f"mesh.{axis}") for axis in ("tp", "attn_dp", "dp_replicate", "ep")] == [2, None, 4, 1]


# ---- which plan --------------------------------------------------------------------------------------------


def test_the_search_offers_it_beside_one_group() -> None:
    found = memsheet.plan_serving("deepseek-v3", gpus="8xH200", engine="sglang", context=8192)
    by = {parallel_group_words(one.plan): one for one in found.plans}
    alone, grouped = by["1 group of 8"], by["1 group of 8, DP attention 8"]
    assert grouped.in_all > 2 * alone.in_all
    assert grouped.in_all == 8 * grouped.sequences[1]
    assert found.best is not None
    assert found.best.plan.mesh.attn_dp > 1


@pytest.mark.parametrize("model", ["llama-3.1-8b", "jamba-v0.1"])
def test_the_search_leaves_models_out_that_have_no_groups(model: str) -> None:
    found = memsheet.plan_serving(model, gpus="4xH100-80GB", engine="vllm", context=4096)
    shared = [one for one in found.plans if one.plan.mesh.attn_dp > 1]
    assert bool(shared) == (model != "llama-3.1-8b")


# ---- tokens that are sent ----------------------------------------------------------------------------------


def communication(answer: memsheet.Answer) -> int:
    return int(answer.sheets[0].of(Component.COMMUNICATION).value)


def test_buffers_of_deepep_by_hand() -> None:
    """DeepEP dd758ca csrc/legacy/config.hpp for 8 ranks of 7168 in bf16 and 256 experts: 10 channels of 8
    ranks take 256 tokens each, with 8 bytes of source, 128 experts, weights and scales; the fast mode has two
    buffers to send and two to receive of 128 tokens for every expert.
    """

    def aligned(size: int) -> int:
        return -(-size // 128) * 128

    token = 2 * 7168 + 8 + 128 * 8 + 128 * 4 + 128 * 4
    assert near_bytes(7168, 8) == aligned(10 * 8 * (5 * 4 + 256 * token))
    back = 56 * 4 + 2 * 7168
    assert fast_bytes(7168, 256) == 2 * (2 * 256 * 128 * back + 1024) + 128
    assert far_bytes(7168, 8) == 0
    assert far_bytes(7168, 16) == aligned(10 * 2 * (18 * 2 * 4 + 2 * 140 * (token + 16)))
    assert communication(served(attn_dp=8, ep=8, expert_dispatch="deepep")) == near_bytes(
        7168, 8
    ) + fast_bytes(7168, 256)
    assert communication(served("vllm", attn_dp=8, ep=8, expert_dispatch="deepep")) == 2**30


def test_a_shared_expert_is_whole_where_tokens_are_sent() -> None:
    """SGLang v0.5.23 models/deepseek_v2.py:873; dense layers where --moe-dense-tp-size 1 says so (:2667)."""
    gathered, sent = served(attn_dp=8, ep=8), served(attn_dp=8, ep=8, expert_dispatch="deepep")
    dense = served(attn_dp=8, ep=8, expert_dispatch="deepep", dp_dense=True)
    assert weights(sent) - weights(gathered) == pytest.approx(7 / 8 * fp8(58 * EXPERT), rel=1e-6)
    assert weights(dense) - weights(sent) == pytest.approx(7 / 8 * fp8(3 * DENSE), rel=1e-6)


def test_the_fraction_leaves_room_for_the_buffers() -> None:
    plain, sent = (
        served(attn_dp=8, ep=8, **options).plan.cache.memory_fraction or 0
        for options in ({}, {"expert_dispatch": "deepep"})
    )
    assert plain - sent == pytest.approx(2048 / 143_771, abs=1e-3)


def test_tokens_that_are_sent_take_less_than_those_that_are_gathered() -> None:
    found = [
        served("vllm", attn_dp=8, ep=8, sequences=8, **options)
        for options in ({}, {"expert_dispatch": "deepep"})
    ]
    gathered, sent = (int(one.sheets[0].of(Component.TEMPORARIES).value) for one in found)
    assert sent < gathered


@pytest.mark.parametrize(
    ("engine", "options", "why"),
    [
        ("sglang", {"attn_dp": 8, "expert_dispatch": "deepep"}, "dealt to all ranks"),
        ("vllm", {"ep": 8, "expert_dispatch": "deepep"}, "left unused by vllm"),
        (
            "sglang",
            {"attn_dp": 8, "ep": 8, "expert_dispatch": "deepep", "engine_version": "0.5.12"},
            "0.5.23 alone",
        ),
        ("sglang", {"dp_dense": True}, "is of data-parallel attention"),
        ("vllm", {"attn_dp": 8, "dp_dense": True}, "is not modelled"),
        ("sglang", {"attn_dp": 8, "ep": 8, "expert_dispatch": "mooncake"}, "is none of gather, deepep"),
    ],
)
def test_sending_is_refused_where_it_is_not(engine: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        served(engine, **options)


def test_commands_that_send() -> None:
    found = reading(
        "python -m sglang.launch_server --model-path m --tp 16 --dp-size 16 --enable-dp-attention "
        "--moe-a2a-backend deepep --moe-dense-tp-size 1"
    )
    assert (found["mesh.ep"], found["serving.dispatch"], found["serving.dp_dense"]) == (16, "deepep", True)
    found = reading("vllm serve m -dp 8 --enable-expert-parallel --all2all-backend deepep_high_throughput")
    assert (found["mesh.ep"], found["serving.dispatch"]) == (8, "deepep")


def test_the_fraction_that_sglang_takes_is_of_the_largest_graph_that_is_asked_for() -> None:
    """v0.5.23 arg_groups/memory_hook.py, reserve_for_graph_mb: 2 MiB a sequence, 3 more of each group, and
    1.5 more of those from 300 on.
    """
    usual, small = served(attn_dp=8), served(attn_dp=8, graph_sequences=64)
    kept = (2 + 3 * 8) * 64 - (2 + 4.5 * 8) * 512
    total = usual.cluster.device.driver_bytes / 2**20
    found = (usual.plan.cache.memory_fraction - small.plan.cache.memory_fraction) * total
    assert found == pytest.approx(kept, abs=0.002 * total)


def test_the_largest_graph_is_read() -> None:
    line = "python -m sglang.launch_server --model-path m --cuda-graph-max-bs 64"
    read = read_text("serve.sh", line, {"json": parse_json, "yaml": parse_yaml})
    assert read.request["serving.graph_sequences"] == 64
