"""`memsheet models`: what words find, and where each configuration came from."""

from __future__ import annotations

import json

import pytest

from memsheet import catalog
from memsheet.cli import main


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict]:
    assert main(("models", *words, "--json")) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)["models"]}


def test_every_word_must_be_in_a_name_or_the_family(capsys: pytest.CaptureFixture[str]) -> None:
    everything = listed(capsys)
    assert set(everything) == set(catalog.model_names())
    for word in ("qwen3", "8b", "instruct", "meta-llama"):
        found = listed(capsys, word)
        assert 0 < len(found) < len(everything)
        both = listed(capsys, word, "8b")
        assert set(both) == set(found) & set(listed(capsys, "8b"))


def test_every_row_says_where_its_configuration_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert all(row["source"] for row in listed(capsys).values())
    main(("models", "qwen3-8b"))
    assert "Qwen/Qwen3-8B" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name", ["unsloth/Qwen3-8B-bnb-4bit", "qwen3:8b", "https://huggingface.co/Qwen/Qwen3-8B"]
)
def test_one_name_in_any_form_finds_its_model(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(listed(capsys, name)) == {"qwen3-8b"}
    main(("models", name))
    assert "model = qwen3-8b" in capsys.readouterr().out
