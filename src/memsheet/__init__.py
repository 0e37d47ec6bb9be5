"""The memory budget sheet for large models: every byte on every GPU, for training and inference."""

from memsheet.api import infer, train
from memsheet.budget import Answer, Verdict
from memsheet.errors import InputError
from memsheet.sheet import Component, Instant, Item, Sheet

__all__ = ["Answer", "Component", "InputError", "Instant", "Item", "Sheet", "Verdict", "infer", "train"]
__version__ = "0.1.0"
