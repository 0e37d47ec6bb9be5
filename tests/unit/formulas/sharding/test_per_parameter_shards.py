"""What stands around the units of fully_shard, of a stage whose parts are written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

import memsheet
from memsheet.errors import InputError
from memsheet.formulas.sharding.per_parameter_shards import per_parameter_overhead
from memsheet.formulas.sharding.per_parameter_sizes import all_sharded_gradients, gathered_bytes
from memsheet.formulas.states.held import HeldTensor
from memsheet.formulas.tapes.bytes_by_path import BytesByPath
from memsheet.plan.dtypes import FP32
from memsheet.plan.model import Role
from memsheet.sheet import Component
from small_stage import planned, stage

pytestmark = pytest.mark.usefixtures("warm_children")


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
        name: HeldTensor(
            path=f"{name}.weight", shape=(5, 4), dtype=FP32, trains=True, role=Role.OTHER, times=1
        )
        for name in ("positions", "idle")
    }
    walk, plan = stage(), planned()
    made = BytesByPath.of([((Component.GRADIENTS, "positions"), 80)])
    walk = replace(walk, embeddings=replace(walk.embeddings, gradients=made), rest=tuple(held.values()))
    through = per_parameter_overhead(plan, walk, gloo=False).through.held
    assert through == {(Component.UNSHARDED_PARAMETERS, "root/unsharded"): 2 * 8 * 4 * 2}
    without = all_sharded_gradients(replace(walk, rest=()), plan)
    assert all_sharded_gradients(walk, plan).total - without.total == 2 * 4 * 4


def _with_unit_inside(walk):
    """The stage's layers with a unit of one more matrix in each."""
    (layer,) = walk.layers[0].pattern
    unit = HeldTensor(
        path="layers.*.unit.weight", shape=(8, 4), dtype=FP32, trains=True, role=Role.LINEAR, times=1
    )
    nested = replace(layer, parameters=(unit, *layer.parameters), inside=(unit,))
    return replace(walk, layers=(replace(walk.layers[0], pattern=(nested,)),)), nested


def test_a_unit_inside_a_layer_is_not_gathered_ahead_in_backward() -> None:
    """What comes ahead of a layer's backward is the rest of the layer before; the unit comes when the layer
    has begun (torch 2.13 _fsdp_state.py, explicit prefetch in the order of forwards' ends).
    """
    (walk, layer), plan = _with_unit_inside(stage()), planned()
    around = per_parameter_overhead(plan, walk, gloo=False)
    ahead = (Component.UNSHARDED_PARAMETERS, f"{layer.name}/all_gather")
    rest = replace(layer, parameters=layer.parameters[1:], inside=())
    assert around.backward(layer, layer, layer).held[ahead] == gathered_bytes(rest, plan)
    assert around.fetching is not None
    begun = around.fetching(layer, layer, layer).held[ahead]
    assert begun == gathered_bytes(rest, plan) + gathered_bytes(layer, plan)


MAMBA = {
    "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 4, "vocab_size": 1024, "state_size": 16,
}  # fmt: skip
SHARDED = {"gpus": "8xH200", "engine": "fsdp2", "microbatch": 2, "seq_len": 128}


def test_layers_with_a_unit_inside_are_not_answered_where_they_run_again() -> None:
    with pytest.raises(InputError, match="gathers each mixer once more"):
        memsheet.train({"model_type": "mamba", **MAMBA}, **SHARDED, recompute="full")


@pytest.mark.slow
@pytest.mark.parametrize("also", [{}, {"precision": "fp32"}, {"lora_rank": 16}])
@pytest.mark.parametrize("family", ["mamba", "falcon_mamba"])
def test_a_unit_inside_a_layer_is_held_as_the_job_holds_it(family: str, also: dict[str, object]) -> None:
    config = {"model_type": family, **MAMBA}
    (told, *_), (seen, *_) = (
        ask(config, **SHARDED, **also).sheets for ask in (memsheet.train, memsheet.trace)
    )
    assert int(told.allocated.value) == pytest.approx(int(seen.allocated.value), rel=1e-3)


@pytest.mark.parametrize(
    ("also", "held"),
    [({}, False), ({"global_batch": 16}, True), ({"global_batch": 16, "gradient_sync": "last"}, False)],
)
def test_replicas_hold_what_they_all_reduce_where_it_becomes_no_gradient(
    also: dict[str, object], held: bool
) -> None:
    """A layer's shard in the reduce dtype, until backward is over (torch 2.13 _fsdp_param_group.py,
    _all_reduce_state): where it is added to gradients of earlier micro-batches, it is not one itself.
    """
    options = {"engine": "fsdp2", "zero": 3, "dp_shard": 4, "seq_len": 64, "fix": False}
    (sheet,) = memsheet.train("llama-tiny", dp_replicate=2, **options, **also).sheets
    waits = sum(
        int(item.largest.value)
        for item in sheet.items
        if item.component is Component.COMMUNICATION and item.path.endswith("/all_reduce")
    )
    assert (waits > 0) is held
    (alone,) = memsheet.train("llama-tiny", **options).sheets
    assert not any(item.path.endswith("/all_reduce") for item in alone.items)


def test_a_larger_layers_gather_is_there_while_it_is_copied_out() -> None:
    """Before a layer's backward a smaller one is gathered ahead, or nothing: until then its own buffer is
    beside its parameters (torch 2.13 _fsdp_param_group.py, wait_for_unshard).
    """
    walk, plan = stage(), planned()
    (layer,) = walk.layers[0].pattern
    small = replace(layer, name="small", parameters=layer.parameters[:0])
    unlike = replace(walk, layers=(replace(walk.layers[0], pattern=(small, layer)),))
    around = per_parameter_overhead(plan, unlike, gloo=False)
    assert around.fetching is not None
    begun = around.fetching(small, layer, layer)
    own = around.backward(layer, layer, layer)
    assert begun.total == own.total
    assert begun.total > around.backward(small, layer, layer).total
