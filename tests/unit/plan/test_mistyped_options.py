"""A word that is an option's with a letter more or less is told first; a word of its own is not."""

from __future__ import annotations

import pytest

import memsheet
from memsheet.errors import InputError


@pytest.mark.parametrize(
    ("optimizer", "meant"),
    [
        ("adamw_8bits", "adamw_8bit"),
        ("paged_lion_8bits", "paged_lion_8bit"),
        ("shampoo", ""),
        ("lion_4bit", ""),
    ],
)
def test_the_nearest_option_is_named_first(optimizer: str, meant: str) -> None:
    with pytest.raises(InputError) as raised:
        memsheet.train("llama-tiny", optimizer=optimizer)
    hint = raised.value.problems[0].hint
    assert hint.startswith(f"did you mean {meant}? modelled: " if meant else "modelled: ")
