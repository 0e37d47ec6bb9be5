"""Seconds of a training step, as an interval, to rank plans by. See ``step_time``."""

from memsheet.formulas.step_time.calibration import calibrate_efficiency, fit_efficiency
from memsheet.formulas.step_time.exchanged import Exchanged, data_parallel_traffic
from memsheet.formulas.step_time.rates import Efficiency, Rates, rates_of
from memsheet.formulas.step_time.replicas import Overlap
from memsheet.formulas.step_time.result import CONVENTION, StepTime, gpu_hours
from memsheet.formulas.step_time.shares import NAMES
from memsheet.formulas.step_time.training_step import quick_s, step_time

__all__ = [
    "CONVENTION", "NAMES", "Efficiency", "Exchanged", "Overlap", "Rates", "StepTime", "calibrate_efficiency", "data_parallel_traffic", "fit_efficiency", "gpu_hours",
    "quick_s", "rates_of", "step_time",
]  # fmt: skip
