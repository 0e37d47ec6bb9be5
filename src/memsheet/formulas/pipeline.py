"""Which layers a pipeline stage has, and how many micro-batches it holds at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import ge

from memsheet.arith import Count, minimum
from memsheet.frozen import dataclass, field, replace
from memsheet.plan.model import Embeddings, ModelSpec, Role, Run, Stack, Weight
from memsheet.plan.plan import Plan, Schedule
from memsheet.references import PIPELINE_1F1B, formula


@formula(
    cites=PIPELINE_1F1B,
    at=(
        "section 2.2: stage r of p keeps at most p - r micro-batches under 1F1B; GPipe keeps all; "
        "DualPipe p + 1"
    ),
)
def in_flight(schedule: Schedule | None, stages: int, stage: int, microbatches: Count) -> Count:
    """Micro-batches whose activations a stage (0 is the first) holds at its peak."""
    if schedule is None or schedule is Schedule.NAIVE:
        return 1
    if schedule is Schedule.GPIPE:
        return microbatches
    if schedule is Schedule.DUALPIPE:  # both directions together (deepseek-ai/DualPipe README)
        return minimum(microbatches, stages + 1)
    return minimum(microbatches, stages - stage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """A moment of a pipeline: the chunk of layers that runs, in forward or backward, and how many whole
    micro-batches each chunk of the rank keeps besides.
    """

    chunk: int
    backward: bool
    others: tuple[Count, ...]


def peak_flights(plan: Plan, stage: int, microbatches: Count | None = None) -> tuple[Flight, ...]:
    """The moments at which a rank of a stage may hold most, of a step of so many micro-batches (the plan's
    own by default).
    """
    microbatches = plan.accumulation if microbatches is None else microbatches
    chunks, stages = plan.mesh.vpp, plan.mesh.pp
    if chunks == 1:
        others = (in_flight(plan.schedule, stages, stage, microbatches) - 1,)
        return tuple(Flight(chunk=0, backward=backward, others=others) for backward in (False, True))
    return interleaved_flights(stages, chunks, stage, microbatches)


def interleaved_flights(stages: int, chunks: int, stage: int, microbatches: int) -> tuple[Flight, ...]:
    """The moments of a pipeline whose stages have several chunks. Warm-up is at most two stages' worth of
    micro-batches a chunk, and two groups of them say all that follows, so more of them change nothing.
    """
    return _simulate_interleaved_1f1b(stages, chunks, stage, min(microbatches, STEADY * stages))


STEADY = 4
"""Micro-batches, in numbers of stages, beyond which a step of several chunks says nothing new."""


def interleaved_order(
    stages: int, chunks: int, stage: int, microbatches: int
) -> tuple[tuple[int, bool], ...]:
    """Which chunk a rank runs, and whether backward, one after another, in interleaved 1F1B as Megatron-Core
    runs it (pipeline_parallel/schedules.py of 23e00ed:650-760, 1000-1300): 2 (p - r - 1) + (v - 1) p forwards
    first, then one forward and one backward in turn, in groups of p micro-batches a chunk.
    """
    total, group = microbatches * chunks, stages * chunks
    warm = min(total, 2 * (stages - stage - 1) + (chunks - 1) * stages)
    order = [(step, False) for step in range(warm)]
    order += [one for step in range(total - warm) for one in ((warm + step, False), (step, True))]
    order += [(step, True) for step in range(total - warm, total)]
    places = [(step % group // stages, backward) for step, backward in order]
    return tuple((chunks - 1 - place if backward else place, backward) for place, backward in places)


@lru_cache(maxsize=4096)
def _simulate_interleaved_1f1b(stages: int, chunks: int, stage: int, microbatches: int) -> tuple[Flight, ...]:
    """Of moments that keep as much of every chunk or less, the one that keeps more is enough."""
    kept, found = [0] * chunks, dict[tuple[int, bool], dict[tuple[int, ...], None]]()
    for chunk, backward in interleaved_order(stages, chunks, stage, microbatches):
        kept[chunk] -= backward
        found.setdefault((chunk, backward), {})[tuple(kept)] = None
        kept[chunk] += not backward
    best = [(*place, one) for place, moments in found.items() for one in undominated_flights(list(moments))]
    return tuple(Flight(chunk=chunk, backward=back, others=others) for chunk, back, others in best)


def undominated_flights(moments: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Of moments that differ those beside which no other keeps as much of every chunk, in their order. One
    that does keeps more in all, so that it comes before in the order of sums.
    """
    best = list[tuple[int, ...]]()
    for one in sorted(moments, key=sum, reverse=True):
        for other in best:
            if all(map(ge, other, one)):
                break
        else:
            best.append(one)
    kept = set(best)
    return [one for one in moments if one in kept]


def layers_of_stage(layers: int, plan: Plan, stage: int, chunk: int = 0) -> tuple[int, int]:
    """First layer of a stage's chunk and the one after its last; chunk c of rank r is the model's part c · pp
    + r.
    """
    parts, part = plan.mesh.pp * plan.mesh.vpp, chunk * plan.mesh.pp + stage
    counts = plan.layers_per_stage or (layers // parts,) * parts
    first = sum(counts[:part])
    return first, first + counts[part]


@dataclass(frozen=True, slots=True, eq=False)
class CutModel:
    """A model and its parts as pipelines have cut it so far: by their layers and ends, and by the chunks of a
    stage. Parts that are alike are one object, so that what is made for one is known of the others.
    """

    model: ModelSpec
    parts: dict[Hashable, ModelSpec] = field(default_factory=dict)
    alike: list[ModelSpec] = field(default_factory=list)

    def part(self, key: Hashable, make: Callable[[], ModelSpec]) -> ModelSpec:
        """The part of that key."""
        found = self.parts.get(key)
        if found is None:
            made = make()
            found = next((one for one in self.alike if one == made), made)
            if found is made:
                self.alike.append(made)
            self.parts[key] = found
        return found

    def between(self, cut: Cut) -> ModelSpec:
        """The part of a cut."""
        return self.part(cut, lambda: _model_between(self.model, *cut))


MOST_CUT, MOST_PARTS = 8, 1024
"""Models of which parts are kept, and of how many parts of one."""
_recent: tuple[CutModel, ...] = ()


def _cut_model(spec: ModelSpec) -> CutModel:
    """What is kept of a model that was asked about before."""
    global _recent  # noqa: PLW0603 - one value, replaced as a whole
    known = next((one for one in _recent if one.model is spec or one.model == spec), None)
    if known is None or len(known.parts) > MOST_PARTS:
        _recent = (CutModel(spec), *(one for one in _recent if one is not known))[:MOST_CUT]
        return _recent[0]
    return known


Cut = tuple[tuple[int, int], tuple[bool, bool]]
"""The first layer of a part and the one after its last, and whether it has embeddings and head."""


def _cuts_of_stage(layers: int, plan: Plan, stage: int) -> tuple[Cut, ...]:
    stages, chunks = plan.mesh.pp, plan.mesh.vpp
    start, end = plan.end_stages or (0, stages * chunks - 1)
    return tuple(
        (layers_of_stage(layers, plan, stage, chunk), (part == start, part == end))
        for chunk, part in enumerate(range(stage, stages * chunks, stages))
    )


def chunk_models(spec: ModelSpec, plan: Plan, stage: int) -> tuple[ModelSpec, ...]:
    """The parts of a model that a rank of a stage runs, in order of execution."""
    if plan.mesh.pp * plan.mesh.vpp == 1:
        return (spec,)
    known = _cut_model(spec)
    return tuple(known.between(cut) for cut in _cuts_of_stage(spec.layers, plan, stage))


def stage_model(spec: ModelSpec, plan: Plan, stage: int) -> ModelSpec:
    """All that a rank of a stage has of a model: its chunks' layers, one after another, with the ends that
    belong to it.
    """
    if plan.mesh.pp * plan.mesh.vpp == 1:
        return spec
    known, cuts = _cut_model(spec), _cuts_of_stage(spec.layers, plan, stage)
    if len(cuts) == 1:
        return known.between(cuts[0])
    return known.part(cuts, lambda: _joined_chunks([known.between(cut) for cut in cuts]))


def _joined_chunks(chunks: Sequence[ModelSpec]) -> ModelSpec:
    first, last = chunks[0], chunks[-1]
    stacks = tuple(
        replace(
            own,
            runs=_merge_equal_runs(run for chunk in chunks for run in chunk.stacks[number].runs),
            final_norms=last.stacks[number].final_norms,
        )
        for number, own in enumerate(first.stacks)
    )
    return replace(first, stacks=stacks, head=last.head)


def _merge_equal_runs(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Runs of the same layers one after another as one."""
    found: list[Run] = []
    for run in runs:
        if found and found[-1].pattern == run.pattern:
            found[-1] = replace(run, count=found[-1].count + run.count)
        else:
            found.append(run)
    return tuple(found)


def _model_between(spec: ModelSpec, between: tuple[int, int], at_ends: tuple[bool, bool]) -> ModelSpec:
    """One part of a model: embeddings (and towers) in the first, head in the last, its layers in between.

    A tied head needs its own copy of the embedding table in the last part, unless the table is there.
    """
    (first, last), (keeps, is_last), parts, offset = between, at_ends, list[Stack](), 0
    for stack in spec.stacks:
        runs = tuple(_runs_between_layers(stack, first - offset, last - offset))
        ends = first < offset + stack.layers <= last
        offset += stack.layers
        parts.append(replace(stack, runs=runs, final_norms=stack.final_norms if ends else ()))
    head = spec.head if is_last else replace(spec.head, kind="none", weights=(), tied=False)
    if is_last and spec.head.tied and not keeps:
        head = replace(head, weights=_tied_copy(spec.embeddings))
    return replace(
        spec,
        stacks=tuple(parts),
        head=head,
        towers=spec.towers if keeps else (),
        extras=spec.extras if keeps else (),
        embeddings=spec.embeddings if keeps else replace(spec.embeddings, weights=(), norms=()),
    )


def _tied_copy(embeddings: Embeddings) -> tuple[Weight, ...]:
    return tuple(replace(w, path="lm_head.weight", role=Role.HEAD) for w in embeddings.weights[:1])


def _runs_between_layers(stack: Stack, first: int, last: int) -> Iterator[Run]:
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
