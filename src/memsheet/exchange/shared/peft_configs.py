"""What a script's objects of peft's configuration classes say of what it trains beside a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from memsheet.exchange.shared.file_format import UNSET
from memsheet.exchange.shared.script_places import BRANCH, CLASS, LINE, SCOPE, WHOLE
from memsheet.plan.defaults import ALL_LINEAR, IA3_INPUTS

LORA, IA3, VERA, PROMPT = "LoraConfig", "IA3Config", "VeraConfig", "PromptTuningConfig"
ADALORA, OFT, ENCODED, PREFIX = "AdaLoraConfig", "OFTConfig", "PromptEncoderConfig", "PrefixTuningConfig"
ALLOCATES = "update_and_allocate"
"""AdaLoRA's call that keeps three scores as large as what trains (peft 0.21.2 tuners/adalora/layer.py
RankAllocator.update_ipt); the Trainer makes none, and a sheet has none.
"""
LOHA, LOKR, NORMS = "LoHaConfig", "LoKrConfig", "LNTuningConfig"
READ = (LORA, IA3, VERA, PROMPT, ADALORA, OFT, ENCODED, PREFIX, LOHA, LOKR, NORMS)
KINDS = {IA3: "ia3", VERA: "vera", PROMPT: "prompt-tuning", PREFIX: "prefix-tuning", NORMS: "ln-tuning", ENCODED: "p-tuning", ADALORA: "adalora"} | {
    f"{name}Config": name.lower() for name in (
        "AdaptionPrompt", "BOFT", "C3A", "FourierFT", "HRA", "LoHa", "LoKr", "MultitaskPromptTuning", "OFT",
        "RandLora", "Shira", "TrainableTokens", "VBLoRA", "XLora",
    )
}  # fmt: skip
"""Configurations besides LoRA's, and what a plan calls their kind (peft 0.21.2 __init__.py)."""
OTHERS = tuple(KINDS)
ADAPTED = frozenset({"lora_rank", "adapter_kind"})
"""Keys that say that adapters train."""
OURS = (CLASS, LINE, SCOPE, WHOLE, BRANCH)
WITHOUT_BYTES = (
    "lora_alpha",
    "alpha_pattern",
    "loftq_config",
    "bias",
    "task_type",
    "inference_mode",
    "use_rslora",
    "init_lora_weights",
    "fan_in_fan_out",
    "revision",
    "auto_mapping",
    "base_model_name_or_path",
    "bnb_4bit_compute_dtype",
)
USUAL_RANK = 8
"""Of LoRA where nobody says it (huggingface/peft 0.21.2 tuners/lora/config.py, r)."""
OPEN_RANK = "open_rank"
"""The rank that a sheet has of one that the text does not tell."""
NOTHING: tuple[Any, ...] = (None, False, [], {})
"""Values of an argument that ask for nothing (peft tuners/lora/config.py: what they default to)."""
MODEL_TABLES = ("embed_tokens", "lm_head", "wte", "embed_in", "embed_out", "word_embeddings")
"""Embeddings and heads by the names that families have for them: what is trained whole beside adapters."""


def names_peft_config(places: Iterable[str]) -> bool:
    """Whether places of a script are of a configuration class of an adapter."""
    return not frozenset(f"script.{name}" for name in (*READ, *OTHERS)).isdisjoint(places)


def trains_beside(values: Mapping[str, Any]) -> bool:
    """Whether a script trains adapters, by the keys that it is read as."""
    return any(values.get(f"script.{key}") for key in ADAPTED)


def adapters_over_bits(read: Mapping[str, Any]) -> dict[str, Any]:
    """Adapters of a rank that nobody tells, where a base in fewer bits is trained and nothing says what of
    it trains: nothing of the base itself can (transformers 5.23.0
    trainer_utils.py:102, validate_quantization_for_training).
    """
    told = ADAPTED & read.keys() or not read.get("quantized")
    return {} if told else {"lora_rank": UNSET, OPEN_RANK: USUAL_RANK}


def peft_config_keys(calls: Callable[..., Iterable[Mapping[str, Any]]]) -> dict[str, Any]:
    """What the last LoRA of a script says, else what another method does. ``calls``: objects of classes, by
    their names.
    """
    made: dict[str, Any] = {}
    for held in calls(LORA):
        made |= with_open_branch(LORA, lora_config_keys(held), held)
    for held in () if made else calls(*OTHERS):
        made |= with_open_branch(held[CLASS], _other_method_keys(held), held)
    if made.get("adapter_kind") == KINDS[ADALORA] and any(calls(ALLOCATES)):
        made[ADALORA] = ", ".join(one for one in (made.get(ADALORA), ALLOCATES) if one)
    return made


def with_open_branch(name: str, made: dict[str, Any], held: Mapping[str, Any]) -> dict[str, Any]:
    """What an object says, and that nobody knows whether it is made where that is so."""
    told = held.get(BRANCH)
    return {**made, name: ", ".join(filter(None, (made.get(name), told)))} if told else made


def _other_method_keys(held: Mapping[str, Any]) -> dict[str, Any]:
    """IA3's layers or a prompt's tokens; of what no plan has, its name."""
    name, rest = held[CLASS], set(held) - {*OURS, *WITHOUT_BYTES}
    made: dict[str, Any] = {"adapter_kind": KINDS[name]}
    targets = held.get("target_modules")
    if name == IA3:
        listed = isinstance(targets, list) and all(isinstance(one, str) for one in targets)
        inputs = [one for one in targets or () if one in IA3_INPUTS] if listed else None
        as_known = sorted(held.get("feedforward_modules") or ()) == sorted(inputs or ())
        made |= {"lora_targets": targets} if listed else {}
        rest -= {
            "init_ia3_weights",
            *({"target_modules"} if listed else {}),
            *({"feedforward_modules"} if as_known else {}),
        }
    elif name == VERA:
        made |= lora_config_keys({"r": 256, "lora_dropout": held.get("vera_dropout", 0.0), **held})
        made.pop(LORA, None)
        rest -= _OF_VERA
        rest -= {"target_modules"} if "lora_targets" in made else set()
    elif name == ADALORA:
        made |= lora_config_keys({**held, "r": held.get("init_r", 12)})
        made.pop(LORA, None)
        rest -= _OF_ADALORA
        rest -= {"target_modules"} if "lora_targets" in made else set()
    elif name in (LOHA, LOKR):
        made |= lora_config_keys(held)
        for of_lora in (LORA, "lora_dropout"):
            made.pop(of_lora, None)
        rest -= {"r", "alpha", "alpha_pattern", "init_weights", "use_effective_conv2d", "rank_dropout_scale"}
        rest -= {"decompose_factor"} if held.get("decompose_factor") == -1 else set()
        rest -= {"target_modules"} if "lora_targets" in made else set()
        rest -= {at for at in ("rank_dropout", "module_dropout") if held.get(at) == 0}
    elif name == NORMS:
        targets = held.get("target_modules")
        listed = isinstance(targets, list) and all(isinstance(one, str) for one in targets)
        made |= {"lora_targets": targets} if listed else {}
        rest -= {"target_modules"} if listed else set()
    elif name == OFT:
        size = held.get("oft_block_size", 32)  # none where blocks are counted by r
        made |= ({"block_size": size} if size else {}) | lora_config_keys(held)
        for of_lora in (LORA, "lora_rank", OPEN_RANK, "lora_dropout"):
            made.pop(of_lora, None)
        rest -= {
            "oft_block_size",
            "init_weights",
            *_OF_PROJECTION,
            "module_dropout" if not held.get("module_dropout") else "",
        }
        rest -= {at for at, usual in _OF_ROTATIONS.items() if held.get(at) == usual}
        rest -= {"target_modules"} if "lora_targets" in made else set()
    elif name in (PROMPT, ENCODED, PREFIX):
        said, read = _prompt_keys(name, held)
        made, rest = made | said, rest - read
    else:
        rest = set()  # the kind is refused by its name
    named = [at for at in sorted(rest) if held[at] not in NOTHING]
    return {**made, **({name: ", ".join(named)} if named else {})}


def _prompt_keys(name: str, held: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """A prompt's tokens and what makes them, and the arguments that say so or change no byte."""
    made: dict[str, Any] = {"prompt_length": held.get("num_virtual_tokens", UNSET)}
    read = {"num_virtual_tokens"}
    read |= {"num_transformer_submodules"} if held.get("num_transformer_submodules") == 1 else set()
    width, projects = held.get("encoder_hidden_size"), held.get("prefix_projection", False)
    if name == PREFIX:
        made |= {"adapter_kind": "prefix-projection"} if projects is True else {}
        read |= {"encoder_hidden_size", "init_weights"}
        read |= {"prefix_projection"} if isinstance(projects, bool) else set()
    elif name == ENCODED:
        read |= {"encoder_hidden_size", "encoder_num_layers", "encoder_dropout"}
        read |= {at for at in _ONLY_OF_MLP if _word(held.get(at)) == "MLP"}
    else:
        read |= _OF_PROMPTS
    made |= {"encoder_width": width} if width and (name == ENCODED or projects is True) else {}
    return made, read


def _word(value: Any) -> str:
    """A member of peft's enumerations, which are words."""
    return str(value).upper()


_ONLY_OF_MLP = ("encoder_reparameterization_type",)
_OF_ROTATIONS = {
    "block_share": False,
    "use_cayley_neumann": True,
    "num_cayley_neumann_terms": 5,
}
"""How OFT is accounted: its defaults (peft 0.21.2 tuners/oft/config.py:150-175)."""
_OF_PROJECTION = {"coft", "eps"}
"""Constrained rotations are projected without a gradient before they are made, in copies of them that are
gone then (peft 5d602fd tuners/oft/layer.py:148-163, 246-248); making them keeps as many, and turned inputs
are more.
"""
_OF_ADALORA = {
    "init_r",
    "target_r",
    "r",
    "lora_dropout",
    "tinit",
    "tfinal",
    "deltaT",
    "beta1",
    "beta2",
    "orth_reg_weight",
    "total_step",
}
_OF_VERA = {"r", "vera_dropout", "d_initial", "save_projection", "projection_prng_key", "init_weights"}
_OF_PROMPTS = {
    "prompt_tuning_init",
    "prompt_tuning_init_text",
    "tokenizer_name_or_path",
    "tokenizer_kwargs",
}
"""Arguments of a prompt that change no byte of a step, and its length."""


def lora_config_keys(held: Mapping[str, Any]) -> dict[str, Any]:
    """LoRA of chosen modules: what of it a plan says, and the names of the rest (peft
    tuners/lora/config.py).
    """
    targets = held.get("target_modules")
    targets = [ALL_LINEAR] if targets == ALL_LINEAR else targets
    listed = isinstance(targets, list) and all(isinstance(name, str) for name in targets)
    saved = held.get("modules_to_save")
    whole = isinstance(saved, list) and bool(saved) and all(name in MODEL_TABLES for name in saved)
    dora = held.get("use_dora") is True
    read = (
        *(("use_dora",) if dora else ()),
        *(("target_modules",) if listed else ()),
        *(("modules_to_save",) if whole else ()),
    )
    rest = [
        name
        for name in held
        if name not in (*OURS, "r", "lora_dropout", *WITHOUT_BYTES, *read) and held[name] not in NOTHING
    ]
    rank = held.get("r", USUAL_RANK)
    made = {
        "lora_rank": rank,
        **({OPEN_RANK: USUAL_RANK} if rank == UNSET else {}),
        **({"adapter_kind": "dora"} if dora else {}),
        "lora_dropout": held.get("lora_dropout", 0.0),
        **({"lora_targets": targets} if listed else {}),
        **({"lora_full_modules": saved} if whole else {}),
    }
    return {**made, **({LORA: ", ".join(sorted(rest))} if rest else {})}
