"""llama.cpp's memory of recurrent layers: what a convolution still has to see (R) and what the recurrence
carries (S), a row of both in fp32 for every sequence, and how a graph reads and writes them.

ggml-org/llama.cpp 0c1e5709 src/llama-memory-recurrent.cpp, src/llama-hparams.cpp (n_embd_r, n_embd_s),
src/llama-graph.cpp (build_rs).
"""

from __future__ import annotations

from memsheet.arith import Count, given_or
from memsheet.engines.llama_cpp.build import GraphBuilder, Inputs
from memsheet.engines.llama_cpp.ggml import Tensor
from memsheet.plan.dtypes import FP32
from memsheet.plan.model import Block, LinearAttention, StateSpace
from memsheet.plan.plan import Plan
from memsheet.references import LLAMA_CPP, formula

Stateful = LinearAttention | StateSpace


@formula(
    cites=LLAMA_CPP,
    at="llama-hparams.cpp n_embd_r: ssm_d_inner + 2 * ssm_n_group * ssm_d_state",
    counts="int",
)
def convolved_channels(mixer: Stateful) -> int:
    """Channels that a layer's convolution runs over."""
    if isinstance(mixer, StateSpace):
        return mixer.inner + 2 * mixer.groups * mixer.state
    return 2 * mixer.key_heads * mixer.key_head_dim + mixer.value_heads * mixer.value_head_dim


@formula(
    cites=LLAMA_CPP,
    at="llama-hparams.cpp n_embd_r: ssm_d_conv, of the elements that a convolution holds",
    counts="int",
)
def convolution_kernel(mixer: Stateful) -> int:
    """Tokens that a layer's convolution sees at once."""
    return mixer.conv_elements // convolved_channels(mixer)


@formula(
    cites=LLAMA_CPP,
    at=(
        "llama-memory-recurrent.cpp: rows of n_embd_r = (kernel - 1) * channels and of n_embd_s numbers, in "
        "fp32, one for each sequence"
    ),
)
def state_bytes(block: Block, plan: Plan) -> tuple[Count, Count]:
    """Bytes of what a layer's convolutions and its recurrences keep for all sequences."""
    convolved = carried = 0
    for mixer in block.mixers:
        if isinstance(mixer, Stateful):
            convolved += mixer.conv_elements - convolved_channels(mixer)  # kernel * channels, less one token
            carried += mixer.state_elements
    rows = given_or(plan.serving.max_sequences, 1)
    return FP32.nbytes(rows * convolved), FP32.nbytes(rows * carried)


def chosen_states(b: GraphBuilder, inputs: Inputs) -> Tensor:
    """Which of the kept states are the batch's."""
    return inputs.states or b.input_tensor(b.how.kept_states, of="i32")


def clear_states(b: GraphBuilder, kept: Tensor) -> None:
    """Zeros in place of the state of a sequence that starts, at once."""
    cleared = Tensor(nbytes=0, op="store", sources=[b.view(kept, "cleared")], base=kept, layout=("store",))
    b.graph.expand(cleared)


def read_state_rows(b: GraphBuilder, kept: Tensor, inputs: Inputs, elements: int) -> Tensor:
    """The rows of the batch's sequences; those of all others are copied behind them."""
    chosen = chosen_states(b, inputs)
    clear_states(b, kept)
    rows = b.make("get_rows", [b.view(kept, "rows"), b.view(chosen, "main")], elements, b.how.sequences)
    b.graph.expand(rows)
    if others := b.how.kept_states - b.how.sequences:
        moved = b.make("get_rows", [b.view(kept, "rows"), b.view(chosen, "extra")], elements, others)
        write_state_rows(b, moved, kept)
    return rows


def write_state_rows(b: GraphBuilder, rows: Tensor, kept: Tensor) -> None:
    """Put rows in their place in the memory, at once."""
    sources = [rows, b.view(kept, "rows")]
    b.graph.expand(Tensor(nbytes=0, op="store", sources=sources, base=kept, layout=("store",)))


def build_convolution(
    b: GraphBuilder, m: Stateful, x: Tensor, kept: Tensor, inputs: Inputs
) -> tuple[Tensor, int]:
    """A causal convolution over what a sequence's last tokens left and the batch's, and its channels."""
    channels, kernel, each = convolved_channels(m), convolution_kernel(m), b.how.ubatch // b.how.sequences
    before = read_state_rows(b, kept, inputs, (kernel - 1) * channels)
    seen = b.make("concat", [b.view(before, "3d"), x], each + kernel - 1, channels, b.how.sequences)
    write_state_rows(b, b.view(seen, "last"), kept)
    return seen, channels
