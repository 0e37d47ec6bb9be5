"""torchtitan's own decoders: what its plans run of ``layers.py``, its module names, what it cannot do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from memsheet.arith import Count, agreed, ceil_div, maximum
from memsheet.engines.torchtitan.facts import Rotations, Ties, Version, version_of
from memsheet.engines.torchtitan.layers import layers, switches
from memsheet.engines.torchtitan.layers.experts import torchtitan_moe
from memsheet.engines.torchtitan.layers.latent import torchtitan_latent_attention
from memsheet.engines.torchtitan.layers.loss import CHUNKS, loss_of
from memsheet.engines.torchtitan.layers.rotations import COSINE_KINDS, rotation_bytes
from memsheet.errors import Problem
from memsheet.formulas.model_code import ModelCode
from memsheet.formulas.model_code.transformers.latent import latent_axes
from memsheet.formulas.numerics import AttentionKernel, RunConfig
from memsheet.formulas.tapes.evaluate import with_products
from memsheet.formulas.tapes.graph import Chosen
from memsheet.formulas.tapes.tape import Shape
from memsheet.frozen import replace
from memsheet.plan.dtypes import BF16, FP8, FP32, DType
from memsheet.plan.model import (
    Attention,
    Block,
    Dense,
    LatentAttention,
    ModelSpec,
    Moe,
    Norm,
    Role,
    Stack,
    Weight,
)
from memsheet.plan.plan import ContextParallel, Loss, Plan, RecomputeMode
from memsheet.plan.workload import PassShape
from memsheet.references import TORCHTITAN, formula

NAMES = {
    "model.embed_tokens": "tok_embeddings", "model.layers": "layers", "lm_head": "output", "self_attn": "attention",
    "self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo", "mlp": "feed_forward", "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3", "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm", "norm": "norm",
    "self_attn.q_norm": "attention.q_norm", "self_attn.k_norm": "attention.k_norm",
}  # fmt: skip
"""Module names of the library's Llama and torchtitan's."""
OPERATIONS = frozenset({Chosen.EVERY_SECOND_PRODUCT, Chosen.ATTENTION, Chosen.REDUCE_SCATTER, Chosen.ROUTING})
"""What the policy ``op`` keeps (torchtitan 9dec370, parallelisms/parallelize_llama.py:214-225, 250-266):
every second mm from the first on, attention's outputs, reduce-scatters, and the maxima of eight-bit casts,
which are numbers; besides, which experts a token goes to (b5bcd76, distributed/activation_checkpoint.py:60).
Products in eight bits are counted as the mm that they stand for: the policy sees torchao's
tensors before they become _scaled_mm.
"""
MODULES = ("op", "layer")
RECIPES = ("tensorwise", "rowwise")
ROUTED_KINDS = frozenset({"qwen3_moe", "deepseek_v2", "deepseek_v3"})
NORMED_KINDS = frozenset({"qwen3_moe", "deepseek_v3"})
"""Blocks whose shares are divided by their sum (models/qwen3/__init__.py:180,
models/deepseek_v3/__init__.py:571; its smaller ones take :189).
"""


def plan_numerics(plan: Plan, how: RunConfig) -> RunConfig:
    """What of a plan decides how its operations run. Eight bits are for products alone: everything else is
    bf16.
    """
    version = version_of(plan.engine_version)
    fp8, shared = plan.precision.compute is FP8, agreed(plan.mesh.cp > 1)
    named = {
        switches.COMPILED: plan.compile, switches.COMPILED_LOSS: plan.compile and version.compiles_loss and not agreed(plan.mesh.tp > 1), switches.FUSED_NORM: version.fused_norm, switches.REPEATS: version.repeats_kv,
        switches.FP8_PRODUCTS: fp8, switches.FP8_GATHERED: fp8 and plan.fp8 is not None and plan.fp8.gathered, switches.RING: shared,
        switches.ALL_GATHER: shared and plan.context_parallel is ContextParallel.ALL_GATHER, switches.ASYNC: plan.async_tp,
        switches.OWN_ROTATIONS: version.rotations is Rotations.OWN, switches.REDUCED_HEAD: plan.loss is Loss.CHUNKED,
    }  # fmt: skip
    by_operation = plan.recompute.mode is RecomputeMode.SELECTIVE and plan.recompute.modules == ("op",)
    return replace(
        how,
        parameters=BF16 if fp8 else how.parameters,
        stream=BF16 if fp8 else how.stream,
        again=frozenset(),
        options=frozenset(name for name, on in named.items() if on),
        chosen=OPERATIONS if by_operation else frozenset(),
    )


def at_ends(how: RunConfig) -> RunConfig:
    """Embeddings, final norm and head are neither compiled nor swapped (parallelize_llama.py:297-306,
    float8.py:99).
    """
    return replace(how, options=how.options - {switches.COMPILED, switches.FP8_PRODUCTS, switches.ASYNC})


# ---- the model as it is built ------------------------------------------------------------------------------


def torchtitan_spec(spec: ModelSpec, plan: Plan) -> ModelSpec:
    """The model under torchtitan's module names, with the projections that its version joins."""
    version = version_of(plan.engine_version)
    names = {**NAMES, "lm_head": "lm_head"} if version.chunks_loss else NAMES
    embeddings = replace(spec.embeddings, weights=_rename_weights(spec.embeddings.weights, names))
    head = replace(spec.head, weights=_rename_weights(spec.head.weights, names))
    if head.tied and version.ties is Ties.APART:
        head = replace(head, tied=False, weights=(replace(embeddings.weights[0], role=Role.HEAD),))
    return replace(
        spec,
        embeddings=embeddings,
        head=head,
        stacks=tuple(_torchtitan_stack(stack, joins=version.fuses_qkv) for stack in spec.stacks),
    )


def _rename_weights(weights: tuple[Weight, ...], names: Mapping[str, str] = NAMES) -> tuple[Weight, ...]:
    return tuple(
        replace(w, path=".".join((names.get(module, module), last)))
        for w in weights
        for module, _, last in (w.path.rpartition("."),)
    )


def _torchtitan_stack(stack: Stack, *, joins: bool) -> Stack:
    runs = tuple(
        replace(run, pattern=tuple(_torchtitan_block(block, joins=joins) for block in run.pattern))
        for run in stack.runs
    )
    path = NAMES.get(stack.path, stack.path)
    return replace(
        stack,
        path=path,
        final_path="",
        runs=runs,
        final_norms=tuple(_torchtitan_norm(n) for n in stack.final_norms),
    )


def _torchtitan_norm(norm: Norm) -> Norm:
    return replace(norm, path=NAMES.get(norm.path, norm.path), weights=_rename_weights(norm.weights))


def _torchtitan_block(block: Block, *, joins: bool) -> Block:
    mixers = tuple(
        _torchtitan_attention(m, joins=joins)
        if isinstance(m, Attention)
        else torchtitan_latent_attention(m)
        if isinstance(m, LatentAttention)
        else m
        for m in block.mixers
    )
    ff = block.feed_forward
    if isinstance(ff, Dense):
        ff = replace(ff, path=NAMES.get(ff.path, ff.path), weights=_rename_weights(ff.weights))
    elif isinstance(ff, Moe) and block.kind in ROUTED_KINDS:
        ff = torchtitan_moe(ff)
    return replace(
        block, mixers=mixers, feed_forward=ff, norms=tuple(_torchtitan_norm(n) for n in block.norms)
    )


def _torchtitan_attention(at: Attention, *, joins: bool) -> Attention:
    weights = _rename_weights(at.weights)
    norm = _torchtitan_norm(at.qk_norm) if at.qk_norm else None
    if joins and len(weights) == len("qkvo"):
        rows = sum(w.shape[0] for w in weights[:3])
        one = replace(
            weights[0],
            path="attention.qkv_linear.wqkv.weight",
            shape=(rows, *weights[0].shape[1:]),
            units=at.kv_heads,
        )
        return replace(at, path="attention", weights=(one, weights[3]), fused_qkv=True, qk_norm=norm)
    return replace(at, path="attention", weights=weights, qk_norm=norm)


# ---- what is refused ---------------------------------------------------------------------------------------


def torchtitan_problems(spec: ModelSpec, plan: Plan) -> list[Problem]:
    """Everything that torchtitan's models do not do, or that is not modelled of them."""
    kinds, version = {block.kind for block in spec.blocks()}, version_of(plan.engine_version)
    known, tied = len(kinds) == 1 and kinds <= version.kinds and not spec.towers, spec.head.tied
    rules = [
        ("model", spec.name, not known, f"only {_model_names(version.kinds)} modelled of that version", "engine fsdp2 runs the library's models"),
        ("model", spec.name, known and any(w.role is Role.BIAS for b in spec.blocks() for w in b.weights), "has biases, and its layers have none", "engine fsdp2"),
        ("model", spec.name, tied and not _ties_tables(version, kinds), "ties embeddings and head, which is not modelled of that version", "engine fsdp2"),
        ("mesh.pp", plan.mesh.pp, tied and agreed(plan.mesh.pp > 1), "is not supported there with a tied table (models/common/decoder.py:172)", "pp 1"),
        ("adapter", "lora", plan.adapter is not None, "is not modelled there", "engine fsdp2"),
        ("dropout", plan.dropout, plan.dropout > 0, "does not exist in its models", "leave it out"),
        ("async_tp", True, plan.async_tp and not plan.compile, "needs compile (parallelize_llama.py:58)", "add --compile"),
        ("async_tp", True, plan.async_tp and not agreed(plan.mesh.tp > 1), "overlaps what tensor parallelism sends", "give tp"),
        *(("recompute.modules", m, m not in MODULES, "is no policy of torchtitan", "op, or layer") for m in plan.recompute.modules),
        *_of_fp8(plan), *_of_mesh(spec, plan), *(_expert_rules(spec, plan) if known else ()),
    ]  # fmt: skip
    return [
        Problem(field=field, value=value, reason=reason, hint=hint)
        for field, value, holds, reason, hint in rules
        if holds
    ]


def _ties_tables(version: Version, kinds: set[str]) -> bool:
    """Whether the models share a table there: at 238fa99 models/llama3/model/model.py does not."""
    return version.ties is Ties.TOGETHER or (version.ties is Ties.APART and "llama" not in kinds)


KNOWN = {
    "llama": "its Llama", "qwen3": "its Qwen3", "qwen3_moe": "its Qwen3 with experts", "deepseek_v3": "its DeepSeek",
}  # fmt: skip


def _model_names(kinds: frozenset[str]) -> str:
    *names, last = (name for kind, name in KNOWN.items() if kind in kinds)
    return f"{', '.join(names)} and {last} are" if names else f"{last} is"


_Rule = tuple[str, object, bool, str, str]


def _of_fp8(plan: Plan) -> Iterator[_Rule]:
    recipe = plan.fp8.recipe if plan.fp8 else None
    yield (
        "precision.compute",
        "fp8",
        plan.precision.compute is FP8 and recipe is None,
        "has no recipe",
        "add fp8.recipe tensorwise",
    )
    yield (
        "fp8.recipe",
        recipe,
        recipe is not None and plan.precision.compute is not FP8,
        "casts nothing",
        "give precision.compute fp8",
    )
    yield (
        "fp8.recipe",
        recipe,
        recipe is not None and recipe not in RECIPES,
        "is not modelled there",
        " or ".join(RECIPES),
    )
    other = plan.fp8 is not None and set(plan.fp8.skip) - {"lm_head", "output"}
    yield (
        "fp8.skip",
        plan.fp8.skip if plan.fp8 else None,
        bool(other),
        "is not modelled: it swaps all but the head",
        "lm_head",
    )


def _expert_rules(spec: ModelSpec, plan: Plan) -> Iterator[_Rule]:
    """What is not modelled of layers with experts. Where ranks outnumber them, another dimension is sharded
    (distributed/fsdp.py:275-283).
    """
    experts = [block.feed_forward for block in spec.blocks() if isinstance(block.feed_forward, Moe)]
    if not experts:
        return
    few, mesh = min(ff.experts for ff in experts), plan.mesh
    latent = any(isinstance(m, LatentAttention) for m in spec.mixers())
    why, hint = "is not modelled there with experts", "engine fsdp2, or leave it out"
    yield "compile", plan.compile, plan.compile, why, hint
    yield "mesh.tp", mesh.tp, agreed(mesh.tp > 1), why, hint
    yield "precision.compute", "fp8", plan.precision.compute is FP8, why, hint
    yield (
        "mesh.cp",
        mesh.cp,
        latent and agreed(mesh.cp > 1),
        "is not modelled there with latent attention",
        hint,
    )
    yield "precision.compute", "fp32", plan.precision.compute is FP32, why, hint  # their products are in bf16
    ranks = mesh.dp_replicate * mesh.sharded
    more = agreed(ranks > few)
    yield (
        "mesh.dp_shard",
        mesh.dp_shard,
        more,
        f"makes more ranks than the {few} experts, which is not modelled",
        f"at most {few} ranks",
    )


def _of_mesh(spec: ModelSpec, plan: Plan) -> Iterator[_Rule]:
    mesh, parallel = plan.mesh, plan.loss is Loss.VOCAB_PARALLEL
    chunked = plan.loss is Loss.CHUNKED and not version_of(plan.engine_version).chunks_loss
    yield (
        "loss",
        "chunked",
        chunked,
        "is not in that version",
        "plain, or vocab_parallel over tensor-parallel ranks",
    )
    yield (
        "loss",
        "vocab_parallel",
        parallel and not agreed(mesh.tp > 1),
        "is for tensor-parallel ranks",
        "leave it out",
    )
    pieces = mesh.tp * maximum(1, 2 * mesh.cp * (mesh.cp > 1))
    yield (
        "seq_len",
        plan.training.seq_len,
        agreed(plan.training.seq_len % pieces != 0),
        f"is not a multiple of {pieces}, by which ranks share it",
        "a multiple",
    )
    heads = min(
        (m.kv_heads for m in spec.mixers() if isinstance(m, Attention)),
        default=1,
    )
    yield (
        "mesh.tp",
        mesh.tp,
        agreed(heads % mesh.tp != 0),
        f"does not divide {heads} heads of keys and values",
        "a divisor",
    )


# ---- numbers -----------------------------------------------------------------------------------------------


def block_numerics(block: Block, _: Plan, __: PassShape, how: RunConfig) -> RunConfig:
    own = {switches.COSINES: block.kind in COSINE_KINDS, switches.NORMED_SHARES: block.kind in NORMED_KINDS}
    asked = how.options | {name for name, on in own.items() if on}
    return replace(how, attention=AttentionKernel.FUSED, options=asked)


def on_rank(block: Block, plan: Plan) -> Block:
    """A block as a tensor-parallel rank sees it: one head of keys and values is a special case."""
    (at,) = block.mixers
    if not isinstance(at, Attention) or at.heads == at.kv_heads or not agreed(plan.mesh.tp >= at.kv_heads):
        return block
    return replace(block, mixers=(replace(at, kv_heads=1),))


def _sequence_axis_sizes(plan: Plan, shape: PassShape) -> dict[str, Count]:
    length = ceil_div(shape.tokens, plan.mesh.cp)
    return {
        "b": shape.sequences,
        "s": length,
        "s/t": ceil_div(length, plan.mesh.tp),
        "cp": plan.mesh.cp,
    }


@formula(
    cites=TORCHTITAN,
    at=(
        "models/llama/model.py, parallelisms/parallelize_llama.py:117-205: shapes of a layer's tensors on "
        "a rank"
    ),
)
def block_axes(block: Block, plan: Plan, shape: PassShape) -> dict[str, Count]:
    """Values of the axes that a layer's tensors are named by."""
    at, ff, tp = block.mixers[0], block.feed_forward, plan.mesh.tp
    assert isinstance(at, Attention | LatentAttention)
    if isinstance(ff, Moe):
        wide: dict[str, Count] = {"e": ff.experts, "t": ff.experts_per_token, "i": ff.intermediate}
        wide["f"] = ff.shared.intermediate if ff.shared else 0
    else:
        assert isinstance(ff, Dense)
        wide = {"f": ceil_div(ff.intermediate, tp)}
    if isinstance(at, LatentAttention):
        heads = latent_axes(at)
    else:
        heads = {
            "a": ceil_div(at.heads, tp),
            "k": maximum(1, ceil_div(at.kv_heads, tp)),
            "d": at.head_dim,
        }
    found = with_products({**_sequence_axis_sizes(plan, shape), "h": block.hidden, **heads, **wide})
    return {**found, "2·d": 2 * found["d"]}


@formula(
    cites=TORCHTITAN,
    at="models/llama/model.py:427-447: embeddings, head; the vocabulary over tensor-parallel ranks",
)
def end_axes(spec: ModelSpec, plan: Plan, shape: PassShape) -> dict[str, Count]:
    shared = _sequence_axis_sizes(plan, shape)
    chunk = ceil_div(shared["b"] * shared["s"], CHUNKS)
    return {**shared, "h": spec.hidden, "V": ceil_div(spec.vocab, plan.mesh.tp), "V0": spec.vocab, "c": chunk}


def loss_input(how: RunConfig, loss: Loss) -> tuple[Shape, DType, str]:
    if loss is Loss.CHUNKED:
        return layers.WHOLE, how.stream, "loss/input"
    return ("b", "s", "V" if loss is Loss.VOCAB_PARALLEL else "V0"), how.parameters, "output/output"


CODE = ModelCode(
    forward=layers.decoder_block_forward, embed=layers.tensor_parallel_embedding, head=layers.tensor_parallel_logits, loss=loss_of, loss_input=loss_input, problems=torchtitan_problems,
    block_numerics=block_numerics, axes=block_axes, end_axes=end_axes, normalise=layers.torchtitan_rms_norm, built=torchtitan_spec, on_rank=on_rank,
    shared=rotation_bytes, plan_numerics=plan_numerics, at_ends=at_ends, stream=layers.STREAM,
)  # fmt: skip
