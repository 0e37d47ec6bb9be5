"""What fake tensors hold where that is known on the host: ids, positions, lengths and masks, followed through
the operations on them. Code that asks for a value (``.item()``, ``nonzero``, a mask as an index) is answered
with it.

What no value is known of (weights, and all that is made of them) has none, with one exception that is said on
every sheet: routers choose experts in turn, so that each gets as many tokens as every other.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_iter, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from memsheet.frozen import replace
from memsheet.trace.dispatch_cache import UNSEEN

_ATEN = torch.ops.aten
FEW, MANY = 2**12, 2**25
"""Elements beyond which no values of a tensor are followed: what code asks for is mostly a length or a flag,
and else the choice of experts.
"""
_HOST = torch.device("cpu")
_READ = _ATEN._local_scalar_dense.default
_INDEX = (_ATEN.index.Tensor, _ATEN.index_put.default, _ATEN.index_put_.default)
_OF_VALUES = frozenset(
    {
        _ATEN.nonzero.default, _ATEN.masked_select.default, _ATEN._unique2.default, _ATEN.unique_dim.default,
        _ATEN.unique_consecutive.default, _ATEN.repeat_interleave.Tensor, _ATEN.bincount.default,
    }
)  # fmt: skip
"""Operations whose outputs are as large as their inputs' values say."""
_UNWRITTEN = frozenset(
    {
        _ATEN.empty.memory_format,
        _ATEN.empty_like.default,
        _ATEN.empty_strided.default,
        _ATEN.new_empty.default,
    }
)
NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException)


def with_values_if_asked(run: Callable[[Any], Any], how: Any, most: int = MANY) -> Any:
    """``run(how)``; once more with values where the code asks for one, with ``most`` where it asks more."""
    for values in (how.values, *(n for n in (FEW, MANY) if n < most)):
        with suppress(*NEEDS_VALUES):
            return run(replace(how, values=values))
    return run(replace(how, values=most))


class HostValues(TorchDispatchMode):
    """Follow known values of tensors of at most so many elements; stands between the fake tensors' mode
    (``look_up``: what that one knows) and whoever records.
    """

    def __init__(self, most: int, look_up: Callable[[Any, Any, Any], Any] | None = None) -> None:
        super().__init__()
        self.most = most
        self.look_up = look_up
        torch.manual_seed(0)  # the same ids each time
        self._known = WeakTensorKeyDictionary()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled, and the wrapper is called with every operation

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if func is _READ and (value := self._value_of(args[0])) is not None:
            with _disable_current_modes():
                return value.item()
        if func in _INDEX:
            args = (args[0], self._numbered(args[1]), *args[2:])
        if func in _OF_VALUES and self._all_known(args, kwargs):
            return self._of_size(func, args, kwargs)
        out = UNSEEN if self.look_up is None else self.look_up(func, args, kwargs)
        out = func(*args, **kwargs) if out is UNSEEN else out
        if func in _CHOICES and not self._all_known(args, kwargs):
            self._choose(func, args, out)
        else:
            self._follow(func, args, kwargs, out)
        return out

    def _choose(self, func: Any, args: Any, out: Any) -> None:
        if args[0].numel() > self.most:
            return
        with _disable_current_modes():
            fake, value = _CHOICES[func](args, out)
        self._known[fake] = value

    def _value_of(self, tensor: Any) -> Tensor | None:
        if isinstance(tensor, FakeTensor):
            found: Tensor | None = self._known.get(tensor)
            return found
        return tensor if isinstance(tensor, Tensor) and tensor.device.type == "cpu" else None

    def _all_known(self, *given: Any) -> bool:
        return all(map(self._is_known, given))

    def _is_known(self, one: Any) -> bool:
        """Of an operand: whether it is no tensor, or one with values."""
        if isinstance(one, Tensor):
            return self._value_of(one) is not None
        within = one.values() if isinstance(one, dict) else one if isinstance(one, list | tuple) else ()
        return all(map(self._is_known, within))

    def _real(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The operation on values."""
        args, kwargs = self._on_host(args), {name: self._on_host(one) for name, one in kwargs.items()}
        with torch.no_grad(), _disable_current_modes():
            return func(*args, **kwargs)

    def _on_host(self, one: Any) -> Any:
        """An operand with values in place of fake tensors."""
        if isinstance(one, Tensor):
            return self._value_of(one)
        if isinstance(one, list | tuple):
            return type(one)(map(self._on_host, one))
        return _HOST if isinstance(one, torch.device) else one

    def _of_size(self, func: Any, args: Any, kwargs: Any) -> Any:
        device = next(one.device for one in tree_iter((args, kwargs)) if isinstance(one, Tensor))
        return tree_map_only(Tensor, lambda real: self._fake(real, device), self._real(func, args, kwargs))

    def _fake(self, real: Tensor, device: torch.device) -> Tensor:
        made = torch.empty(real.shape, dtype=real.dtype, device=device)
        self._known[made] = real
        return made

    def _numbered(self, indices: Any) -> list[Any]:
        """Masks among ``indices`` as the numbers of what they let through."""
        found: list[Any] = []
        for one in indices:
            mask = None if one is None or one.dtype not in (torch.bool, torch.uint8) else self._value_of(one)
            if mask is None:
                found.append(one)
            else:
                with _disable_current_modes():
                    let_through = mask.nonzero(as_tuple=True)
                found += [self._fake(places, one.device) for places in let_through]
        return found

    def _follow(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """The values of what an operation made, or changed in place, where they are known."""
        made = [one for one in tree_iter(out) if isinstance(one, FakeTensor)]
        if (
            any(one.numel() > self.most for one in made)
            or func in _UNWRITTEN
            or not self._all_known(args, kwargs)
        ):
            if func._schema.is_mutable:
                self._forget(made)
            return
        try:
            real = self._real(func, args, kwargs)
        except (RuntimeError, TypeError, IndexError, NotImplementedError):
            self._forget(made)
            return
        for fake, value in zip(
            made, (one for one in tree_iter(real) if isinstance(one, Tensor)), strict=True
        ):
            self._known[fake] = value

    def _forget(self, changed: list[FakeTensor]) -> None:
        """No value is known any more of tensors that were changed, nor of others that share their memory."""
        gone = {
            value.untyped_storage()._cdata for one in changed if (value := self._known.get(one)) is not None
        }
        for fake, value in list(self._known.items()) if gone else ():
            if value.untyped_storage()._cdata in gone:
                del self._known[fake]


def _in_turn(args: Any, out: Any) -> tuple[Tensor, Tensor]:
    """topk(input, k, dim): row after row takes the next k of what there is."""
    (_, chosen), size = out, args[0]
    dim = args[2] if len(args) > 2 else -1
    of, k = size.shape[dim], chosen.shape[dim]
    moved = [n for place, n in enumerate(chosen.shape) if place != dim % chosen.dim()]
    places = torch.arange(chosen.numel()).reshape(*moved, k) % of
    return chosen, places.movedim(-1, dim).contiguous()


def _in_order(args: Any, out: Any) -> tuple[Tensor, Tensor]:
    """sort(input, dim): as they come."""
    (_, places), dim = out, args[1] if len(args) > 1 and isinstance(args[1], int) else -1
    order = torch.arange(places.shape[dim]).reshape([-1] + [1] * (places.dim() - 1 - dim % places.dim()))
    return places, order.expand(places.shape).contiguous()


def _first_in_turn(args: Any, out: Any) -> tuple[Tensor, Tensor]:
    """argmax(input, dim): row after row the next."""
    of = args[0].numel() if len(args) < 2 or args[1] is None else args[0].shape[args[1]]
    return out, torch.arange(out.numel()).reshape(out.shape) % of


_CHOICES: dict[Any, Callable[[Any, Any], tuple[Tensor, Tensor]]] = {
    _ATEN.topk.default: _in_turn,
    _ATEN.sort.default: _in_order,
    _ATEN.argmax.default: _first_in_turn,
}
"""Which of several, by values that nobody knows."""
