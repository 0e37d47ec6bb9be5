"""What a server's container is given of its node, against what the server holds there."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet

ADAPTERS = "--enable-lora, --max-loras, '4', --max-lora-rank, '32'"
POD = """apiVersion: v1
kind: Pod
metadata: {{name: llm}}
spec:
  {spec}
  containers:
  - name: server
    image: vllm/vllm-openai:v0.10.2
    args: [--model, Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4, --tensor-parallel-size, '{ranks}', --max-model-len, '8192', """
POD += (
    ADAPTERS
    + """]
    {mounts}
    resources: {{limits: {{nvidia.com/gpu: {ranks}, memory: {memory}}}}}
"""
)
SERVICE = """services:
  llm:
    image: vllm/vllm-openai:v0.10.2
    command: [--model, Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4, --tensor-parallel-size, '4', --max-model-len, '8192', """
SERVICE += (
    ADAPTERS
    + """]
    {limits}
"""
)
MOUNTED = "volumeMounts: [{name: shm, mountPath: /dev/shm}]"


def mistakes(text: str, folder: Path) -> set[str]:
    path = folder / "server.yaml"
    path.write_text(text)
    return {rule.id for rule, _ in memsheet.check(path, gpus="4xL40S").mistakes}


@pytest.mark.parametrize(
    ("memory", "short"),
    [("6Gi", True), ("6442450944", True), ("12G", True), ("64Gi", False), ("0.1Ti", False)],
)
def test_a_limit_of_memory_below_what_the_host_holds_is_told(
    memory: str, short: bool, tmp_path: Path
) -> None:
    found = mistakes(POD.format(spec="", ranks=4, mounts=MOUNTED, memory=memory), tmp_path)
    assert ("pod-host-memory" in found) is short


def test_memory_that_the_node_lacks_is_in_the_verdict(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(POD.format(spec="", ranks=4, mounts=MOUNTED, memory="6Gi"))
    answer = memsheet.check(tmp_path / "pod.yaml", gpus="4xL40S").answer
    assert answer is not None
    assert answer.verdict is not None
    assert answer.verdict.host_short_bytes == 4 * max(s.host_bytes for s in answer.sheets) - 6 * 2**30


@pytest.mark.parametrize(
    ("spec", "ranks", "mounts", "small"),
    [("", 4, "", True), ("", 4, MOUNTED, False), ("hostIPC: true", 4, "", False), ("", 1, "", False)],
)
def test_ranks_that_share_the_runtimes_own_shared_memory_are_told(
    spec: str, ranks: int, mounts: str, small: bool, tmp_path: Path
) -> None:
    text = POD.format(spec=spec, ranks=ranks, mounts=mounts, memory="64Gi")
    (tmp_path / "server.yaml").write_text(text)
    found = memsheet.check(tmp_path / "server.yaml", gpus=f"{ranks}xH100-80GB").mistakes
    assert any(rule.id == "pod-shared-memory" for rule, _ in found) is small


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ("mem_limit: 6g", {"pod-host-memory", "pod-shared-memory"}),
        ("deploy: {resources: {limits: {memory: 6000M}}}", {"pod-host-memory", "pod-shared-memory"}),
        ("shm_size: 2gb", set()), ("ipc: host", set()), ("volumes: ['/dev/shm:/dev/shm']", set()), ("mem_limit: 64gb", {"pod-shared-memory"}),
    ],
)  # fmt: skip
def test_a_service_of_compose_says_both_in_its_own_words(limits: str, told: set[str], tmp_path: Path) -> None:
    assert (
        mistakes(SERVICE.format(limits=limits), tmp_path) & {"pod-host-memory", "pod-shared-memory"} == told
    )
