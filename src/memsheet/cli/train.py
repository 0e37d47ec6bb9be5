"""`memsheet train`."""

from __future__ import annotations

from memsheet.cli.job import run_job
from memsheet.cli.line import Given
from memsheet.questions import accounted


def train(asked: Given) -> int:
    """Does this training job fit, and what takes the room?"""
    return run_job(accounted.train, asked)
