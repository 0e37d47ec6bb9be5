"""One server of a file that starts several: its name there, and its command as the text of a script."""

from __future__ import annotations

from memsheet.exchange.shared.file_format import Container
from memsheet.frozen import dataclass, replace

GPU = "nvidia.com/gpu"
RESOURCES = (GPU, "amd.com/gpu")
"""What a pod calls whole cards (NVIDIA/k8s-device-plugin and ROCm/k8s-device-plugin, README.md)."""
FOREIGN, NO_SERVER = "a kind that is not read", "in which no server's command stands"
"""Of objects in a cluster's file, and of a file, that hold no server."""
DEVICES = "deploy.resources.reservations.devices"
BESIDE_RUNTIME = f"{DEVICES} (beside runtime: nvidia)"
"""Compose before 1.28 leaves out what is under ``deploy``, and the runtime then gives all cards
(docs.docker.com/compose/how-tos/gpu-support, Use of service runtime property from Compose v2.3 format).
"""
MOST_SERVERS = 8
"""Servers of one file that are checked; the others are named."""


@dataclass(frozen=True, slots=True)
class NamedServer:
    """``gpus``: cards that are given to it alone, None where nobody said; ``at``: where the file says it.
    ``together``: others of the file may run on the same cards at the same time; ``cards``: those that are
    named for it, by their numbers; ``after``: servers that are up before it starts. ``left_out``: what the
    file changes of the server beside its command, by key, which no sheet has. ``container``: what it runs in.
    """

    name: str
    script: str
    gpus: int | None = None
    at: str = GPU
    together: bool = False
    remarks: tuple[str, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    cards: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    container: Container | None = None


def joined_script(servers: tuple[NamedServer, ...]) -> str:
    """The script that starts all of them, in their order."""
    return "\n".join(one.script for one in servers)


def with_own_names(servers: list[NamedServer]) -> tuple[NamedServer, ...]:
    """The servers with a number behind each name that another has, too."""
    names = [one.name for one in servers]
    return tuple(
        replace(one, name=f"{one.name} {names[: at + 1].count(one.name)}")
        if names.count(one.name) > 1
        else one
        for at, one in enumerate(servers)
    )
