"""Degrees of parallelism that files leave to a variable which nobody set, and what cards leave them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.file_format import UNSET, FileReading, Together
from memsheet.frozen import replace
from memsheet.resolve.mesh import mesh_product

DEGREES = ("mesh.tp", "mesh.pp", "mesh.dp_replicate", "mesh.attn_dp", "mesh.ep")


def open_degrees(reads: Mapping[str, FileReading], said: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Places of files that leave a degree open, and its key, less those that are ``said`` beside them."""
    for read in reads.values():
        for row in read.form.keys:
            if read.values.get(row.at) == UNSET:
                keys = (key for key in row.read(1, read.values) if key in DEGREES)
                yield from ((row.at, key) for key in keys if said.get(key) is None)


def with_degree_of_cards(whole: Together, named: list[tuple[str, str]], count: int | None) -> Together:
    """The request with the one degree that is open as what the named cards leave it; as it is where several
    are, or the others do not divide the cards.
    """
    product = mesh_product(whole.request)
    if len(named) != 1 or not count or count % product or count == product:
        return whole
    ((at, key),) = named
    if key == "mesh.ep" or whole.request.get(key) is not None:
        return whole
    taken = f"{at} = {count // product}: what {count} GPUs leave it"
    return replace(whole, request={**whole.request, key: count // product}, assumed=(taken, *whole.assumed))
