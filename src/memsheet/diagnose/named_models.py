"""Bundled models that a text names by their hub ids: rows of the output projection and heads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import Any

from memsheet.catalog import find_model, model_names, model_rows
from memsheet.errors import InputError
from memsheet.late import late_functions

with late_functions(__name__):
    from memsheet.catalog.names import bundled_match

_HUB_ID = re.compile(
    r"(?<![\w./-])[A-Za-z0-9][\w.-]{1,60}/[A-Za-z0-9][\w.-]{1,90}(?![\w/])"
    r"|(?<!\w)models--[\w.-]{3,150}(?=/|\s|$)"
)
_IN_PATH = re.compile(
    r"(?<=/)[A-Za-z][\w.]{0,30}-[\w.-]{0,60}?\d[bB](?:-\w[\w.]{0,30}){0,5}(?=[/\"'\s,;)\]]|$)"
)
"""A part of a path, or of another publisher's hub id, that has a model's size in its name."""
_LAST_PARTS = re.compile(r"(?<=/)(?=([A-Za-z0-9][\w.-]{1,60}/[A-Za-z0-9][\w.-]{1,90})(?:[\"'\s,;)\]]|$))")
"""The last two parts of a path, which a repository's copy is often kept under."""
_OF_SIZE = re.compile(r"\d[bB]\b")
_SAID = re.compile(
    r"(?:\bmodel(?:_name(?:_or_path)?|_path|_id)?|\bbase_model|from_pretrained\()[\"']?\s{0,3}[:=]?\s{0,3}"
    r"[\"']?([A-Za-z][\w.-]{2,80})(?![\w/-])"
)
"""A model's name without its publisher, where one is asked for."""
_SPOKEN = re.compile(
    r"(?<![\w/-])(?:lora_|qlora_)?(qwen|code-?llama|llama|gemma|mistral|mixtral|ministral|phi|glm|olmo|smollm|granite|falcon|starcoder|yi|opt|pythia|bloom|gpt-neox|gpt-j|deepseek-llm)"
    r"[ -]?(\d(?:[._]\d)?)?(?:[ -](coder|math|vl))?[ _/-]((?:\d{1,2}x)?\d{1,3}(?:[._]\d)?b(?:-a\d{1,2}b)?)(?![\w/.-]*/)",
    re.IGNORECASE,
)  # fmt: skip
"""A model as people write of it, or as a recipe's path says it: family, version, size."""
_SPOKEN_SIZE = re.compile(
    r"(?<![\w/-])(whisper|bert|t5|vit|gpt-?2)[ -](tiny|small|base|medium|large|xl|xxl)(?:[ -](v\d(?:-turbo)?))?(?![\w-])",
    re.IGNORECASE,
)  # fmt: skip
"""The same of families whose sizes are words."""
_BARE = re.compile(r"(?<![\w/.-])[A-Za-z]\w{0,20}(?:-[\w.]{1,20}){1,6}(?![\w/-])")
"""Words with a dash, of which models without a publisher are some: ``bert-large-uncased``, ``gpt2-xl``."""
MOST = 256
"""Different names that are looked up: a path of two parts looks like one."""


@lru_cache(maxsize=8)
def model_axes(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Vocabularies and attention heads of all that are named, each once; nothing where none is bundled."""
    configs = [{**each, **each.get("text_config", {})} for each in named_entries(text)]
    counts = (
        tuple(dict.fromkeys(count for each in configs for count in _counts_under(each, keys)))
        for keys in (("vocab_size",), _HEAD_COUNTS)
    )
    return tuple(counts)  # type: ignore[return-value]


def _counts_under(config: Mapping[str, Any], keys: tuple[str, ...]) -> Iterator[int]:
    yield from (n for key in keys if isinstance(n := config.get(key), int) and n > 0)


@lru_cache(maxsize=8)
def fixed_lengths(text: str) -> tuple[tuple[int, int], ...]:
    """Heads, and positions that each sample has whatever it holds, of models of sound and of pictures: of
    bundled configurations, and of names that say a picture's side and its patches'.
    """
    found = [pair for each in named_entries(text) for pair in _fixed_of(each)]
    for size, patch, side in (*_PATCHED.findall(text), *_VIT.findall(text)):
        heads = _HEADS_OF_SIZE[_LETTERS.get(size.upper(), size.lower())]
        found.append((heads, (int(side) // int(patch)) ** 2 + 1))
    return tuple(dict.fromkeys(found))


_EXPERTS = re.compile(
    r"_exps\b|\bMoE\b|\bmixture[- ]of[- ]experts\b|\bexpert_(?:used_)?count\b|\bn_expert(?:_used)?\s{0,12}[:=]\s{0,12}[1-9]"
    r"|(?<![A-Za-z0-9])\d{1,4}B-A\d{1,3}(?:\.\d)?B(?![A-Za-z0-9])|(?<![A-Za-z0-9])\d{1,2}x\d{1,3}B(?![A-Za-z0-9])|\bmixtral\b|\bgpt-oss\b",
    re.IGNORECASE,
)  # fmt: skip
"""How logs and names say that a model has routed experts: llama.cpp's tensors and its file's keys (gguf-py,
constants.py), sizes in names, families that are nothing else.
"""
_COUNTS_OF_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


@lru_cache(maxsize=8)
def names_experts(text: str) -> bool:
    """Whether a text names a model with routed experts."""
    if _EXPERTS.search(text):
        return True
    configs = ({**each, **each.get("text_config", {})} for each in named_entries(text))
    return any(count > 1 for each in configs for count in _counts_under(each, _COUNTS_OF_EXPERTS))


def positions_of_models(text: str) -> tuple[int, ...]:
    """The positions that models have which learn one of each, and so read no more tokens."""
    found = (config.get("n_positions") for config in named_entries(text))
    return tuple(dict.fromkeys(each for each in found if isinstance(each, int)))


def _fixed_of(config: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    heads, frames = config.get("encoder_attention_heads"), config.get("max_source_positions")
    if isinstance(heads, int) and isinstance(frames, int):
        yield heads, frames
    side, patch, heads = (config.get(key) for key in ("image_size", "patch_size", "num_attention_heads"))
    if isinstance(side, int) and isinstance(patch, int) and isinstance(heads, int) and patch > 0:
        yield heads, (side // patch) ** 2 + 1


_HEAD_COUNTS = ("num_attention_heads", "encoder_attention_heads", "decoder_attention_heads")
_PATCHED = re.compile(
    r"\b(?:vit|deit|beit)[\w.-]{0,20}?(tiny|small|base|large|huge)[\w.-]{0,30}?patch(\d{1,2})[-_](?:[a-z]\w{0,20}?_)?(\d{2,4})\b",
    re.IGNORECASE,
)  # fmt: skip
_VIT = re.compile(
    r"\bViT-(Ti|S|B|L|H)/(\d{1,2})\b[^\n]{0,20}?\b(\d{3,4})\s?(?:px|pixels|resolution|x\s?\d{3,4})\b",
    re.IGNORECASE,
)
"""A model of pictures as its paper calls it, and a picture's side."""
_LETTERS = {"TI": "tiny", "S": "small", "B": "base", "L": "large", "H": "huge"}
_HEADS_OF_SIZE = {"tiny": 3, "small": 6, "base": 12, "large": 16, "huge": 16}
"""Dosovitskiy et al. 2021, arXiv:2010.11929, table 1; tiny and small: Touvron et al. 2021, arXiv:2012.12877,
table 1. A token for the class stands before the patches.
"""


_AXES = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
)
_PRINTED = re.compile(rf"[\"']?\b({'|'.join(_AXES)})[\"']?\s{{0,3}}[:=]\s{{0,3}}(\d{{1,9}})\b")


@lru_cache(maxsize=8)
def printed_weights(text: str, *, fused: bool) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Weights, by words and shape, of the one configuration that a text prints. ``fused``: as servers keep
    them, those that read the same input as one.
    """
    printed: dict[str, set[int]] = {}
    for name, number in _PRINTED.findall(text):
        printed.setdefault(name, set()).add(int(number))
    if not printed or any(len(numbers) > 1 for numbers in printed.values()):
        return ()
    return tuple(_shapes_of({name: numbers.pop() for name, numbers in printed.items()}, fused=fused))


def _shapes_of(count: Mapping[str, int], *, fused: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    width = count.get("hidden_size")
    if not width:
        return
    if rows := count.get("vocab_size"):
        yield "embedding or output projection", (rows, width)
    if inner := count.get("intermediate_size"):
        yield "feed-forward weight", (inner, width)
        if fused:
            yield "feed-forward weights, gate and up as one", (2 * inner, width)
    if heads := count.get("num_attention_heads"):
        size = count.get("head_dim") or width // heads
        groups = count.get("num_key_value_heads", heads)
        yield "query or output projection", (heads * size, width)
        if fused:
            yield "query, key and value projections as one", ((heads + 2 * groups) * size, width)


_DISTILLED = re.compile(
    r"(?<![\w/-])(?:deepseek[ -])?r1[ -]distill(?:ed)?[ -](qwen|llama)[ -]?(\d{1,2}(?:\.\d)?b)\b",
    re.IGNORECASE,
)
"""Models of others' families that were trained of DeepSeek-R1."""


def _names_in_prose(text: str) -> Iterator[str]:
    for family, size in dict.fromkeys(_DISTILLED.findall(text)):
        with suppress(InputError):
            if match := bundled_match(
                f"deepseek-ai/DeepSeek-R1-Distill-{family.capitalize()}-{size.upper()}"
            ):
                yield match.name
    for said, *parts in dict.fromkeys(_SPOKEN.findall(_DISTILLED.sub("", text))):
        version, kind, size = (each.replace("_", ".") for each in parts)
        family = said.lower().replace("code-llama", "codellama")
        named = f"-{kind}-{size}" if kind else f"-{size}"
        either = (f"{family}{dash}{version}{named}".lower() for dash in (("-", "") if version else ("",)))
        known = [name for name in either if find_model(name) is not None]
        yield from known or ([] if version else _of_every_version(family, named.lower()))


def _of_every_version(family: str, rest: str) -> Iterator[str]:
    """Models of a family and a size where no version is said: ``llama 70b`` is of any."""
    versions = re.compile(rf"{re.escape(family)}-?\d(?:\.\d)?{re.escape(rest)}")
    yield from (name for name in model_names() if versions.fullmatch(name))


_ONE_WORD = re.compile(r"(?<![\w./-])gpt-?2(?![\w/-]|\.\d)", re.IGNORECASE)
"""The smallest of its family, which is called as the family is."""


def _names_of_sizes(text: str) -> Iterator[str]:
    for said in dict.fromkeys(_SPOKEN_SIZE.findall(text)):
        name = "-".join(part for part in said if part).lower().replace("gpt-2", "gpt2")
        if find_model(name) is not None:
            yield name
    if _ONE_WORD.search(text) and not _SPOKEN_SIZE.search(text):
        yield "gpt2"


_SIZE_WORDS = frozenset(("tiny", "mini", "small", "base", "medium", "large", "huge", "xl", "xxl"))


def _bare_names(text: str) -> Iterator[str]:
    """Words that are names of bundled models; else their longest beginnings of which a size is a part, behind
    which stands what was made of the model.
    """
    words = dict.fromkeys(found.group().rstrip(".") for found in _BARE.finditer(text))
    known = [*islice((each for each in words if find_model(each) is not None), MOST)]
    yield from known or islice(filter(None, map(_sized_beginning, islice(words, MOST))), MOST)


def _sized_beginning(word: str) -> str:
    parts = word.split("-")
    least = next((place + 1 for place, part in enumerate(parts) if part.lower() in _SIZE_WORDS), len(parts))
    begun = ("-".join(parts[:end]) for end in range(len(parts) - 1, max(least, 2) - 1, -1))
    return next((each for each in begun if find_model(each) is not None), "")


def _names_in_paths(text: str) -> Iterator[str]:
    """Of each the longest beginning that is a bundled model's name: how its weights are stored, and what was
    trained of it, stands behind, and leaves the axes as they are.
    """
    for name in islice(dict.fromkeys(found.group() for found in _IN_PATH.finditer(text)), MOST):
        ends = (*(place for place, sign in enumerate(name) if sign == "-"), len(name))
        begun = (name[:end] for end in reversed(ends) if _OF_SIZE.search(name[:end]))
        yield from islice((each for each in begun if find_model(each) is not None), 1)


@lru_cache(maxsize=8)
def named_entries(text: str) -> tuple[Mapping[str, Any], ...]:
    """The configurations of the bundled models that a text names, each once."""
    names = dict.fromkeys(found.group().rstrip(".") for found in _HUB_ID.finditer(text))
    names |= dict.fromkeys((*_names_in_paths(text), *_SAID.findall(text), *_LAST_PARTS.findall(text)))
    return tuple(
        _entries_of(list(names)[:MOST])
        or _entries_of(list(_names_of_tuned(text)))
        or _entries_of([*_names_in_prose(text), *_names_of_sizes(text)])
        or _entries_of(list(_bare_names(text)))
        or _entries_of(list(_names_of_counts(text)))
    )


_COUNTS = re.compile(
    r"trainable params: (?P<trained>[\d,]{3,18}) \|\| all params: (?P<all>[\d,]{7,18})"
    r"|\b(?:total|all|number of|model)\s(?:model\s)?param(?:eter)?s?\s{0,2}[:=]\s{0,2}(?P<count>\d[\d,]{6,18})\b"
    r"|\b(?P<said>\d[\d,]{8,18}) (?:total )?param(?:eter)?s\b",
    re.IGNORECASE,
)  # fmt: skip
"""Parameters as trainers print them; those that an adapter adds are all that are trained (peft v0.14.0,
peft_model.py, print_trainable_parameters).
"""


def _names_of_counts(text: str) -> Iterator[str]:
    """Bundled models of just as many parameters as a text counts."""
    counts = set()
    for found in _COUNTS.finditer(text):
        said = {name: int(number.replace(",", "")) for name, number in found.groupdict().items() if number}
        counts.add(said["all"] - said["trained"] if "all" in said else next(iter(said.values())))
    if counts:
        yield from (name for name, row in model_rows().items() if row["parameters"] in counts)


def largest_model(text: str) -> tuple[int, int] | None:
    """Parameters of the largest bundled model that a text names by its hub id, and numbers of its embedding;
    None where it names none.
    """
    names = dict.fromkeys(found.group().rstrip(".") for found in islice(_HUB_ID.finditer(text), MOST))
    known = [found for name in names if (found := find_model(name)) is not None]
    sized = [(int(found.get("published_parameters") or 0), found["config"]) for found in known]
    if not sized or not all(count for count, _ in sized):
        return None
    count, config = max(sized, key=lambda pair: pair[0])
    config = {**config, **config.get("text_config", {})}
    return count, int(config.get("vocab_size") or 0) * int(config.get("hidden_size") or 0)


def least_parameters(text: str) -> int | None:
    """Parameters of the smallest bundled model that a text names by its hub id, as its release counts them;
    None where it names none.
    """
    names = dict.fromkeys(found.group().rstrip(".") for found in islice(_HUB_ID.finditer(text), MOST))
    counts = (found.get("published_parameters") for name in names if (found := find_model(name)) is not None)
    return min((count for count in counts if count), default=None)


def _names_of_tuned(text: str) -> Iterator[str]:
    """Bundled models of which hub ids are others' work, whose weights have the same shapes."""
    for found in islice(dict.fromkeys(each.group().rstrip(".") for each in _HUB_ID.finditer(text)), MOST):
        with suppress(InputError):
            if match := bundled_match(found):
                yield match.name


def _entries_of(names: list[str]) -> list[Mapping[str, Any]]:
    told: list[Mapping[str, Any]] = []
    for name in names:
        hub_id = name.removeprefix("models--").replace("--", "/", 1) if name.startswith("models--") else name
        found = find_model(hub_id)
        if found is not None and found["config"] not in told:
            told.append(found["config"])
    return told
