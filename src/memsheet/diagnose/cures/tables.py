"""Changes that may help, as data: by the phase of a run, by what runs, by what a request is for, and where
each program is told of them.
"""

from __future__ import annotations

import re

from memsheet.diagnose.frames import (
    EXPERIENCE,
    GATHERED,
    GENERATION,
    INFERENCE,
    MERGING,
    PICTURES,
    QUANTIZING,
)
from memsheet.diagnose.message import MAYBE, NO, Cure

RECOMPUTE = "recompute activations in backward"
FUSED_LOSS = "a loss that never holds all logits (fused or in chunks)"
CHUNKED = "WithChunkedOutputLoss"
"""How torchtune's loss is called that raises a part of the logits at a time
(torchtune/modules/loss/ce_chunked_output_loss.py at ce5433b0).
"""
MORE_CHUNKS = Cure(
    change="more chunks of the loss", helps=MAYBE, where="loss.num_output_chunks", why="one chunk's logits are raised at a time"
)  # fmt: skip
TRAINERS: dict[str, dict[str, str]] = {
    "TRL": {"batch": "per_device_train_batch_size", "recompute": "gradient_checkpointing=True", "loss": "use_liger_kernel=True"},
    "Trainer": {"batch": "per_device_train_batch_size", "recompute": "gradient_checkpointing=True", "loss": "use_liger_kernel=True"},
    "axolotl": {"batch": "micro_batch_size:", "recompute": "gradient_checkpointing: true", "loss": "liger_fused_linear_cross_entropy: true"},
    "LLaMA-Factory": {"batch": "per_device_train_batch_size:", "recompute": "disable_gradient_checkpointing: false", "loss": "enable_liger_kernel: true"},
    "unsloth": {"batch": "per_device_train_batch_size", "recompute": 'use_gradient_checkpointing="unsloth"', "loss": ""},
    "Megatron-LM": {"batch": "--micro-batch-size", "recompute": "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "loss": "--cross-entropy-loss-fusion"},
    "DeepSpeed": {"batch": "train_micro_batch_size_per_gpu", "recompute": "deepspeed.checkpointing", "loss": ""},
    "accelerate": {"batch": "per_device_train_batch_size", "recompute": "fsdp_activation_checkpointing: true", "loss": ""},
    "verl": {"batch": "actor_rollout_ref.actor.ppo_max_token_len_per_gpu (or ppo_micro_batch_size_per_gpu)", "recompute": "actor_rollout_ref.model.enable_gradient_checkpointing=True", "loss": "actor_rollout_ref.model.use_fused_kernels=True", "tokens": "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu, and actor_rollout_ref.actor.ppo_max_token_len_per_gpu"},
    "torchtitan trainer": {"batch": "--training.local_batch_size", "recompute": "--activation_checkpoint.mode full", "loss": ""},
    "OpenRLHF": {"batch": "--micro_train_batch_size (since 0.10 --train.micro_batch_size)", "recompute": "--gradient_checkpointing (since 0.10 --actor.gradient_checkpointing_enable)", "loss": ""},
    "Lightning": {"batch": "batch_size of train_dataloader()", "recompute": "torch.utils.checkpoint", "loss": ""},
    "fairseq": {"batch": "--max-tokens", "recompute": "--checkpoint-activations", "loss": ""},
}  # fmt: skip
"""Where each program is told of a change."""
SMALL_STATES, SPREAD_STATES = (
    "an optimizer with smaller states",
    "states over more GPUs (ZeRO, FSDP), or on the host",
)
FUSED_ON = re.compile(
    r"(?:use_liger(?:_kernel|_loss)?|enable_liger_kernel|liger_fused_linear_cross_entropy|use_fused_kernels|use_cce"
    r"|cut_cross_entropy)[\"']?\s{0,3}[:=]?\s{0,3}[\"']?(?:[Tt]rue|1)\b|liger_kernel/chunked_loss/"
)  # fmt: skip
"""What says that such a loss is on."""
ONE_SEQUENCE = re.compile(
    r"liger_kernel/chunked_loss/|use_liger_loss[\"']?\s{0,3}[:=]?\s{0,3}[\"']?(?:[Tt]rue|1)\b"
)
"""The same of a loss that makes the logits of one sequence, or of one pair, at a time: its ``chunk_size`` is
1 (linkedin/Liger-Kernel ead96b6, src/liger_kernel/chunked_loss, fused_linear_ppo.py and
fused_linear_preference.py).
"""
FEWER_GRAPHS = Cure(
    change="fewer CUDA graphs: shapes marked dynamic, or fewer sizes captured", helps=MAYBE, where="torch.compile(dynamic=True)"
)  # fmt: skip
OF_LIBRARIES: tuple[tuple[re.Pattern[str], Cure], ...] = (
    (re.compile(r"(?i:tensorflow|\bkeras\b|\btf\.(?:config|data)\b)"),
     Cure(change="TensorFlow in this process without the card, or growing as it needs", helps=MAYBE,
          where="tf.config.set_visible_devices([], 'GPU') (or TF_FORCE_GPU_ALLOW_GROWTH=true)", why="it takes nearly the whole card at its start")),
    (re.compile(r"(?i:\bjax\b|\bjaxlib\b|\bflax\b|XLA_PYTHON_CLIENT)"),
     Cure(change="JAX in this process without its pool", helps=MAYBE,
          where="XLA_PYTHON_CLIENT_PREALLOCATE=false (or JAX_PLATFORMS=cpu)", why="XLA takes three quarters of the card at its start")),
    (re.compile(r"(?i:\bfaiss\b)"),
     Cure(change="the index on the host, in fewer bits, or on another card", helps=MAYBE,
          where="faiss.GpuIndexFlatConfig().useFloat16 = True, res.setTempMemory(N)", why="an index on the card stands outside PyTorch's allocator")),
    (re.compile(r"\b(?i:cupy|cudf|cuml|rmm|numba)\b"),
     Cure(change="the other library's pool emptied, or its limit lowered", helps=MAYBE,
          where="cupy.get_default_memory_pool().free_all_blocks() (or CUPY_GPU_MEMORY_LIMIT)", why="each library has a pool of its own")),
    (re.compile(r"\bllama[_.-]cpp\b|\bggml_|\bctransformers\b|CUDA\d{1,2} (?:model |KV |compute )?buffer size"),
     Cure(change="llama.cpp's model let go of before, in a process of its own, or with fewer layers on the card", helps=MAYBE,
          where="n_gpu_layers=N", why="its weights, cache and buffers stand outside PyTorch's allocator")),
    (re.compile(r"(?i:cuda ?graphs?\b|reduce-overhead|max-autotune\b|enforce_eager)"), FEWER_GRAPHS),
    (re.compile(r"\b(?i:deep[_ -]?ep)\b|\bnum_(?:nvl|rdma)_bytes\b"),
     Cure(change="smaller buffers of DeepEP, or one for forward and backward", helps=MAYBE,
          where="deep_ep.Buffer(group, num_nvl_bytes=N, num_rdma_bytes=N)", why="each has both sizes at once, from cudaMalloc and NVSHMEM")),  # deepseek-ai/DeepEP at 011d766f, csrc/deep_ep.cpp, Buffer
    (re.compile(r"\bNCCL_|(?i:communicators?|process groups?|new_group)\b"),
     Cure(change="fewer or smaller communicators", helps=MAYBE, where="NCCL_BUFFSIZE, NCCL_MAX_NCHANNELS, NCCL_NVLS_ENABLE=0", why="each communicator has buffers of its own")),
)  # fmt: skip
"""What of this process is outside PyTorch's allocator, by what a text names, and what lessens it."""
OF_SLICES = re.compile(r"\bMIG[ -](?:\d{1,2}g\.\d{1,3}gb\b|[0-9a-f]{8}-|GPU-)|\b\d{1,2}g\.\d{1,3}gb\b")
LARGER_SLICE = Cure(
    change="a larger slice of the card, or all of it", helps=MAYBE, where="nvidia-smi mig -lgip, CUDA_VISIBLE_DEVICES=MIG-…",
    why="the card is cut by MIG, and the process has one slice",
)  # fmt: skip
FEWER_TRAINED = Cure(
    change="fewer layers trained from there on, or adapters in them", helps=MAYBE,
    why="each weight that is trained has a gradient and states, and what reads it keeps its input",
)  # fmt: skip
OF_PHASE: dict[str, tuple[Cure, ...]] = {
    "save": (
        Cure(change="a checkpoint that is saved in shards, or gathered on the host", helps=MAYBE,
             where="StateDictType.SHARDED_STATE_DICT, or FullStateDictConfig(offload_to_cpu=True, rank0_only=True)"),
        Cure(change="recompute activations in backward", helps=NO, why="no activations are held while a checkpoint is saved"),
    ),
    "restore": (
        Cure(change="the checkpoint loaded on the host first", helps=MAYBE, where='torch.load(file, map_location="cpu")'),
        Cure(change="states that are loaded in shards", helps=MAYBE),
    ),
    "wrap": (
        Cure(change="weights and gradients over the GPUs (ZeRO, FSDP)", helps=MAYBE),
        Cure(change="weights loaded on the host, and sharded from there", helps=MAYBE),
        Cure(change="train adapters alone", helps=MAYBE, where="LoRA"),
        Cure(change="a smaller batch or a shorter length", helps=NO, why="no step has run yet"),
    ),
    "shard": (
        Cure(change="weights kept on the host, or on no device, until each unit is sharded", helps=MAYBE, where="sync_module_states=True, and weights read by rank 0 alone"),
        Cure(change="smaller units of weights", helps=MAYBE, where="an auto_wrap_policy of every layer"),
        Cure(change="a smaller batch or a shorter length", helps=NO, why="no step has run yet"),
    ),
    "masters": (
        Cure(change=SPREAD_STATES, helps=MAYBE),
        Cure(change="train adapters alone", helps=MAYBE, where="LoRA"),
        Cure(change="a smaller batch or a shorter length", helps=NO, why="no step has run yet"),
    ),
    "load": (
        Cure(change="weights in fewer bits", helps=MAYBE),
        Cure(change="weights over more GPUs, or part of them on the host", helps=MAYBE),
        Cure(change="a smaller batch or a shorter length", helps=NO, why="weights are as large for any batch"),
    ),
}  # fmt: skip
"""By the phase of the run."""
PROFILED = "profiled"
OF_TASK: dict[str, tuple[Cure, ...]] = {
    GATHERED: (
        Cure(change="predictions moved to the host as they come", helps=MAYBE, where="eval_accumulation_steps=1"),
        Cure(change="predictions made small before they are gathered (the likeliest word of each, not all logits)", helps=MAYBE, where="preprocess_logits_for_metrics"),
        Cure(change="a smaller batch of the evaluation", helps=NO, why="what is gathered is of all samples so far, whatever the batch"),
    ),
    GENERATION: (
        Cure(change="fewer sequences at once", helps=MAYBE),
        Cure(change="shorter prompts or fewer new tokens", helps=MAYBE, where="max_new_tokens=N"),
        Cure(change="a cache in fewer bits or on the host", helps=MAYBE, where='cache_implementation="quantized" (or "offloaded")'),
        Cure(change="recompute activations in backward", helps=NO, why="no activations are kept for backward while a model generates"),
    ),
    INFERENCE: (
        Cure(change="fewer or shorter inputs at once", helps=MAYBE, where="batch_size=N"),
        Cure(change="weights in fewer bits, or over more GPUs", helps=MAYBE),
    ),
    MERGING: (
        Cure(change="an adapter merged on the host", helps=MAYBE, where='from_pretrained(…, device_map="cpu")'),
        Cure(change="a larger card, or weights over more of them", helps=MAYBE, where='device_map="auto"'),
        Cure(change="a smaller batch or a shorter length", helps=NO, why="weights are as large for any batch, and none runs"),
    ),
    EXPERIENCE: (
        Cure(change="fewer sequences read at once", helps=MAYBE),
        Cure(change="another model's states off the card meanwhile, or on cards of its own", helps=MAYBE),
        Cure(change="recompute activations in backward", helps=NO, why="no activations are kept for backward while experience is made"),
    ),
    QUANTIZING: (
        Cure(change="fewer or shorter samples at once", helps=MAYBE, where="batch_size=1, and a shorter length of the samples"),
        Cure(change="samples and weights on the host between their turns", helps=MAYBE),
        Cure(change="recompute activations in backward", helps=NO, why="there is no backward while weights are quantized"),
    ),
    PICTURES: (
        Cure(change="parts of the model on the host between their turns", helps=MAYBE, where="pipe.enable_model_cpu_offload()"),
        Cure(change="pictures decoded in tiles", helps=MAYBE, where="pipe.vae.enable_tiling()"),
        Cure(change="smaller pictures, or fewer at once", helps=MAYBE),
        Cure(change="recompute activations in backward", helps=NO, why="no activations are kept for backward while pictures are made"),
    ),
    PROFILED: (
        Cure(change="fewer tokens in one pass", helps=MAYBE),
        Cure(change="smaller or fewer pictures in a request, where the model takes them", helps=MAYBE),
        Cure(change="weights in fewer bits, or over more GPUs", helps=MAYBE),
        Cure(change="another share of the card", helps=NO, why="the trial run comes before the cache, and asks for as much whatever the share"),
    ),
}  # fmt: skip
"""By what runs that is no training."""
EVALUATION_BATCH = {
    "TRL": "per_device_eval_batch_size", "Trainer": "per_device_eval_batch_size", "LLaMA-Factory": "per_device_eval_batch_size:",
    "unsloth": "per_device_eval_batch_size", "axolotl": "eval_batch_size:", "Lightning": "batch_size of val_dataloader()",
}  # fmt: skip
GATHERS = ("TRL", "Trainer", "LLaMA-Factory", "unsloth", "axolotl")
"""Programs whose evaluation puts the predictions of all samples together."""
EIGHT_BITS = re.compile(
    r"bitsandbytes/optim|\bbnb\.optim|_8bit\b|Adam[Ww]?8bit|(?:adamw?|lion)_(?:bnb_)?8bit"
)
"""How an optimizer of eight bits is called (bitsandbytes/optim; transformers v4.57.1, training_args.py,
OptimizerNames).
"""
ONE_BY_ONE = Cure(
    change="an optimizer whose step is one kernel, or goes weight by weight", helps=MAYBE, where="fused=True (or foreach=False)",
    why="the tensor asked for is not made then",
)  # fmt: skip
STEPS = {
    **dict.fromkeys(("TRL", "Trainer", "unsloth"), 'optim="adamw_torch_fused"'), "axolotl": "optimizer: adamw_torch_fused", "LLaMA-Factory": "optim: adamw_torch_fused",
}  # fmt: skip
SMALLER_UNITS = Cure(
    change="smaller units of weights gathered at a time", helps=MAYBE, where="fully_shard(layer) of every layer (or an auto_wrap_policy)"
)  # fmt: skip
UNITS = {
    "accelerate": "fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP", "DeepSpeed": '"stage3_prefetch_bucket_size", "stage3_max_live_parameters"',
}  # fmt: skip
SMALLER_BUCKETS = Cure(
    change="fewer gradients summed at a time", helps=MAYBE, where="fully_shard(layer) of every layer (or an auto_wrap_policy)"
)  # fmt: skip
BUCKETS = {
    "accelerate": "fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP", "DeepSpeed": '"reduce_bucket_size"',
}  # fmt: skip
OF_PROMPTS = {
    "vLLM": (
        Cure(change="fewer tokens in one pass", helps=MAYBE, where="--max-num-batched-tokens N", why="it is as long as the pieces of a prompt"),
        Cure(change="no log-probabilities of prompts", helps=MAYBE, where="prompt_logprobs=None", why="the tensor asked for is not made then"),
    ),
    "SGLang": (
        Cure(change="shorter pieces of a prompt", helps=MAYBE, where="--chunked-prefill-size N", why="it is as long as the pieces of a prompt"),
        Cure(change="no log-probabilities of prompts", helps=MAYBE, where="logprob_start_len=-1", why="the tensor asked for is not made then"),
    ),
}  # fmt: skip
"""Of a server that was asked for log-probabilities of a prompt."""
STATES: dict[str, dict[str, str]] = {
    "TRL": {SMALL_STATES: 'optim="adamw_8bit"', SPREAD_STATES: 'fsdp="full_shard auto_wrap" (or deepspeed=FILE of stage 3)'},
    "Trainer": {SMALL_STATES: 'optim="adamw_8bit"', SPREAD_STATES: 'fsdp="full_shard auto_wrap" (or deepspeed=FILE of stage 3)'},
    "unsloth": {SMALL_STATES: 'optim="adamw_8bit"'},
    "axolotl": {SMALL_STATES: "optimizer: adamw_bnb_8bit", SPREAD_STATES: "deepspeed: deepspeed_configs/zero3_bf16_cpuoffload_all.json"},
    "LLaMA-Factory": {SMALL_STATES: "optim: adamw_8bit", SPREAD_STATES: "deepspeed: examples/deepspeed/ds_z3_offload_config.json"},
    "DeepSpeed": {SPREAD_STATES: '"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}'},
    "accelerate": {SPREAD_STATES: "fsdp_sharding_strategy: FULL_SHARD (or fsdp_offload_params: true)"},
    "Megatron-LM": {SPREAD_STATES: "--use-distributed-optimizer (or --optimizer-cpu-offload)"},
    "verl": {SPREAD_STATES: "actor_rollout_ref.actor.fsdp_config.optimizer_offload=True"},
}  # fmt: skip
"""Where each program is told of the optimizer's states."""
STATED_SHARDS = (
    (re.compile(r"\bzero_stage\s{0,3}[:=]\s{0,3}([0-3])\b"), "zero_stage: 3", "offload_optimizer_device: cpu"),
    (re.compile(r'"zero_optimization"\s{0,3}:\s{0,3}\{[^{}]{0,400}?"stage"\s{0,3}:\s{0,3}([0-3])\b'), '"zero_optimization": {"stage": 3}', '"offload_optimizer": {"device": "cpu"}'),
    (re.compile(r"\bzero_optimization_stage\s{0,3}\.{2,40}\s{0,3}([0-3])\b"), '"zero_optimization": {"stage": 3}', '"offload_optimizer": {"device": "cpu"}'),
    (re.compile(r"\bfsdp_sharding_strategy\s{0,3}[:=]\s{0,3}(FULL_SHARD|SHARD_GRAD_OP|NO_SHARD|HYBRID_SHARD)\b"), "fsdp_sharding_strategy: FULL_SHARD", "fsdp_offload_params: true"),
)  # fmt: skip
"""How a configuration in the text says which states are in shards; the same with more in shards, and with
states on the host where all are.
"""
OF_COMPONENT: dict[str, tuple[Cure, ...]] = {
    "parameters": OF_PHASE["load"],
    "gradients": (
        Cure(change="train adapters alone, or of an embedding new rows alone", helps=MAYBE, where="LoraConfig(trainable_token_indices=[…])"),
        Cure(change=SPREAD_STATES, helps=MAYBE),
    ),
    "optimizer_states": (
        Cure(change=SMALL_STATES, helps=MAYBE, where="bitsandbytes.optim.AdamW8bit"),
        Cure(change=SPREAD_STATES, helps=MAYBE),
        Cure(change="train adapters alone", helps=MAYBE, where="LoRA"),
    ),
}  # fmt: skip
"""By what the request is for."""
KEEP_NO_RUN = Cure(
    change="each of the runs in a process of its own, or all of the last one let go before the next", helps=MAYBE,
    where="del model, optimizer; gc.collect(); torch.cuda.empty_cache()", why="what a list, a closure or a trainer still holds stays on the card",
)  # fmt: skip
KEEP_NO_SESSION = Cure(
    change=KEEP_NO_RUN.change, helps=MAYBE, where="del model; gc.collect(); keras.backend.clear_session() (and keep weights on disk, not models on a list)", why=KEEP_NO_RUN.why,
)  # fmt: skip
SEVERAL_RUNS = re.compile(
    r"\b(?:k-?)?folds?\b|\bcross[- ]?val\w*|\bKFold\b|\bGridSearch\w*|\boptuna\b|\btrials?\b|\bsweep\b|\bhyper-?param\w*|\bensemble\b|折交叉|交差検証|교차 ?검증|\bpliegues?\b|фолд",
    re.IGNORECASE,
)  # fmt: skip
OF_KERAS = re.compile(r"\bkeras\b|\btensorflow\b|\bResourceExhaustedError\b|_bfc\b", re.IGNORECASE)
"""Trainings one behind the other in one process, and those of Keras."""
SUM_NUMBERS = Cure(
    change="sum numbers, not tensors", helps=MAYBE, where="total_loss += loss.item()", why="the graph of each step is then let go"
)  # fmt: skip
KEEP_NUMBERS = Cure(
    change="keep numbers, not tensors", helps=MAYBE, where="losses.append(loss.item())", why="the graph of each step is then let go"
)  # fmt: skip
KEEP_NOTHING = Cure(
    change="let go of what is kept from step to step", helps=MAYBE, where=".item(), .detach().cpu() or del before the next step (torch.cuda.memory._snapshot() after two steps shows what it is)",
    why="a copy or an output that is still named holds its memory, and an output its step's graph"
)  # fmt: skip
KEEP_ON_HOST = Cure(
    change="what is kept moved to the host, or only the part that is needed", helps=MAYBE, where=".detach().cpu() before it is put on the list (torch.no_grad() where nothing is trained)"
)  # fmt: skip
CUT_GRAPH = Cure(
    change="the state cut from the graph of earlier rounds", helps=MAYBE, where="h = h.detach() in front of each round, and no retain_graph=True", why="backward then goes through one round"
)  # fmt: skip
OF_KEPT = {"sum": SUM_NUMBERS, "losses": KEEP_NUMBERS, "outputs": KEEP_ON_HOST, "graph": CUT_GRAPH}
"""What lets go of what a script keeps, by ``Kept.what`` (diagnose/script_lines.py)."""
KEEP_NO_HOOK = Cure(
    change="hooks removed, and what they put on a list let go, before the next round", helps=MAYBE, where="handle.remove(); feats.clear() (and out.detach().cpu() in the hook)",
    why="each registration adds one more hook, and each output that is kept holds its graph",
)  # fmt: skip
HOOKS = re.compile(r"\bregister_(?:full_|module_)?(?:forward|backward)_(?:pre_)?hook\b|\bforward[ _]hooks?\b")
KEEP_FEWER = Cure(
    change="a cache of results kept on the host, or bounded", helps=MAYBE, where="lru_cache(maxsize=N), and .cpu() on what is returned", why="each result that is kept is a tensor of the card",
)  # fmt: skip
CACHES = re.compile(r"\blru_cache\b|@(?:functools\.)?cache\b|\bcached_property\b")
KEEP_NO_CHAT = Cure(
    change="caches of sessions that have ended let go, the oldest first, or moved to the host", helps=MAYBE, where="del sessions[id] (or past_key_values of a bounded number of them)",
    why="a session that is kept holds the keys and values of all its tokens on the card",
)  # fmt: skip
SESSIONS = re.compile(
    r"past_key_values\s{0,2}=\s{0,2}[\w.]{1,60}(?:\[|\.(?:get|setdefault|pop)\()"
    r"|\b(?:sessions?|conversations?|chats?|dialog(?:ue)?s?|users?|kv_?caches?)(?:_\w{1,20})?\[[\w.\"']{1,40}\]"
    r"|\b(?:per|each|every|one)[ -](?:user|session|conversation|chat|client)\b[^\n.;]{0,40}?\b(?:cache|past_key_values|history|state)\b",
    re.IGNORECASE,
)  # fmt: skip
KEEP_ON_LIST = Cure(
    change="numbers, not tensors, put on the list", helps=MAYBE, where="metrics.append(x.item()) (of a tensor that is needed x.detach().cpu())",
    why="a tensor on a list stays on the card, and one of a loss holds its step's graph",
)  # fmt: skip
LISTS = re.compile(
    r"\b(?:stor|keep|kept|sav|collect|append|accumulat|record|log|push|add|gather)\w{0,5}\b[^\n.;]{0,60}?\b(?:lists?|dict\w*|buffers?|history|histories|arrays?|deque)\b"
    r"|\b(?:speicher|sammel|sammle|häng|schreib)\w*[^\n.;]{0,40}?\b(?:Liste|Dict\w*|Puffer)|\bListe\b[^\n.;]{0,40}?(?:gespeichert|gesammelt|angehängt|gehängt)"
    r"|(?:guard|acumul|almacen|añad|adicion|salv|accumul|aggiung|stock|ajout|conserv)\w*[^\n.;]{0,40}?\b(?:listas?|listes?|diccionario|dicion[áa]rio|dizionario|dictionnaire)\b"
    r"|(?:сохран|склад|добавл|накаплив|собира)\w*[^\n.;]{0,40}?(?:спис|словар|буфер)|\bliste(?:ye|de|sine)\b[^\n.;]{0,20}?(?:ekl|sakl|tut)"
    r"|(?:lưu|thêm)[^\n.;]{0,30}?(?:\blist|danh sách|mảng)|(?:zapis|dodaj|zbier)\w*[^\n.;]{0,30}?(?:\blist|słownik)"
    r"|(?:存|放|加|塞|攒|记录|append)[^\n。；]{0,20}?(?:list|列表|字典|dict|数组|陣列|buffer)|(?:リスト|辞書|配列|list|dict)[^\n。]{0,12}?(?:追加|保存|溜め|貯め|入れ|append)"
    r"|(?:리스트|딕셔너리|배열|list|dict)[^\n.]{0,12}?(?:저장|추가|담|모으|모아|append)",
    re.IGNORECASE,
)  # fmt: skip
"""How people say that something goes on a list, in what order their tongue has it."""
OF_GROWTH: tuple[tuple[re.Pattern[str], Cure], ...] = (
    (HOOKS, KEEP_NO_HOOK), (CACHES, KEEP_FEWER), (SESSIONS, KEEP_NO_CHAT), (LISTS, KEEP_ON_LIST),
)  # fmt: skip
"""What a text shows that memory may grow by, where it does; the first speaks."""
SHORTER_SAMPLES = Cure(
    change="the longest samples cut, split or left out", helps=MAYBE, where="truncation=True, max_length=N", why="the step is then as those that fitted",
)  # fmt: skip
TGI = "text-generation-inference"
SERVER_SHARE = {
    "vLLM": "--gpu-memory-utilization",
    "SGLang": "--mem-fraction-static",
    TGI: "--cuda-memory-fraction",
    "LMDeploy": "--cache-max-entry-count",
}
SERVER_GRAPHS = {
    "vLLM": "--enforce-eager (or fewer sizes: --cuda-graph-sizes N)",
    "SGLang": "--cuda-graph-max-bs N (or --disable-cuda-graph)",
    TGI: "--cuda-graphs 0",
}
"""vllm 0.11, vllm/engine/arg_utils.py; sglang 0.4, srt/server_args.py; text-generation-inference 3, its
launcher.
"""
SERVER_PARALLEL = {"vLLM": "--tensor-parallel-size N", "SGLang": "--tp N", TGI: "--num-shard N"}
RUNNERS = {
    (
        "OpenRLHF",
        "fewer sequences read at once",
    ): "--micro_rollout_batch_size (since 0.10 --rollout.micro_batch_size)",
    ("vLLM", "fewer tokens in one pass"): "--max-num-batched-tokens",
    ("SGLang", "fewer tokens in one pass"): "--chunked-prefill-size",
    ("LMDeploy", "fewer tokens in one pass"): "--max-prefill-token-num",
    (TGI, "fewer tokens in one pass"): "--max-batch-prefill-tokens",
    (
        "stable-diffusion-webui",
        "parts of the model on the host between their turns",
    ): "--medvram (or --lowvram)",
    ("stable-diffusion-webui", "pictures decoded in tiles"): "Tiled VAE",
    ("InvokeAI", "parts of the model on the host between their turns"): "enable_partial_loading: true",
    ("InvokeAI", "pictures decoded in tiles"): "force_tiled_decode: true",
    (
        "vLLM",
        "smaller or fewer pictures in a request, where the model takes them",
    ): "--mm-processor-kwargs (or --limit-mm-per-prompt)",
    ("ComfyUI", "parts of the model on the host between their turns"): "--lowvram (or --novram)",
    ("ComfyUI", "pictures decoded in tiles"): "VAE Decode (Tiled)",
}
"""Where programs that run without training are told of a change."""
FEWER_ADAPTERS = Cure(
    change="room for fewer adapters at once, or of a smaller rank", helps=MAYBE, why="it is made whole before any adapter is loaded",
)  # fmt: skip
SERVER_ADAPTERS = {
    "vLLM": "--max-loras N, --max-lora-rank N",
    "SGLang": "--max-loras-per-batch N, --max-lora-rank N",
}
SERVER_REQUESTS = {
    "vLLM": "--max-num-seqs",
    "SGLang": "--max-running-requests",
    TGI: "--max-concurrent-requests",
}
