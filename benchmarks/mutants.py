"""Mutants: one constant or operator of the formulas changed at a time, and whether the tests that import the
module, or those of whole answers, notice.

A mutant that survives is printed with its file, line and change: a test is missing, or the change means
nothing. Each is written into a copy of the package outside the tree. A test file that fails or is too slow
unchanged is left out. Prints, asserts nothing.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "memsheet"
OPERATORS = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "*"),
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="),
}  # fmt: skip

WHOLE = (ROOT / "tests" / "golden", ROOT / "tests" / "unit" / "formulas" / "model_code")
"""What is asked of every mutant that the tests of its module let live: whole answers, and every family."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    path: Path
    source: bytes
    start: int
    end: int
    text: str  # instead of the source's bytes between them

    def written(self) -> bytes:
        return self.source[: self.start] + self.text.encode() + self.source[self.end :]

    def described(self) -> str:
        line = self.source.count(b"\n", 0, self.start) + 1
        return (
            f"{self.path.relative_to(ROOT)}:{line}: {self.source[self.start : self.end].decode()} -> "
            f"{self.text}"
        )


def mutants_of(path: Path) -> list[Mutant]:
    """Every number, and every operator of arithmetic or comparison, changed."""
    source = path.read_bytes()
    rows = [0, *accumulate(map(len, source.splitlines(keepends=True)))]
    return [
        Mutant(path=path, source=source, start=at, end=end, text=text)
        for at, end, text in _changes(source, rows)
    ]


def _changes(source: bytes, rows: list[int]) -> Iterator[tuple[int, int, str]]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                other = {0: 1, 1: 2}.get(value, value * 2 if isinstance(value, int) else value * 0.75)
                yield (
                    rows[node.lineno - 1] + node.col_offset,
                    rows[node.end_lineno - 1] + node.end_col_offset,
                    repr(other),
                )
            case ast.BinOp(left, operator, right) | ast.Compare(left, [operator], [right]) if (
                type(operator) in OPERATORS
            ):
                old, new = OPERATORS[type(operator)]
                start, end = (
                    rows[left.end_lineno - 1] + left.end_col_offset,
                    rows[right.lineno - 1] + right.col_offset,
                )
                found = source.find(old.encode(), start, end)
                if found >= 0 and b"#" not in source[start:end]:
                    yield found, found + len(old), new


def tests_of(path: Path, most: int) -> list[Path]:
    """Test files that import the module, then those that import another of its folder; the shortest first."""
    module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    texts = {one: one.read_text(encoding="utf8") for one in (ROOT / "tests").rglob("test_*.py")}
    found = [
        one
        for one, text in texts.items()
        if re.search(rf"from {re.escape(module.rpartition('.')[0])}[. ]", text)
    ]
    return sorted(found, key=lambda one: (f"from {module} import" not in texts[one], len(texts[one])))[:most]


def passes(tests: Sequence[Path], package: Path, timeout: float) -> bool:
    """Whether every test passes with the package in ``package``; too long is no pass."""
    environment = {**os.environ, "PYTHONPATH": str(package), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-B",
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow and not gpu",
        *map(str, tests),
    ]
    try:
        return (
            subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, timeout=timeout, check=False
            ).returncode
            == 0
        )
    except subprocess.TimeoutExpired:
        return False


def verdict_of(mutant: Mutant, copy: Path, most: int, timeout: float, sound: dict[Path, bool]) -> str:
    """``sound``: whether a test file passes unchanged, and soon."""
    tests = tests_of(mutant.path, most)
    sound |= {one: passes([one], copy, timeout / 3) for one in tests if one not in sound}
    tests = [one for one in tests if sound[one]]
    target = copy / mutant.path.relative_to(ROOT / "src")
    target.write_bytes(mutant.written())
    try:
        survives = passes(tests, copy, timeout) if tests else True
        return "killed" if not survives or not passes(WHOLE, copy, 2 * timeout) else "survived"
    finally:
        target.write_bytes(mutant.source)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--sample", type=int, default=20)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument(
        "--of", action="append", help="a folder below src/memsheet: formulas and engines unless said"
    )
    asked.add_argument("--tests", type=int, default=4, help="test files that are run for a module")
    asked.add_argument("--timeout", type=float, default=180)
    told = asked.parse_args()
    files = sorted(
        {one for name in told.of or ("formulas", "engines") for one in (PACKAGE / name).rglob("*.py")}
    )
    every = [mutant for path in files for mutant in mutants_of(path)]
    chosen = random.Random(told.seed).sample(every, min(told.sample, len(every)))
    print(f"{len(chosen)} of {len(every)} mutants in {len(files)} files, seed {told.seed}", flush=True)
    sound: dict[Path, bool] = {}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(PACKAGE, Path(folder, PACKAGE.name), ignore=shutil.ignore_patterns("__pycache__"))
        for mutant in sorted(chosen, key=lambda one: (one.path, one.start)):
            print(
                f"{verdict_of(mutant, Path(folder), told.tests, told.timeout, sound):8} {mutant.described()}",
                flush=True,
            )


if __name__ == "__main__":
    main()
