"""The library's classes that a script loads a model with, and the families that they are of."""

from __future__ import annotations

from memsheet.patterns import late_pattern

_FAMILY = late_pattern(
    r"(?!Auto|PreTrained)([A-Z][A-Za-z0-9_]*?)(?:For[A-Z]\w*|LMHeadModel|DoubleHeadsModel|Model)$"
)
_WORDS = late_pattern(r"[a-z0-9]")


def class_of_family(model_class: str, model_type: str) -> bool:
    """Whether a class of transformers is of the family that a ``model_type`` names: both without case and
    signs (``GPTNeoXForCausalLM`` and ``gpt_neox``), the text's part of a family as the family itself.
    """
    found = _FAMILY.match(model_class)
    return found is None or _plain_family(found[1]) == _plain_family(model_type)


def names_family(model_class: str) -> bool:
    """Whether a class of transformers is of one family, and not the one that a checkpoint itself names."""
    return _FAMILY.match(model_class) is not None


def _plain_family(name: str) -> str:
    return "".join(_WORDS.findall(name.lower())).removesuffix("text")
