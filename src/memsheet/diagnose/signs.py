"""What a log shows beside its message: the functions that ran, the program, the settings, the step."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.interval import Interval
from memsheet.diagnose.message import Cause
from memsheet.diagnose.messages import step_lines, vllm
from memsheet.diagnose.messages.deepspeed import grows_steadily
from memsheet.diagnose.regimes import (
    Change,
    change_of_run,
    fits_unless_resumed,
    thawing_words,
    trained_before,
)
from memsheet.frozen import NamedTuple, dataclass, replace


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
_HEAD = Frame("temporaries", "loss", "the logits, tokens × vocabulary wide")
_GRAPHS = Frame("cuda_graphs", "model", "the capture of CUDA graphs", "graphs")
_CACHE = Frame("kv_cache", "model", "the KV cache", "cache")
_STEP = Frame("saved_activations", "model", "a step of the running server", "run")
PROFILE = Frame("saved_activations", "model", "the server's trial run before it sizes its cache", "profile")
_WAKE = Frame("parameters", "model", "a sleeping server that takes its memory back", "wake")
_PROBS = Frame(
    "temporaries", "loss/log_probs", "log-probabilities of every token, logits in full", "log_probs"
)
_EVALUATE = Frame("saved_activations", "model", "the evaluation, not a training step", "evaluate")
_SAVE = Frame("parameters", "model", "the saving of a checkpoint", "save")
_RESTORE = Frame("optimizer_states", "optimizer", "the loading of a checkpoint's states", "restore")
CHECKPOINT = Frame(
    "parameters", "checkpoint", "what a checkpoint holds, a weight or a state of it", "restore"
)
_RESHAPE = Frame("saved_activations", "attention/repeated", "keys and values repeated for every head")
_EXPERTS = Frame("saved_activations", "experts", "tokens sorted to their experts")
_MLP = Frame("saved_activations", "mlp", "the feed-forward layer")
_GROWN = Frame("kv_cache", "model", "the KV cache, which grows with every token")
_WIDENED = Frame("unsharded_parameters", "model", "a weight put back from its few bits")
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
"""text-generation-inference's files of models (server/text_generation_server/models)."""
RESTORES = (
    "restore_optimizers",
    "load_optimizer_state",
    "load_optimizer_state_dict",
    "_load_optimizer_and_scheduler",
)
"""Functions that put an optimizer's states back, which only a training that goes on does (lightning 2.5,
pytorch/trainer/connectors/checkpoint_connector.py; transformers v4.57.1, trainer.py).
"""
SAVES = ("trainer._save_checkpoint", "model_checkpoint._save_checkpoint")
"""What saves a training behind a step of it (transformers v4.57.1, trainer.py; lightning 2.5,
pytorch/callbacks/model_checkpoint.py).
"""
SHARDED_SAVES = (
    "_full_pre_state_dict_hook", "_full_post_state_dict_hook", "_full_state_dict_hook", "_common_unshard_post_state_dict_hook",
    "save_fsdp_model", "save_fsdp_optimizer", "full_optim_state_dict", "_optim_state_dict_impl", "_optim_state_dict", "_unflatten_optim_state",
    "_gather_all_orig_param_state", "_allgather_orig_param_states", "_convert_state_with_orig_params",
    "_zero3_consolidated_16bit_state_dict", "consolidated_16bit_state_dict", "save_16bit_model",
    "gather_cpu_state_dict", "get_full_model_state_dict", "get_full_optimizer_state_dict",
)  # fmt: skip
"""Functions that gather the shards of a training to save them, which nothing but a training has (torch
v2.6.0, distributed/fsdp/_state_dict_utils.py and _optim_utils.py; accelerate v1.2.1, utils/fsdp_utils.py;
microsoft/DeepSpeed 022f223, runtime/engine.py; pytorch/torchtune 67ab86b, training/_distributed.py).
"""
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
    **dict.fromkeys(("_init_group", "_fused_adam", "_fused_adamw", "init_state", "adamw", "adam",
                     "initialize_optimizer_states", "_single_tensor_adamw", "lomo_update"), STATES),
    **dict.fromkeys(("backward", "_engine_run_backward", "run_backward"), BACKWARD),
    **dict.fromkeys(("recompute_fn", "unpack_hook", "_checkpoint_without_reentrant_generator"), RECOMPUTED),
    **dict.fromkeys(("load_weights", "load_model", "create_weights", "_load_state_dict_into_meta_model", "_load_pretrained_model", "from_pretrained",
                     "set_module_tensor_to_device", "process_weights_after_loading", "convert", "module._apply", "module.cuda", "materialize_meta_module", "create_reference_model"), WEIGHTS),
    **dict.fromkeys(("apply_top_k_top_p", "top_k_mask_logits", "top_p_sampling", "random_sample", "_sample", "sample", "apply_penalties", "gather_logprobs",
                     "compute_logits", "topk_topp_sampler", "compute_probs", "rejection_sampler.forward", "logits_processor._get_logits", "logits_processor._compute_lm_head"), SERVED),
    **dict.fromkeys(("_get_prompt_logprobs_dict", "sampler.compute_logprobs", "logits_processor.process_input_logprobs",
                     "logits_processor.compute_temp_top_p_normalized_logprobs"), PROMPT_PROBS),
    **dict.fromkeys(("lm_head", "output_layer"), _HEAD),
    **dict.fromkeys(("capture_model", "capture_one_batch_size", "init_cuda_graphs", "init_device_graphs", "capture_begin", "_capture_cudagraphs"), _GRAPHS),
    **dict.fromkeys(("initialize_kv_cache", "_allocate_kv_cache_tensors", "initialize_kv_cache_tensors", "_allocate_kv_cache", "init_memory_pool", "_create_buffers"), _CACHE),
    **dict.fromkeys((f"{name}.generate_token" for name in _TGI_MODELS), _STEP),
    **dict.fromkeys((f"{name}.warmup" for name in _TGI_MODELS), PROFILE),
    **dict.fromkeys(("execute_model", "forward_batch_generation", "run_batch", "event_loop_normal", "event_loop_overlap", "execute_model_req"), _STEP),
    **dict.fromkeys(("profile_run", "determine_available_memory", "determine_num_available_blocks"), PROFILE),
    **dict.fromkeys(("wake_up", "resume_memory_occupation", "create_and_map"), _WAKE),
    **dict.fromkeys(("evaluate", "evaluation_loop", "evaluation_step", "prediction_step", "validation_step", "run_validation"), _EVALUATE),
    **dict.fromkeys(("save_checkpoint", "save_model", "_save_checkpoint", "get_state_dict", "full_state_dict", "save_pretrained",
                     "_unshard_fsdp_state_params", "_maybe_full_or_cpu_state_dict", "accelerator.save_state", *SHARDED_SAVES, *SAVES), _SAVE),
    **dict.fromkeys(("load_checkpoint", "load_state_dict", "resume_from_checkpoint"), CHECKPOINT),
    **dict.fromkeys(("optimizer.load_state_dict", *RESTORES), _RESTORE),
    **dict.fromkeys(("fused_moe", "fused_experts", "token_permutation", "permute"), _EXPERTS),
    **dict.fromkeys(("swiglu", "silu_and_mul", "gelu", "activations.forward"), _MLP),
    **dict.fromkeys(("cache_utils.update", "cache_utils.reorder_cache", "cache_utils.lazy_initialization"), _GROWN),
    **dict.fromkeys(("dequantize_4bit", "dequantize_blockwise", "dequantize_gguf_tensor"), _WIDENED),
    **dict.fromkeys(("_ddp_init_helper", "param_and_grad_buffer.__init__"), _WRAPPED),
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
    **dict.fromkeys(("evaluate", "evaluation_loop", "prediction_loop", "evaluation_step", "prediction_step", "validation_step", "run_validation"), EVALUATION),
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
_GATHERED = re.compile(r"\b(?:nested_concat|torch_pad_and_concatenate)\(")
"""transformers v4.57.1, trainer_pt_utils.py: where an evaluation puts its predictions together."""
_LOADS = re.compile(r"Starting to load model |Load weight begin\.|Loading safetensors checkpoint shards")
_LOADED = re.compile(r"Model loading took|Loading model weights took|Loading weights took|Load weight end\.")
_VERL = re.compile(r"(?<![A-Za-z])verl(?![A-Za-z])")
_OLD_MESSAGE = re.compile(
    r"(?:CUDA|HIP)outofmemory\.Triedtoallocate[\d.]{1,20}[KMGTPE]?(?:iB|B|bytes)\(GPU\d{1,3};[^()]{0,300}?"
    r"(?:(?P<cached>cached\))|reservedintotalbyPyTorch\))"
)
_FRAME = re.compile(
    r'^File "(?P<file>[^"\n]{1,400})", line \d{1,9}, in (?P<name>[\w<>.]{1,120})'
    r"|^File (?P<notebook>\S{1,400}\.py):\d{1,9}, in (?P<cell>[\w<>.]{1,120})"
    r"|^(?P<older>[\w./~-]{1,300}\.py) in (?P<called>[\w<>]{1,120})\("
    r"|^(?P<boxed>[\w./~-]{1,300}\.py):\d{1,9} in (?P<within>[\w<>]{1,120})\s*$"
)
"""A frame of Python's own traceback, of IPython's since 8 and before, of rich's."""
_ARROW = re.compile(r"(?:-{1,6}>|❱)\s{0,4}\d{1,6}[ │]{1,60}(\S.*)")
"""How notebooks and rich point at a frame's line of code."""
_TRAINER = re.compile(r'^File "[^"\n]{0,400}train[^"\n]{0,80}\.py"', re.IGNORECASE)
_WRITES = re.compile(
    r"^\s*(?:\w+\s{0,3}=\s{0,3})?(?:self\.)?(?:model|pipe|pipeline)\.(generate|merge_and_unload)\("
)
"""A script's line that lets a model write, or merges its adapter."""
_CALLS_TRAINING = re.compile(r"\b\w{0,40}[Tt]rainer\.(?:train|fit)\(")
"""A script's line that starts a training, in whose midst the traceback stands."""
_SOURCE = re.compile(r"^[\w./-]{1,200}\.py:\d{1,9}: in ([\w.]{1,120})")
_CALL = re.compile(
    r"\b(cross_entropy|log_softmax|top_k_mask_logits|baddbmm|capture_model|event_loop_normal"
    r"|event_loop_overlap|(?:lm_head|output_layer)(?=\())\b"
)
_MADE = (
    (
        re.compile(
            r"(?:^|=\s{0,3})(?:(?:shift|lm|flat|full|all)_)?logits(?:\[[^\]]{0,40}\])?(?:\.view\([^)]{0,60}\))?"
            r"\.(?:float\(\)|contiguous\(\)|to\(torch\.float(?:32)?\))"
        ),
        _HEAD,
    ),
    (re.compile(r"\b(?:loss_fct|loss_fn|loss_func|criterion|loss_function)\(\s{0,3}\w{0,20}logits\b"), LOGITS),
    (re.compile(r"\bsoftmax\(\s{0,3}(?:attn|att|(?:attn|attention)_(?:weights?|scores|probs))\b"), SCORES),
    (re.compile(r"\b(?:att|(?:attn|attention)_(?:weights?|scores|probs))\s{0,3}\+?=(?!=).{0,80}(?:\b(?:matmul|bmm|softmax)\(|@ |mask\b)"), SCORES),
    (re.compile(r"\b(?:attn|att|scores|sim|dots|attention|attn_weights)\s{0,3}=(?!=)\s{0,3}(?:self\.)?(?:attn|att|scores|sim|dots|attention|attn_weights)\.softmax\("), SCORES),
    (re.compile(r"\b(?:attn|att|scores|sim|dots|attn_weights)\s{0,3}=(?!=)\s{0,3}(?:torch\.)?einsum\("), SCORES),
    (re.compile(r"\b(?:act_fn|activation)\(\s{0,3}self\.(?:gate|w1)|\bintermediate_act_fn\("), _MLP),
    (re.compile(r"\bscores\s{0,3}=(?!=).{0,40}\b(?:matmul|bmm)\((?:.{0,40}\btranspose\(|\s*$)", re.MULTILINE), SCORES),
    (re.compile(r"\b\w{0,20}(?:key|value)_cache\s{0,3}=(?!=)\s{0,3}torch\.(?:zeros|empty)\("), _CACHE),
    (re.compile(r"\btorch\.empty\(\s{0,3}(?:int\()?self\.reduce_bucket_size\b"), REDUCED),
    (re.compile(r"(?:\bstate\[[^\]\n]{1,30}\]|\bexp_avg(?:_sq)?|\bmomentum_buffer)\s{0,3}=\s{0,3}torch\.(?:zeros|empty|full)(?:_like)?\("), STATES),
)  # fmt: skip
"""A traceback's lines of code that say by their names what they make, where no function's does
(microsoft/DeepSpeed 022f223, deepspeed/runtime/zero/stage_1_and_2.py, backward, and ops/adam/fused_adam.py,
step).
"""
_BUFFER = re.compile(
    r"\b(?:empty_strided_(?:cuda|xpu)"
    r"|torch\.(?:empty|zeros|ones|empty_strided))\("
    r"\s{0,3}[(\[]((?:\d{1,9},\s?){0,7}\d{1,9}),?[)\]]"
    r".{0,200}?\btorch\.(float32|bfloat16|float16)\b"
)
"""A buffer whose shape stands in the code (torch/_inductor/codegen/wrapper.py, make_allocation)."""
FRAMES_BEFORE, FRAMES_AFTER, ENDS_WITHIN = 400, 60, 30
"""Lines around a message that its traceback stands in; and between its last frame and the message."""
_LEAK = re.compile(
    r"^[ >]*(?:self\.)?((?=\w*(?:total|running|epoch|sum|cum|acc|train|avg|mean|all|history|log))\w*loss\w*)(?:\[[^\]\n]{0,40}\])?\s*"
    r"(?:\+=|=\s*(?:self\.)?\1\s*\+)\s*(?:self\.)?(?:(?:batch|step|iter|train|cur|current)_?)?loss\s*(?:#[^\n]{0,200})?$",
    re.MULTILINE | re.IGNORECASE,
)  # fmt: skip
"""A sum over steps, by its name; parts of one step's loss are added to ``loss``, or have other names."""
_KEPT_LOSS = re.compile(
    r"^[ >]*(?:self\.)?\w*(?:loss|history)\w*\.append\(\s{0,3}(?:self\.)?\w*loss\s{0,3}\)"
    r"\s*(?:#[^\n]{0,200})?$",
    re.MULTILINE | re.IGNORECASE,
)
"""A list of losses over steps: of tensors where memory grows with it."""
_KEPT_OUTPUT = re.compile(
    r"(?:^[ >]*|`)(?:self\.)?(\w+)\.(?:append|extend)\(\s{0,3}(?:[({\[]\s{0,3}(?:[\"']\w{1,20}[\"']\s?:\s?)?)?(?:self\.)?(?:outs?|outputs?|res(?:ults?)?|preds?|predictions?|logits|hidden(?:_states?)?"
    r"|feat(?:ure)?s?|emb(?:edding)?s?|model\([^\n]{0,80}\))(?:\.(?:logits|hidden_states|last_hidden_state|pooler_output|attentions))?"
    r"(?:\[[^\]\n]{0,20}\])?(?:\.detach\(\))?\s{0,3}(?:,[^\n()]{0,60})?[)}\]]?\s{0,3}\)\s*(?:#[^\n]{0,200}$|$|`)",
    re.MULTILINE,
)  # fmt: skip
"""A list of what a model makes, which is not moved off the card."""
_LATER_BATCH = re.compile(
    r"(?<![\d.])(?!1st)(?:[2-9]|[1-9]\d{1,6})(?:st|nd|rd|th) (?:batch|iteration|step|sample|image|file|prompt)\b"
    r"|\bafter (?:about |around |~)?(?:[2-9]|[1-9]\d{1,6}) (?:batches|iterations|steps|samples|images|files|prompts)\b"
    r"|\b(?:iteration|step|batch #|batch_idx)[ =:#]{0,3}(?:[2-9]|[1-9]\d{1,6})\b"
    r"|\|\s{0,3}(?:[2-9]|[1-9]\d{1,6})/\d{1,7}\b",
    re.IGNORECASE,
)  # fmt: skip
"""A batch that is not the first."""
_DOTTED = re.compile(r"(?<=\w) \.{2,200} (?=\S)")
"""What stands between an argument and its value where Megatron-LM prints all (megatron/training/arguments.py,
_print_args).
"""
_RECOMPUTES = re.compile(
    r"gradient_checkpointing[\"']?\s{0,3}[=:]\s{0,3}[\"']?(?:True|true|unsloth)\b|--gradient_checkpointing(?!\s+[Ff]alse)(?![\w=])"
    r"|recompute-granularity\s+full\b|activation_checkpoint\.mode[= ][\"']?full\b|disable_gradient_checkpointing: false"
    r"|\bfsdp_activation_checkpointing: true|in recompute_fn\b|\brecompute_fn\(\*|in unpack_hook\b|\bCheckpointFunction\b"
)  # fmt: skip
"""What says that activations are made again in backward: a setting, or a traceback that does it."""
_WINDOWS = re.compile(r"\b[A-Za-z]:\\\w|WinError")
_WINDOWS_SAID = re.compile(r"\bWindows (?:[78]|1[01]|Server)\b|\bwin(?:10|11)\b", re.IGNORECASE)
_NOT_WINDOWS = re.compile(
    r"\bWSL|\bssh\b|\bLinux\b|\bUbuntu\b|(?<![\w.])/(?:home|usr|opt|root|workspace)/", re.IGNORECASE
)
"""What says of a text that its job ran elsewhere than on the system that it names."""
_EXPANDABLE = re.compile(
    r"(?<!setting)PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF[\"']?\]?[=:][\"']?[\w:,.]{0,100}?expandable_segments:True"
    r"(?!\S{0,20}?toavoid)"
)
"""A setting in a text without spaces, and not what a message recommends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """``frame``: what the innermost known function allocates for; ``phase``: of the run, where one is told;
    ``program``: whose log it is (``PROGRAMS``); ``changed_at``: by which words the run
    is another one from a step or an epoch on, where it died at just that.
    """

    frame: Frame | None = None
    phase: str = ""
    task: str = ""
    """What runs that is no training (``TASKS``)."""
    release: str = ""
    """The last of PyTorch's releases that prints such a message, where it is an old one."""
    program: str = ""
    trainer: str = ""
    """The first program of the log that is no server."""
    windows: bool = False
    expandable: bool = False
    recomputes: bool = False
    """Whether activations are made again in backward already."""
    outsized: tuple[int, int] | None = None
    """Tokens of the step that died and the most of those before it, where it is far larger."""
    keeps_outputs: bool = False
    """Whether a list of what a model makes is kept on the card from batch to batch, and several ran."""
    resumed: bool = False
    """Whether the run is said to fit from its beginning, and to die where it goes on from a checkpoint."""
    eight_bits: bool = False
    """Whether the optimizer's states are in few bits already."""
    single_rows: bool = False
    """Whether a micro-batch has one row."""
    sums_losses: bool = False
    keeps_losses: bool = False
    """Whether a list of them is made while memory grows from step to step."""
    changed_at: Change | None = None
    thaws: str = ""
    """By which words the run said right before it died that it trains more from there on."""
    growth: tuple[Interval, ...] = ()
    """What was allocated from step to step, where it only grew."""
    reserved_growth: tuple[Interval, ...] = ()
    """What was reserved, likewise."""
    used_growth: tuple[Interval, ...] = ()
    """What of the card was used, likewise."""
    buffer: tuple[tuple[int, ...], str] | None = None
    """Shape and dtype that the traceback's last line of code writes out."""
    code: str = ""
    """The traceback's last line of code."""
    sleep_freed: Interval | None = None
    """What a server said that it gave back when it was put to sleep."""
    text: str = ""


PROGRAMS = (
    (
        "vLLM",
        (
            "site-packages/vllm/",
            "EngineCore",
            "vllm serve",
            "vllm/worker",
            "vllm/v1",
            "Available KV cache memory: ",
            "Capturing CUDA graphs (",
            "vllm.",
            "Starting to load model ",
            "LLM engine (v",
            "vllm-openai",
            "GPU KV cache size: ",
        ),
    ),
    (
        "SGLang",
        (
            "sglang/srt",
            "sglang.",
            "mem_fraction_static",
            "mem-fraction-static",
            "#new-token: ",
            "sglang serve",
            "Load weight begin.",
        ),
    ),
    (
        "text-generation-inference",
        (
            "text_generation_server",
            "text_generation_launcher",
            "text_generation_client",
            "text-generation-inference",
        ),
    ),
    ("verl", ("/verl/", "actor_rollout_ref", "verl.trainer")),
    ("TRL", ("/trl/trainer/", "SFTConfig", "trl sft")),
    ("OpenRLHF", ("/openrlhf/", "openrlhf.cli", "OpenRLHF")),
    ("axolotl", ("axolotl",)),
    ("LLaMA-Factory", ("llamafactory", "LLaMA-Factory")),
    ("unsloth", ("unsloth",)),
    (
        "Megatron-LM",
        (
            "megatron/core",
            "megatron/training",
            "pretrain_gpt.py",
            "elapsed time per iteration (ms): ",  # megatron/training/training.py, training_log
        ),
    ),
    ("DeepSpeed", ("/deepspeed/runtime/", "deepspeed --")),
    ("torchtitan trainer", ("torchtitan/",)),
    ("fairseq", ("fairseq",)),
    ("Lightning", ("lightning/pytorch/", "pytorch_lightning/")),
    ("Trainer", ("transformers/trainer.py", "TrainingArguments", "accelerate launch")),
    ("accelerate", ("distributed_type: FSDP", "fsdp_activation_checkpointing")),
    ("ComfyUI", ("ComfyUI", "comfy/ldm", "comfy/samplers")),
    (
        "stable-diffusion-webui",
        (
            "stable-diffusion-webui",
            "webui-forge",
            "webui-user",
            "Error completing request",
            "process_images_inner",
            "AUTOMATIC1111",
        ),
    ),
    ("InvokeAI", ("invokeai", "InvokeAI")),
    ("diffusers", ("diffusers/",)),
)
"""Programs by what only their logs hold; the first that is found speaks."""


def read_signs(log: Log, line: int) -> Signs:
    """What stands around a message that begins on a line."""
    first, last = max(0, line - FRAMES_BEFORE), line + FRAMES_AFTER
    window = log.lines[first:last]
    names = list(_names_of_frames(window))
    trains = any(name in TRAINS for name in names) or trained_before(
        log, line, saves=any(FRAMES.get(name) is _SAVE for name in names)
    )
    trains = trains or any(_CALLS_TRAINING.search(each) for each in _codes_of_frames(window))
    trains = trains and not any(name in BEFORE_TRAINING for name in names)
    own = _traceback_of(log, line) or window
    named = signs_of_names(list(_names_of_frames(own)), trains=trains)
    if named.frame is None:
        calls = [found[1] for each in own if (found := _CALL.search(each))]
        named = replace(signs_of_names(calls, trains=trains), task=named.task)
    made = _frame_of_code(own)
    if made and (named.frame in (None, _STEP, BACKWARD) or (named.frame is PROFILE and made is SCORES)):
        named = replace(named, frame=made)
    if named.frame is None and (_loads_shards(log, line) or (own is window and _says_it_loads(log, line))):
        named = replace(named, frame=WEIGHTS, phase=named.phase or "load")
    text = log.text
    programs = [name for name, marks in PROGRAMS if any(mark in text for mark in marks)]
    if (spoke := _program_of_speaker(log, line)) and programs[:1] != [spoke]:
        programs = [spoke, *(name for name in programs if name != spoke)]
    if not named.task and not trains and not (programs and programs[0] in SERVERS):
        named = replace(named, task=_task_of_script(own, programs))
    if not named.task and named.frame is None and not trains and _says_it_infers(log, line):
        named = replace(named, task=INFERENCE)
    of_server = _task_of_server(log, line, window, names, named, programs)
    if not named.phase and (phase := _phase_of_server("\n".join(log.lines[:line]), of_server)):
        named = replace(named, phase=phase, frame=named.frame or (_GRAPHS if phase == "graphs" else None))
    growth = grows_steadily(log) or step_lines.allocated_growth(log)
    gathered = named.task == EVALUATION and any(_GATHERED.search(each) for each in own)
    return Signs(
        frame=named.frame, buffer=_written_buffer(own), code=_innermost_code(own), phase=named.phase, task=GATHERED if gathered else of_server or named.task,
        release=_old_release(log, line), program=programs[0] if programs else "",
        trainer=next((name for name in programs if name not in SERVERS), ""),
        windows=_on_windows(text),
        expandable=bool(_EXPANDABLE.search(log.squeezed)), recomputes=bool(_RECOMPUTES.search(text)), sums_losses=bool(_LEAK.search(text)),
        outsized=step_lines.outsized_step(log, line), keeps_outputs=bool(_KEPT_OUTPUT.search(text) and (growth or _LATER_BATCH.search(text))), resumed=fits_unless_resumed(text),
        keeps_losses=bool(_KEPT_LOSS.search(text) and step_lines.peak_growth(log)),
        changed_at=change_of_run(log, line), thaws=thawing_words(log, line), used_growth=step_lines.used_growth(log), growth=growth, reserved_growth=step_lines.reserved_growth(log),
        sleep_freed=vllm.server_facts(log).get("sleep_freed_bytes"), text=_DOTTED.sub(" = ", text),
    )  # fmt: skip


def _on_windows(text: str) -> bool:
    """Whether a job ran on Windows, by its paths and errors, or by what people say of their machine."""
    return bool(_WINDOWS.search(text) or (_WINDOWS_SAID.search(text) and not _NOT_WINDOWS.search(text)))


_SHARDS_READ = re.compile(r"Loading (?:safetensors |pt )?checkpoint shards:\s{0,3}(\d{1,3})%")
"""transformers v4.57.1, modeling_utils.py; vllm/model_executor/model_loader/weight_utils.py."""


_LOADING_SAID = re.compile(
    r"\b(?:while|when|during|on|just)\s(?:[a-z]{1,10}\s){0,2}(?:loading|load)\b|^\W{0,3}loading\b[^\n]{0,80}:\s*$"
    r"|\bload(?:s|ing)? (?:the |my |a )?(?:model|weights|checkpoint)\b[^\n]{0,30}\b(?:dies|fails|crash|oom|error)"
    r"|読み込み|ロード(?:中|時|で)|加载|載入|读取模型|\bLaden\b|\bbeim Laden|\bchargement\b|\bcargar|\bal carg|\bcarregar|загруз",
    re.IGNORECASE | re.MULTILINE,
)  # fmt: skip
"""How people say, in several tongues, that a model is loaded."""
_STEPS_SAID = re.compile(
    r"\b(?:step|epoch|iter(?:ation)?|loss|batch|train(?:s|ing|er)?|fine-?tun\w+|backward|generat\w+|inference|seq\w*)\b",
    re.IGNORECASE,
)  # fmt: skip


def _words_around(log: Log, line: int) -> str:
    before, behind = log.lines[max(0, line - FRAMES_BEFORE) : line], log.lines[line + 1 : line + FRAMES_AFTER]
    return "\n".join((*before, *behind))


def _says_it_loads(log: Log, line: int) -> bool:
    """Whether people's words around a message without a traceback say that a model was loaded, and nothing of
    what runs with one.
    """
    words = _words_around(log, line)
    return bool(_LOADING_SAID.search(words)) and not _STEPS_SAID.search(words)


_INFERS = re.compile(
    r"\binference\b|\bno training\b|\bonly (?:infer\w*|generat\w+)\b|\bjust (?:chatt?ing|generat\w+)\b",
    re.IGNORECASE,
)
_TRAINS_SAID = re.compile(
    r"(?<!no )\btrain(?:s|ed|er)?\b|(?<!no )\btraining\b|\bfine-?tun\w+|\bepochs?\b|\bloss\b|\bbackward\b|\boptimi[sz]er\b|\blora\b|\bgrad\w*",
    re.IGNORECASE,
)  # fmt: skip


def _says_it_infers(log: Log, line: int) -> bool:
    """Whether words around a message say that a model only reads or writes, and nothing of a training."""
    words = _words_around(log, line)
    return bool(_INFERS.search(words)) and not _TRAINS_SAID.search(words)


def _loads_shards(log: Log, line: int) -> bool:
    """Whether the last word of a progress before a message is of weights that are not all read yet."""
    before = "\n".join(log.lines[:line])
    read = list(_SHARDS_READ.finditer(before))
    return bool(read) and int(read[-1][1]) < 100 and not _OF_STEPS.search(before, read[-1].end())


_OF_STEPS = re.compile(r"\b(?:loss|step|epoch|iter(?:ation)?|throughput)\b", re.IGNORECASE)
_SPEAKERS = (
    (re.compile(r"EngineCore|VllmWorker|Worker_(?:TP|PP|DP|EP)|vLLMHttpServer"), "vLLM"),
    (re.compile(r"SGLang(?:Engine|HttpServer)"), "SGLang"),
    (re.compile(r"(?:Policy|Reference|Critic|Reward)ModelActor"), "OpenRLHF"),
    (re.compile(r"MegatronTrain\w{0,20}Actor"), "Megatron-LM"),
)
"""Programs by the names of their processes, which stand before what these say: vllm/v1/engine/core.py,
vllm/v1/executor/multiproc_executor.py, verl/workers/rollout, slime/ray, openrlhf/trainer/ray.
"""


def _program_of_speaker(log: Log, line: int) -> str:
    """Whose process said a line; empty where no prefix has its name."""
    speaker = log.speakers.get(line, "")
    return next((program for pattern, program in _SPEAKERS if pattern.match(speaker)), "")


def _traceback_of(log: Log, line: int) -> Sequence[str]:
    """The traceback that ends at a message, else the one behind it, else nothing: an earlier one of the log,
    or another rank's behind it, is another error's.
    """
    first = max(0, line - FRAMES_BEFORE)
    last = next(
        (number for number in range(line, max(first, line - ENDS_WITHIN) - 1, -1) if _is_frame(log.lines[number : number + 1])),
        None,
    )  # fmt: skip
    if last is None:
        behind = log.lines[line : line + FRAMES_AFTER]
        return behind if any(_is_frame((each,)) for each in behind) else ()
    begun = next((number for number in range(last, first - 1, -1) if "Traceback" in log.lines[number]), first)
    return log.lines[begun : line + 1]


def _codes_of_frames(window: Sequence[str]) -> Iterator[str]:
    """The line of code of each frame of a traceback: the one that an arrow points at, else the one behind."""
    places = [place for place, each in enumerate(window) if _FRAME.match(each)]
    for place, following in itertools.pairwise((*places, len(window))):
        behind = window[place + 1 : following]
        pointed = (found[1] for each in behind if (found := _ARROW.match(each)))
        if (code := next(pointed, next(iter(behind), None))) is not None:
            yield code


def _frame_of_code(window: Sequence[str]) -> Frame | None:
    """What the innermost line of code makes by its own names, where one says it."""
    made = (frame for code in _codes_of_frames(window) for pattern, frame in _MADE if pattern.search(code))
    found = next(reversed(tuple(made)), None)
    serves = any(part in each for each in window for part in _OF_SERVER_CODE)
    return SERVED if serves and found is _HEAD else found


def writes_scores(code: str) -> bool:
    """Whether a line of code makes attention scores by its own names, and nothing else of a layer."""
    return any(frame is SCORES and pattern.search(code) for pattern, frame in _MADE)


def _written_buffer(window: Sequence[str]) -> tuple[tuple[int, ...], str] | None:
    """Shape and dtype of the buffer that the innermost line of code of a traceback makes by plain numbers."""
    found = _BUFFER.search(_innermost_code(window))
    return (tuple(int(axis) for axis in found[1].split(",")), found[2]) if found else None


def _innermost_code(window: Sequence[str]) -> str:
    return next(reversed(list(_codes_of_frames(window))), "")


def _is_frame(lines: Sequence[str]) -> bool:
    return any(_FRAME.match(each) or _SOURCE.match(each) for each in lines)


def _names_of_frames(window: Sequence[str]) -> Iterator[str]:
    """The functions of a traceback; those that ``FRAMES`` or ``TASKS`` know by their file alone, with it."""
    for each in window:
        if found := _FRAME.match(each):
            path, called = (said for said in found.groups() if said is not None)
            name, parts = called.rpartition(".")[2], re.split(r"[/\\]", path)
            places = [part.removesuffix(".py") for part in parts[-3:]]
            known = (f"{place}.{name}" for place in reversed(places))
            yield next((each for each in known if each in FRAMES or each in TASKS), name)
        elif found := _SOURCE.match(each):
            yield found[1].rpartition(".")[2]


def _task_of_script(window: Sequence[str], programs: Sequence[str]) -> str:
    """What a script does that trains nothing, by its own lines in a traceback, or its program."""
    called = [found[1] for each in _codes_of_frames(window) if (found := _WRITES.match(each))]
    draws = bool(programs) and (
        programs[0] in DRAWS
        or (programs[0] == "diffusers" and not any(_TRAINER.match(each) for each in window))
    )
    return TASKS[called[-1]] if called else PICTURES if draws else ""


def _task_of_server(
    log: Log, line: int, window: Sequence[str], names: list[str], named: Signs, programs: list[str]
) -> str:
    """What a server does, where the message is a server's: its process said it, its functions stand in the
    traceback, or none stand there and no trainer has a word in the log.
    """
    spoken = _program_of_speaker(log, line) in SERVERS
    own = (
        spoken or any(part in each for each in window for part in _OF_SERVER_CODE)
        if names or spoken else len(programs) == 1
    )  # fmt: skip
    told = named.frame in OF_RUNNING or (named.frame in (None, SCORES) and own)
    trains = not spoken and (
        any(name in TRAINS or not TASKS.get(name, "none") for name in names) or bool(_VERL.search(log.text))
    )
    if not programs or programs[0] not in SERVERS or trains or not told:
        return ""
    before = "\n".join(log.lines[:line])
    begun = [found.end() for found in _LOADS.finditer(before)]
    loads = named.phase == "load" or (bool(begun) and not _LOADED.search(before, begun[-1]))
    return LOADING if loads and named.frame in (WEIGHTS, ADAPTERS, None) else SERVING


_OF_SERVER_CODE = ("/vllm/", "/sglang/", "/text_generation_server/")
_POOLED = re.compile(
    r"Memory pool end|KV Cache is allocated|GPU KV cache size: \d|# (?:GPU|CUDA|cuda) blocks: [1-9]"
    r"|(?:Prefill|Decode) batch[. \[]|Avg prompt throughput: "
    r"|Setting max batch total tokens to \d"  # text-generation-inference's router
    r"|Available KV cache memory: \d"  # vllm/v1/worker/gpu_worker.py, determine_available_memory
    r"|Capture cuda graph begin|Capturing (?:CUDA graph|batches)|Capturing the model for CUDA graphs"
)
_WARMS_UP = re.compile(r"Method Warmup encountered an error|Warming up model")
"""text-generation-inference's launcher: a trial run of the largest prompt, before its cache is made."""
_CAPTURES = re.compile(
    r"Capture cuda graph begin|Capturing (?:CUDA graph|batches)|Capturing the model for CUDA graphs"
)
_CAPTURED = re.compile(
    r"Capture cuda graph end|Graph capturing finished|Application startup complete|fired up and ready"
)


def _phase_of_server(before: str, task: str) -> str:
    """How far a server had come, by its own lines before a message, where no function of a traceback says it:
    its cache takes its share before graphs are captured, and both before it serves.
    """
    pooled = list(_POOLED.finditer(before))
    if task == SERVING and not pooled and _WARMS_UP.search(before):
        return "profile"
    if task != SERVING or not pooled or _LOADS.search(before, pooled[-1].end()):
        return ""
    captures = list(_CAPTURES.finditer(before, pooled[0].start()))
    return "graphs" if captures and not _CAPTURED.search(before, captures[-1].end()) else "run"


def _old_release(log: Log, line: int) -> str:
    """PyTorch's c10/cuda/CUDACachingAllocator.cpp: figures in brackets until v2.0.1, what is kept called
    ``cached`` until v1.3.1.
    """
    place = log.place_of(line)
    found = _OLD_MESSAGE.search(log.squeezed, place, place + 1500)
    return "" if found is None else "1.3" if found["cached"] else "2.0"


def signs_of_names(names: Sequence[str], *, trains: bool | None = None) -> Signs:
    """What functions show, the innermost last. ``trains``: whether it is a training run, where they do not
    say so.
    """
    frames = [FRAMES[name] for name in names if name in FRAMES]
    if trains is None:
        trains = any(name in TRAINS for name in names)
    phases = [frame.phase for frame in frames if frame.phase and (trains or frame.phase not in OF_TRAINING)]
    tasks = [TASKS[name] for name in names if name in TASKS]
    return Signs(
        frame=_innermost_frame(frames), phase=phases[-1] if phases else "", task=tasks[-1] if tasks else ""
    )


def _innermost_frame(frames: list[Frame]) -> Frame | None:
    """The last that says what is made; what only says that a step runs gives way to one that says more."""
    telling = [frame for frame in frames if frame not in (_STEP, BACKWARD)]
    return (telling or frames)[-1] if frames else None


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
SERVERS = ("vLLM", "SGLang", "text-generation-inference")
DRAWS = ("ComfyUI", "stable-diffusion-webui", "InvokeAI")
"""Programs that make pictures, and train nothing."""
OF_RUNNING = (WEIGHTS, ADAPTERS, SERVED, PROMPT_PROBS, _GRAPHS, _CACHE, _STEP, PROFILE, _EXPERTS, _MLP)
"""What a server's functions allocate for."""
