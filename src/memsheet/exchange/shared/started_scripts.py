"""Scripts that a shell's script starts (``bash run.sh --flags``), as functions of it. Text in, text out:
nothing is run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePath

from memsheet.exchange.shared.launched_script import script_launches
from memsheet.guard.budget import MOST_SCRIPT
from memsheet.patterns import late_pattern

MOST_STARTED, DEEPEST_CALL = 8, 4
"""Scripts that one starts and that are read in it, and calls inside one another that are followed."""
_VALUE = r"(?:\"[^\"\n`]*\"|'[^'\n]*'|[^\s\"'`;&|()]*)"
_GIVES = late_pattern(rf"(?<![\w-])[A-Za-z_]\w*={_VALUE}")
_STARTED = late_pattern(
    r"(?:^|(?<=[;&|({])|(?<=\bdo)|(?<=\b(?:then|else)))"
    rf"(?P<before>[ \t]*(?:(?:[A-Za-z_]\w*={_VALUE}|exec|time|nohup|env"
    r"|srun(?:(?:[ \t]|\\\n)++--?[\w-]+(?:=[^\s;&|]+|[ \t]+\d[\w:.-]*)?){0,32})(?:[ \t]|\\\n)++){0,48})"
    r"(?:(?:(?:/usr)?/bin/)?(?:bash|sh|zsh)[ \t]+(?:-[a-z]+[ \t]+)*)?"
    r"(?P<script>\"?(?:\$\(dirname[ \t][^()\n]*\)\"?/)?[\w./${}\"-]{0,400}\w\.(?:sh|bash))\"?"
    r"(?P<words>(?:[ \t](?:[^\n\\;&|]|>&|&>|\\.|\\\n)*)?)(?=$|[;&|])",
    re.MULTILINE,
    holds=(".sh", ".bash"),
)
_FOLDER = late_pattern(r"^(?:\$\{?\w+\}?|\$\(dirname [^)]*\))?/?(?:\./)?")


def with_started_scripts(text: str, text_of: Callable[[str], str | None]) -> str:
    """A script with those that it starts (``bash run.sh --flags``) as functions of it.
    ``text_of``: a script's text by the name that it is started by, where it lies beside.
    """
    made: dict[str, str] = {}

    def call(found: re.Match[str], depth: int) -> str:
        plain = found["script"].replace('"', "")
        script = plain if plain.startswith("/") else _FOLDER.sub("", plain, count=1)
        name = re.sub(r"\W", "_", script) + "_"
        if name not in made:
            held = (
                text_of(script)
                if len(made) < MOST_STARTED and depth < DEEPEST_CALL and "$" not in script
                else None
            )
            if held is None or len(held) + sum(map(len, made.values())) + len(text) > MOST_SCRIPT:
                return found[0]
            made[name] = ""  # a script that starts itself is not followed into itself
            made[name] = _STARTED.sub(lambda inner: call(inner, depth + 1), held)
        exported = "".join(f"export {one}\n" for one in _GIVES.findall(found["before"]))
        space = found["before"][: -len(found["before"].lstrip()) or None]
        return f"{space}{exported}{name}{found['words']}"

    called = _STARTED.sub(lambda found: call(found, 0), text)
    functions = "".join(f"{name}() {{\n{held}\n}}\n" for name, held in made.items())
    return f"{called}\n{functions}" if functions else text


def own_text_by_start(name: str, text: str, described: str) -> dict[str, str]:
    """The text of a script by the names that its own words say it is started by (``described``)."""
    return {
        start.script: text
        for start in script_launches(described)
        if PurePath(start.script).name == PurePath(name).name
    }
