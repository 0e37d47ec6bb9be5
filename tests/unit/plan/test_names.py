"""Short names of a plan's keys."""

from __future__ import annotations

import pytest

from memsheet.errors import InputError
from memsheet.plan.check import RULES
from memsheet.plan.names import SHORT
from memsheet.plan.words import request_from


def test_every_short_name_is_a_key_of_the_vocabulary() -> None:
    assert [key for key in SHORT.values() if key not in RULES] == []
    assert len(set(SHORT.values())) == len(SHORT)


def test_short_names_become_keys_and_nones_go() -> None:
    request = request_from({"tp": 2, "lora_targets": ("q_proj",), "seq_len": None, "precision": "bf16-pure"})
    assert request == {"mesh.tp": 2, "adapter.targets": ["q_proj"], "precision.name": "bf16-pure"}


@pytest.mark.parametrize(
    "value", ["optimizer,parameters", ["optimizer", "parameters"], ("optimizer", "parameters")]
)
def test_offload_is_a_list(value: object) -> None:
    assert request_from({"offload": value}) == {"offload.optimizer": 1, "offload.parameters": 1}


def test_an_unknown_name_gets_the_nearest_and_all_are_told() -> None:
    with pytest.raises(InputError) as caught:
        request_from({"micro_batch": 1, "offload": "weights"})
    assert [(p.field, p.hint) for p in caught.value.problems] == [
        ("micro_batch", "did you mean microbatch?"),
        ("offload", "choose from optimizer, parameters, activations, or none"),
    ]
