"""Experiments of Beaker's (``tasks`` with a ``command`` and ``arguments``) as the shell's script that the
first task runs, as allenai/open-instruct e6c3044 configs/beaker_configs/default_finetune.yaml has them.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from memsheet.errors import InputError
from memsheet.patterns import late_pattern

SHELL = ("-c", "-lc")
"""What makes the next word a script of its own."""
UNCOUNTED = late_pattern(r"(^|\s)deepspeed\s+(?!.*--num_gpus)")
"""DeepSpeed's launcher without a count, which takes every card of the machine (launcher/runner.py)."""


def experiment_script(name: str, text: str, parse: Callable[[str, str], Any]) -> str:
    """The script of an experiment's first task; nothing where the text is none."""
    if "tasks:" not in text or "arguments:" not in text:
        return ""
    try:
        document = parse(text, name)
    except (InputError, ValueError):
        return ""
    tasks = document.get("tasks") if isinstance(document, Mapping) else None
    task = tasks[0] if isinstance(tasks, list) and tasks and isinstance(tasks[0], Mapping) else {}
    return _counted_script(_task_script(task), task)


def _task_script(task: Mapping[str, Any]) -> str:
    words = [
        str(word)
        for place in ("command", "arguments")
        if isinstance(held := task.get(place), list)
        for word in held
    ]
    at = next((at for at, word in enumerate(words) if word in SHELL), None)
    return " ".join(words[at + 1 : at + 2]) if at is not None else shlex.join(words)


def _counted_script(script: str, task: Mapping[str, Any]) -> str:
    """With the cards of the task's machine, where its launcher takes them all."""
    resources = task.get("resources")
    cards = resources.get("gpuCount") if isinstance(resources, Mapping) else None
    if not isinstance(cards, int) or isinstance(cards, bool) or cards < 1:
        return script
    return UNCOUNTED.sub(rf"\1deepspeed --num_gpus {cards} ", script, count=1)
