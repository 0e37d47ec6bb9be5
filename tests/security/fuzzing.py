"""Random wrong questions, each made again from its number alone: flags, files, model configurations, keywords
of Python.

``python tests/security/fuzzing.py --seconds 600`` (``make fuzz``) asks them one after the other and writes
those that end in anything but an answer or a refusal; its exit code is 1 where there are any. A question
starts from one that is right, so that what is wrong with it lies as deep as the code goes.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

from fuzzed_reports import MORE_KINDS

import memsheet
from memsheet.cli import error_output as trouble
from memsheet.cli import main
from memsheet.cli.commands import COMMANDS
from memsheet.errors import InputError, printable_line
from memsheet.plan.engine_registry import MODELLED

HANG_S, MOST_WRITTEN, MEMORY = 5, 2**20, 3 * 2**30
CONFIGS = Path(__file__).parents[1] / "configs"
RECORD = Path(__file__).parents[1] / "measured" / "llama-tiny-autocast.json.gz"
MODELS = Path(memsheet.__file__).parent / "catalog" / "models"
CODES = {0, 2, 10, 11}

TEXTS = (
    "", " ", "0", "1", "2", "3", "7", "8", "64", "100", "4096", "100000", "-1", "-0", "+1", "1.5", "0.0", "1e3", "1e9", "1e30", "1e308", "1e309", "-1e400", "nan",
    "inf", "-inf", "NaN", "Infinity", "0x10", "1_000", "1,000", "١٢", "½", "²", "9" * 19, "9" * 30, "9" * 5000, "9223372036854775807", "9223372036854775808",
    "true", "false", "null", "None", "auto", "default", "all", "none", "-", "--", "=", "a=b", ",", "a,b", "1,2,3", "1,,2", ":", "1:2:3", "4096:8192", "[]", "{}", '{"a": 1}',
    "[1,2]", '"', "'", "\\", "\x1b[31mred", "\x1b]0;t\x07", "\u202eabc", "\x00", "\n", "a\nb", "\ud800", "\U0001f600", "é" * 200, "x" * 10_000, "x" * 300, "%s%n", "$(true)", "{0}", "../..", ".", "..",
    "1GiB", "0GiB", "-1GiB", "1e30GiB", "999999999999TiB", "80GB", "1e-9GB", "GiB", "8x", "x8", "0xH100-80GB", "-8xH100-80GB", "8xH100-80GB", "1000000xL4", "99999999999999999999xL4",
    "8×H100-80GB", "H100-80GB", "8xH100-80GB,8xA100-80GB", "2x24GB", "1x0GB", "1x1e9GiB", "50ms", "-5ms", "1e400ms", "0s", "gguf:Q4_K_M", "gguf:", "gguf:Q99", "seq_len,microbatch",
    "seq_len=1:2,tp", "seq_len=1:99999999999", "tp=", "7e9", "0.5", "1.0", "2.0", "meta-llama/x", "org/name@main", "llama-tiny", "llama-3.1-8b", "config.json", "missing.json", "folder",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 63, 2**31, 2**53, 2**63 - 1, 2**63, 10**30, 10**5000, 0.0, -0.5, 0.5, 1.5, 1e308, 5e-324, float("nan"), float("inf"), -float("inf"),
    "", "x", "8", "-8", "nan", "\x1b[2J", "\u202e", "\x00", "é", "y" * 5000, [], {}, [[]], [None], [0], [-1], [1, 2, 3], ["x"], {"a": 1}, {"": {}}, {"type": None}, [1] * 2000, ["q"] * 500,
)  # fmt: skip
OBJECTS: tuple[Any, ...] = (
    b"",
    b"x",
    object(),
    (),
    (1, 2),
    {1: 2},
    {None: None},
    set(),
    frozenset({1}),
    1j,
    ...,
    Path("config.json"),
    Path("\x00"),
    range(3),
    print,
    int,
    Enum,
    Ellipsis,
)
WRITES = {"picture", "events", "snapshot", "record", "records", "out"}
"""Flags that name what is written: nothing outside the folder of the question is named here."""
NAMES = (
    "a.svg",
    "a.png",
    "a.json",
    "folder/a.svg",
    "folder",
    "no/such/folder.svg",
    ".svg",
    "a",
    "",
    " ",
    "x" * 300 + ".svg",
    "\x1b.svg",
    "link.svg",
    "a\x00.svg",
)
BASES: tuple[tuple[str, ...], ...] = (
    ("train", "llama-tiny", "--gpus", "8xH100-80GB", "--seq-len", "512"),
    ("train", "config.json", "--gpus", "8xH100-80GB", "--engine", "fsdp2", "--zero", "3", "--seq-len", "512"),
    ("train", "llama-tiny", "--gpus", "8xH100-80GB", "--engine", "deepspeed", "--zero", "2", "--seq-len", "512", "--precision", "bf16-master"),
    ("train", "llama-tiny", "--gpus", "8xH100-80GB", "--engine", "megatron", "--tp", "2", "--pp", "2", "--seq-len", "512", "--precision", "bf16-master"),
    ("train", "llama-tiny", "--gpus", "8xH100-80GB", "--engine", "torchtitan", "--seq-len", "512"),
    ("train", "gpt2", "--gpus", "1xL4", "--lora-rank", "8", "--quantize", "nf4"),
    ("train", "--parameters", "7e9", "--gpus", "8xA100-80GB", "--engine", "deepspeed", "--zero", "2"),
    ("infer", "llama-tiny", "--gpus", "1xH100-80GB", "--engine", "vllm", "--max-model-len", "512"),
    ("infer", "config.json", "--gpus", "1xH100-80GB", "--engine", "sglang", "--max-model-len", "512"),
    ("infer", "llama-tiny", "--gpus", "1xRTX4090", "--engine", "llama.cpp", "--max-model-len", "512", "--quantize", "gguf:Q4_K_M"),
    ("infer", "gpt2", "--gpus", "1xL4", "--max-model-len", "512", "--sequences", "4"),
    ("infer", "deepseek-v2-lite", "--gpus", "8xH100-80GB", "--engine", "sglang", "--tp", "8", "--max-model-len", "512"),
    ("infer", "--parameters", "7e9", "--gpus", "1xL4"),
    ("plan", "infer", "llama-tiny", "--gpus", "2xH100-80GB", "--context", "512", "--users", "4"),
    ("plan", "train", "llama-tiny", "--gpus", "2xH100-80GB", "--seq-len", "256", "--global-batch", "8", "--engine", "fsdp2"),
    ("solve", "seq-len", "llama-tiny", "--gpus", "1xL4", "--most", "8192"),
    ("solve", "microbatch", "llama-tiny", "--gpus", "1xL4", "--seq-len", "512", "--most", "64"),
    ("solve", "gpus", "llama-3.1-8b", "--gpus", "H100-80GB", "--engine", "fsdp2", "--zero", "3", "--seq-len", "512", "--most", "16"),
    ("solve", "sequences", "llama-tiny", "--gpus", "1xL4", "--engine", "vllm", "--max-model-len", "512"),
    ("solve", "max-model-len", "llama-tiny", "--gpus", "1xL4", "--engine", "vllm"),
    ("export", "plan.json", "--to", "deepspeed,accelerate,torchrun", "--out", "run"),
    ("check", "job", "--model", "llama-tiny", "--gpus", "8xH100-80GB", "--seq-len", "512"),
    ("trace", "llama-tiny", "--seq-len", "128"),
    ("measure", "llama-tiny", "--seq-len", "128"),
    ("verify", "plan.json"),
    ("calibrate", "--from", "record.json"),
    ("compare", "sheet.json", "sheet.json"),
    ("explain", "zero"),
    ("models", "llama"),
    ("gpus", "h100"),
)  # fmt: skip


class HangError(BaseException):
    """A question that is not answered in time; no handler of errors takes it for one."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One question: ``words`` of a line, or ``keywords`` of a function of Python by its name."""

    words: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    function: str = ""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    stdin: bytes = b""


@cache
def vocabulary() -> tuple[str, ...]:
    """Words that options take: the values of every enum of a plan, engines, devices and metavars."""
    homes = [import_module(f"memsheet.plan.{name}") for name in ("plan", "engine", "dtypes", "model")]
    enums = {
        kind
        for home in homes
        for kind in vars(home).values()
        if isinstance(kind, type) and issubclass(kind, Enum)
    }
    found = {str(member.value) for kind in enums for member in kind}
    words = ("bf16-true", "bf16-mixed", "bf16-master", "fp16-master", "fp32", "fp8", "nf4", "int8", "awq", "gptq", "mxfp4", "full", "lora", "qlora", "front", "heat", "waterfall", "least", "fastest",
             "static", "dynamic", "quantized", "cuda", "cpu", "forward", "backward", "loss", "optimizer,parameters", "activations", "q_proj,v_proj", "all-linear")  # fmt: skip
    return tuple(sorted(found | {*MODELLED, *words}))


@cache
def fixtures() -> Mapping[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(CONFIGS.iterdir()) if file.name != "index.json"}


@cache
def configurations() -> Mapping[str, bytes]:
    return {
        file.name: file.read_bytes() for file in sorted(MODELS.glob("*.json")) if file.name != "aliases.json"
    }


@cache
def documents() -> Mapping[str, bytes]:
    """A plan, a sheet, a record and what else questions start from, as memsheet writes them."""
    from craft import LLAMA

    sheet = printed(
        "train",
        "llama-tiny",
        "--gpus",
        "8xH100-80GB",
        "--engine",
        "fsdp2",
        "--zero",
        "3",
        "--seq-len",
        "512",
        "--json",
    )
    served = printed(
        "infer", "llama-tiny", "--gpus", "1xL4", "--engine", "vllm", "--max-model-len", "512", "--json"
    )
    plan = {
        "schema": "memsheet/plan/1",
        "task": "train",
        "model": "llama-tiny",
        "seq_len": 512,
        "gpus": "8xH100-80GB",
        **json.loads(sheet)["plan"],
    }
    record = json.loads(gzip.decompress(RECORD.read_bytes()))
    record["environment"] |= {"device": "cuda", "device_name": "H100-80GB"}  # as if a GPU had made it
    record["sheet"]["trace"]["measured"]["step_s"] = 0.02
    return {
        "config.json": json.dumps(LLAMA).encode(), "plan.json": json.dumps(plan).encode(), "sheet.json": sheet, "served.json": served, "record.json": json.dumps(record).encode(),
        "cluster.toml": b'device = "H100-80GB"\nnodes = 8\nper_node = 4\nhost_memory = "2TiB"\n[links]\nscale_out = "100 Gbit/s"\nhost_gb_s = 31.5\n',
        "lengths.txt": b"1200,300\n40,7\n", "job/ds_config.json": fixtures()["deepspeed-lf-ds-z2-config.json"],
    }  # fmt: skip


def printed(*words: str) -> bytes:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main(words)
    return out.getvalue().encode()


def flags_asked(luck: random.Random) -> Asked:
    """A line with some of its command's flags given anything."""
    base = [*luck.choice(BASES)]
    command = COMMANDS[base[0]]
    files = dict(documents())
    for flag in luck.sample(command.flags, min(len(command.flags), luck.choice((1, 1, 2, 2, 3, 5)))):
        if flag.name == "debug":
            continue
        spelled = f"--{flag.name}" if luck.random() < 0.97 else f"--{flag.name[:-1]}"
        value = (
            luck.choice(NAMES)
            if flag.name in WRITES
            else luck.choice(TEXTS)
            if luck.random() < 0.5
            else luck.choice(vocabulary())
        )
        if spelled in base and luck.random() < 0.9:
            at = base.index(spelled)
            del base[at : at + 2]
        if flag.metavar:
            base += [spelled, value] if luck.random() < 0.8 else [f"{spelled}={value}"]
        else:
            base += [spelled] if luck.random() < 0.7 else [f"--no-{flag.name}"]
    if luck.random() < 0.1:
        base.insert(luck.randint(0, len(base)), luck.choice(TEXTS))
    if luck.random() < 0.25 and "--json" not in base:
        base.append("--json")
    return Asked(
        words=tuple(base),
        files=files,
        stdin=luck.choice([b"", b"{}", files["plan.json"], files["sheet.json"]]),
    )


def changed(luck: random.Random, value: Any) -> Any:
    """``value`` with one thing in it changed, somewhere."""
    places = list(_places(value))
    if not places or luck.random() < 0.02:
        return luck.choice(VALUES)
    holder, key = luck.choice(places)
    old = holder[key]
    match luck.randint(0, 7):
        case 0 if isinstance(holder, dict):
            del holder[key]
        case 1:
            holder[key] = [old]
        case 2:
            holder[key] = {str(key): old}
        case 3 if isinstance(old, int | float) and not isinstance(old, bool):
            with contextlib.suppress(OverflowError):
                holder[key] = luck.choice(
                    [old * 1000, -old, old / 3, old + 1, str(old), old * 10**12, old // 2]
                )
        case 4 if isinstance(holder, dict):
            holder[
                luck.choice(
                    [f"{key}x", str(key)[:-1], "\x1b[1m", "k" * 500, luck.choice([str(k) for h, k in places])]
                )
            ] = luck.choice(VALUES)
        case 5 if isinstance(old, str):
            holder[key] = luck.choice(
                [
                    old + "\x1b[0m",
                    old * 300,
                    old[:-1],
                    old.upper(),
                    luck.choice(vocabulary()),
                    luck.choice(TEXTS),
                ]
            )
        case 6:
            other, name = luck.choice(places)
            holder[key] = other[name] if other is not holder else luck.choice(VALUES)
        case _:
            holder[key] = luck.choice(VALUES)
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    waiting = [value]
    for _ in range(3000):
        if not waiting:
            return
        held = waiting.pop()
        if isinstance(held, dict | list):
            keys = list(held) if isinstance(held, dict) else range(min(len(held), 20))
            for key in keys:
                yield held, key
                waiting.append(held[key])


def as_text(value: Any) -> bytes:
    """JSON, with what JSON cannot say left out (a value may have come to hold itself)."""
    try:
        return json.dumps(value).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return b'{"a": NaN}'


def mutated(luck: random.Random, name: str, content: bytes) -> bytes:
    """A file of the same kind with a few things changed, in its values where it has some, else in its
    text.
    """
    kind = name.rpartition(".")[2]
    if kind in ("json", "yaml") and luck.random() < 0.75:
        import yaml

        value = json.loads(content) if kind == "json" else yaml.safe_load(content)
        for _ in range(luck.choice((1, 1, 2, 3))):
            value = changed(luck, value)
        if kind == "json" or luck.random() < 0.5:
            return as_text(value)
        with contextlib.suppress(Exception):
            return bytes(yaml.safe_dump(value, allow_unicode=True).encode("utf-8", "surrogatepass"))
        return as_text(value)
    text = content.decode()
    for _ in range(luck.choice((1, 1, 2, 4))):
        words = (
            text.split(" ")
            if luck.random() < 0.3
            else text.split("\n")
            if luck.random() < 0.4
            else _tokens(text)
        )
        joined = (
            "".join
            if words and words[0] is not None and "".join(words) == text
            else ("\n" if "\n".join(words) == text else " ").join
        )
        at = luck.randrange(len(words))
        match luck.randint(0, 4):
            case 0:
                del words[at]
            case 1:
                words.insert(at, words[luck.randrange(len(words))])
            case 2:
                words[at] = luck.choice(vocabulary())
            case _:
                words[at] = luck.choice(TEXTS)
        text = joined(words) or " "
    return text.encode("utf-8", "surrogatepass")


def _tokens(text: str) -> list[str]:
    import re

    return re.split(r"(\W+)", text)


def files_asked(luck: random.Random) -> Asked:
    """One of the configurations that ``check`` reads, changed; or a document of memsheet's own, read by what
    reads it.
    """
    if luck.random() < 0.3:
        return _document_asked(luck)
    name = luck.choice(sorted(fixtures()))
    plain = name.split("-")[0] + Path(name).suffix if luck.random() < 0.3 else name
    words: tuple[str, ...] = ("check", f"job/{plain}")
    if luck.random() < 0.6:
        words += (
            "--model",
            luck.choice(["llama-3.1-8b", "llama-tiny", "mixtral-8x7b", "deepseek-v3"]),
            "--gpus",
            "8xH100-80GB",
        )
    files = {f"job/{plain}": mutated(luck, name, fixtures()[name])}
    if luck.random() < 0.1:
        other = luck.choice(sorted(fixtures()))
        files[f"job/{other}"], words = fixtures()[other], ("check", "job", *words[2:])
    return Asked(words=(*words, *(["--json"] if luck.random() < 0.2 else [])), files=files)


READ_BY: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("plan.json", ("train", "--plan", "plan.json")),
    ("plan.json", ("export", "plan.json", "--to", "deepspeed,accelerate,transformers,axolotl,llamafactory,torchrun,slurm,skypilot,kubernetes,trainjob,megatron,torchtitan")),
    ("plan.json", ("export", "plan.json", "--to", "deepspeed,slurm")),
    ("plan.json", ("verify", "plan.json")),
    ("plan.json", ("check", "plan.json")),
    ("plan.json", ("solve", "seq-len", "--plan", "plan.json", "--most", "2048")),
    ("sheet.json", ("compare", "sheet.json", "plan.json")),
    ("sheet.json", ("compare", "sheet.json", "served.json")),
    ("sheet.json", ("export", "sheet.json", "--to", "deepspeed,torchrun")),
    ("served.json", ("compare", "served.json", "served.json", "--full")),
    ("served.json", ("export", "served.json", "--to", "vllm,slurm,kubernetes")),
    ("record.json", ("compare", "record.json", "sheet.json")),
    ("record.json", ("calibrate", "--from", "record.json")),
    ("cluster.toml", ("train", "llama-tiny", "--seq-len", "512", "--cluster", "cluster.toml")),
    ("cluster.toml", ("plan", "infer", "llama-tiny", "--context", "512", "--cluster", "cluster.toml")),
    ("lengths.txt", ("infer", "llama-tiny", "--gpus", "1xL4", "--engine", "vllm", "--max-model-len", "2048", "--lengths", "lengths.txt")),
)  # fmt: skip


def _document_asked(luck: random.Random) -> Asked:
    name, words = luck.choice(READ_BY)
    return Asked(words=words, files={**documents(), name: mutated(luck, name, documents()[name])})


ENGINES = (
    ("train", "--seq-len", "512", "--gpus", "8xH100-80GB"),
    ("train", "--seq-len", "512", "--gpus", "8xH100-80GB", "--engine", "fsdp2", "--zero", "3", "--recompute", "full"),
    ("train", "--seq-len", "512", "--gpus", "8xH100-80GB", "--engine", "megatron", "--tp", "2", "--precision", "bf16-master"),
    ("train", "--seq-len", "512", "--gpus", "1xH100-80GB", "--lora-rank", "8", "--quantize", "nf4"),
    ("infer", "--gpus", "8xH100-80GB", "--engine", "vllm", "--tp", "8", "--max-model-len", "512"),
    ("infer", "--gpus", "1xH100-80GB", "--engine", "sglang", "--max-model-len", "512"),
    ("infer", "--gpus", "1xRTX4090", "--engine", "llama.cpp", "--max-model-len", "512"),
    ("infer", "--gpus", "1xL4", "--max-model-len", "512"),
)  # fmt: skip


def models_asked(luck: random.Random) -> Asked:
    """A released model's configuration with some of its values changed."""
    name = luck.choice(sorted(configurations()))
    config = json.loads(configurations()[name])
    for _ in range(luck.choice((1, 1, 1, 2, 3))):
        config = changed(luck, config)
    task, *words = luck.choice(ENGINES)
    return Asked(words=(task, "config.json", *words), files={"config.json": as_text(config)})


def python_asked(luck: random.Random) -> Asked:
    """Keywords of a function that are anything at all."""
    from memsheet.plan.names import SHORT

    function = luck.choice(
        (
            "train",
            "train",
            "infer",
            "infer",
            "plan",
            "plan_serving",
            "solve",
            "check",
            "compare",
            "explain",
            "export",
            "assert_fits",
        )
    )
    anything = lambda: luck.choice((*VALUES, *OBJECTS, *VALUES, *vocabulary()))  # noqa: E731
    gpus = {"gpus": luck.choice(["8xH100-80GB", "1xL4"])}
    match function:
        case "train" | "assert_fits":
            keywords = {
                "model": "llama-tiny",
                **gpus,
                "seq_len": 512,
                "engine": luck.choice(["fsdp2", "deepspeed", "megatron", "transformers"]),
            }
        case "plan":
            keywords = {
                "model": "llama-tiny",
                "gpus": "1xH100-80GB",
                "seq_len": 256,
                "global_batch": 2,
                "engine": "fsdp2",
                "top": 2,
            }
        case "infer":
            keywords = {
                "model": "llama-tiny",
                **gpus,
                "max_model_len": 512,
                "engine": luck.choice(["vllm", "sglang", "llama.cpp", "transformers"]),
            }
        case "plan_serving":
            keywords = {"model": "llama-tiny", "gpus": "1xH100-80GB", "context": 512, "users": 4}
        case "solve":
            keywords = {
                "what": luck.choice(["seq_len", "microbatch", "sequences"]),
                "model": "llama-tiny",
                **gpus,
                "most": 1024,
                "max_model_len": 512,
            }
        case "check":
            keywords = {"files": ["job/ds_config.json"], "model": "llama-tiny", **gpus, "seq_len": 512}
        case "compare":
            keywords = {"left": "sheet.json", "right": "sheet.json"}
        case "export":
            keywords = {"plan": "plan.json", "to": "deepspeed"}
        case "explain":
            keywords = {"name": "zero"}
        case _:
            raise AssertionError(function)
    if function in ("train", "infer", "plan", "plan_serving", "solve", "check", "assert_fits"):
        names = [
            *SHORT,
            "offload",
            "gpus",
            "nodes",
            "per_node",
            "host_memory",
            "cluster",
            "plan",
            "parameters",
            "method",
            "top",
        ]
        keywords |= {luck.choice(names): anything() for _ in range(luck.choice((0, 1, 1, 2)))}
    if luck.random() < 0.5 or function in ("compare", "export", "explain"):
        keywords[luck.choice(list(keywords))] = anything()
    return Asked(function=function, keywords=keywords, files=documents())


KINDS: Mapping[str, Callable[[random.Random], Asked]] = {
    "flags": flags_asked, "files": files_asked, "models": models_asked, "python": python_asked, **MORE_KINDS,
}  # fmt: skip


def question(kind: str, number: int) -> Asked:
    return KINDS[kind](random.Random(f"{kind} {number}"))


def fault(asked: Asked, folder: Path) -> str:
    """What is wrong with how a question ends, or nothing. ``folder`` is where it is asked, and is emptied."""
    _filled(folder, asked.files)
    broken: list[str] = []

    def explained(error: Exception, code: int, **_: Any) -> int:
        broken.append(_where(error))
        return code

    out, err, before = io.StringIO(), io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch.object(trouble, "explain_broken", explained),
            _soon(HANG_S),
            mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(asked.stdin))),
            mock.patch("subprocess.Popen", _not_started),
            mock.patch.dict(
                os.environ, {"MEMSHEET_CALIBRATION": str(folder / "calibration.json"), "HF_HUB_OFFLINE": "1"}
            ),
        ):
            code = main([*asked.words]) if asked.words else _called(asked)
    except HangError as error:
        return f"more than {HANG_S} s: {_where(error)}"
    except (SystemExit, Exception) as error:  # noqa: BLE001
        return f"raised: {_where(error)}"
    finally:
        os.chdir(before)
    written = len(out.getvalue()) + len(err.getvalue())
    if broken:
        return f"internal error: {broken[0]}"
    if code not in CODES:
        return f"exit code {code}"
    if written > MOST_WRITTEN:
        return f"{written} characters"
    if (
        any(c in out.getvalue() + err.getvalue() for c in "\x07\x00\u202e")
        or "\x1b]" in out.getvalue() + err.getvalue()
        or "\x1b" in err.getvalue()
    ):
        return "escapes"
    return ""


FIRST: Mapping[str, tuple[str, ...]] = {
    "solve": ("what",),
    "compare": ("left", "right"),
    "export": ("plan",),
    "explain": ("name",),
}
"""Arguments by their place."""


def _called(asked: Asked) -> int:
    keywords = dict(asked.keywords)
    if asked.function == "ask":
        with mock.patch("memsheet.questions.ask._fault_document", _raised):
            return int(import_module("memsheet.questions.ask").ask(**keywords)["exit_code"])
    function = getattr(memsheet, asked.function)
    arguments = [keywords.pop(name) for name in FIRST.get(asked.function, ())]
    if asked.function == "check":
        held = keywords.pop("files")
        arguments = [*held] if isinstance(held, list) else [held]
    try:
        function(*arguments, **keywords)
    except InputError as error:
        return 2 if str(error) or not error.problems else 99
    except memsheet.DoesNotFitError:
        return 10
    return 0


def _raised(error: Exception) -> Any:
    raise error


def _not_started(*_: Any, **__: Any) -> Any:
    raise InputError(())


def _filled(folder: Path, files: Mapping[str, bytes]) -> None:
    for held in folder.iterdir():
        shutil.rmtree(held) if held.is_dir() and not held.is_symlink() else held.unlink()
    (folder / "folder").mkdir()
    (folder / "link.svg").symlink_to(folder / "nowhere")
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_bytes(content)


@contextlib.contextmanager
def _soon(seconds: int) -> Iterator[None]:
    def late(*_: Any) -> None:
        raise HangError

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _where(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/memsheet/" in frame.filename]
    where = " < ".join(
        f"{frame.filename.rpartition('/memsheet/')[2]}:{frame.name}:{frame.lineno}"
        for frame in frames[:-4:-1]
    )
    return f"{type(error).__name__}: {str(error)[:120]!r} at {where}"


def campaign(seconds: float, first: int, into: Path, kinds: tuple[str, ...]) -> int:
    """Ask for so long; how many faults there were. Writes each, told apart by where it is, the first times it
    is met.
    """
    seen: dict[str, int] = {}
    until, number = time.monotonic() + seconds, first
    with tempfile.TemporaryDirectory() as name, into.open("a", encoding="utf-8") as found:
        while time.monotonic() < until:
            for kind in kinds:
                asked = question(kind, number)
                if said := fault(asked, Path(name)):
                    key = said.partition(" at ")[2] or said[:40]
                    seen[key] = seen.get(key, 0) + 1
                    if seen[key] <= 3:
                        files = {
                            file: content.decode(errors="replace")[:300]
                            for file, content in asked.files.items()
                            if documents().get(file) != content
                        }
                        row = {
                            "kind": kind,
                            "number": number,
                            "said": said,
                            "words": asked.words,
                            "function": asked.function,
                            "keywords": {
                                name: printable_line(value) for name, value in asked.keywords.items()
                            },
                            "files": files,
                        }
                        found.write(json.dumps(row) + "\n")
                        found.flush()
            number += 1
        report = json.dumps({"asked": number - first, "of each": kinds, "faults": seen})
        found.write(f"{report}\n")
        sys.stdout.write(f"{report}\n")
    return sum(seen.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--into", type=Path, default=Path("faults.jsonl"))
    parser.add_argument("--kinds", default=",".join(KINDS))
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    sys.exit(
        min(1, campaign(given.seconds, given.first, given.into.resolve(), tuple(given.kinds.split(","))))
    )
