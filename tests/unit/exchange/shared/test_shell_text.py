"""A shell's script as text: what its commands are given is what the shell itself would give them."""

from __future__ import annotations

import subprocess

import pytest

from memsheet.exchange.shared.shell_text import ShellScript

SCRIPTS = {
    "array": "A=(--a 1\n  --b 2 # two\n)\nrun ${A[@]} --c",
    "grown array": 'A=(--a 1)\nA+=(--b "x y")\nrun "${A[@]}"',
    "options": 'O=" \\\n --a 1 \\\n --b 2"\nO="${O} --c"\nrun $O',
    "default": "N=${WILD_N:-4}\nrun --n $N --m ${WILD_M:-5}",
    "quoted default": 'N=${WILD_N:-"4"}\nrun --n $N',
    "given default": "N=3\nM=${N:-4}\nrun --n $M",
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
