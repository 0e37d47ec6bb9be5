"""Cards as they are sold and named: each answers, none is ambiguous, a driver's share is of its maker."""

from __future__ import annotations

import tomllib
from importlib.resources import files

import pytest

from laws import every
from memsheet import catalog
from memsheet.catalog import devices_called
from memsheet.catalog.instances import CLOUDS
from memsheet.catalog.spellings import device_key
from memsheet.errors import InputError
from memsheet.formulas.runtime import AMD, NVIDIA, driver_context
from memsheet.plan.device import parse_gpus
from memsheet.questions import accounted
from memsheet.questions.solve import solve
from memsheet.sheet import Component
from memsheet.units import MIB

DEVICES = catalog.catalog_devices()
CARDS = tomllib.loads((files("memsheet.catalog") / "cards.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_every_device_answers_train_and_infer_where_an_engine_runs_on_it(device):
    if device.engines is None:
        answer = accounted.train("llama-tiny", gpus=f"2x{device.name}", seq_len=64, per_node=2)
        assert answer.verdict is not None
    if device.engines is None or device.engines:
        served = accounted.infer("llama-tiny", gpus=f"1x{device.name}", max_model_len=64)
        assert served.verdict is not None
        held = [
            item
            for sheet in served.sheets
            for item in sheet.items
            if item.component is Component.CONTEXT and item.path in ("cuda", "driver")
        ]
        assert [item.largest for item in held] == [driver_context(device)[0]] * len(served.sheets)
    else:
        with pytest.raises(InputError, match="is not a device"):
            accounted.infer("llama-tiny", gpus=f"1x{device.name}", max_model_len=64)


@every("device", DEVICES, ids=lambda device: device.name)
def test_what_a_driver_holds_is_known_of_one_maker_only(device):
    size, _ = driver_context(device)
    assert (size.low > 0) == (device.vendor == NVIDIA)
    assert size.low < size.value < size.high


@pytest.mark.parametrize("device", [each for each in DEVICES if each.vendor == AMD and each.engines is None])
def test_hipblas_has_a_workspace_of_its_own(device):
    answer = accounted.train("llama-tiny", gpus=f"1x{device.name}", seq_len=64)
    (item,) = [item for item in answer.sheets[0].items if item.path == "cublas"]
    large = device.compute_capability[:5] in ("gfx94", "gfx95")
    assert item.largest.value == 2 * (128 if large else 32) * MIB


def test_no_spelling_names_two():
    owners: dict[str, set[str]] = {}
    for device in DEVICES:
        for called in (device.name, device.full_name):
            owners.setdefault(device_key(called), set()).add(device.name)
    for name in catalog.card_names():
        for called in catalog.other_spellings(name):
            owners.setdefault(device_key(called), set()).add(name)
    assert not {key: names for key, names in owners.items() if len(names) > 1}


@pytest.mark.parametrize("name", sorted(CARDS["group"]))
def test_a_group_says_of_its_own_cards_only(name):
    group = CARDS["group"][name]
    for fact in ("bandwidth_gb_s", "reported_mib"):
        assert set(group.get(fact, {})) <= set(group["sizes"])
    for called, (low, high) in group.get("reported_mib", {}).items():
        assert 0.9 * group["sizes"][called] * 1024 < low <= high <= group["sizes"][called] * 1024


def test_a_better_card_reads_no_slower_than_the_plain_one_of_its_name():
    bandwidth = {device.name: catalog.memory_bandwidth(device.name) for device in DEVICES}
    compared = 0
    for name, rate in bandwidth.items():
        assert rate is None or 50e9 < rate < 20e12, name
        for better in ("Ti", "Super", "XT", "XTX"):
            plain = bandwidth.get(name.removesuffix(better))
            if rate and plain and name.endswith(better):
                compared += 1
                assert plain <= rate, name
    assert compared > 10


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("rtx 3060 12gb", "RTX3060"), ("4090 24GB", "RTX4090"), ("RTX-PRO-6000", "RTXPRO6000"), ("rtx 6000 pro", "RTXPRO6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTXPRO6000-Max-Q"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTXPRO6000Server"), ("NVIDIA RTX 6000 Ada Generation", "RTX6000Ada"),
        ("A6000", "RTXA6000"), ("Quadro RTX 8000", "RTX8000"), ("dgx-spark", "GB10"), ("NVIDIA GB10", "GB10"), ("H100 NVL", "H100-NVL"),
        ("h100-94gb", "H100-NVL"), ("H100 PCIe", "H100-80GB-PCIe"), ("macbook pro m3 max 64gb", "M3Max-64GB"), ("w7900", "PROW7900"),
        ("gtx 1660 ti", "GTX1660Ti"), ("1080 ti", "GTX1080Ti"), ("Tesla P40", "P40"), ("NVIDIA H20-3e", "H20-141GB"),
        ("NVIDIA GH200 144G HBM3e", "GH200-144GB"), ("AMD Instinct MI350X", "MI350X"), ("NVIDIA A10G", "A10G"),
    ],
)  # fmt: skip
def test_cards_are_known_as_people_and_drivers_write_them(text: str, name: str):
    found = catalog.find_device(text)
    assert (found.name, found.assumed) == (name, ())


@pytest.mark.parametrize("text", ["rtx 3060 16gb", "4090 80gb", "T4 24GB"])
def test_a_size_that_a_card_is_not_sold_with_is_refused(text: str):
    with pytest.raises(InputError, match="did you mean"):
        catalog.find_device(text)


# Rented machines


@pytest.mark.parametrize("gpus", ["2x4xRTX3090", "2x 4x RTX3090", "2×4×rtx-3090"])
def test_cards_of_one_of_several_machines_are_counted_a_node(gpus: str):
    answer = accounted.train("llama-tiny", gpus=gpus, seq_len=64)
    assert answer.cluster is not None
    assert (answer.cluster.nodes, answer.cluster.per_node, answer.cluster.device.name) == (2, 4, "RTX3090")


@pytest.mark.parametrize("gpus", ["2x0xH100-80GB", "0x4xH100-80GB", "2x9999999xH100-80GB"])
def test_no_machines_of_no_cards(gpus: str):
    with pytest.raises(InputError):
        accounted.train("llama-tiny", gpus=gpus, seq_len=64)


@every("name", sorted(catalog.rented_machines()))
def test_a_rented_machine_is_its_cards(name: str):
    card, each = catalog.rented_machines()[name]
    device = catalog.find_device(card)
    assert device.name == card, "the card's own name stands in the table"
    assert device.per_node is None or each <= max(device.per_node, 16)
    for text, count in ((name, each), (name.upper(), each), (f"3x{name}", 3 * each), (f"{name}:3", 3 * each)):
        assert catalog.find_gpus(text) == (count, device)


def test_a_machine_is_of_one_cloud():
    table = tomllib.loads((files("memsheet.catalog") / "instances.toml").read_text(encoding="utf-8"))
    assert set(table) == {"sources", *CLOUDS}
    assert set(table["sources"]) == set(CLOUDS)
    names = [
        name
        for cloud in CLOUDS
        for counts in table[cloud].values()
        for held in counts.values()
        for name in held
    ]
    assert len(names) == len(set(names)) == len(catalog.rented_machines())


@pytest.mark.parametrize(
    ("text", "count", "per_node"),
    [
        ("p5.48xlarge", 8, 8),
        ("2xg6e.12xlarge", 8, 4),
        ("ml.g5.12xlarge", 4, 4),
        ("2 x a2-megagpu-16g", 32, 16),
    ],
)
def test_a_node_is_a_machine(text: str, count: int, per_node: int):
    answer = accounted.train("llama-tiny", gpus=text, seq_len=64)
    assert (answer.cluster.count, answer.cluster.per_node) == (count, per_node)
    assert any(text in said for said in answer.cluster.device.assumed)
    split = accounted.train("llama-tiny", gpus=text, seq_len=64, per_node=2)
    assert split.cluster.per_node == 2


def test_the_machines_that_a_job_needs_are_counted_in_cards():
    found = solve("gpus", "llama-2-7b", gpus="g6e.12xlarge", engine="fsdp2", zero=3, seq_len=512)
    named = solve("gpus", "llama-2-7b", gpus="L40S", per_node=4, engine="fsdp2", zero=3, seq_len=512)
    assert found.shown.value == named.shown.value


def test_a_machine_that_nobody_rents_names_the_nearest():
    with pytest.raises(InputError, match=r"p5\.48xlarge"):
        catalog.find_gpus("p5.49xlarge")


@pytest.mark.parametrize(
    ("called", "names"),
    [
        ("H100", {"H100-80GB"}),
        ("A100", {"A100-40GB", "A100-80GB"}),
        ("A100 80GB", {"A100-80GB"}),
        ("RTX 4090", {"RTX4090"}),
        ("A100 PCIe", {"A100-80GB-PCIe"}),
        ("Q9999", set()),
    ],
)
def test_what_a_name_may_mean(called: str, names: set[str]) -> None:
    found = {each.name for each in devices_called(called)}
    assert names <= found
    assert bool(found) is bool(names)
    assert not any("48GB" in name for name in found)


@pytest.mark.parametrize(
    "text", ["7900xtx", "7900 XTX", "RX 7900 XTX", "1x7900xtx", "7900xtx x1", "1 x 7900 xtx"]
)
def test_the_x_of_a_cards_name_is_no_counts(text: str):
    count, name = parse_gpus(text)
    assert (count or 1, catalog.find_device(name).name) == (1, "RX7900XTX")
