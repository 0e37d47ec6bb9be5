"""What the parsers of formats take at their places, as a table: numbers, numbers of a range, words; and
values that no file may hold together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.mistakes.case import EVALUATES
from memsheet.exchange.shared.file_format import AUTO, UNSET, FileReading
from memsheet.exchange.shared.script_places import TOKENIZERS
from memsheet.frozen import dataclass

LEFT = frozenset({AUTO, "all", "max", "none", "null", "default", "inf", "true", "false"})
"""Words that somebody makes a number or a choice of."""
OPEN = frozenset("${}<>[]`%")
"""Signs of a place that somebody else fills in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedValues:
    """What is taken at some places of formats: one of ``words``, or a number, from ``least`` to ``most``.

    ``closed``: no release has other words; ``any_reader``: no program does anything with another value;
    ``several``: a list of words, or words with commas between them.
    """

    formats: tuple[str, ...]
    at: tuple[str, ...]
    words: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    closed: bool = False
    any_reader: bool = False
    several: bool = False
    source: str

    def single_values(self, value: Any) -> list[Any]:
        """The values that are taken each by itself."""
        if not self.several:
            return [value]
        return list(value) if isinstance(value, list | tuple) else str(value).split(",")

    def refusal(self, value: Any) -> str:
        """Why the parser does not take a value, or nothing."""
        if self.words:
            refused = isinstance(value, str) and value.lower() not in self.words
            return f"{value} is none of {', '.join(self.words)}" if refused else ""
        number = _number_of(value)
        if number is None:
            return f"{value} is no number" if isinstance(value, str) else ""
        if self.most is not None and number > self.most:
            return f"{value} is more than {self.most:g}, the most that it takes"
        if self.least is not None and number < self.least:
            return f"{value} is less than {self.least:g}, the least that it takes"
        return ""


def is_literal_value(value: Any) -> bool:
    """Whether a value is one: not left to a script, to whoever starts it, or to a template."""
    if value is None or value in (UNSET, TOKENIZERS, "") or str(value).lower() in LEFT:
        return False
    return not isinstance(value, str) or not (OPEN & set(value) or value.isupper())


def _number_of(value: Any) -> float | None:
    if isinstance(value, bool | list | dict):
        return None
    try:
        return float(str(value).replace("_", ""))
    except ValueError:
        return None


SET, SEVERAL = object(), object()
"""Any value but nothing; a number above one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """Values that a format's program refuses together. ``where``: by place, those that are met (None: also
    where nothing stands there; ``SET``: anything); the first is named. ``engine``: the plan's that the file
    asks for, where only that one's settings are refused.
    """

    format: str
    where: Mapping[str, tuple[Any, ...]]
    says: str
    cure: str
    source: str
    engine: str = ""

    def is_met(self, read: FileReading) -> bool:
        asked = self.engine in ("", read.request.get("engine"))
        return asked and all(_is_held(read.values.get(at), held) for at, held in self.where.items())


def _is_held(value: Any, held: tuple[Any, ...]) -> bool:
    if SET in held:
        return value not in (None, False, "", UNSET)
    return isinstance(value, int) and value > 1 if SEVERAL in held else value in held


def allowed_values_at(form: str, at: str) -> Iterator[AllowedValues]:
    return (row for row in _BY_PLACE.get((form, at), ()))


_TRAINER = ("transformers", "trl", "open-instruct", "swift", "llamafactory", "axolotl")
_TF = "transformers 5.23"
_SCHEDULES = (
    "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt", "reduce_lr_on_plateau",
    "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay", "greedy",
)  # fmt: skip
_MCORE = "NVIDIA/Megatron-LM d98e8a64 megatron/training/arguments.py"
_MEGATRON = (
    "num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "num-query-groups", "kv-channels", "seq-length", "max-position-embeddings",
    "micro-batch-size", "global-batch-size", "tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size",
    "expert-model-parallel-size", "recompute-num-layers", "num-experts",
)  # fmt: skip
_AX = "axolotl-ai-cloud/axolotl 067b021 src/axolotl/utils/schemas"
_LF = "hiyouga/LLaMA-Factory ff6d4d1 src/llamafactory/hparams"
_DS = "DeepSpeed 0.19.8 deepspeed/runtime"
_VERL = "volcengine/verl b178a3cd verl"
_SWIFT = "modelscope/ms-swift 3602360 swift"
_SHARE_OF_VLLM = "vLLM 0.33.0 vllm/config/cache.py: gt=0, le=1"
_EIGHT_BITS = (
    "adamw_8bit", "adamw_bnb_8bit", "adamw_torch_8bit", "paged_adamw_8bit", "lion_8bit", "paged_lion_8bit", "ademamix_8bit", "paged_ademamix_8bit", "rmsprop_bnb_8bit",
)  # fmt: skip
TAKEN = (
    AllowedValues(
        formats=_TRAINER,
        at=(
            "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps", "max_steps", "num_train_epochs",
            "max_length", "max_seq_length", "block_size", "lora_r", "lora_rank", "lora_alpha", "lora_dropout", "max_grad_norm", "cutoff_len",
            "micro_batch_size", "sequence_len", "num_epochs",
        ),
        any_reader=True, source=f"{_TF} training_args.py:746-806, hf_argparser.py:129; {_AX}/training.py, {_AX}/peft.py: int; {_LF}/data_args.py, finetuning_args.py",
    ),
    AllowedValues(formats=("transformers", "trl", "open-instruct", "llamafactory", "swift"), at=("lr_scheduler_type",), words=_SCHEDULES, source=f"{_TF} training_args.py:1562, trainer_utils.py:561"),
    AllowedValues(formats=("llamafactory",), at=("stage",), words=("pt", "sft", "rm", "ppo", "dpo", "kto"), source=f"{_LF}/finetuning_args.py:460"),
    AllowedValues(formats=("llamafactory",), at=("finetuning_type",), words=("lora", "oft", "freeze", "full"), source=f"{_LF}/finetuning_args.py:464"),
    AllowedValues(formats=("llamafactory",), at=("pref_loss",), words=("sigmoid", "hinge", "ipo", "kto_pair", "orpo", "simpo"), source=f"{_LF}/finetuning_args.py:183"),
    AllowedValues(formats=("llamafactory",), at=("quantization_type",), words=("fp4", "nf4"), source=f"{_LF}/model_args.py:287"),
    AllowedValues(formats=("axolotl",), at=("adapter",), words=("lora", "qlora", "llama-adapter"), source=f"{_AX}/peft.py:190: others are a plugin's"),
    AllowedValues(formats=("axolotl",), at=("rl",), words=("dpo", "gdpo", "grpo", "ipo", "orpo", "kto", "simpo", "ebft"), source=f"{_AX}/enums.py:30"),
    AllowedValues(formats=("swift",), at=("rlhf_type",), words=("dpo", "orpo", "simpo", "kto", "cpo", "rm", "ppo", "grpo", "gkd"), source=f"{_SWIFT}/arguments/rlhf_args.py:232"),
    AllowedValues(formats=("swift",), at=("tuner_type",), words=("lora", "full", "longlora", "adalora", "llamapro", "adapter", "vera", "boft", "fourierft", "reft", "bone", "ia3", "lora_llm", "dummy"), source=f"{_SWIFT}/arguments/base_args/base_args.py:28-30, tuner_plugin/mapping.py:6"),
    AllowedValues(
        formats=("deepspeed",), at=("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), least=1, any_reader=True,
        source=f"{_DS}/config.py:937-975",
    ),
    AllowedValues(formats=("deepspeed",), at=("zero_optimization.stage",), least=0, most=3, any_reader=True, source=f"{_DS}/zero/config.py:81: ZeroStageEnum"),
    AllowedValues(formats=("accelerate",), at=("num_processes", "num_machines"), least=0, any_reader=True, source="accelerate 1.15 commands/launch.py"),
    AllowedValues(formats=("accelerate",), at=("mixed_precision",), words=("no", "fp8", "fp16", "bf16", "none"), closed=True, source="accelerate 1.15 utils/launch.py, utils/dataclasses.py:773"),
    AllowedValues(formats=("accelerate",), at=("deepspeed_config.zero_stage",), least=0, most=3, any_reader=True, source=f"{_DS}/zero/config.py:81: ZeroStageEnum"),
    AllowedValues(formats=("megatron",), at=("--cuda-graph-impl",), words=("none", "local", "transformer_engine", "full_iteration"), any_reader=True, source="NVIDIA/Megatron-LM d98e8a64 megatron/core/transformer/transformer_config.py:1075"),
    AllowedValues(
        formats=("megatron",), at=("--cuda-graph-scope", "--cuda-graph-modules"), any_reader=True, several=True,
        words=("attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba", "full", "full_iteration", "full_iteration_inference"), source=f"{_MCORE}:256",
    ),
    AllowedValues(formats=("megatron",), at=tuple(f"--{name}" for name in _MEGATRON), any_reader=True, source=f"{_MCORE}: type=int"),
    AllowedValues(formats=("torchtune",), at=("batch_size", "gradient_accumulation_steps", "tensor_parallel_dim", "tokenizer.max_seq_len", "model.lora_rank"), any_reader=True, source="pytorch/torchtune bd2a0fc recipes/full_finetune_distributed.py:145-200"),
    AllowedValues(formats=("torchtune", "torchtune-ppo"), at=("dtype",), words=("fp16", "bf16", "fp32", "fp64"), closed=True, any_reader=True, source="pytorch/torchtune bd2a0fc torchtune/training/precision.py:18, 102"),
    AllowedValues(
        formats=("verl",),
        at=("data.train_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", "actor_rollout_ref.rollout.n", "data.max_prompt_length", "data.max_response_length", "trainer.n_gpus_per_node", "trainer.nnodes",
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu", "critic.ppo_max_token_len_per_gpu", *(f"actor_rollout_ref.{role}.log_prob_max_token_len_per_gpu" for role in ("rollout", "ref"))),
        any_reader=True, source=f"{_VERL}/workers/config/actor.py:200-225, utils/config.py:88-110",
    ),
    AllowedValues(
        formats=("verl",), at=("actor_rollout_ref.rollout.gpu_memory_utilization",), least=0, most=1, any_reader=True,
        source=f"{_VERL}/workers/rollout/vllm_rollout/vllm_async_server.py:279, sglang_rollout/async_sglang_server.py:260: vLLM 0.33.0 vllm/config/cache.py takes gt=0, le=1; SGLang a share of the card",
    ),
    AllowedValues(formats=("verl",), at=("actor_rollout_ref.rollout.name",), words=("vllm", "sglang", "trtllm"), source=f"{_VERL}/workers/rollout/base.py: _ROLLOUT_REGISTRY, of which get_rollout_class asserts that it holds the name"),
    AllowedValues(
        formats=("openrlhf",), at=("vllm.gpu_memory_utilization",), least=0, most=1, any_reader=True, source=f"OpenRLHF/OpenRLHF 3c3be623 openrlhf/trainer/ray/vllm_engine.py; {_SHARE_OF_VLLM}",
    ),
    AllowedValues(
        formats=("nemo-rl",), at=("policy.generation.vllm_cfg.gpu_memory_utilization", "policy.generation.sglang_cfg.mem_fraction_static"), least=0, most=1, any_reader=True,
        source=f"NVIDIA-NeMo/RL 7ea279abf nemo_rl/models/generation/vllm/vllm_worker.py; {_SHARE_OF_VLLM}",
    ),
    AllowedValues(formats=("trl", "swift"), at=("vllm_gpu_memory_utilization",), least=0, most=1, any_reader=True, source=f"huggingface/trl f2cd577 trl/generation/vllm_generation.py:363; {_SHARE_OF_VLLM}"),
    AllowedValues(formats=("transformers",), at=("script.of_method.vllm_gpu_memory_utilization",), least=0, most=1, any_reader=True, source=f"huggingface/trl f2cd577 trl/generation/vllm_generation.py:363; {_SHARE_OF_VLLM}"),
    AllowedValues(formats=("vllm",), at=("--tensor-parallel-size", "--pipeline-parallel-size", "--max-num-seqs"), any_reader=True, source="vLLM 0.33.0 vllm/config/parallel.py, vllm/config/scheduler.py: int"),
    AllowedValues(formats=("vllm",), at=("--gpu-memory-utilization",), least=0, most=1, any_reader=True, source="vLLM 0.33.0 vllm/config/cache.py: gt=0, le=1"),
    AllowedValues(formats=("vllm",), at=("--dtype",), words=("auto", "half", "float16", "bfloat16", "float", "float32"), closed=True, source="vLLM 0.33.0 vllm/config/model.py: ModelDType"),
    AllowedValues(formats=("sglang",), at=tuple(f"--{name}" for name in ("tp-size", "pp-size", "dp-size", "ep-size", "max-running-requests", "chunked-prefill-size", "context-length", "mem-fraction-static")), any_reader=True, source="SGLang 0.5.23 server_args.py: type=int, type=float"),
    AllowedValues(formats=("llama.cpp",), at=tuple(f"--{name}" for name in ("ctx-size", "batch-size", "ubatch-size", "parallel")), any_reader=True, source="llama.cpp 00dc8057 common/arg.cpp: std::stoi"),
    AllowedValues(formats=("llama.cpp",), at=("--cache-type-k", "--cache-type-v"), words=("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"), source="llama.cpp 00dc8057 common/arg.cpp: kv_cache_type_from_str"),
    AllowedValues(
        formats=("tgi",), at=("--quantize",), closed=True, source="huggingface/text-generation-inference db931fcf launcher/src/main.rs:407-447",
        words=("awq", "compressed-tensors", "eetq", "exl2", "gptq", "marlin", "bitsandbytes", "bitsandbytes-nf4", "bitsandbytes-fp4", "fp8"),
    ),
    AllowedValues(formats=("tgi",), at=("--num-shard", "--max-total-tokens", "--max-input-tokens", "--max-batch-prefill-tokens", "--cuda-memory-fraction"), any_reader=True, source="huggingface/text-generation-inference db931fcf launcher/src/main.rs"),
    AllowedValues(formats=("tensorrt-llm",), at=("kv_cache_config.free_gpu_memory_fraction",), least=0, most=1, any_reader=True, source="TensorRT-LLM 00209af1 tensorrt_llm/llmapi/llm_args.py: validate_free_gpu_memory_fraction"),
    AllowedValues(formats=("tensorrt-llm",), at=("max_batch_size", "max_num_tokens", "tensor_parallel_size", "pipeline_parallel_size", "moe_expert_parallel_size"), any_reader=True, source="TensorRT-LLM 00209af1 tensorrt_llm/llmapi/llm_args.py: int"),
    AllowedValues(
        formats=("torchtitan-toml",), any_reader=True, source="torchtitan 820504e torchtitan/distributed/parallel_dims.py:41-60; torchtitan/config_manager.py:150-200",
        at=("training.local_batch_size", "training.seq_len", *(f"parallelism.{name}" for name in ("tensor_parallel_degree", "pipeline_parallel_degree", "context_parallel_degree", "data_parallel_shard_degree", "data_parallel_replicate_degree"))),
    ),
)  # fmt: skip
REFUSED = (
    Together(
        format="axolotl", where={"load_in_4bit": (False, None), "adapter": ("qlora",), "merge_lora": (False, None)}, says="is not on, which adapter qlora needs",
        cure="load_in_4bit: true, or adapter: lora", source=f"{_AX}/peft.py:222",
    ),
    Together(format="axolotl", where={"load_in_8bit": (True,), "adapter": ("qlora",)}, says="is on, and adapter qlora takes four bits", cure="adapter: lora, or load_in_4bit", source=f"{_AX}/peft.py:216"),
    Together(format="axolotl", where={"load_in_4bit": (True,), "load_in_8bit": (True,)}, says="is on, and load_in_8bit is, too", cure="one of the two", source=f"{_TF} utils/quantization_config.py:456"),
    Together(
        format="axolotl", where={"optimizer": _EIGHT_BITS, "fsdp_config.offload_params": (True,)}, engine="fsdp1", says="is refused by axolotl where FSDP1 offloads",
        cure="adamw_torch_fused, or fsdp_version: 2 with adamw_torch_8bit", source=f"{_AX}/validation.py:1127-1137",
    ),
    Together(
        format="axolotl", where={"optimizer": ("paged_adamw_8bit", "adamw_8bit", "adamw_bnb_8bit"), "tensor_parallel_size": (SEVERAL,)}, says="is refused by axolotl beside tensor_parallel_size",
        cure="adamw_torch_8bit", source=f"{_AX}/validation.py:1775-1783",
    ),
    *(
        Together(
            format="torchtune", where={"optimizer_in_bwd": (True,), at: (held,), "model.lora_rank": (None,)}, says=f"steps with every micro-batch, and its recipes refuse {at} beside it",
            cure=f"{at}: {without}, or optimizer_in_bwd: False", source="pytorch/torchtune bd2a0fc recipes/full_finetune_single_device.py:153-165, full_finetune_distributed.py:221-232",
        )
        for at, held, without in (("gradient_accumulation_steps", SEVERAL, "1"), ("clip_grad_norm", SET, "null"))
    ),
    Together(
        format="llamafactory", where={"quantization_bit": (SET,), "finetuning_type": ("full", "freeze")}, says="goes with finetuning_type lora or oft alone",
        cure="finetuning_type: lora, or leave it out", source=f"{_LF}/parser.py:236",
    ),
    Together(format="llamafactory", where={"load_best_model_at_end": (True,), "stage": ("rm", "ppo")}, says="is for no stage rm or ppo", cure="leave it out", source=f"{_LF}/parser.py:447"),
    *(
        Together(
            format=form, where={"load_best_model_at_end": (True,), **dict.fromkeys(EVALUATES, ("no", None, False)), "save_strategy": ("steps", "epoch", None)},
            says="needs an evaluation at each save, and eval_strategy is no", cure="eval_strategy: steps, or leave it out", source=f"{_TF} training_args.py:1749",
        )
        for form in ("transformers", "trl", "llamafactory")
    ),
)  # fmt: skip
_BY_PLACE: Mapping[tuple[str, str], tuple[AllowedValues, ...]] = {
    (form, at): tuple(row for row in TAKEN if form in row.formats and at in row.at)
    for one in TAKEN
    for form in one.formats
    for at in one.at
}
