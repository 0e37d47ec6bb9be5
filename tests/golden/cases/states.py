"""Parameters, gradients and optimizer states, and the textbook's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from golden.symbols import TENSOR, Cases, call, numbers, plan, symbol
from memsheet.formulas.sharding.algorithm import algorithm_of
from memsheet.plan.defaults import NAMED_PRECISIONS
from memsheet.plan.dtypes import BF16, FP32, INT8
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import Role, Weight
from memsheet.plan.plan import Implementation, Optimizer, OptimizerName, Plan, Schedule

MIXED = NAMED_PRECISIONS["bf16-master"]
S, B, H, A, T = (symbol(name) for name in "sbhat")
MATRIX = Weight(path="w", shape=(symbol("V"), symbol("h")), role=Role.HEAD, cut=0, padded=True)
HEADS = Weight(path="w", shape=(1024, symbol("h")), role=Role.LINEAR, cut=0, units=8)
EXPERTS = Weight(path="w", shape=(symbol("E"), symbol("f"), symbol("h")), role=Role.EXPERT, cut=1)
SHAPE = (symbol("n_0"), symbol("n_1"))
ADAMW, EIGHT, SGD = (
    (OptimizerName.ADAMW, Implementation.FUSED),
    (OptimizerName.ADAMW_8BIT, Implementation.BNB),
    (OptimizerName.SGD, Implementation.FUSED),
)
STEPS = (Implementation.FOREACH, Implementation.LOOP, Implementation.FUSED)


def optimized(name: OptimizerName, implementation: Implementation) -> Plan:
    return replace(plan(), optimizer=Optimizer(name=name, implementation=implementation, rank=symbol("r")))


def paged() -> Plan:
    return optimized(OptimizerName.PAGED_ADAMW, Implementation.BNB)


def one_tensor() -> Cases:
    shard = algorithm_of(engine_of(plan()).sharding).parameter_shard
    return {"one tensor": call(replace(numbers(), stacks=()), plan(), (TENSOR,), shard)}


TEXTBOOK: dict[str, Callable[[], Cases]] = {
    "textbook.adam_states": lambda: {"bf16-master": call(symbol("P"), MIXED)},
    "textbook.zero_states": lambda: {f"stage {n}": call(symbol("P"), MIXED, stage=n, ranks=symbol("N")) for n in range(4)},
    "textbook.largest_model": lambda: {f"stage {n}": call(symbol("M"), MIXED, stage=n, ranks=symbol("N")) for n in (0, 3)},
    "textbook.gpt_block_activations": lambda: {"fused": call(S, B, H, A, T, fused=True), "unfused": call(S, B, H, A, T)},
    "textbook.gpt_block_activations_sequence_parallel": lambda: {"": call(S, B, H, A, T)},
    "textbook.hidden_rule_activations": lambda: {"": call(symbol("L"), S, B, H, BF16)},
    "textbook.attention_scores": lambda: {"bf16": call(B, A, S, BF16)},
    "textbook.weight_bytes": lambda: {"bf16": call(symbol("P"), BF16)},
    "textbook.redundant_states": lambda: {"bf16-master": call(symbol("P"), MIXED, ranks=symbol("N"))},
    "textbook.tensor_pipeline_states": lambda: {"stage 1": call(symbol("P"), MIXED, tp=symbol("t"), pp=symbol("p"), dp=symbol("d"))},
    "textbook.lora_parameters": lambda: {"two matrices": call(symbol("r"), (symbol("o"), H), (symbol("f"), H))},
    "textbook.kv_token_bytes": lambda: {"bf16": call(symbol("L"), symbol("k"), symbol("d"), BF16)},
    "textbook.eight_bit_moments": lambda: {"": call(symbol("P"))},
}  # fmt: skip
CASES: dict[str, Callable[[], Cases]] = {
    **TEXTBOOK,
    "pipeline.in_flight": lambda: {kind.value: call(kind, symbol("p"), symbol("r"), symbol("m")) for kind in (Schedule.ONE_F_ONE_B, Schedule.GPIPE)},
    "dim0_shard": lambda: {"": call(SHAPE, symbol("N"))},
    "dim0_gathered": lambda: {"": call(SHAPE, symbol("N"))},
    "flat_shard": lambda: {"": call(symbol("n"), symbol("N"), symbol("alignment"))},
    "held_shape": lambda: {
        "vocabulary": call(MATRIX, plan().mesh, 128), "heads": call(HEADS, plan().mesh), "experts": call(EXPERTS, plan().mesh),
    },
    "held._lora_matrices": lambda: {"": call("q.weight", (symbol("out"), symbol("in")), plan(adapter__rank=8), 1)},
    "held.eight_bit_states": lambda: {"": call(TENSOR, symbol("n"))},
    "held.parameter_bytes": one_tensor,
    "optimizers.optimizer_bytes": lambda: {how[0].value: call(TENSOR, symbol("n"), optimized(*how)) for how in (ADAMW, EIGHT, SGD)},
    "optimizers.step_temporaries": lambda: {how.value: call(((TENSOR, symbol("n")),), optimized(OptimizerName.ADAMW, how)) for how in STEPS},
    "optimizers.galore_states": lambda: {"": call(TENSOR, optimized(OptimizerName.GALORE, Implementation.LOOP), BF16)},
    "recompute_segments.segment_length": lambda: {
        "every": call(symbol("L"), plan(recompute__every=4)), "segments": call(symbol("L"), plan(recompute__segments=2)),
    },
    "held.bytes_apart": lambda: {"int8": call(replace(TENSOR, dtype=INT8))},
    "held.rows_apart": lambda: {"scales": call((replace(TENSOR, apart=symbol("scales")),))},
    "optimizers.adam_mini_blocks": lambda: {
        path: call(replace(TENSOR, path=f"{path}.weight"), symbol("n"), FP32, symbol("head")) for path in ("q_proj", "mlp.up_proj", "embed_tokens")
    },
    "optimizers.fp32_copy_bytes": lambda: {"bf16": call(TENSOR, symbol("n"), plan(precision__name="bf16-pure"))},
    "optimizers.fused_backward_step": lambda: {how[0].value: call(optimized(*how)) for how in (ADAMW, EIGHT, SGD)},
    "optimizers.paged_bytes": lambda: {"paged": call(TENSOR, symbol("n"), paged())},
    "optimizers.paged_states": lambda: {"paged": call(((TENSOR, symbol("n")),), paged())},
    "optimizers.states_without_gradient": lambda: {"adam_mini": call(TENSOR, symbol("n"), optimized(OptimizerName.ADAM_MINI, Implementation.LOOP))},
}  # fmt: skip
