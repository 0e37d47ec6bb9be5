"""A layer of torchtune's decoders as torch.compile runs it: one function forward and one backward (inductor
over a min-cut partition).

Elementwise operations are part of one kernel with what reads or makes them, so that only products, attention
and what they read are in memory. What is saved was read off the partitioner run on the layer itself (torch
2.5 and 2.13, functorch min_cut_rematerialization_partition with inductor's decompositions): a norm's
statistic and its result where a weight's gradient needs it; queries, keys and values as attention reads them,
its result and statistic; attention's output projection, which with the input makes the second norm's input
again; gate and up, and their product where a weight's gradient needs it; and every matrix that was
dequantized, whole. Every gradient is handed over when the whole backward is done.
"""

from __future__ import annotations

from collections.abc import Callable

from memsheet.formulas.numerics import RunConfig
from memsheet.formulas.tapes.graph import Grad, Leaf, Storage, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Axis, Shape
from memsheet.frozen import dataclass, field
from memsheet.plan.dtypes import FP32, DType
from memsheet.plan.model import Attention, Block, Dense, Norm, Role, Weight

LINE: Shape = ("b", "s", 1)
STREAM: Shape = ("b", "s", "h")
QUERIES: Shape = ("b", "s", "a·d")


@dataclass(slots=True, eq=False)
class Function:
    """One compiled layer while it is recorded: what it saves by name, its parameters, their gradients."""

    r: Recorder
    how: RunConfig
    dtype: DType
    weights: dict[str, Weight]
    saved: dict[str, Storage | None] = field(default_factory=dict)
    parameters: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Grad] = field(default_factory=dict)

    def make(self, path: str, shape: Shape, dtype: DType | None = None) -> Tensor:
        return self.r.tensor(path, shape, dtype or self.dtype)

    def keep(self, path: str, x: Tensor) -> None:
        self.saved[path] = x.storage

    def grad(self, shape: Shape, dtype: DType | None = None) -> Grad:
        return self.r.grad(shape, dtype or self.dtype)

    def adapts(self, name: str) -> bool:
        return name.rpartition(".")[2] in self.how.adapter_targets and self.how.adapter_dtype is not None

    def trains(self, name: str) -> bool:
        """Whether a linear layer's input is needed for a weight's gradient."""
        return self.how.trains or self.adapts(name)

    def parameter(self, path: str, shape: Shape, dtype: DType) -> None:
        self.parameters[path] = Tensor(None, shape, dtype, Leaf(path, shape, dtype), stays=True)

    def add_gradient(self, path: str) -> None:
        """A parameter's gradient."""
        leaf = self.parameters[path]
        self.gradients[path] = self.r.grad(leaf.shape, leaf.dtype)


def compiled_layer_forward(r: Recorder, x: Tensor, block: Block, how: RunConfig) -> Tensor:
    """One layer, whose backward is one node."""
    (at,), ff = block.mixers, block.feed_forward
    assert isinstance(at, Attention)
    assert isinstance(ff, Dense)
    f = Function(r, how, x.dtype, {w.path: w for w in (*at.weights, *ff.weights)})
    attention_back = _compiled_attention(f, x, block.norms[0], at)
    feed_back, out = _feed_forward(f, block.norms[1], ff, _weighted_module_names(at.weights)[-1])

    def backward(_: Grad) -> list[Grad | None]:
        between = feed_back()  # of the sum before the second norm, which joins the stream again
        last = attention_back()
        del between
        return [last if x_needs else None, *(f.gradients.pop(path) for path in names)]

    x_needs, names = x.needs_grad, list(f.parameters)
    return r.apply(out, (x, *f.parameters.values()), (x,), backward)


def _weighted_module_names(weights: tuple[Weight, ...]) -> list[str]:
    return [w.path.removesuffix(".weight") for w in weights if w.path.endswith(".weight")]


# ---- parts -------------------------------------------------------------------------------------------------


def _compiled_norm(f: Function, norm: Norm, readers: tuple[str, ...]) -> Tensor:
    """A norm: its statistic is saved, and its result where the layers that read it have weights to train."""
    if f.how.trains:
        f.parameter(norm.path, (norm.size,), f.how.parameters)
    f.keep(f"{norm.path}/rstd", f.make(f"{norm.path}/rstd", LINE, FP32))
    out = f.make(f"{norm.path}/output", STREAM)
    if any(f.trains(name) for name in readers):
        f.keep(f"{norm.path}/output", out)
    return out


def _norm_back(f: Function, norm: Norm) -> None:
    """Its result goes with the last product that reads it; the gradient is written over what the products
    made.
    """
    f.saved.pop(f"{norm.path}/output", None)
    if f.how.trains:
        f.add_gradient(norm.path)
    f.saved.pop(f"{norm.path}/rstd")


def _compiled_linear(f: Function, name: str, shape: tuple[Axis, Axis]) -> Tensor:
    """A linear layer: the sum of its base and its adapter's is one more, if it has one."""
    f_shape: Shape = ("b", "s", shape[0])
    if _is_quantized_linear(f, name):
        f.keep(f"{name}/dequantized", f.make(f"{name}/dequantized", shape))
    out = f.make(f"{name}/output", f_shape)
    if f.how.trains:
        f.parameter(name, shape, f.how.parameters)
        if name + ".bias" in f.weights:
            f.parameter(name + ".bias", shape[:1], f.how.parameters)
    if f.adapts(name):
        assert f.how.adapter_dtype is not None
        low = f.make(f"{name}.lora_A/output", ("b", "s", "r"))
        f.keep(f"{name}.lora_A/output", low)
        high = f.make(f"{name}.lora_B/output", f_shape)
        del high
        f.parameter(f"{name}.lora_A", ("r", shape[1]), f.how.adapter_dtype)
        f.parameter(f"{name}.lora_B", (shape[0], "r"), f.how.adapter_dtype)
    return out


def _is_quantized_linear(f: Function, name: str) -> bool:
    return f.how.quantized and f.weights[name + ".weight"].role is Role.LINEAR


def _product_back(f: Function, name: str, shape: tuple[Axis, Axis]) -> Grad:
    """Gradients of the weights, then that of the input."""
    for path in (name, name + ".bias"):
        if path in f.parameters:
            f.add_gradient(path)
    grad = f.grad(("b", "s", shape[1]))
    f.saved.pop(f"{name}/dequantized", None)
    if f.adapts(name):
        low = f.grad(("b", "s", "r"))
        f.add_gradient(f"{name}.lora_B")
        f.saved.pop(f"{name}.lora_A/output")
        f.add_gradient(f"{name}.lora_A")
        branch = f.grad(("b", "s", shape[1]))
        del low, branch
    return grad


def _compiled_attention(f: Function, x: Tensor, norm: Norm, at: Attention) -> Callable[[], Grad]:
    """From the layer's input to attention's output projection, which is saved; and back, given the gradient
    of the sum of both.
    """
    q, k, v, o = _weighted_module_names(at.weights)
    shapes: dict[str, tuple[Axis, Axis]] = {
        q: ("a·d", "h"),
        k: ("k·d", "h"),
        v: ("k·d", "h"),
        o: ("h", "a·d"),
    }
    y = _compiled_norm(f, norm, (q, k, v))
    for name in (q, k, v):
        made = _compiled_linear(f, name, shapes[name])
        if name != v or at.heads != at.kv_heads:
            made = f.make(f"{name}/attended", QUERIES)  # turned, repeated for every query head
        f.keep(f"{name}/attended", made)
        del made
    del y
    context = f.make(f"{at.path}/context", QUERIES)
    f.keep(f"{at.path}/context", context)
    f.keep(f"{at.path}/logsumexp", f.make(f"{at.path}/logsumexp", ("b", "a", "s"), FP32))
    del context
    f.keep(f"{o}/output", _compiled_linear(f, o, shapes[o]))

    def back() -> Grad:
        d_context = _product_back(f, o, shapes[o])
        grads = [f.grad(QUERIES) for _ in (q, k, v)]
        del d_context
        for name in (
            f"{q}/attended",
            f"{k}/attended",
            f"{v}/attended",
            f"{at.path}/context",
            f"{at.path}/logsumexp",
        ):
            f.saved.pop(name)
        total = None
        for name in (v, k, q):
            summed = (
                f.grad(("b", "s", shapes[name][0])) if name == q or at.heads != at.kv_heads else grads[-1]
            )
            grads.pop()
            part = _product_back(f, name, shapes[name])
            total = total or part
            del summed, part
        _norm_back(f, norm)
        assert total is not None
        return Grad(total.storage, x_shape, f.dtype)

    x_shape = x.shape
    return back


def _feed_forward(f: Function, norm: Norm, ff: Dense, before: str) -> tuple[Callable[[], Grad], Tensor]:
    """From attention's output projection ``before`` and the input to the layer's output; and back to the
    gradient of their sum.
    """
    gate, up, down = _weighted_module_names(ff.weights)
    wide: tuple[Axis, Axis] = ("f", "h")
    y = _compiled_norm(f, norm, (gate, up))
    for name in (gate, up):
        f.keep(f"{name}/output", _compiled_linear(f, name, wide))
    del y
    inner = f.make(f"{ff.path}/product", ("b", "s", "f"))
    if f.trains(down):
        f.keep(f"{ff.path}/product", inner)
    out = _compiled_linear(f, down, ("h", "f"))
    del inner

    def back() -> Grad:
        d_inner: Grad | None = _product_back(f, down, ("h", "f"))
        f.saved.pop(f"{ff.path}/product", None)
        halves = [d_inner, f.grad(("b", "s", "f"))]  # one of the two is written over the product's gradient
        d_inner = None
        for name in (gate, up):
            f.saved.pop(f"{name}/output")
        total = None
        for name in (up, gate):
            part = _product_back(f, name, wide)
            halves.pop()
            total = total or part
            del part
        _norm_back(f, norm)
        f.saved.pop(f"{before}/output")
        assert total is not None
        return total

    return back, out
