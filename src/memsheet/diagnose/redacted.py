"""A diagnosis that can be shown to others: without folders, and without names of people and machines."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from memsheet.diagnose.verdict import Diagnosis

NOBODY, NOWHERE = "USER", "HOST"
_PATH = re.compile(r"(?<![\w.*])(?:(?:[A-Za-z]:)?[\\/]|~[\\/])(?:[^\s\\/:,;\"'()]{1,120}[\\/]){1,40}")
_SIGN_ON = re.compile(r"\b[\w.-]{1,64}@[\w.-]{1,120}")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
_HOMES = re.compile(r"(?:/home/|/Users/|[A-Za-z]:\\+Users\\+|/scratch/|/data/)([A-Za-z][\w.-]{1,40})")
_SHARED = frozenset(
    {"shared", "public", "models", "datasets", "ubuntu", "root", "user", "train", "model", "data"}
)
"""Folders of homes that are nobody's, and words that sentences have."""


def redact_diagnosis(
    found: Diagnosis, texts: Iterable[str | bytes] = (), hosts: Iterable[str] = ()
) -> Diagnosis:
    """The same with last parts of paths alone. ``texts``: what it was read of, whose home folders name
    people; ``hosts``: names of machines. The sheet of the plan stays as it is.
    """
    people = {
        name for text in texts for name in _HOMES.findall(_decoded_start(text)) if name.lower() not in _SHARED
    }
    names = {**dict.fromkeys(people, NOBODY), **{host: NOWHERE for host in hosts if len(host) > 2}}
    bare = dataclasses.replace(found, answer=None)
    changed: Diagnosis = _redacted_value(bare, names)
    return dataclasses.replace(changed, answer=found.answer)


def _decoded_start(text: str | bytes) -> str:
    return text if isinstance(text, str) else text[: 2**20].decode("utf-8", "replace")


def _redacted_value(value: Any, names: Mapping[str, str]) -> Any:
    """Every text in it redacted, whatever holds it."""
    if isinstance(value, str):
        return redact_text(value, names)
    if isinstance(value, Enum) or value is None:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {
            field.name: _redacted_value(getattr(value, field.name), names)
            for field in dataclasses.fields(value)
        }
        return dataclasses.replace(value, **changed)
    if isinstance(value, tuple):
        parts = [_redacted_value(each, names) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def redact_text(text: str, names: Mapping[str, str] = {}) -> str:
    """A text without folders, addresses, sign-ons, and without ``names``."""
    text = _PATH.sub("", text)
    text = _SIGN_ON.sub(f"{NOBODY}@{NOWHERE}", text)
    text = _ADDRESS.sub(NOWHERE, text)
    for name, instead in names.items():
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", instead, text)
    return text
