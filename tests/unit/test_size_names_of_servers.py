"""A card that is named by its size, for servers whose pool is a share of the card: judged with the least card
and with the largest.
"""

from __future__ import annotations

from math import ceil, floor
from typing import Any

import memsheet
from laws import every
from memsheet.budget import Result
from memsheet.catalog import find_device
from memsheet.units import GIB

ORDER = (Result.DOES_NOT_FIT, Result.UNCERTAIN, Result.FITS)
SIZES = ("16GB", "24GB", "48GB", "80GB")


def ends_of(size: str) -> list[str]:
    """A card with exactly the least, and one with exactly the most memory of those sold so."""
    device = find_device(size)
    least, most = (100 * one / GIB for one in (device.framework_low_bytes, device.framework_high_bytes))
    return [
        f"{ceil(least) / 100:.2f}GiB",
        f"{floor(most) / 100:.2f}GiB",
    ]  # a capacity is typed with two digits


def results_of(size: str, **options: Any) -> list[Result]:
    """The verdict on the size, and on both of its ends."""
    answers = [
        memsheet.infer("llama-3.1-8b", gpus=f"{options.get('tp', 1)}x{name}", fix=False, **options)
        for name in (size, *ends_of(size))
    ]
    return [answer.verdict.result for answer in answers if answer.verdict is not None]


@every("engine", ["vllm", "sglang"])
@every("share", [0.6, 0.85, 0.9, 0.92, 0.97])
@every("size", SIZES)
@every("tp", [1, 2])
def test_a_size_is_judged_no_worse_than_its_ends(size: str, share: float, engine: str, tp: int) -> None:
    named, *ends = results_of(size, engine=engine, memory_fraction=share, max_model_len=4096, tp=tp)
    assert ORDER.index(named) >= min(ORDER.index(end) for end in ends)
    assert ORDER.index(named) <= max(ORDER.index(end) for end in ends)


def test_a_server_that_starts_on_every_card_of_a_size_starts_on_the_size() -> None:
    assert results_of("24GB", engine="vllm", max_model_len=4096) == [Result.FITS] * 3


def test_sequences_asked_for_are_those_that_a_plan_counts() -> None:
    """What the pool of the least card holds is sure."""
    options: dict[str, Any] = {"gpus": "2x24GB", "engine": "vllm", "pp": 2, "max_model_len": 4096}
    serving = memsheet.infer("llama-3.1-8b", **options, fix=False).serving or {}
    assert serving
    for count in (1, 8):
        verdict = memsheet.infer("llama-3.1-8b", **options, sequences=count, fix=False).verdict
        assert verdict is not None
        assert verdict.result is Result.FITS
