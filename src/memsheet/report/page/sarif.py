"""Findings as SARIF 2.1.0, which code hosts show at the line of the file (OASIS Standard, "Static Analysis
Results Interchange Format (SARIF) Version 2.1.0", 27 March 2020).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os.path import normpath
from pathlib import Path
from typing import Any
from urllib.parse import quote

from memsheet.exchange.mistakes.case import source_for
from memsheet.frozen import NamedTuple
from memsheet.report.json.checked import finding_engine
from memsheet.report.screen.checked import cure_effects, launch_reason
from memsheet.report.screen.layout import one_line
from memsheet.report.shared.checked import NO_SHEET, NOT_READ, Checked, Launch, Place, place_of
from memsheet.report.shared.look import Look

VERSION = "2.1.0"
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"does_not_fit": "error", "uncertain": "warning", NO_SHEET: "error", NOT_READ: "error"}
"""Of an outcome that is a finding by itself (section 3.27.10); that the engine refuses a file is told at the
line."""
SAID = {
    "does_not_fit": "The job does not fit its GPUs.", "uncertain": "Nobody can be sure that the job fits its GPUs.",
    NO_SHEET: "The files say too little for a sheet.", NOT_READ: "The file cannot be read.",
}  # fmt: skip


class SarifResult(NamedTuple):
    """One result: its rule, who says so, and where it stands."""

    rule: str
    source: str
    level: str
    text: str
    place: Place | None


def sarif_document(launches: Sequence[Launch], root: Path = Path()) -> dict[str, Any]:
    """One run with every finding of every launch. A line is given where it is certain, and none elsewhere.
    ``root``: the folder from which launches are named.
    """
    told = sarif_results(launches, root)
    rules = {one.rule: one.source for one in told}
    places = {name: number for number, name in enumerate(rules)}
    driver = {
        "name": "memsheet",
        "rules": [_rule_descriptor(name, source) for name, source in rules.items()],
    }
    results = [
        {
            "ruleId": one.rule,
            "ruleIndex": places[one.rule],
            "level": one.level,
            "message": {"text": one.text},
            **({"locations": [_result_location(one.place)]} if one.place else {}),
        }
        for one in told
    ]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": SCHEMA, "version": VERSION, "runs": [run]}


def sarif_results(launches: Sequence[Launch], root: Path = Path()) -> list[SarifResult]:
    """Every finding of every launch, and what the launch comes to where that is one. ``root``: the folder
    from which launches are named.
    """
    return [one for launch in launches for one in _launch_results(launch, root)]


def _rule_descriptor(name: str, source: str) -> dict[str, Any]:
    words = name.replace("-", " ").replace("_", " ").capitalize()
    return {"id": name, "shortDescription": {"text": f"{words}."}, "fullDescription": {"text": source}}


def _launch_results(launch: Launch, root: Path) -> Iterator[SarifResult]:
    checked = launch.checked
    if checked is not None:
        yield from _mistake_results(checked)
    outcome = launch.outcome
    if outcome not in LEVELS or (checked is not None and checked.keys_alone and outcome == NO_SHEET):
        return
    text = f"{SAID[outcome]} {_as_sentence(_outcome_words(launch))}".strip()
    paths = [path for path, _ in checked.written.values()] if checked else []
    own = root / launch.file
    place = Place(paths[0]) if paths else Place(str(own)) if own.is_file() else None
    yield SarifResult(outcome.replace("_", "-"), SAID[outcome], LEVELS[outcome], text, place)


def _mistake_results(checked: Checked) -> Iterator[SarifResult]:
    for rule, found in checked.mistakes:
        source = source_for(rule, finding_engine(checked, found))
        cure = " · ".join((found.cure, *cure_effects(found, Look())))
        text = f"{one_line(found.where)}: {one_line(found.says)}. Cure: {one_line(cure)}."
        yield SarifResult(
            rule.id, source, "error" if found.stops else "warning", text, place_of(checked, found)
        )


def _outcome_words(launch: Launch) -> str:
    """What is needed of what is given, and why that is not sure."""
    answer, look = launch.checked.answer if launch.checked else None, Look()
    if answer is None or answer.verdict is None or answer.cluster is None:
        return launch_reason(launch)
    device, gives = answer.verdict.device, look.room(answer.cluster.device.framework_bytes)
    ends = f"{look.need(device.low)} to {look.need(device.high)}"
    need = f"It needs {look.need(device.value)} of {gives} a GPU, {ends}"
    why = launch_reason(launch)
    return f"{need}; {why}" if why else need


def _as_sentence(text: str) -> str:
    return one_line(text).rstrip(".") + "." if text else ""


def _result_location(place: Place) -> dict[str, Any]:
    where: dict[str, Any] = {"artifactLocation": _artifact_location(place.file)}
    if place.line is not None:
        where["region"] = {"startLine": place.line}
    return {"physicalLocation": where}


def _artifact_location(file: str) -> dict[str, Any]:
    """A file within the folder that the command runs in by its path from there, any other one by its own URI
    (section 3.4.3).
    """
    path = path_from_here(file)
    if path.is_absolute():
        return {"uri": path.as_uri()}
    return {"uri": quote(path.as_posix()), "uriBaseId": "%SRCROOT%"}


def path_from_here(file: str) -> Path:
    """A file within the folder that the command runs in by its path from there, any other one by its whole
    path; links are not followed.
    """
    here = Path.cwd()
    path = Path(normpath(here / file))
    return path.relative_to(here) if path.is_relative_to(here) else path
