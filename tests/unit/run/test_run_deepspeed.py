"""DeepSpeed's own engine on real tensors: the plan as its configuration, and, where it is installed, its step
and its memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from memsheet.account import account_rank
from memsheet.catalog import model_names
from memsheet.errors import InputError
from memsheet.questions.measured import Options, measure_with_timeline
from memsheet.questions.question_parts import catalog_entry
from memsheet.questions.traced import Options as TraceOptions
from memsheet.questions.traced import check_runs, trace_with_timelines
from memsheet.readers.hf_config import read_hf_config
from memsheet.readers.model import find_config
from memsheet.resolve import resolve_request
from memsheet.sheet import Component, Instant

pytest.importorskip("torch")
from memsheet.run.deepspeed import check_deepspeed_run, deepspeed_config, owns_optimizer

installed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs deepspeed")
C, AT = Component, Instant
OUTSIDE = (C.ALLOCATOR_SLACK, C.CONTEXT, C.WORKSPACES)


def plan_of(**request):
    found = find_config("llama-tiny", catalog=catalog_entry, names=model_names())
    spec = read_hf_config(found.values, name=found.name, source=found.source)
    return resolve_request({"engine": "deepspeed", "seq_len": 64, **request}, spec, None, real=True).plan


# ---- the plan as a configuration ---------------------------------------------------------------------------


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_a_plan_says_its_stage_its_dtype_and_its_micro_batches(zero):
    plan = plan_of(zero=zero, microbatch=2)
    found = deepspeed_config(plan, 3)
    assert (found["train_micro_batch_size_per_gpu"], found["gradient_accumulation_steps"]) == (2, 3)
    assert found["zero_optimization"] == {"stage": zero}
    assert found["bf16"] == {"enabled": True}
    assert found["gradient_clipping"] == 0


def test_fp32_has_no_section_of_its_own():
    assert not {"bf16", "fp16", "data_types"} & set(
        deepspeed_config(plan_of(**{"precision.name": "fp32"}), 1)
    )


def test_gradients_in_fp32_are_said():
    found = deepspeed_config(plan_of(zero=1, **{"precision.gradients": "fp32"}), 1)
    assert found["data_types"] == {"grad_accum_dtype": "fp32"}


def test_what_is_on_the_host_is_said_and_a_share_at_stage_3_alone():
    whole = deepspeed_config(plan_of(zero=3, **{"offload.optimizer": 1, "offload.parameters": 1}), 1)[
        "zero_optimization"
    ]
    assert whole["offload_optimizer"]["device"] == whole["offload_param"]["device"] == "cpu"
    assert "ratio" not in whole["offload_optimizer"]
    part = deepspeed_config(plan_of(zero=3, **{"offload.optimizer": 0.5}), 1)["zero_optimization"]
    assert part["offload_optimizer"]["ratio"] == 0.5
    assert "offload_param" not in part


@pytest.mark.parametrize(
    ("request_", "own"),
    [
        ({"zero": 2}, False),
        ({"zero": 0}, True),
        ({"zero": 0, "precision.name": "fp32"}, False),
        ({"zero": 2, "offload.optimizer": 1}, True),
        ({"zero": 2, "optimizer.implementation": "foreach"}, False),
    ],
)
def test_deepspeed_makes_the_optimizer_only_where_it_must(request_, own):
    plan = plan_of(**request_)
    assert owns_optimizer(plan) is own
    assert ("optimizer" in deepspeed_config(plan, 1)) is own


# ---- what is refused ---------------------------------------------------------------------------------------


def test_a_trace_says_that_only_real_steps_are_taken():
    with pytest.raises(InputError, match="fake tensors"):
        trace_with_timelines("llama-tiny", TraceOptions(), engine="deepspeed", seq_len=64)
    check_runs(plan_of(zero=2), real=True)


def test_other_axes_are_refused():
    check_deepspeed_run(plan_of(zero=2, **{"mesh.dp_shard": 2}))
    plan = plan_of(zero=2)
    with pytest.raises(InputError, match=r"mesh\.tp"):
        check_deepspeed_run(replace(plan, mesh=replace(plan.mesh, tp=2)))


def test_measuring_says_what_is_missing_before_anything_starts(monkeypatch):
    monkeypatch.setattr("memsheet.questions.measured.find_spec", lambda _: None)
    monkeypatch.setattr(
        "memsheet.questions.measured.answers_together", lambda *_, **__: pytest.fail("a child was started")
    )
    with pytest.raises(InputError, match="not installed") as told:
        measure_with_timeline("llama-tiny", Options(), engine="deepspeed", seq_len=64)
    assert told.value.problems[0].hint == "pip install deepspeed"


def test_measuring_refuses_what_deepspeed_has_no_form_of(monkeypatch):
    monkeypatch.setattr("memsheet.questions.measured.find_spec", lambda _: object())
    with pytest.raises(InputError, match="zero 3 only"):
        measure_with_timeline(
            "llama-tiny",
            Options(),
            engine="deepspeed",
            seq_len=64,
            zero=2,
            plan={"offload": {"parameters": 1}},
        )


# ---- where it is installed ---------------------------------------------------------------------------------

TRAIN = """
import copy, json, os, sys
os.environ["DS_ACCELERATOR"] = "cpu"
import torch
import torch.distributed as dist
from dataclasses import replace
from torch._C._distributed_c10d import HashStore
sys.path.insert(0, sys.argv[2])
from test_run_deepspeed import find_config, catalog_entry, model_names, plan_of
from memsheet.run.deepspeed import DeepSpeedStep
from memsheet.run.model import build_config, build_model, initialize_model_weights
from memsheet.run.optimizer import build_optimizer
from memsheet.run.watch import Running

dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
found = []
for request in json.loads(sys.argv[1]):
    plan = plan_of(**request)
    values = find_config("llama-tiny", catalog=catalog_entry, names=model_names()).values
    settings = build_config(values, plan)
    torch.manual_seed(0)
    model = initialize_model_weights(build_model(settings, plan, "cpu"))
    plain = copy.deepcopy(model)
    ids = torch.randint(0, settings.vocab_size, (int(plan.training.microbatch * plan.accumulation), 32))
    losses, expected = [], []
    step = DeepSpeedStep(model, plan, "cpu", Running(lambda _: None, lambda loss: losses.append(float(loss))), int(plan.accumulation))
    optimizer = build_optimizer(plain.parameters(), plan)
    for _ in range(4):
        step({"input_ids": ids, "labels": ids})
        loss = plain(input_ids=ids, labels=ids).loss
        expected.append(float(loss))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    step.close()
    count = int(plan.accumulation)
    found.append([[sum(losses[i : i + count]) for i in range(0, len(losses), count)], expected])
print("FOUND" + json.dumps(found), flush=True)
os._exit(0)
"""


def trained(requests):
    """Losses of DeepSpeed's steps and of plain ones, in a process of their own."""
    command = [sys.executable, "-W", "ignore", "-c", TRAIN, json.dumps(requests), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert "FOUND" in done.stdout, done.stderr[-3000:]
    return json.loads(done.stdout.rpartition("FOUND")[2])


@installed
def test_training_goes_as_without_deepspeed():
    fp32 = {"precision.name": "fp32"}
    requests = [
        {"zero": 0, **fp32},
        {"zero": 1, **fp32},
        {"zero": 2, **fp32, "global_batch": 3},
        {"zero": 3, **fp32},
        {"zero": 2},
        {"zero": 3},
    ]
    for request, (losses, plain) in zip(requests, trained(requests), strict=True):
        assert losses[-1] < losses[0]
        assert losses == pytest.approx(plain, abs=1e-5 if request.get("precision.name") else 3e-3), request


@installed
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_two_real_ranks_hold_what_is_predicted(zero):
    """Within 0.6 % of what is there beside the fixed bucket: gloo's own copies are none of DeepSpeed's (stage
    3's backward).
    """
    found, _ = measure_with_timeline(
        "llama-tiny", Options(steps=1), engine="deepspeed", seq_len=64, zero=zero, dp_shard=2
    )
    sheet, expected = found.sheets[0], account_rank(found.model, found.plan, device="cpu")
    bucket = max(
        (
            size.value
            for item in expected.items
            if item.path == "zero/ipg_bucket"
            for size in item.at.values()
        ),
        default=0,
    )
    for instant in (AT.LOAD, AT.FORWARD, AT.OPTIMIZER_STEP, *((AT.LOSS, AT.BACKWARD) if zero < 3 else ())):
        measured, predicted = sheet.at(instant).value, expected.at(instant, without=OUTSIDE).value
        rest = measured - bucket if measured > bucket else measured
        assert abs(predicted - measured) < 0.006 * rest, instant


@installed
def test_one_rank_gathers_nothing_at_stage_3():
    found, _ = measure_with_timeline("llama-tiny", Options(steps=1), engine="deepspeed", seq_len=64, zero=3)
    expected = account_rank(found.model, found.plan, device="cpu")
    assert expected.at(AT.LOAD, without=OUTSIDE).value == pytest.approx(
        found.sheets[0].at(AT.LOAD).value, abs=4096
    )
    assert all(
        expected.of(C.UNSHARDED_PARAMETERS, instant=instant).value == 0 for instant in expected.instants
    )
