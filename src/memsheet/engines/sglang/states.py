"""SGLang's pool of recurrent states: a share of the room, cut into slots, of which a request holds
several.
"""

from __future__ import annotations

from memsheet.arith import Count, ceil_div, is_zero, maximum, rounded_down
from memsheet.engines.sglang.facts import STATELESS_SINCE
from memsheet.engines.sglang.options import sglang_options
from memsheet.engines.sglang.releases import Release
from memsheet.errors import input_error
from memsheet.formulas.serving.kv_cache import caching_layers, recurrent_elements
from memsheet.formulas.serving.states import convolution_elements, served_state
from memsheet.frozen import dataclass
from memsheet.plan.dtypes import BF16, FP32, DType
from memsheet.plan.engine_registry import PAGED_SERVER
from memsheet.plan.model import LinearAttention, Mixer, ModelSpec, StateSpace
from memsheet.plan.plan import Plan
from memsheet.references import SGLANG, formula
from memsheet.sheet import NOTHING, Bytes

FAMILIES = frozenset(
    {
        "qwen3_next",
        "qwen3_5_text",
        "qwen3_5_moe_text",
        "falcon_h1",
        "nemotron_h",
        "granitemoehybrid",
        "lfm2",
        "lfm2_moe",
        "kimi_linear",
        "bailing_hybrid",
    }
)
"""Families whose states are kept so (v0.5.23 configs, hybrid_arch.py mambaish_config, hybrid_gdn_config);
others are not served.
"""
STATES_ALONE = frozenset({"mamba", "mamba2", "falcon_mamba"})
"""And those that have no attention at all (v0.5.23 configs/model_config.py:156; v0.5.12 has no code for
them).
"""
SNAPSHOTS = frozenset(
    {
        "qwen3_next",
        "qwen3_5_text",
        "qwen3_5_moe_text",
        "falcon_h1",
        "nemotron_h",
        "granitemoehybrid",
        "kimi_linear",
        "bailing_hybrid",
    }
)
"""Families of which two snapshots more are kept for a request's prefix (extra_buffer, v0.5.23
arg_groups/overrides.py:402, 477).
"""
SHARE_OF_TOKENS, SLOTS, MORE_SLOTS = 0.9, 3, 2
"""mamba_full_memory_ratio, slots of a request, and those of snapshots while batches overlap (v0.5.23
arg_groups/fields/schedule.py:220, mem_cache/kv_cache_configurator.py:227, 3067,
mem_cache/allocation_sizing.py:19).
"""
LARGE = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRules:
    """How the pool is sized: its bytes for each byte of tokens, slots where they are asked for, and slots
    that a request holds.
    """

    share: float = SHARE_OF_TOKENS
    asked: int | None = None
    each: int = SLOTS


USUAL = SlotRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Slots and their bytes on one rank; nothing where no layer keeps a state. ``each``: slots of a
    request.
    """

    slots: Bytes
    bytes: Bytes
    each: int = SLOTS

    @property
    def requests(self) -> Bytes:
        """Requests that there are slots for at once."""
        return Bytes(self.slots.low // self.each, self.slots.value // self.each, self.slots.high // self.each)

    @property
    def lacks(self) -> Bytes:
        """Bytes that are missing for the slots of one request, without which the server does not start
        (kv_cache_configurator.py:3151); less than nothing where there are more.
        """
        if not self.bytes.high:
            return Bytes(-LARGE, -LARGE, -LARGE)
        slot = self.bytes.high // (self.slots.high + 1)
        return Bytes(
            *(slot * (self.each - count) for count in (self.slots.high, self.slots.value, self.slots.low))
        )


NO_STATES = States(slots=NOTHING, bytes=NOTHING)


def keeping_of(part: ModelSpec, plan: Plan, release: Release) -> SlotRules:
    """As the plan says, else as the release does for the family: until 0.5.12 no snapshots unless they are
    asked for (server_args.py:1187).
    """
    own = sglang_options(plan)
    snapshots = release.since >= STATELESS_SINCE and bool(_block_kinds(part) & SNAPSHOTS)
    return SlotRules(
        share=own.state_ratio if own.state_ratio is not None else SHARE_OF_TOKENS,
        asked=own.state_slots,
        each=SLOTS + (MORE_SLOTS if snapshots else 0),
    )


def _block_kinds(part: ModelSpec) -> set[str]:
    return {block.kind for block in part.blocks()}


@formula(
    cites=SGLANG,
    at=(
        "v0.5.23 configs/mamba_utils.py:47, 71, 116: convolutions in bf16, what is summed over time in fp32 "
        "or as the config asks, cut over ranks"
    ),
)
def slot_bytes(part: ModelSpec, plan: Plan) -> Count:
    """Bytes of one slot in a stage's layers. Raises InputError for families whose states are kept
    elsewhere.
    """
    total: Count = 0
    for _, mixer, layers in caching_layers(part):
        if isinstance(mixer, StateSpace | LinearAttention):
            if not _block_kinds(part) & (FAMILIES | STATES_ALONE):
                raise input_error(
                    "model",
                    part.name,
                    "keeps recurrent states of a family that is not modelled for sglang",
                    f"--engine {PAGED_SERVER}",
                )
            tp = plan.mesh.tp
            total = total + layers * (
                BF16.nbytes(convolution_elements(mixer, tp))
                + _summed_dtype(mixer).nbytes(ceil_div(recurrent_elements(mixer), tp))
            )
    return total


def _summed_dtype(mixer: Mixer) -> DType:
    """What is summed over time is fp32, but where a delta net's config says ``mamba_ssm_dtype``."""
    return served_state(mixer, FP32) if isinstance(mixer, LinearAttention) else FP32


@formula(
    cites=SGLANG,
    at=(
        "v0.5.23 mem_cache/kv_cache_configurator.py:3301, 3348: as asked, or 0.9 of what tokens get, a "
        "slot of padding besides"
    ),
)
def states_of(slot: Count, room: Bytes | None, how: SlotRules = USUAL) -> States:
    """The pool that a stage's room has for slots of a size."""
    if room is None or is_zero(slot):
        return NO_STATES
    if how.asked is not None:
        return States(slots=Bytes.exact(how.asked), bytes=Bytes.exact((how.asked + 1) * slot), each=how.each)
    ends = []
    for size in (room.low, room.value, room.high):
        budget = rounded_down(maximum(0, size) * how.share / (1 + how.share))
        ends.append(maximum(0, (budget - slot) // slot))
    return States(slots=Bytes(*ends), bytes=Bytes(*((slots + 1) * slot for slots in ends)), each=how.each)
