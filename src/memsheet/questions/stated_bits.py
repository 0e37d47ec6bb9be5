"""Bits that a server's command says its checkpoint is stored in, of a model of which nobody read more than
the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.file_format import FileReading
from memsheet.frozen import replace
from memsheet.plan.model import ModelSpec
from memsheet.questions.named_models import is_guessed_model, model_of

WEIGHTS = "quantization.weights"
STATED: Mapping[str, str] = {"modelopt_fp4": "nvfp4", "modelopt_fp8": "fp8", "fbgemm_fp8": "fp8"}
"""Words of ``--quantization`` that take the checkpoint's own format, and say which that is (vllm-project/vllm
v0.33.0 model_executor/layers/quantization/__init__.py; sgl-project/sglang v0.5.23
srt/arg_groups/choices.py:32).
"""


def with_stated_bits(
    reads: Mapping[str, FileReading], name: str | ModelSpec | None
) -> Mapping[str, FileReading]:
    """The files with the format of weights that their commands state, where the model that stands in is
    stored whole.
    """
    stated = {one: STATED.get(str(read.values.get("--quantization"))) for one, read in reads.items()}
    if not any(stated.values()) or not is_guessed_model(reads, name):
        return reads
    model: Any = model_of(name)
    if model is None or model.quantization:
        return reads
    return {
        one: replace(read, request={WEIGHTS: form, **read.request}) if (form := stated[one]) else read
        for one, read in reads.items()
    }
