"""A finding says that the job fits otherwise only where all that the files hold is in the range that fits."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.errors import InputError
from memsheet.exchange.mistakes import SERVED, TRAINING, rules_of_kind

CONFIGS = Path(__file__).parents[3] / "configs"
CLAIMING = {"recompute-without-need", "offload-without-need", "zero3-where-less-fits"}
ZERO3 = '{"zero_optimization": {"stage": 3%s}, "bf16": {"enabled": true}%s}'
SIZE = ', "train_micro_batch_size_per_gpu": 1'
HOST = ', "offload_optimizer": {"device": "cpu"}'
CASES = {
    "known": ({"ds.json": ZERO3 % (HOST, SIZE)}, True),
    "what the engine does by itself": (
        {"a.yaml": "base_model: x\ngradient_checkpointing: true\nmicro_batch_size: 1\nsequence_len: 512\nbf16: true\n"}, False,
    ),
    "recomputed": ({"a.yaml": "base_model: x\ngradient_checkpointing: true\nmicro_batch_size: 1\nsequence_len: 512\nbf16: true\nflash_attention: true\n"}, True),
    "recomputed, with what the sheet does not hold": (
        {"a.yaml": "base_model: x\ngradient_checkpointing: true\nmicro_batch_size: 1\nsequence_len: 512\nbf16: true\nflash_attention: true\nlisa_n_layers: 4\n"}, False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_finding_says_that_the_job_fits_where_it_is_sure_to(name: str, tmp_path: Path) -> None:
    files, sure = CASES[name]
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    found = memsheet.check(tmp_path, model="llama-3.2-1b", gpus="8xH100-80GB", seq_len=512)
    says = [one.says for rule, one in found.mistakes if rule.id in CLAIMING]
    assert says, found.mistakes
    assert (found.result is Result.FITS) is sure, found.doubt
    assert all(("the job fits" in one) is sure for one in says), (says, found.doubt)
    assert all(("what the sheet holds fits" in one) is not sure for one in says)


@pytest.mark.parametrize(
    "file",
    sorted(
        path.name
        for path in CONFIGS.iterdir()
        if path.name.startswith(("deepspeed", "axolotl", "accelerate"))
    ),
)
def test_no_finding_on_others_files_is_surer_than_the_verdict(file: str) -> None:
    try:
        found = memsheet.check(CONFIGS / file, model="llama-3.2-1b", gpus="8xH100-80GB", seq_len=512)
    except InputError:
        return
    said = [one.says for rule, one in found.mistakes if rule.id in CLAIMING]
    rules = [rule for kind in {*SERVED, *TRAINING} for rule in rules_of_kind(kind)]
    assert {rule.id for rule in rules if rule.only_if_whole} == CLAIMING
    assert not any("the job fits" in one for one in said) or (
        found.result is Result.FITS and not found.doubt
    ), (said, found.doubt)
