"""A plan's command names the model as it was asked for: a file by its path."""

import json

import pytest

from memsheet.cli import main

CONFIG = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 4000, "max_position_embeddings": 4096,
}  # fmt: skip


@pytest.mark.parametrize(
    "asked",
    [
        ["train", "--gpus", "1xH100-80GB", "--seq-len", "256", "--global-batch", "2", "--engine", "transformers"],
        ["infer", "--gpus", "1xH100-80GB", "--engine", "vllm", "--prompt-tokens", "64", "--output-tokens", "64", "--sequences", "8"],
    ],
    ids=["train", "infer"],
)  # fmt: skip
def test_the_command_of_a_plan_finds_the_same_file(asked, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    folder = tmp_path / "of my own"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    task, *options = asked
    assert main(["plan", task, str(folder / "config.json"), *options]) in (0, 11)
    assert f"memsheet {task} '{folder / 'config.json'}'" in capsys.readouterr().out
