"""Cards that a process is given: what a container reserves, and what the environment leaves visible. A server
that is to take more of them does not start, or takes them of other nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from memsheet.exchange.shared.named_server import GPU
from memsheet.frozen import replace
from memsheet.patterns import late_pattern

if TYPE_CHECKING:
    from memsheet.exchange.shared.file_format import FileReading

CARDS = "cards that it is given"
"""The place of how many there are, and where that is said, among the values of a server's command."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
DOCKER = "docker --gpus"
DIRECTIVES, EACH_NODE = "#SBATCH", "#SBATCH on each node"
"""Where a batch script says its cards: of a job on one node, and of one of several nodes."""
ELSEWHERE = late_pattern(r"\bray\b|\bRAY_ADDRESS\b", re.IGNORECASE, holds=("ray",))
"""What may give a server cards beside those of its process."""
BLOCKS = frozenset({"if", "case", "for", "while", "until", "function", "{"})
_SEEN = late_pattern(
    r"(?:CUDA|NVIDIA)_VISIBLE_DEVICES=(?P<ids>[\w-]+(?:,[\w-]+)*),?", holds=("_VISIBLE_DEVICES=",)
)
_DEVICES = late_pattern(r"\"?device=(?P<ids>[\w-]+(?:,[\w-]+)*)\"?")
_WORDS = frozenset({"all", "none", "void", "-1"})
_IN_PYTHON = late_pattern(
    rf"^os\.environ(?:\[[\"']{VISIBLE}[\"']\] *= *|\.setdefault\([\"']{VISIBLE}[\"'], *)"
    r"[\"'](?P<ids>[\d,]+)[\"']",
    re.MULTILINE,
)


def cards_before(words: Sequence[str]) -> tuple[int, str] | None:
    """The cards that the words before a program leave it, and what says so; None where none do."""
    for at, word in enumerate(words):
        if (seen := _SEEN.fullmatch(word)) and seen["ids"] not in _WORDS:
            return seen["ids"].count(",") + 1, VISIBLE
        if word == "--gpus" or word.startswith("--gpus="):
            held = word.partition("=")[2] or (words[at + 1] if at + 1 < len(words) else "")
            if told := _DEVICES.fullmatch(held):
                return told["ids"].count(",") + 1, DOCKER
            if held.isdecimal() and len(held) < 5 and "docker" in words[:at]:
                return int(held), DOCKER
    return None


def exported_cards(commands: Iterable[Sequence[str]]) -> tuple[int, str] | None:
    """The cards that commands export, the last of them; None once one of them depends on a condition."""
    found = None
    for words in commands:
        if words and words[0] in BLOCKS:
            return None
        if words[:1] == ["export"]:
            found = cards_before(words[1:]) or found
    return found


def python_exports(text: str) -> str:
    """The line by which a shell exports what a Python script sets at its top for itself; empty where it sets
    nothing, or several things.
    """
    told = {one["ids"].strip(",") for one in _IN_PYTHON.finditer(text)}
    return f"export {VISIBLE}={told.pop()}\n" if len(told) == 1 else ""


def given_to(found: FileReading, gpus: int | None, at: str = GPU) -> FileReading:
    """What was read, with the cards of the container, or of the process, where they are fewer than the
    command takes.
    """
    if gpus is None and isinstance(held := found.values.get(CARDS), list):
        gpus, at = held
    ranks = 1
    for axis in ("dp_replicate", "tp", "pp"):
        size = found.request.get(f"mesh.{axis}", 1)
        ranks *= size if isinstance(size, int) else 1
    if gpus is None or gpus >= ranks:
        return found
    short = (CARDS, f"{at} gives {gpus}, and the command takes {ranks}")
    values = {**found.values, CARDS: [gpus, at]}
    return replace(found, unmodelled=(*found.unmodelled, short), values=values)
