"""Files as they were in a revision of the git repository that they lie in. Nothing of the repository is run
or changed, and nothing is fetched.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from shutil import which
from tempfile import TemporaryDirectory

from memsheet.errors import input_error
from memsheet.exchange.shared.script_places import NOTEBOOK
from memsheet.frozen import NamedTuple
from memsheet.guard import is_folder
from memsheet.questions.files_on_disk import CODE, ENDINGS, GIT, MOST_BYTES, NAMED

READ = (*ENDINGS, ".bash", ".env", CODE, NOTEBOOK)
"""Endings of what a job's files may name, besides those that are named themselves."""
PLAIN = ("100644", "100755")
"""Modes of files in a tree of git; links and other repositories are none."""
MOST_FILES, MOST_TOGETHER = 4000, 2**26
WAIT_S = 60
QUIET = {"GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
"""Git fetches nothing, writes nothing and asks nobody."""


class _Blob(NamedTuple):
    name: str
    size: int
    path: PurePosixPath


@contextmanager
def files_at(files: Sequence[str], revision: str) -> Iterator[tuple[str, ...]]:
    """``files`` as they were in ``revision``, with what they may name beside them, in a folder that is
    removed afterwards. A file that was not there has a path at which there is none. Raises InputError where
    there is no such revision, or no repository.
    """
    top = _repository_of(Path(files[0]), revision)
    commit = _commit_named(top, revision)
    own = [_path_within(Path(file), top) for file in files]
    with TemporaryDirectory(prefix="memsheet-") as made:
        folder = Path(made)
        (folder / GIT).mkdir()  # names in files are looked up as far as the repository's root
        blobs = _readable_blobs(top, commit, own)
        for blob, data in zip(blobs, _contents_of(top, blobs), strict=True):
            path = folder / blob.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        yield tuple(str(folder / path) for path in own)


def _repository_of(file: Path, revision: str) -> Path:
    folder = file if is_folder(file) else file.parent
    found = _git_output(folder, "rev-parse", "--show-toplevel")
    if found is None:
        missing = "git, which would tell of revisions, is not installed"
        why = f"{file} lies in no git repository" if which("git") else missing
        raise input_error("against", revision, f"is no file, and {why}")
    return Path(found.decode(errors="replace").rstrip("\n"))


def _commit_named(top: Path, revision: str) -> str:
    asked = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    found = _git_output(top, *asked) if revision.isprintable() else None
    if found is None:
        raise input_error(
            "against",
            revision,
            "is neither a file nor a revision of the repository",
            "HEAD, main, HEAD~1; of a shallow clone fetch it first: git fetch --depth 1 origin BRANCH",
        )
    return found.decode().strip()


def _path_within(file: Path, top: Path) -> PurePosixPath:
    """The path of a file from the repository's root; links of its folders are followed, its own is not."""
    folder = file.resolve() if is_folder(file) else file.parent.resolve() / file.name
    return PurePosixPath(folder.relative_to(top.resolve()).as_posix())


def _readable_blobs(top: Path, commit: str, own: Sequence[PurePosixPath]) -> list[_Blob]:
    """The files of a revision that may be read: those named, then those of their folders, then the others."""
    listed = _git_output(top, "ls-tree", "-r", "-z", "-l", "--full-tree", commit) or b""
    found = []
    for entry in listed.decode("utf-8", "surrogateescape").split("\0"):
        about, _, name = entry.partition("\t")
        mode, _, held, size = (*about.split(), "", "", "", "")[:4]
        path = PurePosixPath(name)
        read = path in own or path.suffix in READ or path.name in NAMED
        if mode in PLAIN and read and size.isdigit() and int(size) <= MOST_BYTES and _stays_inside(path):
            found.append(_Blob(held, int(size), path))
    folders = {path.parent for path in own} | set(own)
    found.sort(key=lambda blob: (blob.path not in own, blob.path.parent not in folders, blob.path))
    kept, total = list[_Blob](), 0
    for blob in found[:MOST_FILES]:
        total += blob.size
        if total > MOST_TOGETHER:
            break
        kept.append(blob)
    return kept


def _stays_inside(path: PurePosixPath) -> bool:
    """Whether a tree's name is one of a file below it: a tree that was made by hand may hold any."""
    return (
        bool(path.parts)
        and not path.is_absolute()
        and not {"..", GIT} & {part.lower() for part in path.parts}
    )


def _contents_of(top: Path, blobs: Sequence[_Blob]) -> Iterator[bytes]:
    """The bytes of each blob, as they were committed: no filter of the repository's is run."""
    asked = "".join(f"{blob.name}\n" for blob in blobs).encode()
    said = _git_output(top, "cat-file", "--batch", given=asked) or b""
    at = 0
    for _ in blobs:
        end = said.index(b"\n", at)
        size = int(said[at:end].rpartition(b" ")[2])
        yield said[end + 1 : end + 1 + size]
        at = end + 1 + size + 1


def _git_output(folder: Path, *words: str, given: bytes | None = None) -> bytes | None:
    """What a question to git comes to; None where it fails, or git is not there."""
    program = which("git")
    if program is None:
        return None
    command = [
        program,
        "--no-pager",
        "--no-replace-objects",
        "-c",
        "core.fsmonitor=false",
        "-C",
        str(folder),
        *words,
    ]
    try:
        done = subprocess.run(  # noqa: S603 - git itself, which only reads
            command,
            input=given or b"",
            capture_output=True,
            timeout=WAIT_S,
            check=False,
            env={**os.environ, **QUIET},
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None
