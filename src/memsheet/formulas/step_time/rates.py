"""What a cluster reaches, from the catalogue: matrix products, attention, memory and collectives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.arith import given_or
from memsheet.catalog import hardware_rates
from memsheet.errors import input_error
from memsheet.formulas.step_time.numbers import Curve, Real, smaller
from memsheet.frozen import dataclass, field, replace
from memsheet.plan.device import Cluster, Device

MEASURED_ALIKE = {
    "8.0": "A100-80GB",
    "8.6": "L40S",
    "8.9": "L40S",
    "9.0": "H100-80GB",
    "10.0": "B200",
    "10.3": "B200",
    "12.0": "L40S",
}
"""Of a card whose kernels nobody measured here: the measured one with the same kind of matrix unit."""
COLLECTIVES_ALIKE = {"8.0": "A100-80GB", "9.0": "H100-80GB", "10.0": "B200", "10.3": "B200"}
KEYS = {
    "bf16": "bf16",
    "fp16": "fp16",
    "fp8": "fp8",
    "fp8_block": "fp8",
    "mxfp8": "fp8",
    "nvfp4": "fp4",
    "tf32": "tf32",
    "fp32": "fp32_vector",
}
"""Which dense rate an arithmetic runs at; fp32 runs on the matrix units only where tf32 is asked for."""
CURVES = {
    "bf16": "bf16",
    "fp16": "bf16",
    "tf32": "bf16",
    "fp32": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "mxfp8": "fp8",
    "nvfp4": "nvfp4",
}
UNMEASURED = 0.5
"""Share of the dense rate and of the bandwidth where nothing was measured (MI300X reaches 0.51 of its dense
rate, the lowest there is).
"""


SLOWED = 0.146
"""Of a collective's time, what products beside it lose: Hetu-Galvatron 3318a0b, overlap_coefficient.json
(1.146; 1.123 on another machine).
"""


HOST_MEMORY_BYTES_PER_S = 409_600_000_000
"""Two sockets of eight channels of DDR4-3200 (JEDEC), of a node."""
DEFAULT_HOST_LINK = 31.5e9
"""PCIe 4.0 with 16 lanes (PCI-SIG): 16 GT/s a lane, 128b/130b."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A collective over one node: seconds before the first byte, bytes a second, and a term that grows with
    the root of the size.
    """

    alpha_s: float
    bytes_per_s: float
    gamma: float  # seconds for a root of a byte


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """What a measured step says of the rates: 1 is what kernels reached in bursts. ``source`` names the
    record. ``capped``: no product is faster than the fastest that a search over shapes found on the card.
    """

    compute: float = 1.0
    attention: float = 1.0
    communication: float = 1.0
    source: str | None = None
    capped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """One device's rates inside its cluster, in flops and bytes a second."""

    dense: Mapping[str, float]
    products: Mapping[str, Curve]
    depth: Curve
    memory: float
    launch_s: Mapping[str, float]
    attention: Mapping[str, tuple[Curve, Curve]]  # by generation of kernel: forward, backward
    attention_dense: float
    collectives: Mapping[str, Fit]
    near: int  # devices that share the fast link
    network: float | None
    host: float | None
    fastest: Mapping[str, float] = field(
        default_factory=dict
    )  # product of the card, by arithmetic, where one was searched for
    efficiency: Efficiency = Efficiency()

    def flops(self, arithmetic: str) -> float:
        """Dense flops a second of an arithmetic; one the device has no units for runs as bf16 does, and bf16
        as fp32 on the oldest.
        """
        key = KEYS.get(arithmetic, "bf16")
        others = (
            ("fp32_vector", "fp16")
            if key in ("bf16", "tf32") and "bf16" not in self.dense
            else ("bf16", "fp16")
        )
        return next(self.dense[name] for name in (key, *others) if name in self.dense)

    def curve(self, arithmetic: str) -> Curve:
        return self.products.get(CURVES.get(arithmetic, "bf16")) or self.products["bf16"]

    def product_flops(self, arithmetic: str, rows: Real, depth: Real) -> Real:
        """``rows``: of the output; ``depth``: terms of each sum."""
        found = (
            self.flops(arithmetic)
            * self.curve(arithmetic).at(rows)
            * self.depth.at(depth)
            * self.efficiency.compute
        )
        fastest = self.fastest.get(KEYS.get(arithmetic, "bf16"))
        return smaller(found, fastest) if self.efficiency.capped and fastest else found

    def start_s(self, arithmetic: str) -> float:
        return self.launch_s.get(CURVES.get(arithmetic, "bf16"), self.launch_s["bf16"])

    @property
    def memory_bytes(self) -> float:
        return self.memory * self.efficiency.compute

    def with_efficiency(self, found: Efficiency) -> Rates:
        return replace(self, efficiency=found)

    @property
    def host_link(self) -> float:
        """Bytes a second between a device and its host, as far from the table as other links are."""
        return given_or(self.host, DEFAULT_HOST_LINK) * self.efficiency.communication

    @property
    def host_memory(self) -> float:
        """Bytes a second of a node's memory, shared by its devices."""
        return HOST_MEMORY_BYTES_PER_S * self.efficiency.communication


def rates_of(cluster: Cluster) -> Rates:
    """Raises InputError for a device whose dense rate nobody knows."""
    device, table = cluster.device, hardware_rates()
    row = table["device"].get(device.name)
    if row is None:
        raise input_error(
            "gpus", device.name, "has no known rate of arithmetic", "memory is predicted, step time is not"
        )
    dense = {key: value * 1e12 for key, value in row["dense_tflops"].items()}
    products, code = table["products"], device.compute_capability or ""
    starts = _device_entry(products["launch_us"], device) or products["launch_us"]["H100-80GB"]
    return Rates(
        dense=dense,
        products=_matmul_curves(row, _device_entry(products["utilisation"], device)),
        depth=Curve.of(_device_entry(products["depth"], device) or products["depth"]["H100-80GB"]),
        memory=row["memory_bandwidth_tb_s"]
        * 1e12
        * (_device_entry(products["memory_share"], device) or UNMEASURED),
        launch_s={key: us * 1e-6 for key, us in starts.items()},
        attention=_attention_curves(table["attention_training"], COLLECTIVES_ALIKE.get(code, "")),
        attention_dense=dense.get("bf16") or dense["fp16"],
        collectives=_collective_fits(cluster, table["collectives_inside_node"]["params"]),
        near=max(cluster.per_node, table["domains"].get(device.name, 0)),
        network=cluster.links.scale_out or device.links.scale_out,
        host=cluster.links.host or device.links.host,
        fastest=_fastest_matmul_flops(row),
    )


def _fastest_matmul_flops(row: Mapping[str, Any]) -> Mapping[str, float]:
    """Flops a second of the fastest product that a search found, which a card's power limit holds under its
    dense rate: random numbers are multiplied at 257 TFLOPS under an A100's 400 W and zeros at 295
    (thonking.ai, strangely-matrix-multiplications), of 312.
    """
    measured = row.get("measured", {})
    found = {
        key: measured[f"mamf_{key}_tflops"] * 1e12
        for key in ("bf16", "fp8")
        if f"mamf_{key}_tflops" in measured
    }
    return {**found, **({"fp16": found["bf16"]} if "bf16" in found else {})}


def _device_entry(table: Mapping[str, Any], device: Device) -> Any:
    """The device's own entry; else that of the measured device with the same kind of matrix unit."""
    return table.get(device.name) or table.get(MEASURED_ALIKE.get(device.compute_capability or "", ""))


def _matmul_curves(row: Mapping[str, Any], measured: Mapping[str, Any] | None) -> Mapping[str, Curve]:
    if measured is not None:
        return {key: Curve.of(points) for key, points in measured.items()}
    found, dense = row.get("measured", {}), row["dense_tflops"]
    shares = {
        key: found[f"mamf_{key}_tflops"] / dense[key]
        for key in ("bf16", "fp8")
        if f"mamf_{key}_tflops" in found
    }
    return {"bf16": Curve.flat(UNMEASURED)} | {key: Curve.flat(share) for key, share in shares.items()}


def _attention_curves(table: Mapping[str, Any], alike: str) -> Mapping[str, tuple[Curve, Curve]]:
    if alike not in table:
        return {
            key: (Curve.flat(UNMEASURED / 2), Curve.flat(UNMEASURED / 2)) for key in ("fa2", "fa3", "cudnn")
        }
    shape, generations = Curve.of(table["shape"]), table[alike]
    level = generations["level_from"]
    normal = shape.scaled(1 / shape.at(float(level)))
    capped = Curve(tuple(point for point in normal.points if point[0] <= level))
    return {key: (capped.scaled(f), capped.scaled(b)) for key, (f, b) in generations["kernels"].items()}


def _collective_fits(cluster: Cluster, params: Mapping[str, Any]) -> Mapping[str, Fit]:
    """The device's own fits; else those of its kind with the bytes a second in the ratio of their links. So
    too where a cluster's link is another than the device's usual one.
    """
    device, own = cluster.device, cluster.device.links
    alike = (
        device.name
        if device.name in params
        else COLLECTIVES_ALIKE.get(device.compute_capability or "", "A100-80GB")
    )
    usual = own.scale_up or own.host or LINKS["pcie"]
    ratio = (cluster.links.scale_up or usual) / (usual if alike == device.name else LINKS[alike])
    return {
        name: Fit(alpha_s=alpha * 1e-6, bytes_per_s=beta * 1e9 * ratio, gamma=gamma * 1e-6 / 1e6**0.5 / ratio)
        for name, (alpha, beta, gamma) in params[alike].items()
    }


LINKS = {"A100-80GB": 300e9, "H100-80GB": 450e9, "B200": 900e9, "pcie": 25e9}
"""Links of the measured devices (devices.toml), and of a card about which nothing is said."""
