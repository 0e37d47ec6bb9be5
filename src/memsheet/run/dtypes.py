"""memsheet's number formats as torch's."""

from __future__ import annotations

import torch

from memsheet.errors import input_error
from memsheet.plan.dtypes import DType

_TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def torch_dtype(dtype: DType, field: str = "precision") -> torch.dtype:
    """The torch dtype of one of the formats that modules can be built in. Raises InputError for others."""
    found = _TORCH.get(dtype.name)
    if found is None:
        raise input_error(
            field, dtype.name, "is no format that a module is built in", f"one of {', '.join(_TORCH)}"
        )
    return found
