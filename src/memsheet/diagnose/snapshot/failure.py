"""What ``memsheet.on_oom`` wrote down (``memsheet/oom/1``), read as a stranger's file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.diagnose.snapshot.categories import stack_meaning
from memsheet.diagnose.snapshot.findings import LINES, SnapshotFacts
from memsheet.diagnose.snapshot.held import Group
from memsheet.diagnose.snapshot.history import Frame
from memsheet.errors import InputError, input_error
from memsheet.guard import parse_json
from memsheet.sheet import Component

MARK = b'"memsheet/oom/1"'
SIZES = ("asked_bytes", "free_bytes", "most_bytes", "allocated_bytes", "reserved_bytes", "largest_free_bytes")
MOST = 2**62


def is_failure(data: bytes) -> bool:
    """Whether a file is such a document."""
    return data[:1] == b"{" and MARK in data[:200]


def read_failure(data: bytes, name: str) -> tuple[SnapshotFacts, Mapping[str, Any] | None]:
    """What was live, and the plan that was written with it. Raises InputError for any other document."""
    found = parse_json(data, name)
    if not isinstance(found, dict) or not isinstance(found.get("live"), list):
        raise _not_a_failure(name, "holds nothing that was live")
    sizes = {key: _known_size(found, key, name) for key in SIZES}
    groups = tuple(_live_groups(found["live"], name))
    totals: dict[str, Group] = {}
    for group in groups:
        had = totals.get(group.component, Group(group.component, "", 0, 0))
        totals[group.component] = had._replace(
            bytes=had.bytes + group.bytes, blocks=had.blocks + group.blocks
        )
    plan = found.get("plan")
    conf = found.get("settings")
    recomputes = any(_row_recomputes(row) for row in found["live"])
    live = sum(group.bytes for group in groups)
    held = SnapshotFacts(
        name=name, events=0, failures=1, died=True, complete=True, asked_bytes=sizes["asked_bytes"], free_bytes=sizes["free_bytes"],
        live_bytes=max(live, sizes["allocated_bytes"]), reserved_bytes=sizes["reserved_bytes"], room_bytes=sizes["reserved_bytes"] + sizes["free_bytes"],
        least_bytes=sizes["allocated_bytes"] + sizes["asked_bytes"], components=tuple(sorted(totals.values(), key=lambda each: -each.bytes)),
        lines=tuple(sorted(groups, key=lambda each: -each.bytes))[:LINES], request_line="", request_component="", checkpoints=recomputes,
        has_stacks=any(group.line for group in groups), conf=conf if isinstance(conf, str) else "", most_bytes=sizes["most_bytes"],
    )  # fmt: skip
    return held, plan if isinstance(plan, Mapping) else None


def _not_a_failure(name: str, reason: str) -> InputError:
    return input_error(name, None, f"is no memsheet/oom/1: it {reason}", "memsheet.on_oom(path) writes one")


def _known_size(found: Mapping[str, Any], key: str, name: str) -> int:
    value = found.get(key)
    if type(value) is not int or not 0 <= value <= MOST:
        raise _not_a_failure(name, f"has a {key} that is no size")
    return value


def _row_recomputes(row: Mapping[str, Any]) -> bool:
    return stack_meaning(_row_frames(row)).recomputed


def _row_frames(row: Mapping[str, Any]) -> tuple[Frame, ...]:
    frames = row.get("frames")
    kept = (
        [each for each in frames if isinstance(each, list) and len(each) == 3]
        if isinstance(frames, list)
        else []
    )
    return tuple(Frame(str(file), line if type(line) is int else 0, str(word)) for file, line, word in kept)


def _live_groups(rows: list[Any], name: str) -> Iterator[Group]:
    for row in rows:
        if not isinstance(row, Mapping):
            raise _not_a_failure(name, "has rows that are none")
        meaning = stack_meaning(_row_frames(row))
        component = meaning.component or Component.UNEXPLAINED.value
        yield Group(
            component, meaning.line, _known_size(row, "bytes", name), _known_size(row, "blocks", name)
        )
