"""AReaL's configurations as jobs: servers, roles that share cards with the trainer, and pairs."""

from __future__ import annotations

from pathlib import Path

import pytest

from job_files import (
    checked_file,
    job_document,
    most_needed,
    phases_by_name,
    role_bytes,
)
from memsheet.exchange.formats.areal.engines import engine_at

GRPO, PPO, DPO = "ar-gsm8k-grpo.yaml", "ar-gsm8k-ppo-megatron.yaml", "ar-hhrlhf-dpo.yaml"
KL = ("kl_ctl: 0.0", "kl_ctl: 0.1")
TOGETHER = (
    'backend: "sglang:d4p1t1"\n',
    'backend: "sglang:d4p1t1"\n  scheduling_strategy: {type: colocation, target: actor}\n',
)


def test_servers_have_cards_of_their_own_unless_it_is_said(tmp_path: Path) -> None:
    apart, together = checked_file(tmp_path, GRPO), checked_file(tmp_path, GRPO, TOGETHER)
    assert job_document(apart)["placement"] == {"actor": [0, 4], "rollout": [4, 4]}
    assert job_document(together)["placement"] == {"actor": [0, 4], "rollout": [0, 4]}
    assert role_bytes(together, "gen/decode", "actor", "parameters") == 0
    assert role_bytes(together, "update_actor/loss", "rollout", "kv_cache") == 0


def test_on_the_same_cards_no_role_needs_less_than_alone(tmp_path: Path) -> None:
    apart, together = checked_file(tmp_path, GRPO), checked_file(tmp_path, GRPO, TOGETHER)
    assert most_needed(together) >= most_needed(apart)


def test_no_weight_of_kl_removes_the_reference_and_nothing_else(tmp_path: Path) -> None:
    without, read = checked_file(tmp_path, GRPO), checked_file(tmp_path, GRPO, KL)
    roles, more = job_document(without)["roles"], job_document(read)["roles"]
    assert more.pop("reference")["trained"] is False
    assert more == roles
    passes, further = phases_by_name(without), phases_by_name(read)
    assert further.pop("ref")["active"] == "reference"
    assert further == passes
    for instant in ("gen/load", "update_actor/loss"):
        assert role_bytes(read, instant, "actor") == role_bytes(without, instant, "actor")
        assert role_bytes(read, instant, "reference") > 0
    assert most_needed(read) >= most_needed(without)


def test_all_of_the_trainer_is_in_the_dtype_of_its_weights(tmp_path: Path) -> None:
    found = checked_file(tmp_path, GRPO)
    assert found.answer is not None
    precision = found.answer.plan.precision
    assert precision.moments.name == precision.parameters.name == "bf16"
    assert precision.master_weights is None


def test_a_critic_on_the_actor_s_cards_stays_there(tmp_path: Path) -> None:
    found = checked_file(tmp_path, PPO)
    assert job_document(found)["placement"]["critic"] == [0, 4]
    assert role_bytes(found, "update_actor/loss", "critic", "optimizer_states") > 0
    assert "update_critic" in phases_by_name(found)


def test_pairs_have_a_reference_and_no_server(tmp_path: Path) -> None:
    found = checked_file(tmp_path, DPO)
    assert sorted(job_document(found)["roles"]) == ["actor", "reference"]
    assert list(phases_by_name(found)) == ["ref", "update_actor"]
    plans = {name: role["plan"] for name, role in job_document(found)["roles"].items()}
    tokens = {name: (plan["microbatch"], plan["seq_len"]) for name, plan in plans.items()}
    assert tokens == {"actor": (1, 4096), "reference": (1, 10240)}  # as each is told


def test_a_teacher_with_cards_of_its_own(tmp_path: Path) -> None:
    document = job_document(checked_file(tmp_path, "ar-grpo-distill.yaml"))
    assert document["placement"]["teacher"][1] == 4
    assert document["roles"]["teacher"]["plan"]["mesh"]["tp"] == 4
    assert document["placement"]["rollout"][0] == sum(document["placement"]["teacher"])


@pytest.mark.parametrize(
    ("text", "cards", "experts"),
    [
        ("fsdp:d4p1t1", 4, {}), ("megatron:d2p2t2c2", 16, {}), ("archon:d8", 8, {}),
        ("megatron:(attn:d4p4t2|ffn:d2p4e4)", 32, {"d": 2, "p": 4, "e": 4}),
    ],
)  # fmt: skip
def test_engines_by_their_text(text: str, cards: int, experts: dict[str, int]) -> None:
    engine = engine_at({"actor.backend": text}, "actor")
    assert engine is not None
    assert (engine.cards, engine.of_experts) == (cards, experts)


@pytest.mark.parametrize("text", ["", "fsdp", "fsdp:", "fsdp:x4", "other:d4", "fsdp:d0", "fsdp:d4+d4"])
def test_text_that_is_no_engine(text: str) -> None:
    assert engine_at({"actor.backend": text}, "actor") is None
