"""What an adapter's branch computes beside a frozen linear layer, written over shape-only tensors (peft
0.21.2, tuners/lora).
"""

from __future__ import annotations

from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Axis, Shape
from memsheet.formulas.whole_products import whole_product
from memsheet.frozen import dataclass
from memsheet.plan.defaults import IA3_INPUTS
from memsheet.plan.dtypes import FP32, DType
from memsheet.plan.plan import AdapterKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """The adapter of one layer: ``width`` to ``out`` under ``name``. ``kept``: the dtype of the frozen
    weight; ``quantized``: it is dequantized for use, and
    the branch is cast in place of the sum; ``dropout``: the branch drops what it is given.
    """

    kind: AdapterKind
    name: str
    out: Axis
    width: Axis
    dtype: DType
    kept: DType
    dropout: bool
    quantized: bool
    scales_low: bool = False  # the branch is scaled when it has the base's dtype (awq.py:76-84)
    factors: tuple[tuple[str, tuple[int, int]], ...] = ()  # of those that make a whole matrix, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The inputs of a layer that are rotated together: ``number`` blocks of ``size``."""

    number: int
    size: int
    dtype: DType


def with_adapter(r: Recorder, x: Tensor, base: list[Tensor], at: Branch) -> Tensor:
    """The layer's result with its adapter's. ``base`` gives its one tensor up, which goes when it is used
    up.
    """
    if at.kind.whole_product:
        branch = whole_product(r, x, at.kind, at.name, at.factors, (at.out, at.width), at.dtype)
        back = x.dtype
        del x
        total = r.add(base.pop(), branch, f"{at.name}/output")
        del branch
        return r.cast(total, back, f"{at.name}/output")
    if r.compute is None or not at.quantized:
        x = r.cast(x, at.dtype, f"{at.name}/lora_input")
    if at.kind is AdapterKind.DORA:
        return _with_direction(r, x, base, at)
    dropped = [r.dropout(x, f"{at.name}/lora_dropout", active=at.dropout)]  # x goes by its name until the end
    if at.kind is AdapterKind.ADALORA:
        return _add_in_place(r, base.pop(), _singular_product(r, dropped.pop(), at))
    if at.kind is AdapterKind.VERA:
        return _add_adapter_branch(r, base, _between_vectors(r, dropped.pop(), at), at)
    return _add_adapter_branch(r, base, _scaled_low_rank(r, dropped.pop(), base[0].dtype, at), at)


def _scaled_low_rank(r: Recorder, x: Tensor, lower: DType, at: Branch) -> Tensor:
    branch = _low_rank(r, x, at)
    if at.scales_low and r.compute is None:
        branch = r.cast(branch, lower, f"{at.name}/lora_cast")
    return r.scale(branch, f"{at.name}/lora_scaled")


def _low_rank(r: Recorder, x: Tensor, at: Branch) -> Tensor:
    """``lora_B(lora_A(x))``; LoRA-FA trains the second matrix alone (optimizers/lorafa.py
    create_lorafa_optimizer).
    """
    down = r.parameter(
        f"{at.name}.lora_A", ("r", at.width), at.dtype, trains=at.kind is not AdapterKind.LORA_FA
    )
    up = r.parameter(f"{at.name}.lora_B", (at.out, "r"), at.dtype)
    return r.linear(r.linear(x, down, "r", f"{at.name}.lora_A"), up, at.out, f"{at.name}.lora_B")


def _add_adapter_branch(r: Recorder, base: list[Tensor], branch: Tensor, at: Branch) -> Tensor:
    """Base and branch in the base's dtype: the sum is cast (layer.py Linear.forward), over a quantized base
    the branch (bnb.py:513-561).
    """
    lower = base[0].dtype
    if at.quantized:
        branch = branch if r.compute is not None else r.cast(branch, lower, f"{at.name}/lora_cast")
        return r.add(base.pop(), branch, f"{at.name}/output")
    total = r.add(base.pop(), branch, f"{at.name}/output")
    del branch
    return r.cast(total, lower, f"{at.name}/output")


def embedding_adapter(
    r: Recorder, base: list[Tensor], name: str, sizes: tuple[Axis, Axis, Axis], dtype: DType
) -> Tensor:
    """``table(x) + (A.T[x] @ B.T) * scaling``, cast (tuners/lora/layer.py Embedding.forward). ``sizes``:
    words, sequences and tokens. A's gradient is made by words, and then in A's own layout.
    """
    words, sequences, tokens = sizes
    down = r.parameter(f"{name}.lora_embedding_A", ("r", words), dtype)
    up = r.parameter(f"{name}.lora_embedding_B", ("h", "r"), dtype)
    down, up = r.transposed_view(down, (words, "r")), r.view(up, up.shape)
    low = r.apply(
        r.tensor(f"{name}/lora_embedding_A", (sequences, tokens, "r"), dtype),
        (down,),
        (),
        lambda _: [r.grad((words, "r"), dtype)],
    )
    branch = r.scale(r.linear(low, up, "h", f"{name}.lora_embedding_B"), f"{name}/lora_scaled")
    back = base[0].dtype
    total = r.add(base.pop(), branch, f"{name}/output")
    del branch
    return r.cast(total, back, f"{name}/output")


def _between_vectors(r: Recorder, x: Tensor, at: Branch) -> Tensor:
    """``b * B(d * A(x))`` (tuners/vera/layer.py Linear.forward): the matrices are slices of the two that all
    layers share and nothing trains; each product with a vector saves what it scales.
    """
    down, up = (
        r.parameter(f"{at.name}.{name}", shape, at.dtype, trains=False)
        for name, shape in (("vera_A", ("r", at.width)), ("vera_B", (at.out, "r")))
    )
    inner = r.parameter(f"{at.name}.vera_lambda_d", ("r",), at.dtype)
    outer = r.parameter(f"{at.name}.vera_lambda_b", (at.out,), at.dtype)
    low = r.mul(r.linear(x, down, "r", f"{at.name}.vera_A"), inner, f"{at.name}/vera_inner")
    return r.mul(r.linear(low, up, at.out, f"{at.name}.vera_B"), outer, f"{at.name}/vera_outer")


def _singular_product(r: Recorder, x: Tensor, at: Branch) -> Tensor:
    """``x (A * E)^T B^T * scaling / rank`` (tuners/adalora/layer.py SVDLinear.forward). The transposed
    matrices are views, of which autocast keeps no copy for the next use. The rank is made anew on the base's
    device or in its dtype and then asks for a gradient (tuners/tuners_utils.py:2210, torch's ParameterDict),
    for which the quotient keeps what it divides.
    """
    down = r.parameter(f"{at.name}.lora_A", ("r", at.width), at.dtype)
    factors = r.parameter(f"{at.name}.lora_E", ("r", 1), at.dtype)
    up = r.parameter(f"{at.name}.lora_B", (at.out, "r"), at.dtype)
    rank = r.unary(r.parameter(f"{at.name}.ranknum", (1,), at.dtype), f"{at.name}/lora_rank", saves="nothing")
    down = r.mul(down, factors, f"{at.name}/lora_factored")
    low = r.linear(x, down, "r", f"{at.name}.lora_A")
    del down
    branch = r.linear(low, r.view(up, up.shape), at.out, f"{at.name}.lora_B")
    del low
    branch = r.scale(branch, f"{at.name}/lora_scaled")
    shape, wide = branch.shape, FP32 if FP32 in (branch.dtype, at.dtype) else branch.dtype

    def backward(_: Grad) -> list[Grad | None]:
        # of the rank first: -g * ((branch / rank) / rank), whose parts go with the statement
        parts = [r.grad(shape, wide) for _ in range(3)]
        of_rank = r.grad(shape, wide)
        del parts
        return [r.grad(shape, wide), of_rank]

    shared = r.tensor(f"{at.name}/lora_shared", shape, wide)
    return r.apply(shared, (branch, rank), (branch, rank), backward)


def _add_in_place(r: Recorder, base: Tensor, branch: Tensor) -> Tensor:
    """``base += branch``: the gradient passes through to both, cast where the branch is wider."""

    def backward(g: Grad) -> list[Grad | None]:
        return [Grad(g.storage, g.shape, g.dtype) if t else None for t in needs]

    needs = (base.needs_grad, branch.needs_grad)
    return r.apply(Tensor(base.storage, base.shape, base.dtype), (base, branch), (), backward)


# ---- OFT ---------------------------------------------------------------------------------------------------


def rotated_blocks(width: int, asked: int) -> tuple[int, int]:
    """Blocks of a layer's inputs and the size of each: as asked, or the divisor of the width that is nearest
    to it, of two the smaller (tuners/oft/layer.py update_layer, adjust_oft_parameters).
    """
    if asked >= width:
        return 1, width
    divisors = (size for size in range(1, width + 1) if width % size == 0)
    size = min(divisors, key=lambda one: (abs(one - asked), one))
    return width // size, size


def with_rotation(r: Recorder, x: Tensor, at: Blocks, name: str) -> Tensor:
    """What a layer is given, rotated block by block in the rotations' dtype (tuners/oft/layer.py
    OFTRotationModule.forward).
    """
    whole = x.shape
    x = r.cast(x, at.dtype, f"{name}/oft_input")
    turns = _cayley(r, at, name)
    *each, _ = whole
    cut = r.view(x, (*each, at.number, at.size))
    turned = r.product(cut, turns, cut.shape, f"{name}/oft_turned")
    rotated = r.copy(turned, whole, f"{name}/oft_rotated")
    wide = r.cast(rotated, x.dtype, f"{name}/oft_rotated")
    del x, cut, turns, turned, rotated
    return wide


def until_here(r: Recorder, x: Tensor, name: str) -> Tensor:
    """``x``, up to which a forward that runs again goes: the frozen weight that it meets is saved for its
    gradient, and has no bytes here.
    """
    mark = r.tensor(f"{name}/oft_output", (0,), x.dtype)
    return r.apply(
        Tensor(x.storage, x.shape, x.dtype), (x,), (mark,), lambda g: [Grad(g.storage, g.shape, g.dtype)]
    )


def _cayley(r: Recorder, at: Blocks, name: str) -> Tensor:
    """``I + 2 Q + 2 Q^2 + 2 Q^3 + Q^4`` of skew-symmetric blocks (``_cayley_batch``): Q and its powers below
    the fourth are kept.
    """
    shape: Shape = (at.number, at.size, at.size)
    above = (at.number, at.size * (at.size - 1) // 2)
    rotations = r.parameter(f"{name}.oft_R", above, at.dtype)
    upper = r.apply(
        r.tensor(f"{name}/oft_upper", shape, at.dtype), (rotations,), (), lambda _: [r.grad(above, at.dtype)]
    )
    skew = _skew(r, upper, f"{name}/oft_skew")
    del upper
    total = r.tensor(f"{name}/oft_rotation", shape, at.dtype)
    total = _add_scaled(r, total, skew, doubled=True)
    square = r.product(skew, skew, shape, f"{name}/oft_square")
    total = _add_scaled(r, total, square, doubled=True)
    power = r.product(square, skew, shape, f"{name}/oft_cube")
    total = _add_scaled(r, total, power, doubled=True)
    power = r.product(power, skew, shape, f"{name}/oft_fourth")
    return _add_scaled(r, total, power, doubled=False)


def _skew(r: Recorder, upper: Tensor, path: str) -> Tensor:
    """A matrix less its transpose, of whose gradient the second part is made anew."""
    shape, dtype = upper.shape, upper.dtype

    def backward(g: Grad) -> list[Grad | None]:
        return [Grad(g.storage, g.shape, g.dtype), r.grad(shape, dtype)]

    return r.apply(r.tensor(path, shape, dtype), (upper, upper), (), backward)


def _add_scaled(r: Recorder, total: Tensor, more: Tensor, *, doubled: bool) -> Tensor:
    """``total.add_(more, alpha)``: its gradient is that of the sum, times alpha."""
    needs = total.needs_grad
    shape, dtype = more.shape, total.dtype

    def backward(g: Grad) -> list[Grad | None]:
        passed = Grad(g.storage, g.shape, g.dtype)
        return [passed if needs else None, r.grad(shape, dtype) if doubled else passed]

    return r.apply(Tensor(total.storage, shape, dtype), (total, more), (), backward)


# ---- IA3 ---------------------------------------------------------------------------------------------------


def scales_inputs(name: str) -> bool:
    """Whether IA3 scales what a layer is given, and not what it makes (peft tuners/ia3/model.py:185-193)."""
    return name in IA3_INPUTS


def with_factors(r: Recorder, x: Tensor, at: Axis, dtype: DType, name: str) -> Tensor:
    """What enters or leaves a layer times its factors, which makes both the factors' dtype and is cast back
    (tuners/ia3/layer.py Linear.forward): the product saves what it scales.
    """
    back = x.dtype
    factors = r.parameter(f"{name}.ia3_l", (at,), dtype)
    factors = r.scale(factors, f"{name}/ia3_factors")  # 1 times the vector
    if scales_inputs(name.rpartition(".")[2]):
        x = r.cast(x, dtype, f"{name}/ia3_input")
    return r.cast(r.mul(x, factors, f"{name}/ia3"), back, f"{name}/ia3_output")


# ---- DoRA --------------------------------------------------------------------------------------------------


def _with_direction(r: Recorder, x: Tensor, base: list[Tensor], at: Branch) -> Tensor:
    """DoRA (variants.py DoraLinearVariant.forward): where the branch drops its input, the base is computed
    once more from what is left.
    """
    extra = _dora_output(r, x, base[0], at)
    del x
    return _add_adapter_branch(r, base, extra, at)


def _dora_output(r: Recorder, x: Tensor, base: Tensor, at: Branch) -> Tensor:
    """``(m - 1) * base + m * branch * scaling``, where m is the trained magnitude by the norm of the whole
    weight (dora.py forward). The product of both matrices and the weight in the adapter's dtype stand until
    it returns.
    """
    again = at.dropout
    x = r.dropout(x, f"{at.name}/lora_dropout", active=again)
    product = _dora_weight_product(r, x.dtype, at)
    weight = _dora_base_weight(r, x.dtype, at)
    norm = _dora_weight_norm(r, weight, product[-1], at)
    magnitude = r.parameter(f"{at.name}.lora_magnitude_vector", (at.out,), at.dtype)
    share = _dora_norm_scale(r, magnitude, norm, at)
    del norm
    branch = _low_rank(r, x, at)
    if again:
        base = r.linear(x, weight, at.out, f"{at.name}/dora_base")
    less = r.mul(base, r.unary(share, f"{at.name}/dora_less", saves="nothing"), f"{at.name}/dora_base_scaled")
    scaled = r.scale(r.mul(branch, share, f"{at.name}/dora_branch"), f"{at.name}/dora_branch_scaled")
    return r.add(less, scaled, f"{at.name}/dora")


def _dora_weight_product(r: Recorder, dtype: DType, at: Branch) -> tuple[Tensor, ...]:
    """``lora_B(lora_A(identity)).T`` (dora.py get_lora_weight): computed in the graph, so that identity and
    what is between are kept.
    """
    low = r.compute or at.dtype
    identity = r.tensor(f"{at.name}/dora_identity", (at.width, at.width), at.dtype)
    identity = r.cast(identity, low, f"{at.name}/dora_identity")
    between = r.tensor(f"{at.name}/dora_between", (at.width, "r"), low)
    kept = (identity, between) if r.saves else ()
    product = r.tensor(f"{at.name}/dora_product", (at.out, at.width), low)
    del identity, between
    return *kept, r.cast(product, dtype, f"{at.name}/dora_product")


def _dora_base_weight(r: Recorder, dtype: DType, at: Branch) -> Tensor:
    """The frozen weight in the adapter's dtype."""
    shape = (at.out, at.width)
    kept = (
        r.tensor(f"{at.name}/dora_dequantized", shape, at.kept)
        if at.quantized
        else Tensor(None, shape, at.kept, stays=True)
    )
    return r.cast(kept, dtype, f"{at.name}/dora_weight")


def _dora_weight_norm(r: Recorder, weight: Tensor, product: Tensor, at: Branch) -> Tensor:
    """The norm of each row of their sum, outside the graph (dora.py get_weight_norm)."""
    scaled = r.tensor(f"{at.name}/dora_scaled", product.shape, product.dtype)
    whole = r.tensor(f"{at.name}/dora_sum", weight.shape, weight.dtype)
    del scaled
    norm = r.tensor(f"{at.name}/dora_norm", (at.out,), FP32 if r.compute is not None else weight.dtype)
    del whole
    return norm


def _dora_norm_scale(r: Recorder, magnitude: Tensor, norm: Tensor, at: Branch) -> Tensor:
    """Saves the norm for the magnitude's gradient."""
    shape, dtype = magnitude.shape, magnitude.dtype
    return r.apply(
        r.tensor(f"{at.name}/dora_share", shape, dtype),
        (magnitude,),
        (norm,),
        lambda _: [r.grad(shape, dtype)],
    )
