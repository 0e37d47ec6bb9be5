"""The starts of a shell's script that stand one after another, each in a text without the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from memsheet.guard.budget import is_long_script
from memsheet.patterns import late_pattern

MOST_STARTS = 12
"""Starts of one script that are told apart."""
STARTS = late_pattern(
    r"\.py\b|\bpython[\d.]*\s+(?:-\S+\s+)*-m\s|\b(?:torchrun|deepspeed)\s|\baccelerate\s+launch\b"
    r"|\b(?:swift|megatron)\s+(?:sft|pt|rlhf)\b|\b(?:llamafactory-cli|lmf|axolotl)\s+train\b"
    r"|\btune\s+run\b|\btrl\s+(?:sft|dpo|grpo|kto|reward|rloo)\b",
    holds=(
        ".py",
        "python",
        "torchrun",
        "deepspeed",
        "accelerate",
        "swift",
        "megatron",
        "llamafactory-cli",
        "lmf",
        "axolotl",
        "tune",
        "trl",
    ),
)
"""What a command holds that may start a training."""
_SCRIPT = late_pattern(r"[\w./-]+\.(?:py|ya?ml|json)\b")


def texts_of_starts(text: str) -> Mapping[str, str]:
    """By a name for each start of a script (``train.py``, ``train.py (2)``) the text without the other
    starts; nothing of a script with fewer than two.
    """
    if is_long_script(text) or len(STARTS.findall(text)) < 2:
        return {}
    from memsheet.exchange.shared.shell_tokens import NoShellError

    try:
        places = sorted(_places_of_starts(text))
    except (NoShellError, RecursionError):
        return {}
    if len(places) < 2:
        return {}
    seen: Counter[str] = Counter()
    found: dict[str, str] = {}
    for place in places[:MOST_STARTS]:
        script = _SCRIPT.search(text, *place)
        name = script[0].rpartition("/")[2] if script else "start"
        seen[name] += 1
        at = f"{name} ({seen[name]})" if seen[name] > 1 else name
        found[at] = _without_places(text, [one for one in places if one != place])
    return found


def _places_of_starts(text: str) -> Iterator[tuple[int, int]]:
    """Where the commands stand that may start a training."""
    from memsheet.exchange.shared.shell_loops import ASSIGNED, nodes_below
    from memsheet.exchange.shared.shell_syntax import Simple, parse_shell
    from memsheet.exchange.shared.shell_tokens import WORD

    for node in nodes_below(parse_shell(text)):
        if not isinstance(node, Simple) or not STARTS.search(text, node.at, node.end):
            continue
        if any(token.kind == WORD and not ASSIGNED.fullmatch(token.text) for token in node.words):
            yield node.at, node.end


def _without_places(text: str, places: list[tuple[int, int]]) -> str:
    """A text with commands in some places that do nothing."""
    pieces, at = [], 0
    for begins, ends in places:
        pieces += [text[at:begins], ":"]
        at = ends
    return "".join((*pieces, text[at:]))
