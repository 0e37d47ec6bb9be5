"""Of which parameters a step leaves a gradient: a small one is run, and looked at."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace

from torch import nn

from memsheet.plan.plan import Plan
from memsheet.recording import FROZEN, IDLE, TRAINED
from memsheet.run.fsdp2 import head_group_modules
from memsheet.run.step import random_token_batch
from memsheet.trace.job import How, recording_context
from memsheet.trace.values import with_values_if_asked

TOKENS = 256
"""Of the step that is looked at: enough for every expert to get one."""

Reached = frozenset[str] | None
"""Names of parameters; None where no step could be run, and all are taken for trained."""


def reached_parameters(build: Callable[[str], nn.Module], plan: Plan, tokens: int) -> tuple[Reached, bool]:
    """The parameters of which one sequence of ``tokens`` leaves a gradient, by each of their names; and
    whether a module that is grouped with the head never runs.
    """
    asked = replace(plan, workload=replace(plan.training, microbatch=1, seq_len=tokens))
    with suppress(Exception):  # a library's own refusal: what trains there is asked of a step that is wanted
        found: tuple[Reached, bool] = with_values_if_asked(
            lambda how: _reached(build, asked, how), How(scratch=False)
        )
        return found
    return None, False


def _reached(build: Callable[[str], nn.Module], plan: Plan, how: How) -> tuple[Reached, bool]:
    with recording_context(how):
        model, run = build(how.device), set[int]()
        ends = head_group_modules(model)
        for module in ends:
            module.register_forward_pre_hook(lambda module, _: run.add(id(module)))
        batch = random_token_batch(model.config, plan, how.device)
        model(**batch).loss.backward()
        named = model.named_parameters(remove_duplicate=False)
        return frozenset(name for name, one in named if one.grad is not None), len(run) < len(ends)


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
