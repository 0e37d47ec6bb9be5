"""open-instruct's scripts (``accelerate launch open_instruct/finetune.py …``), and YAML of the same fields:
fine-tuning, DPO, GRPO and reward models, each with its own flags and defaults.

Lines are of allenai/open-instruct at e6c3044. What trains beside or by another program than one model on
transformers' code is told by its script.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from memsheet.exchange import find_format
from memsheet.exchange.shared.file_format import EVERYTHING, Format, Key, Moved, Values
from memsheet.exchange.shared.launched_script import PROGRAM
from memsheet.exchange.shared.script_places import SCRIPT
from memsheet.exchange.shared.trainers import parse_switch, row_of, uniform_precision_keys, with_master
from memsheet.late import late_functions

if TYPE_CHECKING:
    from memsheet.exchange.shared.preference_methods import Preferences
with late_functions(__name__):
    from memsheet.exchange.shared.preference_methods import preferences_of


TRANSFORMERS = find_format("transformers")
VERSION = "open-instruct"  # of its commit e6c3044
F, D, G = "open_instruct/finetune.py", "open_instruct/dpo_utils.py", "open_instruct/grpo_utils.py"
M, C, R = "open_instruct/model_utils.py", "open_instruct/olmo_core_utils.py", "open_instruct/data_loader.py"
FINETUNE, CACHED, RL, REWARD = "finetune.py", "dpo_tune_cache.py", "grpo_fast.py", "reward_modeling.py"
OF_CORE = ("olmo_core_finetune.py", "dpo.py", "grpo.py")
"""Scripts that train with OLMo-core's trainer and its own model code."""
NOT_HELD: Mapping[str, str] = {
    CACHED: "DPO: both sequences of a pair at once, and logits in place of a loss",
    RL: "GRPO: the learner alone, without the reference model, and without vLLM's engines",
    REWARD: "a reward model: one score in place of the vocabulary, and both sequences of a pair",
    "olmo_core_finetune.py": "OLMo-core's own model code and trainer",
    "dpo.py": "DPO on OLMo-core: its own model code, both sequences of a pair, and the reference model",
    "grpo.py": "GRPO on OLMo-core: its own model code, without the reference model and vLLM's engines",
}
BESIDE = "$.beside"
LORA_MODULES = ["q_proj", "o_proj", "v_proj", "k_proj", "gate_proj", "up_proj", "down_proj"]
RENAMED = {
    "lora_r": "lora_rank",
    "use_peft": "use_lora",
    "load_in_4bit": "use_qlora",
    "num_epochs": "num_train_epochs",
}
"""The fields of model_utils.py's own dataclass by those of finetune.py; and older ones."""


def _program(values: Values) -> str:
    """The script; of a YAML without one, the one whose fields it has."""
    named = values.get(PROGRAM)
    if isinstance(named, str):
        return named
    return (
        CACHED
        if any(at in values for at in ("dpo_loss_type", "dpo_beta", "loss_type", "mixer_list"))
        else FINETUNE
    )


def _on_core(values: Values) -> bool:
    return _program(values) in OF_CORE


def _trains_lora(values: Values) -> bool:
    return parse_switch(values.get("use_lora")) and not _on_core(values)


def _learner_ranks(values: Values) -> int | None:
    """GPUs that train, of those that are asked for: vLLM's engines have the rest (grpo_utils.py:160)."""
    held = values.get("num_learners_per_node", 1)
    counts = held if isinstance(held, list) else [held]
    return sum(counts) if all(type(count) is int for count in counts) else None


def _read_program(_: Any, values: Values) -> Mapping[str, Any]:
    """What runs the step: replicas or the launcher's choice; DeepSpeed in GRPO; OLMo-core's FSDP."""
    program = _program(values)
    ranks = {"@gpus": _learner_ranks(values)} if program in (RL, "grpo.py") else {}
    if program == RL:
        return {"engine": "deepspeed", **ranks}
    if _on_core(values):
        return {"engine": "fsdp2", "zero": 3, **ranks}
    own = values.get("zero_stage")
    return {"engine": "deepspeed"} if own is not None else {"?engine": "transformers", "?zero": 0}


def _read_dtype(value: Any, values: Values) -> Mapping[str, Any]:
    """Loaded in bf16 (finetune.py:596, grpo_utils.py:98), with fp32 copies in DeepSpeed; OLMo-core keeps fp32
    and computes in bf16 (olmo_core_finetune.py:213-217, dpo.py:270-275).
    """
    if _on_core(values):
        return {**uniform_precision_keys("fp32"), "precision.compute": "bf16"}
    word = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(str(value), str(value))
    if _program(values) == RL or values.get("zero_stage") is not None:
        return with_master(word)
    if _program(values) == REWARD:
        return {f"?{key}": held for key, held in uniform_precision_keys("bf16").items()}
    own = {f"{SCRIPT}.lora_rank": 1} if _trains_lora(values) else {}
    own |= {f"{SCRIPT}.quantized": True} if parse_switch(values.get("use_qlora")) else {}
    return row_of(TRANSFORMERS, "dtype").read(value, own)


def _read_deepspeed_stage(value: Any, values: Values) -> Mapping[str, Any]:
    return {"zero": value} if _program(values) == RL else {}


def _read_offload(part: str) -> Any:
    return lambda value, _: {f"offload.{part}": int(parse_switch(value))}


def _read_checkpointing(value: Any, values: Values) -> Mapping[str, Any]:
    """GRPO recomputes always (grpo_fast.py:370); OLMo-core by a budget of its own."""
    if _program(values) == RL:
        return {"recompute.mode": "full"}
    if _on_core(values):
        return {"?recompute.mode": "none"}
    return (
        {"recompute.mode": "full"}
        if parse_switch(value) or _saves_memory(values)
        else {"?recompute.mode": "none"}
    )


def _saves_memory(values: Values) -> bool:
    """DPO on transformers takes any budget below the whole for recompute (dpo_tune_cache.py:377)."""
    budget = values.get("activation_memory_budget")
    return isinstance(budget, int | float) and budget < 1


def _read_fused(value: Any, values: Values) -> Mapping[str, Any]:
    """AdamW of torch, fused (finetune.py:266, 680); of bitsandbytes and paged where the base is quantized
    (finetune.py:670-678).
    """
    if parse_switch(values.get("use_qlora")) or parse_switch(values.get("dpo_use_paged_optimizer")):
        name = "paged_adamw_8bit" if parse_switch(values.get("use_8bit_optimizer")) else "paged_adamw"
        return {"optimizer.name": name, "optimizer.implementation": "bnb"}
    fused = parse_switch(value) and _program(values) != REWARD
    return {"optimizer.name": "adamw", "optimizer.implementation": "fused" if fused else "foreach"}


def _read_lora_rank(value: Any, values: Values) -> Mapping[str, Any]:
    if not _trains_lora(values):
        return {}
    return {"adapter.kind": "lora", "adapter.rank": value, "adapter.targets": LORA_MODULES}


def _read_length(value: Any, values: Values) -> Mapping[str, Any]:
    """The longest row; a batch is padded to its own longest unless rows are packed (finetune.py:640-656)."""
    packed = parse_switch(values.get("packing")) or _on_core(values)
    return {"seq_len": value, **({} if packed else {"?seq_len_kind": "maximum"})}


def _read_pack_length(value: Any, values: Values) -> Mapping[str, Any]:
    return {"seq_len": value} if _program(values) in (RL, "grpo.py") else {}


def _read_micro(value: Any, values: Values) -> Mapping[str, Any]:
    usual = {RL: 1, "grpo.py": 1, REWARD: 1}.get(_program(values), 8)
    return {"microbatch": usual if value == BY_SCRIPT else value}


def _read_attention(value: Any, _: Values) -> Mapping[str, Any]:
    word = str(value)
    return {"attention": "flash" if "flash" in word else {"torch": "sdpa"}.get(word, word)}


def _read_liger(value: Any, values: Values) -> Mapping[str, Any]:
    """Its loss takes the place of logits in fine-tuning alone (finetune.py:586; dpo_tune_cache.py:328)."""
    return {"loss": "fused"} if parse_switch(value) and _program(values) == FINETUNE else {}


def _read_only_key(at: str, back: Any, source: str, **more: Any) -> Key:
    return Key(at=at, out=lambda _: None, back=back, source=source, **more)


def _no_request(*_: Any) -> Mapping[str, Any]:
    return {}


BY_SCRIPT = "8, and 1 in GRPO and of reward models"
KEYS = (
    _read_only_key("model_name_or_path", lambda v, _: {"@model": v}, f"{F}:93"),
    _read_only_key(PROGRAM, _read_program, f"{F}; {D}:289", usual=FINETUNE),
    _read_only_key("per_device_train_batch_size", _read_micro, f"{F}:201; {C}:91; open_instruct/grpo_fast.py:2402", usual=BY_SCRIPT),
    _read_only_key("gradient_accumulation_steps", lambda v, _: {"@accumulation": v}, f"{F}:179", usual=1),
    _read_only_key("max_seq_length", _read_length, f"{F}:163; {D}:255"),
    _read_only_key("max_token_length", lambda v, values: {"seq_len": v, "?seq_len_kind": "maximum"} if _program(values) == REWARD else {}, "open_instruct/reward_modeling.py:82"),
    _read_only_key("pack_length", _read_pack_length, f"{R}:410", usual=512),
    _read_only_key("model_dtype", _read_dtype, f"{F}:596; {G}:98", usual="bfloat16"),
    _read_only_key("gradient_checkpointing", _read_checkpointing, f"{F}:248; {M}:190", usual=False), _read_only_key("num_learners_per_node", _no_request, f"{G}:160"),
    _read_only_key("zero_stage", lambda v, _: {"zero": v}, f"{D}:289"),
    _read_only_key("deepspeed_stage", _read_deepspeed_stage, f"{G}:168", usual=0),
    _read_only_key("offload_optimizer", _read_offload("optimizer"), f"{D}:295"), _read_only_key("offload_param", _read_offload("parameters"), f"{D}:299"),
    _read_only_key("deepspeed_offload_optimizer", _read_offload("optimizer"), f"{G}:174"), _read_only_key("deepspeed_offload_param", _read_offload("parameters"), f"{G}:172"),
    _read_only_key("fused_optimizer", _read_fused, f"{F}:266; {C}:149", usual=True), _read_only_key("use_8bit_optimizer", _no_request, f"{F}:212"), _read_only_key("dpo_use_paged_optimizer", _no_request, f"{D}:123"),
    _read_only_key("lora_rank", _read_lora_rank, f"{F}:186", usual=64), _read_only_key("use_lora", _no_request, f"{F}:204"),
    _read_only_key("lora_dropout", lambda v, values: {"adapter.dropout": v} if _trains_lora(values) else {}, f"{F}:188", usual=0.1),
    _read_only_key("use_qlora", lambda v, _: {"quantization.weights": "nf4", "quantization.double_quant": True} if parse_switch(v) else {}, f"{F}:556-562"),
    _read_only_key("attn_implementation", _read_attention, f"{M}:63-88", usual="flash_2"),
    _read_only_key("use_liger_kernel", _read_liger, f"{F}:251"), _read_only_key("packing", _no_request, f"{F}:313"),
)  # fmt: skip


def _rename_key(at: str) -> str:
    return RENAMED.get(at, at)


def _is_launch(script: str, _: Values) -> bool:
    """Whether a script is one of these, by the folder that it stands in."""
    parts = script.split("/")
    return parts[-2:-1] == ["open_instruct"] and parts[-1] in (FINETUNE, *NOT_HELD)


def _preferences(values: Values) -> Preferences | None:
    """The method of the script. Probabilities of the reference are made before training, by the model itself
    (dpo_tune_cache.py, dpo_utils.py: build_reference_logprobs_cache).
    """
    word = {CACHED: "dpo", "dpo.py": "dpo", REWARD: "reward"}.get(_program(values))
    return preferences_of(word, reference=False)


def _not_held(values: Values) -> Mapping[str, Any]:
    """What of the script is not the sheet's, and OLMo-core's recompute by a budget."""
    told = NOT_HELD.get(_program(values))
    budget = (
        {"$.budget": values["activation_memory_budget"]} if _on_core(values) and _saves_memory(values) else {}
    )
    return {**({BESIDE: told} if told else {}), **budget}


def _left_to_launcher(values: Values, _: Values) -> Iterator[Moved]:
    """Arguments alone name no launcher, and so nothing that divides the model."""
    if values.get(PROGRAM) is None and values.get("zero_stage") is None:
        why = "the launcher that starts it divides the model or does not, and it is not among the files"
        yield Moved(at="launcher", why=why, low_bytes=-EVERYTHING, high_bytes=0)


OWN = frozenset({"with_tracking", "checkpointing_steps", "dataset_mixer_list", "dataset_mix_dir", "use_slow_tokenizer", "mixer_list"})  # fmt: skip
FORMAT: Format = Format(
    name="open-instruct", file="train.yaml", kind="yaml", tested=VERSION, engines=(), keys=KEYS, said={"task": "train"}, marks=OWN,
    needs={"model_name_or_path": ...}, rename=_rename_key, absent=_not_held, stored="model_dtype", starts=_is_launch, keys_complete=False, strict=("",),  # open_instruct/utils.py: ArgumentParserPlus
    moves=_left_to_launcher, preferences=_preferences,
    unmodelled={
        BESIDE: (), "$.budget": (), "sequence_parallel_size": (1,), "load_balancing_loss": (False,), "single_gpu_mode": (False,),
        "zero_hpz_partition_size": (), "deepspeed_zpg": (), "tensor_parallel_degree": (1,), "context_parallel_degree": (1,), "cp_degree": (),
        "fsdp_shard_degree": (), "fsdp_num_replicas": (), "activation_checkpointing_mode": ("budget",), "additional_model_arguments": ({},),
        "rope_scaling_factor": (), "use_flash_attn": (True,), "concatenated_forward": (True,), "optimizer_type": ("adamw",), "loss_implementation": ("default",),
        "lora_target_modules": (), "config_name": (), "reduce_loss": ("mean",), "gradient_checkpointing_kwargs": (),
    },
    known=OWN | {
        *(at for at in TRANSFORMERS.known if not at.startswith(SCRIPT)), "exp_name", "do_not_randomize_output_dir", "model_revision", "low_cpu_mem_usage", "dataset_name",
        "dataset_mixer", "dataset_mixer.*", "dataset_mixer_list_splits", "dataset_mixer_eval_list", "dataset_mixer_eval_list_splits", "dataset_transform_fn",
        "dataset_target_columns", "dataset_cache_mode", "dataset_local_cache_dir", "dataset_config_hash", "dataset_config_eval_hash", "dataset_skip_cache",
        "dataset_config_name", "max_train_samples", "preprocessing_num_workers", "overwrite_cache", "clip_grad_norm", "lora_alpha", "timeout", "save_to_hub",
        "max_train_steps", "keep_last_n_checkpoints", "load_balancing_weight", "clean_checkpoints_at_end", "wandb_project_name", "wandb_project", "wandb_entity",
        "wandb_group_name", "hf_entity", "hf_repo_id", "hf_repo_revision", "hf_repo_url", "try_launch_beaker_eval_jobs", "no_try_launch_beaker_eval_jobs",
        "hf_metadata_dataset", "cache_dataset_only", "try_auto_save_to_beaker", "gs_bucket_path", "oe_eval_tasks", "oe_eval_max_length", "sync_each_batch",
        "verbose", "final_lr_ratio", "tokenizer_name", "tokenizer_name_or_path", "tokenizer_revision", "trust_remote_code", "chat_template_name", "chat_template", "add_bos", "use_fast_tokenizer",
        "sft_messages_key", "dataset_train_split", "activation_memory_budget", "compile_model", "mixer_list_splits", "transform_fn", "target_columns", "cache_mode",
        "local_cache_dir", "skip_cache", "config_hash", "beta", "loss_type", "dpo_beta", "dpo_loss_type", "dpo_label_smoothing", "gamma_beta_ratio", "label_smoothing",
        "dpo_gamma_beta_ratio", "oe_eval_gpu_multiplier", "eval_workspace", "eval_priority", "send_slack_alerts", "cache_logprobs_only", "profiling", "ephemeral_save_interval",
        "reference_logprobs_cache_path", "use_hf_tokenizer_template", "train_file", "max_prompt_token_length", "response_length", "total_episodes", "num_unique_prompts_rollout",
        "num_samples_per_prompt_rollout", "kl_estimator", "num_mini_batches", "apply_verifiable_reward", "ground_truths_key", "temperature", "stop_strings",
        "non_stop_penalty", "non_stop_penalty_value", "local_eval_every", "save_freq", "async_steps", "vllm_num_engines", "vllm_tensor_parallel_size", "vllm_sync_backend",
        "vllm_enforce_eager", "vllm_gpu_memory_utilization", "vllm_enable_prefix_caching", "vllm_top_p", "inflight_updates", "advantage_normalization_type", "clip_higher",
        "clip_lower", "mask_truncated_completions", "no_resampling_pass_rate", "active_sampling", "filter_zero_std_samples", "no_filter_zero_std_samples", "eval_on_step_0",
        "eval_pass_at_k", "checkpoint_state_freq", "checkpoint_state_dir", "backend_timeout", "save_traces", "llm_judge_model", "llm_judge_timeout", "llm_judge_max_tokens",
        "llm_judge_max_context_length", "code_api_url", "code_pass_rate_reward_threshold", "code_max_execution_time", "code_apply_perf_penalty", "apply_r1_style_format_reward",
        "try_launch_beaker_eval_jobs_on_weka", "push_to_hub", "deepspeed_multinode_launcher", "gather_whole_model", "load_ref_policy", "masked_mean_axis", "tools", "tool_configs",
        "tool_parser_type", "tool_call_names", "max_steps", "max_tool_calls", "system_prompt_override_file", "remap_verifier", "truncated_importance_sampling_ratio_cap",
        "use_vllm_logprobs", "loss_fn", "loss_denominator", "record_entropy", "eps", "warm_up_steps", "num_evals",
    } - {key.at for key in KEYS},
)  # fmt: skip
