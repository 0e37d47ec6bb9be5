"""The ``.env`` beside a Compose file: the values of its variables, read as data (docs.docker.com/compose/
how-tos/environment-variables/variable-interpolation).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from memsheet.exchange.shared.script_places import DOTENV
from memsheet.late import late_functions
from memsheet.patterns import late_pattern

with late_functions(__name__):
    from memsheet.exchange.shared.serve_compose import holds_services


_PLAIN_VALUE = late_pattern(r"[\w./~-](?:[\w./:@+,=~-]{0,199}[\w./@+,=~-])?")
"""Values that are one plain text wherever they stand in YAML; others stay variables."""
_PLACE = late_pattern(r"(\$\$)|\$(?:\{(\w+)(?::?[-=?][^{}\n]*)?\}|([A-Za-z_]\w*))")


def dotenv_values(text: str) -> dict[str, str]:
    """Its variables, the last of those that stand twice."""
    pairs = (line.strip().removeprefix("export ").partition("=")[::2] for line in text.splitlines())
    found = {name.strip(): _bare_value(value.strip()) for name, value in pairs}
    return {at: held for at, held in found.items() if at.isidentifier() and _PLAIN_VALUE.fullmatch(held)}


def _bare_value(value: str) -> str:
    """A value without its quotes, or the remark behind it."""
    if value[:1] in ("'", '"'):
        return value[1:].partition(value[0])[0]
    return value.partition(" #")[0].rstrip()


def with_dotenv_values(text: str, env: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """A Compose file with its variables' values, and what was put in, in words; any other text as it is."""
    told: dict[str, None] = {}

    def put_in(found: re.Match[str]) -> str:
        name = found[2] or found[3]
        if found[1] or name not in env:
            return found[0]
        told[f"{name} = {env[name]} ({DOTENV}; a shell's own goes before it)"] = None
        return env[name]

    return (_PLACE.sub(put_in, text), tuple(told)) if env and holds_services(text) else (text, ())
