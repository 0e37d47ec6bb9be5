"""What is remembered of a server's stages changes no figure of it."""

from __future__ import annotations

from typing import Any

import pytest

from memsheet.engines.sglang import server as sglang
from memsheet.engines.vllm import server as vllm
from memsheet.formulas.pipeline import stage_model
from memsheet.formulas.serving.stages import every_stage, same_again
from memsheet.questions.accounted import infer
from memsheet.sheet import Component


def test_only_the_very_same_question_is_remembered() -> None:
    asked: list[tuple[Any, ...]] = []

    @same_again
    def answer(*words: Any) -> int:
        asked.append(words)
        return len(asked)

    one, other = [1], [1]  # equal, and not the same
    assert [answer(one), answer(one), answer(other), answer(other), answer(one)] == [1, 1, 2, 2, 3]
    assert [answer(one, None), answer(one)] == [4, 5]


def test_what_is_refused_is_refused_again() -> None:
    @same_again
    def answer(_: object) -> None:
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            answer(None)


@pytest.mark.parametrize("pp", [1, 2, 4, 8])
def test_every_stage_has_its_own_part(pp: int) -> None:
    """Each stage is given what its part alone makes, though parts that are equal are looked at once."""
    found = infer("llama-3.1-8b", gpus="8xA100-80GB", engine="vllm", pp=pp, fix=False)
    seen: list[object] = []
    parts = every_stage(found.model, found.plan, lambda part: (seen.append(part), part)[1])
    assert list(parts) == [stage_model(found.model, found.plan, number) for number in range(pp)]
    assert len(seen) == len(set(parts)) <= min(pp, 4)


@pytest.mark.parametrize(("engine", "module"), [("vllm", vllm), ("sglang", sglang)])
@pytest.mark.parametrize("mesh", [{"tp": 2, "pp": 4}, {"tp": 8, "attn_dp": 4}])
def test_sheets_and_facts_are_those_of_stages_accounted_one_by_one(
    engine: str, module: Any, mesh: dict[str, int], monkeypatch
) -> None:
    ask = {"gpus": "8xH100-80GB", "engine": engine, "fix": False, **mesh}
    before = infer("qwen3-30b-a3b", **ask)
    monkeypatch.setattr(module, "_stages", module._stages.__wrapped__)
    monkeypatch.setattr(
        module,
        "every_stage",
        lambda spec, plan, account: tuple(
            account(stage_model(spec, plan, number)) for number in range(plan.mesh.pp)
        ),
    )
    after = infer("qwen3-30b-a3b", **ask)
    assert [sheet.items for sheet in before.sheets] == [sheet.items for sheet in after.sheets]
    assert before.serving == after.serving
    assert any(item.component is Component.KV_CACHE for item in before.sheets[0].items)
