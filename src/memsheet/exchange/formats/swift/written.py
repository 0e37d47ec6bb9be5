"""A plan as the values of ms-swift's command: what each flag is given, and what it cannot be told. Lines are
of modelscope/ms-swift at 3602360.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memsheet.errors import Problem
from memsheet.exchange.formats.swift.commands import METHOD, NODES, PROCESSES, VARIABLES
from memsheet.exchange.shared.file_format import Values
from memsheet.exchange.shared.serve_command import DTYPES
from memsheet.exchange.shared.trainers import cast_by_deepspeed, plain_recompute

KERNELS = {"flash": "flash_attention_2", "sdpa": "sdpa", "eager": "eager"}
OF_ENGINES = ("precision.", "zero")
ZERO = {
    "zero0": (0, 0, 0), "zero1": (1, 0, 0), "zero2": (2, 0, 0), "zero3": (3, 0, 0), "zero2_offload": (2, 1, 0), "zero3_offload": (3, 1, 1),
}  # fmt: skip
"""Its own DeepSpeed files by name: the stage, and whether optimizer states and parameters are in host memory
(sft_args.py:258-268, swift/config/*.json).
"""


def with_adapter(make: Callable[[Values], Any]) -> Callable[[Values], Any]:
    return lambda asked: make(asked) if asked.get("adapter.rank") else None


def deepspeed_word(asked: Values) -> str | None:
    """The name of the file that divides and offloads as the plan does."""
    if asked["engine"] != "deepspeed":
        return None
    own = tuple(asked.get(key, 0) for key in ("zero", "offload.optimizer", "offload.parameters"))
    return next((name for name, held in ZERO.items() if held == own), None)


def loaded_dtype(asked: Values) -> str | None:
    """The dtype of the products where an engine raises the weights or keeps a master of them."""
    raised = asked["engine"] != "transformers" and not asked.get("adapter.rank")
    return DTYPES.get(str(asked.get("precision.compute" if raised else "precision.parameters")))


def quantized_bits(asked: Values) -> int | None:
    return {"nf4": 4, "fp4": 4, "int8": 8}.get(str(asked.get("quantization.weights")))


def four_bits(make: Callable[[Values], Any]) -> Callable[[Values], Any]:
    return lambda asked: make(asked) if quantized_bits(asked) == 4 else None


def adapter_dtype(asked: Values) -> str | None:
    """Said where it is not fp32, which peft makes of it by itself; DeepSpeed casts the whole model."""
    width = asked.get("adapter.dtype")
    return None if asked["engine"] == "deepspeed" or width == "fp32" else DTYPES.get(str(width))


def recompute_switch(asked: Values) -> bool:
    return asked.get("recompute.mode") == "full" and plain_recompute(asked)


def liger_switch(asked: Values) -> bool | None:
    return {"plain": False, "fused": True}.get(str(asked.get("loss")))


def command_problems(asked: Values, made: Mapping[str, Any]) -> Iterator[Problem]:
    """What no flag says. ``made``: the request that the command reads back as, of which what holds unless
    anything else says it must be the plan's, too.
    """
    yield from cast_by_deepspeed(asked)
    name = str(asked.get("@model") or "")
    if not name or not name.isprintable():
        reason = "is no name that a command can be given"
        yield Problem(field="model", value=name or None, reason=reason, hint="--model of a hub or a folder")
    if asked.get("@nodes", 1) > 1:
        yield Problem(
            field="nodes", value=asked["@nodes"], reason="is not one command", hint="a plan of one node"
        )
    if asked["engine"] == "deepspeed" and deepspeed_word(asked) is None:
        reason = "and its offload are none of ms-swift's own DeepSpeed files"
        yield Problem(field="zero", value=asked.get("zero"), reason=reason, hint=", ".join(ZERO))
        return
    for key, value in made.items():
        name = key.removeprefix("?")
        taken = key[0] == "?" and name not in made and name in asked and name.startswith(OF_ENGINES)
        own_dtypes = asked.get("adapter.rank") and name.startswith("precision.")
        if taken and not own_dtypes and asked[name] != value:
            reason = f"cannot be said to ms-swift, which would run {value}"
            yield Problem(field=name, value=asked[name], reason=reason)


def compose_swift_command(values: Values, _: Values) -> str:
    """Shell text around one command: every value is quoted."""
    named = [f"export {VARIABLES[at]}={values[at]}" for at in (PROCESSES, NODES) if at in values]
    flags = [_flag_text(at, value) for at, value in values.items() if not at.startswith("$")]
    lines = " \\\n  ".join([f"exec swift {values[METHOD]}", *flags, '"$@"'])
    return "\n".join(["#!/usr/bin/env bash", "set -euo pipefail", *named, lines, ""])


def _flag_text(at: str, value: Any) -> str:
    if isinstance(value, list):
        return f"--{at} {shlex.join(map(str, value))}"
    word = str(value).lower() if isinstance(value, bool) else str(value)
    return f"--{at}={shlex.quote(word)}"
