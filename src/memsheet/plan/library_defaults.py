"""What libraries do that train on an engine where nobody says otherwise: their own default values, with what
memory depends on.

LIBRARY_DEFAULTS   library → defaults, in the order in which they are taken: later ones may ask for earlier
own_default        the value of one, which the readers of their files have from here too
taken              those that hold beside what is said
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

from memsheet.frozen import NamedTuple
from memsheet.plan.aliases import FAMILY, OLDER_CARD

Request = Mapping[str, Any]
NOTHING: Request = {}


def _always_applies(_: Request) -> bool:
    return True


def _trains_adapter(request: Request) -> bool:
    return request.get("adapter.rank") is not None or request.get("adapter.kind") is not None


def _adapted_in_bits(request: Request) -> bool:
    """Whether adapters stand beside a base that bitsandbytes loads in four or eight bits."""
    return _trains_adapter(request) and request.get("quantization.weights") in BITS_AND_BYTES


def _adapts_four_bits(request: Request) -> bool:
    """Whether adapters stand beside a base in bitsandbytes' usual four bits."""
    return _trains_adapter(request) and request.get("quantization.weights") == "nf4"


def _trains_full_model(request: Request) -> bool:
    return not _trains_adapter(request)


def _lacks_adapter_rank(request: Request) -> bool:
    """Whether an adapter is named that has a rank, and none is said."""
    return request.get("adapter.kind") in ("lora", "dora", "lora-fa", "vera", "adalora")


def _not_prompted(request: Request) -> bool:
    return request.get("adapter.kind") is None or _lacks_adapter_rank(request)


def _offloads_long_rows(request: Request) -> bool:
    """Shorter rows are recomputed without offloading (unsloth models/_utils.py:376)."""
    return (
        request.get("recompute.mode") == "full"
        and (request.get("seq_len") or WORTH_OFFLOADING) >= WORTH_OFFLOADING
    )


UNSLOTH_LAYERS = ("llama", "mistral", "gemma", "qwen2", "qwen3")
"""Families that Unsloth runs with attention of its own (unslothai/unsloth 015bdef
unsloth/models/loader.py:840-905), which gemma2's is not where there is no flash-attn (gemma2.py:133); others
run the library's (vision.py:1136).
"""


def takes_xformers(request: Request) -> bool:
    """Whether Unsloth's own attention runs in xformers on a card that has no flash-attn: beside adapters,
    and not in eight bits (loader.py:487), in fp16, which alone of both widths has a kernel there
    (facebookresearch/xformers ce4f89d5 xformers/ops/fmha/common.py:487-494).
    """
    own = request.get(OLDER_CARD) is True and request.get(FAMILY) in UNSLOTH_LAYERS
    wide = any(str(request.get(f"precision.{key}", "")).startswith("bf16") for key in ("name", "compute"))
    return own and not wide and _trains_adapter(request) and request.get("quantization.weights") != "int8"


WORTH_OFFLOADING = 512
BITS_AND_BYTES = ("nf4", "fp4", "int8")
ADAPTERS_OF_TRL = "bf16"
"""What TRL casts all to that trains beside a base in four or eight bits (``if _is_quantized_model``; trainers
of other methods do so too).
"""


class Default(NamedTuple):
    """One value of a library: its own name for it, and the keys of a plan that it comes to ``when`` nothing
    said contradicts.
    """

    name: str
    value: Any
    source: str
    keys: Mapping[str, Any]
    when: Callable[[Request], bool] = _always_applies
    # from what the request has become, with no word for it: a change that brings it about brings this too
    follows: bool = False


TRL, AXOLOTL, UNSLOTH, FACTORY = (
    "huggingface/trl f2cd577 trl/trainer", "axolotl-ai-cloud/axolotl 067b021 src/axolotl/utils/schemas", "unslothai/unsloth 015bdef unsloth/models",
    "hiyouga/LLaMA-Factory ff6d4d1 src/llamafactory/hparams",
)  # fmt: skip
TRAINER = "transformers 5.23.0 training_args.py"
_FULL, _NONE = {"recompute.mode": "full"}, {"recompute.mode": "none"}
_FUSED = {"optimizer.name": "adamw", "optimizer.implementation": "fused"}
_ALL_LINEAR = {"adapter.targets": ["all-linear"]}
_LINEAR_MODULES = {"adapter.targets": ["all"]}
_EIGHT = Default("per_device_train_batch_size", 8, f"{TRAINER}:777", {"microbatch": 8})
_OPTIM = Default("optim", "adamw_torch_fused", f"{TRAINER}:806-813", _FUSED)

LIBRARY_DEFAULTS: dict[str, tuple[Default, ...]] = {
    "trl": (
        Default("max_length", 1024, f"{TRL}/sft_config.py:206", {"seq_len": 1024}),
        _EIGHT,
        Default("gradient_checkpointing", True, f"{TRL}/base_config.py:61", _FULL),
        Default("bf16", True, f"{TRL}/base_config.py:105", {"precision.name": "bf16-autocast"}, _trains_full_model),
        Default("dtype", "float32", f"{TRL}/model_config.py:90", {"precision.parameters": "fp32", "precision.compute": "bf16"}, _trains_adapter),
        Default("adapters beside a quantized base", "bfloat16", f"{TRL}/sft_trainer.py:1127-1130", {"adapter.dtype": ADAPTERS_OF_TRL}, _adapted_in_bits, follows=True),
        Default("loss_type", "chunked_nll", f"{TRL}/sft_config.py:336", {"loss": "chunked"}),
        _OPTIM,
        Default("lora_r", 16, f"{TRL}/model_config.py:108", {"adapter.rank": 16}, _lacks_adapter_rank),
        Default("lora_dropout", 0.05, f"{TRL}/model_config.py:116", {}, _trains_adapter),  # of its command line alone: peft's own is none
    ),
    "axolotl": (
        Default("sequence_len", 512, f"{AXOLOTL}/config.py:665", {"seq_len": 512}),
        Default("micro_batch_size", 1, f"{AXOLOTL}/training.py:77", {"microbatch": 1}),
        Default("gradient_checkpointing", False, f"{AXOLOTL}/config.py:600", _NONE),
        Default("bf16", True, f"{AXOLOTL}/config.py:559; axolotl/utils/config/__init__.py:156-196", {"precision.name": "bf16-pure"}, _trains_full_model),
        Default("optimizer", "adamw_torch_fused", f"{AXOLOTL}/training.py:122", _FUSED),
    ),
    "unsloth": (
        Default("max_seq_length", 2048, f"{UNSLOTH}/loader.py:412", {"seq_len": 2048}),
        Default("per_device_train_batch_size", 4, f"{UNSLOTH}/rl.py:3270", {"microbatch": 4}),
        Default("gradient_accumulation_steps", 2, f"{UNSLOTH}/rl.py:3271", {"@accumulation": 2}),
        Default("use_gradient_checkpointing", "unsloth", f"{UNSLOTH}/loader.py:423, llama.py:3079", _FULL),
        Default("use_gradient_checkpointing", "unsloth", f"{UNSLOTH}/_utils.py:376", {"offload.activations": True}, _offloads_long_rows, follows=True),
        Default("full_finetuning", False, f"{UNSLOTH}/loader.py:417, llama.py:3063", {"adapter.rank": 16}, _not_prompted),
        Default("target_modules", "all-linear", f"{UNSLOTH}/llama.py:3064, vision.py:1934", _ALL_LINEAR, _trains_adapter),
        Default("load_in_4bit", True, f"{UNSLOTH}/loader.py:414", {"quantization.weights": "nf4"}, _trains_adapter),
        Default("load_in_4bit", "of experts too", "unslothai/unsloth-zoo ce232d6 unsloth_zoo/temporary_patches/moe_utils_bnb4bit.py:189-245", {"quantization.experts": True}, _adapts_four_bits, follows=True),
        Default("loss", "chunked", f"{UNSLOTH}/llama.py:1465-1507", {"loss": "chunked"}),
        Default("dtype", "bfloat16", f"{UNSLOTH}/vision.py:1248-1253", {"precision.name": "bf16-pure"}, _trains_full_model),
        Default("attention", "xformers", "unslothai/unsloth 015bdef unsloth/utils/attention_dispatch.py:231-241", {"attention": "xformers"}, takes_xformers),
        Default("optim", "adamw_8bit", f"{UNSLOTH}/rl.py:3276", {"optimizer.name": "adamw_8bit", "optimizer.implementation": "bnb"}),
    ),
    "llama-factory": (
        Default("cutoff_len", 2048, f"{FACTORY}/data_args.py:46", {"seq_len": 2048}),
        _EIGHT,
        Default("disable_gradient_checkpointing", False, f"{FACTORY}/model_args.py:145", _FULL),
        Default("finetuning_type", "lora", f"{FACTORY}/finetuning_args.py:464", {}, _not_prompted),
        Default("lora_rank", 8, f"{FACTORY}/finetuning_args.py:77", {"adapter.rank": 8}, _not_prompted),
        Default("lora_target", "all", f"{FACTORY}/finetuning_args.py:81", _LINEAR_MODULES, _trains_adapter),
        Default("bf16", False, f"{TRAINER}:874", {"precision.name": "fp32"}, _trains_full_model),
        _OPTIM,
    ),
}  # fmt: skip
"""Of supervised fine-tuning. Values that come to what the engine does anyway are there where readers of the
library's files need them.
"""
CALLED = {"trl": "TRL", "llama-factory": "LLaMA-Factory"}
_WHOLE_TOPICS = ("precision", "recompute", "optimizer", "quantization")
"""Groups of keys of which one that is said settles all: a precision is not half a library's."""
_SETTLED_BY = {"@accumulation": ("global_batch",)}


def lora_rank_of(library: str) -> int | None:
    """The rank of adapters that a library makes where nobody says it; None where it has none of its own."""
    ranks = (default.keys.get("adapter.rank") for default in LIBRARY_DEFAULTS.get(library, ()))
    return next((int(rank) for rank in reversed([*ranks]) if rank is not None), None)


def own_default(library: str, name: str) -> Any:
    """The value that a library gives one of its options."""
    return next(default.value for default in LIBRARY_DEFAULTS[library] if default.name == name)


def library_defaults_for(
    library: str | None, request: Request, settled: frozenset[str] = frozenset(), beside: Request = NOTHING
) -> Iterator[tuple[Default, Mapping[str, Any]]]:
    """Defaults that hold where ``request`` is said, and their keys; ``settled``: keys that were spoken of
    without a value ("no adapter"); ``beside``: OLDER_CARD and FAMILY of the question.
    """
    said = {key for key, value in request.items() if value is not None} | settled
    now = {**request, **beside}
    for default in LIBRARY_DEFAULTS.get(library or "", ()):
        if default.when(now) and not any(_is_settled(key, said) for key in default.keys):
            now |= default.keys
            yield default, default.keys


def _is_settled(key: str, said: set[str] | frozenset[str]) -> bool:
    topic = key.partition(".")[0]
    alike = topic in _WHOLE_TOPICS and any(one.partition(".")[0] == topic for one in said)
    return alike or key in said or any(one in said for one in _SETTLED_BY.get(key, ()))


def implied_library_keys(library: str | None, request: Request) -> Mapping[str, Any]:
    """What a library makes of a request without a word for it, but where the request says it."""
    held = (
        default
        for default in LIBRARY_DEFAULTS.get(library or "", ())
        if default.follows and default.when(request)
    )
    return {key: value for default in held for key, value in default.keys.items() if request.get(key) is None}


def without_implied_keys(library: str | None, request: Request, own: Container[str]) -> dict[str, Any]:
    """A request without what a library made of it; ``own``: the keys that are the library's. For a request
    that is changed and made whole again.
    """
    implied = {
        key
        for default in LIBRARY_DEFAULTS.get(library or "", ())
        if default.follows
        for key in default.keys
        if key in own
    }
    return {key: value for key, value in request.items() if key not in implied}


def of_library(library: str | None) -> str:
    """Whose a default is, by the library's name."""
    name = CALLED.get(library or "", library or "")
    return f"{name}'s"


def assumed_value_text(value: Any) -> str:
    """A value as it stands among what was assumed."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
