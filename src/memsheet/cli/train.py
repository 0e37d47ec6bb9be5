"""`memsheet train`."""

from __future__ import annotations

from memsheet.cli.line import Given
from memsheet.cli.question import run_job
from memsheet.questions import accounted


def train(asked: Given) -> int:
    """Does this training job fit, and what takes the room?"""
    return run_job(accounted.train, asked)
