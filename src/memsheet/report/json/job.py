"""A job of several models as JSON: ``memsheet/job/1``, which is read and which an answer repeats."""

from typing import Any, Literal

from memsheet.plan.job import Residency, Work
from memsheet.report.json.document import Document, Natural, Plan, optional_key
from memsheet.sheet import Component

Sizes = Natural | list[Natural]
"""Bytes: one number, or the least, the expected and the most."""


class Role(Document):
    """One model. ``process``: roles of one process share its context; ``keeps_cache``: what its allocator has
    freed stays reserved while others are active.
    """

    model: str = optional_key()
    plan: Plan
    trained: bool = optional_key()
    process: str = optional_key()
    keeps_cache: bool = optional_key()
    head: Literal["tokens", "values"] = optional_key()
    weights_of: str = optional_key()


class Logits(Document):
    """Whole logits of so many tokens, or of all that the phase brings in, as bytes of each logit."""

    tokens: Natural = optional_key()
    bytes: Sizes
    why: str = optional_key()


class Extra(Document):
    """Bytes of a phase that are of no role's own step. ``role``: whose they are, else the active one's;
    ``instants``: of the step those at which they are there, else all.
    """

    component: Component = optional_key()
    path: str = optional_key()
    bytes: Sizes
    why: str = optional_key()
    role: str = optional_key()
    instants: list[str] = optional_key()


class Phase(Document):
    """A part of a step. ``plan``: what of the active role's plan is otherwise; roles that ``residents`` does
    not name are whole; ``joined``: whose step is saved at once with the active one's.
    """

    name: str
    active: str | None = optional_key()
    work: Work = optional_key()
    plan: Plan = optional_key()
    residents: dict[str, Residency] = optional_key()
    logits: Logits = optional_key()
    items: list[Extra] = optional_key()
    joined: str = optional_key()


class Job(Document):
    """``memsheet/job/1``: roles and phases of a job. ``placement``: of a role its first card and how many;
    without it all of them.
    """

    schema_: Literal["memsheet/job/1"] = optional_key()
    name: str = optional_key()
    gpus: str = optional_key()
    nodes: int = optional_key()
    per_node: int = optional_key()
    host_memory: Any = optional_key()
    roles: dict[str, Role]
    placement: dict[str, list[Natural]] = optional_key()
    phases: list[Phase]
    assumed: list[str] = optional_key()
    notes: list[str] = optional_key()
