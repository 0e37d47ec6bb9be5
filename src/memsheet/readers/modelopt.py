"""ModelOpt's checkpoints (NVIDIA's own FP8 and NVFP4 releases): ``quantization_config`` of a config.json, or
hf_quant_config.json beside it.

The keys are those that servers read (``READ_IN``; sgl-project/sglang v0.5.23
layers/quantization/modelopt_quant.py:467).
"""

from __future__ import annotations

import re
from collections import Counter

from memsheet.late import late_functions
from memsheet.plan.model import StoredQuantization
from memsheet.readers.fields import Fields

with late_functions(__name__):
    from memsheet.readers.stored_cache import cache_scheme


HEAD = ("lm_head",)
ALGORITHMS: dict[str, tuple[str, int | None]] = {
    "FP8": ("fp8", None), "FP8_PER_CHANNEL_PER_TOKEN": ("fp8", None), "FP8_PB_WO": ("fp8-block", 128), "FP8_BLOCK_SCALES": ("fp8-block", 128),
    "NVFP4": ("nvfp4", 16), "W4A16_NVFP4": ("nvfp4", 16), "NVFP4_AWQ": ("nvfp4", 16), "MXFP8": ("mxfp8", 32),
}  # fmt: skip
"""quant_algo → a dtype's name and its group (``READ_IN``)."""
NUMBERED = re.compile(r"^(.*\blayers\.)(\d+)(.*)$")


def read_modelopt(stored: Fields, layers: int) -> StoredQuantization | None:
    """The stored format. ``layers``: of the model, so that what is listed layer by layer is known for all of
    them.
    """
    inner = stored.sub("quantization") if stored.raw("quantization") is not None else stored
    name = inner.text("quant_algo", default="").upper()
    found = ALGORITHMS.get(name)
    if found is None:
        mixed = name == "MIXED_PRECISION"
        reason = (
            "has formats of its own in each layer, which is not modelled"
            if mixed
            else f"is none of {', '.join(ALGORITHMS)}"
        )
        inner.wrong(
            "quant_algo",
            name or None,
            reason,
            "without quantization_config, --quantize nvfp4 or fp8 gives the sizes of one format",
        )
        return None
    weights, group = found
    size = inner.optional("group_size")
    if weights == "nvfp4" and size not in (None, group):
        inner.wrong("group_size", size, "is not the 16 of NVFP4")
    cache, fixed = cache_scheme(
        inner if inner.raw("kv_cache_scheme", "kv_cache_quant_algo") is not None else stored
    )
    key = next((key for key in ("ignore", "exclude_modules") if inner.raw(key) is not None), "ignore")
    return StoredQuantization(
        method="modelopt",
        weights=weights,
        group_size=group,
        skip=_unquantized_module_patterns(inner, key, layers),
        cache=cache,
        cache_fixed=fixed,
    )


def _unquantized_module_patterns(stored: Fields, key: str, layers: int) -> tuple[str, ...]:
    """Modules that are left alone, as beginnings and parts of paths. A module listed in some layers is taken
    as left alone in all of them, which never says too few bytes; whole layers cannot be.
    """
    found, whole = list[str](), Counter[str]()
    for pattern in stored.texts(key, default=HEAD):
        numbered = NUMBERED.match(pattern)
        if numbered is None:
            found.append(pattern.removesuffix("*").strip("*.") or pattern)
            continue
        if int(numbered[2]) >= layers:
            continue  # layers that draft, which are no part of the model
        rest = numbered[3].rstrip("*").strip(".")
        if rest:
            found.append(f"{numbered[1]}*.{rest}")
        else:
            whole[numbered[1]] += 1
    if whole:
        reason = f"leaves {sum(whole.values())} of {layers} layers as they are, which is not modelled"
        stored.wrong(
            key,
            None,
            reason,
            "without quantization_config, --quantize nvfp4 or fp8 gives the sizes with all of them quantized",
        )
    return tuple(dict.fromkeys(found))
