"""A cold start stays cold: nothing heavy is imported before a command needs it."""

import importlib.util
import json
import subprocess
import sys

import pytest

HEAVY = (
    "torch",
    "transformers",
    "accelerate",
    "peft",
    "numpy",
    "matplotlib",
    "pydantic",
    "fastapi",
    "huggingface_hub",
)

LOADED = (
    f"import json, sys; print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]), "
    "file=sys.stderr)"
)
IMPORT = f"import memsheet; {LOADED}"
COMMAND = f"""
import runpy, sys
sys.argv = ["memsheet", "models"]
try:
    runpy.run_module("memsheet", run_name="__main__")
except SystemExit as end:
    assert not end.code, end.code
{LOADED}
"""


def loaded_after(program: str) -> list[str]:
    """The heavy packages that a fresh interpreter holds after ``program``."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stderr.splitlines()[-1])


def test_the_probe_sees_a_heavy_import():
    assert loaded_after(f"import numpy; {LOADED}") == ["numpy"]


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_after(IMPORT) == []


@pytest.mark.skipif(
    importlib.util.find_spec("memsheet.__main__") is None, reason="the command line is not there yet"
)
def test_a_command_without_torch_loads_nothing_heavy():
    assert loaded_after(COMMAND) == []


def test_a_bundled_name_loads_no_tables_of_other_names():
    """How copies and Ollama's tags are called is looked up for a name that is none of the bundled."""
    asked = "import memsheet; memsheet.train('llama-tiny', seq_len=8)"
    program = (
        f"{asked}; import json, sys; print(json.dumps([m for m in sys.modules if {{}}]), file=sys.stderr)"
    )
    told = "m.startswith(('memsheet.catalog.name', 'memsheet.catalog.stored', 'memsheet.readers.hub'))"
    assert loaded_after(program.format(told)) == []
