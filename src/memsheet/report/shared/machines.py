"""A cluster as the flags that describe it."""

from __future__ import annotations

from memsheet.plan.device import ONE_NODE, Cluster
from memsheet.units import GIB, KIB, MIB, TIB

SIZES = ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1, "B"))


def machine_flags(cluster: Cluster) -> str:
    """What a person adds to a command to ask about the same cluster: its file, or its count and what is not
    usual of it.
    """
    if cluster.file is not None:
        from shlex import quote

        return f"--cluster {quote(cluster.file)}"
    words = [f"--gpus {cluster.count}x{cluster.device.name}"]
    usual = min(cluster.count, cluster.device.per_node or ONE_NODE)
    if cluster.per_node != usual or (cluster.device.per_node is None and cluster.nodes > 1):
        words.append(f"--per-node {cluster.per_node}")
    if cluster.host_bytes is not None:
        words.append(f"--host-memory {_exact_size_text(cluster.host_bytes)}")
    return " ".join(words)


def _exact_size_text(size: int) -> str:
    """A size in the largest unit that divides it."""
    return next(f"{size // unit}{name}" for unit, name in SIZES if size % unit == 0)
