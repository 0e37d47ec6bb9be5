"""A file on a hub, read as its readers read one on disk: forward, in parts, its header alone."""

from __future__ import annotations

import io
from collections.abc import Callable

from memsheet.readers.hub.client import Part

FIRST_BYTES = 2**17
"""Of the first request: a shard's header has some 50 KB."""
MOST_BYTES = 2**22
"""Of a later one. Each asks for four times as much as the one before: a GGUF file's list of words has
megabytes.
"""


class RemoteFile(io.RawIOBase):
    """``size``: as the hub says of the file; what is read comes through a window of one request."""

    def __init__(self, part_of: Callable[[int, int], Part]) -> None:
        self._part_of = part_of
        first = part_of(0, FIRST_BYTES)
        self.size, self._start, self._window = first.file_bytes, 0, first.data
        self._at, self._next = 0, FIRST_BYTES

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET:
            raise io.UnsupportedOperation
        self._at = offset
        return offset

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes, at least one where the file has any left."""
        size = self.size - self._at if size < 0 else min(size, self.size - self._at)
        if size <= 0:
            return b""
        inside = self._at - self._start
        if not 0 <= inside < len(self._window):
            self._next = min(4 * self._next, MOST_BYTES)
            part = self._part_of(self._at, min(max(self._next, size), MOST_BYTES, self.size - self._at))
            self._start, self._window, inside = part.start, part.data, 0
        found = self._window[inside : inside + size]
        self._at += len(found)
        return found
