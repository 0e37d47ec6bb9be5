"""Scripts with loops, lists and arguments of their own, read by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.exchange.test_wild_configs import FOLDER

import memsheet
from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.exchange.shared.plain_shell import plain_scripts
from memsheet.questions.launches import started_servers
from memsheet.questions.recognised_files import recognise_files

MII = (
    "meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-13b-hf", "meta-llama/Llama-2-70b-hf", "tiiuae/falcon-40B", "tiiuae/falcon-180B",
    "microsoft/phi-2", "mistralai/Mixtral-8x7B-v0.1",
)  # fmt: skip


def test_arguments_of_the_script_itself_are_its_defaults() -> None:
    found = memsheet.check(str(FOLDER / "sh-deepcompile-run.sh"), gpus="8xH100-80GB", seq_len=512)
    assert found.answer is not None, found.why_not
    assert found.answer.model.name == "llama-3-8b"
    assert any("what the script itself is given = nothing" in line for line in found.assumed)
    given = next(read for name, read in found.reads.items() if name.endswith("run_bench_lm.py"))
    assert given.request["@model"] == "meta-llama/Meta-Llama-3-8B"
    assert (given.values["loop.zero"], given.values["loop.accumulation"]) == (3, 1)


def test_a_loop_over_models_is_a_job_for_each() -> None:
    file = FOLDER / "sh-mii-run-all.sh"
    assert started_servers((str(file),)) == tuple(f"MODEL={model}" for model in MII)
    for model, script in zip(MII, plain_scripts(file.read_text()), strict=True):
        reads, _ = recognise_files({"run.sh": script.text}, ())
        assert [read.request["@model"] for read in reads.values() if "@model" in read.request] == [model]


def test_each_round_has_a_sheet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "for m in meta-llama/Llama-3.2-1B meta-llama/Llama-3.1-8B; do\n"
        "for b in {1..5}; do\nfor s in 1 2; do\n"
        "torchrun --nproc_per_node 8 run_clm.py --model_name_or_path $m --bf16 True --block_size 512"
        " --per_device_train_batch_size $b --seed $s\ndone\ndone\ndone\n"
    )
    path = tmp_path / "sweep.sh"
    path.write_text(text)
    main(["check", str(path), "--gpus", "8xH100-80GB"])
    told = capsys.readouterr().out
    assert told.count("\n== ") + told.startswith("== ") == 8
    assert "m=meta-llama/Llama-3.2-1B b=2" in told
    assert "2 further" in told
    assert "s=2" not in told


def test_a_script_that_starts_another_shells_script_is_no_trainers() -> None:
    with pytest.raises(InputError, match="is not recognised"):
        recognise_files(
            {"bench.sh": "bash ./run.sh --micro-batch-size 1 --seq-length 512 --num-layers 4\n"}, ()
        )
