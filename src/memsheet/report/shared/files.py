"""Output files, written whole or not at all: nobody ever finds half a file under the name that was asked
for.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from memsheet.errors import InputError, input_error
from memsheet.report.shared.json_text import dump_json_line
from memsheet.timeline import Timeline, events_document

ANYONE = 0o666  # less the umask, as any program creates a file


def write_whole(path: Path, data: bytes, field: str = "file") -> None:
    """Put ``data`` under ``path``: into a new file beside it first, which then takes its name.

    A link is followed and a file that is there keeps its permissions. Raises InputError, and leaves what was
    there as it was, where the folder is missing, the name is that of a folder, a pipe or a device, or the
    disk is full.
    """
    try:
        target = Path(os.path.realpath(path))
        mode = _file_mode(target)
        _check_target_file(path, target, mode, field)
        _replace_file(target, data, mode)
    except InputError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL in it
        raise input_error(field, str(path), f"cannot be written: {_os_error_reason(error)}") from None


def write_all(files: Mapping[Path, bytes], field: str = "file") -> None:
    """Put every one of ``files`` in its place, or none: all of them are written out before the first takes
    its name.

    Links are not followed: a name that is one is refused, wherever it leads. Raises InputError as
    ``write_whole``.
    """
    ready: dict[Path, Path] = {}
    try:
        for path, data in files.items():
            if path.is_symlink():
                raise input_error(
                    field, str(path), "is a link, and what it leads to is not written over", "another folder"
                )
            mode = _file_mode(path)
            _check_target_file(path, path, mode, field)
            ready[path] = _write_temporary_file(path, data, mode)
        for path, written in ready.items():
            written.replace(path)
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise input_error(field, str(path), f"cannot be written: {_os_error_reason(error)}") from None
    finally:
        for left in ready.values():
            left.unlink(missing_ok=True)


@contextmanager
def alone_with(path: Path, field: str) -> Iterator[None]:
    """A time in which no other process of ours reads a file to write it again. Raises InputError where its
    folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(f".{path.name}.lock").open("w")
    except OSError as error:
        raise input_error(field, str(path), f"cannot be written: {error.strerror}") from None
    with lock:
        with suppress(ImportError):  # Windows has none; the file itself is whole there, too
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write_events(timeline: Timeline, path: Path, field: str = "events") -> None:
    """Write a timeline as ``memsheet/events/1``. Raises InputError as ``write_whole`` does."""
    write_whole(path, dump_json_line(events_document(timeline)).encode(), field)


def check_file(path: Path, field: str) -> None:
    """That a file could be written, before anything is run for it. Raises InputError where it could not."""
    try:
        target = Path(os.path.realpath(path))
        mode = _file_mode(target)
    except (OSError, ValueError) as error:  # too long, with a NUL, under a file
        raise input_error(field, str(path), f"cannot be written: {_os_error_reason(error)}") from None
    _check_target_file(path, target, mode, field)


def check_folder(path: Path, field: str) -> None:
    """That files could be written into a folder, there or still to be made. Raises InputError where they
    could not.
    """
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            path.lstat()
        found = next(
            each for each in (path.absolute(), *path.absolute().parents) if each.exists() or not each.name
        )
    except (OSError, ValueError) as error:
        raise input_error(field, str(path), f"cannot be made: {_os_error_reason(error)}") from None
    if not found.is_dir():
        raise input_error(
            field,
            str(path),
            "is not a folder"
            if found == path.absolute()
            else f"cannot be made: {found.name} is not a folder",
        )
    if not os.access(found, os.W_OK | os.X_OK):
        raise input_error(field, str(path), "cannot be written")


def _os_error_reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "it is not a file name"


def _file_mode(path: Path) -> int | None:
    """What stands under ``path`` (type and permissions), None for nothing."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _check_target_file(path: Path, target: Path, mode: int | None, field: str) -> None:
    if mode is not None and stat.S_ISDIR(mode):
        raise input_error(field, str(path), "is a folder", "name a file in it")
    if mode is not None and not stat.S_ISREG(mode):
        raise input_error(field, str(path), "is a pipe, socket or device, not a file")
    if not target.parent.is_dir():
        raise input_error(field, str(path), "is in a folder that does not exist", "make the folder first")


def _replace_file(target: Path, data: bytes, mode: int | None) -> None:
    beside = _write_temporary_file(target, data, mode)
    try:
        beside.replace(target)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise


def _write_temporary_file(target: Path, data: bytes, mode: int | None) -> Path:
    """``data`` in a new file of the same folder."""
    import secrets

    beside = target.with_name(
        f".{secrets.token_hex(8)}.part"
    )  # not the name itself and more: that may be too long
    try:
        with os.fdopen(
            os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), ANYONE), "wb"
        ) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            beside.chmod(stat.S_IMODE(mode))
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
    return beside
