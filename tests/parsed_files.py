"""Our own Python files as trees, each parsed once: several tests look through all of them."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import memsheet

PACKAGE = Path(memsheet.__file__).parent


@cache
def package_trees() -> Mapping[Path, ast.Module]:
    """Every module of the package, by its file. Nothing is garbage while they are made, nor later."""
    gc.disable()
    try:
        return {file: ast.parse(file.read_text(encoding="utf-8")) for file in sorted(PACKAGE.rglob("*.py"))}
    finally:
        gc.enable()
        gc.freeze()


def files_with(words: Iterable[str]) -> list[Path]:
    """Files of the package in whose text one of the words stands: no other one needs to be parsed for it."""
    said = tuple(words)
    files = sorted(PACKAGE.rglob("*.py"))
    return [file for file in files if any(word in file.read_text(encoding="utf-8") for word in said)]
