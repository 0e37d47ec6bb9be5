"""Fake tensors whose operations are looked up: what an operation makes of operands of one dtype and layout is
worked out once, and made again from what was seen.

It stands in the place of torch's own cache (torch 2.13 torch/_subclasses/fake_tensor.py,
FakeTensorMode._cached_dispatch_impl), which takes several times as long to look up, and keeps nothing of
operations that return lists (``split``) or that reshape a product (``_unsafe_view``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

import torch
from torch import Tensor
from torch._C import _dispatch_keys
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_iter

from memsheet.frozen import dataclass

Key = tuple[Any, ...]
NAMESPACES = ("aten", "prims")
TAGS = frozenset(
    {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
)  # fmt: skip
"""Of operations whose outputs follow values, or that change how an operand lies."""
_ATEN = torch.ops.aten
ABSOLUTE = frozenset({_ATEN.as_strided.default, _ATEN.as_strided_.default, _ATEN.as_strided_copy.default})
"""Operations that may be given a place in memory, and do not begin at their operand's."""
_INDEX = _ATEN.index.Tensor
_MASKS = (torch.bool, torch.uint8, torch.int8)
"""Indices whose values say how many rows there are; of others their shape does."""
LEAVES = frozenset(
    {
        bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout,
        torch.memory_format,
    }
)  # fmt: skip
"""Operands that are what they say."""
MOST = 2**17
"""Operations that are kept, some hundreds of bytes each; then all are forgotten."""
_META = torch.device("meta")
UNSEEN = object()
"""What a look-up finds where nothing is known."""


@dataclass(frozen=True, slots=True)
class OperandOutput:
    """An output that is an operand: its place."""

    place: int


@dataclass(frozen=True, slots=True)
class OwnOutput:
    """An output in memory of its own, or (``view_of``) in that of the operand of a place, ``offset`` elements
    behind where that begins.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    view_of: int | None


Output = OperandOutput | OwnOutput | int | None
"""A number stands for itself, as None does: nothing is returned there."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """What one operation returns: one output, or a list or tuple (``kind``) of them."""

    each: tuple[Output, ...]
    kind: type | None = None


class _NotKeptError(Exception):
    """An output that cannot be made again."""


_seen: dict[Key, Outputs | None] = {}
"""None: what is worked out each time."""


class CachedFakeMode(FakeTensorMode):
    """A mode of fake tensors that remembers what operations make, as long as the process lives."""

    def __init__(self, **given: Any) -> None:
        self._has_no_card = bool(super().avoid_device_init)
        super().__init__(**given)
        self.cache_enabled = False  # torch's own: it would keep the same once more
        self._alike: dict[torch.device, dict[str, Any]] = {}

    @property
    def avoid_device_init(self) -> bool:
        """Whether the machine is without a card, whatever the code that runs is told of it: constants are
        then not brought to one.
        """
        return self._has_no_card

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        """The mode itself: a tensor's copy names its mode, and in another its views would not share its
        memory.
        """
        return self

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled, and the wrapper costs as much as a look-up

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        key = self._key(func, args, kwargs)
        if key is not None and (found := _seen.get(key)) is not None:
            return self._outputs_again(found, args)
        out = super().__torch_dispatch__(func, types, args, kwargs or {})
        if key is not None and key not in _seen:
            if len(_seen) >= MOST:
                _seen.clear()
            _seen[key] = self._outputs(func, args, kwargs, out)
        return out

    def look_up(self, func: Any, args: Any, kwargs: Mapping[str, Any] | None) -> Any:
        """What an operation makes, without a way through torch's dispatcher; ``UNSEEN`` where it has to take
        that.
        """
        key = self._key(func, args, kwargs)
        found = None if key is None else _seen.get(key)
        return UNSEEN if found is None else self._outputs_again(found, args)

    def _outputs_again(self, found: Outputs, args: Any) -> Any:
        with torch._C._DisableTorchDispatch():
            again = [self._again(one, args) for one in found.each]
        return again[0] if found.kind is None else found.kind(again)

    # ---- what decides --------------------------------------------------------------------------------------

    def _key(self, func: Any, args: Any, kwargs: Mapping[str, Any] | None) -> Key | None:
        """All that decides what an operation makes; None where that is not known."""
        if type(func) is not OpOverload or func.namespace not in NAMESPACES:
            return None
        parts = [func, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
        if func in ABSOLUTE:
            parts.append(args[0].storage_offset())
        if not self._add_operands(parts, args):
            return None
        if kwargs:
            parts += kwargs
            if not self._add_operands(parts, kwargs.values()):
                return None
        return tuple(parts)

    def _add_operands(self, parts: list[Any], operands: Iterable[Any]) -> bool:
        """Add what counts of ``operands``; whether that is known."""
        for one in operands:
            kind = type(one)
            if kind is FakeTensor:
                if one.fake_mode is not self or one.constant is not None:
                    return False
                keys = _dispatch_keys(one).raw_repr()
                parts += (one.dtype, one.shape, one.stride(), one._fake_device, keys)
            elif kind in LEAVES:
                parts += (kind, one)
            elif kind is list or kind is tuple:
                parts += (kind, len(one))
                if not self._add_operands(parts, one):
                    return False
            else:
                return False
        return True

    # ---- what is made --------------------------------------------------------------------------------------

    def _outputs(self, func: Any, args: Any, kwargs: Any, out: Any) -> Outputs | None:
        """What an operation made, to be made again; None where that cannot be."""
        if func in self.lift_fns or (not TAGS.isdisjoint(func.tags) and not _indexes_by_number(func, args)):
            return None
        several = isinstance(out, list | tuple)  # torch's own decompositions return tuples with names
        owners: dict[int, int | None] = {
            _memory_of(one): None for one in tree_iter((args, kwargs)) if isinstance(one, Tensor)
        }
        owners |= {_memory_of(one): place for place, one in enumerate(args) if isinstance(one, Tensor)}
        try:
            each = tuple(self._output(one, args, owners) for one in (out if several else (out,)))
        except _NotKeptError:
            return None
        return Outputs(each, (list if isinstance(out, list) else tuple) if several else None)

    def _output(self, one: Any, args: Any, owners: dict[int, int | None]) -> Output:
        """``owners``: of memory that is there already, the place of the operand that has it; None of one
        within a list, of a named one and of another output.
        """
        if one is None or type(one) is int:
            return one
        for place, operand in enumerate(args):
            if operand is one:
                return OperandOutput(place)
        if type(one) is not FakeTensor or one.fake_mode is not self or one.constant is not None:
            raise _NotKeptError
        memory = _memory_of(one)
        view_of = owners.get(memory)
        if one.requires_grad or one.layout is not torch.strided or (memory in owners and view_of is None):
            raise _NotKeptError
        owners.setdefault(memory, None)
        shape, offset = tuple(map(int, one.shape)), int(one.storage_offset())
        offset -= 0 if view_of is None else int(args[view_of].storage_offset())
        made = OwnOutput(shape, one.stride(), offset, one.dtype, one.fake_device, view_of)
        again = self._again(made, args)
        alike = _dispatch_keys(again).raw_repr() == _dispatch_keys(one).raw_repr()
        if not alike or again.untyped_storage().nbytes() != one.untyped_storage().nbytes():
            raise _NotKeptError
        return made

    def _again(self, output: Output, args: Any) -> Any:
        """An output as it was made before."""
        if isinstance(output, OperandOutput):
            return args[output.place]
        if not isinstance(output, OwnOutput):
            return output
        made = torch.empty_strided(output.shape, output.stride, dtype=output.dtype, device=_META)
        if output.view_of is not None:
            operand = args[output.view_of]
            offset = operand.storage_offset() + output.offset
            made.set_(operand.untyped_storage(), offset, output.shape, output.stride)
        return self._fake(made, output.device)

    def _fake(self, made: Tensor, device: torch.device) -> Tensor:
        """A tensor without memory as a fake one of ``device``, with what all of those have in this mode: as
        FakeTensor.__new__ does, in a tenth of the time.
        """
        alike = self._alike.get(device)
        if alike is None:
            alike = self._alike[device] = dict(vars(FakeTensor(self, made, device)))
        fake: Tensor = Tensor._make_subclass(
            FakeTensor, made, False, dispatch_device=True, device_for_backend_keys=device
        )
        if self._allow_unsafe_data_ptr_access:  # copy.deepcopy asks for a pointer
            torch._C._set_warn_deprecated_on_mutable_data_ptr(fake)
        else:
            torch._C._set_throw_on_mutable_data_ptr(fake)
        vars(fake).update(alike)
        return fake


def _memory_of(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _indexes_by_number(func: Any, args: Any) -> bool:
    """Whether an operation is an index without masks, whose output's shape no value decides."""
    return func is _INDEX and all(one is None or one.dtype not in _MASKS for one in args[1])
