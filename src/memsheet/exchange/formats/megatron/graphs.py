"""CUDA graphs in Megatron-LM's flags: who captures them, and what of a layer.

23e00ed megatron/training/arguments.py:1288-1302: two switches and one scope; d98e8a6 :611-645 and
core/transformer/transformer_config.py:1075-1100 call them --cuda-graph-impl and --cuda-graph-modules, and
take the older names, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.file_format import Key, Values

LOCAL, EXTERNAL, BY = "--enable-cuda-graph", "--external-cuda-graph", "--cuda-graph-impl"
SCOPE, MODULES = "--cuda-graph-scope", "--cuda-graph-modules"
CAPTURED_BY = {LOCAL: "local", EXTERNAL: "transformer_engine"}
STEP, LAYER = "full_iteration", "full"
INFERENCE = "full_iteration_inference"
AT = "megatron/training/arguments.py:1288"


ALONE = "$.step_graph"


def is_captured(values: Values) -> bool:
    """Whether somebody is named who captures."""
    return any(values.get(at) is True for at in CAPTURED_BY) or values.get(BY, "none") != "none"


def scope_alone(values: Values) -> Mapping[str, Any]:
    """A whole step whose capture nobody is named for: since core 0.18 that names it (d98e8a6
    core/transformer/cuda_graph_config.py:10), and before nothing is captured.
    """
    alone = STEP in captured_scopes(values) and not is_captured(values)
    return {ALONE: f"{STEP} without {BY} (the sheet has no graphs)"} if alone else {}


def captured_scopes(values: Values) -> list[str]:
    """The parts that are named, but for a whole layer."""
    found = values.get(MODULES, values.get(SCOPE, LAYER))
    words = found if isinstance(found, list | tuple) else str(found).split(",")
    return [str(word) for word in words if word not in (LAYER, "", True)]


def _read_captured(who: str, values: Values) -> Mapping[str, Any]:
    """What graphs hold: all of a layer unless parts are named; nothing where inference alone is."""
    scopes = captured_scopes(values)
    if who == "none" or INFERENCE in scopes:
        return {}
    if who == STEP or STEP in scopes:
        return {"cuda_graphs": [STEP]}
    return {"cuda_graphs": [who, *(scopes or [LAYER])]}


def _named_captures(asked: Values) -> list[str]:
    found = asked.get("cuda_graphs")
    return list(found) if isinstance(found, list | tuple) else [LAYER] if found else []


def _written_scopes(asked: Values) -> list[str] | None:
    """A whole layer is what both switches capture unless told; other parts than attention, and those by Core
    itself, came after the release that is written for.
    """
    named = [name for name in _named_captures(asked) if name not in (*CAPTURED_BY.values(), LAYER, "all")]
    own = "local" in _named_captures(asked)
    return named if named == [STEP] or (named == ["attn"] and not own) else None


def _captured_by(asked: Values) -> str | None:
    """The switch of a plan's graphs: parts of a layer are TransformerEngine's."""
    named = _named_captures(asked)
    if not named:
        return None
    whole = _written_scopes(asked) != ["attn"]
    return LOCAL if "local" in named or (whole and CAPTURED_BY[EXTERNAL] not in named) else EXTERNAL


def _graph_switch_row(at: str, who: str) -> Key:
    return Key(
        at=at,
        out=lambda asked: True if _captured_by(asked) == at else None,
        back=lambda value, values: _read_captured(who, values) if value is True else {},
        source=AT,
    )


KEYS = (
    *(_graph_switch_row(at, who) for at, who in CAPTURED_BY.items()),
    Key(at=SCOPE, out=_written_scopes, back=lambda *_: {}, source=AT),
    Key(at=MODULES, out=lambda _: None, back=lambda *_: {}, source=AT),
    Key(at=BY, out=lambda _: None, back=lambda value, values: _read_captured(str(value), values), source=AT),
)
