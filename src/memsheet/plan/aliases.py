"""What other programs call an option of a plan: one table for flags and for keywords, and what engines and
libraries on them are called.

ALIASES   word → its meanings, one where a word means one thing; ``words`` picks by the command and the engine
LIBRARIES names that are no engine of memsheet's, and the engine that runs them
VALUES    key → what others call its values
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.frozen import NamedTuple
from memsheet.plan.check import RULES
from memsheet.plan.names import SHORT

TRAIN, INFER = "train", "infer"
PLAN_KEYS = "memsheet/plan/1"
"""Whose words the keys of a plan are that have no short name: ``--adapter.dropout 0.05``."""
OLDER_CARD, FAMILY = "@older_card", "@family"
"""What a question says beside its plan: that its card is older than Ampere, and the model's family."""
PARTITIONED = "@partitioned_parameters"
"""What is of parameters where ZeRO divides them: at stage 3. DeepSpeed's older ``cpu_offload`` of stages 1
and 2 is the optimizer's (deepspeedai/DeepSpeed edaa722 deepspeed/runtime/zero/config.py:202-212, which reads
it as offload_optimizer on the CPU).
"""

FIRST_LAYERS = "@first_layers"
"""What Megatron's ``--recompute-method block`` makes of a number of layers: the first so many, where
``uniform`` runs all again, so many at once (Megatron-LM d98e8a64
megatron/core/transformer/transformer_block.py).
"""


class Meaning(NamedTuple):
    """What a word says: the value of a key, or what its values come to."""

    key: str = ""
    task: str = ""
    """The only command it has this meaning in; empty: all."""
    engines: tuple[str, ...] = ()
    """Whose word it is; empty: of everybody."""
    comes_to: Mapping[str, Mapping[str, Any]] | None = None
    """Value → keys and values of a plan, where it is no single key's. A value that is not there is refused.
    """
    refused: str = ""
    """Why it cannot be honoured."""
    hint: str = ""


class Word(NamedTuple):
    """A word of others: whose it is, whether it is on or off, and its meanings."""

    whose: str
    meanings: tuple[Meaning, ...]
    switch: bool = False


_VLLM, _SGLANG, _LLAMA, _MEGATRON, _DEEPSPEED = (
    ("vllm",),
    ("sglang",),
    ("llama.cpp",),
    ("megatron",),
    ("deepspeed",),
)

# whose, key, task, engines: words, exactly that key under another name
_RENAMED: tuple[tuple[str, str, str, tuple[str, ...], str], ...] = (
    ("transformers", "microbatch", TRAIN, (), "per-device-train-batch-size per-device-batch-size per-gpu-train-batch-size device-batch-size batch-size local-batch-size"),
    ("megatron", "microbatch", TRAIN, (), "micro-batch-size train-micro-batch-size-per-gpu device-train-microbatch-size"),
    ("megatron", "global_batch", TRAIN, (), "global-batch-size train-batch-size global-train-batch-size"),
    ("transformers", "@accumulation", TRAIN, (), "gradient-accumulation-steps gradient-accumulation grad-accum-steps accumulate-grad-batches"),
    ("trl", "seq_len", TRAIN, (), "max-length max-seq-length cutoff-len sequence-len seq-length sequence-length model-max-length max-seq-len"),
    ("everybody", "seq_len", TRAIN, (), "context-length context-len block-size"),
    ("vllm", "mesh.tp", "", (), "tensor-parallel-size tensor-model-parallel-size tp-size tensor-parallel-degree tensor-parallel"),
    ("vllm", "mesh.pp", "", (), "pipeline-parallel-size pipeline-model-parallel-size pp-size pipeline-parallel-degree pipeline-parallel"),
    ("megatron", "mesh.cp", "", (), "context-parallel-size context-parallel-degree cp-size"),
    ("megatron", "mesh.ep", "", (), "expert-model-parallel-size expert-parallel-size expert-parallel-degree ep-size"),
    ("megatron", "mesh.etp", TRAIN, (), "expert-tensor-parallel-size"),
    ("megatron", "mesh.vpp", TRAIN, (), "num-virtual-stages-per-pipeline-rank virtual-pipeline-model-parallel-size"),
    ("torchtitan", "mesh.dp_shard", TRAIN, (), "data-parallel-shard-degree"),
    ("torchtitan", "mesh.dp_replicate", TRAIN, (), "data-parallel-replicate-degree"),
    ("deepspeed", "zero", TRAIN, (), "zero-stage"),
    ("transformers", "dropout", TRAIN, (), "hidden-dropout resid-pdrop"),
    ("megatron", "moe.capacity_factor", TRAIN, _MEGATRON, "moe-expert-capacity-factor"),
    ("megatron", "moe.dispatch", TRAIN, _MEGATRON, "moe-token-dispatcher-type"),
    ("megatron", "recompute.every", TRAIN, _MEGATRON, "recompute-num-layers"),
    ("megatron", "vocab_multiple", TRAIN, _MEGATRON, "make-vocab-size-divisible-by"),
    ("transformers", "attention", "", (), "attn-implementation attention-implementation attention-backend"),
    ("peft", "adapter.rank", TRAIN, (), "lora-r lora-dim"),
    ("peft", "adapter.targets", TRAIN, (), "lora-target-modules target-modules lora-target"),
    ("vllm", "adapter.rank", INFER, _VLLM, "max-lora-rank"),
    ("vllm", "quantization.weights", "", (), "quantization quantization-method"),
    ("vllm", "serving.max_sequences", INFER, _VLLM, "max-num-seqs"),
    ("sglang", "serving.max_sequences", INFER, _SGLANG, "max-running-requests"),
    ("llama.cpp", "serving.max_sequences", INFER, _LLAMA, "parallel"),
    ("everybody", "serving.max_sequences", INFER, (), "users batch num-users concurrency num-prompts per-device-eval-batch-size"),
    ("vllm", "serving.max_batched_tokens", INFER, _VLLM, "max-num-batched-tokens"),
    ("sglang", "serving.max_batched_tokens", INFER, _SGLANG, "chunked-prefill-size"),
    ("llama.cpp", "serving.max_batched_tokens", INFER, _LLAMA, "ubatch-size"),
    ("vllm", "serving.memory_fraction", INFER, _VLLM, "gpu-memory-utilization"),
    ("sglang", "serving.memory_fraction", INFER, _SGLANG, "mem-fraction-static"),
    ("vllm", "serving.kv_dtype", INFER, (), "kv-cache-dtype cache-dtype"),
    ("llama.cpp", "serving.kv_dtype", INFER, _LLAMA, "cache-type-v"),
    ("llama.cpp", "serving.k_dtype", INFER, _LLAMA, "cache-type-k"),
    ("vllm", "serving.page_tokens", INFER, _VLLM, "block-size"),
    ("vllm", "serving.host_weights_gib", INFER, _VLLM, "cpu-offload-gb"),
    ("vllm", "serving.dcp", INFER, _VLLM, "decode-context-parallel-size"),
    ("sglang", "serving.host_kv_ratio", INFER, _SGLANG, "hicache-ratio"),
    ("vllm", "serving.kv_cache_bytes", INFER, _VLLM, "kv-cache-memory-bytes"),
    ("vllm", "serving.kv_blocks", INFER, _VLLM, "num-gpu-blocks-override"),
    ("vllm", "serving.graph_sequences", INFER, _VLLM, "max-cudagraph-capture-size"),
    ("sglang", "serving.page_tokens", INFER, _SGLANG, "page-size"),
    ("llama.cpp", "serving.gpu_layers", INFER, _LLAMA, "n-gpu-layers num-gpu-layers"),
    ("llama.cpp", "serving.host_experts", INFER, _LLAMA, "n-cpu-moe"),
    ("llama.cpp", "serving.tensor_overrides", INFER, _LLAMA, "override-tensor"),
    ("llama.cpp", "serving.max_model_len", INFER, _LLAMA, "ctx-size n-ctx num-ctx"),
    ("sglang", "serving.max_model_len", INFER, (), "context-length context-len context max-seq-len max-seq-length max-position-embeddings"),
    ("transformers", "serving.max_model_len", INFER, (), "max-length"),
    ("transformers", "serving.output_tokens", INFER, (), "max-new-tokens max-tokens output-len"),
    ("vllm", "serving.prompt_tokens", INFER, (), "input-len prompt-len"),
    ("sglang", "serving.graph_sequences", INFER, _SGLANG, "cuda-graph-max-bs cuda-graph-max-bs-decode"),
    ("vllm", "serving.attention_kernels", INFER, _VLLM, "attention-backend"),
    ("sglang", "serving.attention_kernels", INFER, _SGLANG, "attention-backend"),
    ("sglang", "serving.pool_tokens", INFER, _SGLANG, "max-total-tokens"),
    ("sglang", "serving.state_slots", INFER, _SGLANG, "max-mamba-cache-size"),
    ("sglang", "serving.state_ratio", INFER, _SGLANG, "mamba-full-memory-ratio"),
    ("sglang", "mesh.attn_dp", INFER, _SGLANG, "attn-dp-size attention-data-parallel-size"),
    ("vllm", "speculative.tokens", INFER, (), "num-speculative-tokens speculative-num-draft-tokens draft-max"),
    ("sglang", "speculative.model", INFER, (), "speculative-draft-model-path speculative-model model-draft"),
)  # fmt: skip

_RECOMPUTE = {"true": {"recompute.mode": "full"}, "false": {"recompute.mode": "none"}}
_NF4 = {"quantization.weights": "nf4"}
_SINGLE, _DOUBLE = {**_NF4, "quantization.double_quant": False}, {**_NF4, "quantization.double_quant": True}
_LINEAR_MODULES = {"?adapter.rank": "lora", "?adapter.targets": ["all"]}
_QLORA = {**_DOUBLE, **_LINEAR_MODULES}
DEEPSPEED_FP16 = {
    f"precision.{name}": "fp16" for name in ("parameters", "compute", "gradients", "reduce")
} | {f"precision.{name}": "fp32" for name in ("master_weights", "moments")}
OWN_FP16 = {"deepspeed": DEEPSPEED_FP16}
"""By engine, a training in fp16 that its own configuration asks for and no precision has a name for."""
SERVED_FP16 = {"precision.parameters": "fp16", "precision.compute": "fp16"}
_HALF_REFUSED = "is not modelled for Megatron: its parameters and gradients in fp16"
_PLAIN_TRAIN = {"true": {"precision.compute": "bf16"}, "false": {}}


def _switch_word(whose: str, *meanings: Meaning) -> Word:
    return Word(whose, meanings, switch=True)


def _meaning_where_on(keys: Mapping[str, Any], **more: Any) -> Meaning:
    """A switch that says something where it is on, and nothing where it is off."""
    return Meaning(comes_to={"true": keys, "false": {}}, **more)


_OTHERS: dict[str, Word] = {
    # ---- switches
    **dict.fromkeys(
        ("gradient-checkpointing", "use-gradient-checkpointing", "activation-checkpointing", "enable-activation-checkpointing", "checkpoint-activations"),
        _switch_word("transformers", Meaning(task=TRAIN, comes_to=_RECOMPUTE, hint="on or off; unsloth's own is --recompute full --offload activations")),
    ),
    "recompute-activations": _switch_word("megatron", _meaning_where_on({"recompute.mode": "selective"}, task=TRAIN, engines=_MEGATRON)),
    "recompute-granularity": Word("megatron", (Meaning("recompute.mode", TRAIN, _MEGATRON),)),
    "recompute-method": Word("megatron", (Meaning(task=TRAIN, engines=_MEGATRON, comes_to={
        "uniform": {"?recompute.mode": "full"}, "block": {"?recompute.mode": "full", FIRST_LAYERS: 1}}),)),
    **dict.fromkeys(("use-reentrant", "use-reentrant-gc"), _switch_word("transformers", Meaning("recompute.reentrant", TRAIN))),
    "activation-checkpoint-mode": Word("torchtitan", (Meaning("recompute.mode", TRAIN, ("torchtitan",)),)),
    **dict.fromkeys(("distributed-optimizer", "use-distributed-optimizer"), _switch_word("megatron", Meaning(
        task=TRAIN, engines=_MEGATRON, comes_to={"true": {"zero": 1}, "false": {"zero": 0}}))),
    **dict.fromkeys(("load-in-4bit", "use-4bit"), _switch_word("transformers", _meaning_where_on(_SINGLE))),
    "bits": Word("qlora", (Meaning(task=TRAIN, comes_to={"4": _DOUBLE, "8": {"quantization.weights": "int8"}, "16": {}, "32": {}}),)),
    "load-in-8bit": _switch_word("transformers", _meaning_where_on({"quantization.weights": "int8"})),
    **dict.fromkeys(("lora", "use-lora", "use-peft"), _switch_word("peft", _meaning_where_on({"?adapter.rank": "lora"}, task=TRAIN))),
    "qlora": _switch_word("peft", _meaning_where_on(_QLORA, task=TRAIN)),
    "bf16": _switch_word("transformers", Meaning(task=TRAIN, comes_to=_PLAIN_TRAIN), _meaning_where_on({"precision.name": "bf16-pure"}, task=INFER)),
    "fp16": _switch_word(
        "transformers", _meaning_where_on({"precision.compute": "fp16"}, task=TRAIN), _meaning_where_on(DEEPSPEED_FP16, task=TRAIN, engines=_DEEPSPEED),
        Meaning(task=TRAIN, engines=_MEGATRON, refused=_HALF_REFUSED, hint="--bf16"), _meaning_where_on(SERVED_FP16, task=INFER),
    ),
    **dict.fromkeys(("fp8", "float8"), _switch_word(
        "megatron", _meaning_where_on({"fp8.recipe": "delayed"}, task=TRAIN, engines=_MEGATRON), _meaning_where_on({"fp8.recipe": "tensorwise"}, task=TRAIN, engines=("torchtitan",)),
        _meaning_where_on({"quantization.weights": "fp8"}, task=INFER),
        Meaning(task=TRAIN, refused="is not modelled for this engine: products in eight bits", hint="--engine megatron or torchtitan"),
    )),
    **dict.fromkeys(("liger", "use-liger", "use-liger-kernel", "enable-liger-kernel"), _switch_word("liger", _meaning_where_on({"loss": "fused"}, task=TRAIN))),
    "cross-entropy-loss-fusion": _switch_word("megatron", Meaning(
        task=TRAIN, engines=_MEGATRON, comes_to={"true": {"loss": "fused"}, "false": {"loss": "plain"}})),
    "full-finetuning": _switch_word("unsloth", Meaning(task=TRAIN, comes_to={"true": {}, "false": _QLORA})),
    **dict.fromkeys(("flash-attention", "use-flash-attn", "use-flash-attention-2"), _switch_word("transformers", _meaning_where_on({"attention": "flash"}))),
    "sdp-attention": _switch_word("axolotl", _meaning_where_on({"attention": "sdpa"})),
    "enforce-eager": _switch_word("vllm", Meaning(
        task=INFER, engines=_VLLM, comes_to={"true": {"cuda_graphs": False}, "false": {"cuda_graphs": True}})),
    "disable-cuda-graph": _switch_word("sglang", Meaning(
        task=INFER, engines=_SGLANG, comes_to={"true": {"cuda_graphs": False}, "false": {"cuda_graphs": True}})),
    "torch-compile": _switch_word("transformers", Meaning("compile")),
    "moe-router-force-load-balancing": _switch_word("megatron", Meaning("moe.balanced", TRAIN, _MEGATRON)),
    "moe-pad-expert-input-to-capacity": _switch_word("megatron", Meaning("moe.pad_to_capacity", TRAIN, _MEGATRON)),
    "optimizer-cpu-offload": _switch_word("megatron", _meaning_where_on({"offload.optimizer": 1}, task=TRAIN)),
    "cpu-offload": _switch_word(
        "fsdp", _meaning_where_on({"offload.optimizer": 1, "offload.parameters": 1}, task=TRAIN),
        _meaning_where_on({"offload.optimizer": 1, PARTITIONED: 1}, task=TRAIN, engines=_DEEPSPEED),
    ),
    "optimizer-in-bwd": _switch_word("torchtune", Meaning("optimizer_in_backward", TRAIN)),
    # tokens in the place of padding: a row has as many
    "packing": _switch_word("trl", _meaning_where_on({"?seq_len_kind": "exact"}, task=TRAIN)),
    # ---- words with values of their own
    "deepspeed": Word("transformers", (Meaning(task=TRAIN, engines=_DEEPSPEED, comes_to={
        name: {"zero": stage} for stage in range(4) for name in (f"zero{stage}", f"z{stage}", f"stage{stage}")
    }, hint="zero2 or zero3; a file by `memsheet check FILE --model …`"),)),
    "fsdp": Word("transformers", (Meaning(task=TRAIN, engines=("fsdp2",), comes_to={
        f"{name}{wraps}": {"zero": stage} for name, stage in (("full_shard", 3), ("shard_grad_op", 2), ("true", 3)) for wraps in ("", " auto_wrap")
    }, hint="full_shard or shard_grad_op; with offload by --cpu-offload"),)),
    **dict.fromkeys(("offload-optimizer", "offload-optimizer-device"), Word("deepspeed", (Meaning(task=TRAIN, engines=_DEEPSPEED, comes_to={
        "cpu": {"offload.optimizer": 1}, "none": {}}),))),
    **dict.fromkeys(("offload-param", "offload-param-device"), Word("deepspeed", (Meaning(task=TRAIN, engines=_DEEPSPEED, comes_to={
        "cpu": {"offload.parameters": 1}, "none": {}}),))),
    "stage": Word("deepspeed", (Meaning(task=TRAIN, comes_to={
        **{str(stage): {"zero": stage} for stage in range(4)}, "sft": {}, "pt": {},  # LLaMA-Factory's stage: what is trained on, with the same memory
    }, hint="a ZeRO stage from 0 to 3; LLaMA-Factory's sft or pt"),)),
    "device-map": Word("transformers", (Meaning(task=TRAIN, comes_to={
        "auto": {"schedule": "naive"}, "balanced": {"schedule": "naive"}}, hint="auto, balanced; other maps by --layers-per-stage beside --schedule naive"),
        Meaning(task=INFER, refused="is said as --pp here, whole layers on each card", hint="--pp N, of the N cards that the process sees"))),
    "finetuning-type": Word("llama-factory", (Meaning(task=TRAIN, comes_to={"full": {}, "lora": _LINEAR_MODULES}),)),
    "flash-attn": Word("llama-factory", (
        Meaning(task=TRAIN, comes_to={"auto": {}, "fa2": {"attention": "flash"}, "fa3": {"attention": "flash"}, "sdpa": {"attention": "sdpa"},
                                      "disabled": {"attention": "eager"}, "true": {"attention": "flash"}, "false": {}}),
        Meaning(task=INFER, comes_to={"auto": {}, "on": {"attention": "flash"}, "true": {"attention": "flash"}, "off": {"attention": "eager"},
                                      "false": {"attention": "eager"}}),
    )),
    **dict.fromkeys(("optim", "optimizer-name", "optimizer-type"), Word("transformers", (Meaning("@optim", TRAIN),))),
    **dict.fromkeys(("dtype", "torch-dtype", "model-dtype"), Word("vllm", (Meaning("@dtype"),))),
    "mixed-precision": Word("accelerate", (Meaning(task=TRAIN, comes_to={
        "no": {"precision.name": "fp32"}, "bf16": {"precision.compute": "bf16"}, "fp16": {"precision.compute": "fp16"}}),)),
    "data-parallel-size": Word("vllm", (Meaning("@data_parallel", TRAIN), Meaning("mesh.dp_replicate", INFER))),
    "dp-size": Word("sglang", (Meaning("@data_parallel", TRAIN), Meaning("mesh.dp_replicate", INFER))),
    "dp": Word("megatron", (Meaning("@data_parallel", TRAIN), Meaning("mesh.dp_replicate", INFER))),
    # ---- one word, another thing: refused with the one that says it
    "lora-alpha": Word("peft", (Meaning("adapter.alpha", TRAIN),)),
    "lora-dropout": Word("peft", (Meaning("adapter.dropout", TRAIN),)),
}  # fmt: skip

_UNHONOURED: dict[str, tuple[str, str, str]] = {
    "swap-space": ("vllm", "is host memory, which is not accounted of a server", "leave it out: no GPU memory depends on it"),
    "auto-find-batch-size": ("transformers", "asks for what fits", "memsheet solve microbatch MODEL …"),
    "max-steps": ("transformers", "is a time, and no memory depends on it", "leave it out"),
    "num-train-epochs": ("transformers", "is a time, and no memory depends on it", "leave it out"),
    "learning-rate": ("transformers", "changes no memory", "leave it out"),
}  # fmt: skip
"""Whose, why it cannot be honoured, and what says it."""


def _build_alias_table() -> dict[str, Word]:
    table: dict[str, Word] = dict(_OTHERS)
    for whose, key, task, engines, names in _RENAMED:
        for name in names.split():
            before = table.get(name, Word(whose, ()))
            table[name] = before._replace(meanings=(*before.meanings, Meaning(key, task, engines)))
    table["batch-size"] = table["batch-size"]._replace(
        meanings=(
            *table["batch-size"].meanings,
            Meaning("serving.max_sequences", INFER),
            Meaning(
                task=INFER,
                engines=_LLAMA,
                refused="is llama.cpp's logical batch, in tokens",
                hint="--parallel for sequences, --ubatch-size for tokens",
            ),
        )
    )
    for name, (whose, reason, hint) in _UNHONOURED.items():
        table[name] = Word(whose, (Meaning(refused=reason, hint=hint),))
    for key, rule in RULES.items():
        if "." in key and key not in SHORT.values() and not key.startswith("offload."):
            table[key.replace("_", "-")] = Word(PLAN_KEYS, (Meaning(key),), switch=rule.kind == "flag")
    return table


ALIASES: dict[str, Word] = _build_alias_table()


def engine_word(key: str, engine: str) -> str | None:
    """What an engine itself calls a key, where it has a word for it; None where it has none."""
    return next(
        (
            name
            for name, word in ALIASES.items()
            if any(meaning.key == key and engine in meaning.engines for meaning in word.meanings)
        ),
        None,
    )


SHORT_FLAGS = {
    "-tp": "tensor-parallel-size", "-pp": "pipeline-parallel-size", "-dp": "data-parallel-size", "-ngl": "n-gpu-layers", "-c": "ctx-size",
    "-np": "parallel", "-ub": "ubatch-size", "-fa": "flash-attn", "-ctk": "cache-type-k", "-ctv": "cache-type-v", "-ncmoe": "n-cpu-moe",
    "-md": "model-draft",
}  # fmt: skip
"""Words of one dash, as vLLM and llama.cpp have them."""

_TRAINER = "trains through transformers' Trainer"
LIBRARIES: dict[str, tuple[str, str, Mapping[str, Any]]] = {
    "trl": ("transformers", _TRAINER, {}), "axolotl": ("transformers", _TRAINER, {}), "llama-factory": ("transformers", _TRAINER, {}),
    "unsloth": ("transformers", f"{_TRAINER}; of its own kernels only the loss in pieces is modelled", {}),
    "hf": ("transformers", "is transformers", {}), "huggingface": ("transformers", "is transformers", {}), "peft": ("transformers", _TRAINER, {}),
    "accelerate": ("transformers", "without a file of its own runs replicas of transformers' code", {}),
    "ddp": ("transformers", "is replicas of the model, as DistributedDataParallel has them", {"?zero": 0}),
    "fsdp": ("fsdp2", "is fully_shard, PyTorch's FSDP2", {}), "nemo": ("megatron", "trains through Megatron Core", {}),
    "megatron-lm": ("megatron", "is Megatron-LM", {}), "megatron-core": ("megatron", "is what Megatron-LM runs on", {}),
    **{f"zero{stage}": ("deepspeed", f"is ZeRO stage {stage}", {"?zero": stage}) for stage in (1, 2, 3)},
    "ollama": ("llama.cpp", "runs llama.cpp", {}), "lm-studio": ("llama.cpp", "runs llama.cpp", {}), "llamacpp": ("llama.cpp", "is llama.cpp", {}),
    "llama-server": ("llama.cpp", "is llama.cpp's server", {}),
}  # fmt: skip
"""Name → the engine, what the name means, and what else it says ("?": unless that is said)."""
_SPELLED = {
    "llamafactory": "llama-factory",
    "lmstudio": "lm-studio",
    "llama-cpp": "llamacpp",
    "hugging-face": "hf",
    "zero-1": "zero1",
    "zero-2": "zero2",
    "zero-3": "zero3",
}


def library_named(name: str) -> str | None:
    """The library or other name of an engine as the table has it, None where it is none."""
    plain = name.lower().replace("_", "-").replace(" ", "-")
    found = _SPELLED.get(plain, plain)
    return found if found in LIBRARIES else None


LORA_RANK = 8
"""Of adapters without a rank (peft 0.21 tuners/lora/config.py, LoraConfig.r)."""
DOUBLE_QUANT = {"unsloth", "axolotl", "llama-factory"}
"""Libraries that quantize the scales of four bits again unless told otherwise (unsloth models/loader.py;
axolotl loaders/model.py; LLaMA-Factory hparams/model_args.py, double_quantization); TRL and transformers do
not (bnb_4bit_use_double_quant, false).
"""

_FLASH = dict.fromkeys(
    (
        "flash_attention_2",
        "flash_attention_3",
        "flash_attn",
        "flash_attention",
        "fa2",
        "fa3",
        "flash2",
        "flash3",
    ),
    "flash",
)
_OPTIMIZERS: dict[str, tuple[str, str]] = {
    "adamw_torch_fused": ("adamw", "fused"), "adamw_torch": ("adamw", "foreach"), "adamw_hf": ("adamw", "foreach"), "adamw_bnb_8bit": ("adamw_8bit", "bnb"),
    "adamw_torch_8bit": ("adamw_8bit", "torchao"), "lion_32bit": ("lion", "bnb"), "paged_adamw_32bit": ("paged_adamw", "bnb"),
}  # fmt: skip
"""Names of transformers that say the implementation too (training_args.py:113-160;
trainer_optimizer.py:605-616).
"""
_OPTIM_ALSO = {"sgd": ("sgd", "foreach"), "adafactor": ("adafactor", "loop"), "lion_8bit": ("lion_8bit", "bnb"), "paged_adamw_8bit": ("paged_adamw_8bit", "bnb"),
               "adamw_8bit": ("adamw_8bit", "bnb")}  # fmt: skip
OPTIM = {
    name: {"optimizer.name": pair[0], "?optimizer.implementation": pair[1]}
    for name, pair in (_OPTIMIZERS | _OPTIM_ALSO).items()
}
"""What the Trainer's ``optim`` comes to: some of its names are memsheet's too, of which another
implementation is usual.
"""
VALUES: dict[str, Mapping[str, Any]] = {
    "attention": {**_FLASH, "flashattention": "flash", "flashinfer": "flash", "math": "eager", "math_attention": "eager"},
    "optimizer.name": {
        name: {"optimizer.name": pair[0], "?optimizer.implementation": pair[1]} for name, pair in _OPTIMIZERS.items()
    },
    "precision.name": {
        **{name: {"precision.compute": "bf16"} for name in ("bf16", "bfloat16", "bf16-mixed")},
        **{name: {"precision.compute": "fp16"} for name in ("fp16", "float16", "half", "fp16-mixed", "16-mixed")},
        **dict.fromkeys(("float32", "fp32-true", "32", "no"), "fp32"), "bf16-true": "bf16-pure",
    },
    "quantization.weights": {
        "4bit": _NF4, "4-bit": _NF4, "bitsandbytes": _NF4, "bnb": _NF4, "bnb-4bit": _NF4, "8bit": "int8", "8-bit": "int8", "llm.int8": "int8",
        **dict.fromkeys(("awq", "awq_marlin", "auto_awq"), "awq-int4"), **dict.fromkeys(("gptq", "gptq_marlin"), "gptq-int4"),
        "fp8_per_tensor": "fp8", "float8": "fp8", "none": {}, "bf16": {},
    },
    "serving.kv_dtype": {"auto": {}, "fp8_inc": "fp8"},
    "serving.attention_kernels": {
        "fa3": "flash", "flash_attn": "flash", "flashinfer": "flashinfer", "trtllm_mha": "trtllm", "triton_attn": "triton", "auto": {},
    },
    "serving.max_model_len": dict.fromkeys(("auto", "-1"), Meaning(refused="asks for what fits", hint="memsheet solve max-model-len MODEL …")),
    "serving.gpu_layers": {"all": {}, "auto": {}, "-1": {}},
    "recompute.mode": {**_RECOMPUTE, "unsloth": Meaning(refused="keeps the input of each layer on the host", hint="--recompute full --offload activations")},
}  # fmt: skip
"""Their value → ours, or what it comes to."""
SERVED_PRECISIONS: dict[str, Any] = {
    "bf16": "bf16-pure", "bfloat16": "bf16-pure", "fp16": SERVED_FP16, "float16": SERVED_FP16, "half": SERVED_FP16,
}  # fmt: skip
"""What a precision of sixteen bits is of a model that is served."""
NO_GGUF_TYPES = ("4bit", "4-bit", "8bit", "8-bit", "int4", "int8", "awq", "gptq")
