"""A running job watched by what nvidia-smi prints."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.measure import watch
from memsheet.measure.watch import Card, growth_of, process_parents, read_cards
from memsheet.units import GIB, MIB

CARDS = "0, GPU-a, 1024, 81920\n1, GPU-b, 2048, 81920\n"


def said(cards: str = CARDS, processes: str = ""):
    def ask(command):
        return cards if "gpu=" in command[1] else processes

    return ask


def test_a_job_is_its_process_and_all_that_it_started() -> None:
    ask = said(processes="7, GPU-b, 512\n9, GPU-b, 256\n11, GPU-a, 99\n")
    parents = {7: 5, 5: 1, 9: 7, 11: 1}
    assert read_cards(5, ask, lambda: parents) == [Card(1, 2048 * MIB, 81920 * MIB, 768 * MIB)]
    nobody = read_cards(6, ask, lambda: parents)  # in a container nobody is named
    assert [card.own for card in nobody] == [None, None]


def test_parents_are_read_of_the_kernel_and_else_asked_of_ps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, stat in ((7, "7 (a) b) S 5 7"), (5, "5 (sh) S 1 5")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "stat").write_text(stat)
    assert process_parents(tmp_path) == {7: 5, 5: 1}
    monkeypatch.setattr(watch, "driver_output", lambda _: " 7 5\n 5 1\n")
    assert process_parents(tmp_path / "none") == {7: 5, 5: 1}


@pytest.mark.parametrize("text", ["", "No devices were found\n", "0, GPU-a, [N/A], [N/A]\n"])
def test_without_a_gpu_there_is_nothing_to_watch(text: str) -> None:
    with pytest.raises(InputError, match="no GPU"):
        read_cards(None, said(text))


def test_growth_that_is_steady_says_when_the_card_is_full() -> None:
    line = [(float(n), Card(0, GIB + n * MIB, 2 * GIB, None)) for n in range(20)]
    growth = growth_of(line)
    assert growth is not None
    assert round(growth.bytes_per_s) == MIB
    assert round(growth.full_in_s or 0) == 1024 - 19
    assert growth_of(line[:3]) is None
    flat = growth_of([(float(n), Card(0, GIB, 2 * GIB, None)) for n in range(20)])
    assert flat is not None
    assert flat.full_in_s is None


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f"#!/bin/sh\ncase $1 in *gpu=*) printf '{CARDS}' ;; esac\n".replace("\n1, ", "\\n1, ").replace(
            "\n' ;;", "\\n' ;;"
        )
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.usefixtures("driver")
def test_a_command_is_watched_until_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        [
            "watch",
            "--interval",
            "0.2s",
            "--",
            sys.executable,
            "-c",
            "import time, sys; time.sleep(0.5); sys.exit(3)",
        ]
    )
    shown = capsys.readouterr().out
    assert code == 3
    assert "1.00 GiB of 80.00 GiB used" in shown
    assert "GPU 1 at the highest 2.00 GiB" in shown


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    "words",
    [
        ["watch"],
        ["watch", "999999999"],
        ["watch", "--interval", "x", "1"],
        ["watch", "--count", "0", "1"],
        ["watch", "no-such-program"],
    ],
)
def test_what_cannot_be_watched_is_bad_input(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.usefixtures("driver")
def test_a_process_is_watched_for_so_many_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(os.getpid()), "--count", "1"]) == 0
    assert capsys.readouterr().out.count("GPU 0") == 2
