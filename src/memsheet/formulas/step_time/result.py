"""What is said of a step's time."""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.formulas.step_time.numbers import Real
from memsheet.frozen import dataclass

CONVENTION = (
    "model flops: 3 x the forward products (2 x of a frozen model), attention counted causally (masked "
    "scores not counted), "
    "recompute not counted; over the dense bf16 rate"
)
HOUR_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of a step: ``low`` ≤ ``value`` ≤ ``high``; numbers, or arrays of a stratum. ``parts``: seconds
    of the value by what takes them (``shares.NAMES``), which add up to it; ``flops`` of the model in a step
    on all ``gpus`` (``CONVENTION``), ``dense_flops`` a second of one device.
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
        return gpu_hours(
            tokens, (self.tokens / self.high, self.tokens / self.value, self.tokens / self.low), self.gpus
        )

    def against(self, other: StepTime) -> Mapping[str, Real]:
        """Seconds more of each part than ``other`` takes, the largest difference first; of plain numbers.
        They add up to the difference of the values.
        """
        found = {name: self.parts[name] - other.parts[name] for name in self.parts}
        return dict(sorted(found.items(), key=lambda pair: -abs(float(pair[1]))))


def gpu_hours(tokens: float, tokens_per_s: tuple[Real, Real, Real], gpus: Real) -> tuple[Real, Real, Real]:
    """What a budget of tokens costs in hours of one GPU, (low, value, high): ``tokens_per_s`` of all ``gpus``
    together, slowest first. The fastest rate costs least.

    Time of training alone: restarts, checkpoints and evaluation come on top.
    """
    slow, value, fast = (tokens / rate * gpus / HOUR_S for rate in tokens_per_s)
    return fast, value, slow
