"""YAML that changes what other files say, named under ``defaults`` by where they lie: NeMo-RL's
(NVIDIA-NeMo/RL 7ea279a nemo_rl/utils/config.py:25-105). Parents first, the last of several counts; an object
is merged, and replaced where it says ``_override_``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from memsheet.errors import InputError, input_error
from memsheet.guard import parse_yaml
from memsheet.patterns import late_pattern

INHERITS, PARENTS, REPLACED = late_pattern(r"^defaults:", re.MULTILINE), "defaults", "_override_"
ENDINGS = (".yaml", ".yml")
DEEPEST, MOST_PARENTS = 8, 4
Tree = Mapping[str, Any]
ReadParent = Callable[[str, str], tuple[Tree, str] | None]
"""A parent's tree and the folder that it lies in, by its name and the folder of who names it."""


def inherited_tree(tree: Tree, folder: str, read_parent: ReadParent, depth: int = 0) -> dict[str, Any] | None:
    """The tree with what its parents say, and they theirs; None where one of them is not there."""
    own, parents = {at: held for at, held in tree.items() if at != PARENTS}, named_parents(tree)
    if tree.get(PARENTS) is None:
        return own
    if not parents or depth > DEEPEST or len(parents) > MOST_PARENTS:
        return None
    whole: dict[str, Any] = {}
    for parent in parents:
        found = read_parent(parent, folder)
        held = inherited_tree(found[0], found[1], read_parent, depth + 1) if found else None
        if held is None:
            return None
        whole = merged_trees(whole, held)
    return merged_trees(whole, own)


def named_parents(tree: Tree) -> tuple[str, ...]:
    """The files that a tree stands on, as it names them; none where it names anything else."""
    named = tree.get(PARENTS)
    parents = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    return tuple(parents) if all(isinstance(one, str) and one.endswith(ENDINGS) for one in parents) else ()


def merged_trees(first: Tree, over: Tree) -> dict[str, Any]:
    """Two trees as one, what the second says before the first."""
    found = dict(first)
    for at, held in over.items():
        below = found.get(at)
        if isinstance(held, Mapping) and held.get(REPLACED) is True:
            found[at] = {one: value for one, value in held.items() if one != REPLACED}
        elif isinstance(held, Mapping) and isinstance(below, Mapping):
            found[at] = merged_trees(below, held)
        else:
            found[at] = held
    return found


def absent_parents(name: str, text: str) -> InputError | None:
    """That the files which a YAML stands on are not there to be read, and it says too little by itself."""
    if not name.endswith(ENDINGS) or not INHERITS.search(text):
        return None
    try:
        tree = parse_yaml(text, name, aliases=True)
    except InputError:
        return None
    parents = named_parents(tree) if isinstance(tree, Mapping) else ()
    if not parents:
        return None
    are, those = ("which is", "that") if len(parents) == 1 else ("which are", "those")
    reason = f"stands on {', '.join(parents)}, {are} not among the files"
    return input_error("file", name, reason, f"name {those} on the command line, too")
