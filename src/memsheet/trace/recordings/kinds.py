"""Which layers of a stack are alike, and the few of them that stand for all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D

from memsheet.plan.plan import Plan, RecomputeMode
from memsheet.recording import FROZEN, RecordedParameter
from memsheet.run.model import layers_of
from memsheet.trace.recordings.graded import Reached, graded_as
from memsheet.trace.recordings.shallow import NUMBERED, Shallow, build_shallow_model

PLAIN = (bool, int, float, str, type(None))
INITIAL = re.compile(r"_init$")
"""What layers call the value that a weight begins with, which decides nothing of what they allocate."""
ADAPTED = ("linear", "conv1d")
"""Kinds of modules that an adapter of every type stands beside."""


def layer_signature(layer: nn.Module) -> tuple[Any, ...]:
    """What decides what a layer does: its modules' classes and plain attributes, its tensors' shapes."""
    modules = tuple(
        (name, type(module).__qualname__, *_plain_attributes(module))
        for name, module in layer.named_modules()
    )
    tensors = tuple(
        (name, tuple(tensor.shape), str(tensor.dtype))
        for each in (layer.named_parameters(), layer.named_buffers())
        for name, tensor in each
    )
    return modules, tensors


def _plain_attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in sorted(vars(module).items()):
        if isinstance(value, PLAIN) and not NUMBERED.search(name):
            yield name, type(value) if INITIAL.search(name) else value


def layer_kinds(model: nn.Module) -> tuple[int, ...]:
    """The kind of each layer of a model's stack, kinds numbered as they come."""
    seen: dict[tuple[Any, ...], int] = {}
    return tuple(seen.setdefault(layer_signature(layer), len(seen)) for layer in layers_of(model) or ())


def shared_weights(layers: nn.ModuleList) -> frozenset[int]:
    """Which tensors, by ``id``, are parameters of several layers."""
    owners = Counter(id(one) for layer in layers for one in layer.parameters())
    return frozenset(one for one, count in owners.items() if count > 1)


def representative_layers(
    config: Mapping[str, Any], plan: Plan, model: nn.Module
) -> tuple[tuple[int, ...], Shallow]:
    """The kinds of all layers, and the layers that are run: of each kind one that has neighbours; all where
    they are few, or where what is around them grows with their number. The model is cut down where it can be
    built in no other way, and where its config has one number for an encoder's layers and a decoder's.
    """
    kinds, around = layer_kinds(model), shapes_around(model)
    every = Shallow(tuple(range(len(kinds))), whole=True)
    for built_whole in (False, True):
        for kept in _candidates(kinds):
            shallow = Shallow(kept, built_whole=built_whole)
            try:
                built = build_shallow_model(config, plan, shallow, "meta")
            except Exception:  # noqa: BLE001, S112 - a library's own check of a config of few layers
                continue
            if shapes_around(built) != around:
                if built_whole or not model.config.is_encoder_decoder:  # type: ignore[union-attr]
                    return kinds, every
                break
            if layer_kinds(built) == _renumbered(kinds[number] for number in kept):
                return kinds, shallow
    return kinds, every


def shapes_around(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """The shapes of parameters of no layer: gemma3n's tables of words hold a row part for every layer."""
    inside = {id(one) for layer in layers_of(model) or () for one in layer.parameters()}
    return {
        name: tuple(one.shape)
        for name, one in model.named_parameters(remove_duplicate=False)
        if id(one) not in inside
    }


def _renumbered(kinds: Iterator[int]) -> tuple[int, ...]:
    seen: dict[int, int] = {}
    return tuple(seen.setdefault(kind, len(seen)) for kind in kinds)


def _candidates(kinds: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """First the fewest layers with every kind between two others, and the last, behind which caches are
    whole; then the stack as far as it has all kinds so.
    """
    inside = [_first_inside(kinds, kind) for kind in dict.fromkeys(kinds)]
    behind = min(max(inside) + 1, len(kinds) - 1)
    chosen = {0, *inside, behind, len(kinds) - 1}
    if 1 < len(chosen) < len(kinds):
        yield tuple(sorted(chosen))
    if len(chosen) < behind + 1 < len(kinds):
        yield (*range(behind + 1),)


def _first_inside(kinds: tuple[int, ...], kind: int) -> int:
    """The first layer of a kind that has one before it; the very first where there is no other."""
    return next((n for n, each in enumerate(kinds) if n and each == kind), 0)


def kind_representatives(
    kinds: tuple[int, ...], kept: tuple[int, ...], first: int | None = None
) -> dict[int, int]:
    """For each kind the place among the ``kept`` layers that stands for it: in the midst where there is
    one. Where adapters are, behind the ``first`` layer that trains.
    """
    places: dict[int, list[int]] = {}
    for place, number in enumerate(kept):
        places.setdefault(kinds[number], []).append(place)
    begin = kept.index(first or 0)
    inside = range(begin + 1, len(kept) - 1)
    behind = range(begin + (first is not None), len(kept))
    return {
        kind: next((p for among in (inside, behind) for p in found if p in among), found[0])
        for kind, found in places.items()
    }


def first_trained_layer(
    kinds: tuple[int, ...], layers: Sequence[Sequence[RecordedParameter]], plan: Plan
) -> int:
    """The number of the first layer that an adapter stands in, before which no gradient comes; 0 where
    gradients are asked for before all layers (peft, under recompute).
    """
    if plan.adapter is None or plan.recompute.mode is not RecomputeMode.NONE:
        return 0
    targets = {f".{target}.weight" for target in plan.adapter.targets}
    trained = [
        any(f".{one.path}".endswith(tuple(targets)) and one.kind in ADAPTED for one in layer)
        for layer in layers
    ]
    return next((number for number, kind in enumerate(kinds) if trained[kind]), 0)


def layers_behind(
    config: Mapping[str, Any], plan: Plan, kinds: tuple[int, ...], shallow: Shallow, first: int
) -> Shallow:
    """The layers to run where those before ``first`` train nothing: of each kind one before it, and one
    behind it.
    """
    if first == 0 or shallow.whole:
        return shallow
    leading = {kinds.index(kind) for kind in kinds[:first]}
    inside = {kinds.index(kind, first + 1) for kind in kinds[first + 1 :]}
    behind = min(max(inside | {first}) + 1, len(kinds) - 1)
    kept = tuple(sorted({0, *leading, first, *inside, behind, len(kinds) - 1}))
    for built_whole in dict.fromkeys((shallow.built_whole, True)):
        found = Shallow(kept, built_whole=built_whole)
        with suppress(Exception):  # a library's own check of a config of few layers
            built = build_shallow_model(config, plan, found, "meta")
            if layer_kinds(built) == _renumbered(kinds[number] for number in kept):
                return found
    return Shallow(tuple(range(len(kinds))), whole=True)


def recorded_parameters(
    module: nn.Module,
    *,
    without: str = "",
    first: str = "",
    reached: Reached = None,
    shared: Collection[int] = (),
) -> tuple[RecordedParameter, ...]:
    """Every tensor of a module once, outside the submodule ``without``, with what kind of module holds it.
    One that several modules hold is the submodule's ``first``. ``reached``: the names of those of which a
    step leaves a gradient; ``shared``: tensors that are no single layer's, by ``id``, and so are counted
    where ``without`` leaves all layers out.
    """
    owners = dict(module.named_modules())
    named = sorted(
        module.named_parameters(remove_duplicate=False), key=lambda pair: not pair[0].startswith(f"{first}.")
    )
    once = {id(tensor): name for name, tensor in reversed(named)}
    names: dict[int, list[str]] = {}
    for name, tensor in named:
        names.setdefault(id(tensor), []).append(name)
    found = [
        RecordedParameter(
            path=name,
            shape=tuple(tensor.shape),
            kind=_module_kind(owners[name.rpartition(".")[0]], name, tensor.dim()),
            dtype="fp32" if str(tensor.dtype) == "torch.float32" else None,
            graded=graded_as(names[id(tensor)], tensor, reached),
        )
        for name, tensor in named
        if once[id(tensor)] == name
        and (
            id(tensor) in shared
            if name.startswith(f"{without}.")
            else bool(without) or id(tensor) not in shared
        )
    ]
    found += [
        RecordedParameter(
            path=name,
            shape=tuple(tensor.shape),
            kind="buffer",
            dtype={"torch.float32": "fp32", "torch.int64": "int64", "torch.bool": "bool"}.get(
                str(tensor.dtype)
            ),
            graded=FROZEN,
        )
        for name, tensor in module.named_buffers()
        if not (without and name.startswith(f"{without}."))
    ]
    return tuple(found)


def _splits_its_input(linear: nn.Linear) -> bool:
    """Whether a linear layer makes more of its input than its width says: by groups, each with rows of its
    own (transformers 5.23 modeling_deepseek_v4.py, DeepseekV4GroupedLinear), so that no adapter's product
    adds to its own.
    """
    return getattr(linear, "n_groups", 1) > 1


def _module_kind(owner: nn.Module, name: str, dimensions: int) -> str:
    if name.endswith(".bias") or name == "bias":
        return "bias"
    if isinstance(owner, nn.Linear) and not _splits_its_input(owner):
        return "linear"
    if isinstance(owner, Conv1D):
        return "conv1d"
    if isinstance(owner, nn.Embedding):
        return "embedding"
    if "norm" in type(owner).__name__.lower() or isinstance(owner, nn.LayerNorm):
        return "norm"
    if "experts" in name and dimensions >= 3:
        return "expert"
    return "other"
