"""Seconds of a token worked out by hand: on a card where one thing costs a second and everything else
nothing.

Two sequences of a hundred tokens decode, unless a case says otherwise. The model: two layers, hidden 64, a
gated feed-forward of 128, four heads of 16 with two of keys and values, 256 words; 36,864 elements of
matrices in a layer (4096 + 2 * 2048 + 4096 + 3 * 8192), 16-bit.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from memsheet.catalog import find_device
from memsheet.formulas.serving_time.between import all_reduce_s
from memsheet.formulas.serving_time.layers import Product, decoder_layers
from memsheet.formulas.serving_time.operators import Pass, ServeTiming, product_s
from memsheet.formulas.serving_time.speeds import End, Line, Speeds, speeds_of
from memsheet.formulas.serving_time.times import Seconds, Timer, token_time
from memsheet.formulas.step_time.numbers import Curve
from memsheet.formulas.step_time.rates import Fit, Rates
from memsheet.plan.device import cluster_of
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.plan import Plan
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request

SMALL: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
ROUTED: dict[str, Any] = {**SMALL, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
MAMBA: dict[str, Any] = {
    "model_type": "mamba", "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 1, "state_size": 16, "intermediate_size": 128,
    "conv_kernel": 4, "time_step_rank": 4,
}  # fmt: skip
MAMBA_2: dict[str, Any] = {
    **MAMBA,
    "model_type": "mamba2",
    "num_heads": 8,
    "head_dim": 16,
    "n_groups": 1,
    "chunk_size": 128,
    "expand": 2,
}
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
NO_TIME = Line(start_s=0.0, bytes_per_s=inf)
BYTES = Line(start_s=0.0, bytes_per_s=1.0)
STARTS = Line(start_s=1.0, bytes_per_s=inf)


def card(end: End = End.VALUE, *, flops: float = inf, wire: float = inf, **more: Any) -> Speeds:
    """A card on which everything that is not named takes no time."""
    level = (Curve.flat(1.0), Curve.flat(1.0))
    rates = Rates(
        dense={"bf16": flops, "fp16": flops, "fp32_vector": flops},
        products={"bf16": Curve.flat(1.0)},
        depth=Curve.flat(1.0),
        memory=inf,
        launch_s={"bf16": 0.0},
        attention=dict.fromkeys(("fa2", "fa3"), level),
        attention_dense=flops,
        near=8,
        network=inf,
        host=inf,
        collectives=dict.fromkeys(KINDS, Fit(alpha_s=0.0, bytes_per_s=wire, gamma=0.0)),
    )
    asked: dict[str, Any] = {
        "product": {"bf16": NO_TIME}, "experts": {"bf16": NO_TIME}, "attention": {True: NO_TIME, False: NO_TIME}, "least_s": 0.0, "call_s": 0.0,
        "started_s": 0.0, "points": {2: ((0.0, 0.0), (1.0, 0.0))}, "memory": inf, **more,
    }  # fmt: skip
    return Speeds(end=end, rates=rates, **asked)


def plan_of(config: dict[str, Any] = SMALL, gpus: int = 1, **request: Any) -> Plan:
    asked = {"task": "infer", "engine": "vllm", "serving.max_model_len": 1024, "mesh.tp": gpus}
    asked |= {key.replace("__", "."): value for key, value in request.items()}
    return resolve_request(
        asked, read_hf_config(config, name="m"), cluster_of(find_device("H100-80GB"), gpus)
    ).plan


def timer(speeds: Speeds, config: dict[str, Any] = SMALL, gpus: int = 1, **request: Any) -> Timer:
    plan, spec = plan_of(config, gpus, **request), read_hf_config(config, name="m")
    speeds_by_end = dict.fromkeys(End, speeds)
    return Timer(
        spec=spec,
        plan=plan,
        cluster=cluster_of(find_device("H100-80GB"), gpus),
        layers=decoder_layers(spec, plan),
        speeds=speeds_by_end,
        uneven=1.0,
    )


def decoded(speeds: Speeds, config: dict[str, Any] = SMALL, **more: Any) -> dict[str, float]:
    return dict(timer(speeds, config, **more).decode(2, 100).parts)


# ---- products ----------------------------------------------------------------------------------------------


def test_every_matrix_is_read_once() -> None:
    """Two layers of 36,864 elements of two bytes; the head's 256 * 64 besides."""
    found = decoded(card(product={"bf16": BYTES}))
    assert found["products"] == 2 * 2 * 36_864
    assert found["logits"] == 2 * 256 * 64


def test_products_start_four_kernels_a_layer() -> None:
    """q, k, v at once; the output; gate and up at once; down. transformers starts seven."""
    assert decoded(card(product={"bf16": STARTS}))["products"] == 2 * 4
    assert decoded(card(product={"bf16": STARTS}), engine="transformers")["products"] == 2 * 7


def test_flops_of_a_token() -> None:
    """2 m n k: two rows, 36,864 elements, two layers; the head's 16,384."""
    found = decoded(card(flops=1.0))
    assert found["products"] == 2 * 2 * 2 * 36_864
    assert found["logits"] == 2 * 2 * 16_384


def test_few_rows_fill_a_tile() -> None:
    """Of 128 rows, whatever is used of it: on a card whose speed is in proportion to the rows up to 256, a
    half; 192 rows three quarters.
    """
    one = Product(form="bf16", nbytes=0.0, elements=50.0, depth=8.0, through=24.0)
    speeds = card(flops=1.0)
    speeds = replace(
        speeds, rates=replace(speeds.rates, products={"bf16": Curve(((256.0, 1.0), (512.0, 1.0)))})
    )
    plan = plan_of()
    shops = [
        ServeTiming(plan=plan, engine=engine_of(plan), speeds=speeds, work=Pass(sequences=n, cached=100))
        for n in (2, 192)
    ]
    assert [product_s(shop, one) for shop in shops] == pytest.approx([2 * 2 * 50 / 0.5, 2 * 192 * 50 / 0.75])


def test_rows_in_and_out_are_read_and_written() -> None:
    """Two rows of 24 elements of two bytes, beside the matrix of 100 bytes."""
    plan, speeds = plan_of(), card(product={"bf16": Line(start_s=7.0, bytes_per_s=1.0)}, memory=1.0)
    shop = ServeTiming(plan=plan, engine=engine_of(plan), speeds=speeds, work=Pass(sequences=2, cached=100))
    assert (
        product_s(shop, Product(form="bf16", nbytes=100.0, elements=50.0, depth=8.0, through=24.0))
        == 7 + 100 + 2 * 24 * 2
    )


def test_a_joined_product_reads_its_rows_once() -> None:
    """Queries, keys and values 64 in and 128 out, the output 64 and 64, gate and up 64 and 256, down 128 and
    64: 832 elements of two bytes, two rows, two layers. transformers reads them for each of its seven.
    """
    assert decoded(card(memory=1.0))["products"] == 2 * 2 * 2 * 832
    assert decoded(card(memory=1.0), engine="transformers")["products"] == 2 * 2 * 2 * (832 + 3 * 64)


# ---- attention ---------------------------------------------------------------------------------------------


def test_the_cache_is_read_once() -> None:
    """Two sequences * 100 tokens * two layers * keys and values of two heads of 16, two bytes each: 51,200;
    half in eight bits.
    """
    assert decoded(card(attention={False: BYTES, True: NO_TIME}))["attention"] == 51_200
    assert (
        decoded(card(attention={False: NO_TIME, True: BYTES}), serving__kv_dtype="fp8")["attention"] == 25_600
    )


@pytest.mark.parametrize(("end", "share"), [(End.FAST, 1.0), (End.VALUE, 0.667), (End.SLOW, 0.37)])
def test_flops_of_attention_while_decoding(end: End, share: float) -> None:
    """4 s d a head and token: 2 * 100 * 4 * 4 heads * 16 = 51,200 a layer; at 660 of 989 of the dense
    rate.
    """
    found = timer(card(end, flops=1.0)).decode(2, 100).parts["attention"]
    assert found == pytest.approx(2 * 51_200 / share)


def test_flops_of_attention_of_a_prompt() -> None:
    """A hundred tokens see fifty keys on average: 100 * 50 * 4 * 4 * 16 = 1,280,000 a layer; after twenty
    others seventy: 1,792,000.
    """
    assert timer(card(flops=1.0)).prefill(100).parts["attention"] == 2 * 1_280_000
    assert timer(card(flops=1.0)).prefill(100, cached=20).parts["attention"] == 2 * 1_792_000


def test_flops_of_attention_of_a_prompt_through_a_window() -> None:
    """Of a hundred tokens the first forty see twenty keys on average and the others forty: 32 of them; after
    sixty others all see forty: 100 * keys * 4 * 4 * 16 a layer.
    """
    config = {**SMALL, "model_type": "mistral", "sliding_window": 40}
    assert timer(card(flops=1.0), config).prefill(100).parts["attention"] == 2 * 100 * 32 * 256
    found = timer(card(flops=1.0), config).prefill(100, cached=60)
    assert found.parts["attention"] == 2 * 100 * 40 * 256


# ---- the rest of a layer -----------------------------------------------------------------------------------


def test_bytes_of_norms_rotation_and_activation() -> None:
    """Of a row: two norms, each of which reads the input and the residual and writes both, 2 * 4 * 64;
    queries and keys turned, 2 * (4 + 2) * 16; keys and values stored, 2 * 2 * 2 * 16; the gate, its other
    half and their product, 3 * 128: 1,216 elements of two bytes; two rows, two layers. Two ranks share all
    but the norms.
    """
    assert decoded(card(memory=1.0))["small"] == 2 * 2 * 2 * (512 + 192 + 128 + 384)
    assert decoded(card(memory=1.0), gpus=2)["small"] == 2 * 2 * 2 * (512 + 96 + 64 + 192)


def test_bytes_of_norms_of_queries_and_keys() -> None:
    """Read and written besides, and a kernel more: 2 * (4 + 2) * 16 elements."""
    config = {**SMALL, "model_type": "qwen3"}
    assert decoded(card(memory=1.0), config)["small"] == 2 * 2 * 2 * (1216 + 192)
    assert decoded(card(least_s=1.0), config)["small"] == 2 * 6


def test_bytes_of_code_that_is_written_out() -> None:
    """transformers' own, operation by operation: norms 36 bytes an element of 2 * 64, rotation 20 of 96, the
    gate 10 of 128, residuals 6 of 2 * 64; the store reads and writes 64.
    """
    row = 36 * 128 + 20 * 96 + 10 * 128 + 6 * 128 + 4 * 64
    assert decoded(card(memory=1.0), engine="transformers")["small"] == 2 * 2 * row


def test_bytes_and_kernels_beside_experts() -> None:
    """Their activation is theirs; the rest of a layer as of any: 512 + 192 + 128 elements, four kernels."""
    assert decoded(card(memory=1.0), ROUTED)["small"] == 2 * 2 * 2 * 832
    assert decoded(card(least_s=1.0), ROUTED)["small"] == 2 * 4


@pytest.mark.parametrize(("end", "kernels"), [(End.FAST, 3), (End.VALUE, 5), (End.SLOW, 8)])
def test_short_kernels_of_a_layer(end: End, kernels: int) -> None:
    """Two norms, rotation, the store into the cache, the activation: five; three where a compiler joins them,
    eight with casts and sums.
    """
    assert decoded(card(end, least_s=1.0))["small"] == 2 * kernels


def test_a_state_is_read_and_written() -> None:
    """Mamba of 128 channels: 16 states in fp32 and four inputs of its convolution in 16 bits a channel, read
    and written: 2 * 128 * (64 + 8); 8 bytes a channel and row through memory; two rows. Its scan: a
    multiply-add for each of decay, in and out of 2048 states.
    """
    found = decoded(card(memory=1.0), MAMBA, engine="transformers")
    assert found["attention"] == 2 * (2 * 128 * (64 + 8) + 8 * 128)
    assert decoded(card(flops=1.0), MAMBA, engine="transformers")["attention"] == 2 * 6 * 2048
    assert decoded(card(least_s=1.0), MAMBA, engine="transformers")["attention"] == 2


def test_a_prompt_is_scanned_by_chunks() -> None:
    """Mamba-2: six flops a state of 8 heads * 16 * 16 and the 128 tokens of a chunk with one another, 2 * 128
    * 128 channels; on units that multiply matrices four times as fast. One token at a time by itself.
    """
    speeds = card(flops=1.0)
    speeds = replace(speeds, rates=replace(speeds.rates, dense={"bf16": 4.0, "fp32_vector": 1.0}))
    assert timer(speeds, MAMBA_2).prefill(100).parts["attention"] == 100 * (6 * 2048 + 2 * 128 * 128) / 4
    assert timer(speeds, MAMBA_2).decode(2, 100).parts["attention"] == 2 * 6 * 2048


# ---- experts -----------------------------------------------------------------------------------------------


def test_experts_that_two_tokens_reach() -> None:
    """Of eight, two a token: 8 (1 - (3/4)²) = 3.5, each 3 * 64 * 128 elements of two bytes; two layers. Four
    copies, 2 * 24,576 flops each, at 0.88 of a lone product's rate.
    """
    assert decoded(card(experts={"bf16": BYTES}), ROUTED)["experts"] == 2 * 3.5 * 49_152
    assert decoded(card(flops=1.0), ROUTED)["experts"] == pytest.approx(2 * 4 * 2 * 24_576 / 0.88)


# ---- the end of a pass, and the host -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "calls", "nbytes"), [(End.FAST, 0, 6), (End.VALUE, 10, 26), (End.SLOW, 35, 120)]
)
def test_the_choice_of_a_token(end: End, calls: int, nbytes: int) -> None:
    """Of 256 logits of two sequences: a cast to fp32 reads two bytes and writes four; divided, softmax and
    the largest besides: 26; sorted, summed and put back: 120.
    """
    assert decoded(card(end, memory=1.0))["sampler"] == 2 * 256 * nbytes
    assert decoded(card(end, call_s=1.0))["sampler"] == calls


@pytest.mark.parametrize(("engine", "calls"), [("vllm", 26), ("transformers", 50)])
def test_the_host_starts_every_kernel_of_a_prompt(engine: str, calls: int) -> None:
    """13 operators of two kernels, or the 50 operations of transformers' own code; two layers."""
    assert timer(card(call_s=1.0), engine=engine).prefill(100).parts["waiting"] == 2 * calls


def test_others_prompts_between_tokens() -> None:
    """Of four sequences that make eight tokens each, half a prompt comes with every token."""
    one, other = (Seconds(low=n, value=n, high=n, parts={"products": n}) for n in (3.0, 10.0))
    assert token_time(one, other, 4, 8).value == 3 + 10 * 4 / 8


# ---- ranks -------------------------------------------------------------------------------------------------


def test_sums_of_a_mixer_without_feed_forward() -> None:
    """Mamba sums what its states are asked with, and what it makes: two a layer. Mamba-2 one."""
    speeds = card(points={2: ((0.0, 1.0), (1024.0, 1.0))})
    assert timer(speeds, MAMBA, gpus=2).decode(2, 100).parts["exchange"] == 2 + 1
    assert timer(speeds, MAMBA_2, gpus=2).decode(2, 100).parts["exchange"] == 1 + 1


@pytest.mark.parametrize(("end", "share"), [(End.FAST, 0.56), (End.VALUE, 1.0)])
def test_sums_of_two_ranks(end: End, share: float) -> None:
    """Two a layer and one of the embedding; SGLang's own takes 2.4 where vLLM's takes 4.3: 0.56."""
    speeds = card(end, points={2: ((0.0, 1.0), (1024.0, 1.0))})
    assert timer(speeds, gpus=2).decode(2, 100).parts["exchange"] == pytest.approx(5 * share)


def test_a_sum_between_two_measured_sizes() -> None:
    """Level below the first, a straight line between, the last two's beyond: 1 s at 100 bytes, 3 s at 200."""
    plan = plan_of(gpus=2)
    speeds = card(points={2: ((100.0, 1.0), (200.0, 3.0))})
    shop = ServeTiming(plan=plan, engine=engine_of(plan), speeds=speeds, work=Pass(sequences=2, cached=100))
    assert [all_reduce_s(shop, nbytes, 2) for nbytes in (50.0, 150.0, 300.0)] == [1, 2, 5]


def test_logits_are_gathered() -> None:
    """Of two ranks half of 2 * 256 logits of two bytes."""
    assert timer(card(wire=1.0), gpus=2).decode(2, 100).parts["exchange"] == 512


# ---- the table ---------------------------------------------------------------------------------------------


def test_speeds_of_an_h100() -> None:
    """A product starts in 3.8 us and reads 0.88 of 3.35 TB/s, 10% faster and 14% slower at the ends;
    attention starts in 12 us and reads 0.9 of it; the shortest kernel takes 2.5 us, an all-reduce that the
    host starts 20.
    """
    fast, value, slow = (speeds_of(cluster_of(find_device("H100-80GB"), 8), end) for end in End)
    assert (value.product["bf16"].start_s, value.product["bf16"].bytes_per_s) == pytest.approx(
        (3.8e-6, 0.88 * 3.35e12)
    )
    assert (fast.product["bf16"].start_s, fast.product["bf16"].bytes_per_s) == pytest.approx(
        (3.8e-6 / 1.1, 1.1 * 0.88 * 3.35e12)
    )
    assert (slow.product["bf16"].start_s, slow.product["bf16"].bytes_per_s) == pytest.approx(
        (3.8e-6 / 0.86, 0.86 * 0.88 * 3.35e12)
    )
    assert [one.attention[False].start_s for one in (fast, value, slow)] == pytest.approx(
        [10.3e-6, 12e-6, 21.2e-6]
    )
    assert [one.attention[False].bytes_per_s for one in (fast, value, slow)] == pytest.approx(
        [share * 3.35e12 for share in (0.93, 0.9, 0.75)]
    )
    assert (value.least_s, value.started_s) == pytest.approx((2.5e-6, 20e-6))
    assert [one.call_s for one in (fast, value, slow)] == [5e-6, 11e-6, 25e-6]
    assert value.points[2][0] == pytest.approx((128, 4.3e-6))
