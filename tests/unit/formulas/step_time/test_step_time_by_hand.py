"""Step times worked out by hand: on a card where one thing costs a second and everything else nothing.

A card that makes one flop a second and moves bytes at once takes as many seconds as there are flops; one that
moves a byte a second as many as there are bytes; and so on. Every case is a sum that a reader can redo. The
model, unless a case says otherwise: two layers, hidden 64, a gated feed-forward of 128, four heads of 16 with
two of keys and values, 256 words; two sequences of 128 tokens, which are 256 rows.

    A layer's matrices (elements): q 64 x 64 = 4096, k and v 32 x 64 = 2048 each, o 4096, gate, up and down
    128 x 64 = 8192 each: 36864
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from memsheet.catalog import find_device
from memsheet.formulas.operators.blocks import block_operators
from memsheet.formulas.operators.operator import Kind, Operator
from memsheet.formulas.step_time.collectives import across_s, broadcasts_s, collective_s, inside_s, send_s
from memsheet.formulas.step_time.exchange import hierarchical_all_to_all_s
from memsheet.formulas.step_time.numbers import Curve
from memsheet.formulas.step_time.operators import attention_of, matmul_operator, scan_of
from memsheet.formulas.step_time.pictures import patches_of
from memsheet.formulas.step_time.rates import Efficiency, Fit, Rates, rates_of
from memsheet.formulas.step_time.replicas import Overlap, exposed_communication_s
from memsheet.formulas.step_time.schedule import exposed_pipeline_sends, pipeline_s
from memsheet.formulas.step_time.training_step import OneStep, one_step, shop_of, step_time
from memsheet.formulas.step_time.updates import accumulated_s, activation_bytes, offloaded_s, update_s
from memsheet.plan.device import cluster_of
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import ModelSpec, Moe
from memsheet.plan.plan import ContextParallel, Implementation, Plan, Recompute, RecomputeMode, Schedule
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request

SMALL: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
ROUTED: dict[str, Any] = {**SMALL, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def card(
    *,
    flops: float = inf,
    memory: float = inf,
    start: float = 0.0,
    wire: float = inf,
    alpha: float = 0.0,
    gamma: float = 0.0,
    **more: Any,
) -> Rates:
    """A card on which everything that is not named takes no time."""
    asked: dict[str, Any] = {
        "dense": {"bf16": flops, "fp16": flops, "fp32_vector": flops}, "products": {"bf16": Curve.flat(1.0)}, "depth": Curve.flat(1.0),
        "memory": memory, "launch_s": {"bf16": start}, "attention": {key: (Curve.flat(1.0), Curve.flat(1.0)) for key in ("fa2", "cudnn")},
        "attention_dense": flops, "collectives": dict.fromkeys(KINDS, Fit(alpha_s=alpha, bytes_per_s=wire, gamma=gamma)), "near": 8,
        "network": inf, "host": inf, **more,
    }  # fmt: skip
    return Rates(**asked)


def model(config: dict[str, Any]) -> ModelSpec:
    return read_hf_config(config, name="m")


def plan_of(config: dict[str, Any], gpus: int = 1, **request: Any) -> Plan:
    asked = {"task": "train", "engine": "fsdp2", "seq_len": 128, "microbatch": 2, "recompute.mode": "none"}
    asked |= {key.replace("__", "."): value for key, value in request.items()}
    return resolve_request(asked, model(config), cluster_of(find_device("H100-80GB"), gpus)).plan


def operator(config: dict[str, Any], kind: Kind) -> Operator:
    """The first layer's operator of a kind."""
    return next(op for op in block_operators(model(config).blocks()[0]) if op.kind is kind)


def step(
    rates: Rates,
    config: dict[str, Any] = SMALL,
    gpus: int = 1,
    *,
    overlap: Overlap = Overlap.ENGINE,
    changed: dict[str, Any] | None = None,
    **request: Any,
) -> OneStep:
    plan = replace(plan_of(config, gpus, **request), **(changed or {}))
    return one_step(model(config), plan, engine_of(plan), rates, overlap, told=True)


# ---- arithmetic --------------------------------------------------------------------------------------------


def test_flops_of_a_step() -> None:
    """2 m n k a product, each of its two gradients as much; attention 4 s² d a head, half of it causal, and
    2.5 times that backward.

    Products of a layer 2 * 256 * 36864 = 18,874,368, of the head 2 * 256 * 256 * 64 = 8,388,608: forward
    46,137,344, and three times that 138,412,032. Attention of a layer 4 * 128² * 16 / 2 * 4 heads * 2
    sequences = 4,194,304, of two layers 3.5 times: 29,360,128. Of the model, by convention, three times the
    forward of both: 3 * (46,137,344 + 8,388,608) = 163,577,856.
    """
    found = step(card(flops=1.0))
    assert found.parts["compute"] == 138_412_032
    assert found.parts["attention"] == 29_360_128
    assert found.seconds == 138_412_032 + 29_360_128
    assert found.flops == 163_577_856


@pytest.mark.parametrize(
    ("engine", "again"),
    [("fsdp2", 2 * (18_874_368 - 4_194_304 + 4_194_304)), ("megatron", 2 * (18_874_368 + 4_194_304))],
)
def test_flops_of_recomputing_a_layer(engine: str, again: int) -> None:
    """All of forward a second time; torch's stops before the layer's last product, down: 2 * 256 * 64 * 128 =
    4,194,304.
    """
    assert step(card(flops=1.0), engine=engine, recompute__mode="full").parts["recompute"] == again


def test_flops_of_keeping_every_second_product() -> None:
    """torchtitan's policy by operation: half of the products of two layers, no attention."""
    policy = Recompute(mode=RecomputeMode.SELECTIVE, modules=frozenset({"op"}))
    assert (
        step(card(flops=1.0), engine="torchtitan", changed={"recompute": policy}).parts["recompute"]
        == 18_874_368
    )


def test_flops_of_scores_that_are_written() -> None:
    """Two products of 2 s² d a head over masked scores too: 4 * 128² * 16 * 4 heads * 2 sequences =
    8,388,608, backward twice; two layers.
    """
    assert step(card(flops=1.0), attention="eager").parts["attention"] == 2 * 3 * 8_388_608


def test_flops_of_experts() -> None:
    """A layer's experts: 256 rows * 2 of 8 experts * 3 matrices of 64 x 128, at 0.88 of a lone product's
    rate; the router 256 * 8 * 64.

    Attention's matrices 12288: 2 * 256 * 12288 = 6,291,456; router 262,144; experts 2 * 512 * 24576 =
    25,165,824.
    """
    forward = 2 * (6_291_456 + 262_144 + 25_165_824 / 0.88) + 8_388_608
    assert step(card(flops=1.0), ROUTED).parts["compute"] == pytest.approx(3 * forward)


def test_rows_that_few_tiles_hold() -> None:
    """100 rows by 113 columns are as many tiles as 100 * 113 / 11300 = 1 row of the measured products; 25 of
    them at once as 25 rows.

    On a card whose speed is a hundredth of its rate for each such row: 2 * 100 * 113 * 50 = 1,130,000 flops
    at 0.01, and of a group at 0.25 and 0.88 of a lone product's.
    """
    plan = plan_of(SMALL)
    rates = card(flops=1.0, products={"bf16": Curve(((100.0, 1.0), (1000.0, 1.0)))})
    shop = shop_of(plan, engine_of(plan), rates, Overlap.ENGINE)
    assert matmul_operator(shop, "p", 100, 113, 50).forward_s == pytest.approx(1_130_000 / 0.01)
    assert matmul_operator(shop, "p", 100, 113, 50, groups=25).forward_s == pytest.approx(
        1_130_000 / 0.25 / 0.88
    )


# ---- bytes through memory ----------------------------------------------------------------------------------

PRODUCTS = 598_016
"""Bytes of a layer's products forward, 2 (m k + n k + m n) each: q and o 73,728, k and v 53,248, gate, up and
down 114,688. Either gradient reads and writes the same three.
"""
ENDS = 65_536 + 3 * 65_536 + 3 * 196_608
"""Embedding 256 * 64 elements at 4 bytes, three times that backward; the head's product 2 (256 * 64 + 256 *
64 + 256 * 256) = 196,608 and its two gradients.
"""
LOGITS = 256 * 256


def test_bytes_of_a_layer_written_out() -> None:
    """Operation by operation in 16 bits: norms 36 and 86 bytes an element, rotation 20 and 20, silu(gate) *
    up 10 and 16, residuals 6 and 6.

    Two norms of 256 * 64 = 16,384 elements each: 32,768 * (36 + 86) = 3,997,696. Rotation of 4 + 2 heads of
    16: 24,576 * 40 = 983,040. The gate 256 * 128 = 32,768 * 26 = 851,968. Two residuals 32,768 * 12 =
    393,216. The loss, plain: 18 each way of 65,536 logits.
    """
    layer = 3 * PRODUCTS + 3_997_696 + 983_040 + 851_968 + 393_216
    assert step(card(memory=1.0)).parts["compute"] == 2 * layer + ENDS + LOGITS * 36


def test_bytes_of_a_layer_of_fused_kernels() -> None:
    """Norms 4 and 6, rotation 4 and 4, the gate 6 and 10; the gradient of a weight is added to fp32 inside
    its product, read and written: 8.

    q, k and v are one product of 128 x 64: 2 (16,384 + 8,192 + 32,768) = 114,688, o 73,728; gate and up one
    of 256 x 64: 196,608, down 114,688. Sum 499,712.
    """
    layer = 3 * 499_712 + 8 * 36_864 + 32_768 * 10 + 24_576 * 8 + 32_768 * 16 + 393_216
    found = step(card(memory=1.0), engine="megatron", loss="plain")
    assert found.parts["compute"] == 2 * layer + ENDS + 8 * 256 * 64 + LOGITS * 36


@pytest.mark.parametrize(("loss", "an_element"), [("plain", 36), ("fused", 10)])
def test_bytes_of_the_loss(loss: str, an_element: int) -> None:
    """Raised to fp32 (6), log-softmax (12) and both undone: 36 a logit. Fused: read, then read and replaced
    (6), scaled (4): 10.
    """
    none = step(card(memory=1.0), SMALL, loss="plain").seconds - 36 * LOGITS
    assert step(card(memory=1.0), SMALL, loss=loss).seconds - none == an_element * LOGITS


def test_bytes_of_scores() -> None:
    """Of 128² * 4 heads * 2 sequences = 131,072 scores 24 each way written out; in Megatron's fused softmax 6
    and 8.
    """
    flash, eager = (step(card(memory=1.0), attention=how).seconds for how in ("flash", "eager"))
    assert eager - flash == 2 * 131_072 * 48
    flash, eager = (
        step(card(memory=1.0), engine="megatron", attention=how).seconds for how in ("flash", "eager")
    )
    assert eager - flash == 2 * 131_072 * 14


# ---- kernels and the host ----------------------------------------------------------------------------------


def test_kernels_of_a_layer() -> None:
    """13 forward: seven products, attention, two norms, rotation, the gate, the residuals; backward two for a
    product: 20. The head 1 + 2 and the loss 1 + 1.
    """
    assert step(card(start=1.0)).seconds == 2 * 33 + 5


@pytest.mark.parametrize(
    ("overlap", "call_s"), [(Overlap.ALL, 5e-6), (Overlap.ENGINE, 11e-6), (Overlap.NONE, 25e-6)]
)
@pytest.mark.parametrize(("engine", "calls"), [("fsdp2", 13 * 4), ("megatron", 10 * 2)])
def test_a_card_that_waits_for_its_host(overlap: Overlap, call_s: float, engine: str, calls: int) -> None:
    """Four operations an operator written out, two of fused kernels (whose q, k, v and gate, up are one
    product each: 10), forward once and backward twice.
    """
    assert step(card(), engine=engine, overlap=overlap).parts["kernel_starts"] == pytest.approx(
        2 * 3 * calls * call_s
    )


def test_a_router_takes_the_host_sixty_operations_more() -> None:
    """Of a layer with experts, written out: four products of attention, attention, two norms, rotation,
    residuals, the router, two of experts (gate and up are stored as one), their permutation and activation:
    14 operators of four, and 60.
    """
    assert step(card(), ROUTED).parts["kernel_starts"] == pytest.approx(2 * 3 * (14 * 4 + 60) * 11e-6)


# ---- exchanges ---------------------------------------------------------------------------------------------


def test_ring_factors() -> None:
    """A ring of n moves 2 (n-1)/n of an all-reduce's payload and (n-1)/n of the others': of 800 bytes among
    8, 1400 and 700.
    """
    moved = {kind: inside_s(kind, 800.0, 8, card(wire=1.0)) for kind in KINDS}
    assert moved == {"all_reduce": 1400, "all_gather": 700, "reduce_scatter": 700, "all_to_all": 700}
    assert inside_s("all_gather", 800.0, 8, card(alpha=3.0, gamma=2.0)) == pytest.approx(3 + 2 * 700**0.5)
    assert inside_s("all_gather", 800.0, 1, card(alpha=3.0, wire=1.0)) == 0


def test_what_crosses_the_network() -> None:
    """32 ranks on four nodes of eight, each with a link of 10 bytes a second that collectives use to 0.8.

    An all-reduce of 800 bytes: 2 * 3/4 of it over eight links, 150 bytes each: 150 / 8 s, and 2 * 3 steps of
    14 us. A gather half of both. All to all: of a rank's 800 bytes 24/32 go to other nodes, 600 / 8 s, and
    three starts; at most eight of those, however many the nodes.
    """
    rates = card(network=10.0)
    assert across_s("all_reduce", 800.0, 32, 8, rates) == pytest.approx(150 / 8 + 6 * 14e-6, rel=1e-12)
    assert across_s("all_gather", 800.0, 32, 8, rates) == pytest.approx(75 / 8 + 3 * 14e-6, rel=1e-12)
    assert across_s("all_to_all", 800.0, 32, 8, rates) == pytest.approx(600 / 8 + 3 * 14e-6, rel=1e-12)
    assert across_s("all_to_all", 0.0, 128, 8, rates) == pytest.approx(8 * 14e-6)
    assert across_s("all_gather", 800.0, 8, 8, rates) == 0


def test_the_slower_of_node_and_network_counts() -> None:
    rates = card(wire=1.0, network=10.0)
    assert collective_s("all_gather", 800.0, 32, 1, rates) == 700  # against 75 / 8 over the network
    assert collective_s("all_gather", 800.0, 4, 8, rates) == pytest.approx(
        600 / 8 + 3 * 14e-6
    )  # one rank of each node, a link each
    assert collective_s("all_gather", 8e10, 2, 8, card(network=None)) == pytest.approx(
        4e10 / (12.5e9 * 0.8) + 14e-6
    )  # 100 Gbit/s


def test_a_message_to_the_next_rank() -> None:
    """Inside the node as a part of an all-to-all; beyond it over one link at 0.8 after a hop of 14 us."""
    rates = card(wire=1.0, alpha=3.0, network=10.0)
    assert send_s(800.0, 4, rates) == 803
    assert send_s(800.0, 8, rates) == pytest.approx(100 + 14e-6)


def test_broadcasts_of_every_rank_in_turn() -> None:
    """As many bytes as a gather, 3/4 of 800, which starts once (2 s); then four starts of 2 s more. Sixteen
    ranks on two nodes: the gather's hop, and one for each of the sixteen.
    """
    assert broadcasts_s(800.0, 4, 1, card(wire=1.0, alpha=2.0)) == 602 + 4 * 2
    assert broadcasts_s(0.0, 16, 1, card()) == pytest.approx(17 * 14e-6)


def test_tokens_that_cross_to_a_node_once() -> None:
    """Two experts a token on four nodes: it reaches 4 (1 - (3/4)²) = 1.75 of them. 800 bytes: 1400 sent, of
    which (32 - 8)/32 leave the node: 1050 / 8 s, three hops.
    """
    moe = next(
        block.feed_forward for stack in model(ROUTED).stacks for run in stack.runs for block in run.pattern
    )
    assert isinstance(moe, Moe)
    assert hierarchical_all_to_all_s(800.0, moe, 32, 1, card(network=10.0)) == pytest.approx(
        1050 / 8 + 3 * 14e-6
    )


def test_tensor_parallel_sums() -> None:
    """Two ranks, two layers: an all-reduce after attention and one after the feed-forward, forward and
    backward, of 256 * 64 * 2 = 32,768 bytes, 2 * 1/2 of them over the wire.
    """
    assert (
        step(card(wire=1.0), gpus=2, engine="megatron", mesh__tp=2).parts["tensor_parallel"] == 2 * 4 * 32_768
    )


def test_sequence_parallel_gathers() -> None:
    """A gather and a scatter of a region, half of 32,768 bytes each; backward both again and the input
    gathered once more: five of 16,384 in two regions of two layers.
    """
    found = step(card(wire=1.0), gpus=2, engine="megatron", mesh__tp=2, sequence_parallel=True)
    assert found.parts["tensor_parallel"] == 2 * 2 * 5 * 16_384


def test_tokens_to_their_experts() -> None:
    """Two ranks of experts: each sends its 256 tokens of 128 bytes twice (two experts), half of it to the
    other: 32,768; there and back, forward and backward, in two layers.
    """
    found = step(card(wire=1.0), ROUTED, gpus=2, engine="megatron", mesh__ep=2)
    assert found.parts["expert_parallel"] == 2 * 4 * 32_768


@pytest.mark.parametrize(("cp", "rows", "steps"), [(2, 128, 1), (4, 64, 3)])
def test_a_ring_of_keys_and_values(cp: int, rows: int, steps: int) -> None:
    """Two sequences of 128 tokens among two ranks are 128 rows of each, keys and values 2 * 2 heads * 16 in
    16 bits; once forward and with their gradients twice backward, for every other rank; two layers.
    """
    found = step(
        card(wire=1.0),
        gpus=cp,
        engine="megatron",
        mesh__cp=cp,
        changed={"context_parallel": ContextParallel.RING},
    )
    assert found.parts["context_parallel"] == 2 * 3 * steps * rows * 64 * 2


def test_keys_that_are_gathered_and_heads_that_are_exchanged() -> None:
    """Two ranks, half of the payload. Keys and values of 256 rows, 64 elements of two bytes, gathered either
    way and their gradients scattered: 3 * 16,384. All to all: keys, values, queries and outputs of 128 rows,
    64 + 2 * 64 elements, each way: 2 * 24,576.
    """
    for how, nbytes in ((ContextParallel.ALL_GATHER, 3 * 16_384), (ContextParallel.ALL_TO_ALL, 2 * 24_576)):
        found = step(card(wire=1.0), gpus=2, engine="megatron", mesh__cp=2, changed={"context_parallel": how})
        assert found.parts["context_parallel"] == 2 * nbytes


# ---- data-parallel ranks -----------------------------------------------------------------------------------


def test_what_runs_beside_the_passes_slows_them() -> None:
    """Ten seconds beside four: six stick out, and the four take 0.146 of themselves."""
    assert exposed_communication_s(10.0, 4.0, Overlap.ENGINE) == pytest.approx(6 + 0.146 * 4)
    assert exposed_communication_s(10.0, 4.0, Overlap.ALL) == 6
    assert exposed_communication_s(10.0, 0.0, Overlap.NONE) == 10


ELEMENTS, LAYER = 106_752, 36_992
"""Two layers of 36,864 and two norms of 64, 36,992 each; embedding and head 256 * 64 = 16,384 each; without
the last norm.
"""


def test_zero_3_gathers_twice_and_scatters_once() -> None:
    """Four ranks, 3/4 of the payload: parameters in 16 bits before forward and backward, gradients in fp32
    after it. By an engine's defaults the first gather of either and the last scatter, of a layer, are waited
    for besides.
    """
    plain, usual = (
        step(card(wire=1.0), gpus=4, zero=3, overlap=how).parts for how in (Overlap.NONE, Overlap.ENGINE)
    )
    assert plain["parameters_gathered"] == 0.75 * 2 * 2 * ELEMENTS
    assert plain["gradients_reduced"] == pytest.approx(0.75 * 4 * ELEMENTS)
    assert usual["parameters_gathered"] == pytest.approx(0.75 * 2 * 2 * (ELEMENTS + LAYER), rel=1e-6)
    assert usual["gradients_reduced"] == pytest.approx(0.75 * 4 * (ELEMENTS + LAYER), rel=1e-6)


def test_units_are_copied_out_of_a_gather_and_into_a_reduction() -> None:
    """fully_shard reads and writes each gathered parameter, 2 * 2 bytes, before forward and backward; a
    gradient of 2 is written as fp32: 6.
    """
    found = step(card(memory=1.0), zero=3).parts
    assert found["parameters_gathered"] == 2 * 4 * ELEMENTS
    assert found["gradients_reduced"] == 6 * ELEMENTS


def test_zero_1_sums_and_gathers_once_a_step() -> None:
    """Of four ranks 3/4: gradients scattered in fp32, parameters gathered in 16 bits, whatever the
    micro-batches.
    """
    found = step(card(wire=1.0), gpus=4, engine="megatron", zero=1, global_batch=24).parts
    assert found["gradients_reduced"] == 0.75 * 4 * ELEMENTS
    assert found["parameters_gathered"] == 0.75 * 2 * ELEMENTS


# ---- the optimizer and the host ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("implementation", "an_element"), [(Implementation.FUSED, 36), (Implementation.FOREACH, 84)]
)
def test_bytes_of_an_adam_step(implementation: Implementation, an_element: int) -> None:
    """In fp32: the gradient read, for its norm and to be zeroed (12), two moments read and written (16), the
    parameter too (8); written operation by operation 12 passes of four bytes more.
    """
    plan = plan_of(SMALL, optimizer__name="adamw")
    assert plan.optimizer is not None
    plan = replace(plan, optimizer=replace(plan.optimizer, implementation=implementation))
    assert update_s(1000.0, plan, card(memory=1.0)) == 1000 * an_element


def test_bytes_of_an_adam_step_with_a_master_copy() -> None:
    """Megatron's: gradient in fp32 three times (12), moments (16), the master read and written once each way
    (4) and the parameter in 16 bits (2).
    """
    plan = plan_of(SMALL, engine="megatron", optimizer__name="adamw")
    assert plan.optimizer is not None
    plan = replace(plan, optimizer=replace(plan.optimizer, implementation=Implementation.FUSED))
    assert update_s(1000.0, plan, card(memory=1.0)) == 1000 * 34


def offloaded(what: str, **request: Any) -> Plan:
    plan = plan_of(SMALL, **request)
    return replace(plan, offload=replace(plan.offload, **{what: 1.0}))


def test_an_optimizer_on_the_host() -> None:
    """A thousand elements over a link of 10 bytes a second: gradients of 4 there and parameters of 2 back,
    600 s. On a host whose memory eight devices share, 409.6e9 bytes a second (two sockets of eight DDR4-3200
    channels of 25.6e9): gradient, master and moments read, three written, 28 bytes.
    """
    plan, rates = offloaded("optimizer"), card(host=10.0)
    assert offloaded_s(1000.0, 0.0, 0.0, 0.0, plan, rates) == pytest.approx(
        600 + 28_000 * 8 / 409.6e9, rel=1e-12
    )
    fast = card(host=inf)
    assert offloaded_s(1e12, 0.0, 0.0, 0.0, plan, fast) == pytest.approx(28e12 * 8 / 409.6e9)
    assert card(host=None).host_link == 31.5e9  # PCIe 4.0: 16 lanes of 16 GT/s, 128 of 130 bits, 8 to a byte


def test_gradients_that_are_added_on_the_host() -> None:
    """Of two later micro-batches. torch: 4 bytes over the link and 12 of the host's memory. DeepSpeed fetches
    and sends, beside the passes.
    """
    assert accumulated_s(1e12, 0.0, 2, plan_of(SMALL), card()) == pytest.approx(2e12 * 12 * 8 / 409.6e9)
    assert accumulated_s(1000.0, 0.0, 2, plan_of(SMALL), card(host=10.0)) == pytest.approx(
        2 * 4000 / 10, rel=1e-6
    )
    plan = plan_of(SMALL, engine="deepspeed", zero=3)
    gradient = plan.precision.gradients.bits // 8
    assert accumulated_s(1000.0, 50.0, 2, plan, card(host=10.0)) == 2 * 2 * gradient * 1000 / 10 - 50


def test_what_is_fetched_for_every_pass() -> None:
    """Parameters before forward and backward, as far as the passes do not hide it; activations out and back,
    which nothing hides.
    """
    assert offloaded_s(0.0, 800.0, 0.0, 60.0, offloaded("parameters"), card(host=10.0)) == 2 * 80 - 60
    assert offloaded_s(0.0, 0.0, 800.0, 60.0, offloaded("activations"), card(host=10.0)) == 2 * 80


def test_activations_of_a_layer() -> None:
    """34 s b h bytes; of a layer that is recomputed its input, 2 s b h."""
    plan = plan_of(SMALL)
    assert activation_bytes(256, 64, 2, plan) == 34 * 256 * 64 * 2
    assert (
        activation_bytes(256, 64, 2, replace(plan, recompute=Recompute(mode=RecomputeMode.FULL)))
        == 2 * 256 * 64 * 2
    )


# ---- a sequence in parts, other layers, stages -------------------------------------------------------------


@pytest.mark.parametrize(("engine", "worst"), [("torchtitan", 1.5), ("megatron", 1.0)])
def test_the_last_of_two_parts_of_a_causal_mask(engine: str, worst: float) -> None:
    """The later half of a sequence has three of four quarters of the scores, 1.5 times the mean; Megatron
    gives each rank a chunk from either end.
    """
    found = step(card(flops=1.0), gpus=2, engine=engine, mesh__cp=2, overlap=Overlap.NONE)
    assert found.parts["attention"] == worst * 29_360_128 / 2


def test_attention_either_way() -> None:
    """Forward 4,194,304 flops of a layer, backward 2.5 times; of four parts the last has 7 of 16 shares of
    the scores, 1.75 times the mean. Of 4 flops a second kernels reach a half and a quarter.
    """
    plan = plan_of(SMALL, 4, engine="torchtitan", mesh__cp=4)
    reached = dict.fromkeys(("fa2", "cudnn"), (Curve.flat(0.5), Curve.flat(0.25)))
    shop = shop_of(plan, engine_of(plan), card(flops=4.0, attention=reached), Overlap.NONE)
    found = next(attention_of(shop, operator(SMALL, Kind.SCORES)))
    worst = 1.75 * 4_194_304 / 4
    assert (found.forward_s, found.backward_s) == (worst / 2, 2.5 * worst)


@pytest.mark.parametrize(("engine", "each"), [("torchtitan", 56), ("megatron", 16)])
def test_bytes_of_adding_a_block_of_attention(engine: str, each: int) -> None:
    """2 sequences * 64 queries * 4 heads * 16 = 8,192 outputs of each of two layers, for the second of two
    blocks: written out 38 and 18 bytes, fused 10 and 6. All else is halved by two ranks but the matrices,
    which are read whole.
    """

    def ring(cp: int) -> float:
        plan = replace(
            plan_of(SMALL, cp, engine=engine, mesh__cp=cp),
            context_parallel=ContextParallel.RING if cp > 1 else None,
        )
        shop = shop_of(plan, engine_of(plan), card(memory=1.0), Overlap.ENGINE)
        return sum(one.forward_s + one.backward_s for one in attention_of(shop, operator(SMALL, Kind.SCORES)))

    assert ring(1) == 0
    assert ring(2) == 8_192 * each


def test_a_scan_of_states() -> None:
    """Mamba of 128 channels with 16 states: decay, in and out are a multiply-add of a state each: 6 * 2048 *
    256 rows; 8 bytes a channel and row through memory; backward 2.5 times.
    """
    config = {"model_type": "mamba", "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 1, "state_size": 16, "intermediate_size": 128,
              "conv_kernel": 4, "time_step_rank": 4}  # fmt: skip
    plan = plan_of(config)
    for rates, one in ((card(flops=1.0), 6 * 2048 * 256), (card(memory=1.0), 8 * 128 * 256)):
        scan = scan_of(shop_of(plan, engine_of(plan), rates, Overlap.ENGINE), operator(config, Kind.SCAN))
        assert (scan.forward_s, scan.backward_s) == (one, 2.5 * one)


def test_pictures_are_four_patches_a_token() -> None:
    small = plan_of(SMALL)
    plan = replace(small, workload=replace(small.training, image_tokens=100))
    assert patches_of(shop_of(plan, engine_of(plan), card(), Overlap.ENGINE)).tokens == 2 * 4 * 100


def test_a_pipeline_fills_and_drains() -> None:
    """Stages of 3 and 5 s: four micro-batches pass the slow one, 20 s, and one passes the other, 3 s; half of
    it in two chunks, a third where the gradients of weights fill it: (F + B - 2W) / (F + B) with F = W = B/2.
    """
    assert pipeline_s([3.0, 5.0], 4, 1, Schedule.ONE_F_ONE_B) == (23, 3)
    assert pipeline_s([3.0, 5.0], 4, 2, Schedule.INTERLEAVED) == (21.5, 1.5)
    assert pipeline_s([3.0, 5.0], 4, 1, Schedule.ZERO_BUBBLE) == pytest.approx((21, 1))
    assert pipeline_s([3.0, 5.0], 4, 1, Schedule.DUALPIPE) == pytest.approx((21, 1))


def test_sends_of_a_pipeline() -> None:
    """Three stages to pass, there and back: 6; each of eight micro-batches meets its neighbours twice: 16;
    with two chunks 12 and none.
    """
    assert exposed_pipeline_sends(4, 1, 8, Schedule.ONE_F_ONE_B) == 6 + 16
    assert exposed_pipeline_sends(4, 2, 8, Schedule.INTERLEAVED) == 12
    assert exposed_pipeline_sends(4, 1, 8, Schedule.DUALPIPE) == 6
    assert exposed_pipeline_sends(1, 1, 8, None) == 0


# ---- ends of the interval, and the tables ------------------------------------------------------------------


def test_the_ends_of_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operator tables are met within 12%, and sustained training is up to 1.7 times slower; after a measured
    step 12.5% either way.
    """
    monkeypatch.setattr("memsheet.formulas.step_time.training_step._cluster_rates", lambda _: card(flops=1.0))
    plan, machines = plan_of(SMALL), cluster_of(find_device("H100-80GB"), 1)
    found = step_time(model(SMALL), plan, machines)
    seconds = 138_412_032 + 29_360_128
    assert (found.low, found.value, found.high) == pytest.approx(
        (0.88 * seconds, seconds, 1.7 * seconds), rel=1e-9
    )
    found = step_time(model(SMALL), plan, machines, efficiency=Efficiency())
    assert (found.low, found.high) == pytest.approx((seconds / 1.125, 1.125 * seconds), rel=1e-9)
    assert found.gpu_hours(256 * 3600.0)[1] == pytest.approx(seconds)
    assert found.mfu == pytest.approx(163_577_856 / seconds)


def test_rates_of_an_h100() -> None:
    """989 TFLOPS, 0.74 of it at 4096 rows and at 128 terms of a sum 0.34 of that; 3.35 TB/s, of which kernels
    reach 0.76; FlashAttention-2 0.35 at 16k, and 590 of 621 of that at 4k; a gather starts in 10.5 us and
    goes at 369 GB/s, with 5.5 us for the root of a megabyte.
    """
    rates = rates_of(cluster_of(find_device("H100-80GB"), 8))
    assert rates.product_flops("bf16", 4096, 4096) == pytest.approx(989e12 * 0.74)
    assert rates.product_flops("bf16", 4096, 128) == pytest.approx(989e12 * 0.74 * 0.34)
    assert rates.product_flops("bf16", 64, 4096) == pytest.approx(
        989e12 * 0.33 / 2
    )  # half of the smallest tile measured
    assert rates.memory_bytes == pytest.approx(3.35e12 * 0.76)
    assert rates.start_s("bf16") == pytest.approx(3e-6)
    assert [rates.attention["fa2"][0].at(n) for n in (16384, 4096)] == pytest.approx([0.35, 0.35 * 590 / 621])
    assert inside_s("all_gather", 8e6 / 7, 8, rates) == pytest.approx(10.5e-6 + 1e6 / 369e9 + 5.5e-6)


def test_rates_of_a_card_that_nobody_measured() -> None:
    """Half of its dense rate and of its bandwidth, and a quarter of the dense rate for attention: MI325X,
    1307.4 TFLOPS and 6 TB/s.
    """
    rates = rates_of(cluster_of(find_device("MI325X"), 8))
    assert rates.memory_bytes == pytest.approx(0.5 * 6e12)
    assert rates.attention["fa2"][0].at(4096) == 0.25
