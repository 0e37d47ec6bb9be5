"""What a traced answer says besides its sheet: which step, what asked for the byte that made the peak, what
no trace sees.
"""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.budget import Answer
from memsheet.errors import printable_line
from memsheet.report.shared.look import Look
from memsheet.sheet import Instant

IN = {
    Instant.LOAD: "before the step", Instant.FORWARD: "in forward", Instant.LOSS: "in the loss", Instant.BACKWARD: "in backward",
    Instant.OPTIMIZER_STEP: "in the optimizer step", Instant.PREFILL: "in prefill", Instant.DECODE: "in decode",
}  # fmt: skip


def step_of(answer: Answer) -> str:
    """The name of a person's own step, where that was traced."""
    return printable_line((answer.trace or {}).get("step", ""))


def traced_lines(answer: Answer, look: Look) -> Iterator[str]:
    """Sentences on how the peak comes about and how it was found."""
    trace = answer.trace
    if trace is None:
        return
    peak = trace["peak"]
    if peak.get("op") and "died" not in trace:
        line = f" (line {printable_line(peak['line'])})" if peak["line"] else ""
        yield (
            f"The peak comes when {printable_line(peak['op'])} asks for "
            f"{look.need(peak['request_bytes'])} {IN[Instant(peak['instant'])]}, "
            f"at {printable_line(peak['path'])}{line}."
        )
    if trace.get("measured"):
        return
    if trace["tensors_bytes"] != peak["bytes"]:
        yield (
            "Without what CUDA kernels and libraries allocate for themselves it would be "
            f"{look.need(trace['tensors_bytes'], 2)}."
        )
    yield (
        f"Traced on fake tensors in {trace['seconds']:.1f} s: {trace['events']:,} allocations and "
        f"releases, torch {trace['torch']}."
    )
    if trace.get("stand_ins"):
        yield (
            "Kernels of other packages by stand-ins that allocate as their source does: "
            f"{', '.join(map(printable_line, trace['stand_ins']))}."
        )
    if trace.get("without"):
        yield (
            "As torch's own operations do it, without the kernels of "
            f"{', '.join(map(printable_line, trace['without']))}."
        )
