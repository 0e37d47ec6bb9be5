"""Which card has which layer where one process loads a model over several (``device_map="auto"``).

Modules come in their order, and a card takes them as long as its share has room (huggingface/transformers
v5.23.0 src/transformers/integrations/accelerate.py, get_balanced_memory and infer_auto_device_map; up to 4.x
huggingface/accelerate v1.15.0 src/accelerate/utils/modeling.py, functions of the same names).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memsheet.frozen import dataclass, replace
from memsheet.plan.dtypes import FP32
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.model import ModelSpec, Role, Stack, Weight
from memsheet.plan.plan import Plan, Schedule
from memsheet.plan.stored_dtypes import parameter_storage_dtype

OF_BITS = ("nf4", "fp4", "int8")
"""Formats of bitsandbytes, which plans with nine tenths of each share (quantizers/quantizer_bnb_4bit.py:89,
quantizer_bnb_8bit.py:83) and counts no scales (:53).
"""
LEAVES_MEAN = 4
"""The last major release whose buffer is of the mean leaf and not of the largest one."""


@dataclass(frozen=True, slots=True)
class Deal:
    """Layers of each card, and the cards of embeddings and head."""

    layers: tuple[int, ...]
    ends: tuple[int, int]


@dataclass(frozen=True, slots=True)
class ModuleSizes:
    """Bytes of the modules that no map cuts, in their order: what comes before the layers, each layer, the
    final norms, a head of its own. ``leaves``: of modules without children; ``tied``: the head goes where
    its table is.
    """

    before: tuple[int, ...]
    layers: tuple[int, ...]
    norms: int
    head: int
    leaves: tuple[int, ...]
    tied: bool

    @property
    def total(self) -> int:
        return sum(self.before) + sum(self.layers) + self.norms + self.head


def with_device_map(
    gaps: RequestResolver, plan: Plan, model: ModelSpec | None, card_bytes: int | None
) -> Plan:
    """The plan with the cards of its layers: as it says, else as ``device_map="auto"`` has them.
    ``card_bytes``: free on each, None where no card is known.
    """
    said = gaps.request.get("end_stages")
    if said is not None and plan.schedule is not Schedule.NAIVE:
        gaps.wrong(
            "end_stages",
            said,
            "is of one process that has several cards",
            "--schedule naive, or leave it out",
        )
    if plan.schedule is not Schedule.NAIVE or gaps.problems:
        return plan
    if said is not None and not (len(said) == 2 and all(0 <= end < plan.mesh.pp for end in said)):
        gaps.wrong("end_stages", said, f"must name two of the {plan.mesh.pp} cards", "for example 0,0")
        return plan
    if model is None:  # what is read back names both
        return replace(plan, end_stages=tuple(said) if said else None)
    if problem := _unmodelled(model, plan):
        gaps.wrong("schedule", "naive", problem, "one card, or --engine fsdp2")
        return plan
    if plan.layers_per_stage is None:
        found = deal_layers(module_sizes(model, plan), plan.mesh.pp, plan, card_bytes)
        dealt = ",".join(map(str, found.layers))
        gaps.assumed.append(f'layers_per_stage = {dealt} (as device_map="auto" of transformers deals them)')
    else:
        used = [card for card, count in enumerate(plan.layers_per_stage) if count]
        found = Deal(plan.layers_per_stage, (used[0], used[0] if model.head.tied else used[-1]))
    ends = tuple(said or found.ends)
    usual = ends == (0, plan.mesh.pp - 1)
    return replace(plan, layers_per_stage=found.layers, end_stages=None if usual else ends)


def _unmodelled(model: ModelSpec, plan: Plan) -> str:
    """What is not known of a model whose layers lie on several cards."""
    if len(model.stacks) > 1 or model.recording is not None:
        return f"puts layers of {model.model_type} on cards in an order that is not modelled"
    if plan.training.image_tokens:
        return "is not modelled where pictures pass through a tower on the first card"
    return "is not modelled beside prompts that train" if plan.training.virtual_tokens else ""


def module_sizes(model: ModelSpec, plan: Plan) -> ModuleSizes:
    """What a map weighs: parameters as they are loaded, without adapters."""
    (stack,) = model.stacks
    towers = [sum(_stack_sizes(tower.stack, plan)) for tower in model.towers]
    around = [
        sum(_weight_bytes(w.path, w, plan) for w in (*tower.embeddings, *tower.projector))
        for tower in model.towers
    ]
    tables = [_weight_bytes(w.path, w, plan) for w in model.embeddings.weights]
    norms = sum(_weight_bytes(w.path, w, plan) for n in model.embeddings.norms for w in n.weights)
    rest = sum(_weight_bytes(w.path, w, plan) for w in model.extras if w.role is not Role.BUFFER)
    head = sum(_weight_bytes(w.path, w, plan) for w in model.head.weights)
    last = sum(_weight_bytes(w.path, w, plan) for norm in stack.final_norms for w in norm.weights)
    return ModuleSizes(
        before=tuple(size for size in (*around, *towers, *tables, norms, rest) if size),
        layers=tuple(_stack_sizes(stack, plan)),
        norms=last,
        head=head,
        leaves=(*tables, *((head,) if head else ()), *_leaf_sizes(stack, plan)),
        tied=model.head.tied,
    )


def _stack_sizes(stack: Stack, plan: Plan) -> Iterator[int]:
    """Bytes of each layer."""
    prefix = f"{stack.path}.*"
    for run in stack.runs:
        sizes = [
            sum(_weight_bytes(f"{prefix}.{w.path}", w, plan) for w in block.weights) for block in run.pattern
        ]
        for _ in range(int(run.count)):
            yield from sizes


def _leaf_sizes(stack: Stack, plan: Plan) -> Iterator[int]:
    """Bytes of each module of the layers that has no module in it."""
    prefix = f"{stack.path}.*"
    for run in stack.runs:
        for block in run.pattern:
            found = dict[str, int]()
            for w in block.weights:
                module = w.path.rpartition(".")[0]
                found[module] = found.get(module, 0) + _weight_bytes(f"{prefix}.{w.path}", w, plan)
            yield from [*found.values()] * int(run.count)


def _weight_bytes(path: str, weight: Weight, plan: Plan) -> int:
    """Bytes of a tensor as it is loaded: what a quantized model raises to fp32, it raises later (peft 0.21.2
    utils/other.py, prepare_model_for_kbit_training).
    """
    dtype = parameter_storage_dtype(path, weight, plan)
    if plan.quantization is not None and dtype is FP32 and weight.dtype is None:
        dtype = plan.precision.compute
    if plan.quantization is not None and dtype is plan.quantization.weights:
        name = dtype.name.partition("-")[0]
        if name in OF_BITS:
            return weight.elements if name == "int8" else weight.elements // 2
    return int(dtype.nbytes(weight.elements))


def deal_layers(sizes: ModuleSizes, cards: int, plan: Plan, card_bytes: int | None) -> Deal:
    """Modules one after another: a card is left when the next one is larger than what its share has left,
    of which the first card keeps room for the largest module that is still to come. The last card takes the
    rest.
    """
    shares = balanced_shares(sizes, cards, plan, card_bytes)
    atoms = [*sizes.before, *sizes.layers, sizes.norms, sizes.head]
    largest = [max(atoms[at + 1 :], default=0) for at in range(len(atoms))]
    card, used, places = 0, 0, list[int]()
    for at, size in enumerate(atoms):
        while card < cards - 1 and used + size > shares[card] - (0 if card else largest[at]):
            card, used = card + 1, 0
        used += size
        places.append(card)
    first = len(sizes.before)
    own = places[first : first + len(sizes.layers)]
    start = places[first - 1] if first else 0
    return Deal(tuple(own.count(each) for each in range(cards)), (start, start if sizes.tied else places[-1]))


def balanced_shares(sizes: ModuleSizes, cards: int, plan: Plan, card_bytes: int | None) -> Sequence[float]:
    """What each card but the last may take: an even share and 1.25 of the largest module."""
    release = (plan.engine_version or "").partition(".")[0]
    leaf = max(sizes.leaves, default=0)
    if release.isdigit() and int(release) <= LEAVES_MEAN:
        leaf = sum(sizes.leaves) // max(1, len(sizes.leaves))
    share: float = sizes.total // cards + int(1.25 * max(*sizes.layers, leaf))
    share = share if card_bytes is None else min(share, card_bytes)
    quantized = plan.quantization is not None and plan.quantization.weights.name.startswith(OF_BITS)
    return [share * (0.9 if quantized else 1)] * cards
