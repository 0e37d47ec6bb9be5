"""How many tokens each expert gets is data; here each rank's experts get as many as any other's.

transformers reads the numbers back from the device once a layer (5.23, distributed/expert_parallel.py,
``AllToAllEP._dispatch_tokens``): what it reads is replaced, everything that it allocates is its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any

import torch

from memsheet.trace.patches import Patch

_MODULE = "transformers.distributed.expert_parallel"
_WHY = "how many tokens an expert gets would be read from a tensor without values"


def even_shares(rows: int, ranks: int) -> list[int]:
    """``rows`` shared out among ``ranks``, the first ones one more where they do not divide."""
    return [rows // ranks + (rank < rows % ranks) for rank in range(ranks)]


class _KnownNumbers:
    """A tensor of numbers that are known."""

    def __init__(self, made: torch.Tensor, numbers: list[list[int]]) -> None:
        self._made, self._numbers = made, numbers

    def tolist(self) -> list[list[int]]:
        return self._numbers


class _Torch:
    """torch, but for the one ``stack`` whose values are read: of how many rows each rank is sent, and how
    many each sends.
    """

    def __init__(self) -> None:
        self.numbers = [[0], [0]]

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def stack(self, tensors: Sequence[torch.Tensor]) -> _KnownNumbers:
        return _KnownNumbers(torch.stack(list(tensors)), self.numbers)


def _tensor_parallel_rows(tokens: int, mesh: Any) -> int:
    """How many are this rank's of the tokens that a tensor-parallel group has in common (torch's chunks: the
    last ones are shorter).
    """
    share = -(-tokens // int(mesh.size()))
    return max(0, min(share, tokens - int(mesh.get_local_rank()) * share))


def balanced_routing_patches() -> tuple[Patch, ...]:
    """Every expert gets as many tokens as every other."""
    from transformers.distributed.expert_parallel import AllToAllEP

    seen, dispatch = _Torch(), AllToAllEP._dispatch_tokens

    @wraps(dispatch)
    def dispatched(
        self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> Any:
        pairs = _tensor_parallel_rows(hidden_states.size(0), self.tp_mesh) * top_k_index.size(-1)
        sent = even_shares(pairs, self.ep_mesh.size())
        seen.numbers = [sent, [sent[self.ep_mesh.get_local_rank()]] * self.ep_mesh.size()]
        return dispatch(self, hidden_states, top_k_index, top_k_weights)

    return Patch(_MODULE, "torch", seen, _WHY), Patch(
        f"{_MODULE}.AllToAllEP", "_dispatch_tokens", dispatched, _WHY
    )
