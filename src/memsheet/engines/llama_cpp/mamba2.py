"""Mamba-2 in llama.cpp's graph: a convolution, a scan over the batch from every sequence's state, a gate and
a norm of groups.

ggml-org/llama.cpp 0c1e5709 src/models/mamba-base.cpp, build_mamba2_layer.
"""

from __future__ import annotations

from memsheet.engines.llama_cpp.build import GraphBuilder, Inputs
from memsheet.engines.llama_cpp.ggml import Tensor
from memsheet.engines.llama_cpp.states import build_convolution, chosen_states, clear_states, write_state_rows
from memsheet.plan.model import StateSpace


def build_mamba2(
    b: GraphBuilder,
    m: StateSpace,
    x: Tensor,
    inputs: Inputs,
    sizes: dict[str, int],
    held: tuple[int, int],
) -> Tensor:
    """One layer's mixer, output projection included. ``held``: bytes of its two kinds of states."""
    n, sequences, d = b.how.ubatch, b.how.sequences, m.inner // m.heads
    wide = 2 * m.inner + 2 * m.groups * m.state + m.heads
    convolved, carried = b.cache_tensor(held[0]), b.cache_tensor(held[1])
    joined = b.times(sizes.get("in_proj", 0), x, wide, n)
    seen, channels = build_convolution(b, m, b.view(joined, "turned"), convolved, inputs)
    made = b.make("ssm_conv", [seen, b.weight()], channels, n // sequences, sequences)
    made = b.make("add", [made, b.weight()], channels, n // sequences, sequences)
    made = b.make("unary", [made], channels, n // sequences, sequences)
    value, write, read = (b.view(made, "strided") for _ in range(3))
    step = b.make("cont", [b.view(joined, "strided")], m.heads, n)
    step = b.make("add", [step, b.weight()], m.heads, n)
    clear_states(b, carried)
    scanned = [
        b.view(carried, "rows"),
        value,
        step,
        b.weight(),
        write,
        read,
        b.view(chosen_states(b, inputs)),
    ]
    out = b.make("ssm_scan", scanned, m.inner * n + m.state * m.inner * sequences)
    b.graph.expand(out)
    write_state_rows(b, b.view(out, "state"), carried)
    found = b.make("mul", [value, b.weight()], d, m.heads, n)
    found = b.make("add", [b.view(out, "strided"), found], d, m.heads, n)
    opened = b.make("cont", [b.view(joined, "strided")], d, m.heads, n)
    found = b.make("glu", [opened, found], d, m.heads, n)
    shaped = b.view(found, "f32", m.inner // m.groups, m.groups, n)
    shaped.rows = n
    return b.times(sizes.get("out_proj", 0), b.view(b.norm(shaped), "2d"), int(x.layout[1]), n)
