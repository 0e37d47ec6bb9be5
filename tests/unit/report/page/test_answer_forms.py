"""An answer in the forms that other programs take."""

import csv
import io
import json
from xml.etree import ElementTree as ET

import pytest

import memsheet
from memsheet.cli import main
from memsheet.report.page.formats import FORMATS

ANSWER = memsheet.train("llama-3.1-8b", gpus="8xA100-40GB", seq_len=4096)


def test_a_table_of_rows_has_every_byte() -> None:
    rows = list(csv.DictReader(io.StringIO(FORMATS["csv"](ANSWER))))
    sheet = ANSWER.sheets[0]
    for when in sheet.instants:
        tensors = [
            int(row["bytes"])
            for row in rows
            if row["instant"] == when.value and row["component"] not in ("allocator_slack", "context")
        ]
        assert sum(tensors) == int(sheet.at(when).value)


def test_a_table_in_markdown_has_as_many_cells_in_each_row() -> None:
    lines = FORMATS["markdown"](ANSWER).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in table}) == 1
    assert lines[0].startswith("**DOES NOT FIT**")


def test_a_picture_is_xml_and_a_page_is_whole() -> None:
    assert ET.fromstring(FORMATS["svg"](ANSWER)).tag.endswith("svg")
    assert FORMATS["html"](ANSWER).startswith("<!doctype html>")
    assert json.loads(FORMATS["json"](ANSWER)) == ANSWER.to_dict()


@pytest.mark.parametrize("form", FORMATS)
def test_a_form_is_asked_for_by_name(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["train", "llama-3.1-8b", "--gpus", "8xA100-40GB", "--seq-len", "4096", "--format", form]) == 10
    )
    assert capsys.readouterr().out == FORMATS[form](ANSWER)


def test_another_form_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "gpt2", "--seq-len", "64", "--format", "pdf"]) == 2
    assert "one of json, markdown, html, svg, csv" in capsys.readouterr().err
