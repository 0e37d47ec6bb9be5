"""The parts of a model for one plan: which tape each layer has, and its numbers.

What a layer saves is a list of what each of its operations saves (``model_code``); this module records them,
chooses what a plan runs of them and gives their axes values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memsheet.arith import agreed, at_least, is_symbol
from memsheet.errors import Problem, raise_if_problems
from memsheet.formulas.alike_rows import AlikeParts, by_alike_rows
from memsheet.formulas.model_code import model_code
from memsheet.formulas.numerics import AttentionKernel, RunConfig, stored_as
from memsheet.formulas.recordings import record_block, record_embeddings, record_head, record_loss
from memsheet.formulas.states.params import stack_prefix
from memsheet.formulas.tapes.bytes_by_path import BytesByPath
from memsheet.formulas.tapes.evaluate import (
    Part,
    Release,
    Stepped,
    evaluate_tape,
    parts_laid_together,
    select_part,
)
from memsheet.formulas.tapes.graph import GradientSum
from memsheet.frozen import dataclass, replace
from memsheet.plan.dtypes import FP32
from memsheet.plan.engine import Engine
from memsheet.plan.model import Block, Embeddings, ModelSpec
from memsheet.plan.plan import AdapterKind, AttentionKind, Loss, Plan, RecomputeMode
from memsheet.sheet import Component

if TYPE_CHECKING:
    from memsheet.recording import Recording


_recent: tuple[tuple[Plan, Engine, RunConfig], ...] = ()
MOST_KEPT = 32
"""Plans of which it is kept how their blocks run: the parts of a stratum are asked about in turn."""


def run_config_of(plan: Plan, engine: Engine) -> RunConfig:
    """How the blocks of a plan run, whatever their shapes; a plan, or each part of a stratum, is asked about
    again and again.
    """
    global _recent  # noqa: PLW0603 - one value, replaced as a whole
    for known, by, how in _recent:
        if known is plan and by is engine:
            return how
    how = _make_run_config(plan, engine)
    _recent = ((plan, engine, how), *_recent[: MOST_KEPT - 1])
    return how


def _make_run_config(plan: Plan, engine: Engine) -> RunConfig:
    precision, adapter = plan.precision, plan.adapter
    gathered = precision.compute if engine.sharding.gathers else precision.parameters
    casts = engine.autocast and precision.casts
    lowered = gathered if engine.sharding.gathers else None  # its policy casts adapters with everything else
    how = RunConfig(
        layers=engine.layers,
        parameters=gathered,
        stream=gathered,
        autocast=precision.compute if casts else None,
        attention=AttentionKernel.EAGER if plan.attention is AttentionKind.EAGER else AttentionKernel.FUSED,
        processor=engine.processor,
        dropout=plan.dropout > 0,
        trains=adapter is None,
        adapter_targets=frozenset(adapter.targets) if adapter else frozenset(),
        adapter_dtype=(lowered or adapter.dtype) if adapter else None,
        adapter_dropout=bool(adapter and adapter.dropout),
        adapter_kind=adapter.kind if adapter else AdapterKind.LORA,
        adapter_block=adapter.block_size if adapter else 0,
        adapter_rank=int(adapter.rank) if adapter and adapter.kind.whole_product else 0,
        whole=frozenset(adapter.full_modules if adapter else ()),
        stored=stored_as(plan.quantization),
        quantized=plan.quantization is not None,
        tensor_parallel=agreed(plan.mesh.tp > 1),
        offloads=plan.offload.activations,
        again=frozenset(plan.recompute.modules)
        if plan.recompute.mode is RecomputeMode.SELECTIVE
        else frozenset(),
    )
    return model_code(engine.layers).plan_numerics(plan, how)


def check_modelled(spec: ModelSpec, plan: Plan, engine: Engine) -> None:
    """Raise InputError naming everything of a model and plan whose activations are not accounted yet."""
    found = [*model_code(engine.layers).problems(spec, plan), *_old_kernels(plan, engine)]
    raise_if_problems({(problem.field, problem.reason): problem for problem in found}.values())


def _old_kernels(plan: Plan, engine: Engine) -> list[Problem]:
    """Attention of an engine's own model code on a card for which torch has no fused kernel in the dtype."""
    if (
        not plan.before_ampere
        or model_code(engine.layers).any_kernel
        or plan.attention is not AttentionKind.SDPA
        or plan.precision.compute is FP32
    ):
        return []
    why = (
        f"has no fused kernel for {plan.precision.compute.name} before compute capability 8.0, which is "
        f"not modelled of {engine.name}"
    )
    return [
        Problem(field="attention", value="sdpa", reason=why, hint="engine transformers; or --precision fp32")
    ]


def block_part(
    block: Block, prefix: str, plan: Plan, engine: Engine, *, release: Release, input_grad: bool = True
) -> tuple[Part, Part]:
    """A block as it runs in a step (recomputed on its own if the plan says so), and as it would run without
    recompute.

    ``input_grad``: whether what it is handed needs a gradient.
    """
    return by_alike_rows(
        plan,
        lambda own: _alike_block_part(block, prefix, own, engine, release=release, input_grad=input_grad),
        _block_laid_together,
    )


def _block_laid_together(found: list[tuple[Part, Part]], parts: AlikeParts) -> tuple[Part, Part]:
    run = parts_laid_together([one for one, _ in found], parts)
    if all(one is plain for one, plain in found):
        return run, run
    return run, parts_laid_together([plain for _, plain in found], parts)


def _alike_block_part(
    block: Block, prefix: str, plan: Plan, engine: Engine, *, release: Release, input_grad: bool
) -> tuple[Part, Part]:
    shape = plan.training.shape
    how = model_code(engine.layers).block_numerics(block, plan, shape, run_config_of(plan, engine))
    how = how if how.input_grad == input_grad else replace(how, input_grad=input_grad)
    if how.attention not in (AttentionKernel.EAGER, AttentionKernel.MATH) and not how.by_sequences:
        return _block_parts(block, prefix, plan, how, release=release)
    several = at_least(shape.sequences, 2)
    if not is_symbol(several):
        return _block_parts(block, prefix, plan, replace(how, several=agreed(several)), release=release)
    one, many = (
        _block_parts(block, prefix, plan, replace(how, several=size), release=release)
        for size in (False, True)
    )
    return select_part(several, many[0], one[0]), select_part(several, many[1], one[1])


def _block_parts(
    block: Block, prefix: str, plan: Plan, how: RunConfig, *, release: Release
) -> tuple[Part, Part]:
    code = model_code(how.layers)
    axes, block = code.axes(block, plan, plan.training.shape), code.on_rank(block, plan)
    if plan.recompute.mode is not RecomputeMode.FULL and not how.chosen:
        plain = evaluate_tape(record_block(block, how), axes, prefix, release=release)
        return plain, plain
    plain = evaluate_tape(
        record_block(block, replace(how, offloads=False)), axes, prefix, release=release
    )  # a checkpoint's own hooks come first
    light = record_block(block, how, saving=False)
    again = record_block(block, how, recomputed=True, reentrant=plan.recompute.reentrant)
    return evaluate_tape(again, axes, prefix, release=release, forward=light), plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Embeddings and head, None on pipeline stages that lack them."""

    embeddings: Part | None
    head: Part | None
    loss: Part | None


def end_parts(
    spec: ModelSpec, plan: Plan, engine: Engine, *, release: Release, head_alone: bool = False
) -> Ends:
    """The two ends of a stage, or its head and loss alone."""
    return by_alike_rows(
        plan,
        lambda own: _alike_end_parts(spec, own, engine, release=release, head_alone=head_alone),
        _ends_laid_together,
    )


def _ends_laid_together(found: list[Ends], parts: AlikeParts) -> Ends:
    own = {name: [getattr(ends, name) for ends in found] for name in ("embeddings", "head", "loss")}
    return Ends(**{name: parts_laid_together(ends, parts) if ends[0] else None for name, ends in own.items()})


def _alike_end_parts(
    spec: ModelSpec, plan: Plan, engine: Engine, *, release: Release, head_alone: bool
) -> Ends:
    if spec.recording is not None:
        return _recorded_end_parts(spec.recording, plan, engine, release=release)
    code, stack = model_code(engine.layers), spec.stacks[-1]
    how = code.at_ends(
        replace(run_config_of(plan, engine), positions_each=code.positions_each(spec), head=spec.head.kind)
    )
    axes = code.end_axes(spec, plan, plan.training.shape)
    joins, waits = _release_at_ends(spec, release)
    first = last = loss = None
    if spec.embeddings.weights and not head_alone:
        table = record_embeddings(spec.embeddings, how, tied=_tied_gradient_join(spec, how, plan))
        first = evaluate_tape(table, axes, "", release=joins)
        if how.asks_grad and how.offloads:
            first = replace(first, lingers=_asked_output(spec.embeddings, first))
    if spec.head.kind != "none":
        norms = tuple(
            replace(norm, path=f"{stack.final_path}.{norm.path}".lstrip(".")) for norm in stack.final_norms
        )
        tables = spec.embeddings.weights
        shared = tables[0].path if spec.head.tied and tables else "lm_head"
        if stack.runs and stack.runs[-1].pattern[-1].wide_residual:
            how = replace(how, stream=FP32)
        logits = record_head(norms, spec.head, how, plan.loss, f"{stack_prefix(stack)}/output", shared)
        last = evaluate_tape(logits, axes, "", release=waits)
        raised = replace(how, parameters=FP32, autocast=None) if spec.head.wide else how
        loss = evaluate_tape(record_loss(raised, plan.loss, shared), axes, "", release=waits)
    return Ends(embeddings=first, head=last, loss=loss)


def _recorded_end_parts(recording: Recording, plan: Plan, engine: Engine, *, release: Release) -> Ends:
    """The two ends of a recorded model."""
    from memsheet.formulas.model_code.recorded import axes, recomputes_fully, recorded_ends, sized_numerics

    shape = plan.training.shape
    how = sized_numerics(recording, shape, run_config_of(plan, engine))
    found, one = list[tuple[Part, ...]](), isinstance(shape.sequences, int)
    for several in (shape.sequences > 1,) if one else (False, True):
        sized = replace(how, several=bool(several))
        tapes = recorded_ends(recording, sized, recompute=recomputes_fully(plan))
        found.append(
            tuple(evaluate_tape(tape, axes(None, plan, shape), "", release=release) for tape in tapes)
        )
    if not one:
        condition = at_least(shape.sequences, 2)
        found[0] = tuple(select_part(condition, many, few) for few, many in zip(*found, strict=True))
    first, last, loss = found[0]
    return Ends(embeddings=first, head=last, loss=loss)


def _asked_output(embeddings: Embeddings, first: Part) -> BytesByPath:
    """What embeddings return, where it is asked for a gradient itself: a leaf, which the node that adds its
    gradient up holds until the graph goes, though what its checkpoint saves of it is on the host (torch 2.13
    csrc/autograd/functions/accumulate_grad.h: AccumulateGrad has the variable).
    """
    path = f"{embeddings.weights[0].path.removesuffix('.weight')}/output"
    return BytesByPath.of([((Component.SAVED_ACTIVATIONS, path), first.output)])


def _release_at_ends(spec: ModelSpec, release: Release) -> tuple[Release, Release]:
    """What becomes of the gradients of embeddings and head: a tied table is stepped once, when the look-ups'
    gradient has joined the head's and is gone.
    """
    if not spec.head.tied or not isinstance(release, Stepped):
        return release, release
    return replace(release, copies=max(0, release.copies - 1)), True


def _tied_gradient_join(spec: ModelSpec, how: RunConfig, plan: Plan) -> GradientSum:
    """How a tied table's gradient joins the head's: anew where that is a transposed view, in place where a
    cast or a loss made it.
    """
    if not spec.head.tied:
        return GradientSum.NO
    if spec.head.kind == "sequence_to_sequence":  # the decoder's look-ups have joined it before
        return GradientSum.IN_PLACE
    return GradientSum.ANEW if how.autocast is None and plan.loss is Loss.PLAIN else GradientSum.IN_PLACE
