"""A training step of a transformers model on fake tensors, recorded: two steps, of which the second is the
sheet's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from memsheet.errors import input_error
from memsheet.frozen import dataclass
from memsheet.plan.plan import GradientSync, Plan
from memsheet.run.adapters import apply_adapter, apply_quantization
from memsheet.run.data import microbatch_stream
from memsheet.run.device_map import apply_device_map
from memsheet.run.loss import apply_loss
from memsheet.run.model import build_config, build_model, initialize_model_weights, without_layers
from memsheet.run.optimizer import build_optimizer
from memsheet.run.recompute import apply_recompute
from memsheet.run.scaler import build_scaler
from memsheet.run.step import mark_loss, train_step
from memsheet.sheet import Component, Instant
from memsheet.timeline import Storage, Timeline
from memsheet.trace import fake_cuda
from memsheet.trace.dispatch_cache import CachedFakeMode
from memsheet.trace.fold import Depth, NotUniformError, Shallow, extend_timeline_layers
from memsheet.trace.hidden import watch_kernels
from memsheet.trace.modules import (
    Modules,
    claim_parameters,
    claim_states,
    fold_layer_indices,
    layer_of,
    watch_gradients,
)
from memsheet.trace.patches import CUDA, FAKE, UNPADDED, apply_patches, register_cuda_kernels
from memsheet.trace.recorder import STEPPED, Recorder, Row
from memsheet.trace.values import HostValues, with_values_if_asked

STEPS = 2  # the first makes the optimizer's states
MICRO = 2  # micro-batches after the second are like it: gradients are there


def recorded_micro_batches(plan: Plan) -> int:
    """Of a step: as many as differ. Where the last one alone reduces gradients it is neither like the first
    nor like those between them.
    """
    return min(int(plan.accumulation), MICRO + (plan.gradient_sync is GradientSync.LAST))


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a trace is made. ``device``: "cuda" or "cpu"; ``fake``: without memory; ``scratch``: with what
    kernels hide; ``text``: to train on; ``values``: elements of tensors
    whose values are followed; ``capability``: the card's, an H100's where none is known
    (trace/patches.py tells libraries that one always).
    """

    device: str = "cuda"
    fake: bool = True
    scratch: bool = True
    text: bytes | None = None
    values: int = 0
    capability: tuple[int, int] = (9, 0)
    card: int | None = None


@contextmanager
def recording_context(how: How) -> Iterator[Recorder]:
    """A place where ``how.device`` can be used without one, and every allocation of it is seen."""
    with ExitStack() as stack:
        if how.device == "cuda" and how.fake:
            fake_cuda.install_fake_cuda()
            stack.enter_context(apply_patches(CUDA))
        if how.fake:
            stack.enter_context(register_cuda_kernels())
            stack.enter_context(apply_patches((*FAKE, *UNPADDED)))
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        recorder = Recorder(how.device, card=how.card)
        if how.fake:
            mode = CachedFakeMode(allow_non_fake_inputs=True, allow_fallback_kernels=False)
            stack.enter_context(mode)
            if how.values:
                stack.enter_context(HostValues(how.values, mode.look_up))
            else:
                recorder.look_up = mode.look_up
        if how.scratch and how.device == "cuda":
            watch_kernels(recorder, how.capability)
        stack.enter_context(recorder)
        yield recorder


def trace_training(config: Mapping[str, Any], plan: Plan, how: How, depth: Depth | None = None) -> Timeline:
    """The timeline of one rank that trains the model of ``config`` as ``plan`` says. ``depth``: layers that
    may stand for others.
    """
    if depth is not None and plan.recompute.layers is None and not plan.recompute.stretched:
        with suppress(NotUniformError):
            return extend_timeline_layers(
                tag_recorded_layers(_recorded(config, plan, how, depth), depth), depth
            )
    return recorded_timeline(_recorded(config, plan, how, None))


def _recorded(config: Mapping[str, Any], plan: Plan, how: How, depth: Depth | None) -> Recorder:
    found: Recorder = with_values_if_asked(lambda how: _record_shallow_model(config, plan, how, depth), how)
    return found


def leave_out_layers(settings: Any, depth: Depth) -> None:
    """Take the layers out of a config, in place, for which others stand. Raises NotUniformError for an
    encoder-decoder's, whose number of layers is not its decoder's alone.
    """
    if settings.is_encoder_decoder:
        raise NotUniformError
    without_layers(settings, depth.left_out)


def refuse_pictures(plan: Plan) -> None:
    """Raises InputError for pictures: where they lie among the words is a question of values, which fake
    tensors have none of.
    """
    if plan.training.image_tokens:
        raise input_error(
            "image_tokens",
            plan.training.image_tokens,
            "is not traced: pictures are put among words by value",
            "`memsheet measure` runs it",
        )


def _record_shallow_model(config: Mapping[str, Any], plan: Plan, how: How, depth: Depth | None) -> Recorder:
    if how.fake:
        refuse_pictures(plan)
    with recording_context(how) as recorder:
        settings = build_config(config, plan)
        if depth is not None:
            leave_out_layers(settings, depth)
        modules = Modules(recorder)
        model = build_model(settings, plan, how.device)
        if not how.fake:
            with _disable_current_modes():  # values alone: no step is recorded yet
                initialize_model_weights(model)
        apply_loss(model, plan)
        model = apply_adapter(apply_device_map(apply_quantization(model, plan), plan), plan)
        apply_recompute(model, plan)
        if how.fake and how.device == "cuda":  # a processor's is compared with what it really does
            recorder.leave_out_released()
        modules.watch(model)
        claim_parameters(recorder, model)
        watch_gradients(recorder, model)
        optimizer = build_optimizer(model.parameters(), plan, model)
        batch = next(microbatch_stream(settings, plan, how.device, text=how.text))
        for name, tensor in batch.items():
            recorder.claim(tensor, Component.INPUTS, name)
        run_traced_steps(recorder, modules, model, optimizer, batch, plan, how)
    return recorder


def run_traced_steps(
    recorder: Recorder,
    modules: Modules,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Mapping[str, torch.Tensor],
    plan: Plan,
    how: How,
) -> None:
    mark_loss(model, recorder.mark)

    def at(instant: Instant) -> None:
        if instant in (Instant.OPTIMIZER_STEP, Instant.FORWARD):
            modules.outside()
        if instant is Instant.OPTIMIZER_STEP:
            claim_states(recorder, model, optimizer)
        recorder.mark(instant)

    scaler = build_scaler(plan, how.device)
    for step in range(STEPS):
        if step == STEPS - 1:
            claim_states(recorder, model, optimizer)
            for made in (getattr(scaler, name, None) for name in ("_scale", "_growth_tracker")):
                recorder.claim(made, Component.OPTIMIZER_STATES, "grad_scaler")
            recorder.marks.clear()
            at(Instant.LOAD)
        train_step(
            model,
            optimizer,
            batch,
            plan,
            at,
            device=how.device,
            micro=recorded_micro_batches(plan),
            scaler=scaler,
        )
    modules.outside()
    recorder.stop()


def tag_recorded_layers(recorder: Recorder, depth: Depth) -> Shallow:
    """What was recorded, with the layer that each event and each storage belongs to."""
    layers = tuple(layer_of(row.owner, depth.path) for row in recorder.rows)
    tags: list[int] = []
    for event, context in zip(recorder.events, recorder.contexts, strict=True):
        layer = layer_of(context.removeprefix(STEPPED), depth.path)
        if context.startswith(STEPPED):
            layer = _optimizer_event_layer(
                event, layer, layers[event if event >= 0 else ~event], depth.period
            )
        elif layer < 0 and event < 0 and tags:  # the model lets go between two layers
            layer = tags[-1]
        tags.append(layer)
    return Shallow(recorded_timeline(recorder), tuple(tags[: recorder.end]), layers)


def _optimizer_event_layer(event: int, running: int, owner: int, period: int) -> int:
    """The layer of an event of the optimizer: its owner's, except that a loop over parameters lets go of the
    last one's temporaries while it works on the next.
    """
    return running if event < 0 <= owner and 0 < running - owner <= period else owner


def recorded_timeline(recorder: Recorder) -> Timeline:
    """What was recorded, in memsheet's words."""
    storages = tuple(
        _timeline_storage(row, instant)
        for row, instant in zip(recorder.rows, _storage_instants(recorder), strict=True)
    )
    return Timeline(
        storages=storages, events=tuple(recorder.events[: recorder.end]), marks=tuple(recorder.marks)
    )


def _storage_instants(recorder: Recorder) -> Iterator[Instant | None]:
    """When each row was made; None for what was there before the steady step."""
    marks, now = list(recorder.marks), None
    for at, event in enumerate(recorder.events):
        while marks and marks[0].at <= at:
            now = marks.pop(0).instant
        if event >= 0:
            yield now


def _timeline_storage(row: Row, made: Instant | None) -> Storage:
    return Storage(row.bytes, row.component, _storage_path(row, made), row.op, row.stream, row.line)


NOWHERE: dict[Instant | None, str] = {
    Instant.LOSS: "loss",
    Instant.BACKWARD: "loss",
    Instant.OPTIMIZER_STEP: "optimizer",
}
"""What the whole model makes itself, not a part of it: after its last layer the loss, forward and backward.
"""


def _storage_path(row: Row, made: Instant | None) -> str:
    """Where a storage belongs: its module and, for what a module makes, its name there."""
    if row.component in (Component.TEMPORARIES, Component.SAVED_ACTIVATIONS):
        module = fold_layer_indices(row.path) or NOWHERE.get(made, "step")
        return f"{module}/{row.part or row.op.removeprefix('aten.')}"
    return fold_layer_indices(row.path)
