"""What each optimizer keeps of a tensor between steps, and what its arithmetic takes while it steps.

Sources were read at torch 2.13.0, transformers 5.23.0 (Adafactor) and 4.30 (its former AdamW), peft 0.21.2,
bitsandbytes 0.50.2, galore-torch 1.0, adam-mini 1.1.1 and lion-pytorch 0.2.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from functools import reduce

from memsheet.arith import Count, at_least, ceil_div, maximum, minimum, where
from memsheet.errors import Problem
from memsheet.formulas.states.held import EIGHT_BIT_MINIMUM, HeldTensor, eight_bit_states, torchao_states
from memsheet.formulas.tapes.evaluate import Stepped
from memsheet.frozen import dataclass
from memsheet.plan.dtypes import BF16, FP32, INT4, INT8_ADAM, DType
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import Attention, LatentAttention, ModelSpec, Role
from memsheet.plan.plan import EIGHT_BITS, PAGED, Implementation, OptimizerName, Plan
from memsheet.plan.torch_versions import eight_bit_alike, torch_version
from memsheet.references import (
    ADAFACTOR,
    ADAM_MINI,
    BITSANDBYTES,
    GALORE,
    LORA_FA,
    MUON,
    TORCH_OPTIM,
    formula,
)

Parameters = tuple[tuple[HeldTensor, Count], ...]
"""Tensors that train, with the elements a rank keeps of each."""
Name, Way = OptimizerName, Implementation

WHOLE_SHAPES = frozenset({Name.ADAFACTOR, Name.MUON, Name.ADAM_MINI, Name.GALORE, Name.LORA_FA})
"""Optimizers whose states follow from a tensor's dimensions, not only from how many elements there are."""
PAGED_MINIMUM = 100_000
"""Smaller tensors have states of the ordinary kind (bitsandbytes optim/optimizer.py:383)."""


def moments_dtype(held: HeldTensor, plan: Plan) -> DType:
    """What moments are kept in that have the parameter's own dtype: beside adapters that of each trained
    tensor.
    """
    return held.dtype if plan.adapter else plan.precision.moments


def quantizes_all_moments(plan: Plan) -> bool:
    """Whether moments of embeddings are in eight bits, too."""
    torchao = plan.optimizer is not None and plan.optimizer.implementation is Way.TORCHAO
    return torchao or engine_of(plan).eight_bit_embeddings or eight_bit_alike(plan.engine_version)


def keeps_wide_moments(plan: Plan) -> bool:
    """Whether moments of one dtype have 32 bits whatever the parameter has."""
    return plan.optimizer is not None and plan.optimizer.implementation in (Way.BNB, Way.APEX)


# ---- what is kept between steps ----------------------------------------------------------------------------


@formula(cites=TORCH_OPTIM, at="_init_group: exp_avg and exp_avg_sq like the parameter, a step count each")
def optimizer_bytes(held: HeldTensor, elements: Count, plan: Plan, head_elements: Count = 0) -> Count:
    """Optimizer states of one tensor of which the rank keeps ``elements``, as torch's allocator has them.

    ``head_elements``: of the block that Adam-mini takes for a head of queries or keys.
    """
    assert plan.optimizer is not None
    name, dtype = plan.optimizer.name, moments_dtype(held, plan)
    match name:
        case Name.ADAMW_8BIT if plan.optimizer.implementation is Way.TORCHAO:
            return torchao_states(elements, dtype)
        case Name.ADAMW_4BIT:
            return torchao_states(elements, dtype, INT4)
        case name if name in PAGED:
            return _paged_moment_bytes(held, elements, plan)[0]
        case name if name in EIGHT_BITS:
            pair = eight_bit_states(held, elements, alike=quantizes_all_moments(plan))
            return pair * STATES_EACH.get(name, 2) // 2
        case Name.ADAFACTOR:
            own = plan.optimizer.implementation is Way.LOOP
            return adafactor_states(held, elements, FP32 if own else dtype) + (
                FP32.nbytes(1) if own else 0
            )  # the parameter's size
        case Name.MUON if is_muon_stepped(held):
            return dtype.nbytes(elements)
        case Name.ADAM_MINI:
            return dtype.nbytes(elements) + adam_mini_blocks(held, elements, dtype, head_elements)
        case Name.GALORE if is_galore_projected(held):
            return galore_states(held, plan, dtype)
        case _:
            return _of_every_element(elements, plan, dtype)


STATES_EACH = {
    Name.SGD: 0, Name.ADAGRAD: 1,
    **dict.fromkeys((Name.SGD_MOMENTUM, Name.LION, Name.LION_8BIT, Name.PAGED_LION, Name.PAGED_LION_8BIT, Name.RMSPROP, Name.RMSPROP_8BIT), 1),
    **dict.fromkeys((Name.ADEMAMIX, Name.ADEMAMIX_8BIT, Name.PAGED_ADEMAMIX, Name.PAGED_ADEMAMIX_8BIT), 3),  # a slow average besides (optim/ademamix.py:150-181)
}  # fmt: skip
"""Numbers beside an element where they are not two."""


@formula(
    cites=TORCH_OPTIM, at="adam.py _init_group: a count of steps each, on the device where the step is fused"
)
def step_count_bytes(plan: Plan) -> int:
    """What a tensor's count of steps takes of the device, where it is kept there."""
    assert plan.optimizer is not None
    counted = plan.optimizer.name in (Name.ADAMW, Name.MUON) and plan.optimizer.implementation is Way.FUSED
    return int(FP32.nbytes(1)) if counted else 0


def _of_every_element(elements: Count, plan: Plan, dtype: DType) -> Count:
    assert plan.optimizer is not None
    name, step = plan.optimizer.name, step_count_bytes(plan)
    return STATES_EACH.get(name, 2) * (FP32 if keeps_wide_moments(plan) else dtype).nbytes(elements) + step


@formula(cites=BITSANDBYTES, at="optim/optimizer.py:374-390: get_state_buffer")
def paged_bytes(held: HeldTensor, elements: Count, plan: Plan) -> Count:
    """States in memory that driver and host share page by page, outside torch's allocator."""
    return (
        _paged_moment_bytes(held, elements, plan)[1]
        if plan.optimizer is not None and plan.optimizer.name in PAGED
        else 0
    )


@formula(
    cites=BITSANDBYTES,
    at="optim/optimizer.py:374-390, 492-531: large states come from cudaMallocManaged, their maxima do not",
)
def _paged_moment_bytes(held: HeldTensor, elements: Count, plan: Plan) -> tuple[Count, Count]:
    """States of a tensor: bytes on the device, and bytes in pages."""
    assert plan.optimizer is not None
    each = STATES_EACH.get(plan.optimizer.name, 2)
    large, wide = at_least(elements, PAGED_MINIMUM), each * FP32.nbytes(elements)
    if plan.optimizer.name not in EIGHT_BITS or (
        held.role is Role.EMBEDDING and not engine_of(plan).eight_bit_embeddings
    ):
        return where(large, 0, wide), where(large, wide, 0)
    low, pages = each * INT8_ADAM.nbytes(elements), each * elements
    return where(large, low - pages, where(at_least(elements, EIGHT_BIT_MINIMUM), low, wide)), where(
        large, pages, 0
    )


@formula(
    cites=ADAFACTOR,
    at="section 4: a sum of rows and a sum of columns stand for the second moments of a matrix",
)
def adafactor_states(held: HeldTensor, elements: Count, dtype: DType) -> Count:
    """Without a first moment. fp32 in transformers' code, the gradient's dtype in torch's."""
    if len(held.shape) < 2:
        return dtype.nbytes(elements)
    return dtype.nbytes(elements // held.shape[-1] + elements // held.shape[-2])


@formula(
    cites=MUON,
    at=(
        "torch optim/_muon.py: matrices of hidden layers; embeddings, output projection, biases and norms "
        "by AdamW"
    ),
    counts="int",
)
def is_muon_stepped(held: HeldTensor) -> bool:
    """Whether Muon steps a tensor, and not the AdamW beside it."""
    return held.role is Role.LINEAR and len(held.shape) == 2


ROWS = (
    "embed",
    "embd",
    "wte",
    "lm_head",
    "output",
    "final_layer",
    "v_proj",
    "wv",
    "value",
    "feed_forward",
    "linear",
    "mlp",
)
ROWS_TOO = ("o_proj", "wo", "attn.proj")
HEADS = ("k_proj", "q_proj", "wq", "wk", "query", "key")


class Blocks(Enum):
    """How Adam-mini cuts a tensor into blocks that share a second moment, by the parameter's name."""

    ELEMENTS = "each element"
    HEADS = "a head of queries or keys"
    ROWS = "a row"
    WHOLE = "the tensor"


@formula(
    cites=ADAM_MINI,
    at=(
        "adam_mini.py step: biases as Adam has them, one block a head of queries and keys, one a row, else "
        "the tensor"
    ),
    counts="int",
)
def adam_mini_cut(held: HeldTensor) -> Blocks:
    """What the blocks of a tensor are."""
    name = held.path.lower()
    if "bias" in name:
        return Blocks.ELEMENTS
    if any(part in name for part in HEADS):
        return Blocks.HEADS
    return Blocks.ROWS if any(part in name for part in (*ROWS, *ROWS_TOO)) else Blocks.WHOLE


@formula(
    cites=ADAM_MINI,
    at=(
        "adam_mini.py step: vmean has one value for each head, row or tensor, v one for each "
        "element of a bias"
    ),
)
def adam_mini_blocks(held: HeldTensor, elements: Count, dtype: DType, head_elements: Count) -> Count:
    """Second moments, one a block."""
    match adam_mini_cut(held):
        case Blocks.ELEMENTS:
            return dtype.nbytes(elements)
        case Blocks.HEADS:
            return dtype.nbytes(ceil_div(elements, head_elements))
        case Blocks.ROWS:
            return dtype.nbytes(held.shape[0])
        case Blocks.WHOLE:
            return dtype.nbytes(1)


@formula(
    cites=ADAM_MINI,
    at="adam_mini.py: m.view(-1, head_numel); m[0:rows, 0:1] and its view as (rows, 1)",
    counts="int",
)
def adam_mini_problems(tensors: Iterable[HeldTensor], model: ModelSpec) -> Iterator[Problem]:
    """Tensors that it cannot cut: each is a view that torch refuses at the first step."""
    head, field, hint = head_elements(model), "optimizer.name", "another optimizer"
    found = dict[str, HeldTensor]()
    for held in tensors:
        cut = adam_mini_cut(held)
        if cut is Blocks.HEADS and held.elements % head:
            whose = f"takes hidden² / heads = {head:,} elements for a head of queries and keys"
            found.setdefault(f"{whose}, and {{path}} has {{size:,}}, which is no multiple", held)
        if cut is Blocks.ROWS and len(held.shape) != 2:
            found.setdefault("takes {path} for a matrix by its name, and its shape is {shape}", held)
    for why, held in found.items():
        reason = f"{why.format(path=held.path, size=held.elements, shape=held.shape)}: its first step fails"
        yield Problem(field=field, value=Name.ADAM_MINI.value, reason=reason, hint=hint)


@formula(
    cites=ADAM_MINI,
    at=(
        "adam_mini.py step, last branch: the state is made before it is asked whether there is a gradient; "
        "Adagrad makes all of its states when it is made itself (torch 2.13 optim/adagrad.py:84-108)"
    ),
)
def states_without_gradient(held: HeldTensor, elements: Count, plan: Plan) -> Count:
    """States of a tensor that gets no gradient; other optimizers make none."""
    if plan.optimizer is not None and plan.optimizer.name is Name.ADAGRAD:
        return optimizer_bytes(held, elements, plan)
    if (
        plan.optimizer is None
        or plan.optimizer.name is not Name.ADAM_MINI
        or adam_mini_cut(held) is not Blocks.WHOLE
    ):
        return 0
    dtype = moments_dtype(held, plan)
    return dtype.nbytes(elements) + dtype.nbytes(1)


@formula(cites=ADAM_MINI, at="adam_mini.py: head_numel is dim * dim // n_heads")
def head_elements(model: ModelSpec) -> Count:
    """``dim * dim // n_heads``, of which Adam-mini takes one second moment."""
    blocks = model.blocks()
    heads = next(
        (m.heads for block in blocks for m in block.mixers if isinstance(m, Attention | LatentAttention)), 1
    )
    return model.hidden * model.hidden // heads


@formula(
    cites=GALORE,
    at="galore_torch: matrices of the layers that are named, which are all linear layers of blocks",
    counts="int",
)
def is_galore_projected(held: HeldTensor) -> bool:
    """Whether GaLore keeps a projection of a tensor."""
    return held.role is Role.LINEAR and len(held.shape) == 2


@formula(
    cites=GALORE,
    at=(
        "galore_projector.py project (std): r rows or columns that span the gradient; two moments of what "
        "is left of it"
    ),
)
def galore_states(held: HeldTensor, plan: Plan, dtype: DType) -> Count:
    """In fp32 the projection is a view of all singular vectors, which stay; elsewhere a copy of what it
    needs.
    """
    short, long, rank = _galore_matrix_sides(held, plan)
    return dtype.nbytes((short if dtype is FP32 else rank) * short) + 2 * dtype.nbytes(rank * long)


def _galore_matrix_sides(held: HeldTensor, plan: Plan) -> tuple[Count, Count, Count]:
    """The shorter and the longer side of a matrix, and the rank that is kept of it."""
    assert plan.optimizer is not None
    short, long = minimum(*held.shape), maximum(*held.shape)
    return short, long, minimum(plan.optimizer.rank, short)


# ---- the step ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Copies that a step makes. ``together``: of all tensors at once; ``alone``: of the one at work;
    ``left``: of the one before, which a local variable still names. ``wide``: in fp32, for which low
    gradients and parameters are raised first.
    """

    together: int = 0
    alone: int = 0
    left: int = 0
    wide: bool = False

    def dtype(self, held: HeldTensor, plan: Plan) -> DType:
        """What a copy of a tensor has."""
        return FP32 if self.wide else moments_dtype(held, plan)


WORK: dict[tuple[OptimizerName, Implementation], Work] = {
    (Name.ADAMW, Way.FOREACH): Work(together=1),  # adam.py:762-799: _foreach_sqrt of all second moments
    (Name.ADAMW, Way.LOOP): Work(
        alone=2, left=1
    ),  # adam.py:540-546: a root and its quotient, beside the last quotient
    (Name.ADAMW, Way.TRANSFORMERS): Work(
        alone=1, left=1
    ),  # transformers 4.30 optimization.py AdamW.step: denom
    (Name.LION, Way.LOOP): Work(alone=2),  # lion_pytorch.py update_fn: clone, sum
    (Name.LION, Way.FOREACH): Work(together=1),  # foreach.py: clones of all
    (Name.ADAFACTOR, Way.LOOP): Work(
        alone=2, left=1, wide=True
    ),  # optimization.py:1200-1250: square and sum, beside the last update
    (Name.ADAFACTOR, Way.FOREACH): Work(
        together=1
    ),  # _adafactor.py: var_estimates of all, which become updates
    (Name.RMSPROP, Way.FOREACH): Work(together=1),  # rmsprop.py _multi_tensor_rmsprop: avg of all
    (Name.RMSPROP, Way.LOOP): Work(alone=1, left=1),  # _single_tensor_rmsprop: avg, beside the last one
    (Name.ADAGRAD, Way.FOREACH): Work(
        together=2
    ),  # adagrad.py _multi_tensor_adagrad: std and numerator of all
    (Name.ADAGRAD, Way.LOOP): Work(alone=1, left=1),  # _single_tensor_adagrad: std, beside the last one
    (Name.ADAM_MINI, Way.LOOP): Work(alone=2),  # adam_mini.py: update and its negative
}
"""What is not listed works inside kernels."""
TORCH_ADAMW = (2, 0)
"""The Trainer of transformers had an AdamW of its own by default while torch was older (4.28
training_args.py, default_optim = "adamw_hf").
"""


def optimizer_work(plan: Plan) -> Work:
    """What the plan's optimizer copies in a step; nothing of one that works inside kernels."""
    assert plan.optimizer is not None
    return _optimizer_step_work(plan, plan.optimizer.name) or Work()


def adamw_work(plan: Plan) -> Work:
    """What the AdamW beside an optimizer of matrices copies."""
    return _optimizer_step_work(plan, Name.ADAMW) or Work()


def _optimizer_step_work(plan: Plan, name: OptimizerName) -> Work | None:
    assert plan.optimizer is not None
    way = plan.optimizer.implementation
    if name is Name.ADAMW and way is Way.LOOP and torch_version(plan.engine_version) < TORCH_ADAMW:
        way = Way.TRANSFORMERS if engine_of(plan).older_releases else way
    return WORK.get((name, way))


@formula(cites=TORCH_OPTIM, at="and each optimizer's own step, line by line (WORK)")
def step_temporaries(parameters: Parameters, plan: Plan) -> Count:
    """Bytes that the optimizer's arithmetic takes, for tensors with the elements a rank keeps of each."""
    assert plan.optimizer is not None
    match plan.optimizer.name:
        case Name.MUON:
            matrices = tuple(pair for pair in parameters if is_muon_stepped(pair[0]))
            rest = tuple(pair for pair in parameters if not is_muon_stepped(pair[0]))
            return maximum(
                _largest_size(muon_scratch(h, plan) for h, _ in matrices),
                _at_work(rest, plan, _optimizer_step_work(plan, Name.ADAMW)),
            )
        case Name.GALORE:
            return _largest_size(galore_scratch(h, n, plan) for h, n in parameters)
        case Name.LORA_FA:
            return _largest_size(lora_fa_scratch(h, n) for h, n in parameters)
        case name:
            return _at_work(parameters, plan, _optimizer_step_work(plan, name))


def _largest_size(sizes: Iterator[Count]) -> Count:
    return reduce(maximum, sizes, 0)


def _at_work(parameters: Parameters, plan: Plan, work: Work | None) -> Count:
    if work is None or not parameters:
        return 0
    sizes = [work.dtype(h, plan).nbytes(n) for h, n in parameters]
    if work.together:
        return work.together * sum(h.times * size for (h, _), size in zip(parameters, sizes, strict=True))
    raised = [fp32_copy_bytes(h, n, plan) if work.wide else 0 for h, n in parameters]
    before = _previously_stepped_tensors([h.times > 1 for h, _ in parameters])
    held = [work.alone * size + extra for size, extra in zip(sizes, raised, strict=True)]
    return _largest_size(
        size + work.left * _largest_size(iter([sizes[i] for i in earlier]))
        for size, earlier in zip(held, before, strict=True)
    )


def _previously_stepped_tensors(repeated: Sequence[bool]) -> list[list[int]]:
    """Which tensors may have been stepped right before each: the one before it in order, and for the first of
    a layer the last of a layer.
    """
    found: list[list[int]] = []
    for place, again in enumerate(repeated):
        earlier = [place - 1] if place else []
        if again and not (place and repeated[place - 1]):
            last = next(
                (i for i in range(place, len(repeated)) if i + 1 == len(repeated) or not repeated[i + 1]),
                place,
            )
            earlier.append(last)
        found.append(earlier)
    return found


@formula(
    cites=ADAFACTOR,
    at="transformers optimization.py:1195-1222: gradient and parameter as fp32 copies where they are lower",
)
def fp32_copy_bytes(held: HeldTensor, elements: Count, plan: Plan) -> Count:
    kept = held.dtype if plan.adapter else plan.precision.master_weights or plan.precision.parameters
    low = plan.precision.gradients if plan.precision.master_weights is None and not plan.adapter else kept
    return sum(FP32.nbytes(elements) for dtype in (kept, low) if dtype is not FP32)


@formula(
    cites=MUON,
    at=(
        "torch optim/_muon.py _zeropower_via_newtonschulz: the update, two iterates and two Gram matrices, "
        "in bf16"
    ),
)
def muon_scratch(held: HeldTensor, plan: Plan) -> Count:
    short, long = minimum(*held.shape), maximum(*held.shape)
    return moments_dtype(held, plan).nbytes(short * long) + BF16.nbytes(2 * short * long + 2 * short * short)


@formula(
    cites=GALORE,
    at=(
        "galore_projector.py get_orthogonal_matrix: an fp32 copy, the solver's own, U and V, and s times "
        "one of them"
    ),
)
def galore_scratch(held: HeldTensor, elements: Count, plan: Plan) -> Count:
    """Every 200 steps a projected tensor's gradient is decomposed anew; the solver's workspace is not
    counted.
    """
    dtype = moments_dtype(held, plan)
    if not is_galore_projected(held):
        return 2 * dtype.nbytes(elements)
    short, long, rank = _galore_matrix_sides(held, plan)
    copies = 2 if dtype is not FP32 else 1
    spectrum = FP32.nbytes(copies * short * long + short * short + short * long + rank * rank + long * rank)
    return maximum(spectrum, 2 * dtype.nbytes(short * long) + 3 * dtype.nbytes(rank * long))


@formula(
    cites=LORA_FA,
    at=(
        "peft optimizers/lorafa.py step: the gradient in bf16, its product and multiple, that in fp32, the "
        "root beside it"
    ),
)
def lora_fa_scratch(held: HeldTensor, elements: Count) -> Count:
    return maximum(3 * BF16.nbytes(elements), BF16.nbytes(elements) + 2 * held.dtype.nbytes(elements))


@formula(cites=TORCH_OPTIM, at="one tensor alone: the loop's copies, or foreach's of one")
def fused_backward_step(plan: Plan) -> Stepped:
    """How a parameter alone is stepped inside backward."""
    assert plan.optimizer is not None
    work = optimizer_work(plan)
    kept = plan.adapter.dtype if plan.adapter else plan.precision.moments
    raised = 2 if work.wide and plan.precision.parameters is not FP32 else 0
    return Stepped(work.together + work.alone + raised, FP32 if work.wide else kept)


@formula(cites=BITSANDBYTES, at="optim/optimizer.py:374-390: get_state_buffer, tensor by tensor")
def paged_states(parameters: Parameters, plan: Plan) -> Count:
    """All states in shared pages on one rank."""
    return sum(h.times * paged_bytes(h, n, plan) for h, n in parameters)
