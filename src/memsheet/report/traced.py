"""What a traced answer says besides its sheet: which step, what asked for the byte that made the peak, what no trace sees."""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.budget import Answer
from memsheet.errors import printable
from memsheet.report.bars import Look
from memsheet.sheet import Instant

IN = {
    Instant.LOAD: "before the step", Instant.FORWARD: "in forward", Instant.LOSS: "in the loss", Instant.BACKWARD: "in backward",
    Instant.OPTIMIZER_STEP: "in the optimizer step", Instant.PREFILL: "in prefill", Instant.DECODE: "in decode",
}  # fmt: skip


def step_of(answer: Answer) -> str:
    """The name of a person's own step, where that was traced."""
    return printable((answer.trace or {}).get("step", ""))


def traced_lines(answer: Answer, look: Look) -> Iterator[str]:
    """Sentences on how the peak comes about and how it was found."""
    trace = answer.trace
    if trace is None:
        return
    peak = trace["peak"]
    if peak.get("op"):
        line = f" (line {printable(peak['line'])})" if peak["line"] else ""
        yield (
            f"The peak comes when {printable(peak['op'])} asks for {look.need(peak['request_bytes'])} {IN[Instant(peak['instant'])]}, "
            f"at {printable(peak['path'])}{line}."
        )
    if measured := trace.get("measured"):
        threads = f" with {measured['threads']} thread{'s' * (measured['threads'] != 1)}" if measured["device"] == "cpu" else ""
        yield (
            f"Measured on {measured['device']}{threads}: {measured['step_s']:.3f} s a step (median of "
            f"{measured['steps']}, {measured['fastest_s']:.3f} to {measured['slowest_s']:.3f}), "
            f"{measured['tokens_per_s']:,.0f} tokens/s, torch {trace['torch']}."
        )
        return
    if trace["tensors_bytes"] != peak["bytes"]:
        yield f"Without what CUDA kernels and libraries allocate for themselves it would be {look.need(trace['tensors_bytes'], 2)}."
    yield f"Traced on fake tensors in {trace['seconds']:.1f} s: {trace['events']:,} allocations and releases, torch {trace['torch']}."
    if trace.get("stand_ins"):
        yield f"Kernels of other packages by stand-ins that allocate as their source does: {', '.join(map(printable, trace['stand_ins']))}."
    if trace.get("without"):
        yield f"As torch's own operations do it, without the kernels of {', '.join(map(printable, trace['without']))}."
