"""Scripts whose job is what a YAML or TOML beside them says, changed by the words of their command: the text
of such a script is that file's, as the command changes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from memsheet.exchange import RENDER, find_format
from memsheet.exchange.shared.script_places import NOTEBOOK
from memsheet.exchange.shared.settings_launches import SettingsLaunch, settings_launches, with_words_over
from memsheet.exchange.shared.tables_launches import TablesLaunch, tables_launches, tables_text
from memsheet.guard.budget import is_long_script
from memsheet.questions.files_on_disk import CODE, DATA, table_beside, tree_beside

BY_TABLES = ("prime-rl",)
BY_SETTINGS = ("nemo-rl", "areal", "roll")
"""Names of formats whose programs are started so."""


def with_launched_settings(
    folders: Sequence[Path], texts: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Texts of shells that start such a program, each the settings of the first that is known; and what was
    put in by name. ``folders``: of the job, in which those lie.
    """
    found, told = dict(texts), dict[str, tuple[str, ...]]()
    for name, text in texts.items():
        if name.endswith((CODE, NOTEBOOK, *DATA)) or is_long_script(text):
            continue
        by_yaml = (_settings_of_launch(launch, folders) for launch in settings_launches(text))
        by_tables = (_tables_of_launch(launch, folders) for launch in tables_launches(text))
        whole = next((one for one in (*by_yaml, *by_tables) if one is not None), None)
        if whole is not None:
            found[name], told[name] = whole
    return found, told


def _tables_of_launch(launch: TablesLaunch, folders: Sequence[Path]) -> tuple[str, tuple[str, ...]] | None:
    """The same of TOML: all of its files, and the flags over them."""
    trees = [table_beside(file, folders) for file in launch.files]
    whole = [tree for tree in trees if tree is not None]
    if len(whole) < len(trees):
        return None
    text = tables_text(whole, launch)
    words = f", with {len(launch.over)} flags of its command over it" if launch.over else ""
    told = tuple(f"keys of {file}{words}" for file in launch.files)
    return (text, told) if any(_is_recognised(name, text) for name in BY_TABLES) else None


def _settings_of_launch(
    launch: SettingsLaunch, folders: Sequence[Path]
) -> tuple[str, tuple[str, ...]] | None:
    """The YAML as the command changes it, and where it is from; None of one that is no such program's."""
    for file in launch.files:
        beside = tree_beside(file, folders)
        if beside is None:
            continue
        tree, names = beside
        text = RENDER["yaml"](with_words_over(tree, launch))
        if any(_is_recognised(format_name, text) for format_name in BY_SETTINGS):
            words = f", with {len(launch.over)} words of its command over it" if launch.over else ""
            return text, tuple(f"keys of {one}{words}" for one in names[:1])
    return None


def _is_recognised(format_name: str, text: str) -> bool:
    parse = find_format(format_name).parse
    try:
        return bool(parse and parse(text))
    except ValueError:
        return False
