"""Output files: whole or not at all, and never anything but a file."""

import errno
import json
import os
import stat

import pytest

from memsheet.errors import InputError
from memsheet.report.shared.files import check_folder, write_events, write_whole
from memsheet.timeline import timeline_from
from timelines import training


def test_what_is_written_is_there_and_nothing_else(tmp_path):
    write_whole(tmp_path / "a.bin", b"one")
    write_whole(tmp_path / "a.bin", b"two")
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]
    assert (tmp_path / "a.bin").read_bytes() == b"two"


def test_a_new_file_has_the_permissions_of_any_other_and_an_old_one_keeps_its_own(tmp_path):
    other, path = tmp_path / "other", tmp_path / "new"
    other.touch()
    write_whole(path, b"")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)
    path.chmod(0o640)
    write_whole(path, b"x")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_link_is_followed(tmp_path):
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to("target")
    write_whole(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "is a folder"),
        ("nowhere/a", "folder that does not exist"),
        ("file/a", "cannot be written"),
        ("x" * 300, "cannot be written"),
        ("a\0b", "cannot be written"),
    ],
)
def test_what_cannot_be_a_file_is_refused(tmp_path, name, said):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=said):
        write_whole(tmp_path / name, b"x", "picture")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_pipe_is_refused_and_stays_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe"):
        write_whole(tmp_path / "pipe", b"x")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_an_interrupt_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "a", b"new")
    assert list(tmp_path.iterdir()) == []


def test_events_read_back_as_the_same_timeline(tmp_path):
    write_events(training(), tmp_path / "events.json")
    document = json.loads((tmp_path / "events.json").read_text())
    assert document["schema"] == "memsheet/events/1"
    assert timeline_from(document) == training()


def test_a_folder_may_be_there_or_be_made_but_not_inside_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    check_folder(tmp_path, "records")
    check_folder(tmp_path / "a" / "b", "records")
    for name, why in (("file", "is not a folder"), ("file/x/y", "cannot be made: file is not a folder")):
        with pytest.raises(InputError, match=why):
            check_folder(tmp_path / name, "records")
    assert sorted(tmp_path.iterdir()) == [tmp_path / "file"]
