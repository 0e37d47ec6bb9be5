"""Jobs of clusters around ``torchrun``: SkyPilot's tasks and Kubeflow's PyTorchJobs."""

import re
import subprocess
from typing import Any

import pytest
import yaml

from laws import every
from memsheet.errors import InputError
from memsheet.exchange import find_format
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.plan_files import write_format_files
from memsheet.exchange.shared.serve_pods import KINDS, NO_SERVER
from memsheet.guard import parse_json, parse_yaml
from memsheet.questions.recognised_files import recognise_files

PARSERS = {"json": parse_json, "yaml": parse_yaml}
NAMES = ("skypilot", "kubernetes")
HOSTILE = [
    "$(touch ran)",
    "a'b\"c",
    "x\nrun: touch ran",
    "`touch ran`",
    "../..",
    "é" * 80,
    "-",
    "{{x}}",
    "a: [b",
    "#c",
    "",
]


def asked(*, nodes: int = 2, per_node: int = 8, **changes: Any) -> dict[str, Any]:
    return {
        "task": "train", "engine": "fsdp2", "gpus": f"{nodes * per_node}xA100-80GB", "@gpus": nodes * per_node, "@nodes": nodes, "@per_node": per_node,
        "@accumulation": 1, "@model": "llama-3.1-8b", "zero": 3, "seq_len": 4096, **changes,
    }  # fmt: skip


def written(name: str, question: dict[str, Any], comments: tuple[str, ...] = ()) -> str:
    form = find_format(name)
    return write_format_files(form, question, comments)[form.file]


def reading(text: str) -> Any:
    return read_text("a.yaml", text, PARSERS)


@every("name", NAMES)
@every("nodes", [1, 2, 5])
@every("per_node", [1, 4, 8])
@every("switched", [None, True])
def test_what_is_written_reads_back(name: str, nodes: int, per_node: int, switched: bool | None) -> None:
    found = reading(
        written(name, asked(nodes=nodes, per_node=per_node, **{"allocator.expandable_segments": switched}))
    )
    assert found.form.name == name
    assert (found.request["@gpus"], found.request["@nodes"], found.request["@per_node"]) == (
        nodes * per_node,
        nodes,
        per_node,
    )
    assert bool(found.request.get("allocator.expandable_segments")) is bool(switched)
    assert (found.unknown, found.unmodelled, found.problems) == ((), (), ())


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_name_is_a_plain_label(name: str, hostile: str) -> None:
    text = written(name, asked(**{"@model": hostile}), (f"memsheet: {hostile}",))
    made, plain = yaml.safe_load(text), yaml.safe_load(written(name, asked()))
    label = made.pop("name", None) or made.pop("metadata")["name"]
    assert re.fullmatch(
        r"[A-Za-z]([A-Za-z0-9-]{0,60}[A-Za-z0-9])?"
        if name == "kubernetes"
        else r"[A-Za-z0-9]([A-Za-z0-9-]{0,60}[A-Za-z0-9])?",
        label,
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
    assert {"--nnodes=2", "--nproc-per-node=8", "--node-rank=1", "--master-addr=10.0.0.1", "train.py"} <= set(
        told
    )
    assert not (tmp_path / "ran").exists()


def test_a_card_without_a_name_at_skypilot_is_refused() -> None:
    for gpus in ("16xMI300X", None):
        with pytest.raises(InputError) as refused:
            written("skypilot", asked(gpus=gpus))
        assert {problem.field for problem in refused.value.problems} == {"gpus"}


def test_pods_of_a_job() -> None:
    made = yaml.safe_load(written("kubernetes", asked()))
    specs = made["spec"]["pytorchReplicaSpecs"]
    assert (made["apiVersion"], made["kind"], made["spec"]["nprocPerNode"]) == (
        "kubeflow.org/v1",
        "PyTorchJob",
        "8",
    )
    assert (specs["Master"]["replicas"], specs["Worker"]["replicas"]) == (1, 1)
    for pod in specs.values():
        (container,) = pod["template"]["spec"]["containers"]
        assert container["name"] == "pytorch"
        assert container["command"] == ["torchrun", "--nnodes=2", "--nproc-per-node=8", "train.py"]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert (
        "Worker" not in yaml.safe_load(written("kubernetes", asked(nodes=1)))["spec"]["pytorchReplicaSpecs"]
    )


def test_pods_unlike_one_another_are_told() -> None:
    made = yaml.safe_load(written("kubernetes", asked()))
    made["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["resources"]["limits"][
        "nvidia.com/gpu"
    ] = 4
    del made["spec"]["nprocPerNode"]
    assert reading(yaml.safe_dump(made)).problems


@pytest.mark.parametrize("cards", ["{A100: 8, H100: 8}", "[A100:8, H100:8]", "tpu-v5p-8", "8", "'A100:many'"])
def test_a_choice_of_cards_is_no_count(cards: str) -> None:
    found = reading(f"num_nodes: 2\nresources:\n  accelerators: {cards}\n")
    assert found.problems or found.unknown
    assert "@gpus" not in found.request


def test_a_task_as_people_write_it() -> None:
    text = (
        "name: t\nresources:\n    accelerators: A100:8\nnum_nodes: 2\nsetup: |\n    true\nrun: |\n    "
        "torchrun main.py\n"
    )
    found = reading(text)
    assert (found.form.name, found.request["@gpus"], found.unknown) == ("skypilot", 16, ())


def test_ranks_that_come_and_go_are_not_modelled() -> None:
    made = yaml.safe_load(written("kubernetes", asked()))
    made["spec"]["elasticPolicy"] = {"minReplicas": 1, "maxReplicas": 4}
    assert dict(reading(yaml.safe_dump(made)).unmodelled) == {
        "spec.elasticPolicy.minReplicas": 1,
        "spec.elasticPolicy.maxReplicas": 4,
    }


@pytest.mark.parametrize("name", ["skypilot", "slurm"])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_around_a_server_its_script_is_run(name: str, engine: str) -> None:
    form, question = find_format(name), asked(nodes=1, task="infer", engine=engine)
    text = written(name, question)
    assert f"bash {engine}.sh" in text
    assert "torchrun" not in text
    assert form.along(question) == (engine,)
    found = reading(text)
    assert (found.request["task"], found.request["@gpus"], found.unknown) == ("infer", 8, ())
    assert reading(written(name, asked(nodes=1))).request["task"] == "train"


@pytest.mark.parametrize("name", ["skypilot", "slurm"])
def test_a_server_over_several_nodes_is_not_one_script(name: str) -> None:
    with pytest.raises(InputError, match="not one command"):
        written(name, asked(nodes=2, task="infer", engine="vllm"))


# ---- what the engines' own schemas say ---------------------------------------------------------------------

TASK = {
    "name", "workdir", "event_callback", "num_nodes", "resources", "file_mounts", "service", "pool", "setup", "run", "envs", "secrets", "managed_secrets",
    "inputs", "outputs", "file_mounts_mapping", "config", "volumes", "volume_mounts", "api_server_access",
}  # fmt: skip
RESOURCES = {
    "cloud", "region", "zone", "infra", "cpus", "memory", "accelerators", "instance_type", "use_spot", "job_recovery", "volumes", "disk_size",
    "ephemeral_storage", "disk_tier", "network_tier", "local_disk", "max_hourly_cost", "ports", "labels", "accelerator_args", "image_id", "autostop",
    "priority", "priority_class", "any_of", "ordered",
}  # fmt: skip
"""All properties of get_task_schema and get_resources_schema, skypilot-org/skypilot 00052df
sky/utils/schemas.py, less those it keeps to itself (_…).
"""


def known(form: Any, at: str) -> bool:
    told = {key.at for key in form.keys} | form.known | set(form.unmodelled)
    return any(one == at or one.startswith(f"{at}.") for one in told)


@every("at", [*sorted(TASK), *(f"resources.{name}" for name in sorted(RESOURCES))])
def test_every_key_of_skypilot_is_known(at: str) -> None:
    assert known(find_format("skypilot"), at)


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_task_has_only_keys_and_types_of_skypilots_schema(nodes: int) -> None:
    made = yaml.safe_load(written("skypilot", asked(nodes=nodes, **{"allocator.expandable_segments": True})))
    assert set(made) <= TASK
    assert set(made["resources"]) <= RESOURCES
    texts = {
        "name": made["name"],
        "run": made["run"],
        "workdir": made["workdir"],
        "accelerators": made["resources"]["accelerators"],
        **made["envs"],
    }
    assert all(isinstance(text, str) for text in texts.values())
    assert all(re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) for name in made["envs"])
    assert type(made["num_nodes"]) is int


@pytest.mark.parametrize(("cards", "count"), [("{A100: 8}", 8), ("{H100: }", 1), ("A100", 1)])
def test_one_kind_of_card_is_a_count(cards: str, count: int) -> None:
    found = reading(f"num_nodes: 2\nresources:\n  accelerators: {cards}\n")
    assert (found.request["@gpus"], found.problems, found.unknown) == (2 * count, (), ())


def test_what_skypilot_refuses_stops() -> None:
    found = reading("num_nodes: 2\nexperimental: {a: 1}\nresources:\n  acelerators: A100:8\nrun: train\n")
    assert {at for at, _ in found.unknown} == {"resources.acelerators", "experimental.a"}
    assert "resources" in found.form.strict


INTEGER, TEXT, EITHER = (int,), (str,), (int, str)
CONTAINER = {
    "name": TEXT, "image": TEXT, "command": [TEXT], "env": [{"name": TEXT, "value": TEXT}], "resources": {"limits": {"nvidia.com/gpu": EITHER}},
}  # fmt: skip
REPLICAS = {"replicas": INTEGER, "restartPolicy": TEXT, "template": {"spec": {"containers": [CONTAINER]}}}
JOB = {
    "apiVersion": TEXT, "kind": TEXT, "metadata": {"name": TEXT},
    "spec": {"nprocPerNode": TEXT, "pytorchReplicaSpecs": {"Master": REPLICAS, "Worker": REPLICAS}},
}  # fmt: skip
"""Fields of kubeflow/training-operator ee11629 manifests/base/crds/kubeflow.org_pytorchjobs.yaml that are
written, with their types.
"""
REQUIRED = (
    ("spec", "pytorchReplicaSpecs"),
    ("spec", "pytorchReplicaSpecs", "Master", "template", "spec", "containers"),
)


def agrees(value: Any, schema: Any) -> bool:
    if isinstance(schema, dict):
        return isinstance(value, dict) and all(
            key in schema and agrees(held, schema[key]) for key, held in value.items()
        )
    if isinstance(schema, list):
        return isinstance(value, list) and all(agrees(held, schema[0]) for held in value)
    return type(value) in schema


@pytest.mark.parametrize("nodes", [1, 2, 9])
@pytest.mark.parametrize("switched", [None, True])
def test_a_job_agrees_with_the_schema_of_its_kind(nodes: int, switched: bool | None) -> None:
    made = yaml.safe_load(
        written("kubernetes", asked(nodes=nodes, **{"allocator.expandable_segments": switched}))
    )
    assert agrees(made, JOB)
    for path in REQUIRED:
        held = made
        for key in path:
            held = held[key]
        assert held
    assert made["spec"]["pytorchReplicaSpecs"]["Master"]["restartPolicy"] in (
        "Always",
        "OnFailure",
        "Never",
        "ExitCode",
    )


def test_another_kind_of_object_is_not_taken_for_a_job() -> None:
    with pytest.raises(InputError, match="no server's command"):
        reading("apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: a\n")


FOREIGN = (
    ("kubeflow.org/v1", "MPIJob"), ("sparkoperator.k8s.io/v1beta2", "SparkApplication"), ("batch.volcano.sh/v1alpha1", "Job2"),
    ("v1", "Service"), ("v1", "ConfigMap"),
)  # fmt: skip


@pytest.mark.parametrize(("version", "kind"), FOREIGN)
def test_an_object_of_a_kind_that_is_not_read_is_named_and_of_no_other_format(
    version: str, kind: str
) -> None:
    """Neither a job of PyTorch nor the server whose command stands somewhere in it: which of its containers
    runs is its operator's to say.
    """
    inside = (
        "spec:\n  predictor:\n    containers:\n    - args:\n      - vllm serve m --tensor-parallel-size 2\n"
    )
    for spec in ("", "spec: {model: {args: [--model_id=m]}}\n", inside):
        text = f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}\n{spec}"
        for whole in (text, f"apiVersion: v1\nkind: Service\n---\n{text}"):
            with pytest.raises(InputError, match=f"{kind} of {version}, a kind that is not read"):
                reading(whole)
        name, text = "a.yaml", f"apiVersion: {version}\nkind: {kind}\n{spec}"
        reads, left = recognise_files({name: text, "b.sh": "vllm serve m\n"}, {name})
        assert list(reads) == ["b.sh"]
        assert left == (
            f"{name}: is a{'n' * (kind[0] in 'AEIOU')} {kind} of {version}, a kind that is not read",
        )
    with pytest.raises(InputError, match="is not recognised"):
        reading("apiVersion: v2\nname: a-chart\nversion: 1.0.0\n")


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_folders_pod_that_serves_nothing_is_named_and_the_rest_is_read(kind: str) -> None:
    """A proxy or a database beside the server. Named itself it is refused, and so is a folder that holds
    nothing else.
    """
    text = (
        f"apiVersion: apps/v1\nkind: {kind}\nspec:\n  containers:\n  - {{name: a, image: nginx, "
        f"command: [nginx, -g, daemon off]}}\n"
    )
    reads, left = recognise_files({"a.yaml": text, "b.sh": "vllm serve m\n"}, {"a.yaml", "b.sh"})
    assert (list(reads), [one.partition(":")[0] for one in left]) == (["b.sh"], ["a.yaml"])
    assert kind in left[0]
    assert NO_SERVER in left[0]
    for texts, folder in (
        ({"a.yaml": text, "b.sh": "vllm serve m\n"}, set()),
        ({"a.yaml": text}, {"a.yaml"}),
    ):
        with pytest.raises(InputError):
            recognise_files(texts, folder)


@pytest.mark.parametrize("name", ["slurm", "skypilot", "torchrun"])
def test_the_older_name_of_the_allocators_variable_is_read(name: str) -> None:
    text = written(name, asked(**{"allocator.expandable_segments": True}))
    assert "PYTORCH_ALLOC_CONF" in text
    assert (
        reading(text.replace("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")).request[
            "allocator.expandable_segments"
        ]
        is True
    )
