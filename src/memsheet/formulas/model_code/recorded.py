"""A model's own code on record, in place of layers written down here: the same questions, answered from a
recording.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

from memsheet.arith import Count, agreed
from memsheet.errors import Problem, input_error
from memsheet.formulas.model_code import ModelCode
from memsheet.formulas.numerics import RunConfig, casts_arguments
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath
from memsheet.formulas.tapes.evaluate import terms_bytes
from memsheet.formulas.tapes.recorded import layer_tape, tape_of_pass
from memsheet.formulas.tapes.tape import Shape, Tape
from memsheet.frozen import replace
from memsheet.late import late_functions
from memsheet.plan.dtypes import BF16, FP16, FP32, DType
from memsheet.plan.model import Block, ModelSpec
from memsheet.plan.plan import AdapterKind, AttentionKind, Loss, Plan, RecomputeMode
from memsheet.plan.workload import PassShape
from memsheet.recording import (
    CASTS_ARGUMENTS,
    FEWEST_RECORDED,
    MOST_RECORDED,
    WIDE_BUFFERS,
    RecordedPart,
    RecordedRun,
    Recording,
)
from memsheet.sheet import Component

with late_functions(__name__):
    from memsheet.formulas.recorded_lengths import side_words


PRECISIONS: dict[tuple[DType, DType | None], str] = {
    (FP32, None): "fp32",
    (BF16, None): "bf16-pure",
    (FP16, None): "bf16-pure",
    (FP32, BF16): "bf16-autocast",
    (FP32, FP16): "fp16-autocast",
}
"""(dtype of the parameters that are computed with, autocast's) → how the library is run for a recording. fp16
is recorded as bf16, an element of which has as many bytes.
"""


def run_key(plan: Plan, how: RunConfig) -> str:
    """What changes inside a layer of what a plan says, as JSON. Recompute and the number of sequences come
    besides.
    """
    words: dict[str, Any] = {
        "precision": PRECISIONS.get((how.parameters, how.autocast)),
        "attention": plan.attention.value,
    }
    if how.handed_low:
        words[CASTS_ARGUMENTS] = True
        words |= {WIDE_BUFFERS: True} if plan.precision.parameters is FP32 else {}
    if plan.loss.value != "plain":
        words["loss"] = plan.loss.value
    if plan.dropout:
        words["dropout"] = plan.dropout
    if plan.quantization is not None:
        words["quantize"] = plan.quantization.weights.name
    if plan.adapter is not None:
        adapter = plan.adapter
        words |= {"lora_rank": int(adapter.rank), "lora_targets": list(adapter.targets)}
        words |= {"lora_dtype": how.adapter_dtype.name} if how.adapter_dtype else {}
        words |= {"adapter.kind": adapter.kind.value} if adapter.kind is not AdapterKind.LORA else {}
        words |= {"lora_dropout": adapter.dropout} if adapter.dropout else {}
        words |= {"adapter.full_modules": list(adapter.full_modules)} if adapter.full_modules else {}
    return json.dumps(words, sort_keys=True)


def plan_numerics(plan: Plan, how: RunConfig) -> RunConfig:
    """The way to run, as a recording names it."""
    how = replace(how, handed_low=casts_arguments(plan))
    return replace(how, run=run_key(plan, how))


def block_numerics(block: Block, _: Plan, shape: PassShape, how: RunConfig) -> RunConfig:
    """One sequence is recorded apart from several."""
    assert block.recorded is not None
    several = agreed(shape.sequences > 1) if isinstance(shape.sequences, int) else False
    return replace(sized_numerics(block.recorded.recording, shape, how), by_sequences=True, several=several)


def sized_numerics(recording: Recording, shape: PassShape, how: RunConfig) -> RunConfig:
    """The way to run at the lengths of a pass."""
    side = json.dumps(side_words(recording, shape.tokens))
    return replace(how, at=_size_of(shape), side=side)


def _size_of(shape: PassShape) -> tuple[int, int] | None:
    """Sequences and tokens of each, where they are one size."""
    size = (shape.sequences, shape.tokens)
    return (int(size[0]), int(size[1])) if all(isinstance(n, int) for n in size) else None


def axes(_: Any, __: Plan, shape: PassShape) -> dict[str, Count]:
    """Sequences and tokens of each."""
    return {"b": shape.sequences, "s": shape.tokens}


NOT_RECORDED = (
    AdapterKind.IA3,
    AdapterKind.VERA,
    AdapterKind.ADALORA,
    AdapterKind.OFT,
    AdapterKind.LOHA,
    AdapterKind.LOKR,
    AdapterKind.LN_TUNING,
    AdapterKind.PROMPT_TUNING,
    AdapterKind.P_TUNING,
    AdapterKind.PREFIX_TUNING,
    AdapterKind.PROJECTED_PREFIX,
)


def recorded_problems(spec: ModelSpec, plan: Plan) -> list[Problem]:
    """What a plan asks for that a recording of one device does not hold."""
    again, mesh, kind = plan.recompute, plan.mesh, plan.adapter.kind if plan.adapter else None
    runs = "`memsheet trace` runs it"
    reasons = [
        ("mesh.tp", mesh.tp, "cuts layers, of which a recording holds none", agreed(mesh.tp > 1), runs),
        ("mesh.cp", mesh.cp, "cuts sequences, of which a recording holds none", agreed(mesh.cp > 1), runs),
        ("mesh.ep", mesh.ep, "cuts experts, of which a recording holds none", agreed(mesh.ep > 1), runs),
        ("recompute.mode", again.mode.value, "of modules is not recorded", again.mode is RecomputeMode.SELECTIVE, "--recompute full or none"),
        ("attention", plan.attention.value, "is not modelled of recorded layers", plan.attention is AttentionKind.XFORMERS, "sdpa"),
        ("image_tokens", plan.training.image_tokens, "are not run: a record is of text alone", not agreed(plan.training.image_tokens == 0), "leave it out"),
        ("adapter.kind", kind.value if kind else None, "is not recorded", kind in NOT_RECORDED, "lora"),
        ("quantization.experts", True, "is not recorded", plan.quantization is not None and plan.quantization.experts, "leave it out"),
        ("offload.activations", True, "is not recorded", plan.offload.activations, "leave it out"),
    ]  # fmt: skip
    return [
        Problem(field=field, value=value, reason=f"{reason} (of {spec.model_type})", hint=hint)
        for field, value, reason, holds, hint in reasons
        if holds
    ]


def recorded_run(
    recording: Recording, how: RunConfig, *, several: bool, recompute: bool = False
) -> RecordedRun:
    """The record of a way to run."""
    words = json.loads(how.run)
    if words["precision"] is None:
        raise input_error(
            "precision",
            f"{how.parameters.name}, computed in {(how.autocast or how.parameters).name}",
            "is not how a recording is made",
            "bf16-autocast, bf16-pure or fp32",
        )
    words |= {"recompute": "full"} if recompute else {}
    words |= {"attention": SDPA} if words["attention"] == FLASH and keeps_as_sdpa(recording) else {}
    asked = {**words, **json.loads(how.side), **({"several": True} if several else {})}
    one_size = how.at is not None and words.get("loss") == Loss.FUSED.value  # its chunks are of powers of two
    run = None if one_size else recording.run_of(json.dumps(asked, sort_keys=True))
    if run is not None and not _holds_at(run, how):
        run = None
    if run is None and how.at is not None:
        words |= {"sequences": how.at[0], "tokens": how.at[1]}
        run = recording.run_of(json.dumps(words, sort_keys=True))
    if run is None:
        why = (
            f"of {recording.model_type} is on record at one size at a time: what it allocates is no sum "
            "of products"
        )
        raise input_error(
            "microbatch", None, why, "give --microbatch and --seq-len; `memsheet train` answers"
        )
    return run


FLASH, SDPA = AttentionKind.FLASH.value, AttentionKind.SDPA.value


def keeps_as_sdpa(recording: Recording) -> bool:
    """Whether flash-attn's kernel, which runs on no fake tensors, keeps what sdpa's does: queries, keys,
    values, the output and a logarithm a row of each head, where sdpa is given no mask, for which heads would
    be repeated (transformers 5.23.0 integrations/sdpa_attention.py:43-52, 128-138). A window is a mask.
    """
    return not recording.windows


def _holds_at(run: RecordedRun, how: RunConfig) -> bool:
    """Whether a record of code that loops holds for sequences as long: of whole turns."""
    if run.every == 1 and not run.least:
        return True
    return how.at is not None and how.at[1] >= run.least and how.at[1] % run.every == 0


def recomputes_fully(plan: Plan) -> bool:
    """Whether a model's layers run again in backward."""
    return plan.recompute.mode is RecomputeMode.FULL


def recorded_block(part: RecordedPart, how: RunConfig, *, saving: bool, recomputed: bool) -> Tape:
    """The tape of a kind of layer: as it runs, or the forward that saves nothing, or the one that runs
    again.
    """
    again = recomputed or not saving
    run = recorded_run(part.recording, how, several=how.several, recompute=again)
    kind = int(part.part)
    entering = not how.input_grad and kind in run.entry
    found = run.light[kind] if not saving else run.entry[kind] if entering else run.layers[kind]
    return layer_tape(found, part.recording.stack)


def recorded_ends(recording: Recording, how: RunConfig, *, recompute: bool) -> tuple[Tape, Tape, Tape]:
    """The tapes of what lies before the layers, of what makes logits, and of the loss. ``recompute``: where
    layers run again, an encoder's do, and what all layers are handed is let go later.
    """
    run = recorded_run(recording, how, several=how.several, recompute=recompute)
    return tape_of_pass(run.embeddings), tape_of_pass(run.head), tape_of_pass(run.loss)


def _of_model(
    name: str, component: Component
) -> Callable[[ModelSpec, Plan, PassShape, RunConfig], BytesByPath]:
    def bytes_of(model: ModelSpec, plan: Plan, shape: PassShape, how: RunConfig) -> BytesByPath:
        assert model.recording is not None
        several = not isinstance(shape.sequences, int) or shape.sequences > 1
        again = recomputes_fully(plan)
        sized = sized_numerics(model.recording, shape, how)
        run = recorded_run(model.recording, sized, several=several, recompute=again)
        found = getattr(run, name)
        return (
            BytesByPath.of(
                ((component, path), terms_bytes(terms, axes(None, plan, shape))) for path, terms in found
            )
            if found
            else EMPTY
        )

    return bytes_of


def kernel_on_record_notes(recording: Recording, plan: Plan) -> tuple[str, ...]:
    """That another kernel is on record than the plan's, where it is."""
    other = plan.attention is AttentionKind.FLASH and keeps_as_sdpa(recording)
    return ("attention is on record as sdpa's kernel, which keeps what flash-attn's does",) if other else ()


def record_notes(model: ModelSpec) -> tuple[str, ...]:
    """Where the layers come from."""
    assert model.recording is not None
    versions = ", ".join(f"{name} {number}" for name, number in sorted(model.recording.versions.items()))
    said = (
        f"the layers of {model.model_type} are on record from its own code on one device ({versions}): "
        f"{_given_words(model.recording)}, tokens spread evenly over experts, and what an engine casts "
        "between layers is not in it"
    )
    lengths = (
        f"its functions of size were run at {FEWEST_RECORDED:,} to {MOST_RECORDED:,} tokens, or as many as "
        f"it has positions{_window_words(model.recording.windows)}"
    )
    return said, lengths


def _window_words(windows: tuple[int, ...]) -> str:
    if not windows:
        return ""
    listed = ", ".join(f"{window:,}" for window in windows)
    return f"; apart on each side of the lengths at which its config lets something begin to act ({listed})"


def _given_words(recording: Recording) -> str:
    if not recording.vocab:
        return "a picture of its config's size for each sequence, however long"
    if recording.given:
        return f"words with {recording.given}"
    return "text alone (no tower for pictures or sounds is run)"


def _written_nowhere(*_: object) -> NoReturn:
    raise NotImplementedError("a recorded model's layers are tapes")


def _loss_input(*_: object) -> tuple[Shape, DType, str]:
    raise NotImplementedError("a recorded model's loss is a part of its head")


CODE = ModelCode(
    forward=_written_nowhere,
    embed=_written_nowhere,
    head=_written_nowhere,
    loss=_written_nowhere,
    loss_input=_loss_input,
    problems=recorded_problems,
    block_numerics=block_numerics,
    axes=axes,
    end_axes=axes,
    plan_numerics=plan_numerics,
    shared=_of_model("shared", Component.SAVED_ACTIVATIONS),
    masks=_of_model("masks", Component.TEMPORARIES),
    until_loss=_of_model("until_loss", Component.TEMPORARIES),
    masks_inside=True,
    named=_of_model("named", Component.TEMPORARIES),
    notes=record_notes,
    any_kernel=True,
)
