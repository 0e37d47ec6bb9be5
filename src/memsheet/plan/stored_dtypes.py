"""In which dtype a parameter is stored: what a plan quantizes, and what it leaves as it is."""

from __future__ import annotations

import re
from functools import lru_cache

from memsheet.plan.dtypes import BF16, FP4_BNB, FP4_BNB_DOUBLE, INT8, NF4, NF4_SINGLE, DType, dtype_named
from memsheet.plan.model import Role, Weight
from memsheet.plan.plan import Plan, Quantization


def parameter_storage_dtype(path: str, weight: Weight, plan: Plan) -> DType:
    """The dtype a parameter is kept in: quantized where the plan quantizes it, else the plan's."""
    if plan.quantization and is_quantized(path, weight, plan.quantization):
        return plan.quantization.weights
    fixed = dtype_named(weight.dtype) if weight.dtype else None
    return fixed or _kept_in(weight, plan.precision.parameters)


def _kept_in(weight: Weight, dtype: DType) -> DType:
    """Eight-bit parameters are matrices of layers; what else there is stays in bf16."""
    return dtype if _is_product_weight(weight) or dtype.bits >= BF16.bits else BF16


def _is_product_weight(weight: Weight) -> bool:
    """Whether it is one of a linear layer, or of experts: a convolution's kernel has more dimensions, and
    quantizers leave it as it is (transformers 5.23 integrations/bitsandbytes.py:189, finegrained_fp8.py: of
    nn.Linear alone).
    """
    return (
        len(weight.shape) > 1
        if weight.role is Role.EXPERT
        else (weight.role is Role.LINEAR and len(weight.shape) == 2)
    )


FOUR_BITS = (NF4, NF4_SINGLE, FP4_BNB, FP4_BNB_DOUBLE)
OF_LINEAR_LAYERS = (*FOUR_BITS, INT8)
"""What bitsandbytes makes of torch.nn.Linear alone: experts that are one parameter stay as they are
(transformers 5.23 integrations/bitsandbytes.py:189).
"""


def is_quantized(path: str, weight: Weight, how: Quantization) -> bool:
    """Whether a weight is stored in the quantized format: matrices of linear layers and experts that are not
    skipped.
    """
    if not _is_product_weight(weight):
        return False
    stacked = weight.role is Role.EXPERT and not path.endswith(".weight")
    if stacked and how.weights in OF_LINEAR_LAYERS and not how.experts:
        return False
    return not any(_is_named(path, name) for name in how.skip)


PATTERN, ANY_LAYER = "re:", "999"
"""How compressed-tensors marks a pattern among the modules that it leaves (utils/match.py), and a layer that
no pattern of one layer means.
"""

LONGEST_PATTERN, NESTED = 200, re.compile(r"[+*}]\)[+*{]")


def _is_named(path: str, name: str) -> bool:
    """Whether a module that a checkpoint leaves whole, or a pattern of them, holds a tensor."""
    if not name.startswith(PATTERN):
        return path.startswith(name) or f".{name}." in f".{path}"
    return _pattern_fits(name.removeprefix(PATTERN), path)


@lru_cache(maxsize=65536)
def _pattern_fits(pattern: str, path: str) -> bool:
    if len(pattern) > LONGEST_PATTERN or NESTED.search(pattern):
        return True  # a stranger's, that might never end: what it may mean is counted whole
    module = path.rsplit(".", 1)[0] if path.endswith((".weight", ".bias")) else path
    try:
        return re.match(pattern, module.replace("*", ANY_LAYER)) is not None
    except re.error:
        return True
