"""Models that a script loads beside the one that it trains: teachers, references, judges; and losses that it
makes itself. Which model trains is told by what the optimizer or the trainer is given.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memsheet.exchange.shared.file_format import KEYWORDS, UNSET, Moved, Values
from memsheet.exchange.shared.frozen_towers import FROZEN_TOWER, SWITCH, frozen_tower_moves, is_of_tower
from memsheet.exchange.shared.python_branches import reachable_calls
from memsheet.exchange.shared.python_config import call_node
from memsheet.exchange.shared.python_module import Module, Tree, attribute_path
from memsheet.exchange.shared.script_places import BRANCH, LINE, SCOPE, SEVERAL_LOADS, WHOLE
from memsheet.patterns import late_pattern

FURTHER, WEIGHTS, OWN_LOSS = "further_models", "further_weights", "own_loss"
FROZEN = "frozen"
"""Under ``script``: further models in words, ``[name, bytes of a parameter at most]`` of each, and the loss
that is no plain cross-entropy.
"""
STEPPERS = late_pattern(r"^(?:\w*Adam\w*|SGD|Lion\w*|Adafactor|LAMB|Muon|Adagrad|RMSprop|Shampoo|SOAP)$")
LOADS = late_pattern(r"(?:Model|LM|For[A-Z]\w*)\.from_pretrained$")
WRAPS = late_pattern(r"(?:^|\.)(?:Peft|Fast)\w*Model\w*\.from_pretrained$")
"""What loads adapters, or Unsloth's one model."""
BESIDE = late_pattern(r"teacher|ref(?:erence)?(?:_|$)|reward|critic|judge|guide|assistant", re.IGNORECASE)
WEIGHING = (
    "0", "pretrained_model_name_or_path", "dtype", "torch_dtype", "attn_implementation", "device_map", "max_memory", "quantization_config", "load_in_4bit",
    "load_in_8bit", KEYWORDS,
)  # fmt: skip
"""Arguments of a loading call by which its need differs."""
ENDS = ("train", "backward")
DIVERGES = ("kl_div", "KLDivLoss")
HALF, WHOLE_WIDTH, TRAINED = 2, 4, 4 + 4 + 8
"""Bytes of a parameter that is only read, in sixteen bits or at most; and of one that trains in fp32."""
ROUNDS, MOST_LOADS = 4, 8
OF_DIVERGENCE = 4 + 4 + 4 + 4 + 4 + 4
"""Bytes a logit of a divergence from another model's beside those of a plain loss: the other's logits as they
are made, raised to fp32 and as probabilities; the learner's divided by a temperature; what the divergence is
of each, and its gradient (torch/nn/functional.py: kl_div, softmax, log_softmax).
"""
OF_OTHER_LOSS = 4 + 4 + 4
"""Bytes a logit that a loss of a script's own may keep further: in fp32, its logarithm, and a gradient."""


def model_loads(module: Module) -> tuple[Tree | None, dict[str, Any]]:
    """The call that loads the model that trains, where several are loaded; and what is told of the others."""
    loads = [
        (held, loaded_names(module, call_node(module, held)))
        for held in reachable_calls(module, ("from_pretrained",))
        if LOADS.search(held[WHOLE]) and not WRAPS.search(held[WHOLE])
    ][:MOST_LOADS]
    trained = trained_names(module)
    ours = [held for held, names in loads if names & trained]
    before = (held for held in ours if not _comes_after(module, held))  # what is saved is loaded by its name
    own = next(before, ours[0] if ours else None)
    first = own or next((held for held, names in loads if not any(map(BESIDE.search, names))), None)
    if first is None:
        return None, {}
    its = next(names for held, names in loads if held is first)
    beside = [
        (held, names)
        for held, names in loads
        if names
        and not names & its
        and (own is not None or any(map(BESIDE.search, names)))
        and not _comes_after(module, held)
        and held.get("device_map") != "cpu"
    ]
    same = [held for held, names in loads if names & its or held is first]
    return first, _named_model_beside(beside, trained) | _several_loads_key(same)


def _several_loads_key(loads: Sequence[Tree]) -> dict[str, Any]:
    """That a model is loaded in one of several ways that need different memory, by what the text does not
    decide.
    """
    kinds = {repr([held.get(at) for at in WEIGHING]) for held in loads}
    if len(kinds) < 2 or not any(BRANCH in held for held in loads):
        return {}
    lines = ", ".join(str(held[LINE]) for held in loads)
    return {SEVERAL_LOADS: f"of lines {lines} (the sheet is of that of line {loads[0][LINE]})"}


def _named_model_beside(beside: Sequence[tuple[Tree, set[str]]], trained: set[str]) -> dict[str, Any]:
    if not beside:
        return {}
    said = []
    for held, names in beside:
        name = held.get("0", held.get("pretrained_model_name_or_path"))
        half = str(held.get("dtype", held.get("torch_dtype"))).endswith(("float16", "half"))
        half = half or any(at in held for at in ("quantization_config", "load_in_4bit", "load_in_8bit"))
        width = TRAINED if names & trained else HALF if half else WHOLE_WIDTH
        said.append((min(names), name if isinstance(name, str) and name != UNSET else "", width))
    words = (f"{variable} = {name or 'a model that the text does not name'}" for variable, name, _ in said)
    return {FURTHER: "; ".join(words), WEIGHTS: [[name, width] for _, name, width in said]}


def loaded_names(module: Module, node: ast.Call | None, rounds: int = ROUNDS) -> set[str]:
    """What a call's result is called, also where a function of the file returns it."""
    found: set[str] = set()
    for one in ast.walk(module.tree):
        if isinstance(one, ast.Assign) and any(held is node for held in ast.walk(one.value)):
            found |= {".".join(attribute_path(target)) for target in one.targets}
        if isinstance(one, ast.FunctionDef) and any(
            held is node
            for back in ast.walk(one)
            if isinstance(back, ast.Return) and back.value is not None
            for held in ast.walk(back.value)
        ):
            calls = [call for call, path, _ in module.sites if path == (one.name,)]
            for call in calls[:ROUNDS] if rounds else ():
                found |= loaded_names(module, call, rounds - 1)
    return found - {""}


def trained_names(module: Module) -> set[str]:
    """Names whose parameters are given to an optimizer, or that a trainer is given as its model."""
    found: set[str] = set()
    for node, path, _ in module.sites:
        named = {held.arg: held.value for held in node.keywords}
        if STEPPERS.match(path[-1]):
            found |= {name for one in (*node.args, *named.values()) for name in names_in(one)}
        elif path[-1].endswith("Trainer"):
            given = named.get("model", node.args[0] if node.args else None)
            found |= set(names_in(given)) if given is not None else set()
    for _ in range(ROUNDS):
        found |= {
            name
            for one in ast.walk(module.tree)
            if isinstance(one, ast.Assign)
            and any(".".join(attribute_path(target)) in found for target in one.targets)
            for name in names_in(one.value)
        }
    return found


def names_in(node: ast.expr) -> Iterator[str]:
    """Names that an expression has, with those that they are attributes of before them."""
    for held in ast.walk(node):
        if isinstance(held, ast.Name | ast.Attribute) and (path := attribute_path(held)):
            yield ".".join(path)


def _comes_after(module: Module, load: Tree) -> bool:
    """Whether a model is loaded once the training is over."""
    ends = [
        node.lineno for node, path, scope in module.sites if path[-1] in ENDS and scope == int(load[SCOPE])
    ]
    return bool(ends) and int(load[LINE]) > max(ends)


def own_loss_key(module: Module) -> dict[str, Any]:
    """A loss that the script makes itself, in place of the model's."""
    if any(path[-1] in DIVERGES for _, path, _ in module.sites):
        return {OWN_LOSS: "kl_div"}
    methods = (
        held.name
        for one in module.tree.body
        if isinstance(one, ast.ClassDef)
        for held in one.body
        if isinstance(held, ast.FunctionDef)
    )
    return {OWN_LOSS: "compute_loss"} if "compute_loss" in methods else {}


def frozen_key(module: Module) -> dict[str, Any]:
    """That parameters of the model that trains are switched off, all of them or some, or those of a tower."""
    trained = trained_names(module)
    owners: list[tuple[int, set[str], ast.AST]] = [
        (node.lineno, {".".join(path[:at]) for at in range(1, len(path))}, node)
        for node, path, _ in module.sites
        if path[-1] == f"{SWITCH}_" and node.args and not _is_true(node.args[0])
    ]
    owners += [
        (held.lineno, set(names_in(one.iter)), one)
        for one in ast.walk(module.tree)
        if isinstance(one, ast.For)
        for held in ast.walk(one)
        if isinstance(held, ast.Assign)
        and not _is_true(held.value)
        and any(isinstance(at, ast.Attribute) and at.attr == SWITCH for at in held.targets)
    ]
    switched = [(at, names, node) for at, names, node in owners if names & trained]
    if not switched:
        return {}
    line = f"on line {switched[0][0]}"
    if all(is_of_tower(node, names) for _, names, node in switched):
        return {FROZEN_TOWER: line}
    return {FROZEN: f"{line} (the sheet is of one that trains whole, which takes more)"}


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def further_moves(script: str, values: Values, asked: Mapping[str, Any]) -> Iterator[Moved]:
    """Bytes of further models and of a loss of the script's own, beside a sheet that has neither, and of a
    frozen tower's states, which it has.
    """
    if f"{script}.{FROZEN_TOWER}" in values:
        yield from frozen_tower_moves(f"{script}.{FROZEN_TOWER}", asked)
    weights = values.get(f"{script}.{WEIGHTS}")
    if isinstance(weights, list):
        counts = [(asked["@parameters_of"](name), width) for name, width in weights]
        known = sum(count * width for count, width in counts if count)
        open_size = "; of what size one of them is nobody says" * any(not count for count, _ in counts)
        logits = asked["@tokens"] * asked["@vocab"] * OF_DIVERGENCE
        why = f"{values.get(f'{script}.{FURTHER}')} is loaded, too, with logits of its own{open_size}"
        yield Moved(at=f"{script}.{FURTHER}", why=why, low_bytes=0, high_bytes=known + logits)
    if loss := values.get(f"{script}.{OWN_LOSS}"):
        more = asked["@tokens"] * asked["@vocab"] * OF_OTHER_LOSS
        why = f"the loss is the script's own ({loss}), and the sheet is of a plain cross-entropy"
        yield Moved(at=f"{script}.{OWN_LOSS}", why=why, low_bytes=-more, high_bytes=more)
