"""What a person types is a model: a bundled name, a file or folder, a hub id, or a config as a dict."""

from __future__ import annotations

import json
from pathlib import Path
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
