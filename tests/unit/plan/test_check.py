"""The vocabulary of plans: every key, its type and its range."""

from __future__ import annotations

from typing import Any

import pytest

from laws import every
from memsheet.plan.check import RULES, check_request, flatten_document


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("microbatch", 2.0, "is not a whole number"), ("microbatch", True, "is not a whole number"), ("microbatch", "4", "is not a whole number"),
        ("microbatch", -1, "is outside 0 to 1048576"), ("seq_len", 2**27, "is outside 0 to 67108864"), ("mesh.tp", 0, "is outside 1 to 1048576"),
        ("zero", 4, "is outside 0 to 3"), ("reshard_after_forward", "yes", "is not true or false"), ("reshard_after_forward", 1, "is not true or false"),
        ("precision.moments", "fp33", "is not a known dtype"), ("dropout", 1.5, "is not a share from 0 to 1"),
        ("dropout", float("nan"), "is not a share from 0 to 1"), ("layers_per_stage", [1, -1], "is not a list of whole numbers"),
        ("layers_per_stage", 4, "is not a list of whole numbers"), ("adapter.targets", "q_proj", "is not a list of texts"),
        ("engine_version", 2, "is not text"),
    ],
)  # fmt: skip
def test_a_value_out_of_its_rule_is_told_why(key: str, value: Any, reason: str) -> None:
    assert [(p.field, p.reason) for p in check_request({key: value})] == [(key, reason)]


def test_an_unknown_key_and_a_misspelt_choice_get_the_nearest() -> None:
    assert [p.hint for p in check_request({"micro_batch": 4})] == ["did you mean microbatch?"]
    assert [p.hint for p in check_request({"attention": "sdpaa"})] == ["did you mean sdpa?"]


def test_every_problem_is_listed() -> None:
    assert len(check_request({"microbatch": -1, "zero": 9, "nonsense": 1, "attention": None})) == 3


@every("key", sorted(RULES))
def test_null_leaves_any_key_to_its_default(key: str) -> None:
    assert check_request({key: None}) == []


def test_a_plan_file_is_flattened_and_a_null_group_is_no_group() -> None:
    nested = {"mesh": {"tp": 2, "pp": 1}, "zero": 3, "adapter": None, "precision": {"parameters": "bf16"}}
    flat = flatten_document(nested)
    assert flat["mesh.tp"] == 2
    assert flat["precision.parameters"] == "bf16"
    assert flat["zero"] == 3
    assert "adapter" not in flat


def test_a_number_in_quotes_is_told_from_a_word() -> None:
    (one,) = check_request({"adapter.prompt_length": "20"})
    assert (one.reason, one.hint) == ("is not a whole number", "20 without quotes")
    (other,) = check_request({"adapter.prompt_length": "twenty"})
    assert other.hint == "for example 1"


@pytest.mark.parametrize("engine", ["tgi", "TensorRT-LLM", "lmdeploy"])
def test_a_server_that_is_no_engine_is_told_how_its_command_is_checked(engine: str) -> None:
    (problem,) = check_request({"engine": engine})
    assert "memsheet check -- " in problem.hint
