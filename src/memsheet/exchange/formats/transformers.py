"""``TrainingArguments`` of transformers, as YAML and as Python. What the model is loaded as is the training
script's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from memsheet.errors import Problem
from memsheet.exchange.shared.allocator_env import ALLOCATOR_CONF, read_allocator_conf
from memsheet.exchange.shared.allocator_env import SOURCE as ALLOCATOR_SOURCE
from memsheet.exchange.shared.built_models import BUILT, OPEN_SIZES, OWN_CODE, built_config
from memsheet.exchange.shared.colocated_server import colocated_moves
from memsheet.exchange.shared.config_commands import OF_SWIFT
from memsheet.exchange.shared.file_format import (
    KEYWORDS,
    MORE,
    Format,
    Key,
    Moved,
    Values,
    is_key,
    plan_word,
    precision_word,
)
from memsheet.exchange.shared.flat_gathers import flat_gather_rows
from memsheet.exchange.shared.frozen_towers import FROZEN_TOWER
from memsheet.exchange.shared.further_models import FROZEN, FURTHER, OWN_LOSS, WEIGHTS, further_moves
from memsheet.exchange.shared.gathered_outputs import gathered_moves
from memsheet.exchange.shared.own_settings import own_settings
from memsheet.exchange.shared.peft_configs import OPEN_RANK, READ, trains_beside
from memsheet.exchange.shared.prepared_base import prepared_bytes, prepared_precision
from memsheet.exchange.shared.program_releases import keys_of_one_program
from memsheet.exchange.shared.row_lengths import USUAL_LENGTH, answer_moves
from memsheet.exchange.shared.script_places import (
    ASKS_CARD,
    BITS,
    BY_NAME,
    COLOCATED,
    COMMAND_FLAGS,
    DEFAULTS,
    FAMILY_CLASS,
    LIKELY_NAME,
    MAPS,
    OF_OWN_SCRIPT,
    OF_TRAINER,
    OLDER_WORDS,
    ONE_PROCESS,
    OWN_LAYERS,
    OWN_SCRIPT,
    OWN_TRAINER,
    RELEASE_DEFAULTS,
    SCRIPT,
    SERVED,
    SEVERAL,
    SEVERAL_LOADS,
    SPREADS,
    TOKENIZERS,
    TRAINS_STATES,
    UNMADE,
    UNREAD_FLAGS,
    UNSAID,
)
from memsheet.exchange.shared.smoothed_losses import EMPTIES, NOISE, SMOOTHING, smoothing_moves
from memsheet.exchange.shared.trainer_names import SFT_OWN
from memsheet.exchange.shared.trainer_script import arguments_of, without_own_fields
from memsheet.exchange.shared.trainers import with_master
from memsheet.exchange.shared.unsloth_loads import WHOLE_TABLES
from memsheet.exchange.shared.unsloth_moves import EIGHTHS, unsloth_moves
from memsheet.late import late_functions
from memsheet.plan.library_defaults import own_default

if TYPE_CHECKING:
    from memsheet.exchange.shared.preference_methods import Preferences
with late_functions(__name__):
    from memsheet.exchange.shared.preference_methods import preferences_of


VERSION = "transformers 5.23.0"
CHUNKED, PIECE = "chunked_nll", 256
F = "fsdp_config"
PARALLEL = "parallelism_config"
OPTIMIZERS = {
    ("adamw", "fused"): "adamw_torch_fused", ("adamw", "foreach"): "adamw_torch", ("sgd", "foreach"): "sgd",
    ("adafactor", "loop"): "adafactor", ("adamw_8bit", "bnb"): "adamw_bnb_8bit", ("adamw_8bit", "torchao"): "adamw_torch_8bit",
    ("lion", "bnb"): "lion_32bit", ("lion_8bit", "bnb"): "lion_8bit", ("paged_adamw", "bnb"): "paged_adamw_32bit",
    ("paged_adamw_8bit", "bnb"): "paged_adamw_8bit", ("adamw_4bit", "torchao"): "adamw_torch_4bit", ("paged_lion", "bnb"): "paged_lion_32bit",
    ("paged_lion_8bit", "bnb"): "paged_lion_8bit", ("ademamix", "bnb"): "ademamix", ("ademamix_8bit", "bnb"): "ademamix_8bit",
    ("paged_ademamix", "bnb"): "paged_ademamix_32bit", ("paged_ademamix_8bit", "bnb"): "paged_ademamix_8bit", ("rmsprop", "foreach"): "rmsprop",
    ("rmsprop", "bnb"): "rmsprop_bnb", ("rmsprop_8bit", "bnb"): "rmsprop_bnb_8bit", ("adagrad", "foreach"): "adagrad",
}  # fmt: skip
"""By name and implementation (training_args.py:113-160; trainer_optimizer.py:605-616)."""
_ALSO = {
    "adamw_8bit": ("adamw_8bit", "bnb"),
    "adamw_hf": ("adamw", "foreach"),
    "rmsprop_bnb_32bit": ("rmsprop", "bnb"),
}


def _read_optim_name(value: Any, _: Values) -> Mapping[str, Any]:
    found = _ALSO.get(str(value)) or next(
        (pair for pair, name in OPTIMIZERS.items() if name == value), (str(value), None)
    )
    return dict(zip(("optimizer.name", "optimizer.implementation"), found, strict=True))


def _read_fsdp_argument(value: Any, values: Values) -> Mapping[str, Any]:
    """Of ``fsdp``: a switch now, words in older files; DeepSpeed where its file is named, else replicas."""
    if values.get("deepspeed"):
        return {"engine": "deepspeed"}
    if value in (False, None, "", []):
        return {"engine": "transformers", "zero": 0}
    words = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    older = {"zero": 2} if "shard_grad_op" in words else {}  # training_args.py: _apply_legacy_fsdp_to_config
    return {"engine": "fsdp1" if str(values.get(f"{F}.version", 2)) == "1" else "fsdp2", **older}


def _is_fsdp_sharded(values: Values) -> bool:
    return bool(values.get("fsdp")) and not values.get("deepspeed")


def _half_precision_row(word: str) -> Key:
    def back(value: Any, values: Values) -> Mapping[str, Any]:
        if values.get("deepspeed") and value is True:
            return with_master(
                word
            )  # unless the DeepSpeed file says it: its "auto" is this (integrations/deepspeed.py:183)
        if value is not True:
            return (
                {}
                if values.get("bf16") is True or values.get("fp16") is True
                else {"?precision.name": "fp32"}
            )
        reduced = (
            {"precision.reduce": word} if _is_fsdp_sharded(values) else {"?precision.reduce": "fp32"}
        )  # accelerate utils/dataclasses.py:2137
        kept = {f"?precision.{key}": "fp32" for key in ("parameters", "gradients", "moments")}
        return {"precision.compute": word, **reduced, **kept}

    def out(asked: Values) -> Any:
        own = asked.get("precision.parameters") if asked["engine"] == "deepspeed" else precision_word(asked)
        return own == word

    return Key(at=word, out=out, back=back, usual=False, source="training_args.py:874-880")


def _is_plain_recompute(asked: Values) -> bool:
    return not any(asked.get(f"recompute.{key}") for key in ("every", "layers", "segments", "modules"))


def _of_fsdp(make: Any) -> Any:
    return lambda asked: make(asked) if asked["engine"] == "fsdp2" else None


def _read_offload_switch(value: Any, values: Values) -> Mapping[str, Any]:
    return (
        {"offload.optimizer": int(bool(value)), "offload.parameters": int(bool(value))}
        if _is_fsdp_sharded(values)
        else {}
    )


def read_model_dtype(value: Any, values: Values) -> Mapping[str, Any]:
    """Parameters in sixteen bits have gradients and moments of sixteen, and are reduced so; mixed precision
    then casts nothing. Sharding with it makes them fp32 (accelerate fsdp_utils.py:814). Adapters have a dtype
    of their own beside a base of this one.
    """
    word = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(str(value), str(value))
    if values.get("deepspeed") or values.get(f"{SCRIPT}.quantized") or str(value) == UNSAID:
        return {}
    mixed = next((width for width in ("bf16", "fp16") if values.get(width) is True), "")
    if trains_beside(values):
        return {"precision.parameters": word, "precision.compute": mixed or word}
    if mixed and _is_fsdp_sharded(values):
        return {}
    told = {f"precision.{name}": word for name in ("parameters", "gradients", "moments")}
    return {**told, "precision.reduce": word, **({} if mixed else {"precision.compute": word})}


def _read_trl_loss_type(value: Any, _: Values) -> Mapping[str, Any]:
    return {"loss": "chunked"} if value == CHUNKED else {}


def _read_unsloth_import(value: Any, values: Values) -> Mapping[str, Any]:
    """Its loss, and the allocator's growing segments, which its import asks for where nobody says otherwise
    and no server shares the card (unslothai/unsloth-zoo ce232d6 unsloth_zoo/__init__.py:271-300).
    """
    if value is not True:
        return {}
    shared = any(values.get(f"{SCRIPT}.{at}") is not None for at in (COLOCATED, ALLOCATOR_CONF))
    return {"loss": "chunked", **({} if shared else {"allocator.expandable_segments": True})}


def _read_prepared(value: Any, values: Values) -> Mapping[str, Any]:
    if value is not True or values.get("deepspeed") or values.get("fsdp"):
        return {}
    word = next((width for width in ("bf16", "fp16") if values.get(width) is True), "")
    return prepared_precision(word, values)


def _kbit_upcast_move(asked: Values) -> Moved:
    why = (
        "peft's prepare_model_for_kbit_training casts embeddings, head and norms to fp32, and so what "
        "passes along the layers"
    )
    return Moved(at=f"{SCRIPT}.prepared", why=why, low_bytes=0, high_bytes=prepared_bytes(asked))


def _script_memory_moves(values: Values, asked: Values) -> Iterator[Moved]:
    """TRL's pieces of the loss are of 256 tokens, the sheet's an eighth; each raises the head to fp32, and
    its gradient (sft_trainer.py:86, 99-114).
    """
    yield from colocated_moves(f"{SCRIPT}.{COLOCATED}", values.get(f"{SCRIPT}.{COLOCATED}"), asked)
    yield from further_moves(SCRIPT, values, asked)
    yield from answer_moves(values, asked)
    if values.get(f"{SCRIPT}.{ONE_PROCESS}") is True and values.get(f"{SCRIPT}.{SPREADS}") not in MAPS:
        yield from gathered_moves(asked, own_loop=f"{SCRIPT}.{OWN_LOSS}" in values)
    if values.get(f"{SCRIPT}.prepared") is True and not _read_prepared(True, values):
        yield _kbit_upcast_move(asked)
    if values.get(f"{SCRIPT}.{TRAINS_STATES}") == "rows" and asked.get("@saved"):
        yield Moved(
            at=f"{SCRIPT}.{TRAINS_STATES}",
            why="the sheet is of two texts a row; a third, a hard negative, takes half as much again",
            low_bytes=0,
            high_bytes=asked["@saved"] // 2,
        )
    yield from unsloth_moves(values, asked)
    yield from smoothing_moves(values, asked)
    if values.get(f"{SCRIPT}.loss_type") == CHUNKED:
        tokens, vocab = asked["@tokens"], asked["@vocab"]
        more = (
            (min(PIECE, tokens) - -(-tokens // EIGHTHS)) * vocab * 3 * 4
        )  # logits, their logarithms and the gradient, in fp32
        wide = vocab * asked["@hidden"] * (4 if str(values.get(f"{SCRIPT}.dtype")) == "float32" else 8)
        if asked["@loss"] == "fused":  # which stands for it where pieces are not modelled
            whole = PIECE * vocab * 3 * 4
            why = (
                f"TRL makes the loss of {PIECE} tokens at a time, with the head raised to fp32; the "
                "sheet is of Liger's"
            )
            yield Moved(
                at=f"{SCRIPT}.loss_type",
                why=why,
                low_bytes=-vocab * asked["@hidden"] * 4,
                high_bytes=whole + wide,
            )
            return
        why = (
            f"TRL makes the loss of {PIECE} tokens at a time, with the head raised to fp32; the sheet "
            "is of an eighth of the tokens"
        )
        yield Moved(at=f"{SCRIPT}.loss_type", why=why, low_bytes=min(0, more), high_bytes=max(0, more) + wide)


def _offloads_every_state(asked: Values) -> bool:
    return asked.get("offload.optimizer") == 1 and asked.get("offload.parameters") == 1


def _read_attn_implementation(value: Any, _: Values) -> Mapping[str, Any]:
    return {"attention": {"flash_attention_2": "flash", "flash_attention_3": "flash"}.get(str(value), value)}


EXAMPLES = "huggingface/transformers v5.3.0 examples/pytorch/language-modeling/run_clm.py"


def _read_sequence_ranks(value: Any, values: Values) -> Mapping[str, Any]:
    """Ranks that share sequences: by torch's ring, or by DeepSpeed, which exchanges heads (accelerate 1.15.0
    parallelism_config.py:45-81).
    """
    del values
    return {"mesh.cp": value, "context_parallel_comm": "all_to_all"} if value not in (None, 1) else {}


def _read_degree(axis: str) -> Any:
    return lambda value, _: {f"mesh.{axis}": value} if value is not None else {}


def _read_rotation(value: Any, _: Values) -> Mapping[str, Any]:
    return {"context_parallel_comm": "ring"} if value == "alltoall" else {}


KEYS = (
    Key(at="model_name_or_path", says="@model", out=lambda _: None, source=f"{EXAMPLES}, ModelArguments"),
    Key(
        at="config_name", out=lambda _: None, source=f"{EXAMPLES}, ModelArguments",
        back=lambda v, values: {} if values.get("model_name_or_path") else {"@model": v},
    ),
    Key(at="dtype", out=lambda _: None, back=read_model_dtype, source=f"{EXAMPLES}, ModelArguments"),
    Key(at="attn_implementation", out=lambda _: None, back=_read_attn_implementation, source=f"{EXAMPLES}, ModelArguments"),
    Key(at="block_size", says="seq_len", out=lambda _: None, decides=(TOKENIZERS,), source=f"{EXAMPLES}, DataTrainingArguments"),
    Key(at=f"{SCRIPT}.{USUAL_LENGTH}", out=lambda _: None, back=lambda v, _: {"?seq_len": v}, source="what the program takes by itself"),
    Key(at="max_seq_length", says="seq_len", out=lambda _: None, source="huggingface/transformers v5.3.0 examples/pytorch/text-classification/run_glue.py, DataTrainingArguments"),
    Key(
        at="max_source_length", out=lambda _: None, back=lambda v, _: {"seq_len": v, "?seq_len_kind": "maximum"},
        source="huggingface/transformers v5.3.0 examples/pytorch/summarization/run_summarization.py, DataTrainingArguments: an answer is shorter",
    ),
    Key(at="per_device_train_batch_size", says="microbatch", usual=own_default("trl", "per_device_train_batch_size"), source="training_args.py:777"),
    Key(at="gradient_accumulation_steps", says="@accumulation", usual=1, source="training_args.py:849"),
    _half_precision_row("bf16"),
    _half_precision_row("fp16"),
    Key(
        at="gradient_checkpointing", out=lambda a: a["engine"] != "fsdp2" and a.get("recompute.mode") == "full" and _is_plain_recompute(a),
        back=lambda v, _: {"recompute.mode": "full"} if v is True else {"?recompute.mode": "none"}, usual=False, source="training_args.py:926",
    ),
    Key(at="gradient_checkpointing_kwargs.use_reentrant", says="recompute.reentrant", source="training_args.py:934"),
    Key(
        at="optim", out=lambda a: OPTIMIZERS.get((str(a.get("optimizer.name")), str(a.get("optimizer.implementation")))), back=_read_optim_name,
        usual=own_default("trl", "optim"), source="training_args.py:806-813",
    ),
    Key(at="fsdp", out=lambda a: True if a["engine"] == "fsdp2" else None, back=_read_fsdp_argument, usual=False, source="training_args.py:1447"),
    Key(
        at="deepspeed", out=lambda a: "ds_config.json" if a["engine"] == "deepspeed" else None, back=lambda *_: {},
        source="training_args.py:1463",
    ),
    Key(at=f"{F}.version", out=_of_fsdp(lambda _: 2), back=lambda *_: {}, source="training_args.py:2826"),
    *flat_gather_rows(f"{F}.", lambda values: _is_fsdp_sharded(values) and str(values.get(f"{F}.version", 2)) == "1", "training_args.py:2872-2884", engines=()),
    Key(
        at=f"{F}.reshard_after_forward", out=_of_fsdp(lambda a: a.get("zero") == 3),
        back=lambda v, values: {"zero": 3 if v is True else 2} if _is_fsdp_sharded(values) else {}, source="training_args.py:1455",
    ),
    Key(
        at=f"{F}.activation_checkpointing",
        out=_of_fsdp(lambda a: a.get("recompute.mode") == "full" and _is_plain_recompute(a)),
        back=lambda v, values: {"recompute.mode": "full"} if str(v).lower() == "true" and _is_fsdp_sharded(values) else {},
        source="training_args.py:2795",
    ),
    Key(at=f"{F}.cpu_offload", out=_of_fsdp(_offloads_every_state), back=_read_offload_switch, source="training_args.py:2830"),
    Key(at=f"{SCRIPT}.max_length", says="seq_len", out=lambda _: None, source="huggingface/trl 016013e trl/trainer/sft_config.py"),
    *(
        Key(at=at, out=lambda _: None, back=lambda v, _: {"seq_len": v, "?seq_len_kind": "maximum"}, source="the script's own argument: what its tokenizer cuts to")
        for at in ("model_max_length", "cutoff_len", "max_seq_len")
    ),
    Key(at=f"{SCRIPT}.model", says="@model", out=lambda _: None, source="modeling_utils.py, from_pretrained: pretrained_model_name_or_path"),
    *(
        Key(at=f"{PARALLEL}.{axis}_size", out=lambda _: None, back=_read_degree(axis), source="accelerate 1.15.0 parallelism_config.py:71-74")
        for axis in ("dp_replicate", "dp_shard", "tp", "cp")
    ),
    Key(at=f"{PARALLEL}.sp_size", out=lambda _: None, back=_read_sequence_ranks, source="accelerate 1.15.0 parallelism_config.py:75"),
    Key(at=f"{PARALLEL}.cp_handler.cp_comm_strategy", out=lambda _: None, back=_read_rotation, source="accelerate 1.15.0 utils/dataclasses.py:2245"),
    Key(at=f"{SCRIPT}.dtype", out=lambda _: None, back=read_model_dtype, source="modeling_utils.py, from_pretrained: dtype"),
    Key(
        at=f"{SCRIPT}.attention", out=lambda _: None, source="modeling_utils.py, from_pretrained: attn_implementation",
        back=lambda v, _: {"attention": plan_word({"flash_attention_2": "flash", "flash_attention_3": "flash"}, v)},
    ),
    Key(at=f"{SCRIPT}.unsloth", out=lambda _: None, back=_read_unsloth_import, source="unslothai/unsloth 015bdef unsloth/models/llama.py:1465-1507"),
    Key(at=f"{SCRIPT}.{ALLOCATOR_CONF}", out=lambda _: None, back=read_allocator_conf, source=ALLOCATOR_SOURCE),
    Key(at=f"{SCRIPT}.{TRAINS_STATES}", out=lambda _: None, back=lambda *_: {}, source="huggingface/sentence-transformers 0aa54b9 sentence_transformers/trainer.py"),
    Key(at=f"{SCRIPT}.{OWN_LAYERS}", out=lambda _: None, back=lambda *_: {}, source="unslothai/unsloth 015bdef unsloth/models/loader.py:407, 1140"),
    Key(at=f"{SCRIPT}.{SPREADS}", out=lambda _: None, back=lambda *_: {}, source="accelerate 1.15.0 utils/modeling.py, infer_auto_device_map"),
    Key(at=f"{SCRIPT}.{ASKS_CARD}", out=lambda _: None, back=lambda *_: {}, source="torch/cuda/__init__.py, is_bf16_supported"),
    Key(at=f"{SCRIPT}.{FAMILY_CLASS}", out=lambda _: None, back=lambda *_: {}, source="modeling_utils.py, from_pretrained: cls(config)"),
    Key(at=f"{SCRIPT}.{COLOCATED}", out=lambda _: None, back=lambda *_: {}, source="huggingface/trl f2cd577 trl/trainer/grpo_config.py:646"),
    Key(at=f"{SCRIPT}.{WHOLE_TABLES}", out=lambda _: None, back=lambda *_: {}, source="unslothai/unsloth 0050c73 unsloth/models/llama.py, get_peft_model"),
    Key(at=f"{SCRIPT}.prepared", out=lambda _: None, back=_read_prepared, source="huggingface/peft 5d602fd src/peft/utils/other.py:158-240"),
    Key(at=f"{SCRIPT}.offload", says="offload.activations", out=lambda _: None, source="unslothai/unsloth 015bdef unsloth/models/_utils.py:376"),
    Key(
        at="use_liger_kernel", out=lambda a: True if a.get("loss") == "fused" else None, back=lambda v, _: {"loss": "fused"} if v is True else {}, usual=False,
        source="training_args.py:374; linkedin/Liger-Kernel src/liger_kernel/transformers/monkey_patch.py: fused_linear_cross_entropy",
    ),
    Key(at=f"{SCRIPT}.fused", out=lambda _: None, back=lambda *_: {"loss": "fused"}, source="linkedin/Liger-Kernel src/liger_kernel/transformers/monkey_patch.py"),
    Key(
        at=f"{SCRIPT}.loss_type", out=lambda _: None, back=_read_trl_loss_type, holds=("nll", CHUNKED), instead="nll",
        source="huggingface/trl f2cd577 trl/trainer/sft_config.py:336",
    ),
    Key(at=f"{SCRIPT}.lora_targets", out=lambda _: None, back=lambda v, _: {"adapter.targets": v}, source="peft tuners/lora/config.py, target_modules"),
    Key(at=f"{SCRIPT}.{OPEN_RANK}", out=lambda _: None, back=lambda v, _: {"?adapter.rank": v}, source="peft tuners/lora/config.py, r: where the text does not tell it"),
    *(
        Key(at=f"{SCRIPT}.{name}", says=says, out=lambda _: None, source=source) for name, says, source in (
            ("lora_rank", "adapter.rank", "peft tuners/lora/config.py, r"),
            ("lora_full_modules", "adapter.full_modules", "peft tuners/lora/config.py, modules_to_save"),
            ("lora_dropout", "adapter.dropout", "peft tuners/lora/config.py, lora_dropout"),
            ("adapter_kind", "adapter.kind", "peft mapping.py, PEFT_TYPE_TO_CONFIG_MAPPING"),
            ("prompt_length", "adapter.prompt_length", "peft config.py, PromptLearningConfig.num_virtual_tokens"),
            ("encoder_width", "adapter.encoder_width", "peft tuners/p_tuning/config.py, encoder_hidden_size"),
            ("block_size", "adapter.block_size", "peft tuners/oft/config.py, oft_block_size"),
            ("adapter_dtype", "adapter.dtype", "huggingface/trl f2cd577 trl/trainer/sft_trainer.py:1127-1130"),
            ("quantized", "quantization.weights", "utils/quantization_config.py, bnb_4bit_quant_type"),
            ("double_quant", "quantization.double_quant", "utils/quantization_config.py, bnb_4bit_use_double_quant"),
            ("storage", "quantization.storage", "utils/quantization_config.py, bnb_4bit_quant_storage"),
            ("experts", "quantization.experts", "unslothai/unsloth-zoo ce232d6 unsloth_zoo/temporary_patches/moe_utils_bnb4bit.py:189-245"),
        )
    ),
)  # fmt: skip


def _rename_trainer_key(at: str) -> str:
    """Without the launcher's prefix (training_args.py:2784); recompute by its older name (:1533)."""
    if at == "torch_dtype":
        return "dtype"
    if at.startswith("activation_checkpointing"):
        return at.replace("activation", "gradient", 1)
    return at.replace(f"{F}.fsdp_", f"{F}.", 1)


def _required_trainer_keys(asked: Values) -> Mapping[str, Any]:
    wrap = (
        {f"{F}.auto_wrap_policy": "TRANSFORMER_BASED_WRAP", f"{F}.cpu_ram_efficient_loading": True}
        if asked["engine"] == "fsdp2"
        else {}
    )
    return {"output_dir": "output", **wrap}


def _training_args_module(tree: Values) -> Mapping[str, str]:
    from pprint import pformat

    body = pformat(dict(tree), sort_dicts=False, width=100)
    text = (
        f"from transformers import TrainingArguments\n\nARGUMENTS = {body}\n\n\ndef training_args() -> "
        "TrainingArguments:\n    return TrainingArguments(**ARGUMENTS)\n"
    )
    return {"training_args.py": text}


def _into_arguments(values: Values) -> bool:
    """Whether it is known that ``TrainingArguments`` takes it: a script calls them, or a file holds nothing
    else. With further keys it is of the dataclasses of some script.
    """
    return f"{SCRIPT}.reads" in values or keys_of_one_program(FORMAT, values)


def _script_arguments(text: str, given: Values | None = None) -> Mapping[str, Any]:
    """What a script says, with what belongs to a method of TRL's alone under one name. ``given``: the flags
    that a command starts it with.
    """
    filled = {
        at: held
        for at, held in (given or {}).items()
        if at in SFT_OWN or is_key(FORMAT, _rename_trainer_key(at))
    }
    found = without_own_fields(FORMAT, arguments_of(text, given, filled))
    own = found.get(SCRIPT)
    if not isinstance(own, Mapping) or METHOD not in own:
        return found
    rest = {at for at in found if at not in (SCRIPT, F) and not is_key(FORMAT, _rename_trainer_key(at))}
    told = {OF_METHOD: {at: found[at] for at in sorted(rest)}} if rest else {}
    defaults = {at: flag for at, flag in own.get(DEFAULTS, {}).items() if at not in rest}
    kept = {at: held for at, held in own.items() if at != DEFAULTS}
    return {
        SCRIPT: {**kept, **told, **({DEFAULTS: defaults} if defaults else {})},
        **{at: held for at, held in found.items() if at not in {SCRIPT, *rest}},
    }


def _script_preferences(values: Values) -> Preferences | None:
    """The method of a script's trainer, which loads the reference itself: as a model that it loads by its
    name, else in fp32 unless it is told a dtype (huggingface/trl 016013e
    trl/trainer/dpo_trainer.py:893-908, utils.py:1144), or as a copy.
    """
    own = str(values.get(MORE, "")).startswith(
        OF_OWN_SCRIPT
    )  # which may keep a copy where adapters train, too
    return preferences_of(
        values.get(f"{SCRIPT}.{METHOD}"),
        widened=not values.get(f"{SCRIPT}.{OF_TRAINER}.{BY_NAME}"),
        own_copy=own,
    )


def _trainer_problems(asked: Values) -> Iterator[Problem]:
    if asked.get("attention") == "xformers":
        reason = "is no attention of transformers' own"
        yield Problem(field="attention", value="xformers", reason=reason, hint="sdpa")


METHOD, OF_METHOD = "method", "of_method"


def _own_settings(tree: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return own_settings(tree, lambda at: is_key(FORMAT, at))


OF_OWN = frozenset(
    {
        "model",
        "model_id",
        "model_name",
        "base_model",
        "base_model_name",
        "base_model_id",
        "model_path",
        "hf_model",
        "pretrained_model",
    }
)
"""Keys at the top of a file for a script of people's own, which names its model otherwise than any of the
library's examples."""


FORMAT: Format = Format(
    name="transformers", gradient_sync="last", file="training_args.yaml", kind="yaml", tested=VERSION, engines=("transformers", "fsdp2", "deepspeed"), keys=KEYS,
    problems=_trainer_problems, fixed=_required_trainer_keys, more=_training_args_module, said={"task": "train"},
    marks=frozenset({"per_device_train_batch_size", "gradient_checkpointing", "activation_checkpointing", "fsdp", "optim", SCRIPT, "model_name_or_path"}),
    never=OF_SWIFT | OF_OWN, rename=_rename_trainer_key, by_groups=_own_settings, also=_script_arguments, started=_script_arguments,
    model=lambda values: built_config(values, SCRIPT), refers=("deepspeed",), inlines=(F,), preferences=_script_preferences, program_known=_into_arguments, stored=f"{SCRIPT}.dtype", moves=_script_memory_moves,
    strict=("",),  # hf_argparser.py: parse_dict raises on keys that are not used
    differs={"precision.reduce": "the Trainer's FSDP reduces in the dtype it computes in (accelerate utils/dataclasses.py:2137)"},
    spreads=True, beside=frozenset({
        "engine", "seq_len", "global_batch", "attention", "loss", "dropout", "mesh.cp", "context_parallel_comm", "mesh.dp_shard", "mesh.dp_replicate", "zero", "image_tokens",
        "allocator.expandable_segments", "precision.parameters", "precision.compute", "precision.gradients", "precision.reduce",
        "precision.moments", "recompute.mode", "recompute.every", "recompute.layers", "recompute.segments", "recompute.modules", "recompute.reentrant",
        "adapter.kind", "adapter.rank", "adapter.targets", "adapter.dtype", "adapter.dropout", "adapter.full_modules", "quantization.weights",
        "quantization.double_quant", "quantization.storage", "quantization.group_size", "quantization.skip", "offload.optimizer", "offload.parameters",
        "precision.master_weights",
    }),
    unmodelled={
        F: (), "torch_compile": (False,), "auto_find_batch_size": (False,),
        "gradient_checkpointing_kwargs.every_n_layers": (1,), "gradient_checkpointing_kwargs.offload": (False,), KEYWORDS: (),
        **{f"{SCRIPT}.{name}": () for name in (*READ, BITS, UNMADE, LIKELY_NAME, OPEN_SIZES, OWN_CODE, FURTHER, FROZEN, UNREAD_FLAGS, OWN_SCRIPT, OWN_TRAINER, COMMAND_FLAGS, SEVERAL, SEVERAL_LOADS, "model_init_kwargs")},
        f"{SCRIPT}.activation_offloading": (False,), f"{SCRIPT}.{METHOD}": (), f"{SCRIPT}.labels": (),
        PARALLEL: (), "ddp_bucket_cap_mb": (25,), "use_cpu": (False,),
        "ddp_static_graph": (False,), f"{F}.auto_wrap_policy": ("TRANSFORMER_BASED_WRAP",), f"{F}.xla": (False,), "optim_args": (), "ddp_find_unused_parameters": (False,),
    },
    known=frozenset({
        *NOISE, SMOOTHING, EMPTIES, "dataset_name", "dataset_config", "dataset_config_name", "train_file", "validation_file", "validation_split_percentage", "max_train_samples",
        "max_eval_samples", "streaming", "keep_linebreaks", "overwrite_cache", "preprocessing_num_workers", "overwrite_output_dir", "tokenizer_name",
        "use_fast_tokenizer", "model_revision", "trust_remote_code", "cache_dir", "task_name", "max_target_length", "val_max_target_length", "source_prefix", "predict_with_generate", "generation_max_length", "generation_num_beams", "generation_config", "generation_config.*", "sortish_sampler", "pad_to_max_length", "num_beams", "ignore_pad_token_for_loss", "text_column", "summary_column", "source_lang", "target_lang", "forced_bos_token", "source_column", "target_column",  # of the examples' own dataclasses
        f"{SCRIPT}.{RELEASE_DEFAULTS}", f"{SCRIPT}.{OLDER_WORDS}", f"{SCRIPT}.{SERVED}.*", "output_dir", "num_train_epochs", "max_steps", "learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "lr_scheduler_kwargs.*",
        "warmup_steps", "warmup_ratio", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "optim_target_modules",
        "average_tokens_across_devices", "max_grad_norm", "bf16_full_eval", "fp16_full_eval", "tf32", "gradient_checkpointing_kwargs",
        "gradient_checkpointing_kwargs.*", *(f"{PARALLEL}.{name}" for name in ("class", "cp_backend", "sp_backend", "cp_handler.class", "sp_handler.*")), f"{SCRIPT}.reads", f"{SCRIPT}.{WEIGHTS}", f"{SCRIPT}.{OWN_LOSS}", f"{SCRIPT}.{FROZEN_TOWER}", f"{SCRIPT}.{ONE_PROCESS}", f"{SCRIPT}.{BUILT}.*", "model_type", "config_overrides", f"{SCRIPT}.dataset_kwargs.*", f"{SCRIPT}.{OF_METHOD}.*", f"{SCRIPT}.{OF_TRAINER}.*", f"{SCRIPT}.{DEFAULTS}.*", *(
            f"{SCRIPT}.{name}" for name in SFT_OWN if name not in ("max_length", "loss_type", "activation_offloading", "model_init_kwargs")
        ), "torch_compile_backend", "torch_compile_mode",
        "liger_kernel_config", "liger_kernel_config.*", "use_cache", "logging_strategy", "logging_steps", "logging_first_step",
        "log_on_each_node", "logging_nan_inf_filter", "include_num_input_tokens_seen", "log_level", "log_level_replica", "disable_tqdm",
        "report_to", "run_name", "project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id", "eval_strategy", "eval_steps",
        "eval_delay", "per_device_eval_batch_size", "prediction_loss_only", "eval_on_start", "eval_do_concat_batches",
        "eval_use_gather_object", "eval_accumulation_steps", "include_for_metrics", "batch_eval_metrics", "save_only_model", "save_strategy",
        "save_steps", "save_on_each_node", "save_total_limit", "enable_jit_checkpoint", "push_to_hub", "hub_token", "hub_private_repo",
        "hub_model_id", "hub_strategy", "hub_always_push", "hub_revision", "load_best_model_at_end", "metric_for_best_model",
        "greater_is_better", "ignore_data_skip", "restore_callback_states_from_checkpoint", "full_determinism", "seed", "data_seed",
        "accelerator_config", "accelerator_config.*", "dataloader_drop_last", "dataloader_num_workers", "dataloader_pin_memory",
        "dataloader_persistent_workers", "dataloader_prefetch_factor", "dataloader_multiprocessing_context", "dataloader_in_order",
        "remove_unused_columns", "label_names", "train_sampling_strategy", "length_column_name", "ddp_broadcast_buffers", "ddp_backend",
        "ddp_timeout", "debug", "skip_memory_metrics", "do_train", "do_eval", "do_predict", "resume_from_checkpoint", "local_rank",
        f"{F}.min_num_params", f"{F}.transformer_layer_cls_to_wrap", f"{F}.cpu_ram_efficient_loading", f"{F}.state_dict_type",
        f"{F}.xla_fsdp_v2", f"{F}.xla_fsdp_grad_ckpt", f"{F}.use_orig_params", f"{F}.sync_module_states",
        f"{F}.mixed_precision_policy",
    }),
)  # fmt: skip
