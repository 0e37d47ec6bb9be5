"""A tower of pictures or sound that a script switches off beside a model that trains otherwise whole, and
what its sheet, of one that trains whole, has of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memsheet.exchange.shared.file_format import Moved, Values
from memsheet.patterns import late_pattern

FROZEN_TOWER, SWITCH = "frozen_tower", "requires_grad"
OF_TOWERS = late_pattern(r"(?:^|\.)(?:visual|vision_tower|vision_model|audio_tower)(?:\.|$)")
"""What families call their towers (transformers 5.23.0 models/{qwen2_5_vl,llava,gemma3,idefics3,qwen2_audio}/
modeling_*.py)."""
WHY = "the tower is frozen, and the sheet holds gradients and optimizer states of it"


def is_of_tower(node: ast.AST, names: set[str]) -> bool:
    """Whether what is switched off is of a tower alone: a loop over its parameters, a call of its own
    ``requires_grad_``, or an assignment under ``if "visual" in name`` and nothing else. ``names``: those of
    its owners.
    """
    return any(OF_TOWERS.search(name) for name in names) or _is_under_tower_test(node)


def _is_under_tower_test(node: ast.AST) -> bool:
    """Whether all that a loop switches off stands under a test that a tower's name is in a parameter's."""
    if not isinstance(node, ast.For):
        return False
    tested = [one for one in ast.walk(node) if isinstance(one, ast.If) and _names_tower(one.test)]
    inside = {held for one in tested for part in one.body for held in ast.walk(part)}
    set_there = [held for held in ast.walk(node) if _switches(held)]
    return bool(set_there) and all(held in inside for held in set_there)


def _names_tower(test: ast.expr) -> bool:
    """``"visual" in name``, ``name.startswith("visual.")``: one word of a tower's, not turned round."""
    match test:
        case ast.Compare(left=ast.Constant(value=str(word)), ops=[ast.In()]):
            return bool(OF_TOWERS.search(word.strip(".")))
        case ast.Call(func=ast.Attribute(attr="startswith"), args=[ast.Constant(value=str(word))]):
            return bool(OF_TOWERS.search(word.strip(".")))
    return False


def _switches(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and any(
        isinstance(at, ast.Attribute) and at.attr == SWITCH for at in node.targets
    )


def frozen_tower_moves(at: str, asked: Values, *, whole: bool = True) -> Iterator[Moved]:
    """What a rank does not have of a tower's gradients and states. ``whole``: the projector is frozen, too,
    which is counted with it; what else is frozen of it takes off less.
    """
    least, most = asked["@tower_states"]
    if most:
        yield Moved(at=at, why=WHY, low_bytes=-most, high_bytes=-least if whole else 0)
