"""Settings that a Python script loads of a file beside it (``yaml.safe_load(open("config.yaml"))``,
``OmegaConf.load``, ``json.load``): what the file says stands as a value on a line behind the script's own,
where the readers of scripts find it. Nothing is run.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from memsheet.patterns import late_pattern

HELD = "__settings_beside__"
OPENED, OPEN = "open", ("open", "io.open", "codecs.open")
"""What an opened file is read as, and what opens one."""
LOADERS = frozenset({
    "yaml.safe_load", "yaml.full_load", "yaml.load", "yaml.unsafe_load", "json.load", "json.loads", "OmegaConf.load", "omegaconf.OmegaConf.load",
})  # fmt: skip
KEPT = frozenset({"EasyDict", "edict", "DotDict", "AttrDict", "Box", "Munch", "OmegaConf.create", "OmegaConf.to_container", "DictConfig"})  # fmt: skip
"""What hands the settings on as they are, under other access."""
LOADS = late_pattern(r"\byaml\.\w*load\b|\bOmegaConf\b|\bjson\.loads?\b")
NAMED = late_pattern(r"[\w./-]{1,120}\.(?:ya?ml|json)\b")
MOST_FILES = 8
REFERENCE = "${"
"""In a text of OmegaConf's, with which a value begins that stands elsewhere."""


def settings_named(text: str) -> list[str]:
    """Files of settings that a text names."""
    return list(dict.fromkeys(NAMED.findall(text)))[:MOST_FILES]


def loads_settings(text: str) -> bool:
    return LOADS.search(text) is not None


def with_settings(text: str, files: Mapping[str, Any]) -> str:
    """A script's text with what files of settings say, by their names."""
    return f"{text.rstrip()}\n{HELD} = {_literal(dict(files))}\n" if files else text


def held_settings(tree: ast.Module) -> ast.expr | None:
    """The value that stands behind a script's own lines, if any."""
    match tree.body[-1:]:
        case [ast.Assign(targets=[ast.Name(id=name)], value=held)] if name == HELD:
            return held
    return None


def settings_of(path: Any, files: Mapping[str, Any]) -> Any:
    """What the file of a path says; None of one that does not lie beside."""
    name = str(path).rpartition("/")[2]
    return next((held for at, held in files.items() if at.rpartition("/")[2] == name), None)


def _literal(value: Any) -> str:
    """A plain value as Python has it; what is none, or stands elsewhere, as a name that holds nothing."""
    if isinstance(value, Mapping):
        pairs = (f"{at!r}: {_literal(held)}" for at, held in value.items() if isinstance(at, str))
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, str):
        return "__open__" if REFERENCE in value else repr(value)
    return repr(value) if value is None or isinstance(value, bool | int | float) else "__open__"
