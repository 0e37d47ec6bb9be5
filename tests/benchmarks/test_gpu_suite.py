"""The suite of measurements: cases enough, each with a record of its own, resumed where it was left."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import gpu_suite
from suite_cases import KINDS, TINY, cases

from memsheet.catalog import find_model
from memsheet.plan.option_words import HELP
from memsheet.questions.measured import Options
from memsheet.readers.hf_config import read_hf_config
from memsheet.readers.record import read_record


@pytest.mark.parametrize("small", [False, True])
def test_cases_are_enough_and_each_has_a_name_of_its_own(small):
    found = list(cases(small=small))
    assert len({case.name for case in found}) == len(found) >= 60
    assert all(read_hf_config(case.config).hidden for case in found)
    assert all(small or case.model in KINDS for case in found)
    assert sum(case.snapshot for case in found) >= 4


def test_cases_cover_what_separates_formulas():
    every = list(cases(small=False))
    said = {
        flag: {case.flags[flag] for case in every if flag in case.flags}
        for flag in {flag for case in every for flag in case.flags}
    }
    assert said["precision"] >= {"fp32", "bf16-autocast", "fp16-autocast", "bf16-pure"}
    assert said["optimizer-implementation"] >= {"foreach", "fused", "loop"}
    assert said["attention"] == {"eager", "sdpa", "flash"}
    assert said["loss"] == {"fused", "chunked"}
    assert said["recompute"] == {"none", "full"}
    assert len(said["seq-len"]) >= 3
    assert {case.model for case in every if "lora-rank" in case.flags} >= {"llama-3.1-8b", "llama-3.2-1b"}
    assert {case.model for case in every if "max-model-len" in case.flags} >= {"llama-3.1-8b", "gemma-3-1b"}
    assert {KINDS[case.model] for case in every} == set(TINY)
    known = {name.replace("_", "-") for name in HELP} | {"offload", "vary-length"}
    assert set(said) <= known


def test_the_first_cases_are_of_many_kinds():
    first = list(cases(small=False))[:30]
    assert len({KINDS[case.model] for case in first}) >= 5
    assert any("max-model-len" in case.flags for case in first)


def test_a_suite_goes_on_where_it_was_left_and_keeps_failures(tmp_path, monkeypatch):
    asked = []

    def run(command, **_):
        asked.append(command)
        return subprocess.CompletedProcess(command, 2, "", "measuring x\nmemsheet: it died\n  hint: of this")

    monkeypatch.setattr(gpu_suite.subprocess, "run", run)
    suite = gpu_suite.run(1, tmp_path, "cpu", "grouped len-64 autocast")
    case, record = next(suite)
    assert "failed: memsheet: it died" in gpu_suite.line(case, record)
    assert read_record(tmp_path / f"{case.name}.json").failure == "memsheet: it died\n  hint: of this"
    rest = list(gpu_suite.run(1, tmp_path, "cpu", "grouped len-64 autocast"))
    assert case.name not in {other.name for other, _ in rest}
    assert len(asked) == len(rest) + 1 > 3
    assert not list(gpu_suite.run(0, tmp_path / "none", "cpu", ""))
    assert gpu_suite.forget_failures(tmp_path) == len(asked)
    assert len(list(gpu_suite.run(1, tmp_path, "cpu", "grouped len-64 autocast"))) == len(rest) + 1
    told = gpu_suite.summary([record], "cpu", "grouped len-64 autocast", tmp_path)
    assert "1 failed" in told
    assert "still unmeasured" in told
    assert "still unmeasured" not in gpu_suite.summary([], "cuda", "", tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--minutes", "-1"], "is not a positive number"), (["--minutes", "nan"], "is not a positive number"),
     (["--device", "cuda"], "sees no CUDA device")],
)  # fmt: skip
def test_what_could_only_leave_failures_is_refused(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.setattr(gpu_suite, "_cuda", lambda: False)
    with pytest.raises(SystemExit):
        gpu_suite.main(["--out", str(tmp_path / "records"), *words])
    assert said in capsys.readouterr().err
    assert not (tmp_path / "records").exists()


def test_a_suite_that_is_interrupted_keeps_what_is_done(tmp_path, monkeypatch, capsys):
    def run(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu_suite.subprocess, "run", run)
    assert gpu_suite.main(["--out", str(tmp_path), "--device", "cpu"]) == 0
    assert "0 cases now, 0 failed" in capsys.readouterr().out


def test_a_case_too_slow_is_a_failure(tmp_path, monkeypatch):
    def run(command, **how):
        raise subprocess.TimeoutExpired(command, how["timeout"])

    monkeypatch.setattr(gpu_suite.subprocess, "run", run)
    ((_, record),) = gpu_suite.run(
        1, tmp_path, "cpu", "grouped seq-len-64-microbatch-2-bf16-autocast-vary-length"
    )
    assert record["failure"].startswith("took more than")


@pytest.mark.slow
def test_one_case_is_really_measured(tmp_path, capsys):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    words = [
        "--minutes",
        "1",
        "--out",
        str(tmp_path),
        "--device",
        "cpu",
        "--only",
        "tiny-grouped-seq-len-64-bf16-pure-recompute-none-microbatch-1-lora",
    ]
    assert gpu_suite.main(words) == 0
    told = capsys.readouterr().out
    assert "1 cases now, 0 failed; 1 of 1" in told
    (file,) = tmp_path.glob("*.json")
    record = read_record(file)
    assert record.asked["config"]["model_type"] == "llama"
    assert record.sheet["plan"]["adapter"]["rank"] == 16
    assert gpu_suite.main([*words, "--list"]) == 0
    assert json.loads(file.read_text())["schema"] == "memsheet/record/1"


def test_the_models_are_bundled_or_brought_along():
    assert Options().steps is None
    assert all(find_model(model) or model == "latent-0.7b" for model in KINDS)
