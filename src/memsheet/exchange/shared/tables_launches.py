"""Programs that a shell starts with TOML of settings and flags over it, as pydantic_config reads them
(``uv run rl @ base.toml @ own.toml --trainer.optim.lr 1e-6``): prime-rl's. Read as text, never run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from memsheet.frozen import NamedTuple
from memsheet.late import late_functions
from memsheet.patterns import late_pattern

with late_functions(__name__):
    from memsheet.exchange.shared.flag_words import plain_value
    from memsheet.exchange.shared.inherited_yaml import merged_trees
    from memsheet.exchange.shared.started_programs import started_programs

PROGRAMS, AT, ENDING = ("rl", "sft"), "@", ".toml"
"""PrimeIntellect-ai/prime-rl 559b447 pyproject.toml, project.scripts."""
MOST_FLAGS = 200


class TablesLaunch(NamedTuple):
    """Files, of which the last of several counts, and values by their places over them."""

    files: tuple[str, ...]
    over: tuple[tuple[str, Any], ...]


def tables_launches(text: str) -> Iterator[TablesLaunch]:
    """Starts in order; none whose files stand in a section's place (``--model @ model.toml``)."""
    if ENDING not in text or AT not in text:
        return
    for started in started_programs(text, _program_place):
        words = list(started.given[:MOST_FLAGS])
        files = [word for before, word in pairwise(words) if before == AT]
        sections = any(one.startswith("--") and other == AT for one, other in pairwise(words))
        if files and not sections and all(file.endswith(ENDING) for file in files):
            yield TablesLaunch(tuple(files), tuple(_flag_values(words)))


CONFIG_FLAGS = ("--job.config_file", "--job.config-file", "--job.config")
TRAINS = late_pattern(r"torchtitan\.train|(?:\S{0,200}/)?train\.py")
"""pytorch/torchtitan b5bcd76 run_train.sh: ``torchrun … -m torchtitan.train --job.config_file FILE``."""


def config_launches(text: str) -> Iterator[TablesLaunch]:
    """Starts in order of a program that is given one TOML by its flag, and flags over it by their places."""
    if ENDING not in text or "--job.config" not in text:
        return
    for started in started_programs(text, _trainer_place):
        words = _split_flags(started.given[:MOST_FLAGS])
        files = [word for before, word in pairwise(words) if before in CONFIG_FLAGS and word.endswith(ENDING)]
        over = [(at, held) for at, held in _flag_values(words) if f"--{at}" not in CONFIG_FLAGS]
        if files:
            yield TablesLaunch((files[-1],), tuple(one for one in over if "." in one[0]))


def _trainer_place(words: Sequence[str]) -> int | None:
    given = any(word.partition("=")[0] in CONFIG_FLAGS for word in words)
    return next((at for at, word in enumerate(words) if given and TRAINS.fullmatch(word)), None)


def _split_flags(words: Sequence[str]) -> list[str]:
    """``--at=value`` as two words."""
    return [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]


def _program_place(words: Sequence[str]) -> int | None:
    places = range(len(words) - 1)
    return next(
        (at for at in places if words[at].rpartition("/")[2] in PROGRAMS and words[at + 1] == AT), None
    )


def _flag_values(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Values of flags by their places: a switch where no value follows."""
    for at, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        after = words[at + 1] if at + 1 < len(words) else "--"
        place = name.replace("-", "_")
        if equals:
            yield place, plain_value(value)
        elif after.startswith("--") or after == AT:
            *groups, last = place.split(".")
            off = last.startswith("no_")
            yield ".".join((*groups, last.removeprefix("no_"))), not off
        else:
            yield place, plain_value(after)


def tables_text(trees: Sequence[Mapping[str, Any]], launch: TablesLaunch) -> str:
    """The files as one, with the flags over them, as TOML."""
    whole: dict[str, Any] = {}
    for tree in trees:
        whole = merged_trees(whole, tree)
    for place, value in launch.over:
        nested: Any = value
        for part in reversed(place.split(".")):
            nested = {part: nested}
        whole = merged_trees(whole, nested)
    return "\n".join(_table_lines(whole, ())) + "\n"


def _table_lines(tree: Mapping[str, Any], path: Sequence[str]) -> Iterator[str]:
    """A table's own values, then the tables in it."""
    if path:
        yield f"[{'.'.join(map(_key_text, path))}]"
    for at, held in tree.items():
        if held is not None and not isinstance(held, Mapping):
            yield f"{_key_text(at)} = {_value_words(held)}"
    for at, held in tree.items():
        if isinstance(held, Mapping):
            yield from _table_lines(held, (*path, at))


def _key_text(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else json.dumps(key)


def _value_words(held: Any) -> str:
    """A value inside of a line."""
    if isinstance(held, Mapping):
        inside = (f"{_key_text(at)} = {_value_words(one)}" for at, one in held.items() if one is not None)
        return f"{{{', '.join(inside)}}}"
    if isinstance(held, list):
        return f"[{', '.join(map(_value_words, held))}]"
    return json.dumps(held) if isinstance(held, bool | int | float | str) else json.dumps(str(held))
