"""Which bundled model a name is of: in any case, with or without who published it, as a mirror's copy, tuned
or stored in another form, or in a name with words of its own. What a name leaves open is said; a name with
words that may stand for other shapes is no match.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from memsheet.catalog import as_released_under, canonical_index, find_model, model_names, spelling_index
from memsheet.catalog.converted_copies import converted_config
from memsheet.catalog.name_forms import AskedName, is_quant_tag, parse_model_name
from memsheet.catalog.ollama_names import LATEST, OTHER_FORMS, ollama_names
from memsheet.catalog.pipelines import generator_error, generator_kind
from memsheet.catalog.spellings import canonical_name
from memsheet.catalog.stated_bases import STATED_BASES, StatedBase
from memsheet.catalog.stored_names import USUAL_TAG, Storage, split_storage, storage_of_tag, stored_as
from memsheet.catalog.tuned_names import (
    TUNED,
    HeldModel,
    changed_shapes,
    drafted_name,
    family_words,
    held_model,
    is_adapter_name,
    is_sized,
    places_of_keys,
    split_model,
    tuned_words,
)
from memsheet.frozen import dataclass, replace
from memsheet.patterns import late_pattern

MIRRORS = frozenset((
    "unsloth", "nousresearch", "mlx-community", "lmstudio-community", "bartowski", "thebloke", "casperhansen", "redhatai", "neuralmagic", "nm-testing",
    "nvidia", "amd", "intel", "hugging-quants", "ista-daslab", "modelcloud", "quanttrio", "cyankiwi", "cpatonn", "mradermacher", "maziyarpanahi",
    "ggml-org", "second-state", "axolotl-ai-co", "axolotl-quants", "huggyllama", "mistral-community", "alpindale", "mhenrichsen", "kaitchup",
    "stelterlab", "llm-research", "ai-modelscope", "zhipuai", "openai-mirror", "onnx-community", "openvino", "decapoda-research", "yahma", "elinas", "jeffwan", "daryl149",
))  # fmt: skip
"""Who publishes copies of others' models under their names."""
MOST_ENDS = 6
"""Ends that say what weights were tuned for, and nothing of their shapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameMatch:
    """``name``: the bundled one; ``exact``: it is one of that model's own names; ``sure``: its owner
    publishes copies, or nobody is named. ``held``: the name has words of its own beside that model's.
    ``released``: under which of its names it was released, as far as the name says; ``positions_open``: what
    has that name may have been made for another length.
    """

    name: str
    released: str = ""
    positions_open: bool = False
    exact: bool = False
    sure: bool = True
    storage: Storage | None = None
    words: str = ""
    held: bool = False


def bundled_match(text: str, *, endpoint: str = "") -> NameMatch | None:
    """The bundled model that a name is of, None where it may have other shapes. Raises InputError
    for the page of something that is no model, and for what makes pictures, video or sound.
    """
    if (found := spelling_index().get(_spelling_key(text))) is not None:
        return NameMatch(name=found, exact=True)
    asked = parse_model_name(text, endpoint=endpoint)
    if asked is None:
        return None
    if kind := generator_kind(asked.repo):
        raise generator_error(asked.text, kind)
    if asked.revision:
        return None
    if asked.ollama and not is_quant_tag(asked.tag):
        return _ollama_match(asked)
    family = asked.repo.lower() in LATEST and not asked.tag and any(map(str.isdigit, asked.repo))
    return _hub_match(asked) or (_ollama_match(asked) if asked.ollama or family else None)


def bundled_entry(text: str, *, endpoint: str = "") -> Mapping[str, Any] | None:
    """The catalogue's entry of the model that a name is of, its ``config`` stored as the name says.

    ``assumed``: what was taken for granted, in words; ``sure``: False where a hub should be asked first.
    """
    found = bundled_match(text, endpoint=endpoint)
    entry = find_model(found.name) if found else None
    if found is None or entry is None or found.exact:
        return as_released_under(entry, text) if entry else None
    asked = parse_model_name(text, endpoint=endpoint)
    entry = as_released_under(entry, found.released)
    config = stored_as(entry["config"], found.storage) if found.storage else entry["config"]
    kept = config.get("quantization_config", {}).get("experts") if found.storage else None
    if kept:
        found = replace(found, words=f"{found.words}, experts in {kept} as in every GGUF file of it")
    config, conversion = converted_config(asked.repo if asked else "", found.name, config)
    if conversion:
        found = replace(found, words=", ".join(filter(None, (conversion, found.words))))
    same = found.storage is None and not found.held
    return {
        **entry,
        "config": config,
        "name": entry["name"] if same and found.sure else asked.text if asked else text,
        "assumed": (_assumption(found, asked.text if asked else text),),
        "sure": found.sure,
        "copy_of": found.name,
        "attention_open": found.storage is not None and found.storage.attention_open,
        "positions_open": found.positions_open or bool(entry.get("positions_open")),
    }


def held_name(text: str) -> str:
    """The longest bundled name that stands whole inside a name of which more is not known; empty where there
    is none.
    """
    asked = parse_model_name(text)
    held = held_model(canonical_name(asked.repo.rpartition("/")[2]), _numbered_keys()) if asked else None
    return canonical_index()[held.key] if held else ""


@cache
def _numbered_keys() -> Mapping[str, int]:
    return places_of_keys(key for key in canonical_index() if re.search(r"\d[bm]?\b", key))


def other_kind(text: str) -> tuple[str, str]:
    """What a name says that it is besides a whole model, a draft or an adapter, and the bundled model that it
    is for; both empty where it says nothing of the kind, the second where that one is not bundled.
    """
    asked = parse_model_name(text)
    bare = canonical_name(asked.repo.rpartition("/")[2]) if asked else ""
    drafted = drafted_name(bare)
    if drafted is not None:
        found = bundled_match(drafted) if drafted else None
        return "draft", found.name if found else held_name(text)
    return ("adapter", _adapted_model(bare) or held_name(text)) if is_adapter_name(bare) else ("", "")


def _adapted_model(bare: str) -> str:
    """The bundled model, perhaps of no size, that an adapter's name holds beside the words of adapters."""
    rest = "-".join(word for word in bare.split("-") if not is_adapter_name(word))
    held = held_model(rest, _base_keys())
    if held is None:
        return ""
    return canonical_index().get(held.key) or _stated_index()[held.key][1].model


@cache
def _base_keys() -> Mapping[str, int]:
    return places_of_keys((*(key for key in canonical_index() if "-" in key), *_stated_index()))


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
    unknown = "its config.json was not read"
    if not found.sure and not found.held:
        unknown = f"who published it is not known for copies, and {unknown}"
    hint = "" if found.sure else f"; {unknown}"
    return f"model = {found.name} ({asked} by its name{stored}{hint})"


TUNED_OF_DATE = late_pattern(r"-(?:base|instruct)(?=-\d{4}$)")
"""Before a release's month, which people write without it (Mistral-Small-3.1-24B-2503)."""


def _spelling_key(name: str) -> str:
    return name.strip().lower().replace("_", "-")


def canonical_names() -> dict[str, str]:
    """Bare names in canonical spelling → the bundled name; a spelling of two models is none's. ``catalog``
    has them as a file (``canonical_index``), as finding them all takes longer than an answer.
    """
    found: dict[str, set[str]] = {}
    for key, name in spelling_index().items():
        found.setdefault(canonical_name(key.rpartition("/")[2]), set()).add(name)
    undated: dict[str, set[str]] = {}
    for key, names in found.items():
        undated.setdefault(TUNED_OF_DATE.sub("", key), set()).update(names)
    found = {**undated, **found}
    return {key: min(names) for key, names in found.items() if len(names) == 1}


@cache
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
    rest, whole, own = _without_ends(_spelling_key(bare), owner)
    stored = storage or own
    told = stored.words if stored else ""
    if rest in canonical_index():
        name = canonical_index()[rest]
        sure = not owner or owner in MIRRORS or owner in _owners(name)
        return NameMatch(
            name=name, released=rest, positions_open=rest != whole, sure=sure, storage=stored, words=told
        )
    if rest in _stated_index():
        home, base = _stated_index()[rest]
        words = ", ".join(filter(None, (f"which {base.words}", told)))
        return NameMatch(
            name=base.model,
            released=rest,
            positions_open=not _says_positions(base.model, rest),
            sure=owner in ("", home, *MIRRORS),
            storage=stored,
            words=words,
            held=True,
        )
    held = _held_in(whole, owner)
    if held is None:
        return None
    words = ", ".join(filter(None, (tuned_words(held), told)))
    return NameMatch(
        name=canonical_index()[held.key],
        released=held.key,
        positions_open=True,
        sure=False,
        storage=stored,
        words=words,
        held=True,
    )


def _without_ends(name: str, owner: str) -> tuple[str, str, Storage | None]:
    """A name in canonical spelling without the ends that say how it is stored and what it was tuned for, as
    far as that takes to be a known one; without those of storage alone; and how it is stored.
    """
    storage, whole = None, name
    for _ in range(MOST_ENDS):
        if (key := canonical_name(name)) in canonical_index() or key in _stated_index():
            break
        if storage is None and (split := split_storage(name, owner)):
            name, storage = split
            whole = name
        elif end := TUNED.search(name):
            name = name[: end.start()]
        else:
            break
    return canonical_name(name), canonical_name(whole), storage


def _held_in(name: str, owner: str) -> HeldModel | None:
    """The model whose name stands in another with nothing beside it that may stand for other shapes."""
    if drafted_name(name) is not None:
        return None
    held = held_model(name, _sized_keys())
    if held is None and owner and owner not in MIRRORS:
        held = split_model(name, _sized_keys())
        if held and owner in _owners(canonical_index()[held.key]):
            return None  # a publisher's own words between are a series of its own
    if held is None:
        return None
    own = owner in _owners(canonical_index()[held.key])
    return None if changed_shapes(held, _families(), own=own) else held


@cache
def _sized_keys() -> Mapping[str, int]:
    return places_of_keys(filter(is_sized, canonical_index()))


@cache
def _families() -> frozenset[str]:
    return family_words(canonical_index())


@cache
def _stated_index() -> dict[str, tuple[str, StatedBase]]:
    """Bare names of models that somebody stated the base of → who published them, and the base."""
    return {
        canonical_name(repo.partition("/")[2]): (repo.partition("/")[0], base)
        for repo, base in STATED_BASES.items()
    }


def _says_positions(name: str, released: str) -> bool:
    """Whether the catalogue has the length that a bundled model was released for under another's name."""
    entry = find_model(name)
    found = as_released_under(entry, released) if entry else None
    return found is not None and found != entry


def _ollama_match(asked: AskedName) -> NameMatch | None:
    names, types = ollama_names(asked.repo, asked.tag)
    for spelling in names:
        known = _without_ends(spelling, "")[0]
        _, base = _stated_index().get(known, ("", None))
        name = canonical_index().get(known) or (base.model if base else None)
        if name is None:
            continue
        released = OTHER_FORMS.get(asked.repo.lower())
        storage = storage_of_tag(types or released or USUAL_TAG)
        named = "as it was released" if released else "as most of Ollama's tags are that name no types"
        usual = "" if types else f", {named}"
        told = f"{storage.words}{usual}" if storage else ""
        words = ", ".join(filter(None, (f"which {base.words}" if base else "", told)))
        return NameMatch(
            name=name,
            released=known,
            positions_open=base is not None and not _says_positions(name, known),
            storage=storage,
            words=words,
            held=base is not None,
        )
    return None
