"""The layers that an adapter stands beside: as asked, else as the engine or the library has them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from memsheet.late import late_functions
from memsheet.plan.defaults import (
    ADALORA_TARGETS,
    ALL_LINEAR,
    FUSED_TARGETS,
    IA3_TARGETS,
    LN_TARGETS,
    LORA_TARGETS,
    STACKED_EXPERTS,
)
from memsheet.plan.engine import Engine
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.hub_names import joined_names, library_names, own_default
from memsheet.plan.layers import has_experts, linear_names
from memsheet.plan.model import Attention, LatentAttention, ModelSpec, Role
from memsheet.plan.plan import AdapterKind

with late_functions(__name__):
    from memsheet.plan.target_patterns import is_pattern, matched_layers


ATTENTION = re.compile("attn|attention", re.IGNORECASE)
INTO_STATES = "in_proj"
"""Of state spaces the one projection that runs as a module: peft refuses out_proj and conv1d (0.21.2
tuners/tuners_utils.py:145), and their kernels take the others' weights alone.
"""
NOT_OF_STATE_SPACES = ("out_proj", "conv1d")
STATE_SPACES = frozenset({"falcon_h1", "mamba", "mamba2", "falcon_mamba", "nemotron_h"})
"""What peft refuses, and of which model types."""
KEYS = ".k_proj."
"""In the path of what projects keys, in modules that are not called attention (nemotron_h's mixers)."""
HEADS = ("lm_head", "embed_out", "output_layer")
"""What the output projection is called where it has no tensor of its own but the embeddings' table."""
OUTSIDE = "is outside the layers"
"""How the reason begins for which embeddings and the output projection are no targets: peft adapts both
(huggingface/peft 0.21.2 src/peft/tuners/lora/layer.py:2740, 2750: torch.nn.Embedding and torch.nn.Linear).
"""
OWN_TARGETS = {AdapterKind.IA3: IA3_TARGETS, AdapterKind.ADALORA: ADALORA_TARGETS}
"""Defaults of kinds that do not take LoRA's."""
OF_FEED_FORWARD = ("gate_proj", "up_proj", "down_proj", "w1", "w2", "w3")
LINEAR_MODULES = "all"
"""LLaMA-Factory's word for the linear modules that it finds itself and names to peft one by one, of which no
stack is one (lora_target); ms-swift and axolotl find them likewise.
"""


def targets_of(
    gaps: RequestResolver, model: ModelSpec | None, engine: Engine, kind: AdapterKind = AdapterKind.LORA
) -> tuple[str, ...]:
    """Last names of the layers that carry adapters, as they are asked for, else by default."""
    targets = gaps.request.get("adapter.targets")
    if targets is None and engine.usual_targets:
        gaps.assumed.append(f"adapter.targets = {','.join(engine.usual_targets)} ({engine.name}'s default)")
        return engine.usual_targets
    if targets is None and kind in OWN_TARGETS:
        targets = OWN_TARGETS[kind].get(model.model_type if model else "", ())
        if not targets:
            why = f"is missing; peft has no default for {kind.value}"
            gaps.wrong("adapter.targets", None, why, "for example k_proj")
        else:
            gaps.assumed.append(f"adapter.targets = {','.join(targets)} (peft's default for {kind.value})")
    if targets is None:
        own = own_default(model) if model else None
        found = own or (LORA_TARGETS.get(model.model_type) if model else None)
        if found is not None:
            whose = "its own code's one matrix of queries, keys and values" if own else "peft's default"
            gaps.assumed.append(f"adapter.targets = {','.join(found)} ({whose})")
        elif model is not None and (found := _attention_linears(model, stacked_names(model, engine))):
            why = f"attention's own, peft has no default for {model.model_type}"
            gaps.assumed.append(f"adapter.targets = {','.join(found)} ({why})")
        elif model is not None and INTO_STATES in linear_names(model):
            found = (INTO_STATES,)
            why = f"into the states; peft has no default for {model.model_type} and refuses what leads out"
            gaps.assumed.append(f"adapter.targets = {INTO_STATES} ({why})")
        else:
            gaps.wrong(
                "adapter.targets",
                None,
                "is missing; this family has no default",
                "for example --lora-targets q_proj,v_proj",
            )
        targets = found or ()
    if model is None:
        return tuple(targets)
    if engine.layers is None and (wrapped := _wrapped_beside_layers(model, targets)):
        gaps.assumed.append(
            f"adapter.targets of {' and '.join(wrapped)} = none (peft wraps none of their modules of that "
            f"name: give it a pattern of {model.stacks[0].path} alone)"
        )
    targets = _names_of_paths(gaps, model, library_names(model, targets))
    present, stacked = linear_names(model), stacked_names(model, engine)
    all_linear = list(targets) == [ALL_LINEAR]
    if engine.layers is not None and has_experts(model) and _reaches_experts(targets):
        _refuse_routed(gaps, model, targets, engine)
        return tuple(targets)
    if all_linear or list(targets) == [LINEAR_MODULES]:
        every = tuple(sorted(joined_names(model, present)))
        gaps.assumed.append(f"adapter.targets = {','.join(every)} ({targets[0]})")
        targets = every
    if moved := [ALL_LINEAR] if all_linear and stacked else sorted(stacked.intersection(targets)):
        _refuse_stacked(gaps, model, moved, stacked)
        return tuple(targets)
    ends = adapted_ends(model, engine, kind)
    hint = f"it has {', '.join(sorted(present))}; or {LINEAR_MODULES} alone"
    if not targets and gaps.request.get("adapter.targets") is not None and not _trains_whole(gaps):
        gaps.wrong("adapter.targets", [], f"names no linear layer of {model.name}", hint)
    for target in targets:
        if (
            target not in present
            and target not in engine.targets
            and target not in ends
            and not _joined_from(gaps, target, targets, present)
        ):
            outside = target.rpartition(".")[2] in _modules_at_ends(model)
            unlike = f"{OUTSIDE} of {model.name}, where adapters are not modelled"
            reason = unlike if outside else f"names no linear layer of {model.name}"
            gaps.wrong("adapter.targets", target, reason, hint)
    return tuple(targets)


def _trains_whole(gaps: RequestResolver) -> bool:
    """Whether modules train whole beside adapters: peft stops where it finds neither (huggingface/peft
    0.21.2 src/peft/tuners/tuners_utils.py, inject_adapter: "No modules were targeted").
    """
    return bool(gaps.request.get("adapter.full_modules"))


def adapted_ends(model: ModelSpec, engine: Engine, kind: AdapterKind) -> frozenset[str]:
    """Last names of the table of words and of the output projection, where plain LoRA of them is accounted:
    by peft on the library's own layers of a causal model, in which they are two.
    """
    if kind is not AdapterKind.LORA or engine.layers is not None or "train" not in engine.tasks:
        return frozenset()
    if model.head.kind != "causal_lm" or model.head.tied or model.recording is not None or model.towers:
        return frozenset()
    words = () if model.embeddings.scaled else model.embeddings.weights[:1]
    return frozenset(weight.path.split(".")[-2] for weight in (*words, *model.head.weights[:1]))


def _modules_at_ends(model: ModelSpec) -> set[str]:
    """Last names of the embeddings and of the output projection."""
    ends = (*model.embeddings.weights, *model.head.weights) if model.embeddings else model.head.weights
    names = {
        weight.path.split(".")[-2]
        for weight in ends
        if weight.path.endswith(".weight") and "." in weight.path
    }
    return names | set(HEADS if model.head.tied else ())


def norms_of(gaps: RequestResolver, model: ModelSpec | None, kind: AdapterKind) -> tuple[str, ...]:
    """Last names of the norms of which copies train, as they are asked for, else as peft has them."""
    asked = gaps.request.get("adapter.targets")
    found = tuple(asked or LN_TARGETS.get(model.model_type if model else "", ()))
    if not found:
        gaps.wrong(
            "adapter.targets", None, f"is missing; peft has no default for {kind.value}", "for example norm"
        )
    elif asked is None:
        gaps.assumed.append(f"adapter.targets = {','.join(found)} (peft's default for {kind.value})")
    if model is None:
        return found
    norms = [norm for stack in model.stacks for norm in stack.final_norms]
    norms += [norm for block in model.blocks() for norm in block.norms]
    known = {norm.path.rpartition(".")[2] for norm in norms if norm.weights}
    for name in found:
        if name not in known:
            hint = f"it has {', '.join(sorted(known))}"
            gaps.wrong("adapter.targets", name, f"names no norm around the layers of {model.name}", hint)
    return found


def passed_over_targets(targets: Sequence[str], model: ModelSpec, engine: Engine) -> tuple[str, ...]:
    """Of targets that are no linear layer those that peft passes over where others match, for no module with
    a weight is called so: it refuses names of which none matches (huggingface/peft 5d602fd
    src/peft/tuners/tuners_utils.py:943-953, 1025-1060). None of an engine with adapters of its own, no
    pattern, and no word for layers that a tool finds.
    """
    if engine.layers is not None or "train" not in engine.tasks:
        return ()
    stacks = (*model.stacks, *(tower.stack for tower in model.towers))
    layers = [block for stack in stacks for run in stack.runs for block in run.pattern]
    towers = [weight for tower in model.towers for weight in (*tower.embeddings, *tower.projector)]
    tensors = [*model.embeddings.weights, *model.head.weights, *towers, *model.extras]
    tensors += [weight for block in layers for weight in block.weights]
    names = {part for weight in tensors for part in weight.path.split(".")}
    names |= {ALL_LINEAR, LINEAR_MODULES, *FUSED_TARGETS, *_modules_at_ends(model)}
    return tuple(one for one in targets if not is_pattern(one) and one.rpartition(".")[2] not in names)


def _wrapped_beside_layers(model: ModelSpec, targets: Sequence[str]) -> tuple[str, ...]:
    """The towers in which a module of a target's name holds the linear layer (``run.adapters`` leaves them
    out).
    """
    inside = tuple(f".{target}.linear.weight" for target in targets)
    beside = (weight.path for weight in model.extras if weight.path.endswith(inside))
    return tuple(dict.fromkeys(".".join(path.split(".")[:2]) for path in beside))


PART = "takes a part of the layers that are called"
"""How the reason begins for which a target with a path is no name."""


def _names_of_paths(gaps: RequestResolver, model: ModelSpec, targets: Sequence[str]) -> tuple[str, ...]:
    """The targets with a path or a pattern as the last names of the layers that they take."""
    found: list[str] = []
    for target in targets:
        taken = matched_layers(model, target)
        if taken.part and not set(taken.part) <= set(targets):
            gaps.wrong(
                "adapter.targets",
                target,
                f"{PART} {', '.join(sorted(taken.part))}, which is not modelled",
                f"--lora-targets {','.join(sorted(taken.names))} takes all of them",
            )
        elif taken.names and is_pattern(target):
            gaps.assumed.append(f"adapter.targets = {','.join(sorted(taken.names))} (of the pattern)")
        found += sorted(taken.names) or [target]
    return tuple(dict.fromkeys(found))


def stacked_names(model: ModelSpec, engine: Engine) -> frozenset[str]:
    """Names that peft takes for the stacked matrices of routed experts, where it makes an engine's adapters
    on the library's own layers.
    """
    made_by_peft = engine.layers is None and "train" in engine.tasks
    weights = (weight for block in model.blocks() for weight in block.weights)
    routed = has_experts(model) or any(weight.role is Role.EXPERT for weight in weights)
    stacked = STACKED_EXPERTS.get(model.model_type, ()) if made_by_peft and routed else ()
    return frozenset(stacked)


def _refuse_stacked(
    gaps: RequestResolver, model: ModelSpec, moved: Sequence[str], stacked: frozenset[str]
) -> None:
    takes = "takes" if list(moved) == [ALL_LINEAR] else "names"
    beside = "too" if list(moved) == [ALL_LINEAR] else "and no dense or shared layer"
    gaps.wrong(
        "adapter.targets",
        ",".join(moved),
        (
            f"in peft {takes} the stacked matrices of {model.model_type}'s routed experts, {beside}; every "
            "layer then keeps a copy of its experts for backward, which is not modelled"
        ),
        f"--lora-targets {','.join(_attention_linears(model, stacked)) or 'of attention'}",
    )


def _reaches_experts(targets: Sequence[str]) -> bool:
    """Whether an engine with layers of its own puts some of the adapters on routed experts: it calls their
    layers as it calls dense ones.
    """
    return any(target in (ALL_LINEAR, LINEAR_MODULES, *OF_FEED_FORWARD) for target in targets)


def _refuse_routed(gaps: RequestResolver, model: ModelSpec, targets: Sequence[str], engine: Engine) -> None:
    reason = (
        f"takes the routed experts of {model.name}, too, whose adapters are not modelled for {engine.name}"
    )
    gaps.wrong(
        "adapter.targets", ",".join(targets), reason, f"--lora-targets {','.join(_attention_linears(model))}"
    )


def _attention_linears(model: ModelSpec, but: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Last names of the linear layers of softmax attention; of a model whose own code is on record, of
    modules that are called attention, else of those that project keys, or of all its layers where none is.
    """
    paths = [
        weight.path
        for mixer in model.mixers()
        if isinstance(mixer, Attention | LatentAttention)
        for weight in mixer.weights
        if weight.role is Role.LINEAR
    ]
    if model.recording is not None:
        linears = [
            [weight.path for weight in block.weights if weight.role is Role.LINEAR]
            for block in model.blocks()
        ]
        paths = (
            [path for block in linears for path in block if ATTENTION.search(path)]
            or [path for block in linears for path in _beside_keys(block)]
            or [path for block in linears for path in block]
        )
    if model.model_type in STATE_SPACES:
        but = but.union(NOT_OF_STATE_SPACES)
    names = dict.fromkeys(path.removesuffix(".weight").rpartition(".")[2] for path in paths)
    return tuple(name for name in names if name not in but)


def _beside_keys(linears: Sequence[str]) -> list[str]:
    """Of a layer's linear layers those of the module that projects keys."""
    homes = {path.partition(KEYS)[0] for path in linears if KEYS in path}
    return [path for path in linears if any(path.startswith(f"{home}.") for home in homes)]


def _joined_from(gaps: RequestResolver, target: str, targets: Sequence[str], present: set[str]) -> bool:
    """Whether a target joins layers that the model has in parts, none of which is a target too."""
    parts = FUSED_TARGETS.get(target)
    if parts is None or not present.issuperset(parts) or set(parts) & set(targets):
        return False
    gaps.assumed.append(f"{target} = {', '.join(parts)} as one layer, by code that joins them")
    return True
