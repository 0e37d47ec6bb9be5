"""`memsheet check A --against REF`: another file, or a revision of git; what changed, the exit code of A."""

import json
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.questions.earlier_files import _stays_inside, files_at

ARGS = ("--model", "llama-3.2-1b", "--gpus", "2xA100-40GB", "--seq-len", "2048")
DS = '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": %d}'


def git(folder: Path, *words: str) -> None:
    named = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", "-C", str(folder), *named, *words], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose ds.json is committed with two sequences a step and lies with eight."""
    folder = tmp_path / "re po"
    (folder / "run").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / "run" / "ds.json").write_text(DS % 2)
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    (folder / "run" / "ds.json").write_text((DS % 8).replace('"stage": 2', '"stage": 2, "bogus": 1'))
    (folder / "run" / "new.json").write_text(DS % 1)
    (folder / "other.json").write_text(DS % 2)
    monkeypatch.chdir(folder / "run")
    return folder


def changed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["check", *words, *ARGS, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("reference", ["HEAD", "main", "../other.json"])
def test_what_changed_is_told_component_by_component(
    reference: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = changed(capsys, "ds.json", "--against", reference)
    assert code == main(["check", "ds.json", *ARGS])
    assert found["difference_bytes"] > 0
    assert found["difference_bytes"] == sum(row["difference_bytes"] for row in found["components"])
    needs = [found[side]["needs"]["device_bytes"] for side in ("before", "after")]
    assert needs[1] - needs[0] == found["difference_bytes"]
    assert found["components"][0]["component"] == "saved_activations"
    assert {"key": "microbatch", "before": 2, "after": 8} in found["options"]
    assert "unknown-key" in [one["rule"] for one in found["new_mistakes"]]
    assert found["checked"]["schema"] == "memsheet/checked/1"
    assert str(repository) not in json.dumps(found["before"])


def test_the_same_is_said_of_the_same(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git(repository, "commit", "-qam", "second")
    _, found = changed(capsys, "ds.json", "--against", "HEAD")
    assert (found["difference_bytes"], found["options"]) == (0, [])
    assert found["new_mistakes"] == found["gone_mistakes"] == []
    main(["check", "ds.json", "--against", "HEAD", *ARGS])
    assert capsys.readouterr().out.startswith("THE SAME")
    _, found = changed(capsys, "ds.json", "--against", "HEAD~1")
    assert found["difference_bytes"] > 0


@pytest.mark.usefixtures("repository")
def test_a_file_that_was_not_there_has_no_difference(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = changed(capsys, "new.json", "--against", "HEAD")
    assert code in (0, 11)
    assert (found["before"]["outcome"], found["before"]["problem"]) == ("not_read", "new.json: was not there")
    assert (found["difference_bytes"], found["components"]) == (None, [])


@pytest.mark.parametrize("reference", ["nowhere", "--output=made", "-h", "HEAD:run", "a\nb", ""])
def test_another_reference_is_bad_input(
    reference: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "ds.json", f"--against={reference}", *ARGS]) == 2
    assert "against" in capsys.readouterr().err
    assert not (repository / "run" / "made").exists()


def test_outside_of_a_repository_a_revision_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "ds.json").write_text(DS % 1)
    assert main(["check", str(tmp_path / "ds.json"), "--against", "main", *ARGS]) == 2
    assert "lies in no git repository" in capsys.readouterr().err


def test_only_plain_files_of_a_revision_are_written(repository: Path) -> None:
    (repository / "run" / "link.json").symlink_to("ds.json")
    (repository / "run" / "weights.bin").write_bytes(b"0" * 10)
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "links")
    with files_at(("ds.json",), "HEAD") as (path,):
        top = Path(path).parent.parent
        held = {file.relative_to(top).as_posix() for file in top.rglob("*") if file.is_file()}
        assert held == {"other.json", "run/ds.json", "run/new.json"}
    assert not top.exists()


@pytest.mark.parametrize(
    "name", ["../a.json", "a/../../b.json", "/a.json", ".git/config.json", ".GIT/a.json", ""]
)
def test_a_name_that_leads_out_is_no_file(name: str) -> None:
    assert not _stays_inside(PurePosixPath(name))


@pytest.mark.usefixtures("repository")
def test_no_git_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memsheet.questions.earlier_files.which", lambda _: None)
    with pytest.raises(InputError, match="is not installed"), files_at(("ds.json",), "HEAD"):
        pass
