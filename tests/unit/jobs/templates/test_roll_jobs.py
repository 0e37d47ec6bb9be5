"""ROLL's configurations as jobs of workers, each on the cards that it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from job_files import (
    checked_file,
    job_document,
    most_needed,
    phases_by_name,
    role_bytes,
)
from memsheet.exchange.formats.roll.workers import worker_cards

RLVR, SHARDED, DPO = "ro-qwen2.5-7b-rlvr.yaml", "ro-qwen3-8b-rlvr-fsdp2.yaml", "ro-qwen2.5-3b-dpo.yaml"
NO_KL = ("ppo_epochs: 1\n", "ppo_epochs: 1\ninit_kl_coef: 0\nenable_old_logprobs_recompute: true\n")


def test_every_worker_is_where_it_says(tmp_path: Path) -> None:
    found = checked_file(tmp_path, RLVR)
    assert job_document(found)["placement"] == {
        "actor": [0, 16], "reference": [0, 16], "rollout": [0, 12], "reward_llm_judge": [12, 4],
    }  # fmt: skip
    assert list(phases_by_name(found)) == ["update_weights", "gen", "ref", "old_log_prob", "update_actor"]


def test_megatron_leaves_the_card_while_servers_work(tmp_path: Path) -> None:
    found = checked_file(tmp_path, RLVR)
    for component in ("parameters", "master_weights", "optimizer_states", "gradients"):
        assert role_bytes(found, "gen/decode", "actor", component) == 0
    assert role_bytes(found, "old_log_prob/loss", "actor", "master_weights") == 0
    assert role_bytes(found, "update_actor/backward", "actor", "optimizer_states") == 0
    assert role_bytes(found, "update_actor/optimizer_step", "actor", "optimizer_states") > 0


def test_fsdp2_keeps_its_states_on_the_card(tmp_path: Path) -> None:
    found = checked_file(tmp_path, SHARDED)
    assert role_bytes(found, "gen/decode", "actor", "parameters") == 0
    assert role_bytes(found, "gen/decode", "actor", "optimizer_states") > 0


def test_dtypes_are_those_that_weights_are_loaded_in(tmp_path: Path) -> None:
    held = checked_file(tmp_path, SHARDED)
    plain = checked_file(tmp_path, SHARDED, ("      param_dtype: bf16\n", ""))
    assert held.answer is not None
    assert plain.answer is not None
    assert held.answer.plan.precision.moments.name == "bf16"
    assert plain.answer.plan.precision.moments.name == "fp32"
    assert plain.answer.plan.precision.compute.name == "bf16"


def test_no_weight_of_kl_removes_the_reference_and_nothing_else(tmp_path: Path) -> None:
    read, without = checked_file(tmp_path, RLVR), checked_file(tmp_path, RLVR, NO_KL)
    roles, fewer = job_document(read)["roles"], job_document(without)["roles"]
    roles.pop("reference")
    assert roles == fewer
    passes, left = phases_by_name(read), phases_by_name(without)
    passes.pop("ref")
    for phase in passes.values():
        phase.get("residents", {}).pop("reference")
    assert passes == left
    for instant in ("gen/decode", "update_actor/loss"):
        assert role_bytes(read, instant, "actor") == role_bytes(without, instant, "actor")
    assert most_needed(read) >= most_needed(without)


def test_pairs_are_two_rows_each_and_nothing_leaves_the_card(tmp_path: Path) -> None:
    found = checked_file(tmp_path, DPO)
    document = job_document(found)
    assert sorted(document["roles"]) == ["actor", "reference"]
    assert found.answer is not None
    assert int(found.answer.plan.training.microbatch) == 2 * 16
    assert role_bytes(found, "update_actor/loss", "reference", "parameters") > 0


def test_a_student_and_its_teacher(tmp_path: Path) -> None:
    document = job_document(checked_file(tmp_path, "ro-qwen2.5-7b-distill.yaml"))
    assert document["roles"]["teacher"]["model"] != document["roles"]["actor"]["model"]
    assert [phase["active"] for phase in document["phases"]] == ["teacher", "actor"]


def test_adapters_read_their_own_base(tmp_path: Path) -> None:
    found = checked_file(tmp_path, "ro-sokoban-lora.yaml", ("init_kl_coef: 0.0", "init_kl_coef: 0.1"))
    assert "reference" not in job_document(found)["roles"]
    assert phases_by_name(found)["ref"]["active"] == "actor"


def test_cards_that_lie_apart_make_no_job_and_it_is_said(tmp_path: Path) -> None:
    found = checked_file(tmp_path, RLVR, ("list(range(0,12))", "list(range(0,6))+list(range(8,14))"))
    assert found.answer is not None
    assert found.answer.job is None
    assert "actor_train alone" in str(found.doubt)


@pytest.mark.parametrize(
    ("held", "place"),
    [
        ("list(range(0,16))", (0, 16)), ("list(range(12, 16))", (12, 4)), ("[6, 7]", (6, 2)), ([0, 1], (0, 2)), ("list([4,5])", (4, 2)),
        ("list(range(0,2))+[2]", (0, 3)), ("[0, 2]", (0, 2)), ("list(range(4,4))", None), ("os.getpid()", None), ("", None), (None, None), ([True], None), ("[]", None),
    ],
)  # fmt: skip
def test_cards_of_a_worker(held: Any, place: tuple[int, int] | None) -> None:
    assert worker_cards({"w.device_mapping": held}, "w") == place


def test_cards_are_renumbered_where_that_lays_them_together() -> None:
    values = {"a.device_mapping": "[0, 1, 4, 5]", "b.device_mapping": "[2, 6]", "c.device_mapping": "[3, 7]"}
    assert [worker_cards(values, at) for at in "abc"] == [(0, 4), (4, 2), (6, 2)]
    assert worker_cards({**values, "d.device_mapping": "[1, 2, 3]"}, "a") is None
