"""What a configuration file says and comes to: the keys that were used, the ones that were not, the
mistakes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from memsheet.budget import Answer, Result, budget_of
from memsheet.errors import MOST_SHOWN, more_than_shown
from memsheet.exchange.mistakes import FoundMistake
from memsheet.exchange.shared.file_format import EVERYTHING, FileReading
from memsheet.exchange.shared.stand_in_server import ACCOUNTING
from memsheet.frozen import replace
from memsheet.patterns import late_pattern
from memsheet.report.screen.comparison_table import signed_difference
from memsheet.report.screen.layout import labelled_row, one_line, render_parts
from memsheet.report.screen.plans.story import plain_table
from memsheet.report.shared.against import Against, Mistakes
from memsheet.report.shared.checked import NO_SHEET, NO_START, Checked, Launch
from memsheet.report.shared.look import Look
from memsheet.report.shared.words import component_name

if TYPE_CHECKING:
    from memsheet.report.screen.written.parts import Part

MANY = 12


def render_checked(checked: Checked, look: Look) -> str:
    """What the job needs first, then the mistakes, then what was read of each file: every key of it only
    where all is asked for.
    """
    look = replace(look, program=_stood_in_for(checked), server=_sole_server_read(checked), model_flag=True)
    parts = [
        *_check_verdict_lines(checked, look),
        *_mistake_lines(checked, look),
        *_config_key_lines(checked, look),
    ]
    return "\n".join(parts) + "\n"


def _stood_in_for(checked: Checked) -> str:
    """The program whose command is answered by another's accounting, if any."""
    named = (read.values.get(ACCOUNTING) for read in checked.reads.values())
    return next((one_line(str(name)) for name in named if name), "")


def _sole_server_read(checked: Checked) -> FileReading | None:
    """The server's command or file, where there is one and nothing beside it."""
    reads = list(checked.reads.values())
    return reads[0] if len(reads) == 1 and reads[0].form.said.get("task") == "infer" else None


OUTCOMES = {
    "does_not_start": "DOES NOT START", "does_not_fit": "DOES NOT FIT", "uncertain": "UNCERTAIN", "no_sheet": "NO SHEET", "not_read": "NOT READ",
    "predicted": "PREDICTED", "fits": "FITS",
}  # fmt: skip


def render_launches(launches: Sequence[Launch], look: Look) -> str:
    """How many there are of each outcome, then a line a launch, and below it why where it does not fit."""
    counts = Counter(one.outcome for one in launches)
    told = [f"{counts[name]} {words}" for name, words in OUTCOMES.items() if counts[name]]
    head = f"{len(launches)} launches: {', '.join(told)}"
    return "\n".join([head, "", *(line for one in launches for line in _launch_lines(one, look))]) + "\n"


def render_servers(launches: Sequence[Launch], left: Sequence[str], look: Look) -> str:
    """The servers of a file, a sheet each below its name; and the names of those that were left."""
    parts = [f"== {one.file}\n{_server_text(one, look)}" for one in launches]
    more = [f"{len(left)} further servers are not read: {', '.join(left)}\n"] if left else []
    return "\n".join([*parts, *more])


def _server_text(launch: Launch, look: Look) -> str:
    if launch.checked is None:
        return f"{OUTCOMES[launch.outcome]}  {launch.problem}\n"
    return render_checked(launch.checked, look)


def _launch_lines(launch: Launch, look: Look) -> Iterator[str]:
    checked = launch.checked
    verdict = checked.answer.verdict if checked and checked.answer else None
    common = checked.common if checked else ()
    need = (
        look.need(verdict.device.value if verdict else common[-1].device.value) if verdict or common else ""
    )
    cluster = checked.answer.cluster if checked and checked.answer else None
    cards = (
        f"× {cluster.count if cluster else common[-1].gpus.partition('x')[0]}" if cluster or common else ""
    )
    yield f"{OUTCOMES[launch.outcome]:14} {need:>10} {cards:6} {launch.file}"
    if why := launch_reason(launch):
        lines = _wrap_with_indent(why, look.width, "", " " * 33)
        cut = not look.full and len(lines) > MOST_REASON
        yield from (
            [*lines[: MOST_REASON - 1], _cut_short(lines[MOST_REASON - 1], look.width)] if cut else lines
        )


MOST_REASON = 2
"""Lines of a reason below a launch; --full has all of it."""


def _cut_short(line: str, width: int) -> str:
    """A line that goes on elsewhere, with dots in the place of its last word where there is no room."""
    kept = line if len(line) + 2 <= width else line.rpartition(" ")[0]
    return f"{kept.rstrip(';,: ')} …"


def launch_reason(launch: Launch) -> str:
    """Why there is no verdict, or why it is not sure; nothing of what fits."""
    checked = launch.checked
    if checked is None:
        return launch.problem
    if checked.stops:
        return next(f"{found.where} {found.says}" for _, found in checked.mistakes if found.stops)
    if checked.common:
        return " · ".join(f"{_with_times(one.gpus)} {_result_words(one.result)}" for one in checked.common)
    if checked.doubt and (surely := _certain_reason(checked)):
        return f"{surely}; besides, {checked.doubt}"
    return checked.doubt or checked.no_model or "; ".join(checked.why_not) or _reason_of_phases(checked)


def _reason_of_phases(checked: Checked) -> str:
    """Why a job of several models is not sure by its own sheets."""
    from memsheet.report.shared.jobs.phases import doubted_reasons

    return "; ".join(doubted_reasons(checked.answer)) if checked.answer and checked.answer.job else ""


def _certain_reason(checked: Checked) -> str:
    """Why a job does not fit whatever is open; nothing of others."""
    verdict, cluster = checked.answer and checked.answer.verdict, checked.answer and checked.answer.cluster
    if not verdict or not cluster or verdict.result is not Result.DOES_NOT_FIT:
        return ""
    if verdict.device.low > budget_of(cluster).high_bytes:
        return "more than a GPU gives"
    return "more host memory than a node has" if verdict.host_short_bytes else ""


def _check_verdict_lines(checked: Checked, look: Look) -> Iterator[str]:
    if checked.other_job:
        yield from _wrap_with_indent(checked.other_job, look.width, "")
        yield ""
    if checked.cards_words:
        yield from _wrap_with_indent(checked.cards_words, look.width, "")
        yield ""
    if checked.stops:
        yield from _wrap_with_indent(f"{OUTCOMES[NO_START]}  {stop_words(checked)}", look.width, "")
        yield from ("",) if checked.answer else ()
    for line in unheard_lines(checked):
        yield from (*_wrap_with_indent(line, look.width, ""), "")
    if checked.no_model:
        word = "KEYS ALONE" if checked.keys_alone else OUTCOMES[NO_SHEET]
        yield from _wrap_with_indent(f"{word}  {checked.no_model}", look.width, " " * 10)
    settled = _settling_words(checked)
    if checked.answer is not None:
        told = checked.doubt if _is_told_above(checked) and not settled else ""
        head, _, rest = _render_sheet(checked.answer, look, told).rstrip("\n").partition("\n\n")
        yield head
        yield from ("", *_wrap_with_indent(settled, look.width, "")) if settled else ()
        yield from ("", rest) if rest else ()
    yield from _common_card_lines(checked, look)
    if (doubt := doubt_words(checked)) and not settled and not _is_told_above(checked):
        yield ""
        yield from _wrap_with_indent(doubt, look.width, "  ")
    for line in checked.why_not:
        yield from _wrap_with_indent(f"no sheet: {line}", look.width, "          ")


def _settling_words(checked: Checked) -> str:
    """What to type where the whole range fits and something is open besides; nothing of other answers."""
    verdict, cluster = checked.answer and checked.answer.verdict, checked.answer and checked.answer.cluster
    if not verdict or not cluster or verdict.result is not Result.UNCERTAIN or verdict.no_most:
        return ""
    words = checked.doubt.strip()
    if (
        not words
        or checked.stops
        or checked.beside_others
        or verdict.device.high > budget_of(cluster).low_bytes
    ):
        return ""
    named = SETTLES.findall(words)
    wrong = [
        found.cure.rstrip("?")
        for rule, found in checked.mistakes
        if rule.id == UNKNOWN_KEY and found.may_stop
    ]
    older = [found.cure for rule, found in checked.mistakes if rule.id == OLDER_KEY and found.may_stop]
    how = (
        f"{', '.join(wrong)} in the files, or the --engine-version that knows them"
        if wrong
        else "; ".join(dict.fromkeys(older))
        if older
        else _told_flags(words, tuple(dict.fromkeys(named)))
        if named
        else "no flag settles it; a gate may compare device_high_bytes of --json with what the card gives"
    )
    return f"The whole range fits; open is: {words}. What to type: {how}."


def _told_flags(words: str, named: tuple[str, ...]) -> str:
    """What flags settle of what is open: all of it, or the part that names them."""
    whole = all(SETTLES.search(part) for part in words.split("; "))
    return f"{' or '.join(named)} settles {'it' if whole else 'its part of that'}"


def unheard_lines(checked: Checked) -> Iterator[str]:
    """Keys that would change the sheet and that the engine ignores, and those that it may stop at, a line
    each.
    """
    for rule, found in checked.mistakes:
        if found.unheard:
            yield f"{found.where}: {found.says}, and so does the sheet ({found.cure})"
        elif found.may_stop and rule.id == UNKNOWN_KEY:
            yield f"{found.where}: {found.says} ({found.cure})"


UNKNOWN_KEY, OLDER_KEY = "unknown-key", "key-of-older-release"
"""The rule of keys and flags that nobody knows."""
SETTLES = late_pattern(r"(--[a-z][a-z-]+)(?: [\w.,]+)?(?= (?:says|does|names|or --))")
"""Flags of which a doubt says that they settle it."""


def stop_words(checked: Checked) -> str:
    """Why files do not start, in short."""
    if not checked.lacks_cards:
        first, *others = (found for _, found in checked.mistakes if found.stops)
        more = f" (and {len(others)} more, marked ! below)" if others else ""
        return f"the engine refuses these files: {first.where}: {first.says} (cure: {first.cure}){more}"
    why = next(found.says for _, found in checked.mistakes if found.stops)
    cluster = checked.answer.cluster if checked.answer else None
    return why + (f"; below, the sheet on {cluster.count}×{cluster.device.name}" if cluster else "")


def _is_told_above(checked: Checked) -> bool:
    """Whether why a verdict is open stands below its headline, as a job of several models has it."""
    job = checked.answer is not None and checked.answer.job is not None
    return job and checked.result is Result.UNCERTAIN


def _render_sheet(answer: Answer, look: Look, doubt: str) -> str:
    """The sheet of a plan, or of a job of several. ``doubt``: why the job's verdict is open, if it is."""
    if answer.job is not None:
        from memsheet.report.screen.jobs.phases import render_job

        return render_job(answer, look, doubt=doubt)
    from memsheet.report.screen.table import render_answer

    return render_answer(answer, look)


def _common_card_lines(checked: Checked, look: Look) -> Iterator[str]:
    """The verdict on each of some common cards."""
    if not checked.common:
        return
    yield "\nNo card is named (--gpus). On common ones:"
    for gpus, need, result in common_card_cells(checked, look):
        yield f"  {gpus:14} {need:>24}  {result}"
    if why := dict.fromkeys(one.doubt for one in checked.common if one.doubt):
        yield from _wrap_with_indent(f"uncertain because {'; '.join(why)}", look.width, "  ", "  ")


def common_card_cells(checked: Checked, look: Look) -> Iterator[tuple[str, str, str]]:
    """Of each common card its name and number, what is needed of what it gives, and the verdict."""
    for one in checked.common:
        need = f"{look.need(one.device.value)} of {look.room(one.gives_bytes)}"
        yield _with_times(one.gpus), need, _result_words(one.result)


def _with_times(gpus: str) -> str:
    return gpus.replace("x", "×", 1)


def _result_words(result: Result) -> str:
    return OUTCOMES[result.value].lower()


def _mistake_lines(checked: Checked, look: Look) -> Iterator[str]:
    if not checked.mistakes:
        whole = checked.answer is not None
        yield (
            "\nNo known mistake found." if whole else "\nNothing was accounted; no known mistake in its keys."
        )
        return
    yield ""
    yield from _wrap_with_indent(
        f"Mistakes ({len(checked.mistakes)}){_by_which_end(checked)}", look.width, "  "
    )
    for rule, found in checked.mistakes[:MOST_SHOWN]:
        frees = "".join(f" · {words}" for words in cure_effects(found, look))
        yield from _wrap_with_indent(
            f"{'!' if found.stops else '-'} {found.where}: {found.says}", look.width, "  ", "  "
        )
        yield from _wrap_with_indent(
            f"cure: {found.cure}{frees} [{rule.id}]", look.width, "          ", "    "
        )
    yield from (f"  {line}" for line in more_than_shown(len(checked.mistakes)))


def cure_effects(found: FoundMistake, look: Look) -> Iterator[str]:
    """What the cure of a mistake frees or takes."""
    if size := found.saves_bytes or 0:
        yield f"frees {look.room(size)} a GPU" if size > 0 else f"takes {look.need(-size)} a GPU"
    if gives := found.gains_bytes or 0:
        yield (
            f"gives its cache {look.room(gives)} a GPU"
            if gives > 0
            else f"takes {look.need(-gives)} a GPU of its cache"
        )


def doubt_words(checked: Checked) -> str:
    """Why the verdict is less sure than the sheet alone, in a sentence; nothing where it is not."""
    if not checked.doubt:
        return ""
    fails = checked.result is Result.DOES_NOT_FIT
    why = "It does not fit either way, though" if fails else "Uncertain because"
    return f"{why} {checked.doubt}"


def _by_which_end(checked: Checked) -> str:
    """Why a change in the list above the mistakes may save other bytes than the same cure frees."""
    listed = checked.answer and checked.answer.verdict and checked.answer.verdict.cheapest_fix
    weighed = any(found.saves_bytes for _, found in checked.mistakes)
    return (
        "  freed of the expected bytes; the changes above save at the range's high end"
        if listed and weighed
        else ""
    )


def _config_key_lines(checked: Checked, look: Look) -> Iterator[str]:
    for name, read in checked.reads.items():
        counts = f"{len(read.used)} keys used, {len(read.ignored)} that change no byte: --full lists them"
        yield ""
        yield from _wrap_with_indent(
            f"{one_line(name)}  ({read.form.tested})" + ("" if look.full else f"  {counts}"), look.width, "  "
        )
        every = {
            "used": [f"{at} {_one_line_value(read.values[at])}" for at in read.used],
            "ignored": list(read.ignored),
        }
        rows = {
            **(every if look.full else {}),
            "unknown": [f"{at} (near: {near})" if near else at for at, near in read.unknown],
            "not modelled": [f"{at} {_one_line_value(value)}" for at, value in read.unmodelled],
        }  # fmt: skip
        for word, told in rows.items():
            if told:
                yield from _wrap_with_indent(f"{word:<13}{', '.join(told)}", look.width, " " * 15, "  ")
    if checked.not_read:
        yield ""
        yield from _wrap_with_indent(f"Not read  {'; '.join(checked.not_read)}", look.width, "  ")
    if checked.moved:
        shifts = (
            f"{m.at}: {m.why}"
            if max(-m.low_bytes, m.high_bytes) >= EVERYTHING
            else f"{m.at}: {m.why} ({_signed_saving(m.low_bytes, look)} to "
            f"{_signed_saving(m.high_bytes, look)})"
            for m in checked.moved
        )
        yield ""
        yield from _wrap_with_indent(f"Beside the sheet  {'; '.join(shifts)}", look.width, "  ")
    if checked.assumed:
        yield ""
        yield from _wrap_with_indent(f"Assumed  {'; '.join(checked.assumed)}", look.width, "  ")


def _signed_saving(size: int, look: Look) -> str:
    return f"+{look.need(size)}" if size > 0 else f"-{look.need(-size)}" if size < 0 else "0"


def _one_line_value(value: Any) -> str:
    """A value on one line; of a script its first line."""
    first, more, _ = str(value).partition("\n")
    return one_line(str(value).lower() if isinstance(value, bool) else f"{first} …" if more else first)


def _wrap_with_indent(text: str, width: int, after: str, before: str = "") -> list[str]:
    import textwrap

    return textwrap.wrap(
        one_line(text),
        width=width,
        initial_indent=before,
        subsequent_indent=before + after,
        break_long_words=True,
        break_on_hyphens=False,
    )


# ---- two states of the same files ------------------------------------------------------------------------

WORSE, BETTER = "bold red", "bold green"
COMPONENTS = 4
"""Components that the headline names."""


def render_against(found: Against, look: Look) -> str:
    """The whole screen as text that ends in a newline."""
    return render_parts(_change_sections(found, look), look)


def change_headline(found: Against, look: Look) -> tuple[str, str, tuple[str, ...]]:
    """A word, its style and phrases: how much more is needed, of what, and the verdict before and after."""
    before, after = (OUTCOMES[side.outcome].lower() for side in (found.before, found.after))
    verdict = f"{before} → {after}" if before != after else f"{after}, as before"
    against = f"against {one_line(found.reference)}"
    size, (old, new) = found.difference_bytes, found.sheets
    if size is None or old is None or new is None:
        problems = (one_line(side.problem) for side in (found.before, found.after) if side.problem)
        return "NO DIFFERENCE IS KNOWN", "bold yellow", (verdict, *problems, against)
    if not size:
        word, style = "THE SAME", BETTER
    else:
        word, style = signed_difference(size, look), WORSE if size > 0 else BETTER
    needs = f"{look.need(int(old.device.value), 2)} → {look.need(int(new.device.value), 2)} a GPU"
    parts = [(name, two - one) for name, one, two in found.components() if one != two]
    said = [f"{component_name(name)} {signed_difference(more, look)}" for name, more in parts[:COMPONENTS]]
    if len(parts) > COMPONENTS:
        said.append(f"{len(parts) - COMPONENTS} more")
    return word, style, (", ".join(said), needs, verdict, against)


def change_columns(look: Look) -> tuple[tuple[str, bool], ...]:
    """Headings of the table of components, and whether numbers stand below each."""
    return (f"at the peak, in {look.unit}", False), ("before", True), ("after", True), ("change", True)


def change_rows(found: Against, look: Look) -> Iterator[tuple[str, ...]]:
    """A row for each component that differs, one for those that do not, and their sum."""
    rows = [(component_name(name), one, two) for name, one, two in found.components()]
    equal = [one for _, one, two in rows if one == two]
    told = [row for row in rows if row[1] != row[2]]
    if equal:
        told.append((f"{len(equal)} as before", sum(equal), sum(equal)))
    told.append(("= device", sum(row[1] for row in rows), sum(row[2] for row in rows)))
    for name, one, two in told:
        change = signed_difference(two - one, look) if one != two else "="
        yield name, look.cell(one), look.cell(two), change


def option_words(found: Against) -> tuple[str, ...]:
    """The keys of the accounted plan that are others, each with both values."""
    return tuple(
        one_line(f"{key} {_value_words(before)} → {_value_words(after)}")
        for key, before, after in found.options()
    )


def _value_words(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def mistake_words(mistakes: Mistakes) -> tuple[str, ...]:
    """Mistakes, one phrase each."""
    return tuple(one_line(f"{found.where}: {found.says} [{rule.id}]") for rule, found in mistakes)


def _change_sections(found: Against, look: Look) -> Iterator[Part]:
    sheets = [sheet for sheet in found.sheets if sheet is not None]
    if sheets:
        look = look.fitted(max(int(sheet.device.value) for sheet in sheets))
    yield labelled_row(*change_headline(found, look), look)
    if options := option_words(found):
        yield labelled_row("Changed", "bold", options, look)
    if any(one != two for _, one, two in found.components()):
        table = plain_table(
            *((name, "right" if numbers else "left") for name, numbers in change_columns(look))
        )
        for cells in change_rows(found, look):
            table.add_row(*cells)
        yield table
    for word, style, mistakes in (
        ("New mistakes", "bold yellow", found.new_mistakes),
        ("Cured", "bold", found.gone_mistakes),
    ):
        if mistakes:
            yield labelled_row(word, style, ("\n".join(mistake_words(mistakes)),), look)
