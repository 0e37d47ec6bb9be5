"""Shares of a tensor, worked by hand."""

from __future__ import annotations

from memsheet.formulas.sharding.flat_sizes import flat_shard
from memsheet.formulas.sharding.per_parameter_sizes import dim0_gathered, dim0_shard


def test_fsdp2_pads_dimension_0_so_a_short_one_is_held_by_every_rank() -> None:
    """torch.chunk semantics: 10 rows over 4 ranks are 3, 3, 3, 1, each padded to 3; 2 rows over 8 are one row
    on every rank.
    """
    assert dim0_shard((10, 7), 4) == 21
    assert dim0_gathered((10, 7), 4) == 84
    assert dim0_shard((2, 100), 8) == 100
    assert dim0_shard((4096,), 8) == 512


def test_flat_buffers_are_padded_to_ranks_times_alignment() -> None:
    assert flat_shard(100, 8) == 13
    assert flat_shard(100, 8, 2) == 14
    assert flat_shard(96, 8) == 12
