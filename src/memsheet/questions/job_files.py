"""The files of a job, each read, with what lies beside them put in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from memsheet.exchange.joined_files import with_own_defaults, with_shipped_files, with_their_files
from memsheet.exchange.shared.file_format import FileReading
from memsheet.exchange.shared.script_places import NOTEBOOK
from memsheet.frozen import dataclass, replace
from memsheet.questions.files_on_disk import (
    CODE,
    DATA,
    SOURCED,
    adjacent_file_texts,
    assigning_lines,
    defaults_beside,
    files_as_they_lie,
    folders_of_job,
    large_scripts,
    read_texts_and_plan,
    sourced_path,
    started_scripts,
    text_beside,
    with_called_scripts,
    with_inherited_trees,
    with_settings_beside,
    with_variables_beside,
)
from memsheet.questions.launched_settings import with_launched_settings, with_named_settings
from memsheet.questions.named_models import (
    bundled_draft,
)
from memsheet.questions.pod_jobs import pod_scripts, with_config_maps, with_pod_commands
from memsheet.questions.recognised_files import of_folders, recognise_files


@dataclass(frozen=True, slots=True)
class JobFiles:
    """The files of a job: their texts, what was read of them, and the plan among them."""

    texts: dict[str, str]
    reads: dict[str, FileReading]
    document: Mapping[str, Any]
    not_read: tuple[str, ...]
    written: Mapping[str, tuple[str, str]]


def read_job_files(
    files: tuple[str, ...],
    plan: Any,
    server: str,
    root: Path | None,
    as_run: Callable[[str], str] | None,
) -> JobFiles:
    """The files that are named, and those of the same job that they start, take in or name and that lie
    beside them. ``plan``: one that stands beside; ``server``, ``root`` and ``as_run`` as of
    ``check.check_configuration_files``. Raises InputError for what cannot be read.
    """
    texts, document = read_texts_and_plan(files, plan)
    written = files_as_they_lie(files, texts)
    too_large = tuple(
        f"{path.name}: a script of {path.stat().st_size:,} bytes: name it to have it read"
        for path in large_scripts(files)
    )
    folders = folders_of_job(files, root)
    texts = _without_sourced_files(files, with_config_maps(texts))
    as_text = {name: as_run(text) for name, text in texts.items()} if as_run else texts
    texts = with_pod_commands(as_text, lambda script: text_beside(script, folders))
    texts, put_in = with_variables_beside(files, texts, folders)
    texts, stood_on = with_inherited_trees(files, texts, folders)
    put_in |= stood_on
    texts = with_called_scripts(folders, texts)
    texts, launched = with_launched_settings(folders, texts)
    put_in |= launched
    folder, scripts = of_folders(files, texts), started_scripts(folders, texts, pod_scripts(as_text))
    texts, scripts, settings = with_settings_beside(folders, texts, scripts)
    put_in |= settings
    reads, skipped = recognise_files(texts, folder, server, scripts)
    if beside := adjacent_file_texts(folders, texts, reads):
        texts |= beside
        written |= {path: (path, text) for path, text in beside.items()}
        reads, skipped = recognise_files(texts, folder, server, scripts)
    reads = with_named_settings(folders, reads)
    reads = with_own_defaults(reads, defaults_beside(folders, reads))
    reads = {name: bundled_draft(read) for name, read in with_their_files(with_shipped_files(reads)).items()}
    put_in |= {name: put_in[script] for name in reads if (script := _started_script(name)) in put_in}
    reads = {
        name: replace(read, assumed=(*read.assumed, *put_in.get(name, ()))) for name, read in reads.items()
    }
    whole = {**dict.fromkeys(reads, ""), **texts}
    return JobFiles(whole, reads, document, (*skipped, *too_large), written)


def _without_sourced_files(files: tuple[str, ...], texts: Mapping[str, str]) -> dict[str, str]:
    """Texts but for those of shells that do nothing but give variables their values, for another of them that
    takes them in where they lie (``with_variables_beside``).
    """
    shells = {at: text for at, text in texts.items() if Path(at).suffix not in (CODE, NOTEBOOK, *DATA)}
    only = {at for at, text in shells.items() if len(shells) > 1 and _only_assigns(text)}
    if not only:
        return dict(texts)
    base = Path(files[0]) if len(files) == 1 else None
    taken = {
        sourced_path(line, base or Path(at).parent)[1].resolve()
        for at, text in shells.items()
        if at not in only
        for line in SOURCED.finditer(text)
    }
    return {
        at: text
        for at, text in texts.items()
        if at not in only or (base / at if base else Path(at)).resolve() not in taken
    }


def _only_assigns(text: str) -> bool:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return list(assigning_lines(lines)) == lines


def _started_script(name: str) -> str:
    """The script of a name that a command's was put before."""
    return name.rpartition(": ")[2]


def engine_keys(reads: Mapping[str, FileReading], planned: Mapping[str, Any]) -> dict[str, Any]:
    """The engine and its sharding as the files say them, the plan among them: a word beside them means what
    it does there.
    """
    said = [
        planned,
        *({key: read.request[key] for key in read.request.keys() - read.unsaid} for read in reads.values()),
    ]
    return {key: value for one in said for key in ("engine", "zero") if (value := one.get(key)) is not None}


def told_release(read: FileReading, flags: Mapping[str, Any], planned: Mapping[str, Any]) -> str | None:
    """The release that is told of a file's engine, by the first of those three that tells one."""
    told: str | None = flags.get("engine_version") or read.request.get("engine_version")
    return told or planned.get("engine_version")
