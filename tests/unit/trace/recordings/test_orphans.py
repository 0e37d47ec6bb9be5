"""The recording process outlives nobody who asks it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from memsheet.trace.recordings import process

ASKER = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-m", "memsheet.trace.recordings.worker", str(os.getpid())], stdin=subprocess.PIPE, start_new_session=True)
print(child.pid, flush=True)
os.read(0, 1)
os.kill(os.getpid(), 9)
"""


def is_alive(number):
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    with Path(f"/proc/{number}/stat").open() as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("late", [0, 0.5])
def test_it_ends_with_the_process_that_started_it_though_its_input_stays_open(late):
    reading, writing = os.pipe()  # held open by a third process
    asker = subprocess.Popen(
        [sys.executable, "-c", ASKER.replace("stdin=subprocess.PIPE", f"stdin={reading}")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(reading,),
        text=True,
    )
    number = int(asker.stdout.readline())
    assert is_alive(number)
    time.sleep(late)
    asker.kill()
    asker.wait()
    for _ in range(240):
        if not is_alive(number):
            break
        time.sleep(0.25)
    else:
        os.kill(number, 9)
        raise AssertionError("it is still there")
    os.close(reading)
    os.close(writing)


ECHO = """
import json, sys
for line in sys.stdin:
    print(json.dumps({"echo": json.loads(line)["ways"]}), flush=True)
"""


def test_who_is_interrupted_leaves_no_answer_to_the_next(monkeypatch):
    """Ctrl-C in a notebook, and the next question there is not given the answer of the last."""
    monkeypatch.setattr(process, "COMMAND", (sys.executable, "-c", ECHO))
    asked = {"config": {}, "ways": ["first"]}
    with monkeypatch.context() as context:
        context.setattr(process.select, "select", interrupted)
        with pytest.raises(KeyboardInterrupt):
            process.ask_recorder(asked)
    try:
        assert process.ask_recorder({**asked, "ways": ["second"]}) == {"echo": ["second"]}
    finally:
        process.stop_recorder()


def interrupted(*_):
    raise KeyboardInterrupt
