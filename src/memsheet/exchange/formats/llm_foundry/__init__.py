"""llm-foundry's YAML (``composer train/train.py mpt-7b.yaml``): a described MPT or a named model, sharded by
Composer with FullyShardedDataParallel.

MPT's own layers are accounted where they run in flash attention under FSDP; other models run the library's.
Lines are of mosaicml/llm-foundry at 8c8dd48, under llmfoundry; of mosaicml/composer at 6405188 where Composer
decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.formats.llm_foundry.described import (
    NAME,
    changed_config,
    foundry_described_config,
    is_plain_mpt,
    runs_mpt_code,
)
from memsheet.exchange.formats.llm_foundry.parsed import FILE, PROCESSES, parse_foundry_text
from memsheet.exchange.shared.file_format import AUTO, Format, Key, Moved, Values, plan_word
from memsheet.exchange.shared.read_only_rows import (
    plan_key_row,
    positive_count,
    read_elsewhere,
    read_only_row,
)
from memsheet.exchange.shared.trainers import uniform_precision_keys

VERSION = "llm-foundry 0.22"  # of its commit 8c8dd48
C, H, M = "utils/config_utils.py", "models/hf/hf_base.py", "models/mpt/configuration_mpt.py"
FSDP, SHARDED, MIXED = "fsdp_config", "fsdp_config.sharding_strategy", "fsdp_config.mixed_precision"
MICRO, STEP, MODEL = (
    "device_train_microbatch_size",
    "global_train_batch_size",
    "model.pretrained_model_name_or_path",
)
WIDTHS = {"amp_bf16": "bf16", "amp_fp16": "fp16", "fp32": "fp32"}
STRATEGIES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "HYBRID_SHARD": 3}
OPTIMIZERS = {
    "decoupled_adamw": ("adamw", "loop"), "adamw": ("adamw", "foreach"), "decoupled_lionw": ("lion", "loop"), "decoupled_lionw_8b": ("lion_8bit", "bnb"),
    "sgd": ("sgd", "foreach"), "decoupled_sgdw": ("sgd", "loop"),
}  # fmt: skip
REDUCED = {"PURE": None, "DEFAULT": "fp32", "FULL": "fp32"}
"""In what gradients are reduced, where that is not the dtype of computing
(composer/distributed/mosaic_parallelism.py:79-90).
"""


def _is_sharded_by_composer(values: Values) -> bool:
    return any(at == FSDP or at.startswith(f"{FSDP}.") for at in values if values[at] not in (None, {}))


def _attention_word(values: Values) -> str:
    """MPT's flash attention unless it is switched to torch's (models/utils/config_defaults.py:13); eager
    attention of the library's models unless a flag or a word says another (models/hf/hf_base.py:224-233).
    """
    if runs_mpt_code(values):
        inside = "model" if values.get(MODEL) is None else "model.config_overrides"
        return "eager" if values.get(f"{inside}.attn_config.attn_impl") == "torch" else "flash"
    if values.get("model.use_flash_attention_2") is True:
        return "flash"
    word = values.get("model.attn_implementation")
    return "eager" if word is None else {"flash_attention_2": "flash"}.get(str(word), str(word))


def _runs_own_engine(values: Values) -> bool:
    flash = _attention_word(values) == "flash" and values.get(SHARDED, "FULL_SHARD") == "FULL_SHARD"
    adapts = any(at.startswith("model.peft_config.") for at in values)
    return runs_mpt_code(values) and flash and _is_sharded_by_composer(values) and not adapts


def _read_foundry_engine(_: Any, values: Values) -> Mapping[str, Any]:
    """FSDP where it is configured, else replicas; with the attention and the loss that its models run."""
    fused = values.get("model.loss_fn", "fused_crossentropy") == "fused_crossentropy"
    own = {
        "attention": _attention_word(values),
        "loss": "fused" if fused and runs_mpt_code(values) else "plain",
    }
    if not _is_sharded_by_composer(values):
        return {"engine": "transformers", "zero": 0, **own}
    stage = plan_word(STRATEGIES, values.get(SHARDED, "FULL_SHARD"))
    return {"engine": "llm-foundry" if _runs_own_engine(values) else "fsdp1", "zero": stage, **own}


def _read_composer_precision(value: Any, values: Values) -> Mapping[str, Any]:
    """Weights and states in fp32, computed in half (models/consts.py, _MASTER_WEIGHTS_PRECISION)."""
    width = WIDTHS.get(str(value), WIDTHS["amp_bf16"])
    if width == "fp32":
        return uniform_precision_keys("fp32")
    if not _is_sharded_by_composer(values):
        return {"precision.name": f"{width}-autocast"}
    reduced = REDUCED.get(str(values.get(MIXED, "DEFAULT")).upper()) or width
    return {**uniform_precision_keys("fp32"), "precision.compute": width, "precision.reduce": reduced}


def _read_foundry_model(value: Any, values: Values) -> Mapping[str, Any]:
    """A model by its name, unless the file changes its configuration."""
    named = isinstance(value, str) and "${" not in value and changed_config(values) is None
    return {"@model": value} if named else {}


def _read_foundry_optimizer(value: Any, _: Values) -> Mapping[str, Any]:
    name, implementation = OPTIMIZERS.get(str(value), (str(value), None))
    return {"optimizer.name": name, "optimizer.implementation": implementation}


def _read_target_modules(value: Any, _: Values) -> Mapping[str, Any]:
    return {"adapter.targets": value if isinstance(value, list) else [str(value)]}


def _read_step_sequences(value: Any, values: Values) -> Mapping[str, Any]:
    """A step of the whole job, divided where the GPUs are counted."""
    return {} if positive_count(values.get(MICRO)) else {"global_batch": value}


def _batch_on_ranks(values: Values, ranks: int) -> Mapping[str, Any]:
    """A micro-batch is no more than a rank's share of the step, whose last one may be smaller
    (utils/config_utils.py:425-462).
    """
    step, micro = positive_count(values.get(STEP)), positive_count(values.get(MICRO))
    if not step or not micro:
        return {}
    share = max(1, step // ranks)
    micro = min(micro, share)
    return {"microbatch": micro, "global_batch": micro * -(-share // micro) * ranks}


def _read_pdrop(_: Any, values: Values) -> Mapping[str, Any]:
    rates = [
        values.get(f"model.{name}", 0) for name in ("resid_pdrop", "emb_pdrop", "attn_config.attn_pdrop")
    ]
    return {"dropout": max(rate for rate in rates if isinstance(rate, int | float))}


def _kept_output_bytes(values: Values, asked: Values) -> Iterator[Moved]:
    """Logits of the micro-batch before, which Composer keeps by the name of its outputs until the next ones
    are made (composer/trainer/trainer.py, _train_microbatch: self.state.outputs); MPT's engine has them.
    """
    sizes = [asked.get(key) for key in ("@vocab", "@tokens")]
    if not _runs_own_engine(values) and all(isinstance(size, int) for size in sizes):
        vocab, tokens = (int(size or 0) for size in sizes)
        yield Moved(
            at=NAME, why="logits of the micro-batch before", low_bytes=0, high_bytes=4 * vocab * tokens
        )


def _left_to_composer(values: Values) -> Mapping[str, Any]:
    """Another model's layers than those that are described, and weights that are gathered as they are."""
    other: dict[str, Any] = {} if is_plain_mpt(values) else {"$.layers": "are none of the library's MPT"}
    whole = str(values.get(MIXED, "")).upper() == "FULL"
    if values.get(MICRO) is None:
        other["$.microbatch"] = "is not said: Composer takes as many sequences as have room"
    return {**other, **({"$.gathered": "weights in fp32, and the sheet is of half"} if whole else {})}


KEYS = (
    read_only_row(NAME, _read_foundry_engine, "models/mpt/modeling_mpt.py:1461; command_utils/train.py:535", "hf_causal_lm"),
    read_only_row(MODEL, _read_foundry_model, f"{H}:190"), read_only_row(PROCESSES, lambda v, _: {"@gpus": v}, "mcli/mcli-llama3-finetune.yaml:18"),
    plan_key_row("max_seq_len", "seq_len", f"{C}:101"),
    Key(at=MICRO, out=lambda _: None, back=lambda v, _: {"microbatch": v}, decides=(AUTO,), source=f"{C}:167"),
    read_only_row(STEP, _read_step_sequences, f"{C}:168"), read_only_row(SHARDED, read_elsewhere, "composer/utils/parallelism.py:38"),
    read_only_row(MIXED, read_elsewhere, "composer/distributed/mosaic_parallelism.py:59"),
    Key(at="precision", out=lambda _: None, back=_read_composer_precision, usual="amp_bf16", holds=tuple(WIDTHS), instead="amp_bf16", source=f"{C}:107"),
    read_only_row("optimizer.name", _read_foundry_optimizer, "optim/__init__.py"),
    read_only_row(f"{FSDP}.activation_checkpointing", lambda v, _: {"recompute.mode": "full" if v is True else "none"}, "composer/utils/parallelism.py:17"),
    read_only_row(f"{FSDP}.activation_cpu_offload", lambda v, _: {"offload.activations": True} if v is True else {}, "composer/utils/parallelism.py:19"),
    read_only_row(f"{FSDP}.data_parallel_replicate_degree", lambda v, _: {"mesh.dp_replicate": v}, "composer/utils/parallelism.py:27"),
    plan_key_row("model.peft_config.r", "adapter.rank", f"{H}:250"), plan_key_row("model.peft_config.lora_dropout", "adapter.dropout", f"{H}:250"),
    read_only_row("model.peft_config.target_modules", _read_target_modules, f"{H}:250"),
    read_only_row("model.resid_pdrop", _read_pdrop, f"{M}:40"), *(read_only_row(f"model.{at}", read_elsewhere, M) for at in (
        "emb_pdrop", "attn_config.attn_pdrop", "use_flash_attention_2", "attn_implementation", "loss_fn", "attn_config.attn_impl", "config_overrides.attn_config.attn_impl",
    )),
    plan_key_row("expandable_segments", "allocator.expandable_segments", f"{C}:114", usual=True),
)  # fmt: skip
DESCRIBED = ("d_model", "n_heads", "n_layers", "expansion_ratio", "max_seq_len", "vocab_size", "head_dim", "tie_word_embeddings", "no_bias", "attn_config.alibi")  # fmt: skip

FORMAT = Format(
    name="llm-foundry", file="train.yaml", kind="yaml", tested=VERSION, engines=(), keys=KEYS, said={"task": "train"}, marks=frozenset({"train_loader", FILE}), parse=parse_foundry_text,
    absent=_left_to_composer, refers=(FILE,), model=foundry_described_config, on_ranks=_batch_on_ranks, moves=_kept_output_bytes, program_known=lambda _: False,
    unmodelled={
        "$.layers": (), "$.gathered": (), "$.microbatch": (), "tp_config": ({},), "max_split_size_mb": (), f"{FSDP}.keep_low_precision_grads": (False,), f"{FSDP}.cpu_offload": (False,),
        f"{FSDP}.backward_prefetch": ("BACKWARD_POST",), f"{FSDP}.forward_prefetch": (False,), f"{FSDP}.limit_all_gathers": (True,), f"{FSDP}.process_group": (),
        f"{FSDP}.data_parallel_shard_degree": (-1,), f"{FSDP}.te_checkpoint_wrapper": (False,), "model.load_in_8bit": (False,), "model.fc_type": ("torch",), "model.fc_type.name": ("torch",),
        "model.attn_config.rope": (False,), "model.attn_config.sliding_window_size": (-1,), "model.attn_config.qk_ln": (False,), "model.attn_config.qk_gn": (False,),
        "model.norm_type": ("low_precision_layernorm",), "model.final_logit_softcapping": (), "compile_config": ({},), "model.peft_config.peft_type": ("LORA",),
        "model.pretrained_lora_id_or_path": (),
    },
    known=frozenset({
        FILE, *(f"model.{name}" for name in DESCRIBED), "model.init_device", "model.pretrained", "model.use_auth_token", "model.trust_remote_code", "model.config_overrides",
        "model.config_overrides.*", "model.attn_config.*", "model.ffn_config.*", "model.init_config.*", "model.block_overrides.*", "model.peft_config.*", "model.use_train_metrics",
        "model.allow_embedding_resizing", "model.should_save_peft_only", "model.logit_scale", "model.embedding_fraction", "model.norm_eps", "model.use_cache",
        "model.use_pad_tok_in_ffn", "model.learned_pos_emb", "model.attention_bias", "model.additional_train_metrics", "model.additional_eval_metrics",
        *(f"{FSDP}.{name}" for name in (
            "activation_checkpointing_reentrant", "auto_wrap", "backward_prefetch_limit", "forward_prefetch_limit", "load_monolith_rank0_only", "load_planner", "save_planner",
            "sharded_ckpt_prefix_dir", "state_dict_type", "sync_module_states", "use_orig_params", "verbose", "flatten_parameters", "min_params", "activation_checkpointing_target",
        )),
        *(f"{table}.*" for table in (
            "variables", "tokenizer", "train_loader", "eval_loader", "eval_loaders", "scheduler", "optimizer", "algorithms", "callbacks", "loggers", "icl_tasks", "eval_gauntlet", "metadata",
            "profiler", "load_ignore_keys", "save_ignore_keys", "code_paths",
        )),
        "max_duration", "seed", "global_seed", "run_name", "code_paths", "cuda_load_lazy", "dist_timeout", "accumulate_train_batch_on_tokens", "eval_interval", "eval_loader", "eval_loaders",
        "icl_tasks", "icl_tasks_str", "eval_gauntlet", "eval_gauntlet_str", "icl_subset_num_batches", "icl_seq_len", "loggers", "progress_bar", "log_to_console", "python_log_level",
        "console_log_interval", "log_config", "callbacks", "algorithms", "save_folder", "save_latest_filename", "save_overwrite", "save_weights_only", "save_filename", "save_interval",
        "save_num_checkpoints_to_keep", "load_path", "load_weights_only", "load_strict_model_weights", "load_ignore_keys", "save_ignore_keys", "only_hf_checkpoint",
        "only_composer_checkpoint", "train_subset_num_batches", "spin_dataloaders", "eval_subset_num_batches", "eval_first", "metadata", "flatten_metadata", "autoresume", "profiler",
        "variables", "device_eval_batch_size", "device_eval_microbatch_size", "data_local", "data_remote", "tokenizer_name", "model_name", "fsdp_config",
    }) - {key.at for key in KEYS},
)  # fmt: skip
