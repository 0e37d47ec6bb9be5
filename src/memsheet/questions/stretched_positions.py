"""A model whose positions a server's command stretches, or whose length it is told not to check."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from memsheet.exchange.shared.file_format import Read
from memsheet.plan.model import ModelSpec
from memsheet.questions.named_models import model_of
from memsheet.resolve.length import derived_max_length

LENGTH = "serving.max_model_len"
STRETCHES = ("--rope-scaling", "--rope-theta", "--hf-overrides", "--json-model-override-args")
"""Flags that change a model's positions (vLLM engine/arg_utils.py; SGLang server_args.py)."""
GOES_BEYOND = re.compile(
    r"(?:VLLM_ALLOW_LONG_MAX_MODEL_LEN|SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN)\W{1,4}(?:1|[Tt]rue)\b"
)


def with_stretched_positions(
    named: str | ModelSpec | None, reads: Mapping[str, Read], texts: Mapping[str, str]
) -> str | ModelSpec | None:
    """The model with as many positions as the length that its server is started with, where that is more and
    the command provides for it; else as it is named.
    """
    lengths = [_stretched_length(read, texts.get(name, "")) for name, read in reads.items()]
    longest = max(lengths, default=0)
    spec = model_of(named) if longest else None
    if spec is None or (derived_max_length(spec) or longest) >= longest:
        return named
    return replace(spec, max_positions=longest, scaled_positions=None)


def _stretched_length(read: Read, text: str) -> int:
    told: Any = read.request.get(LENGTH)
    provides = any(read.values.get(at) for at in STRETCHES) or GOES_BEYOND.search(text)
    return told if provides and isinstance(told, int) else 0
