"""Bytes of parameters, master weights, gradients and optimizer states, tensor by tensor, from declared
dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from memsheet.arith import Count, at_least, where
from memsheet.formulas.states.held_shapes import elements_of, held_shape
from memsheet.formulas.states.params import buffer_tensors, parameter_tensors, tower_tensors
from memsheet.frozen import dataclass, replace
from memsheet.late import late_functions
from memsheet.plan.defaults import IA3_INPUTS
from memsheet.plan.dtypes import (
    FP32,
    INT4,
    INT8,
    INT8_ADAM,
    INT64,
    UINT8,
    DType,
    dtype_named,
)
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import Graded, LatentAttention, ModelSpec, Role, Weight
from memsheet.plan.plan import Adapter, AdapterKind, Mesh, Plan
from memsheet.plan.stored_dtypes import FOUR_BITS, OF_LINEAR_LAYERS, parameter_storage_dtype
from memsheet.references import EIGHT_BIT, LLM_INT8, LORA, QLORA, TORCHAO, ZERO, formula
from memsheet.sheet import Component

with late_functions(__name__):
    from memsheet.formulas.adapters import rotated_blocks
    from memsheet.formulas.whole_products import whole_factors


EIGHT_BIT_MINIMUM = 4096
"""bitsandbytes keeps 32-bit states for smaller tensors (Optimizer8bit, min_8bit_size)."""


WHOLE = Mesh()
"""Of tensors that tensor parallelism leaves as they are."""


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """A parameter tensor as one rank holds it: its module path, shape, storage and whether it trains.
    ``unreached``: it would, and no step comes to it. ``apart``: bytes of it that no rank divides, scales that
    stand beside it.
    """

    path: str
    shape: tuple[Count, ...]
    dtype: DType
    trains: bool
    role: Role
    times: int
    unreached: bool = False
    apart: Count = 0

    @property
    def packed(self) -> bool:
        """Whether anything of it stands apart, as beside packed numbers."""
        return not isinstance(self.apart, int) or self.apart != 0

    @property
    def elements(self) -> Count:
        return elements_of(self.shape)


def module_of(path: str) -> str:
    """The module that owns a tensor."""
    return path.rsplit(".", 1)[0]


@dataclass(frozen=True, slots=True)
class WholeRoles:
    """What an engine keeps whole under tensor parallelism."""

    roles: frozenset[Role] = frozenset()
    latent_attention: bool = False


NOTHING_WHOLE = WholeRoles()


def held_tensors(spec: ModelSpec, plan: Plan, keeping: WholeRoles = NOTHING_WHOLE) -> Iterator[HeldTensor]:
    """Every parameter tensor of a stage as a tensor-parallel rank holds it, adapters included."""
    whole = _latent_paths(spec) if keeping.latent_attention else frozenset()
    idle = {path for path, _, _ in tower_tensors(spec)}
    for path, weight, times in parameter_tensors(spec):
        uncut = weight.role in keeping.roles or module_of(weight.path) in whole
        found = tensors_on_rank(path, weight, times, plan, uncut=uncut)
        yield from (_unreached(one, plan) for one in found) if path in idle else found


def tensors_on_rank(
    path: str, weight: Weight, times: int, plan: Plan, *, uncut: bool = False
) -> Iterator[HeldTensor]:
    """One tensor as a rank holds it, and the adapter matrices beside it."""
    found = _tensor_and_adapters(path, weight, times, plan, uncut=uncut)
    if not gets_no_gradient(weight, plan):
        return found
    if weight.graded is Graded.IDLE:
        return (_unreached(one, plan) for one in found)
    return (replace(one, trains=False) for one in found)


def _unreached(held: HeldTensor, plan: Plan) -> HeldTensor:
    """A tensor that no gradient comes to, of a model that asks for it unless its base is frozen."""
    return replace(held, trains=False, unreached=held.trains and plan.adapter is None)


def gets_no_gradient(weight: Weight, plan: Plan) -> bool:
    """Whether a step leaves no gradient of a parameter, nor of adapters beside it: those of a frozen one
    train. Engines that were not compared beside idle parameters train them.
    """
    match weight.graded:
        case Graded.TRAINED:
            return False
        case Graded.IDLE:
            return engine_of(plan).trains_towers
        case Graded.FROZEN:
            return plan.adapter is None


def _tensor_and_adapters(
    path: str, weight: Weight, times: int, plan: Plan, *, uncut: bool
) -> Iterator[HeldTensor]:
    shape = held_shape(weight, WHOLE if uncut else plan.mesh, plan.vocab_multiple)
    shape = (weight.copies * shape[0], *shape[1:]) if weight.copies > 1 else shape
    if plan.adapter and weight.adapter:
        yield HeldTensor(path, shape, plan.adapter.dtype, True, weight.role, times)
        if plan.adapter.kind is AdapterKind.LN_TUNING:  # beside the norm that it is a copy of
            yield HeldTensor(path, shape, plan.precision.parameters, False, weight.role, times)
        return
    stored = parameter_storage_dtype(path, weight, plan)
    yield packed_column(HeldTensor(path, shape, stored, plan.adapter is None, weight.role, times), plan)
    adapter = plan.adapter
    if adapter is None or not path.endswith(".weight"):
        return
    name = path.split(".")[-2]
    if weight.role is Role.EMBEDDING and name in adapter.targets:
        yield from _embedding_matrices(path, shape, adapter, times)
    if weight.role in (Role.LINEAR, Role.HEAD) and name in adapter.targets:
        yield from _lora_matrices(path, shape[::-1] if weight.transposed else shape, plan, times)
    if (
        name in adapter.full_modules
    ):  # peft utils/other.py, ModulesToSaveWrapper.update: a deep copy, which is trained
        yield HeldTensor(
            f"{module_of(path)}.modules_to_save.weight",
            shape,
            plan.precision.parameters,
            True,
            weight.role,
            times,
        )


@formula(
    cites=QLORA,
    at=(
        "bitsandbytes 0.50.2 nn/modules.py:381-395 (Params4bit._quantize): the parameter is a column of "
        "packed numbers; absmax is an attribute of it and of its layer, which fully_shard and ZeRO do not "
        "divide. "
        "accelerate 1.14 utils/fsdp_utils.py:789-811: FSDP2 leaves a column of whole numbers alone"
    ),
)
def packed_column(held: HeldTensor, plan: Plan) -> HeldTensor:
    """A matrix in bitsandbytes' four bits as the engines have it that divide parameters."""
    engine = engine_of(plan)
    divides = engine.sharding.divides_tensors and not engine.divides_scales
    if plan.quantization is None or held.dtype not in FOUR_BITS or not divides:
        return held
    kept, stored = plan.quantization.storage or UINT8, held.dtype.nbytes(held.elements)
    packed = 0 if packs_whole(plan) else INT4.nbytes(held.elements)
    return replace(held, shape=(packed // kept.nbytes(1), 1), dtype=kept, apart=stored - packed)


def packs_whole(plan: Plan) -> bool:
    """Whether what four bits are packed into is of a dtype that FSDP2 does not divide."""
    kept = plan.quantization.storage if plan.quantization else None
    return kept is UINT8 and engine_of(plan).sharding.divides_floating


def _latent_paths(spec: ModelSpec) -> frozenset[str]:
    blocks = spec.blocks()
    return frozenset(
        module_of(w.path)
        for b in blocks
        for m in b.mixers
        if isinstance(m, LatentAttention)
        for w in m.weights
    )


def _embedding_matrices(
    path: str, shape: tuple[Count, ...], adapter: Adapter, times: int
) -> Iterator[HeldTensor]:
    """A of rank x words and B of width x rank (peft 0.21.2 tuners/lora/layer.py:1243-1246, Embedding)."""
    for name, size in (("A", (adapter.rank, shape[0])), ("B", (shape[1], adapter.rank))):
        yield HeldTensor(
            f"{module_of(path)}.lora_embedding_{name}", size, adapter.dtype, True, Role.LINEAR, times
        )


@formula(
    cites=LORA,
    at=(
        "section 4.1: W + B A with A of rank x in and B of out x rank; DoRA adds a magnitude a row, "
        "LoRA-FA trains B alone; IA3 has a factor for each output or input (arXiv:2205.05638, 3.3)"
    ),
)
def _lora_matrices(path: str, shape: tuple[Count, ...], plan: Plan, times: int) -> Iterator[HeldTensor]:
    assert plan.adapter is not None
    module, rank, dtype, kind = module_of(path), plan.adapter.rank, plan.adapter.dtype, plan.adapter.kind
    if kind is AdapterKind.IA3:
        elements = shape[1] if module.rpartition(".")[2] in IA3_INPUTS else shape[0]
        yield HeldTensor(f"{module}.ia3_l", (elements,), dtype, True, Role.LINEAR, times)
        return
    if kind is AdapterKind.OFT:
        number, size = rotated_blocks(int(shape[1]), plan.adapter.block_size)
        above = (number, size * (size - 1) // 2)
        yield HeldTensor(f"{module}.oft_R.weight", above, dtype, True, Role.LINEAR, times)
        for name in ("rows", "cols"):  # of the upper triangle
            yield HeldTensor(f"{module}.oft_R.{name}", above[1:], INT64, False, Role.BUFFER, times)
        return
    if kind.whole_product:
        for name, factor in whole_factors(kind, int(shape[0]), int(shape[1]), int(rank)):
            yield HeldTensor(f"{module}.{name}", factor, dtype, True, Role.LINEAR, times)
        return
    if kind is AdapterKind.VERA:
        yield HeldTensor(f"{module}.vera_lambda_d", (rank,), dtype, True, Role.LINEAR, times)
        yield HeldTensor(f"{module}.vera_lambda_b", (shape[0],), dtype, True, Role.LINEAR, times)
        return
    yield HeldTensor(
        f"{module}.lora_A.weight",
        (rank, shape[1]),
        dtype,
        kind is not AdapterKind.LORA_FA,
        Role.LINEAR,
        times,
    )
    yield HeldTensor(f"{module}.lora_B.weight", (shape[0], rank), dtype, True, Role.LINEAR, times)
    if kind is AdapterKind.ADALORA:
        yield HeldTensor(f"{module}.lora_E", (rank, 1), dtype, True, Role.LINEAR, times)
        yield HeldTensor(f"{module}.ranknum", (1,), dtype, True, Role.LINEAR, times)
    if kind is AdapterKind.DORA:
        yield HeldTensor(
            f"{module}.lora_magnitude_vector.weight", (shape[0],), dtype, True, Role.LINEAR, times
        )


def left_whole(spec: ModelSpec, plan: Plan) -> tuple[str, ...]:
    """What is said where a quantized model keeps its experts as they are."""
    how = plan.quantization
    if how is None or how.weights not in OF_LINEAR_LAYERS or how.experts:
        return ()
    experts = any(
        w.role is Role.EXPERT and not path.endswith(".weight") for path, w, _ in parameter_tensors(spec)
    )
    said = (
        f"{how.weights.name} is of linear layers: the experts are one parameter a layer, which "
        f"bitsandbytes leaves in {plan.precision.parameters.name}"
    )
    return (said,) if experts else ()


def whole_parameter(held: HeldTensor, _: Plan) -> Count:
    """Elements of a parameter on a rank where data-parallel ranks do not divide it."""
    return held.elements


@formula(cites=LLM_INT8, at="section 3.1: one fp32 constant a row of an int8 matrix")
def bytes_apart(held: HeldTensor) -> Count:
    """Bytes of the scales that no rank divides: int8 storage has one a row of a matrix. Other formats carry
    theirs in the dtype unless they stand beside it.
    """
    if held.dtype is not INT8:
        return held.apart
    return FP32.nbytes(held.shape[-2] * (held.elements // (held.shape[-1] * held.shape[-2])))


@formula(cites=QLORA, at="bitsandbytes 0.50.2 nn/modules.py:381-395: its kernels read absmax on the device")
def rows_apart(tensors_held: tuple[HeldTensor, ...]) -> dict[tuple[Component, str], Count]:
    """What of parameters is on the device wherever they are themselves."""
    result: dict[tuple[Component, str], Count] = {}
    for held in tensors_held:
        if held.packed or held.dtype is INT8:
            key = (Component.PARAMETERS, module_of(held.path))
            _add_to_bag(result, key, held.times * bytes_apart(held))
    return result


@formula(cites=ZERO, at="section 3.1: parameters, gradients and optimizer states in their own dtypes")
def parameter_bytes(
    spec: ModelSpec,
    plan: Plan,
    tensors_held: tuple[HeldTensor, ...],
    shard: Callable[[HeldTensor, Plan], Count] = whole_parameter,
) -> dict[tuple[Component, str], Count]:
    """Parameters (and buffers) kept on one rank between steps. ``shard``: elements of each."""
    result: dict[tuple[Component, str], Count] = {}
    for held in tensors_held:
        _add_to_bag(
            result,
            (Component.PARAMETERS, module_of(held.path)),
            held.times * (held.dtype.nbytes(shard(held, plan)) + bytes_apart(held)),
        )
    for path, weight, times in buffer_tensors(spec):
        dtype = dtype_named(weight.dtype) if weight.dtype else None
        _add_to_bag(
            result,
            (Component.BUFFERS, path),
            times * (dtype or plan.precision.parameters).nbytes(weight.elements),
        )
    return result


def _add_to_bag(bag: dict[tuple[Component, str], Count], key: tuple[Component, str], size: Count) -> None:
    bag[key] = bag[key] + size if key in bag else size


def gradient_dtype(held: HeldTensor, plan: Plan) -> DType:
    """Gradients have the declared dtype; those of adapters the adapters' own."""
    return held.dtype if plan.adapter else plan.precision.gradients


@formula(
    cites=EIGHT_BIT,
    at="section 2.1: 8-bit states with one fp32 maximum a block; embeddings stay in 32 bits (section 2.3)",
)
def eight_bit_states(held: HeldTensor, elements: Count, *, alike: bool = False) -> Count:
    """Two moments of a tensor under a block-wise 8-bit optimizer. ``alike``: embeddings are no exception."""
    whole = FP32.nbytes(elements)
    if held.role is Role.EMBEDDING and not alike:
        return 2 * whole
    return 2 * where(at_least(elements, EIGHT_BIT_MINIMUM), INT8_ADAM.nbytes(elements), whole)


TORCHAO_BLOCK = 256
"""Elements that share a maximum; every state has a table of fp32 values for itself, one for each code."""


@formula(
    cites=TORCHAO,
    at=(
        "adam.py _new_buffer, subclass_8bit.py zeros: 8 bits and a maximum a block; smaller tensors and "
        "odd ones as they are"
    ),
)
def torchao_states(elements: Count, dtype: DType, code: DType = INT8) -> Count:
    """Two moments of a tensor, embeddings included. ``dtype``: of what is not quantized, the parameter's. Of
    four bits (subclass_4bit.py zeros) there are as many blocks where transformers makes it
    (trainer_optimizer.py:471); the table of each has a value for each code.
    """
    odd = elements - elements // TORCHAO_BLOCK * TORCHAO_BLOCK
    whole = dtype.nbytes(elements)
    low = code.nbytes(elements) + FP32.nbytes(elements // TORCHAO_BLOCK) + FP32.nbytes(2**code.bits)
    return 2 * where(at_least(elements, EIGHT_BIT_MINIMUM), where(at_least(0, odd), low, whole), whole)
