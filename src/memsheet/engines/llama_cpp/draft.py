"""llama.cpp with a draft model (-md): loaded beside the model on the same devices, with contexts, caches and
buffers of its own.
"""

from __future__ import annotations

from collections import Counter

from memsheet.engines.llama_cpp.buffers import (
    CELLS,
    Buffers,
    Facts,
    blocks_of,
    buffers_of,
    cache_devices,
    cache_of,
    layer_placement,
    ubatch_of,
)
from memsheet.engines.llama_cpp.gguf_mixes import gguf_named
from memsheet.engines.llama_cpp.options import llama_cpp_options
from memsheet.engines.llama_cpp.states import state_bytes
from memsheet.frozen import dataclass, replace
from memsheet.plan.dtypes import FP16
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan, Quantization
from memsheet.references import LLAMA_CPP, formula
from memsheet.sheet import Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """A draft model, how one of its contexts is made, and how many there are."""

    model: ModelSpec
    plan: Plan
    contexts: int


@formula(
    cites=LLAMA_CPP,
    at=(
        "common/speculative.cpp draft-simple: one context of all sequences; until it was reworked "
        "(TAG_SERVER_SPEC_REWORK of tools/server/server-context.cpp) one for each, of its share of -c"
    ),
    counts="int",
)
def drafting_of(spec: ModelSpec, plan: Plan) -> Drafting | None:
    """The draft model of a plan: all layers on devices, its cache in fp16 whatever the model's (-ctkd,
    -ctvd), without a draft of its own. A file is in the types that its name says; a model that is no file
    is taken in the format of the model it drafts for.
    """
    if plan.speculative is None or spec.draft is None:
        return None
    slots, one = int(plan.serving.max_sequences or 1), Facts.of(plan).sparing
    own = spec.draft.quantization
    types = gguf_named(own.weights) if own is not None and own.method == "gguf" else None
    alone = replace(
        plan,
        quantization=Quantization(weights=types) if types is not None else plan.quantization,
        speculative=None,
        layers_per_stage=None,
        options=replace(
            llama_cpp_options(plan), gpu_layers=None, host_experts=0, tensor_overrides="", k_dtype=None
        ),
        offload=replace(plan.offload, parameters=0.0),
        cache=replace(plan.cache, kv_dtype=FP16),
    )
    if one or slots == 1:
        return Drafting(model=spec.draft, plan=alone, contexts=1)
    share = replace(
        alone,
        workload=replace(
            alone.serving,
            max_model_len=max(1, int(plan.serving.max_model_len or 1) // slots),
            max_sequences=1,
        ),
    )
    return Drafting(model=spec.draft, plan=share, contexts=slots)


def draft_caches(drafting: Drafting, *, states: bool = True) -> list[int]:
    """Bytes of the caches of all contexts on every device, the host's last. ``states``: with those of
    recurrent layers, which no length changes.
    """
    plan, facts, blocks = drafting.plan, Facts.of(drafting.plan), blocks_of(drafting.model)
    where = layer_placement(len(blocks), plan, facts)
    found = [0] * (where.host + 1)
    for (block, device), times in Counter(zip(blocks, cache_devices(where, plan), strict=True)).items():
        of_layer = sum(cache_of(block, plan, facts, ubatch_of(plan)))
        of_layer += sum(state_bytes(block, plan)) if states else 0
        found[device] += drafting.contexts * times * of_layer
    return found


def draft_per_token(drafting: Drafting) -> list[int]:
    """Bytes that a cell of the draft takes on every device."""
    one = replace(
        drafting,
        contexts=1,
        plan=replace(
            drafting.plan, workload=replace(drafting.plan.serving, max_model_len=CELLS, max_sequences=1)
        ),
    )
    return [size // CELLS for size in draft_caches(one, states=False)[:-1]]


def draft_buffers(drafting: Drafting) -> Buffers:
    """Its buffers on every device, those of all contexts together."""
    made, times = buffers_of(drafting.model, drafting.plan), drafting.contexts
    return replace(
        made,
        caches=tuple((times * keys, times * values) for keys, values in made.caches),
        states=tuple((times * r, times * s) for r, s in made.states),
        compute=tuple(
            Bytes(times * size.low, times * size.value, times * size.high) for size in made.compute
        ),
    )
