"""Configuration files as the page shows them: what stops, what is wrong, and the sheet's own view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.budget import Answer
from memsheet.errors import MOST_SHOWN, more_than_shown
from memsheet.plan.aliases import engine_word
from memsheet.report.page.sheet import answer_view, typed_options
from memsheet.report.screen.checked import (
    OUTCOMES,
    common_card_cells,
    cure_effects,
    doubt_words,
    render_checked,
    stop_words,
)
from memsheet.report.screen.layout import one_line
from memsheet.report.shared.checked import NO_SHEET, NO_START, Checked
from memsheet.report.shared.look import Look


def checked_view(checked: Checked, look: Look) -> dict[str, Any]:
    """The view of the sheet, where there is one, with what the files themselves say."""
    sheet = answer_view(checked.answer) if checked.answer else {}
    return {
        **sheet,
        **_file_headline(checked),
        "screen": render_checked(checked, look),
        "mistakes": [
            {
                "stops": found.stops,
                "where": one_line(found.where),
                "says": one_line(found.says),
                "cure": one_line(found.cure),
                "effects": list(cure_effects(found, look)),
                "apply": _applied_options(found.changes, checked.answer)
                if found.changes and checked.answer
                else None,
            }
            for _, found in checked.mistakes[:MOST_SHOWN]
        ],
        "more_mistakes": more_than_shown(len(checked.mistakes)),
        "common": [list(cells) for cells in common_card_cells(checked, look)],
        "doubt": one_line(doubt_words(checked)),
    }


def _applied_options(changes: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    """Changed keys as options, at the length that the sheet was made of. How many sequences a server takes at
    once is its engine's own word: ours asks that all of them have room.
    """
    found = typed_options(changes, answer)
    if "sequences" in found and (word := engine_word("serving.max_sequences", answer.plan.engine)):
        found[word.replace("-", "_")] = found.pop("sequences")
    return {"seq_len": int(answer.plan.training.seq_len), **found} if answer.ladder else found


def _file_headline(checked: Checked) -> dict[str, Any]:
    """What stands in place of the sheet's verdict: files that the engine refuses, or that say too little."""
    if checked.stops:
        said = stop_words(checked)
        return {"word": OUTCOMES[NO_START], "result": "does_not_fit", "phrases": [one_line(said)]}
    if checked.answer:
        return {}
    word = "KEYS ALONE" if checked.keys_alone else OUTCOMES[NO_SHEET]
    reasons = [line for line in (checked.no_model, *checked.why_not) if line]
    return {"word": word, "result": "uncertain", "phrases": [one_line(line) for line in reasons]}
