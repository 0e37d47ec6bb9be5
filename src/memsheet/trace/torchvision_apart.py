"""torchvision kept out of the way of model code. transformers' image processors alone use it, and importing
it takes a second; timm's models import it themselves. The wheel of another torch build (CUDA's, beside
torch's for the processor) loads none of its operators, and then fails to import for want of two of them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

PACKAGE = "torchvision"
DECLARED = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
"""Operators whose fake versions torchvision 0.28 registers without asking whether it has any
(_meta_registrations.py:163,177), as its own library declares them.
"""


@cache
def keep_torchvision_apart() -> None:
    """Before the library loads a model: it does without torchvision, and what needs it nevertheless can
    import it.
    """
    if PACKAGE in sys.modules or find_spec(PACKAGE) is None:
        return
    from transformers import utils
    from transformers.utils import import_utils

    import_utils.is_timm_available()  # it asks for torchvision too, and remembers
    for home in (utils, import_utils):
        home.is_torchvision_available = _never  # type: ignore[attr-defined]
        home.is_torchvision_v2_available = _never  # type: ignore[attr-defined]
    sys.meta_path.insert(0, _BeforeTorchvision())


def _never() -> bool:
    return False


class _BeforeTorchvision(MetaPathFinder):
    """Finds nothing; before torchvision is found it declares what would be missing."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname == PACKAGE:
            sys.meta_path.remove(self)
            found = find_spec(PACKAGE)
            if found is not None and found.origin is not None:
                _declare_missing_operators(Path(found.origin).parent)
        return None


def _declare_missing_operators(home: Path) -> None:
    import torch

    for library in home.glob("_C*.so"):
        with suppress(OSError):
            torch.ops.load_library(str(library))
            return
    for schema in DECLARED:
        torch.library.define(f"{PACKAGE}::{schema.partition('(')[0]}", schema[schema.index("(") :])
