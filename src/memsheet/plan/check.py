"""A plan as a person wrote it (file or flags), checked key by key before anything is computed.

A *request* is a flat mapping from dotted keys to values (``{"mesh.tp": 8, "zero": 3}``); keys that are
missing are left to ``resolve``. The table below is the whole vocabulary of plans: types, ranges and choices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memsheet.errors import MOST_SHOWN, Problem, nearest_words, printable_line
from memsheet.frozen import dataclass
from memsheet.plan import packages
from memsheet.plan.engine_registry import KNOWN_NAMES

Request = Mapping[str, Any]

PRECISIONS = (
    "fp32",
    "bf16-autocast",
    "fp16-autocast",
    "bf16-master",
    "bf16-pure",
    "fsdp2-mixed",
    "megatron-mixed",
)


@dataclass(frozen=True, slots=True)
class Rule:
    """What a key's value may be."""

    kind: str  # count, flag, choice, share, text, texts, counts, dtype
    low: int = 0
    high: int = 2**40
    choices: tuple[str, ...] = ()


def _count_rule(low: int = 1, high: int = 2**20) -> Rule:
    return Rule("count", low, high)


def _choice_rule(*choices: str) -> Rule:
    return Rule("choice", choices=choices)


_FLAG, _TEXT, _TEXTS, _COUNTS, _DTYPE, _SHARE = (
    Rule(k, high=2**20) for k in ("flag", "text", "texts", "counts", "dtype", "share")
)

RULES: dict[str, Rule] = {
    "schema": _choice_rule("memsheet/plan/1"), "model": _TEXT, "gpus": _TEXT, "task": _choice_rule("train", "infer"), "phase": _choice_rule("load"),
    "engine": _choice_rule(*KNOWN_NAMES), "engine_version": _TEXT,
    "mesh.dp_replicate": _count_rule(), "mesh.dp_shard": _count_rule(), "mesh.cp": _count_rule(), "mesh.tp": _count_rule(), "mesh.pp": _count_rule(high=2**12),
    "mesh.vpp": _count_rule(high=2**10), "mesh.ep": _count_rule(), "mesh.etp": _count_rule(), "mesh.attn_dp": _count_rule(),
    "zero": _count_rule(0, 3), "reshard_after_forward": _FLAG, "sequence_parallel": _FLAG,
    "context_parallel_comm": _choice_rule("ring", "all_gather", "all_to_all"),
    "schedule": _choice_rule("gpipe", "1f1b", "interleaved", "zero_bubble", "dualpipe", "naive"), "layers_per_stage": _COUNTS, "end_stages": _COUNTS,
    "async_tp": _FLAG, "megatron_fsdp": _FLAG,
    "microbatch": _count_rule(0), "global_batch": _count_rule(0, 2**30), "seq_len": _count_rule(0, 2**26), "image_tokens": _count_rule(0, 2**26),
    "seq_len_kind": _choice_rule("exact", "maximum", "minimum"), "vocab_multiple": _count_rule(1, 2**16),
    "precision.parameters": _DTYPE, "precision.compute": _DTYPE, "precision.gradients": _DTYPE, "precision.reduce": _DTYPE,
    "precision.master_weights": _DTYPE, "precision.moments": _DTYPE, "precision.name": _choice_rule(*PRECISIONS),
    "fp8.recipe": _TEXT, "fp8.param_storage": Rule("any"), "fp8.all_gather": Rule("any"), "fp8.skip": _TEXTS, "optimizer.name": _TEXT, "optimizer.rank": _count_rule(high=2**16),
    "optimizer.implementation": _choice_rule("foreach", "fused", "loop", "apex", "distributed", "bnb", "torchao", packages.TRANSFORMERS), "optimizer_in_backward": _FLAG, "secondary_shard": _count_rule(high=2**16),
    "gradient_sync": _choice_rule("every", "last"), "backward_prefetch": _choice_rule("pre", "post", "none"), "forward_prefetch": _FLAG, "limit_all_gathers": _FLAG,
    "recompute.mode": _choice_rule("none", "selective", "full"), "recompute.modules": _TEXTS, "recompute.every": _count_rule(high=10_000),
    "recompute.layers": _count_rule(high=10_000), "recompute.segments": _count_rule(high=10_000), "recompute.reentrant": _FLAG,
    "attention": _choice_rule("eager", "sdpa", "flash", "cudnn", "xformers"), "loss": _choice_rule("plain", "fused", "chunked", "vocab_parallel"),
    "compile": _FLAG, "dropout": _SHARE,
    "moe.dispatch": _TEXT, "moe.capacity_factor": Rule("number", low=0), "moe.balanced": _FLAG,
    "moe.pad_to_capacity": _FLAG, "moe.grouped_gemm": _FLAG, "moe.permute_fusion": _FLAG,
    "adapter.kind": _choice_rule("lora", "dora", "lora-fa", "llama-adapter", "llama-adapter-v2", "ia3", "vera", "adalora", "oft", "loha", "lokr", "ln-tuning", "prompt-tuning", "p-tuning", "prefix-tuning", "prefix-projection"), "adapter.rank": _count_rule(high=2**16), "adapter.targets": _TEXTS, "adapter.dtype": _DTYPE,
    "adapter.alpha": Rule("any"), "adapter.dropout": _SHARE, "adapter.trainable_parameters": _count_rule(0, 2**50), "adapter.full_modules": _TEXTS,
    "adapter.prompt_length": _count_rule(high=2**20), "adapter.start_layer": _count_rule(0, 10_000), "adapter.encoder_width": _count_rule(high=2**20), "adapter.block_size": _count_rule(high=2**20),
    "quantization.weights": _TEXT, "quantization.group_size": _count_rule(high=2**20), "quantization.double_quant": _FLAG,
    "quantization.skip": _TEXTS, "quantization.experts": _FLAG, "quantization.storage": _choice_rule("uint8", "bf16", "fp16", "fp32"),
    "offload.optimizer": _SHARE, "offload.parameters": _SHARE, "offload.activations": _FLAG,
    "allocator.expandable_segments": _FLAG, "allocator.max_split_size_mb": _count_rule(20, 2**20), "allocator.empty_cache_every": _count_rule(),
    "cuda_graphs": Rule("flag", choices=("names of what is captured",)),
    "serving.max_model_len": _count_rule(0, 2**26), "serving.max_sequences": _count_rule(0), "serving.max_batched_tokens": _count_rule(1, 2**26),
    "serving.kv_dtype": _DTYPE, "serving.page_tokens": _count_rule(high=2**16), "serving.memory_fraction": _SHARE,
    "serving.cuda_graphs": _FLAG, "serving.prompt_tokens": _count_rule(0, 2**26), "serving.output_tokens": _count_rule(0, 2**26),
    "serving.shared_prefix_tokens": _count_rule(0, 2**26),
    "serving.batch": _count_rule(0), "serving.logical_batch": _count_rule(0), "serving.mla_mode": _count_rule(0, 3), "serving.attn_max_batch": _count_rule(0, 2**20), "serving.fused_moe": Rule("any"),
    "speculative.method": _choice_rule("draft", "eagle", "eagle3", "mtp", "ngram"), "speculative.model": _TEXT, "speculative.tokens": _count_rule(high=256),
    "speculative.tp": _count_rule(),
    "serving.k_dtype": _DTYPE, "serving.gpu_layers": _count_rule(0, 10_000), "serving.host_experts": _count_rule(0, 10_000),
    "serving.tensor_split": _TEXT, "serving.tensor_overrides": _TEXT, "serving.split_mode": _choice_rule("layer", "none"), "serving.main_gpu": _count_rule(0, 2**10), "serving.kv_unified": _FLAG, "serving.swa_full": _FLAG, "serving.host_cache": _FLAG, "serving.dp_lm_head": _FLAG,
    "serving.dispatch": _choice_rule("gather", "deepep"), "serving.dp_dense": _FLAG, "serving.offline_inference": _FLAG, "serving.graph_sequences": _count_rule(1, 2**16), "serving.state_slots": _count_rule(1, 2**24), "serving.state_ratio": Rule("number", low=0), "serving.host_weights_gib": Rule("number", low=0),
    "serving.dcp": _count_rule(1, 2**10), "serving.host_kv_gib": Rule("number", low=0), "serving.host_kv_ratio": Rule("number", low=0),
    "serving.kv_connector": _TEXT,
    "serving.kv_cache_bytes": _count_rule(1, 2**50), "serving.kv_blocks": _count_rule(1, 2**40), "serving.pool_tokens": _count_rule(1, 2**40), "serving.attention_kernels": _choice_rule("flash", "flashinfer", "triton", "trtllm"),
    "serving.max_loras": _count_rule(0, 2**16), "serving.max_cpu_loras": _count_rule(0, 2**16), "serving.fully_sharded_loras": _FLAG,
}  # fmt: skip
LONGEST = 1000
"""Characters of a name: of a release, a model, a format."""
_GROUPS = {key.split(".")[0] for key in RULES if "." in key}


def flatten_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """A plan document (nested, as in ``memsheet/plan/1``) as a request. ``"precision": "fp32"`` names a set
    of dtypes.
    """
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if key == "precision" and isinstance(value, str):
            flat["precision.name"] = value
        elif key in _GROUPS and isinstance(value, Mapping):
            flat.update({f"{key}.{inner}": held for inner, held in value.items()})
        elif not (key in _GROUPS and value is None):
            flat[key] = value
    return flat


def check_request(request: Request) -> list[Problem]:
    """Every key that is unknown and every value that its rule does not allow. Null leaves a key to its
    default.
    """
    unknown = [key for key in request if key not in RULES]
    near = {key: nearest_words(key, RULES, n=1, cutoff=0.3) for key in unknown[:MOST_SHOWN]}
    return [
        problem for key, value in request.items() for problem in _check_key(key, value, near.get(key, []))
    ]


def _check_key(key: str, value: Any, near: Sequence[str]) -> Iterator[Problem]:
    rule = RULES.get(key)
    if rule is None:
        yield Problem(
            field=key,
            value=value,
            reason="is not a key of a plan",
            hint=f"did you mean {near[0]}?" if near else "",
        )
    elif value is not None:
        reason = _REASONS.get(rule.kind, lambda *_: None)(rule, value)
        if reason:
            hint = (
                _nearest_choice_hint(value, rule.choices) if rule.kind == "choice" else example_of(key, rule)
            )
            if rule.kind == "count" and isinstance(value, str) and value.isdecimal():
                hint = f"{value} without quotes"
            yield Problem(field=key, value=value, reason=reason, hint=hint)


READ_AS_COMMANDS = {
    "tgi": "text-generation-launcher --model-id MODEL", "text-generation-inference": "text-generation-launcher --model-id MODEL",
    "tensorrt-llm": "trtllm-serve MODEL", "trtllm": "trtllm-serve MODEL", "lmdeploy": "lmdeploy serve api_server MODEL",
}  # fmt: skip
"""Servers that are no engine of a plan, and how their commands begin."""
EIGHT_BITS = ("fp8", "mxfp8", "float8")


def _nearest_choice_hint(value: Any, choices: tuple[str, ...]) -> str:
    if choices == PRECISIONS and value in EIGHT_BITS:
        return "products in eight bits are --fp8, beside the precision"
    if choices == KNOWN_NAMES and (command := READ_AS_COMMANDS.get(str(value).lower())):
        return f"its command is read, accounted as another's: memsheet check -- {command}"
    near = nearest_words(
        printable_line(value), choices, n=1, cutoff=0.7
    )  # an engine is not another whose name ends alike; fp32-autocast is near to fp16-autocast
    return f"did you mean {near[0]}?" if near else ""


EXAMPLES = {
    "serving.max_model_len": "8192, or 8k", "seq_len": "4096, or 4k", "serving.max_batched_tokens": "8192", "serving.prompt_tokens": "1500",
    "serving.output_tokens": "500", "serving.max_sequences": "64", "serving.memory_fraction": "0.9", "serving.page_tokens": "16",
    "serving.shared_prefix_tokens": "1000", "dropout": "0.1", "adapter.rank": "16", "moe.capacity_factor": "1.25",
    "serving.state_ratio": "0.9", "layers_per_stage": "10,11,11", "end_stages": "0,0",
}  # fmt: skip
_OF_KIND = {
    "count": "1",
    "share": "0.5",
    "number": "1.5",
    "flag": "true or false",
    "dtype": "bf16",
    "counts": "10,11,11",
}


def example_of(key: str, rule: Rule) -> str:
    """A value that the key takes."""
    usual = str(max(1, rule.low)) if rule.kind == "count" else _OF_KIND.get(rule.kind, "")
    shown = EXAMPLES.get(key, usual)
    return f"for example {shown}" if shown else ""


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _count_reason(rule: Rule, value: Any) -> str | None:
    if not _is_integer(value):
        return "is not a whole number"
    return None if rule.low <= value <= rule.high else f"is outside {rule.low} to {rule.high}"


def _share_reason(_: Rule, value: Any) -> str | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return None if number and 0 <= value <= 1 else "is not a share from 0 to 1"


def _counts_reason(_: Rule, value: Any) -> str | None:
    return (
        None
        if isinstance(value, list | tuple) and all(_is_integer(v) and v >= 0 for v in value)
        else "is not a list of whole numbers"
    )


def _flag_reason(rule: Rule, value: Any) -> str | None:
    if isinstance(value, bool) or (rule.choices and _texts_reason(rule, value) is None):
        return None
    return "is neither true nor false nor a list of names" if rule.choices else "is not true or false"


def _texts_reason(_: Rule, value: Any) -> str | None:
    return (
        None
        if isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)
        else "is not a list of texts"
    )


def _number_reason(rule: Rule, value: Any) -> str | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return None if number and rule.low < value <= rule.high else f"is not a number above {rule.low}"


def _names_dtype(text: str) -> bool:
    from memsheet.plan.dtypes import dtype_named

    return dtype_named(text) is not None


_REASONS: dict[str, Any] = {
    "number": _number_reason,
    "count": _count_reason,
    "share": _share_reason,
    "counts": _counts_reason,
    "texts": _texts_reason,
    "flag": _flag_reason,
    "text": lambda _, v: (
        "is not text"
        if not isinstance(v, str)
        else f"is longer than {LONGEST} characters"
        if len(v) > LONGEST
        else None
    ),
    "dtype": lambda _, v: None if isinstance(v, str) and _names_dtype(v) else "is not a known dtype",
    "choice": lambda r, v: None if v in r.choices else f"is none of {', '.join(r.choices)}",
}
