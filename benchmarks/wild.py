"""What `memsheet check` makes of files that other people wrote, tree by tree.

    python benchmarks/wild.py ROOT … [--gpus 8xH100-80GB] [--seconds 10] [--json] [--list OUTCOME]

Every file of a tree that may be a launch or a configuration is checked by itself. The cards are
those of ``--gpus``, as many as the file starts processes where it says how many. Files that name a model
or describe one are counted apart from those that only say the rest (a bare ds_config.json), or whose model
is left to whoever starts them (``$1``, a flag that is required, a mount named ``/model``). A stop is counted
as false: the trees are of files that their authors run.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from memsheet.errors import InputError
from memsheet.exchange.shared.notebook import notebook_script
from memsheet.exchange.shared.script_places import NOTEBOOK
from memsheet.guard import parse_json
from memsheet.questions.check import MACHINES, check_configuration_files
from memsheet.questions.common_cards import cards_of_launch
from memsheet.questions.launches import DESCRIBES, is_candidate
from memsheet.questions.pod_jobs import with_pod_commands
from memsheet.questions.recognised_files import recognise_files

ENDINGS = (".yaml", ".yml", ".toml", ".json", ".sh", ".bash", ".sbatch", ".slurm", ".py", ".ipynb")
LEFT_OUT = re.compile(
    r"(^|/)(\.\w[^/]*|node_modules|tests?|test_\w+|assets?|docs?/source|templates|tools|data)/"
    r"|(^|/)(__init__|setup|conftest|test_[^/]*|_[^/]*)\.py$"
    r"|(^|/)(pyproject\.toml|_quarto\.yml|package(-lock)?\.json)$"
    r"|docker-compose|(^|/)(tokenizer|special_tokens|dataset_info|install)[^/]*$"
)
MOST_BYTES = 2**18
LITERAL = re.compile(
    r"(?:model|checkpoint)[\w.-]*[\"']?\s*[:=,\s]\s*(?:default=)?[\"']?(?![\"']?\$)"
    r"(?:[A-Za-z][\w.-]*/[\w.-]+|[\w-]+-\d+b\b)"
    r"|--num[-_]layers[= ]+\d|language-model-type",
    re.IGNORECASE,
)
"""A model that is written out, or its sizes."""
UNNAMED = "no model is named"
LEFT_TO_CALLER = re.compile(r"model[\w-]*[\"'],[^()]*(?:\([^()]*\)[^()]*)*required\s*=\s*True")
"""Of a script: the model is a flag that must be given."""
MOUNT = re.compile(r"^/(?:models?|checkpoints?|weights)/? is no bundled model")
"""Where whoever starts a container puts the model, which no name says."""


COLUMNS = (
    "files",
    "sheets",
    "no model",
    "no sheet",
    "refused",
    "stopped",
    "unrecognised",
    "exception",
    "timed out",
)


class Outcome(NamedTuple):
    """What became of one file: the kind of file, what came out, and why."""

    file: str
    kind: str
    names_model: bool
    outcome: str
    why: str
    format: str
    seconds: float


def candidate_files(root: Path) -> Iterator[Path]:
    """Files that may be launches or configurations, by their names and words."""
    if root.is_file():
        yield root
        return
    for path in sorted(root.rglob("*")):
        relative = f"{path.relative_to(root)}"
        if path.suffix not in ENDINGS or LEFT_OUT.search(relative) or not path.is_file():
            continue
        if path.stat().st_size <= MOST_BYTES and is_candidate(
            path.suffix, path.read_text("utf-8", "replace")
        ):
            yield path


def outcome_of(path: Path, root: Path, gpus: str) -> Outcome:
    """What a check of one file comes to; a defect is an outcome, not the end of the run."""
    text = path.read_text("utf-8", "replace")
    began = time.perf_counter()
    try:
        outcome, why, form = _checked(path, text, gpus)
    except InputError as error:
        problem = error.problems[0]
        known = not problem.reason.endswith("recognised as a configuration")
        outcome, why, form = "refused" if known else "unrecognised", _short(str(problem)), ""
    except Exception as error:  # noqa: BLE001 - counted, and shown
        outcome, why, form = "exception", f"{type(error).__name__}: {_short(str(error))}", ""
    return _outcome(path, root, text, outcome, why, form, time.perf_counter() - began)


def _outcome(path: Path, root: Path, text: str, outcome: str, why: str, form: str, seconds: float) -> Outcome:
    name = f"{path.relative_to(root)}" if root.is_dir() else path.name
    asked = not LITERAL.search(text) or bool(LEFT_TO_CALLER.search(text))
    open_name = (why.startswith(UNNAMED) and asked) or MOUNT.match(why)
    left_open = (outcome == "no model" and open_name) or (
        outcome == "unrecognised" and LEFT_TO_CALLER.search(text)
    )
    names = bool(DESCRIBES.search(text)) and not left_open
    return Outcome(name, path.suffix[1:], names, outcome, why, form, round(seconds, 3))


def outcomes_of(root: Path, gpus: str, seconds: float) -> Iterator[Outcome]:
    """What becomes of every candidate of a tree, checked one by one in a process that is replaced where a
    file takes longer than it may: what was interrupted is in no state to go on.
    """
    worker, pipe = _start_worker(root, gpus)
    for path in candidate_files(root):
        pipe.send(path)
        if pipe.poll(seconds):
            yield pipe.recv()
            continue
        worker.kill()
        yield _outcome(
            path, root, path.read_text("utf-8", "replace"), "timed out", f"{seconds:g} s", "", seconds
        )
        worker, pipe = _start_worker(root, gpus)
    pipe.send(None)
    worker.join()


def _start_worker(root: Path, gpus: str) -> tuple[BaseProcess, Connection]:
    here, there = get_context("spawn").Pipe()
    worker = get_context("spawn").Process(target=_work, args=(there, root, gpus))
    worker.start()
    return worker, here


def _work(pipe: Connection, root: Path, gpus: str) -> None:
    while (path := pipe.recv()) is not None:
        pipe.send(outcome_of(path, root, gpus))


def _checked(path: Path, text: str, gpus: str) -> tuple[str, str, str]:
    question: dict[str, Any] = {**dict.fromkeys(MACHINES), "gpus": _cards_for(path.name, text, gpus)}
    found = check_configuration_files((str(path),), None, question)
    form = "+".join(dict.fromkeys(read.form.name for read in found.reads.values()))
    if found.stops:
        stop = next(one for rule, one in found.mistakes if one.stops)
        return "stopped", _short(f"{stop.where.rpartition(':')[2]} {stop.says}"), form
    if found.answer is not None:
        verdict = found.result.name if found.result else "no verdict"
        return f"sheet: {verdict}", _short(found.doubt), form
    if found.no_model:
        return "no model", _short(found.no_model), form
    return "no sheet", _short("; ".join(found.why_not)), form


def _cards_for(name: str, text: str, gpus: str) -> str:
    """The cards that are given: as many as the file starts processes, or as its degrees need; of a file that
    says nothing without those that it stands on, ``gpus``.
    """
    script = notebook_script(text, name, parse_json) if name.endswith(NOTEBOOK) else text
    try:
        return cards_of_launch(recognise_files(with_pod_commands({name: script}), ())[0], gpus)
    except InputError:
        return gpus


def _short(text: str) -> str:
    return " ".join(text.split())[:160]


def table_lines(found: dict[str, list[Outcome]]) -> Iterator[str]:
    """A line a tree and kind, and the causes below."""
    yield f"{'':44}" + "".join(f"{column:>13}" for column in COLUMNS)
    for tree, rows in found.items():
        named = [row for row in rows if row.names_model]
        groups = {
            f"{tree} (a model)": named,
            **{
                f"  {kind}": [row for row in named if row.kind == kind]
                for kind in sorted({r.kind for r in named})
            },
            f"{tree} (the rest alone)": [row for row in rows if not row.names_model],
        }
        for label, held in groups.items():
            if held:
                yield _table_row(label, held)
    yield ""
    rows = [row for held in found.values() for row in held]
    slowest = max(rows, key=lambda row: row.seconds, default=None)
    if slowest:
        mean = sum(row.seconds for row in rows) / len(rows)
        yield f"{len(rows)} files, {mean:.2f} s each, at most {slowest.seconds} s: {slowest.file}"
    for outcome in sorted({row.outcome for row in rows}):
        causes = Counter(cause_of(row.why) for row in rows if row.outcome == outcome)
        yield f"\n{outcome} ({sum(causes.values())})"
        yield from (f"{count:6}  {cause}" for cause, count in causes.most_common(12))


def _table_row(label: str, rows: list[Outcome]) -> str:
    told = Counter("sheets" if row.outcome.startswith("sheet:") else row.outcome for row in rows)
    cells = (len(rows), *(told[name] for name in COLUMNS[1:]))
    return f"{label:44}" + "".join(f"{cell:>13}" for cell in cells)


def cause_of(why: str) -> str:
    """A reason without the names and numbers of one file, so that alike ones are counted together."""
    return re.sub(r"\d[\d,.]*", "N", re.sub(r"\S+/\S+|'[^']*'", "…", why))[:100] or "-"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("roots", nargs="+", type=Path, metavar="ROOT")
    parser.add_argument("--gpus", default="8xH100-80GB")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--list", metavar="OUTCOME", help="print each file of an outcome that begins so")
    asked = parser.parse_args()
    found: dict[str, list[Outcome]] = {}
    for root in asked.roots:
        label = "/".join(root.resolve().parts[-2:])
        found[label] = list(outcomes_of(root, asked.gpus, asked.seconds))
        print(f"{label}: {len(found[label])} files", file=sys.stderr)
    if asked.json:
        print(json.dumps({tree: [row._asdict() for row in rows] for tree, rows in found.items()}, indent=1))
        return
    print("\n".join(table_lines(found)))
    if asked.list is not None:
        for tree, rows in found.items():
            for row in rows:
                if row.outcome.startswith(asked.list):
                    print(f"{row.outcome:16} {tree}/{row.file} [{row.format}] {row.why}")


if __name__ == "__main__":
    main()
