"""Which bundled model a name is of: in any case, with or without who published it, as a mirror's copy, tuned
or stored in another form. What a name leaves open is said; a name with words nobody knows is no match.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from memsheet.catalog import find_model, model_names, spelling_index
from memsheet.catalog.name_forms import AskedName, is_quant_tag, parse_model_name
from memsheet.catalog.ollama_names import OTHER_FORMS, ollama_names
from memsheet.catalog.pipelines import is_pipeline_name, pipeline_name_error
from memsheet.catalog.stored_names import USUAL_TAG, Storage, split_storage, storage_of_tag, stored_as
from memsheet.frozen import dataclass

MIRRORS = frozenset((
    "unsloth", "nousresearch", "mlx-community", "lmstudio-community", "bartowski", "thebloke", "casperhansen", "redhatai", "neuralmagic", "nm-testing",
    "nvidia", "amd", "intel", "hugging-quants", "ista-daslab", "modelcloud", "quanttrio", "cyankiwi", "cpatonn", "mradermacher", "maziyarpanahi",
    "ggml-org", "second-state", "axolotl-ai-co", "axolotl-quants", "huggyllama", "mistral-community", "alpindale", "mhenrichsen", "kaitchup",
    "stelterlab", "llm-research", "ai-modelscope", "onnx-community", "openvino",
))  # fmt: skip
"""Who publishes copies of others' models under their names."""
_TUNED = re.compile(r"-(?:instruct|base|it|pt|chat|hf|text|qat|sft|dpo|think|thinking)$")
MOST_ENDS = 6
"""Ends that say what weights were tuned for, and nothing of their shapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameMatch:
    """``name``: the bundled one; ``exact``: it is one of that model's own names; ``sure``: its owner
    publishes copies, or nobody is named.
    """

    name: str
    exact: bool = False
    sure: bool = True
    storage: Storage | None = None
    words: str = ""


def bundled_match(text: str, *, endpoint: str = "") -> NameMatch | None:
    """The bundled model that a name is of, None where it holds a word that nobody knows. Raises InputError
    for the page of something that is no model, and for a pipeline of several.
    """
    if (found := spelling_index().get(_spelling_key(text))) is not None:
        return NameMatch(name=found, exact=True)
    asked = parse_model_name(text, endpoint=endpoint)
    if asked is None:
        return None
    if is_pipeline_name(asked.repo):
        raise pipeline_name_error(asked.text)
    if asked.revision:
        return None
    if asked.ollama and not is_quant_tag(asked.tag):
        return _ollama_match(asked)
    return _hub_match(asked) or (_ollama_match(asked) if asked.ollama else None)


def bundled_entry(text: str, *, endpoint: str = "") -> Mapping[str, Any] | None:
    """The catalogue's entry of the model that a name is of, its ``config`` stored as the name says.

    ``assumed``: what was taken for granted, in words; ``sure``: False where a hub should be asked first.
    """
    found = bundled_match(text, endpoint=endpoint)
    entry = find_model(found.name) if found else None
    if found is None or entry is None or found.exact:
        return entry
    asked = parse_model_name(text, endpoint=endpoint)
    config = stored_as(entry["config"], found.storage) if found.storage else entry["config"]
    same = found.storage is None
    return {
        **entry,
        "config": config,
        "name": entry["name"] if same and found.sure else asked.text if asked else text,
        "assumed": (_assumption(found, asked.text if asked else text),),
        "sure": found.sure,
        "copy_of": found.name,
        "attention_open": found.storage is not None and found.storage.attention_open,
    }


def held_name(text: str) -> str:
    """The longest bundled name that stands whole inside a name of which more is not known; empty where there
    is none.
    """
    asked = parse_model_name(text)
    words = f"-{_canonical(asked.repo.rpartition('/')[2])}-" if asked else ""
    inside = [
        key
        for key in _canonical_index()
        if "/" not in key and re.search(r"\d[bm]?\b", key) and f"-{key}-" in words
    ]
    return _canonical_index()[max(inside, key=len)] if inside else ""


def matching_names(words: str) -> tuple[str, ...]:
    """The bundled models of which every word is in one of the names, or the one that the words name."""
    wanted = words.lower().split()
    index = spelling_index()
    spelt = {name: [key for key, value in index.items() if value == name] for name in model_names()}
    found = [name for name, keys in spelt.items() if all(any(word in key for key in keys) for word in wanted)]
    if found or len(wanted) != 1:
        return tuple(found)
    match = bundled_match(words)
    return (match.name,) if match else ()


def _assumption(found: NameMatch, asked: str) -> str:
    stored = f", {found.words}" if found.words else ""
    hint = (
        "" if found.sure else "; who published it is not known for copies, and its config.json was not read"
    )
    return f"model = {found.name} ({asked} by its name{stored}{hint})"


def _spelling_key(name: str) -> str:
    return name.strip().lower().replace("_", "-")


def _canonical(name: str) -> str:
    """Dashes between words, and between a family and its version: ``llama3.1_8b`` is ``llama-3.1-8b``."""
    return re.sub(
        r"(?<![a-z0-9.])([a-z]{2,})(\d+(?:\.\d+)?)(?=-|$)",
        r"\1-\2",
        re.sub(r"[-_\s]+", "-", name.strip().lower()),
    )


@cache
def _canonical_index() -> dict[str, str]:
    """Bare names in canonical spelling → the bundled name; a spelling of two models is none's."""
    found: dict[str, set[str]] = {}
    for key, name in spelling_index().items():
        found.setdefault(_canonical(key.rpartition("/")[2]), set()).add(name)
    return {key: min(names) for key, names in found.items() if len(names) == 1}


def _owners(name: str) -> frozenset[str]:
    """Who publishes a bundled model under its own names."""
    return frozenset(
        key.partition("/")[0] for key, value in spelling_index().items() if value == name and "/" in key
    )


def _hub_match(asked: AskedName) -> NameMatch | None:
    owner, _, bare = asked.repo.lower().rpartition("/")
    storage = storage_of_tag(asked.tag) if asked.tag else None
    if asked.tag and storage is None and asked.tag.lower() != "latest":
        return None
    found = _stripped_match(_spelling_key(bare), owner)
    if found is None:
        return None
    name, own = found
    stored = storage or own
    sure = not owner or owner in MIRRORS or owner in _owners(name)
    return NameMatch(name=name, sure=sure, storage=stored, words=stored.words if stored else "")


def _stripped_match(name: str, owner: str) -> tuple[str, Storage | None] | None:
    """The bundled name that is left of one without its ends, and how it is stored."""
    index, storage = _canonical_index(), None
    for _ in range(MOST_ENDS):
        if (key := _canonical(name)) in index:
            return index[key], storage
        if storage is None and (split := split_storage(name, owner)):
            name, storage = split
        elif end := _TUNED.search(name):
            name = name[: end.start()]
        else:
            return None
    return None


def _ollama_match(asked: AskedName) -> NameMatch | None:
    names, types = ollama_names(asked.repo, asked.tag)
    for spelling in names:
        found = _stripped_match(spelling, "")
        if found is None:
            continue
        if not types and asked.repo.lower() in OTHER_FORMS:
            return NameMatch(name=found[0], words="stored as it was released")
        storage = storage_of_tag(types or USUAL_TAG)
        usual = "" if types else ", as most of Ollama's tags are that name no types"
        return NameMatch(name=found[0], storage=storage, words=f"{storage.words}{usual}" if storage else "")
    return None
