"""A preset of LM Studio, or what it keeps of a model: fields by their keys, which its llama.cpp loads a model
with. Keys of lmstudio-ai/lmstudio-js 1.5 packages/lms-kv-config/src/schema.ts (llm.load), values of
packages/lms-shared-types/src/llm/LLMLoadModelConfig.ts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from memsheet.exchange.shared.file_format import EVERYTHING, Format, Key, Moved, Values
from memsheet.exchange.shared.gguf_names import OF_THE_FILE
from memsheet.exchange.shared.serve_command import BESIDE

VERSION = "LM Studio (lmstudio-js 1.5)"
SCHEMA = "packages/lms-kv-config/src/schema.ts, llm.load"
LOAD = "llm.load"
RATIO = f"{LOAD}.llama.acceleration.offloadRatio"
WHOLE, NOTHING = (1, 1.0, "max"), (0, 0.0, "off")
CACHE = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}
MOST_FIELDS = 512


def _parse_preset(text: str) -> Mapping[str, Any]:
    """Fields of the load and of the answers by their keys; nothing of other texts. A value that may be
    switched off (``{checked, value}``) is left out where it is.
    """
    if LOAD not in text:
        return {}
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    groups = [tree.get(at) for at in ("load", "operation")] if isinstance(tree, dict) else []
    fields = [one for held in groups if isinstance(held, dict) for one in _fields_of(held)]
    return dict(pair for one in fields[:MOST_FIELDS] for pair in _field_pair(one))


def _fields_of(group: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    held = group.get("fields")
    return (one for one in held if isinstance(one, dict)) if isinstance(held, list) else ()


def _field_pair(one: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    at, value = one.get("key"), one.get("value")
    if isinstance(value, dict) and "checked" in value:
        value = value.get("value") if value["checked"] is True else None
    plain = isinstance(value, str | int | float)
    return [(at, value)] if isinstance(at, str) and plain else []


def _read_ratio(value: Any, _: Values) -> Mapping[str, Any]:
    """All layers, none, or a part of them, of which the count is the model's."""
    return {"serving.gpu_layers": 0} if value in NOTHING else {}


def _part_on_host(values: Values, _: Values) -> Iterable[Moved]:
    ratio = values.get(RATIO)
    if ratio not in (*WHOLE, *NOTHING):
        why = (
            "LM Studio chooses how many layers are on the card where nobody says it"
            if ratio is None
            else f"only {ratio} of the layers are on the card, and the sheet has all of them there"
        )
        yield Moved(at=RATIO, why=why, low_bytes=-EVERYTHING, high_bytes=0)


def _read_cache(key: str) -> Any:
    return lambda value, _: {key: CACHE.get(str(value).lower(), f"gguf:{str(value).upper()}")}


def _read_batch(value: Any, _: Values) -> Mapping[str, Any]:
    """Tokens that are given at once, which llama.cpp computes in pieces of its own size."""
    return {"serving.logical_batch": value}


def _load_row(at: str, **more: Any) -> Key:
    return Key(at=f"{LOAD}.{at}", **{"out": lambda _: None, "source": SCHEMA, **more})


KEYS = (
    _load_row("contextLength", says="serving.max_model_len"),
    _load_row("numParallelSessions", says="serving.max_sequences"),
    _load_row("llama.evalBatchSize", back=_read_batch),
    _load_row("llama.acceleration.offloadRatio", back=_read_ratio),
    _load_row("llama.flashAttention", back=lambda v, _: {"attention": "flash" if v is True else "eager"}),
    _load_row("llama.kCacheQuantizationType", back=_read_cache("serving.k_dtype")),
    _load_row("llama.vCacheQuantizationType", back=_read_cache("serving.kv_dtype")),
)  # fmt: skip
_KNOWN = """
seed llama.cpuThreadPoolSize llama.keepModelInMemory llama.tryMmap llama.useFp16ForKVCache llama.autoFit llama.acceleration.mainGpu llama.acceleration.tensorSplit
numExperts useUnifiedKvCache
"""

FORMAT = Format(
    name="lm-studio", file="preset.json", kind="text", tested=VERSION, engines=(), keys=KEYS, marks=frozenset(key.at for key in KEYS), beside=BESIDE | OF_THE_FILE,
    known=frozenset({*(f"{LOAD}.{name}" for name in _KNOWN.split()), "llm.prediction.*"}),
    unmodelled={
        f"{LOAD}.llama.ropeFrequencyBase": (), f"{LOAD}.llama.ropeFrequencyScale": (), f"{LOAD}.offloadKVCacheToGpu": (True,), f"{LOAD}.numCpuExpertLayersRatio": (0, "off"),
        f"{LOAD}.draftModel": (), f"{LOAD}.mlx.kvCacheQuantization": (),
    },
    said={"task": "infer", "engine": "llama.cpp"}, moves=_part_on_host, parse=_parse_preset,
)  # fmt: skip
