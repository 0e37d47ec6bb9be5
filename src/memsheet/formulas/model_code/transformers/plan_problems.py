"""What of a model and a plan was not compared with the library's real code."""

from __future__ import annotations

from memsheet.arith import agreed
from memsheet.errors import Problem
from memsheet.formulas.model_code.transformers.blocks import unmodelled_block_reason
from memsheet.formulas.model_code.transformers.encoders import unmodelled_head
from memsheet.formulas.model_code.transformers.ends import HEADS
from memsheet.formulas.model_code.transformers.families import CLASSES, family_traits, is_t5
from memsheet.formulas.model_code.transformers.language_stacks import (
    language_blocks,
    language_stacks,
    reads_other_stack,
)
from memsheet.formulas.model_code.transformers.mixers import sparse_problems
from memsheet.formulas.model_code.transformers.pictures import of_pictures
from memsheet.late import late_functions
from memsheet.plan.dtypes import INT8
from memsheet.plan.engine_registry import MODELLED, engine_of, find_engine
from memsheet.plan.model import Arrangement, Attention, Block, Dense, ModelSpec
from memsheet.plan.plan import AttentionKind, Loss, Plan, RecomputeMode
from memsheet.plan.verified_families import NO_SDPA, OF_PICTURES, TP_TRAINED, VERIFIED

with late_functions(__name__):
    from memsheet.formulas.model_code.transformers.experts import expert_problems
    from memsheet.formulas.model_code.transformers.picture_problems import picture_problems
    from memsheet.formulas.model_code.transformers.prefixes import prefix_problems
    from memsheet.formulas.model_code.transformers.ring import ring_problems
    from memsheet.formulas.model_code.transformers.ulysses import exchange_problems


FLASH_MAX_HEAD = 256
"""Largest head dim of the flash kernels (torch sdp_utils.cpp, check_head_dim_size_flash)."""


def transformers_problems(spec: ModelSpec, plan: Plan) -> list[Problem]:
    """Everything of a model whose activations are not accounted yet."""
    hint = (
        "its states and cache are known: --parameters N for states alone, or `memsheet infer`; the "
        "trace will run its real code"
    )
    found = [
        Problem(
            field="model",
            value=spec.name,
            reason=f"the activations of {block.kind} blocks are not modelled: {why}",
            hint=hint,
        )
        for block in language_blocks(spec)
        if (why := _unmodelled_kind_reason(block, plan))
    ]
    if of_pictures(spec.embeddings) and not agreed(plan.training.seq_len == spec.max_positions):
        reason = f"is not what a picture is here: {spec.max_positions} patches and class tokens"
        found.append(
            Problem(
                field="seq_len",
                value=plan.training.seq_len,
                reason=reason,
                hint=f"--seq-len {spec.max_positions}",
            )
        )
    if spec.towers and not engine_of(plan).trains_towers:
        others = _engines_that("trains_towers")
        reason = (
            "training a model with a vision tower is not modelled for it; modelled for "
            f"{' and '.join(others)}"
        )
        found.append(Problem(field="engine", value=plan.engine, reason=reason, hint=f"--engine {others[0]}"))
    if _projects_words(spec):
        found.append(
            Problem(
                field="model",
                value=spec.name,
                reason="its table of words is of another width than its layers, which is not modelled",
                hint=hint,
            )
        )
    if why := unmodelled_head(
        spec.head, {block.feed_forward.activation for block in language_blocks(spec) if block.feed_forward}
    ):
        found.append(
            Problem(field="model", value=spec.name, reason=f"its head is not modelled: {why}", hint=hint)
        )
    if (spec.head.kind not in HEADS and spec.head.kind != "none") or (
        len(language_stacks(spec)) != 1 and spec.head.kind != "sequence_to_sequence"
    ):
        found.append(
            Problem(
                field="model",
                value=spec.name,
                reason=f"training a {spec.head.kind} model is not modelled yet",
                hint=hint,
            )
        )
    return [
        *found,
        *(picture_problems(spec, plan) if agreed(plan.training.image_tokens > 0) else ()),
        *_other_heads(spec, plan),
        *_recompute_module_problems(spec, plan),
        *_moved_activations(plan),
        *_int8_rows(plan),
        *_tensor_parallel(spec, plan),
        *_idle_dropout(spec, plan),
        *(prefix_problems(spec, plan) if plan.adapter is not None else ()),
        *(ring_problems(spec, plan) if plan.context_parallel is not None else ()),
        *exchange_problems(spec, plan),
        *(expert_problems(spec, plan) if plan.quantization is not None else ()),
        *sparse_problems(spec, plan),
    ]


OTHER_HEADS = ("masked_lm", "classification", "sequence_to_sequence", CLASSES)
"""Of models that are not one row of layers with words at its end."""


def has_written_layers(spec: ModelSpec, engine: str = "") -> bool:
    """Whether every kind of layer that a model trains, and its head, are written down here and were compared
    with the real code; under ``engine``, where one is named that runs the library's.
    """
    by = find_engine(engine)
    if by is not None and by.layers is None:
        if spec.head.kind in OTHER_HEADS and not by.trains_other_heads:
            return False
        if spec.towers and not by.trains_towers:
            return False
    compared = {**VERIFIED, **OF_PICTURES}
    return (
        not _projects_words(spec)
        and all(
            is_t5(block.kind) or (unmodelled_block_reason(block) is None and block.kind in compared)
            for block in language_blocks(spec)
        )
        and (spec.head.kind in HEADS or spec.head.kind == "none")
    )


def _projects_words(spec: ModelSpec) -> bool:
    """Whether words come from a table of another width than the layers have, by a projection, and go back by
    another (OPT-350M; transformers 5.23 modeling_opt.py:292-300).
    """
    return any(weight.path.endswith(".project_in.weight") for weight in spec.embeddings.weights)


def _engines_that(fact: str) -> list[str]:
    """Names of the engines that have a fact."""
    return [name for name in MODELLED if getattr(find_engine(name), fact)]


def _other_heads(spec: ModelSpec, plan: Plan) -> list[Problem]:
    """What a model that is not one row of layers with words at its end was not compared with its real code
    for.
    """
    if spec.head.kind not in OTHER_HEADS:
        return []
    runs, again = "`memsheet trace` runs it", plan.recompute
    whole = again.mode is not RecomputeMode.SELECTIVE and not again.stretched and again.layers is None
    two = reads_other_stack(spec)
    reasons = [
        ("engine", plan.engine, f"training a {spec.head.kind} model was not compared with its real code", not engine_of(plan).trains_other_heads, None),
        ("loss", plan.loss.value, "takes the logits of a causal model", plan.loss is not Loss.PLAIN, "plain"),
        ("recompute.mode", again.mode.value, "of some layers or modules is not modelled over two stacks", two and not whole, runs),
        ("recompute.reentrant", True, "is not modelled over two stacks, whose layers hand a bias on", two and again.reentrant, f"false (use_reentrant in gradient_checkpointing_kwargs); {runs}"),
    ]  # fmt: skip
    return [
        Problem(field=field, value=value, reason=reason, hint=hint or _engines_that("trains_other_heads")[0])
        for field, value, reason, holds, hint in reasons
        if holds
    ]


def _recompute_module_problems(spec: ModelSpec, plan: Plan) -> list[Problem]:
    """Modules that are recomputed and have no part of their own in a block's recording."""
    blocks = spec.blocks()
    paths = [norm.path for block in blocks for norm in block.norms]
    paths += [
        part.path
        for block in blocks
        for part in (block.feed_forward, *block.mixers)
        if isinstance(part, Dense | Attention)
    ]
    known = sorted({path.rpartition(".")[2] for path in paths if path})
    hint = f"modelled: {', '.join(known)}; `memsheet trace` runs any"
    unknown = [name for name in plan.recompute.modules if name not in known]
    return [
        Problem(field="recompute.modules", value=name, reason="is not modelled by itself", hint=hint)
        for name in unknown
    ]


def _moved_activations(plan: Plan) -> list[Problem]:
    """Hooks on what is saved see gathered parameters too, where those are made anew for every layer; a
    recomputed layer saves none.
    """
    if (
        not plan.offload.activations
        or engine_of(plan).offloads_unrecomputed
        or plan.recompute.mode is RecomputeMode.FULL
    ):
        return []
    why = (
        f"is modelled of recomputed layers alone for {plan.engine}: gathered parameters would be moved "
        "with them"
    )
    return [Problem(field="offload.activations", value=True, reason=why, hint="add --recompute full")]


def _int8_rows(plan: Plan) -> list[Problem]:
    """What is not modelled over LLM.int8(), whose layers hold their input past every checkpoint
    (``formulas/int8.py``).
    """
    if plan.quantization is None or plan.quantization.weights is not INT8:
        return []
    again, over = plan.recompute, "is not modelled over int8 weights"
    nested = again.mode is RecomputeMode.SELECTIVE or again.stretched
    reasons = [
        (
            "recompute",
            again.mode.value,
            f"of some modules or several layers together {over}",
            nested,
            "--recompute full or none",
        ),
        ("offload.activations", True, over, plan.offload.activations, "leave it out"),
        ("mesh.tp", plan.mesh.tp, over, agreed(plan.mesh.tp > 1), "without tp"),
    ]
    return [
        Problem(field=field, value=value, reason=reason, hint=hint or _engines_that("trains_other_heads")[0])
        for field, value, reason, holds, hint in reasons
        if holds
    ]


def _tensor_parallel(spec: ModelSpec, plan: Plan) -> list[Problem]:
    """What training over tensor-parallel ranks was not compared with its real code for."""
    degree = plan.mesh.tp
    if not agreed(degree > 1):
        return []
    blocks = spec.blocks()
    kinds = {block.kind for block in blocks} - TP_TRAINED
    heads = {m.kv_heads for block in blocks for m in block.mixers if isinstance(m, Attention)}
    runs, alone = "`memsheet trace` runs it", "without tp"
    reasons = [
        (f"training {', '.join(sorted(kinds))} was not compared with its real code", bool(kinds), runs),
        (
            "a tied table has one part of its rows for the embedding and another for the head",
            spec.head.tied,
            runs,
        ),
        ("adapters are not modelled over its ranks", plan.adapter is not None, alone),
        (f"a {plan.loss.value} loss is not modelled over its ranks", plan.loss is not Loss.PLAIN, alone),
        (
            "states on the host are not modelled over its ranks",
            bool(plan.offload.parameters or plan.offload.optimizer),
            runs,
        ),
        (
            f"does not divide {min(heads, default=0)} heads of keys and values",
            any(agreed(count % degree != 0) for count in heads),
            "a divisor",
        ),
    ]
    return [
        Problem(field="mesh.tp", value=degree, reason=reason, hint=hint)
        for reason, holds, hint in reasons
        if holds
    ]


def _idle_dropout(spec: ModelSpec, plan: Plan) -> list[Problem]:
    """Dropout keeps bytes where the family drops hidden states, and where attention's probabilities exist to
    be dropped.
    """
    kinds = sorted({block.kind for block in spec.blocks()})
    if plan.dropout and any(family_traits(kind).summed_bias for kind in kinds):
        reason = f"is no whole number, and the library's config of {', '.join(kinds)} takes none other"
        return [Problem(field="dropout", value=plan.dropout, reason=reason, hint="leave it out")]
    eager = plan.attention is AttentionKind.EAGER
    if (
        not plan.dropout
        or eager
        or spec.embeddings.dropout
        or any(family_traits(kind).branch_dropout or family_traits(kind).summed_in_place for kind in kinds)
    ):
        return []
    reason = (
        f"keeps nothing: {', '.join(kinds)} drops no hidden states, and {plan.attention.value} "
        "attention drops inside its kernel"
    )
    return [
        Problem(field="dropout", value=plan.dropout, reason=reason, hint="leave it out, or --attention eager")
    ]


def _unmodelled_kind_reason(block: Block, plan: Plan) -> str | None:
    if is_t5(block.kind):
        known = plan.attention in (AttentionKind.EAGER, AttentionKind.SDPA)
        return (
            None
            if known
            else f"{plan.attention.value} attention takes no bias of positions; give --attention sdpa"
        )
    if why := unmodelled_block_reason(block):
        return why
    if block.kind in NO_SDPA and plan.attention is AttentionKind.SDPA:
        return "transformers has no sdpa for them; give --attention eager"
    own, at = family_traits(block.kind), block.mixers[0]
    xformers = plan.attention is AttentionKind.XFORMERS and isinstance(at, Attention)
    kernel = AttentionKind.SDPA if xformers else plan.attention  # torch's own is what it calls
    if kernel not in {**VERIFIED, **OF_PICTURES}.get(block.kind, ()):
        runs = (
            "give --attention sdpa"
            if plan.attention is AttentionKind.XFORMERS
            else "`memsheet trace` runs it"
        )
        return f"they were not compared with their real code under {plan.attention.value} attention; {runs}"
    if own.summed_in_place and block.arrangement is Arrangement.PRE:
        return (
            "their branches follow one another, which was not compared with the real code; `memsheet "
            "trace` runs it"
        )
    if (
        isinstance(at, Attention)
        and at.head_dim > FLASH_MAX_HEAD
        and plan.attention is not AttentionKind.EAGER
    ):
        return f"head dim {at.head_dim} exceeds the {FLASH_MAX_HEAD} of flash kernels; give --attention eager"
    return None
