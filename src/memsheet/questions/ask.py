"""One question in JSON → one answer in JSON: what the page asks, over HTTP or in the browser itself.

A request names its ``question`` and, beside it, what the command of that name takes: ``model``, ``gpus`` and
every option of a plan by its short name or in any tool's words, as texts if need be. The answer has the
``document`` that ``--json`` prints, the ``exit_code``, and where a ``view`` is asked for the screen's words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from memsheet.budget import Answer, Result
from memsheet.errors import InputError, Problem, input_error, missing_package, raise_if_problems
from memsheet.frozen import NamedTuple, replace
from memsheet.guard.confined import confined_to
from memsheet.guard.spending import of_one_command
from memsheet.plan.values import option_problems, parse_token_count, parse_whole_number
from memsheet.questions import accounted
from memsheet.report.json.error import error_document
from memsheet.report.shared.exit_codes import (
    BAD_INPUT,
    BROKEN,
    EXIT,
    SERVING_EXIT,
    checked_exit_code,
    refusal_exit_code,
)
from memsheet.report.shared.look import Look

WHOLE_NUMBERS = ("nodes", "per_node", "most", "top", "pick", "rank", "users")
"""What is no key of a plan and a whole number."""
COLUMNS = 100
"""Of a screen that is shown as text."""
MOST_FILES, MOST_NAME = 64, 255


class Reply(NamedTuple):
    """What a question comes to: the exit code, the document, and its view."""

    exit_code: int
    document: Mapping[str, Any]
    view: Callable[[], Mapping[str, Any]] = dict


def ask(request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to one request: ``exit_code`` (0 fits, 10 does not, 11 uncertain, 2 bad input),
    ``document``, and with ``view`` true the words of the screen.

    Nothing is read from disk but what memsheet itself brings, the caches of the hub and of recordings, and
    the files that the request holds. Never raises: bad input is a document of memsheet/error/1.
    """
    try:
        return _answer_request(request)
    except InputError as error:
        return _refused_document(error)
    except ModuleNotFoundError as error:
        if missing := missing_package(error):
            return _refused_document(missing)
        return _fault_document(error)
    except Exception as error:  # noqa: BLE001 - whoever asks gets an answer, and the fault is named as ours
        return _fault_document(error)


def _answer_request(request: Mapping[str, Any]) -> dict[str, Any]:
    asked = {key: value for key, value in request.items() if value is not None}
    question, view = asked.pop("question", None), asked.pop("view", False)
    if not isinstance(question, str) or question not in QUESTIONS:
        raise input_error("question", question, "is none", f"one of {', '.join(QUESTIONS)}")
    with (
        TemporaryDirectory(prefix="memsheet-") as folder,
        confined_to(*_visible_folders(folder)),
        of_one_command(),
    ):
        found = _with_numbers(asked)
        raise_if_problems(option_problems(found))
        said = QUESTIONS[question](found, Path(folder))
        told = {"view": said.view()} if view else {}
    return {"exit_code": said.exit_code, "document": said.document, **told}


def _refused_document(error: InputError) -> dict[str, Any]:
    kind, code = refusal_exit_code(error)
    return {"exit_code": code, "document": error_document(kind, code, error.problems)}


def _fault_document(error: Exception) -> dict[str, Any]:
    said = Problem(
        field="memsheet",
        reason=f"{type(error).__name__}",
        hint="this is a fault of memsheet, not of the input",
    )
    return {"exit_code": BROKEN, "document": error_document("internal error", BROKEN, [said])}


def _visible_folders(folder: str) -> Iterator[Path]:
    """What a question may see on disk."""
    from memsheet.questions.recordings import KIND
    from memsheet.questions.user_cache import PACKAGE, cache_folder
    from memsheet.readers.calibration import calibration_file
    from memsheet.readers.hub.repository import cache_folder as hub_cache

    kept = (cache_folder(KIND), calibration_file())
    yield from (Path(folder), PACKAGE, hub_cache(), *(path for path in kept if path is not None))


def _with_numbers(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Whole numbers that are written as texts, as numbers: a form has texts alone."""
    found = dict(asked)
    for name in WHOLE_NUMBERS:
        if isinstance(found.get(name), str):
            found[name] = parse_whole_number(found[name])
    if isinstance(found.get("context"), str):
        found["context"] = parse_token_count(found["context"])
    if isinstance(found.get("fix"), str):
        found["fix"] = found["fix"] != "false"
    return found


def _ask_account(count: Callable[..., Answer]) -> Callable[[dict[str, Any], Path], Reply]:
    def answer_task(asked: dict[str, Any], _: Path) -> Reply:
        from memsheet.report.json.sheet import sheet_document

        found = count(asked.pop("model", None), **asked)
        code = EXIT[found.verdict.result] if found.verdict else 0
        return Reply(code, sheet_document(found), lambda: _answer_view(found))

    return answer_task


def _answer_view(answer: Answer) -> Mapping[str, Any]:
    from memsheet.report.page.sheet import answer_view

    return answer_view(answer)


def _ask_solve(asked: dict[str, Any], _: Path) -> Reply:
    from memsheet.questions.solve import MACHINES, solve_question, target_named
    from memsheet.report.json.solution import solution_document
    from memsheet.report.screen.solution import render_solution

    target, most = target_named(asked.pop("what", None)), asked.pop("most", None)
    given = {"model": None, **dict.fromkeys((*MACHINES, "parameters")), **asked}
    found = solve_question(target, given, most=most)
    return Reply(
        EXIT[found.solution.result],
        solution_document(found.solution, found.curves),
        lambda: {
            "screen": render_solution(found.solution, Look(width=COLUMNS), found.curves),
            **_answer_view(found.solution.shown.answer),
        },
    )


def _ask_plan(asked: dict[str, Any], _: Path) -> Reply:
    from memsheet.questions.plan import plan
    from memsheet.report.json.plans import plans_document
    from memsheet.report.page.plans import plans_view

    found = plan(asked.pop("model", None), **asked)
    result = found.ranking.result
    return Reply(
        EXIT[result] if result else BAD_INPUT,
        plans_document(found, seconds=0),
        lambda: plans_view(found, Look(width=COLUMNS)),
    )


def _ask_plan_serving(asked: dict[str, Any], _: Path) -> Reply:
    from memsheet.questions.plan import plan_serving
    from memsheet.report.json.serve_plans import serving_document
    from memsheet.report.screen.plans.serving import render_serving

    found = plan_serving(asked.pop("model", None), **asked)
    return Reply(
        SERVING_EXIT[found.plans[0].holds] if found.plans else SERVING_EXIT[-1],
        serving_document(found),
        lambda: {"screen": render_serving(found, Look(width=COLUMNS))},
    )


def _ask_job(asked: dict[str, Any], _: Path) -> Reply:
    from memsheet.questions.cures_of_jobs import what_helps
    from memsheet.questions.job import answer_job
    from memsheet.report.json.sheet import sheet_document
    from memsheet.report.screen.jobs.phases import render_job

    document, where = _job_and_machines(asked)
    found = answer_job(document, where)

    def screen_of_job() -> Mapping[str, Any]:
        helps = tuple((one.words, one.says, one.answer) for one in what_helps(found, where))
        return {"screen": render_job(found, Look(width=COLUMNS), helps)}

    return Reply(EXIT[found.verdict.result] if found.verdict else 0, sheet_document(found), screen_of_job)


def _ask_solve_job(asked: dict[str, Any], _: Path) -> Reply:
    from memsheet.questions.solve_job import job_limit
    from memsheet.report.json.sheet import sheet_document
    from memsheet.report.screen.jobs.phases import render_job_limit

    what = asked.pop("what", None)
    found = job_limit(what, *_job_and_machines(asked))
    counts = {"what": found.what, "largest": found.largest, "counted": found.counted}
    document = {**counts, "sheet": sheet_document(found.answer)}
    code = EXIT[Result.FITS if found.largest else Result.DOES_NOT_FIT]
    return Reply(code, document, lambda: {"screen": render_job_limit(found, Look(width=COLUMNS))})


def _job_and_machines(asked: dict[str, Any]) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """The document of a request's job, an object or the name of a template, and the cards."""
    from memsheet.jobs.templates import TEMPLATES
    from memsheet.questions.job import MACHINES, document_of

    named, where = asked.pop("job", None), {key: asked.pop(key, None) for key in MACHINES}
    if not isinstance(named, Mapping) and not (isinstance(named, str) and named in TEMPLATES):
        hint = f"an object of memsheet/job/1, or a template: {', '.join(TEMPLATES)}"
        raise input_error("job", named if isinstance(named, str) else None, "is no job", hint)
    return document_of(named, {**where, **asked}), where


USUAL_GRID: Mapping[str, tuple[int, ...]] = {
    "seq_len": (2048, 4096, 8192, 16384, 32768, 65536, 131072), "microbatch": (1, 2, 4, 8),
    "max_model_len": (4096, 8192, 16384, 32768, 65536, 131072), "sequences": (1, 4, 16, 64, 256),
}  # fmt: skip
"""Values that a table of two options has where none are given."""
MOST_GRID = 64


def _ask_grid(asked: dict[str, Any], _: Path) -> Reply:
    """A table of two options, each cell what a GPU needs."""
    from memsheet.questions.sweep import sweep
    from memsheet.report.page.grid import grid_document

    x, y = asked.pop("x", "seq_len"), asked.pop("y", "microbatch")
    if not isinstance(x, str) or not isinstance(y, str):
        raise input_error("x, y", None, "are no names of options", "seq_len, microbatch")
    values = {name: asked.pop(at, None) or USUAL_GRID.get(name, ()) for name, at in ((y, "ys"), (x, "xs"))}
    if not all(isinstance(held, list | tuple) for held in values.values()) or len(values) != 2:
        raise input_error("grid", None, "is of two options, each with a list of values", '"xs": [4096, 8192]')
    cells = 1
    for held in values.values():
        cells *= len(held)
    if cells > MOST_GRID:
        raise input_error("grid", cells, f"has more than {MOST_GRID} cells")
    given = {key: value for key, value in asked.items() if key not in values}
    swept: Any = {**given, **{name: list(held) for name, held in values.items()}}
    found = sweep(**swept)
    return Reply(0, grid_document(found, x=x, y=y, xs=values[x], ys=values[y]))


def _ask_check(asked: dict[str, Any], folder: Path) -> Reply:
    from memsheet.questions.check import MACHINES, check_configuration_files
    from memsheet.report.json.checked import checked_document
    from memsheet.report.page.checked import checked_view

    names = _write_files(asked.pop("files", None), folder)
    model, otherwise = asked.pop("model", None), asked.pop("model_otherwise", None)
    question = {key: asked.pop(key, None) for key in MACHINES}
    found = check_configuration_files(names, model, {**question}, words=asked)
    if found.no_model and otherwise is not None:
        found = check_configuration_files(names, otherwise, {**question}, words=asked)
    sent = {name: (Path(path).name, text) for name, (path, text) in found.written.items()}
    found = replace(found, written=sent)  # where a request's files were written is no one's business
    return Reply(
        checked_exit_code(found),
        checked_document(found),
        lambda: checked_view(found, Look(width=COLUMNS)),
    )


def _write_files(files: Any, folder: Path) -> tuple[str, ...]:
    """The files of a request, written where they are read: a name is one, and no path."""
    if not isinstance(files, list) or not files or len(files) > MOST_FILES:
        raise input_error("files", None, f"is no list of 1 to {MOST_FILES} files", '[{"name": …, "text": …}]')
    names = []
    for file in files:
        name, text = (file.get("name"), file.get("text")) if isinstance(file, Mapping) else (None, None)
        plain = isinstance(name, str) and name == Path(name).name and name.isprintable()
        if not plain or not 0 < len(str(name).encode()) <= MOST_NAME or str(name).startswith("."):
            raise input_error("files.name", name, "is no plain name of a file", "ds_config.json")
        if not isinstance(text, str):
            raise input_error("files.text", None, "is no text")
        (folder / str(name)).write_text(text, encoding="utf-8", errors="replace")
        names.append(str(folder / str(name)))
    return tuple(names)


def _ask_export(asked: dict[str, Any], _: Path) -> Reply:
    from memsheet.questions.export import exported_files

    plan, to = asked.get("plan"), asked.get("to")
    if not isinstance(plan, Mapping):
        raise input_error("plan", None, "is no object of memsheet/plan/1, plans/1 or sheet/1")
    if not isinstance(to, str):
        raise input_error("to", to, "names no format", "deepspeed,accelerate")
    names = [name.strip() for name in to.split(",") if name.strip()]
    found = exported_files(plan, names, asked.get("pick"))
    document = {"schema": "memsheet/export/1", "files": dict(found.files), "notes": list(found.notes)}
    return Reply(0, document)


def _ask_compare(asked: dict[str, Any], _: Path) -> Reply:
    from memsheet.questions.compare import compare
    from memsheet.report.screen.comparison_table import render_comparison
    from memsheet.report.shared.comparison import comparison_document

    sides = [asked.get(side) for side in ("left", "right")]
    if not all(isinstance(side, Mapping) for side in sides):
        raise input_error("left, right", None, "are no two objects of memsheet/sheet/1")
    found = compare(*sides, instant=asked.get("instant"), rank=asked.get("rank"))  # type: ignore[arg-type]
    return Reply(
        0, comparison_document(found), lambda: {"screen": render_comparison(found, Look(width=COLUMNS))}
    )


def _ask_diagnose(asked: dict[str, Any], _: Path) -> Reply:
    from memsheet.questions.diagnose import diagnose_named_texts
    from memsheet.report.json.diagnosis import diagnosis_document
    from memsheet.report.screen.died.diagnosis import render_diagnosis
    from memsheet.report.shared.exit_codes import diagnosis_exit_code

    text = asked.pop("text", None)
    if not isinstance(text, str):
        raise input_error("text", None, "is no text", "the error message, or the end of the log")
    found = diagnose_named_texts({"text": text}, asked.pop("model", None), asked)
    return Reply(
        diagnosis_exit_code(found),
        diagnosis_document(found),
        lambda: {
            **(_answer_view(found.answer) if found.answer else {}),
            "screen": render_diagnosis(found, Look(width=COLUMNS)),
        },
    )


def _ask_explain(asked: dict[str, Any], _: Path) -> Reply:
    from memsheet.questions.explain import explain

    found = explain(asked.get("term"))  # type: ignore[arg-type]
    return Reply(
        0,
        {
            "schema": "memsheet/explain/1",
            "term": found.name,
            "kind": found.kind,
            "text": found.text,
            "source": found.source,
        },
    )


def _ask_read(asked: dict[str, Any], _: Path) -> Reply:
    from memsheet.questions.pasted import read_pasted

    return Reply(0, read_pasted(asked.get("text")))


def _ask_models(_: dict[str, Any], __: Path) -> Reply:
    from memsheet.catalog import model_rows

    return Reply(0, {"schema": "memsheet/models/1", "models": list(model_rows().values())})


def _ask_gpus(_: dict[str, Any], __: Path) -> Reply:
    from memsheet.catalog import catalog_devices
    from memsheet.questions.catalogue import gpu_row

    return Reply(0, {"schema": "memsheet/gpus/1", "gpus": [gpu_row(each) for each in catalog_devices()]})


def _ask_form(_: dict[str, Any], __: Path) -> Reply:
    from memsheet.questions.form import form_document

    return Reply(0, form_document())


QUESTIONS: Mapping[str, Callable[[dict[str, Any], Path], Reply]] = {
    "train": _ask_account(accounted.train), "infer": _ask_account(accounted.infer), "solve": _ask_solve, "plan": _ask_plan, "plan-serving": _ask_plan_serving,
    "grid": _ask_grid, "check": _ask_check, "export": _ask_export, "compare": _ask_compare, "diagnose": _ask_diagnose, "job": _ask_job, "solve-job": _ask_solve_job, "explain": _ask_explain, "read": _ask_read, "models": _ask_models, "gpus": _ask_gpus, "form": _ask_form,
}  # fmt: skip
"""What can be asked, by the name of its command."""
