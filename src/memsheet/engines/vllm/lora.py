"""Room for LoRA adapters in vLLM: both matrices of every layer that may have one, for as many adapters and as
large a rank as it is started for.

It is allocated with the model (v0.33.0 v1/worker/gpu_model_runner.py:5005), filled as requests come, and
there whether any is loaded or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from memsheet.arith import Count, ceil_div, given_or, minimum, round_up
from memsheet.engines.vllm.facts import release_of
from memsheet.engines.vllm.lora_releases import JOINED, WHOLE_EXPERTS, Facts, facts_of
from memsheet.engines.vllm.releases import Release
from memsheet.formulas.pipeline import stage_model
from memsheet.formulas.runtime import ALLOCATOR, loading_slack
from memsheet.formulas.serving.loaded import VOCABULARY
from memsheet.formulas.serving.packed_experts import PADDED_TO
from memsheet.formulas.states.held import module_of
from memsheet.formulas.states.held_shapes import held_shape
from memsheet.formulas.states.params import distinct_blocks, parameter_tensors, stack_prefix, tower_tensors
from memsheet.frozen import dataclass, replace
from memsheet.plan.dtypes import INT32, INT64, MXFP4
from memsheet.plan.model import ModelSpec, Moe, Role, Weight
from memsheet.plan.plan import Mesh, Plan, ServedAdapters
from memsheet.references import PAGED_SERVER_CODE, formula
from memsheet.sheet import Bytes, Component, FromCode, Instant, Item, sum_byte_ranges

LINEAR = FromCode("vllm-project/vllm", "v0.33.0", "vllm/lora/layers/base_linear.py", 132)
EXPERTS = FromCode("vllm-project/vllm", "v0.33.0", "vllm/lora/layers/fused_moe.py", 172)
ENDS = FromCode("vllm-project/vllm", "v0.33.0", "vllm/lora/layers/logits_processor.py", 86)
PLACES = FromCode("vllm-project/vllm", "v0.33.0", "vllm/lora/punica_wrapper/punica_base.py", 133)
LORA_PADDING = 256
"""What the vocabulary beside adapters was padded to while they could add words (v0.11.0
platforms/interface.py get_lora_vocab_padding_size).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Both matrices of one adapter on a layer, in elements on a rank. ``times``: layers that have them."""

    path: str
    down: Count
    up: Count
    times: int
    source: FromCode
    parts: int = 1  # pieces that are joined in one layer, each with a pair of its own
    sure: bool = True  # False: it is not known whether the family has it
    spare: Count = 0  # elements that kernels may pad it with

    @property
    def elements(self) -> Count:
        return self.times * (self.down + self.up)


def lora_items(part: ModelSpec, plan: Plan, release: Release, instants: Sequence[Instant]) -> list[Item]:
    """Everything that a server with adapters holds besides at all times; nothing without them."""
    served, facts = plan.served_adapters, facts_of(release.since)
    if served is None or facts is None:
        return []
    pairs = list(pairs_of(part, plan, facts))
    rows = [(f"{pair.path}.lora_stacked", _pair_bytes(pair, served), pair.source) for pair in pairs]
    rows += [("lora_places", Bytes.exact(places_bytes(plan, served, facts.tables)), PLACES)]
    if words := extra_words_bytes(part, plan, served, facts):
        rows.append(("lora_extra_vocab", Bytes.exact(words), ENDS))
    if (mapping := mapping_bytes(part, plan)) and any(pair.path == "lm_head" for pair in pairs):
        rows.append(("lm_head.sharded_to_full_mapping", Bytes.exact(mapping), ENDS))
    gaps = loading_slack(
        (served.dtype.nbytes(served.slots * size), pair.times)
        for pair in pairs
        for size in (pair.down, pair.up)
    )
    slack = Item(Component.ALLOCATOR_SLACK, "lora", dict.fromkeys(instants, Bytes(0, gaps, gaps)), ALLOCATOR)
    return [
        *(
            Item(Component.BUFFERS, path, dict.fromkeys(instants, size), source)
            for path, size, source in rows
        ),
        slack,
    ]


def _pair_bytes(pair: Pair, served: ServedAdapters) -> Bytes:
    size, more = (
        served.dtype.nbytes(served.slots * count) for count in (pair.elements, pair.times * pair.spare)
    )
    return Bytes(size, size, size + more) if pair.sure else Bytes(0, 0, size + more)


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.33.0 lora/layers/base_linear.py:132-153: max_loras x rank x in and max_loras x out x rank on "
        "every linear layer"
    ),
)
def pairs_of(part: ModelSpec, plan: Plan, facts: Facts) -> Iterator[Pair]:
    """Pairs of a stage. A layer that joins several has as many: q, k and v, gate and up
    (column_parallel_linear.py:207-243).
    """
    served = plan.served_adapters
    assert served is not None
    towers = {path for path, _, _ in tower_tensors(part)}
    wanted = _lora_layer_names(served)
    for path, weight, times in parameter_tensors(part):
        name = path.split(".")[-2] if path.endswith(".weight") else ""
        routes = weight.role is Role.ROUTER and part.model_type not in facts.plain
        if (
            (weight.role is Role.LINEAR or routes)
            and name
            and path not in towers
            and (wanted is None or name in wanted)
        ):
            down, up = lora_matrix_elements(weight, plan.mesh, served)
            yield Pair(
                path=module_of(path),
                down=down,
                up=up,
                times=times,
                source=LINEAR,
                parts=_packed_module_count(name),
            )
    if facts.experts and (wanted is None or "experts" in wanted):
        yield from _expert_lora_pairs(part, plan, served)
    yield from _embedding_lora_pairs(part, served, facts)


def _lora_layer_names(served: ServedAdapters) -> frozenset[str] | None:
    """Last names of the layers that have room: with one piece of a joined layer all of its pieces."""
    if served.targets is None:
        return None
    asked = set(served.targets)
    for joined, pieces in JOINED:
        asked |= set(pieces) if asked & {joined, *pieces} else set()
    return frozenset(asked)


def _packed_module_count(name: str) -> int:
    return next((len(pieces) for _, pieces in JOINED if name in pieces), 1)


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.33.0 lora/layers/base_linear.py:110-130: a column's second matrix is cut, a row's first; fully "
        "sharded the other too"
    ),
)
def lora_matrix_elements(weight: Weight, mesh: Mesh, served: ServedAdapters) -> tuple[Count, Count]:
    """Elements of both matrices beside a linear layer's (out, in), on one rank."""
    out, width = held_shape(weight, mesh)
    down, up, rank = served.rank * width, out * served.rank, served.rank
    if not served.sharded or weight.cut is None:
        return down, up
    if weight.cut == 0:
        return ceil_div(rank, mesh.tp) * width, up
    return down, ceil_div(out, mesh.tp) * rank


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.33.0 lora/layers/fused_moe.py:172-233: a pair for each expert's gate, up and down; where "
        "adapters join the gates, one first matrix"
    ),
)
def _expert_lora_pairs(part: ModelSpec, plan: Plan, served: ServedAdapters) -> Iterator[Pair]:
    mesh, rank = plan.mesh, served.rank
    for stack in part.stacks:
        for block, times in distinct_blocks(stack):
            moe = block.feed_forward
            if not isinstance(moe, Moe):
                continue
            experts, inner = ceil_div(moe.experts, mesh.ep), ceil_div(moe.intermediate, mesh.etp)
            gates = 2 if moe.gated else 1
            firsts = 1 if part.model_type in WHOLE_EXPERTS else gates
            cut = mesh.etp if served.sharded else 1
            down = experts * (firsts * ceil_div(rank, cut) * block.hidden + rank * inner)
            up = experts * (gates * inner * rank + ceil_div(block.hidden, cut) * rank)
            padded = plan.quantization is not None and plan.quantization.weights is MXFP4
            wider = [round_up(size, PADDED_TO) - size if padded else 0 for size in (inner, block.hidden)]
            spare = experts * rank * ((gates + 1) * wider[0] + (firsts + 1) * wider[1])
            path = f"{stack_prefix(stack)}.{moe.path}.experts"
            yield Pair(path=path, down=down, up=up, times=times, source=EXPERTS, parts=gates, spare=spare)


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.33.0 lora/layers/vocab_parallel_embedding.py:31, logits_processor.py:86: whole on every rank; "
        "v0.11.0: and words more"
    ),
)
def _embedding_lora_pairs(part: ModelSpec, served: ServedAdapters, facts: Facts) -> Iterator[Pair]:
    """The embedding looks its first matrix up, a row for each word; the head's second has one too."""
    rank, hidden = served.rank, part.hidden
    kind, known = part.model_type, part.model_type in facts.both | facts.first | facts.neither
    named = None if served.targets is None else set(served.targets)
    table = next((w for w in part.embeddings.weights if w.role is Role.EMBEDDING and w.padded), None)
    first = kind in facts.both | facts.first or not known if named is None else "embed_tokens" in named
    if table is not None and first:
        rows = table.shape[0] + facts.extra_words
        yield Pair(
            path="embed_tokens",
            down=rows * rank,
            up=hidden * rank,
            times=1,
            source=ENDS,
            sure=known or named is not None,
        )
    last = kind in facts.both or not known if named is None else "lm_head" in named
    if part.head.kind == "causal_lm" and last:
        rows = part.head.width
        rows = round_up(rows + facts.extra_words, LORA_PADDING) if facts.extra_words else rows
        yield Pair(
            path="lm_head",
            down=rank * hidden,
            up=rows * rank,
            times=1,
            source=ENDS,
            sure=known or named is not None,
        )


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 models/llama.py:348, 543, vocal_parallel_embedding.py:50: words that adapters may add, in "
        "both tables and for each adapter"
    ),
)
def extra_words_bytes(part: ModelSpec, plan: Plan, served: ServedAdapters, facts: Facts) -> Count:
    """Bytes that the embedding and the head grow by on a rank, and of the adapters' own words."""
    kind, dtype, hidden = part.model_type, plan.precision.parameters, part.hidden
    if not facts.extra_words or kind not in facts.both:
        return 0
    rows: Count = 0
    if part.embeddings.weights:
        rows = (
            rows + ceil_div(facts.extra_words * served.slots, plan.mesh.tp) + facts.extra_words * served.slots
        )
    if part.head.kind == "causal_lm":
        rows = (
            rows
            + ceil_div(0 if part.head.tied else facts.extra_words, plan.mesh.tp)
            + facts.extra_words * served.slots
        )
    return dtype.nbytes(rows * hidden)


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.33.0 lora/layers/logits_processor.py:115: the place of every word in the gathered logits, "
        "where ranks share the head"
    ),
)
def mapping_bytes(part: ModelSpec, plan: Plan) -> Count:
    """Bytes of the table, of the padded vocabulary."""
    if part.head.kind != "causal_lm":
        return 0
    shared = minimum(1, plan.mesh.tp - 1)
    return shared * INT64.nbytes(round_up(part.head.width, VOCABULARY))


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.33.0 lora/punica_wrapper/punica_base.py:133-155, "
        "lora/ops/triton_ops/lora_kernel_metadata.py:54-75: of each token and sequence"
    ),
)
def places_bytes(plan: Plan, served: ServedAdapters, tables: int) -> Count:
    """Bytes of the tables that say whose adapter a token goes through."""
    tokens: Count = given_or(plan.serving.max_batched_tokens, 0)
    sequences: Count = given_or(plan.serving.max_sequences, 0)
    counted = 2 * INT32.nbytes(2 * tokens + 3 * served.slots + 4)
    return INT64.nbytes(tables * tokens + 3 * sequences) + counted


TWICE = FromCode("vllm-project/vllm", "v0.33.0", "vllm/v1/worker/gpu/lora_utils.py", 35)


def recorded_twice(graphs: list[Item], plan: Plan, release: Release) -> list[Item]:
    """CUDA graphs of every size with adapters and without (``cudagraph_specialize_lora``); the memory they
    work in is one pool's.
    """
    facts = facts_of(release.since)
    if plan.served_adapters is None or facts is None or not facts.twice:
        return graphs
    return [
        replace(
            item,
            at={when: Bytes(size.low, size.value, 2 * size.high) for when, size in item.at.items()},
            evidence=TWICE,
        )
        for item in graphs
    ]


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.33.0 lora/lora_model.py:132: a whole adapter in pinned memory, cut as it is copied "
        "(layers/base_linear.py:162)"
    ),
)
def adapter_bytes(part: ModelSpec, plan: Plan) -> Count:
    """Bytes of one whole adapter on the host: every rank keeps all of it and cuts it as it copies (v0.33.0
    lora/lora_model.py:132, base_linear.py:162).
    """
    served = plan.served_adapters
    assert served is not None
    alone = replace(plan, mesh=Mesh())
    facts = facts_of(release_of(plan.engine_version).since)
    assert facts is not None
    pairs = pairs_of(part, alone, replace(facts, extra_words=0))
    return served.dtype.nbytes(sum(pair.elements for pair in pairs if pair.sure))


@formula(
    cites=PAGED_SERVER_CODE,
    at="v0.33.0 config/lora.py:42: max_cpu_loras of them, as many as max_loras where nobody says",
)
def lora_host_bytes(part: ModelSpec, plan: Plan) -> Count:
    """Host memory of a rank: the adapters it keeps to copy from."""
    served = plan.served_adapters
    return 0 if served is None else served.host * adapter_bytes(part, plan)


def _sharded_bytes(spec: ModelSpec, plan: Plan, served: ServedAdapters) -> Count:
    """What the same room would take where both matrices are cut."""
    part = stage_model(spec, plan, 0)
    other = replace(plan, served_adapters=replace(served, sharded=True))
    items = lora_items(part, other, release_of(plan.engine_version), (Instant.LOAD,))
    return sum_byte_ranges(item.largest for item in items if item.component is Component.BUFFERS).value


def lora_facts(spec: ModelSpec, plan: Plan, items: Sequence[Item]) -> dict[str, Any]:
    """What a person asks of the room: how many adapters, and its bytes on a GPU and on the host."""
    served = plan.served_adapters
    assert served is not None
    room = sum_byte_ranges(item.largest for item in items if item.component is Component.BUFFERS)
    found = {
        "slots": served.slots,
        "rank": served.rank,
        "room_bytes": room,
        "host_bytes": lora_host_bytes(spec, plan),
    }
    cut = plan.mesh.tp > 1 and not served.sharded and served.rank % plan.mesh.tp == 0 and plan.mesh.ep == 1
    return {**found, "fully_sharded_bytes": _sharded_bytes(spec, plan, served)} if cut else found
