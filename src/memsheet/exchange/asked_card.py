"""A script that asks its card whether it has bf16, or whose library does, as the card that it is checked on
answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memsheet.exchange.shared.file_format import FileReading, read_format_values
from memsheet.exchange.shared.script_places import ASKS_CARD, OWN_LAYERS, SCRIPT
from memsheet.frozen import replace
from memsheet.late import late_functions
from memsheet.plan.aliases import FAMILY, OLDER_CARD
from memsheet.plan.model import ModelSpec

with late_functions(__name__):
    from memsheet.plan.library_defaults import takes_xformers


ASKED = f"{SCRIPT}.{ASKS_CARD}"
IN_FP16 = {"bfloat16": "float16", "bf16": "fp16"}


def as_card_answers(found: FileReading, *, bf16: bool | None) -> FileReading:
    """A file read as on a card that has bf16 or has none; None where no card is named, and then as on one
    that has.
    """
    if found.values.get(ASKED) is not True:
        return found
    if bf16 is not False:
        told = "the script asks its card for bf16, which " + (
            "the named one has" if bf16 else "one of Ampere or newer has"
        )
        return replace(found, assumed=(*found.assumed, told))
    again = read_format_values(found.form, _in_fp16(found.values))
    told = "the script asks its card for bf16, which the named one has not: fp16"
    beside = found.assumed[len(read_format_values(found.form, found.values).assumed) :]
    assumed = (*again.assumed, *beside, told)
    return replace(again, release=found.release, container=found.container, assumed=assumed)


def with_kernels_of_card(
    reads: Mapping[str, FileReading], model: Callable[[], ModelSpec | None]
) -> dict[str, FileReading]:
    """Files as on a card that is older than Ampere: those of a library that chooses its attention by the card
    have that. ``model``: reads the job's.
    """
    asking = {name for name, read in reads.items() if read.values.get(f"{SCRIPT}.{OWN_LAYERS}") is True}
    spec = model() if asking else None
    if spec is None:
        return dict(reads)
    return {
        name: _with_kernel_of_card(read, spec.model_type) if name in asking else read
        for name, read in reads.items()
    }


def _with_kernel_of_card(found: FileReading, family: str) -> FileReading:
    if "attention" in found.request or not takes_xformers(
        {**found.request, OLDER_CARD: True, FAMILY: family}
    ):
        return found
    told = (
        "attention = xformers: Unsloth takes it on the named card where it is installed, as its notebooks "
        "do; without it sdpa writes its scores out"
    )
    return replace(
        found,
        request={**found.request, "attention": "xformers"},
        unsaid=found.unsaid | {"attention"},
        assumed=(*found.assumed, told),
    )


def _in_fp16(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values with fp16 wherever they say bf16, as a name or as a switch."""
    named = {at: IN_FP16.get(held, held) if isinstance(held, str) else held for at, held in values.items()}
    if values.get("bf16") is not True:
        return named
    return {**named, "bf16": False, "fp16": True}
