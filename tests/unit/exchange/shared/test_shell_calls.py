"""A script that starts another has its words in the other's places, as the shell gives them."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from memsheet.exchange.shared.launched_script import filled_commands
from memsheet.exchange.shared.plain_shell import plain_script
from memsheet.exchange.shared.started_scripts import with_started_scripts
from memsheet.guard.budget import MOST_SCRIPT

STARTED = """M=x
A=""
while [[ $# -gt 0 ]]; do
  case $1 in
    --model) M="$2"; shift 2;;
    *) A="$A $1"; shift;;
  esac
done
run --processes ${NPROC:-2} --m $M $A
"""
CALLS = {
    "words": "bash ./started.sh --model a --b 2",
    "without a shell's name": "./started.sh --model a --b 2",
    "a variable before": "NPROC=4 bash started.sh --model a",
    "over lines": "bash started.sh \\\n  --model a \\\n  --b 2\n",
    "names": 'M=a\nE="--b 2 --c"\nbash started.sh --model $M $E',
    "its own words": 'go() { bash started.sh --model a "$@"; }\ngo --b 2',
    "after another command": "cd . && bash ./started.sh --model a; echo done",
    "its folder": 'bash "$HERE"/started.sh --model a',
    "the folder of a command": 'cd "$HERE"; bash "$(dirname "$HERE/x")/started.sh" --model a',
    "quoted variables before": 'B=4\nNPROC="${B}" OTHER="a b" \\\n  bash started.sh --model a',
    "a program that takes variables": "env NPROC=8 bash started.sh --model a",
}


@pytest.mark.parametrize("name", CALLS)
def test_the_words_of_a_started_script_are_the_shells(name: str, tmp_path: Path) -> None:
    (tmp_path / "started.sh").write_text("#!/bin/bash\n" + STARTED)
    (tmp_path / "started.sh").chmod(0o755)
    run = tmp_path / "run"
    run.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    run.chmod(0o755)
    said = subprocess.run(
        ["bash", "-c", CALLS[name]], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "HERE": str(tmp_path)},
    ).stdout.split()  # fmt: skip
    text = with_started_scripts(CALLS[name], {"started.sh": STARTED}.get)
    command = next(words for words in filled_commands(plain_script(text).text) if words[:1] == ["run"])
    assert " ".join(command[1:]).split() == [word for word in said if word != "done"]


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("bash other.sh --a", {}),
        ("echo bash started.sh", {"started.sh": STARTED}),
        ("bash started.sh", {"started.sh": "x" * MOST_SCRIPT}),
        ("python train.py --script started.sh", {"started.sh": STARTED}),
    ],
)
def test_what_is_not_started_or_too_long_stays_as_it_is(text: str, held: dict[str, str]) -> None:
    assert with_started_scripts(text, held.get) == text


@pytest.mark.parametrize(
    "before", ["srun -n 4 ", "srun --ntasks 4 \\\n  --gpus=4 \\\n  ", 'srun -N1 A="b c" env B=1 ']
)
def test_a_script_that_srun_starts_is_read(before: str) -> None:
    assert "--processes" in with_started_scripts(f"{before}bash started.sh a", {"started.sh": STARTED}.get)


@pytest.mark.parametrize("part", ['A="b" \\\n', "srun -a=b \\\n", "{A={ ", "{a", "env \\\n", "srun -a 1 "])
def test_a_text_that_starts_nothing_takes_no_time_of_its_square(part: str) -> None:
    began = time.process_time()
    assert with_started_scripts(part * 4000, {"started.sh": STARTED}.get) == part * 4000
    assert time.process_time() - began < 3


def test_scripts_that_start_one_another_end() -> None:
    held = {"a.sh": "bash b.sh $1", "b.sh": "bash a.sh $1\nrun --n $1"}
    command = next(
        words
        for words in filled_commands(plain_script(with_started_scripts("bash a.sh 3", held.get)).text)
        if words[:1] == ["run"]
    )
    assert command == ["run", "--n", "3"]
