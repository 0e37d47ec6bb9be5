"""Classes of models that a script loads and that no library has, which may hold more than the model that they
are loaded from (towers, heads, a second copy) and compute otherwise; and functions of other packages that it
hands its model to, which may divide it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.built_models import OWN_CODE
from memsheet.exchange.shared.further_models import names_in, trained_names
from memsheet.exchange.shared.model_classes import names_family
from memsheet.exchange.shared.python_module import Module, attribute_path
from memsheet.exchange.shared.script_places import FAMILY_CLASS, WHOLE

TRANSFORMERS = "transformers"
LIBRARIES = frozenset({
    "transformers", "peft", "trl", "unsloth", "optimum", "auto_gptq", "gptqmodel", "awq", "hqq", "liger_kernel", "modelscope", "ipex_llm",
    "intel_extension_for_transformers", "adapters", "accelerate", "sentence_transformers", "pytorch_transformers", "pytorch_pretrained_bert",
})  # fmt: skip
"""Packages whose classes load the library's models, as they are or with what a script says beside."""

COPYING = LIBRARIES | {
    "torch",
    "copy",
    "bitsandbytes",
    "torchao",
    "deepspeed",
    "lightning",
    "pytorch_lightning",
}
"""Packages of which it is known what their calls make of a model: those that divide one are read by name."""


def own_class_key(module: Module, call: Mapping[str, Any]) -> dict[str, Any]:
    """That the class whose model a call loads is the file's own, or of a package that is no library; or which
    one it is, where it is transformers' of one family.
    """
    whole = str(call.get(WHOLE, ""))
    name, dot, _ = whole.partition(".")
    if name == TRANSFORMERS:
        return _family_key(whole.removeprefix(f"{TRANSFORMERS}.").partition(".")[0])
    if not dot or not name[:1].isupper():
        return {}
    origins = dict(_origins(module.tree))
    if any(isinstance(node, ast.ClassDef) and node.name == name for node in module.tree.body):
        origins[name] = "this file"
    everything = {origin for at, origin in _origins(module.tree) if at == "*"}
    origin = origins.get(name, next(iter(everything), "") if not everything & LIBRARIES else "")
    if origin == TRANSFORMERS:
        return _family_key(name)
    if not origin or origin in LIBRARIES:
        return {}
    return {OWN_CODE: f"{name} of {origin}, which may hold more than the model that it is loaded from"}


def handed_model_words(module: Module) -> str:
    """The function of a package that nobody reads whose result stands for the model that trains, which it is
    handed; nothing where there is none.
    """
    trained = trained_names(module)
    origins = {**dict(_origins(module.tree)), **dict(_packages(module.tree))}
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        path = attribute_path(node.value.func)
        origin = origins.get(path[0], "") if path else ""
        given = {name for one in node.value.args for name in names_in(one)}
        given |= {name for one in node.value.keywords for name in names_in(one.value)}
        made = {name for target in node.targets for name in names_in(target)}
        if origin and origin not in COPYING and made & trained & given:
            return f"{'.'.join(path)} of {origin}, which is handed the model and may divide it"
    return ""


def _family_key(name: str) -> dict[str, Any]:
    return {FAMILY_CLASS: name} if names_family(name) else {}


def _origins(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names that a file imports, wherever it does, with the packages that they are of."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            package = "a file beside" if node.level else str(node.module).partition(".")[0]
            yield from ((one.asname or one.name, package) for one in node.names)


def _packages(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names under which a file has whole packages."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (
                (one.asname or one.name.partition(".")[0], one.name.partition(".")[0]) for one in node.names
            )
