"""Kubeflow's TrainJob around ``torchrun``."""

from typing import Any

import pytest
import yaml

from memsheet.exchange import find_format
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.plan_files import write_format_files
from memsheet.guard import parse_json, parse_yaml

PARSERS = {"json": parse_json, "yaml": parse_yaml}
FORM = find_format("trainjob")
INTEGER, TEXT, EITHER = (int,), (str,), (int, str)
JOB = {
    "apiVersion": TEXT, "kind": TEXT, "metadata": {"name": TEXT},
    "spec": {
        "runtimeRef": {"name": TEXT, "kind": TEXT, "apiGroup": TEXT},
        "trainer": {
            "image": TEXT, "command": [TEXT], "args": [TEXT], "env": [{"name": TEXT, "value": TEXT}], "numNodes": INTEGER, "numProcPerNode": INTEGER,
            "resourcesPerNode": {"limits": {"nvidia.com/gpu": EITHER}},
        },
    },
}  # fmt: skip
"""Fields of kubeflow/trainer 8c0f505 manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml that are
written, with their types; spec needs ``runtimeRef``, and that a name.
"""


def asked(*, nodes: int = 2, per_node: int = 8, **changes: Any) -> dict[str, Any]:
    return {
        "task": "train", "engine": "fsdp2", "gpus": f"{nodes * per_node}xA100-80GB", "@gpus": nodes * per_node, "@nodes": nodes, "@per_node": per_node,
        "@accumulation": 1, "@model": "llama-3.1-8b", "zero": 3, "seq_len": 4096, **changes,
    }  # fmt: skip


def agrees(value: Any, schema: Any) -> bool:
    if isinstance(schema, dict):
        return isinstance(value, dict) and all(
            key in schema and agrees(held, schema[key]) for key, held in value.items()
        )
    if isinstance(schema, list):
        return isinstance(value, list) and all(agrees(held, schema[0]) for held in value)
    return type(value) in schema


@pytest.mark.parametrize("nodes", [1, 2, 5])
@pytest.mark.parametrize("per_node", [1, 8])
@pytest.mark.parametrize("switched", [None, True])
def test_what_is_written_reads_back_and_agrees_with_its_schema(
    nodes: int, per_node: int, switched: bool | None
) -> None:
    text = write_format_files(
        FORM, asked(nodes=nodes, per_node=per_node, **{"allocator.expandable_segments": switched})
    )[FORM.file]
    made = yaml.safe_load(text)
    assert agrees(made, JOB)
    assert made["spec"]["runtimeRef"]["name"]
    found = read_text("a.yaml", text, PARSERS)
    assert found.form.name == "trainjob"
    assert (found.request["@gpus"], found.request["@nodes"], found.request["@per_node"]) == (
        nodes * per_node,
        nodes,
        per_node,
    )
    assert bool(found.request.get("allocator.expandable_segments")) is bool(switched)
    assert (found.unknown, found.unmodelled, found.problems) == ((), (), ())


@pytest.mark.parametrize("hostile", ["$(touch ran)", "x\nkind: Pod", "../..", "é" * 80, "-", ""])
def test_a_hostile_name_is_a_plain_label(hostile: str) -> None:
    made, plain = (
        yaml.safe_load(write_format_files(FORM, asked(**{"@model": name}), (f"memsheet: {name}",))[FORM.file])
        for name in (hostile, "plain")
    )
    label = made.pop("metadata")["name"]
    assert label.isascii()
    assert label.replace("-", "").isalnum()
    assert label == label.lower()
    plain.pop("metadata")
    assert made == plain


def test_cards_stand_for_processes_where_none_are_said() -> None:
    made = yaml.safe_load(write_format_files(FORM, asked())[FORM.file])
    del made["spec"]["trainer"]["numProcPerNode"]
    made["spec"]["trainer"]["resourcesPerNode"]["limits"]["nvidia.com/gpu"] = "4"
    assert read_text("a.yaml", yaml.safe_dump(made), PARSERS).request["@gpus"] == 8


def test_what_kubectl_refuses_is_told() -> None:
    found = read_text(
        "a.yaml",
        "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nspec:\n  trainer: {numNode: 2}\n",
        PARSERS,
    )
    assert found.unknown == (("spec.trainer.numNode", "spec.trainer.numNodes"),)
    assert "spec.trainer" in found.form.strict
