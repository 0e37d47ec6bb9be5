"""A real step on this machine's processor: what it allocates is what the trace said, and what the profiler counts besides is named."""

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from memsheet.cli import main

JOB = ["llama-tiny", "--seq-len", "256", "--microbatch", "2", "--precision", "bf16-autocast", "--recompute", "full"]
BAR = 0.001


def asked(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def told():
    return {}


@pytest.fixture
def sheets(capsys, told):
    if not told:
        told["measured"] = asked(capsys, "measure", *JOB, "--steps", "1")
        told["traced"] = asked(capsys, "trace", *JOB, "--device", "cpu", "--no-scratch")
    return told


def held(document, instant):
    (rank,) = document["ranks"]
    return {(i["component"], i["path"]): i["at"][instant] for i in rank["items"] if instant in i["at"]}


def test_a_real_step_holds_what_was_traced(sheets):
    assert sheets["measured"]["witness"] == "measured"
    for instant in ("load", "forward", "loss", "backward", "optimizer_step"):
        measured, traced = held(sheets["measured"], instant), held(sheets["traced"], instant)
        rest = measured.pop(("unexplained", "profiler"), 0)
        assert measured == traced, instant
        if instant == "backward":  # the peak
            assert abs(rest) <= BAR * sum(traced.values())


def test_the_sheet_adds_up_to_what_the_profiler_counted(sheets):
    counted = sheets["measured"]["trace"]["measured"]["instants"]
    assert counted["backward"] == max(counted.values())
    for instant, size in counted.items():
        assert sum(held(sheets["measured"], instant).values()) == size


def test_a_step_is_timed(sheets):
    found = sheets["measured"]["trace"]["measured"]
    assert found["steps"] == 1
    assert 0 < found["fastest_s"] <= found["step_s"] <= found["slowest_s"]
    assert found["tokens_per_s"] == pytest.approx(2 * 256 / found["step_s"], rel=0.01)


@pytest.mark.parametrize(
    ("flags", "field"), [(["--device", "cuda"], "device"), (["--gpus", "1xH100-80GB"], "gpus"), (["--steps", "0"], "steps")]
)
def test_what_is_not_measured_is_refused(capsys, flags, field):
    assert main(["measure", *JOB, *flags]) == 2
    assert f"{field} = " in capsys.readouterr().err
