"""prime-rl's configurations as jobs of a trainer and of servers on other cards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from job_files import checked_file, job_document, phases_by_name, role_bytes
from memsheet import InputError, check

RL, SFT, MATH = "pr-reverse-text-rl.toml", "pr-wordle-sft.toml", "pr-qwen3-30b-a3b-math.toml"
KEEPS = ("[trainer.optim]", "[trainer.model]\noptim_cpu_offload = false\n\n[trainer.optim]")


def test_trainer_and_server_have_cards_of_their_own(tmp_path: Path) -> None:
    found = checked_file(tmp_path, RL)
    document = job_document(found)
    assert document["placement"] == {"actor": [0, 1], "rollout": [1, 1]}
    assert document["roles"]["rollout"]["plan"]["serving"]["memory_fraction"] == 0.9
    assert list(phases_by_name(found)) == ["update_weights", "gen", "update_actor"]


def test_moments_are_on_the_card_for_the_step_alone(tmp_path: Path) -> None:
    found, kept = checked_file(tmp_path, RL), checked_file(tmp_path, RL, KEEPS)
    step = role_bytes(found, "update_actor/optimizer_step", "actor", "optimizer_states")
    assert step > 0
    assert role_bytes(found, "update_actor/backward", "actor", "optimizer_states") == 0
    held = role_bytes(kept, "update_actor/backward", "actor", "optimizer_states")
    assert 0 <= held - step < 2**16  # fused, a step is counted on the card of each tensor
    assert role_bytes(found, "gen/decode", "actor", "optimizer_states") == 0


def test_what_the_trainer_works_with_is_on_no_other_card(tmp_path: Path) -> None:
    found = checked_file(tmp_path, RL)
    assert role_bytes(found, "update_actor/loss", "actor", "temporaries") > 0
    assert role_bytes(found, "update_actor/load", "actor", card=1) == 0


def test_no_server_where_nobody_starts_one(tmp_path: Path) -> None:
    found = checked_file(tmp_path, RL, ("\n[inference]\n", "\n"))
    assert list(job_document(found)["roles"]) == ["actor"]


def test_nodes_are_as_many_as_the_file_says(tmp_path: Path) -> None:
    document = job_document(checked_file(tmp_path, MATH))
    assert document["placement"] == {"actor": [0, 16], "rollout": [16, 16]}
    assert document["roles"]["rollout"]["plan"]["mesh"] == {"tp": 8}


def test_supervised_training_has_whole_logits(tmp_path: Path) -> None:
    found = checked_file(tmp_path, SFT)
    assert list(job_document(found)["roles"]) == ["actor"]
    assert "logits" in phases_by_name(found)["update_actor"]
    assert "logits" not in phases_by_name(checked_file(tmp_path, RL))["update_actor"]


def test_adapters_are_switched_on_by_their_table(tmp_path: Path) -> None:
    found = checked_file(tmp_path, "pr-alphabet-sort-lora.toml", ("rank = 32\nalpha = 64\n", ""))
    assert found.answer is not None
    assert found.answer.plan.adapter is not None
    assert found.answer.plan.adapter.rank == 16


def test_another_program_s_tables_are_no_training_of_this_one(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('[job]\nx = 1\n[model]\nname = "llama3"\n[data]\nname = "c4"\n[training]\nseq_len = 8\n')
    assert [one.form.name for one in check(file, gpus="8xH100-80GB").reads.values()] != ["prime-rl"]


def test_a_command_says_more_than_its_files(tmp_path: Path) -> None:
    """The last file before the first, and flags before both; none of it where a file lies nowhere."""
    wild = Path(__file__).parents[3] / "wild_configs" / RL
    (tmp_path / "rl.toml").write_text(wild.read_text())
    (tmp_path / "own.toml").write_text("[model]\nname = 'Qwen/Qwen3-1.7B'\n")
    script = tmp_path / "run.sh"

    def said(words: str) -> dict[str, Any]:
        script.write_text(f"uv run rl {words}\n")
        return job_document(check(script, gpus="2xH100-80GB"))

    plain, own = said("@ rl.toml"), said("@ rl.toml @ own.toml")
    flagged = said("@ rl.toml @ own.toml --model.name Qwen/Qwen3-4B --trainer.model.no-optim-cpu-offload")
    assert plain == job_document(checked_file(tmp_path, RL))
    assert own["roles"]["actor"]["model"] == "qwen3-1.7b"
    assert flagged["roles"]["actor"]["model"] == "qwen3-4b"
    assert flagged["roles"]["actor"]["plan"] != own["roles"]["actor"]["plan"]
    script.write_text("uv run rl @ rl.toml @ elsewhere.toml\n")
    with pytest.raises(InputError, match="is not recognised"):
        check(script, gpus="2xH100-80GB")
