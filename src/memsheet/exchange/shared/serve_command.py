"""Commands of servers: what vLLM's and SGLang's have in common. A command is found in a script or a line,
split as a shell does, and never run.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from memsheet.errors import Problem
from memsheet.exchange.shared import serve_script as around
from memsheet.exchange.shared import visible_cards as visible
from memsheet.exchange.shared.allocator_env import ALLOCATOR, OLDER
from memsheet.exchange.shared.file_format import MORE, UNSET, Key, Values
from memsheet.exchange.shared.serve_script import ENDS
from memsheet.exchange.shared.slurm_environment import slurm_variables
from memsheet.frozen import dataclass, field
from memsheet.patterns import late_pattern

OFF = "--no-"
SWITCHES = tuple(
    f"--{name}-"
    for name in ("enable", "disable", "skip", "no", "trust", "fully", "interleave", "allow-deprecated")
)
"""How flags begin that take no value in either engine."""
GIVEN = "given"
TRUE = frozenset({"1", "on", "true", "enabled", "yes"})
"""Values of a variable that switch on what its flag does (ggml-org/llama.cpp 00dc8057 tools/server/README.md,
boolean options).
"""
ALL_CARDS = "all"
"""Ranks of tensor parallelism where a command is made for as many cards as there are."""
_CACHED = late_pattern(r"(?:^|/)models--([\w.-]+?)--([\w.-]+)(?:/|$)", holds=("models--",))
_ATTACHED = late_pattern(r"-O=?(\w+)", holds=("-O",))
"""A level without a space (vLLM utils/argparse_utils.py: "-O" and what follows it, in parse_args)."""
_HUMAN = late_pattern(r"(\d{1,12}(?:\.\d{1,6})?)([kKmMgGtT])")
_WHOLE, _PART = late_pattern(r"-?\d{1,12}"), late_pattern(r"\d{0,6}\.\d{1,12}")
_STEPS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
SPELLED = {"half": "fp16", "float": "fp32", **{name: dtype for dtype, name in DTYPES.items()}}
SIXTEEN_OF = ("parameters", "compute", "gradients", "reduce", "moments")
SCRIPTS = {"vllm": "vllm.sh", "sglang": "sglang.sh"}
"""The file of each server's command, which a batch script or a task runs where it lies beside."""
BESIDE = frozenset(
    {
        "mesh.etp",
        "attention",
        "microbatch",
        "serving.prompt_tokens",
        "serving.output_tokens",
        "serving.shared_prefix_tokens",
    }
)
"""Keys that follow from the others, belong to requests, or are checked in ``unservable_problems``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """How an engine is started. ``launches``: the words before its flags, each way; ``image``: of a container
    that takes the flags alone, if there is one.
    """

    model: str  # the flag that names it, which is also where a bare word goes
    package: str  # as it is installed
    launches: tuple[tuple[str, ...], ...]
    image: str
    aliases: Mapping[str, str]
    switches: frozenset[str]
    partition: str  # the environment's layers of each stage
    dashed: bool  # underscores in a flag are dashes
    words: frozenset[str] = frozenset()  # flags whose values are words, whatever they look like
    lists: frozenset[str] = frozenset()  # flags that take several words
    joined: frozenset[str] = frozenset()  # flags whose words add up with commas where they are said again
    objects: frozenset[str] = frozenset()  # flags whose parts (--a.b) are places of their own
    variables: Mapping[str, str] = field(default_factory=dict)  # the environment's names of flags


def parse_server_command(how: Command, text: str, weighed: Iterable[str] = ()) -> Mapping[str, Any]:
    """Flags of the first launch in a text, by their long names, and the partition exported before it; nothing
    where there is none.

    ``weighed``: flags with bytes. Of those, one that nobody set is ``UNSET``, one whose variable is given
    twice is named beside, and one is at its variable's default, as the file stands, which
    ``variable_default_remarks`` tells.
    """
    weighed = frozenset(weighed)
    found: dict[str, Any] = {}
    left: dict[str, str] = {}
    known, before, others = around.Variables(), list[str](), list[str]()
    earlier = list[list[str]]()
    for words in (part for line in around.script_lines(text) for part in around.split_line_commands(line)):
        known.learn(words)
        filled = known.filled(words, defaults=True)
        if asked := [*slurm_variables(filled)]:
            known.learn(asked)
            filled = known.filled(words, defaults=True)
        unnamed = around.server_flags_index(filled, around.LAUNCHES, around.ALONE) is None
        if how.model in found:
            others += [] if unnamed else [_shortened_launch(filled)]
            continue
        before += filled
        earlier.append(filled)
        for word in filled:
            name, _, value = word.partition("=")
            if name and value and name in (how.partition, ALLOCATOR, OLDER, *how.variables):
                found[ALLOCATOR if name == OLDER else name] = value
        left |= _defaulted_variables(how, known.filled(words, defaults=False) if how.variables else ())
        named = _environment_model(how, found) if unnamed else []
        filled += named
        start = around.server_flags_index(filled, how.launches, (how.image,))
        if start is None:
            others += [] if unnamed else [_shortened_launch(filled)]
        else:
            version = around.pinned_release(how.package, before)
            cards = visible.cards_before(filled[:start]) or visible.exported_cards(earlier)
            said = _resolve_launch_flags(how, [*words, *named], known, filled[start:], weighed)
            told = _environment_flags(how, found)
            open_ones = [f"{at} {held}" for at, held in left.items() if at not in said and at in weighed]
            found = {
                **found,
                **({around.VERSION: version} if version else {}),
                **({visible.CARDS: [*cards]} if cards else {}),
                how.model: None,
                **told,
                **({around.OPEN: ", ".join(open_ones)} if open_ones else {}),
                **said,
            }
    more = {around.OTHERS: around.unread_servers(others)} if others else {}
    return {**found, **more} if how.model in found else {}


LONGEST_SHOWN = 60
"""Characters of a further server's command that are shown."""


def _shortened_launch(words: list[str]) -> str:
    """A further server's command by its first words."""
    start = around.server_flags_index(words, around.LAUNCHES, around.ALONE) or 0
    shown = [word.rpartition("/")[2] if at < start else word for at, word in enumerate(words)]
    first = max(0, start - 3) if "-m" in words[max(0, start - 3) : start] else max(0, start - 2)
    while first and words[first].startswith("-"):
        first -= 1  # the interpreter before its switches
    last = start + 2 if words[start : start + 1] and _is_flag(words[start]) else start + 1
    return " ".join(shown[first:last])[:LONGEST_SHOWN]


def _environment_model(how: Command, found: Mapping[str, Any]) -> list[str]:
    """The flag by which the environment names the model, as a command without one has it."""
    named = ([flag, str(found[name])] for name, flag in how.variables.items() if name in found)
    return next((words for words in named if words[0] in around.NAMES_A_MODEL), [])


def _environment_flags(how: Command, found: dict[str, Any]) -> dict[str, Any]:
    """The flags that the environment says, taken out of what was found before the launch."""
    told = {flag: found.pop(name) for name, flag in how.variables.items() if name in found}
    return {flag: _environment_value(how, flag, held) for flag, held in told.items()}


def _defaulted_variables(how: Command, words: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Flags that the environment says by a variable that is given twice."""
    for name, _, value in (word.partition("=") for word in words):
        if name in how.variables and _is_either(value):
            yield how.variables[name], value


def _is_either(value: Any) -> bool:
    """Whether a value holds a variable that has none of its own and no default: one that a script gives
    twice (``Variables.learn``), where the text does not tell which.
    """
    return isinstance(value, str) and any(not usual for _, usual in around.unset_variables(value))


def _environment_value(how: Command, flag: str, held: str) -> Any:
    if around.has_unset_placeholder(held) and flag != how.model:
        return UNSET
    if flag == how.model or flag in how.words:
        return held
    return held.lower() in TRUE if flag in how.switches else parse_human_number(held)


def _resolve_launch_flags(
    how: Command, words: list[str], known: around.Variables, filled: list[str], weighed: frozenset[str]
) -> Mapping[str, Any]:
    """A launch's flags, with what is open of them."""
    taken = dict(_parse_server_flags(how, filled))
    plain = known.filled(words, defaults=False)
    start = around.server_flags_index(plain, how.launches, (how.image,))
    raw = _parse_server_flags(how, plain[start:]) if start is not None else taken
    for at in (
        at for at in taken if at in weighed and at != how.model and around.has_unset_placeholder(taken[at])
    ):
        taken[at] = UNSET
    left = {
        at: raw[at]
        for at in taken
        if at in weighed and at != how.model and taken[at] != UNSET and _is_either(raw.get(at))
    }
    return {
        **taken,
        **({around.OPEN: ", ".join(f"{at} {text}" for at, text in left.items())} if left else {}),
    }


def _parse_server_flags(how: Command, words: Iterable[str]) -> Mapping[str, Any]:
    """`--a b`, `--a=b`, `--a.b c` as a, `--no-a`, `-a b`; a bare word is the model."""
    found: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in ENDS or word.startswith((">", "2>")):
            break
        if not word.startswith("-") or word in ("-", "--"):
            if word in (*around.ARGUMENTS, "-", "--"):
                continue
            if how.model not in found:
                found[how.model] = hub_name(word)
            elif around.has_unset_placeholder(word):
                found[MORE] = word
            continue
        if attached := _ATTACHED.fullmatch(word) if "-O" in how.aliases else None:
            word = f"-O={attached[1]}"
        name, equals, value = word.partition("=")
        name = "--" + name.lstrip("-").replace("_", "-") if how.dashed and name.startswith("--") else name
        name, inner, part = name.partition(".")
        name = how.aliases.get(name, name)
        if inner and name in how.objects:
            name, inner = name + "." + part.replace("-", "_"), ""
        if not equals and (
            name in how.switches or name.startswith(SWITCHES) or not rest or _is_flag(rest[0])
        ):
            off = name.startswith(OFF) and f"--{name.removeprefix(OFF)}"
            found[off or name] = not off
            continue
        held: Any = value if equals else rest.pop(0)
        if name in how.lists:
            held = [held]
            while rest and not _is_flag(rest[0]) and not rest[0].startswith((">", "2>")):
                held.append(rest.pop(0))
            found[name] = held
            continue
        if name in how.joined:
            found[name] = f"{found[name]},{held}" if isinstance(found.get(name), str) else held
            continue
        found[name] = (
            GIVEN
            if inner
            else hub_name(held)
            if name == how.model
            else held
            if name in how.words
            else parse_human_number(held)
        )
    return found


def hub_name(path: str) -> str:
    """A model's path as its name on the hub, where it lies in the hub's cache (models--org--name); else as it
    is.
    """
    told = _CACHED.search(path)
    return f"{told[1]}/{told[2]}" if told else path


def _is_flag(word: str) -> bool:
    return word in ("$@", *ENDS) or (word.startswith("-") and not _WHOLE.fullmatch(word))


def is_open_flag(at: str) -> bool:
    """Whether a place that nobody knows is a flag: the server stops at it, or is of another release, whose
    flag may change what a GPU holds.
    """
    return at.startswith("-")


def as_typed(found: Mapping[str, Any], known: Callable[[str], bool]) -> dict[str, Any]:
    """A command's values in which a switch that switches no flag of the engine's off stands as it was typed
    (`--no-such-flag`).
    """
    strange = {at for at, held in found.items() if held is False and at.startswith("--") and not known(at)}
    return {
        f"{OFF}{at.removeprefix('--')}" if at in strange else at: at in strange or held
        for at, held in found.items()
    }


WORKER_FLAGS = "flags of the worker around it"
"""The place of what Dynamo's worker takes beside its engine's flags: of names, routes and transfers."""


def without_worker_flags(
    text: str, found: Mapping[str, Any], known: Callable[[str], bool]
) -> Mapping[str, Any]:
    """A command's values with the flags that only the worker around the engine has in one place."""
    if "dynamo." not in text:
        return found
    own = [at for at in found if at.startswith("-") and not known(at)]
    rest = {at: held for at, held in found.items() if at not in own}
    return {**rest, WORKER_FLAGS: " ".join(own)} if own else rest


SKYPILOTS_COUNT = "SKYPILOT_NUM_GPUS_PER_NODE"
"""Nobody's default: what the accelerators that were found set it to, of which the fewest are counted."""


def variable_default_remarks(text: str) -> tuple[str, ...]:
    """Defaults of variables that a script's first server takes, in words."""
    known, found = around.Variables(), dict[str, str]()
    for words in (part for line in around.script_lines(text) for part in around.split_line_commands(line)):
        known.learn(words)
        if around.server_flags_index(words, around.LAUNCHES, around.ALONE) is not None:
            for word in known.filled(words, defaults=False):
                found.update({name: default for name, default in around.unset_variables(word) if default})
            break
    return tuple(
        f"{name} is taken as {default}, the fewest of the accelerators that the task may get"
        if name == SKYPILOTS_COUNT
        else f"{'argument ' * name.isdecimal()}{name} is taken as its default {default}"
        for name, default in found.items()
    )


PLACES = (
    Key(
        at=around.VERSION,
        says="engine_version",
        out=lambda _: None,
        source="the image's tag, or the requirement that is installed",
    ),
    Key(at=visible.CARDS, out=lambda _: None, back=lambda *_: {}, source="what the process is started with"),
)
OPEN_PLACES: Mapping[str, tuple[Any, ...]] = {around.OTHERS: (), MORE: (), around.OPEN: ()}
"""What keeps a script's verdict from being sure: a server beside the one that is read, arguments that are not
in the text, variables that it gives twice.
"""


def parse_human_number(text: str) -> Any:
    """A number as the engines' parsers read it (1k is 1,000 and 1K is 1,024; vLLM
    utils/argparse_utils.py:30), or the text.
    """
    if _WHOLE.fullmatch(text):
        return int(text)
    if _PART.fullmatch(text):
        return float(text)
    human = _HUMAN.fullmatch(text)
    return int(float(human[1]) * _STEPS[human[2]]) if human else text


def compose_server_command(how: Command, values: Values) -> str:
    """Shell text around one command: every value is quoted."""
    model, launch = str(values[how.model]), how.launches[0]
    named = [
        f"export {name}={shlex.quote(str(values[name]))}"
        for name in (ALLOCATOR, how.partition)
        if name in values
    ]
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


# ---- rows that both have -----------------------------------------------------------------------------------


def dtype_out(asked: Values) -> Any:
    return DTYPES.get(asked.get("precision.parameters", ""))


def dtype_back(value: Any, _: Values) -> Mapping[str, Any]:
    """One dtype for all of a model; "auto" is the checkpoint's, which a plan takes by itself."""
    dtype = SPELLED.get(str(value), str(value))
    return {} if value == "auto" else {f"precision.{name}": dtype for name in SIXTEEN_OF}


CHECKPOINTS_OWN = frozenset({
    "compressed-tensors", "modelopt", "modelopt_fp8", "modelopt_fp4", "fbgemm_fp8", "moe_wna16", "gguf",
})  # fmt: skip
"""Words for formats that are a checkpoint's own, which says the bits; and those of which one word has several
(vllm-project/vllm v0.33.0 model_executor/layers/quantization/__init__.py; sgl-project/sglang v0.5.23
srt/arg_groups/choices.py:32).
"""
MIXED_FORMATS = ("torchao", "quark", "modelopt_mixed", "petit_nvfp4", "w4afp8", "inc", "auto-round")


def quantization_back(known: Mapping[str, str]) -> Callable[[Any, Values], Mapping[str, Any]]:
    """The format of weights by the engine's names for it; nothing where the checkpoint says it."""

    def read(value: Any, values: Values) -> Mapping[str, Any]:
        word, served = str(value), str(values.get("--model", values.get("--model-path", ""))).lower()
        stored = word in CHECKPOINTS_OWN and (word != "gguf" or word in served)
        return {} if stored else {"quantization.weights": known.get(word, word)}

    return read


def cache_back(eight: Iterable[str]) -> Callable[[Any, Values], Mapping[str, Any]]:
    """The cache's dtype by the engine's names for it."""
    known = {
        **dict.fromkeys(eight, "fp8"),
        "fp8_e5m2": "fp8_e5m2",
        "bfloat16": "bf16",
        "bf16": "bf16",
        "float16": "fp16",
    }
    return lambda value, _: {"serving.kv_dtype": known.get(str(value), str(value))}


def partition_out(asked: Values) -> Any:
    layers = asked.get("layers_per_stage")
    return ",".join(str(count) for count in layers) if layers else None


def partition_back(value: Any, _: Values) -> Mapping[str, Any]:
    counts = [parse_human_number(part.strip()) for part in str(value).split(",")]
    return {"layers_per_stage": counts}


def unservable_problems(asked: Values) -> Iterator[Problem]:
    """What neither server does, and names that are no word of a command."""
    name = str(asked.get("@model") or "")
    if not name or name.startswith("-") or not name.isprintable():
        yield Problem(
            field="model",
            value=name or None,
            reason="is no name that a command can be given",
            hint="--model of a hub or a folder",
        )
    if asked.get("attention") not in (None, "flash"):
        yield Problem(
            field="attention",
            value=asked["attention"],
            reason="is not what the sheet's command runs",
            hint="attention flash",
        )
    if asked.get("microbatch", asked.get("serving.max_sequences")) != asked.get("serving.max_sequences"):
        yield Problem(
            field="microbatch",
            value=asked["microbatch"],
            reason="is not serving.max_sequences",
            hint="give one of them",
        )
    if asked.get("phase"):
        yield Problem(
            field="phase", value=asked["phase"], reason="is no way to start a server", hint="leave it out"
        )


def one_node(asked: Values) -> Iterator[Problem]:
    """A server over several nodes, which one script does not start."""
    if asked.get("engine") in SCRIPTS and asked.get("@nodes", 1) > 1:
        yield Problem(
            field="nodes", value=asked["@nodes"], reason="is not one command", hint="a plan of one node"
        )


def server_of(asked: Values) -> tuple[str, ...]:
    """The format of the command that a batch script or a task starts, where it starts a server."""
    return (str(asked["engine"]),) if asked["engine"] in SCRIPTS else ()
