"""The line on which a key stands in a file, as it lies: of JSON, YAML and TOML by the key's whole path, of a
script by the flag or the name. None wherever that is not certain: a key that stands nowhere, or twice.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import PurePath

from memsheet.errors import InputError
from memsheet.exchange.shared.script_places import NOTEBOOK
from memsheet.guard import parse_json, parse_yaml
from memsheet.patterns import late_pattern

KeyLine = tuple[str, int]
"""A key's whole path (``zero_optimization.stage``) and its line, from 1."""
IN_LIST = "[]"
"""The part of a path that stands for an element of a list."""
_JSON_TOKEN = late_pattern(r'"(?:[^"\\\n]|\\.)*+"|[{}\[\],:]|[^\s{}\[\],:"]++')
_TOML_TABLE = late_pattern(r"\s*\[([\w.\"' -]+)\]\s*(?:#.*)?")
_TOML_KEY = late_pattern(r"\s*([\w.\"'-]+)\s*=(?!=)")
_NUMBERED = late_pattern(r"(?P<line>\d{1,7}): (?P<key>.+)", re.DOTALL)
_COMMENT = late_pattern(r"\s*#(?!SBATCH\b)")


def named_key(where: str) -> tuple[int | None, str]:
    """The line that a finding says itself, if any, and the key that it names. ``where``: as the finding has
    it behind the file's name (``12: fully_shard``, ``zero_optimization.stage``, ``--tp-size = 8``).
    """
    told = _NUMBERED.fullmatch(where)
    key = re.split(" = |, ", told["key"] if told else where, maxsplit=1)[0]
    key = key.partition(" ")[0] if key.startswith("-") else key  # a flag with its value
    return int(told["line"]) if told else None, key


def line_of_key(name: str, text: str, where: str) -> int | None:
    """The line of the key that a finding names. ``where``: as of ``named_key``; ``text``: of the file as it
    lies.
    """
    at, key = named_key(where)
    kind = PurePath(name).suffix.lower()
    if not key or kind == NOTEBOOK:  # lines of its script are none of the file's
        return None
    if at is not None:
        lines = text.splitlines()
        stands = 0 < at <= len(lines) and key.rpartition(".")[2] in lines[at - 1]
        return at if stands else None
    if key.startswith("-") or kind not in PATHS:
        return _line_of_word(text, key)
    found = _keys_of_text(kind, text)
    own = [line for path, line in found if path == key]
    below = [line for path, line in found if "_" in key and path.endswith(f".{key}")]  # no word of any group
    if not own and not below:  # a command inside it may say the key
        return _line_of_word(text, f"--{key}")
    return next(iter(own or below)) if len(own or below) == 1 else None


@lru_cache(maxsize=8)  # a file may have many findings
def _keys_of_text(kind: str, text: str) -> tuple[KeyLine, ...]:
    """The keys of a file by the ending of its name; none where it is no such file."""
    try:
        return tuple(PATHS[kind](text))
    except (InputError, ValueError):
        return ()


def _json_key_lines(text: str) -> Iterator[KeyLine]:
    parse_json(text, "file")
    ends = [match.start() for match in re.finditer("\n", text)]
    tokens = [*_JSON_TOKEN.finditer(text)]
    stack: list[tuple[str, str]] = []  # of each container that is open what opened it, and its place
    key = ""
    for number, token in enumerate(tokens):
        match token[0]:
            case "{" | "[":
                stack.append((token[0], key if not stack or stack[-1][0] == "{" else IN_LIST))
                key = ""
            case "}" | "]":
                stack.pop()
                key = ""
            case ",":
                key = ""
            case word if word[0] == '"' and stack and stack[-1][0] == "{" and not key:
                if number + 1 < len(tokens) and tokens[number + 1][0] == ":":
                    key = str(json.loads(word))
                    above = [held for _, held in stack if held]
                    yield ".".join([*above, key]), bisect_left(ends, token.start()) + 1


def _yaml_key_lines(text: str) -> Iterator[KeyLine]:
    import yaml

    parse_yaml(text, "file", last_wins=True, aliases=True)  # within its limits
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    finally:
        loader.dispose()
    waiting = [("", node)]
    while waiting:
        above, node = waiting.pop()
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode):
                    path = f"{above}{key.value}"
                    yield path, key.start_mark.line + 1
                    waiting.append((f"{path}.", value))
        elif isinstance(node, yaml.SequenceNode):
            waiting += [(f"{above}{IN_LIST}.", value) for value in node.value]


def _toml_key_lines(text: str) -> Iterator[KeyLine]:
    if '"""' in text or "'''" in text:  # a text of several lines may look like keys
        return
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if told := _TOML_TABLE.fullmatch(line):
            table = f"{_bare_path(told[1])}."
        elif line.lstrip().startswith("[["):
            table = f"{IN_LIST}."
        elif told := _TOML_KEY.match(line):
            yield f"{table}{_bare_path(told[1])}", number


def _bare_path(words: str) -> str:
    return ".".join(part.strip(" \"'") for part in words.split("."))


PATHS: Mapping[str, Callable[[str], Iterator[KeyLine]]] = {
    ".json": _json_key_lines, ".yaml": _yaml_key_lines, ".yml": _yaml_key_lines, ".toml": _toml_key_lines,
}  # fmt: skip
"""The keys of a text with their lines, by the ending of its file's name."""


def _line_of_word(text: str, key: str) -> int | None:
    """The one line of a script, its comments apart, that holds a flag, or gives the last part of a key's name
    a value.
    """
    last = key if key.startswith("-") else key.rpartition(".")[2]
    if not re.fullmatch(r"-*[A-Za-z_][\w-]*", last):
        return None
    flag = re.sub("(?<=[^-])[-_]", "[-_]", last)
    said = rf"{flag}(?![\w-])" if last.startswith("-") else rf"--{flag}(?![\w-])|{last}[\"']?\s*(?:=(?!=)|:)"
    word = re.compile(rf"(?<![\w-])(?:{said})")
    found = [
        number
        for number, line in enumerate(text.splitlines(), start=1)
        if not _COMMENT.match(line) and word.search(line)
    ]
    return found[0] if len(found) == 1 else None
