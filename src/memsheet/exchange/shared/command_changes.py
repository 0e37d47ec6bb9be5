"""Changes of a plan in the words of a server's own command or file: the same rows that read its flags write
them, and what is written is read back before it is said.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.errors import InputError, printable_line
from memsheet.exchange.shared.file_format import FileReading, Values, read_format_values
from memsheet.frozen import NamedTuple

Changes = Mapping[str, Any]
FILE_KEYS = {"cuda_graphs": "serving.cuda_graphs"}
"""Keys of an option that files of servers say by their own."""


class CommandChanges(NamedTuple):
    """``old``, ``new``: flags that stand in the command and what stands in their place, each as it is typed;
    ``left``: changes for which the command has no words.
    """

    old: tuple[str, ...]
    new: tuple[str, ...]
    left: Changes


def command_changes(read: FileReading, changes: Changes) -> CommandChanges:
    """What to write in a file that was read so that it says some changes of a plan (None: that a key is no
    longer said), and what it cannot say.
    """
    named = {FILE_KEYS.get(key, key): key for key in changes}
    changes = {key: changes[own] for key, own in named.items()}
    told = {key: value for key, value in changes.items() if _says_change(read, changes, key)}
    after = _changed_values(read, told)
    if after is None:
        return CommandChanges((), (), {named[key]: value for key, value in changes.items()})
    differ = [at for at in {**read.values, **after} if read.values.get(at) != after.get(at)]
    shown = list(dict.fromkeys(_whole_place(read, at) for at in differ))
    return CommandChanges(
        old=tuple(_typed_flag(at, read.values) for at in shown if _place_stands(read.values, at)),
        new=tuple(_typed_flag(at, after) for at in shown if _place_stands(after, at)),
        left={named[key]: value for key, value in changes.items() if key not in told},
    )


def _says_change(read: FileReading, changes: Changes, key: str) -> bool:
    """Whether the file says a change by itself, or together with the others."""
    value = changes[key]
    if value is None and key not in read.request:
        return True  # nobody says it
    for several in ({key: value}, changes):
        values = _written_values(read, several)
        made = _request_of(read, values)
        if made is not None and made.get(key) == value and read.request.get(key) != value:
            return True
    return bool(read.request.get(key) == value)


def _changed_values(read: FileReading, changes: Changes) -> Values | None:
    """The file's values with some changes; None where they would say anything else, too."""
    values = _written_values(read, changes)
    made = _request_of(read, values)
    wanted = {**read.request, **changes}
    keys = {*wanted, *(made or {})}
    same = made is not None and all(
        made.get(key) == wanted.get(key) for key in keys if not key.startswith(("@", "?"))
    )
    return values if same else None


def _written_values(read: FileReading, changes: Changes) -> dict[str, Any]:
    """The file's values, with those of its places that the changed request writes otherwise."""
    before = read.request
    asked = {key: value for key, value in {**before, **changes}.items() if value is not None}
    values, written = dict(read.values), set[str]()
    for row in sorted(read.form.keys, key=lambda row: row.at not in read.values):
        was, now = row.write(before), row.write(asked)
        if now is None and row.says in changes and row.says not in written:  # one that only reads
            now = asked.get(row.says) if row.names is None else row.names.get(asked.get(row.says))
        elif was == now:
            continue
        written.add(row.says)
        if now is None or (row.at not in values and now == row.usual):
            values.pop(row.at, None)
        else:
            values[row.at] = now
    return values


def _request_of(read: FileReading, values: Values) -> Mapping[str, Any] | None:
    try:
        found = read_format_values(read.form, values)
    except InputError:
        return None
    return None if found.problems or len(found.unmodelled) > len(read.unmodelled) else found.request


def _whole_place(read: FileReading, at: str) -> str:
    """A flag whose parts are places of their own is typed whole."""
    return at.partition(".")[0] if read.form.kind == "shell" and at.startswith("-") else at


def _place_stands(values: Values, at: str) -> bool:
    return any(True for _ in _place_parts(values, at))


def _place_parts(values: Values, at: str) -> Iterator[tuple[str, Any]]:
    """A place's value, or those of its parts."""
    for place, value in values.items():
        if place == at or place.startswith(f"{at}."):
            yield place[len(at) + 1 :], value


def _typed_flag(at: str, values: Values) -> str:
    """A flag as it is typed: bare where it is a switch; of a file that is no script, ``key: value``."""
    parts = dict(_place_parts(values, at))
    value = parts.get("", parts)
    if isinstance(value, dict):
        import json

        value = json.dumps(value)
    text = printable_line(" ".join(map(str, value)) if isinstance(value, list) else value)
    if not at.startswith("-"):
        return f"{at}: {text.lower() if isinstance(value, bool) else text}"
    if isinstance(value, bool):
        return at if value else f"--no-{at.lstrip('-')}"
    return f"{at} {text if isinstance(value, list) else shlex.quote(text)}"
