"""A plan's groups: few fields, and an engine's own options in a class of the engine's."""

from __future__ import annotations

from dataclasses import fields

import pytest

from memsheet.plan.check import RULES
from memsheet.plan.engine_options import EngineOptions, option_keys
from memsheet.plan.engine_registry import MODELLED, rules_of
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.plan import Plan
from memsheet.plan.workload import KvCache, Serving, Training

MOST_FIELDS = 35
SHARED = {field.name for field in fields(EngineOptions)}
EXAMPLES = {
    "dp_lm_head": True, "graph_sequences": 64, "state_slots": 7, "state_ratio": 0.5, "k_dtype": "fp16", "gpu_layers": 3, "host_experts": 2, "tensor_split": "3,1", "tensor_overrides": "exps=CPU", "split_mode": "none", "main_gpu": 1,
    "kv_unified": True, "swa_full": True, "host_cache": True,
    "host_weights_gib": 4.5, "dcp": 2, "host_kv_gib": 4.5, "host_kv_ratio": 2.0, "kv_connector": "NixlConnector", "kv_cache_bytes": 2**32, "kv_blocks": 500, "pool_tokens": 20000, "attention_kernels": "flashinfer", "mla_mode": 1, "attn_max_batch": 64,
}  # fmt: skip


def own_options(engine: str, **request: object) -> EngineOptions:
    version = {"engine_version": "ik_llama.cpp"} if request.keys() & {"mla_mode", "attn_max_batch"} else {}
    said = {f"serving.{name}": value for name, value in request.items()}
    return rules_of(engine).own_options(RequestResolver({**said, **version}))


def test_a_plan_has_few_fields_and_none_of_its_groups() -> None:
    own = {field.name for field in fields(Plan)}
    assert len(own) <= MOST_FIELDS
    for group in (Training, Serving, KvCache, EngineOptions, *(type(own_options(name)) for name in MODELLED)):
        assert not own & {field.name for field in fields(group)}, group


@pytest.mark.parametrize("engine", MODELLED)
def test_options_nobody_asked_for_say_nothing(engine: str) -> None:
    assert option_keys(own_options(engine)) == {}


@pytest.mark.parametrize(
    ("engine", "name"),
    [(e, f.name) for e in MODELLED for f in fields(own_options(e)) if f.name not in SHARED],
)
def test_an_engines_own_option_is_read_and_written_by_the_same_key(engine: str, name: str) -> None:
    assert f"serving.{name}" in RULES
    assert option_keys(own_options(engine, **{name: EXAMPLES[name]})) == {name: EXAMPLES[name]}
