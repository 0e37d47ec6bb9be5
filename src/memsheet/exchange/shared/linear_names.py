"""Functions of scripts that go through a model and list every linear layer by its last name."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memsheet.exchange.shared.python_module import attribute_path
from memsheet.plan.adapter_targets import LINEAR_MODULES

GOES_THROUGH = "named_modules"
CLASSES = frozenset({"Linear", "Linear4bit", "Linear8bitLt"})
"""Linear layers of torch and of bitsandbytes, by the last part of their names."""
HEADS = frozenset({"lm_head", "output_layer", "embed_out", "score", "v_head", "classifier", "summary"})
"""Output projections, which such functions leave out."""
TOWERS = frozenset({"mm_projector", "vision_tower", "vision_resampler"})
"""What LLaVA's own classes have beside the language model, which its function leaves out by their names
(haotian-liu/LLaVA c121f04 llava/train/train.py:172).
"""
SEPARATOR = "."
PRINTS = ("print", "info", "debug", "warning", "print_rank_0")


def listed_linear_names(function: ast.FunctionDef) -> list[str] | None:
    """The word for all linear layers but the output projection where a function lists those of the model that
    it is given, as QLoRA's own does (artidoro/qlora 7f4e95a qlora.py:248, find_all_linear_names); None of one
    that asks for anything else of a layer or its name.
    """
    nodes = [*_without_prints(function)]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    tested = [node for node in calls if isinstance(node.func, ast.Name) and node.func.id == "isinstance"]
    goes_through = any(attribute_path(node.func)[-1:] == [GOES_THROUGH] for node in calls)
    classes = {
        attribute_path(node)[-1] for node in nodes if isinstance(node, ast.Attribute) and attribute_path(node)
    } & CLASSES
    words = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    others = words - {SEPARATOR, ast.get_docstring(function, clean=False)} - HEADS
    others -= TOWERS if any(map(_skips_any, nodes)) else set()
    listed = goes_through and len(tested) == 1 and bool(classes) and bool(words & HEADS) and not others
    return [LINEAR_MODULES] if listed else None


def _skips_any(node: ast.AST) -> bool:
    """Whether a statement passes over what has any of some words in its name."""
    match node:
        case ast.If(test=ast.Call(func=ast.Name(id="any")), body=[ast.Continue()], orelse=[]):
            return True
    return False


def _without_prints(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """All that stands in a function but what it prints."""
    left: list[ast.AST] = [*function.body]
    while left:
        node = left.pop()
        if isinstance(node, ast.Call) and attribute_path(node.func)[-1:] in [[word] for word in PRINTS]:
            continue
        yield node
        left += ast.iter_child_nodes(node)
