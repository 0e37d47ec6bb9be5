"""The files of a model's repository: on a hub at one commit, or in the hub's local cache."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from memsheet.frozen import dataclass
from memsheet.guard import (
    MAX_JSON_BYTES,
    MAX_VALUES,
    is_file,
    is_folder,
    open_regular,
    parse_json,
    read_bytes,
)
from memsheet.readers.hub.client import HubClient
from memsheet.readers.hub.refusals import unusable_error
from memsheet.readers.hub.remote_file import RemoteFile

MOST_FILES = 20_000
MOST_LISTING_BYTES = 8 * 2**20
_COMMIT = re.compile(r"[0-9a-f]{40}")
_PLAIN = re.compile(r"[\w][\w .+()@=,-]*(?:/[\w][\w .+()@=,-]*){0,5}")
"""Names of files that are asked for: nothing hidden, nothing that leaves the repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedRepository:
    """A snapshot that somebody downloaded. ``asked``: the name as a person wrote it; ``revision``: the
    commit; ``names``: of all its files.
    """

    asked: str
    repo: str
    revision: str | None
    names: frozenset[str]
    whence: str
    folder: Path

    def text_of(self, name: str, max_bytes: int) -> bytes:
        return read_bytes(self.folder / name, max_bytes)

    def opened(self, path: Path) -> Any:
        return open_regular(self.folder / path)


def cache_folder() -> Path:
    """Where huggingface_hub keeps what it downloads (its docs, Manage the cache: HF_HUB_CACHE, HF_HOME); it
    is not imported to look there.
    """
    if said := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(os.path.expandvars(said)).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{caches}/huggingface"
    return Path(os.path.expandvars(home)).expanduser() / "hub"


def find_cached(asked: str, repo: str, revision: str | None) -> CachedRepository | None:
    """The repository in the hub's local cache, at the commit that a branch or tag was at when it was
    downloaded; None where it is not there. No network is asked.
    """
    home = cache_folder() / f"models--{repo.replace('/', '--')}"
    if not is_folder(home):
        return None
    commit = _cached_commit(home, revision or "main")
    folder = home / "snapshots" / commit if commit else None
    if folder is None or not is_folder(folder):
        return None
    names = frozenset(_files_below(folder))
    return CachedRepository(
        asked=asked, repo=repo, revision=commit, names=names, whence="the hub's local cache", folder=folder
    )


def _cached_commit(home: Path, revision: str) -> str | None:
    if _COMMIT.fullmatch(revision):
        return revision
    ref = home / "refs" / revision
    said = read_bytes(ref, 64).decode(errors="replace").strip() if is_file(ref) else ""
    if _COMMIT.fullmatch(said):
        return said
    short = re.fullmatch(r"[0-9a-f]{7,39}", revision)
    there = [each.name for each in (home / "snapshots").glob(f"{revision}*")] if short else []
    return there[0] if len(there) == 1 and _COMMIT.fullmatch(there[0]) else None


def _files_below(folder: Path) -> Iterator[str]:
    for number, path in enumerate(folder.rglob("*")):
        if number >= MOST_FILES:
            return
        if is_file(path):
            yield path.relative_to(folder).as_posix()


@dataclass(frozen=True, slots=True, kw_only=True)
class HubRepository:
    """What a hub lists. ``counts``: the parameters it counted of each dtype; ``sizes``: of files."""

    asked: str
    repo: str
    revision: str | None
    names: frozenset[str]
    whence: str
    client: HubClient
    counts: Mapping[str, int]
    sizes: Mapping[str, int]

    def text_of(self, name: str, max_bytes: int) -> bytes:
        return self.client.get(self.client.file_address(self.revision or "main", name), name, max_bytes)

    @contextmanager
    def opened(self, path: Path) -> Iterator[tuple[BinaryIO, int]]:
        name = path.as_posix()
        address = self.client.file_address(self.revision or "main", name)
        file = RemoteFile(lambda start, count: self.client.get_part(address, name, start, count))
        said = self.sizes.get(name)
        if said is not None and said != file.size:
            reason = f"lists {name} with {said:,} bytes and gives it with {file.size:,}"
            raise unusable_error(self.asked, reason)
        yield cast("BinaryIO", file), file.size


def find_on_hub(asked: str, repo: str, revision: str | None) -> HubRepository:
    """The repository as the hub lists it now, its commit pinned. Raises HubError where it does not."""
    client = HubClient(asked, repo)
    text = client.get(client.listing_address(revision), "list of files", MOST_LISTING_BYTES)
    listing = parse_json(text, f"{repo}: list of files", max_bytes=MOST_LISTING_BYTES)
    commit = listing.get("sha") if isinstance(listing, dict) else None
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise unusable_error(asked, "is listed by the hub without a commit", f"is {client.endpoint} a hub?")
    files = [file for file in listing.get("siblings") or () if isinstance(file, dict)][:MOST_FILES]
    sizes = {
        str(file["rfilename"]): file.get("size")
        for file in files
        if isinstance(file.get("rfilename"), str) and _PLAIN.fullmatch(file["rfilename"])
    }
    return HubRepository(
        asked=asked,
        repo=repo,
        revision=commit,
        names=frozenset(sizes),
        whence=client.endpoint.split("://")[-1],
        client=client,
        counts=_dtype_counts(listing.get("safetensors")),
        sizes={name: size for name, size in sizes.items() if isinstance(size, int) and _is_count(size)},
    )


def _dtype_counts(said: Any) -> dict[str, int]:
    counts = said.get("parameters") if isinstance(said, dict) else None
    found = counts.items() if isinstance(counts, dict) else ()
    return {kind: count for kind, count in found if isinstance(kind, str) and _is_count(count)}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**60


Repository = CachedRepository | HubRepository


def read_object(
    files: Repository, name: str, max_bytes: int = MAX_JSON_BYTES, max_values: int = MAX_VALUES
) -> dict[str, Any]:
    """The object in a JSON file. Raises InputError where it is none, or more than is read."""
    field = f"{files.repo}/{name}"
    found = parse_json(files.text_of(name, max_bytes), field, max_bytes=max_bytes, max_values=max_values)
    if not isinstance(found, dict):
        raise unusable_error(files.asked, f"has a {name} that holds no object of keys and values")
    return found
