"""The model that a recipe of torchtune's is of: the folder of its checkpoint as `tune download` names it,
else the builder of its layers. Lines are of pytorch/torchtune at bd2a0fc.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.errors import InputError
from memsheet.exchange.shared.file_format import UNSET, Key, Values
from memsheet.late import late_functions
from memsheet.patterns import late_pattern

with late_functions(__name__):
    from memsheet.catalog.names import bundled_match


FULL = "recipes/full_finetune_distributed.py"
MODEL, FOLDER = "model._component_", "checkpointer.checkpoint_dir"
ALONE = late_pattern(r"\$\{(\w+)\}")
"""OmegaConf's name of another key of the top, alone."""
OF_META = "original"
"""The folder of a repository that holds Meta's own files."""
BUILDER = late_pattern(
    r"torchtune\.models\.\w+\.(?:q?lora_)?(?P<family>[a-z]+\d*(?:_\d(?=_))?)_(?P<rest>\w+)"
)
"""A builder's name: the family with its version, whose point is an underline, and the size."""
POINT = late_pattern(r"(?<![\d_])(\d)_(\d+b)(?![^\W_])")
ONE_SIZE = {"phi4_14b": "phi-4"}
"""Builders of models that have one size, which their names leave out (torchtune/models/phi4)."""
WORDS = late_pattern(r"_(?:\d+e|base)\b")


def read_only_key(at: str, back: Any, source: str = FULL, **more: Any) -> Key:
    """A place that is read and never written; ``source``: the recipe that reads it."""
    return Key(at=at, out=lambda _: None, back=back, source=source, **more)


def read_checkpoint_folder(value: Any, values: Values) -> Mapping[str, Any]:
    """The last folder of the checkpoint's, which `tune download` names as the hub does; of one with another
    name the model that the layers' builder is called by.
    """
    folder = str(value)
    if told := ALONE.fullmatch(folder):
        folder = str(values.get(told[1], folder))
    name = folder.rstrip("/").removesuffix(f"/{OF_META}").rpartition("/")[2]
    named = {"@model": name} if name and "$" not in name and folder != UNSET else {}
    return named if named and _is_known_name(name) else {**named, **_built_model(values)}


def _is_known_name(name: str) -> bool:
    try:
        return bundled_match(name) is not None
    except InputError:
        return False


def _built_model(values: Values) -> Mapping[str, Any]:
    told = BUILDER.fullmatch(built_by(values))
    names = builder_names(told["family"], told["rest"]) if told else ()
    name = next(filter(_is_known_name, names), "")
    return {"@model": name} if name else {}


def built_by(values: Values) -> str:
    """The builder of the layers that train, by its whole name."""
    return str(values.get(MODEL, values.get("policy_model._component_", "")))


def builder_names(family: str, rest: str) -> Iterator[str]:
    """What the hub may call a model: ``qwen2_5`` and ``0_5b`` are ``qwen2.5-0.5b``, and ``qwen2_0`` and
    ``5b`` are ``qwen2-0.5b``; one size alone has no name.
    """
    yield builder_name(family, rest)
    first, _, version = family.rpartition("_")
    if first:
        yield builder_name(first, f"{version}_{rest}")
    yield ONE_SIZE.get(f"{family}_{rest}", "")


def builder_name(family: str, rest: str) -> str:
    """A model as the hub calls it: ``qwen2_5`` and ``0_5b_instruct`` are ``qwen2.5-0.5b-instruct``."""
    size = WORDS.sub("", POINT.sub(r"\1.\2", rest))
    return f"{family.replace('_', '.')}-{size.replace('_', '-')}"
