"""A base that peft prepares for adapters: huggingface/peft 5d602fd src/peft/utils/other.py:158-240,
prepare_model_for_kbit_training.
"""

from __future__ import annotations

from memsheet.exchange.shared.file_format import Values
from memsheet.exchange.shared.script_places import SCRIPT

OF_BITSANDBYTES = ("nf4", "fp4", "int8")
WIDE_TENSORS = 6
"""Of a layer, at most, that are fp32 where its norms are: each of two norms keeps its input and what it
scaled, and two sums pass along it. A bound.
"""


def prepared_precision(word: str, values: Values) -> dict[str, str]:
    """What is fp32 of a prepared base under autocast to ``word``: all that bitsandbytes does not quantize, as
    in mixed precision, and so what passes along the layers. Nothing where that is not known.
    """
    if word not in ("bf16", "fp16") or values.get(f"{SCRIPT}.quantized") not in OF_BITSANDBYTES:
        return {}
    return {"precision.parameters": "fp32", "precision.compute": word}


def prepared_bytes(asked: Values) -> int:
    """Bytes, at most, that preparing adds to a base in sixteen bits: both tables by two bytes an element, a
    copy in sixteen bits of the head for autocast, and what norms keep; of layers that run again, one,
    and the input of each.
    """
    tables = asked["@vocab"] * asked["@hidden"] * (2 + 2 + 2)
    passing = asked["@tokens"] * asked["@hidden"]
    again = asked.get("recompute.mode") == "full"
    inside = WIDE_TENSORS * 4 if again else asked["@layers"] * WIDE_TENSORS * 4
    inputs = asked["@layers"] * 2 if again else 0
    return int(tables + passing * (inside + inputs + 2 * 4))
