"""Functions that a traceback may name: what each allocates for, and in which phase of which task."""

from __future__ import annotations

from memsheet.diagnose.message import Cause
from memsheet.frozen import NamedTuple


class Frame(NamedTuple):
    """What a function allocates for, and when: a component of a sheet, a path in it, and words."""

    component: str
    path: str
    words: str
    phase: str = ""


LOGITS = Frame("temporaries", "loss", "the loss, whose logits are tokens × vocabulary wide")
SCORES = Frame("saved_activations", "attention/scores", "attention scores written out in full")
GATHER = Frame("unsharded_parameters", "model", "weights gathered whole from their shards")
STATES = Frame("optimizer_states", "optimizer", "the optimizer's states, made in the first step")
FIRST_UPDATE = Frame("optimizer_states", "optimizer", "the optimizer's states, made in its first update")
BACKWARD = Frame("temporaries", "backward", "gradients of activations on their way back")
WEIGHTS = Frame("parameters", "model", "the model's weights as they are loaded", "load")
SERVED = Frame("temporaries", "sampler", "the sampler, [sequences, vocabulary]", "run")
RECOMPUTED = Frame("saved_activations", "model", "activations of a layer that is run again in backward")
PROMPT_PROBS = Frame(
    "temporaries", "prompt_logprobs", "log-probabilities of a prompt, tokens × vocabulary wide", "run"
)
STEP_SIZES = Frame(
    "temporaries", "optimizer/step", "what the optimizer's step makes for many weights at once"
)
HEAD_LOGITS = Frame("temporaries", "loss", "the logits, tokens × vocabulary wide")
GRAPH_CAPTURE = Frame("cuda_graphs", "model", "the capture of CUDA graphs", "graphs")
SERVER_CACHE = Frame("kv_cache", "model", "the KV cache", "cache")
SERVER_STEP = Frame("saved_activations", "model", "a step of the running server", "run")
PROFILE = Frame("saved_activations", "model", "the server's trial run before it sizes its cache", "profile")
TRIAL_CACHE = Frame("kv_cache", "model", "the cache of the server's trial run", "trial")
_WAKE = Frame("parameters", "model", "a sleeping server that takes its memory back", "wake")
_PROBS = Frame(
    "temporaries", "loss/log_probs", "log-probabilities of every token, logits in full", "log_probs"
)
EVALUATION_STEP = Frame("saved_activations", "model", "the evaluation, not a training step", "evaluate")
CHECKPOINT_SAVE = Frame("parameters", "model", "the saving of a checkpoint", "save")
_RESTORE = Frame("optimizer_states", "optimizer", "the loading of a checkpoint's states", "restore")
CHECKPOINT = Frame(
    "parameters", "checkpoint", "what a checkpoint holds, a weight or a state of it", "restore"
)
_RESHAPE = Frame("saved_activations", "attention/repeated", "keys and values repeated for every head")
EXPERT_TOKENS = Frame("saved_activations", "experts", "tokens sorted to their experts")
FEED_FORWARD = Frame("saved_activations", "mlp", "the feed-forward layer")
_GROWN = Frame("kv_cache", "model", "the KV cache, which grows with every token")
_WIDENED = Frame("unsharded_parameters", "model", "a weight put back from its few bits")
DECODED = Frame("saved_activations", "vae", "pictures decoded from their latents, at their full size")
_WRAPPED = Frame("gradients", "buckets", "buckets that the wrapper makes before the first step", "wrap")
_SENT = Frame(
    "communication", "buckets", "weights that the wrapper sends to every rank before the first step", "wrap"
)
_FLATTENED = Frame(
    "unsharded_parameters", "model", "a unit's weights, whole on the card before they are sharded", "shard"
)
PREDICTIONS = Frame("temporaries", "predictions", "the predictions of an evaluation, put together")
REDUCED = Frame("gradients", "buckets", "gradients that are summed over the ranks")
_MASTERS = Frame("master_weights", "optimizer", "weights in fp32, made before the first step", "masters")
ADAPTERS = Frame("parameters", "adapters", "room for the adapters that a server may hold at once", "load")
_MERGED = Frame("parameters", "model", "what an adapter adds to a weight, written out in full")
_TGI_MODELS = ("flash_causal_lm", "causal_lm", "vlm_causal_lm", "mamba", "seq2seq_lm", "idefics_causal_lm")
"""text-generation-inference's files of models (server/text_generation_server/models), whose trial run makes
the cache of its prompts first (flash_causal_lm.py, warmup; cache_manager.py; layers/attention/kv_cache.py).
"""
RESTORES = (
    "_load_zero_checkpoint",
    "_restore_base_optimizer_state",
    "restore_optimizers",
    "load_optimizer_state",
    "load_optimizer_state_dict",
    "_load_optimizer_and_scheduler",
)
"""Functions that put an optimizer's states back, which only a training that goes on does (lightning 2.5,
pytorch/trainer/connectors/checkpoint_connector.py; transformers v4.57.1, trainer.py; microsoft/DeepSpeed
022f223, runtime/engine.py and runtime/zero/stage_1_and_2.py).
"""
SAVES = ("trainer._save_checkpoint", "model_checkpoint._save_checkpoint")
"""What saves a training behind a step of it (transformers v4.57.1, trainer.py; lightning 2.5,
pytorch/callbacks/model_checkpoint.py).
"""
SHARDED_SAVES = (
    "_full_pre_state_dict_hook", "_full_post_state_dict_hook", "_full_state_dict_hook", "_common_unshard_pre_state_dict_hook", "_common_unshard_post_state_dict_hook",
    "save_fsdp_model", "save_fsdp_optimizer", "full_optim_state_dict", "_optim_state_dict_impl", "_optim_state_dict", "_unflatten_optim_state",
    "_gather_all_orig_param_state", "_allgather_orig_param_states", "_convert_state_with_orig_params",
    "_zero3_consolidated_16bit_state_dict", "consolidated_16bit_state_dict", "save_16bit_model",
    "gather_cpu_state_dict", "get_full_model_state_dict", "get_full_optimizer_state_dict",
)  # fmt: skip
"""Functions that gather the shards of a training to save them, which nothing but a training has (torch
v2.6.0, distributed/fsdp/_state_dict_utils.py and _optim_utils.py; accelerate v1.2.1, utils/fsdp_utils.py;
microsoft/DeepSpeed 022f223, runtime/engine.py; pytorch/torchtune 67ab86b, training/_distributed.py).
"""
EVALUATES = (
    "evaluate", "evaluation_loop", "evaluation_step", "prediction_step", "validation_step", "run_validation",
    "validate", "validate_epoch", "validation_epoch", "validation_loop", "eval_loop", "eval_epoch", "eval_step", "val_epoch", "val_step", "evaluate_model",
)  # fmt: skip
"""Functions of an evaluation: those of libraries, and as scripts call their own."""
FRAMES: dict[str, Frame] = {
    **dict.fromkeys(("cross_entropy", "log_softmax", "nll_loss", "ForCausalLMLoss", "fixed_cross_entropy", "compute_loss_func",
                     "vocab_parallel_cross_entropy", "fused_linear_cross_entropy", "fused_linear_cross_entropy_forward", "calculate_logits_max", "calculate_predicted_logits",
                     "calculate_cross_entropy_loss", "cross_entropy_loss", "compute_cross_entropy", "accumulate_chunk",
                     "fused_linear_ppo.forward", "fused_linear_ppo.chunk_forward", "fused_linear_preference.forward"), LOGITS),
    **dict.fromkeys(("_get_per_token_logps", "_get_per_token_logps_and_entropies", "compute_log_probs", "compute_log_prob", "selective_log_softmax",
                     "get_batch_logps", "logprobs_from_logits", "compute_logprobs", "entropy_from_logits", "get_log_probs",
                     "logprobs_from_logits_v2", "log_probs_from_logits", "get_logps", "_get_logps", "_compute_logps", "logprobs_from_logits_flash_attn", "vocab_parallel_log_probs_from_logits"), _PROBS),
    **dict.fromkeys(("baddbmm", "eager_attention_forward", "attention_scores", "get_attention_scores", "core_attention_unfused"), SCORES),
    **dict.fromkeys(("repeat_kv", "repeat_interleave"), _RESHAPE),
    **dict.fromkeys(("all_gather_into_tensor", "_all_gather_base", "unshard", "all_gather_params", "foreach_all_gather", "__all_gather_params",
                     "all_gather_coalesced", "_pre_forward_unshard", "fetch_sub_module", "_unshard", "_alloc_padded_unsharded_flat_param",
                     "alloc_all_gather_outputs", "init_unsharded_param", "_get_param_all_gather_inputs", "init_all_gather_outputs"), GATHER),
    **dict.fromkeys(("_multi_tensor_adam", "_multi_tensor_adamw", "_multi_tensor_sgd", "_multi_tensor_adagrad", "_multi_tensor_adafactor"), STEP_SIZES),
    "_init_group": FIRST_UPDATE,
    **dict.fromkeys(("_fused_adam", "_fused_adamw", "init_state", "adamw", "adam",
                     "initialize_optimizer_states", "_single_tensor_adamw", "lomo_update"), STATES),
    **dict.fromkeys(("backward", "_engine_run_backward", "run_backward"), BACKWARD),
    **dict.fromkeys(("recompute_fn", "unpack_hook", "_checkpoint_without_reentrant_generator"), RECOMPUTED),
    **dict.fromkeys(("load_weights", "load_model", "create_weights", "_load_state_dict_into_meta_model", "_load_pretrained_model", "from_pretrained",
                     "set_module_tensor_to_device", "process_weights_after_loading", "convert", "module._apply", "module.cuda", "materialize_meta_module", "create_reference_model"), WEIGHTS),
    **dict.fromkeys(("apply_top_k_top_p", "top_k_mask_logits", "top_p_sampling", "random_sample", "_sample", "sample", "apply_penalties", "gather_logprobs",
                     "compute_logits", "topk_topp_sampler", "compute_probs", "rejection_sampler.forward", "logits_processor._get_logits", "logits_processor._compute_lm_head"), SERVED),
    **dict.fromkeys(("_get_prompt_logprobs_dict", "sampler.compute_logprobs", "logits_processor.process_input_logprobs",
                     "logits_processor.compute_temp_top_p_normalized_logprobs"), PROMPT_PROBS),
    **dict.fromkeys(("lm_head", "output_layer"), HEAD_LOGITS),
    **dict.fromkeys(("capture_model", "capture_one_batch_size", "init_cuda_graphs", "init_device_graphs", "capture_begin", "_capture_cudagraphs"), GRAPH_CAPTURE),
    **dict.fromkeys(("initialize_kv_cache", "_allocate_kv_cache_tensors", "initialize_kv_cache_tensors", "_allocate_kv_cache", "init_memory_pool", "_create_buffers"), SERVER_CACHE),
    **dict.fromkeys(("set_cache_manager", "cache_manager.__init__", "init_kv_cache", "kv_cache.__init__"), TRIAL_CACHE),
    **dict.fromkeys((f"{name}.generate_token" for name in _TGI_MODELS), SERVER_STEP),
    **dict.fromkeys((f"{name}.warmup" for name in _TGI_MODELS), PROFILE),
    **dict.fromkeys(("execute_model", "forward_batch_generation", "run_batch", "event_loop_normal", "event_loop_overlap", "execute_model_req"), SERVER_STEP),
    **dict.fromkeys(("profile_run", "determine_available_memory", "determine_num_available_blocks"), PROFILE),
    **dict.fromkeys(("wake_up", "resume_memory_occupation", "create_and_map"), _WAKE),
    **dict.fromkeys(EVALUATES, EVALUATION_STEP),
    **dict.fromkeys(("save_checkpoint", "save_model", "_save_checkpoint", "get_state_dict", "full_state_dict", "save_pretrained",
                     "_unshard_fsdp_state_params", "_maybe_full_or_cpu_state_dict", "accelerator.save_state", *SHARDED_SAVES, *SAVES), CHECKPOINT_SAVE),
    **dict.fromkeys(("load_checkpoint", "load_state_dict", "resume_from_checkpoint"), CHECKPOINT),
    **dict.fromkeys(("optimizer.load_state_dict", *RESTORES), _RESTORE),
    **dict.fromkeys(("fused_moe", "fused_experts", "fused_experts_impl", "inplace_fused_experts", "outplace_fused_experts", "token_permutation", "permute"), EXPERT_TOKENS),
    **dict.fromkeys(("swiglu", "silu_and_mul", "gelu", "activations.forward"), FEED_FORWARD),
    **dict.fromkeys(("cache_utils.update", "cache_utils.reorder_cache", "cache_utils.lazy_initialization", "create_state_tensors"), _GROWN),
    **dict.fromkeys(("dequantize_4bit", "dequantize_blockwise", "dequantize_gguf_tensor"), _WIDENED),
    **dict.fromkeys(("autoencoder_kl.decode", "autoencoder_kl._decode", "sd.decode", "ddpm.decode_first_stage"), DECODED),
    **dict.fromkeys(("_ddp_init_helper", "param_and_grad_buffer.__init__", "_allocate_buffers_for_parameters"), _WRAPPED),
    **dict.fromkeys(("_sync_module_states", "_sync_params_and_buffers"), _SENT),
    **dict.fromkeys(("_init_param_handle_from_module", "_init_param_handle_from_params", "_move_states_to_device",
                     "flatten_tensors_into_flat_param"), _FLATTENED),
    **dict.fromkeys(("nested_concat", "torch_pad_and_concatenate"), PREDICTIONS),
    **dict.fromkeys(("_configure_zero_optimizer", "_configure_bf16_optimizer", "_configure_fp16_optimizer", "_create_fp32_partitions",
                     "_build_model_and_main_param_groups", "stage_1_and_2.__init__", "stage3.__init__"), _MASTERS),
    **dict.fromkeys(("foreach_reduce", "setup_buckets", "__reduce_and_partition_ipg_grads", "__avg_scatter_grads", "reduce_scatter_coalesced",
                     "reduce_independent_p_g_buckets_and_remove_grads", "average_tensor"), REDUCED),
    **dict.fromkeys(("get_delta_weight", "merge_and_unload"), _MERGED),
    **dict.fromkeys(("create_lora_weights", "mem_pool.init_buffers"), ADAPTERS),
}  # fmt: skip
"""By the name of a function in a traceback, behind its file's where that name alone says too little. Where
several are known the innermost speaks, but a phase of the run is told by any.
"""
EVALUATION, GATHERED, GENERATION, INFERENCE, LOADING, SERVING, MERGING, PICTURES, QUANTIZING, EXPERIENCE = (
    "evaluation",
    "gathered",
    "generation",
    "inference",
    "loading",
    "serving",
    "merging",
    "pictures",
    "quantizing",
    "experience",
)
"""What runs that is no training: a pass without gradients, the predictions of all its samples put together,
a model that writes, or only reads; a server that loads, and one that runs; an adapter merged; pictures made;
weights put into fewer bits by samples that are looked at; what was written is read by the models of a job.
"""
TASKS: dict[str, str] = {
    **dict.fromkeys((*EVALUATES, "prediction_loop"), EVALUATION),
    **dict.fromkeys(("nested_concat", "torch_pad_and_concatenate"), GATHERED),
    **dict.fromkeys(("generate", "_greedy_search", "_beam_search", "_contrastive_search", "_assisted_decoding", "utils._sample"), GENERATION),
    **dict.fromkeys(("merge_and_unload", "_unload_and_optionally_merge", "merge_adapter", "get_delta_weight"), MERGING),
    **dict.fromkeys(("gptq.add_batch", "gptq.fasterquant", "gptq.quantize", "awq.quantize", "quantizer.quantize_model", "quantizer.quantize",
                     "entrypoints.oneshot", "oneshot.oneshot", "oneshot.apply_recipe_modifiers"), QUANTIZING),
    **dict.fromkeys(("make_experience", "make_experience_batch", "make_experience_list", "_inference_batch_helper"), EXPERIENCE),
    **dict.fromkeys(("SentenceTransformer.encode", "transcribe", "predict_step", "predict_loop"), INFERENCE),
    **dict.fromkeys(("pipelines.__call__", "common_ksampler", "execution.get_output_data"), PICTURES),
    **dict.fromkeys(("training_step", "backward", "_engine_run_backward", "run_backward"), ""),
}  # fmt: skip
"""By the name of a function; the innermost speaks. A step of training within is none of them."""
TRAINS = (
    "train",
    "training_step",
    "_inner_training_loop",
    "_maybe_log_save_evaluate",
    "fit",
    "pretrain",
    "train_loop",
    "training_loop",
    "run_train",
    *SAVES,
    *SHARDED_SAVES,
    *RESTORES,
)
"""Functions of which a training run is made, in whose midst an evaluation is another regime."""
BEFORE_TRAINING = ("_run_sanity_check",)
"""Functions of a training run in which no step has run yet (lightning 2.5, trainer/trainer.py)."""
OF_TRAINING = ("evaluate", "save", "restore")
PHASE_CAUSES: dict[str, Cause] = {
    "run": Cause.ENGINE_OVERCOMMIT, "graphs": Cause.ENGINE_OVERCOMMIT, "cache": Cause.ENGINE_OVERCOMMIT,
    "wake": Cause.WAKE_UP_RACE, "log_probs": Cause.REAL_NEED,
    "evaluate": Cause.REGIME_CHANGE, "save": Cause.REGIME_CHANGE, "restore": Cause.REGIME_CHANGE,
}  # fmt: skip
"""Phases that say more than the bytes. Those of a server count in a server's log alone."""
OF_SERVERS = ("run", "graphs", "cache")
OF_RUNNING = (
    WEIGHTS,
    ADAPTERS,
    SERVED,
    PROMPT_PROBS,
    GRAPH_CAPTURE,
    SERVER_CACHE,
    SERVER_STEP,
    PROFILE,
    TRIAL_CACHE,
    EXPERT_TOKENS,
    FEED_FORWARD,
)
"""What a server's functions allocate for."""
