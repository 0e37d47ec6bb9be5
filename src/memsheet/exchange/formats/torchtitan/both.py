"""What torchtitan's present configuration and its older TOML say alike (820504e config_manager.py:282,
b5bcd76 distributed/fsdp.py:112).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.file_format import Values, plan_word

MIXED = {"bfloat16": "bf16", "float32": "fp32"}
QWEN3_FLAVORS = ("0.6B", "1.7B", "4B", "8B", "14B", "32B", "30B-A3B", "235B-A22B")
"""Sizes of Qwen3 that torchtitan ships, by the names that the hub has for them, too."""
STEPS = {"fused": "fused", "foreach": "foreach", "loop": "for-loop"}
PP, TP = "parallelism.pipeline_parallel_degree", "parallelism.tensor_parallel_degree"


def is_count_above(value: Any, least: int) -> bool:
    """Whether a value is a count beyond ``least``; a switch is none."""
    return isinstance(value, int) and not isinstance(value, bool) and value > least


def read_mixed_precision_param(value: Any, _: Values) -> Mapping[str, Any]:
    """The dtype that is computed in; everything else is fp32."""
    kept = {f"precision.{name}": "fp32" for name in ("parameters", "gradients", "reduce", "moments")}
    return {"precision.compute": plan_word(MIXED, value), **kept}


def read_reshard_policy(value: Any, values: Values) -> Mapping[str, Any]:
    """Parameters are freed after forward unless there are stages, where nobody says."""
    usual = 2 if is_count_above(values.get(PP, 1), 1) else 3
    return {"zero": plan_word({"always": 3, "never": 2, "default": usual}, value)}


def read_async_tensor_parallel(value: Any, values: Values) -> Mapping[str, Any]:
    """Nothing without tensor parallelism, of which it is a part (b5bcd76 distributed/compile.py:49-52, 80;
    820504e models/llama3/parallelize_llama.py, which asks inside of it).
    """
    return {"async_tp": value} if is_count_above(values.get(TP, 1), 1) else {}
