"""What files come to on the cards that they name themselves, or on cards that many have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import lcm, prod

from memsheet.catalog import named_cards
from memsheet.errors import InputError
from memsheet.exchange.shared.file_format import FileReading
from memsheet.frozen import NamedTuple, replace
from memsheet.late import late_functions
from memsheet.report.shared.checked import Checked, OnCards

with late_functions(__name__):
    from memsheet.exchange.shared.device_labels import named_card


COMMON_CARDS = ("RTX4090", "L40S", "H100-80GB")
"""Of 24, 48 and 80 GB."""


class CardsOfFiles(NamedTuple):
    """The cards that files name, as ``--gpus`` has them, and what says so."""

    gpus: str
    words: str


def cards_named_in_files(texts: Mapping[str, str], reads: Mapping[str, FileReading]) -> CardsOfFiles | None:
    """The cards that files say they run on (labels of nodes, a service's accelerator), as many as they start
    processes; for a training that says no number, all of the machine that they name. None where none is
    named, or several are.
    """
    found = named_card(texts.values())
    if found is None or not reads:
        return None
    serves = any(read.request.get("task") == "infer" for read in reads.values())
    each = f"{found.each}x" if found.each and not serves else ""
    gpus = cards_of_launch(reads, each + found.card)
    return CardsOfFiles(gpus, f"gpus = {gpus}, as the files name ({found.words}); --gpus names another")


def with_common_cards(checked: Checked, check_on: Callable[[str], Checked]) -> Checked:
    """The same with the verdict on each of some common cards, as many as the files start processes; as it is
    where cards were named or there is no sheet. ``check_on``: the files on the cards that it is given.
    """
    if checked.on_cards or checked.answer is None:
        return checked
    found = (_on_cards(cards_of_launch(checked.reads, card), check_on) for card in COMMON_CARDS)
    return replace(checked, common=tuple(one for one in found if one is not None))


def _on_cards(gpus: str, check_on: Callable[[str], Checked]) -> OnCards | None:
    try:
        checked = check_on(gpus)
    except InputError:
        return None
    verdict = checked.answer.verdict if checked.answer else None
    cluster = checked.answer.cluster if checked.answer else None
    if verdict is None or cluster is None:
        return None
    count, card = named_cards(gpus)
    return OnCards(
        gpus=f"{cluster.count}x{card}" if count else gpus,
        gives_bytes=cluster.device.framework_low_bytes,
        device=verdict.device,
        result=verdict.result,
        doubt=checked.doubt,
    )


def cards_of_launch(reads: Mapping[str, FileReading], gpus: str) -> str:
    """The cards that are named, as many as files start processes, or as their degrees need."""
    given, card = named_cards(gpus)
    counts: list[int] = []
    for read in reads.values():
        counts += [held for held in (read.request.get("@gpus"),) if type(held) is int]
        degrees = [
            read.request.get(f"mesh.{axis}") or 1 for axis in ("tp", "cp", "pp", "dp_shard", "dp_replicate")
        ]
        ranks = prod(degrees) if all(type(degree) is int for degree in degrees) else 1
        experts = read.request.get("mesh.ep")
        counts += [lcm(ranks, degrees[2] * experts)] if type(experts) is int else [ranks]
    first = counts[0] if counts and counts[0] > 1 else given or 1
    return f"{lcm(first, *(count for count in counts if count > 1))}x{card}"
