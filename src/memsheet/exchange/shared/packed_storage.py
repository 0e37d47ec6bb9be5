"""In what dtype bitsandbytes packs four bits, as configurations say it (``bnb_4bit_quant_storage``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.plan.dtypes import dtype_named

WORDS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def packed_storage(said: Any) -> str | None:
    """The plan's name of it: ``uint8`` where nothing is said or whole numbers are, None where the text does
    not tell (transformers 5.23 utils/quantization_config.py:477-486).
    """
    if said is None:
        return "uint8"
    name = str(said).removeprefix("torch.")
    dtype = dtype_named(name)
    return dtype.name if dtype and dtype.name in WORDS else "uint8" if name in ("uint8", "int8") else None


def storage_word(asked: Mapping[str, Any]) -> str | None:
    """What a configuration has to say for the plan, where its own default is something else."""
    return WORDS.get(str(asked.get("quantization.storage")))
