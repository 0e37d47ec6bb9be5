"""Devices by kind: each in one, the usual ones shown on a screen that is read, the others a word or a flag
away.
"""

from __future__ import annotations

import json
import re

import pytest

from laws import every
from memsheet import catalog
from memsheet.catalog.kinds import KINDS, SHOWN, by_kind, device_kind, usual_devices
from memsheet.cli import main

SCREEN_LINES = 50
"""Of two screens of 25."""


def shown(capsys, monkeypatch, *words: str, width: int = 80) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["gpus", *words]) == 0
    return capsys.readouterr().out


def test_every_device_is_of_one_kind_and_every_kind_is_shown():
    devices = list(catalog.catalog_devices())
    groups = by_kind(devices)
    assert tuple(groups) == SHOWN
    assert sorted(SHOWN) == sorted(kind.name for kind in KINDS)
    assert sorted(device.name for alike in groups.values() for device in alike) == sorted(
        device.name for device in devices
    )
    for kind in SHOWN:
        assert set(usual_devices(kind)) <= {device.name for device in groups[kind]}
        assert 0 < len(usual_devices(kind)) == len(set(usual_devices(kind)))


@every("device", catalog.catalog_devices(), ids=lambda device: device.name)
def test_a_kind_says_what_its_devices_are(device):
    kind = device_kind(device)
    assert kind.startswith("Unified memory") == device.unified
    assert (kind == "Laptop") == device.name.endswith(
        ("-Laptop", "-Laptop-4GB", "-Laptop-6GB", "-Laptop-8GB", "-Laptop-12GB", "-Laptop-16GB")
    )
    assert not (kind.startswith("Data centre") and re.search("GeForce|Radeon|Arc ", device.full_name))
    assert kind != "Data centre, NVIDIA" or device.vendor == "NVIDIA"


@pytest.mark.parametrize("width", [80, 120])
def test_the_short_list_is_read_at_a_glance(capsys, monkeypatch, width):
    text = shown(capsys, monkeypatch, width=width)
    lines = text.splitlines()
    assert len(lines) <= SCREEN_LINES
    assert max(map(len, lines)) <= width
    for kind in KINDS:
        assert kind.name in lines
        assert all(name in text for name in kind.usual)
    hidden = sum(int(found) for found in re.findall(r"and\s+(\d+)\s+more", text))
    assert hidden + sum(len(kind.usual) for kind in KINDS) == len(list(catalog.catalog_devices()))


@pytest.mark.parametrize("words", [("--full",), ("rtx",), ("laptop",), ("radeon",), ("H100",), ("unified",)])
def test_a_word_or_a_flag_shows_the_rest(capsys, monkeypatch, words):
    wanted = "" if words == ("--full",) else words[0].lower()
    text = shown(capsys, monkeypatch, *words)
    assert max(map(len, text.splitlines())) <= 80
    listed = {line.split(" ")[0] for line in text.splitlines()}
    for device in catalog.catalog_devices():
        named = wanted in f"{device.name} {device.full_name} {device.arch} {device_kind(device)}".lower()
        assert (device.name in listed) == named


def test_json_has_all_devices_and_their_kind(capsys, monkeypatch):
    found = json.loads(shown(capsys, monkeypatch, "--json"))["gpus"]
    assert {one["name"]: one["kind"] for one in found} == {
        device.name: device_kind(device) for device in catalog.catalog_devices()
    }


def test_a_size_shows_every_card_that_is_sold_with_it(capsys, monkeypatch):
    """All of those that ``--gpus 24GB`` takes the least of are on the list that the same word asks for."""
    found = json.loads(shown(capsys, monkeypatch, "24GB", "--json"))["gpus"]
    assert {one["name"] for one in found} >= {
        device.name for device in catalog.catalog_devices() if device.datasheet_bytes == 24 * 10**9
    }
    assert not {one["name"] for one in found} & {"A100-40GB", "L40S"}
