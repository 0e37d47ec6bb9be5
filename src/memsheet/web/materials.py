"""The bill of materials of the page without a server: every foreign part by name, version, licence and hash,
as CycloneDX 1.6 has it (https://cyclonedx.org/docs/1.6/json/).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import memsheet


def bill_of_materials(interpreter: Path, packages: Iterable[str]) -> dict[str, Any]:
    """``interpreter``: the folder with Pyodide's files as they are served; ``packages``: the names of the
    installed distributions that travel beside this one.
    """
    lock = json.loads((interpreter / "pyodide-lock.json").read_text(encoding="utf-8"))
    files = [_named_file(path) for path in sorted(interpreter.iterdir())]
    release = json.loads((interpreter / "package.json").read_text(encoding="utf-8"))["version"]
    parts = [
        _named_part("Pyodide", release, "MPL-2.0") | {"components": files},
        _named_part("CPython", lock["info"]["python"], "PSF-2.0"),
        *(_named_part(name, metadata(name)["Version"], metadata(name)["License"]) for name in packages),
    ]
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "metadata": {"component": _named_part("memsheet", memsheet.__version__, metadata("memsheet")["License-Expression"])},
        "components": parts,
    }  # fmt: skip


def _named_part(name: str, version: str, license_word: str) -> dict[str, Any]:
    return {
        "type": "library", "name": name, "version": version,
        "licenses": [{"license": {"id": license_word}}],
    }  # fmt: skip


def _named_file(path: Path) -> dict[str, Any]:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"type": "file", "name": path.name, "hashes": [{"alg": "SHA-256", "content": digest}]}
