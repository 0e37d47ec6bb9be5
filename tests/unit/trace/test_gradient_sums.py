"""Which sums of gradients torch's engine makes in place, as the trace takes it to."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402


@pytest.mark.parametrize(
    ("reentrant", "in_place"),
    [(None, True), (False, True), (True, False)],
    ids=["plain", "again", "reentrant"],
)
def test_a_gradient_that_a_reentrant_checkpoint_names_is_not_added_to(
    reentrant: bool | None, in_place: bool
) -> None:
    """Its backward holds its arguments (torch utils/checkpoint.py, CheckpointFunction.backward)."""
    where = dict[str, int]()

    def block(x: torch.Tensor) -> torch.Tensor:
        inner = x * 2
        if inner.requires_grad:
            inner.register_hook(lambda g: where.__setitem__("sum", g.data_ptr()))
        return inner + torch.sin(inner)

    x = torch.ones(64, 64, requires_grad=True)
    y = block(x) if reentrant is None else checkpoint(block, x, use_reentrant=reentrant)
    y.register_hook(lambda g: where.__setitem__("arrived", g.data_ptr()))
    (y * 3).sum().backward()
    assert (where["sum"] == where["arrived"]) is in_place
