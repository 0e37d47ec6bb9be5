"""A plan up the ladder: scaled down with everything else kept, three witnesses side by side, the worst term
named.
"""

import json
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import memsheet
from memsheet.catalog import find_model
from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.plan.plan import Schedule
from memsheet.plan.words import request_from
from memsheet.questions.verification.scaled import (
    layers_of,
    mesh_shrinkage_words,
    shrink_plan,
    truncated_layers_config,
)
from memsheet.questions.verification.slurm import Queue, measured_by_job
from memsheet.readers.sheet_json import sheets_within
from memsheet.report.screen.verification_table import render_verification
from memsheet.report.shared.look import Look
from memsheet.report.shared.verification import (
    BAR,
    RankWitnesses,
    Verification,
    VerificationRun,
    verification_document,
    worst_term,
)
from memsheet.resolve import resolve_request
from memsheet.sheet import Bytes, Component, Derived, Instant, Item, Sheet, Witness

pytestmark = pytest.mark.usefixtures("warm_children")
EXAMPLE = Path(__file__).parents[4] / "examples" / "plans" / "llama-tiny-fsdp2.json"


def plan_of(**options):
    return resolve_request(
        {**request_from({"seq_len": 64, **options}), "task": "train"}, None, real=True
    ).plan


# ---- scaling down ------------------------------------------------------------------------------------------

WIDE = {
    "engine": "fsdp2",
    "zero": 3,
    "dp_replicate": 2,
    "dp_shard": 8,
    "tp": 4,
    "pp": 2,
    "schedule": "1f1b",
    "microbatch": 2,
    "global_batch": 128,
}


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 8, 100, 1000])
def test_a_scaled_plan_fits_the_processes_and_is_legal(processes):
    whole = plan_of(**WIDE)
    small = shrink_plan(whole, processes)
    assert small.mesh.gpus <= max(processes, 1)
    assert small.mesh.gpus * 2 > min(processes, whole.mesh.gpus)  # no smaller than it must be
    kept = replace(
        small,
        mesh=whole.mesh,
        workload=replace(small.training, global_batch=whole.training.global_batch),
        schedule=whole.schedule,
        layers_per_stage=whole.layers_per_stage,
    )
    assert kept == whole
    assert small.accumulation == whole.accumulation


def test_what_an_engine_is_chosen_for_goes_last():
    assert shrink_plan(plan_of(**WIDE), 2).mesh.dp_shard == 2
    assert (
        mesh_shrinkage_words(plan_of(**WIDE), shrink_plan(plan_of(**WIDE), 2))
        == "dp_replicate 2 → 1, pp 2 → 1, tp 4 → 1, dp_shard 8 → 2"
    )


def test_a_plan_that_fits_is_left_alone():
    whole = plan_of(**WIDE)
    assert shrink_plan(whole, 128) is whole
    assert mesh_shrinkage_words(whole, whole) == ""


def test_a_schedule_without_stages_goes_and_with_them_stays():
    whole = plan_of(engine="fsdp2", zero=3, pp=4, schedule="1f1b", global_batch=16)
    assert shrink_plan(whole, 2).schedule is Schedule.ONE_F_ONE_B
    assert shrink_plan(whole, 1).schedule is None


def test_replicas_without_others_share_nothing():
    assert shrink_plan(plan_of(engine="transformers", dp_shard=4, zero=1), 1).zero == 0


def test_fewer_layers_and_what_lists_say_of_them():
    config = {
        "num_hidden_layers": 4,
        "layer_types": ["a", "b", "a", "b"],
        "hidden_size": 8,
        "eos_token_id": [1, 2],
    }
    assert truncated_layers_config(config, 2) == {
        "num_hidden_layers": 2,
        "layer_types": ["a", "b"],
        "hidden_size": 8,
        "eos_token_id": [1, 2],
    }
    assert (layers_of(config), layers_of({}), layers_of({"n_layer": 2, "num_layers": 2})) == (4, None, None)


# ---- side by side ------------------------------------------------------------------------------------------


def sheet(witness, **sizes):
    items = [
        Item(Component(name), f"model.{name}/x", {Instant.BACKWARD: Bytes.exact(size)}, Derived("a test"))
        for name, size in sizes.items()
    ]
    return Sheet(rank=0, witness=witness, items=tuple(items))


PREDICTED = sheet(Witness.PREDICTED, parameters=1000, gradients=500)
MEASURED = sheet(Witness.MEASURED, parameters=1000, gradients=400, unexplained=50)


def verification(predicted, measured):
    seen = RankWitnesses(rank=0, stage=0, predicted=predicted, measured=measured)
    rung = VerificationRun(name="one process", what="", device="cpu", plan=plan_of(), ranks=(seen,))
    return Verification(model="m", plan=plan_of(), rungs=(rung,))


def test_the_worst_term_goes_the_way_of_the_error():
    term = worst_term(PREDICTED, MEASURED, Instant.BACKWARD)
    assert (term.component, term.path, term.predicted_bytes, term.found_bytes) == (
        Component.GRADIENTS,
        "model.gradients",
        500,
        400,
    )
    assert term.share == pytest.approx(100 / 1450)
    assert worst_term(MEASURED, PREDICTED, Instant.BACKWARD).share < 0
    assert worst_term(MEASURED, MEASURED, Instant.BACKWARD) is None


def test_a_prediction_beyond_the_bar_is_off_and_says_why():
    found = verification(PREDICTED, MEASURED)
    assert found.worst[1].error == pytest.approx(50 / 1450)
    assert not found.holds
    screen = render_verification(found, Look(width=80))
    assert screen.startswith("OFF")
    assert "gradients model.gradients" in screen
    assert "+3.45%" in screen


def test_a_prediction_within_the_bar_holds():
    found = verification(MEASURED, MEASURED)
    assert found.holds
    assert render_verification(found, Look(width=80)).startswith("VERIFIED")


def test_a_rung_that_was_not_run_verifies_nothing():
    empty = Verification(
        model="m",
        plan=plan_of(),
        rungs=(
            VerificationRun(
                name="one process", what="", device="cpu", plan=plan_of(), refused={"measured": "too much"}
            ),
        ),
    )
    assert not empty.holds
    screen = render_verification(empty, Look(width=80))
    assert screen.startswith("NOT COMPARED")
    assert "too much" in screen


def test_the_document_has_every_witness_and_instant():
    document = verification_document(verification(PREDICTED, MEASURED))
    (rung,) = document["rungs"]
    (rank,) = rung["ranks"]
    assert (rank["predicted_bytes"], rank["traced_bytes"], rank["measured_bytes"]) == (1500, None, 1450)
    assert rank["instants"] == [
        {"instant": "backward", "predicted_bytes": 1500, "traced_bytes": None, "measured_bytes": 1450}
    ]
    assert rank["worst_term"]["component"] == "gradients"
    assert json.loads(json.dumps(document)) == document


# ---- the command -------------------------------------------------------------------------------------------


@pytest.fixture
def somewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def catalogue_answer():
    return memsheet.train("llama-tiny", seq_len=64)


def written(folder, document):
    (folder / "plan.json").write_text(json.dumps(document))
    return str(folder / "plan.json")


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"seq_len": 64}, "model"),
        ({"model": "llama-tiny"}, "seq_len"),
        ({"model": "llama-tiny", "seq_len": 64, "nonsense": 1}, "nonsense"),
        ({"model": "llama-tiny", "task": "infer", "serving": {"max_model_len": 64}}, "max_model_len"),
    ],
)
def test_a_plan_that_cannot_be_verified_is_refused(somewhere, capsys, document, field):
    assert main(["verify", written(somewhere, document)]) == 2
    assert field in capsys.readouterr().err
    assert not (somewhere / "records").exists()


@pytest.mark.parametrize(
    ("words", "field"),
    [(["--device", "tpu"], "device = tpu"), (["--records", "plan.json"], "plan.json: is not a folder"),
     (["--records", "plan.json/x"], "cannot be made"), (["--processes", "0"], "processes = 0")],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_before_anything_is_run(somewhere, capsys, words, field):
    assert main(["verify", written(somewhere, {"model": "llama-tiny", "seq_len": 64}), *words]) == 2
    assert field in capsys.readouterr().err


@pytest.mark.skipif(find_spec("deepspeed") is not None, reason="it does run here")
def test_an_engine_that_does_not_run_is_predicted_rank_by_rank_and_says_why_whole(somewhere, capsys):
    plan = {
        "model": "llama-tiny",
        "seq_len": 64,
        "engine": "deepspeed",
        "zero": 2,
        "mesh": {"dp_shard": 4},
        "precision": "bf16-master",
    }
    assert main(["verify", written(somewhere, plan)]) == 11
    screen = capsys.readouterr().out
    assert [line.split("  ")[0] for line in screen.splitlines() if line[:1].isdigit()] == [
        "0 to 3",
        "0",
        "0",
        "1",
    ]
    assert "(fsdp2 or transformers; memsheet train predicts it" in " ".join(screen.split())
    assert "…" not in screen


def test_a_run_that_failed_leaves_the_rest_verified_in_part():
    found = verification(MEASURED, MEASURED)
    lost = VerificationRun(
        name="torchrun",
        what="",
        device="cpu",
        plan=plan_of(),
        refused={"measured": "it died"},
        ranks=(RankWitnesses(rank=0, stage=0, predicted=PREDICTED, traced=PREDICTED),),
    )
    assert not found.failed
    assert replace(found, rungs=(*found.rungs, lost)).failed
    assert render_verification(replace(found, rungs=(*found.rungs, lost)), Look(width=80)).startswith(
        "VERIFIED IN PART"
    )
    assert render_verification(replace(found, rungs=(lost,)), Look(width=80)).startswith("TRACED")


@pytest.mark.slow
def test_a_step_that_ran_out_of_memory_is_no_measurement(somewhere, capsys, monkeypatch):
    pytest.importorskip("torch")

    def starved(*_, **__):
        (rung,) = verification(MEASURED, MEASURED).rungs
        died = {"died": {"instant": "load", "step": 1, "resident_bytes": 2**20}}
        return replace(catalogue_answer(), sheets=(rung.ranks[0].measured,), trace=died), None

    monkeypatch.setattr(
        import_module("memsheet.questions.verification.ladder"), "measure_with_timeline", starved
    )
    assert main(["verify", written(somewhere, {"model": "llama-tiny", "seq_len": 64}), "--json"]) == 11
    rung = json.loads(capsys.readouterr().out)["rungs"][1]
    assert "ran out in load of step 1, 1.00 MiB of tensors were there" in rung["refused"]["measured"]
    assert not (somewhere / "records").exists()


def test_the_headline_says_how_many_rungs_were_measured():
    traced = replace(
        verification(MEASURED, None).rungs[0],
        ranks=(RankWitnesses(rank=0, stage=0, predicted=PREDICTED, traced=PREDICTED),),
    )
    found = verification(MEASURED, MEASURED)
    words = " ".join(
        render_verification(replace(found, rungs=(traced, *found.rungs)), Look(width=200)).split()
    )
    assert "within 1% on 2 of 2 rungs · 1 of them measured" in words
    assert "none of them measured" in render_verification(replace(found, rungs=(traced,)), Look(width=200))


@pytest.mark.slow
def test_more_than_a_processor_can_afford_is_said(somewhere, capsys):
    pytest.importorskip("torch")
    plan = {"model": "llama-tiny", "seq_len": 64, "schema": "memsheet/plan/1"}
    assert (
        main(["verify", written(somewhere, plan), "--operations", "1", "--json"]) == 11
    )  # the trace agrees, and nothing was measured
    document = json.loads(capsys.readouterr().out)
    assert "more than the 1 of --operations" in document["rungs"][1]["refused"]["measured"]
    assert document["rungs"][1]["refused"]["measured"].startswith("with 2 of 4 layers ")
    assert document["rungs"][1]["ranks"] == []


@pytest.mark.slow
def test_the_example_is_verified_by_two_processes(somewhere, capsys):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    assert main(["verify", str(EXAMPLE), "--json", "--records", "found"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {json.loads(file.read_text())["schema"] for file in (somewhere / "found").iterdir()} == {
        "memsheet/record/1"
    }
    assert len(list((somewhere / "found").iterdir())) == 2
    trace, alone, several = document["rungs"]
    assert [len(rung["ranks"]) for rung in (trace, alone, several)] == [1, 1, 2]
    assert several["plan"]["mesh"]["dp_shard"] == 2
    for rung in document["rungs"]:
        for rank in rung["ranks"]:
            assert abs(rank["error"]) < BAR
            assert rung is trace or abs(rank["trace_error"]) < BAR


# ---- a cluster's queue -------------------------------------------------------------------------------------

QUEUE = {"partition": None, "per_node": 2, "time_s": 300, "kind": "local"}


def test_ranks_that_fill_no_nodes_are_refused(tmp_path):
    pytest.importorskip("submitit")
    with pytest.raises(InputError, match="does not divide 3 ranks"):
        measured_by_job({}, 3, [], tmp_path, Queue(**QUEUE))


@pytest.mark.slow
def test_a_job_of_a_queue_runs_the_whole_plan_and_hands_back_its_record(tmp_path):
    pytest.importorskip("submitit")
    pytest.importorskip("transformers")
    plan = {"schema": "memsheet/plan/1", "engine": "fsdp2", "mesh": {"dp_shard": 2}, "seq_len": 64}
    model = find_model("llama-tiny")["config"]
    record = measured_by_job({"model": model, "plan": plan}, 2, ["--steps", "1"], tmp_path, Queue(**QUEUE))
    assert sorted(
        rank for sheet in sheets_within(record, "a job").sheets for rank in (sheet.rank, *sheet.same_as)
    ) == [0, 1]
    with pytest.raises(InputError, match="the job failed: "):
        measured_by_job(
            {"model": model, "plan": {**plan, "nonsense": 1}}, 2, [], tmp_path / "other", Queue(**QUEUE)
        )
