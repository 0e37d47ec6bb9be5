"""A recording made: a model's parameters, and one way to run it as functions of size, proved on a size that
was not solved from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, TypeVar

import torch
import transformers
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from memsheet.errors import InputError
from memsheet.frozen import dataclass, replace
from memsheet.handing import Handing, handing_document
from memsheet.plan.engine_registry import ONE_GPU
from memsheet.plan.packages import TRANSFORMERS
from memsheet.plan.plan import Plan
from memsheet.plan.words import request_from
from memsheet.recording import (
    BETWEEN,
    CASTS_ARGUMENTS,
    DECODER,
    ENCODER,
    ENCODER_DECODER,
    GENERATES,
    OF_NO_LAYER,
    PLACES,
    PROMPT,
    WIDE_BUFFERS,
    RecordedCache,
    RecordedGeneration,
    RecordedPass,
    RecordedRun,
    RecordedStorage,
    Recording,
    cache_rows,
    recording_document,
    run_document,
    run_from,
)
from memsheet.resolve import resolve_request
from memsheet.run.dtypes import torch_dtype
from memsheet.run.fsdp2 import (
    embeddings_norm_head,
    fsdp_wrapped_modules,
    head_group_modules,
    library_unit_classes,
    regrouping_words,
    unit_classes,
)
from memsheet.run.model import build_config, build_model, layers_of, text_config_of, word_table
from memsheet.run.own_generate import has_own_generate
from memsheet.run.standard_inputs import standard_input_words
from memsheet.trace.job import How
from memsheet.trace.modules import fold_layer_indices
from memsheet.trace.recordings.generation import (
    FoundGeneration,
    cache_slots,
    check_turns,
    observe_caches,
    observe_generations,
)
from memsheet.trace.recordings.graded import TOKENS, Reached, reached_below, reached_parameters
from memsheet.trace.recordings.hand_over import observe_handing
from memsheet.trace.recordings.kinds import (
    first_trained_layer,
    kind_representatives,
    layers_behind,
    recorded_parameters,
    representative_layers,
    shared_weights,
)
from memsheet.trace.recordings.loops import fold_loops
from memsheet.trace.recordings.observe import (
    LoopsError,
    NoFunctionError,
    NotRecordableError,
    Step,
    observe_steps,
)
from memsheet.trace.recordings.parts import FoundPass, FoundRun, PartStorage, cut_step
from memsheet.trace.recordings.shallow import Shallow, build_shallow_model
from memsheet.trace.recordings.sizes import (
    LOOPED,
    ONE,
    SEVERAL,
    acting_lengths,
    between_windows,
    looped_sizes,
    most_positions,
    within_positions,
)
from memsheet.trace.recordings.solve import Size, solve_terms
from memsheet.trace.scans import kernel_stand_ins
from memsheet.trace.serving_job import generates
from memsheet.trace.values import FEW, MANY, NEEDS_VALUES, with_values_if_asked

Seen = TypeVar("Seen")


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """``{"recording": memsheet/recording/2 without runs}`` and ``{"runs": {key: run}}`` for each way that is
    asked, with kernels where people have them, as a trace has it.
    """
    with kernel_stand_ins(request["config"]):
        return _answer_with_kernels(request)


def _answer_with_kernels(request: Mapping[str, Any]) -> dict[str, Any]:
    config = request["config"]
    stack = _stack_of(json.dumps(config, sort_keys=True))
    made: dict[str, Any] = {
        "recording": recording_document(stack.model) if request["model"] else None,
        "runs": {},
        "caches": cache_rows(record_caches(config, stack)) if request.get("caches") else None,
        "handing": handing_document(stack.handing) if request.get("caches") else None,
    }
    for key in request["ways"]:
        words = json.loads(key)
        try:
            made["runs"][key] = playable_document(_record_way(config, words, stack))
        except NoFunctionError:
            made["runs"][key] = None
        except (InputError, NotRecordableError):
            raise
        except Exception:
            if "tokens" in json.loads(key):
                raise
            made["runs"][key] = None  # the library's code refuses a size: it may take the one that is asked
    return made


def _record_way(
    config: Mapping[str, Any], words: dict[str, Any], stack: Layered
) -> RecordedRun | RecordedGeneration:
    """One way to run, as ``words`` say."""
    sizes = _sizes_of(words, stack.positions)
    if words.pop(GENERATES, False):
        prompt = words.pop(PROMPT, None)
        return record_generation(config, _plan_of(words, "infer"), stack, sizes, prompt)
    casts, wide = words.pop(CASTS_ARGUMENTS, False), words.pop(WIDE_BUFFERS, False)
    plan = _plan_of(words)
    stack = _adapted_stack(config, plan, stack)
    return record_run(config, plan, stack, sizes, casts=casts, wide_buffers=wide)


def _adapted_stack(config: Mapping[str, Any], plan: Plan, stack: Layered) -> Layered:
    """The layers to run where adapters stand in some of them alone."""
    kinds, layers = stack.model.kinds, stack.model.layers
    first = first_trained_layer(kinds, layers, plan)
    shallow = layers_behind(config, plan, kinds, stack.shallow, first)
    return replace(stack, shallow=shallow, first=first)


def playable_document(run: RecordedRun | RecordedGeneration) -> dict[str, Any]:
    """One way to run, as JSON. Raises NotRecordableError where its events do not play again."""
    document = run_document(run)
    try:
        run_from(document)
    except (ValueError, IndexError):
        raise NotRecordableError("what its layers keep does not come apart at them") from None
    return document


def record_caches(config: Mapping[str, Any], stack: Layered) -> tuple[RecordedCache, ...]:
    """What each kind of layer keeps between tokens. Raises NotRecordableError for a model that generates
    nothing.
    """
    plan = _plan_of({"precision": "bf16-pure", "attention": "eager"}, "infer")
    build = partial(build_shallow_model, config, plan, stack.served)
    places = kind_representatives(stack.model.kinds, stack.served.kept)
    found: tuple[RecordedCache, ...] = with_values_if_asked(
        lambda how: observe_caches(build, plan, how, places, len(stack.served.kept)), How(scratch=False)
    )
    return found


def record_generation(
    config: Mapping[str, Any], plan: Plan, stack: Layered, sizes: Sequence[Size], prompt: int | None = None
) -> RecordedGeneration:
    """A prompt and the last token. Raises NotRecordableError for what is no function of size."""
    build = partial(build_shallow_model, config, plan, stack.served)
    found = _followed(lambda how: observe_generations(build, plan, how, sizes, prompt), sizes)
    if len({one.places for one in found}) > 1:
        raise NoFunctionError("its cache is not the same at every size")
    found = [replace(one, places=by_layer(one.places, len(stack.served.kept))) for one in found]
    if any(storage.hidden for one in found for storage in one.prefill.storages):
        found = [without_kernels(one) for one in found]
    return RecordedGeneration(
        prefill=_solved([one.prefill for one in found], sizes),
        decode=_solved([one.decode for one in found], sizes),
        places=found[0].places,
        kept=stack.served.kept,
    )


def by_layer(places: Sequence[tuple[int, ...]], layers: int) -> tuple[tuple[int, ...], ...]:
    """The places of a cache, layer by layer, of which each has as many, one behind the other layers' of the
    same turn. Raises NotRecordableError where that does not come out even.
    """
    check_turns(len(places), layers)
    return tuple(tuple(place for one in places[number::layers] for place in one) for number in range(layers))


def without_kernels(one: FoundGeneration) -> FoundGeneration:
    """A generation without what its kernels allocate inside operations, of which a card's size decides."""
    new = [n for n, storage in enumerate(one.prefill.storages) if not storage.hidden]
    places = {old: number for number, old in enumerate(new)}
    return FoundGeneration(
        without_hidden(one.prefill),
        without_hidden(one.decode),
        tuple(tuple(places[place] for place in layer) for layer in one.places),
    )


def _sizes_of(words: dict[str, Any], positions: int | None) -> tuple[Size, ...]:
    """The sizes to run, taken out of what a way to run says."""
    if "tokens" in words:
        return ((words.pop("sequences"), words.pop("tokens")),)
    sizes = SEVERAL if words.pop("several", False) else ONE
    between = words.pop(BETWEEN, None)
    if between is None:
        return within_positions(sizes, positions)
    begin, end = between
    room = None if positions is None else positions + 1
    return between_windows(sizes, begin, min((n for n in (end, room) if n is not None), default=None))


@dataclass(frozen=True, slots=True)
class Layered:
    """A model's description, and the layers of it that are run; ``first``: the number of the first of them
    that trains; ``shares``: whether a weight is of several; ``slots``: layers of its cache.
    """

    model: Recording
    shallow: Shallow
    positions: int | None
    handing: Handing
    shares: bool
    slots: int
    first: int = 0

    @property
    def untrained(self) -> int:
        """How many of the layers that are run come before that."""
        return self.shallow.kept.index(self.first)

    @property
    def served(self) -> Shallow:
        """The layers that are run where tokens are made: all behind an encoder whose config has one number
        for both stacks, since their caches count layers by it; all where a layer keeps something of each of
        several turns.
        """
        layers = len(self.model.kinds)
        several = self.slots > layers and self.slots % layers == 0
        if several or (self.shallow.built_whole and self.model.stacks == ENCODER_DECODER):
            return Shallow(tuple(range(len(self.model.kinds))), whole=True)
        return self.shallow


@lru_cache(maxsize=4)
def _stack_of(config: str) -> Layered:
    """The model of a config, as JSON."""
    found = json.loads(config)
    plan = _plan_of({"precision": "bf16-pure", "attention": "eager"})
    model = build_model(build_config(found, plan), plan, "meta")
    kinds, shallow = representative_layers(found, plan, model)
    shares = bool(shared_weights(checked_layers(model)))
    positions = most_positions(model.config)
    ((_, tokens),) = within_positions(((1, TOKENS),), positions)
    reached, idle = reached_parameters(partial(build_shallow_model, found, plan, shallow), plan, tokens)
    described = describe_model(model, kinds, kind_representatives(kinds, shallow.kept), reached)
    described = replace(described, idle_ends=idle)
    handing = observe_handing(model, kinds)
    return Layered(described, shallow, positions, handing, shares, cache_slots(model, len(kinds)))


def _plan_of(words: Mapping[str, Any], task: str = "train") -> Plan:
    """The plan of one device that a way to run stands for."""
    lengths = {"microbatch": 1, "seq_len": ONE[0][1]} if task == "train" else {"max_model_len": ONE[0][1]}
    asked = {**words, **lengths, **({"engine": ONE_GPU} if task == "infer" else {})}
    return resolve_request({**request_from(asked), "task": task}, None, real=True).plan


def checked_layers(model: nn.Module) -> nn.ModuleList:
    """The model's layers. Raises NotRecordableError for a model without them."""
    layers = layers_of(model)
    if layers is None:
        raise NotRecordableError(f"{type(model).__name__} has no list of layers")
    return layers


def describe_model(
    model: Any, kinds: tuple[int, ...], places: Mapping[int, int], reached: Reached = None
) -> Recording:
    """The model's tensors: of each kind of layer, and of what is around them. ``reached``: what a step of
    few layers reaches, of which those at ``places`` stand for their kinds.
    """
    settings, layers = model.config, checked_layers(model)
    stack = next(name for name, module in model.named_modules() if module is layers)
    shared = shared_weights(layers)
    regrouped, head_group = "", tuple[str, ...]()
    with suppress(NotImplementedError):  # of a library that finds no table (pp_formulanet): FSDP2 is refused
        regrouped, head_group = regrouping_words(model), _grouped_with_head(model)
    text = text_config_of(settings)
    into, out = word_table(model), model.get_output_embeddings()
    table = next((name for name, module in model.named_modules() if module is into), "")
    return Recording(
        model_type=settings.model_type,
        versions={"torch": torch.__version__, TRANSFORMERS: transformers.__version__},
        hidden=int(getattr(text, "hidden_size", 0) or getattr(into, "embedding_dim", 0)),
        vocab=int(getattr(text, "vocab_size", 0) or 0),
        stack=stack,
        kinds=kinds,
        layers=tuple(
            recorded_parameters(
                layers[kinds.index(kind)],
                reached=reached_below(reached, f"{stack}.{places[kind]}"),
                shared=shared,
            )
            for kind in dict.fromkeys(kinds)
        ),
        others=recorded_parameters(model, without=stack, first=table, reached=reached, shared=shared),
        table=table,
        projection=next((name for name, module in model.named_modules() if module is out), "")
        if out is not None and not isinstance(out, nn.ModuleList)
        else "",
        tied=out is not None and getattr(out, "weight", None) is getattr(into, "weight", None),
        eager_only=not getattr(model, "_supports_sdpa", False),
        given=standard_input_words(settings),
        windows=acting_lengths(settings),
        units=_unsplit_units(model, stack),
        wrapped_classes=_wrapped_classes(model),
        regrouped=regrouped,
        head_group=head_group,
        stacks=ENCODER_DECODER if settings.is_encoder_decoder else DECODER if generates(model) else ENCODER,
        holds_prompt=settings.is_encoder_decoder or has_own_generate(model),
    )


def _unsplit_units(model: nn.Module, stack: str) -> tuple[str, ...]:
    """What the library never splits, beside the layers at ``stack``."""
    units = {id(module) for module in fsdp_wrapped_modules(model)}
    beside = (
        name
        for name, module in model.named_modules()
        if id(module) in units and not f"{stack}.".startswith(f"{name}.") and not name.startswith(f"{stack}.")
    )
    return tuple(dict.fromkeys(map(fold_layer_indices, beside)))


def _wrapped_classes(model: nn.Module) -> tuple[str, ...]:
    """The classes of the units, where the library's own choice is not whole layers."""
    classes = unit_classes(model)
    return () if classes == library_unit_classes(model) else tuple(sorted(classes))


def _grouped_with_head(model: nn.Module) -> tuple[str, ...]:
    """What has a weight of the head besides what makes logits and what looks words up, as paths."""
    ends = set(map(id, embeddings_norm_head(model)))
    joined = {id(module) for module in head_group_modules(model)} - ends
    return tuple(name for name, module in model.named_modules() if id(module) in joined)


def record_run(
    config: Mapping[str, Any],
    plan: Plan,
    stack: Layered,
    sizes: Sequence[Size],
    *,
    casts: bool = False,
    wide_buffers: bool = False,
) -> RecordedRun:
    """One way to run. Raises NotRecordableError for what is no function of size, or waits for all layers."""
    if stack.shares:
        raise NotRecordableError("its layers share weights, whose gradients wait for all of them")
    build = partial(build_shallow_model, config, plan, stack.shallow)
    if casts:
        build = partial(_build_casting, build, torch_dtype(plan.precision.compute), wide_buffers)
    try:
        return _solved_run(
            [cut_step(step, stack.untrained) for step in _observed(build, plan, sizes)], plan, stack, sizes
        )
    except LoopsError:
        return _record_loops(build, plan, stack, sizes)


class _Entered(torch.autograd.Function):
    """What a group is handed: gradients are summed inside it before they go on (torch 2.13
    _fsdp_param_group.py, RegisterPostBackwardFunction).
    """

    @staticmethod
    def forward(ctx: Any, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:  # noqa: ARG004
        return given

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:  # noqa: ARG004
        return gradients


def _build_casting(
    build: Callable[[str], nn.Module], dtype: torch.dtype, wide_buffers: bool, device: str
) -> nn.Module:
    """A model whose layers, and the norm behind them, are handed their floating arguments in ``dtype``, as
    fully_shard hands them (torch 2.13 _fsdp_state.py:240-250). ``wide_buffers``: it was stored in fp32, and
    its buffers stay so: the policy casts parameters alone.
    """

    def lowered(value: Any) -> Any:
        floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(dtype) if floating else value

    def cast(_: nn.Module, args: Any, kwargs: Any) -> Any:
        values, shape = tree_flatten((tree_map(lowered, args), tree_map(lowered, kwargs)))
        graded = [
            n for n, value in enumerate(values) if isinstance(value, torch.Tensor) and value.requires_grad
        ]
        if graded and torch.is_grad_enabled():
            for n, entered in zip(graded, _Entered.apply(*(values[n] for n in graded)), strict=True):
                values[n] = entered
        return tree_unflatten(values, shape)

    model = build(device)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if wide_buffers and buffer is not None and buffer.dtype is dtype:
                module._buffers[name] = buffer.float()
    _, norm, _ = embeddings_norm_head(model)
    for module in (*(layers_of(model) or ()), *((norm,) if norm is not None else ())):
        module.register_forward_pre_hook(cast, with_kwargs=True)
    return model


def _record_loops(
    build: Callable[[str], nn.Module], plan: Plan, stack: Layered, sizes: Sequence[Size]
) -> RecordedRun:
    """One way to run code that loops over tokens or over chunks of them: at a few turns. Raises
    NoFunctionError where that does not come apart.
    """
    for unit, counts in LOOPED:
        few = looped_sizes(sizes, stack.model.windows, unit, counts)
        with suppress(NoFunctionError):
            steps = _observed(build, plan, few, loops=True)
            runs = [_without_turns(cut_step(step, stack.untrained)) for step in steps]
            every = 1 if unit == LOOPED[0][0] else unit
            return replace(_solved_run(runs, plan, stack, few), every=every, least=few[0][1])
    raise NoFunctionError("its code loops over tokens")


def _without_turns(run: FoundRun) -> FoundRun:
    """A step whose loops are folded."""
    return replace(
        run,
        embeddings=fold_loops(run.embeddings),
        head=fold_loops(run.head),
        loss=fold_loops(run.loss),
        layers=tuple(map(fold_loops, run.layers)),
        light=tuple(one and fold_loops(one) for one in run.light),
    )


def _solved_run(runs: Sequence[FoundRun], plan: Plan, stack: Layered, sizes: Sequence[Size]) -> RecordedRun:
    """Steps at several sizes as functions of size."""
    kinds, kept = stack.model.kinds, stack.shallow.kept
    places = kind_representatives(kinds, kept, stack.first if plan.adapter else None)
    entering = {kinds[kept[place]]: place for place in reversed(range(stack.untrained + 1))}
    return RecordedRun(
        embeddings=_solved([run.embeddings for run in runs], sizes),
        head=_solved([run.head for run in runs], sizes),
        loss=_solved([run.loss for run in runs], sizes),
        layers={kind: _solved([run.layers[place] for run in runs], sizes) for kind, place in places.items()},
        light={
            kind: _solved([light for run in runs if (light := run.light[place]) is not None], sizes)
            for kind, place in places.items()
            if runs[0].light[place] is not None
        },
        entry={kind: _solved([run.layers[place] for run in runs], sizes) for kind, place in entering.items()}
        if plan.adapter
        else {},
        **{  # type: ignore[arg-type]
            name: tuple(_solved_each([getattr(run, name) for run in runs], sizes)) for name in OF_NO_LAYER
        },
    )


def _observed(
    build: Callable[[str], nn.Module], plan: Plan, sizes: Sequence[Size], *, loops: bool = False
) -> list[Step]:
    """Steps at all sizes."""
    return _followed(lambda how: observe_steps(build, plan, how, sizes, loops=loops), sizes)


def _followed(observe: Callable[[How], list[Seen]], sizes: Sequence[Size]) -> list[Seen]:
    """What is seen at all sizes, with values where the code asks for them. Raises NoFunctionError where it
    asks for those of large tensors: which expert gets which token is no function of their number.
    """
    try:
        found: list[Seen] = with_values_if_asked(observe, How(), FEW if len(sizes) > 1 else MANY)
    except NEEDS_VALUES as error:
        if len(sizes) == 1:
            raise NotRecordableError("what it allocates depends on values that nobody knows") from error
        raise NoFunctionError("what it allocates depends on values") from error
    return found


def _solved_each(found: Sequence[Sequence[PartStorage]], sizes: Sequence[Size]) -> Iterator[tuple[str, Any]]:
    if len({len(one) for one in found}) > 1:
        raise NoFunctionError("what its layers share is not the same at every size")
    for same in zip(*found, strict=True):
        yield same[0].path, _terms(same, sizes)


def _solved(found: Sequence[FoundPass], sizes: Sequence[Size]) -> RecordedPass:
    """One part as functions of size. What kernels hide and is not alike at all sizes is left out."""
    if len({_events_of(one) for one in found}) > 1:
        found = [without_hidden(one) for one in found]
    first = found[0]
    if len({_events_of(one) for one in found}) > 1:
        raise NoFunctionError(f"{first.storages[0].path} does not do the same at every size")
    unsolved = frozenset(
        place
        for place, one in enumerate(zip(*(each.storages for each in found), strict=True))
        if one[0].hidden and len(sizes) > 1 and solve_terms(sizes, [each.bytes for each in one]) is None
    )
    if unsolved:
        found = [without_places(one, unsolved) for one in found]
        first = found[0]
    return RecordedPass(
        storages=tuple(
            RecordedStorage(one[0].path, _terms(one, sizes), one[0].width)
            for one in zip(*(each.storages for each in found), strict=True)
        ),
        forward=tuple(first.forward),
        backward=tuple(first.backward),
        **{name: tuple(getattr(first, name)) for name in PLACES},
    )


def _events_of(one: FoundPass) -> tuple[object, ...]:
    return (*one.forward, None, *one.backward, None, *one.saved, *(storage.path for storage in one.storages))


def without_hidden(one: FoundPass) -> FoundPass:
    """A part without what its kernels allocate inside operations."""
    return without_places(one, frozenset(n for n, storage in enumerate(one.storages) if storage.hidden))


def without_places(one: FoundPass, gone: frozenset[int]) -> FoundPass:
    """A part without some of its storages."""
    keep = [place for place in range(len(one.storages)) if place not in gone]
    new = {place: number for number, place in enumerate(keep)}

    def log(events: list[tuple[str, int]]) -> list[tuple[str, int]]:
        return [(what, new[place]) for what, place in events if place in new]

    return FoundPass(
        storages=[one.storages[place] for place in keep],
        forward=log(one.forward),
        backward=log(one.backward),
        **{name: [new[place] for place in getattr(one, name) if place in new] for name in PLACES},
    )


def _terms(same: Sequence[PartStorage], sizes: Sequence[Size]) -> Any:
    bytes_at = [one.bytes for one in same]
    if len(sizes) == 1:
        return ((bytes_at[0], 0, 0),)
    terms = solve_terms(sizes, bytes_at)
    if terms is None:
        raise NoFunctionError(f"{same[0].path} is no sum of products of sequences and tokens: {bytes_at}")
    return terms
