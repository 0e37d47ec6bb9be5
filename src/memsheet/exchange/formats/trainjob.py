"""A TrainJob of Kubeflow's Trainer around ``torchrun``: ``kubectl apply -f trainjob.yaml``, once the image
and the script's arguments are filled in.

The runtime gives each node its rank and the first one's address as ``PET_*``, torchrun's own environment
(kubeflow/trainer 8c0f505 pkg/runtime/framework/plugins/torch/torch.go:168). A node of the plan is a node of
the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.allocator_env import ALLOCATOR, OLDER, ON, read_allocator_conf
from memsheet.exchange.shared.file_format import Format, Key, Values
from memsheet.patterns import late_pattern

VERSION = "TrainJob trainer.kubeflow.org/v1alpha1 (Kubeflow Trainer 8c0f505)"
SOURCE = (
    "kubeflow/trainer 8c0f5059bd51ec3ba6d6a6a7b2e1471de7bc13b3 "
    "manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml"
)
T, GPU = "spec.trainer", "nvidia.com/gpu"
IMAGE = "registry.example/your-image-with-torch:tag"
RUNTIME = "torch-distributed"  # manifests/base/runtimes/torch_distributed.yaml
_PLAIN = late_pattern(r"[^a-z0-9-]+")


def _trainjob_name(asked: Values) -> str:
    """A DNS label: small letters, digits and dashes; a letter first, short enough for the pods' suffixes."""
    plain = _PLAIN.sub("-", str(asked.get("@model") or "").lower()).strip("-")
    return f"memsheet-{plain}"[:48].rstrip("-")


def _torchrun_command(asked: Values) -> list[str]:
    """Arguments are a list: no shell reads them."""
    return ["torchrun", f"--nnodes={asked['@nodes']}", f"--nproc-per-node={asked['@per_node']}", "train.py"]


def _trainer_env_entries(asked: Values) -> Any:
    return [{"name": ALLOCATOR, "value": ON}] if asked.get("allocator.expandable_segments") else None


def _read_trainer_env(value: Any, _: Values) -> Mapping[str, Any]:
    for one in value if isinstance(value, list) else ():
        if isinstance(one, Mapping) and one.get("name") in (ALLOCATOR, OLDER):
            return read_allocator_conf(one.get("value"), {})
    return {}


def _read_node_gpu_limit(value: Any, values: Values) -> Mapping[str, Any]:
    """Cards of a node: its limit, a text of digits as its number. Without one the runtime's own counts, which
    is not in the file.
    """
    limits = value.get("limits") if isinstance(value, Mapping) else None
    count = limits.get(GPU) if isinstance(limits, Mapping) else None
    if count is None or f"{T}.numProcPerNode" in values:
        return {}
    return _rank_count_keys(
        int(count) if isinstance(count, str) and count.isdigit() and len(count) < 8 else count, values
    )


def _rank_count_keys(value: Any, values: Values) -> Mapping[str, Any]:
    nodes = values.get(f"{T}.numNodes", 1)
    whole = all(isinstance(count, int) and not isinstance(count, bool) for count in (value, nodes))
    return {"@per_node": value, **({"@gpus": value * nodes} if whole else {})}


FORMAT = Format(
    name="trainjob", file="trainjob.yaml", kind="yaml", tested=VERSION,
    engines=("transformers", "fsdp2", "fsdp1", "deepspeed", "torchtitan", "megatron", "torchtune", "litgpt", "llm-foundry", "internevo"),
    keys=(
        Key(at="metadata.name", out=_trainjob_name, back=lambda *_: {}, source="kubernetes.io/docs/concepts/overview/working-with-objects/names"),
        Key(at=f"{T}.numNodes", says="@nodes", usual=1, source=SOURCE),
        Key(at=f"{T}.numProcPerNode", out=lambda a: a["@per_node"], back=_rank_count_keys, source=SOURCE),
        Key(at=f"{T}.resourcesPerNode", out=lambda a: {"limits": {GPU: a["@per_node"]}}, back=_read_node_gpu_limit, source=SOURCE),
        Key(at=f"{T}.env", out=_trainer_env_entries, back=_read_trainer_env, source=SOURCE),
        Key(at=f"{T}.command", out=_torchrun_command, back=lambda *_: {}, source=SOURCE),
    ),
    fixed=lambda _: {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "spec.runtimeRef.name": RUNTIME, f"{T}.image": IMAGE},
    marks=frozenset({"apiVersion"}), needs={"kind": "TrainJob"}, beside=frozenset({"*"}), whole=frozenset({f"{T}.resourcesPerNode"}),
    known=frozenset({
        "apiVersion", "kind", "metadata.*", "status.*", "spec.runtimeRef.name", "spec.runtimeRef.kind", "spec.runtimeRef.apiGroup", "spec.initializer.*",
        "spec.managedBy", "spec.suspend", "spec.activeDeadlineSeconds", f"{T}.image", f"{T}.args",
    }),
    unmodelled={"spec.runtimePatches": ()},  # another pod than the runtime's
    strict=("", "spec", T, "spec.runtimeRef"),  # kubectl apply: --validate=strict is its default
    said={"task": "train"},
)  # fmt: skip
