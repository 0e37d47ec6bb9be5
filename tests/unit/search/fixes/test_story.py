"""The way from the naive run to one that fits, and what is said beside a ranking."""

from __future__ import annotations

from functools import cache

import pytest

from memsheet.budget import Result, budget_of
from memsheet.catalog import find_device, model_names
from memsheet.plan.device import Cluster, cluster_of
from memsheet.plan.engine_registry import find_engine
from memsheet.questions.question_parts import catalog_entry
from memsheet.readers.model import read_model
from memsheet.search.advice import METHODS, OFFLOAD, Advice, training_advice
from memsheet.search.fixes.levers import LEVERS, naive_trial_plan
from memsheet.search.train.timed import planned_of
from memsheet.search.trials import Question, account_trial

ENGINES = ("fsdp2", "deepspeed", "transformers")


@cache
def model(name: str):
    return read_model(name, catalog=catalog_entry, names=model_names())


def on(gpus: int, device: str) -> Cluster:
    return cluster_of(find_device(device), gpus)


@cache
def advised(
    name: str, gpus: int, device: str, seq_len: int, batch: int, engines: tuple[str, ...] = ENGINES
) -> Advice:
    return training_advice(
        model(name), on(gpus, device), {"seq_len": seq_len, "global_batch": batch}, engines, top=2
    )


CASES = (
    ("llama-3-70b", 8, "A100-80GB", 2048, 32),
    ("llama-3-8b", 8, "A100-80GB", 8192, 64),
    ("llama-3.2-1b", 8, "A100-40GB", 4096, 64),
    ("llama-3-8b", 1, "RTX4090", 2048, 16),
    ("llama-tiny", 4, "A100-80GB", 512, 8),
)
EACH = [
    pytest.param(
        case, id=f"{case[0]}-{case[1]}x{case[2]}", marks=[pytest.mark.slow] if case[0] != "llama-tiny" else []
    )
    for case in CASES
]


@pytest.mark.parametrize("case", EACH)
def test_the_story_stops_as_soon_as_it_fits(case):
    story = advised(*case).story
    assert story
    assert story[0].asks == "Does it fit at all?"
    assert [step.fits for step in story[:-1]] == [False] * (len(story) - 1)
    assert story[-1].fits


@pytest.mark.parametrize("case", EACH)
def test_what_steps_save_adds_up(case):
    story = advised(*case).story
    taken = [step for step in story if step.taken]
    assert taken[0].device.value - taken[-1].device.value == sum(step.saves_bytes for step in taken)
    times = [step.seconds for step in taken if step.seconds is not None]
    if len(times) == len(taken):
        assert sum(step.costs_s or 0 for step in taken) == pytest.approx(times[-1] - times[0])


@pytest.mark.slow
def test_offload_comes_last_and_only_where_nothing_else_does():
    story = advised("llama-3-70b", 8, "A100-80GB", 2048, 32).story
    assert story[-1].flag.startswith("--offload")
    assert story[-1].host_bytes > 0
    assert not any(step.host_bytes for step in story[:-1])
    order = [lever.asks for lever in LEVERS]
    places = [order.index(step.asks) for step in story[1:]]
    assert places == sorted(places)


@pytest.mark.slow
def test_every_question_of_the_decision_tree_is_asked_where_it_matters():
    asked = [step.asks for step in advised("llama-3-70b", 8, "A100-80GB", 2048, 32).story]
    for question in (
        "Does it fit at all?",
        "In lower precision?",
        "Do activations fit?",
        "Do optimizer states fit?",
        "Do gradients fit?",
        "Does the whole budget fit, ZeRO-3?",
        "Offload states to the host?",
    ):
        assert question in asked


@pytest.mark.slow
def test_activations_that_fit_are_said_to_and_not_recomputed():
    story = advised("llama-3.2-1b", 8, "A100-40GB", 4096, 64).story
    activations = next(step for step in story if step.asks == "Do activations fit?")
    assert activations.change == ""
    assert 0 < activations.part_bytes < budget_of(on(8, "A100-40GB")).low_bytes
    assert not any("recompute" in step.flag for step in story)


def test_what_the_question_says_itself_is_not_changed():
    asked = {
        "seq_len": 2048,
        "global_batch": 32,
        "recompute.mode": "none",
        "microbatch": 4,
        "precision.name": "bf16-pure",
    }
    found = training_advice(model("llama-3-70b"), on(8, "A100-80GB"), asked, ("fsdp2",), top=1)
    said = " ".join(step.flag for step in found.story)
    assert "--recompute" not in said
    assert "--microbatch" not in said
    assert "In lower precision?" not in [step.asks for step in found.story]


def test_a_step_that_fits_is_a_plan_that_fits():
    cluster, engine = on(8, "A100-80GB"), find_engine("deepspeed")
    way = naive_trial_plan(
        engine, cluster, model("llama-3-70b"), {"seq_len": 2048, "global_batch": 32, "task": "train"}, 4
    )
    assert (
        account_trial(
            0, Question(model=model("llama-3-70b"), request=way.request(), cluster=cluster), replays=False
        ).plan.zero
        == 0
    )
    assert way.request()["mesh.dp_replicate"] == 8


def test_plain_copies_are_compared_with_shards_of_the_same_micro_batch():
    found = advised("llama-3.2-1b", 8, "A100-40GB", 4096, 64)
    replicas = found.replicas
    assert replicas is not None
    assert replicas.plain.plan.zero == 0
    assert replicas.sharded.plan.zero == 3
    assert replicas.plain.plan.training.microbatch == replicas.sharded.plan.training.microbatch
    assert replicas.plain.seconds < replicas.sharded.seconds
    assert replicas.sharded_exchange.gathers > 0 == replicas.plain_exchange.gathers
    assert replicas.sharded.verdict.device.value < replicas.plain.verdict.device.value


@pytest.mark.slow
def test_the_fastest_copy_is_told_and_one_whose_code_somebody_divides_is_compared():
    found = training_advice(
        model("llama-3.2-1b"),
        on(8, "A100-40GB"),
        {"seq_len": 4096, "global_batch": 64},
        ("megatron", "deepspeed"),
        top=1,
    )
    assert found.replicas.fastest.plan.engine == "megatron"
    assert found.replicas.plain.plan.engine == "deepspeed"
    assert found.replicas.fastest.seconds <= found.replicas.plain.seconds


def test_a_step_whose_ranks_cannot_share_the_batch_is_no_plan_for_it():
    found = training_advice(
        model("llama-3-8b"), on(8, "H100-80GB"), {"seq_len": 4096, "global_batch": 1}, ("megatron",), top=1
    )
    assert any(not step.shares for step in found.story)
    assert not any(step.fits and not step.shares for step in found.story)


@pytest.mark.slow
def test_host_memory_that_is_not_there_is_what_is_missing():
    few = cluster_of(find_device("A100-80GB"), 8, host_bytes=512 * 2**30)
    found = training_advice(
        model("llama-3-70b"), few, {"seq_len": 2048, "global_batch": 32}, ("fsdp2", "deepspeed"), top=1
    )
    assert found.ranking.plans == ()
    moved = [family for family in found.ranking.families if any(family.choice.get(key) for key in OFFLOAD)]
    assert moved
    assert all(family.fit == 0 for family in moved)
    assert any(family.host_missing_bytes > 0 for family in moved)
    assert found.story[-1].host_short_bytes > 0


def test_what_was_asked_to_be_offloaded_is_no_sign_of_a_strained_cluster():
    asked = {"seq_len": 2048, "global_batch": 64, "offload.optimizer": 1}
    found = training_advice(model("llama-3-8b"), on(8, "A100-80GB"), asked, ("deepspeed",), top=1)
    assert not found.strained
    assert found.story


@pytest.mark.slow
def test_copies_that_do_not_fit_are_not_spoken_of():
    assert advised("llama-3-70b", 8, "A100-80GB", 2048, 32).replicas is None
    assert advised("llama-3-8b", 1, "RTX4090", 2048, 16).replicas is None


@pytest.mark.slow
def test_a_saving_taken_back_is_faster_and_lacks_what_it_saved():
    found = advised("llama-3-70b", 8, "A100-80GB", 2048, 32)
    assert {"offload", "recompute"} <= {one.saving for one in found.undone}
    for one in found.undone:
        assert one.gains_s > 0
        need = one.planned.verdict.device.value
        assert one.missing_bytes == max(0, need - budget_of(on(8, "A100-80GB")).capacity_bytes)


@pytest.mark.slow
def test_where_the_cluster_strains_other_ways_are_told():
    found = advised("llama-3-70b", 8, "A100-80GB", 2048, 32)
    assert found.strained
    assert [name for name, *_ in found.methods] == ["lora", "qlora"]
    for name, planned, why in found.methods:
        assert why == ""
        assert planned is not None
        assert METHODS[name].items() <= planned.request.items()
        assert planned.verdict.result is Result.FITS
    cluster, planned = found.more
    assert cluster.count > 8
    assert planned_of(model("llama-3-70b"), cluster, planned.request).verdict.result is Result.FITS
    assert not planned.host_bytes
    assert planned.plan.optimizer.name.value == "adamw"


def test_a_job_that_fits_is_told_no_other_ways():
    found = advised("llama-tiny", 4, "A100-80GB", 512, 8)
    assert not found.strained
    assert found.methods == ()
    assert found.more is None
