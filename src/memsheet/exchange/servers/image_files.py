"""A server that a Dockerfile starts: its entrypoint and command as the line of a script, as of a container of
the image (docs.docker.com/reference/dockerfile).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any

from memsheet.exchange.shared.named_server import NamedServer
from memsheet.exchange.shared.serve_pods import command_line, starts_a_server
from memsheet.patterns import late_pattern

MOST_LINES = 2000
_FROM = late_pattern(r"^FROM[ \t]+(?:--\S+[ \t]+)*(\S+)", re.MULTILINE | re.IGNORECASE)
_STARTS = late_pattern(r"^(?:CMD|ENTRYPOINT)[ \t]", re.MULTILINE | re.IGNORECASE)
_INSTRUCTION = late_pattern(r"(ARG|ENV|RUN|ENTRYPOINT|CMD|FROM)[ \t]+(.+)", re.IGNORECASE | re.DOTALL)
_INSTALLS = late_pattern(r"\b(?:pip3?|uv)\b[^\n]{0,80}\binstall\b")
_SHELL = ("/bin/sh", "-c")


def image_servers(name: str, text: str, parse: Callable[[str, str], Any]) -> list[NamedServer]:
    """The server that a container of the image starts; none of texts of other kinds."""
    del name, parse
    if not _FROM.search(text) or not _STARTS.search(text):
        return []
    image, before, env = "", list[str](), list[dict[str, str]]()
    words: dict[str, list[str]] = {}
    for word, rest in _instructions(text):
        match word:
            case "FROM":
                image, words = rest.split()[0], {}
            case "ARG" if "=" in rest:
                at, _, usual = rest.partition("=")
                before.append(f'{at.strip()}="${{{at.strip()}:-{usual.strip().strip(chr(34))}}}"')
            case "ENV":
                env += [{"name": at, "value": held} for at, held in _env_pairs(rest)]
            case "RUN" if _INSTALLS.search(rest):
                before.append(f": {rest}")
            case "ENTRYPOINT" | "CMD":
                words[word] = _started_words(rest)
            case _:
                pass
    entry, command = words.get("ENTRYPOINT", []), words.get("CMD", [])
    alone = tuple(entry[:2]) == _SHELL and len(entry) == 3  # a shell's text is given no command
    if not entry and tuple(command[:2]) == _SHELL:
        entry, command = command, []
    container = {"image": image, "command": entry, "args": [] if alone else command, "env": env}
    script = "\n".join([*before, command_line(container, _word_with_variables)])
    return [NamedServer("image", script)] if starts_a_server(script) else []


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """Instructions by their words, each of them in one line."""
    lines = (line for line in text.splitlines()[:MOST_LINES] if not line.lstrip().startswith("#"))
    for line in re.sub(r"\\[ \t]*\n", " ", "\n".join(lines)).splitlines():
        if told := _INSTRUCTION.match(line.strip()):
            yield told[1].upper(), told[2].strip()


def _started_words(rest: str) -> list[str]:
    """The words of the form that runs without a shell, or a shell with the text as its script."""
    try:
        held = json.loads(rest) if rest.startswith("[") else None
    except (ValueError, RecursionError):
        held = None
    return [str(word) for word in held] if isinstance(held, list) else [*_SHELL, rest]


def _env_pairs(rest: str) -> Iterator[tuple[str, str]]:
    """``ENV A=b C="d e"``, or the older ``ENV A b``."""
    try:
        words = shlex.split(rest)
    except ValueError:
        return
    if words and "=" not in words[0]:
        yield words[0], " ".join(words[1:])
        return
    for word in words:
        at, equals, held = word.partition("=")
        if equals:
            yield at, held


_VARIABLE = late_pattern(r"(\$\{\w+(?::?[-=][^{}\"\\`]*)?\}|\$[A-Za-z_]\w*)")


def _word_with_variables(word: str) -> str:
    pieces = (
        f'"{piece}"' if _VARIABLE.fullmatch(piece) else shlex.quote(piece)
        for piece in _VARIABLE.split(word)
        if piece
    )
    return "".join(pieces)
