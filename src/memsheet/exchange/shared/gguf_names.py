"""GGUF files by their paths, as scripts name them."""

from __future__ import annotations

import re
from typing import Any

from memsheet.exchange.shared.file_format import Values
from memsheet.exchange.shared.serve_command import SIXTEEN_OF
from memsheet.patterns import late_pattern

_WHOLE = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}
_PUBLISHERS = ("Qwen", "google", "openai", "microsoft", "mistralai", "nvidia", "meta-llama", "zai-org")
_OWNED = late_pattern("|".join(f"(?<=^{name})_" for name in _PUBLISHERS))
"""What stands between a publisher and a model in files of repositories that keep both (bartowski's)."""
OF_THE_FILE = frozenset(
    {"quantization.weights", "quantization.group_size", "quantization.skip", "precision.name"}
) | {f"precision.{name}" for name in (*SIXTEEN_OF, "master_weights")}
"""Keys of a plan that the file itself says."""
_GGUF = late_pattern(
    r"(?P<stem>.+?)[-._](?P<types>(?:UD-)?(?:I?Q\d\w*|TQ\d_\d|MXFP4\w*|BF16|F16|F32))"
    r"(?:[-.]\d{5}-of-\d{5})?\.gguf",
    re.IGNORECASE,
)


def gguf_model_name(path: str) -> str:
    """A file's path as the name of a model with its types (``qwen3-8b@Q4_K_M``); a path that ends otherwise
    as it is.
    """
    told = _GGUF.fullmatch(path.replace("\\", "/").rpartition("/")[2])
    return f"{_OWNED.sub('/', told['stem'])}@{told['types']}" if told else path


def gguf_file_types(path: str) -> str | None:
    """The types that a file's name ends with (``Q4_K_M``), None where it says none."""
    told = _GGUF.fullmatch(path)
    return told["types"] if told else None


def plan_file_name(asked: Values) -> str | None:
    """The file that a model of a plan would lie in, by its name and types."""
    name, stored = str(asked.get("@model") or ""), str(asked.get("quantization.weights") or "")
    if not name or name.endswith(".gguf"):
        return name or None
    plain = name.rpartition("/")[2].partition(":")[0].partition("@")[0]
    types = stored.removeprefix("gguf:") or _WHOLE.get(str(asked.get("precision.parameters")), "F16")
    return f"{plain.removesuffix('-GGUF')}-{types}.gguf"


CACHE = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}
"""Types of llama.cpp's cache by the names of plans; blocks are a GGUF file's (``gguf:Q8_0``)."""


def cache_dtype_of(word: Any) -> str:
    """The plan's name of a type of the cache, of llama.cpp's word (common/arg.cpp, kv_cache_types)."""
    return CACHE.get(str(word).lower(), f"gguf:{str(word).upper()}")
