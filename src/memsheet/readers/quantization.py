"""How a released checkpoint stores its weights: the ``quantization_config`` of a config.json.

The keys are those that transformers' quantization config classes and compressed-tensors write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from memsheet.late import late_functions
from memsheet.plan.engine_registry import pool_servers
from memsheet.plan.model import StoredQuantization
from memsheet.readers.fields import Fields

with late_functions(__name__):
    from memsheet.readers.modelopt import read_modelopt

with late_functions(__name__):
    from memsheet.readers.stored_cache import cache_scheme


BESIDE = "hf_quant_config.json"
"""Where ModelOpt's older exports wrote what config.json holds today."""
HEAD = ("lm_head",)  # what the methods leave alone when a config lists no modules of its own


def stored_quantization(config: Fields) -> StoredQuantization | None:
    """The stored format of the linear weights, or None where a config names no quantization, of the whole
    model or of the text model inside it.

    A method or a format memsheet has no sizes for is a problem: its bytes would be guessed.
    """
    if config.raw("quantization_config") is None:
        nested = config.raw("text_config")
        if not isinstance(nested, Mapping) or nested.get("quantization_config") is None:
            return None
        return stored_quantization(config.sub("text_config"))
    stored = config.sub("quantization_config")
    method = stored.text("quant_method", default=_infer_quant_method(stored))
    if method.startswith("modelopt"):
        return read_modelopt(stored, config.count("num_hidden_layers", default=10_000))
    reader = _METHODS.get(method)
    if reader is None:
        reason, hint = _UNREAD.get(
            method, (f"is none of {', '.join(sorted((*_METHODS, 'modelopt')))}", INSTEAD)
        )
        reason = reason.format(servers=" nor ".join(pool_servers()))
        stored.wrong("quant_method", method or None, reason, hint)
        return None
    return reader(stored)


def _infer_quant_method(stored: Fields) -> str:
    """At first bitsandbytes wrote no quant_method; ModelOpt's own file has none."""
    if "producer" in stored.data or "quant_algo" in stored.data:
        return "modelopt"
    return "bitsandbytes" if "load_in_4bit" in stored.data or "load_in_8bit" in stored.data else ""


def _modules_kept_unquantized(stored: Fields, *keys: str) -> tuple[str, ...]:
    """The modules kept in the model's dtype, under the first of ``keys`` that lists any."""
    return next((stored.texts(key) for key in keys if stored.raw(key) is not None), HEAD)


def _mxfp4_scheme(stored: Fields) -> StoredQuantization:
    return StoredQuantization(
        method="mxfp4",
        weights="mxfp4",
        group_size=32,
        skip=_modules_kept_unquantized(stored, "modules_to_not_convert"),
    )


def _fp8_scheme(stored: Fields) -> StoredQuantization:
    """Blocks when the config gives their size, else one scale a tensor (as a server makes them)."""
    weights, group = _fp8_scales(stored, "weight_block_size")
    return StoredQuantization(
        method="fp8",
        weights=weights,
        group_size=group,
        skip=_modules_kept_unquantized(stored, "modules_to_not_convert", "ignored_layers"),
    )


def _fbgemm_fp8_scheme(stored: Fields) -> StoredQuantization:
    """One fp32 scale a row of a matrix (``READ_IN``; transformers 5.23 integrations/fbgemm_fp8.py)."""
    return StoredQuantization(
        method="fbgemm_fp8", weights="fp8", skip=_modules_kept_unquantized(stored, "modules_to_not_convert")
    )


def _fp8_scales(stored: Fields, key: str) -> tuple[str, int | None]:
    block = stored.counts(key, low=1)
    if not block:
        return "fp8", None
    if block != (128, 128):
        stored.wrong(
            key,
            list(block),
            "is not [128, 128], the only block size known",
            "other blocks carry another number of scales",
        )
    return "fp8-block", 128


def _gptq_scheme(stored: Fields) -> StoredQuantization:
    skip = _modules_kept_unquantized(stored, "modules_to_not_convert")
    head = stored.flag("lm_head", default=False)
    return StoredQuantization(
        method="gptq",
        weights=f"gptq-int{_weight_bit_width(stored, 'bits', known=(4, 8))}",
        group_size=_quantization_group_size(stored, "group_size"),
        skip=tuple(name for name in skip if name != "lm_head") if head else skip,
    )


def _awq_scheme(stored: Fields) -> StoredQuantization:
    return StoredQuantization(
        method="awq",
        weights=f"awq-int{_weight_bit_width(stored, 'bits', 'w_bit', known=(4,))}",
        group_size=_quantization_group_size(stored, "group_size", "q_group_size"),
        skip=_modules_kept_unquantized(stored, "modules_to_not_convert"),
    )


def _gguf_scheme(stored: Fields) -> StoredQuantization:
    """Of a model that is named as a GGUF file and whose header nobody has read: the file's mix."""
    return StoredQuantization(
        method="gguf",
        weights=f"gguf:{stored.text('weights', default='')}",
        experts=stored.text("experts", default="") or None,
    )


def _weight_bit_width(stored: Fields, *keys: str, known: tuple[int, ...]) -> int:
    bits = stored.count(*keys, default=4)
    if bits not in known:
        stored.wrong(keys[0], bits, f"is none of {', '.join(map(str, known))}")
    return bits


def _quantization_group_size(stored: Fields, *keys: str) -> int | None:
    """Elements that share a scale; -1 is one scale a column, said as None."""
    size = stored.count(*keys, default=128, low=-1)
    if size == 0:
        stored.wrong(keys[0], size, "is neither a group's size nor -1")
    return size if size > 0 else None


def _bitsandbytes_scheme(stored: Fields) -> StoredQuantization:
    skip = _modules_kept_unquantized(stored, "llm_int8_skip_modules")
    if stored.flag("load_in_8bit", default=False):
        return StoredQuantization(method="bitsandbytes", weights="int8", skip=skip)
    if not stored.flag("load_in_4bit", default=False):
        stored.wrong("load_in_4bit", None, "neither load_in_4bit nor load_in_8bit is true")
    # BitsAndBytesConfig defaults: fp4, scales not quantized again
    kind = stored.text("bnb_4bit_quant_type", default="fp4", choices=("nf4", "fp4"))
    double = stored.flag("bnb_4bit_use_double_quant", default=False)
    weights = {
        ("nf4", True): "nf4",
        ("nf4", False): "nf4-single",
        ("fp4", True): "fp4-double",
        ("fp4", False): "fp4",
    }[kind, double]
    return StoredQuantization(method="bitsandbytes", weights=weights, group_size=64, skip=skip)


def _compressed_tensors(stored: Fields) -> StoredQuantization | None:
    """The first config group that quantizes weights; groups that differ from it are a problem."""
    groups = stored.sub("config_groups", default={})
    found = {
        _compressed_group(groups.sub(name).sub("weights"))
        for name in groups.data
        if groups.sub(name).raw("weights") is not None
    }
    if len(found) != 1:
        stored.wrong("config_groups", None, f"{len(found)} formats of weights where one is expected")
        return None
    weights, group = found.pop()
    skip = stored.texts("ignore", default=HEAD)
    cache, fixed = cache_scheme(stored)
    return StoredQuantization(
        method="compressed-tensors",
        weights=weights,
        group_size=group,
        skip=skip,
        cache=cache,
        cache_fixed=fixed,
    )


def _compressed_group(weights: Fields) -> tuple[str, int | None]:
    """A dtype's name and group size. ``int4`` has one scale a group; asymmetric groups also a packed zero
    point, as in GPTQ.
    """
    bits, kind = (
        weights.count("num_bits", default=8),
        weights.text("type", default="int", choices=("int", "float")),
    )
    group, strategy = weights.optional("group_size"), weights.text("strategy", default="")
    match kind, bits:
        case "float", 8 if group == 32:
            return "mxfp8", group
        case "float", 8:
            return _fp8_scales(weights, "block_structure") if strategy == "block" else ("fp8", None)
        case "float", 4 if group in (16, 32):
            return ("nvfp4" if group == 16 else "mxfp4"), group
        case "int", 8:
            return "int8", group
        case "int", 4:
            return ("int4" if weights.flag("symmetric", default=True) else "gptq-int4"), group
        case _:
            weights.wrong("num_bits", bits, f"{kind} of {bits} bits is no stored format known")
            return "int8", None


_METHODS: dict[str, Callable[[Fields], StoredQuantization | None]] = {
    "mxfp4": _mxfp4_scheme,
    "fp8": _fp8_scheme,
    "fbgemm_fp8": _fbgemm_fp8_scheme,
    "gptq": _gptq_scheme,
    "awq": _awq_scheme,
    "bitsandbytes": _bitsandbytes_scheme,
    "compressed-tensors": _compressed_tensors,
    "gguf": _gguf_scheme,
}

INSTEAD = (
    "take quantization_config out of the config.json, and --quantize nvfp4, fp8 or int4 gives the "
    "sizes in a format that is known"
)
_UNREAD = {
    "mlx": ("is packed for MLX, which alone reads it: no engine that is accounted does", "the model's own name instead; near to four bits: --quantize nf4 to train, --engine llama.cpp --quantize gguf:Q4_K_M to serve"),
    "hqq": ("is not modelled: HQQ's zero points and scales have sizes of their own", "take quantization_config out of the config.json, and --quantize int4 comes near to four bits in groups of 128"),
    "exl2": ("is not modelled: it has bits of its own for each layer, and neither {servers} reads it", "take quantization_config out of the config.json, and --quantize gguf:Q4_K with engine llama.cpp is like it"),
    "exl3": ("is not modelled: it has bits of its own for each layer, and neither {servers} reads it", "take quantization_config out of the config.json, and --quantize gguf:Q4_K with engine llama.cpp is like it"),
}  # fmt: skip
"""Methods that are known and have no sizes here: why, and what comes near."""
