"""What a person types is a model: a bundled name, a file or folder, a hub id, or a config as a dict."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from memsheet.errors import InputError
from memsheet.plan.model import ModelSpec, Source
from memsheet.readers.model import read_model

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 96,
}
BUNDLED = {
    "llama-tiny": {"name": "llama-tiny", "config": CONFIG},
    "org/llama-3-8b": {"name": "llama-3-8b", "config": {**CONFIG, "hidden_size": 128}},
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_notarealtoken"


def read(text: str | Path | dict[str, Any]) -> ModelSpec:
    return read_model(text, catalog=BUNDLED.get, names=BUNDLED)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint's folder with one file of weights."""
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").write_text(json.dumps(CONFIG))
    header = b'{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}'
    (tmp_path / "my-model" / "model.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + b"abc"
    )
    return tmp_path / "my-model"


def test_a_bundled_name():
    spec = read("llama-tiny")
    assert (spec.name, spec.hidden, spec.source) == (
        "llama-tiny",
        64,
        Source(kind="bundled", path="llama-tiny"),
    )


def test_an_alias_is_called_by_its_bundled_name():
    spec = read("org/llama-3-8b")
    assert (spec.name, spec.hidden, spec.source.path) == ("llama-3-8b", 128, "llama-3-8b")


def test_a_dict():
    assert read(CONFIG).source.kind == "dict"
    assert read({**CONFIG, "_name_or_path": "org/x"}).name == "org/x"


def test_a_folder_its_config_and_its_weights(folder: Path):
    for text in (folder, str(folder), str(folder) + "/", folder / "config.json", str(folder / "config.json")):
        spec = read(text)
        assert (spec.name, spec.source.kind) == ("my-model", "file")
    spec = read(folder / "model.safetensors")
    assert (spec.hidden, spec.source.kind) == (64, "safetensors")


def test_a_config_of_any_name(folder: Path):
    (folder / "config.json").rename(folder / "tiny.json")
    assert read(str(folder / "tiny.json")).name == "tiny"


def test_a_folder_beside_does_not_hide_a_bundled_name(folder: Path, monkeypatch: pytest.MonkeyPatch):
    folder.rename(folder.with_name("llama-tiny"))
    monkeypatch.chdir(folder.parent)
    assert read("llama-tiny").source.kind == "bundled"
    assert read("./llama-tiny").source.kind == "file"


def test_a_local_folder_without_a_slash(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder.parent)
    assert read("my-model").source.kind == "file"


def test_a_local_folder_with_a_slash_comes_before_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder.parent.parent)
    assert read(f"{folder.parent.name}/my-model").source.kind == "file"


def test_weights_alone_are_no_model(folder: Path):
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match=r"config\.json beside it"):
        read(folder / "model.safetensors")


def test_broken_weights_are_refused_before_their_neighbour_is_believed(folder: Path):
    (folder / "model.safetensors").write_bytes(b"not a header")
    with pytest.raises(InputError):
        read(folder / "model.safetensors")


def test_an_unknown_name_is_told_its_neighbours():
    with pytest.raises(InputError, match="did you mean llama-tiny"):
        read("llama-tini")
    with pytest.raises(InputError, match="memsheet models"):
        read("zzz")


def fake_hub(monkeypatch: pytest.MonkeyPatch, file: Path, **changes: Any) -> dict[str, Any]:
    """A huggingface_hub that answers from ``file`` and remembers what it was asked."""
    hub = pytest.importorskip("huggingface_hub")
    asked: dict[str, Any] = {}

    def download(repo: str, name: str, **options: Any) -> str:
        asked.update(repo=repo, name=name, **options)
        return str(file)

    monkeypatch.setattr(
        hub,
        "get_hf_file_metadata",
        changes.get("metadata", lambda *_, **__: SimpleNamespace(size=100, commit_hash=COMMIT)),
    )
    monkeypatch.setattr(hub, "hf_hub_download", changes.get("download", download))
    return asked


@pytest.mark.parametrize("text", ["org/name", "org/name@main", "org/name@refs/pr/1"])
def test_a_hub_id(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    asked = fake_hub(monkeypatch, folder / "config.json")
    spec = read(text)
    assert (spec.name, spec.source) == ("org/name", Source(kind="hub", path="org/name", revision=COMMIT))
    assert (asked["repo"], asked["name"], asked["revision"]) == ("org/name", "config.json", COMMIT)


def test_the_hub_out_of_reach_falls_back_to_what_was_downloaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError

    snapshot = folder.parent / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(CONFIG))
    asked = fake_hub(monkeypatch, snapshot / "config.json", metadata=unreachable)
    assert read("org/name").source.revision == COMMIT
    assert asked["local_files_only"] is True


def test_a_config_of_gigabytes_is_not_downloaded(folder: Path, monkeypatch: pytest.MonkeyPatch):
    asked = fake_hub(
        monkeypatch,
        folder / "config.json",
        metadata=lambda *_, **__: SimpleNamespace(size=2**33, commit_hash=COMMIT),
    )
    with pytest.raises(InputError, match=r"config\.json of"):
        read("org/name")
    assert not asked


def test_an_error_of_the_hub_never_shows_a_token(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(f"401 for https://user:{TOKEN}@huggingface.co")

    for change in ({"metadata": fail, "download": fail}, {"download": fail}):
        fake_hub(monkeypatch, folder / "config.json", **change)
        with pytest.raises(InputError) as caught:
            read("org/name")
        assert TOKEN not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__


def test_offline_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match="HF_HUB_OFFLINE"):
        read("org/a-name-nobody-has")


def test_without_the_extra_there_is_a_hint(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"memsheet\[hub\]"):
        read("org/name")
