"""Ollama's names: a family and, behind a colon, a size, what it is tuned for and the types of its file.

ollama/ollama README, Model library, and docs/modelfile: ``llama3.2`` is ``llama3.2:latest``, whose size is
the library's choice; types stand last (``8b-instruct-q8_0``), and most tags without any are in Q4_K_M.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from memsheet.patterns import late_pattern

LATEST = {
    "llama2": "7b", "llama3": "8b", "llama3.1": "8b", "llama3.2": "3b", "llama3.2-vision": "11b", "llama3.3": "70b", "llama4": "scout",
    "qwen2": "7b", "qwen2.5": "7b", "qwen2.5-coder": "7b", "qwen2.5vl": "7b", "qwen3": "8b", "qwen3-coder": "30b", "qwen3-vl": "8b", "qwq": "32b",
    "gemma": "7b", "gemma2": "9b", "gemma3": "4b", "gemma3n": "e4b", "mistral": "7b", "mixtral": "8x7b", "mistral-nemo": "12b",
    "mistral-small": "24b", "mistral-small3.1": "24b", "mistral-small3.2": "24b", "devstral": "24b", "magistral": "24b", "codellama": "7b", "phi3": "3.8b", "phi3.5": "3.8b",
    "phi4": "14b", "phi4-mini": "3.8b", "gpt-oss": "20b", "deepseek-r1": "8b", "deepseek-v2": "16b", "deepseek-v3": "671b", "tinyllama": "1.1b",
    "smollm2": "1.7b", "command-r": "35b", "command-r-plus": "104b", "command-r7b": "7b", "yi": "6b", "falcon": "7b", "starcoder2": "3b", "olmo2": "7b",
}  # fmt: skip
"""Family → the size of its ``latest``."""
CALLED = {
    "llama4:scout": "llama-4-scout", "llama4:16x17b": "llama-4-scout", "llama4:maverick": "llama-4-maverick", "llama4:128x17b": "llama-4-maverick",
    "llama3.2-vision:11b": "llama-3.2-11b-vision", "llama3.2-vision:90b": "llama-3.2-90b-vision", "qwen3:30b": "qwen3-30b-a3b", "qwen3:235b": "qwen3-235b-a22b",
    "qwen3-coder:30b": "qwen3-coder-30b-a3b-instruct", "qwen3-coder:480b": "qwen3-coder-480b-a35b-instruct", "qwen3-vl:30b": "qwen3-vl-30b-a3b-instruct",
    "qwen3-vl:235b": "qwen3-vl-235b-a22b-instruct", "gemma4:26b": "gemma-4-26b-a4b", "nemotron-3-nano:30b": "nemotron-3-nano-30b-a3b",
    "mistral-small3.2:24b": "mistral-small-3.2-24b-instruct-2506", "qwen3-next:80b": "qwen3-next-80b-a3b-instruct",
    "mistral:7b": "mistral-7b-instruct-v0.3", "phi3:3.8b": "phi-3-mini-128k-instruct", "phi3:mini": "phi-3-mini-128k-instruct", "phi3:14b": "phi-3-medium-128k-instruct",
    "phi3:medium": "phi-3-medium-128k-instruct", "phi3.5:3.8b": "phi-3.5-mini-instruct", "phi4:14b": "phi-4", "phi4-mini:3.8b": "phi-4-mini-instruct",
    "deepseek-r1:1.5b": "deepseek-r1-distill-qwen-1.5b", "deepseek-r1:7b": "deepseek-r1-distill-qwen-7b", "deepseek-r1:8b": "deepseek-r1-0528-qwen3-8b",
    "deepseek-r1:14b": "deepseek-r1-distill-qwen-14b", "deepseek-r1:32b": "deepseek-r1-distill-qwen-32b", "deepseek-r1:70b": "deepseek-r1-distill-llama-70b",
    "deepseek-r1:671b": "deepseek-r1", "deepseek-v2:16b": "deepseek-v2-lite", "deepseek-v2:236b": "deepseek-v2", "deepseek-v3:671b": "deepseek-v3",
    "tinyllama:1.1b": "tinyllama-1.1b", "command-r7b:7b": "command-r7b", "mistral-small3.1:24b": "mistral-small-3.1-24b-instruct-2503", "mistral-small:24b": "mistral-small-24b-instruct-2501",
    "mistral-nemo:12b": "mistral-nemo-instruct-2407", "devstral:24b": "devstral-small-2507", "magistral:24b": "magistral-small-2506",
}  # fmt: skip
"""Tags whose model is not called ``family-size``."""
OTHER_FORMS = {"gpt-oss": "BF16"}
"""Types of families whose tags without any are stored as they were released: gpt-oss' experts in MXFP4, which
every file of it keeps, and the rest whole.
"""
_TUNED = ("instruct", "chat", "text", "it", "it-qat", "base", "thinking")
_TYPES = late_pattern(r"(?:^|-)((?:i?q\d(?:_[a-z0-9]+){0,2}|fp?16|bf16|mxfp4))$", re.IGNORECASE)
_SIZE = late_pattern(r"^(?:\d{1,3}x)?e?\d{1,4}(?:\.\d)?[bm]|^(?:mini|medium|scout|maverick)(?=-|$)")


def ollama_names(family: str, tag: str) -> tuple[tuple[str, ...], str]:
    """Names that a catalogue may have the model of a tag under, the likeliest first, and the types of its
    file, empty where the tag says none.
    """
    family, tag = family.lower(), tag.lower()
    said = _TYPES.search(tag)
    types = said[1].upper() if said else ""
    rest = (tag[: said.start()] if said else tag) or "latest"
    if rest in ("latest", *_TUNED):
        if family not in LATEST:
            return (), types
        rest = LATEST[family] if rest == "latest" else f"{LATEST[family]}-{rest}"
    elif not _SIZE.search(rest):
        return (), types
    return tuple(dict.fromkeys(_spellings(family, rest))), types


def _spellings(family: str, rest: str) -> Iterator[str]:
    """What the library calls a size where a tag says no more of it than what it was tuned for."""
    size, _, tuned = rest.partition("-")
    named, spaced = CALLED.get(f"{family}:{size}"), re.sub(r"(\d)(vl)$", r"\1-\2", family)
    if named and tuned in ("", *_TUNED):
        yield named
    else:
        yield f"{spaced}-{size}-{tuned}" if tuned else f"{spaced}-{size}"
