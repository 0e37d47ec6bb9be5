"""The allocator's growing segments, as a job's environment says them (torch 2.13.0
c10/core/AllocatorConfig.h).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.file_format import Key, Values

ALLOCATOR, OLDER, ON = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"
"""The variable, its older name, and what switches them on."""
OFF = "expandable_segments:False"
ALLOCATOR_CONF = "allocator_conf"
"""What a script itself sets the variable to."""
SOURCE = "torch 2.13.0 torch/cuda/memory.py:1202"


def read_allocator_conf(value: Any, _: Values) -> Mapping[str, Any]:
    """What a variable's text says."""
    return {"allocator.expandable_segments": ON.lower() in str(value).replace(" ", "").lower()}


def switched_conf_text(asked: Values) -> str:
    """The variable's text for a program that switches them on by itself where nobody says otherwise."""
    return ON if asked.get("allocator.expandable_segments") else OFF


def allocator_conf_text(asked: Values) -> str | None:
    """The variable's text where a plan asks for them."""
    return ON if asked.get("allocator.expandable_segments") else None


def script_allocator_key(tree: ast.Module) -> dict[str, str]:
    """What a script's own top level sets the variable to, the newer name first; nothing where it does not, or
    not to a plain text.
    """
    told = dict(filter(None, map(_environment_text, tree.body)))
    return next(({ALLOCATOR_CONF: told[name]} for name in (ALLOCATOR, OLDER) if name in told), {})


def _environment_text(line: ast.stmt) -> tuple[str, str] | None:
    """The variable's name and text of ``os.environ[NAME] = TEXT`` and of its ``setdefault``."""
    given: tuple[ast.expr, ...] = ()
    if isinstance(line, ast.Assign) and isinstance(place := line.targets[0], ast.Subscript):
        given, of = (place.slice, line.value), place.value
    elif isinstance(line, ast.Expr) and isinstance(call := line.value, ast.Call) and len(call.args) == 2:
        given, of = tuple(call.args), call.func
    if len(given) != 2 or not ast.unparse(of).removesuffix(".setdefault").endswith("environ"):
        return None
    name, text = (one.value if isinstance(one, ast.Constant) else None for one in given)
    return (name, text) if isinstance(name, str) and isinstance(text, str) else None


def allocator_conf_rows(group: str = "") -> tuple[Key, Key]:
    """The rows of a format that keeps variables in ``group``: the name that is written, and the older one,
    which is read.
    """
    return (
        Key(at=f"{group}{ALLOCATOR}", out=allocator_conf_text, back=read_allocator_conf, source=SOURCE),
        Key(at=f"{group}{OLDER}", out=lambda _: None, back=read_allocator_conf, source=SOURCE),
    )
