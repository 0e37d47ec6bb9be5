"""What is kept for the user from one command to the next: where, by which name, and written whole or not at
all. What writes is loaded where something is written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from memsheet.errors import InputError
from memsheet.guard import is_file, read_bytes, read_json

VARIABLE = "MEMSHEET_CACHE"
OFF = "off"
PACKAGE = Path(__file__).parents[1]
MAX_BYTES = 64 * 2**20


def cache_folder(kind: str) -> Path | None:
    """Where things of a kind are kept (XDG Base Directory Specification). None: switched off."""
    named = os.environ.get(VARIABLE)
    if named is not None and named.strip().lower() == OFF:
        return None
    home = named or str(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memsheet")
    return Path(home) / kind


def key_of(said: Any, libraries: Sequence[str], folders: tuple[str, ...]) -> str:
    """A name for everything that an answer depends on: what was asked, the versions of libraries, and our own
    code in some folders of the package.
    """
    text = json.dumps(
        [said, installed_versions(libraries), source_digest(folders)], sort_keys=True, default=str
    )
    from hashlib import sha256

    return sha256(text.encode()).hexdigest()[:32]


def installed_versions(libraries: Sequence[str]) -> dict[str, str]:
    """Versions of libraries, without importing them; those that are not installed are left out."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in libraries:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


@cache
def source_digest(folders: tuple[str, ...]) -> str:
    """Of our own sources, by folder or file: what others made is made anew."""
    from hashlib import sha256

    found = sha256()
    for folder in folders:
        own = PACKAGE / folder
        for path in [own] if own.suffix else sorted(own.rglob("*.py")):
            found.update(read_bytes(path, MAX_BYTES))
    return found.hexdigest()


def read_kept(kind: str, name: str) -> Any:
    """The document of a name; None where there is none that can be read."""
    folder = cache_folder(kind)
    if folder is None or not is_file(folder / f"{name}.json"):
        return None
    try:
        return read_json(folder / f"{name}.json", max_bytes=MAX_BYTES)
    except InputError:  # a stranger's, or half of one: it is made anew
        return None


def keep_document(kind: str, name: str, document: Mapping[str, Any], *, most: int | None = None) -> None:
    """Write a document whole or not at all; a folder that cannot be written to keeps none. ``most``: how many
    of a kind are kept, the newest.
    """
    folder = cache_folder(kind)
    if folder is None:
        return
    from tempfile import NamedTemporaryFile

    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=folder, suffix=".part", delete=False, encoding="utf-8") as file:
            file.write(json.dumps(document, separators=(",", ":")))  # json.dump has no encoder in C
        Path(file.name).replace(folder / f"{name}.json")
        if most is not None:
            kept = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
            for path in kept[most:]:
                path.unlink(missing_ok=True)
