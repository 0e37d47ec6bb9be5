"""What a server's pool keeps of a sequence in layers without a cache: the last inputs of a convolution, and a
recurrent state.
"""

from __future__ import annotations

from memsheet.arith import Count, ceil_div, maximum, where
from memsheet.plan.dtypes import DType, dtype_named
from memsheet.plan.model import LinearAttention, Mixer, StateSpace
from memsheet.references import PAGED_SERVER_CODE, formula


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 model_executor/layers/mamba/mamba_utils.py:97-186: one input less than the kernel reads, "
        "cut over tp"
    ),
)
def convolution_elements(mixer: Mixer, tp: Count) -> Count:
    """Elements of a sequence's convolution inputs in one layer on one rank; ranks that outnumber groups
    repeat them (SGLang counts so too).
    """
    match mixer:
        case StateSpace():
            channels = mixer.inner
            if mixer.kind == "mamba2":
                groups = where(mixer.groups % tp == 0, mixer.groups, tp)
                channels = mixer.inner + 2 * groups * mixer.state
            return ceil_div(channels, tp) * (mixer.conv_kernel - 1)
        case LinearAttention():
            channels = 2 * mixer.key_heads * mixer.key_head_dim + mixer.value_heads * mixer.value_head_dim
            return ceil_div(channels, tp) * maximum(0, mixer.conv_elements // channels - 1)
        case _:
            return 0


def served_state(mixer: Mixer, default: DType) -> DType:
    """The dtype of a layer's recurrent state in a server: as the model's config asks, else ``default``."""
    asked = mixer.state_dtype if isinstance(mixer, StateSpace | LinearAttention) else None
    return (dtype_named(asked) if asked else None) or default
