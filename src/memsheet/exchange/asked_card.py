"""A script that asks its card whether it has bf16, as the card that it is checked on answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from memsheet.exchange.shared.file_format import Read, read_format_values
from memsheet.exchange.shared.trainer_script import ASKS_CARD, SCRIPT

ASKED = f"{SCRIPT}.{ASKS_CARD}"
IN_FP16 = {"bfloat16": "float16", "bf16": "fp16"}


def as_card_answers(found: Read, *, bf16: bool | None) -> Read:
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
    return replace(again, release=found.release, assumed=(*again.assumed, *beside, told))


def _in_fp16(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values with fp16 wherever they say bf16, as a name or as a switch."""
    named = {at: IN_FP16.get(held, held) if isinstance(held, str) else held for at, held in values.items()}
    if values.get("bf16") is not True:
        return named
    return {**named, "bf16": False, "fp16": True}
