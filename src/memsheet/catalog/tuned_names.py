"""Names that hold a bundled model's name beside words of their own: what somebody made of that model. Words
that may stand for other shapes make it no match; the rest are told, not passed over.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from functools import cache

from memsheet.catalog.stated_bases import REWARD_HEAD
from memsheet.frozen import NamedTuple
from memsheet.patterns import late_pattern

TUNED = late_pattern(
    r"-(?:instruct|base|it|pt|chat|hf|text|qat|sft|dpo|think|thinking|ft|finetuned?|merged|linearized"
    r"|rl|rlhf|rlvr|grpo|ppo|orpo|kto|simpo|cpo)$"
)
"""Ends that say what weights were tuned for, and by which method, and nothing of their shapes."""
DRAFTS = late_pattern(
    r"(?:^|[-.])(?P<kind>eagle-?\d?(?:\.\d)?|dflash|dspark|speculator|medusa|draft(?:er)?)(?=[-.]|$)"
)
"""Words of heads and small models that draft tokens for another."""
_ASSISTANT = late_pattern(r"^(?P<of>(?:gemma-4|muse-glimmer)-.+)-assistant$")
"""Models whose publisher calls their drafts so (transformers: gemma4_assistant, muse_glimmer_assistant)."""
ADAPTERS = frozenset(("lora", "qlora", "dora", "adapter", "adapters", "peft"))
_RANKED = late_pattern(r"q?lora(?:-?r)?\d+")
"""An adapter's word with its rank."""
REWARDS = frozenset(("reward", "rewards", "rm", "prm", "orm"))
_SIZED = late_pattern(r"(?:^|-)(?:\d+x)?e?\d+(?:\.\d+)?[bm](?:-|$)")
_NUMBERS = late_pattern(r"\d[\d.]*[a-z][\w.]*|[aexqw]\d[\w.]*")
"""Another size, a length, a count of experts, bits: words of shapes and of storage."""
_RELEASES = late_pattern(r"v?\d+(?:\.\d+)*|preview")
"""Behind a model's own name: another release of it, whose shapes are its own."""
_OWN_RELEASES = late_pattern(r"v\d+(?:\.\d+)*")
"""Behind words of a tuner's own and the name of a model whose family has a number of its own: a release of
what the tuner made.
"""
_VERSIONED = late_pattern(r"(?P<family>[a-z]+-?\d+(?:\.\d+)?)-(?P<size>\d+(?:\.\d+)?b(?:-a\d+(?:\.\d+)?b)?)")
_OWN_WORD = late_pattern(r"[a-z]{3,}")
_SERIES = frozenset((
    "code", "coder", "math", "next", "guard", "pro", "plus", "turbo", "flash", "max", "ultra", "edge", "air", "super", "mobile", "research", "scope",
))  # fmt: skip
"""Between a family and a size: series of a publisher's own, which may have shapes of their own."""
_SHAPES = frozenset((
    "vl", "vlm", "vision", "visual", "multimodal", "mm", "omni", "audio", "speech", "voice", "asr", "tts", "video", "image", "ocr", "embed",
    "embedding", "embeddings", "encoder", "encode", "colbert", "retriever", "reranker", "rerank", "moe", "merge", "franken", "frankenmerge", "pruned",
    "prune", "pruner", "sliced", "slim", "shared", "width", "depth", "layer", "layers", "layerskip", "drop", "upscaled", "expanded", "extended",
    "long", "longlora", "realtime", "streaming", "mini", "tiny", "small", "nano", "lite", "micro", "large", "xl", "xxl", "self", "looped", "hybrid", "linear", "mla",
    "mamba", "diffusion", "mtp", "vocab", "tokenizer", "clip", "siglip", "blip", "bitnet", "ternary", "aqlm", "vptq", "quip", "spqr", "quark",
    "quantized", "prequantized", "unquantized", "dequantized", "marlin", "compressed", "autoround", "ptq", "mobile", "onnx", "openvino", "ggml", "gguf",
    "eetq", "ct", "gptq", "awq", "fp8", "fp4", "nvfp4", "mxfp4", "mxfp8", "int4", "int8", "exl2", "exl3", "hqq", "bnb", "nf4", "mlx", "bf16", "fp16",
    "fp32", "f16", "f32", "bfloat16", "float16", "float32", "dynamic", "block", "unsloth", "imatrix", "smoothquant", "spinquant", "128g",
))  # fmt: skip
"""Words of models that are changed in what they hold: towers, lengths, layers, experts, forms of storage."""
_TONGUES = frozenset((
    "ja", "jp", "japanese", "ko", "kor", "korean", "zh", "cn", "chinese", "ar", "arabic", "de", "german", "fr", "french", "es", "spanish",
    "italian", "portuguese", "ru", "russian", "vi", "vietnamese", "th", "thai", "id", "indonesian", "hi", "hindi", "tr", "turkish", "pl",
    "polish", "nl", "dutch", "uk", "ukrainian", "multilingual",
))  # fmt: skip
"""Tongues, for which others than a model's publisher often give it more words."""
STUDENT = frozenset(("distill", "distilled", "distil"))
"""Before a name they say that the model of that name was taught, behind it perhaps that it taught another."""


class HeldModel(NamedTuple):
    """``key``: the spelling that a name holds; ``before``, ``behind``: its other words."""

    key: str
    before: tuple[str, ...]
    behind: tuple[str, ...]


def places_of_keys(keys: Iterable[str]) -> Mapping[str, int]:
    """Keys, each with its place: of two that are as long, the first counts."""
    return {key: place for place, key in enumerate(dict.fromkeys(keys))}


def held_model(name: str, keys: Mapping[str, int]) -> HeldModel | None:
    """The longest of ``keys`` that stands whole inside a name, and the words around it."""
    words = name.split("-")
    ends = itertools.combinations(range(len(words) + 1), 2)
    runs = ("-".join(words[first:last]) for first, last in ends)
    inside = [run for run in runs if run in keys]
    if not inside:
        return None
    key = min(inside, key=lambda key: (-len(key), keys[key]))
    before, _, behind = f"-{name}-".partition(f"-{key}-")
    return HeldModel(key, _parts(before), _parts(behind))


def split_model(name: str, keys: Iterable[str]) -> HeldModel | None:
    """The model whose family begins a name and whose size stands further behind, and the words between and
    behind them (``llama-3.1-storm-8b``). Only of families that say their release, and only around whole words
    of letters: what stands between says the rest.
    """
    for key in keys:
        family, size = _family_and_size(key)
        if not family or not name.startswith(f"{family}-"):
            continue
        between, size, behind = name.removeprefix(family).partition(f"-{size}")
        words = _parts(between)
        if (
            size
            and behind[:1] in ("", "-")
            and words
            and not _SERIES & set(words)
            and all(map(_OWN_WORD.fullmatch, words))
        ):
            return HeldModel(key, words, _parts(behind))
    return None


@cache
def _family_and_size(key: str) -> tuple[str, str]:
    """Of a spelling of a bundled name; both empty where its family says no release."""
    found = _VERSIONED.fullmatch(key)
    return (found["family"], found["size"]) if found else ("", "")


def is_sized(key: str) -> bool:
    """Whether a spelling says how large its model is."""
    return _SIZED.search(key) is not None


def changed_shapes(held: HeldModel, families: frozenset[str], *, own: bool) -> bool:
    """Whether a word around a model's name may stand for other shapes than its own. ``families``: first words
    of bundled names; ``own``: its publisher is that model's.
    """
    around = (*held.before, *held.behind)
    joined = {f"{word}{number}" for word, number in itertools.pairwise(around) if number.isdigit()}  # fp-8
    if held.behind and _RELEASES.fullmatch(held.behind[0]) and not _is_own_release(held):
        return True
    if any(_NUMBERS.fullmatch(word) or word in _SHAPES | ADAPTERS for word in (*around, *joined)):
        return True
    taught = bool(STUDENT & set(held.behind))
    strange = any(word in families for word in around)
    return taught or strange or (not own and bool(_TONGUES & set(around)))


def tells_shapes(words: Iterable[str]) -> bool:
    """Whether a word may stand for other shapes than a family's and a size's, or for a series of its own."""
    return any(
        word in _SHAPES | _SERIES | ADAPTERS | STUDENT or _NUMBERS.fullmatch(word) is not None
        for word in words
    )


def _is_own_release(held: HeldModel) -> bool:
    own = [word for word in held.before if word not in _COMMON]
    return bool(own and _VERSIONED.fullmatch(held.key) and _OWN_RELEASES.fullmatch(held.behind[0]))


def tuned_words(held: HeldModel) -> str:
    """What is told of a name's other words."""
    around = [word for word in (*held.before, *held.behind) if not TUNED.fullmatch(f"-{word}")]
    told = f"tuned from it as far as its name tells, {', '.join(around)}"
    return f"{told}; {REWARD_HEAD}" if REWARDS.intersection(around) else told


def drafted_name(name: str) -> str | None:
    """The name of the model that a draft is for, by the draft's name (in lower case with dashes); None where
    it is none.
    """
    if assistant := _ASSISTANT.fullmatch(name):
        return assistant["of"]
    found = DRAFTS.search(name)
    if found is None:
        return None
    return name[: found.start()] or name[found.end() :].lstrip("-.")


def is_adapter_name(name: str) -> bool:
    return any(word in ADAPTERS or _RANKED.fullmatch(word) for word in name.split("-"))


_COMMON = frozenset(
    ("ai", "all", "command", "meta", "ms", "nvidia", "open", "paraphrase", "seed", "unlimited")
)
"""Of those, words that tell no family."""


def family_words(names: Mapping[str, str]) -> frozenset[str]:
    """The first words of bundled names, which are families' own: a second one in a name says that shapes are
    of another.
    """
    return frozenset(key.split("-")[0] for key in names if "/" not in key) - _COMMON


def _parts(words: str) -> tuple[str, ...]:
    return tuple(word for word in words.split("-") if word)
