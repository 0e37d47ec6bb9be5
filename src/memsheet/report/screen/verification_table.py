"""A verification as a screen: whether the prediction holds, then rung by rung every rank's three figures and the worst term."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from memsheet.errors import printable
from memsheet.report.screen.layout import one_line, printed, row
from memsheet.report.shared.look import Look
from memsheet.report.shared.verification import BAR, Seen, Term, Verification, VerificationRun, instants
from memsheet.report.shared.words import INSTANTS, spoken
from memsheet.sheet import Witness

if TYPE_CHECKING:
    from rich.console import RenderableType

MIB, MB = 2**20, 10**6


def render_verification(found: Verification, look: Look) -> str:
    """The whole screen as text that ends in a newline."""
    return printed(_parts(found, look), look)


def _parts(found: Verification, look: Look) -> Iterator[RenderableType]:
    yield _headline(found, look)
    for rung in found.rungs:
        yield _rung(rung, look)


def _headline(found: Verification, look: Look) -> RenderableType:
    word, style = ("VERIFIED", "bold green") if found.holds else ("OFF", "bold red") if found.worst else ("NOT COMPARED", "bold yellow")
    if found.holds and (found.failed or not found.measured):
        word, style = "VERIFIED IN PART" if found.measured else "TRACED", "bold yellow"
    if found.worst is None:
        return row(word, style, (printable(found.model), "no rung has both a prediction and a run to hold it against"), look)
    rung, seen = found.worst
    compared, measured = (sum(map(bool, each)) for each in zip(*((rung.worst, rung.measured) for rung in found.rungs), strict=True))
    within = f"within {BAR:.0%} on {compared} of {len(found.rungs)} rungs" if found.holds else f"beyond {BAR:.0%}"
    real = f"{measured or 'none'} of them measured" if found.holds else ""
    ranks = f", rank {seen.rank}" if len(rung.ranks) > 1 else ""
    worst = f"farthest off {percent(seen.error)} ({rung.name}{ranks})"
    named = () if found.holds else _term(seen.worst, look)
    return row(word, style, (printable(found.model), f"prediction {within}", real, worst, *named), look)


def _term(term: Term | None, look: Look) -> Iterator[str]:
    if term is not None:
        size = term.predicted_bytes - term.found_bytes
        yield f"worst term {spoken(term.component)} {printable(term.path)} {_signed(size, look)} ({percent(term.share)} of the peak)"


def _rung(rung: VerificationRun, look: Look) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    title = Text.assemble((rung.name, "bold"), f" on {rung.device}" if rung.name != "trace" else "", f": {rung.what}" if rung.what else "")
    title.append(f"  {rung.seconds:.0f} s" if rung.seconds else "", "dim")
    lines = [Text(f"{witness}: {one_line(reason)}", "yellow") for witness, reason in rung.refused.items()]
    return Group(title, *([_table(rung, look)] if any(seen.truth or seen.predicted for seen in rung.ranks) else []), *lines)


def _table(rung: VerificationRun, look: Look) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("rank", no_wrap=True)
    for name in (*(witness.value for witness in Witness), "error"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(f"worst term (sizes in {'MB' if look.decimal else 'MiB'})", overflow="fold")
    for seen in rung.ranks:
        sizes = (_cell(seen.peak(witness), look) for witness in Witness)
        table.add_row(_ranks(seen, rung), *sizes, percent(seen.error), _words(seen.worst, look))
        if look.full:
            for instant, held in instants(seen):
                table.add_row(f"  {INSTANTS[instant]}", *(_cell(size, look) for size in held.values()), "", "", style="dim")
    return table


def _ranks(seen: Seen, rung: VerificationRun) -> str:
    stage = f" (stage {seen.stage})" if rung.plan.mesh.pp > 1 else ""
    return f"{seen.rank}{f' to {seen.same_as[-1]}' if seen.same_as else ''}{stage}"


def _cell(size: int | None, look: Look) -> str:
    return "–" if size is None else f"{size / (MB if look.decimal else MIB):,.2f}"


def _words(term: Term | None, look: Look) -> str:
    if term is None:
        return ""
    return f"{spoken(term.component)} {printable(term.path)} {_signed(term.predicted_bytes - term.found_bytes, look)}"


def _signed(size: int, look: Look) -> str:
    return f"{'+' if size > 0 else '-'}{look.need(abs(size), 2)}"


def percent(error: float | None) -> str:
    """A fraction as a signed percentage; a dash where there is none."""
    return "–" if error is None else f"{error:+.2%}" if abs(error) >= 0.00005 or not error else f"{error:+.4%}"
