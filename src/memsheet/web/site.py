"""The page without a server, as a folder of files: any file server shows it.

``python -m memsheet.web.site FOLDER PYODIDE``: the page, this package as it is installed, the Python of what
it stands on, and the interpreter of ``PYODIDE`` (the unpacked npm package of that name), which runs all of it
in the visitor's browser.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import memsheet
from memsheet.questions.ask import ask
from memsheet.questions.form import FIRST
from memsheet.web.materials import bill_of_materials

PACKAGE = Path(memsheet.__file__).parent
HERE = Path(__file__).parent
INTERPRETER = (
    "pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json", "package.json",
)  # fmt: skip
LEFT_OUT = ("cli", "web", "run", "__pycache__")
"""Folders of the package that nothing here asks."""
BESIDE = {"yaml": "pyyaml", "rich": "rich"}
"""Packages that it stands on, of which Python alone is needed, with the names of their distributions."""
KINDS = frozenset({".py", ".toml", ".json", ".txt", ".csv", ".md"})
POLICY = (
    "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; object-src 'none'"
)
_JOB = {"model": "llama-3.1-8b", "gpus": "1xRTX4090", "view": True}
USUAL = (
    {"question": "form"}, {**FIRST, "view": True}, {"question": "train", **_JOB, "lora_rank": "16"}, {"question": "infer", **_JOB},
    {"question": "read", "text": "vllm serve Qwen/Qwen3-8B"},
    {"question": "check", "files": [{"name": "ds_config.json", "text": '{"zero_optimization": {"stage": 3}}'}], **_JOB},
)  # fmt: skip
DATED = (1980, 1, 1, 0, 0, 0)


def build_site(folder: Path, pyodide: Path) -> None:
    """Write the site into ``folder``, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE / "static", folder)
    page = folder / "index.html"
    page.write_text(without_server(page.read_text(encoding="utf-8")), encoding="utf-8")
    shutil.copy(HERE / "worker" / "worker.js", folder / "worker.js")
    (folder / "pyodide").mkdir()
    for name in INTERPRETER:
        shutil.copy(pyodide / name, folder / "pyodide" / name)
    write_packages(folder / "memsheet.zip")
    _compile_packages(folder / "memsheet.zip", pyodide)
    materials = bill_of_materials(folder / "pyodide", BESIDE.values())
    (folder / "materials.json").write_text(json.dumps(materials, indent=1), encoding="utf-8")
    (folder / "first.json").write_text(json.dumps(list(_first_answers())), encoding="utf-8")


def _compile_packages(archive: Path, pyodide: Path) -> None:
    """The archive with the bytecode of what the page's usual questions import; without node as it is, and a
    first visit compiles it all.
    """
    if node := shutil.which("node"):
        line = [node, str(HERE / "worker" / "compile.mjs"), str(pyodide), str(archive), json.dumps(USUAL)]
        subprocess.run(line, check=True, capture_output=True)  # noqa: S603 no word of it is a visitor's


def _first_answers() -> Iterator[dict[str, Any]]:
    """What the page asks before anybody does, with its answers: they are read while Python loads."""
    for request in ({"question": "form"}, {**FIRST, "view": True}):
        yield {"request": request, "answer": ask(request)}


def without_server(page: str) -> str:
    """The page that asks its worker, with the policy that a server would send as a header."""
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    page = page.replace('<html lang="en">', '<html lang="en" data-home="worker">')
    page = page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{policy}')
    return page.replace('<a href="openapi.json">API</a>', "Everything is computed in this browser.")


def write_packages(archive: Path) -> None:
    """Every file that answers need, as one archive; the same bytes from the same files."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as held:
        for root, path in sorted(_package_files()):
            held.writestr(
                zipfile.ZipInfo(str(path.relative_to(root)), DATED), path.read_bytes(), zipfile.ZIP_DEFLATED
            )


def _package_files() -> Iterator[tuple[Path, Path]]:
    """Every file, with the folder that it is imported from."""
    for package in (PACKAGE, *map(_installed_folder, BESIDE)):
        for path in package.rglob("*"):
            inside = {*path.relative_to(package).parts}
            if path.is_file() and path.suffix in KINDS and not inside & {*LEFT_OUT}:
                yield package.parent, path


def _installed_folder(name: str) -> Path:
    found = find_spec(name)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


if __name__ == "__main__":
    build_site(Path(sys.argv[1]), Path(sys.argv[2]))
