"""What is said of a step's time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memsheet.formulas.step_time.numbers import Real

CONVENTION = (
    "model flops: 3 x the forward products (2 x of a frozen model), attention counted causally (masked scores not counted), "
    "recompute not counted; over the dense bf16 rate"
)
HOUR_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of a step: ``low`` ≤ ``value`` ≤ ``high``; numbers, or arrays of a stratum. ``parts``: seconds of the
    value by what takes them,
    ``flops`` of the model in a step on all ``gpus`` (``CONVENTION``), ``dense_flops`` a second of one device.
    """

    low: Real
    value: Real
    high: Real
    parts: Mapping[str, Real]
    tokens: Real
    gpus: Real
    flops: Real
    dense_flops: float
    calibrated: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def tokens_per_s(self) -> Real:
        return self.tokens / self.value

    @property
    def tokens_per_s_per_gpu(self) -> Real:
        return self.tokens / self.value / self.gpus

    @property
    def mfu(self) -> Real:
        """Share of the dense bf16 rate (fp16 where there is none), by ``CONVENTION``."""
        return self.flops / self.value / self.gpus / self.dense_flops

    def gpu_hours(self, tokens: float) -> tuple[Real, Real, Real]:
        """(low, value, high) for so many tokens of training."""
        each = tokens / self.tokens * self.gpus / HOUR_S
        return each * self.low, each * self.value, each * self.high
