"""`memsheet diagnose`."""

from __future__ import annotations

from memsheet.cli import question as jobs
from memsheet.cli import screen
from memsheet.cli.line import Given
from memsheet.errors import input_error
from memsheet.questions.diagnose import (
    diagnose_named_texts,
    read_log_files,
    redacted_diagnosis,
    with_typed_words,
)
from memsheet.report.shared.exit_codes import diagnosis_exit_code


def diagnose(asked: Given) -> int:
    """What a job that died of memory died of: the verdict, the arithmetic, what would have helped."""
    decimal = screen.wants_decimal_units(asked.units)
    if "-" in asked.files and asked.plan == "-":
        raise input_error("plan", "-", "is stdin, which the log is read from", "put one of the two in a file")
    question = jobs.job_arguments(asked)
    texts = read_log_files(asked.files)
    found = with_typed_words(diagnose_named_texts(texts, question.pop("model"), question), asked.files)
    if asked.redact:
        found = redacted_diagnosis(found, texts)
    if asked.json:
        from memsheet.report.json.diagnosis import diagnosis_document

        screen.write_json(diagnosis_document(found))
    else:
        from memsheet.report.screen.died.diagnosis import render_diagnosis

        look = screen.terminal_look(decimal=decimal, full=asked.full)
        screen.write_stdout(render_diagnosis(found, look))
    return diagnosis_exit_code(found)
