"""Laws of a job of several models: what its sheets are, of the sheets of its roles."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from itertools import pairwise
from typing import Any

import pytest

import memsheet
from memsheet.errors import InputError
from memsheet.questions.job import answer_job
from memsheet.readers.sheet_json import sheets_within
from memsheet.sheet import Bytes, Component, Instant

MODEL = "llama-tiny"
ACTOR = {"task": "train", "engine": "fsdp2", "zero": 3, "seq_len": 512, "microbatch": 2, "recompute": {"mode": "full"}, "loss": "fused"}  # fmt: skip
SERVER = {
    "task": "infer",
    "engine": "vllm",
    "serving": {"memory_fraction": 0.3, "max_model_len": 1024, "max_sequences": 8},
}
JOB: Mapping[str, Any] = {
    "schema": "memsheet/job/1", "gpus": "2xL4",
    "roles": {
        "actor": {"model": MODEL, "plan": ACTOR, "trained": True, "process": "trainer"},
        "reference": {"model": MODEL, "plan": ACTOR, "trained": False, "process": "trainer"},
        "rollout": {"model": MODEL, "plan": SERVER},
    },
    "phases": [
        {"name": "gen", "active": "rollout"},
        {"name": "ref", "active": "reference", "work": "forward", "residents": {"rollout": "asleep-1"},
         "logits": {"tokens": 1024, "bytes": [2, 4, 6]}},
        {"name": "update_actor", "active": "actor", "residents": {"rollout": "asleep-1"}},
    ],
}  # fmt: skip


def changed(**changes: Any) -> dict[str, Any]:
    return {**deepcopy(dict(JOB)), **changes}


def alone(name: str, *, gpus: str = "2xL4") -> memsheet.Answer:
    phases = [{"name": "only", "active": name}]
    return memsheet.job({**JOB, "gpus": gpus, "roles": {name: JOB["roles"][name]}, "phases": phases})


def rows_of(sheet: memsheet.Sheet) -> list[tuple[Any, ...]]:
    """Items without the role before their paths and the phase before their instants."""
    return [
        (item.component, item.path.partition("/")[2], {when.step: size for when, size in item.at.items()})
        for item in sheet.items
    ]


def plain_rows(sheet: memsheet.Sheet) -> list[tuple[Any, ...]]:
    return [(item.component, item.path, dict(item.at)) for item in sheet.items]


def test_a_job_of_one_role_and_one_phase_is_that_role() -> None:
    trained = memsheet.train(MODEL, gpus="2xL4", plan=ACTOR, fix=False)
    served = memsheet.infer(MODEL, gpus="1xL4", plan=SERVER, fix=False)
    for job, own in ((alone("actor"), trained), (alone("rollout", gpus="1xL4"), served)):
        found, known = job.sheets[0], own.sheets[0]
        assert rows_of(found) == plain_rows(known)
        assert (found.device, found.allocated, found.host_bytes) == (
            known.device, known.allocated, known.host_bytes,
        )  # fmt: skip
        assert found.same_as == known.same_as
        assert [when.step for when in found.instants] == list(known.instants)
        assert job.verdict is not None
        assert own.verdict is not None
        assert (job.verdict.result, job.verdict.device) == (own.verdict.result, own.verdict.device)


def test_together_is_at_least_each_alone() -> None:
    whole = memsheet.job(JOB).sheets[0].device
    for name in JOB["roles"]:
        part = alone(name).sheets[0].device if name != "reference" else None
        for end in ("low", "value", "high") if part else ():
            assert getattr(whole, end) >= getattr(part, end), (name, end)


def test_apart_is_the_sheets_of_its_roles() -> None:
    roles = {name: JOB["roles"][name] for name in ("actor", "rollout")}
    phases = [
        {"name": "gen", "active": "rollout", "residents": {"actor": "absent"}},
        {"name": "update_actor", "active": "actor", "residents": {"rollout": "absent"}},
    ]
    place = {"actor": [0, 2], "rollout": [2, 1]}
    found = memsheet.job({**JOB, "gpus": "3xL4", "roles": roles, "placement": place, "phases": phases}).sheets
    trained, served = alone("actor").sheets[0], alone("rollout", gpus="1xL4").sheets[0]
    assert [(sheet.rank, sheet.same_as) for sheet in found] == [(0, (1,)), (2, ())]
    assert [sheet.device for sheet in found] == [trained.device, served.device]


def test_level_2_never_needs_more_of_the_host_than_level_1() -> None:
    needs = []
    for level in ("asleep-1", "asleep-2"):
        phases = [{**phase, "residents": {"rollout": level}} for phase in JOB["phases"][1:]]
        sheet = memsheet.job({**JOB, "phases": phases}).sheets[0]
        needs.append((sheet.host_bytes, sheet.device.value))
    assert needs[0][0] > needs[1][0]
    assert needs[0][1] == needs[1][1]


def test_a_server_asleep_leaves_room() -> None:
    awake = memsheet.job(changed(phases=[{"name": "update_actor", "active": "actor"}])).sheets[0]
    asleep = memsheet.job(changed(phases=[JOB["phases"][2]])).sheets[0]
    assert asleep.device.high < awake.device.low
    kept = {item.component.value for item in asleep.items if item.path.startswith("rollout/")}
    assert not kept & {"parameters", "kv_cache"}


def test_what_the_host_has_is_not_on_the_card() -> None:
    def held(how: str) -> tuple[int, int]:
        phase = {"name": "gen", "active": "rollout", "residents": {"actor": how}}
        roles = {name: JOB["roles"][name] for name in ("actor", "rollout")}
        sheet = memsheet.job(changed(roles=roles, phases=[phase])).sheets[0]
        return sheet.device.value, sheet.host_bytes

    whole, parameters, states, offloaded, residue = map(
        held, ("whole", "parameters", "states", "offloaded", "residue")
    )
    assert whole[0] > parameters[0] > states[0] - whole[0] + parameters[0]
    assert whole[0] - offloaded[0] == offloaded[1] == parameters[1] + states[1]
    assert whole[1] == residue[1] == 0
    assert residue[0] == offloaded[0]


def test_a_pass_without_gradients_holds_no_more_than_a_step() -> None:
    phases = [
        {"name": "old_log_prob", "active": "actor", "work": "forward"},
        {"name": "update_actor", "active": "actor"},
    ]
    sheet = memsheet.job(changed(phases=phases)).sheets[0]
    read, step = (sheet.at(Instant.FORWARD.of_phase(name)) for name in ("old_log_prob", "update_actor"))
    assert read.value < step.value
    kept = [item for item in sheet.items if item.component.value == "saved_activations"]
    assert all(when.phase == "update_actor" for item in kept for when in item.at)


def test_logits_of_a_phase_are_of_its_tokens_and_words() -> None:
    answer = memsheet.job(JOB)
    found = next(item for item in answer.sheets[0].items if item.path.endswith("/logits"))
    size = found.at[Instant("ref/loss")]
    assert (size.low, size.value, size.high) == tuple(1024 * answer.model.vocab * each for each in (2, 4, 6))


def test_more_cards_need_no_more_of_each() -> None:
    """At the same work of each."""
    needs = [
        memsheet.job(changed(gpus=f"{count}xL4")).sheets[0].at(Instant("update_actor/load")).value
        for count in (2, 4, 8)
    ]
    assert needs == sorted(needs, reverse=True)


def test_every_mistake_is_told_at_once() -> None:
    wrong = changed(
        roles={
            "actor": {"model": MODEL, "plan": {}},
            "rollout": {"plan": {**SERVER, "serving": {"memory_fraction": 0.7}}},
            "second": {"model": MODEL, "plan": {**SERVER, "serving": {"memory_fraction": 0.6}}},
        },
        placement={"actor": [1, 2], "critic": [0, 1]},
        phases=[
            {"name": "gen", "active": "nobody"},
            {"name": "gen", "active": "rollout", "residents": {"rollout": "states", "ghost": "whole"}},
            {"name": "odd", "speed": 1},
        ],
    )
    with pytest.raises(InputError) as told:
        memsheet.job(wrong)
    fields = [problem.field for problem in told.value.problems]
    for field in (
        "roles.actor.plan", "roles.rollout.model", "placement.actor", "placement.critic", "phases[0].active", "phases[1].name",
        "phases[1].residents.rollout", "phases[1].residents.ghost", "phases[2].speed",
    ):  # fmt: skip
        assert field in fields, field
    assert any("1.3" in problem.reason for problem in told.value.problems)
    assert len(fields) == len(set(zip(fields, map(str, told.value.problems), strict=True)))


def test_the_document_is_read_back() -> None:
    answer = memsheet.job(JOB)
    document = json.loads(json.dumps(answer.to_dict()))
    assert document["schema"] == "memsheet/sheet/1"
    assert document["job"]["roles"] == json.loads(json.dumps(JOB["roles"]))
    read = sheets_within(document, "job").sheets[0]
    assert [when.value for when in read.instants] == [when.value for when in answer.sheets[0].instants]
    assert read.allocated.value == answer.sheets[0].allocated.value
    assert answer_job(document["job"]).sheets[0].device == answer.sheets[0].device


def test_logits_of_a_server_are_refused() -> None:
    server = {
        "model": "llama-tiny",
        "plan": {"task": "infer", "engine": "vllm", "serving": {"max_model_len": 512}},
    }
    logits = {"tokens": 8, "bytes": [2, 2, 2], "why": "x"}
    document = {
        "roles": {"rollout": server},
        "phases": [{"name": "gen", "active": "rollout", "logits": logits}],
    }
    with pytest.raises(memsheet.InputError, match="the role serves"):
        memsheet.job({"schema": "memsheet/job/1", **document}, gpus="1xA100-80GB")


def test_whole_logits_never_need_less_than_none() -> None:
    role = {
        "model": "llama-3.2-1b",
        "plan": {
            "task": "train",
            "engine": "transformers",
            "seq_len": 1024,
            "microbatch": 2,
            "loss": "fused",
        },
    }
    needs = []
    for size in (0, 2, 6, 16):
        logits = {"logits": {"bytes": size, "why": "x"}} if size else {}
        phases = [{"name": "update_actor", "active": "actor", **logits}]
        found = memsheet.job(
            {"schema": "memsheet/job/1", "roles": {"actor": role}, "phases": phases}, gpus="1xH100-80GB"
        )
        needs.append(found.sheets[0].device)
    for less, more in pairwise(needs):
        assert less.low <= more.low
        assert less.value <= more.value
        assert less.high <= more.high


def test_states_that_come_for_the_step_are_in_no_pass_before_it() -> None:
    role = {"model": MODEL, "plan": ACTOR}
    whole, late = (
        answer_job({
            "gpus": "2xL4", "roles": {"actor": role}, "phases": [{"name": "update", "active": "actor", "residents": {"actor": how}}],
        }).sheets[0]
        for how in ("whole", "parameters")
    )  # fmt: skip
    before, step = Instant("update/backward"), Instant("update/optimizer_step")
    states = Component.OPTIMIZER_STATES
    assert late.of(states, instant=step) == whole.of(states, instant=step)
    assert int(late.of(states, instant=step).value) > 0
    assert int(late.of(states, instant=before).value) == 0 < int(whole.of(states, instant=before).value)
    assert int(late.host_bytes) > int(whole.host_bytes)


def test_what_a_phase_has_beside_its_role_is_on_that_role_s_cards_alone() -> None:
    alone = {**ACTOR, "mesh": {"dp_shard": 1}}
    first, second = answer_job({
        "gpus": "2xL4", "roles": {name: {"model": MODEL, "plan": alone} for name in ("actor", "critic")},
        "placement": {"actor": [0, 1], "critic": [1, 1]},
        "phases": [{"name": "update", "active": "actor", "items": [{"component": "temporaries", "path": "beside", "bytes": 2**20}]}],
    }).sheets  # fmt: skip
    assert [item.path for item in first.items if item.path.endswith("beside")] == ["actor/beside"]
    assert not [item for item in second.items if item.path.endswith("beside")]


def test_what_stands_at_named_instants_is_at_no_other() -> None:
    item = {"component": "temporaries", "path": "beside", "bytes": 2**20}
    every, some = (
        memsheet.job(changed(phases=[{"name": "update", "active": "actor", "items": [{**item, **at}]}]))
        for at in ({}, {"instants": ["loss", "backward"]})
    )
    whole, part = (
        {when.step.value for one in answer.sheets[0].items if one.path == "actor/beside" for when in one.at}
        for answer in (every, some)
    )
    assert part == {"loss", "backward"} < whole


def test_an_instant_that_a_phase_lacks_is_refused() -> None:
    phases = [
        {"name": "gen", "active": "rollout", "items": [{"bytes": 1, "instants": ["loss"]}]},
        {"name": "update_actor", "active": "actor", "items": [{"bytes": 1, "instants": ["prefill", "los"]}]},
    ]
    with pytest.raises(InputError) as told:
        memsheet.job(changed(phases=phases))
    assert [(one.field, one.value) for one in told.value.problems] == [
        ("phases[1].items[0].instants", "los"),
        ("phases[0].items[0].instants", "loss"),
        ("phases[1].items[0].instants", "prefill"),
    ]


def test_ranks_that_share_a_sequence_have_logits_of_their_part_alone() -> None:
    def held(context: int) -> int:
        mesh = {"cp": context, "dp_replicate": 8 // context}
        plan = {
            "task": "train",
            "engine": "megatron",
            "zero": 1,
            "mesh": mesh,
            "seq_len": 4096,
            "loss": "fused",
        }
        phase = {"name": "update_actor", "active": "actor", "logits": {"bytes": 4, "why": "x"}}
        document = {"roles": {"actor": {"model": "qwen2.5-1.5b", "plan": plan}}, "phases": [phase]}
        sheet = memsheet.job(document, gpus="8xH100-80GB").sheets[0]
        found = next(item for item in sheet.items if item.path == "actor/logits")
        return int(found.at[Instant("update_actor/loss")].value)

    assert held(1) == 2 * held(2) == 4 * held(4)


def test_a_server_that_rests_has_a_range_in_order() -> None:
    """Whose pool is the smaller the more its own passes may take."""
    phases = [{"name": "gen", "active": "rollout"}, {"name": "update_actor", "active": "actor"}]
    roles = {name: JOB["roles"][name] for name in ("actor", "rollout")}
    sheet = memsheet.job(changed(roles=roles, phases=phases)).sheets[0]
    for when in sheet.instants:
        held = [item.at[when] for item in sheet.items if when in item.at and when.phase == "update_actor"]
        assert all(size.low <= size.value <= size.high for size in held)


def slack_at_load(job: Mapping[str, Any]) -> Bytes:
    """What the actor's allocator keeps beside its tensors where its step begins."""
    when = Instant.LOAD.of_phase("update_actor")
    sheet = memsheet.job(job).sheets[0]
    rows = [item for item in sheet.items if item.component is Component.ALLOCATOR_SLACK]
    return next(item.at[when] for item in rows if item.path.startswith("actor/"))


def test_a_step_begins_with_no_cache_that_was_emptied_for_another_process() -> None:
    """A server works between two steps: the trainer has given back what its step had kept by then."""
    update = JOB["phases"][2]
    kept, emptied = slack_at_load(changed(phases=[update])), slack_at_load(JOB)
    assert emptied.low == 0
    assert emptied.value <= emptied.high < kept.value
    said = {**JOB["roles"], "actor": {**JOB["roles"]["actor"], "keeps_cache": True}}
    assert slack_at_load(changed(roles=said)) == kept


def test_a_step_begins_with_what_passes_since_have_left() -> None:
    """No more than the widest of them has reserved."""
    gen, ref, update = JOB["phases"]
    without = slack_at_load(changed(phases=[gen, update]))
    wider = {**ref, "logits": {"tokens": 65536, "bytes": [6, 6, 6]}}
    assert slack_at_load(changed(phases=[gen, wider, update])).value > without.value == 0
