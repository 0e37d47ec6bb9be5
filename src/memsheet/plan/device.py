"""What a plan runs on: one accelerator as frameworks see it, and a cluster of them."""

from __future__ import annotations

import re
from enum import Enum

from memsheet.errors import input_error
from memsheet.frozen import dataclass, replace
from memsheet.patterns import late_pattern

MAX_DEVICES = 2**20
"""More than any cluster built so far; a larger count is a typing error."""


class Basis(Enum):
    """How the memory that a framework gets of a device is known."""

    REPORTED = "reported"  # frameworks were seen to print it
    DRIVER = "driver"  # derived: the driver's total less the gap seen on other cards
    DATASHEET = "datasheet"  # nothing but the marketed size is known
    ASKED = "asked"  # whoever asks says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Bytes a second in one direction of one device; None where unknown."""

    scale_up: int | None = None  # to the devices of the same node or domain
    switched: bool = False  # a switch gives any pair the full rate; a mesh or bridge does not
    host: int | None = None
    scale_out: int | None = None  # to other nodes

    def over(self, other: Links) -> Links:
        """These, and ``other``'s where nothing is said."""
        said = {name: rate for name in RATES if (rate := getattr(self, name)) is not None}
        return replace(other, **said)


UNSAID = Links()
"""Nothing is said: the catalogue's links hold."""
RATES = ("scale_up", "scale_out", "host")
"""The links whose bytes a second may be said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator. A fit is judged by what a framework really gets, never by the number on the box.

    ``framework_low_bytes`` ≤ ``framework_bytes`` ≤ ``framework_high_bytes``: equal where one figure is known.
    A derived ``framework_bytes`` is the low end, so that an unknown card is never taken for larger than it
    is.
    """

    name: str
    full_name: str
    vendor: str
    arch: str
    compute_capability: str | None = None
    datasheet_bytes: int
    driver_bytes: int | None = None
    framework_bytes: int
    framework_low_bytes: int
    framework_high_bytes: int
    basis: Basis
    evidence: str  # where the framework figure comes from, in words
    per_node: int | None = None  # in the usual server; None: differs from server to server
    links: Links = Links()
    scale_up_kind: str = ""  # what the links are called: NVLink 4
    host_kind: str = ""
    engines: tuple[str, ...] | None = None  # the only ones accounted on it; None: all that are modelled
    backend: str = "CUDA"  # what llama.cpp runs on there, as its log names it
    unified: bool = False  # processor and device share their memory
    uncertain: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()  # what a name left open, and what was taken for it
    namesakes: tuple[str, ...] = ()  # cards of the name that was given, with more memory

    @property
    def shared_bytes(self) -> int | None:
        """All that processor and device have between them, the number on the box read as GiB; None where each
        has its own.
        """
        return self.datasheet_bytes // 10**9 << 30 if self.unified else None

    @property
    def alone(self) -> bool:
        """Whether a machine has one of them and no slot for another."""
        return self.unified and self.per_node is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """``nodes`` servers of ``per_node`` equal devices."""

    device: Device
    per_node: int
    nodes: int = 1
    links: Links = Links()
    host_bytes: int | None = None  # of one node
    file: str | None = None  # what describes it, where that is a file

    @property
    def count(self) -> int:
        return self.per_node * self.nodes


ONE_NODE = 8
"""Devices that share a node when neither the device nor the user says: the size of the usual server board."""


def cluster_of(
    device: Device,
    count: int,
    *,
    per_node: int | None = None,
    nodes: int | None = None,
    host_bytes: int | None = None,
    links: Links = UNSAID,
) -> Cluster:
    """``count`` devices laid out in whole nodes; ``per_node`` defaults to the device's usual server, and what
    ``links`` leave open to its own.

    Raises InputError when the count does not fill whole nodes, or when nobody knows how many share a node.
    """
    if not 0 < count <= MAX_DEVICES:
        raise input_error("gpus", count, f"is outside 1 to {MAX_DEVICES:,} devices")
    if nodes is not None and (nodes < 1 or count % nodes):
        raise input_error("nodes", nodes, f"does not divide {count} devices")
    size = per_node or (count // nodes if nodes else min(count, device.per_node or ONE_NODE))
    if per_node is None and nodes is None and device.per_node is None and count > ONE_NODE:
        raise input_error(
            "per_node",
            None,
            f"how many {device.name} share a node differs from server to server",
            "give --per-node or --nodes",
        )
    if size < 1 or count % size:
        raise input_error(
            "per_node",
            size,
            f"{count} devices do not fill whole nodes of {size}",
            "give --per-node or --nodes",
        )
    if nodes is not None and size * nodes != count:
        raise input_error("nodes", nodes, f"{nodes} nodes of {size} are {nodes * size} devices, not {count}")
    return Cluster(
        device=device,
        per_node=size,
        nodes=count // size,
        links=links.over(device.links),
        host_bytes=host_bytes,
    )


_GPUS = late_pattern(
    r"^\s*(?:([+-]?\d+)\s*[xX×*]\s*|([1-9]\d{0,2})\s+(?!g[i]?b\b)(?=\S))?(\S(?:.{0,98}\S)?)\s*$",
    re.IGNORECASE,
)
_COUNT_LAST = late_pattern(r"^\s*(\S(?:.{0,98}?\S)?)\s*(?:\s[xX×]\s*|:)(\d{1,7})\s*$")
_JOINED_COUNT = late_pattern(r"^\s*(?!\d+\s*[xX×*])(\S.{0,98}?\d[a-zA-Z]{0,8}?)[xX×](\d{1,4})\s*$")
"""``H100x8``: a count behind a name that ends in a number, with nothing between."""
_SEVERAL = late_pattern(r"^\s*\d+\s*[xX×][^,;+]*[,;+]\s*\d+\s*[xX×]", holds=(",", ";", "+"))
CARD_DIGITS = 4
"""Digits of a card that people call by its number alone."""
CARD_ENDS = ("t", "tx")
"""What stands behind the x of AMD's cards: ``9070xt``, ``7900xtx``."""
MIXED = "names several kinds of device or node, and only equal ones are planned for"
MIXED_HINT = "plan for the smallest: the device with the least memory, as many of it as there are in all"


def parse_gpus(text: str) -> tuple[int | None, str]:
    """``8xH100-80GB``, ``8 H100-80GB``, ``H100-80GB:8``, ``H100-80GBx8`` or ``H100-80GB x8`` → (8,
    "H100-80GB"). Without a count the count is None: for commands that find it.

    The name is only cut out here; the catalogue says whether there is such a device.
    """
    if plain := _plain_count(text):
        return plain
    if last := _COUNT_LAST.match(text) or _JOINED_COUNT.match(text):
        text = f"{last[2]}x{last[1]}"
    match = _GPUS.match(text)
    if match is not None and len(match[1] or "") == CARD_DIGITS and match[3].lower() in CARD_ENDS:
        return None, text.strip()  # 7900 XTX's x is no count's
    if _SEVERAL.match(text):
        raise input_error("gpus", text, MIXED, MIXED_HINT)
    if match is None:
        raise input_error(
            "gpus", text, "does not name devices", "write a count and a device, for example 8xH100-80GB"
        )
    digits, name = match[1] or match[2], match[3]
    if digits is not None and name.isdigit() and len(name) < len(digits) == CARD_DIGITS:
        digits, name = name, digits  # 4090x4
    if digits is None:
        return None, name
    if digits.startswith("-") or not digits.lstrip("+0"):
        raise input_error("gpus", text, "counts no device", f"write for example 8x{name}")
    if len(digits) > len(str(MAX_DEVICES)) or int(digits) > MAX_DEVICES:
        raise input_error("gpus", text, f"is more than {MAX_DEVICES:,} devices", "check the count")
    return int(digits), name


def _plain_count(text: str) -> tuple[int, str] | None:
    """Of ``8xH100-80GB``, as most are written; None of what takes the patterns to tell."""
    digits, _, name = text.partition("x")
    if len(digits) == CARD_DIGITS and name.lower() in CARD_ENDS:
        return None  # 7900xtx
    usual = text.isascii() and len(text) <= PLAIN_LETTERS and digits.isdigit() and digits[0] != "0"
    plain = usual and len(digits) <= CARD_DIGITS and name.replace("-", "").isalnum() and name[0] != "-"
    return (int(digits), name) if plain and not name.isdigit() else None


PLAIN_LETTERS = 64


def with_less_room(cluster: Cluster, spare: int) -> Cluster:
    """The cluster where ``spare`` bytes of each card are somebody else's."""
    card = cluster.device
    less = {
        name: getattr(card, name) - spare
        for name in ("framework_bytes", "framework_low_bytes", "framework_high_bytes")
    }
    return replace(cluster, device=replace(card, **less))


def resize_cluster(node: Cluster, count: int) -> Cluster:
    """A part of a node, or several of it. Raises InputError for a count that fills no whole nodes."""
    if count > node.per_node and count % node.per_node:
        raise input_error("gpus", count, f"do not fill whole nodes of {node.per_node}")
    return replace(node, per_node=min(count, node.per_node), nodes=max(1, count // node.per_node))
