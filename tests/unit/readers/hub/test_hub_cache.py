"""The hub's local cache: what somebody downloaded is read without a network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memsheet.errors import InputError
from memsheet.questions.question_parts import catalog_entry
from memsheet.readers.hub.repository import cache_folder
from memsheet.readers.model import read_model

COMMIT, OTHER = "a" * 40, "b" * 40
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 96,
}


def download(
    home: Path,
    repo: str,
    hidden: int = 64,
    commit: str = COMMIT,
    ref: str = "main",
    file: str = "config.json",
) -> None:
    """As huggingface_hub leaves a file: a blob, a link to it in the commit's snapshot, a ref."""
    folder = home / f"models--{repo.replace('/', '--')}"
    blob = folder / "blobs" / f"{commit}{hidden}"
    for made in (blob.parent, folder / "snapshots" / commit, (folder / "refs" / ref).parent):
        made.mkdir(parents=True, exist_ok=True)
    blob.write_text(json.dumps({**CONFIG, "hidden_size": hidden}))
    (folder / "snapshots" / commit / file).symlink_to(blob)
    (folder / "refs" / ref).write_text(commit)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def read(text: str):
    return read_model(text, catalog=catalog_entry)


def test_a_downloaded_model_is_read_offline(home: Path) -> None:
    download(home, "org/name")
    spec = read("org/name")
    assert (spec.hidden, spec.source.kind, spec.source.path, spec.source.revision) == (
        64,
        "hub",
        "org/name",
        COMMIT,
    )
    assert "local cache" in spec.source.notes[0]


def test_branches_tags_and_commits(home: Path) -> None:
    download(home, "org/name")
    download(home, "org/name", 128, OTHER, "refs/pr/1")
    for revision, hidden in (("main", 64), ("refs/pr/1", 128), (COMMIT, 64), (OTHER, 128), (OTHER[:7], 128)):
        assert read(f"org/name@{revision}").hidden == hidden
    with pytest.raises(InputError, match="HF_HUB_OFFLINE"):
        read("org/name@v2")


def test_a_copy_that_is_there_is_believed_before_its_name(home: Path) -> None:
    assert read("unsloth/Qwen3-8B-bnb-4bit").hidden == 4096
    download(home, "unsloth/Qwen3-8B-bnb-4bit")
    assert read("unsloth/Qwen3-8B-bnb-4bit").hidden == 64


def test_a_bundled_models_own_name_is_bundled(home: Path) -> None:
    download(home, "Qwen/Qwen3-8B")
    assert read("Qwen/Qwen3-8B").hidden == 4096
    assert read("Qwen/Qwen3-8B@main").hidden == 64


def test_a_folder_without_a_configuration_is_none(home: Path) -> None:
    download(home, "org/name", file="tokenizer.json")
    with pytest.raises(InputError, match="not in the hub's local cache"):
        read("org/name")


@pytest.mark.parametrize("ref", ["", "../../x", "a" * 39, "x" * 40, "a" * 10_000])
def test_a_ref_that_names_no_commit_is_none(ref: str, home: Path) -> None:
    download(home, "org/name")
    (home / "models--org--name" / "refs" / "main").write_text(ref)
    with pytest.raises(InputError):
        read("org/name")


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_folder() == Path("~/.cache/huggingface/hub").expanduser()
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert cache_folder() == Path("/c/huggingface/hub")
    monkeypatch.setenv("HF_HOME", "/h")
    assert cache_folder() == Path("/h/hub")
    monkeypatch.setenv("HF_HUB_CACHE", "/hub")
    assert cache_folder() == Path("/hub")
