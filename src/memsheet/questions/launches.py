"""The launches that lie in a tree of files: scripts and configurations that name a model or describe one,
each checked with what it refers to. Nothing is run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from math import lcm, prod
from pathlib import Path
from typing import Any

from memsheet.catalog import named_cards
from memsheet.errors import InputError
from memsheet.exchange.shared.file_format import Read
from memsheet.exchange.shared.notebook import NOTEBOOK, notebook_script
from memsheet.guard import is_folder, parse_json, read_bytes
from memsheet.questions.check import check_configuration_files
from memsheet.questions.export import PLAN, SHEET
from memsheet.questions.files_on_disk import CODE, ENDINGS, NAMED
from memsheet.questions.recognised_files import recognise_files
from memsheet.report.shared.checked import WORST_FIRST, Launch

SHELLS = (".sh", ".bash", ".sbatch", ".slurm")
MOST_FILES = 20_000
"""Files of a tree that are looked at by their names."""
MOST_BYTES = 2**18
LEFT_OUT = frozenset({"node_modules", "site-packages", "__pycache__", "venv", "build", "dist"})


def launch_files(files: tuple[str, ...]) -> list[Path]:
    """The launches of a folder that holds more than one job; none of any other files, which are those of one
    job, as a folder with memsheet's own plan or sheet in it is.
    """
    root = Path(files[0]) if len(files) == 1 else None
    if root is None or not is_folder(root) or any((root / name).is_file() for name in (PLAN, SHEET)):
        return []
    found = list(_launches_below(root))
    return found if len(found) > 1 or any(path.parent != root for path in found) else []


def check_launches(
    paths: Sequence[Path], root: Path, question: Mapping[str, Any], words: Mapping[str, Any]
) -> tuple[Launch, ...]:
    """Every launch of a tree, checked by itself on the cards that are named, as many as it starts processes
    where it says so; the worst first.
    """
    found = [_check_launch(path, root, {**question}, words) for path in paths]
    return tuple(sorted(found, key=lambda one: (WORST_FIRST.index(one.outcome), one.file)))


def _check_launch(path: Path, root: Path, question: dict[str, Any], words: Mapping[str, Any]) -> Launch:
    name = path.relative_to(root).as_posix()
    if question["gpus"]:
        question["gpus"] = cards_of_launch(_recognised(path), question["gpus"])
    model = question.pop("model", None)
    try:
        return Launch(
            file=name, checked=check_configuration_files((str(path),), model, question, words=words)
        )
    except InputError as error:
        return Launch(file=name, checked=None, problem=str(error.problems[0]))


def _launches_below(root: Path) -> Iterator[Path]:
    """Files of a tree that name a model or describe one and that no other of them refers to."""
    found, referred = list[Path](), set[str]()
    for path in _candidate_paths(root):
        reads = _recognised(path)
        referred |= {
            Path(held).name
            for read in reads.values()
            for at in read.form.refers
            if isinstance(held := read.values.get(at), str)
        }
        if (path.suffix in SHELLS and reads) or any(read.request.get("@model") for read in reads.values()):
            found.append(path)
    return (path for path in found if path.name not in referred)


def _candidate_paths(root: Path) -> Iterator[Path]:
    endings, seen = (*ENDINGS, *SHELLS, CODE, NOTEBOOK), 0
    for folder, below, names in os.walk(root):
        below[:] = sorted(name for name in below if not name.startswith(".") and name not in LEFT_OUT)
        for name in sorted(names):
            seen += 1
            if seen > MOST_FILES:
                return
            path = Path(folder, name)
            named = path.suffix in endings or name in NAMED
            if named and path.is_file() and not path.is_symlink() and path.stat().st_size <= MOST_BYTES:
                yield path


def _recognised(path: Path) -> Mapping[str, Read]:
    """What a file is read as; nothing where it is none that is known."""
    try:
        text = read_bytes(path, MOST_BYTES).decode()
        script = notebook_script(text, path.name, parse_json) if path.suffix == NOTEBOOK else text
        return recognise_files({path.name: script}, ())[0]
    except (InputError, UnicodeDecodeError):
        return {}


def cards_of_launch(reads: Mapping[str, Read], gpus: str) -> str:
    """The cards that are named, as many as files start processes, or as their degrees need."""
    given, card = named_cards(gpus)
    counts: list[int] = []
    for read in reads.values():
        counts += [held for held in (read.request.get("@gpus"),) if type(held) is int]
        degrees = [
            read.request.get(f"mesh.{axis}") or 1 for axis in ("tp", "cp", "pp", "dp_shard", "dp_replicate")
        ]
        ranks = prod(degrees) if all(type(degree) is int for degree in degrees) else 1
        experts = read.request.get("mesh.ep")
        counts += [lcm(ranks, degrees[2] * experts)] if type(experts) is int else [ranks]
    first = counts[0] if counts and counts[0] > 1 else given or 1
    return f"{lcm(first, *(count for count in counts if count > 1))}x{card}"
