"""`memsheet calibrate`: what is kept, what is refused, and how it is switched off."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from memsheet.cli import main
from memsheet.readers.calibration import calibration_file, efficiency_of, read_calibrations

MEASURED = Path(__file__).parents[2] / "measured" / "llama-tiny-autocast.json.gz"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MEMSHEET_CALIBRATION", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def record(
    folder: Path, *, device: str = "cuda", name: str = "H100-80GB", seconds: float = 0.02, **environment: Any
) -> str:
    """A record of a processor's step as if a GPU had made it."""
    found = json.loads(gzip.decompress(MEASURED.read_bytes()))
    found["environment"] = {**found["environment"], "device": device, "device_name": name, **environment}
    found["sheet"]["trace"]["measured"]["step_s"] = seconds
    path = folder / f"{name}-{seconds}.json"
    path.write_text(json.dumps(found))
    return str(path)


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(("calibrate", *arguments))
    return code, *capsys.readouterr()


def test_a_record_is_kept_for_its_device_and_engine(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    code, out, err = ask(capsys, "--from", record(home))
    assert (code, err) == (0, "")
    assert "H100-80GB transformers" in out
    found = efficiency_of("H100-80GB", "transformers")
    assert found is not None
    assert found.source == record(home)
    assert found.compute < 1
    assert efficiency_of("H100-80GB", "megatron") is efficiency_of("A100-80GB", "transformers") is None


def test_a_slower_step_asks_for_a_lower_share(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    shares = []
    for seconds in (0.02, 0.04):
        assert ask(capsys, "--from", record(home, seconds=seconds))[0] == 0
        found = efficiency_of("H100-80GB", "transformers")
        assert found is not None
        shares.append(found.compute)
    assert shares[0] > shares[1]
    path = calibration_file()
    assert path is not None
    assert len(read_calibrations(path)) == 1  # the newer one replaces the older


def test_it_can_be_switched_off_and_forgotten(
    capsys: pytest.CaptureFixture[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = record(home)
    assert ask(capsys, "--from", name)[0] == 0
    monkeypatch.setenv("MEMSHEET_CALIBRATION", "off")
    assert efficiency_of("H100-80GB", "transformers") is None
    assert ask(capsys, "--from", name)[0] == 2
    monkeypatch.delenv("MEMSHEET_CALIBRATION")
    assert efficiency_of("H100-80GB", "transformers") is not None
    assert ask(capsys, "--from", name, "--forget")[0] == 0
    assert efficiency_of("H100-80GB", "transformers") is None


def test_json_names_the_file_and_the_entry(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    code, out, _ = ask(capsys, "--from", record(home), "--json")
    found = json.loads(out)
    assert (code, found["schema"]) == (0, "memsheet/calibration/1")
    assert Path(found["file"]).is_relative_to(home)
    assert set(found["entries"]["H100-80GB transformers"]) == {
        "compute",
        "attention",
        "communication",
        "records",
    }


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"device": "cpu", "name": "a processor"}, "rates are not known"),
        ({"name": "a card of next year"}, "is not a device memsheet knows"),
        ({"seconds": 0.0}, "holds no timed training step"),
        ({"seconds": 1e3}, "no scalar brings"),
    ],
)
def test_what_cannot_calibrate_is_refused(
    capsys: pytest.CaptureFixture[str], home: Path, made: dict[str, Any], said: str
) -> None:
    code, _, err = ask(capsys, "--from", record(home, **made))
    assert code == 2
    assert said in err
    assert calibration_file() is not None
    assert not calibration_file().exists()  # type: ignore[union-attr]


@pytest.mark.parametrize("held", [{}, [], "2", {"tp": 1}, 0, -1, 1.5, True, None])
@pytest.mark.parametrize(
    "place", [("plan",), ("trace",), ("trace", "measured"), ("plan", "mesh"), ("plan", "mesh", "tp")]
)
def test_a_record_that_somebody_changed_is_refused_in_words(
    capsys: pytest.CaptureFixture[str], home: Path, place: tuple[str, ...], held: Any
) -> None:
    path = Path(record(home))
    found = json.loads(path.read_text())
    inside = found["sheet"]
    for key in place[:-1]:
        inside = inside.setdefault(key, {})
    inside[place[-1]] = held
    path.write_text(json.dumps(found))
    code, _, err = ask(capsys, "--from", str(path))
    assert code in (0, 2)
    assert "internal" not in err


def test_the_device_can_be_named(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    assert ask(capsys, "--from", record(home, name="a card of next year"), "--gpus", "1xA100-80GB")[0] == 0
    assert efficiency_of("A100-80GB", "transformers") is not None


def test_two_devices_are_not_mixed(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    code, _, err = ask(capsys, "--from", record(home), "--from", record(home, name="A100-80GB"))
    assert code == 2
    assert "are different devices" in err


def test_no_record_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(capsys)[0] == 2


@pytest.mark.parametrize(
    "text",
    [
        '{"schema": "else"}',
        '{"schema": "memsheet/calibration/1", "entries": {"H100-80GB fsdp2": {"compute": -1}}}',
    ],
)
def test_a_broken_file_is_refused(text: str) -> None:
    path = calibration_file()
    assert path is not None
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(ValueError, match="calibration"):
        efficiency_of("H100-80GB", "fsdp2")
