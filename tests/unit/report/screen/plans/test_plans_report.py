"""The screen of a search and its JSON: the verdict first, the width kept, the same said in both, the keys
that were promised.
"""

from __future__ import annotations

import json
from functools import cache

import pytest

from memsheet.catalog import find_device, model_names
from memsheet.cli import main
from memsheet.plan.device import cluster_of
from memsheet.questions.question_parts import catalog_entry
from memsheet.readers.model import read_model
from memsheet.report.json.plans import plans_document
from memsheet.report.screen.plans.ranking import render_plans
from memsheet.report.shared.look import Look
from memsheet.report.shared.plans.words import format_seconds, plan_command
from memsheet.search.advice import Advice, training_advice

CASES = {
    "strained": ("llama-3-70b", 8, "A100-80GB", 2048, 32),
    "copies": ("llama-3.2-1b", 8, "A100-40GB", 4096, 64),
    "nothing": ("llama-3-70b", 1, "RTX4090", 2048, 1),
    "tiny": ("llama-tiny", 4, "A100-80GB", 512, 8),
}


@cache
def advised(name: str) -> Advice:
    model, gpus, device, seq_len, batch = CASES[name]
    spec = read_model(model, catalog=catalog_entry, names=model_names())
    engines = ("transformers",) if name == "nothing" else ("fsdp2", "deepspeed")
    return training_advice(
        spec,
        cluster_of(find_device(device), gpus),
        {"seq_len": seq_len, "global_batch": batch},
        engines,
        top=3,
    )


def shown(name: str, width: int = 100, **look: bool) -> str:
    return render_plans(advised(name), Look(width=width, **look), tokens=15 * 10**12)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("width", [80, 120])
def test_the_screen_keeps_its_width_and_says_the_verdict_first(name, width):
    text = shown(name, width, full=True)
    assert text.startswith("NOTHING FITS" if name == "nothing" else "BEST PLAN")
    assert max(map(len, text.splitlines())) <= width


def test_ascii_is_ascii():
    assert shown("strained", ascii=True).isascii()


def test_a_strained_cluster_is_told_what_would_do():
    text = " ".join(shown("strained", 120).split())
    for words in (
        "Offload states to the host?",
        "AdamW in fp32 on the cards 0 of",
        "LoRA, rank 16",
        "QLoRA",
        "of host memory a rank",
        "GPU-hours",
    ):
        assert words in text


def test_a_small_model_is_told_that_plain_ddp_would_do_and_why_it_is_faster():
    text = " ".join(shown("copies").split())
    assert "Plain DDP fits" in text
    assert "DDP is faster than ZeRO-3" in text
    assert "twice in every micro-batch" in text


@pytest.mark.parametrize("name", CASES)
def test_the_document_has_the_promised_keys(name):
    document = plans_document(advised(name), seconds=1.5, tokens=10**9)
    assert json.loads(json.dumps(document)) == document
    assert document["schema"] == "memsheet/plans/1"
    assert {"plans", "legal", "seconds"} <= document["search"].keys()
    assert (
        document["search"]["plans"]
        >= document["search"]["legal"]
        == sum(document["search"]["results"].values())
    )
    for plan in document["plans"]:
        assert (
            plan["device_low_bytes"]
            <= plan["device_bytes"]
            <= plan["device_high_bytes"]
            <= plan["capacity_bytes"]
        )
        assert plan["allocated_bytes"] < plan["device_bytes"]
        assert plan["step_time_s"]["low"] <= plan["step_time_s"]["value"] <= plan["step_time_s"]["high"]
        assert plan["tokens_per_s"] > 0
        assert plan["gpu_hours"]["low"] <= plan["gpu_hours"]["value"] <= plan["gpu_hours"]["high"]
        assert sum(plan["parts_s"].values()) == pytest.approx(plan["step_time_s"]["value"])
    for step in document["story"]:
        assert {"change", "saves_bytes", "costs_time", "fits"} <= step.keys()
    for rejected in document["rejected"]:
        assert rejected["reason"]
        assert "family" in rejected
    for point in document["pareto"]:
        assert point["plan"]["schema"] == "memsheet/plan/1"


@pytest.mark.parametrize("name", CASES)
def test_the_document_is_as_the_schema_says(name):
    schema = pytest.importorskip("memsheet.report.schema.documents")
    schema.document_model(schema.Plans).model_validate_json(
        json.dumps(plans_document(advised(name), seconds=1.5))
    )


def test_a_solution_is_as_the_schema_says(capsys):
    schema = pytest.importorskip("memsheet.report.schema.documents")
    asked = ["solve", "microbatch", "llama-tiny", "--gpus", "1xA100-40GB", "--seq-len", "4096", "--json"]
    assert main(asked) == 0
    schema.document_model(schema.Solution).model_validate_json(capsys.readouterr().out)


def test_the_document_says_what_the_screen_says():
    document, found = plans_document(advised("tiny"), seconds=0.1), advised("tiny")
    assert [plan["command"] for plan in document["plans"]] == [
        plan_command(found.ranking, planned) for planned in found.ranking.plans
    ]
    assert format_seconds(document["plans"][0]["step_time_s"]["value"]) in shown("tiny")


def test_the_best_plan_of_each_engine_is_there_and_can_be_exported(tmp_path, capsys):
    found = plans_document(advised("tiny"), seconds=0.1)
    assert set(found["by_engine"]) == {"fsdp2", "deepspeed"}
    for engine, best in found["by_engine"].items():
        assert best["plan"]["engine"] == engine
        assert best["verdict"] == "fits"
    (tmp_path / "plans.json").write_text(json.dumps(found))
    assert main(["export", str(tmp_path / "plans.json"), "--to", "deepspeed"]) == 0
    assert '"zero_optimization"' in capsys.readouterr().out


def test_a_plan_of_the_document_can_be_asked_again(tmp_path, capsys):
    found = plans_document(advised("strained"), seconds=0.1)["plans"][0]
    (tmp_path / "plan.json").write_text(json.dumps(found["plan"]))
    assert main(["train", "--plan", str(tmp_path / "plan.json"), "--json"]) == 0
    rank = json.loads(capsys.readouterr().out)["ranks"][0]
    assert rank["device_bytes"] == found["device_bytes"]
    assert rank["allocated_bytes"] == found["allocated_bytes"]


def test_a_budget_of_tokens_is_refused_where_it_is_none(capsys):
    asked = [
        "plan",
        "train",
        "llama-tiny",
        "--gpus",
        "4xA100-80GB",
        "--seq-len",
        "512",
        "--global-batch",
        "8",
        "--engine",
        "fsdp2",
    ]
    assert main([*asked, "--tokens", "many"]) == 2
    assert "tokens" in capsys.readouterr().err


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_command_can_be_copied_at_any_width(width: int) -> None:
    """Lines end in a backslash, and none ends between a flag and its value."""
    screen = render_plans(advised("strained"), Look(width=width), tokens=None)
    lines = screen.split("Run  ")[1].split("\n\n")[0].splitlines()
    copied = " ".join(line.strip().removesuffix("\\").strip() for line in lines)
    assert copied == plan_command(advised("strained").ranking, advised("strained").ranking.plans[0])
    assert all(line.endswith(" \\") for line in lines[:-1])
    assert not lines[-1].endswith("\\")
    assert max(map(len, lines)) <= width


def test_other_things_to_train_are_others_and_changes_are_what_a_plan_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Adapters of a quantized base are not offered again under another name, and what a lighter plan leaves
    to its engine is no change.
    """
    job = ["--gpus", "1xRTX4090", "--seq-len", "4096", "--lora-rank", "16", "--quantize", "nf4"]
    assert main(["plan", "train", "llama-3.1-8b", *job]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "LoRA, rank 16" not in words
    assert "nothing offloaded" in words
    assert "no mesh" not in words
    assert "no zero" not in words


def test_more_room_is_a_plan_with_other_flags_and_as_its_row_has_it() -> None:
    spec = read_model("llama-3.1-8b", catalog=catalog_entry, names=model_names())
    question = {"seq_len": 4096, "global_batch": 16}
    advice = training_advice(spec, cluster_of(find_device("RTX4090"), 2), question, ("deepspeed",), top=3)
    text = render_plans(advice, Look(width=100))
    (line,) = (line for line in text.splitlines() if line.startswith("More room: "))
    told = line.split()
    assert "a step with --" in line
    assert told[2] in {f"{one.verdict.device.value / 2**30:.1f}" for one in advice.ranking.plans}
