"""Names of layers that peft takes with the modules above them: a path's end (``self_attn.q_proj``), or one
pattern for whole paths (peft 0.21.2 tuners/tuners_utils.py:2368-2376: ``fullmatch`` for a string, the
end of the path for a list).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache

from memsheet.frozen import NamedTuple
from memsheet.plan.model import ModelSpec, Role, Stack

SIGNS = re.compile(r"[\\()\[\]|*+?^$]")
"""What no module's name holds."""
ABOVE = ("", "model.", "language_model.model.", "model.language_model.", "model.language_model.model.", "base_model.model.", "llm.model.")  # fmt: skip
"""Where checkpoints and releases of the library put the module list of a language model's layers."""
LONGEST, MOST_ANYTHING = 1_000, 4
SLOW = re.compile(r"\)[*+{]")
ANYTHING = re.compile(r"(?:\.|\[\^[^]]*\]|\\[wWSD])[*+{]")
"""A stranger's pattern may take for ever: no repeated groups, nor many parts that take anything."""


class TakenLayers(NamedTuple):
    """``names``: last names of the linear layers that a target takes; ``part``: those of which it leaves
    some layers out.
    """

    names: frozenset[str]
    part: frozenset[str]


Matcher = Callable[[Stack, int, str], bool]


def matched_layers(model: ModelSpec, target: str) -> TakenLayers:
    """Which linear layers of a model's blocks a target takes by a path or a pattern; none by a name."""
    takes = _matcher(target)
    found: dict[str, set[bool]] = {}
    for stack in model.stacks if takes else ():
        for place, inside in _linear_paths(stack):
            assert takes is not None
            found.setdefault(inside.rpartition(".")[2], set()).add(takes(stack, place, inside))
    names = frozenset(name for name, told in found.items() if True in told)
    return TakenLayers(names, frozenset(name for name in names if False in found[name]))


def is_pattern(target: str) -> bool:
    return SIGNS.search(target) is not None


def _matcher(target: str) -> Matcher | None:
    """Whether a target takes a layer, by its stack, its place and its path inside."""
    if not is_pattern(target):
        return (lambda _, __, inside: f".{inside}".endswith(f".{target}")) if "." in target else None
    if len(target) > LONGEST or SLOW.search(target) or len(ANYTHING.findall(target)) > MOST_ANYTHING:
        return None
    try:
        pattern = re.compile(target)
    except re.error:
        return None
    return lambda stack, place, inside: _fits(pattern, stack, place, inside)


def _fits(pattern: re.Pattern[str], stack: Stack, place: int, inside: str) -> bool:
    last = stack.path.rpartition(".")[2]
    heads = (*(f"{above}{last}" for above in ABOVE), stack.path)
    return any(pattern.fullmatch(f"{head}.{place}.{inside}") for head in heads)


@cache
def _linear_paths(stack: Stack) -> tuple[tuple[int, str], ...]:
    """The linear layers of a stack by their layer's place and their path inside of it."""
    return tuple(_each_linear(stack))


def _each_linear(stack: Stack) -> Iterator[tuple[int, str]]:
    place = 0
    for run in stack.runs:
        for _ in range(run.count):
            for block in run.pattern:
                for weight in block.weights:
                    if weight.role is Role.LINEAR and weight.path.endswith(".weight"):
                        yield place, weight.path.removesuffix(".weight")
                place += 1


def names_at_end(pattern: str, names: Iterable[str]) -> tuple[str, ...]:
    """Which of ``names`` a pattern may end in, by its words after the last dot between modules."""
    ends = [re.sub(r"\)+$", "", end) for end in re.split(r"\\?\.(?![*+])", pattern)]
    try:
        last = re.compile(ends[-1])
    except re.error:
        return ()
    return tuple(name for name in names if last.fullmatch(name))
