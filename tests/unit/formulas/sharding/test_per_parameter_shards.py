"""What stands around the units of fully_shard, of a stage whose parts are written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memsheet.formulas.sharding.per_parameter_shards import per_parameter_overhead
from memsheet.formulas.sharding.per_parameter_sizes import all_sharded_gradients
from memsheet.formulas.states.held import Held
from memsheet.formulas.tapes.bytes_by_path import BytesByPath
from memsheet.plan.dtypes import FP32
from memsheet.plan.model import Role
from memsheet.sheet import Component
from small_stage import planned, stage


@pytest.mark.parametrize(("zero", "arrives"), [(3, 96), (2, 0)])
def test_the_first_layers_backward_gathers_embeddings_ahead(zero: int, arrives: int) -> None:
    """Ten rows of four in bf16, padded to twelve; not where they stay from forward to backward (torch 2.13
    _fsdp_param_group.py:375-376: nothing to unshard).
    """
    walk, plan = stage(), planned(zero=zero)
    (layer,) = walk.layers[0].pattern
    held = per_parameter_overhead(plan, walk, gloo=False).backward(walk.embeddings, layer, None).held
    assert held.get((Component.UNSHARDED_PARAMETERS, "embeddings/all_gather"), 0) == arrives


def test_what_no_group_has_stays_gathered_and_is_reduced_at_last() -> None:
    """Five rows of four on four ranks: two rows each. It is the root's own, which torch does not reshard
    after forward (_fully_shard.py); a parameter that the step gives no gradient has none to reduce.
    """
    held = {
        name: Held(path=f"{name}.weight", shape=(5, 4), dtype=FP32, trains=True, role=Role.OTHER, times=1)
        for name in ("positions", "idle")
    }
    walk, plan = stage(), planned()
    made = BytesByPath.of([((Component.GRADIENTS, "positions"), 80)])
    walk = replace(walk, embeddings=replace(walk.embeddings, gradients=made), rest=tuple(held.values()))
    through = per_parameter_overhead(plan, walk, gloo=False).through.held
    assert through == {(Component.UNSHARDED_PARAMETERS, "root/unsharded"): 2 * 8 * 4 * 2}
    without = all_sharded_gradients(replace(walk, rest=()), plan)
    assert all_sharded_gradients(walk, plan).total - without.total == 2 * 4 * 4
