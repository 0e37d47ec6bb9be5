"""Generation by Megatron-LM: the weights and the cache of the sizes that its flags say, over the cards of a
replica.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memsheet.cli import main
from memsheet.exchange.formats.megatron.generation import FORMAT

SIZES = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 11008"
STATED = (
    "--swiglu --disable-bias-linear --vocab-size 32000"
    " --untie-embeddings-and-output-weights --position-embedding-type rope --normalization RMSNorm"
)
LLAMA_2_7B = 6_738_415_616


def checked(flags: str, folder: Path, capsys: pytest.CaptureFixture[str], cards: int = 1) -> dict[str, Any]:
    script = folder / "serve.sh"
    words = f"torchrun --nproc_per_node {cards} tools/run_text_generation_server.py {SIZES} {STATED} {flags}"
    script.write_text(words)
    main(["check", str(script), "--gpus", f"{cards}xH100-80GB", "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_model_is_of_the_flags_and_the_batch_of_its_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = checked("--bf16 --inference-max-requests 4 --inference-max-seq-length 4096", tmp_path, capsys)
    sheet = found["sheet"]
    assert sheet["model"]["parameters"] == LLAMA_2_7B
    assert (sheet["plan"]["microbatch"], sheet["plan"]["serving"]["max_model_len"]) == (4, 4096)
    assert sheet["plan"]["precision"]["parameters"] == sheet["plan"]["serving"]["kv_dtype"] == "bf16"


@pytest.mark.parametrize(
    ("flags", "batch", "length", "dtype"),
    [
        ("--fp16", 8, 2560, "fp16"),
        ("--micro-batch-size 400 --seq-length 2048 --fp16", 400, 2048, "fp16"),
        ("--seq-length 8192", 8, 8192, "fp32"),
    ],
)
def test_what_is_not_said_is_the_programs_own(
    flags: str, batch: int, length: int, dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = checked(flags, tmp_path, capsys)["sheet"]["plan"]
    assert (plan["microbatch"], plan["serving"]["max_model_len"], plan["precision"]["parameters"]) == (
        batch, length, dtype
    )  # fmt: skip


def test_a_replica_lies_on_the_cards_of_both_degrees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--bf16 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
    mesh = checked(flags, tmp_path, capsys, cards=4)["sheet"]["plan"]["mesh"]
    assert (mesh["tp"], mesh["pp"]) == (1, 4)


@pytest.mark.parametrize(
    "flags", ["--bf16", "--bf16 --use-checkpoint-args", "--bf16 --inference-dynamic-batching"]
)
def test_another_accounting_is_told_and_no_verdict_is_sure(
    flags: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = checked(flags, tmp_path, capsys)
    assert found["result"] == "uncertain"
    assert "Megatron-LM" in found["doubt"]


@pytest.mark.parametrize("program", ["pretrain_gpt.py", "train.py"])
def test_a_training_is_none(program: str) -> None:
    assert FORMAT.parse is not None
    assert not FORMAT.parse(f"torchrun {program} {SIZES} --tensor-model-parallel-size 1")
