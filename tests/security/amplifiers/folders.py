"""Many files that are asked about at once."""

from __future__ import annotations

import json

from amplifiers import ANSWERED, Amplifier

LARGE = json.dumps(
    {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1, "x": [[0]] * 90_000}
).encode()
SCRIPT = b"export A='" + b"x" * 60_000 + b"'\nvllm serve llama-3.1-8b\n"


MEMBERS: dict[str, Amplifier] = {
    "60 configurations of 7 MB": Amplifier(
        files=lambda: {f"job/ds_config{n}.json": LARGE for n in range(60)}, command=("check", "job"), codes=ANSWERED
    ),
    "60 scripts": Amplifier(files=lambda: {f"job/s{n}.sh": SCRIPT for n in range(60)}, command=("check", "job"), codes=ANSWERED),
    "60 YAML files": Amplifier(
        files=lambda: {f"job/a{n}.yaml": b"distributed_type: FSDP\n" + b"a: 1\n" * 2 + b"#" * 200_000 for n in range(60)}, command=("check", "job"), codes=ANSWERED
    ),
    "60 lists in YAML": Amplifier(
        files=lambda: {f"job/a{n}.yaml": b"distributed_type: FSDP\na: [" + b"1," * 60_000 + b"]\n" for n in range(60)}, command=("check", "job"), codes=ANSWERED
    ),
    "each of 60 configurations": Amplifier(
        files=lambda: {f"ds_config{n}.json": LARGE for n in range(60)}, command=("check", "--each", *(f"ds_config{n}.json" for n in range(60))), codes=ANSWERED
    ),
    "5,000 files in a folder": Amplifier(
        files=lambda: {f"job/f{n}.json": b"{}" for n in range(5_000)}, command=("check", "job"), codes=ANSWERED
    ),
}  # fmt: skip
