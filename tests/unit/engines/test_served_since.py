"""Releases of servers that have no code for a family yet."""

from __future__ import annotations

import pytest

from memsheet import infer, train
from memsheet.errors import InputError
from memsheet.plan.engine_registry import find_engine
from memsheet.readers.registry import FAMILIES

SERVERS = {name: find_engine(name) for name in ("vllm", "sglang", "transformers")}
CASES = [  # family, engine, the release before the first that names it, and that one
    ("gemma4_text", "vllm", "0.18.1", "0.19.0"),
    ("gemma4_text", "sglang", "0.5.10", "0.5.11"),
    ("qwen3_5_text", "vllm", "0.16.0", "0.17.0"),
    ("qwen3_5_text", "sglang", "0.5.8", "0.5.9"),
    ("gemma3n_text", "vllm", "0.9.1", "0.9.2"),
    ("qwen3", "vllm", "0.8.3", "0.8.4"),
    ("gpt_oss", "sglang", "0.5.0", "0.5.1"),
]


@pytest.mark.parametrize(("family", "engine", "before", "first"), CASES)
def test_a_release_before_the_first_is_refused_by_name(family, engine, before, first):
    asked = {"gpus": "1xH200", "engine": engine, "max_model_len": 2048, "fix": False}
    with pytest.raises(InputError, match=f"no code for {family}, which {engine} serves since {first}"):
        infer({"model_type": family}, engine_version=before, **asked)


@pytest.mark.parametrize("case", CASES[:2])
def test_the_first_release_serves_it(case):
    family, engine, _, first = case
    asked = {"gpus": "1xH200", "engine": engine, "max_model_len": 2048, "engine_version": first, "fix": False}
    assert infer({"model_type": family}, **asked).serving is not None


OF_LIBRARY = [
    ("qwen3", "4.35", "4.51.0"),
    ("gemma3_text", "v4.49.0", "4.50.0"),
    ("gpt_oss", "4.30.2", "4.55.0"),
]


@pytest.mark.parametrize(("family", "before", "first"), OF_LIBRARY)
def test_a_release_of_the_library_has_no_family_of_later_ones(family, before, first):
    asked = {"gpus": "1xH200", "engine": "transformers", "fix": False}
    with pytest.raises(InputError, match=f"no code for {family}, which transformers serves since {first}"):
        infer({"model_type": family}, engine_version=before, max_model_len=2048, **asked)
    with pytest.raises(InputError, match=f"no code for {family}, which transformers has since {first}"):
        train({"model_type": family}, engine_version=before, seq_len=128, **asked)
    for version in (first, None, f"{before}-Preview", "4.1"):  # the last may be another program's
        assert infer({"model_type": family}, engine_version=version, max_model_len=2048, **asked).serving
        assert train({"model_type": family}, engine_version=version, seq_len=128, **asked).sheets


@pytest.mark.parametrize("engine", SERVERS)
def test_every_release_is_of_a_family_that_is_read(engine):
    since = SERVERS[engine].serving.served_since
    assert set(since) <= set(FAMILIES)
    assert min(since.values()) > (0, 4, 3)


def test_a_text_model_is_served_no_later_than_what_it_is_part_of():
    for engine in SERVERS.values():
        since = engine.serving.served_since
        for family, release in since.items():
            whole = since.get(family.removesuffix("_text"), release)
            assert release <= whole, family
