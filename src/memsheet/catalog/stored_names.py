"""How a copy of a model is stored, by the words at the end of its name: the ``quantization_config`` that such
copies carry. A name does not say everything: what is taken for granted stands in words.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

from memsheet.frozen import dataclass
from memsheet.patterns import late_pattern

USUAL_TAG = "Q4_K_M"
"""What llama.cpp takes of a repository where nobody says (common/arg.cpp, -hf: "quant is optional,
case-insensitive, default to Q4_K_M"), and what most of Ollama's tags without types are.
"""
TOWERS = ("visual", "vision_tower", "vision_model", "multi_modal_projector", "embed_vision")
"""Modules that quantizers of text models leave as they are."""
HEAD = "lm_head"
_WHOLE_KEYS = {"compressed-tensors": "ignore", "modelopt": "ignore", "bitsandbytes": "llm_int8_skip_modules"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """``quantization``: a quantization_config, None where weights are whole; ``dtype``: theirs, where a name
    says it; ``words``: what is taken for granted of it; ``attention_open``: quantizers of this kind often
    leave attention whole.
    """

    quantization: Mapping[str, Any] | None = None
    dtype: str | None = None
    words: str
    attention_open: bool = False


def _int_groups(bits: int, group: int | None) -> dict[str, Any]:
    weights: dict[str, Any] = {"num_bits": bits, "type": "int", "symmetric": True}
    weights |= {"group_size": group, "strategy": "group"} if group else {"strategy": "channel"}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}


def _float_groups(group: int, bits: int = 4) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "float", "group_size": group, "strategy": "group"}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}


def _bitsandbytes(bits: int) -> dict[str, Any]:
    found: dict[str, Any] = {"quant_method": "bitsandbytes", f"load_in_{bits}bit": True}
    return found | ({"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True} if bits == 4 else {})


_WHOLE_ENDS = "the output matrix whole"
_FORMS: dict[str, Storage] = {
    "fp8": Storage(quantization={"quant_method": "fp8"}, words=f"fp8 linear layers, {_WHOLE_ENDS}"),
    "fp8-block": Storage(quantization={"quant_method": "fp8", "weight_block_size": [128, 128]}, words=f"fp8 linear layers, a scale for 128 × 128, {_WHOLE_ENDS}"),
    "awq": Storage(quantization={"quant_method": "awq", "bits": 4, "group_size": 128}, words=f"awq-int4 in groups of 128, {_WHOLE_ENDS}"),
    "gptq4": Storage(quantization={"quant_method": "gptq", "bits": 4, "group_size": 128}, words=f"gptq-int4 in groups of 128, {_WHOLE_ENDS}"),
    "gptq8": Storage(quantization={"quant_method": "gptq", "bits": 8, "group_size": 128}, words=f"gptq-int8 in groups of 128, {_WHOLE_ENDS}"),
    "autoround": Storage(quantization={"quant_method": "gptq", "bits": 4, "group_size": 128}, words=f"int4 in groups of 128 by AutoRound, {_WHOLE_ENDS}; which others are whole, its config.json says", attention_open=True),
    "w4a16": Storage(quantization=_int_groups(4, 128), words=f"int4 in groups of 128, {_WHOLE_ENDS}"),
    "w4a16-32": Storage(quantization=_int_groups(4, 32), words=f"int4 in groups of 32, {_WHOLE_ENDS}"),
    "int8": Storage(quantization=_int_groups(8, None), words=f"int8 with a scale a row, {_WHOLE_ENDS}"),
    "nf4": Storage(quantization=_bitsandbytes(4), words=f"nf4 with scales quantized again, {_WHOLE_ENDS}"),
    "unsloth": Storage(quantization=_bitsandbytes(4), words="nf4 with scales quantized again; which layers unsloth left whole besides, only its config.json says", attention_open=True),
    "bnb8": Storage(quantization=_bitsandbytes(8), words=f"int8 of bitsandbytes, {_WHOLE_ENDS}"),
    "nvfp4": Storage(quantization=_float_groups(16), words=f"nvfp4 linear layers, {_WHOLE_ENDS}; which others are whole, its config.json says", attention_open=True),
    "modelopt-fp8": Storage(quantization={"quant_method": "modelopt", "quant_algo": "FP8"}, words=f"fp8 linear layers by ModelOpt, {_WHOLE_ENDS}"),
    "modelopt-nvfp4": Storage(quantization={"quant_method": "modelopt", "quant_algo": "NVFP4"}, words=f"nvfp4 linear layers by ModelOpt, {_WHOLE_ENDS}; which others are whole, its config.json says", attention_open=True),
    "mxfp4": Storage(quantization=_float_groups(32), words=f"mxfp4 linear layers, {_WHOLE_ENDS}; which others are whole, its config.json says", attention_open=True),
    "mxfp8": Storage(quantization=_float_groups(32, 8), words=f"mxfp8 linear layers, {_WHOLE_ENDS}; which others are whole, its config.json says", attention_open=True),
    "bf16": Storage(dtype="bfloat16", words="bf16, nothing quantized"),
    "fp16": Storage(dtype="float16", words="fp16, nothing quantized"),
    "fp32": Storage(dtype="float32", words="fp32, nothing quantized"),
    "mlx-bits": Storage(quantization={"quant_method": "mlx"}, words="packed for MLX"),
    "mlx": Storage(words="as released: what is packed for MLX is read by no engine that is accounted"),
    "exl2": Storage(quantization={"quant_method": "exl2"}, words="exl2"), "exl3": Storage(quantization={"quant_method": "exl3"}, words="exl3"),
    "hqq": Storage(quantization={"quant_method": "hqq"}, words="hqq"),
}  # fmt: skip

# the end of a name in lower case with dashes → a form; the longest end counts
_ENDS: tuple[tuple[str, str], ...] = tuple(
    (f"-(?:{pattern})$", form)
    for pattern, form in (
        (r"unsloth-bnb-4bit", "unsloth"), (r"bnb-4bit|bnb-nf4|nf4|4bit-nf4|bnb-nf4-bf16|qlora-4bit", "nf4"), (r"bnb-8bit|bnb-int8", "bnb8"),
        (r"gptq-(?:int8|8bit|w8a16)(?:-128g)?", "gptq8"), (r"gptq(?:-(?:int4|4bit|w4a16))?(?:-g?128g?)?(?:-actorder)?", "gptq4"),
        (r"(?:int4|4bit|w4a16)-(?:gptq-)?auto-?round|auto-?round-(?:gptq-)?(?:int4|4bit|w4a16)", "autoround"),  # intel/auto-round b9f3d00 auto_round/schemes.py:538
        (r"qat-w4a16-ct", "w4a16-32"),  # vllm-project/recipes 8959cf6 models/Google/gemma-4-31B-it.yaml: group_size=32
        (r"(?:quantized\.)?w4a16(?:-g128)?(?:-ct)?|int4-w4a16|int4", "w4a16"), (r"awq(?:-(?:int4|4bit|w4a16|g128))?|w4a16-awq", "awq"),
        (r"(?:quantized\.)?w8a8(?:-int8)?|(?:quantized\.)?w8a16|int8(?:-w8a8)?", "int8"),
        (r"fp8-block", "fp8-block"), (r"fp8(?:-(?:dynamic|static|kv|e4m3|w8a8))?", "fp8"), (r"nvfp4(?:-(?:fp8-dynamic|fp8|w4a4|w4a16|qad|v\d))?|fp4", "nvfp4"),
        (r"mxfp4|w-mxfp4-a-fp8", "mxfp4"), (r"mxfp8", "mxfp8"),
        (r"(?:q4-0-)?unquantized|dequantized|bf16|bfloat16", "bf16"), (r"fp16|f16|float16", "fp16"), (r"fp32|f32|float32", "fp32"),
        (r"(?:\d(?:\.\d)?bpw-)?exl2(?:-\d(?:\.\d+)?bpw)?", "exl2"), (r"(?:\d(?:\.\d)?bpw-)?exl3(?:-\d(?:\.\d+)?bpw)?", "exl3"), (r"hqq(?:-\dbit)?", "hqq"),
        (r"mlx-(?:\dbit|mxfp4)(?:-q\d)?", "mlx-bits"), (r"mlx(?:-(?:bf16|fp16))?", "mlx"),
    )
)  # fmt: skip
_OWNERS_ENDS = {
    "mlx-community": (
        (r"-(?:mlx-)?(?:[234568]bit(?:-dwq(?:-\d+)?)?|mxfp4(?:-q\d)?)$", "mlx-bits"),
        (r"-(?:mlx-)?(?:bf16|fp16|mlx)$", "mlx"),
    ),
    "unsloth": ((r"-4bit$", "nf4"),),
    "nvidia": (
        (r"-fp8$", "modelopt-fp8"),
        (r"-(?:nvfp4(?:-(?:qad|w4a4|w4a16|v\d))?|fp4)$", "modelopt-nvfp4"),
    ),
    "qwen": (
        (r"-fp8$", "fp8-block"),
    ),  # "fine-grained fp8 quantization with block size of 128", as each card of theirs says
}
"""Ends that mean something of one owner's copies."""
_ANY_END = late_pattern("|".join(pattern for pattern, _ in itertools.chain(_ENDS, *_OWNERS_ENDS.values())))

GGUF_TYPES = frozenset((
    "F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "IQ4_XS", "IQ4_NL", "Q3_K_L", "Q3_K_M",
    "Q3_K_S", "Q2_K", "Q2_K_S", "IQ3_M", "IQ3_S", "IQ3_XS", "IQ3_XXS", "IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0", "MXFP4",
))  # fmt: skip
_SPELLINGS = {
    "FP16": "F16",
    "FP32": "F32",
    "Q3_K": "Q3_K_M",
    "Q4_K": "Q4_K_M",
    "Q5_K": "Q5_K_M",
    "MXFP4_MOE": "MXFP4",
}
"""Other names of the same mixes (tools/quantize/quantize.cpp, QUANT_OPTIONS: "alias for Q4_K_M")."""
_OWN_RULES = {
    "Q2_K_L": "Q2_K", "Q2_K_XL": "Q2_K", "Q3_K_XL": "Q3_K_L", "Q4_K_L": "Q4_K_M", "Q4_K_XL": "Q4_K_M", "Q5_K_L": "Q5_K_M", "Q5_K_XL": "Q5_K_M",
    "Q6_K_L": "Q6_K", "Q6_K_XL": "Q6_K", "Q8_K_XL": "Q8_0",
}  # fmt: skip
"""Mixes whose rules are their makers' own, and what they are accounted near to."""
_OWN_PREFIX = "UD-"


RELEASED_IN_MXFP4 = ("gpt-oss",)
"""Models whose repositories of GGUF files have one in MXFP4 first, the experts as they were released and the
rest in eight bits (ggml-org/llama.cpp tools/server/README.md takes the first file where there is no Q4_K_M).
"""
KEPT_EXPERTS = {"mxfp4": "MXFP4"}
"""Released formats whose experts every GGUF file keeps: gpt-oss' are repacked whatever the other tensors
become (ggml-org/llama.cpp 2984e6e8 conversion/gpt_oss.py repack_mxfp4), and the quantizer turns no quantized
tensor into another type (007dbbf3 src/llama-quant.cpp llama_model_quantize_impl, "requantizing from type").
"""


def near_types(tag: str) -> tuple[str | None, bool]:
    """The types that a tag names or is nearest to, None where no file has them, and whether its maker's own
    rules decide which tensors have which.
    """
    bare = tag.upper().removeprefix(_OWN_PREFIX)
    near = _OWN_RULES.get(bare) or _SPELLINGS.get(bare, bare)
    return (near if near in GGUF_TYPES else None), bare != tag.upper() or bare in _OWN_RULES


def storage_of_tag(tag: str) -> Storage | None:
    """A GGUF file of those types; None where no file has them."""
    near, own_rules = near_types(tag)
    if near is None:
        return None
    words = f"a GGUF file in {near}" + ("" if near == tag.upper() else f", which {tag} is near to")
    weights = tag.upper() if own_rules else near
    return Storage(quantization={"quant_method": "gguf", "weights": weights}, words=words)


def split_storage(name: str, owner: str) -> tuple[str, Storage] | None:
    """A name in lower case without the words at its end that say how it is stored, and how; None where it
    ends in no such words.
    """
    if name.endswith("-gguf"):
        return _split_gguf(name.removesuffix("-gguf"))
    if _ANY_END.search(name) is None:
        return None
    series = re.match(r"[a-z]*", name)
    patterns = (*_OWNERS_ENDS.get(owner or (series[0] if series else ""), ()), *_ENDS)
    ends = [(end.start(), form) for pattern, form in patterns if (end := re.search(pattern, name))]
    start, form = min(ends, key=lambda end: end[0], default=(0, ""))
    return (name[:start], _FORMS[form]) if start else None


def _split_gguf(name: str) -> tuple[str, Storage]:
    """Before ``-gguf`` there may stand the types: ``qwen3-8b-q8-0-gguf``."""
    parts = re.sub(r"-i\d$", "", name).split("-")
    for count in (4, 3, 2, 1):
        found = storage_of_tag("_".join(parts[-count:])) if len(parts) > count else None
        if found:
            return "-".join(parts[:-count]), found
    released = name.startswith(RELEASED_IN_MXFP4)
    found = storage_of_tag("MXFP4" if released else USUAL_TAG)
    assert found is not None
    words = (
        "a GGUF file in MXFP4, as its experts were released"
        if released
        else f"a GGUF file in {USUAL_TAG}, llama.cpp's choice where none is named"
    )
    return "-".join(parts), Storage(quantization=found.quantization, words=words)


def stored_as(config: Mapping[str, Any], storage: Storage) -> dict[str, Any]:
    """A config of the released model as a copy of it that is stored so."""
    if storage is _FORMS["mlx"]:
        return dict(config)
    released = config.get("quantization_config")
    found = {key: value for key, value in config.items() if key != "quantization_config"}
    if storage.dtype is not None:
        return {
            **{key: value for key, value in found.items() if key != "dtype"},
            "torch_dtype": storage.dtype,
        }
    wanted = dict(storage.quantization or {})
    if released and released.get("quant_method") == wanted.get("quant_method"):
        return dict(config)  # as it was released itself
    if wanted.get("quant_method") == "gguf":
        kept = KEPT_EXPERTS.get(released.get("quant_method", "")) if released else None
        return {**found, "quantization_config": wanted | ({"experts": kept} if kept else {})}
    whole = [HEAD, *(TOWERS if "vision_config" in config else ())]
    key = _WHOLE_KEYS.get(wanted["quant_method"], "modules_to_not_convert")
    return {**found, "quantization_config": {**wanted, key: whole}}
