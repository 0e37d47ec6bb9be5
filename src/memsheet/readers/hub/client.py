"""Requests to a hub that end: in bytes, in time, in redirects. huggingface_hub knows addresses, tokens and
proxies; what comes back is a stranger's.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any
from urllib.parse import quote

from memsheet.frozen import dataclass
from memsheet.guard.spending import spend_bytes
from memsheet.readers.hub.refusals import (
    HubError,
    answered_error,
    offline_error,
    slow_error,
    unreachable_error,
    unusable_error,
)

WAIT_S = 10.0
"""For a connection, and for each piece of an answer."""
WHOLE_S = 30.0
"""For one answer from its first byte to its last."""
_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Bytes of a file from ``start`` on, and how many the whole file has; ``whole``: all of them came."""

    data: bytes
    start: int
    file_bytes: int
    whole: bool


class HubClient:
    """What asks one hub for one model. ``asked``: as a person wrote it."""

    def __init__(self, asked: str, repo: str) -> None:
        from huggingface_hub import constants

        self.asked, self.repo = asked, repo
        self.endpoint = (os.environ.get("HF_ENDPOINT") or str(constants.ENDPOINT)).rstrip("/")
        if constants.is_offline_mode():
            raise offline_error(asked)

    def file_address(self, revision: str, name: str) -> str:
        return f"{self.endpoint}/{quote(self.repo)}/resolve/{quote(revision, safe='')}/{quote(name)}"

    def listing_address(self, revision: str | None) -> str:
        at = f"/revision/{quote(revision, safe='')}" if revision else ""
        return f"{self.endpoint}/api/models/{quote(self.repo)}{at}?blobs=true"

    def get(self, address: str, name: str, max_bytes: int) -> bytes:
        """All of an answer. Raises HubError where it is longer, slower or none."""
        return self._read_answer(address, name, {}, max_bytes).data

    def get_part(self, address: str, name: str, start: int, count: int) -> Part:
        """``count`` bytes of a file from ``start`` on, fewer at its end; a hub that gives the whole file
        instead is only listened to for as many.
        """
        wanted = {"range": f"bytes={start}-{start + count - 1}"}
        return self._read_answer(address, name, wanted, count, start=start)

    def _read_answer(
        self, address: str, name: str, headers: Mapping[str, str], most: int, start: int | None = None
    ) -> Part:
        tools: Any = import_module("huggingface_hub.utils")
        sent = {**tools.build_hf_headers(), "accept-encoding": "identity", **headers}
        try:
            with tools.get_session().stream("GET", address, headers=sent, timeout=WAIT_S) as answer:
                return self._part_of(answer, name, most, start)
        except HubError:
            raise
        except Exception as error:  # noqa: BLE001 - the client's errors quote requests, which may hold a token: only their kind is shown
            kind = type(error).__name__
            if "Timeout" in kind:
                raise slow_error(self.asked, name, WAIT_S) from None
            if "Redirect" in kind:
                raise unusable_error(self.asked, "was not given: the hub redirects in circles") from None
            raise unreachable_error(self.asked, kind, self.endpoint) from None

    def _part_of(self, answer: Any, name: str, most: int, start: int | None) -> Part:
        status = int(answer.status_code)
        if status not in (200, 206):
            raise answered_error(self.asked, status, answer.headers, self.repo, self.endpoint)
        if answer.headers.get("content-encoding", "identity") != "identity":
            raise unusable_error(
                self.asked, f"was not read: {name} comes compressed, which was not asked for"
            )
        length = _whole_number(answer.headers.get("content-length"))
        if start is None:
            if length is not None and length > most:
                raise self._too_long(name, length, most)
            data, more = self._bounded_body(answer, name, most)
            if more:
                raise self._too_long(name, None, most)
            return Part(data=data, start=0, file_bytes=len(data), whole=True)
        if status == 206:
            return self._ranged_part(answer, name, most, start)
        if start or length is None:
            raise unusable_error(
                self.asked,
                f"was not read: this hub gives no parts of files (range requests), and {name} is long",
            )
        data, more = self._bounded_body(answer, name, most)
        return Part(data=data, start=0, file_bytes=length, whole=not more)

    def _ranged_part(self, answer: Any, name: str, most: int, start: int) -> Part:
        said = _RANGE.fullmatch(answer.headers.get("content-range", ""))
        if said is None or int(said[1]) != start or int(said[2]) >= int(said[3]):
            raise unusable_error(
                self.asked, f"was not read: the hub gave another part of {name} than asked for"
            )
        data, _ = self._bounded_body(answer, name, most)
        if len(data) != min(int(said[2]) - start + 1, most):
            raise unusable_error(self.asked, f"was not read: a part of {name} ends early")
        return Part(data=data, start=start, file_bytes=int(said[3]), whole=False)

    def _bounded_body(self, answer: Any, name: str, most: int) -> tuple[bytes, bool]:
        """The first bytes of an answer, and whether there are more."""
        parts, count, until = list[bytes](), 0, time.monotonic() + WHOLE_S
        for part in answer.iter_raw():
            if time.monotonic() > until:
                raise slow_error(self.asked, name, WHOLE_S)
            parts.append(part)
            count += len(part)
            if count > most:
                break
        spend_bytes(f"{self.repo}/{name}", min(count, most))
        return b"".join(parts)[:most], count > most

    def _too_long(self, name: str, length: int | None, most: int) -> HubError:
        size = f"of {length:,} bytes" if length is not None else "without end"
        return unusable_error(self.asked, f"has a {name} {size}, more than the {most:,} that are read")


def _whole_number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) < 20 else None
