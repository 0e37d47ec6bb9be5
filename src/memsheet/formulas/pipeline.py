"""Which layers a pipeline stage has, and how many micro-batches it holds at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from memsheet.arith import Count, minimum
from memsheet.references import PIPELINE_1F1B, formula
from memsheet.spec.model import Embeddings, ModelSpec, Role, Run, Stack, Weight
from memsheet.spec.plan import Plan, Schedule


@formula(cites=PIPELINE_1F1B, at="section 2.2: stage r of p keeps at most p - r micro-batches under 1F1B; GPipe keeps all")
def in_flight(schedule: Schedule | None, stages: int, stage: int, microbatches: Count) -> Count:
    """Micro-batches whose activations a stage (0 is the first) holds at its peak."""
    if schedule is None or schedule is Schedule.GPIPE:
        return microbatches if schedule else 1
    return minimum(microbatches, stages - stage)


def layers_of_stage(layers: int, plan: Plan, stage: int) -> tuple[int, int]:
    """First layer of a stage and the one after its last."""
    counts = plan.layers_per_stage or (layers // plan.mesh.pp,) * plan.mesh.pp
    first = sum(counts[:stage])
    return first, first + counts[stage]


def stage_model(spec: ModelSpec, plan: Plan, stage: int) -> ModelSpec:
    """The part of a model that a stage runs: embeddings (and towers) on the first, head on the last, its layers in between.

    A tied head needs its own copy of the embedding table on the last stage.
    """
    stages = plan.mesh.pp
    if stages == 1:
        return spec
    first, last = layers_of_stage(sum(stack.layers for stack in spec.stacks), plan, stage)
    parts, offset = [], 0
    for stack in spec.stacks:
        runs = tuple(_cut(stack, first - offset, last - offset))
        ends = first < offset + stack.layers <= last
        offset += stack.layers
        parts.append(replace(stack, runs=runs, final_norms=stack.final_norms if ends else ()))
    head = spec.head if stage == stages - 1 else replace(spec.head, kind="none", weights=(), tied=False)
    if stage == stages - 1 and spec.head.tied:
        head = replace(head, weights=_tied_copy(spec.embeddings))
    keeps = stage == 0
    return replace(
        spec, stacks=tuple(parts), head=head, towers=spec.towers if keeps else (), extras=spec.extras if keeps else (),
        embeddings=spec.embeddings if keeps else replace(spec.embeddings, weights=(), norms=()),
    )  # fmt: skip


def _tied_copy(embeddings: Embeddings) -> tuple[Weight, ...]:
    return tuple(replace(w, path="lm_head.weight", role=Role.HEAD) for w in embeddings.weights[:1])


def _cut(stack: Stack, first: int, last: int) -> Iterator[Run]:
    """The runs of a stack between two layers."""
    at = 0
    for run in stack.runs:
        width, start = len(run.pattern), at
        at += width * run.count
        low, high = max(first, start), min(last, at)
        if low >= high:
            continue
        head, whole_from = (low - start) % width, -(-(low - start) // width)
        whole_to, tail = (high - start) // width, (high - start) % width
        if whole_from > whole_to:  # within one pattern
            yield replace(run, pattern=run.pattern[head : head + high - low], count=1)
            continue
        if head:
            yield replace(run, pattern=run.pattern[head:], count=1)
        if whole_to > whole_from:
            yield replace(run, count=whole_to - whole_from)
        if tail:
            yield replace(run, pattern=run.pattern[:tail], count=1)
