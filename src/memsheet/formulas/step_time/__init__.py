"""Seconds of a training step, as an interval, to rank plans by. See ``step_time``."""

from memsheet.formulas.step_time.calibration import calibrated, fitted
from memsheet.formulas.step_time.exchanged import Exchanged, exchanged
from memsheet.formulas.step_time.rates import Efficiency, Rates, rates_of
from memsheet.formulas.step_time.replicas import Overlap
from memsheet.formulas.step_time.result import CONVENTION, StepTime, gpu_hours
from memsheet.formulas.step_time.shares import NAMES
from memsheet.formulas.step_time.whole import quick_s, step_time

__all__ = [
    "CONVENTION", "NAMES", "Efficiency", "Exchanged", "Overlap", "Rates", "StepTime", "calibrated", "exchanged", "fitted", "gpu_hours",
    "quick_s", "rates_of", "step_time",
]  # fmt: skip
