"""A table is the same whatever parts its cells, and only where a line of names stands above its rows."""

from __future__ import annotations

import pytest

from memsheet.diagnose.columns import with_named_cells
from memsheet.diagnose.message import Cause
from memsheet.diagnose.verdict import diagnose_texts

NAMES = ("step", "loss", "mem_alloc_gb")
ROWS = [("100", "2.11", "22.41"), ("200", "2.02", "26.87"), ("300", "1.98", "31.33")]
DRESSES = {
    "commas": ",".join, "tabs": "\t".join, "semicolons": ";".join, "spaces": " ".join, "wide": "    ".join,
    "bars": lambda cells: f"| {' | '.join(cells)} |", "boxes": lambda cells: f"│ {' │ '.join(cells)} │",
}  # fmt: skip


@pytest.mark.parametrize("dress", DRESSES.values(), ids=DRESSES)
def test_each_figure_has_its_name_and_its_unit(dress: object) -> None:
    lines = [dress(NAMES), *map(dress, ROWS)]  # type: ignore[operator]
    assert with_named_cells(lines)[1] == "step=100, loss=2.11, mem_alloc=22.41 gb"


@pytest.mark.parametrize("lines", [
    ["it died, I think, at night", "at 3, 4 or 5, who knows"], ["a, b", "1"], ["one word"], ["x, x", "1, 2"], ["", "|---|"],
])  # fmt: skip
def test_a_sentence_is_no_table(lines: list[str]) -> None:
    assert with_named_cells(lines) == tuple(lines)


FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 79.25 GiB of which 310.00 MiB is free. "
    "Including non-PyTorch memory, this process has 78.94 GiB memory in use. Of the allocated memory 78.30 GiB is allocated by PyTorch, and 115.00 MiB is reserved by PyTorch but unallocated."
)  # fmt: skip


@pytest.mark.parametrize("dress", DRESSES.values(), ids=DRESSES)
@pytest.mark.parametrize(("step", "cause"), [(4.46, Cause.LEAK), (0.0, Cause.REAL_NEED)])
def test_what_grows_in_a_column_to_what_was_held_is_a_leak(dress: object, step: float, cause: Cause) -> None:
    rows = [(f"{100 * n}", "2.1", f"{22.41 + step * (n - 1):.2f}") for n in range(1, 14)]
    text = "\n".join([dress(NAMES), *map(dress, rows), FULL])  # type: ignore[operator]
    assert diagnose_texts({"log": text}).cause is cause
