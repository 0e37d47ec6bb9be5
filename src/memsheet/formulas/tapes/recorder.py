"""Operations over shape-only tensors: what each saves for backward (DERIVATIVES) and what it and its backward
allocate.

A block's forward is written once as ordinary Python with these (``blocks.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from memsheet.formulas.tapes.graph import Chosen, Grad, Graph, Leaf, Tensor
from memsheet.formulas.tapes.tape import Axis, Operands, Shape
from memsheet.plan.dtypes import BOOL, FP32, DType


class Recorder(Graph):
    """A graph with torch's operations."""

    def cast(self, x: Tensor, dtype: DType, path: str) -> Tensor:
        """``x.to(dtype)``: nothing is saved; the same tensor when the dtype is already right."""
        if x.dtype is dtype:
            return x
        shape, back = x.shape, x.dtype
        return self.apply(self.tensor(path, shape, dtype), (x,), (), lambda g: [self.grad(shape, back)])

    def autocast(self, x: Tensor, path: str) -> Tensor:
        """The lower-precision copy that an autocast operation works on; copies of parameters are cached."""
        if self.compute is None or x.dtype is self.compute or x.dtype is not FP32:
            return x
        if not isinstance(x.node, Leaf):
            return self.cast(x, self.compute, path)
        if x.node.path not in self._cache:
            shape, low = x.shape, self.compute
            copy = Tensor(self.storage(path.removesuffix(".bias"), shape, low, weight_cast=True), shape, low)
            self._cache[x.node.path] = self.apply(copy, (x,), (), lambda g: [self.grad(shape, FP32)])
        return self._cache[x.node.path]

    @property
    def widens(self) -> bool:
        """Whether autocast runs powers and softmax in fp32: its list for CUDA has them, that for a CPU does
        not (ATen/autocast_mode.h).
        """
        return self.compute is not None and not self.processor

    @contextmanager
    def without_autocast(self) -> Iterator[None]:
        """Operations meanwhile take their operands as they are."""
        compute, self.compute = self.compute, None
        yield
        self.compute = compute

    def linear(
        self, x: Tensor, weight: Tensor, out: Axis, path: str, *, bias: Tensor | None = None
    ) -> Tensor:
        """``x @ weight.T + bias``: saves the input for the weight's gradient, the weight for the input's."""
        # autocast casts its arguments from the last to the first
        operands = [self.autocast(bias, path + ".bias")] if bias is not None else []
        weight = self.autocast(weight, path)
        x = self.autocast(x, f"{path}/input")
        operands = [x, weight, *operands]
        shape, dtype = (*x.shape[:-1], out), x.dtype
        saved = [x] if weight.needs_grad else []
        if x.needs_grad:
            saved.append(weight)
        metas = [(t.shape, t.dtype, t.needs_grad) for t in operands]

        def backward(g: Grad) -> list[Grad | None]:
            # the weight's gradient is made before the input's (observed order of MmBackward0); with a bias
            # after it, and the bias's last, which the engine sums (AddmmBackward0, validate_outputs)
            order = 1 if len(metas) > 2 else -1
            grads = [self.grad(s, d) if need else None for s, d, need in metas[::order]]
            if len(metas) > 2 and metas[-1][2]:
                self.summed_rows(shape[:-1], (out,), dtype)
            return grads[::order]

        return self.apply(
            self.result(f"{path}/output", shape, dtype, Chosen.EVERY_SECOND_PRODUCT),
            tuple(operands),
            saved,
            backward,
            terms=x.shape[-1],
        )

    def dequantized_linear(
        self, x: Tensor, weight_shape: Shape, out: Axis, path: str, *, bias: Tensor | None = None
    ) -> Tensor:
        """A linear layer over a quantized frozen weight: dequantized for the product and again for the
        input's gradient.

        Computed in one dtype and handed back in the input's (bitsandbytes 95f9af3, nn/modules.py:626-637,
        autograd/_functions.py:323-384).
        """
        low = self.cast(x, self.compute or x.dtype, f"{path}/input")
        shape, dtype, back_shape = (*x.shape[:-1], out), low.dtype, x.shape
        weight = self.tensor(f"{path}/dequantized", weight_shape, dtype)
        result = self.tensor(f"{path}/output", shape, dtype)
        del weight

        def backward(g: Grad) -> list[Grad | None]:
            weight = self.grad(weight_shape, dtype, f"{path}/dequantized")
            grad = self.grad(back_shape, dtype)
            del weight
            return [grad, None][: 2 if bias else 1]

        result = self.apply(result, (low, bias) if bias else (low,), (), backward, terms=back_shape[-1])
        return self.cast(result, x.dtype, f"{path}/output")

    def add(self, a: Tensor, b: Tensor, path: str) -> Tensor:
        """Saves nothing; the gradient passes through, cast where the operands' dtypes differ."""
        needs = (a.needs_grad, b.needs_grad)

        def backward(g: Grad) -> list[Grad | None]:
            return [Grad(g.storage, g.shape, g.dtype) if need else None for need in needs]

        return self.apply(self.tensor(path, a.shape, _promote_dtypes(a.dtype, b.dtype)), (a, b), (), backward)

    def mul(self, a: Tensor, b: Tensor, path: str) -> Tensor:
        """Saves each operand that the other's gradient needs. Where b is broadcast, the engine sums its
        gradient.
        """
        shape, needs = a.shape, (a.needs_grad, b.needs_grad)
        saved = ([b] if a.needs_grad else []) + ([a] if b.needs_grad else [])

        def backward(g: Grad) -> list[Grad | None]:
            return [self.grad(shape, g.dtype) if need else None for need in needs]

        return self.apply(
            self.tensor(path, shape, _promote_dtypes(a.dtype, b.dtype)), (a, b), saved, backward
        )

    def scale(self, x: Tensor, path: str) -> Tensor:
        """``x * constant``: saves nothing, its gradient is a new tensor."""
        shape, dtype = x.shape, x.dtype
        return self.apply(self.tensor(path, shape, dtype), (x,), (), lambda g: [self.grad(shape, dtype)])

    def shift(self, x: Tensor, path: str) -> Tensor:
        """``x + constant``: saves nothing, and its gradient is the one that arrives (torch 2.13
        tools/autograd/derivatives.yaml, add.Scalar).
        """
        return self.apply(
            self.tensor(path, x.shape, x.dtype), (x,), (), lambda g: [Grad(g.storage, g.shape, g.dtype)]
        )

    def unary(
        self, x: Tensor, path: str, *, saves: str, temporaries: int = 0, dtype: DType | None = None
    ) -> Tensor:
        """An elementwise operation; ``saves`` its "input", its "output" or "nothing". ``temporaries``:
        full-size ones in backward.
        """
        shape, kind, back = x.shape, dtype or x.dtype, x.dtype
        out = self.tensor(path, shape, kind)
        kept = {"input": (x,), "output": (out,), "nothing": ()}[saves]

        def backward(g: Grad) -> list[Grad | None]:
            scratch = [self.grad(shape, kind) for _ in range(temporaries)]
            grad = self.grad(shape, back)
            del scratch
            return [grad]

        return self.apply(out, (x,), kept, backward)

    def view(self, x: Tensor, shape: Shape) -> Tensor:
        """The same storage under another shape."""
        back = x.shape

        def backward(g: Grad) -> list[Grad | None]:
            return [Grad(g.storage, back, g.dtype)]

        return self.apply(Tensor(x.storage, shape, x.dtype), (x,), (), backward)

    def copy(self, x: Tensor, shape: Shape, path: str) -> Tensor:
        """A contiguous copy; its gradient passes through as a view."""
        back = x.shape

        def backward(g: Grad) -> list[Grad | None]:
            return [Grad(g.storage, back, g.dtype)]

        return self.apply(self.tensor(path, shape, x.dtype), (x,), (), backward)

    def transposed_view(self, x: Tensor, shape: Shape) -> Tensor:
        """Heads moved in front of the sequence: a view forward, but its gradient must be made contiguous
        again.
        """
        back, dtype = x.shape, x.dtype

        def backward(g: Grad) -> list[Grad | None]:
            return [self.grad(back, dtype)]

        return self.apply(Tensor(x.storage, shape, dtype), (x,), (), backward)

    def slice(self, x: Tensor, shape: Shape) -> Tensor:
        """Part of ``x``, a view; its gradient is a full-size tensor of zeros around it."""
        back, dtype = x.shape, x.dtype
        return self.apply(Tensor(x.storage, shape, dtype), (x,), (), lambda g: [self.grad(back, dtype)])

    def split(self, x: Tensor, shapes: tuple[Shape, ...]) -> list[Tensor]:
        """All parts of ``x`` as views; their gradients are concatenated into one tensor."""
        back, dtype = x.shape, x.dtype

        def backward(*g: Grad) -> list[Grad | None]:
            return [self.grad(back, dtype)]

        first = self.apply(Tensor(x.storage, shapes[0], dtype), (x,), (), backward)
        rest = (Tensor(x.storage, shape, dtype, first.node, port) for port, shape in enumerate(shapes[1:], 1))
        return [first, *rest]

    def cat(self, parts: tuple[Tensor, ...], shape: Shape, path: str) -> Tensor:
        """A new tensor of all parts; gradients are views."""
        metas = [(p.shape, p.needs_grad) for p in parts]

        def backward(g: Grad) -> list[Grad | None]:
            return [Grad(g.storage, s, g.dtype) if need else None for s, need in metas]

        return self.apply(self.tensor(path, shape, parts[0].dtype), parts, (), backward)

    def spread(self, x: Tensor, path: str) -> Tensor:
        """What every tensor-parallel rank works on: the same storage; the ranks' gradients of it are summed
        into a new one.
        """
        shape, dtype = x.shape, x.dtype
        return self.apply(
            Tensor(x.storage, shape, dtype),
            (x,),
            (),
            lambda _: [self.grad(shape, dtype, f"{path}/all_reduce")],
        )

    def reduced(self, x: Tensor, path: str) -> Tensor:
        """The sum of what tensor-parallel ranks have; their gradient is that of the sum."""
        return self.apply(
            self.tensor(path, x.shape, x.dtype), (x,), (), lambda g: [Grad(g.storage, g.shape, g.dtype)]
        )

    def gathered(self, x: Tensor, whole: Shape, path: str) -> Tensor:
        """The last dimension of all tensor-parallel ranks: gathered along the first one, then joined along
        the last.
        """
        shape, dtype = x.shape, x.dtype
        gathered = self.tensor(f"{path}/all_gather", whole, dtype)
        result = self.tensor(f"{path}/output", whole, dtype)
        del gathered
        return self.apply(result, (x,), (), lambda _: [self.grad(shape, dtype, f"{path}/clone")])

    def dropout(self, x: Tensor, path: str, *, active: bool) -> Tensor:
        """Saves a mask of one byte an element (a factor of ``x``'s dtype on a CPU, aten native/Dropout.cpp);
        nothing at probability zero.
        """
        if not active:
            return x
        shape, dtype = x.shape, x.dtype
        mask = self.tensor(f"{path}/mask", shape, dtype if self.processor else BOOL)
        return self.apply(self.tensor(path, shape, dtype), (x,), (mask,), lambda g: [self.grad(shape, dtype)])

    def custom(
        self,
        path: str,
        inputs: tuple[Tensor, ...],
        out: Tensor,
        saved: tuple[Tensor, ...],
        *,
        scratch: tuple[tuple[Shape, DType], ...] = (),
        inside: tuple[Callable[..., int], Operands] | None = None,
    ) -> Tensor:
        """One kernel with a backward of its own: a gradient for each input, and ``scratch`` while it runs.
        ``inside``: how large what it allocates for itself is, and of which axes.
        """
        metas, dtype = [(t.shape, t.dtype, t.needs_grad) for t in inputs], out.dtype

        def backward(g: Grad) -> list[Grad | None]:
            held = [self.grad(s, d, f"{path}/scratch") for s, d in scratch]
            grads = [self.grad(s, d) if need else None for s, d, need in metas]
            if inside is not None:
                self.kernel_scratch(*inside, dtype)
            del held
            return grads

        return self.apply(out, inputs, saved, backward)

    def product(
        self, a: Tensor, b: Tensor, shape: Shape, path: str, *, copies: tuple[bool, bool] = (False, False)
    ) -> Tensor:
        """A batched matrix product: saves each operand for the other's gradient; the second's is made first.

        ``copies``: the operands whose batch is no view of one dimension, and is copied.
        """
        b = self.autocast(b, path + "/b")
        a = self.autocast(a, path + "/a")
        a, b = (
            self.copy(x, x.shape, path + "/copy") if strided else x
            for x, strided in zip((a, b), copies, strict=True)
        )
        saved = [x for x, other in ((a, b), (b, a)) if other.needs_grad]
        metas = [(t.shape, t.dtype, t.needs_grad) for t in (b, a)]

        def backward(g: Grad) -> list[Grad | None]:
            return [self.grad(s, d) if need else None for s, d, need in metas][::-1]

        return self.apply(self.tensor(path, shape, a.dtype), (a, b), saved, backward, terms=a.shape[-1])


def _promote_dtypes(a: DType, b: DType) -> DType:
    return FP32 if FP32 in (a, b) else a
