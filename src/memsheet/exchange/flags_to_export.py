"""The flags with which a plan that a format cannot say becomes one that it can: what its engine would run in
the place of what it cannot be told, each change tried before it is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from memsheet.errors import Problem, printable_line
from memsheet.frozen import replace
from memsheet.plan.defaults import NAMED_PRECISIONS
from memsheet.plan.library_defaults import LIBRARY_DEFAULTS
from memsheet.plan.names import NOWHERE, OFFLOADABLE, SHORT

Asked = Mapping[str, Any]
ROUNDS = 4
"""Of changes that bring about another one."""
GROUPS = ("precision", "quantization", "offload")
"""Parts of a plan of which one flag says several keys."""
ALONG: Mapping[str, Mapping[str, Any]] = {"context_parallel_comm": {"mesh.cp": None}}
"""What goes with a key that cannot be said: how ranks share a sequence, that they do."""
FLAGS = {key: f"--{name.replace('_', '-')}" for name, key in SHORT.items()}


def with_flags_to_export(
    problems: Sequence[Problem],
    asked: Asked,
    found: Callable[[Asked], Sequence[Problem]],
    made: Callable[[Asked], Asked],
    library: str,
) -> list[Problem]:
    """Problems of a plan with the flags as their hints that make one without them, where there are any.

    ``found``: the problems of another plan; ``made``: what the engine would run of it; ``library``: the
    format's name, which is a library's whose defaults a plan may have.
    """
    changed = _sayable_plan(problems, asked, found, made)
    if changed is None:
        return list(problems)
    words = list(dict.fromkeys(_export_flag_words(asked, changed)))
    if "" in words:
        words = [f"--engine {library}"] if library in LIBRARY_DEFAULTS else []
    hint = f"plan it with {' '.join(words)}"
    return [replace(one, hint=hint) for one in problems] if words else list(problems)


def _sayable_plan(
    problems: Sequence[Problem],
    asked: Asked,
    found: Callable[[Asked], Sequence[Problem]],
    made: Callable[[Asked], Asked],
) -> Asked | None:
    """The plan with what the engine would run in the place of what it cannot be told; None where that is no
    plan of it either.
    """
    changed: dict[str, Any] = dict(asked)
    for _ in range(ROUNDS):
        runs = made(changed)
        if any(one.field not in changed and one.field not in runs for one in problems):
            return None
        for one in problems:
            value = runs.get(one.field, runs.get(f"?{one.field}"))
            changed = {**changed, one.field: value, **ALONG.get(one.field, {})}
        changed = {key: value for key, value in changed.items() if value is not None}
        for trial in [*_named_precisions(asked, changed), changed]:
            if not (left := found(trial)):
                return trial
        problems = left
    return None


def _named_precisions(asked: Asked, changed: Asked) -> Iterator[Asked]:
    """The plan with each precision that has a name, the most like its own first, where that became
    another.
    """
    if not _differs(asked, changed, "precision"):
        return
    tried = [{**changed, **_dtypes(name)} for name in NAMED_PRECISIONS]
    yield from sorted(tried, key=lambda trial: sum(trial[key] != changed.get(key) for key in trial))


def _dtypes(name: str) -> dict[str, Any]:
    """The keys of a precision that has a name."""
    held = NAMED_PRECISIONS[name]
    parts = ("parameters", "compute", "gradients", "reduce", "master_weights", "moments")
    return {f"precision.{part}": dtype.name for part in parts if (dtype := getattr(held, part)) is not None}


def _differs(asked: Asked, changed: Asked, group: str) -> bool:
    """Whether a part of the plan became another."""
    keys = {key for key in (*asked, *changed) if key.partition(".")[0] == group and key != "precision.name"}
    return any(asked.get(key) != changed.get(key) for key in keys)


def _export_flag_words(asked: Asked, changed: Asked) -> Iterator[str]:
    """Flags of what differs, each with its value; an empty one for what no flag says."""
    for key in dict.fromkeys((*asked, *changed)):
        group = key.partition(".")[0]
        if key.startswith("@") or group in GROUPS or asked.get(key) == changed.get(key):
            continue
        yield _flag_word(key, changed.get(key))
    if _differs(asked, changed, "precision"):
        ours = {key: held for key, held in changed.items() if key.startswith("precision.")}
        named = (name for name in NAMED_PRECISIONS if {**ours, **_dtypes(name)} == ours)
        yield next((f"--precision {name}" for name in named), "")
    if _differs(asked, changed, "quantization"):
        whole = changed.get("quantization.weights") is None and changed.get("adapter.rank")
        yield "--method lora" if whole else ""
    if _differs(asked, changed, "offload"):
        kept = [name for name in OFFLOADABLE if changed.get(f"offload.{name}")]
        yield f"--offload {','.join(kept) or NOWHERE}"


def _flag_word(key: str, value: Any) -> str:
    if key not in FLAGS:
        return ""
    if value is None and not (key.startswith("mesh.") or key == "vocab_multiple"):
        return "" if key != "context_parallel_comm" else "--cp 1"
    if isinstance(value, bool):
        return FLAGS[key] if value else f"--no-{FLAGS[key].removeprefix('--')}"
    listed = value if isinstance(value, list | tuple) else [1 if value is None else value]
    return f"{FLAGS[key]} {','.join(printable_line(one) for one in listed)}"
