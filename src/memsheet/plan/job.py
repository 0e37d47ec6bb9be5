"""A job of several models on the same cards: its roles, its phases, and what each role has on a card in each
phase.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from memsheet.frozen import dataclass, field
from memsheet.plan.workload import Serving

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memsheet.plan.device import Cluster
    from memsheet.plan.model import ModelSpec
    from memsheet.plan.plan import Plan
    from memsheet.sheet import Bytes, Component, Instant


class Residency(Enum):
    """What of a role is on the card while a phase lasts."""

    WHOLE = "whole"
    PARAMETERS = "parameters"
    """Of what trains: the optimizer's states are on the host. Of a server: its weights, and no cache."""
    STATES = "states"
    """Of what trains: its parameters are on the host, the optimizer's states are not."""
    OFFLOADED = "offloaded"
    """Parameters and states on the host; an active role has them unit by unit."""
    ASLEEP_1 = "asleep-1"
    """A server's weights on the host, its cache gone."""
    ASLEEP_2 = "asleep-2"
    """A server's weights and cache gone; the model's buffers on the host."""
    RESIDUE = "residue"
    """What a process holds that has released all that it can, with nothing on the host."""
    ABSENT = "absent"


OF_SERVERS = (Residency.ASLEEP_1, Residency.ASLEEP_2)
OF_TRAINING = (Residency.STATES, Residency.OFFLOADED)


class Work(Enum):
    """What the active role of a phase does."""

    STEP = "step"
    """All that its plan is: a training step, or serving."""
    FORWARD = "forward"
    """A pass without gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One model of a job. ``cards``: the first that it runs on, and how many; ``process``: roles of one
    process share its context; ``keeps_cache``: whether what its allocator has freed stays reserved while
    other roles are active; ``weights_of``: the role whose own tensors its weights are, as of a model that
    generates between its steps.
    """

    name: str
    model: ModelSpec
    plan: Plan
    cards: tuple[int, int]
    trained: bool
    process: str
    keeps_cache: bool = False
    weights_of: str | None = None

    @property
    def serves(self) -> bool:
        return isinstance(self.plan.workload, Serving)

    @property
    def group(self) -> int:
        """Cards of one copy: of what trains all of its own, of a server those of one replica."""
        mesh = self.plan.mesh
        return int(mesh.tp * mesh.pp) if self.serves else self.cards[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Logits:
    """Whole logits of ``tokens`` positions of a rank (None: of all that the phase's plan brings to it), as
    ``per_logit`` bytes of each.
    """

    tokens: int | None
    per_logit: Bytes
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """Bytes of a phase that are of no role's own step. ``role``: whose they are, where they are not of the
    one that works; ``instants``: of the phase's step those at which they are there, all where none is named.
    """

    component: Component
    path: str
    size: Bytes
    why: str
    role: str | None = None
    instants: tuple[Instant, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of a job's step. ``plan``: the active role's, where it is another than its own (another
    micro-batch); roles that ``residents`` do not name are whole; ``joined``: whose step is saved at once with
    the active one's, as one module.
    """

    name: str
    active: str | None = None
    work: Work = Work.STEP
    plan: Plan | None = None
    residents: Mapping[str, Residency] = field(default_factory=dict)
    logits: Logits | None = None
    extras: tuple[Extra, ...] = ()
    joined: str | None = None

    def residency_of(self, role: Role) -> Residency:
        return self.residents.get(role.name, Residency.WHOLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Roles and phases in order, on one cluster."""

    name: str
    cluster: Cluster | None
    roles: tuple[Role, ...]
    phases: tuple[Phase, ...]

    @property
    def count(self) -> int:
        """Cards in all."""
        return max(first + many for first, many in (role.cards for role in self.roles))
