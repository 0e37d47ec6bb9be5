"""A server's command that names a format its checkpoint is not stored in."""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.exchange.mistakes.case import Case, FoundMistake, Rule

STORED_ONLY = frozenset({"awq", "awq_marlin", "auto_awq", "gptq", "gptq_marlin"})
"""Formats for which an engine looks for a configuration that the checkpoint has or has not; others are made
as weights are loaded.
"""
FURTHER_OF_VLLM = frozenset({"compressed-tensors", "modelopt", "modelopt_fp4", "fbgemm_fp8", "moe_wna16"})
"""Two of these look for a file, and the others are made of nothing but a configuration (v0.9.2
model_executor/model_loader/weight_utils.py, get_quant_config; v0.33.0
layers/quantization/fbgemm_fp8.py:48, compressed_tensors/compressed_tensors.py:90).
"""


def _not_stored(case: Case) -> Iterator[FoundMistake]:
    """Asked of a model that is known and whose weights are as they were trained. Who names another model for
    the path knows better.
    """
    model = case.model
    if model is None or model.quantization is not None:
        return
    of_vllm = [name for name, _ in case.of("vllm")]
    for name, read in case.of("vllm", "sglang"):
        asked, served = read.values.get("--quantization"), str(read.request.get("@model") or "")
        only = STORED_ONLY | FURTHER_OF_VLLM if name in of_vllm else STORED_ONLY
        if asked in only and case.bundled(served) == model.name:
            yield FoundMistake(
                where=f"{name}: --quantization",
                says=(
                    f"{asked}, and {served} is stored in {model.dtype or 'bf16'}: the engine finds no "
                    "configuration of it and stops"
                ),
                cure=(
                    "leave it out, fp8 (made as it is loaded), or the name of a checkpoint that is stored so"
                ),
                changes={"quantization.weights": None},
                stops=True,
            )


STORED = (
    Rule(id="quantization-not-stored", source="vLLM v0.10.2 model_executor/model_loader/weight_utils.py, get_quant_config: no quantization_config, no file of it", looks=_not_stored),
)  # fmt: skip
