"""Mistakes of a server's container, in a pod or a service: what it is given of its node is less than the
server takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from memsheet.exchange.mistakes.case import Case, FoundMistake, Rule
from memsheet.exchange.shared.file_format import FileReading
from memsheet.plan.engine_registry import engine_of
from memsheet.units import MIB, format_bytes

POD_HOST_MEMORY = "pod-host-memory"
DEFAULT_SHM = 64 * 2**20
"""Bytes of /dev/shm where a container mounts nothing there
(docs.docker.com/reference/cli/docker/container/run, --shm-size; containerd's default mounts).
"""
SHM_CURES = {
    "volumes": "an emptyDir with medium: Memory and sizeLimit: 2Gi or more, mounted at /dev/shm",
    "shm_size": "shm_size: 2gb or more, or ipc: host",
}
MESSAGES = {"vllm": 10 * 16 * MIB}
"""Bytes of the ring through which the scheduler reaches its ranks: ten messages of
VLLM_MQ_MAX_CHUNK_BYTES_MB, 16 MiB (vllm/v1/executor/multiproc_executor.py, rpc_broadcast_mq;
vllm/distributed/device_communicators/shm_broadcast.py, MessageQueue), of which memory is taken as messages
come.
"""


def _little_container_memory(case: Case) -> Iterator[FoundMistake]:
    """A limit of memory below what the server holds on the host. Files that are mapped are no container's
    own.
    """
    answer = case.answer
    if answer is None or engine_of(answer.plan).stores_gguf:
        return
    need = max((int(sheet.host_bytes) for sheet in answer.sheets), default=0)
    ranks = answer.cluster.per_node if answer.cluster else 1
    for name, read in case.reads.items():
        given, at = (read.container.host_bytes, read.container.memory_at) if read.container else (None, "")
        if given is not None and given < need * ranks:
            of = f", {format_bytes(need * ranks)} on a node of {ranks}" if ranks > 1 else ""
            yield FoundMistake(
                where=f"{name}: {at}",
                says=(
                    f"gives the container {format_bytes(given, headroom=True)} of its node's memory, and "
                    f"the sheet has {format_bytes(need)} a rank there{of}: a container that holds more is "
                    "stopped (OOMKilled, exit code 137)"
                ),
                cure=f"more than {format_bytes(need * ranks)}, and room for the processes themselves",
            )


def _small_shared_memory(case: Case) -> Iterator[FoundMistake]:
    """Several ranks of one container that talk to each other through a /dev/shm of the runtime's own size."""
    ranks = case.answer.cluster.per_node if case.answer and case.answer.cluster else 1
    for name, read in case.reads.items():
        ring = MESSAGES.get(read.form.name)
        if ring is not None and ranks > 1 and read.container and read.container.small_shm:
            yield FoundMistake(
                where=f"{name}: {read.container.shm_at}",
                says=(
                    f"mounts nothing at /dev/shm, which has {format_bytes(DEFAULT_SHM)} then, and the "
                    f"server's {ranks} ranks share a ring of {format_bytes(ring)} there, beside NCCL's: "
                    "a rank may die of SIGBUS"
                ),
                cure=SHM_CURES[read.container.shm_at],
            )


def container_memory(reads: Mapping[str, FileReading]) -> int | None:
    """Bytes that the containers of files may take of a node; None where no limit is said."""
    asked = (read.container.host_bytes for read in reads.values() if read.container)
    return min(filter(None, asked), default=None)


PODS = (
    Rule(id=POD_HOST_MEMORY, source="kubernetes.io/docs/concepts/configuration/manage-resources-containers: memory limits are enforced by the kernel with out of memory kills", looks=_little_container_memory, beyond=True),
    Rule(id="pod-shared-memory", source="vllm-project/vllm 051f9b87 docs/deployment/k8s.md: an emptyDir of memory at /dev/shm for tensor parallel inference", looks=_small_shared_memory),
)  # fmt: skip
