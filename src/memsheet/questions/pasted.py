"""Whatever a person pastes → the question that it is: a name, an address, a configuration, a command, a link.

Recognised by what it holds, as a file is: nothing is asked about it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from memsheet.errors import InputError, input_error
from memsheet.guard import MAX_JSON_BYTES, parse_json
from memsheet.patterns import late_pattern

LINK = late_pattern(r"^(?:\S*#)?q=(train|infer)&(\S+)$")
"""The part of a link behind its mark: what is asked, and every option that was given."""
NAME = late_pattern(r"^(?:https?://huggingface\.co/)?[\w.-]+(?:/[\w.-]+)*(?:@[\w.-]+)?/?$")
"""A model's name on one line, bundled or a hub's, or the address of its page."""
DIED = late_pattern(r"out of memory|OutOfMemoryError|Tried to allocate", re.IGNORECASE)


def read_pasted(text: Any) -> dict[str, Any]:
    """What a text is (``kind``), the ``request`` that asks about it, and that in words (``said``). Raises
    InputError for none or too much of it.
    """
    if not isinstance(text, str) or not text.strip():
        raise input_error("text", None, "is empty", "a model's name, a config.json, a command, a link")
    if len(text) > MAX_JSON_BYTES:
        raise input_error("text", None, f"is longer than {MAX_JSON_BYTES:,} letters")
    held = text.strip()
    if found := LINK.match(held):
        return _pasted_request(
            "link", {"question": found[1], **dict(parse_qsl(found[2]))}, "a link to a question"
        )
    if held.startswith("memsheet ") and "\n" not in held.replace("\\\n", " "):
        return _command_request(held)
    if held.startswith("{") and (config := _model_config(held)) is not None:
        return config
    if NAME.match(held):
        return _pasted_request("model", {"model": held.rstrip("/")}, "a model's name")
    if DIED.search(held):
        request = {"question": "diagnose", "text": text}
        return _pasted_request("message", request, "the message of a job that died of memory")
    file = {"name": named_by_content(held, "pasted"), "text": text}
    _check_recognised(file["name"], text)
    return _pasted_request(
        "files", {"question": "check", "files": [file]}, "an engine's configuration or command"
    )


def _check_recognised(name: str, text: str) -> None:
    from memsheet.questions.recognised_files import UNKNOWN, recognise_files

    try:
        recognise_files({name: text}, ())
    except InputError as error:
        if error.problems[0].reason == UNKNOWN:
            hint = "a model's name, its config.json, an engine's configuration, a command"
            raise input_error("text", None, "is nothing that is known here", hint) from None


def _pasted_request(kind: str, request: Mapping[str, Any], said: str) -> dict[str, Any]:
    return {"schema": "memsheet/read/1", "kind": kind, "request": dict(request), "said": said}


def _model_config(text: str) -> dict[str, Any] | None:
    """An object that is a model's configuration, or a plan; None for another."""
    document = parse_json(text, "text")
    if not isinstance(document, dict):
        return None
    schema = str(document.get("schema", ""))
    if schema.startswith(("memsheet/plan/", "memsheet/plans/", "memsheet/sheet/")):
        plan = document.get("plan", document) if schema.startswith("memsheet/sheet/") else document
        task = plan.get("task") if isinstance(plan, dict) else None
        return _pasted_request(
            "plan", {"question": "infer" if task == "infer" else "train", "plan": plan}, "a plan"
        )
    known = "model_type" in document and ("hidden_size" in document or "text_config" in document)
    return _pasted_request("model", {"model": document}, "a model's config.json") if known else None


def _command_request(line: str) -> dict[str, Any]:
    """A line of our own: its words as options by their names in Python. Raises InputError for another command
    than those that the page asks.
    """
    try:
        _, task, *words = shlex.split(line.replace("\\\n", " "))
    except ValueError:
        raise input_error("text", line, "is no command line: a quotation is not closed") from None
    if task not in ("train", "infer"):
        raise input_error("text", task, "is a command that is not pasted here", "memsheet train … or infer …")
    request: dict[str, Any] = {"question": task}
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("--"):
            request["model"] = word
        elif equals:
            request[_option_name(name)] = value
        elif words and not words[0].startswith("--"):
            request[_option_name(name)] = words.pop(0)
        else:
            request[_option_name(name.replace("--no-", "--"))] = not name.startswith("--no-")
    for shown in ("json", "full", "units", "debug"):
        request.pop(shown, None)
    return _pasted_request("command", request, f"memsheet {task}")


def _option_name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def named_by_content(text: str, stem: str) -> str:
    """A name that a file of such a text has, as readers go by its ending: ``stem`` and that."""
    return f"{stem}.{_ending_of(text.strip())}"


def _ending_of(text: str) -> str:
    if text.startswith("{"):
        try:
            return "ipynb" if "nbformat" in json.loads(text) else "json"
        except ValueError:
            return "json"
    if re.search(r"^\s*(?:import|from) \w+|^def \w+\(", text, re.MULTILINE):
        return "py"
    if re.match(r"^\[[\w.]+\]\s*$", text.partition("\n")[0]):
        return "toml"
    first = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    return "yaml" if re.match(r"^[\w.-]+:(?:\s|$)", first) else "sh"


TYPED = "memsheet-typed-"
"""How folders begin that hold what was typed in the place of files, which has no place to tell."""


def told_name(path: Path, files: tuple[str, ...]) -> str:
    """What a file is called in words: its last name where it is the only one, else as it was named."""
    typed = next((one for one in path.parents if one.name.startswith(TYPED)), None)
    short = str(path.relative_to(typed)) if typed else str(path)
    return path.name if len(files) == 1 else str(path) if short in files else short
