"""A model whose positions a server's command stretches, whose length it is told not to check, or of which
nobody says what length it was made for.
"""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.exchange.shared.file_format import FileReading
from memsheet.exchange.shared.rotary_overrides import rotary_place
from memsheet.frozen import replace
from memsheet.patterns import late_pattern
from memsheet.plan.model import ModelSpec
from memsheet.plan.sequence_length import derived_max_length
from memsheet.questions.named_models import model_of

LENGTH = "serving.max_model_len"
OBJECTS = ("--hf-overrides", "--json-model-override-args")
STRETCHES = ("--rope-scaling", "--rope-theta", *OBJECTS, *map(rotary_place, OBJECTS))
"""Flags that change a model's positions (vLLM engine/arg_utils.py; SGLang server_args.py)."""
GOES_BEYOND = late_pattern(
    r"(?:VLLM_ALLOW_LONG_MAX_MODEL_LEN|SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN)\W{1,4}(?:1|[Tt]rue)\b",
    holds=("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"),
)


def with_stretched_positions(
    named: str | ModelSpec | None, reads: Mapping[str, FileReading], texts: Mapping[str, str]
) -> str | ModelSpec | None:
    """The model with as many positions as the length that its server is started with, where that is more and
    the command provides for it or the model's own are not known; else as it is named.
    """
    told = {name: read.request.get(LENGTH) for name, read in reads.items()}
    lengths = {name: length for name, length in told.items() if isinstance(length, int)}
    spec = model_of(named) if lengths else None
    if spec is None:
        return named
    longest = max(
        (
            length
            for name, length in lengths.items()
            if spec.source.positions_open or _goes_beyond(reads[name], texts.get(name, ""))
        ),
        default=0,
    )
    if (derived_max_length(spec) or longest) >= longest:
        return named
    return replace(spec, max_positions=longest, scaled_positions=None)


def _goes_beyond(read: FileReading, text: str) -> bool:
    return any(read.values.get(at) for at in STRETCHES) or bool(GOES_BEYOND.search(text))
