"""Every formula evaluated once on symbols: the lines of formulas.txt."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from golden.cases import CASES
from golden.symbols import TENSOR, Cases, first, group, pass_shape, plan, serving, spec, symbol
from memsheet.arith import Term
from memsheet.formulas.sharding.overhead import ShardingOverhead
from memsheet.formulas.states.held import HeldTensor
from memsheet.formulas.tapes.bytes_by_path import BytesByPath
from memsheet.plan.dtypes import BF16, DType
from memsheet.plan.engine_registry import MODELLED, find_engine
from memsheet.plan.model import Attention, Block, Dense, LatentAttention, Mixer
from memsheet.questions.explain import formula_modules
from memsheet.references import FORMULAS
from memsheet.sheet import Bytes, Cited, Component, FromCode

HEADER = """\
# Every formula of memsheet, evaluated once on symbols, and what it stands on. `make regold` writes it again.
# name(case) = algebra ; source. A dash stands where a formula says that it takes whole numbers alone (counts="int").
"""
DASH = "—"


def load_all() -> None:
    for module in formula_modules():
        importlib.import_module(module)


def short_name(name: str) -> str:
    return name.removeprefix("memsheet.").removeprefix("formulas.")


def function_of(name: str) -> Callable[..., Any]:
    module, _, function = name.rpartition(".")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def given_cases(name: str) -> Cases | None:
    """Cases that are written for a formula: by the end of its name."""
    found = [cases for end, cases in CASES.items() if f".{short_name(name)}".endswith(f".{end}")]
    assert len(found) < 2, f"several cases end like {name}"
    return found[0]() if found else None


def by_annotation(name: str) -> Cases:
    """Symbols for counts; a plan of the formula's engine, a model, a tensor where they are asked for. Raises
    KeyError for a formula that asks for more.
    """
    known = _known(_engine(name), served=".serv" in name)
    asked = inspect.signature(function_of(name)).parameters
    made = {
        key: symbol(key)
        if parameter.annotation in ("Count", "int", "Real", "float")
        else known[parameter.annotation]()
        for key, parameter in asked.items()
    }
    return {"": ((), made)}


def _engine(name: str) -> str:
    folders = {engine.replace("-", "_").replace(".", "_"): engine for engine in MODELLED}
    for part in name.split("."):
        if part in folders:
            return folders[part]
    return "vllm" if ".serving" in name else "fsdp2"


def _known(engine: str, *, served: bool) -> dict[str, Callable[[], Any]]:
    found = find_engine(engine)
    assert found is not None
    one = serving if served or "train" not in found.tasks else plan
    return {
        "Plan": lambda: one(engine), "HeldTensor": lambda: TENSOR, "tuple[HeldTensor, ...]": lambda: (TENSOR,), "Iterable[HeldTensor]": lambda: (TENSOR,),
        "ModelSpec": spec, "DType": lambda: BF16, "Engine": lambda: found, "Mesh": lambda: one(engine).mesh, "bool": lambda: False,
        "Block": lambda: first(Block), "Attention": lambda: first(Attention), "Dense": lambda: first(Dense), "Mixer": lambda: first(Mixer),
        "LatentAttention": lambda: first(LatentAttention, "deepseek-v2-lite"), "PassShape": pass_shape,
    }  # fmt: skip


def shown(value: Any) -> str:
    """A result as text, sums of dictionaries, bags and facts item by item; a dash for a choice."""
    match value:
        case bool() | None:
            return DASH
        case Term() | int() | str():
            return str(value)
        case Component():
            return str(value.value)
        case float():
            return f"{value:.6g}"
        case Bytes(low, middle, high):
            sizes = [*map(shown, (low, middle, high))]
            return sizes[1] if len({*sizes}) == 1 else f"{sizes[1]} ({sizes[0]} to {sizes[2]})"
        case HeldTensor():
            return f"{value.path} {shown(value.shape)}"
        case FromCode() | Cited() | DType():
            return DASH
        case BytesByPath():
            return shown(value.held)
        case ShardingOverhead():
            return _shown_parts({f.name: _asked(value, f.name) for f in fields(value) if f.name != "stops"})
        case Mapping():
            return "{" + ", ".join(f"{_key(key)}: {shown(part)}" for key, part in value.items()) + "}"
    if isinstance(value, tuple | list) or inspect.isgenerator(value):
        return "(" + ", ".join(shown(part) for part in value) + ")"
    return _shown_facts(value) if is_dataclass(value) else DASH


def _asked(around: ShardingOverhead, field: str) -> Any:
    """A field of what surrounds the layers, asked of one group where it is a function."""
    answer = getattr(around, field)
    if not callable(answer):
        return answer
    known = {"at_loss": (group(),), "holds": (group(),), "leaves": (group(),), "during": (0, 0)}
    between = (None, group(), None) if field in ("backward", "fetching") else (None, group())
    return answer(*known.get(field, between))


def _shown_facts(value: Any) -> str:
    """Those of a record's fields that have something to say."""
    return _shown_parts({f.name: getattr(value, f.name) for f in fields(value)})


def _shown_parts(parts: Mapping[str, Any]) -> str:
    told = {name: shown(part) for name, part in parts.items() if not isinstance(part, str | Enum)}
    kept = {name: text for name, text in told.items() if DASH not in text and text not in ("{}", "()")}
    return "{" + ", ".join(f"{name}: {text}" for name, text in kept.items()) + "}" if kept else DASH


def _key(key: Any) -> str:
    if isinstance(key, tuple):
        return " ".join(map(_key, key))
    return str(key.value) if isinstance(key, Component | Enum) else str(key)


def algebra(name: str) -> dict[str, str]:
    """A formula's algebra by case; a dash where it says that it takes whole numbers alone."""
    _, _, counts = FORMULAS[name]
    if counts == "int":
        return {"": DASH}
    given = given_cases(name)
    cases = by_annotation(name) if given is None else given
    return {case: shown(function_of(name)(*args, **kwargs)) for case, (args, kwargs) in cases.items()}


def lines() -> Iterator[str]:
    load_all()
    for name, (reference, at, _) in sorted(FORMULAS.items()):
        source = f"{reference.title} ({reference.where}){', ' + at if at else ''}"
        for case, text in algebra(name).items():
            yield f"{short_name(name)}{f'[{case}]' if case else ''} = {text} ; {source}"


def text() -> str:
    return HEADER + "\n".join(lines()) + "\n"
