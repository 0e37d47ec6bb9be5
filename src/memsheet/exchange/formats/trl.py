"""TRL's recipes: one YAML for the dataclasses of its scripts (``trl sft --config recipe.yaml``), which other
projects' scripts read too.

Model, adapter and dataset stand in the file beside ``TrainingArguments``. What trains by another method than
supervised fine-tuning keeps further models or several sequences, and is told by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from memsheet.exchange import find_format
from memsheet.exchange.shared.colocated_server import SHARE, colocated_moves, trl_colocated_share
from memsheet.exchange.shared.file_format import Format, Key, Moved, Values
from memsheet.exchange.shared.gathered_outputs import gathered_moves
from memsheet.exchange.shared.keys_of_methods import OF_OTHER_METHODS
from memsheet.exchange.shared.launched_script import PROGRAM
from memsheet.exchange.shared.method_names import FINE_TUNING, NAMED, method_in_name
from memsheet.exchange.shared.older_keys import (
    LIGER_LOSS,
    OlderKey,
    class_of_method,
    older_keys,
    recomputes_by_itself,
)
from memsheet.exchange.shared.packed_storage import packed_storage, storage_word
from memsheet.exchange.shared.program_releases import keys_of_one_program
from memsheet.exchange.shared.read_only_rows import positive_count
from memsheet.exchange.shared.role_words import ROLES
from memsheet.exchange.shared.row_lengths import both_parts
from memsheet.exchange.shared.script_places import ONE_PROCESS, OWN_SCRIPT, OWN_TRAINER, SCRIPT
from memsheet.exchange.shared.serve_command import dtype_out
from memsheet.exchange.shared.smoothed_losses import NOISE, SMOOTHING, smoothing_moves
from memsheet.exchange.shared.trainer_names import SFT_OWN
from memsheet.exchange.shared.trainers import cast_by_deepspeed, comma_separated_names, row_of
from memsheet.frozen import replace
from memsheet.late import late_functions
from memsheet.plan.library_defaults import ADAPTERS_OF_TRL, own_default

if TYPE_CHECKING:
    from memsheet.exchange.shared.preference_methods import Preferences
with late_functions(__name__):
    from memsheet.exchange.shared.preference_methods import preferences_of


TRANSFORMERS = find_format("transformers")
VERSION = "TRL 1.10.0.dev0"  # of its commit f2cd577, under trl
KERNELS = {"flash": "flash_attention_2", "sdpa": "sdpa", "eager": "eager"}
LOSSES = {"nll": "plain", "chunked_nll": "chunked"}
M, S = "trainer/model_config.py", "trainer/sft_config.py"
OWN_OF_METHODS = [
    "epsilon",
    "epsilon_high",
    "delta",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "num_iterations",
    "scale_rewards",
    "mask_truncated_completions",
    "log_completions",
    "loss_weights",
    "label_smoothing",
    "disable_dropout",
    "truncation_mode",
    "max_completion_length",
    "vllm_mode",
    "vllm_gpu_memory_utilization",
    "vllm_server_host",
    "vllm_server_port",
    "vllm_max_model_length",
    "vllm_tensor_parallel_size",
    "sync_ref_model",
    "ref_model_mixup_alpha",
    "ref_model_sync_steps",
    "wandb_entity",
    "wandb_project",
]
"""Keys of the other methods that add nothing to what their names are told for."""
MODEL, METHOD, SUPERVISED = "model_name_or_path", "method", "SFT"
OTHERS = {
    "GRPO": ("num_generations", "max_completion_length", "reward_funcs", "reward_weights", "use_vllm"),
    "DPO": ("beta", "max_prompt_length", "precompute_ref_log_probs", "ref_model_init_kwargs"),
    "KTO": ("desirable_weight", "undesirable_weight"), "reward": ("center_rewards_coefficient",),
    "PPO": ("response_length", "sft_model_path", "num_ppo_epochs"), "GKD": ("lmbda", "seq_kd"),
}  # fmt: skip
"""By method, keys that only its configuration has, the first that is found
(trainer/{grpo,dpo,kto,reward}_config.py, experimental/{ppo,gkd}).
"""


OF_METHODS = frozenset(at for own in OTHERS.values() for at in own)
OF_TRAINERS = frozenset({
    "per_device_train_batch_size", "gradient_accumulation_steps", "gradient_checkpointing", "optim", "bf16", "num_train_epochs", "max_steps",
})  # fmt: skip


def _is_recipe(found: Mapping[str, Any]) -> bool:
    """Whether a file names its model as TRL does, or leaves it to the command and has a method's key beside a
    trainer's; one that calls its model otherwise is a script's own.
    """
    both = not OF_METHODS.isdisjoint(found) and not OF_TRAINERS.isdisjoint(found)
    return MODEL in found or (both and frozenset(ROLES["model"]).isdisjoint(found))


OF_SCRIPTS = {
    "dpo": "DPO", "mpo": "DPO", "grpo": "GRPO", "gspo": "GRPO", "rloo": "RLOO", "kto": "KTO", "reward": "reward", "prm": "process reward", "bco": "BCO",
    "cpo": "CPO", "orpo": "ORPO", "gkd": "GKD", "gold": "GOLD", "xpo": "XPO", "nash": "Nash-MD", "online": "online DPO", "ppo": "PPO", "tpo": "TPO",
    "sdpo": "SDPO", "sdft": "SDFT", "ssd": "SSD", "distillation": "distillation", "async": "asynchronous GRPO",
}  # fmt: skip
"""Methods by the first word of the scripts' names (trl/scripts, examples/scripts)."""
GENERATE = (
    "GRPO",
    "RLOO",
    "asynchronous GRPO",
    "GOLD",
    "GKD",
    "XPO",
    "Nash-MD",
    "online DPO",
    "PPO",
    "SDPO",
    "SDFT",
    "SSD",
)


def _trl_method(values: Values) -> str:
    script = str(values.get(PROGRAM, "")).removesuffix(".py").partition("_")[0]
    known = OF_SCRIPTS.get(script) or (values.get(NAMED) if script != FINE_TUNING else None)
    return (
        str(known)
        if known
        else next(
            (name for name, own in OTHERS.items() if any(values.get(at) is not None for at in own)),
            SUPERVISED,
        )
    )


SHARED_KEYS = ("beta", "max_prompt_length")
"""Of DPO's those that ORPO, CPO and others have, too (experimental/{orpo,cpo}/*_config.py)."""


def is_guessed_method(values: Values) -> bool:
    """Whether a file is taken for DPO's by keys alone that methods without a reference have as well."""
    own = (at for at in OTHERS["DPO"] if at not in SHARED_KEYS)
    said = any(values.get(at) is not None for at in (PROGRAM, NAMED, *own))
    return _trl_method(values) == "DPO" and not said


OF_SFT_ALONE = frozenset({
    "dataset_text_field", "eos_token", "shuffle_dataset", "packing", "packing_strategy", "eval_packing", "completion_only_loss", "assistant_only_loss",
})  # fmt: skip
"""Keys of supervised fine-tuning that no other method has (trainer/sft_config.py)."""


def method_of_name(file: str, values: Values) -> Mapping[str, Any]:
    """What a recipe's name says of its method, where no script is given it and its keys leave that open."""
    is_open = _trl_method(values) == SUPERVISED and not OF_SFT_ALONE & values.keys()
    found = method_in_name(file, OF_SCRIPTS) if is_open or is_guessed_method(values) else None
    return {NAMED: found} if found and values.get(PROGRAM) is None else {}


def _read_max_length(value: Any, values: Values) -> Mapping[str, Any]:
    """What generates is as long as its prompts and answers are; its own default is no row's length."""
    if _trl_method(values) in GENERATE:
        return {}
    filled = _trl_method(values) == SUPERVISED and values.get("packing") is True
    return {"seq_len": _cut_to(value, values), **({} if filled else {"?seq_len_kind": "maximum"})}


def _cut_to(length: Any, values: Values) -> Any:
    """Both parts of a row, each cut on its own where both are said, and the row to a length of its own
    (huggingface/trl v0.13 trl/trainer/dpo_trainer.py, tokenize_row, concatenated_forward).
    """
    both = both_parts(values)
    return min(both, length) if both and isinstance(length, int) else length


def _read_completion_length(_: Any, values: Values) -> Mapping[str, Any]:
    """Of a method that generates: an answer, behind a prompt that is cut to a length where one is said."""
    both = both_parts(values) if _trl_method(values) in GENERATE else None
    return {"seq_len": both} if both else {}


def _read_prompt_length(value: Any, values: Values) -> Mapping[str, Any]:
    """The prompt of an answer of which nobody says the length: as long as it is by itself."""
    alone = _trl_method(values) in GENERATE and values.get(COMPLETION) is None
    return {"?seq_len": value + OF_COMPLETION} if alone and positive_count(value) else {}


COMPLETION, OF_COMPLETION = "max_completion_length", 256
"""By itself (huggingface/trl 016013e trl/trainer/grpo_config.py, max_completion_length)."""


def _is_bf16_on(values: Values) -> bool:
    """On, where fp16 is not (trainer/base_config.py)."""
    return bool(values.get("bf16", values.get("fp16") is not True))


def _as_script(values: Values) -> Values:
    """What a script would say to the Trainer."""
    adapted = (
        {f"{SCRIPT}.lora_rank": values.get("lora_r", own_default("trl", "lora_r"))}
        if values.get("use_peft") is True
        else {}
    )
    stored = (
        {f"{SCRIPT}.quantized": True}
        if values.get("load_in_4bit") is True or values.get("load_in_8bit") is True
        else {}
    )
    return {**values, "bf16": _is_bf16_on(values), **adapted, **stored}


def _trainer_row(at: str, **changes: Any) -> Key:
    """A row of transformers' own arguments, with TRL's defaults beside it."""
    row = row_of(TRANSFORMERS, at)
    return replace(row, back=lambda value, values: row.read(value, _as_script(values)), **changes)


def _read_trl_dtype(value: Any, values: Values) -> Mapping[str, Any]:
    return row_of(TRANSFORMERS, f"{SCRIPT}.dtype").read(value, _as_script(values))


def _read_trl_attention(value: Any, _: Values) -> Mapping[str, Any]:
    """Kernels of the hub are called by their repositories (kernels-community/flash-attn2)."""
    return {"attention": "flash" if "flash" in str(value) else value}


def _of_peft(make: Any) -> Any:
    return lambda value, values: make(value, values) if values.get("use_peft") is True else {}


def _read_lora_r(value: Any, values: Values) -> Mapping[str, Any]:
    cast = (
        values.get("load_in_4bit") is True or values.get("load_in_8bit") is True
    )  # trainer/sft_trainer.py:1127-1130
    kind = "dora" if values.get("use_dora") is True else "lora"
    kept = ADAPTERS_OF_TRL if cast else None if values.get("deepspeed") else "fp32"
    return {"adapter.rank": value, "adapter.kind": kind, **({"adapter.dtype": kept} if kept else {})}


def _read_trl_4bit_switch(value: Any, values: Values) -> Mapping[str, Any]:
    own = {"quantization.weights": values.get("bnb_4bit_quant_type", "nf4")}
    own["quantization.double_quant"] = values.get("use_bnb_nested_quant") is True
    if not _older_keys(values):  # which packed into the model's own dtype (0.19.1 trainer/utils.py:919)
        own["quantization.storage"] = packed_storage(values.get("bnb_4bit_quant_storage"))
    return own if value is True else {}


def _read_sft_loss_type(value: Any, values: Values) -> Mapping[str, Any]:
    """In pieces, unless that is said otherwise or Liger makes it (trainer/sft_config.py:336)."""
    if _trl_method(values) != SUPERVISED or values.get("use_liger_kernel") is True:
        return {}
    if "loss_type" not in values and _older_keys(values):
        return {"loss": "plain"}
    return {"loss": loss} if (loss := LOSSES.get(str(value))) else {}


def _older_keys(values: Values) -> tuple[OlderKey, ...]:
    return tuple(older_keys(class_of_method(_trl_method(values)), values))


def _read_recompute(value: Any, values: Values) -> Mapping[str, Any]:
    """The switch; nothing of its default where a key is of releases without."""
    left = "gradient_checkpointing" not in values and not recomputes_by_itself(_older_keys(values))
    return {} if left else row_of(TRANSFORMERS, "gradient_checkpointing").read(value, _as_script(values))


def _read_liger_loss(value: Any, values: Values) -> Mapping[str, Any]:
    return {"loss": "fused"} if value is True and _older_keys(values) else {}


def _read_only_row(at: str, back: Any, source: str, **more: Any) -> Key:
    return Key(at=at, out=lambda _: None, back=back, source=source, **more)


def _no_trl_keys(*_: Any) -> Mapping[str, Any]:
    return {}


def _of_adapter_only(make: Callable[[Values], Any]) -> Callable[[Values], Any]:
    return lambda asked: make(asked) if asked.get("adapter.rank") else None


def _autocast_switch(word: str) -> Callable[[Values], bool]:
    """Beside an adapter what products are in, whatever its own dtype and gradients are."""
    row = row_of(TRANSFORMERS, word)
    return lambda a: a.get("precision.compute") == word if a.get("adapter.rank") else bool(row.write(a))


def _nf4_or_fp4(asked: Values) -> str | None:
    weights = asked.get("quantization.weights")
    return weights if weights in ("nf4", "fp4") else None


def _loss_word(asked: Values) -> str | None:
    """Of the losses that the trainer makes itself; Liger's is a switch."""
    return next((word for word, loss in LOSSES.items() if loss == asked.get("loss")), None)


def _required_recipe_keys(asked: Values) -> Mapping[str, Any]:
    """What it stops without (scripts/sft.py, scripts/utils.py: get_dataset)."""
    return {**TRANSFORMERS.fixed(asked), "dataset_name": "trl-lib/Capybara"}


OWN_ROWS = (
    "bf16",
    "fp16",
    "use_liger_kernel",
    "gradient_checkpointing",
    "model_name_or_path",
    "dtype",
    "attn_implementation",
)
KEYS = (
    Key(at="model_name_or_path", says="@model", source=M),
    Key(at="max_length", says="seq_len", back=_read_max_length, usual=own_default("trl", "max_length"), source=S),
    _read_only_row("max_seq_length", _read_max_length, "TRL 0.19.1 trainer/sft_config.py:244-261: its name before max_length"),
    *(_trainer_row(row.at) for row in TRANSFORMERS.keys if not row.at.startswith(f"{SCRIPT}.") and row.at not in OWN_ROWS),
    _trainer_row("fp16", out=_autocast_switch("fp16")), _trainer_row("bf16", usual=own_default("trl", "bf16"), out=_autocast_switch("bf16")),
    replace(row_of(TRANSFORMERS, "gradient_checkpointing"), back=_read_recompute, usual=own_default("trl", "gradient_checkpointing")),
    _trainer_row("use_liger_kernel", out=lambda a: True if a.get("loss") == "fused" else None),
    _read_only_row(LIGER_LOSS, _read_liger_loss, "TRL 0.27.2 trainer/{grpo,dpo}_config.py: its name before use_liger_kernel"),
    Key(at="dtype", out=dtype_out, back=_read_trl_dtype, usual=own_default("trl", "dtype"), source=M),
    Key(at="attn_implementation", out=lambda a: KERNELS.get(str(a.get("attention"))), back=_read_trl_attention, source=M),
    _read_only_row(COMPLETION, _read_completion_length, "trainer/grpo_config.py, dpo_config.py"),
    _read_only_row("max_prompt_length", _read_prompt_length, "trainer/grpo_config.py, dpo_config.py"),
    Key(at="lora_r", out=_of_adapter_only(lambda a: a["adapter.rank"]), back=_of_peft(_read_lora_r), usual=own_default("trl", "lora_r"), source=M),
    Key(at="use_peft", out=_of_adapter_only(lambda _: True), back=_no_trl_keys, source=M),
    Key(at="use_dora", out=lambda a: True if a.get("adapter.kind") == "dora" else None, back=_no_trl_keys, source=M),
    Key(
        at="lora_dropout", out=_of_adapter_only(lambda a: a.get("adapter.dropout", 0.0)), back=_of_peft(lambda v, _: {"adapter.dropout": v}),
        usual=own_default("trl", "lora_dropout"), source=M,
    ),
    Key(
        at="lora_target_modules", out=_of_adapter_only(lambda a: a.get("adapter.targets")),
        back=_of_peft(lambda v, _: {"adapter.targets": comma_separated_names(v)}), source=M,
    ),
    Key(
        at="lora_modules_to_save", out=_of_adapter_only(lambda a: a.get("adapter.full_modules")),
        back=_of_peft(lambda v, _: {"adapter.full_modules": comma_separated_names(v)}), source=M,
    ),
    Key(at="load_in_4bit", out=lambda a: True if _nf4_or_fp4(a) else None, back=_read_trl_4bit_switch, source=M),
    Key(at="bnb_4bit_quant_storage", out=lambda a: storage_word(a) if _nf4_or_fp4(a) else None, back=_no_trl_keys, source=M),
    Key(at="bnb_4bit_quant_type", out=_nf4_or_fp4, back=_no_trl_keys, source=M),
    Key(at="use_bnb_nested_quant", out=lambda a: True if a.get("quantization.double_quant") else None, back=_no_trl_keys, source=M),
    Key(
        at="load_in_8bit", out=lambda a: True if a.get("quantization.weights") == "int8" else None,
        back=lambda v, _: {"quantization.weights": "int8"} if v is True else {}, source=M,
    ),
    *(_read_only_row(at, _no_trl_keys, "trl/scripts") for at in (PROGRAM, NAMED)),
    Key(at="loss_type", out=_loss_word, back=_read_sft_loss_type, usual=own_default("trl", "loss_type"), source=S),
)  # fmt: skip


RENAMED = {"torch_dtype": "dtype"}
"""Older names (trl 0.9 trainer/model_config.py)."""


def _rename_trl_key(at: str) -> str:
    return RENAMED.get(at) or (TRANSFORMERS.rename(at) if TRANSFORMERS.rename else at)


def _not_accounted(values: Values) -> Mapping[str, Any]:
    """The method, and a loss of another kind than cross-entropy."""
    other = values.get("loss_type") if _trl_method(values) == SUPERVISED else None
    return {
        METHOD: _trl_method(values),
        **({"loss": other} if other not in (None, "nll", "chunked_nll") else {}),
    }


def _trl_moves(values: Values, asked: Values) -> Iterator[Moved]:
    yield from colocated_moves(SHARE, trl_colocated_share(values), asked)
    if values.get(f"{SCRIPT}.{ONE_PROCESS}") is True:
        yield from gathered_moves(asked, own_loop=False)
    yield from smoothing_moves(values, asked)
    yield from _trl_loss_moves(values, asked)


def _trl_loss_moves(values: Values, asked: Values) -> Iterable[Moved]:
    own = {
        **{
            at: held
            for at, held in values.items()
            if at not in (f"{SCRIPT}.{ONE_PROCESS}", *NOISE, SMOOTHING)
        },
        f"{SCRIPT}.loss_type": values.get("loss_type", "chunked_nll"),
        f"{SCRIPT}.dtype": values.get("dtype", "float32"),
    }
    chunked = _read_sft_loss_type(own[f"{SCRIPT}.loss_type"], values).get("loss") == "chunked"
    return TRANSFORMERS.moves(own, asked) if chunked and TRANSFORMERS.moves else ()


def trl_preferences(values: Values) -> Preferences | None:
    """The method, without a reference where its probabilities are made before training
    (trainer/dpo_trainer.py:893-908, 1363).
    """
    given: dict[str, Any] = {"reference": False} if values.get("precompute_ref_log_probs") is True else {}
    if values.get("tpo_alpha") in (0, 0.0) and _trl_method(values) == "TPO":
        given["rows"] = 2  # experimental/tpo/tpo_trainer.py:408
    return preferences_of(_trl_method(values), **given)


BESIDE = frozenset({
    "engine", "global_batch", "mesh.dp_shard", "mesh.dp_replicate", "zero", "allocator.expandable_segments", "adapter.dtype", "offload.optimizer",
    "offload.parameters", *(f"precision.{name}" for name in ("parameters", "compute", "gradients", "reduce", "moments", "master_weights")),
})  # fmt: skip
"""What ranks, the launcher and DeepSpeed's own file say, and dtypes that follow from those that are said."""


DATA_SETS = frozenset({"dataset_name", "datasets", "dataset_mixture", "dataset_mixer", "trl_config"})
"""How a recipe says its data, without which TRL's own scripts do nothing (trl/scripts/utils.py:
ScriptArguments, DatasetMixtureConfig; scripts/sft.py), and which a script of one's own may know by itself.
"""


def _is_for_trl(values: Values) -> bool:
    """Whether TRL's scripts read a recipe: all of its keys are theirs, and it says its data, or a command
    gives it to one.
    """
    named = PROGRAM in values or any(at.partition(".")[0] in DATA_SETS for at in values)
    return named and keys_of_one_program(FORMAT, values)


FORMAT: Format = Format(
    name="trl", gradient_sync="last", file="recipe.yaml", kind="yaml", tested=VERSION, engines=TRANSFORMERS.engines, keys=KEYS, fixed=_required_recipe_keys, problems=cast_by_deepspeed, said={"task": "train"}, rename=_rename_trl_key,
    marks=frozenset({
        "use_peft", "lora_r", "lora_target_modules", "attn_implementation", "max_length", "max_seq_length", "dataset_mixture", "dataset_train_split", "dataset_name",
        "packing", "trl_config", *(at for own in OTHERS.values() for at in own),
    }),
    names_itself=_is_recipe, named=method_of_name, refers=("deepspeed", "config"), inlines=("fsdp_config",), absent=_not_accounted, stored="dtype", moves=_trl_moves, preferences=trl_preferences,
    differs=TRANSFORMERS.differs, beside=BESIDE, along=lambda asked: ("deepspeed",) if asked["engine"] == "deepspeed" else (),
    notes=("the dataset is a stand-in: put your own; run it with `trl sft --config recipe.yaml`",),
    program_known=_is_for_trl, strict=("",),  # trl/scripts/utils.py: TrlParser.parse_args_and_config stops at what it does not know
    unmodelled={
        **{at: harmless for at, harmless in TRANSFORMERS.unmodelled.items() if not at.startswith(f"{SCRIPT}.")}, METHOD: (SUPERVISED,), "loss": (),
        "dataset_kwargs.skip_prepare_dataset": (False,), f"{SCRIPT}.{OWN_SCRIPT}": (), f"{SCRIPT}.{OWN_TRAINER}": (), "activation_offloading": (False,), "lora_target_parameters": (), "model_init_kwargs": (),
    },
    known=frozenset({
        *(at for at in TRANSFORMERS.known if not at.startswith(f"{SCRIPT}.")), *(name for name in SFT_OWN if name not in ("max_length", "loss_type")),
        f"{SCRIPT}.{ONE_PROCESS}", "config", "model_revision", "trust_remote_code", "lora_alpha", "lora_task_type", "use_rslora", "dataset_name", "dataset_config", "dataset_train_split",
        "dataset_test_split", "dataset_streaming", "ignore_bias_buffers", "datasets", "streaming", "test_split_size", "env", "chat_template",
        "dataset_mixture", "dataset_mixture.*", "dataset_kwargs.*", "hub_model_revision", "push_to_hub_revision", "overwrite_output_dir", "router_aux_loss_coef",
        *(at for own in OTHERS.values() for at in own), *OWN_OF_METHODS, *OF_OTHER_METHODS,
    }) - {"activation_offloading", "model_init_kwargs"} - {key.at for key in KEYS},
)  # fmt: skip
