"""Compiles the allocator's loop where there is a C compiler; without one, or with MEMSHEET_PURE set, the package
is Python alone and gives the same answers.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("src", "memsheet", "allocator", "compiled")
LIBRARY = "play.abi3.so"
OLDEST = 3, 11
"""The Python whose stable interface is used: play.c says so, too."""
FLAGS = ("-std=c99", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")


class CompiledLoop(BuildHookInterface):
    """Beside its source where the package is installed in place, else in the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        source, beside = Path(self.root, FOLDER, "play.c"), Path(self.root, FOLDER, LIBRARY)
        self.scratch = tempfile.mkdtemp()
        reason = hinders_compiling() or compile_library(source, Path(self.scratch, LIBRARY))
        if version == "editable":
            beside.unlink(missing_ok=True)  # of a source that may have changed
        if reason:
            self.app.display_warning(f"memsheet without its compiled loop, which is slower: {reason}")
        elif version == "editable":
            partial = beside.with_suffix(".partial")
            shutil.copyfile(Path(self.scratch, LIBRARY), partial)
            partial.replace(beside)  # whole at once: others may have it open
        else:
            inside = Path(*FOLDER.parts[1:], LIBRARY).as_posix()
            build_data["force_include"][str(Path(self.scratch, LIBRARY))] = inside
            build_data["pure_python"] = False
            build_data["tag"] = f"cp{OLDEST[0]}{OLDEST[1]}-abi3-{platform_tag()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        del version, build_data, artifact_path
        shutil.rmtree(self.scratch, ignore_errors=True)


def hinders_compiling() -> str:
    """Why nothing is compiled, empty where something is."""
    if os.environ.get("MEMSHEET_PURE"):
        return "MEMSHEET_PURE is set"
    if os.name != "posix" or sys.implementation.name != "cpython" or "PYODIDE" in os.environ:
        return "it is not built for this platform"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "free-threaded Python has no stable interface"
    return ""


def compile_library(source: Path, library: Path) -> str:
    """What went wrong, in one line, empty if nothing did."""
    named = shlex.split(os.environ.get("CC", ""))
    compiler = named or next(([name] for name in ("cc", "gcc", "clang") if shutil.which(name)), [])
    if not compiler:
        return "no C compiler is found"
    shared = ("-bundle", "-undefined", "dynamic_lookup") if sys.platform == "darwin" else ("-shared",)
    line = [
        *compiler, *FLAGS, *architectures(), *shared, f"-I{sysconfig.get_path('include')}", str(source),
        "-o", str(library),
    ]  # fmt: skip
    try:
        done = subprocess.run(line, check=False, capture_output=True, text=True)  # noqa: S603 the installer's own words
    except OSError as error:
        return f"{compiler[0]}: {error.strerror}"
    errors = [one for one in done.stderr.splitlines() if "error" in one] or done.stderr.splitlines()
    return "" if done.returncode == 0 else f"{compiler[0]}: {(errors or ['it failed'])[0].strip()}"


def architectures() -> list[str]:
    """Of macOS: those that are asked for, else those of the interpreter."""
    own = re.findall(r"-arch \S+", sysconfig.get_config_var("CFLAGS") or "")
    return shlex.split(os.environ.get("ARCHFLAGS") or " ".join(own))


def platform_tag() -> str:
    return re.sub(r"[^0-9A-Za-z]", "_", sysconfig.get_platform())
