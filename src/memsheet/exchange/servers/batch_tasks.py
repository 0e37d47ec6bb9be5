"""Servers that a batch script of Slurm or a task of SkyPilot starts itself, beside the jobs that these have
formats for (docs.skypilot.co running-jobs/environment-variables).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.launched_script import PYTHON, Launch, script_launches
from memsheet.exchange.shared.named_server import NamedServer
from memsheet.exchange.shared.script_places import ONE_PROCESS
from memsheet.exchange.shared.serve_command import SKYPILOTS_COUNT
from memsheet.exchange.shared.serve_pods import starts_a_server, tree_of
from memsheet.exchange.shared.slurm_environment import submitted_variables
from memsheet.exchange.shared.visible_cards import DIRECTIVES, EACH_NODE, ELSEWHERE
from memsheet.late import late_functions
from memsheet.patterns import late_pattern

with late_functions(__name__):
    from memsheet.exchange.shared.device_labels import least_cards


ACCELERATORS = "resources.accelerators"
_DIRECTIVE = late_pattern(r"^#SBATCH.*\n", re.MULTILINE)
_TRAINS = late_pattern(
    r"train|tune|sft|dpo|ppo|rlhf|(?<![a-z])(?:grpo|rl|lora|distill)(?![a-z])", re.IGNORECASE
)
_SEVERAL_NODES = late_pattern(
    r"--(?:nnodes|dist-init-addr|headless|data-parallel-address|master-addr|pipeline-parallel-size|pp-size)\b"
    r"| -pp\b"
)
"""Flags of servers by which processes on several nodes are one, or layers lie on several."""
_RUN = late_pattern(r"^run:", re.MULTILINE)
_CARDS = late_pattern(r"[A-Za-z][\w.-]*:(\d{1,4})")


def batch_servers(_: str, text: str, parse: Callable[[str, str], Any]) -> list[NamedServer]:
    """The servers that a batch script starts; none where it launches a training, or nothing of ours."""
    del parse
    if not _DIRECTIVE.search(text) or not starts_a_server(text):
        return []
    if any(not _is_client(one) for one in script_launches(text)):
        return []
    variables = submitted_variables(_DIRECTIVE.findall(text))
    given = (f"export {one}" for one in variables)
    return [
        NamedServer(
            "sbatch",
            "\n".join([*given, _DIRECTIVE.sub("", text)]),
            *_job_cards(variables, joined=_joins(text)),
        )
    ]


def _joins(text: str) -> bool:
    """Whether a script makes one server of several nodes."""
    return bool(ELSEWHERE.search(text) or _SEVERAL_NODES.search(text))


def _job_cards(variables: Iterable[str], *, joined: bool) -> tuple[int | None, str]:
    """Cards that a job gives a server, and what says so: those of a node, or of all nodes that are
    ``joined``; None where directives say no number.
    """
    told = {name: int(count) for name, _, count in (one.partition("=") for one in variables)}
    nodes, on_node = told.get("SLURM_NNODES"), told.get("SLURM_GPUS_ON_NODE")
    if nodes is None or on_node is None:
        return None, DIRECTIVES
    return (on_node * nodes, DIRECTIVES) if joined or nodes == 1 else (on_node, EACH_NODE)


def _is_client(launch: Launch) -> bool:
    """Whether a script beside a server may be what asks it: one process of Python, that by its name trains
    nothing.
    """
    alone = launch.launcher == PYTHON and launch.flags.keys() <= {ONE_PROCESS}
    return alone and not _TRAINS.search(launch.script)


def task_servers(name: str, text: str, parse: Callable[[str, str], Any]) -> list[NamedServer]:
    """The servers that a task runs, with its environment; none where it runs something else."""
    tree = tree_of(parse, name, text) if _RUN.search(text) else None
    run = tree.get("run") if tree else None
    if tree is None or not isinstance(run, str) or not starts_a_server(run):
        return []
    gpus = _accelerator_count(tree)
    least = None if gpus is not None else _least_count(tree)
    setup = tree["setup"] if isinstance(tree.get("setup"), str) else ""
    script = "\n".join([*_task_exports(tree, gpus, least), *_install_lines(setup), run])
    return [NamedServer("run", script, gpus, ACCELERATORS)]


def _accelerator_count(tree: Mapping[str, Any]) -> int | None:
    """Cards of a node; a choice of several kinds is no count."""
    held = tree.get("resources")
    told = held.get("accelerators") if isinstance(held, Mapping) else None
    if isinstance(told, Mapping) and len(told) == 1:
        ((card, many),) = told.items()
        told = f"{card}:{many}"
    found = _CARDS.fullmatch(told) if isinstance(told, str) else None
    return int(found[1]) if found else 1 if isinstance(told, str) else None


def _least_count(tree: Mapping[str, Any]) -> int | None:
    """Cards of a node where a task may take any of several kinds: of those with the least memory."""
    held = tree.get("resources")
    told = held.get("accelerators") if isinstance(held, Mapping) else None
    whole = told.items() if isinstance(told, Mapping) else ((one, None) for one in _listed_tasks(told))
    named = (str(card) if count is None else f"{card}:{count}" for card, count in whole)
    counted = [
        (card, int(count or 1))
        for card, _, count in (one.partition(":") for one in named)
        if _is_count(count)
    ]
    least = least_cards(counted) if len(counted) > 1 else None
    return least[1] if least else None


def _listed_tasks(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_count(text: str) -> bool:
    return not text or (text.isdecimal() and len(text) < 5)


def _task_exports(tree: Mapping[str, Any], gpus: int | None, least: int | None) -> Iterator[str]:
    held = tree.get("envs")
    for name, value in held.items() if isinstance(held, Mapping) else ():
        if str(name).isidentifier() and isinstance(value, str | int | float):
            yield f"export {name}={shlex.quote(str(value))}"
    if gpus is not None:
        yield f"export {SKYPILOTS_COUNT}={gpus}"
    elif least is not None:
        yield f'export {SKYPILOTS_COUNT}="${{{SKYPILOTS_COUNT}:-{least}}}"'


def _install_lines(setup: str) -> Iterator[str]:
    """Lines of a setup that install packages, of which one may say the engine's version."""
    yield from (line.strip() for line in setup.splitlines() if " install " in line)
