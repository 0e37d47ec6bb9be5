"""The walk over other people's files: which are looked at, and what becomes of each."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from wild import candidate_files, outcome_of, table_lines

FILES = {
    "train.yaml": "base_model: meta-llama/Llama-3.1-8B\nadapter: lora\nlora_r: 8\nsequence_len: 512\n",
    "launch.sh": "torchrun --nproc_per_node 4 pretrain_gpt.py --num-layers 2 --hidden-size 64 --bf16"
    " --num-attention-heads 4 --micro-batch-size 1 --seq-length 64 --tensor-model-parallel-size 4"
    " --vocab-size 512",
    "notes.yaml": "hello: world\n",
    "broken.yaml": "base_model: [unclosed\n",
    "tests/train.yaml": "base_model: x/y\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_files_that_may_be_launches_are_looked_at(tree: Path) -> None:
    found = {f"{path.relative_to(tree)}" for path in candidate_files(tree)}
    assert found == {"train.yaml", "launch.sh", "broken.yaml"}


def test_each_file_has_an_outcome_and_a_row(tree: Path) -> None:
    rows = [outcome_of(path, tree, "8xH100-80GB") for path in candidate_files(tree)]
    told = {row.file: row.outcome for row in rows}
    assert told["broken.yaml"] == "unrecognised"
    assert told["train.yaml"].startswith("sheet:")
    assert told["launch.sh"] == "sheet: FITS"
    text = "\n".join(table_lines({"tree": rows}))
    assert "tree (a model)" in text
    assert "3 files" in text
