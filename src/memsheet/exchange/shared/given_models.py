"""Models that a trainer is given beside the one that it trains, as the calls that load them have them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.file_format import UNSET
from memsheet.exchange.shared.further_models import LOADS, loaded_names, model_loads
from memsheet.exchange.shared.python_branches import reachable_calls
from memsheet.exchange.shared.python_config import call_node, named_calls
from memsheet.exchange.shared.python_module import Module, Tree, attribute_path
from memsheet.exchange.shared.script_places import BY_NAME, CLASS, COPY, LOADED_OTHERWISE, WHOLE
from memsheet.exchange.shared.trainer_names import MODELS_BESIDE, TRAINERS

PLACES: Mapping[str, Mapping[str, str]] = {
    **{name: {"ref_model": "1"} for name in ("DPOTrainer", "KTOTrainer", "BCOTrainer", "OnlineDPOTrainer")},
    "GKDTrainer": {"teacher_model": "1"},
}
"""Where a trainer takes them without their names (the wheel of TRL 1.10.0: trl/trainer/{dpo,kto}_trainer.py,
trl/experimental/{bco,online_dpo,gkd}).
"""
COPIES = ("create_reference_model", "deepcopy")
"""What makes a second model of the one that trains (the wheel of TRL 0.29.0: trl/models)."""
NAMES = ("0", "pretrained_model_name_or_path")
HOW = ("quantization_config", "load_in_4bit", "load_in_8bit")


def models_beside(module: Module) -> dict[str, Any]:
    """What the trainer is given besides the model that it trains: names, None, a copy of that model, or what
    the text does not tell; and which of them are loaded in another width.
    """
    given: Mapping[str, Any] = next(iter(named_calls(module, TRAINERS, local=True)), {})
    if not given:
        return {}
    places, node = PLACES.get(given[CLASS], {}), call_node(module, given)
    by_name = isinstance(name := given.get("model", given.get("0")), str) and name != UNSET
    found: dict[str, Any] = {BY_NAME: True} if by_name else {}
    otherwise = []
    for at in MODELS_BESIDE:
        place = at if at in given else places.get(at, at)
        if place not in given:
            continue
        held = given[place]
        found[at] = held if held is None or isinstance(held, str | list) else UNSET
        if found[at] == UNSET and (said := _argument(node, place)) is not None:
            found[at], same = _loaded_model(module, said)
            otherwise += [] if same else [at]
    return {**found, **({LOADED_OTHERWISE: otherwise} if otherwise else {})}


def _argument(node: ast.Call | None, place: str) -> ast.expr | None:
    if node is None:
        return None
    if place.isdigit():
        return node.args[int(place)] if int(place) < len(node.args) else None
    return next((one.value for one in node.keywords if one.arg == place), None)


def _loaded_model(module: Module, said: ast.expr) -> tuple[Any, bool]:
    """The checkpoint of what a trainer is given, and whether it is loaded as the model that trains."""
    if any(path[-1] in COPIES for path in _made_by(module, said)):
        return COPY, True
    loads = list(_loads_of(module, said))
    own, _ = model_loads(module)
    kinds = {(_checkpoint(module, one), _width(one)) for one in loads}
    if len(kinds) != 1:
        return UNSET, True
    (checkpoint, width), ours = kinds.pop(), _checkpoint(module, own) if own else None
    same = own is None or width == _width(own)
    return (COPY if checkpoint == ours else checkpoint[0]), same


def _loads_of(module: Module, said: ast.expr) -> Iterator[Tree]:
    """Calls that load what an expression is."""
    name = ".".join(attribute_path(said))
    for held in reachable_calls(module, ("from_pretrained",)):
        node = call_node(module, held)
        if LOADS.search(held[WHOLE]) and (node is said or (name and name in loaded_names(module, node))):
            yield held


def _made_by(module: Module, said: ast.expr) -> Iterator[list[str] | tuple[str, ...]]:
    """Names of the calls that an expression is of, or that its name is given."""
    name = attribute_path(said)
    made = [said] if isinstance(said, ast.Call) else []
    made += [
        one.value
        for one in ast.walk(module.tree)
        if name and isinstance(one, ast.Assign) and any(attribute_path(at) == name for at in one.targets)
        if isinstance(one.value, ast.Call)
    ]
    return (path for one in made if isinstance(one, ast.Call) and (path := attribute_path(one.func)))


def _checkpoint(module: Module, held: Mapping[str, Any]) -> tuple[str, str]:
    """What a call loads: its name as far as the text tells it, and how the text writes it."""
    at = next((at for at in NAMES if at in held), "")
    written = _argument(call_node(module, held), at) if at else None
    name = held.get(at)
    return (name if isinstance(name, str) else UNSET), ast.unparse(written) if written else ""


def _width(held: Mapping[str, Any]) -> str:
    dtype = str(held.get("dtype", held.get("torch_dtype", ""))).removeprefix("torch.")
    return repr([dtype, *(held.get(at) for at in HOW)])
