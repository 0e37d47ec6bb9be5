"""Casts of a model as a whole: ``model.bfloat16()``, ``.half()``, ``.to(torch.float16)``."""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.exchange.shared.python_config import named_calls
from memsheet.exchange.shared.python_module import Module
from memsheet.exchange.shared.script_places import WHOLE

WIDTHS = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.half": "fp16", "torch.float32": "fp32"}
CASTS = {"bfloat16": "bf16", "half": "fp16"}


def model_casts(module: Module) -> Iterator[str]:
    """The dtype that a model is cast to as a whole."""
    for held in named_calls(module, ("to", *CASTS), local=True):
        owner, _, name = held[WHOLE].rpartition(".")
        if not owner.rpartition(".")[2].endswith("model"):
            continue
        found = CASTS.get(name) or next(
            (
                WIDTHS[str(one)]
                for at, one in held.items()
                if at in ("0", "1", "dtype") and str(one) in WIDTHS
            ),
            None,
        )
        if found:
            yield found
