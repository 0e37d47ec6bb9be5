"""What is published: wheel and sdist of the commit that is checked out, built twice and compared, held against what
git has, with checksums and a bill of materials, and the wheel tried in an environment that has nothing else.

``python packaging/release.py [INTERPRETER …]`` writes ``dist/``; each interpreter tries the wheel.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCKED = ROOT / "packaging" / "locked.txt"
ASKED = (
    ("train", "llama-3.1-8b", "--gpus", "8xH100-80GB", "--seq-len", "4096"),
    ("plan", "train", "llama-3.1-8b", "--gpus", "1xH100-80GB", "--seq-len", "2048", "--global-batch", "4"),
    ("web", "--check"),
)
"""Commands that the installed wheel has to answer, whatever the verdict."""
ANSWERED = (0, 10, 11)


def main(interpreters: list[str]) -> int:
    """Exit code 1, and why, where what is built is not what it has to be."""
    with tempfile.TemporaryDirectory() as folder:
        built = [build(Path(folder) / name) for name in ("first", "again")]
        problems = [*differing(*built), *missing(built[0])]
        shutil.rmtree(ROOT / "dist", ignore_errors=True)
        shutil.copytree(built[0], ROOT / "dist")
    files = sorted((ROOT / "dist").iterdir())
    sums = "".join(f"{digest(path)}  {path.name}\n" for path in files)
    (ROOT / "dist" / "SHA256SUMS").write_text(sums, encoding="utf-8")
    materials = json.dumps(bill_of_materials(files), indent=1) + "\n"
    (ROOT / "dist" / "materials.json").write_text(materials, encoding="utf-8")
    wheel = next(path for path in files if path.suffix == ".whl")
    problems += [problem for one in interpreters for problem in tried(one, wheel)]
    print(sums, end="")
    print(*problems, sep="\n", file=sys.stderr)
    return 1 if problems else 0


def build(folder: Path) -> Path:
    """Wheel and sdist of what git has, in a folder of their own: the wheel that serves everywhere."""
    tree, out = folder / "tree", folder / "out"
    tree.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive, check=True)
    at = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(tree)],
        check=True,
        env={**os.environ, "SOURCE_DATE_EPOCH": at.stdout.strip(), "MEMSHEET_PURE": "1"},
        stdout=subprocess.DEVNULL,
    )
    return out


def differing(one: Path, other: Path) -> Iterator[str]:
    """Files that two builds of the same commit do not have alike."""
    for path in sorted(one.iterdir()):
        if digest(path) != digest(other / path.name):
            yield f"{path.name}: two builds differ"


def missing(folder: Path) -> Iterator[str]:
    """Files that git has and what is built has not."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    own = set(tracked.stdout.splitlines())
    wheel, sdist = next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))
    inside = {f"src/{name}" for name in zipfile.ZipFile(wheel).namelist()}
    with tarfile.open(sdist) as opened:
        kept = {name.partition("/")[2] for name in opened.getnames()}
    yield from (f"{wheel.name}: lacks {name}" for name in sorted(own - inside) if name.startswith("src/"))
    yield from (f"{sdist.name}: lacks {name}" for name in sorted(own - kept))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def bill_of_materials(files: list[Path]) -> dict[str, Any]:
    """CycloneDX 1.6: what is built, and what it is installed with, with the hashes of the lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = {"type": "application", "name": project["name"], "version": project["version"]}
    hashes = [{"type": "file", "name": path.name, "hashes": [_sha256(digest(path))]} for path in files]
    locked = [
        {
            "type": "library",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name}@{version}",
            "hashes": [_sha256(one) for one in found],
        }
        for name, version, found in locked_packages()
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own | {"licenses": [{"license": {"id": project["license"]}}]}},
        "components": [*hashes, *locked],
    }


def _sha256(content: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": content}


def locked_packages() -> Iterator[tuple[str, str, list[str]]]:
    """Name, version and hashes of each package of ``locked.txt``."""
    text = LOCKED.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        if found := re.match(r"([\w.-]+)==(\S+)", line):
            yield found[1], found[2], re.findall(r"--hash=sha256:(\w{64})", line)


def tried(interpreter: str, wheel: Path) -> Iterator[str]:
    """What goes wrong where the wheel is installed into an empty environment, with the locked packages."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([interpreter, "-m", "venv", folder], check=True)
        pip = [f"{folder}/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--require-hashes", "-r", str(LOCKED)], check=True)
        subprocess.run([*pip, "--no-deps", str(wheel)], check=True)
        for words in ASKED:
            line = [f"{folder}/bin/memsheet", *words]
            code = subprocess.run(line, cwd=folder, check=False, stdout=subprocess.DEVNULL).returncode
            if code not in ANSWERED:
                yield f"{interpreter}: memsheet {' '.join(words)} ends with {code}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
