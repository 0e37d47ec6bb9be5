"""The flags, said once for every command that takes them: a table of names, values and words. ``commands``
says which command takes which.

HELP      the options of a plan, by their short names (spec.names)
JOB …     what is no option of a plan: the machines, the output, and what one command alone asks
values    the options of a plan that a command line gives, read by the rules of their keys
"""

from __future__ import annotations

from typing import Any, NamedTuple

from memsheet.plan.aliases import ALIASES, Word
from memsheet.references import PAGED_SERVER_TITLE

JOB, MESH, STEP, PRECISION, MEMORY, SERVING, OUTPUT = (
    "Hardware and plan", "Mesh", "Step", "Precision", "Memory", "Serving", "Output",
)  # fmt: skip
SOLVE, SEARCH, SERVE, PICTURES, TRACE, MEASURE, OTHER, WORDS = (
    "Solve", "Search", "Serving a load", "Pictures", "Trace", "Measure", "Options", "Words of other tools",
)  # fmt: skip


class Flag(NamedTuple):
    """One flag: ``--name METAVAR``, or ``--name`` alone where it is on or off."""

    name: str
    group: str
    metavar: str
    words: str
    key: str = ""
    """Its name in Python, where that is another one."""
    default: Any = None
    negative: bool = False
    """Whether ``--no-name`` says the opposite."""
    many: bool = False
    """Whether it may be given several times, which makes a list."""
    required: bool = False

    @property
    def field(self) -> str:
        return self.key or self.name.replace("-", "_")


# short name: (group, metavar, help); an empty metavar makes a flag that is on or off
HELP: dict[str, tuple[str, str, str]] = {
    "engine": (
        JOB,
        "NAME",
        "The framework that runs it: transformers, fsdp2, deepspeed, megatron, torchtitan …",
    ),
    "engine_version": (
        JOB,
        "VERSION",
        "Its release: what changed from one to another is accounted where it was read.",
    ),
    "dp_replicate": (MESH, "N", "Data-parallel ranks that each keep a whole copy."),
    "dp_shard": (MESH, "N", "Data-parallel ranks that split the states."),
    "cp": (MESH, "N", "Context parallel: ranks that split one sequence."),
    "tp": (MESH, "N", "Tensor parallel: ranks that split one layer."),
    "pp": (MESH, "N", "Pipeline stages."),
    "vpp": (MESH, "N", "Chunks of the model per pipeline stage."),
    "ep": (MESH, "N", "Expert parallel: ranks that split the experts."),
    "etp": (MESH, "N", "Tensor parallel degree inside an expert."),
    "attn_dp": (
        MESH,
        "N",
        "Of a server's tp ranks: groups that attend to requests of their own (data-parallel attention).",
    ),
    "zero": (MESH, "0..3", "What dp_shard splits: nothing, optimizer states, + gradients, + parameters."),
    "reshard_after_forward": (MESH, "", "Free gathered parameters after forward and gather them again."),
    "sequence_parallel": (MESH, "", "Split the regions outside tensor parallelism along the sequence."),
    "context_parallel_comm": (MESH, "KIND", "ring, all_gather or all_to_all."),
    "schedule": (MESH, "NAME", "Order of microbatches in the pipeline: gpipe, 1f1b, interleaved …"),
    "layers_per_stage": (MESH, "N,N,…", "Layers of each stage where they are uneven: 10,11,11."),
    "seq_len": (STEP, "TOKENS", "Tokens of one sequence."),
    "image_tokens": (STEP, "TOKENS", "Tokens of each sequence that pictures take."),
    "microbatch": (STEP, "N", "Sequences per forward of a rank."),
    "global_batch": (STEP, "N", "Sequences per optimizer step over all ranks."),
    "gradient_sync": (STEP, "WHEN", "Which micro-batches reduce divided gradients: every or last."),
    "moe_dispatch": (STEP, "KIND", "How tokens reach their experts: alltoall, deepep, hybridep."),
    "moe_capacity_factor": (
        STEP,
        "SHARE",
        "Tokens an expert takes, in shares of an even split; without it none are dropped.",
    ),
    "moe_pad_to_capacity": (STEP, "", "Experts compute on their whole capacity."),
    "moe_balanced": (STEP, "", "The routing is even by decree, as in a benchmark."),
    "vocab_multiple": (STEP, "N", "Pad the vocabulary to a multiple of this."),
    "attention": (STEP, "KIND", "eager, sdpa, flash, cudnn or xformers."),
    "loss": (STEP, "KIND", "plain, fused, chunked or vocab_parallel."),
    "compile": (STEP, "", "Run through torch.compile."),
    "dropout": (STEP, "SHARE", "Dropout of the hidden states, 0 to 1."),
    "precision": (
        PRECISION,
        "NAME",
        "fp32, bf16-autocast, fp16-autocast, bf16-master, bf16-pure or fsdp2-mixed.",
    ),
    "optimizer": (PRECISION, "NAME", "adamw, adamw_8bit, sgd, sgd_momentum."),
    "optimizer_implementation": (PRECISION, "KIND", "foreach, fused or loop; of adamw_8bit bnb or torchao."),
    "secondary_shard": (
        MEMORY,
        "RANKS",
        "ZeRO 3: keep a second copy of the parameters divided over so many ranks, a node's (hpZ).",
    ),
    "optimizer_in_backward": (PRECISION, "", "Step each parameter as soon as its gradient is there."),
    "lora_rank": (
        PRECISION,
        "N",
        "Train LoRA adapters of this rank on a frozen base; served, the largest rank that there is room for.",
    ),
    "lora_targets": (PRECISION, "NAME,…", "Linear layers that get an adapter: q_proj,v_proj, or all-linear."),
    "lora_dtype": (PRECISION, "DTYPE", "Number format of adapters."),
    "quantize": (PRECISION, "FORMAT", "Storage of the linear weights: nf4, int8, fp8, gguf:Q4_K …"),
    "recompute": (MEMORY, "MODE", "none, selective or full: what backward computes again."),
    "recompute_every": (MEMORY, "N", "Recompute in stretches of n layers."),
    "recompute_layers": (MEMORY, "N", "Recompute this many layers."),
    "recompute_segments": (MEMORY, "N", "Cut the stack into n segments, each recomputed whole."),
    "recompute_modules": (MEMORY, "NAME,…", "Recompute only these modules."),
    "expandable_segments": (MEMORY, "", "The allocator's expandable_segments."),
    "max_model_len": (SERVING, "TOKENS", "Longest sequence to be served."),
    "sequences": (SERVING, "N", "Sequences at once, per replica: room for all is asked for."),
    "max_batched_tokens": (SERVING, "TOKENS", "Tokens of one forward pass."),
    "kv_dtype": (SERVING, "DTYPE", "Number format of the cache."),
    "k_dtype": (SERVING, "DTYPE", "Number format of the cache's keys where values have another (llama.cpp)."),
    "gpu_layers": (SERVING, "N", "Layers on devices, the output counted as one (llama.cpp)."),
    "host_experts": (SERVING, "N", "Layers whose routed experts lie on the host (llama.cpp)."),
    "mla_mode": (SERVING, "N", "How latent attention is computed, 1 to 3 (ik_llama.cpp)."),
    "attn_max_batch": (
        SERVING,
        "MIB",
        "Keys and values that latent attention unpacks at once (ik_llama.cpp).",
    ),
    "dp_lm_head": (SERVING, "", "With attn_dp, each group has the whole output matrix (SGLang)."),
    "max_loras": (SERVING, "N", "LoRA adapters that the device has room for at once."),
    "max_cpu_loras": (SERVING, "N", "LoRA adapters kept in host memory."),
    "fully_sharded_loras": (
        SERVING,
        "",
        f"Cut both matrices of an adapter over tensor-parallel ranks ({PAGED_SERVER_TITLE}).",
    ),
    "dp_dense": (SERVING, "", "With attn_dp, layers without experts are whole on every rank (SGLang)."),
    "expert_dispatch": (SERVING, "KIND", "How tokens reach experts on other ranks: gather or deepep."),
    "offline_inference": (
        SERVING,
        "",
        "An engine that a program makes, not a server: its own batch (vLLM's LLM).",
    ),
    "graph_sequences": (SERVING, "N", "Sequences of the largest CUDA graph (SGLang's cuda_graph_max_bs)."),
    "state_slots": (SERVING, "N", "Slots of recurrent states (SGLang's max_mamba_cache_size)."),
    "state_ratio": (SERVING, "SHARE", "Bytes of recurrent states for each byte of tokens: 0.9 (SGLang)."),
    "host_weights_gib": (SERVING, "GIB", "GiB of a GPU's layers in host memory (vLLM's cpu_offload_gb)."),
    "kv_cache_bytes": (
        SERVING,
        "BYTES",
        "Bytes of a GPU's cache, whatever is free (vLLM's kv_cache_memory_bytes).",
    ),
    "kv_blocks": (
        SERVING,
        "N",
        "Blocks of a GPU's cache, whatever is free (vLLM's num_gpu_blocks_override).",
    ),
    "page_tokens": (SERVING, "TOKENS", "Tokens of one page of the cache."),
    "memory_fraction": (SERVING, "SHARE", "Share of the device that the engine may take, 0 to 1."),
    "cuda_graphs": (SERVING, "", "Capture CUDA graphs."),
    "speculative": (
        SERVING,
        "METHOD",
        "Speculative decoding: draft, eagle, eagle3, mtp (the checkpoint's own heads) or ngram.",
    ),
    "draft_model": (SERVING, "MODEL", "The model or head that drafts, named as MODEL is."),
    "speculative_tokens": (SERVING, "N", "Tokens drafted for each sequence and verified at once."),
    "draft_tp": (SERVING, "N", "Tensor parallel degree of the draft."),
    "prompt_tokens": (SERVING, "TOKENS", "Tokens of a prompt."),
    "output_tokens": (SERVING, "TOKENS", "Tokens of an answer."),
    "shared_prefix_tokens": (
        SERVING,
        "TOKENS",
        "Tokens that all prompts begin with; prefix caching keeps them once.",
    ),
}
_OFFLOAD = (MEMORY, "WHAT,…", "Keep in host memory: optimizer, parameters, activations.")


PLAN_FLAGS = (
    *(Flag(name.replace("_", "-"), *about, negative=not about[1]) for name, about in HELP.items()),
    Flag("offload", *_OFFLOAD),
)
JOB_FLAGS = (
    Flag("gpus", JOB, "GPUS", "Count and device: 8xH100-80GB. Without it there is a sheet and no verdict."),
    Flag("nodes", JOB, "N", "Number of nodes."),
    Flag("per-node", JOB, "N", "Devices of one node."),
    Flag("host-memory", JOB, "SIZE", "Host memory of one node: 1TiB."),
    Flag("cluster", JOB, "FILE", "A cluster file in place of --gpus: devices, nodes, links (.toml, .yaml)."),
    Flag("plan", JOB, "FILE", "A plan (memsheet/plan/1), or - for stdin; flags override it."),
    Flag("parameters", JOB, "COUNT", "A bare parameter count in place of MODEL: 7e9."),
)
JSON = Flag("json", OUTPUT, "", "One JSON object on stdout.", default=False)
DEBUG = Flag("debug", OUTPUT, "", "A traceback where something goes wrong.", default=False)
UNITS = Flag("units", OUTPUT, "UNIT", "GiB, or GB for decimal.", default="GiB")
FULL = Flag("full", OUTPUT, "", "Every item at every instant.", default=False)
OUTPUT_FLAGS = (JSON, FULL, UNITS, DEBUG)


def _of_word(name: str, word: Word) -> Flag:
    key = f"their_{name.replace('-', '_')}"  # a command may have a flag of its own by that name
    return Flag(
        name, WORDS, "" if word.switch else "VALUE", f"A word of {word.whose}.", key=key, negative=word.switch
    )


WORD_FLAGS = tuple(_of_word(name, word) for name, word in ALIASES.items())
"""What other programs call these options; ``plan.words`` says what each comes to."""


def plan_flag_values(given: Any) -> dict[str, Any]:
    """The options of a plan that a line gives, as they are written: ``plan.words`` reads them."""
    own = {flag.field: getattr(given, flag.field) for flag in PLAN_FLAGS}
    theirs = {flag.name.replace("-", "_"): getattr(given, flag.field, None) for flag in WORD_FLAGS}
    return {name: value for name, value in (own | theirs).items() if value is not None}
