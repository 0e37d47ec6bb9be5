"""A cluster as a small file (``memsheet/cluster/1``, TOML, YAML or JSON): which devices, how many, what a
node has, how fast its links are.

Links are of one device in one direction, as everywhere in memsheet: datasheets like to count both directions,
and sellers all cards of a node, so what can only be such a figure is refused. What the file leaves open is
the catalogue's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memsheet.catalog import find_device
from memsheet.errors import InputError, Problem, input_error, nearest_words, raise_if_problems
from memsheet.frozen import dataclass, replace
from memsheet.guard import is_file, parse_yaml, read_bytes, read_json
from memsheet.guard.toml import read_toml
from memsheet.plan.device import (
    MAX_DEVICES,
    MIXED,
    MIXED_HINT,
    UNSAID,
    Cluster,
    Device,
    Links,
    cluster_of,
    parse_gpus,
)
from memsheet.readers.cluster_links import KEYS as LINK_KEYS
from memsheet.readers.cluster_links import bidirectional_rate_problems, links_of, printable_scalar
from memsheet.readers.fields import Fields
from memsheet.units import parse_bytes

SCHEMA = "memsheet/cluster/1"
KEYS = ("schema", "device", "count", "nodes", "per_node", "host_memory", "links")
MEANT = {"gpus": 'say device = "H100-80GB" and count = 64', "name": "a cluster needs none"}
"""Keys of other files, and what stands for them here."""
MIXABLE = ("device", "devices", "groups", "node", "nodes", "node_groups", "count", "per_node", "host_memory")
HOST_HIGH = 2**50
"""1 PiB: no node has more memory."""
MAX_NAMES = 100
MAX_FILE_BYTES = 16 * 2**10
MAX_UNKNOWN = 20
"""Keys that are told; a file with more is something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFile:
    """What a file says; None where it says nothing. ``links`` are those it names, without the catalogue's."""

    name: str
    device: Device
    count: int | None = None
    nodes: int | None = None
    per_node: int | None = None
    host_bytes: int | None = None
    links: Links = UNSAID

    def cluster(self) -> Cluster:
        """The whole cluster. Raises InputError where the file does not say how many devices there are, or
        they fill no whole nodes.
        """
        count = self.count
        if (
            count is None
            and self.nodes is not None
            and (size := self.per_node or self.device.per_node) is not None
        ):
            count = self.nodes * size
        if count is None:
            what, hint = (
                ("per_node", "say per_node = 8")
                if self.nodes
                else ("count", "say count = 64, or nodes and per_node")
            )
            raise input_error(f"{self.name}.{what}", None, "is missing", hint)
        try:
            return cluster_of(
                self.device,
                count,
                per_node=self.per_node,
                nodes=self.nodes,
                host_bytes=self.host_bytes,
                links=self.links,
            )
        except InputError as error:
            raise InputError(_file_key_problem(self.name, problem) for problem in error.problems) from None


def _file_key_problem(name: str, problem: Problem) -> Problem:
    """A problem of the layout, under the file's keys."""
    field = {"gpus": "count"}.get(problem.field, problem.field)
    hint = problem.hint.replace("--per-node", "per_node").replace("--nodes", "nodes")
    return Problem(field=f"{name}.{field}", value=problem.value, reason=problem.reason, hint=hint)


def read_cluster(source: Any) -> ClusterFile:
    """The cluster in a file, or in a mapping of the same keys. Raises InputError with every problem of it."""
    if isinstance(source, Mapping):
        return cluster_from(source, "cluster")
    path = Path(str(source))
    return cluster_from(_parse_cluster_file(path), path.name)


def read_described_cluster(source: Any, flags: Mapping[str, Any]) -> Cluster:
    """The cluster of a file; what ``flags`` say of ``gpus``, ``nodes``, ``per_node`` and ``host_memory``
    besides may only be the same.
    """
    found = read_cluster(source).cluster()
    raise_if_problems(_flag_conflicts(found, flags))
    return found if isinstance(source, Mapping) else replace(found, file=str(source))


def _flag_conflicts(cluster: Cluster, flags: Mapping[str, Any]) -> Iterator[Problem]:
    count, name = (
        parse_gpus(str(flags["gpus"])) if flags["gpus"] is not None else (cluster.count, cluster.device.name)
    )
    host = (
        cluster.host_bytes
        if flags["host_memory"] is None
        else parse_bytes(str(flags["host_memory"]), "host_memory")
    )
    held = f"{cluster.host_bytes:,} bytes" if cluster.host_bytes else "nothing"
    said = {
        "gpus": (
            (find_device(name).name, count) == (cluster.device.name, cluster.count),
            f"{cluster.count}x{cluster.device.name}",
        ),
        "nodes": (flags["nodes"] in (None, cluster.nodes), cluster.nodes),
        "per_node": (flags["per_node"] in (None, cluster.per_node), cluster.per_node),
        "host_memory": (host == cluster.host_bytes, held),
    }
    for key, (same, there) in said.items():
        if not same:
            yield Problem(
                field=key,
                value=flags[key],
                reason=f"is not what the cluster file says: {there}",
                hint="say it in one place",
            )


def _parse_cluster_file(path: Path) -> Mapping[str, Any]:
    kind = path.suffix.lower()
    if kind not in (".toml", ".yaml", ".yml", ".json"):
        raise input_error(
            "cluster",
            str(path),
            "is no kind of file that describes a cluster",
            "name it .toml, .yaml or .json",
        )
    if not is_file(path):
        raise input_error("cluster", str(path), "is not a file")
    if kind == ".toml":
        return read_toml(path)
    if kind == ".json":
        return read_json(path, max_bytes=MAX_FILE_BYTES)
    found = parse_yaml(read_bytes(path, MAX_FILE_BYTES), str(path))
    if not isinstance(found, dict):
        raise input_error("cluster", str(path), "holds no keys and values")
    return found


def cluster_from(values: Mapping[str, Any], name: str) -> ClusterFile:
    """The cluster that ``values`` describe; ``name`` stands before the keys in errors."""
    fields = Fields(values, name)
    fields.problems += _mixed_hardware_problems(values, name)
    fields.done()  # of nodes that differ nothing else is worth telling
    _check_cluster_keys(fields, KEYS)
    fields.text("schema", default=SCHEMA, choices=(SCHEMA,))
    device = _cluster_device(fields)
    sizes = {key: fields.optional(key, high=MAX_DEVICES) for key in ("count", "nodes", "per_node")}
    laid_out = not any(problem.field in [f"{name}.{key}" for key in sizes] for problem in fields.problems)
    host, links = _host_memory_bytes(fields), _cluster_links(fields.sub("links"))
    if device is None:
        raise InputError(fields.problems)
    found = ClusterFile(name=name, device=device, host_bytes=host, links=links, **sizes)
    fields.problems += bidirectional_rate_problems(links, device, f"{name}.links")
    fields.problems += _layout_problems(found) if laid_out else ()
    fields.done()
    return found


def _layout_problems(found: ClusterFile) -> tuple[Problem, ...]:
    """Why the counts do not agree; a file may leave them all open for a command that finds them."""
    if found.count is None and found.nodes is None:
        return ()
    try:
        found.cluster()
    except InputError as error:
        return error.problems
    return ()


def _mixed_hardware_problems(values: Mapping[str, Any], name: str) -> Iterator[Problem]:
    """Nodes or devices that differ, however a file says so."""
    for key in MIXABLE:
        if isinstance(values.get(key), list | Mapping):
            yield Problem(
                field=f"{name}.{key}",
                value=_device_name_list(values[key]),
                reason=MIXED,
                hint=_smallest_device_hint(values[key]),
            )


def _device_name_list(value: Any) -> str | None:
    """The devices that a list names, for the error."""
    return ", ".join(_listed_device_names(value)) or None


def _listed_device_names(value: Any) -> list[str]:
    parts = list(value.items()) if isinstance(value, Mapping) else [(None, each) for each in value]
    found: list[str] = []
    for key, part in parts[:MAX_NAMES]:
        named = part.get("device", key) if isinstance(part, Mapping) else part
        if isinstance(named, str):
            found.append(named)
    return found


def _smallest_device_hint(value: Any) -> str:
    """What to do instead: the device with the least memory, where the list names devices."""
    known = [device for name in _listed_device_names(value) if (device := _device_or_none(name)) is not None]
    if not known:
        return MIXED_HINT
    least = min(known, key=lambda device: device.framework_bytes)
    return f'plan for the smallest: device = "{least.name}", and as many of it as there are devices in all'


def _device_or_none(name: str) -> Device | None:
    try:
        return find_device(name)
    except InputError:
        return None


def _check_cluster_keys(fields: Fields, keys: tuple[str, ...]) -> None:
    unknown = [str(key) for key in fields.data if key not in keys]
    for key in unknown[:MAX_UNKNOWN]:
        near = nearest_words(key, keys)
        hint = MEANT.get(key) or (f"did you mean {near[0]}?" if near else f"there are {', '.join(keys)}")
        fields.wrong(key, printable_scalar(fields.data.get(key)), "is no key of a cluster", hint)


def _cluster_device(fields: Fields) -> Device | None:
    name = fields.text("device", default="")
    if not name:
        if not fields.data.get("device"):
            fields.wrong("device", None, "is missing", 'say device = "H100-80GB"; `memsheet gpus` lists all')
        return None
    try:
        return find_device(name)
    except InputError as error:
        fields.problems += [
            Problem(field=f"{fields.where}.device", value=p.value, reason=p.reason, hint=p.hint)
            for p in error.problems
        ]
        return None


def _host_memory_bytes(fields: Fields) -> int | None:
    """Host memory of one node."""
    said = fields.data.get("host_memory")
    if said is None:
        return None
    if not isinstance(said, str):
        fields.wrong("host_memory", said, "has no unit", 'say for example host_memory = "2TiB", of one node')
        return None
    try:
        size = parse_bytes(said, f"{fields.where}.host_memory")
    except InputError as error:
        fields.problems += error.problems
        return None
    if not 0 < size <= HOST_HIGH:
        fields.wrong(
            "host_memory",
            said,
            "is no memory that a node has",
            "it is of one node, above 0 and at most 1 PiB",
        )
        return None
    return size


def _cluster_links(fields: Fields) -> Links:
    _check_cluster_keys(fields, LINK_KEYS)
    return links_of(fields)
