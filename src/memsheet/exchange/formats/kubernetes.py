"""A PyTorchJob of Kubeflow around ``torchrun``: ``kubectl apply -f kubernetes.yaml``, once the image and the
script's arguments are filled in.

The operator gives each pod its rank and the first one's address as ``PET_*``, torchrun's own environment
(kubeflow/trainer pull request 1840; torch/distributed/argparse_util.py:15 at 2.13.0). A node of the plan is a
pod: the first the Master, the others Workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.allocator_env import ALLOCATOR, OLDER, ON, read_allocator_conf
from memsheet.exchange.shared.file_format import Format, Key, Values
from memsheet.exchange.shared.named_server import GPU, RESOURCES
from memsheet.patterns import late_pattern

VERSION = "PyTorchJob kubeflow.org/v1 (Kubeflow's training operator since its pull request 1840)"
COMMIT = (
    "ee11629"  # every field below is of kubeflow/training-operator ee1162919408cbca4a899f2916cfcd0ecd562881
)
SOURCE = f"kubeflow/training-operator {COMMIT} manifests/base/crds/kubeflow.org_pytorchjobs.yaml"
SPECS = "spec.pytorchReplicaSpecs"
MASTER, WORKER = f"{SPECS}.Master", f"{SPECS}.Worker"
PODS = "template.spec.containers"
IMAGE = "registry.example/your-image-with-torch:tag"
_PLAIN = late_pattern(r"[^a-z0-9-]+")


def _pytorchjob_name(asked: Values) -> str:
    """A DNS label (Kubernetes, names of objects): small letters, digits and dashes; a letter first, short
    enough for the pods' suffixes.
    """
    plain = _PLAIN.sub("-", str(asked.get("@model") or "").lower()).strip("-")
    return f"memsheet-{plain}"[:48].rstrip("-")


def _pytorch_containers(asked: Values) -> list[dict[str, Any]]:
    """The one container; the operator looks for it by the name pytorch. Arguments are a list: no shell reads
    them.
    """
    flags = [f"--nnodes={asked['@nodes']}", f"--nproc-per-node={asked['@per_node']}"]
    env = {"env": [{"name": ALLOCATOR, "value": ON}]} if asked.get("allocator.expandable_segments") else {}
    return [
        {
            "name": "pytorch",
            "image": IMAGE,
            "command": ["torchrun", *flags, "train.py"],
            **env,
            "resources": {"limits": {GPU: asked["@per_node"]}},
        }
    ]


def _read_containers(value: Any, values: Values) -> Mapping[str, Any]:
    """Cards of a pod, and its allocator's settings."""
    held = [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
    one = next((one for one in held if one.get("name") == "pytorch"), {})
    found: dict[str, Any] = {}
    each = {
        repr(count): count
        for at in (MASTER, WORKER)
        if (count := _pod_gpu_limit(values.get(f"{at}.{PODS}"))) is not None
    }
    if each:
        count = (
            next(iter(each.values())) if len(each) == 1 else list(each.values())
        )  # pods unlike one another are no count
        nodes, found["@per_node"] = _pytorchjob_nodes(values), count
        found |= {"@gpus": count * nodes} if isinstance(count, int) and isinstance(nodes, int) else {}
    for variable in one.get("env") or () if isinstance(one.get("env"), list) else ():
        if isinstance(variable, Mapping) and variable.get("name") in (ALLOCATOR, OLDER):
            found |= read_allocator_conf(variable.get("value"), values)
    return found


def _pod_gpu_limit(containers: Any) -> Any:
    """The limit of GPUs of a pod's containers that have one, a text of digits as its number."""
    for one in containers if isinstance(containers, list) else ():
        resources = one.get("resources") if isinstance(one, Mapping) else None
        limits = resources.get("limits") if isinstance(resources, Mapping) else None
        counts = [limits[name] for name in RESOURCES if name in limits] if isinstance(limits, Mapping) else []
        if counts:
            count = counts[0]
            return int(count) if isinstance(count, str) and count.isdigit() and len(count) < 8 else count
    return None


def _pytorchjob_nodes(values: Values) -> Any:
    """Pods of both kinds; what is no count is handed on, to be told."""
    counts = [
        values.get(f"{MASTER}.replicas", 1 if any(at.startswith(MASTER) for at in values) else 0),
        values.get(f"{WORKER}.replicas", 0),
    ]
    strange = [count for count in counts if not isinstance(count, int) or isinstance(count, bool)]
    return strange[0] if strange else sum(counts)


def _per_pod(value: Any, values: Values) -> Mapping[str, Any]:
    """Processes of a pod: a number, which is a text here, or a word for what the pod has."""
    if not str(value).isdigit() or len(str(value)) > 7:
        return {}
    nodes = _pytorchjob_nodes(values)
    return {"@per_node": int(value), **({"@gpus": int(value) * nodes} if isinstance(nodes, int) else {})}


def _replica_rows(at: str, *, alone: bool) -> tuple[Key, ...]:
    """The rows of one kind of pod. ``alone``: it is there even in a job of one node."""
    return (
        Key(at=f"{at}.replicas", out=lambda a: 1 if alone else (a["@nodes"] - 1 or None), back=lambda _, values: {"@nodes": _pytorchjob_nodes(values)}, source=SOURCE),
        Key(at=f"{at}.restartPolicy", out=lambda a: "Never" if alone or a["@nodes"] > 1 else None, back=lambda *_: {}, source=SOURCE),
        Key(at=f"{at}.{PODS}", out=lambda a: _pytorch_containers(a) if alone or a["@nodes"] > 1 else None, back=_read_containers, source=SOURCE),
    )  # fmt: skip


FORMAT = Format(
    name="kubernetes", file="kubernetes.yaml", kind="yaml", tested=VERSION,
    engines=("transformers", "fsdp2", "fsdp1", "deepspeed", "torchtitan", "megatron", "torchtune", "litgpt", "llm-foundry", "internevo"),
    keys=(
        Key(at="metadata.name", out=_pytorchjob_name, back=lambda *_: {}, source="kubernetes.io/docs/concepts/overview/working-with-objects/names"),
        *_replica_rows(MASTER, alone=True), *_replica_rows(WORKER, alone=False),
        Key(at="spec.nprocPerNode", out=lambda a: str(a["@per_node"]), back=_per_pod, source="kubeflow/trainer pull request 1840"),
    ),
    fixed=lambda _: {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"},
    marks=frozenset({"apiVersion"}), needs={"kind": "PyTorchJob"}, beside=frozenset({"*"}),
    known=frozenset({
        "apiVersion", "kind", "metadata.*", "status.*", "spec.runPolicy.schedulingPolicy.*", *(f"spec.runPolicy.{name}" for name in (
            "activeDeadlineSeconds", "backoffLimit", "cleanPodPolicy", "managedBy", "suspend", "ttlSecondsAfterFinished",
        )), *(f"{at}.template.*" for at in (MASTER, WORKER)),
        "spec.elasticPolicy.rdzvBackend", "spec.elasticPolicy.maxRestarts", "spec.elasticPolicy.rdzvPort", "spec.elasticPolicy.rdzvHost",
        "spec.elasticPolicy.rdzvId", "spec.elasticPolicy.rdzvConf", "spec.elasticPolicy.standalone", "spec.elasticPolicy.metrics",
    }),
    unmodelled={f"spec.elasticPolicy.{name}": () for name in ("minReplicas", "maxReplicas", "nProcPerNode")},  # ranks that come and go
    strict=("", "spec", "spec.elasticPolicy", "spec.runPolicy", SPECS, MASTER, WORKER),  # kubectl apply: --validate=strict is its default
    said={"task": "train"},
)  # fmt: skip
