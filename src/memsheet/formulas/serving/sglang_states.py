"""SGLang's pool of recurrent states: a share of the room, cut into slots, of which a request holds several."""

from __future__ import annotations

from memsheet.arith import Count, ceil_div, maximum
from memsheet.errors import refuse
from memsheet.formulas.serving.kv_cache import caching_layers, recurrent_elements
from memsheet.formulas.serving.states import convolution_elements
from memsheet.frozen import dataclass
from memsheet.references import SGLANG, formula
from memsheet.sheet import NOTHING, Bytes
from memsheet.spec.dtypes import BF16, FP32
from memsheet.spec.model import LinearAttention, ModelSpec, StateSpace
from memsheet.spec.plan import Plan

FAMILIES = frozenset({"qwen3_next", "falcon_h1", "nemotron_h", "granitemoehybrid", "lfm2", "kimi_linear"})
"""Families whose states are kept so (v0.5.23 configs, hybrid_arch.py mambaish_config); others are not served."""
SHARE_OF_TOKENS, SLOTS = 0.9, 3
"""mamba_full_memory_ratio, and slots of a request (v0.5.23 arg_groups/fields/schedule.py:220, mem_cache/kv_cache_configurator.py:227)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Slots and their bytes on one rank; nothing where no layer keeps a state."""

    slots: Bytes
    bytes: Bytes


NO_STATES = States(slots=NOTHING, bytes=NOTHING)


@formula(cites=SGLANG, at="v0.5.23 configs/mamba_utils.py:47, 116: convolutions in bf16, what is summed over time in fp32, cut over ranks")
def slot_bytes(part: ModelSpec, plan: Plan) -> Count:
    """Bytes of one slot in a stage's layers. Raises InputError for families whose states are kept elsewhere."""
    total: Count = 0
    kinds = {block.kind for stack in part.stacks for run in stack.runs for block in run.pattern}
    for _, mixer, layers in caching_layers(part):
        if isinstance(mixer, StateSpace | LinearAttention):
            if not kinds & FAMILIES:
                raise refuse("model", part.name, "keeps recurrent states of a family that is not modelled for sglang", "--engine vllm")
            tp = plan.mesh.tp
            total = total + layers * (BF16.nbytes(convolution_elements(mixer, tp)) + FP32.nbytes(ceil_div(recurrent_elements(mixer), tp)))
    return total


@formula(cites=SGLANG, at="v0.5.23 mem_cache/kv_cache_configurator.py:3348: 0.9 of what tokens get, a slot of padding besides")
def states_of(slot: Count, room: Bytes | None) -> States:
    """The pool that a stage's room has for slots of a size."""
    if room is None or not slot:
        return NO_STATES
    ends = []
    for size in (room.low, room.value, room.high):
        budget = int(maximum(0, size) * SHARE_OF_TOKENS / (1 + SHARE_OF_TOKENS))
        ends.append(max(0, (budget - slot) // slot))
    return States(slots=Bytes(*ends), bytes=Bytes(*((slots + 1) * slot for slots in ends)))
