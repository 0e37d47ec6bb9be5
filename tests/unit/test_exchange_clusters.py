"""Jobs of clusters around ``torchrun``: SkyPilot's tasks and Kubeflow's PyTorchJobs."""

import re
import subprocess
from typing import Any

import pytest
import yaml

from memsheet.errors import InputError
from memsheet.exchange import find_format, read_text, write
from memsheet.readers.guard import parse_json, parse_yaml

PARSERS = {"json": parse_json, "yaml": parse_yaml}
NAMES = ("skypilot", "kubernetes")
HOSTILE = ["$(touch ran)", "a'b\"c", "x\nrun: touch ran", "`touch ran`", "../..", "é" * 80, "-", "{{x}}", "a: [b", "#c", ""]


def asked(*, nodes: int = 2, per_node: int = 8, **changes: Any) -> dict[str, Any]:
    return {
        "task": "train", "engine": "fsdp2", "gpus": f"{nodes * per_node}xA100-80GB", "@gpus": nodes * per_node, "@nodes": nodes, "@per_node": per_node,
        "@accumulation": 1, "@model": "llama-3.1-8b", "zero": 3, "seq_len": 4096, **changes,
    }  # fmt: skip


def written(name: str, question: dict[str, Any], comments: tuple[str, ...] = ()) -> str:
    form = find_format(name)
    return write(form, question, comments)[form.file]


def reading(text: str) -> Any:
    return read_text("a.yaml", text, PARSERS)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("nodes", [1, 2, 5])
@pytest.mark.parametrize("per_node", [1, 4, 8])
@pytest.mark.parametrize("switched", [None, True])
def test_what_is_written_reads_back(name: str, nodes: int, per_node: int, switched: bool | None) -> None:
    found = reading(written(name, asked(nodes=nodes, per_node=per_node, **{"allocator.expandable_segments": switched})))
    assert found.form.name == name
    assert (found.request["@gpus"], found.request["@nodes"], found.request["@per_node"]) == (nodes * per_node, nodes, per_node)
    assert bool(found.request.get("allocator.expandable_segments")) is bool(switched)
    assert (found.unknown, found.unmodelled, found.problems) == ((), (), ())


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_name_is_a_plain_label(name: str, hostile: str) -> None:
    text = written(name, asked(**{"@model": hostile}), (f"memsheet: {hostile}",))
    made, plain = yaml.safe_load(text), yaml.safe_load(written(name, asked()))
    label = made.pop("name", None) or made.pop("metadata")["name"]
    assert re.fullmatch(
        r"[A-Za-z]([A-Za-z0-9-]{0,60}[A-Za-z0-9])?" if name == "kubernetes" else r"[A-Za-z0-9]([A-Za-z0-9-]{0,60}[A-Za-z0-9])?", label
    )
    plain.pop("name", None)
    plain.pop("metadata", None)
    assert made == plain


def test_a_task_of_skypilot_starts_its_ranks_as_its_environment_says(tmp_path: Any) -> None:
    made = yaml.safe_load(written("skypilot", asked()))
    assert (made["num_nodes"], made["resources"]["accelerators"]) == (2, "A100-80GB:8")
    (tmp_path / "torchrun").write_text('#!/bin/sh\nprintf "%s\\n" "$@" > told\n')
    (tmp_path / "torchrun").chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NUM_GPUS_PER_NODE": "8",
        "SKYPILOT_NODE_RANK": "1", "TRAIN": "train.py --x $(touch ran)",
    }  # fmt: skip
    subprocess.run(["bash", "-c", made["run"]], cwd=tmp_path, env=environment, check=True)
    told = (tmp_path / "told").read_text().split()
    assert {"--nnodes=2", "--nproc-per-node=8", "--node-rank=1", "--master-addr=10.0.0.1", "train.py"} <= set(told)
    assert not (tmp_path / "ran").exists()


def test_a_card_without_a_name_at_skypilot_is_refused() -> None:
    for gpus in ("16xMI300X", None):
        with pytest.raises(InputError) as refused:
            written("skypilot", asked(gpus=gpus))
        assert {problem.field for problem in refused.value.problems} == {"gpus"}


def test_pods_of_a_job() -> None:
    made = yaml.safe_load(written("kubernetes", asked()))
    specs = made["spec"]["pytorchReplicaSpecs"]
    assert (made["apiVersion"], made["kind"], made["spec"]["nprocPerNode"]) == ("kubeflow.org/v1", "PyTorchJob", "8")
    assert (specs["Master"]["replicas"], specs["Worker"]["replicas"]) == (1, 1)
    for pod in specs.values():
        (container,) = pod["template"]["spec"]["containers"]
        assert container["name"] == "pytorch"
        assert container["command"] == ["torchrun", "--nnodes=2", "--nproc-per-node=8", "train.py"]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert "Worker" not in yaml.safe_load(written("kubernetes", asked(nodes=1)))["spec"]["pytorchReplicaSpecs"]


def test_pods_unlike_one_another_are_told() -> None:
    made = yaml.safe_load(written("kubernetes", asked()))
    made["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = 4
    del made["spec"]["nprocPerNode"]
    assert reading(yaml.safe_dump(made)).problems


@pytest.mark.parametrize("cards", ["{A100: 8, H100: 8}", "[A100:8, H100:8]", "tpu-v5p-8", "8", "'A100:many'"])
def test_a_choice_of_cards_is_no_count(cards: str) -> None:
    found = reading(f"num_nodes: 2\nresources:\n  accelerators: {cards}\n")
    assert found.problems or found.unknown
    assert "@gpus" not in found.request


def test_a_task_as_people_write_it() -> None:
    text = "name: t\nresources:\n    accelerators: A100:8\nnum_nodes: 2\nsetup: |\n    true\nrun: |\n    torchrun main.py\n"
    found = reading(text)
    assert (found.form.name, found.request["@gpus"], found.unknown) == ("skypilot", 16, ())


def test_ranks_that_come_and_go_are_not_modelled() -> None:
    made = yaml.safe_load(written("kubernetes", asked()))
    made["spec"]["elasticPolicy"] = {"minReplicas": 1, "maxReplicas": 4}
    assert dict(reading(yaml.safe_dump(made)).unmodelled) == {"spec.elasticPolicy.minReplicas": 1, "spec.elasticPolicy.maxReplicas": 4}
