"""Seconds: of a training step's operators, collectives and updates, and of a server's passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from golden.symbols import Cases, call, first, plan, serving, spec, symbol
from memsheet.formulas.operators.blocks import block_operators
from memsheet.formulas.operators.operator import Kind, Operator
from memsheet.formulas.serving_time.layers import Product
from memsheet.formulas.serving_time.operators import Pass, ServeTiming
from memsheet.formulas.serving_time.speeds import End, Line, Speeds
from memsheet.formulas.step_time.numbers import Curve
from memsheet.formulas.step_time.operators import OperatorTime, TrainTiming
from memsheet.formulas.step_time.parts import Part, Unit
from memsheet.formulas.step_time.rates import Fit, Rates
from memsheet.formulas.step_time.replicas import Group, Overlap
from memsheet.formulas.step_time.training_step import shop_of
from memsheet.plan.engine import Sharding
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import Attention, Block, Dense, LatentAttention, LinearAttention, Moe, StateSpace
from memsheet.plan.plan import Offload, Plan, Schedule

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
FLAT = Curve.flat(1.0)
RATES = Rates(
    dense={"bf16": symbol("flops"), "fp32_vector": symbol("flops_fp32")}, products={"bf16": FLAT}, depth=FLAT, memory=symbol("memory"),
    launch_s={"bf16": symbol("launch_s")}, attention=dict.fromkeys(("fa2", "fa3"), (FLAT, FLAT)), attention_dense=symbol("flops"),
    collectives={kind: Fit(alpha_s=symbol("alpha_s"), bytes_per_s=symbol("link"), gamma=symbol("gamma")) for kind in KINDS}, near=symbol("near"), network=symbol("network"),
    host=symbol("host"),
)  # fmt: skip
PAYLOAD, RANKS, STRIDE = (symbol(name) for name in ("payload", "ranks", "stride"))
ELEMENTS = symbol("elements")
DENSE = Group(shards=symbol("shards"), stride=symbol("stride"), copies=symbol("copies"))
UNIT = Unit(**{name: symbol(name) for name in Unit.__dataclass_fields__})
PART = Part(units=((1, replace(UNIT, experts=0.0, routed_trained=0.0)),))
PRODUCTS = (
    OperatorTime(part="mlp", forward_s=symbol("F"), backward_s=symbol("B"), product=True, gathers=True),
    OperatorTime(part="mlp", forward_s=symbol("F2"), backward_s=symbol("B2"), product=True, scatters=True),
)
KERNEL = Line(start_s=symbol("start_s"), bytes_per_s=symbol("rate"))
PASSES = Speeds(
    end=End.VALUE, product={"bf16": KERNEL}, experts={"bf16": KERNEL}, attention={False: KERNEL, True: KERNEL}, least_s=symbol("least_s"),
    call_s=symbol("call_s"), started_s=symbol("started_s"), points={}, rates=RATES, memory=symbol("memory"),
)  # fmt: skip


def training(**request: Any) -> TrainTiming:
    made = plan(**request)
    return shop_of(made, engine_of(made), RATES, Overlap.ENGINE)


def adapted() -> Plan:
    made = plan(adapter__rank=8)
    assert made.adapter is not None
    return replace(made, adapter=replace(made.adapter, rank=symbol("r"), targets=("q_proj",)))


def decoding(fresh: int = 1) -> ServeTiming:
    made = serving("vllm")
    work = Pass(sequences=symbol("sequences"), fresh=fresh, cached=symbol("cached"))
    return ServeTiming(plan=made, engine=engine_of(made), speeds=PASSES, work=work)


def operator(kind: Kind, model: str = "llama-tiny") -> Operator:
    """The first operator of a kind."""
    return next(op for block in spec(model).blocks() for op in block_operators(block) if op.kind is kind)


def offloaded(engine: str = "fsdp2", **shares: Any) -> Plan:
    return replace(plan(engine), offload=Offload(**shares))


CASES: dict[str, Callable[[], Cases]] = {
    "collectives.inside_s": lambda: {kind: call(kind, PAYLOAD, RANKS, RATES) for kind in KINDS},
    "collectives.across_s": lambda: {kind: call(kind, PAYLOAD, RANKS, symbol("near"), RATES) for kind in ("all_gather", "all_to_all")},
    "collectives.broadcasts_s": lambda: {"": call(PAYLOAD, RANKS, STRIDE, RATES)},
    "exchange._beside_products": lambda: {"forward": call(training(), PAYLOAD, PRODUCTS, "forward_s")},
    "exchange._sequence_parallel_s": lambda: {"fsdp2": call(training(), PAYLOAD, 2, PRODUCTS)},
    "exchange._tensor_parallel_s": lambda: {"llama-tiny": call(training(), first(Block), PRODUCTS)},
    "exchange.hierarchical_all_to_all_s": lambda: {"": call(symbol("tokens"), first(Moe, "qwen3-30b-a3b"), RANKS, STRIDE, RATES)},
    "operators.attention_of": lambda: {
        "flash": call(training(attention="flash"), operator(Kind.SCORES)), "eager": call(training(attention="eager"), operator(Kind.SCORES)),
        "latent": call(training(), operator(Kind.SCORES, "deepseek-v2-lite")),
    },
    "operators.matmul_operator": lambda: {"": call(training(), "mlp", symbol("rows"), symbol("out"), symbol("in"))},
    "operators.scan_of": lambda: {"mamba": call(training(), operator(Kind.SCAN, "jamba-v0.1"))},
    "operators.attention.head_width": lambda: {"heads": call(first(Attention)), "latent": call(first(LatentAttention, "deepseek-v2-lite"))},
    "operators.attention.decoding_head_width": lambda: {"heads": call(first(Attention)), "latent": call(first(LatentAttention, "deepseek-v2-lite"))},
    "operators.attention.mean_attended_keys": lambda: {
        "all": call(first(Attention), symbol("before"), symbol("fresh")), "window": call(first(Attention, "mistral-7b"), symbol("before"), symbol("fresh")),
        "chunk": call(first(Attention, "llama-4-scout"), symbol("before"), symbol("fresh")),
    },
    "operators.blocks.activation_elements": lambda: {"gated": call(first(Dense), symbol("tp"))},
    "operators.blocks.channels": lambda: {"mamba": call(first(StateSpace, "jamba-v0.1")), "delta": call(first(LinearAttention, "qwen3-next-80b-a3b"))},
    "operators.blocks.chunk_flops": lambda: {"mamba2": call(first(StateSpace, "mamba-codestral-7b"))},
    "operators.operator.product_operator": lambda: {"": call("mlp", (first(Dense).weights[-1],))},
    "parts.trainable_elements": lambda: {
        "whole": call(plan(), first(Block).weights, symbol("tp"), symbol("dense")),
        "lora": call(adapted(), first(Block).weights, symbol("tp"), symbol("dense")),
    },
    "replicas._parameter_broadcast_s": lambda: {"": call(DENSE, ELEMENTS, symbol("size"), RATES)},
    "replicas._sharded_passes": lambda: {"nothing beside": call(PART, plan(), Sharding.PER_PARAMETER_SHARDS, Overlap.NONE, RATES)},
    "replicas.unsharded_passes": lambda: {"megatron": call(PART, plan("megatron"), Sharding.DISTRIBUTED_OPTIMIZER, Overlap.ENGINE, RATES)},
    "schedule.bubble_share": lambda: {kind.value: call(kind) for kind in Schedule},
    "schedule.pipeline_s": lambda: {
        kind.value: call((symbol("first"), symbol("second")), symbol("m"), 1, kind) for kind in (Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE)
    },
    "updates.accumulated_s": lambda: {
        engine: call(ELEMENTS, symbol("passes_s"), symbol("later"), plan(engine), RATES) for engine in ("fsdp2", "deepspeed")
    },
    "updates.offloaded_s": lambda: {
        "optimizer": call(ELEMENTS, symbol("parameters"), symbol("activations"), symbol("passes_s"), offloaded(optimizer=1.0), RATES),
        "parameters": call(ELEMENTS, symbol("parameters"), symbol("activations"), symbol("passes_s"), offloaded(parameters=1.0), RATES),
        "activations": call(ELEMENTS, symbol("parameters"), symbol("activations"), symbol("passes_s"), offloaded(activations=True), RATES),
    },
    "updates.parameter_bytes_on_rank": lambda: {"fsdp2": call((Part(units=((1, UNIT),)),), plan(), Sharding.PER_PARAMETER_SHARDS)},
    "updates.update_s": lambda: {"adamw": call(ELEMENTS, plan(), RATES)},
    "serving_time.between.gathered_s": lambda: {"": call(decoding(), PAYLOAD, symbol("groups"))},
    "serving_time.operators.product_s": lambda: {
        "bf16": call(decoding(), Product(form="bf16", nbytes=symbol("bytes"), elements=ELEMENTS, depth=symbol("depth"), through=symbol("through"))),
    },
    "serving_time.operators.flops_per_s": lambda: {"bf16": call(decoding(), "bf16", symbol("rows"), symbol("depth"))},
    "serving_time.operators.attention_s": lambda: {"decoding": call(decoding(), first(Attention)), "prompt": call(decoding(8), first(Attention))},
    "serving_time.operators._attention_flops": lambda: {"decoding": call(decoding(), symbol("span")), "prompt": call(decoding(8), symbol("span"))},
    "serving_time.times.head_and_sampler_s": lambda: {"": call(spec(), decoding())},
}  # fmt: skip
