"""The command line: one file a command, loaded when it is asked for. Answers go to stdout, everything else to stderr."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Any

from memsheet.errors import InputError, missing_package

INTERRUPTED = 130
BROKEN = 70
"""Exit code of an error that is memsheet's own (EX_SOFTWARE of sysexits.h), never that of an answer."""

HELP = """Every byte on every GPU, before the job runs.

Exit code: 0 fits, 10 does not fit, 11 uncertain, 2 bad input."""

COMMANDS = {
    "train": "Does this training job fit, and what takes the room?",
    "infer": "Does this model fit for inference, and how much cache is left?",
    "plan": "The fastest plans that fit, of every legal one, and why the others do not.",
    "solve": "The longest sequence, largest micro-batch, fewest GPUs or largest model that fits.",
    "export": "A plan as the configuration of the engine that runs it.",
    "check": "A configuration file of an engine: its sheet, its verdict, its mistakes.",
    "trace": "What does the real code allocate? Run on fake tensors, no GPU.",
    "measure": "What does a real step allocate on this machine?",
    "verify": "Predicted, traced and measured side by side: a plan run as far as this machine can.",
    "calibrate": "Scale step times by a measured one, from now on, for its device and engine.",
    "compare": "Two sheets side by side: which rows differ, the largest difference first.",
    "explain": "What a word on a sheet means, with its source.",
    "models": "The bundled models.",
    "gpus": "The devices memsheet knows, and what a framework gets of each.",
}


command_line: list[str] | None = None
"""The process's own command line, once it is the one that is answered."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 fits, 10 does not fit, 11 uncertain, 2 bad input."""
    global command_line  # noqa: PLW0603
    if arguments is None:
        gc.disable()  # a command is over before there is garbage worth collecting
        command_line = sys.argv[1:]
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(given)
    except InputError as error:
        if "--debug" in given:
            raise
        from memsheet.cli.trouble import explain_input

        return explain_input(error)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if "--debug" in given:
            raise
        from memsheet.cli.trouble import explain_broken, explain_input

        missing = missing_package(error) if isinstance(error, ModuleNotFoundError) else None
        return explain_input(missing) if missing else explain_broken(error, BROKEN)


def _run(given: list[str]) -> int:
    from cyclopts.exceptions import CycloptsError

    try:
        code = application()(given or ["--help"], exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        from memsheet.cli.trouble import explain_usage

        return explain_usage(error)
    return code if isinstance(code, int) else 0


def application() -> Any:
    """The command line as cyclopts sees it; a command's module is imported when the command is run."""
    from cyclopts import App

    app = App(
        name="memsheet",
        help=HELP,
        help_format="plaintext",
        version=_version,
        suppress_keyboard_interrupt=False,
    )
    for number, (name, words) in enumerate(COMMANDS.items()):
        app.command(f"memsheet.cli.{name}:{name}", name=name, help=words, sort_key=number)
    return app


def _version() -> str:
    from importlib.metadata import version

    return version("memsheet")
