"""The JSON of an answer: keys, integers, a plan that reads back as itself, schemas that hold."""

import json
from pathlib import Path

import pytest

import answers
import memsheet
from memsheet.plan.check import flatten_document
from memsheet.plan.device import Cluster
from memsheet.plan.document import plan_document
from memsheet.references import ZERO
from memsheet.report.json.document import value_writer
from memsheet.report.json.sheet import Evidence, sheet_document
from memsheet.report.schema import documents as schema
from memsheet.report.shared.json_text import dump_json_line
from memsheet.resolve import resolve_request
from memsheet.sheet import Cited, Component, Derived, Fitted, FromCode, Instant, Measured, Traced

ROOT = Path(__file__).parents[4]


def walk(value, path=""):
    yield path, value
    if isinstance(value, dict):
        for key, held in value.items():
            yield from walk(held, f"{path}.{key}")
    elif isinstance(value, list):
        for held in value:
            yield from walk(held, path + "[]")


def test_the_top_has_these_keys_in_this_order():
    document = sheet_document(answers.answer())
    assert list(document) == [
        "schema",
        "witness",
        "model",
        "plan",
        "assumed",
        "device",
        "ranks",
        "verdict",
        "serving",
        "notes",
    ]
    assert document["schema"] == "memsheet/sheet/1"
    assert document["witness"] == "predicted"
    assert document["device"] == {**document["device"], "name": "A100-80GB", "count": 8}


def test_every_size_is_a_whole_number():
    document = sheet_document(answers.answer())
    sizes = {path: value for path, value in walk(document) if path.endswith("_bytes")}
    assert len(sizes) > 20
    assert {type(value) for value in sizes.values()} == {int}


def test_a_rank_is_said_once_and_its_items_add_up():
    (rank,) = sheet_document(answers.answer())["ranks"]
    assert rank["same_as"] == list(range(1, 8))
    outside = {"allocator_slack", "context"}
    peak = rank["peak_instant"]
    assert peak == "backward"
    assert rank["instants"][peak] == rank["allocated_bytes"]
    assert (
        sum(i["at"].get(peak, 0) for i in rank["items"] if i["component"] not in outside)
        == rank["allocated_bytes"]
    )
    assert sum(i["at"].get(peak, 0) for i in rank["items"]) == rank["device_bytes"]
    assert rank["allocated_bytes"] < rank["reserved_bytes"] < rank["device_bytes"]
    assert rank["device_low_bytes"] < rank["device_bytes"] < rank["device_high_bytes"]


def test_an_items_bytes_are_the_largest_over_instants():
    (rank,) = sheet_document(answers.answer())["ranks"]
    assert all(item["bytes"] == max(item["at"].values()) for item in rank["items"])


def test_the_verdict_names_changes_as_from_and_to():
    verdict = sheet_document(answers.answer())["verdict"]
    assert verdict["result"] == "does_not_fit"
    assert verdict["headroom_bytes"] < 0
    first = verdict["cheapest_fix"]["changes"][0]
    assert (first["key"], first["from"], first["to"]) == ("recompute.mode", "none", "full")
    assert verdict["largest"][0]["component"] == "saved_activations"


def test_without_gpus_there_is_no_device_and_no_verdict():
    document = sheet_document(answers.answer(gpus=None))
    assert document["device"] is None
    assert document["verdict"] is None
    assert document["plan"]["gpus"] is None


@pytest.mark.parametrize(
    "evidence",
    [
        Cited(ZERO, "3.1"),
        FromCode("p", "c", "f", 1),
        Derived("w"),
        Fitted("r", "h", "d", "s"),
        Traced("op"),
        Measured("record"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_every_kind_of_evidence_is_written_and_in_the_schema(evidence):
    written = value_writer(Evidence)(evidence)
    adapter = __import__("pydantic").TypeAdapter(schema.model_type(Evidence))
    assert adapter.validate_json(json.dumps(written)).kind == written["kind"]


def test_one_line_of_ascii():
    text = dump_json_line(sheet_document(answers.answer()))
    assert text.isascii()
    assert text.count("\n") == 1
    assert text.endswith("}\n")
    assert json.loads(text) == sheet_document(answers.answer())


def test_not_a_number_is_never_written():
    with pytest.raises(ValueError, match="Out of range"):
        dump_json_line({"x": float("nan")})


PLANS = [
    ({"seq_len": 128}, "1xA100-80GB", "llama-3-8b"),
    ({"seq_len": 4096, "engine": "fsdp2", "zero": 2, "reshard_after_forward": False, "microbatch": 2, "global_batch": 64}, "8xH100-80GB", "llama-3-8b"),
    ({"seq_len": 4096, "engine": "fsdp2", "recompute.mode": "full", "recompute.segments": 4}, "8xH100-80GB", "llama-3-8b"),
    ({"seq_len": 4096, "engine": "fsdp2", "recompute.mode": "full", "recompute.every": 2}, None, "llama-3-8b"),
    ({"seq_len": 512, "precision.name": "fp32", "optimizer.name": "sgd_momentum", "optimizer.implementation": "foreach"}, None, "gpt2"),
    ({"seq_len": 512, "precision.parameters": "bf16", "precision.moments": "bf16"}, None, "llama-3-8b"),
    ({"seq_len": 512, "adapter.rank": 8, "adapter.targets": ["q_proj"], "quantization.weights": "nf4"}, "1xRTX4090", "llama-3-8b"),
    ({"seq_len": 512, "adapter.rank": 8, "quantization.weights": "nf4", "quantization.double_quant": False}, None, "llama-3-8b"),
    ({"task": "infer", "serving.max_model_len": 512, "mesh.pp": 4, "layers_per_stage": [23, 19, 19, 19]}, "4xA100-80GB", "llama-3-70b"),
    ({"seq_len": 512, "engine": "fsdp2", "offload.optimizer": 1, "offload.parameters": 1, "optimizer.name": "adamw_8bit"}, "8xA100-80GB", "llama-3-8b"),
    ({"task": "infer", "serving.max_model_len": 8192, "serving.max_sequences": 4}, "1xA100-80GB", "llama-3-8b"),
    ({"task": "infer", "serving.max_model_len": 8192, "serving.kv_dtype": "fp8", "quantization.weights": "int4", "quantization.group_size": 64}, None, "llama-3-8b"),
    ({"task": "infer", "phase": "load"}, None, "llama-3-8b"),
    ({"task": "infer", "serving.max_model_len": 512, "quantization.weights": "gguf:Q4_K", "quantization.skip": ["lm_head"]}, None, "llama-3-8b"),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "gpus", "name"), PLANS)
def test_a_written_plan_reads_back_as_the_same_plan(request_, gpus, name):
    spec, machines = answers.model(name), answers.cluster(gpus) if gpus else None
    plan = resolve_request(request_, spec, machines).plan
    document = plan_document(plan, model=name, cluster=machines)
    schema.document_model(schema.Plan).model_validate_json(json.dumps(document))
    request = {
        key: value for key, value in flatten_document(document).items() if key not in {"model", "gpus"}
    }
    again = resolve_request(request, spec, machines)
    assert again.plan == plan
    assert again.assumed == ()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(answers.answer, id="made"),
        pytest.param(lambda: answers.answer(gpus=None), id="no-gpus"),
        pytest.param(lambda: memsheet.train("llama-3-8b", gpus="8xA100-80GB", seq_len=2048), id="train"),
        pytest.param(
            lambda: memsheet.train("llama-3-70b", gpus="8xA100-80GB", seq_len=2048, microbatch=4),
            id="train-fixed",
        ),
        pytest.param(
            lambda: memsheet.infer("llama-3-8b", gpus="1xA100-80GB", max_model_len=4096), id="infer"
        ),
    ],
)
def test_real_documents_are_as_the_schema_says(answer):
    schema.document_model(schema.Sheet).model_validate_json(dump_json_line(sheet_document(answer())))


def test_the_schema_refuses_what_is_not_a_sheet():
    document = sheet_document(answers.answer())
    for wrong in ({"extra": 1}, {"schema": "memsheet/sheet/2"}, {"ranks": [{}]}, {"assumed": None}):
        with pytest.raises(ValueError, match="validation error"):
            schema.document_model(schema.Sheet).model_validate_json(dump_json_line({**document, **wrong}))


def test_the_published_schemas_are_these():
    for name, text in schema.schema_texts().items():
        published = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
        assert published == text, f"{name} drifted: python -m memsheet.report.schema.documents"


def test_every_component_and_instant_is_in_the_schema():
    text = schema.schema_texts()["sheet.schema.json"]
    assert all(f'"{member.value}"' in text for member in (*Component, *Instant))


def test_a_plan_names_its_cluster():
    machines = answers.cluster("16xH100-80GB")
    assert isinstance(machines, Cluster)
    assert plan_document(answers.answer().plan, cluster=machines)["gpus"] == "16xH100-80GB"
