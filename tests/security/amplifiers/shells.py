"""Shell text that is read and never run: variables that hold one another, quotes that do not close, patterns
that go back and forth.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from amplifiers import Amplifier, checked

SERVE = "vllm serve llama-3.1-8b --max-model-len 4096"
MEGATRON = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --micro-batch-size 1"


def doubled(levels: int, width: int = 2, first: str = "x" * 8) -> Iterator[str]:
    yield f"A0={first!r}"
    yield from (f'A{level}="{f"$A{level - 1}" * width}"' for level in range(1, levels))


def fanned(levels: int, width: int) -> Iterator[str]:
    """Variables of words: each is so many times the one before it."""
    yield 'A0="--a 1 --b 2"'
    yield from (f'A{level}="{" ".join([f"--c $A{level - 1}"] * width)}"' for level in range(1, levels))


def arrays(levels: int, width: int) -> Iterator[str]:
    yield "A0=(--a 1)"
    yield from (f"A{level}=({' '.join([f'${{A{level - 1}[@]}}'] * width)})" for level in range(1, levels))


def shell(lines: Iterator[str] | list[str], last: str) -> bytes:
    return "\n".join(["#!/usr/bin/env bash", *lines, last, ""]).encode()


def pod(script: str, times: int = 1) -> bytes:
    one = {"name": "a", "image": "vllm/vllm-openai:v0.10.2", "command": ["bash", "-c", script]}
    held = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [one] * times}}
    return json.dumps(held).encode()


MEMBERS: dict[str, Amplifier] = {
    "doubling variables of a server": checked("serve.sh", lambda: shell(doubled(40), f"{SERVE} $A39")),
    "doubling variables, before the command": checked("serve.sh", lambda: shell(doubled(40), f"$A39 {SERVE}")),
    "doubling defaults": checked("serve.sh", lambda: shell([f'A{n}="${{A{n - 1}:-xxxxxxxx}}${{A{n - 1}:-xxxxxxxx}}"' for n in range(1, 40)], f"{SERVE} $A39")),
    "wide variables": checked("serve.sh", lambda: shell(doubled(5, 400, "y" * 400), f"{SERVE} --chat-template $A4")),
    "variables, each used by all lines": checked("serve.sh", lambda: shell([f"A='{'x' * 20_000}'"], f"{SERVE} " + "$A" * 15_000)),
    "fan-out of Megatron's variables": checked("pretrain.sh", lambda: shell(fanned(7, 12), f"{MEGATRON} $A6")),
    "fan-out of Megatron's arrays": checked("pretrain.sh", lambda: shell(arrays(7, 12), f"{MEGATRON} ${{A6[@]}}")),
    "Megatron's variables in every command": checked(
        "pretrain.sh", lambda: shell([*fanned(7, 12), *(f"echo $A6 {n}" for n in range(200))], f"{MEGATRON} $A6")
    ),
    "Megatron's array that grows": checked("pretrain.sh", lambda: shell(["A=(--a 1)", *["A+=(${A[@]})"] * 60], f"{MEGATRON} ${{A[@]}}")),
    "appended texts": checked("pretrain.sh", lambda: shell(["A='--a 1'", *['A+=" $A $A"'] * 60], f"{MEGATRON} $A")),
    "blanks of a Slurm directive": checked("job.sh", lambda: b"#!/bin/bash\n#SBATCH --nodes" + b" " * 60_000 + b"x y\n"),
    "blanks of many Slurm directives": checked("job.sh", lambda: b"#!/bin/bash\n" + (b"#SBATCH --nodes" + b" " * 600 + b"x y\n") * 100),
    "signs of a Slurm directive": checked("job.sh", lambda: b"#!/bin/bash\n#SBATCH --nodes" + b"=" * 60_000 + b" x\n"),
    "dashes of a Slurm directive": checked("job.sh", lambda: b"#!/bin/bash\n#SBATCH --" + b"-" * 60_000 + b" x y\n"),
    "unclosed quotes": checked("serve.sh", lambda: shell(['echo "a', *["b" * 40] * 1500], SERVE)),
    "unclosed quotes on every line": checked("serve.sh", lambda: shell(["echo 'a" + "b" * 30] * 1799, SERVE)),
    "unclosed quotes in a pod": checked("pod.yaml", lambda: pod("\n".join(["echo 'a", *["b" * 40] * 5000, SERVE]))),
    "unclosed quotes in the containers of a pod": checked("pod.json", lambda: pod("\n".join(["echo 'a", *["b" * 40] * 400, SERVE]), 400)),
    "a long line in a pod": checked("pod.yaml", lambda: pod("echo " + "a b " * 60_000 + SERVE)),
    "containers of a pod": checked("pod.yaml", lambda: pod("vllm serve x", 1200)),
    "documents of a pod": checked("pod.yaml", lambda: b"---\n" * 60_000 + b"apiVersion: v1\nkind: Pod\n"),
    "commands in brackets": checked("serve.sh", lambda: shell([], "$(" * 30_000)),
    "backquotes": checked("serve.sh", lambda: shell(["echo `" * 8_000], SERVE)),
    "backslashes": checked("serve.sh", lambda: shell(["echo " + "\\" * 60_000], SERVE)),
    "open variables": checked("serve.sh", lambda: shell(["echo " + "${A:-" * 12_000], SERVE)),
    "words of a line": checked("serve.sh", lambda: shell([], SERVE + " --a 1" * 10_000)),
    "short lines": checked("serve.sh", lambda: shell(["a"] * 32_000, SERVE)),
    "launches": checked("serve.sh", lambda: shell([SERVE] * 1400, SERVE)),
    "loops in a row": checked("serve.sh", lambda: shell([f"for a in {{1..60}}; do {SERVE} --seed $a; done"] * 300, SERVE)),
    "loops in one another": checked("serve.sh", lambda: shell(["for a in {1..60}; do"] * 11, f"{SERVE} --max-num-seqs $a\n" + "done\n" * 11)),
    "loops that add words": checked("serve.sh", lambda: shell(["for a in {1..60}; do for b in {1..60}; do A+=' --a $a$b'; done; done"] * 40, f"{SERVE} $A")),
    "texts of commands": checked("serve.sh", lambda: shell(['A="x y"', *['A="$A $A"'] * 1500], "eval $A")),
    "texts of commands in one another": checked("serve.sh", lambda: shell(doubled(40, 2, f"{SERVE} "), "$A39")),
    "lists in one another": checked("serve.sh", lambda: shell(arrays(12, 12), f"{SERVE} ${{A11[@]}}")),
    "tests of many words": checked("serve.sh", lambda: shell(["[ " + "a = b -a " * 6_000 + "c ] && x"], SERVE)),
    "conditions in one another": checked("serve.sh", lambda: shell(["if [ a = $B ]; then"] * 600, SERVE)),
    "evaluations": checked("serve.sh", lambda: shell(["lm_eval --model vllm --model_args pretrained=a," + "{[,a=" * 4_000], "")),
    "assignments": checked("serve.sh", lambda: shell([f"A{n}=$A{n - 1}" for n in range(1, 5000)], f"{SERVE} --dtype $A4999")),
}  # fmt: skip
