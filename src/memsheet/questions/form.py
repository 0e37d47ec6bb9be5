"""What the page's form is made of: options with their words and choices, and the names that are offered."""

from __future__ import annotations

from typing import Any

from memsheet.catalog import catalog_devices, model_names
from memsheet.catalog.kinds import device_kind
from memsheet.exchange import NAMES, find_format
from memsheet.plan.check import RULES
from memsheet.plan.engine_registry import modelled_engines
from memsheet.plan.names import OFFLOADABLE, SHORT
from memsheet.plan.option_words import HELP, JOB, OFFLOAD, SERVING
from memsheet.plan.plan import OptimizerName

QUANTIZED = ("nf4", "int8", "fp8", "awq-int4", "gptq-int4", "gguf:Q4_K_M", "gguf:Q8_0")
"""Storage of weights that is asked for most; any other name is taken as well."""
FIRST = {"question": "train", "model": "llama-3.1-8b", "gpus": "8xH100-80GB", "seq_len": "4096"}
"""What is asked where nobody has asked yet."""
OFFERED = {
    "optimizer": tuple(name.value for name in OptimizerName), "quantize": QUANTIZED, "kv_dtype": ("bf16", "fp8", "int8"),
    "offload": tuple(OFFLOADABLE),
}  # fmt: skip


def form_document() -> dict[str, Any]:
    """Options by their short names in the order of the command line's help, engines by task, bundled models
    and devices by name, the formats that a plan is exported to, with the engines that run each, and the
    ``first`` question.
    """
    options = [_option_row(name, *about) for name, about in HELP.items()]
    exported = [find_format(name) for name in NAMES]
    return {
        "schema": "memsheet/form/1",
        "options": [*options, _option_row("offload", *OFFLOAD)],
        "engines": {
            task: [engine.name for engine in modelled_engines() if task in engine.tasks]
            for task in ("train", "infer")
        },
        "models": sorted(model_names()),
        "gpus": [{"name": device.name, "kind": device_kind(device)} for device in catalog_devices()],
        "formats": [{"name": form.name, "engines": list(form.engines)} for form in exported],
        "first": dict(FIRST),
    }


def _option_row(name: str, group: str, metavar: str, words: str) -> dict[str, Any]:
    rule = RULES.get(SHORT.get(name, ""))
    kind = "flag" if not metavar else rule.kind if rule else "texts"
    choices = () if rule is None or name == "engine" else rule.choices
    return {
        "name": name,
        "group": group,
        "value": metavar,
        "words": words,
        "kind": kind,
        "choices": list(choices or OFFERED.get(name, ())),
        "tasks": ["infer"] if group == SERVING else ["train", "infer"] if group == JOB else _tasks_of(name),
    }


BOTH = frozenset(
    {
        "tp",
        "pp",
        "dp_replicate",
        "ep",
        "attn_dp",
        "precision",
        "quantize",
        "lora_rank",
        "compile",
        "attention",
    }
)
"""Options of training that mean something where a model serves, too."""


def _tasks_of(name: str) -> list[str]:
    return ["train", "infer"] if name in BOTH else ["train"]
