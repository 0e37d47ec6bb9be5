"""The many spellings of a device's name: one key for ``RTX 4090``, ``NVIDIA GeForce rtx-4090`` and ``4090``,
its memory size set apart; and of a model's.
"""

from __future__ import annotations

import re

from memsheet.patterns import late_pattern

MAKERS = (
    "nvidia", "geforce", "quadro", "tesla", "rtx", "gtx", "amd", "radeon", "instinct", "rx", "intel", "arc", "google", "huawei", "apple",
)  # fmt: skip
"""Words before a card's own name that a person may leave out."""
LAPTOP = late_pattern(r"(?:\b|(?<=_))(?:mobile|notebook|max[-_ ]?q|laptop)\b|(?<=\d)m\b")
_NO_NAME = late_pattern(
    r"\b(?:generation|workstation|edition|blackwell|imac"
    r"|macbook[\s_-]?(?:pro|air)|mac[\s_-]?(?:studio|mini|pro))\b"
)
"""Words beside a card's name that tell no two cards apart."""
_SIZE = late_pattern(r"(?<![a-z0-9.])(\d{1,4})[\s_-]*gi?b?(?![a-z0-9])")
_CAPACITY = late_pattern(r"\s*(\d{1,4}(?:\.\d{1,3})?)\s*(gi?b)\s*(?:gpu|card|vram)?s?\s*", re.IGNORECASE)


_DOTLESS = late_pattern(r"(?<![a-z0-9.])(?:(qwen)-?([23])([56])|(llama)-?(3)([123])|(phi)-?(3)(5))(?=-|$)")
"""Families of releases with a point, which people leave out: ``qwen25``, ``llama31``, ``phi35``."""
_DASHED = late_pattern(r"(?<![a-z0-9.])v(\d)-(\d)(?=-|$)")
"""A release with a dash for its point: ``v1-5``."""


def canonical_name(name: str) -> str:
    """Dashes between words of a model's name, and between a family and its version: ``llama3.1_8b`` is
    ``llama-3.1-8b``, and so is ``llama31_8b``.
    """
    words = _DASHED.sub(r"v\1.\2", re.sub(r"[-_\s]+", "-", name.strip().lower()))
    words = _DOTLESS.sub(lambda found: "{}-{}.{}".format(*filter(None, found.groups())), words)
    return re.sub(r"(?<![a-z0-9.])([a-z]{2,})(\d+(?:\.\d+)?)(?=-|$)", r"\1-\2", words)


def family_and_size(name: str) -> tuple[str, str]:
    """A name's letters and digits without its makers' words, and the memory size in it as ``80gb`` (empty
    where it says none).
    """
    text = _NO_NAME.sub(" ", LAPTOP.sub(" laptop", name.lower()))
    size = _SIZE.search(text)
    if size:
        text = text[: size.start()] + text[size.end() :]
    key = re.sub(r"[^a-z0-9]", "", text).removesuffix("gpu")
    while maker := next((word for word in MAKERS if key.startswith(word) and key != word), ""):
        key = key.removeprefix(maker)
    return key, f"{size[1]}gb" if size else ""


def device_key(name: str) -> str:
    """One key for all spellings of a device."""
    return "".join(family_and_size(name))


def named_capacity(name: str) -> tuple[float, bool] | None:
    """``24GB`` → (24.0, False), ``24GiB`` → (24.0, True: exactly so many); None where a name is no
    capacity.
    """
    found = _CAPACITY.fullmatch(name)
    return (float(found[1]), found[2].lower() == "gib") if found and float(found[1]) > 0 else None
