"""How long a sequence is that a server is to hold, before a plan is whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.plan.model import ModelSpec


def derived_max_length(model: ModelSpec | None) -> int | None:
    """The length that a server derives from a model's config; None where it says none."""
    return (model.scaled_positions or model.max_positions) if model else None


def asked_length(request: Mapping[str, Any]) -> int | None:
    """The length that a request says, by its own name, as a sequence's or as prompt and answer; None where it
    says none.
    """
    given: int | None = request.get("serving.max_model_len") or request.get("seq_len")
    prompt, output = request.get("serving.prompt_tokens"), request.get("serving.output_tokens")
    return prompt + output if given is None and prompt is not None and output is not None else given
