"""Several processes measured together: one sheet of all ranks, printed once, and what becomes of ranks that
are wrong or lost.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from memsheet.cli import first_rank as voice
from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.measure.profiler import _add_missing_releases, _Allocation, _without_accumulators
from memsheet.questions.measured import merge_equal_sheets
from memsheet.sheet import Bytes, Component, Derived, Instant, Item, Sheet
from memsheet.trace import launch

pytestmark = pytest.mark.usefixtures("warm_children")
JOB = ["llama-tiny", "--dp-shard", "2", "--seq-len", "128"]
ONE = [sys.executable, "-m", "memsheet", "measure", *JOB, "--steps", "1"]
BAR = 0.01


def asked(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


# ---- the whole way -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_processes_hold_what_was_traced_of_each_rank(capsys):
    measured = asked(capsys, "measure", *JOB, "--steps", "1")
    assert sum(1 + len(each["same_as"]) for each in measured["ranks"]) == 2
    for each in measured["ranks"]:
        (traced,) = asked(
            capsys, "trace", *JOB, "--rank", str(each["rank"]), "--device", "cpu", "--no-scratch"
        )["ranks"]
        assert each["peak_instant"] == traced["peak_instant"]
        assert each["allocated_bytes"] == pytest.approx(traced["allocated_bytes"], rel=BAR)
    assert measured["trace"]["measured"]["tokens_per_s"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh",
    [
        ["--dp-shard", "2", "--tp", "2"],
        ["--dp-shard", "2", "--pp", "2", "--schedule", "1f1b", "--global-batch", "8"],
    ],
)
def test_four_processes_hold_what_was_traced_of_each_rank(capsys, mesh):
    job = [JOB[0], *mesh, *(["--engine", "fsdp2"] if "--engine" not in mesh else []), "--seq-len", "128"]
    measured = asked(capsys, "measure", *job, "--steps", "1")["ranks"]
    assert sum(1 + len(each["same_as"]) for each in measured) == 4
    for each in measured:
        (traced,) = asked(
            capsys, "trace", *job, "--rank", str(each["rank"]), "--device", "cpu", "--no-scratch"
        )["ranks"]
        assert each["allocated_bytes"] == pytest.approx(traced["allocated_bytes"], rel=BAR)


@pytest.mark.slow
def test_under_torchrun_one_sheet_is_printed(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, *ONE[1:], "--json"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert json.loads(done.stdout)["plan"]["mesh"]["dp_shard"] == 2


@pytest.mark.slow
def test_one_rank_of_fsdp2_holds_what_was_traced(capsys):
    job = ["llama-tiny", "--engine", "fsdp2", "--seq-len", "128"]
    (measured,) = asked(capsys, "measure", *job, "--steps", "1")["ranks"]
    (traced,) = asked(capsys, "trace", *job, "--device", "cpu", "--no-scratch")["ranks"]
    assert measured["allocated_bytes"] == pytest.approx(traced["allocated_bytes"], rel=0.001)


def children(process):
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == process:
                found.append(int(stat.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks up processes in /proc")
def test_a_rank_that_is_killed_ends_the_others_and_is_named():
    command = [*ONE[:-1], "5000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        ranks = []
        while running.poll() is None and len(ranks) < 2:
            time.sleep(0.5)
            ranks = [rank for torchrun in children(running.pid) for rank in children(torchrun)]
        time.sleep(6)  # let them join
        os.kill(ranks[1], signal.SIGKILL)
        killed = time.monotonic()
        out, said = running.communicate(timeout=60)
    assert time.monotonic() - killed < 60
    assert (running.returncode, out) == (2, "")
    assert "rank" in said
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)


# ---- the question ------------------------------------------------------------------------------------------


@pytest.fixture
def among_two(monkeypatch):
    def be(rank):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setattr(voice, "SILENCE_S", 0.0)

    return be


@pytest.mark.parametrize("mesh", [["--dp-shard", "4"], ["--tp", "4"], []])
def test_another_number_of_ranks_than_the_plan_has_is_refused_once(capsys, among_two, mesh):
    for rank, said in ((0, True), (1, False)):
        among_two(rank)
        assert main(["measure", "llama-tiny", *mesh, "--engine", "fsdp2", "--seq-len", "64"]) == 2
        told = capsys.readouterr()
        assert ("mesh = " in told.err and "2 were started" in told.err) is said
        assert told.out == ""


def test_one_rank_alone_is_refused_among_several(capsys, among_two):
    among_two(0)
    assert main(["measure", "llama-tiny", "--seq-len", "64"]) == 2
    assert "2 were started" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        ["--vary-length"],
        ["--max-model-len", "64", "--tp", "2", "--engine", "transformers"],
        ["--engine", "deepspeed"],
    ],
)
def test_what_ranks_are_not_measured_in_is_refused(capsys, flags):
    assert main(["measure", *(JOB if "--tp" not in flags else JOB[:1]), *flags]) == 2
    assert capsys.readouterr().out == ""


# ---- ranks that are alike, wrong or lost -------------------------------------------------------------------


def sheet(rank, size, stage=0):
    item = Item(Component.PARAMETERS, "w", {Instant.LOAD: Bytes.exact(size)}, Derived("counted"))
    return Sheet(rank=rank, stage=stage, items=(item,))


def test_ranks_that_hold_the_same_are_one_sheet():
    same = merge_equal_sheets([sheet(0, 10), sheet(1, 12), sheet(2, 10), sheet(3, 10, stage=1)])
    assert [(each.rank, each.same_as) for each in same] == [(0, (2,)), (1, ()), (3, ())]
    assert replace(same[0], same_as=()) == sheet(0, 10)


REPORT = """
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : {first} (pid: 11)
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : {second} (pid: 12)
"""


def test_a_rank_that_was_killed_is_named():
    lost = launch._killed_rank_error(REPORT.format(first=-15, second=-9))
    assert isinstance(lost, InputError)
    assert (lost.problems[0].value, lost.problems[0].reason) == ("rank 1", "was ended by signal 9")
    assert launch._killed_rank_error(REPORT.format(first=-15, second=1)) is None


def test_the_first_rank_that_failed_is_heard(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    launch.write_answer(tmp_path, {"timelines": [1]})
    assert launch._first_rank_answer(tmp_path) == {"timelines": [1]}
    for rank, said in ((1, "own fault"), (2, "heard of it")):
        monkeypatch.setenv("RANK", str(rank))
        launch.write_answer(tmp_path, {"failure": said})
        time.sleep(0.02)
    assert launch._first_rank_answer(tmp_path) == {"failure": "own fault"}


def test_a_products_own_sums_are_left_out_and_its_result_and_other_scratch_are_not():
    product, scratch, result, other = "aten::mm", (1, 256), (2, 128), (3, 64)
    heard = [
        _Allocation(10, result[1], result[0], product, op_end=20),
        _Allocation(11, scratch[1], scratch[0], product, op_end=20),
        _Allocation(19, -scratch[1], scratch[0], product, op_end=20),
        _Allocation(25, -result[1], result[0], product, op_end=30),  # let go while another one runs
        _Allocation(31, other[1], other[0], "aten::_softmax", op_end=40),
        _Allocation(39, -other[1], other[0], "aten::_softmax", op_end=40),
    ]
    assert [(one.address, one.bytes) for one in _without_accumulators(heard)] == [
        (2, 128),
        (2, -128),
        (3, 64),
        (3, -64),
    ]


def test_what_a_thread_of_gloo_let_go_of_is_gone_with_its_collective():
    """Three clones of which the profiler heard one's release; the second's place was given away, the third's
    not.
    """
    made = [
        _Allocation(at, 8, address, "aten::clone", until=at + 5)
        for at, address in ((10, 1), (20, 2), (30, 2))
    ]
    heard = [
        *made,
        _Allocation(14, -8, 1, ""),
        _Allocation(1, 4, 3, "aten::zeros"),
        _Allocation(40, 2, 4, "aten::add"),
    ]
    released = _add_missing_releases(heard)
    assert [(one.at, one.bytes) for one in released if one.bytes < 0] == [(14, -8), (25, -8), (35, -8)]
    assert sum(one.bytes for one in released) == 4 + 2
