"""A server among the services of Docker Compose: its entrypoint and command as the line of a script, as of a
pod's container.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from memsheet.exchange.shared.file_format import Container
from memsheet.exchange.shared.named_server import BESIDE_RUNTIME, DEVICES, NamedServer
from memsheet.exchange.shared.serve_pods import command_line, starts_a_server, tree_of
from memsheet.guard import parse_yaml
from memsheet.patterns import late_pattern

_SERVICES = late_pattern(r"^\s{0,8}[\"']?services[\"']?\s*:", re.MULTILINE)
_VARIABLE = late_pattern(r"(\$\$|\$\{\w+(?::?[-=][^{}\"\\`]*)?\}|\$[A-Za-z_]\w*)")


def compose_servers(name: str, text: str, parse: Callable[[str, str], Any]) -> list[NamedServer]:
    """The servers of the services, in their order, each with the GPUs that it has reserved; none of texts of
    other kinds. A count is taken of all cards, so that two services may have the same; where all of
    them name theirs, who shares is known. Anchors and merges are the language's own
    (docs.docker.com/reference/compose-file/fragments).
    """
    del parse
    if not holds_services(text):
        return []
    tree = tree_of(partial(parse_yaml, aliases=True), name, text)
    services = tree.get("services") if tree else None
    held = services if isinstance(services, Mapping) else {}
    containers = {str(at): _service_container(one) for at, one in held.items() if isinstance(one, Mapping)}
    lines = {at: command_line(one, _quote_compose_word) for at, one in containers.items()}
    started = {at: one for at, one in containers.items() if starts_a_server(lines[at])}
    named = all(one["cards"] for one in started.values())
    return [
        NamedServer(
            at,
            lines[at],
            one["gpus"],
            BESIDE_RUNTIME if one["runtime"] else DEVICES,
            together=not named,
            cards=one["cards"],
            after=_healthy_before(at, held),
            container=_service_limits(held[at]),
        )
        for at, one in started.items()
    ]


def holds_services(text: str) -> bool:
    """Whether a text may be Compose's."""
    return _SERVICES.search(text) is not None


def _service_container(service: Mapping[str, Any]) -> dict[str, Any]:
    """A service as a container of a pod: its entrypoint is what is run, its command the arguments
    (docs.docker.com/reference/compose-file/services).
    """
    return {
        "image": service.get("image"), "command": _shell_words(service.get("entrypoint")), "args": _shell_words(service.get("command")),
        "env": list(_service_env_entries(service.get("environment"))), "gpus": _reserved_gpu_count(service),
        "runtime": service.get("runtime") == "nvidia", "cards": _named_card_numbers(service),
    }  # fmt: skip


_SIZE = late_pattern(r"(\d{1,15}(?:\.\d{1,6})?)\s*([bkmg]?)b?", re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30}
SHM = "/dev/shm"  # noqa: S108


def _service_limits(service: Mapping[str, Any]) -> Container:
    """What a service's container has of its node (docs.docker.com/reference/compose-file/services: mem_limit,
    shm_size, ipc; deploy: resources.limits.memory).
    """
    node: Any = service.get("deploy")
    for key in ("resources", "limits", "memory"):
        node = node.get(key) if isinstance(node, Mapping) else None
    at = "mem_limit" if node is None else "deploy.resources.limits.memory"
    told = _SIZE.fullmatch(str(service.get("mem_limit") if node is None else node))
    mounted = SHM in str(service.get("volumes")) or SHM in str(service.get("tmpfs"))
    return Container(
        host_bytes=int(float(told[1]) * _UNITS[told[2].lower()]) if told else None,
        small_shm=not mounted and "shm_size" not in service and not service.get("ipc"),
        memory_at=at,
        shm_at="shm_size",
    )


def _shell_words(value: Any) -> list[Any]:
    """A list as it is, a text split as a shell does; where that is no shell's, nothing is run."""
    if isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError:
            return []
    return value if isinstance(value, list) else []


def _quote_compose_word(word: str) -> str:
    """A word as a shell has it, where ${NAME:-default} is Compose's own variable and $$ a dollar."""
    pieces = (
        shlex.quote("$")
        if piece == "$$"
        else f'"{piece}"'
        if _VARIABLE.fullmatch(piece)
        else shlex.quote(piece)
        for piece in _VARIABLE.split(word)
        if piece
    )
    return "".join(pieces)


def _service_env_entries(value: Any) -> Iterator[dict[str, Any]]:
    pairs = (
        value.items()
        if isinstance(value, Mapping)
        else (str(one).partition("=")[::2] for one in value if "=" in str(one))
        if isinstance(value, list)
        else ()
    )
    for name, held in pairs:
        if held is not None:
            yield {"name": str(name), "value": held}


def _healthy_before(name: str, services: Mapping[str, Any]) -> tuple[str, ...]:
    """Services that have passed a check of their own before one starts, those that they wait for included
    (docs.docker.com/reference/compose-file/services, depends_on: service_healthy).
    """
    found, left = dict[str, None](), [name]
    while left:
        service = services.get(left.pop())
        waits = service.get("depends_on") if isinstance(service, Mapping) else None
        for at, how in waits.items() if isinstance(waits, Mapping) else ():
            healthy = isinstance(how, Mapping) and how.get("condition") == "service_healthy"
            if healthy and _has_health_check(services.get(at)) and str(at) not in found:
                found[str(at)] = None
                left.append(str(at))
    return tuple(found)


def _has_health_check(service: Any) -> bool:
    check = service.get("healthcheck") if isinstance(service, Mapping) else None
    return isinstance(check, Mapping) and bool(check.get("test")) and not check.get("disable")


def _named_card_numbers(service: Mapping[str, Any]) -> tuple[str, ...]:
    """Cards that a service names by their numbers, in order; none where it counts them."""
    lists = [one.get("device_ids") for one in _reserved_devices(service)]
    return tuple(sorted(str(at) for held in lists if isinstance(held, list) for at in held))


def _reserved_devices(service: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    node: Any = service
    for key in DEVICES.split("."):
        node = node.get(key) if isinstance(node, Mapping) else None
    return [one for one in node if isinstance(one, Mapping)] if isinstance(node, list) else []


def _reserved_gpu_count(service: Mapping[str, Any]) -> int | None:
    """Cards that a service has reserved; None where it has all, or nobody said."""
    devices = _reserved_devices(service)
    counts = [
        len(one["device_ids"]) if isinstance(one.get("device_ids"), list) else one.get("count")
        for one in devices
    ]
    whole = [
        int(count)
        for count in counts
        if isinstance(count, int | str) and str(count).isdigit() and len(str(count)) < 8
    ]
    return sum(whole) if whole and len(whole) == len(counts) else None
