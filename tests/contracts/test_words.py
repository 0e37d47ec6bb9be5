"""What must not stand in a file of the project: paths of the machine it was written on, hosts to install from."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SELF = Path(__file__).relative_to(ROOT).as_posix()

FORBIDDEN = (
    "/work/",
    "/tmp/oracle",
    "/root/",
    "/opt/pypi",
    "/opt/wheels",
    "index-url",  # and extra-index-url: where packages come from is the installer's business
    "find-links",
    "pypi.org/simple",
    "pythonhosted.org",
    "download.pytorch.org",
)


def project_files() -> list[str]:
    """Every file that git tracks or would track."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [name for name in listed.split("\0") if name and name != SELF and (ROOT / name).is_file()]


def found_in(text: str) -> list[str]:
    return [word for word in FORBIDDEN if word in text]


def test_the_search_finds_what_it_looks_for():
    assert found_in("cd /work/main && pip install --extra-index-url x") == ["/work/", "index-url"]


def test_no_file_names_a_machine_or_a_registry():
    texts = {name: (ROOT / name).read_text(encoding="utf-8", errors="replace") for name in project_files()}
    assert {name: words for name, text in texts.items() if (words := found_in(text))} == {}
