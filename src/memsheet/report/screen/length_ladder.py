"""What a step needs at every length of the ladder, where nobody said how long its sequences are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memsheet.budget import Answer, LadderStep, Result
from memsheet.report.shared.look import Look

if TYPE_CHECKING:
    from memsheet.report.screen.written.parts import Part

WORDS = {Result.FITS: "fits", Result.UNCERTAIN: "uncertain", Result.DOES_NOT_FIT: "does not fit", None: ""}
ROWS_FIT = "fits, without what is beside the sheet"
STYLES = {Result.FITS: "green", Result.UNCERTAIN: "yellow", Result.DOES_NOT_FIT: "red", None: ""}


def ladder_table(answer: Answer, look: Look) -> Part:
    """A row a length, the one that the rest of the screen is about marked. Where more is expected than the
    sheet has rows of, it is told that they alone are counted here.
    """
    from memsheet.report.screen.written.parts import Table, Text

    words = {**WORDS, Result.FITS: ROWS_FIT} if _expects_more(answer) else WORDS
    again = any(step.recomputed_bytes is not None for step in answer.ladder)
    table = Table(gap=2, show_header=True, header_style="bold")
    table.add_column("", no_wrap=True)
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column(f"{look.unit} a GPU", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    if again:
        table.add_column("--recompute full", justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
    for step in answer.ladder:
        cells = [
            Text("→" if step.seq_len == answer.plan.training.seq_len else ""), Text(f"{step.seq_len:,}"), Text(look.cell(step.device_bytes)),
            Text(words[step.result], STYLES[step.result]),
        ]  # fmt: skip
        table.add_row(*cells, *(_recompute_cells(step, look) if again else ()))
    return table


def _expects_more(answer: Answer) -> bool:
    """Whether the verdict expects more than the sheet has rows of."""
    verdict = answer.verdict
    own = next((one for one in answer.sheets if verdict and one.rank == verdict.rank), None)
    return own is not None and verdict is not None and int(verdict.device.value) > int(own.device.value)


def _recompute_cells(step: LadderStep, look: Look) -> tuple[Part, Part]:
    from memsheet.report.screen.written.parts import Text

    if step.recomputed_bytes is None:
        return Text(""), Text("")
    return Text(look.cell(step.recomputed_bytes)), Text(
        WORDS[step.recomputed_result], STYLES[step.recomputed_result]
    )
