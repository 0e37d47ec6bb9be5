"""Optimizers of bitsandbytes step whole tensors alone."""

from __future__ import annotations

import pytest

import memsheet
from memsheet.errors import InputError
from memsheet.plan.plan import PAGED

QUESTION = {"gpus": "2xA100-80GB", "seq_len": 512, "recompute": "full"}


@pytest.mark.parametrize("engine", ["fsdp2", "torchtune"])
@pytest.mark.parametrize("name", ["adamw_8bit", "lion_8bit", "lion", *sorted(one.value for one in PAGED)])
def test_no_engine_that_hands_out_dtensors_steps_by_bitsandbytes(engine: str, name: str) -> None:
    plan = {"engine": engine, "optimizer": {"name": name, "implementation": "bnb"}}
    with pytest.raises(InputError) as refused:
        memsheet.train("llama-3.2-1b", plan=plan, **QUESTION)
    assert [one.field for one in refused.value.problems] == ["optimizer.implementation"]
    assert refused.value.refused


@pytest.mark.parametrize("optim", ["adamw_bnb_8bit", "paged_adamw_8bit"])
def test_they_are_run_by_whole_copies_where_no_engine_is_named(optim: str) -> None:
    answer = memsheet.train("llama-3.2-1b", optim=optim, **QUESTION)
    assert answer.plan.engine == "transformers"
    assert answer.plan.zero == 0
    assert any("bitsandbytes" in one for one in answer.assumed)


def test_eight_bits_are_torchaos_where_nobody_says_whose() -> None:
    answer = memsheet.train("llama-3.2-1b", optimizer="adamw_8bit", **QUESTION)
    assert answer.plan.optimizer is not None
    assert (answer.plan.engine, answer.plan.optimizer.implementation.value) == ("fsdp2", "torchao")
