"""How a command ends: with a stranger's text, a reader that has gone, an interrupt, a full disk, a step that
leaves others running.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import pytest

from memsheet.cli import main, screen
from memsheet.cli.error_output import explain_input
from memsheet.errors import MOST_SHOWN, InputError, Problem
from memsheet.questions import accounted
from memsheet.readers.calibration import read_calibrations
from memsheet.report.shared.files import alone_with, check_file, check_folder, write_all, write_whole

MEMSHEET = str(Path(sys.executable).parent / "memsheet")
ESCAPES = ("\x1b]0;owned\x07", "\x1b[2J", "\x07", "\u202e", "\r", "\x9b31m", "\x00", "\n\x1b[8m")
QUESTION = ("infer", "llama-3.1-8b", "--gpus", "1xH100-80GB", "--engine", "vllm", "--max-model-len", "4096")


@pytest.mark.parametrize("escape", ESCAPES)
@pytest.mark.parametrize("place", ["field", "value", "reason", "hint"])
def test_no_part_of_a_problem_reaches_a_terminal_as_a_command(
    place: str, escape: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {"field": "f", "value": "v", "reason": "r", "hint": "h", place: f"a{escape}b"}
    error = InputError(Problem(**said))
    explain_input(error)
    written = capsys.readouterr().err
    assert all(line.isprintable() for text in (written, str(error)) for line in text.split("\n"))
    assert written.count("\n") == 2
    assert "a" in written
    assert "b" in written


@pytest.mark.parametrize("escape", [one for one in ESCAPES if "\n" not in one])
def test_nor_does_an_answer(escape: str, capsys: pytest.CaptureFixture[str]) -> None:
    screen.write_stdout(f"\x1b[1mbold\x1b[0m\t{escape}name\n")
    written = capsys.readouterr().out
    assert written.startswith("\x1b[1mbold\x1b[0m\t�")
    assert written.endswith("name\n")
    assert not {"\x07", "\r", "\x00", "\x9b", "\u202e"} & set(written)
    assert written.count("\x1b") == 2


def test_many_problems_are_some_and_a_count(capsys: pytest.CaptureFixture[str]) -> None:
    error = InputError(Problem(field=f"f{number}", reason="r") for number in range(25_000))
    explain_input(error)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == MOST_SHOWN + 2
    assert f"{25_000 - MOST_SHOWN:,} more" in lines[-1]
    assert len(str(error).splitlines()) == MOST_SHOWN + 1
    assert len(error.problems) == 25_000


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device here")
@pytest.mark.parametrize(
    "words", [QUESTION, (*QUESTION, "--json"), ("gpus",), ("--help",), ("train", "--nonsense", "--json")]
)
@pytest.mark.parametrize(
    "end", ["> /dev/full", ">&-", "2>&-", "> /dev/full 2> /dev/full", ">&- 2>&-", "| head -c 1", "| true"]
)
def test_where_nobody_reads_there_is_no_traceback(words: tuple[str, ...], end: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f'"$0" "$@" {end}; exit ${{PIPESTATUS[0]}}', MEMSHEET, *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 2, 10, 11)
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
    assert "Exception" not in done.stderr


@pytest.mark.parametrize(
    "wait_s", [0.8, *(pytest.param(wait_s, marks=pytest.mark.slow) for wait_s in (0.25, 0.4, 1.5))]
)
def test_an_interrupt_is_said_in_a_word(wait_s: float, tmp_path: Path) -> None:
    words = (
        "plan",
        "train",
        "llama-3.1-70b",
        "--gpus",
        "512xH100-80GB",
        "--seq-len",
        "8192",
        "--global-batch",
        "1024",
    )
    with subprocess.Popen(
        [MEMSHEET, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as running:
        time.sleep(wait_s)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
    if running.returncode in (-signal.SIGINT, 1):
        pytest.skip("the interpreter itself was still starting")
    assert "Traceback" not in said
    assert running.returncode in (130, 0, 10)
    assert running.returncode != 130 or said.strip().splitlines()[-1] == "interrupted"


def test_an_interrupt_that_a_package_tells_as_its_own_error_is_an_interrupt() -> None:
    """As numpy's compiled part does while it is imported: the error follows from nothing."""
    script = (
        "import os, signal, sys\n"
        "from memsheet import cli\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def dispatch(words):\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    except KeyboardInterrupt:\n"
        "        pass\n"
        "    raise ImportError('the compiled part failed')\n"
        "cli._dispatch_command = dispatch\n"
        "sys.exit(cli.main())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (130, "interrupted")


def test_files_are_written_all_or_none(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        write_all({tmp_path / "a": b"1", tmp_path / "b": b"2"})
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    write_all({tmp_path / "a": b"1", tmp_path / "c": b"2"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + ".svg", "a\0b", "\ud800", "f/g", "f/g/h"])
@pytest.mark.parametrize(
    "writes",
    [lambda p: check_file(p, "record"), lambda p: check_folder(p / "a", "records"), lambda p: write_all({p: b"1"}), lambda p: write_whole(p, b"1", "events")],
)  # fmt: skip
def test_a_name_that_no_file_can_have_is_refused(
    name: str, writes: Callable[[Path], None], tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("x")
    with pytest.raises(InputError, match=r"cannot be|is in a folder|is not a folder"):
        writes(tmp_path / name)
    assert [held.name for held in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_not_written_through(there: bool, tmp_path: Path) -> None:
    target = tmp_path / "target"
    if there:
        target.write_text("theirs")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "b").symlink_to(target)
    with pytest.raises(InputError, match="is a link"):
        write_all({tmp_path / "out" / "a": b"1", tmp_path / "out" / "b": b"2"})
    assert (target.read_text() if there else not target.exists()) in ("theirs", True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b"]


def _count(path: Path) -> None:
    for _ in range(50):
        with alone_with(path, "file"):
            held = json.loads(path.read_text()) if path.exists() else 0
            write_all({path: json.dumps(held + 1).encode()})


def test_no_update_is_lost(tmp_path: Path) -> None:
    started = [
        get_context("spawn").Process(target=_count, args=(tmp_path / "a" / "kept.json",)) for _ in range(2)
    ]
    for one in started:
        one.start()
    for one in started:
        one.join(60)
    assert json.loads((tmp_path / "a" / "kept.json").read_text()) == 100


def test_python_reads_a_plan_with_limits(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(b'{"a": "' + b"x" * (9 * 2**20) + b'"}')
    with pytest.raises(InputError, match="more than the"):
        accounted.train(plan=tmp_path / "plan.json")
    with pytest.raises(InputError):
        accounted.train(plan=Path("/dev/zero"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no copies of a process here")
def test_what_a_traced_step_starts_ends_with_it(tmp_path: Path) -> None:
    from memsheet.trace.parent import _run_group

    (tmp_path / "left.py").write_text(
        "import os, sys, time\nif os.fork() == 0:\n    time.sleep(1)\n    open('left', 'w').close()\n    "
        "time.sleep(60)\nprint('{}')\n"
    )
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        with (tmp_path / "said").open("w+b") as said:
            done = _run_group([sys.executable, "left.py"], "", said, 30, dict(os.environ), 2**30)
    finally:
        os.chdir(before)
    time.sleep(1.5)
    assert done.returncode == 0
    assert not (tmp_path / "left").exists()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="memory of others is told by Linux")
def test_what_a_traced_step_starts_counts_in_its_limit(tmp_path: Path) -> None:
    from memsheet.trace.parent import _run_group

    code = (
        "import os, time\nif os.fork() == 0:\n    held = bytearray(400 << 20)\n    "
        "time.sleep(60)\nos.wait()\n"
    )
    with (tmp_path / "said").open("w+b") as said:
        start = time.monotonic()
        done = _run_group([sys.executable, "-c", code], "", said, 50, dict(os.environ), 200 << 20)
    assert done.returncode == -signal.SIGKILL
    assert time.monotonic() - start < 40


def test_only_the_end_of_what_a_child_says_is_kept(tmp_path: Path) -> None:
    from memsheet.trace.parent import MOST_SAID, end_of

    with (tmp_path / "said").open("w+b") as said:
        said.write(b"x\n" * (4 * MOST_SAID) + b"the end\n")
        found = end_of(said)
    assert len(found) <= MOST_SAID
    assert found.endswith("the end\n")


@pytest.mark.parametrize("value", [1e308, -1e308, 2.0**63])
@pytest.mark.parametrize(
    "key",
    [
        "reduce_bucket_size",
        "allgather_bucket_size",
        "stage3_prefetch_bucket_size",
        "stage3_max_live_parameters",
    ],
)
def test_a_size_beyond_all_sizes_is_refused(
    key: str, value: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ds_config.json"
    file.write_text(
        json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, key: value}})
    )
    assert (
        main(["check", str(file), "--model", "llama-3.2-1b", "--gpus", "8xH100-80GB", "--seq-len", "512"])
        == 2
    )
    assert f"{key} = {value}: is outside ±2^63" in capsys.readouterr().err


def test_a_calibration_of_an_impossible_name_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be opened"):
        read_calibrations(Path("x" * 5000))
