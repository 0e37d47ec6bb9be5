"""What was read of a file as a release has it: its flags, its defaults, and the dtype that it loads a model
in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.file_format import AUTO, FileReading, read_format_values
from memsheet.exchange.shared.script_places import OF_RELEASE_5, UNSAID
from memsheet.frozen import replace

DTYPE_UNKNOWN = (
    "the model's config names no dtype, and transformers 5 takes the weights' own: fp32, at its most"
)


def as_released(found: FileReading, version: Any) -> FileReading:
    """A file read as an engine's release has it: the flags it has, and whose defaults they are."""
    form = found.form
    if not version:
        return found
    if form.released is None:
        return replace(found, release=str(version))
    again, before = (
        read_format_values(one, found.values) for one in (form.released(form, str(version)), form)
    )
    beside = found.assumed[len(before.assumed) :]
    more = tuple(one for one in found.unmodelled if one not in before.unmodelled)
    return replace(
        again,
        assumed=(*again.assumed, *beside),
        unmodelled=(*again.unmodelled, *more),
        release=str(version),
        container=found.container,
    )


def as_stored(found: FileReading, dtype: str | None) -> FileReading:
    """A file read with the dtype that a model is loaded in where none is named, or the checkpoint's own is:
    transformers 5 takes that by itself, and 4 fp32 (modeling_utils.py, from_pretrained: dtype). ``dtype``:
    what the model's configuration says; where it says none, 5 takes the weights' own (_get_dtype,
    get_state_dict_dtype), which is fp32 at most.
    """
    said = found.values.get(found.form.stored)
    if said not in (AUTO, UNSAID):
        return found
    older = said == UNSAID and re.match(r"[0-4]\.", found.release)
    taken = "float32" if older or dtype is None else dtype.removeprefix("torch.")
    why = (
        f"transformers {found.release}'s default"
        if older
        else DTYPE_UNKNOWN
        if dtype is None
        else "the checkpoint's" + OF_RELEASE_5 * (said == UNSAID)
    )
    again = read_format_values(found.form, {**found.values, found.form.stored: taken})
    left = tuple(one for one in found.assumed if not one.startswith(f"{found.form.stored} = {AUTO}"))
    told = (*left, f"dtype = {taken}: {why}")
    return replace(again, release=found.release, container=found.container, assumed=told)


def in_sixteen_bits(found: FileReading) -> Mapping[str, Any]:
    """What a file asks for where weights of unknown dtype are of sixteen bits, as changes; nothing where
    their dtype is known.
    """
    if not any(DTYPE_UNKNOWN in one for one in found.assumed):
        return {}
    return _changes_of_dtype(found, "bfloat16")


def in_earlier_dtype(found: FileReading) -> Mapping[str, Any]:
    """What a file asks for where transformers before 5 loads its model, as changes; nothing where its dtype
    or the release is said.
    """
    left = not found.release and any(one.endswith(OF_RELEASE_5) for one in found.assumed)
    return _changes_of_dtype(found, "float32") if left else {}


def _changes_of_dtype(found: FileReading, dtype: str) -> dict[str, Any]:
    other = read_format_values(found.form, {**found.values, found.form.stored: dtype}).request
    return {
        key: other.get(key) for key in {**found.request, **other} if found.request.get(key) != other.get(key)
    }
