"""What measured steps say of the rates: one or two scalars for a device and its software."""

from __future__ import annotations

from collections.abc import Sequence

from memsheet.formulas.step_time.rates import Efficiency
from memsheet.formulas.step_time.training_step import step_time
from memsheet.frozen import dataclass, replace
from memsheet.plan.device import Cluster
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan

BOUNDS = (0.02, 4.0)
SECOND_BOUNDS = (0.25, 2.0)
STEPS = 40
CANDIDATES = 41
TOLD_APART = 0.1
"""Of a step: two whose shares differ by less would ask for any ratio at all within the errors of the rest."""


TOLD = ("tensor_parallel", "context_parallel", "expert_parallel", "parameters_gathered", "gradients_reduced")
"""Parts of a step that are ranks' exchanges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    spec: ModelSpec
    plan: Plan
    cluster: Cluster
    seconds: float

    def predicted(self, efficiency: Efficiency) -> float:
        return float(step_time(self.spec, self.plan, self.cluster, efficiency=efficiency).value)

    def share(self, parts: Sequence[str]) -> float:
        found = step_time(self.spec, self.plan, self.cluster)
        return float(sum(found.parts[name] for name in parts) / found.value)


def calibrate_efficiency(
    step: MeasuredStep, *, start: Efficiency | None = None, source: str | None = None
) -> Efficiency:
    """One scalar for everything that makes the prediction the measured time: one step cannot tell computing
    from communication. ``start`` keeps the ratios between them. By bisection, as a slower rate never makes a
    step faster.
    """
    base = start or Efficiency()
    low, high = BOUNDS
    for _ in range(STEPS):
        middle = (low * high) ** 0.5
        low, high = (
            (middle, high)
            if step.predicted(_scale_efficiency(base, middle, source)) > step.seconds
            else (low, middle)
        )
    return _scale_efficiency(base, (low * high) ** 0.5, source)


def _scale_efficiency(base: Efficiency, factor: float, source: str | None) -> Efficiency:
    return Efficiency(
        compute=base.compute * factor,
        attention=base.attention * factor,
        communication=base.communication * factor,
        source=source,
    )


def fit_efficiency(steps: Sequence[MeasuredStep], *, source: str | None = None) -> Efficiency:
    """From one step one scalar. From two also the ratio of attention or of communication to the rest,
    whichever their shares tell apart better; where neither does by ``TOLD_APART``, one scalar between what
    the two ask for.
    """
    if len(steps) == 1:
        return calibrate_efficiency(steps[0], source=source)
    first, second = steps[:2]
    apart = {
        name: abs(first.share(parts) - second.share(parts))
        for name, parts in (("attention", ("attention",)), ("communication", TOLD))
    }
    name = max(apart, key=lambda key: apart[key])
    if apart[name] < TOLD_APART:
        one, other = (calibrate_efficiency(step).compute for step in (first, second))
        return _scale_efficiency(Efficiency(), (one * other) ** 0.5, source)
    low, high = SECOND_BOUNDS
    ratios = (low * (high / low) ** (n / (CANDIDATES - 1)) for n in range(CANDIDATES))
    found = (
        calibrate_efficiency(first, start=replace(Efficiency(), **{name: ratio}), source=source)
        for ratio in ratios
    )
    return min(found, key=lambda one: abs(second.predicted(one) / second.seconds - 1))
