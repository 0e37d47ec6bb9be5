"""A package that memsheet stands on and that is not installed is named; nothing is an internal error for
it.
"""

import subprocess
import sys

import pytest

from memsheet.cli import main
from memsheet.errors import missing_package

MODEL = ("llama-3.2-1b", "--gpus", "2xL4")
COMMANDS = [
    ("plan", "train", *MODEL, "--seq-len", "1024", "--global-batch", "8"), ("plan", "infer", *MODEL, "--context", "1024", "--users", "2"),
    ("solve", "gpus", "llama-3.2-1b", "--gpus", "L4", "--seq-len", "1024"),
    ("train", *MODEL, "--seq-len", "1024"), ("infer", *MODEL, "--max-model-len", "1024"), ("models",), ("explain", "kv_cache"),
]  # fmt: skip
WITHOUT_NUMPY = "import sys; sys.modules['numpy'] = None\n"


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", WITHOUT_NUMPY + code, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_missing_numpy_is_named_or_not_needed(command) -> None:
    done = python("from memsheet.cli import main; raise SystemExit(main(sys.argv[1:]))", *command)
    assert "internal error" not in done.stderr
    assert done.returncode in (0, 10, 11) or (done.returncode == 2 and "pip install numpy" in done.stderr), (
        done.stderr
    )


def test_python_is_told_too() -> None:
    asked = "memsheet.questions.plan.plan('llama-3.2-1b', gpus='2xL4', seq_len=1024)"
    done = python(
        f"import memsheet.questions.plan\ntry: {asked}\nexcept memsheet.InputError as error: "
        "print(error.problems[0].field)"
    )
    assert done.stdout.strip() == "numpy", done.stderr


def test_a_module_of_its_own_that_is_missing_stays_an_internal_error(monkeypatch, capsys) -> None:
    def broken(_: object) -> None:
        raise ModuleNotFoundError(name="memsheet.nothing")

    monkeypatch.setattr("memsheet.cli._dispatch_command", broken)
    assert main(("models",)) == 70
    assert "internal error" in capsys.readouterr().err
    assert missing_package(ModuleNotFoundError(name=None)) is None
