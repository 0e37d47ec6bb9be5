"""The mixers of the transformers library's blocks besides softmax attention over grouped keys and values (``attention.py``), by their kind: which function runs one, what its axes are, what is not modelled of it."""

from __future__ import annotations

from memsheet.arith import Count
from memsheet.formulas.graph import Tensor
from memsheet.formulas.latent import latent_attention, latent_axes, latent_problem, latent_table
from memsheet.formulas.numerics import Numerics
from memsheet.formulas.recorder import Recorder
from memsheet.formulas.sinks import sink_attention
from memsheet.formulas.state_space import scanned, state_space_axes
from memsheet.spec.model import Attention, Block, LatentAttention, Mixer, StateSpace

def mix(r: Recorder, x: Tensor, mixer: Mixer, how: Numerics, kind: str) -> tuple[Tensor, Tensor | None]:
    """What a mixer says, and its probabilities where it has any."""
    if isinstance(mixer, StateSpace):
        return scanned(r, x, mixer, how), None
    if isinstance(mixer, Attention):
        return sink_attention(r, x, mixer, how)
    assert isinstance(mixer, LatentAttention)
    return latent_attention(r, x, mixer, how, kind)


def plain(mixer: Mixer, kind: str) -> bool:
    """Whether ``attention.py`` runs it."""
    return isinstance(mixer, Attention) and not mixer.sinks


def mixer_axes(mixer: Mixer, seq_len: Count) -> dict[str, Count]:
    """Values of the axes that a mixer's tensors are named by."""
    if isinstance(mixer, StateSpace):
        return state_space_axes(mixer, seq_len)
    assert isinstance(mixer, LatentAttention)
    return latent_axes(mixer)


def other_tables(blocks: list[Block], seq_len: Count, how: Numerics) -> list[Count]:
    """Bytes of the rotary tables that layers with such mixers share."""
    return sorted({latent_table(mixer, block.kind, seq_len, how) for block in blocks for mixer in block.mixers if isinstance(mixer, LatentAttention)})


def other_masks(blocks: list[Block]) -> set[int | None]:
    """The masks that eager layers with such mixers take, by their window."""
    return {None for block in blocks for mixer in block.mixers if isinstance(mixer, LatentAttention)}


def mixer_problem(mixer: Mixer) -> str | None:
    """Why a mixer cannot be recorded, or None when it can."""
    if isinstance(mixer, StateSpace):
        return None
    if isinstance(mixer, Attention):
        return "its attention has gates or biases" if mixer.gated_output or mixer.position_bias or mixer.chunk else None
    return latent_problem(mixer) if isinstance(mixer, LatentAttention) else f"its mixer is {type(mixer).__name__}"
