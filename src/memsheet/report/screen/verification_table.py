"""A verification as a screen: whether the prediction holds, then rung by rung every rank's three figures and
the worst term.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from memsheet.errors import printable_line
from memsheet.report.screen.layout import labelled_row, one_line, render_parts
from memsheet.report.shared.look import Look
from memsheet.report.shared.verification import (
    BAR,
    RankWitnesses,
    Term,
    Verification,
    VerificationRun,
    instant_bytes_by_witness,
)
from memsheet.report.shared.words import INSTANTS, component_name
from memsheet.sheet import Witness

if TYPE_CHECKING:
    from memsheet.report.screen.written.parts import Part

MIB, MB = 2**20, 10**6


def render_verification(found: Verification, look: Look) -> str:
    """The whole screen as text that ends in a newline."""
    return render_parts(_verification_sections(found, look), look)


def _verification_sections(found: Verification, look: Look) -> Iterator[Part]:
    yield _verification_headline(found, look)
    for rung in found.rungs:
        yield _verification_run_block(rung, look)


def _verification_headline(found: Verification, look: Look) -> Part:
    word, style = (
        ("VERIFIED", "bold green")
        if found.holds
        else ("OFF", "bold red")
        if found.worst
        else ("NOT COMPARED", "bold yellow")
    )
    if found.holds and (found.failed or not found.measured):
        word, style = "VERIFIED IN PART" if found.measured else "TRACED", "bold yellow"
    if found.worst is None:
        return labelled_row(
            word,
            style,
            (printable_line(found.model), "no rung has both a prediction and a run to hold it against"),
            look,
        )
    rung, seen = found.worst
    compared, measured = (
        sum(map(bool, each))
        for each in zip(*((rung.worst, rung.measured) for rung in found.rungs), strict=True)
    )
    within = (
        f"within {BAR:.0%} on {compared} of {len(found.rungs)} rungs" if found.holds else f"beyond {BAR:.0%}"
    )
    real = f"{measured or 'none'} of them measured" if found.holds else ""
    ranks = f", rank {seen.rank}" if len(rung.ranks) > 1 else ""
    worst = f"farthest off {format_error_percent(seen.error)} ({rung.name}{ranks})"
    named = () if found.holds else _worst_term_phrases(seen.worst, look)
    return labelled_row(
        word, style, (printable_line(found.model), f"prediction {within}", real, worst, *named), look
    )


def _worst_term_phrases(term: Term | None, look: Look) -> Iterator[str]:
    if term is not None:
        size = term.predicted_bytes - term.found_bytes
        yield (
            f"worst term {component_name(term.component)} {printable_line(term.path)} "
            f"{_signed_error_bytes(size, look)} ({format_error_percent(term.share)} of the peak)"
        )


def _verification_run_block(rung: VerificationRun, look: Look) -> Part:
    from memsheet.report.screen.written.parts import Group, Text

    title = Text.assemble(
        (rung.name, "bold"),
        f" on {rung.device}" if rung.name != "trace" else "",
        f": {rung.what}" if rung.what else "",
    )
    title.append(f"  {rung.seconds:.0f} s" if rung.seconds else "", "dim")
    lines = [Text(f"{witness}: {one_line(reason)}", "yellow") for witness, reason in rung.refused.items()]
    return Group(
        title,
        *(
            [_rank_error_table(rung, look)]
            if any(seen.truth or seen.predicted for seen in rung.ranks)
            else []
        ),
        *lines,
    )


def _rank_error_table(rung: VerificationRun, look: Look) -> Part:
    from memsheet.report.screen.written.parts import Table

    table = Table(gap=2, header_style="dim")
    table.add_column("rank", no_wrap=True)
    for name in (*(witness.value for witness in Witness), "error"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(f"worst term (sizes in {'MB' if look.decimal else 'MiB'})", overflow="fold")
    for seen in rung.ranks:
        sizes = (_mebibyte_cell(seen.peak(witness), look) for witness in Witness)
        table.add_row(
            _rank_range_words(seen, rung),
            *sizes,
            format_error_percent(seen.error),
            _term_error_words(seen.worst, look),
        )
        if look.full:
            for instant, held in instant_bytes_by_witness(seen):
                table.add_row(
                    f"  {INSTANTS[instant]}",
                    *(_mebibyte_cell(size, look) for size in held.values()),
                    "",
                    "",
                    style="dim",
                )
    return table


def _rank_range_words(seen: RankWitnesses, rung: VerificationRun) -> str:
    stage = f" (stage {seen.stage})" if rung.plan.mesh.pp > 1 else ""
    return f"{seen.rank}{f' to {seen.same_as[-1]}' if seen.same_as else ''}{stage}"


def _mebibyte_cell(size: int | None, look: Look) -> str:
    return "–" if size is None else f"{size / (MB if look.decimal else MIB):,.2f}"


def _term_error_words(term: Term | None, look: Look) -> str:
    if term is None:
        return ""
    return (
        f"{component_name(term.component)} {printable_line(term.path)} "
        f"{_signed_error_bytes(term.predicted_bytes - term.found_bytes, look)}"
    )


def _signed_error_bytes(size: int, look: Look) -> str:
    return f"{'+' if size > 0 else '-'}{look.need(abs(size), 2)}"


def format_error_percent(error: float | None) -> str:
    """A fraction as a signed percentage; a dash where there is none."""
    return (
        "–" if error is None else f"{error:+.2%}" if abs(error) >= 0.00005 or not error else f"{error:+.4%}"
    )
