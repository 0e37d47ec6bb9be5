"""Findings as SARIF: what the standard requires, and the line that is right."""

import json
from pathlib import Path
from typing import Any

import pytest

from memsheet.cli import main
from memsheet.report.page.annotations import annotation_lines
from memsheet.report.shared.checked import Launch

LEVELS = ("none", "note", "warning", "error")
DS = """{
  "zero_optimization": {"stage": 2,
    "overlap_comm": true},
  "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 64
}
"""


def required(log: dict[str, Any]) -> None:
    """The required properties of sarif-schema-2.1.0.json, and what its text asks of those that are there."""
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-2.1.0.json")
    assert isinstance(log["runs"], list)
    for run in log["runs"]:
        rules = run["tool"]["driver"]["rules"]
        assert run["tool"]["driver"]["name"] == "memsheet"
        assert len({rule["id"] for rule in rules}) == len(rules)
        for rule in rules:
            assert rule["shortDescription"]["text"]
            assert rule["fullDescription"]["text"]
        for result in run["results"]:
            assert result["message"]["text"]
            assert result["level"] in LEVELS
            assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
            for location in result.get("locations", []):
                where = location["physicalLocation"]
                assert where["artifactLocation"]["uri"]
                assert where.get("region", {"startLine": 1})["startLine"] >= 1


def log_of(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["check", *words, "--format", "sarif"])
    log = json.loads(capsys.readouterr().out)
    required(log)
    return code, log


def test_a_finding_has_its_rule_its_level_and_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "con fig").mkdir()
    (tmp_path / "con fig" / "ds_config.json").write_text(DS)
    monkeypatch.chdir(tmp_path)
    code, log = log_of(
        capsys,
        "./con fig/ds_config.json",
        "--model",
        "llama-3.1-8b",
        "--gpus",
        "8xA100-40GB",
        "--seq-len",
        "4096",
    )
    found = {one["ruleId"]: one for one in log["runs"][0]["results"]}
    assert code == 10
    place = {"artifactLocation": {"uri": "con%20fig/ds_config.json", "uriBaseId": "%SRCROOT%"}}
    stage = found["second-bucket"]
    assert stage["level"] == "warning"
    assert stage["locations"] == [{"physicalLocation": {**place, "region": {"startLine": 3}}}]
    assert found["does-not-fit"]["level"] == "error"
    assert found["does-not-fit"]["locations"] == [{"physicalLocation": place}]


def test_a_file_that_is_none_is_a_finding_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ds_config.json").write_text(DS)
    (tmp_path / "other.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    code, log = log_of(capsys, "--each", "ds_config.json", "other.json")
    results = log["runs"][0]["results"]
    assert code == 2
    assert [one["level"] for one in results if one["ruleId"] == "not-read"] == ["error"]
    assert {one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for one in results} == {
        "ds_config.json",
        "other.json",
    }


def test_a_key_that_is_missed_has_no_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = '{"zero_optimization": {"stage": 2},\n "flops_profiler": {"bf16": true}}'
    (tmp_path / "ds_config.json").write_text(said)
    monkeypatch.chdir(tmp_path)
    results = log_of(capsys, "ds_config.json")[1]["runs"][0]["results"]
    found = next(one for one in results if one["ruleId"] == "no-sixteen-bits")
    where = found["locations"][0]["physicalLocation"]
    assert where["artifactLocation"]["uri"] == "ds_config.json"
    assert "region" not in where


def test_nothing_found_is_a_run_without_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}'
    (tmp_path / "ds_config.json").write_text(good)
    monkeypatch.chdir(tmp_path)
    assert log_of(capsys, "ds_config.json")[1]["runs"][0]["results"] == []


def test_an_annotation_is_one_line_whatever_a_name_holds(tmp_path: Path) -> None:
    name = "a,b: 100%.json"
    (tmp_path / name).write_text("{")
    lines = annotation_lines([Launch(file=name, checked=None, problem="no\n::error::JSON, 5%")], tmp_path)
    assert lines.count("\n") == 1
    assert lines.startswith("::error file=")
    assert "a%2Cb%3A 100%25.json,title=memsheet not-read::The file cannot be read. " in lines
    assert "5%25" in lines
