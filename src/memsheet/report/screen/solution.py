"""What was solved for, as a screen and as JSON (``memsheet/solution/1``): the verdict first, then where it
ends and what decides there.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from memsheet.budget import Result, WayToFit
from memsheet.frozen import replace
from memsheet.plan.device import parse_gpus
from memsheet.plan.model import Attention, Dense, ModelSpec
from memsheet.report.json.solution import UNITS, value_of
from memsheet.report.screen.layout import join_phrases, labelled_row, one_line, render_parts
from memsheet.report.screen.table import question_summary
from memsheet.report.screen.ways_to_fit import ways_table
from memsheet.report.shared.look import Look
from memsheet.report.shared.plan_phrases import format_parameter_count
from memsheet.report.shared.sizes import headroom_phrase, look_with_exact_digits, need_and_room
from memsheet.report.shared.typed_changes import change_line
from memsheet.report.shared.words import INSTANTS, changed_keys, component_name
from memsheet.search.solve.sizes import Curve
from memsheet.search.solve.targets import Solution, Target
from memsheet.search.trials import Tried

if TYPE_CHECKING:
    from memsheet.report.screen.written.parts import Part, Text

BEST = {
    Target.SEQ_LEN: "sequences of up to {}", Target.MICROBATCH: "micro-batches of up to {}", Target.GPUS: "on {} and no fewer",
    Target.PARAMETERS: "models of up to {}", Target.SEQUENCES: "{} at once", Target.MAX_MODEL_LEN: "sequences of up to {}",
}  # fmt: skip
WORDS = {Result.FITS: "fits", Result.UNCERTAIN: "uncertain", Result.DOES_NOT_FIT: "does not fit"}
LISTED = 3


def render_solution(solution: Solution, look: Look, curves: tuple[Curve, ...] = ()) -> str:
    """The whole screen as text that ends in a newline."""
    return render_parts(_solution_sections(solution, look, curves), look)


def _solution_sections(solution: Solution, look: Look, curves: tuple[Curve, ...]) -> Iterator[Part]:
    shown = solution.shown
    look = solution_look(solution, look)
    yield labelled_row(*solution_headline(solution, look), look)
    yield question_summary(shown.answer, look)
    yield _neighbour_table(solution, look)
    yield _deciding_component_text(solution, shown, look)
    if curves:
        yield _cluster_size_bars(curves, look)
    if solution.fix is not None:
        after = f"the least then needs {look.need(solution.fix.device.value, look.digits)}"
        yield labelled_row("To fit", "bold", (change_line(changed_keys(solution.fix), look), after), look)
    if solution.ways_to_fit:
        yield ways_table(
            tuple(_as_solved(way, solution, look) for way in solution.ways_to_fit), look, solution.task
        )
    if assumed := (*solution.assumed, *shown.assumed):
        yield labelled_row("Assumed", "bold", map(one_line, assumed), look, between="; ")
    yield labelled_row("Looked at", "bold", (f"{solution.values}; {_tried_values(solution)}",), look)
    if notes := (
        *solution.notes,
        *_refusing_notes(solution),
        *_skipped_value_notes(solution),
        *_curve_notes(curves),
    ):
        yield labelled_row("Notes", "bold", ("\n".join(map(one_line, notes)),), look)


def _refusing_notes(solution: Solution) -> tuple[str, ...]:
    """What the deciding rank's sheet says of itself, where nothing fits."""
    shown = solution.shown
    if solution.result is not Result.DOES_NOT_FIT:
        return ()
    return next((sheet.notes for sheet in shown.sheets if sheet.rank == shown.verdict.rank), ())


def _as_solved(way: WayToFit, solution: Solution, look: Look) -> WayToFit:
    """A way as the line that solves for it says it: of a number of GPUs what finds it, with as many looked
    at.
    """
    if solution.target is not Target.GPUS or "gpus" not in way.changes:
        return way
    count, _ = parse_gpus(str(way.changes["gpus"]))
    most = next((int(value) for name, value, _ in look.typed if name == "most"), None)
    farther = {"most": count} if most is not None and count is not None and count > most else {}
    return replace(
        way,
        changes={
            **{key: value for key, value in way.changes.items() if key not in ("gpus", "per_node")},
            **farther,
        },
    )


def _value_with_unit(solution: Solution, tried: Tried) -> str:
    """A value with its unit, for a sentence."""
    value = value_of(solution, tried)
    unit = UNITS[solution.target]
    return f"{_format_value(solution, tried)} {unit.removesuffix('s') if value == 1 else unit}"


def _format_value(solution: Solution, tried: Tried) -> str:
    value = value_of(solution, tried)
    return format_parameter_count(value) if solution.target is Target.PARAMETERS else f"{value:,}"


def solution_headline(solution: Solution, look: Look) -> tuple[str, str, tuple[str, ...]]:
    """The verdict's word, its style, and its phrases."""
    shown = solution.shown
    verdict = shown.verdict
    said = (
        *need_and_room(shown.cluster.device, verdict, look),
        _headroom_words(shown, look),
        _deciding_rank_words(shown),
    )
    if solution.result is Result.DOES_NOT_FIT:
        least = f"{_least_demand_word(solution)}, {_value_with_unit(solution, shown)}, {said[0]}"
        return "NOTHING FITS", "bold red", (least, *said[1:])
    best = BEST[solution.target].format(_value_with_unit(solution, shown))
    said = (*said, *_recomputed_words(solution))
    if solution.found is None:
        return "UNCERTAIN", "bold yellow", (f"{best} may fit, nothing is sure to", *said)
    return "FITS", "bold green", (best, *said)


def _recomputed_words(solution: Solution) -> tuple[str, ...]:
    """What fits with every layer recomputed, where that is more."""
    other = solution.recomputed
    if other is None or other.found is None:
        return ()
    more = solution.found is None or value_of(other, other.found) > value_of(solution, solution.found)
    return (f"with --recompute full: {_value_with_unit(other, other.found)}",) if more else ()


def solution_look(solution: Solution, look: Look) -> Look:
    """A look in whose columns every value that is named can be told from the room."""
    for _, tried in _named_tries(solution):
        look = look_with_exact_digits(tried.verdict, tried.cluster, look)
    return look.fitted(int(solution.shown.verdict.device.high))


def _least_demand_word(solution: Solution) -> str:
    """The least demanding value, in words: few tokens, but many GPUs."""
    return "the most" if solution.target is Target.GPUS else "the least"


def _headroom_words(shown: Tried, look: Look) -> str:
    verdict = shown.verdict
    lacking = (
        f"host memory lacks {look.need(verdict.host_short_bytes)} a node" if verdict.host_short_bytes else ""
    )
    return lacking or headroom_phrase(shown.cluster.device, verdict, look)


def _deciding_rank_words(tried: Tried) -> str:
    """The rank that decides, and when."""
    stage = f" of stage {tried.stage}" if tried.plan.mesh.pp > 1 else ""
    return (
        f"rank {tried.verdict.rank}{stage} of {tried.cluster.count}, peak in "
        f"{INSTANTS[tried.verdict.instant]}"
    )


def _named_tries(solution: Solution) -> tuple[tuple[str, Tried], ...]:
    """What there is of the answer and its neighbours."""
    named = (
        ("the whole range fits", solution.found), ("the next step", solution.beyond),
        ("the last tried that fits", _last_fitting_try(solution)), ("the expected bytes fit", solution.expected),
        ("may fit", _last_possible_try(solution)), (_least_demand_word(solution), solution.least),
    )  # fmt: skip
    return tuple((name, tried) for name, tried in named if tried is not None)


def _last_possible_try(solution: Solution) -> Tried | None:
    """The last value that may fit, where it stands beside no other name."""
    known = {tried.value for tried in (solution.expected, solution.least) if tried is not None}
    return (
        solution.possible if solution.possible is not None and solution.possible.value not in known else None
    )


def _last_fitting_try(solution: Solution) -> Tried | None:
    """The last value that fits where it is another than the answer: the verdict alternates."""
    found, last = solution.found, solution.last_fitting
    return last if found is not None and last is not None and last.value != found.value else None


def _tried_values(solution: Solution) -> str:
    """How many were accounted as an answer to each is."""
    many = f"{len(solution.tried)} of them tried"
    replayed = [tried.value for tried in solution.tried if tried.replayed]
    if solution.target is Target.PARAMETERS or len(replayed) != len(solution.tried) or not replayed:
        return many
    listed = f"{many}, between {min(replayed):,} and {max(replayed):,} (--full lists them)"
    start, apart = _widest_gap(solution)
    if not apart:
        return listed
    return (
        f"{listed}; every one tried up to the answer fits; from {start:,} on they are up to {apart:,} "
        "apart, and what lies between was not tried"
    )


def _widest_gap(solution: Solution) -> tuple[int, int]:
    """Where the band begins in which slack decides, and the widest step between two values tried there up to
    the answer; 0 where none was left out.
    """
    found, beyond = solution.found, solution.beyond
    if found is None or beyond is None:
        return 0, 0
    values = [tried.value for tried in solution.tried if tried.value <= found.value][1:]
    widest = max((after - before for before, after in pairwise(values)), default=0)
    return (values[0], widest) if widest > beyond.value - found.value > 0 else (0, 0)


def _neighbour_table(solution: Solution, look: Look) -> Part:
    """Where it ends: the last value that fits, the one after it, and as far as the expected bytes go."""
    from memsheet.report.screen.written.parts import Table

    table = Table(gap=2, show_header=True, header_style="bold")
    for name, numbers in neighbour_columns(solution, look):
        table.add_column(name, justify="right" if numbers else "left", no_wrap=True)
    for cells in neighbour_rows(solution, look):
        table.add_row(*cells)
    return table


def neighbour_columns(solution: Solution, look: Look) -> tuple[tuple[str, bool], ...]:
    """Headings of the table of values, and whether numbers stand below each."""
    return (
        ("", False),
        (UNITS[solution.target], True),
        (f"needs {look.unit}", True),
        ("low to high", True),
        ("", False),
    )


def neighbour_rows(solution: Solution, look: Look) -> Iterator[tuple[str, ...]]:
    """Where it ends: the last value that fits, the one after it, and as far as the expected bytes go."""
    every = (("tried", tried) for tried in solution.tried if look.full)
    for name, tried in (*_named_tries(solution), *every):
        device = tried.verdict.device
        spread = f"{look.cell(device.low)} to {look.cell(device.high)}"
        value, need = _format_value(solution, tried), look.cell(device.value)
        yield name, value, need, spread, WORDS[tried.verdict.result]


def _deciding_component_text(solution: Solution, shown: Tried, look: Look) -> Text:
    """What takes the room where it ends, in words."""
    from memsheet.report.screen.written.parts import Text

    lines = [_memory_breakdown_sentence(solution, shown, look)]
    if solution.beyond is not None:
        lines.append(
            f"{_memory_breakdown_sentence(solution, solution.beyond, look)}\n"
            f"{_next_step_obstacle(solution.beyond, look)}"
        )
    elif solution.found is not None:
        lines.append("Nothing beyond that was looked at.")
    if solution.target is Target.PARAMETERS:
        lines.append(f"The model: {_model_shape_words(shown.model)}.")
    last = solution.last_fitting or solution.found
    lines += _alternation_notes(solution)
    if last is not None and solution.expected is not None and solution.expected.value != last.value:
        far, near = _value_with_unit(solution, solution.expected), _value_with_unit(solution, last)
        lines.append(
            f"Between {near} and {far} it may fit: the expected bytes do, the high end of the range does not."
        )
    return Text(
        "\n".join(
            join_phrases(line.split(" "), look.width, between=" ")
            for whole in lines
            for line in whole.splitlines()
        )
    )


def _alternation_notes(solution: Solution) -> Iterator[str]:
    """Where some values fit beyond one that does not."""
    found, last = solution.found, _last_fitting_try(solution)
    if found is None or last is None:
        return
    values = [tried.value for tried in solution.tried]
    between = solution.tried[values.index(found.value) + 1 : values.index(last.value)]
    failing = [_format_value(solution, tried) for tried in between if tried.verdict.result is not Result.FITS]
    more = f" and {len(failing) - LISTED} more" if len(failing) > LISTED else ""
    yield (
        f"Every value tried up to {_value_with_unit(solution, found)} fits; the last one tried that fits "
        f"is {_value_with_unit(solution, last)}. Of those "
        f"between, {', '.join(failing[:LISTED])}{more} may not: the allocator's slack does not grow evenly."
    )


def _memory_breakdown_sentence(solution: Solution, tried: Tried, look: Look) -> str:
    stage = f" (stage {tried.stage})" if tried.plan.mesh.pp > 1 else ""
    parts = ", ".join(
        f"{component_name(component)} {look.need(size.value)}" for component, size in tried.verdict.largest
    )
    return (
        f"At {_value_with_unit(solution, tried)} rank {tried.verdict.rank}{stage} decides, in "
        f"{INSTANTS[tried.verdict.instant]}: {parts}."
    )


def _next_step_obstacle(beyond: Tried, look: Look) -> str:
    """Why the next step is not sure to fit."""
    if beyond.verdict.host_short_bytes:
        return f"There host memory lacks {look.need(beyond.verdict.host_short_bytes)} a node."
    return f"There the high end of the range is {look.need(-beyond.spare_bytes)} too much."


def _model_shape_words(model: ModelSpec) -> str:
    """A member of a family in its own measures."""
    blocks = model.blocks()
    mixers = [mixer for block in blocks[:1] for mixer in block.mixers if isinstance(mixer, Attention)]
    heads = [f"{mixer.heads} heads ({mixer.kv_heads} of keys and values)" for mixer in mixers[:1]]
    forward = [
        f"feed-forward {block.feed_forward.intermediate:,}"
        for block in blocks[:1]
        if isinstance(block.feed_forward, Dense)
    ]
    layers = model.layers
    return ", ".join(
        (f"{layers} layers", f"hidden size {model.hidden:,}", *heads, *forward, f"vocabulary {model.vocab:,}")
    )


def _skipped_value_notes(solution: Solution) -> Iterator[str]:
    """Values that are no legal plans, by their reason."""
    if not solution.skipped:
        return
    first, unit = solution.skipped[0], UNITS[solution.target]
    values = ", ".join(f"{skipped.value:,}" for skipped in solution.skipped[:LISTED])
    more = f" and {len(solution.skipped) - LISTED} more" if len(solution.skipped) > LISTED else ""
    yield (
        f"skipped: {values}{more} {unit if solution.target is not Target.PARAMETERS else 'layers'}, no "
        f"legal plans ({first.reason})"
    )


def _curve_notes(curves: tuple[Curve, ...]) -> Iterator[str]:
    yield from (f"{curve.name}: {curve.reason}" for curve in curves if curve.reason)
    if curves:
        engines = ", ".join(f"{curve.name} by {curve.engine}" for curve in curves)
        yield f"sizes of clusters: {engines}; each as the answer to it says"


def _cluster_size_bars(curves: tuple[Curve, ...], look: Look) -> Text:
    """The largest model that fits a cluster of each size."""
    from memsheet.report.screen.written.parts import Text

    most = max((point.parameters for curve in curves for point in curve.points), default=0)
    text = Text("Largest model that fits, in parameters\n", "bold", no_wrap=True)
    gpus = [point.gpus for point in curves[0].points]
    left, right = len(f"{max(gpus):,} GPUs"), 10
    width = look.width - left - right - 10
    for place, count in enumerate(gpus):
        for number, curve in enumerate(curves):
            size = curve.points[place].parameters
            label = f"{count:,} GPU{'s' * (count > 1)}" if number == 0 else ""
            bar = "█" * max(1, size * width // most) if size else ""
            text.append(f"{label:<{left}}  {curve.name:<6}  ", "").append(
                f"{bar} {format_parameter_count(size) if size else 'none'}\n", ""
            )
    return text.cut(0, len(text.plain) - 1)
