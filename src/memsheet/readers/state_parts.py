"""State-space mixers, as mamba (a state a channel) and mamba2 (a state a head) build them; hybrids use the
same two.

A convolution keeps its last ``kernel`` inputs of a sequence: transformers' cache holds the whole kernel's
width, not one less.
"""

from __future__ import annotations

from memsheet.frozen import replace
from memsheet.plan.model import Role, StateSpace, Weight
from memsheet.readers.fields import Fields
from memsheet.readers.parts import linear_weights

STATE_DTYPES = ("float32", "bfloat16", "float16")


def served_state_dtype(config: Fields, key: str) -> str | None:
    """The dtype that a config asks servers to keep recurrent states in; None where it asks for none."""
    return config.text(key, default="", choices=STATE_DTYPES) or None


def mamba_mixer(
    path: str,
    hidden: int,
    inner: int,
    state: int,
    *,
    kernel: int,
    rank: int,
    bias: bool = False,
    conv_bias: bool = True,
    norms: bool = False,
    extras: tuple[Weight, ...] = (),
) -> StateSpace:
    """The first Mamba: input and gate projections in one, a convolution, and step sizes from a projection of
    ``rank``.

    ``norms``: learned norms on step, B and C (jamba).
    """
    return StateSpace(
        path=path,
        kind="mamba",
        inner=inner,
        state=state,
        conv_kernel=kernel,
        state_elements=inner * state,
        conv_elements=inner * kernel,
        weights=(
            Weight(path=f"{path}.A_log", shape=(inner, state), role=Role.OTHER, cut=0),
            Weight(path=f"{path}.D", shape=(inner,), role=Role.OTHER, cut=0),
            *causal_conv(f"{path}.conv1d", inner, kernel, bias=conv_bias),
            *linear_weights(f"{path}.in_proj", 2 * inner, hidden, bias=bias, cut="out"),
            *linear_weights(f"{path}.x_proj", rank + 2 * state, inner, cut="in"),
            *linear_weights(f"{path}.dt_proj", inner, rank, bias=True, cut="out"),
            *linear_weights(f"{path}.out_proj", hidden, inner, bias=bias, cut="in"),
            *(
                _norm_scale_weight(f"{path}.{name}_layernorm", size)
                for name, size in (("dt", rank), ("b", state), ("c", state))
                if norms
            ),
            *extras,
        ),
    )


def mamba2_mixer(
    path: str,
    hidden: int,
    inner: int,
    *,
    heads: int,
    head_dim: int,
    state: int,
    groups: int,
    kernel: int,
    bias: bool = False,
    conv_bias: bool = True,
    chunk: int = 256,
) -> StateSpace:
    """Mamba 2: gate, inputs, B, C and steps from one projection, a state of ``head_dim`` by ``state`` a head,
    a gated norm.

    ``units`` are the heads; ranks that outnumber ``groups`` repeat B and C.
    """
    both = 2 * groups * state
    conv = inner + both
    joined = (
        *causal_conv(f"{path}.conv1d", conv, kernel, bias=conv_bias, units=heads),
        *linear_weights(f"{path}.in_proj", inner + conv + heads, hidden, bias=bias, cut="out", units=heads),
    )
    return StateSpace(
        path=path,
        kind="mamba2",
        inner=inner,
        state=state,
        conv_kernel=kernel,
        heads=heads,
        groups=groups,
        chunk=chunk,
        state_elements=heads * head_dim * state,
        conv_elements=conv * kernel,
        weights=(
            *(
                Weight(path=f"{path}.{name}", shape=(heads,), role=Role.OTHER, cut=0, units=heads)
                for name in ("dt_bias", "A_log", "D")
            ),
            *(replace(weight, repeated=both, groups=groups) for weight in joined),
            Weight(path=f"{path}.norm.weight", shape=(inner,), role=Role.NORM, cut=0, units=heads),
            *linear_weights(f"{path}.out_proj", hidden, inner, bias=bias, cut="in", units=heads),
        ),
    )


def causal_conv(path: str, channels: int, kernel: int, *, bias: bool, units: int = 0) -> tuple[Weight, ...]:
    """A depthwise convolution along the sequence: no linear layer, so nothing quantizes or adapts it."""
    weight = Weight(path=f"{path}.weight", shape=(channels, 1, kernel), role=Role.OTHER, cut=0, units=units)
    return (
        (weight, Weight(path=f"{path}.bias", shape=(channels,), role=Role.BIAS, cut=0, units=units))
        if bias
        else (weight,)
    )


def step_rank(config: Fields, key: str, hidden: int) -> int:
    """The rank of the step projection; ``auto`` or a missing key is a sixteenth of the hidden size, rounded
    up.
    """
    default = -(-hidden // 16)
    return default if config.raw(key) == "auto" else config.count(key, default=default)


def _norm_scale_weight(path: str, size: int) -> Weight:
    return Weight(path=f"{path}.weight", shape=(size,), role=Role.NORM)
