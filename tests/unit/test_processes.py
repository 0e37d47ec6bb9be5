"""Tasks shared out over processes come to what they come to one after another, whatever befalls a copy."""

from __future__ import annotations

import os
import signal
import sys
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

import memsheet
from memsheet import processes
from memsheet.plan.dtypes import BY_NAME
from memsheet.processes import may_fork, share_out
from memsheet.report.json.plans import plans_document
from memsheet.resolve import resolve_request

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux alone")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test runner has threads of its own, which hold no lock that a task asks for."""
    monkeypatch.setattr(threading, "active_count", lambda: 1)


def _squares(number: int) -> tuple[int, np.ndarray]:
    return number, np.arange(number) ** 2


@pytest.mark.parametrize("most", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 40])
@pytest.mark.usefixtures("alone")
def test_results_stand_in_the_order_of_tasks(count: int, most: int) -> None:
    found = share_out([partial(_squares, number) for number in range(count)], most=most)
    assert [number for number, _ in found] == list(range(count))
    assert all(np.array_equal(squares, np.arange(number) ** 2) for number, squares in found)


@pytest.mark.usefixtures("alone")
def test_objects_that_both_have_come_back_as_themselves() -> None:
    held = [object() for _ in range(6)]
    found = share_out([partial(lambda one: {"of": one, "new": [1]}, one) for one in held], held, most=3)
    assert all(one["of"] is own for one, own in zip(found, held, strict=True))


@pytest.mark.usefixtures("alone")
def test_what_a_task_raises_is_raised() -> None:
    def fail(number: int) -> int:
        if number == 5:
            raise KeyError(number)
        return number

    with pytest.raises(KeyError, match="5"):
        share_out([partial(fail, number) for number in range(8)], most=3)


@pytest.mark.usefixtures("alone")
def test_a_copy_that_is_killed_leaves_its_tasks_to_this_process() -> None:
    own = os.getpid()

    def die_elsewhere(number: int) -> int:
        if os.getpid() != own:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    assert share_out([partial(die_elsewhere, number) for number in range(9)], most=4) == list(range(9))


@pytest.mark.usefixtures("alone")
def test_what_cannot_be_pickled_is_done_here() -> None:
    found = share_out([lambda: lambda: 1 for _ in range(4)], most=2)
    assert [one() for one in found] == [1] * 4


@pytest.mark.usefixtures("alone")
def test_a_copy_shares_nothing_out_again() -> None:
    assert share_out([lambda: may_fork() or os.getpid() for _ in range(2)], most=2)
    own = os.getpid()
    found = share_out([partial(lambda: (os.getpid() == own, may_fork())) for _ in range(50)], most=2)
    assert all(here or not forks_again for here, forks_again in found)


@pytest.mark.usefixtures("alone")
def test_more_tasks_than_a_pipe_holds_are_all_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "NUMBER_BYTES", 4096)  # sixteen numbers in a pipe of 64 KiB
    assert share_out([partial(int, number) for number in range(40)], most=2) == list(range(40))


def test_threads_of_this_process_keep_it_from_forking() -> None:
    halt = threading.Event()
    other = threading.Thread(target=halt.wait)
    other.start()
    try:
        assert not may_fork()
    finally:
        halt.set()
        other.join()


@pytest.mark.usefixtures("alone")
def test_no_copy_outlives_its_question(monkeypatch: pytest.MonkeyPatch) -> None:
    pids, fork = list[int](), processes._fork

    def forked() -> int:
        pids.append(fork())
        return pids[-1]

    monkeypatch.setattr(processes, "_fork", forked)
    share_out([partial(_squares, number) for number in range(6)], most=3)
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("engine", ["fsdp2", None])
def test_a_search_that_is_shared_out_finds_what_it_finds_alone(
    engine: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the byte, though what copies found was pickled: a run of all tests shares nothing out. Of every
    engine: their legal plans are found by copies, too.
    """
    forks, fork = list[int](), processes._fork

    def forked() -> int:
        forks.append(fork())
        return forks[-1]

    def document(most: int) -> dict[str, Any]:
        monkeypatch.setattr(processes, "MOST", most)
        ranked = memsheet.plan("llama-tiny", gpus="2xA100-80GB", engine=engine, seq_len=512, global_batch=4)
        return plans_document(ranked, seconds=0.0)

    monkeypatch.setattr(processes, "usable_processors", lambda: 3)
    monkeypatch.setattr(processes, "_fork", forked)
    alone = document(1)
    assert not forks
    assert document(3) == alone
    assert forks


@pytest.mark.usefixtures("alone")
def test_formats_of_a_plan_that_a_copy_resolved_are_those_that_formulas_ask_for() -> None:
    """Formulas ask which format it is, not what it is like."""
    request = {"task": "train", "engine": "fsdp2", "seq_len": 512}
    for one in share_out([partial(resolve_request, request, None) for _ in range(6)], most=3):
        for name in ("parameters", "compute", "gradients"):
            dtype = getattr(one.plan.precision, name)
            assert dtype is BY_NAME[dtype.name]
