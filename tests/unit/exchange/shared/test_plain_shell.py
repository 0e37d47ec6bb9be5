"""A script without its lists, loops and conditions gives its commands the words that the shell gives them."""

from __future__ import annotations

import subprocess

import pytest

from laws import every
from memsheet.exchange.shared.launched_script import filled_commands
from memsheet.exchange.shared.plain_shell import plain_script, plain_scripts

SCRIPTS = {
    "array": "A=(--a 1\n  --b 2 # two\n)\nrun ${A[@]} --c",
    "grown array": 'A=( --a 1 )\nA+=( --b 2 )\nA+=(--c)\nrun "${A[@]}"',
    "arrays in one another": 'A=(--a 1)\nB=("${A[@]}" --b 2)\nrun "${B[@]}" "${A[@]}"',
    "one element": "A=(x y z)\nrun $A ${A[1]} ${#A[@]}",
    "array as one text": "A=(--a 1)\nrun ${A[*]} --b",
    "declared": "declare -a A=(--a 1)\nlocal=2\nrun ${A[@]} --b $local",
    "text over lines": 'A="--a 1\n  --b 2\n"\nA+=" --c"\nrun $A',
    "array under a condition": "N=4\nA=(--a)\nif [ $N -gt 2 ]; then\n A+=(--b)\nelse\n A+=(--c)\nfi\nrun ${A[@]}",
    "array under several": 'X=on\nA=()\nif [[ "$X" == "on" && 3 -lt 4 ]]; then A+=(--b); fi\nrun "${A[@]}" --d',
    "added by a test": 'X=1\nA=(--a)\n[ "$X" = 1 ] && A+=(--b)\n[[ $X -eq 2 ]] && A+=(--c)\nrun "${A[@]}"',
    "words of a loop": 'A=()\nfor w in x y; do\n A+=(--w $w)\ndone\nrun "${A[@]}"',
    "counted loop": 'O=""\nfor i in $(seq 1 3); do O="$O --i $i"; done\nrun $O',
    "loop over a range": 'O=""\nfor i in {1..3}; do O+=" $i"; done\nrun --o $O',
    "loop over a list": 'M=(a b)\nO=--o\nfor m in "${M[@]}"; do O+=" $m"; done\nrun $O',
    "choice": 'X=b\ncase "$X" in\n a) N=1 ;;\n b|c) N=2 ;;\n *) N=3 ;;\nesac\nrun --n $N',
    "other choice": "X=q\ncase $X in a) N=1;; *) N=3;; esac\nrun --n $N",
    "default of what is empty": 'U=${WILD_U:-}\nX=on\ncase "${X}" in\n on) U=${U:-0.6} ;;\n *) U=0.3 ;;\nesac\nif [ "${U:-0.1}" = 0.6 ]; then O=--a; else O=--b; fi\nV=\nrun --u ${U} $O --m ${V:-4} --k ${V-5}x',
    "arguments": 'B=2\nwhile [[ $# -gt 0 ]]; do\n case "$1" in\n  --batch) B="$2"; shift 2 ;;\n  *) shift ;;\n esac\ndone\nrun --b $B',
    "arguments with a function": 'B=2\nsay() { echo "$1"; }\nusage() {\n say "how to"\n exit 0\n}\nwhile [[ "$1" != "" ]]; do\n case $1 in\n  -b) shift; B=$1 ;;\n  -h) usage ;;\n  *) say no; exit 1 ;;\n esac\n shift\ndone\nrun --b $B',
    "options": 'B=2\nwhile getopts "b:" o; do case $o in b) B=$OPTARG ;; esac; done\nrun --b $B',
    "arguments one by one": 'B=2\nfor a in "$@"; do case $a in --b=*) B=3 ;; esac; done\nrun --b $B',
    "quotes": "A=(--a 'x y' \"z\")\nrun ${A[0]} ${A[2]}",
    "text of its own": "cat > /dev/null <<EOF\nfor (\nEOF\nA=(1)\nrun ${A[@]}",
    "function": "say() {\n echo ${A[@]}\n}\nA=(1 2)\nrun ${A[@]}",
    "function of its own": 'go() { local m=$1 n=${2:-7}; shift 2; run --m "$m" --n $n "$@"; }\ngo a 3 --x --y z',
    "function with fewer": 'go() { run --m $1 --n ${2:-7} --all $#; }\ngo "a"',
    "function given names": 'M=big\nE="--x 1"\ngo() { run --m $1 $*; }\ngo $M $E',
    "function through its arguments": 'go() {\n local a="" b=2\n while [[ $# -gt 0 ]]; do\n  case $1 in\n   --b) shift; b=$1; shift;;\n   --) break;;\n   *) a="$a $1"; shift;;\n  esac\n done\n run --b $b $a\n}\ngo --x --b 5 --y -- --z',
    "function of a function": 'inner() { run --of "$@" --n $2; }\nouter() { inner $2 $1; }\nouter a b',
    "function called twice": "N=1\nset_n() { N=$1; }\nset_n 4\nset_n 8\nrun --n $N",
    "function under a condition": 'go() { if [ "$1" = big ]; then N=8; else N=1; fi; run --n $N; }\ngo big',
    "arguments that are set": 'set -- --m a --n 3\nA=""\nwhile [ $# -gt 0 ]; do\n case "$1" in\n  --m) M=$2; shift 2;;\n  *) A="$A $1"; shift;;\n esac\ndone\nrun --m $M $A',
    "sum": "N=2\nfor i in 3; do O=$((N * i)); done\nrun $O",
}  # fmt: skip


def words_of(text: str) -> list[str]:
    command = next(words for words in filled_commands(text) if words[:1] == ["run"])
    return " ".join(command[1:]).split()


@every("name", SCRIPTS)
def test_the_words_of_a_command_are_the_shells(name: str) -> None:
    text = SCRIPTS[name]
    said = subprocess.run(
        ["bash", "-c", 'run() { printf "%s\\n" "$@"; }\n' + text], capture_output=True, text=True, check=True
    ).stdout.split()  # fmt: skip
    assert words_of(plain_script(text).text) == said


def test_a_loop_through_arguments_that_starts_something_by_a_function_is_no_loop_of_defaults() -> None:
    loop = 'while [ $# -gt 0 ]; do\n case "$1" in\n  -b) go 4 ;;\n esac\n shift\ndone\n'
    text = "B=2\ngo() {\n run --b $1\n}\n" + loop
    assert ["--b", "4"] in [words_of(one.text) for one in plain_scripts(text)]


LOOPS = 'M=(a b)\nfor m in "${M[@]}"; do\n for n in 1 2 4; do\n  run --m $m --n $n\n done\ndone\n'


def test_loops_that_start_something_are_scripts_of_their_own() -> None:
    found = plain_scripts(LOOPS)
    assert [words_of(one.text) for one in found] == [
        ["--m", m, "--n", n] for m in ("a", "b") for n in ("1", "2", "4")
    ]
    assert found[1].name == "m=a n=2"
    assert "n = 2: one of 1, 2, 4 of a loop" in found[1].remarks
    assert plain_script(LOOPS, "m=b n=4") == found[-1]


def test_a_round_that_is_passed_over_is_none() -> None:
    text = "for n in 1 2 4; do\n if [ $n -eq 2 ]; then\n  continue\n fi\n run --n $n\ndone\n"
    assert [words_of(one.text) for one in plain_scripts(text)] == [["--n", "1"], ["--n", "4"]]


def test_loops_after_one_another_are_read_one_by_one() -> None:
    text = "N=1\nfor n in 1 2; do run --n $n; done\nfor m in 3 4; do run --m $m; done\n"
    assert [words_of(one.text) for one in plain_scripts(text)] == [
        ["--n", "1"], ["--n", "2"], ["--m", "3"], ["--m", "4"]
    ]  # fmt: skip


def test_what_is_added_under_a_condition_that_nobody_can_tell_is_left_out_and_told() -> None:
    text = 'A=(--a)\nif [ "$WILD" = 1 ]; then\n A+=(--b)\nfi\nrun "${A[@]}"\n'
    found = plain_script(text)
    assert words_of(found.text) == ["--a"]
    assert found.remarks == (
        'what is added to A if [ "$WILD" = 1 ] = left out: the file does not tell',
    )  # fmt: skip


def test_a_count_that_is_less_under_a_condition_that_nobody_can_tell_stays() -> None:
    """A node that may serve is not one fewer for what trains."""
    text = 'N=1\nM=$((N * 8))\nif grep -q x $F; then\n M=$((M - 8))\n N="$((N - 1))"\nfi\nrun --n $N --m $M\n'
    found = plain_script(text)
    assert [line for line in found.text.splitlines() if line[:2] in ("N=", "M=")] == ["N=1", "M=8"]
    assert [one[:24] for one in found.remarks] == ["what is added to M if gr", "what is added to N if gr"]
    counted = 'N=2\nif [ -n "$N" ]; then\n N=$((N - 1))\nfi\nrun --n $N\n'
    assert "N=1" in plain_script(counted).text


@pytest.mark.parametrize(
    "text",
    [
        "for x in 'a; do run; done", "if [ a = b ]; then run", "A=(1 2", "run a b\n", "case x in a) run", "$(" * 40, "a: {b: [1, 2]}\nfor: x\n",
        "for a in {1..64}; do for b in {1..64}; do for c in {1..64}; do O+=$a$b$c; done; done; done\nrun $O",
        "A=(a a a a)\n" + 'A+=("${A[@]}" "${A[@]}")\n' * 40 + 'run "${A[@]}"',
    ],
)  # fmt: skip
def test_what_is_no_shell_or_too_much_stays_as_it_is(text: str) -> None:
    (found,) = plain_scripts(text)
    assert found.text == text


def test_a_loop_that_calls_a_function_is_a_script_for_each_value() -> None:
    text = 'go() {\n run --m $1 --n "$2"\n}\nfor m in a b; do\n go $m 4\ndone\n'
    assert [words_of(one.text) for one in plain_scripts(text)] == [["--m", m, "--n", "4"] for m in "ab"]


@pytest.mark.parametrize(
    "text", ["go() { run --n $1; }\n", "go() { go $1; }\ngo 1\n", "a() { b; }\nb() { a; x=1; }\na\n"]
)
def test_functions_that_nobody_calls_or_that_call_themselves_end(text: str) -> None:
    assert len(plain_scripts(text)) == 1


@pytest.mark.parametrize(
    "name", ["$(which swift)", "`which swift`", '"$(command -v swift)"', "$(which swift 2>/dev/null)"]
)
def test_a_program_that_is_looked_up_is_the_program(name: str) -> None:
    """``torchrun $(which swift) sft`` named no model."""
    command = "swift sft --model Qwen/Qwen3-8B --max_length 2048"
    text = f"export N=2\ntorchrun --nproc_per_node $N {command.replace('swift', name, 1)}\n"
    assert command in plain_script(text).text
