"""What data-parallel ranks tell one another in a step, in bytes and in seconds: so that one can say why a
sharding is slower.
"""

from __future__ import annotations

from collections.abc import Iterable

from memsheet.formulas.sharding.algorithm import algorithm_of
from memsheet.formulas.step_time.parts import Part, parts_of
from memsheet.formulas.step_time.rates import Efficiency, rates_of
from memsheet.formulas.step_time.replicas import Overlap, gathered_size, gathers_units
from memsheet.formulas.step_time.training_step import shop_of, step_time
from memsheet.frozen import dataclass
from memsheet.plan.device import Cluster
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.references import ZERO, formula


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """``gathered_bytes``: the parameters of the fullest stage, whole, in the dtype that they travel in;
    ``gathers``: times a step, of which ``gathers_each`` in every micro-batch (0: once a step, after the
    optimizer's). ``reduced_bytes``, ``reductions``, ``reductions_each``: gradients alike. ``gathered_s``,
    ``reduced_s``: what no pass hides of it, of ``step_time``'s value. ``ranks``: how many take part.
    """

    ranks: int
    gathered_bytes: int
    gathers: int
    gathers_each: int
    gathered_s: float
    reduced_bytes: int
    reductions: int
    reductions_each: int
    reduced_s: float

    @property
    def volume_bytes(self) -> int:
        """Payload of a step. Through a rank's links goes (n-1)/n of what is gathered, and of gradients that
        are divided; twice that of gradients that every rank gets whole.
        """
        return self.gathered_bytes * self.gathers + self.reduced_bytes * self.reductions


@formula(
    cites=ZERO,
    at=(
        "section 7: stages 1 and 2 move as much as plain data parallelism; stage 3 half as much again, "
        "gathering parameters twice"
    ),
    counts="int",
)
def data_parallel_traffic(
    spec: ModelSpec, plan: Plan, cluster: Cluster, *, efficiency: Efficiency | None = None
) -> Exchanged:
    """Parameters and gradients that data-parallel ranks of one plan exchange in a step. Raises InputError for
    what is not timed.
    """
    engine, time = engine_of(plan), step_time(spec, plan, cluster, efficiency=efficiency)
    ranks, times = plan.mesh.data_parallel * plan.mesh.cp, plan.accumulation
    units = gathers_units(plan, engine.sharding)
    each = 1 + plan.reshard_after_forward if units else 0
    again = 1 if units or (plan.zero == 2 and algorithm_of(engine.sharding).traffic.reduces_each) else 0
    several = int(ranks > 1)
    gathers = each * times if units else int(plan.zero >= 1)
    parts = parts_of(shop_of(plan, engine, rates_of(cluster), Overlap.ENGINE), spec)
    size = gathered_size(plan) if units else WHOLE_BYTES
    return Exchanged(
        ranks=ranks,
        gathers=several * gathers,
        gathers_each=several * each,
        gathered_s=time.parts["parameters_gathered"],
        gathered_bytes=int(
            _fullest_stage_elements(plan, parts.items(), ("dense", "experts"))
            * size
            * bool(several * gathers)
        ),
        reductions=several * (times if again else 1),
        reductions_each=several * again,
        reduced_s=time.parts["gradients_reduced"],
        reduced_bytes=int(
            _fullest_stage_elements(plan, parts.items(), ("trained", "routed_trained"))
            * plan.precision.reduce.bits
            / 8
            * several
        ),
    )


WHOLE_BYTES = 2.0
"""Of a parameter gathered after the optimizer's step, in the 16 bits that it is computed in."""


def _fullest_stage_elements(
    plan: Plan, parts: Iterable[tuple[tuple[int, int], Part]], fields: tuple[str, ...]
) -> float:
    """Elements of the fullest stage."""
    stages = dict.fromkeys(range(plan.mesh.pp), 0.0)
    for (stage, _), part in parts:
        stages[stage] += sum(part.total(field) for field in fields)
    return max(stages.values())
