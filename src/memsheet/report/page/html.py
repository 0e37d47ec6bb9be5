"""An answer as one piece of HTML, without scripts or styles of others: what a notebook shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from memsheet.report.chart.palette import COLOURS
from memsheet.sheet import Component

if TYPE_CHECKING:
    from memsheet.report.page.summaries import Summary, Table

WIDE, LEFT, TALL = 720, 150, 26
"""Of the bars, in pixels: the picture, what labels take of it, and one bar."""
STYLE = {
    "fits": "color:#0b6b2b", "does_not_fit": "color:#a3200d", "uncertain": "color:#7a5200", None: "",
}  # fmt: skip
FRAME = "font-family:system-ui,sans-serif;max-width:60em"
CELL, NUMBER = "padding:1px 8px;text-align:left", "padding:1px 8px;text-align:right;white-space:nowrap"


def answer_html(view: Mapping[str, Any]) -> str:
    """A view as HTML: the verdict, what to change, the bars and the table of components."""
    asked = view["question"]
    word = f'<b style="font-size:1.3em;{STYLE[view["result"]]}">{escape(view["word"])}</b>'
    what = f"{escape(asked['task'])} <b>{escape(asked['name'])}</b> {escape(asked['where'])}"
    parts = [
        f"<p>{word} {escape(' · '.join(view['phrases']))}</p>",
        f"<p>{what}<br>{escape(' · '.join(view['choices']))}</p>",
        *_change_paragraphs(view),
        bars_svg(view),
        _component_table(view),
    ]
    return f'<div style="{FRAME}">{"".join(parts)}</div>'


def html_page(view: Mapping[str, Any]) -> str:
    """The same as a document of its own."""
    return whole_page(
        f"{view['question']['task']} {view['question']['name']}: {view['word']}", answer_html(view)
    )


def whole_page(title: str, body: str) -> str:
    """A body of HTML as a document of its own."""
    head = f'<meta charset="utf-8"><title>{escape(title)}</title>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def summary_html(summary: Summary, bars: str = "") -> str:
    """A word, phrases and tables as HTML. ``bars``: a picture that stands between them."""
    task, name, where = map(escape, summary.question)
    parts = []
    if summary.word:
        word = f'<b style="font-size:1.3em">{escape(summary.word)}</b>'
        parts.append(f"<p>{word} {escape(' · '.join(filter(None, summary.phrases)))}</p>")
    if task:
        choices = escape(" · ".join(filter(None, summary.choices)))
        parts.append(f"<p>{task} <b>{name}</b> {where}<br>{choices}</p>")
    parts += [bars, *map(_summary_table, summary.tables)]
    parts += [f"<p>{escape(line)}</p>" for line in summary.lines]
    return f'<div style="{FRAME}">{"".join(parts)}</div>'


def _summary_table(table: Table) -> str:
    styles = [NUMBER if numbers else CELL for _, numbers in table.columns]
    head = "".join(
        f'<th style="{style}">{escape(name)}</th>'
        for style, (name, _) in zip(styles, table.columns, strict=True)
    )
    rows = (
        "".join(f'<td style="{style}">{escape(cell)}</td>' for style, cell in zip(styles, row, strict=True))
        for row in table.rows
    )
    body = "".join(f"<tr>{cells}</tr>" for cells in rows)
    return f'<table style="border-collapse:collapse"><tr>{head}</tr>{body}</table>'


def bars_svg(view: Mapping[str, Any]) -> str:
    """Every kind of rank as a bar against what a GPU gives, as SVG."""
    bars: Sequence[Mapping[str, Any]] = view["bars"]
    capacity = view["capacity_bytes"] or 0
    scale = max(capacity, *(max(bar["bytes"], bar["high_bytes"]) for bar in bars), 1)

    def place(size: int) -> float:
        return round(float(LEFT + (WIDE - LEFT - 4) * size / scale), 1)

    rows = [part for number, bar in enumerate(bars) for part in _bar_parts(bar, number * TALL + 3, place)]
    bottom = len(bars) * TALL
    if capacity:
        x = place(capacity)
        rows.append(f'<path d="M{x} 0V{bottom}" stroke="currentColor" stroke-width="2"/>')
        rows.append(
            f'<text x="{x}" y="{bottom + 13}" text-anchor="end" font-size="11" fill="currentColor">'
            f"{escape(view['capacity'])}</text>"
        )
    label = escape("; ".join(f"{bar['label']}: {bar['total']}" for bar in bars))
    box = f'viewBox="0 0 {WIDE} {bottom + 18}" width="{WIDE}" style="max-width:100%;height:auto"'
    said = f'role="img" aria-label="{label}" font-family="sans-serif"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box} {said}>{"".join(rows)}</svg>'


def _bar_parts(bar: Mapping[str, Any], y: int, place: Any) -> Iterator[str]:
    yield (
        f'<text x="{LEFT - 6}" y="{y + 15}" text-anchor="end" font-size="12" fill="currentColor">'
        f"{escape(bar['label'])} {escape(bar['total'])}</text>"
    )
    so_far = 0
    for part in bar["parts"]:
        left, right = place(so_far), place(so_far + part["bytes"])
        so_far += part["bytes"]
        colour, name = COLOURS[Component(part["component"])], escape(part["component"].replace("_", " "))
        yield (
            f'<rect x="{left}" y="{y}" width="{round(right - left, 1)}" height="20" fill="{colour}" '
            f'stroke="#76767a" stroke-width=".5"><title>{name}</title></rect>'
        )
    low, high = place(bar["low_bytes"]), place(bar["high_bytes"])
    whisker = f"M{low} {y + 6}v8M{low} {y + 10}H{high}M{high} {y + 6}v8"
    yield f'<path d="{whisker}" stroke="currentColor" fill="none"/>'


def _change_paragraphs(view: Mapping[str, Any]) -> Iterator[str]:
    if change := view["change"]:
        rows = "".join(
            f"<li>{escape(words)} {escape(steps)} <i>{escape(needs)}</i></li>"
            for words, steps, needs in change["rows"]
        )
        yield f"<p><b>{escape(change['title'])}</b></p><ul>{rows}</ul><p>{escape(change['after'])}</p>"
    for way in view["ways"]:
        yield f"<p>{escape(way['words'])} <i>{escape(way['needs'])}</i></p>"


def _component_table(view: Mapping[str, Any]) -> str:
    when = escape(f"at the peak, in {view['instant'].replace('_', ' ')}")
    cells = ((CELL, when), (NUMBER, view["unit"]), (NUMBER, "share"), (CELL, "why"))
    head = "".join(f'<th style="{style}">{words}</th>' for style, words in cells)
    body = "".join(
        f'<tr style="font-weight:{"normal" if row["component"] else "bold"}">'
        f'<td style="{CELL}">{_swatch(row["component"])}{escape(row["name"])}</td>'
        f'<td style="{NUMBER}">{escape(row["size"])}</td><td style="{NUMBER}">{escape(row["share"])}</td>'
        f'<td style="{CELL}">{escape(", ".join(filter(None, (row["words"], row["range"]))))}</td></tr>'
        for row in view["rows"]
    )
    return f'<table style="border-collapse:collapse"><tr>{head}</tr>{body}</table>'


def _swatch(component: str | None) -> str:
    if component is None:
        return ""
    box = "display:inline-block;width:.8em;height:.8em;margin-right:.4em;border:1px solid #76767a"
    return f'<span style="{box};background:{COLOURS[Component(component)]}"></span>'
