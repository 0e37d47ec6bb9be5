"""The files of a job as they lie: those of a folder or a command line, and those beside them that others
name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from memsheet.errors import InputError, input_error
from memsheet.exchange.plan_files import RENDER
from memsheet.exchange.shared.file_format import FileReading
from memsheet.exchange.shared.inherited_yaml import INHERITS
from memsheet.exchange.shared.launched_script import script_launches
from memsheet.exchange.shared.plain_shell import plain_script
from memsheet.exchange.shared.script_defaults import absent_files
from memsheet.exchange.shared.script_places import DOTENV, NOTEBOOK
from memsheet.exchange.shared.shell_text import unix_lines
from memsheet.exchange.shared.started_scripts import with_started_scripts
from memsheet.guard import MAX_JSON_BYTES, is_file, is_folder, parse_json, parse_yaml, read_bytes, read_json
from memsheet.guard.budget import MOST_SCRIPT, TooMuchError, is_long_script
from memsheet.late import late_functions
from memsheet.patterns import late_pattern
from memsheet.plan.document import PLAN, SHEET

with late_functions(__name__):
    from memsheet.exchange.shared.compose_env import dotenv_values, with_dotenv_values
    from memsheet.exchange.shared.inherited_yaml import inherited_tree
    from memsheet.exchange.shared.notebook import marimo_script, notebook_script
    from memsheet.exchange.shared.serve_compose import holds_services
    from memsheet.exchange.shared.settings_files import loads_settings, settings_named, with_settings
    from memsheet.exchange.shared.wrapper_scripts import text_of_call, wrapped_call
    from memsheet.guard.toml import parse_toml
    from memsheet.questions.export import pick_plan
    from memsheet.questions.pasted import told_name


MAX_FILES = 64
MOST_BYTES = 2**20
"""Of all files of a job but memsheet's own: configurations are a few KiB each, and what is larger is none."""
DATA = (".json", ".yaml", ".yml", ".toml")
ENDINGS = (*DATA, ".sh", ".sbatch", ".slurm")
NAMED = ("Modelfile",)
GIT, MOST_UP = ".git", 8
IN_ONE_FOLDER = 3
"""Parts of a whole path: the root, a folder and the file."""
CODE = ".py"
SOURCED = late_pattern(
    r"^[ \t]*(?:\[+[^\n]*\]+[ \t]*&&[ \t]*)?(?:set -a[ \t]*(?:;|&&)[ \t]*)?"
    r"(?:(?:source|\.)[ \t]+(?:(?P<quote>[\"'])(?P<quoted>[^\"'\n]+)(?P=quote)|(?P<file>[^\s\"';]+))"
    r"|export[ \t]+\"?\$\((?:cat|grep)[^\n)]*?[ \t](?P<read>[\w./-]*\.env)\b[^\n)]*\)\"?)[^\n]*$",
    re.MULTILINE,
    holds=("source", ". ", ".\t", "$(cat", "$(grep"),
)
"""A line of a shell's that takes in the variables of another file: ``source env.sh``, ``. ./.env``, ``export
$(cat .env | xargs)``.
"""
_OPENS_LIST = late_pattern(r"[ \t]*(?:export[ \t]+)?[A-Za-z_]\w*\+?=\(")
_ASSIGNMENT = late_pattern(r"[ \t]*(?:export[ \t]+)?[A-Za-z_]\w*=")


def read_texts_and_plan(files: tuple[str, ...], plan: Any) -> tuple[dict[str, str], Mapping[str, Any]]:
    """The texts of files by name, and the plan among them: memsheet's own, which a folder may hold, or the
    one a flag names.
    """
    if not files:
        raise input_error(
            "file",
            None,
            "is missing",
            "memsheet check ds_config.json --model llama-3.1-8b --gpus 8xA100-80GB --seq-len 4096",
        )
    paths = [path for file in files for path in paths_of(Path(file))]
    if len(paths) > MAX_FILES:
        raise input_error("file", len(paths), f"are more than {MAX_FILES} files")
    check_total_bytes(paths)
    texts: dict[str, str] = {}
    for path in paths:
        try:
            text = unix_lines(read_bytes(path, MAX_JSON_BYTES).decode())
        except UnicodeDecodeError:
            raise input_error("file", str(path), "is not text in UTF-8") from None
        if path.suffix == ".json" and '"memsheet/' in text[:200]:
            if path.name != SHEET or plan is None:
                plan = plan or pick_plan(read_json(path), None)
            continue
        script = marimo_script(text) if path.suffix == CODE else text
        script = notebook_script(text, path.name, parse_json) if path.suffix == NOTEBOOK else script
        texts[told_name(path, files)] = script
    return texts, plan or {}


def files_as_they_lie(files: tuple[str, ...], texts: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """The path and the text of each of ``texts`` (``read_texts_and_plan``) by its name, before anything is
    put into it.
    """
    named = {told_name(path, files): str(path) for file in files for path in paths_of(Path(file))}
    return {name: (named[name], text) for name, text in texts.items() if name in named}


def check_total_bytes(paths: Iterable[Path]) -> None:
    """Refuse more than a command reads, before any of it is read."""
    total = sum(path.stat().st_size for path in paths if is_file(path) and path.name not in (PLAN, SHEET))
    if total > MOST_BYTES:
        raise input_error(
            "file",
            None,
            f"are {total:,} bytes together, more than the {MOST_BYTES:,} that are read",
            "name the job's own files",
        )


def folders_of_job(files: tuple[str, ...], root: Path | None = None) -> list[Path]:
    """Folders that the names in files may be relative to: their own, then those above as far as ``root``, or
    the root of the repository that they lie in and the folder that the question is asked from, where a file
    is named from there; ``root`` itself of a file that does not lie in it.
    """
    own = [path if is_folder(path) else path.parent for path in map(Path, files)]
    above = [parent for folder in own for parent in _parents_within(folder, root)]
    return list(dict.fromkeys([*own, *above, *((root,) if root else ())]))


def _parents_within(folder: Path, root: Path | None) -> list[Path]:
    whole = folder.resolve()
    parents = list(whole.parents)[:MOST_UP]
    if root:
        homes = [root.resolve()]
    else:
        homes = [one for one in (whole, *parents) if (one / GIT).exists()][:1]
        homes += [] if folder.is_absolute() else [Path.cwd()]
    return [one for one in parents if any(map(one.is_relative_to, homes))]


def adjacent_file_texts(
    folders: Sequence[Path], texts: Mapping[str, str], reads: Mapping[str, FileReading]
) -> dict[str, str]:
    """Texts of the files that others name and that lie beside them, in one of the job's folders or below it:
    nothing else is opened.
    """
    found: dict[str, str] = {}
    for name in absent_files(reads):
        beside = ((folder, folder / Path(name).name) for folder in folders)
        for home, path in (*_named_places(name, folders), *_tail_places(name, folders), *beside):
            if not is_file(path) or str(path) in texts:  # a name that no file can have has no place either
                continue
            if _lies_within(path, (home, *folders)):
                found[str(path)] = unix_lines(read_bytes(path, MOST_BYTES).decode(errors="replace"))
                break
    return found


def _lies_within(path: Path, folders: Iterable[Path]) -> bool:
    return any(path.resolve().is_relative_to(folder.resolve()) for folder in folders)


def _named_places(name: str, folders: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """Where a file of that name may lie, and the folder that it must not leave: in one of the job's folders,
    or in one above them that the name begins with.
    """
    yield from ((folder, folder / name) for folder in folders)
    first = Path(name).parts[:1]
    for folder in folders:
        whole = folder.resolve()
        for home in (whole, *whole.parents)[:MOST_UP]:
            if (home.name,) == first:
                yield home, home.parent / name


def _tail_places(name: str, folders: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """Where a file may lie whose first folders are another machine's, or a variable's
    (``$ROOT/recipes/a.yaml``): the longest end of its name first, of two parts at least.
    """
    parts = Path(name).parts[-MOST_UP:]
    for first in range(1, len(parts) - 1):
        yield from ((folder, folder.joinpath(*parts[first:])) for folder in folders)


def _whole_places(name: str, folders: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """Where a file may lie whose whole path is another machine's, or an image's that has the project in a
    folder of its own (``/workspace/scripts/train.sh``, ``/app/train.py``).
    """
    if name.startswith("/"):
        yield from _tail_places(name, folders)
        if len(Path(name).parts) == IN_ONE_FOLDER:
            yield from ((folder, folder / Path(name).name) for folder in folders)


def with_variables_beside(
    files: tuple[str, ...], texts: Mapping[str, str], homes: Sequence[Path] = ()
) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Texts with the variables of the ``.env`` that Compose reads beside each of its files, of what shells
    take in of the same job (``homes``: its folders), and what was put in by name. None is opened that lies
    elsewhere.
    """
    found, told = dict(texts), dict[str, tuple[str, ...]]()
    for name, text in texts.items():
        own = Path(files[0]) if len(files) == 1 else Path(name)
        folder = own if is_folder(own) else own.parent
        if SOURCED.search(text) and not is_long_script(text) and not name.endswith((CODE, NOTEBOOK, *DATA)):
            found[name], told[name] = _with_sourced_values(text, folder, homes)
            continue
        path = folder / DOTENV
        if not name.endswith((".yaml", ".yml")) or not holds_services(text) or not is_file(path):
            continue
        if path.resolve().parent == folder.resolve() and path.stat().st_size <= MOST_SCRIPT:
            env = dotenv_values(read_bytes(path, MOST_SCRIPT).decode(errors="replace"))
            found[name], told[name] = with_dotenv_values(text, env)
    return found, told


def with_inherited_trees(
    files: tuple[str, ...], texts: Mapping[str, str], homes: Sequence[Path]
) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Texts of YAML whose parents lie in the same job's folders (``homes``) with what those say; and what was
    put in by name.
    """
    found, told = dict(texts), dict[str, tuple[str, ...]]()
    for name, text in texts.items():
        if not name.endswith((".yaml", ".yml")) or not INHERITS.search(text):
            continue
        own = Path(files[0]) if len(files) == 1 and is_file(Path(files[0])) else Path(name)
        names: list[str] = []
        tree = _tree_of_yaml(text, name)
        load = partial(_parent_tree, homes=(own.parent, *homes), told=names)
        whole = inherited_tree(tree, str(own.parent), load) if tree else None
        if whole is not None and names:
            found[name] = RENDER["yaml"](whole)
            told[name] = tuple(f"keys of {one}, which it stands on" for one in dict.fromkeys(names))
    return found, told


def defaults_beside(
    folders: Sequence[Path], reads: Mapping[str, FileReading]
) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Of programs that are started, by the name of what starts them, the defaults that a copy of the program
    in the same tree has, and where it has them; none of a file that stands on others.
    """
    found = {}
    for name, read in reads.items():
        file = read.form.own_defaults(read.values)
        text = text_beside(file, folders) if file else None
        tree = _tree_of_yaml(text, file) if text and not INHERITS.search(text) else None
        if tree:
            found[name] = (file, tree)
    return found


def tree_beside(name: str, folders: Sequence[Path]) -> tuple[Mapping[str, Any], tuple[str, ...]] | None:
    """A YAML by the name that it is called by, with what it stands on, and the names of both; None of one
    that does not lie in the job's folders.
    """
    for home, path in (*_named_places(name, folders), *_tail_places(name, folders)):
        if not is_file(path) or not _lies_within(path, (home, *folders)) or path.stat().st_size > MOST_SCRIPT:
            continue
        names: list[str] = []
        tree = _tree_of_yaml(read_bytes(path, MOST_SCRIPT).decode(errors="replace"), path.name)
        load = partial(_parent_tree, homes=(path.parent, *folders), told=names)
        whole = inherited_tree(tree, str(path.parent), load) if tree else None
        found = whole if whole is not None else tree
        return (found, (path.name, *names)) if found is not None else None
    return None


def table_beside(name: str, folders: Sequence[Path]) -> Mapping[str, Any] | None:
    """A TOML by the name that it is called by; None of one that does not lie in the job's folders."""
    text = text_beside(name, folders)
    try:
        return parse_toml(text.encode(), name) if text else None
    except InputError:
        return None


def _parent_tree(
    parent: str, folder: str, homes: Sequence[Path], told: list[str]
) -> tuple[Mapping[str, Any], str] | None:
    path = Path(folder) / parent
    if not is_file(path) or not _lies_within(path, homes) or path.stat().st_size > MOST_SCRIPT:
        return None
    tree = _tree_of_yaml(read_bytes(path, MOST_SCRIPT).decode(errors="replace"), path.name)
    told.append(path.name)
    return (tree, str(path.parent)) if tree is not None else None


def _tree_of_yaml(text: str, name: str) -> Mapping[str, Any] | None:
    try:
        found = parse_yaml(text, name, aliases=True)
    except ValueError:
        return None
    return found if isinstance(found, Mapping) else None


def with_called_scripts(folders: Sequence[Path], texts: Mapping[str, str]) -> dict[str, str]:
    """Texts of shells with the shell scripts that they start and that lie beside them, in one of the job's
    folders or below it, as functions.
    """
    return {
        name: text
        if Path(name).suffix in (CODE, NOTEBOOK, *DATA) or is_long_script(text)
        else with_started_scripts(text, lambda script: text_beside(script, folders))
        for name, text in texts.items()
    }


def with_settings_beside(
    folders: Sequence[Path], texts: Mapping[str, str], scripts: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str], dict[str, tuple[str, ...]]]:
    """Texts of Python scripts, those that were named and those that shells start, with the settings that they
    load of files beside them; and which those are, by the script's name.
    """
    shells = "\n".join(
        text for name, text in texts.items() if Path(name).suffix not in (CODE, NOTEBOOK, *DATA)
    )
    told: dict[str, tuple[str, ...]] = {}

    def with_own(name: str, text: str) -> str:
        if Path(name).suffix not in (CODE, NOTEBOOK) or not loads_settings(text):
            return text
        held = {at: said for at in settings_named(f"{text}\n{shells}") if (said := settings_in(at, folders))}
        both = with_settings(text, held)
        if both == text or len(both) > MOST_SCRIPT:
            return text
        told[name] = tuple(f"values of {at}, which lies beside" for at in held)
        return both

    found, started = ({at: with_own(at, text) for at, text in one.items()} for one in (texts, scripts))
    return found, started, told


def settings_in(name: str, folders: Sequence[Path]) -> Mapping[str, Any]:
    """What a file of settings says that lies beside; nothing of one that is none."""
    text = text_beside(name, folders)
    try:
        said = (parse_json if name.endswith(".json") else parse_yaml)(text, name) if text else None
    except InputError:
        return {}
    return said if isinstance(said, Mapping) else {}


def text_beside(script: str, folders: Sequence[Path]) -> str | None:
    """The text of a script by the name that it is started by; None of one that lies elsewhere or is long."""
    places = (*_named_places(script, folders), *_whole_places(script, folders))
    home, path = next(((home, path) for home, path in places if is_file(path)), (None, None))
    if not home or not path or not _lies_within(path, (home, *folders)) or path.stat().st_size > MOST_SCRIPT:
        return None
    return unix_lines(read_bytes(path, MOST_SCRIPT).decode(errors="replace"))


def _with_sourced_values(text: str, folder: Path, homes: Sequence[Path]) -> tuple[str, tuple[str, ...]]:
    """A shell's script with the variables and lists of the files that it takes in and that lie beside it or
    below it, or in the tree that it lies in, each in the place of its line; a file's other lines are not
    read.
    """
    told: list[str] = []

    def put_in(line: re.Match[str]) -> str:
        said, path = sourced_path(line, folder)
        if (
            said.is_absolute()
            or not is_file(path)
            or not _lies_within(path, (folder, *homes))
            or path.stat().st_size > MOST_SCRIPT
        ):
            return line[0]
        held = read_bytes(path, MOST_SCRIPT).decode(errors="replace").splitlines()
        told.append(f"variables of {path.name}, which lies beside")
        return "\n".join(assigning_lines(held))

    return SOURCED.sub(put_in, text), tuple(dict.fromkeys(told))


def sourced_path(line: re.Match[str], folder: Path) -> tuple[PurePosixPath, Path]:
    """The file that a line takes in (``SOURCED``), as it is named and where it lies of a script in
    ``folder``.
    """
    said = PurePosixPath(line["quoted"] or line["file"] or line["read"])
    parts = said.parts[1:] if "$" in said.parts[0] else said.parts
    return said, folder.joinpath(*parts) if parts else folder


def assigning_lines(lines: list[str]) -> Iterator[str]:
    """Lines that give a variable its value, and those of a list from its name to where it is closed."""
    depth = 0
    for line in lines:
        opens = depth == 0 and _OPENS_LIST.match(line) is not None
        if depth or opens or _ASSIGNMENT.match(line):
            yield line
        bare = re.sub(r"(?:^|\s)#.*", "", line)
        depth = max(0, depth + bare.count("(") - bare.count(")")) if depth or opens else 0


def started_scripts(
    folders: Sequence[Path], texts: Mapping[str, str], held_scripts: Mapping[str, str]
) -> dict[str, str]:
    """Texts of the Python scripts that shells among the texts start and that lie beside them, in one of the
    job's folders or below it, by the names they are started by; or that the job's own files hold
    (``held_scripts``, by their last names). Wrappers have the text of what they call.
    """
    found: dict[str, str] = {}
    for name, text in texts.items():
        if Path(name).suffix in (CODE, NOTEBOOK, *DATA) or is_long_script(text):
            continue
        for script in _started_names(text):
            held = held_scripts.get(Path(script).name) or text_beside(script, folders)
            if held is not None:
                found[script] = _text_that_runs(held, folders)
    return found


def _text_that_runs(text: str, folders: Sequence[Path]) -> str:
    """A script's text; of one that only calls a module's function, that module's where it lies beside."""
    found = wrapped_call(text)
    module = text_beside(found.file, folders) if found else None
    return text_of_call(module, found.call) if module and found else text


def _started_names(text: str) -> list[str]:
    """Scripts that a shell's text starts; none of one that asks for more than is spent on a file."""
    try:
        return [launch.script for launch in islice(script_launches(plain_script(text).text), MAX_FILES)]
    except TooMuchError:
        return []


def paths_of(path: Path) -> list[Path]:
    """A file, or a folder's files of the endings that configurations have, the plan first."""
    if not is_folder(path):
        return [path]
    found = sorted(
        held
        for held in path.iterdir()
        if (held.suffix in (*ENDINGS, CODE) or held.name in NAMED) and held.is_file()
    )
    if not found:
        raise input_error(
            "file", str(path), "is a folder without configurations", f"files that end in {', '.join(ENDINGS)}"
        )
    found = sorted(found, key=lambda held: (held.name != PLAN, held.suffix == CODE))
    configurations = sum(held.suffix != CODE for held in found)
    small = [held for held in found if not _is_large_script(held)]
    return small[
        : max(MAX_FILES // 2, configurations)
    ]  # so much code that it is never more than a command reads


def large_scripts(files: tuple[str, ...]) -> list[Path]:
    """Code of folders that is left aside unless it is named: a folder's is read as far as a command reads."""
    folders = [Path(file) for file in files if is_folder(Path(file))]
    return [
        held
        for folder in folders
        for held in sorted(folder.iterdir())
        if held.is_file() and _is_large_script(held)
    ]


def _is_large_script(path: Path) -> bool:
    return path.suffix == CODE and path.stat().st_size > MOST_SCRIPT // 4
