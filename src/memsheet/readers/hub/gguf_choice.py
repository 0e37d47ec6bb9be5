"""Which GGUF file of a repository is meant."""

from __future__ import annotations

import re
from collections.abc import Iterable

from memsheet.catalog.name_forms import is_quant_tag
from memsheet.catalog.stored_names import USUAL_TAG
from memsheet.readers.hub.refusals import unusable_error

_PART = re.compile(r"-(\d{5})-of-\d{5}$")
_BESIDE = re.compile(r"(?:^|[/._-])(?:mmproj|imatrix)(?:[._-]|$)", re.IGNORECASE)
"""Files beside a model's: a picture encoder for llama.cpp, and what a quantizer measured."""


def gguf_types(name: str) -> str:
    """The types that a file's name ends in, in capitals; empty where it says none."""
    stem = _PART.sub("", name.rsplit("/", 1)[-1].removesuffix(".gguf"))
    for length in range(1, 5):
        end = "_".join(re.split(r"[._-]", stem)[-length:])
        if is_quant_tag(end) and not is_quant_tag("_".join(re.split(r"[._-]", stem)[-length - 1 :])):
            return end.upper()
    return ""


def choose_gguf(names: Iterable[str], asked: str, tag: str = "", file: str = "") -> str:
    """The file that is meant, the first of a split one: the one that is named, else the only one of the types
    that are asked for, else llama.cpp's choice (common/arg.cpp, -hf). Raises HubError with what there is.
    """
    models = sorted(name for name in names if name.endswith(".gguf") and not _BESIDE.search(name))
    firsts = [name for name in models if not (part := _part_number(name)) or part == 1]
    if file:
        found = [name for name in models if name in (file, f"{file}.gguf")]
    else:
        wanted = tag.upper().removeprefix("UD-")
        found = [name for name in firsts if gguf_types(name) == (wanted or USUAL_TAG)]
        found = found if found or wanted else firsts
    if found:
        return found[0]
    there = ", ".join(dict.fromkeys(gguf_types(name) or name for name in firsts[:20])) or "no GGUF file"
    raise unusable_error(asked, f"has no GGUF file in {tag or file}", f"it has {there}")


def _part_number(name: str) -> int | None:
    found = _PART.search(name.removesuffix(".gguf"))
    return int(found[1]) if found else None
