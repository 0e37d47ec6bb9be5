"""Who drafts, as a server holds it: the layers a draft has of its own, what it takes of the model it drafts
for, and in which formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from memsheet.arith import Count
from memsheet.errors import input_error
from memsheet.frozen import dataclass, replace
from memsheet.late import late_functions
from memsheet.plan.defaults import QUANTIZED
from memsheet.plan.dtypes import INT64, dtype_named
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import Block, Embeddings, LatentAttention, ModelSpec, Role, Run, Stack, Weight
from memsheet.plan.plan import Plan, Quantization, SpeculativeMethod
from memsheet.references import PAGED_SERVER_CODE, SGLANG, formula
from memsheet.sheet import NOTHING, Bytes, Component, Instant, Item, sum_byte_ranges

if TYPE_CHECKING:
    from memsheet.formulas.serving.loaded import Ways
with late_functions(__name__):
    from memsheet.formulas.serving.loaded import loaded_items, loaded_tensors


PREFIX = "draft."
"""How the rows of a draft begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """``own``: the draft without what it shares; ``whole``: with it; ``plan``: how it is kept on a rank of
    the last stage.
    """

    own: ModelSpec
    whole: ModelSpec
    plan: Plan


def draft_of(part: ModelSpec, plan: Plan) -> Draft | None:
    """Who drafts for a stage: nobody where the plan has none, where the prompt itself does, and on stages
    before the last.
    """
    how = plan.speculative
    if how is None or how.method is SpeculativeMethod.NGRAM or part.head.kind == "none":
        return None
    whole = mtp_heads(part) if how.method is SpeculativeMethod.MTP else part.draft
    assert whole is not None
    return Draft(
        own=draft_without_shared_embeddings(whole, part, plan), whole=whole, plan=draft_plan(whole, plan)
    )


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.33.0 models/deepseek_mtp.py:70, qwen3_next_mtp.py:69: for each further token two norms, a "
        "matrix of both inputs, a layer like the last, a norm; models/deepseek_v2.py:1168: with an "
        "indexer of its own where any layer has one"
    ),
)
def mtp_heads(part: ModelSpec) -> ModelSpec:
    """The checkpoint's own layers for further tokens, with the embedding and the output that they share."""
    stack = part.stacks[-1]
    blocks = [block for run in stack.runs for block in run.pattern]
    block = next((one for one in reversed(blocks) if _has_indexer(one)), blocks[-1])
    extras = [
        weight
        for number in range(part.ahead)
        for weight in _mtp_projection_weights(f"mtp.{number}", block.hidden)
    ]
    own = Stack(path="mtp.layers", hidden=stack.hidden, runs=(Run(pattern=(block,), count=part.ahead),))
    return replace(part, stacks=(own,), towers=(), extras=tuple(extras), ahead=0, draft=None)


def _has_indexer(block: Block) -> bool:
    return any(isinstance(mixer, LatentAttention) and mixer.index_dim for mixer in block.mixers)


def _mtp_projection_weights(path: str, hidden: int) -> tuple[Weight, ...]:
    """What brings an embedding and a hidden state into one, and the norm before the output; never quantized,
    whole on every rank.
    """
    norms = tuple(
        Weight(path=f"{path}.{name}.weight", shape=(hidden,), role=Role.NORM)
        for name in ("enorm", "hnorm", "shared_head.norm")
    )
    return (*norms, Weight(path=f"{path}.eh_proj.weight", shape=(hidden, 2 * hidden), role=Role.OTHER))


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.33.0 v1/worker/gpu/spec_decode/eagle/utils.py:20-113: embedding and output of the model where "
        "widths agree, on one stage; SGLang v0.5.23 speculative/eagle_worker_v2.py:336"
    ),
    counts="int",
)
def draft_without_shared_embeddings(whole: ModelSpec, part: ModelSpec, plan: Plan) -> ModelSpec:
    """The draft without the embedding and the output of the model it drafts for. A draft model shares
    nothing; a stage without the model's embedding has one for its head.
    """
    how = plan.speculative
    assert how is not None
    if not how.method.headed:
        return whole
    narrow = whole.hidden == part.hidden
    embeddings = (
        Embeddings(weights=()) if narrow and plan.mesh.pp == 1 else replace(whole.embeddings, norms=())
    )
    head = whole.head if how.method is SpeculativeMethod.EAGLE3 else replace(whole.head, weights=())
    return replace(
        whole, embeddings=embeddings, head=head, extras=(*whole.extras, *own_outputs(whole, part, plan))
    )


def own_outputs(whole: ModelSpec, part: ModelSpec, plan: Plan) -> tuple[Weight, ...]:
    """Outputs of a checkpoint's own layers where the release does not give them the model's."""
    kinds = {block.kind for block in whole.blocks()}
    mtp = plan.speculative is not None and plan.speculative.method is SpeculativeMethod.MTP
    if not mtp or not kinds & engine_of(plan).serving.own_draft_outputs(plan.engine_version):
        return ()
    return tuple(
        replace(weight, path=f"mtp.{number}.shared_head.head.weight")
        for number in range(part.ahead)
        for weight in part.head.weights[:1]
    )


def draft_plan(whole: ModelSpec, plan: Plan) -> Plan:
    """How the draft is kept: cut as the model is, on one stage; in the format of its own checkpoint, which
    for the model's own layers is the model's (``READ_IN``).
    """
    how = plan.speculative
    own = (
        plan.quantization if how is not None and how.method is SpeculativeMethod.MTP else stored_format(whole)
    )
    return replace(plan, mesh=replace(plan.mesh, pp=1), layers_per_stage=None, quantization=own)


def stored_format(draft: ModelSpec) -> Quantization | None:
    """The format of the draft's checkpoint. Raises InputError where nobody knows it."""
    stored = draft.quantization
    if stored is None:
        return None
    weights = QUANTIZED.get(stored.weights) or dtype_named(stored.weights)
    if weights is None:
        raise input_error("speculative.model", stored.weights, f"is not a known format of {draft.name}")
    return Quantization(weights=weights, skip=stored.skip)


def with_draft(part: ModelSpec, plan: Plan) -> ModelSpec:
    """A stage's layers and those of the draft beside them, for whatever looks at caches alone."""
    draft = draft_of(part, plan)
    return part if draft is None else replace(part, stacks=(*part.stacks, *draft.whole.stacks))


def draft_weights(draft: Draft, instants: Sequence[Instant], ways: Ways) -> list[Item]:
    """What the draft has of its own once loaded. A checkpoint's own layers rotate by the model's table."""
    how = draft.plan.speculative
    rotates = how is not None and how.method is not SpeculativeMethod.MTP
    items = loaded_items(draft.own, draft.plan, loaded_tensors(draft.own, draft.plan, ways), instants, ways)
    return prefix_draft_items([item for item in items if rotates or item.path != "rotary_emb"])


def prefix_draft_items(items: Iterable[Item]) -> list[Item]:
    """Rows of the draft."""
    return [replace(item, path=f"{PREFIX}{item.path}") for item in items]


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.33.0 config/vllm.py:695 uniform_decode_query_len: one and those that were drafted; SGLang "
        "speculative_num_draft_tokens"
    ),
)
def verified_tokens(plan: Plan) -> Count:
    """Tokens of a sequence in a step of decoding: the last one, and those that were drafted."""
    return 1 if plan.speculative is None else 1 + plan.speculative.tokens


@formula(
    cites=SGLANG,
    at=(
        "v0.5.23 speculative/eagle_info.py; vLLM v0.33.0 v1/worker/gpu/states.py: the tokens that are "
        "drafted, of every sequence"
    ),
)
def drafted_bytes(sequences: Count, tokens: Count) -> Count:
    """Bytes of the drafted tokens themselves."""
    return INT64.nbytes(sequences * tokens)


def draft_facts(items: Iterable[Item], plan: Plan, per_token: Count) -> dict[str, object]:
    """What the draft costs on the fullest rank, for the answer. ``per_token``: of a token's cache in one
    replica.
    """
    how, kinds = plan.speculative, dict[Component, Bytes]()
    assert how is not None
    for item in items:
        if item.path.startswith(PREFIX):
            kinds[item.component] = kinds.get(item.component, NOTHING) + item.largest
    weights = kinds.get(Component.PARAMETERS, NOTHING)
    others = sum_byte_ranges(
        size
        for kind, size in kinds.items()
        if kind in (Component.BUFFERS, Component.TEMPORARIES, Component.CUDA_GRAPHS)
    )
    return {
        "method": how.method.value, "model": how.model, "tokens": how.tokens, "weights_bytes": weights.value, "kv_bytes_per_token": per_token,
        "kv_cache_bytes": kinds.get(Component.KV_CACHE, NOTHING).value, "other_bytes": others.value,
    }  # fmt: skip
