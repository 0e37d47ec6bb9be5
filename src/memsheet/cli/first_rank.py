"""Of several ranks that were started with one command line the first one speaks."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from memsheet.cli.error_output import BAD_INPUT
from memsheet.errors import InputError
from memsheet.trace.launch import ElsewhereError, is_first

Given = ParamSpec("Given")
SILENCE_S = 2.0
"""torchrun ends every rank as soon as one has failed: the others leave the first one time to say why."""


def one_voice(command: Callable[Given, int]) -> Callable[Given, int]:
    """``command``, of which other ranks than the first say nothing: neither the answer nor what is wrong with
    the question.
    """

    @wraps(command)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> int:
        try:
            return command(*args, **kwargs)
        except ElsewhereError:
            return 0
        except InputError:
            if is_first():
                raise
            time.sleep(SILENCE_S)
            return BAD_INPUT

    return run
