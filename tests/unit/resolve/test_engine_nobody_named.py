"""Without an engine, a question of inference is refused only where every engine that may be taken for it
refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from test_every_flag_every_engine import values

from memsheet import catalog
from memsheet.budget import Answer
from memsheet.catalog import model_names
from memsheet.errors import InputError
from memsheet.plan.check import RULES
from memsheet.plan.defaults import DESCRIPTIVE
from memsheet.plan.device import cluster_of
from memsheet.plan.engine_registry import CANDIDATES
from memsheet.plan.model import ModelSpec
from memsheet.questions import accounted
from memsheet.readers.model import read_model
from memsheet.resolve.serving import serves_in_pages

MODELS = [
    "llama-tiny",
    "gpt2",
    "mamba-130m",
    "olmoe-1b-7b",
    "deepseek-v2-lite",
    "gemma-2-2b",
    "t5-small",
    "bert-base",
    "qwen2-vl-2b",
    "vit-base",
]
KEYS = sorted(set(RULES) - set(DESCRIPTIVE) - {"model", "gpus", "task", "engine", "precision.name"})
SERVED: dict[str, list[Any]] = {
    "serving.kv_dtype": ["int4", "int8", "fp8", "fp8_e5m2", "gguf:Q8_0", "fp32"],
    "serving.page_tokens": [1, 16, 256],
}
DRAFTED = {"speculative.tokens": 3, "speculative.model": "llama-tiny"}


def asked_answer(spec: ModelSpec, request: Mapping[str, Any], count: int) -> Answer | InputError:
    try:
        return accounted.answer_for_model(
            spec, request, cluster_of(catalog.find_device("H100-80GB"), count), fix=False
        )
    except InputError as error:
        return error


def asked_pairs() -> list[tuple[str, Any]]:
    return [(key, value) for key in KEYS for value in SERVED.get(key) or values(key)]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_refused_that_a_candidate_would_answer(name: str, count: int) -> None:
    spec = read_model(name, catalog=catalog.find_model, names=model_names())
    left = []
    for key, value in asked_pairs():
        request = {"task": "infer", **(DRAFTED if key == "speculative.method" else {}), key: value}
        found = asked_answer(spec, request, count)
        engines = CANDIDATES if serves_in_pages(spec) else ("transformers",)
        if isinstance(found, InputError):
            left += [
                (key, value, engine)
                for engine in engines
                if isinstance(asked_answer(spec, {**request, "engine": engine}, count), Answer)
            ]
        else:
            assert any(line.split(" (")[0] == f"engine = {found.plan.engine}" for line in found.assumed)
    assert left == []
