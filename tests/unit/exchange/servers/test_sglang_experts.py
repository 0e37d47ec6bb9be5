"""What SGLang deals of its experts, and how many requests it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet

SERVE = "python -m sglang.launch_server --model-path {model} {flags}\n"


@pytest.mark.parametrize(("groups", "etp"), [(1, 8), (2, 4), (8, 1)])
def test_experts_are_cut_in_the_groups_that_they_are_dealt_to(groups: int, etp: int, tmp_path: Path) -> None:
    text = SERVE.format(model="Qwen/Qwen3-235B-A22B", flags=f"--tp 8 --ep {groups}")
    (tmp_path / "serve.sh").write_text(text)
    found = memsheet.check(tmp_path / "serve.sh", gpus="8xH200")
    assert found.answer is not None
    assert (found.answer.plan.mesh.ep, found.answer.plan.mesh.etp) == (groups, etp)


def test_an_unknown_draft_leaves_as_many_requests_as_a_known_one(tmp_path: Path) -> None:
    flags = "--speculative-algorithm EAGLE3 --speculative-draft-model-path nobody/knows-this-draft"
    (tmp_path / "serve.sh").write_text(SERVE.format(model="meta-llama/Llama-3.1-8B-Instruct", flags=flags))
    found = memsheet.check(tmp_path / "serve.sh", gpus="1xH100-80GB")
    assert found.answer is not None
    assert found.answer.plan.serving.max_sequences == 48
    assert not found.mistakes
