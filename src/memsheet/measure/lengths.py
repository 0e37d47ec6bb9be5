"""Many steps of many lengths: what each holds, and how the allocator's segments grow over them.

A processor has no caching allocator: there the real step's allocations and releases are played through
memsheet's simulation of the CUDA one, and the answer says so. On a GPU its own counters stand beside that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from memsheet.allocator.settings import LARGE_SEGMENT, Settings
from memsheet.allocator.steps import Step, replay_steps
from memsheet.frozen import dataclass
from memsheet.measure.died import NO_MEMORY
from memsheet.plan.plan import Plan
from memsheet.run.data import SEED, microbatch_stream, random_sequence_lengths
from memsheet.run.model import build_config
from memsheet.run.train import build_trainer
from memsheet.sheet import Instant
from memsheet.timeline import Timeline
from memsheet.trace.custom import follow_training_calls
from memsheet.trace.job import How, recorded_micro_batches, recorded_timeline, recording_context
from memsheet.units import MIB

SPLIT_BYTES = 128 * MIB
"""A split limit that people set. It does nothing where no block reaches it: there one just above the usual
segment (20 MiB) is tried, at which itself every such segment would count as too large to share.
"""
COUNTERS = {
    "allocated_bytes": "allocated_bytes.all.peak",
    "reserved_bytes": "reserved_bytes.all.peak",
    "inactive_bytes": "inactive_split_bytes.all.peak",
}
"""Ours → torch.cuda.memory_stats' (torch/cuda/memory.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    """What is run: the model, its plan, how many steps, on what, and who is told of each."""

    config: Mapping[str, Any]
    plan: Plan
    device: str
    steps: int
    text: bytes | None = None
    tell: Callable[[str], object] = str

    @property
    def lengths(self) -> list[int]:
        return random_sequence_lengths(int(self.plan.training.seq_len), self.steps)

    def batches(self) -> Iterator[Mapping[str, Any]]:
        return microbatch_stream(
            build_config(self.config, self.plan), self.plan, self.device, text=self.text, varied=self.lengths
        )


def over_steps(many: Many, cuda: Any = None) -> dict[str, Any]:
    """Bytes of each step, under four settings of the allocator. ``cuda``: ``torch.cuda`` where its counters
    are to be read too.

    Where memory runs out, the error says at which step (``step``).
    """
    made, starts, counted = _record_varied_steps(many, cuda)
    largest = max((storage.bytes for storage in made.storages), default=0)
    limit = SPLIT_BYTES if largest >= SPLIT_BYTES else LARGE_SEGMENT + MIB
    kinds = {
        "as it is": (_plan_allocator_settings(many.plan), False), "expandable segments": (Settings(expandable_segments=True), False),
        f"max_split_size_mb:{limit // MIB}": (Settings(max_split_size_bytes=limit), False), "cache emptied each step": (_plan_allocator_settings(many.plan), True),
    }  # fmt: skip
    return {
        "lengths": many.lengths, "seed": SEED, "simulated": True,
        "settings": [_allocator_step_row(name, replay_steps(made, starts, how, empty_cache=empty)) for name, (how, empty) in kinds.items()],
        "counted": counted,
    }  # fmt: skip


def _plan_allocator_settings(plan: Plan) -> Settings:
    return Settings(expandable_segments=plan.expandable_segments)


def _record_varied_steps(many: Many, cuda: Any) -> tuple[Timeline, list[int], list[dict[str, int]]]:
    """Every allocation of the steps, the event at which each begins, and what a GPU's own counters say of
    each.
    """
    starts, counted = list[int](), list[dict[str, int]]()
    with ExitStack() as stack:
        recorder = stack.enter_context(recording_context(How(device=many.device, fake=False, scratch=False)))
        found = stack.enter_context(follow_training_calls(recorder))
        step = build_trainer(
            many.config, many.plan, many.device, _ignore_instant, recorded_micro_batches(many.plan)
        )
        for number, batch in enumerate(many.batches()):
            if number <= 1:  # what the first step uses is known from the second on
                found.begin(None, None, last=number == 1)
            if cuda is not None and not starts:
                read_peak_counters(cuda)  # what came before is not the first step's
            starts.append(len(recorder.events))
            many.tell(f"step {number + 1} of {many.steps}")
            try:
                step(batch)
            except NO_MEMORY as error:
                error.step = number + 1  # type: ignore[union-attr]
                raise
            if cuda is not None:
                counted.append(read_peak_counters(cuda))
        found.end()
    return recorded_timeline(recorder), starts, counted


def read_peak_counters(cuda: Any) -> dict[str, int]:
    """High-water marks since they were last read, which are set back."""
    stats = cuda.memory_stats()
    cuda.reset_peak_memory_stats()
    return {ours: int(stats.get(theirs, 0)) for ours, theirs in COUNTERS.items()}


def _allocator_step_row(name: str, steps: list[Step]) -> dict[str, Any]:
    worst = max(range(len(steps)), key=lambda number: steps[number].reserved_bytes)
    return {
        "name": name, "allocated_bytes": [step.allocated_bytes for step in steps], "reserved_bytes": [step.reserved_bytes for step in steps],
        "idle_bytes": [step.idle_bytes for step in steps], "worst_step": worst + 1,
    }  # fmt: skip


def _ignore_instant(_: Instant) -> None:
    """The modules and the optimizer say where the step is."""
