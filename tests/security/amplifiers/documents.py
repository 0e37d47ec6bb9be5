"""JSON, YAML and TOML: keys, values and problems without end, and compressed emptiness."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable

from amplifiers import ANSWERED, REFUSED, Amplifier, checked

H100 = ("--gpus", "8xH100-80GB")


def plan(**more: object) -> bytes:
    return json.dumps(
        {
            "schema": "memsheet/plan/1",
            "task": "train",
            "model": "llama-2-7b",
            "seq_len": 512,
            "gpus": "8xH100-80GB",
            **more,
        }
    ).encode()


def planned(**more: object) -> Amplifier:
    return Amplifier(
        files=lambda: {"plan.json": plan(**more)}, command=("train", "--plan", "plan.json"), codes=REFUSED
    )


def keys(count: int) -> dict[str, int]:
    return {f"key{number}": number for number in range(count)}


def zero(**more: object) -> bytes:
    return json.dumps(
        {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1, **more}
    ).encode()


def sheet(**more: object) -> bytes:
    return json.dumps({"schema": "memsheet/sheet/1", "witness": "formula", **more}).encode()


def compared(content: Callable[[], bytes]) -> Amplifier:
    return Amplifier(files=lambda: {"a.json": content()}, command=("compare", "a.json", "a.json"))


ITEM = {"component": "parameters", "path": "a", "at": {"forward": 1}}
MEMBERS: dict[str, Amplifier] = {
    "a plan of 25,000 unknown keys": planned(**keys(25_000)),
    "a plan of 25,000 unknown keys in a group": planned(mesh=keys(25_000)),
    "a plan of 400,000 stages": planned(layers_per_stage=[-1] * 400_000),
    "a plan of long texts": planned(engine="x" * 4_000_000),
    "a plan of long names": planned(**{f"{'k' * 2_000}{n}": 1 for n in range(2_000)}),
    "a plan of many modules": planned(recompute={"mode": "selective", "modules": [f"m{n}" for n in range(300_000)]}),
    "a plan of many targets": planned(adapter={"rank": 8, "targets": [f"m{n}" for n in range(300_000)]}),
    "8 MiB of compressed zeros": compared(lambda: gzip.compress(b" " * 200_000_000)),
    "8 MiB of compressed objects": compared(lambda: gzip.compress(b"[" + b"{}," * 2_500_000 + b"{}]")),
    "a sheet of 25,000 wrong rows": compared(lambda: sheet(ranks=[{"rank": n, "items": [{"component": 1}]} for n in range(4000)])),
    "a sheet of 20,000 rows a rank": compared(lambda: sheet(ranks=[{"rank": n, "items": [ITEM] * 40} for n in range(4000)])),
    "DeepSpeed's keys without end": checked("ds_config.json", lambda: zero(**keys(25_000))),
    "DeepSpeed's keys, a little misspelt": checked("ds_config.json", lambda: zero(**{f"train_batch_siz{n}": 1 for n in range(1_900)})),
    "DeepSpeed's groups in groups": checked("ds_config.json", lambda: zero(**{f"g{n}": {f"k{m}": {} for m in range(20)} for n in range(2_000)})),
    "a list of 400,000 values": checked("ds_config.json", lambda: zero(betas=[0.5] * 400_000)),
    "YAML's keys without end": checked("accelerate.yaml", lambda: b"distributed_type: FSDP\n" + b"".join(b"k%d: 1\n" % n for n in range(25_000))),
    "YAML in brackets": checked("accelerate.yaml", lambda: b"a: " + b"[" * 60 + b"[]," * 80_000 + b"]" * 60),
    "YAML's blanks": checked("accelerate.yaml", lambda: b"a:\n" + b" " * 260_000 + b"b: 1"),
    "YAML's numbers in base 60": checked("accelerate.yaml", lambda: b"distributed_type: FSDP\nnum_processes: " + b"1:" * 100_000 + b"1\n"),
    "YAML that looks like traps": checked("accelerate.yaml", lambda: b"distributed_type: FSDP\n" + b"a: 1" + b" " * 200_000 + b"x\n"),
    "TOML in tables": checked("train.toml", lambda: b"[model]\n" + b"".join(b"[a%d.b.c]\n" % n for n in range(12_000)), ANSWERED),
    "TOML's dots": checked("train.toml", lambda: b"[model]\nname='llama3'\n" + b"a" + b".a" * 30_000 + b" = 1\n"),
    "TOML's arrays": checked("train.toml", lambda: b"[model]\nname='llama3'\na = " + b"[" * 30_000),
    "TOML's tables of tables": checked("train.toml", lambda: b"[model]\n" + b"[[a]]\n" * 10_000),
    "TOML's values in a line": checked("train.toml", lambda: b"[model]\nname='llama3'\na = {" + b", ".join(b"k%d.a.b.c = 1" % n for n in range(4_000)) + b"}\n"),
}  # fmt: skip
