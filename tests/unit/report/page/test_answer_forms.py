"""An answer in the forms that other programs take."""

import csv
import io
import json
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

import memsheet
from memsheet.cli import main
from memsheet.report.page.formats import FORMATS

ANSWER_FORMS = FORMATS["train"]
ANSWER = memsheet.train("llama-3.1-8b", gpus="8xA100-40GB", seq_len=4096)


def test_a_table_of_rows_has_every_byte() -> None:
    rows = list(csv.DictReader(io.StringIO(ANSWER_FORMS["csv"](ANSWER))))
    sheet = ANSWER.sheets[0]
    for when in sheet.instants:
        tensors = [
            int(row["bytes"])
            for row in rows
            if row["instant"] == when.value and row["component"] not in ("allocator_slack", "context")
        ]
        assert sum(tensors) == int(sheet.at(when).value)


def test_a_table_in_markdown_has_as_many_cells_in_each_row() -> None:
    lines = ANSWER_FORMS["markdown"](ANSWER).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in table}) == 1
    assert lines[0].startswith("**DOES NOT FIT**")


def test_a_picture_is_xml_and_a_page_is_whole() -> None:
    assert ET.fromstring(ANSWER_FORMS["svg"](ANSWER)).tag.endswith("svg")
    assert ANSWER_FORMS["svg"](ANSWER) == ANSWER.picture()
    assert ANSWER_FORMS["html"](ANSWER).startswith("<!doctype html>")
    assert json.loads(ANSWER_FORMS["json"](ANSWER)) == ANSWER.to_dict()


@pytest.mark.parametrize("form", ANSWER_FORMS)
def test_a_form_is_asked_for_by_name(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["train", "llama-3.1-8b", "--gpus", "8xA100-40GB", "--seq-len", "4096", "--format", form]) == 10
    )
    assert capsys.readouterr().out == ANSWER_FORMS[form](ANSWER)


def test_another_form_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "gpt2", "--seq-len", "64", "--format", "pdf"]) == 2
    assert "one of json, markdown, html, svg, csv" in capsys.readouterr().err


DS = """{
  "zero_optimization": {"stage": 2,
    "bogus": 1},
  "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 1
}
"""
ASKED = ("llama-3.2-1b", "--gpus", "2xA100-40GB", "--seq-len", "512")
LINES = {
    "solve": ("solve", "microbatch", *ASKED, "--most", "4"),
    "plan train": ("plan", "train", *ASKED, "--global-batch", "4", "--engine", "deepspeed"),
    "plan infer": ("plan", "infer", *ASKED[:3], "--context", "512"),
    "compare": ("compare", "a.json", "b.json"),
    "check": ("check", "ds_config.json", "--model", *ASKED),
    "check --against": ("check", "ds_config.json", "--against", "earlier.json", "--model", *ASKED),
    "check of several": ("check", "--each", "ds_config.json", "other.json"),
}


def search_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said of one search in many forms is searched for once."""
    command = import_module("memsheet.cli.plan")
    search, found = command.best_plans, {}

    def kept(**question: Any) -> Any:
        asked = repr(question)
        if asked not in found:
            found[asked] = search(**question)
        return found[asked]

    monkeypatch.setattr(command, "best_plans", kept)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("forms")
    (made / "ds_config.json").write_text(DS)
    (made / "earlier.json").write_text(DS.replace('gpu": 1', 'gpu": 4'))
    (made / "other.json").write_text("{")
    for name, length in (("a.json", 512), ("b.json", 1024)):
        sheet = memsheet.train("llama-3.2-1b", seq_len=length)
        (made / name).write_text(json.dumps(sheet.to_dict()))
    return made


@pytest.mark.parametrize("command", LINES)
def test_every_command_has_the_forms_that_it_names(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    search_once(monkeypatch)
    codes = set()
    for form in FORMATS[command]:
        codes.add(main([*LINES[command], "--format", form]))
        out = capsys.readouterr().out
        if form in ("json", "sarif"):
            assert isinstance(json.loads(out), dict)
        elif form == "csv":
            rows = [*csv.reader(io.StringIO(out))]
            assert len(rows) > 1
            assert len({len(row) for row in rows}) == 1
        elif form == "svg":
            assert ET.fromstring(out).tag.endswith("svg")
        elif form == "github":
            assert all(line.startswith("::") for line in out.splitlines())
            assert "file=ds_config.json,line=3,title=memsheet unknown-key::ds_config.json: " in out
        elif form == "html":
            assert out.startswith("<!doctype html>")
            assert "<table" in out
        else:
            table = [line.replace("\\|", "") for line in out.splitlines() if line.startswith("|")]
            assert table
            assert out.startswith("**")
    assert len(codes) == 1


@pytest.mark.parametrize("command", LINES)
def test_a_form_that_a_command_lacks_is_one_error_with_those_it_has(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    known = {name for forms in FORMATS.values() for name in forms}
    for form in (*sorted(known - FORMATS[command].keys()), "pdf"):
        assert main([*LINES[command], "--format", form]) == 2
        said = capsys.readouterr()
        assert said.err.count("memsheet: ") == 1
        assert f"one of {', '.join(FORMATS[command])}" in said.err
        assert not said.out


def test_several_files_are_one_document(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert main([*LINES["check of several"], "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert [one["outcome"] for one in found["launches"]] == ["no_sheet", "not_read"]
    assert {
        held["file"] for one in found["launches"] if one["checked"] for held in one["checked"]["mistakes"]
    } == {"ds_config.json"}
