"""Configurations that torchtune ships, which ``tune run`` takes by their names."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from memsheet.exchange.formats.torchtune.checkpoints import FOLDER, MODEL
from memsheet.exchange.formats.torchtune.recipes import FOLDER as DOWNLOADS
from memsheet.exchange.shared.config_commands import TUNE_FILE
from memsheet.exchange.shared.file_format import Values

WITHOUT = "without"


def shipped_values(values: Values) -> Mapping[str, Any]:
    """What the configuration says that a command names; nothing of a file of people's own."""
    held = _shipped_names()
    own = held["configs"].get(str(values.get(TUNE_FILE)))
    if own is None:
        return {}
    adapted = "lora" in str(own[MODEL]).rpartition(".")[2]
    found = {**held["usual"], **(held["adapted"] if adapted else {}), **own}
    left = {WITHOUT, *own.get(WITHOUT, ())}
    return {
        at: f"{DOWNLOADS}/{value}" if at == FOLDER else value for at, value in found.items() if at not in left
    }


@cache
def _shipped_names() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("configs.toml").read_text(encoding="utf-8"))
