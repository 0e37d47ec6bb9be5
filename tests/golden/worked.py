"""The numbers that guides publish, answered by this package: ``answer(example)`` for every entry of
worked_examples.toml.

A calculator names the product code that answers; nothing is worked out here that the package can work out.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import memsheet
from memsheet import catalog, textbook
from memsheet.arith import Term
from memsheet.formulas.serving.kv_cache import bytes_per_token
from memsheet.formulas.states.held import HeldTensor, eight_bit_states, held_tensors
from memsheet.formulas.states.held_shapes import elements_of, held_shape
from memsheet.formulas.states.params import parameter_count, parameter_tensors
from memsheet.plan.defaults import NAMED_PRECISIONS
from memsheet.plan.dtypes import BF16, FP32, dtype_named
from memsheet.plan.model import ModelSpec, Role
from memsheet.plan.plan import Mesh
from memsheet.readers.model import read_model
from memsheet.sheet import STATES, Component, Instant

FILE = Path(__file__).with_name("worked_examples.toml")
MIXED = NAMED_PRECISIONS["bf16-master"]
Inputs = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One published number. ``agrees``: None where it is a matter of definition. ``ours`` is exact."""

    id: str
    topic: str
    inputs: Inputs
    published: str
    ours: Any
    unit: str
    agrees: bool | None
    note: str
    parts: Mapping[str, int]  # what ours is the sum of, where that explains it


@cache
def examples() -> tuple[Example, ...]:
    entries = tomllib.loads(FILE.read_text(encoding="utf-8"))["example"]
    return tuple(Example(**{"agrees": None, "note": "", "parts": {}, **entry}) for entry in entries)


def answer(example: Example) -> Any:
    """What the package says."""
    return CALCULATORS[example.id](example.inputs)


@cache
def model(name: str) -> ModelSpec:
    return read_model(name, catalog=catalog.find_model, names=catalog.model_names())


# ---- states ------------------------------------------------------------------------------------------------


def weights(i: Inputs) -> int:
    dtype = dtype_named(i["dtype"])
    assert dtype is not None
    return dtype.nbytes(i["parameters"])


def states(parameters: int, *components: Component, **options: Any) -> int:
    """Bytes of the states of a bare count on one rank when backward ends (DeepSpeed's bf16: 16 bytes a
    parameter).
    """
    sheet = memsheet.train(parameters=parameters, **{"engine": "deepspeed", **options}).sheets[0]
    return sheet.of(*(components or STATES), instant=Instant.BACKWARD).value


def zero(i: Inputs) -> int:
    over = "dp_shard" if i["zero"] else "dp_replicate"
    return states(i["parameters"], zero=i["zero"], **{over: i["dp_shard"]})


def redundancy(i: Inputs) -> dict[str, int]:
    rank, unique = states(i["parameters"], zero=0, dp_replicate=i["gpus"]), states(i["parameters"], zero=0)
    return {"cluster": i["gpus"] * rank, "unique": unique, "duplicate": i["gpus"] * rank - unique}


def tensor_pipeline_zero(i: Inputs) -> int:
    return states(i["parameters"], tp=i["tp"], pp=i["pp"], dp_shard=i["dp_shard"], zero=i["zero"])


def data_parallel_degree(i: Inputs) -> int:
    answer = memsheet.train(
        parameters=70e9, engine="deepspeed", gpus=f"{i['gpus']}xA100-80GB", tp=i["tp"], pp=i["pp"], zero=1
    )
    return int(answer.plan.mesh.data_parallel)


def savings(_: Inputs) -> dict[str, float]:
    """How many times less a rank holds than without ZeRO, over 1,024 ranks."""
    whole, ranks = 1024 * 16, 1024
    less = {f"zero{n}": textbook.zero_states(1024, MIXED, stage=n, ranks=ranks) for n in (1, 2, 3)}
    return {stage: round(whole / size, 3) for stage, size in less.items()}


def eight_bit(i: Inputs) -> dict[str, int]:
    n = i["parameters"]
    one = HeldTensor("linear.weight", (n,), BF16, trains=True, role=Role.LINEAR, times=1)
    return {"without_scales": 2 * n, "with_scales": eight_bit_states(one, n)}


def llama3_70b_on_eight_cards(i: Inputs) -> int:
    return (
        production(i["seq_len"], i["micro_batch"]).sheets[0].of(*STATES, instant=Instant.OPTIMIZER_STEP).value
    )


@cache
def production(seq_len: int, microbatch: int, **options: Any) -> memsheet.Answer:
    return memsheet.train(
        "llama-3-70b",
        gpus="8xA100-80GB",
        engine="fsdp2",
        zero=3,
        seq_len=seq_len,
        microbatch=microbatch,
        fix=False,
        **options,
    )


def lora_parameters(i: Inputs) -> int:
    plan = memsheet.train(
        "llama-2-7b", lora_rank=i["rank"], lora_targets=i["targets"], quantize="nf4", seq_len=1
    ).plan
    return sum(h.times * h.elements for h in held_tensors(model("llama-2-7b"), plan) if h.trains)


# ---- activations -------------------------------------------------------------------------------------------


def rule(i: Inputs) -> int:
    return textbook.hidden_rule_activations(i["layers"], i["seq_len"], i["micro_batch"], i["hidden"], BF16)


def gpt_block(i: Inputs) -> dict[str, int]:
    s, b, h, a = (i[key] for key in ("seq_len", "micro_batch", "hidden", "heads"))
    return {
        "unfused": i["layers"] * textbook.gpt_block_activations(s, b, h, a),
        "fused": i["layers"] * textbook.gpt_block_activations(s, b, h, a, fused=True),
    }


def scores(i: Inputs) -> int:
    dtype = dtype_named(i["dtype"])
    assert dtype is not None
    return i.get("layers", 1) * textbook.attention_scores(
        i.get("micro_batch", 1), i.get("heads", 1), i["seq_len"], dtype
    )


def printed_formula(_: Inputs) -> str:
    return str(textbook.gpt_block_activations(*(Term(name) for name in "sbhat")))  # type: ignore[arg-type]


INPUT_7B = BF16.nbytes(4 * 2048 * 4096)
"""A layer's input at microbatch 4, 2,048 tokens, hidden 4,096."""


def recompute_rows(i: Inputs) -> dict[str, int]:
    layers, size = i["layers"], i["layer_bytes"]
    return {
        "none": layers * size,
        "every_layer": textbook.recomputed_activations(layers, 1, size, INPUT_7B),
        "every_4_layers": textbook.recomputed_activations(layers, 4, size, INPUT_7B),
    }


def total_without_recompute(i: Inputs) -> int:
    return states(i["parameters"], zero=0) + textbook.hidden_rule_activations(32, 2048, 4, 4096, BF16)


def total_with_recompute(i: Inputs) -> int:
    layer = textbook.hidden_rule_activations(1, 2048, 4, 4096, BF16)
    return states(i["parameters"], zero=0) + textbook.recomputed_activations(32, 1, layer, INPUT_7B)


def six_components(i: Inputs) -> dict[str, int]:
    s, b = i["seq_len"], i["microbatch"]
    return {
        "activations": 32 * textbook.gpt_block_activations(s, b, 4096, 32, fused=True),
        "recompute_inputs": textbook.recomputed_activations(32, 1, 0, BF16.nbytes(s * b * 4096)),
    }


def recompute_ratio(_: Inputs) -> dict[str, float]:
    """What a layer of the GPT block saves over its input, with fused attention and with scores of 2,048
    tokens.
    """
    s, b, h, a = 2048, 4, 4096, 32
    one = BF16.nbytes(s * b * h)
    return {
        "fused": textbook.gpt_block_activations(s, b, h, a, fused=True) / one,
        "unfused": textbook.gpt_block_activations(s, b, h, a) / one,
    }


def recompute_inputs(i: Inputs) -> int:
    one = BF16.nbytes(i["seq_len"] * i["micro_batch"] * i["hidden"])
    return textbook.recomputed_activations(i["layers"], 1, 0, one)


PASSES = {"forward": 1, "backward": 2}
"""A backward pass multiplies each matrix twice: once for the inputs' gradient, once for the weights'."""


def recompute_passes(_: Inputs) -> dict[str, float]:
    whole = sum(PASSES.values())
    return {
        "step": round((whole + PASSES["forward"]) / whole, 3),
        "forward": 2 * PASSES["forward"] / PASSES["forward"],
    }


def recompute_percent(i: Inputs) -> dict[str, float]:
    times = recompute_passes(i)
    step = 100 * PASSES["forward"] / sum(PASSES.values())
    return {"percent_of_step": round(step, 2), "percent_of_forward": 100 * (times["forward"] - 1)}


def eight_bit_ratio(i: Inputs) -> dict[str, float]:
    n = i["parameters"]
    small, whole, master = textbook.eight_bit_moments(n), 2 * FP32.nbytes(n), FP32.nbytes(n)
    return {
        "moments": round(whole / small, 3),
        "with_master_copy": round((whole + master) / (small + master), 3),
    }


def zero3_ratio(i: Inputs) -> dict[str, float]:
    whole = textbook.zero_states(i["parameters"])
    three = {f"ranks_{n}": whole / textbook.zero_states(i["parameters"], stage=3, ranks=n) for n in (8, 64)}
    return {
        **three,
        "zero2_limit": round(whole / textbook.zero_states(i["parameters"], stage=2, ranks=10**9), 3),
    }


def flash_ratio(i: Inputs) -> dict[str, float]:
    """One score matrix over one number a row; and with the four tensors that either kind of attention saves
    besides.
    """
    s, b, h, a = (i[key] for key in ("seq_len", "micro_batch", "hidden", "heads"))
    matrix, rows, tensor = (
        textbook.attention_scores(b, a, s, i["dtype"]),
        FP32.nbytes(b * a * s),
        BF16.nbytes(s * b * h),
    )
    return {"scores": matrix / rows, "attention": round((3 * tensor + matrix) / (4 * tensor + rows), 2)}


# ---- serving -----------------------------------------------------------------------------------------------


def made(i: Inputs) -> dict[str, Any]:
    """A Llama of the published shape."""
    heads = max(i["kv_heads"], 32)
    return {
        "model_type": "llama", "hidden_size": heads * i["head_dim"], "num_attention_heads": heads, "num_key_value_heads": i["kv_heads"],
        "head_dim": i["head_dim"], "num_hidden_layers": i["layers"], "intermediate_size": 4 * heads * i["head_dim"], "vocab_size": 32000,
        "max_position_embeddings": 2**20, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }  # fmt: skip


def kv_cache(i: Inputs) -> int:
    asked = memsheet.infer(
        i.get("model") or made(i),
        max_model_len=i["seq_len"],
        sequences=i["sequences"],
        plan={"precision": dict.fromkeys(("parameters", "compute"), i["dtype"])},
    )
    return asked.sheets[0].of(Component.KV_CACHE, instant=Instant.DECODE).value


def kv_token(i: Inputs) -> int:
    dtype = dtype_named(i["dtype"])
    assert dtype is not None
    return bytes_per_token(read_model(made(i), catalog=catalog.find_model, names=()), dtype)


def paged(i: Inputs) -> dict[str, int]:
    page = kv_token(i) * i["page_tokens"]
    count = textbook.page_count(i["kv_bytes"], kv_token(i), i["page_tokens"])
    sequences = {
        f"sequences_at_{n}": textbook.paged_sequences(count, n, i["page_tokens"])
        for n in (256, 512, 1024, 2048, 4096)
    }
    return {"page_bytes": page, "pages": count, "tokens": count * i["page_tokens"], **sequences}


def contiguous_waste(i: Inputs) -> float:
    return 100 * textbook.idle_share(i["average_tokens"], i["reserved_tokens"])


def partial_pages(i: Inputs) -> dict[str, float]:
    """The last page of a sequence is empty by half a page on average."""
    empty = (i["page_tokens"] - 1) / 2
    return {
        "tokens": empty,
        **{f"percent_at_{n}": round(100 * textbook.idle_share(n, n + empty), 2) for n in (256, 512)},
    }


def expert_parallel(i: Inputs) -> dict[str, int]:
    """Mixtral-8x7B: what a rank holds of the routed experts, and of everything else."""
    held = {"experts": 0, "shared": 0}
    for _, weight, times in parameter_tensors(model("mixtral-8x7b")):
        part = "experts" if weight.role is Role.EXPERT else "shared"
        held[part] += times * elements_of(held_shape(weight, Mesh(ep=i["ep"])))
    return held


def serving_plans(i: Inputs) -> dict[str, int]:
    """Weights and cache of a card: ``sequences`` a replica of ``tp`` cards."""
    spec = read_model(made(i), catalog=catalog.find_model, names=())

    def card(tp: int, sequences: int) -> int:
        return BF16.nbytes(i["parameters"]) // tp + sequences * i["seq_len"] * bytes_per_token(spec, BF16, tp)

    return {"tp1_16": card(1, 16), "tp2_32": card(2, 32), "tp4_64": card(4, 64)}


MASTERS = replace(MIXED, gradients=FP32)

CALCULATORS: dict[str, Callable[[Inputs], Any]] = {
    **{f"weights-{n}b-{kind}": weights for n in (7, 13, 70) for kind in ("fp32", "bf16", "int8", "int4")},
    "weights-7b-fp16-gib": weights,
    "states-7b-mixed-adamw": lambda i: states(i["parameters"], zero=0),
    "states-7b-fp32-adamw": lambda i: states(i["parameters"], engine="transformers", precision="fp32"),
    "optimizer-7b-mixed-adamw": lambda i: states(i["parameters"], Component.MASTER_WEIGHTS, Component.OPTIMIZER_STATES, zero=0),
    **{f"zero{n}-7b-8gpu": zero for n in range(4)},
    "zero2-7b-8gpu-wrong-formula": zero,
    "redundancy-1b-16gpu": redundancy,
    "max-model-ddp-80gb": lambda i: textbook.largest_model(i["device_bytes"], MIXED),
    "max-model-fsdp-64x80gb": lambda i: textbook.largest_model(i["device_bytes"], MIXED, stage=3, ranks=i["dp_shard"]),
    "states-70b-tp8-pp4-dp4-zero1": tensor_pipeline_zero,
    "mesh-128-tp8-pp4": data_parallel_degree,
    "activations-llama2-7b-rule": rule,
    "activations-llama2-7b-34": gpt_block,
    "scores-llama3-8b-4k": scores,
    "scores-llama2-7b-4k-all-layers": scores,
    "activation-unit-error": printed_formula,
    "kv-llama2-7b-per-token": kv_token,
    **dict.fromkeys(
        ("kv-llama2-7b-4096x32", "kv-llama3-8b-4096x32", "kv-llama7b-4k", "kv-llama7b-128k", "kv-qwen-as-published", "kv-qwen2.5-7b-real"), kv_cache
    ),
    "paged-llama3-8b-60gb": paged,
    "paged-waste-contiguous": contiguous_waste,
    "moe-ep": expert_parallel,
    "recompute-32-layers-1.6gb": recompute_rows,
    "eight-bit-adam": eight_bit,
    "llama3-70b-8xa100-80gb": llama3_70b_on_eight_cards,
    "qlora-7b": lora_parameters,
    "total-7b-no-recompute": total_without_recompute,
    "total-7b-recompute": total_with_recompute,
    "total-7b-six-components": six_components,
    "rule-18-20-per-billion": lambda i: {
        "bf16_gradients": states(i["parameters"], zero=0), "fp32_gradients": textbook.zero_states(i["parameters"], MASTERS),
    },
    "rule-2-per-billion": weights,
    "score-head-4k": scores,
    "naive-70b": lambda i: states(i["parameters"], zero=0),
    "zero-savings-factors": savings,
    "paged-waste": partial_pages,
    "four-gpu-serving": serving_plans,
    "activations-recompute-10-30x": recompute_ratio,
    "recompute-70b-under-10gb": recompute_inputs,
    "recompute-2x-compute": recompute_passes,
    "recompute-33-and-100-percent": recompute_percent,
    "eight-bit-adam-8x": eight_bit_ratio,
    "zero3-8x": zero3_ratio,
    "flash-4096x": flash_ratio,
}  # fmt: skip


def trained_share(parameters: int) -> float:
    return parameters / parameter_count(model("llama-2-7b"))
