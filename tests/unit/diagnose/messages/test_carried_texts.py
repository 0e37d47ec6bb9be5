"""A message is the same whoever carries it: launchers, collectors, pages, people of any tongue around it."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

import pytest
from tests.unit.diagnose.messages.test_ends_of_jobs import ENDS

from memsheet.diagnose.verdict import Diagnosis, diagnose_texts


def _each(before: str, behind: str = "") -> Callable[[str], str]:
    return lambda text: "\n".join(f"{before}{line}{behind}" for line in text.split("\n"))


def _records(text: str) -> str:
    return "\n".join(
        json.dumps({"ts": "2025-09-14T10:02:55Z", "level": "ERROR", "msg": line}) for line in text.split("\n")
    )


DRESSES: dict[str, Callable[[str], str]] = {
    "ranks": _each("[rank0]: "), "journald": _each("Sep 14 10:02:55 rig2 python[902]: "), "compose": _each("trainer-1  | "),
    "containers": _each("2025-09-14T10:02:55.123456789Z stderr F "), "JSON lines": _records, "one record": lambda text: json.dumps({"log": text}),
    "colours": _each("\x1b[31m", "\x1b[0m"), "Windows": lambda text: text.replace("\n", "\r\n"), "indented": _each("    "),
    "logging": _each("2025-09-14 10:02:55,123 - trainer.main - ERROR - "), "glog": _each("E0914 10:02:55.123456 12345 main.cc:88] "),
    "a page": lambda text: "<pre>" + text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") + "</pre>",
    "pairs": lambda text: "\n".join(f'time=2025-09-14T10:02:55Z level=error msg="{line}"' for line in text.split("\n")),
    "Ray": _each("(TaskRunner pid=4411, ip=10.0.0.3) "), "fenced": lambda text: f"help please\n```\n{text}\n```\nthanks",
    "German": lambda text: f"Hallo, diesen Fehler verstehe ich nicht:\n\n{text}\n\nDanke!", "Chinese": lambda text: f"大家好，求助：\n{text}\n谢谢！",
    "Spanish": lambda text: f"Hola, me sale esto:\n{text}\n¡Gracias!", "Japanese": lambda text: f"こんにちは、教えてください。\n{text}\nよろしくお願いします。",
    "Portuguese": lambda text: f"Olá, alguém sabe?\n{text}\nObrigado!", "French": lambda text: f"Bonjour, je ne comprends pas :\n{text}\nMerci !",
}  # fmt: skip
CASES = [text for cases in ENDS.values() for _, text in cases]
SAMPLE = 24


def _told(found: Diagnosis) -> tuple[object, ...]:
    return found.found, found.cause, set(found.open_between), found.term and found.term.component


@pytest.mark.parametrize("name", DRESSES)
def test_who_carries_a_message_changes_nothing_of_it(name: str) -> None:
    """Of a sample of ends, another for each carrier and the same each time."""
    for text in Random(name).sample(CASES, SAMPLE):
        dressed = DRESSES[name](text)
        assert _told(diagnose_texts({"log": dressed})) == _told(diagnose_texts({"log": text})), dressed


@pytest.mark.parametrize("line", [
    '{"reason": "OOMKilled", "message": "see the events", "exitCode": 137}', '{"loss": 1.2, "msg": "step 3"}', '{"msg": 3}', "{not json}", '{"msg": ' + "[" * 5000 + "}",
])  # fmt: skip
def test_a_record_that_says_more_than_its_carrier_stays_whole(line: str) -> None:
    from memsheet.diagnose.cleaned import cleaned_log

    assert cleaned_log([line], ()).lines == (line,)
