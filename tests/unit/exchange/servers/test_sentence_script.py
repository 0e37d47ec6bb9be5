"""Scripts of sentence-transformers, and decoders that make embeddings: states are trained, and no logits."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet
from memsheet.catalog import find_model, model_names
from memsheet.questions.trained_embedders import config_as_trained

SCRIPT = """from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers import SentenceTransformerTrainingArguments
from sentence_transformers.losses import {loss}
model = SentenceTransformer("{model}", model_kwargs={{"torch_dtype": "bfloat16"}})
args = SentenceTransformerTrainingArguments(output_dir="o", per_device_train_batch_size={rows}, bf16=True)
loss = {loss}(model{more})
SentenceTransformerTrainer(model=model, args=args, train_dataset=rows, loss=loss).train()
"""
DECODERS = [name for name in model_names() if "embedding" in name]


def checked(folder: Path, **said: object) -> memsheet.Checked:
    usual = {"loss": "MultipleNegativesRankingLoss", "model": "Qwen/Qwen3-0.6B", "rows": 64, "more": ""}
    (folder / "train.py").write_text(SCRIPT.format(**{**usual, **said}))
    return memsheet.check(folder / "train.py", gpus="1xH100-80GB", seq_len=128)


def test_the_constructor_names_the_model_and_both_texts_of_a_row_count(tmp_path: Path) -> None:
    found = checked(tmp_path)
    assert found.answer is not None
    assert found.answer.model.name == "qwen3-0.6b"
    assert found.answer.model.head.kind == "none"
    assert int(found.answer.plan.training.microbatch) == 128
    assert any("two texts a row" in moved.why for moved in found.moved)


@pytest.mark.parametrize(
    ("more", "piece"), [("", 32), (", mini_batch_size=16", 16), (", mini_batch_size=999", 128)]
)
def test_a_cached_loss_holds_a_piece_at_a_time(more: str, piece: int, tmp_path: Path) -> None:
    found = checked(tmp_path, loss="CachedMultipleNegativesRankingLoss", more=more)
    assert found.answer is not None
    job = found.answer.plan.training
    assert (int(job.microbatch), int(job.global_batch or job.microbatch)) == (piece, 128)


@pytest.mark.parametrize("loss", ["CachedMultipleNegativesRankingLoss", "CachedGISTEmbedLoss"])
@pytest.mark.parametrize(
    ("brought", "named"),
    [
        ("from sentence_transformers import losses", "losses.{}"),
        ("import sentence_transformers.losses", "sentence_transformers.losses.{}"),
        ("from sentence_transformers.losses import *", "{}"),
        ("from sentence_transformers.losses import {} as Loss", "Loss"),
    ],
)
def test_a_cached_loss_is_known_however_it_is_imported(
    loss: str, brought: str, named: str, tmp_path: Path
) -> None:
    line = "from sentence_transformers.losses import {loss}"
    text = SCRIPT.replace(line, brought.format(loss)).replace("{loss}(", named.format(loss) + "(")
    made = text.format(model="Qwen/Qwen3-0.6B", rows=64, more=", mini_batch_size=16")
    (tmp_path / "train.py").write_text(made)
    found = memsheet.check(tmp_path / "train.py", gpus="1xH100-80GB", seq_len=128)
    assert found.answer is not None
    job = found.answer.plan.training
    assert (int(job.microbatch), int(job.global_batch or job.microbatch)) == (16, 128)


def test_no_change_of_the_batch_is_told_in_places_that_count_rows(tmp_path: Path) -> None:
    found = checked(tmp_path, rows=2048)
    assert found.answer is not None
    assert found.answer.verdict is not None
    fix = found.answer.verdict.cheapest_fix
    assert fix is not None
    assert any(change.key in ("microbatch", "batch") for change in fix.changes)
    assert not fix.in_files


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_that_make_embeddings_make_no_logits(name: str) -> None:
    answer = memsheet.train(name, seq_len=64, microbatch=2)
    assert answer.model.head.kind == "none"
    assert not any("logits" in item.path for sheet in answer.sheets for item in sheet.items)


def test_a_class_without_a_head_says_so_of_any_decoder() -> None:
    config = dict(find_model("qwen3-0.6b")["config"])
    plain, bare = (
        memsheet.train({**config, "architectures": [kind]}, seq_len=64)
        for kind in ("Qwen3ForCausalLM", "Qwen3Model")
    )
    assert (plain.model.head.kind, bare.model.head.kind) == ("causal_lm", "none")
    assert bare.sheets[0].peak.value < plain.sheets[0].peak.value


@pytest.mark.parametrize("name", ["qwen3-embedding-0.6b", "qwen3-0.6b", "bge-m3"])
def test_the_real_code_of_such_a_decoder_is_made_without_a_head_too(name: str) -> None:
    entry = find_model(name)
    assert entry is not None
    config = entry["config"]
    made = config_as_trained(config, name)
    assert made["architectures"] == (["Qwen3Model"] if "embedding" in name else config["architectures"])
