"""Of which parameters a step leaves a gradient: a small one is run, and looked at."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress

from torch import nn

from memsheet.frozen import replace
from memsheet.plan.plan import Plan
from memsheet.recording import EMBEDDINGS, FROZEN, HEAD, IDLE, TRAINED
from memsheet.run.fsdp2 import embeddings_group_modules, head_group_modules
from memsheet.run.step import random_token_batch
from memsheet.trace.job import How, recording_context
from memsheet.trace.values import with_values_if_asked

TOKENS = 256
"""Of the step that is looked at: enough for every expert to get one."""

Reached = frozenset[str] | None
"""Names of parameters; None where no step could be run, and all are taken for trained."""


def reached_parameters(
    build: Callable[[str], nn.Module], plan: Plan, tokens: int
) -> tuple[Reached, tuple[str, ...]]:
    """The parameters of which one sequence of ``tokens`` leaves a gradient, by each of their names; and
    of which end's group a module never runs.
    """
    asked = replace(plan, workload=replace(plan.training, microbatch=1, seq_len=tokens))
    with suppress(Exception):  # a library's own refusal: what trains there is asked of a step that is wanted
        found: tuple[Reached, tuple[str, ...]] = with_values_if_asked(
            lambda how: _reached(build, asked, how), How(scratch=False)
        )
        return found
    return None, ()


def _reached(build: Callable[[str], nn.Module], plan: Plan, how: How) -> tuple[Reached, tuple[str, ...]]:
    with recording_context(how):
        model, run = build(how.device), set[int]()
        ends = _end_groups(model)
        for module in (module for group in ends.values() for module in group):
            module.register_forward_pre_hook(lambda module, _: run.add(id(module)))
        batch = random_token_batch(model.config, plan, how.device)
        model(**batch).loss.backward()
        named = model.named_parameters(remove_duplicate=False)
        idle = tuple(end for end, group in ends.items() if not run.issuperset(map(id, group)))
        return frozenset(name for name, one in named if one.grad is not None), idle


def _end_groups(model: nn.Module) -> dict[str, list[nn.Module]]:
    with suppress(NotImplementedError):  # of a library that finds no table
        return {EMBEDDINGS: embeddings_group_modules(model), HEAD: head_group_modules(model)}
    return {}


def reached_below(reached: Reached, path: str) -> Reached:
    """The names below a module."""
    if reached is None:
        return None
    return frozenset(name.removeprefix(f"{path}.") for name in reached if name.startswith(f"{path}."))


def graded_as(names: Collection[str], parameter: nn.Parameter, reached: Reached) -> str:
    """What a parameter of these names is to a step (``recording.GRADED``)."""
    if not parameter.requires_grad:
        return FROZEN
    return TRAINED if reached is None or not reached.isdisjoint(names) else IDLE
