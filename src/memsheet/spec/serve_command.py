"""Commands of servers: what vLLM's and SGLang's have in common. A command is found in a script or a line, split as a shell does, and never run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from memsheet.errors import Problem
from memsheet.frozen import dataclass
from memsheet.spec.exchange import Key, Values

ENDS = ("&&", "||", "|", "&", ";", ">", ">>", "2>&1")
MOST_LINES = 64
"""Lines that one quoted value may go over."""
SWITCHES = tuple(f"--{name}-" for name in ("enable", "disable", "skip", "no", "trust", "fully", "interleave", "allow-deprecated"))
"""How flags begin that take no value in either engine."""
GIVEN = "given"
ALLOCATOR, OLDER, ON = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"
"""torch 2.13 c10/core/AllocatorConfig.h, and its older name."""
_HUMAN = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([kKmMgGtT])")
_WHOLE, _PART = re.compile(r"-?\d{1,12}"), re.compile(r"\d{0,6}\.\d{1,12}")
_STEPS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
SPELLED = {"half": "fp16", "float": "fp32", **{name: dtype for dtype, name in DTYPES.items()}}
SIXTEEN_OF = ("parameters", "compute", "gradients", "reduce", "moments")
SCRIPTS = {"vllm": "vllm.sh", "sglang": "sglang.sh"}
"""The file of each server's command, which a batch script or a task runs where it lies beside."""
BESIDE = frozenset(
    {"mesh.etp", "attention", "microbatch", "serving.prompt_tokens", "serving.output_tokens", "serving.shared_prefix_tokens"}
)
"""Keys that follow from the others, belong to requests, or are checked in ``cannot``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """How an engine is started. ``launches``: the words before its flags, each way; ``image``: of a container that takes the flags alone, if there is one."""

    model: str  # the flag that names it, which is also where a bare word goes
    launches: tuple[tuple[str, ...], ...]
    image: str
    aliases: Mapping[str, str]
    switches: frozenset[str]
    partition: str  # the environment's layers of each stage
    dashed: bool  # underscores in a flag are dashes
    words: frozenset[str] = frozenset()  # flags whose values are words, whatever they look like
    lists: frozenset[str] = frozenset()  # flags that take several words
    objects: frozenset[str] = frozenset()  # flags whose parts (--a.b) are places of their own


def commands(text: str) -> Iterator[list[str]]:
    """The lines of a script as words, a quoted value over several lines in one; what is no shell is passed over."""
    held: list[str] = []
    for line in text.replace("\\\n", " ").splitlines():
        held.append(line)
        try:
            words = shlex.split("\n".join(held), comments=True)
        except ValueError:
            held = [] if len(held) >= MOST_LINES else held
            continue
        held = []
        yield words


def parse(how: Command, text: str) -> Mapping[str, Any]:
    """Flags of the first launch in a text, by their long names, and the partition exported before it; nothing where there is none."""
    found: dict[str, Any] = {}
    for words in commands(text):
        for word in words:
            name, _, value = word.partition("=")
            if value and name in (how.partition, ALLOCATOR, OLDER):
                found[ALLOCATOR if name == OLDER else name] = value
        start = _start(how, words)
        if start is not None:
            return {**found, how.model: None, **_flags(how, words[start:])}
    return {}


def _start(how: Command, words: list[str]) -> int | None:
    """Where the flags begin: after a launch, or after the container's image where that starts the server itself."""
    for at, word in enumerate(words):
        own = word.rpartition("/")[2]
        for launch in how.launches:
            started = own == launch[0] or (launch[0] == "python" and own.startswith("python"))
            if started and tuple(words[at + 1 : at + len(launch)]) == launch[1:]:
                return at + len(launch)
    images = (at for at, word in enumerate(words) if how.image and word.partition(":")[0] == how.image)
    return next((at + 1 for at in images), None)


def _flags(how: Command, words: Iterable[str]) -> Mapping[str, Any]:
    """`--a b`, `--a=b`, `--a.b c` as a, `--no-a`, `-a b`; a bare word is the model."""
    found: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in ENDS or word.startswith((">", "2>")):
            break
        if not word.startswith("-") or word in ("-", "--"):
            if word not in ("$@", "${@}", "-", "--") and how.model not in found:
                found[how.model] = word
            continue
        name, equals, value = word.partition("=")
        name = "--" + name.lstrip("-").replace("_", "-") if how.dashed and name.startswith("--") else name
        name, inner, part = name.partition(".")
        name = how.aliases.get(name, name)
        if inner and name in how.objects:
            name, inner = name + "." + part.replace("-", "_"), ""
        if not equals and (name in how.switches or name.startswith(SWITCHES) or not rest or _is_flag(rest[0])):
            off = name.startswith("--no-") and f"--{name[5:]}"
            found[off or name] = not off
            continue
        held: Any = value if equals else rest.pop(0)
        if name in how.lists:
            held = [held]
            while rest and not _is_flag(rest[0]) and not rest[0].startswith((">", "2>")):
                held.append(rest.pop(0))
            found[name] = held
            continue
        found[name] = GIVEN if inner else held if name == how.model or name in how.words else number(held)
    return found


def _is_flag(word: str) -> bool:
    return word in ("$@", *ENDS) or (word.startswith("-") and not _WHOLE.fullmatch(word))


def number(text: str) -> Any:
    """A number as the engines' parsers read it (1k is 1,000 and 1K is 1,024; vLLM utils/argparse_utils.py:30), or the text."""
    if _WHOLE.fullmatch(text):
        return int(text)
    if _PART.fullmatch(text):
        return float(text)
    human = _HUMAN.fullmatch(text)
    return int(float(human[1]) * _STEPS[human[2]]) if human else text


def compose(how: Command, values: Values) -> str:
    """Shell text around one command: every value is quoted."""
    model, launch = str(values[how.model]), how.launches[0]
    named = [f"export {name}={shlex.quote(str(values[name]))}" for name in (ALLOCATOR, how.partition) if name in values]
    flags = [
        at
        if value is True
        else f"--no-{at[2:]}"
        if value is False
        else f"{at} {shlex.join(value)}"
        if isinstance(value, list)
        else f"{at}={shlex.quote(str(value))}"
        for at, value in values.items()
        if at.startswith("--") and at != how.model
    ]
    first = shlex.quote(model) if launch[0] == "vllm" else f"{how.model}={shlex.quote(model)}"
    lines = " \\\n  ".join([f"exec {' '.join(launch)} {first}", *flags, '"$@"'])
    return "\n".join(["#!/usr/bin/env bash", "set -euo pipefail", *named, lines, ""])


# ---- rows that both have -----------------------------------------------------------------------------------------------------


def dtype_out(asked: Values) -> Any:
    return DTYPES.get(asked.get("precision.parameters", ""))


def dtype_back(value: Any, _: Values) -> Mapping[str, Any]:
    """One dtype for all of a model; "auto" is the checkpoint's, which a plan takes by itself."""
    dtype = SPELLED.get(str(value), str(value))
    return {} if value == "auto" else {f"precision.{name}": dtype for name in SIXTEEN_OF}


def cache_back(eight: Iterable[str]) -> Callable[[Any, Values], Mapping[str, Any]]:
    """The cache's dtype by the engine's names for it."""
    known = {**dict.fromkeys(eight, "fp8"), "bfloat16": "bf16", "bf16": "bf16", "float16": "fp16"}
    return lambda value, _: {"serving.kv_dtype": known.get(str(value), str(value))}


def partition_out(asked: Values) -> Any:
    layers = asked.get("layers_per_stage")
    return ",".join(str(count) for count in layers) if layers else None


def partition_back(value: Any, _: Values) -> Mapping[str, Any]:
    counts = [number(part.strip()) for part in str(value).split(",")]
    return {"layers_per_stage": counts}


SEGMENTS = Key(
    at=ALLOCATOR,
    out=lambda asked: ON if asked.get("allocator.expandable_segments") else None,
    back=lambda value, _: {"allocator.expandable_segments": ON.lower() in str(value).replace(" ", "").lower()},
    source="torch 2.13.0 torch/cuda/memory.py:1202",
)


def cannot(asked: Values) -> Iterator[Problem]:
    """What neither server does, and names that are no word of a command."""
    name = str(asked.get("@model") or "")
    if not name or name.startswith("-") or not name.isprintable():
        yield Problem(
            field="model", value=name or None, reason="is no name that a command can be given", hint="--model of a hub or a folder"
        )
    if asked.get("attention") not in (None, "flash"):
        yield Problem(field="attention", value=asked["attention"], reason="is not what the sheet's command runs", hint="attention flash")
    if asked.get("microbatch", asked.get("serving.max_sequences")) != asked.get("serving.max_sequences"):
        yield Problem(field="microbatch", value=asked["microbatch"], reason="is not serving.max_sequences", hint="give one of them")
    if asked.get("phase"):
        yield Problem(field="phase", value=asked["phase"], reason="is no way to start a server", hint="leave it out")


def one_node(asked: Values) -> Iterator[Problem]:
    """A server over several nodes, which one script does not start."""
    if asked.get("engine") in SCRIPTS and asked.get("@nodes", 1) > 1:
        yield Problem(field="nodes", value=asked["@nodes"], reason="is not one command", hint="a plan of one node")


def server_of(asked: Values) -> tuple[str, ...]:
    """The format of the command that a batch script or a task starts, where it starts a server."""
    return (str(asked["engine"]),) if asked["engine"] in SCRIPTS else ()
