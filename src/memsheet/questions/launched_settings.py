"""Scripts whose job is what a YAML or TOML beside them says, changed by the words of their command: the text
of such a script is that file's, as the command changes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memsheet.errors import InputError
from memsheet.exchange import find_format
from memsheet.exchange.plan_files import RENDER
from memsheet.exchange.shared.dotted_places import flatten_tree
from memsheet.exchange.shared.file_format import FileReading, read_format_values
from memsheet.exchange.shared.script_places import NOTEBOOK
from memsheet.frozen import replace
from memsheet.guard import parse_json
from memsheet.guard.budget import is_long_script
from memsheet.late import late_functions
from memsheet.patterns import late_pattern
from memsheet.questions.files_on_disk import CODE, DATA, settings_in, table_beside, tree_beside

with late_functions(__name__):
    from memsheet.exchange.shared.settings_launches import settings_launches, with_words_over
    from memsheet.exchange.shared.tables_launches import config_launches, tables_launches, tables_text

if TYPE_CHECKING:
    from memsheet.exchange.shared.settings_launches import SettingsLaunch
    from memsheet.exchange.shared.tables_launches import TablesLaunch

BY_TABLES = ("prime-rl", "torchtitan-toml")
SIGNS = ("--config", "run_", ".toml")
"""Of which a text holds one where it starts such a program (``settings_launches``, ``tables_launches``)."""
BY_SETTINGS = ("nemo-rl", "areal", "roll")
"""Names of formats whose programs are started so."""


def with_launched_settings(
    folders: Sequence[Path], texts: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Texts of shells that start such a program, each the settings of the first that is known; beside a
    launcher that counts ranks those settings by the name of their file; and what was put in by name.
    ``folders``: of the job, in which those lie.
    """
    found, told = dict(texts), dict[str, tuple[str, ...]]()
    for name, text in texts.items():
        if name.endswith((CODE, NOTEBOOK, *DATA)) or is_long_script(text):
            continue
        if not any(sign in text for sign in SIGNS):
            continue
        by_yaml = (_settings_of_launch(launch, folders) for launch in settings_launches(text))
        by_tables = (_tables_of_launch(launch, folders) for launch in tables_launches(text))
        whole = next((one for one in (*by_yaml, *by_tables) if one is not None), None)
        if whole is not None:
            found[name], told[name] = whole
            continue
        by_flag = ((launch, _tables_of_launch(launch, folders)) for launch in config_launches(text))
        for launch, beside in by_flag:
            if beside is not None and launch.files[0] not in texts:
                found[launch.files[0]], told[launch.files[0]] = beside
                if not COUNTED.search(text):
                    del found[name]
                break
    return found, told


COUNTED = late_pattern(r"--n(?:proc|nodes)|#SBATCH|\bsrun\b")
"""What a launcher's own text says of its ranks."""


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


def with_named_settings(folders: Sequence[Path], reads: Mapping[str, FileReading]) -> dict[str, FileReading]:
    """Reads with the keys of files that they name in the place of a group of keys (``--fsdp_config
    fsdp.json``), and that lie in the job's folders; others are left as what nobody read.
    """
    return {name: _with_settings_of(read, folders) for name, read in reads.items()}


def _with_settings_of(read: FileReading, folders: Sequence[Path]) -> FileReading:
    for at, held in _named_groups(read):
        group = _group_of_text(held) if held.lstrip().startswith("{") else settings_in(held, folders)
        if not group:
            continue
        rest = {key: value for key, value in read.values.items() if key != at}
        before = read_format_values(read.form, read.values)
        after = read_format_values(read.form, {**dict(flatten_tree({at: group})), **rest})
        told = () if held.lstrip().startswith("{") else (f"values of {held}, which lies beside",)
        read = replace(
            after,
            release=read.release,
            assumed=(*after.assumed, *(one for one in read.assumed if one not in before.assumed), *told),
            unmodelled=(*after.unmodelled, *(one for one in read.unmodelled if one not in before.unmodelled)),
        )
    return read


def _named_groups(read: FileReading) -> Iterator[tuple[str, str]]:
    held = ((at, read.values.get(at)) for at in read.form.inlines)
    return ((at, value) for at, value in held if isinstance(value, str) and value)


def _group_of_text(text: str) -> Mapping[str, object]:
    """The keys that a text holds itself, as JSON; nothing of one that is none."""
    try:
        found = parse_json(text, "")
    except InputError:
        return {}
    return found if isinstance(found, Mapping) else {}
