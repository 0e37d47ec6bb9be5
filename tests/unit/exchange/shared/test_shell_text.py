"""A shell's script as text: what its commands are given is what the shell itself would give them."""

from __future__ import annotations

import subprocess

import pytest

from memsheet.exchange.shared.plain_shell import plain_script
from memsheet.exchange.shared.serve_script import Variables, script_lines, split_line_commands
from memsheet.exchange.shared.shell_text import ShellScript

SCRIPTS = {
    "array": "A=(--a 1\n  --b 2 # two\n)\nrun ${A[@]} --c",
    "grown array": 'A=(--a 1)\nA+=(--b "x y")\nrun "${A[@]}"',
    "options": 'O=" \\\n --a 1 \\\n --b 2"\nO="${O} --c"\nrun $O',
    "default": "N=${WILD_N:-4}\nrun --n $N --m ${WILD_M:-5}",
    "quoted default": 'N=${WILD_N:-"4"}\nrun --n $N',
    "given default": "N=3\nM=${N:-4}\nrun --n $M",
    "default of what is empty": "U=${WILD_U:-}\nU=${U:-0.6}\nM=\nrun --u ${U} --m ${M:-5} x${M-6}",
    "expr": "A=8\nrun --g $(expr 32 / $A) --h `expr 2 + 3`",
    "sum": "A=8\nB=2\nG=$(( A * B / 4 + 1 ))\nrun --g $(($A*$B)) --h 3",
    "branch": 'X=on\nO=--a\nif [ "$X" = "on" ]; then\nO="$O --b"\nelse\nO="$O --c"\nfi\nrun $O',
    "branch not taken": "N=1\nO=--a\nif [[ $N -gt 1 ]]; then\nO=--b\nfi\nrun $O",
    "unset": 'O=--a\nif [ -n "$WILD_KEY" ]; then\n O="$O --key"\nfi\nrun $O',
    "inside": "A=one\nrun --a /x/$A/y --b ${A}_${A}",
    "comment sign inside a word": "run --data org/name#500 --n 1",
    "sum of names": "a=2\nb=$((a * 3))\nrun --n $((a + b)) --m $(((a + b) * 2))",
    "sum in an array": "a=2\nA=(\n --n $((a * 3))\n --m $(( (a + 1) * 2 ))\n --o 1\n)\nrun ${A[@]}",
    "array of one": "A=(--a)\nrun ${A[@]} --b",
    "defaults in one another": 'M=${WILD_M:-${WILD_D:-"${WILD_H:-/h}/v"}/m}\nrun --m $M',
    "default with braces inside": 'D=d\nM=${WILD_M:-"${WILD_H:-/h}/v/${D}"}\nrun --m $M/x',
    "nested": "N=2\nif [ $N -eq 2 ]; then\nif [ $N -lt 2 ]; then\nO=--x\nelse\nO=--y\nfi\nfi\nrun $O",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_words_of_a_command_are_the_shells(name: str) -> None:
    text = SCRIPTS[name]
    said = subprocess.run(
        ["bash", "-c", 'run() { printf "%s\\n" "$@"; }\n' + text.replace("$(( A * B", "$(( $A * $B")],
        capture_output=True, text=True, check=True,
    ).stdout.split("\n")[:-1]  # fmt: skip
    command = next(words for words in ShellScript(text).commands() if words[0] == "run")
    assert " ".join(command[1:]).split() == " ".join(said).split()


def test_what_nobody_set_stays_as_it_is() -> None:
    (command,) = ShellScript("run --a $WILD_A --b ${WILD_B} --n $(nproc)").commands()
    assert command[:3] == ["run", "--a", "$WILD_A"]
    assert command[4] == "${WILD_B}"
    assert "$(nproc)" in command


def test_a_condition_that_nobody_can_tell_is_taken() -> None:
    text = "if grep -q x file; then\nrun --a\nelse\nrun --b\nfi"
    assert ["run", "--a"] in list(ShellScript(text).commands())


SETS = {
    "alone": ': "${WILD_A:=b}"\nrun --a $WILD_A',
    "bare": ": ${WILD_A:=b}\nrun --a $WILD_A",
    "several": ': "${WILD_A:=b}" ${WILD_B:=c}  # both\nrun --a $WILD_A --b $WILD_B',
    "of another": 'A=x\n  : "${WILD_A:=$A/y}"\nrun --a "${WILD_A}"',
    "with a default inside": ': "${WILD_A:=${WILD_B:-/m}/y}"\nrun --a ${WILD_A}',
    "below comments that end with a backslash": "# run --a 1 \\\n#  --b 2 \\\nrun --a 3 \\\n --b 4",
    "given before": 'A=x\n: "${A:=b}"\nrun --a $A',
}


@pytest.mark.parametrize("name", SETS)
def test_a_default_that_is_set_where_nothing_runs_stays(name: str) -> None:
    text = SETS[name]
    command = text.replace("run ", "printf '%s\\n' ")
    wanted = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout.split()
    plain = plain_script(text).text
    *_, words = ShellScript(plain).commands()
    assert words[1:] == wanted
    known = Variables()
    commands = [one for line in script_lines(plain) for one in split_line_commands(line)]
    for one in commands:
        known.learn(one)
    assert known.filled(commands[-1][1:], defaults=True) == wanted
