"""What people call a job's batch, length and model in scripts of their own: names of flags, of fields and of
constants, each with its meaning.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memsheet.exchange.shared.file_format import UNSET
from memsheet.exchange.shared.python_module import Module
from memsheet.exchange.shared.role_words import ROLES
from memsheet.exchange.shared.script_flags import known_flags
from memsheet.frozen import NamedTuple
from memsheet.patterns import late_pattern

TRAINING = late_pattern(
    r"train|finetun|fine_tun|(^|_)sft|(^|_)dpo|pretrain|run_clm|run_mlm|run_glue|distil|lora", re.IGNORECASE
)
GENERATION = late_pattern(
    r"eval|infer|generat|predict|chat|serve|bench|demo|test|prompt|sample|flex|run_model", re.IGNORECASE
)
OF_TRAINERS = late_pattern(r"(?:^|/)train(?:ers?|ing)?/")
"""A folder of scripts that train."""
OF_EVALUATIONS = late_pattern(
    r"(?:^|/)(?:eval\w*|infer\w*|serve|serving|generat\w+|predict\w*|demos?)/", re.IGNORECASE
)
"""A folder of scripts that load a model to ask it."""
STEPS = frozenset({
    "learning_rate", "lr", "num_train_epochs", "num_epochs", "epochs", "max_steps", "max_train_steps", "weight_decay", "warmup_steps", "num_warmup_steps",
    "warmup_ratio", "warmup_proportion", "do_train", "adam_beta1", *ROLES["accumulation"],
})  # fmt: skip
"""Flags that only a training has."""


class RoleValue(NamedTuple):
    """A value of a role, what it was called, and the line that says so (0: a command's flag)."""

    value: Any
    name: str
    line: int


def role_value(role: str, *sources: Mapping[str, RoleValue]) -> RoleValue | None:
    """What the first source says of a role that says anything of it, by its surest name."""
    for source in sources:
        for name in ROLES[role]:
            if (held := source.get(name)) is not None and held.value is not None:
                return held
    return None


def flag_values(module: Module) -> dict[str, RoleValue]:
    """Flags of a script with what they are, by their names in lower case."""
    return {
        name.lower(): RoleValue(flag.default, flag.name, flag.line)
        for name, flag in known_flags(module).items()
    }


def command_values(arguments: Mapping[str, Any]) -> dict[str, RoleValue]:
    """Flags as a command gives them."""
    return {
        name.lower().replace("-", "_"): RoleValue(held, f"--{name.replace('_', '-')}", 0)
        for name, held in arguments.items()
    }


def constant_values(module: Module) -> dict[str, RoleValue]:
    """Constants of a file by their names in lower case, wherever they are given: in functions, in classes
    and in tables of words; none that has two values.
    """
    found: dict[str, list[RoleValue]] = {}
    for name, node in _named_expressions(module.tree):
        value = node.value if isinstance(node, ast.Constant) else UNSET
        if value is not None and value != UNSET and not isinstance(value, bytes | complex):
            found.setdefault(name.lower(), []).append(RoleValue(value, name, node.lineno))
    for name, value in module.names.items():
        if isinstance(value, str | int | float) and value != UNSET:
            found.setdefault(name.lower(), []).append(RoleValue(value, name, 0))
    return {
        name: max(held, key=lambda one: one.line)
        for name, held in found.items()
        if len({repr(one.value) for one in held}) == 1
    }


def given_texts(module: Module, name: str) -> list[RoleValue]:
    """The texts that a name is given anywhere in a file, in its order."""
    return [
        RoleValue(node.value, name, node.lineno)
        for found, node in _named_expressions(module.tree)
        if found == name and isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def _named_expressions(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=held):
                yield name, held
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                pairs = zip(names, values, strict=False)
                yield from ((one.id, held) for one, held in pairs if isinstance(one, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as held):
                yield name, held
            case ast.Dict(keys=keys, values=values):
                yield from _worded_expressions(keys, values)


def _worded_expressions(
    keys: Sequence[ast.expr | None], values: Sequence[ast.expr]
) -> Iterator[tuple[str, ast.expr]]:
    for key, held in zip(keys, values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value, held


def task_of_script(name: str, flags: Mapping[str, Any]) -> str | None:
    """Whether a script of that name, given such flags, trains or generates; None where nothing tells."""
    given = {flag.lower() for flag in flags}
    if given & STEPS:
        return "train"
    base = name.rpartition("/")[2].removesuffix(".py")
    if given & {*ROLES["answer"], *ROLES["prompt"]} or GENERATION.search(base):
        return "infer"
    named = (
        TRAINING.search(base) or OF_TRAINERS.search(name) or any(flag.startswith("train_") for flag in given)
    )
    if named:
        return "train"
    return "infer" if OF_EVALUATIONS.search(name) else None
