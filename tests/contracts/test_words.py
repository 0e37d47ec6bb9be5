"""What must not stand in a file of the project: paths of the machine it was written on, hosts to install
from.
"""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SELF = Path(__file__).relative_to(ROOT).as_posix()

# absolute paths of somebody's machine, in code, commands and notes; the temporary and home folders of
# examples included
PATHS = re.compile(r"(?<![\w.~-])/(?:work|root|opt|home|tmp)/\w+")
INSTALLER = ("index-" + "url", "find-" + "links")  # where packages come from is the installer's business


def project_files() -> list[str]:
    """Every file that git tracks or would track."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [name for name in listed.split("\0") if name and name != SELF and (ROOT / name).is_file()]


def found_in(text: str) -> list[str]:
    return [*PATHS.findall(text), *(word for word in INSTALLER if word in text)]


def test_the_search_finds_what_it_looks_for():
    folder = "/" + "home/somebody"
    assert found_in(f"cd {folder} && pip install --extra-{INSTALLER[0]} x") == [folder, INSTALLER[0]]


def test_no_file_names_a_machine_or_a_registry():
    texts = {name: (ROOT / name).read_text(encoding="utf-8", errors="replace") for name in project_files()}
    assert {name: words for name, text in texts.items() if (words := found_in(text))} == {}
