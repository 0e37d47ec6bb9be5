"""What stands around the units of fully_shard, of a stage whose parts are written by hand."""

from __future__ import annotations

import pytest

from memsheet.formulas.sharding.per_parameter_shards import per_parameter_overhead
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
