"""The keywords of the Python functions, typed: each is a key of ``memsheet/plan/1`` by its short name
(``names.SHORT``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

File = str | PathLike[str]
Document = Mapping[str, Any]
"""An object of JSON."""
Model = File | Document
"""A model by its name, a file or folder of it, or its config."""
Method = Literal["full", "lora", "qlora"]
"""What of a model is trained, where plans are searched."""
Seconds = float | str
"""A time in seconds, or with its unit: "50ms"."""


Slack = Literal["replay", "bounds", "share"]
"""How what the allocator reserves beyond tensors is found."""


class JobOptions(TypedDict, total=False):
    """What is asked about besides a plan's own keys."""

    gpus: str | None
    """Cards: "8xH100-80GB"; `memsheet gpus` lists them."""
    nodes: int | None
    per_node: int | None
    host_memory: str | None
    """Host memory of a node, for example "2TB"."""
    cluster: File | Document | None
    """A file or an object of memsheet/cluster/1, in place of the four above."""
    plan: File | Document | None
    """A file or an object of memsheet/plan/1; keywords override it."""
    parameters: float | str | None
    """A bare count in place of a model: 7e9."""
    fix: bool
    """Look for changes that make it fit where it does not (True)."""
    slack: Slack
    """What the allocator reserves beyond tensors: "replay" plays every step through its rules; "bounds" does
    not where some GPU lacks room for the tensors alone, and has the same verdict and, of what may fit, the
    same sizes; "share", for quick looks, takes a share of the tensors, which may be far less than is
    reserved: what it says fits need not."""


class MeshOptions(TypedDict, total=False):
    """Degrees of parallelism; their product is the number of GPUs."""

    dp_replicate: int | None
    dp_shard: int | None
    cp: int | None
    tp: int | None
    pp: int | None
    vpp: int | None
    ep: int | None
    etp: int | None
    attn_dp: int | None


class TrainOptions(JobOptions, MeshOptions, total=False):
    """Keywords of a training job."""

    engine: str | None
    engine_version: str | None
    zero: Literal[0, 1, 2, 3] | None
    reshard_after_forward: bool | None
    secondary_shard: int | None
    backward_prefetch: str | None
    forward_prefetch: bool | None
    limit_all_gathers: bool | None
    sequence_parallel: bool | None
    context_parallel_comm: str | None
    gradient_sync: str | None
    schedule: str | None
    layers_per_stage: Sequence[int] | str | None
    end_stages: Sequence[int] | str | None
    seq_len: int | str | None
    image_tokens: int | None
    microbatch: int | None
    global_batch: int | None
    vocab_multiple: int | None
    precision: str | None
    optimizer: str | None
    optimizer_implementation: str | None
    optimizer_in_backward: bool | None
    recompute: str | None
    recompute_every: int | None
    recompute_layers: int | None
    recompute_segments: int | None
    recompute_modules: Sequence[str] | str | None
    attention: str | None
    loss: str | None
    compile: bool | None
    dropout: float | None
    lora_rank: int | None
    lora_targets: Sequence[str] | str | None
    lora_dtype: str | None
    quantize: str | None
    offload: Sequence[str] | str | None
    expandable_segments: bool | None
    cuda_graphs: bool | Sequence[str] | None
    moe_dispatch: str | None
    moe_capacity_factor: float | None
    moe_pad_to_capacity: bool | None
    moe_balanced: bool | None


class InferOptions(TrainOptions, total=False):
    """Keywords of a serving job. Those of training are taken too, for a plan file may be of either; what
    serving has none of is refused.
    """

    max_model_len: int | str | None
    sequences: int | None
    max_batched_tokens: int | None
    kv_dtype: str | None
    k_dtype: str | None
    page_tokens: int | None
    memory_fraction: float | None
    gpu_layers: int | None
    host_experts: int | None
    tensor_split: str | None
    tensor_overrides: str | None
    split_mode: str | None
    main_gpu: int | None
    kv_unified: bool | None
    swa_full: bool | None
    host_cache: bool | None
    mla_mode: int | None
    attn_max_batch: int | None
    dp_lm_head: bool | None
    dp_dense: bool | None
    expert_dispatch: str | None
    offline_inference: bool | None
    graph_sequences: int | None
    state_slots: int | None
    state_ratio: float | None
    dcp: int | None
    host_kv_gib: float | None
    host_kv_ratio: float | None
    kv_connector: str | None
    host_weights_gib: float | None
    kv_cache_bytes: int | None
    kv_blocks: int | None
    pool_tokens: int | None
    attention_kernels: str | None
    max_loras: int | None
    max_cpu_loras: int | None
    fully_sharded_loras: bool | None
    speculative: str | None
    draft_model: str | None
    speculative_tokens: int | None
    draft_tp: int | None
    prompt_tokens: int | None
    output_tokens: int | None
    shared_prefix_tokens: int | None


class SweptOptions(TypedDict, total=False):
    """Keywords of a sweep: each a value, or a list of those that are tried; further options of a job are
    taken likewise.
    """

    task: Literal["train", "infer"]
    gpus: str | Sequence[str]
    nodes: int | Sequence[int]
    per_node: int | Sequence[int]
    host_memory: str | Sequence[str]
    plan: File | Document
    slack: Slack
    engine: str | Sequence[str]
    engine_version: str | Sequence[str]
    dp_replicate: int | Sequence[int]
    dp_shard: int | Sequence[int]
    cp: int | Sequence[int]
    tp: int | Sequence[int]
    pp: int | Sequence[int]
    vpp: int | Sequence[int]
    ep: int | Sequence[int]
    etp: int | Sequence[int]
    zero: int | Sequence[int]
    seq_len: int | str | Sequence[int | str]
    microbatch: int | Sequence[int]
    global_batch: int | Sequence[int]
    precision: str | Sequence[str]
    optimizer: str | Sequence[str]
    recompute: str | Sequence[str]
    attention: str | Sequence[str]
    loss: str | Sequence[str]
    compile: bool | Sequence[bool]
    lora_rank: int | Sequence[int]
    quantize: str | Sequence[str]
    offload: str
    expandable_segments: bool | Sequence[bool]
    max_model_len: int | str | Sequence[int | str]
    sequences: int | Sequence[int]
    max_batched_tokens: int | Sequence[int]
    kv_dtype: str | Sequence[str]
    memory_fraction: float | Sequence[float]
    prompt_tokens: int | Sequence[int]


class TemplateOptions(TypedDict, total=False):
    """Options of the templates of ``jobs.templates``, by the frameworks' own words."""

    model: str | None
    max_prompt_length: int | None
    max_completion_length: int | None
    per_device_train_batch_size: int | None
    gradient_accumulation_steps: int | None
    steps_per_generation: int | None
    num_generations: int | None
    beta: float | None
    vllm: str | None
    vllm_gpu_memory_utilization: float | None
    vllm_max_model_length: int | None
    vllm_tensor_parallel_size: int | None
    vllm_enable_sleep_mode: bool | None
    gradient_checkpointing: bool | None
    use_liger_kernel: bool | None
    lora_rank: int | None
    optim: str | None
    engine: str | None
    zero: int | None
