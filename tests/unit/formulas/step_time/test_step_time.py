"""Step times: laws that hold for any rates, figures from books, and arrays that equal scalars."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from memsheet.catalog import find_device, find_model, hardware_rates
from memsheet.errors import InputError
from memsheet.formulas.states.params import parameter_count
from memsheet.formulas.step_time import (
    CONVENTION,
    NAMES,
    Efficiency,
    Exchanged,
    StepTime,
    calibrate_efficiency,
    data_parallel_traffic,
    fit_efficiency,
    gpu_hours,
    quick_s,
    rates_of,
    step_time,
)
from memsheet.formulas.step_time.calibration import MeasuredStep
from memsheet.formulas.step_time.collectives import collective_s, inside_s
from memsheet.formulas.step_time.numbers import Curve
from memsheet.formulas.step_time.schedule import exposed_pipeline_sends, pipeline_s
from memsheet.plan.device import Cluster, cluster_of
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan, Recompute, RecomputeMode, Schedule
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request


@cache
def spec_of(name: str) -> ModelSpec:
    found = find_model(name)
    assert found is not None
    return read_hf_config(found["config"], name=name)


def cluster(device: str = "H100-80GB", count: int = 8) -> Cluster:
    return cluster_of(find_device(device), count)


def plan_of(name: str, machines: Cluster, **request: Any) -> Plan:
    asked = {
        "task": "train",
        "engine": "fsdp2",
        "seq_len": 4096,
        **{key.replace("__", "."): value for key, value in request.items()},
    }
    return resolve_request(asked, spec_of(name), machines).plan


def time_of(name: str, machines: Cluster | None = None, **request: Any) -> StepTime:
    machines = machines or cluster()
    return step_time(spec_of(name), plan_of(name, machines, **request), machines)


ENGINES = [
    {"engine": "transformers"}, {"engine": "fsdp2"}, {"engine": "torchtitan"}, {"engine": "deepspeed", "zero": 1}, {"engine": "deepspeed", "zero": 2},
    {"engine": "deepspeed", "zero": 3}, {"engine": "megatron"}, {"engine": "megatron", "mesh__tp": 2, "sequence_parallel": True},
    {"engine": "megatron", "mesh__pp": 2, "schedule": "1f1b"}, {"engine": "fsdp1"},
]  # fmt: skip
IDS = ["-".join(str(value) for value in row.values()) for row in ENGINES]


@pytest.mark.parametrize("how", ENGINES, ids=IDS)
def test_the_value_lies_within_its_interval(how: dict[str, Any]) -> None:
    found = time_of("llama-3.1-8b", global_batch=64, **how)
    assert 0 < found.low <= found.value <= found.high
    assert 0.1 < found.mfu < 0.9
    assert found.tokens == 64 * 4096
    assert found.tokens_per_s_per_gpu * 8 == pytest.approx(found.tokens_per_s)


@pytest.mark.parametrize("how", ENGINES, ids=IDS)
@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b"])
def test_the_parts_add_up(how: dict[str, Any], name: str) -> None:
    found = time_of(name, global_batch=64, **how)
    assert tuple(found.parts) == tuple(NAMES)
    assert min(found.parts.values()) >= 0
    assert sum(found.parts.values()) == pytest.approx(found.value, rel=1e-9)


@pytest.mark.parametrize("how", ENGINES, ids=IDS)
def test_more_tokens_are_never_faster(how: dict[str, Any]) -> None:
    times = [time_of("llama-3.1-8b", global_batch=batch, **how).value for batch in (16, 32, 64)]
    lengths = [
        time_of("llama-3.1-8b", global_batch=16, **{**how, "seq_len": length}).value
        for length in (512, 2048, 8192)
    ]
    assert times == sorted(times)
    assert lengths == sorted(lengths)


@pytest.mark.parametrize("how", ENGINES, ids=IDS)
def test_recompute_is_never_faster(how: dict[str, Any]) -> None:
    machines = cluster()
    plan = replace(plan_of("llama-3.1-8b", machines, global_batch=16, **how), recompute=Recompute())
    full = replace(plan, recompute=Recompute(mode=RecomputeMode.FULL))
    one, other = (step_time(spec_of("llama-3.1-8b"), p, machines) for p in (plan, full))
    assert one.value < other.value < 1.4 * one.value
    assert other.flops == one.flops


@pytest.mark.parametrize("how", ENGINES, ids=IDS)
def test_a_faster_network_is_never_slower(how: dict[str, Any]) -> None:
    slow = cluster(count=16)
    fast = replace(slow, links=replace(slow.links, scale_out=2 * slow.links.scale_out))
    one, other = (time_of("llama-3.1-8b", machines, global_batch=64, **how) for machines in (slow, fast))
    for end in ("low", "value", "high"):
        assert getattr(one, end) >= getattr(other, end)


@pytest.mark.parametrize("field", ["compute", "attention", "communication"])
def test_a_higher_efficiency_is_never_slower(field: str) -> None:
    machines = cluster()
    plan = plan_of(
        "llama-3.1-8b", machines, engine="megatron", mesh__tp=8, sequence_parallel=True, global_batch=8
    )
    times = [
        quick_s(spec_of("llama-3.1-8b"), plan, machines, efficiency=Efficiency(**{field: share}))
        for share in (0.5, 0.7, 1.0)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_quick_is_the_value() -> None:
    machines = cluster()
    plan = plan_of("llama-3.1-8b", machines)
    assert (
        quick_s(spec_of("llama-3.1-8b"), plan, machines)
        == step_time(spec_of("llama-3.1-8b"), plan, machines).value
    )


def test_small_models_are_faster_whole() -> None:
    """Nothing is gathered, and gradients are summed beside backward once a step."""
    machines = cluster("A100-40GB")
    whole = time_of("llama-3.2-1b", machines, engine="transformers", global_batch=64)
    shards = time_of("llama-3.2-1b", machines, engine="fsdp2", global_batch=64)
    told = [one.parts["parameters_gathered"] + one.parts["gradients_reduced"] for one in (whole, shards)]
    assert told[0] < told[1]
    assert whole.value < shards.value


SMALL = {
    "machines": cluster("A100-40GB"),
    "name": "llama-3.2-1b",
    "seq_len": 4096,
    "global_batch": 64,
    "microbatch": 2,
}


def exchanged_of(**request: Any) -> tuple[StepTime, Exchanged]:
    asked = {**SMALL, **request}
    machines, spec = asked["machines"], spec_of(asked["name"])
    plan = plan_of(asked.pop("name"), asked.pop("machines"), **asked)
    return step_time(spec, plan, machines), data_parallel_traffic(spec, plan, machines)


def test_sharding_parameters_costs_what_it_gathers() -> None:
    """ZeRO (arXiv:1910.02054), section 7.2: parameters are gathered for forward and again for backward, half
    as much traffic again as summing gradients alone; each difference has a name.
    """
    size = 2 * parameter_count(spec_of("llama-3.2-1b"))
    whole, kept, divided = (
        exchanged_of(engine=engine, zero=zero)
        for engine, zero in (("transformers", 0), ("fsdp2", 2), ("fsdp2", 3))
    )
    assert (whole[1].gathers, kept[1].gathers, divided[1].gathers) == (
        0,
        4,
        8,
    )  # 64 sequences of 8 ranks, two at a time
    assert divided[1].gathered_bytes == kept[1].gathered_bytes == pytest.approx(size, rel=1e-3)  # but norms
    assert whole[1].reductions == 1
    assert divided[1].reductions == 4
    assert whole[0].value < kept[0].value < divided[0].value
    more = divided[0].against(kept[0])
    assert next(iter(more)) == "parameters_gathered"
    assert more["parameters_gathered"] == pytest.approx(divided[0].value - kept[0].value, rel=0.01)
    assert sum(more.values()) == pytest.approx(divided[0].value - kept[0].value)


@pytest.mark.parametrize("stages", [(0, 1, 2, 3)])
def test_stages_of_one_engine_are_ordered(stages: tuple[int, ...]) -> None:
    """Stages 0 and 1 tell one another as much, and stage 1 updates its share alone; each later stage adds
    exchanges.
    """
    found = {zero: exchanged_of(engine="deepspeed", zero=zero) for zero in stages}
    told = [
        found[zero][0].parts["parameters_gathered"] + found[zero][0].parts["gradients_reduced"]
        for zero in stages
    ]
    assert told == sorted(told)
    assert found[1][0].value < found[2][0].value < found[3][0].value
    plain = found[1][0].against(found[0][0])
    assert plain["optimizer"] < 0 < plain["parameters_gathered"]
    assert next(iter(found[3][0].against(found[2][0]))) == "parameters_gathered"
    assert (
        found[1][1].volume_bytes == 2 * found[0][1].volume_bytes
    )  # which counts one all-reduce for two exchanges
    assert found[3][1].gathers_each == 2


def test_one_rank_exchanges_nothing() -> None:
    machines = cluster("A100-80GB", 1)
    for engine in ("transformers", "fsdp2", "megatron"):
        time, found = exchanged_of(machines=machines, engine=engine)
        assert (found.gathers, found.reductions, found.volume_bytes) == (0, 0, 0)
        assert time.parts["pipeline_sends"] == time.parts["bubble"] == 0


def test_offloaded_states_take_time() -> None:
    plain, offloaded = (
        time_of("llama-3.1-8b", engine="deepspeed", zero=3, **more)
        for more in ({}, {"offload__optimizer": 1})
    )
    assert offloaded.parts["offload"] > plain.parts["optimizer"] > 0 == plain.parts["offload"]
    assert offloaded.value > plain.value


def test_small_steps_take_the_host_its_time() -> None:
    """Twice the tokens of next to nothing are no slower, and a captured or compiled step starts fewer
    operations.
    """
    one, other = (time_of("llama-3.2-1b", engine="fsdp2", seq_len=length) for length in (16, 32))
    assert other.value == pytest.approx(one.value, rel=0.05)
    assert one.high > 1.5 * one.low


# books ------------------------------------------------------------------------------------------------------


def test_flops_of_a_dense_model() -> None:
    """6 N a token (arXiv:2001.08361), N without the embedding table, and 6 L s h for causal attention,
    forward and backward.
    """
    found, spec = time_of("llama-3.1-8b", global_batch=8), spec_of("llama-3.1-8b")
    weights = parameter_count(spec) - 128256 * 4096
    assert found.flops / found.tokens == pytest.approx(6 * weights + 6 * 32 * 4096 * 4096, rel=1e-3)
    assert "causally" in CONVENTION


def test_flops_of_experts_are_those_of_the_ones_a_token_meets() -> None:
    found = time_of("mixtral-8x7b", cluster(count=64), global_batch=64)
    assert found.flops / found.tokens == pytest.approx(
        6 * 12.75e9 + 6 * 32 * 4096 * 4096, rel=0.02
    )  # 12.9 B active, less the embeddings


def test_a_frozen_model_has_no_gradients_of_its_own() -> None:
    machines = cluster()
    plan = plan_of("llama-3.1-8b", machines, engine="transformers")
    lora = plan_of("llama-3.1-8b", machines, engine="transformers", adapter__kind="lora", adapter__rank=16)
    whole, frozen = (step_time(spec_of("llama-3.1-8b"), p, machines) for p in (plan, lora))
    assert frozen.flops == pytest.approx(whole.flops * 2 / 3)
    assert frozen.value < 0.85 * whole.value


def test_the_bubble_of_1f1b() -> None:
    """(p - 1) / m of the ideal time (arXiv:2104.04473, section 2.2), 1/v of it with v chunks; it vanishes
    with many micro-batches.
    """
    for schedule, chunks in ((Schedule.ONE_F_ONE_B, 1), (Schedule.GPIPE, 1), (Schedule.INTERLEAVED, 4)):
        total, bubble = pipeline_s([3.0] * 8, 64, chunks, schedule)
        assert bubble == pytest.approx(7 * 3.0 / chunks)
        assert bubble / (total - bubble) == pytest.approx(7 / 64 / chunks)
    shares = [
        pipeline_s([3.0] * 8, m, 1, Schedule.ONE_F_ONE_B)[1]
        / pipeline_s([3.0] * 8, m, 1, Schedule.ONE_F_ONE_B)[0]
        for m in (8, 64, 4096)
    ]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 0.002


def test_the_slowest_stage_decides() -> None:
    assert pipeline_s([1.0, 1.0, 2.0], 100, 1, Schedule.ONE_F_ONE_B)[0] == pytest.approx(200 + 2)
    assert pipeline_s([1.0], 100, 1, None) == (100.0, 0.0)
    assert exposed_pipeline_sends(1, 1, 8, None) == 0


def test_zero_bubble_keeps_a_third() -> None:
    plain, filled = (
        pipeline_s([3.0] * 4, 8, 1, how)[1] for how in (Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE)
    )
    assert filled == pytest.approx(plain / 3)  # F = 1, B = 2, W = 1


@pytest.mark.parametrize("device", ["A100-80GB", "H100-80GB", "B200"])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_measured_bus_bandwidth(device: str, kind: str) -> None:
    """512 MiB over eight devices against the catalogue's own measurement, which the fit meets within a
    tenth.
    """
    payload, measured = (
        512 * 2**20,
        hardware_rates()["device"][device]["measured"]["busbw_512MiB_8dev_gb_s"][kind],
    )
    factor = (2 if kind == "all_reduce" else 1) * 7 / 8
    seconds = inside_s(kind, payload, 8, rates_of(cluster(device)))
    assert payload * factor / seconds / 1e9 == pytest.approx(measured, rel=0.12)


def test_a_group_over_nodes_is_bound_by_the_network() -> None:
    found = rates_of(cluster(count=64))
    inside = collective_s("all_gather", 1e9, 8, 1, found)
    assert collective_s("all_gather", 1e9, 1, 1, found) == 0
    assert collective_s("all_gather", 1e9, 64, 1, found) > inside  # eight links a node share it
    assert collective_s("all_gather", 1e9, 8, 8, found) > 5 * inside  # one link a node


def test_curves() -> None:
    curve = Curve.of({"128": 0.3, "256": 0.5, "1024": 0.7})
    assert [curve.at(x) for x in (64, 128, 192, 256, 640, 1024, 5000)] == pytest.approx(
        [0.15, 0.3, 0.4, 0.5, 0.6, 0.7, 0.7]
    )


# kinds of models --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["mamba-130m", "bamba-9b", "deepseek-v2-lite", "gpt2", "gemma-2-2b", "qwen3-30b-a3b", "jamba-v0.1"],
)
def test_every_kind_of_layer_takes_time(name: str) -> None:
    machines = cluster(count=64)
    found = step_time(spec_of(name), plan_of(name, machines, seq_len=1024), machines)
    assert 0 < found.mfu < 0.9


def test_pictures_take_time() -> None:
    """Text alone passes no tower; the layers of one with pictures do 2 flops a parameter and patch, and twice
    that backward.
    """
    text, some, more = (
        time_of("qwen2.5-vl-7b", engine="transformers", global_batch=8, seq_len=4096, **asked)
        for asked in ({}, {"image_tokens": 1024}, {"image_tokens": 2048})
    )
    assert "text alone" in text.notes[-1]
    assert text.value < some.value < more.value
    (tower,) = spec_of("qwen2.5-vl-7b").towers
    weights = sum(
        w.elements * run.count
        for run in tower.stack.runs
        for block in run.pattern
        for w in block.weights
        if len(w.shape) == 2
    )
    products = 6 * weights * 4 * 1024 * 8
    assert products < some.flops - text.flops < 1.6 * products  # and attention between the patches
    words = time_of("qwen2.5-vl-7b", engine="fsdp2", zero=3, global_batch=8, seq_len=4096)
    assert words.flops == text.flops


def test_what_is_asked_to_run_beside_products_keeps_its_first_chunk() -> None:
    """Asynchronous tensor parallelism hides no more than the chunks but one, and no more than the products
    beside them last.
    """
    how = {
        "engine": "torchtitan",
        "mesh__tp": 8,
        "sequence_parallel": True,
        "global_batch": 8,
        "compile": True,
    }
    plain, beside = (
        time_of("llama-3.1-70b", cluster(count=64), **how, async_tp=asked) for asked in (False, True)
    )
    told = [time.parts["tensor_parallel"] for time in (plain, beside)]
    assert told[0] / 8 < told[1] < 0.8 * told[0]
    assert beside.value < plain.value
    assert next(iter(plain.against(beside))) == "tensor_parallel"


@pytest.mark.parametrize("how", ["ring", "all_gather"])
def test_a_sequence_in_blocks_is_never_less_work(how: str) -> None:
    """The same attention in as many blocks as ranks: shorter blocks are slower, and each is added to the sums
    of the ones before.
    """
    each = []
    for ranks in (1, 2, 4, 8):
        asked = {"mesh__cp": ranks, "context_parallel_comm": how} if ranks > 1 else {}
        found = time_of(
            "llama-3.1-8b",
            engine="torchtitan",
            mesh__dp_shard=8 // ranks,
            seq_len=8192,
            global_batch=8,
            **asked,
        )
        each.append(found.parts["attention"] + found.parts["compute"])
    assert each == sorted(each)
    assert each[-1] < 1.5 * each[0]


def test_towers_that_were_not_read_are_refused_by_name() -> None:
    machines, spec = cluster(), spec_of("gemma-3-27b")
    plan = plan_of("gemma-3-27b", machines, engine="fsdp2")
    with pytest.raises(InputError, match="image_tokens"):
        step_time(spec, replace(plan, workload=replace(plan.training, image_tokens=256)), machines)


# arrays -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [*ENGINES, {"engine": "megatron", "mesh__cp": 2}], ids=[*IDS, "megatron-cp"])
def test_arrays_equal_scalars(how: dict[str, Any]) -> None:
    machines = cluster(count=64)
    plan = plan_of("llama-3.1-8b", machines, global_batch=512, **how)
    micro, length, tp = np.array([1, 2, 4, 1]), np.array([512, 2048, 4096, 8192]), np.array([1, 2, 4, 8])
    shard = np.maximum(plan.mesh.dp_shard // tp, 1)
    many = replace(
        plan,
        workload=replace(plan.training, microbatch=micro, seq_len=length),
        mesh=replace(plan.mesh, tp=tp, dp_shard=shard),
    )
    found = step_time(spec_of("llama-3.1-8b"), many, machines)
    for n in range(4):
        mesh = replace(plan.mesh, tp=int(tp[n]), dp_shard=int(shard[n]))
        alone = replace(
            plan, workload=replace(plan.training, microbatch=int(micro[n]), seq_len=int(length[n])), mesh=mesh
        )
        one = step_time(spec_of("llama-3.1-8b"), alone, machines)
        for name in ("low", "value", "high", "mfu", "tokens_per_s"):
            assert getattr(found, name)[n] == pytest.approx(getattr(one, name), rel=1e-9)


def test_arrays_of_expert_parallel_plans_equal_scalars() -> None:
    machines, spec = cluster(count=16), spec_of("mixtral-8x7b")
    plan = plan_of("mixtral-8x7b", machines, engine="megatron", mesh__ep=2, global_batch=64)
    ranks, batches = np.array([2, 4, 8]), np.array([1, 2, 4])
    many = replace(
        plan, workload=replace(plan.training, microbatch=batches), mesh=replace(plan.mesh, ep=ranks)
    )
    found = step_time(spec, many, machines)
    for n in range(3):
        one = step_time(
            spec,
            replace(
                plan,
                workload=replace(plan.training, microbatch=int(batches[n])),
                mesh=replace(plan.mesh, ep=int(ranks[n])),
            ),
            machines,
        )
        assert found.value[n] == pytest.approx(one.value, rel=1e-9)
        for name, seconds in one.parts.items():
            assert np.broadcast_to(found.parts[name], (3,))[n] == pytest.approx(
                seconds, rel=1e-9, abs=1e-15
            ), name


# calibration ------------------------------------------------------------------------------------------------


def measured(seconds: float, **request: Any) -> MeasuredStep:
    machines = cluster()
    plan = plan_of("llama-3.1-8b", machines, **request)
    return MeasuredStep(spec=spec_of("llama-3.1-8b"), plan=plan, cluster=machines, seconds=seconds)


def test_one_step_is_met_exactly() -> None:
    step = measured(2.0, microbatch=2)
    found = calibrate_efficiency(step, source="a record")
    assert step.predicted(found) == pytest.approx(2.0, rel=1e-6)
    assert found.compute == found.attention == found.communication
    answer = step_time(step.spec, step.plan, step.cluster, efficiency=found)
    assert answer.calibrated == "a record"
    raw = step_time(step.spec, step.plan, step.cluster)
    assert answer.high / answer.low < raw.high / raw.low


@pytest.mark.slow
def test_two_steps_that_differ_in_attention_tell_it_apart() -> None:
    truth = Efficiency(compute=0.8, attention=0.5, communication=0.8)
    short, long = measured(1.0, seq_len=2048, microbatch=4), measured(1.0, seq_len=65536, microbatch=1)
    steps = [replace(step, seconds=step.predicted(truth)) for step in (short, long)]
    found = fit_efficiency(steps)
    assert found.compute == pytest.approx(0.8, rel=0.03)
    assert found.attention == pytest.approx(0.5, rel=0.05)


def test_two_alike_steps_give_one_scalar() -> None:
    steps = [measured(1.0, microbatch=2), measured(2.2, microbatch=4)]
    found = fit_efficiency(steps)
    each = [calibrate_efficiency(step).compute for step in steps]
    assert found.compute == found.attention
    assert min(each) <= found.compute <= max(each)


def test_hours_of_a_token_budget() -> None:
    found = time_of("llama-3.1-8b", global_batch=64)
    low, value, high = found.gpu_hours(1e12)
    assert value == pytest.approx(1e12 / found.tokens_per_s_per_gpu / 3600)
    assert low <= value <= high
    assert gpu_hours(
        1e12, (found.tokens / found.high, found.tokens_per_s, found.tokens / found.low), 8
    ) == pytest.approx((low, value, high))
    assert gpu_hours(3600.0, (1.0, 2.0, 4.0), 8) == (2.0, 4.0, 8.0)


@pytest.mark.parametrize("card", ["A100-80GB", "A100-80GB-PCIe", "H100-80GB", "H200", "B200"])
@pytest.mark.parametrize(("arithmetic", "key"), [("bf16", "bf16"), ("fp16", "bf16"), ("fp8", "fp8")])
def test_the_fast_end_has_no_product_faster_than_the_fastest_found_on_the_card(card, arithmetic, key):
    fastest = hardware_rates()["device"][card]["measured"].get(f"mamf_{key}_tflops")
    if fastest is None:
        pytest.skip("nobody searched")
    base = rates_of(cluster_of(find_device(card), 1))
    free, capped = (
        base.with_efficiency(Efficiency(compute=1 / 0.88, capped=capped)) for capped in (False, True)
    )
    for rows in (128, 1024, 4096, 32768):
        for depth in (128, 4096, 16384):
            assert capped.product_flops(arithmetic, rows, depth) <= fastest * 1e12
            assert capped.product_flops(arithmetic, rows, depth) <= free.product_flops(
                arithmetic, rows, depth
            )
    assert capped.product_flops(arithmetic, 128, 128) == free.product_flops(arithmetic, 128, 128)


def test_an_a100s_fast_end_is_slower_than_its_tables_allow_and_no_later_than_the_value():
    import memsheet
    from memsheet.formulas.step_time import training_step as whole

    answer = memsheet.train(
        "llama-2-7b", gpus="8xA100-80GB", engine="fsdp2", seq_len=2048, microbatch=4, fix=False
    )
    found = whole.step_time(answer.model, answer.plan, answer.cluster)
    uncapped = whole.one_step(
        answer.model,
        answer.plan,
        whole.engine_of(answer.plan),
        whole.rates_of(answer.cluster).with_efficiency(
            replace(whole._scale_efficiency_rates(whole.Efficiency(), whole.UNCALIBRATED.fast))
        ),
        whole.Overlap.ALL,
    )
    assert uncapped.seconds < found.low <= found.value <= found.high
