"""Recorded runs: written, read back, compared, and asked of the formulas and the trace again. No GPU and no
rerun.
"""

import gzip
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import accuracy
from records import predicted, records, run_record

from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.readers.record import read_record, record_from
from memsheet.readers.sheet_json import read_sheets
from memsheet.report.json.record import record_of, write_record
from memsheet.sheet import Component, Instant

MEASURED = Path(__file__).parents[2] / "measured"
BAR, TRACE_BAR = 0.005, 0.001
CASES = {case["id"]: case for case in records(MEASURED)}
UNMODELLED = ("experts-pure", "latent-autocast")


def test_there_are_enough_of_them_and_they_are_small():
    assert len(CASES) >= 12
    assert all(file.stat().st_size < 10_000 for file in MEASURED.glob("*.gz"))


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_formulas_say_what_was_measured(name):
    outcome = run_record(CASES[name])
    if name in UNMODELLED and outcome.refused:
        pytest.skip(outcome.refused)
    assert outcome.refused is None
    for row in outcome.rows:
        assert abs(row.error) <= BAR, row


@pytest.mark.parametrize(
    "name",
    sorted(
        name for name, case in CASES.items() if name not in UNMODELLED and len(case["truth"]["ranks"]) == 1
    ),
)
def test_states_are_exact(name):
    """What is kept between steps can be computed to the byte, but for a count of steps (4 bytes) in each
    state of Adam's.
    """
    document = read_sheets(str(MEASURED / f"{name}.json.gz"))
    (sheet,), (formulas,) = document.sheets, predicted(CASES[name]).sheets
    for component in (Component.PARAMETERS, Component.GRADIENTS):
        for instant in (Instant.FORWARD, Instant.OPTIMIZER_STEP):
            assert sheet.of(component, instant=instant).value == formulas.of(component, instant=instant).value


@pytest.mark.parametrize("name", ["experts-pure", "latent-autocast", "gpt2-fp32-full"])
def test_the_trace_says_what_was_measured(name):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from memsheet.timeline import sheet_of
    from memsheet.trace.job import How, trace_training
    from memsheet.trace.requests import plan_from

    case = CASES[name]
    traced = sheet_of(
        trace_training(case["config"], plan_from(case["plan"]), How(device="cpu", scratch=False))
    )
    (rank,) = case["truth"]["ranks"]
    assert abs(traced.allocated.value - rank["allocated_bytes"]) <= TRACE_BAR * rank["allocated_bytes"]


def test_the_table_of_records_is_printed(capsys):
    assert accuracy.main(["--records", str(MEASURED)]) == 0
    told = capsys.readouterr().out
    assert "measured cpu A" in told
    assert "SimuMax" not in told
    assert accuracy.main(["--records", str(MEASURED), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["overall"]["train"]["worst"] <= BAR
    assert not found["beyond_bar"]


def test_a_gpu_s_record_has_its_reserved_and_device_totals_compared(tmp_path):
    sheet = json.loads(gzip.decompress((MEASURED / "llama-tiny-autocast.json.gz").read_bytes()))["sheet"]
    sheet["trace"]["measured"].update(
        device="cuda", environment={"device": "cuda", "device_name": "NVIDIA H100 80GB HBM3"}
    )
    (rank,) = sheet["ranks"]
    rank["reserved_bytes"], rank["device_bytes"] = (
        rank["allocated_bytes"] + 2**20,
        rank["allocated_bytes"] + 2**29,
    )
    write_record(record_of(sheet, asked={}, environment={}), tmp_path / "gpu.json")
    (case,) = records(tmp_path)
    assert case["group"] == "measured NVIDIA H100 80GB HBM3"
    assert [row.metric for row in run_record(case).rows] == [
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "device_bytes",
    ]
    sheet["trace"]["measured"]["environment"]["device_name"] = "a card that nobody knows"
    write_record(record_of(sheet, asked={}, environment={}), tmp_path / "gpu.json")
    (case,) = records(tmp_path)
    assert [row.metric for row in run_record(case).rows] == ["peak_allocated_bytes"]


# ---- files -------------------------------------------------------------------------------------------------


def test_a_record_is_compared_as_a_sheet_is(capsys):
    one, other = (str(MEASURED / f"llama-tiny-{name}.json.gz") for name in ("autocast", "autocast-full"))
    assert main(["compare", one, other, "--json"]) == 0
    (pair,) = json.loads(capsys.readouterr().out)["ranks"]
    assert pair["right_bytes"] < pair["left_bytes"]


def test_a_record_comes_back_as_it_was_written(tmp_path):
    sheet = {"schema": "memsheet/sheet/1", "ranks": []}
    written = record_of(
        sheet, asked={"model": "m", "data": None}, environment={"torch": "2"}, files={"events": "e"}
    )
    for name in ("r.json", "r.json.gz"):
        write_record(written, tmp_path / name)
        found = read_record(tmp_path / name)
        assert (found.name, found.sheet, found.failure) == ("r", sheet, None)
        assert (found.asked, found.environment, found.files) == (
            {"model": "m"},
            {"torch": "2"},
            {"events": "e"},
        )


def test_a_failed_run_is_a_record_and_no_sheet(tmp_path):
    write_record(record_of(None, asked={}, environment={}, failure="it died"), tmp_path / "r.json")
    assert read_record(tmp_path / "r.json").failure == "it died"
    with pytest.raises(InputError, match="it died"):
        read_sheets(str(tmp_path / "r.json"))
    (case,) = records(tmp_path)
    assert run_record(case).refused == "the run failed: it died"


def test_a_device_may_have_counted_less_than_was_seen(tmp_path):
    source = json.loads(gzip.decompress((MEASURED / "llama-tiny-autocast.json.gz").read_bytes()))["sheet"]
    (rank,) = source["ranks"]
    instant = rank["peak_instant"]
    rank["items"].append({
        "component": "unexplained", "path": "x", "bytes": -8, "low_bytes": -8, "high_bytes": -8, "at": {instant: -8}, "evidence": {},
    })  # fmt: skip
    rank["instants"][instant] -= 8
    (tmp_path / "s.json").write_text(json.dumps(source))
    (sheet,) = read_sheets(str(tmp_path / "s.json")).sheets
    assert sheet.at(Instant(instant)).value == rank["instants"][instant]
    rank["items"][-1]["component"] = "temporaries"
    (tmp_path / "s.json").write_text(json.dumps(source))
    with pytest.raises(InputError):
        read_sheets(str(tmp_path / "s.json"))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({}, "neither a sheet nor"), ({"sheet": []}, "is not an object"), ({"asked": 3, "sheet": {}}, "is not an object"),
        ({"failure": 3}, "neither a sheet nor"),
    ],
)  # fmt: skip
def test_what_is_no_record_is_refused(tmp_path, found, words):
    with pytest.raises(InputError, match=words):
        record_from({"schema": "memsheet/record/1", **found}, "x")
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(InputError, match="is not memsheet/record/1"):
        read_record(tmp_path / "x.json")


def test_a_bomb_is_not_unpacked(tmp_path):
    (tmp_path / "x.json.gz").write_bytes(gzip.compress(b" " * 2**28))
    with pytest.raises(InputError, match="longer than"):
        read_record(tmp_path / "x.json.gz")


@pytest.mark.parametrize("file", sorted(MEASURED.glob("*.gz")), ids=lambda file: file.name)
def test_records_are_as_their_schema_says(file):
    schema = pytest.importorskip("memsheet.report.schema.documents")
    schema.document_model(schema.Record).model_validate_json(gzip.decompress(file.read_bytes()))
