"""`memsheet train`."""

from __future__ import annotations

from memsheet import api
from memsheet.cli.job import run
from memsheet.cli.line import Given


def train(asked: Given) -> int:
    """Does this training job fit, and what takes the room?"""
    return run(api.train, asked)
