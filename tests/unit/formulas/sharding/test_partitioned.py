"""DeepSpeed's engine: every figure again by hand from the model's sizes, and the laws between its stages."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from memsheet.catalog import model_names
from memsheet.engines.deepspeed.facts import ENGINE
from memsheet.errors import InputError
from memsheet.formulas.sharding.partitioned import partitioned_state, partitioned_walk
from memsheet.formulas.sharding.partitioned_buckets import Buckets
from memsheet.formulas.sharding.partitioned_flow import bucket_flushes, peak_flush_places, prefetched_elements
from memsheet.formulas.sharding.partitioned_states import (
    offloaded_partition_elements,
    zero_of,
    zero_state_rows,
)
from memsheet.formulas.states.held import held_tensors
from memsheet.questions import accounted
from memsheet.questions.question_parts import catalog_entry
from memsheet.readers.model import read_model
from memsheet.resolve import resolve_request
from memsheet.sheet import STATES, Component, Instant, Sheet

C, AT = Component, Instant
B = 500_000_000
GPUS = "8xA100-80GB"

# (layers, hidden, key/value width, intermediate, vocabulary): untied heads but for the last
SEVEN_B = (32, 4096, 4096, 11008, 32000)


def by_hand(layers: int, hidden: int, kv: int, intermediate: int, vocabulary: int) -> dict[str, int]:
    layer = 2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * intermediate + 2 * hidden
    return {
        "layer": layer,
        "table": vocabulary * hidden,
        "all": layers * layer + 2 * vocabulary * hidden + hidden,
    }


P = by_hand(*SEVEN_B)["all"]
TABLE = by_hand(*SEVEN_B)["table"]


def sheet(model: str = "llama-2-7b", gpus: str = GPUS, **options) -> Sheet:
    options = {"engine": "deepspeed", "seq_len": 512, "recompute": "full", **options}
    return accounted.train(model, gpus=gpus, fix=False, **options).sheets[0]


def bytes_at(found: Sheet, instant: Instant, *components: Component) -> int:
    return found.of(*components, instant=instant).value


def row(found: Sheet, path: str, instant: Instant) -> int:
    rows = [item.at[instant].value for item in found.items if item.path == path and instant in item.at]
    return sum(rows)


def tensors_at(found: Sheet, instant: Instant) -> int:
    return found.at(instant, without=(C.ALLOCATOR_SLACK, C.CONTEXT, C.WORKSPACES)).value


def test_the_7b_is_the_7b():
    assert P == 6_738_415_616


# ---- states ------------------------------------------------------------------------------------------------


def padded(n: int) -> int:
    return -(-P // (2 * n)) * 2


@pytest.mark.parametrize("zero", [1, 2])
def test_stages_1_and_2_keep_parameters_whole_and_the_rest_in_parts(zero):
    found = sheet(zero=zero)
    assert bytes_at(found, AT.LOAD, C.PARAMETERS) == 2 * padded(8) * 8
    assert bytes_at(found, AT.LOAD, C.MASTER_WEIGHTS) == 4 * padded(8)
    assert bytes_at(found, AT.LOAD, C.OPTIMIZER_STATES) == 8 * padded(8)
    assert bytes_at(found, AT.LOAD, C.GRADIENTS) == 0


def test_stage_0_keeps_everything_whole():
    found = sheet(zero=0)
    assert [bytes_at(found, AT.LOAD, c) for c in (C.PARAMETERS, C.MASTER_WEIGHTS, C.OPTIMIZER_STATES)] == [
        2 * P,
        4 * P,
        8 * P,
    ]
    assert bytes_at(found, AT.BACKWARD, C.GRADIENTS) == 2 * P
    assert (
        bytes_at(found, AT.OPTIMIZER_STEP, C.TEMPORARIES) == 8 * P
    )  # every gradient in fp32, and the flat tensor of them
    assert bytes_at(found, AT.BACKWARD, C.COMMUNICATION) == 2 * B


def test_stage_3_keeps_parts_of_everything_from_the_start():
    found = sheet(zero=3)
    small = 65 * 4096  # two norms a layer and the last: below param_persistence_threshold, kept gathered
    assert bytes_at(found, AT.LOAD, C.PARAMETERS) == 2 * P // 8
    assert bytes_at(found, AT.LOAD, C.MASTER_WEIGHTS, C.OPTIMIZER_STATES) == 12 * P // 8
    assert bytes_at(found, AT.LOAD, C.GRADIENTS) == 2 * P // 8
    assert row(found, "zero/persistent", AT.FORWARD) == 2 * small
    assert (
        row(found, "zero/ipg_bucket", AT.FORWARD) == row(found, "zero/ipg_bucket", AT.OPTIMIZER_STEP) == 2 * B
    )


def test_an_uneven_tensor_is_padded_on_its_own_at_stage_3_and_with_all_others_before():
    spec = read_model("llama-tiny", catalog=catalog_entry, names=model_names())
    tensors = tuple(held_tensors(spec, plan_of(spec, zero=2, ranks=3)))
    total = sum(h.times * h.elements for h in tensors)
    assert zero_of(plan_of(spec, zero=2, ranks=3), tensors).shard == -(-total // 6) * 2
    assert zero_of(plan_of(spec, zero=3, ranks=3), tensors).shard == sum(
        h.times * -(-h.elements // 3) for h in tensors
    )


def plan_of(spec, *, zero, ranks=8, **more):
    request = {
        "engine": "deepspeed",
        "zero": zero,
        "mesh.dp_shard": ranks,
        "seq_len": 512,
        "recompute.mode": "full",
        **more,
    }
    return resolve_request(request, spec).plan


def test_fp32_has_its_own_copy_to_step():
    found = sheet(zero=2, precision="fp32")
    assert bytes_at(found, AT.LOAD, C.PARAMETERS, C.MASTER_WEIGHTS, C.OPTIMIZER_STATES) == 4 * 8 * padded(
        8
    ) + 12 * padded(8)


# ---- gradients ---------------------------------------------------------------------------------------------


def test_stage_1_reduces_after_the_last_backward():
    found = sheet(zero=1)
    shard = 2 * padded(8)
    # whole gradients, the bucket, and the part that grows while the first bucket's gradients are gone
    assert bytes_at(found, AT.BACKWARD, C.GRADIENTS) == 2 * P + shard - 2 * B
    assert bytes_at(found, AT.BACKWARD, C.COMMUNICATION) == 2 * B
    assert bytes_at(found, AT.OPTIMIZER_STEP, C.GRADIENTS) == shard


def test_stage_1_keeps_gradients_and_its_bucket_between_micro_batches():
    found = sheet(zero=1, global_batch=32)
    assert bytes_at(found, AT.FORWARD, C.GRADIENTS) == 2 * P
    assert bytes_at(found, AT.FORWARD, C.COMMUNICATION) == 2 * B


def test_stage_2_keeps_its_own_part_and_a_second_one_when_it_accumulates():
    once, often = sheet(zero=2), sheet(zero=2, global_batch=32)
    shard = 2 * padded(8)
    assert bytes_at(once, AT.FORWARD, C.GRADIENTS) == 0
    assert bytes_at(often, AT.FORWARD, C.GRADIENTS) == shard
    assert row(once, "zero/averaged_gradients", AT.BACKWARD) == shard
    assert (
        row(often, "zero/averaged_gradients", AT.BACKWARD) + row(often, "zero/all_grad_tensors", AT.BACKWARD)
        == 2 * shard
    )
    assert bytes_at(once, AT.BACKWARD, C.COMMUNICATION) >= 2 * B
    assert bytes_at(often, AT.OPTIMIZER_STEP, C.GRADIENTS) == shard


def test_stage_3_accumulates_in_place():
    assert sheet(zero=3).peak == sheet(zero=3, global_batch=32).peak


def test_one_rank_holds_the_sum():
    """At the step of stages 1 and 2: the part, its flat copy and its fp32 copy, 8 bytes an element of the
    part.
    """
    for zero in (1, 2):
        found = sheet(zero=zero)
        held = bytes_at(found, AT.OPTIMIZER_STEP, C.GRADIENTS, C.TEMPORARIES)
        assert held == 8 * padded(8)
    assert bytes_at(sheet(zero=3), AT.OPTIMIZER_STEP, C.GRADIENTS, C.TEMPORARIES) == 8 * P // 8


def test_the_step_of_torch_foreach_adds_a_copy():
    fused, foreach = sheet(zero=3), sheet(zero=3, optimizer_implementation="foreach")
    shard = P // 8
    assert (
        bytes_at(foreach, AT.OPTIMIZER_STEP, C.TEMPORARIES) == 8 * shard
    )  # fp32 gradients and the roots of the second moments
    assert bytes_at(fused, AT.OPTIMIZER_STEP, C.TEMPORARIES) == 6 * shard


def test_a_part_smaller_than_a_tensor_is_checked_whole():
    found = sheet(zero=2, gpus="128xA100-80GB")
    part = padded(128)
    assert bytes_at(found, AT.OPTIMIZER_STEP, C.TEMPORARIES) == 11 * min(part, TABLE)


def test_fp32_gradients_at_stage_1_are_whole_beside_the_bf16_ones():
    found = accounted.train(
        "llama-2-7b", gpus=GPUS, fix=False, plan=plan_document(zero=1, gradients="fp32")
    ).sheets[0]
    assert bytes_at(found, AT.LOAD, C.GRADIENTS) == 4 * padded(8) * 8
    assert (
        bytes_at(found, AT.BACKWARD, C.GRADIENTS)
        == bytes_at(found, AT.OPTIMIZER_STEP, C.GRADIENTS)
        == 4 * padded(8) * 8 + 2 * P
    )
    assert bytes_at(found, AT.BACKWARD, C.COMMUNICATION) == 2 * padded(8) * 8
    assert bytes_at(found, AT.LOAD, C.MASTER_WEIGHTS, C.OPTIMIZER_STATES) == 12 * padded(8)
    assert bytes_at(found, AT.OPTIMIZER_STEP, C.TEMPORARIES) == 0


def plan_document(*, gradients: str, **more):
    precision = {
        "parameters": "bf16",
        "compute": "bf16",
        "gradients": gradients,
        "reduce": gradients,
        "master_weights": "fp32",
        "moments": "fp32",
    }
    return {
        "engine": "deepspeed",
        "seq_len": 512,
        "recompute": {"mode": "full"},
        "precision": precision,
        **more,
    }


def test_fp32_gradients_at_stage_3_make_the_flat_buffer_wider():
    found = accounted.train(
        "llama-2-7b", gpus=GPUS, fix=False, plan=plan_document(zero=3, gradients="fp32")
    ).sheets[0]
    assert bytes_at(found, AT.LOAD, C.GRADIENTS) == 4 * P // 8


# ---- buckets and gathering ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def seven_b():
    return read_model("llama-2-7b", catalog=catalog_entry, names=model_names())


def test_every_gradient_is_flushed_once_and_no_bucket_overflows(seven_b):
    stage = partitioned_walk(seven_b, plan_of(seven_b, zero=2), ENGINE)
    made = bucket_flushes(stage, B, padded(8), cuts=True)
    assert sum(flush.elements for flush in made) == P
    assert all(flush.elements <= B for flush in made)
    assert made[-1].place == (-1, 0)
    assert {flush.copied for flush in made} - {0} == {flush.elements for flush in made if flush.copied}
    assert len([flush for flush in made if flush.copied]) <= 7  # no more than borders between parts
    assert made[0].place in peak_flush_places(made)


def test_one_rank_has_nothing_to_copy(seven_b):
    stage = partitioned_walk(seven_b, plan_of(seven_b, zero=2), ENGINE)
    assert not any(flush.copied for flush in bucket_flushes(stage, B, P + 1, cuts=True))


def test_a_tensor_wider_than_the_bucket_goes_alone():
    spec = read_model("llama-3-8b", catalog=catalog_entry, names=model_names())
    stage = partitioned_walk(spec, plan_of(spec, zero=2), ENGINE)
    assert any(flush.elements == 128256 * 4096 for flush in bucket_flushes(stage, B, 10**9, cuts=True))


def test_gathering_ahead_is_a_range():
    size = prefetched_elements(6_000_000_000, 45_000_000, Buckets())
    assert (size.low, size.value, size.high) == (95_000_000, 1_050_000_000, 1_140_000_000)
    everything = prefetched_elements(400_000_000, 45_000_000, Buckets())
    assert everything.value == 450_000_000  # a small model is gathered whole, and one bundle twice


def test_the_range_reaches_the_sheet():
    found = sheet(zero=3)
    rows = [each for each in C if each not in (C.ALLOCATOR_SLACK, C.CONTEXT, C.WORKSPACES)]
    forward = found.of(*rows, instant=AT.FORWARD)
    assert forward.low < forward.value < forward.high
    assert found.of(*rows, instant=AT.OPTIMIZER_STEP).low == tensors_at(found, AT.OPTIMIZER_STEP)


def test_buckets_are_data(seven_b):
    small = Buckets(reduce_bucket=4096 * 4096, prefetch=4096 * 4096, persistence=40960)
    plan = plan_of(seven_b, zero=3)
    stage = partitioned_walk(seven_b, plan, ENGINE)
    kept = partitioned_state(seven_b, plan, stage, small)
    assert kept.around.always.held[C.COMMUNICATION, "zero/ipg_bucket"] == 2 * 4096 * 4096
    assert Buckets(overlap=True).buffers(2) == 2
    assert Buckets().buffers(2) == Buckets(overlap=True).buffers(3) == 1


def test_the_sheet_says_whose_defaults_these_are():
    assert any("auto" in note for note in sheet(zero=2).notes)


# ---- offload -----------------------------------------------------------------------------------------------


def test_stage_2_moves_the_optimizer_to_the_host():
    found = sheet(zero=2, offload="optimizer")
    part = padded(8)
    assert found.host_bytes == (4 + 4 + 2 + 8) * part + 2 * TABLE
    assert bytes_at(found, AT.LOAD, C.MASTER_WEIGHTS, C.OPTIMIZER_STATES) == 0
    assert bytes_at(found, AT.LOAD, C.COMMUNICATION) == 2 * TABLE
    assert any("powers of two" in note for note in found.notes)
    assert sheet(zero=2, offload="optimizer", global_batch=32).host_bytes == found.host_bytes + 2 * part


def test_stage_3_moves_the_optimizer_and_the_parameters_to_the_host():
    optimizer, both = sheet(zero=3, offload="optimizer"), sheet(zero=3, offload="optimizer,parameters")
    persistent = 65 * 4096
    assert optimizer.host_bytes == 18 * P // 8
    assert both.host_bytes == 18 * P // 8 + 2 * (P - persistent) // 8
    assert bytes_at(both, AT.LOAD, C.PARAMETERS) == 2 * persistent // 8
    assert bytes_at(both, AT.OPTIMIZER_STEP, *STATES) == 2 * persistent // 8


def test_a_ratio_keeps_the_first_sub_groups_on_the_device(seven_b):
    plan = plan_of(seven_b, zero=3, ranks=1, **{"offload.optimizer": 0.5})
    assert (
        offloaded_partition_elements(P, plan, Buckets()) == P - 3 * 10**9
    )  # seven sub-groups, int(0.5 · 7) stay
    assert (
        zero_state_rows(zero_of(plan, tuple(held_tensors(seven_b, plan)))).held[
            C.MASTER_WEIGHTS, "zero/fp32_partition"
        ]
        == 4 * 3 * 10**9
    )


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_offload_never_raises_what_the_device_holds(zero):
    plain, moved = sheet(zero=zero), sheet(zero=zero, offload="optimizer")
    assert moved.host_bytes > plain.host_bytes == 0
    assert moved.peak.value < plain.peak.value
    assert all(moved.at(i).value < plain.at(i).value for i in (AT.LOAD, AT.FORWARD, AT.OPTIMIZER_STEP))


def test_fsdp2_moves_everything_to_the_host():
    plain = accounted.train("llama-2-7b", gpus=GPUS, engine="fsdp2", seq_len=512, fix=False).sheets[0]
    moved = accounted.train(
        "llama-2-7b", gpus=GPUS, engine="fsdp2", seq_len=512, fix=False, offload="optimizer,parameters"
    ).sheets[0]
    assert bytes_at(moved, AT.LOAD, *STATES) == 0
    assert bytes_at(moved, AT.OPTIMIZER_STEP, *STATES) == 0
    assert 16 * P // 8 <= moved.host_bytes <= 16 * P // 8 + 4 * 300  # and a step count a tensor
    assert moved.peak.value < plain.peak.value


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"zero": 2, "offload": "parameters"}, "offload.parameters"),
        ({"zero": 0, "offload": "optimizer"}, "offload.optimizer"),
        ({"zero": 2, "plan": {"offload": {"optimizer": 0.5}}}, "offload.optimizer"),
        ({"zero": 3, "plan": {"offload": {"parameters": 0.5}}}, "offload.parameters"),
        (
            {"zero": 2, "plan": {"precision": {"parameters": "bf16", "gradients": "fp32"}}},
            "precision.gradients",
        ),
        ({"engine": "fsdp2", "plan": {"offload": {"optimizer": 1}}}, "offload.parameters"),
        ({"zero": 2, "precision": "bf16-pure"}, "precision"),
        ({"zero": 2, "dp_replicate": 2}, "mesh.dp_replicate"),
        ({"zero": 0, "optimizer_implementation": "foreach"}, "optimizer.implementation"),
        ({"zero": 2, "plan": {"precision": {"parameters": "bf16", "moments": "bf16"}}}, "precision.moments"),
        ({"zero": 3, "lora_rank": 16, "quantize": "int8"}, "quantization.weights"),
    ],
)
def test_what_does_not_exist_is_refused_by_name(options, field):
    with pytest.raises(InputError) as error:
        sheet(**options)
    assert field in str(error.value)


# ---- laws --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["llama-2-7b", "llama-3.2-1b", "llama-tiny"])
def test_each_stage_holds_no_more_states_than_the_one_before(model):
    held = [
        max(bytes_at(sheet(model, zero=zero), i, *STATES) for i in (AT.LOAD, AT.OPTIMIZER_STEP))
        for zero in (0, 1, 2, 3)
    ]
    slack = 2 * 8 * 16 * 100  # padding of single tensors at stage 3
    assert all(later <= before + slack for before, later in pairwise(held))


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 64])
def test_parts_of_all_ranks_are_the_whole_and_little_more(zero, ranks):
    spec = read_model("llama-tiny", catalog=catalog_entry, names=model_names())
    plan = plan_of(spec, zero=zero, ranks=ranks)
    found = zero_of(plan, tuple(held_tensors(spec, plan)))
    tensors = sum(h.times for h in found.parameters)
    assert 0 <= found.shard * ranks - found.total <= ranks * (tensors if zero == 3 else 2)


def test_adapters_train_in_the_models_dtype():
    found = sheet(zero=2, lora_rank=16)
    trained = 32 * 2 * 2 * 16 * 4096
    assert bytes_at(found, AT.LOAD, C.PARAMETERS) == 2 * P + 2 * trained
    assert bytes_at(found, AT.LOAD, C.MASTER_WEIGHTS, C.OPTIMIZER_STATES) == 12 * trained // 8


def test_a_tied_tables_first_gradient_waits_for_the_second():
    found = sheet("llama-3.2-1b", zero=2, microbatch=1, seq_len=64)
    assert bytes_at(found, AT.BACKWARD, C.GRADIENTS) >= 2 * 128256 * 2048


def test_arrays_of_degrees_give_the_same_bytes(seven_b):
    numpy = pytest.importorskip("numpy")
    from memsheet.account import account_rank

    for zero in (1, 2, 3):
        one = [account_rank(seven_b, plan_of(seven_b, zero=zero, ranks=n)) for n in (2, 8, 64)]
        plan = plan_of(seven_b, zero=zero, ranks=8)
        many = account_rank(seven_b, replace(plan, mesh=replace(plan.mesh, dp_shard=numpy.array([2, 8, 64]))))
        for instant in (AT.LOAD, AT.FORWARD, AT.BACKWARD, AT.OPTIMIZER_STEP):
            assert [s.at(instant).value for s in one] == list(many.at(instant).value)


# ---- a bare parameter count --------------------------------------------------------------------------------


def bare(parameters: str = "7e9", gpus: str = GPUS, **options) -> Sheet:
    return accounted.train(parameters=parameters, gpus=gpus, **options).sheets[0]


@pytest.mark.parametrize(
    ("zero", "held"), [(0, 112_000_000_000), (1, 38_500_000_000), (2, 26_250_000_000), (3, 14_000_000_000)]
)
def test_states_of_seven_billion(zero, held):
    found = bare(engine="deepspeed", precision="bf16-master", zero=zero)
    assert found.of(*STATES, instant=AT.BACKWARD).value == held
    assert found.of(*STATES).value == held  # at the peak as well
    assert (
        found.of(C.TEMPORARIES, instant=AT.OPTIMIZER_STEP).value
        == {0: 56, 1: 5.25, 2: 5.25, 3: 5.25}[zero] * 10**9
    )
    assert tensors_at(found, AT.BACKWARD) == held  # nothing that would need a config
    answer = accounted.train(parameters="7e9", gpus=GPUS, engine="deepspeed", zero=zero)
    assert any("activations" in note for note in answer.notes)


def test_states_split_three_ways():
    found = bare("70e9", gpus="128xA100-80GB", engine="deepspeed", zero=1, tp=8, pp=4)
    assert found.of(*STATES, instant=AT.BACKWARD).value == 15_312_500_000
    with pytest.raises(InputError, match=r"mesh\.tp"):
        sheet(zero=1, tp=8)


def test_states_of_the_other_engines():
    assert tensors_at(bare(engine="fsdp2"), AT.BACKWARD) == 16 * 7 * 10**9 // 8
    assert tensors_at(bare(engine="transformers", gpus="1xA100-80GB"), AT.BACKWARD) == 16 * 7 * 10**9
    assert bare(engine="fsdp2", offload="optimizer,parameters").host_bytes == 16 * 7 * 10**9 // 8
    assert bare(engine="deepspeed", zero=2, offload="optimizer").host_bytes == 18 * 7 * 10**9 // 8


# ---- a second copy of the parameters (hpZ) -----------------------------------------------------------------


def test_a_second_copy_of_the_parameters_is_divided_over_the_ranks_of_a_group() -> None:
    """partition_parameters.py:1880-1889: 16-bit, padded to all ranks and divided by those of the group."""
    plain, second = (sheet(zero=3, gpus="16xA100-80GB", secondary_shard=size) for size in (1, 8))
    for instant in second.instants:
        assert row(second, "zero/secondary_shard", instant) == pytest.approx(2 * P / 8, rel=1e-4)
        assert second.at(instant).value - plain.at(instant).value == row(
            second, "zero/secondary_shard", instant
        )


def test_a_group_of_more_ranks_than_there_are_is_of_all_of_them() -> None:
    """utils/groups.py:880: min(group size, world size)."""
    small = sheet(zero=3, secondary_shard=64)
    assert row(small, "zero/secondary_shard", AT.FORWARD) == pytest.approx(2 * P / 8, rel=1e-4)


def test_a_second_copy_is_where_the_parameters_are() -> None:
    """partition_parameters.py:1889: device=self.remote_device."""
    one, two = (
        sheet(zero=3, offload=("parameters",), secondary_shard=size, gpus="16xA100-80GB") for size in (1, 8)
    )
    assert one.peak == two.peak
    assert two.host_bytes - one.host_bytes >= 2 * P // 8


@pytest.mark.parametrize(
    ("options", "words"),
    [({"zero": 2, "secondary_shard": 8}, "zero 3 only"), ({"zero": 3, "secondary_shard": 3}, "does not divide 8 ranks")],
)  # fmt: skip
def test_a_second_copy_that_deepspeed_does_not_make_is_refused(options: dict[str, int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        sheet(**options)


def test_other_engines_have_no_second_copy() -> None:
    with pytest.raises(InputError, match="secondary_shard"):
        sheet(engine="fsdp2", zero=3, secondary_shard=8)


def test_flushes_of_many_plans_are_those_of_each(seven_b):
    stage = partitioned_walk(seven_b, plan_of(seven_b, zero=2), ENGINE)
    ranks = [2, 8, 64, 3]
    together = bucket_flushes(stage, B, np.array([padded(n) for n in ranks]), cuts=True)
    for number in (0, 1, 2, 3, 0, 2):
        alone = bucket_flushes(stage, B, padded(ranks[number]), cuts=True)
        assert [flush.copied for flush in alone] == [
            int(np.broadcast_to(flush.copied, len(ranks))[number]) for flush in together
        ]
