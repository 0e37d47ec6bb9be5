"""Steps of a model of few layers at several sizes, with the places where its layers begin and end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from memsheet.frozen import dataclass, field, replace
from memsheet.plan.plan import Plan
from memsheet.run.adapters import apply_adapter, apply_quantization
from memsheet.run.loss import LOSSES_ON_RECORD, apply_loss
from memsheet.run.model import layers_of, word_table
from memsheet.run.recompute import apply_recompute
from memsheet.run.step import autocast_region, random_token_batch
from memsheet.sheet import Component, Instant
from memsheet.trace.job import How, recording_context
from memsheet.trace.modules import Modules, claim_parameters, watch_gradients
from memsheet.trace.recorder import Recorder, Row

LOOPS = 1.1
"""A forward of several times the tokens that does a tenth more operations loops over them: no sizes are
solved from it.
"""


class NotRecordableError(ValueError):
    """What a step did does not come apart at its layers."""


class NoFunctionError(NotRecordableError):
    """What a step allocates is no function of sequences and tokens that is known here."""


class LoopsError(NoFunctionError):
    """The code loops over tokens, or over chunks of them."""


@dataclass(slots=True, kw_only=True)
class Step:
    """What a step did: its storages, its events, and where things happened, as numbers of events.

    ``entered``, ``left``: a layer's forward; ``returned``: its output's gradient was there; ``reached``: its
    input's; ``projected``: logits were there; ``unprojected``: their gradient; ``again``: its forward ran
    again in backward. ``inputs``, ``outputs``: the storage that a layer was handed, and its own; ``logits``:
    the storage of those; ``handed_back``: the storage of the gradient of a layer's output, and, by the number
    of layers, of the first one's input; ``gradients``: (event, storage) when a parameter's gradient was
    there, with the parameter's name and bytes an element; ``around``: the names of parameters of no layer.
    """

    rows: list[Row] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    layers: int = 0
    begins: int = 0
    backward: int = 0
    ends: int = 0
    entered: dict[int, int] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    returned: dict[int, int] = field(default_factory=dict)
    reached: dict[int, int] = field(default_factory=dict)
    again: dict[int, tuple[int, int]] = field(default_factory=dict)
    inputs: dict[int, int] = field(default_factory=dict)
    outputs: dict[int, int] = field(default_factory=dict)
    handed_back: dict[int, int] = field(default_factory=dict)
    gradients: list[tuple[int, int, str, int]] = field(default_factory=list)
    projected: int | None = None
    unprojected: int | None = None
    logits: int | None = None
    tied_bytes: int | None = None
    around: frozenset[str] = frozenset()


def observe_steps(
    build: Callable[[str], nn.Module],
    plan: Plan,
    how: How,
    sizes: Sequence[tuple[int, int]],
    *,
    loops: bool = False,
) -> list[Step]:
    """Forward and backward of a model of few layers, once for each of ``sizes`` (sequences, tokens of
    each). Raises LoopsError for code that loops over tokens; NoFunctionError for code that does not where
    ``loops``.
    """
    with recording_context(how) as recorder:
        modules = Modules(recorder)
        model, config = (made := build(how.device)), made.config
        apply_loss(model, plan, LOSSES_ON_RECORD)
        model = apply_adapter(apply_quantization(model, plan), plan)
        apply_recompute(model, plan)
        modules.watch(model)
        claim_parameters(recorder, model)
        watch_gradients(recorder, model)
        noted = Borders(recorder)
        _watch_borders(model, noted)
        before = recorder.operations
        # what is made but once; of another length, to see whether operations are more for more tokens
        longer = _first_size(sizes)
        with _bounded_operations(
            recorder, longer[1] * noted.layers if len(sizes) > 1 and not loops else None
        ):
            _run_forward(modules, model, config, _of_size(plan, *longer), how, noted)
        first, found = recorder.operations - before, list[Step]()
        for sequences, tokens in sizes:
            noted.step = Step(layers=noted.layers, tied_bytes=_tied_bytes(model), around=_names_around(model))
            before = recorder.operations
            loss = _run_forward(modules, model, config, _of_size(plan, sequences, tokens), how, noted)
            if not found and len(sizes) > 1:
                _check_operations(first, recorder.operations - before, loops=loops)
            _take_step_back(modules, loss, noted)
            del loss
            found.append(replace(noted.step, rows=list(recorder.rows), events=list(recorder.events)))
        return found


def _check_operations(longer: int, shorter: int, *, loops: bool) -> None:
    """Raises LoopsError where more tokens took more operations; NoFunctionError where a loop over them is
    wanted and they did not.
    """
    if loops and longer <= shorter:
        raise NoFunctionError("its loops are not over so few tokens")
    if not loops and longer > LOOPS * shorter:
        raise LoopsError("its code loops over tokens")


@contextmanager
def _bounded_operations(recorder: Recorder, most: int | None) -> Iterator[None]:
    """Raises LoopsError once more than ``most`` operations have run: one for every token in every layer."""
    if most is None:
        yield
        return
    hidden, last = recorder.after, recorder.operations + most

    def after(*given: Any) -> None:
        if recorder.operations > last:
            raise LoopsError("its code loops over tokens")
        if hidden is not None:
            hidden(*given)

    recorder.after = after
    try:
        yield
    finally:
        recorder.after = hidden


def _names_around(model: nn.Module) -> frozenset[str]:
    """The names of the parameters of no layer."""
    inside = {id(one) for layer in layers_of(model) or () for one in layer.parameters()}
    return frozenset(name for name, one in model.named_parameters() if id(one) not in inside)


def _tied_bytes(model: Any) -> int | None:
    """Bytes of the table that makes logits too, if one does: its gradients wait for one another."""
    into, out = word_table(model), model.get_output_embeddings()
    table: Any = getattr(into, "weight", None)
    tied = table is not None and getattr(out, "weight", None) is table
    return int(table.numel() * table.element_size()) if tied and table.requires_grad else None


def _of_size(plan: Plan, sequences: int, tokens: int) -> Plan:
    return replace(plan, workload=replace(plan.training, microbatch=sequences, seq_len=tokens))


def _first_size(sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Of several sizes the longest, whose operations will be known when it is run again."""
    return max(sizes, key=lambda size: size[1])


def _take_step_back(modules: Modules, loss: Any, noted: Borders) -> None:
    noted.recorder.mark(Instant.BACKWARD)
    noted.step.backward = noted.now()
    loss.backward()
    modules.outside()
    noted.step.ends = noted.now()


def _run_forward(
    modules: Modules, model: nn.Module, config: Any, plan: Plan, how: How, noted: Borders
) -> Any:
    recorder = noted.recorder
    model.zero_grad(set_to_none=True)
    batch = random_token_batch(config, plan, how.device)
    for name, tensor in batch.items():
        recorder.claim(tensor, Component.INPUTS, name)
    recorder.marks.clear()
    recorder.mark(Instant.FORWARD)
    noted.step.begins = noted.now()
    with autocast_region(plan, how.device):
        loss = model(**batch).loss
    modules.outside()
    return loss


@dataclass(slots=True)
class Borders:
    """Where hooks note what they see: the step that runs."""

    recorder: Recorder
    layers: int = 0
    step: Step = field(default_factory=Step)

    def now(self) -> int:
        return len(self.recorder.events)

    def hand_back(self, number: int, gradient: torch.Tensor) -> None:
        """Note the storage of a gradient between two parts."""
        found = self.recorder.number_of(gradient)
        if found is not None:
            self.step.handed_back.setdefault(number, found)


def _watch_borders(model: nn.Module, noted: Borders) -> None:
    layers = list(layers_of(model) or ())
    noted.layers = noted.step.layers = len(layers)
    for number, layer in enumerate(layers):
        _watch_layer(layer, number, noted)
    projection = model.get_output_embeddings()  # type: ignore[operator]
    if isinstance(projection, nn.Module):
        projection.register_forward_hook(_projection_note(noted))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(_gradient_note(name, noted))


def _gradient_note(name: str, noted: Borders) -> Callable[[torch.Tensor], None]:
    def note(parameter: torch.Tensor) -> None:
        number = None if parameter.grad is None else noted.recorder.number_of(parameter.grad)
        if number is not None and parameter.grad is not None:
            noted.step.gradients.append((noted.now(), number, name, parameter.grad.element_size()))

    return note


def _projection_note(noted: Borders) -> Callable[[nn.Module, Any, Any], None]:
    def unprojected(_: torch.Tensor) -> None:
        noted.step.unprojected = noted.now()

    def note(_: nn.Module, __: Any, logits: Any) -> None:
        if isinstance(logits, torch.Tensor) and logits.requires_grad:
            noted.step.projected, noted.step.logits = noted.now(), noted.recorder.number_of(logits)
            logits.register_hook(unprojected)

    return note


def _watch_layer(layer: nn.Module, number: int, noted: Borders) -> None:
    def note_reached(gradient: torch.Tensor) -> None:
        noted.step.reached.setdefault(number, noted.now())
        if number == 0:
            noted.hand_back(noted.layers, gradient)

    def note_returned(gradient: torch.Tensor) -> None:
        noted.step.returned.setdefault(number, noted.now())
        noted.hand_back(number, gradient)

    def enter(_: nn.Module, args: Any, kwargs: Any) -> None:
        step, at = noted.step, noted.now()
        step.entered[number] = at
        hidden = args[0] if args else kwargs.get("hidden_states")
        if isinstance(hidden, torch.Tensor):
            found = noted.recorder.number_of(hidden)
            if found is not None:
                step.inputs[number] = found
            if hidden.requires_grad:
                hidden.register_hook(note_reached)

    def leave(_: nn.Module, __: Any, output: Any) -> None:
        step, at = noted.step, noted.now()
        step.left[number] = at
        out = output[0] if isinstance(output, tuple | list) else output
        if isinstance(out, torch.Tensor):
            found = noted.recorder.number_of(out)
            if found is not None:
                step.outputs[number] = found
            if out.requires_grad:
                out.register_hook(note_returned)

    layer.register_forward_pre_hook(enter, with_kwargs=True)
    layer.register_forward_hook(leave)
    if getattr(layer, "_gradient_checkpointing_func", None) is not None:
        layer._gradient_checkpointing_func = _noting_checkpoint(  # type: ignore[assignment]
            layer._gradient_checkpointing_func, number, noted
        )


def _noting_checkpoint(checkpoint: Any, number: int, noted: Borders) -> Callable[..., Any]:
    """The library's checkpoint of a layer (transformers 5.23 modeling_layers.py, GradientCheckpointingLayer),
    which says when its forward runs again. It may stop in the midst, as soon as all is there.
    """

    def run(forward: Callable[..., Any], *args: Any) -> Any:
        def noting(*again: Any) -> Any:
            start, backward = noted.now(), torch._C._current_graph_task_id() >= 0
            try:
                return forward(*again)
            finally:
                if backward:
                    noted.step.again[number] = (start, noted.now())

        return checkpoint(noting, *args)

    return run
