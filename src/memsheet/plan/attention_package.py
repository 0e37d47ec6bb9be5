"""Whether the package of an attention kernel is there, asked before anything is built or started for it."""

from __future__ import annotations

from importlib.util import find_spec

from memsheet.errors import input_error
from memsheet.plan.plan import AttentionKind


def check_attention_package(attention: str) -> None:
    """Raise InputError where a model's own code would want the flash-attn package and it is not there."""
    if attention == AttentionKind.FLASH.value and find_spec("flash_attn") is None:
        raise input_error(
            "attention",
            attention,
            "is the flash-attn package's, which is not installed",
            "sdpa runs the same kernel out of torch",
        )
