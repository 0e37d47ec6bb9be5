"""Logs around a failed request: commands and configurations as their programs take them, tracebacks, and the
message of torch, for ``tensor_names.py``.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

from tensor_truths import PAGE, Truth

from memsheet.catalog import find_model
from memsheet.units import GIB, MIB


def printed_size(size: int) -> str:
    """A request as torch prints it (c10/cuda/CUDACachingAllocator.cpp, format_size)."""
    pages = -(-size // PAGE) * PAGE
    return f"{pages / GIB:.2f} GiB" if pages >= GIB else f"{pages / MIB:.2f} MiB"


def hub_id(model: str) -> str:
    """The name of a bundled model's repository."""
    entry = find_model(model)
    found = re.search(r"[A-Za-z0-9][\w.-]+/[\w.-]+\w", str(entry["source"])) if entry else None
    names = [name for name in (entry or {}).get("aliases", ()) if "/" in name]
    return found[0] if found and find_model(found[0]) is not None else names[0] if names else model


def context_of(truth: Truth, which: str, kind: str, draw: random.Random) -> str:
    """What stands before the traceback: a command or a configuration, a model's name, or nothing."""
    name = hub_id(truth.model)
    if kind == "name":
        said = ("model: {}", "Loading {} ...", "I'm fine-tuning {} and get:", "MODEL={}") if which != "unseen" else ("base model {}", "Using model {}", "trying to run {}\n", "export MODEL_ID={}")  # fmt: skip
        return draw.choice(said).format(name)
    words = truth.options
    engine = "fsdp1" if truth.engine.startswith("fsdp") else truth.engine
    template = draw.choice(TEXTS[engine if engine in TEXTS else "transformers"][which])
    values = {
        "name": name, "seq": words.get("seq_len", 0), "batch": words.get("microbatch", 1), "ranks": truth.ranks, "tp": words.get("tp", 1), "pp": words.get("pp", 1),
        "zero": words.get("zero", 0), "tokens": words.get("tokens", 0), "sequences": words.get("sequences", 0), "cached": words.get("cached", 0),
        "attention": words.get("attention", "sdpa"), "rank": words.get("lora_rank", 0),
    }  # fmt: skip
    text = template(values) if callable(template) else template.format(**values)
    if words.get("lora_rank"):
        text += f"\nlora_rank: {words['lora_rank']}" + (
            "\nload_in_4bit: true" if words.get("quantize") else ""
        )
    return text


def _deepspeed_json(values: Mapping[str, Any]) -> str:
    settings = {
        "train_micro_batch_size_per_gpu": values["batch"],
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": values["zero"]},
    }
    command = f"deepspeed --num_gpus {values['ranks']} train.py --model_name_or_path {values['name']}"
    command += f" --max_seq_length {values['seq']} --deepspeed ds.json"
    return f"{command}\n{json.dumps(settings, indent=2)}\n[INFO] world size: {values['ranks']}"


Text = str | Callable[[Mapping[str, Any]], str]
TEXTS: dict[str, dict[str, tuple[Text, ...]]] = {
    "transformers": {
        "mending": (
            "accelerate launch --num_processes {ranks} run_clm.py --model_name_or_path {name} --per_device_train_batch_size {batch} --block_size {seq} --bf16 --attn_implementation {attention}",
            "base_model: {name}\nsequence_len: {seq}\nmicro_batch_size: {batch}\nbf16: auto",
            "model_name_or_path: {name}\ncutoff_len: {seq}\nper_device_train_batch_size: {batch}\nbf16: true",
        ),
        "wider": (
            "llamafactory-cli train --model_name_or_path {name} --cutoff_len {seq} --per_device_train_batch_size {batch} --bf16 True --deepspeed none",
            "actor_rollout_ref.model.path={name}\nmicro_batch_size_per_gpu={batch}\nmax_length={seq}\nbf16: true",
            "Training {name} | batch size per device {batch} | sequence length {seq} | precision bf16",
        ),
        "unseen": (
            'model = AutoModelForCausalLM.from_pretrained("{name}", torch_dtype=torch.bfloat16, attn_implementation="{attention}")\ntraining_args = SFTConfig(per_device_train_batch_size={batch}, max_length={seq}, bf16=True)',
            "torchrun --nproc_per_node={ranks} finetune.py --model {name} --batch-size {batch} --max-seq-len {seq} --dtype bfloat16",
            "{{'model_id': '{name}', 'seq_length': {seq}, 'batch_size': {batch}, 'mixed_precision': 'bf16'}}",
            "Model: {name}\ninput_ids: torch.Size([{batch}, {seq}])",
        ),
    },
    "fsdp1": {
        "wider": ("fsdp_config:\n  fsdp_version: 1\n  fsdp_transformer_layer_cls_to_wrap: X\nbase_model: {name}\nsequence_len: {seq}\nmicro_batch_size: {batch}\nWORLD_SIZE={ranks}",),
        "mending": ("torchrun --nproc_per_node {ranks} train.py --model_name_or_path {name} --max_seq_length {seq} --per_device_train_batch_size {batch} --bf16\nfsdp: full_shard auto_wrap",),
        "unseen": ("distributed_type: FSDP\nnum_processes: {ranks}\nfsdp_sharding_strategy: FULL_SHARD\nmixed_precision: bf16\nmodel_name: {name}\nmax_length: {seq}\ntrain_batch_size: {batch}",),
    },
    "deepspeed": {
        "wider": ("deepspeed_config: ds_z{zero}.json (zero_optimization)\nmodel_name_or_path: {name}\nper_device_train_batch_size: {batch}\nmax_seq_length: {seq}\nbf16: true\nnum_processes: {ranks}",),
        "mending": (_deepspeed_json,),
        "unseen": ("deepspeed --num_gpus={ranks} main.py --model_name_or_path {name} --per_device_train_batch_size {batch} --max_seq_len {seq} --zero_stage {zero} --dtype bf16\n[comm] world_size={ranks}",),
    },
    "megatron": {
        "wider": ("python pretrain_gpt.py --hf-model {name} --seq-length {seq} --micro-batch-size {batch} --tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp} --sequence-parallel --bf16 --use-distributed-optimizer",),
        "mending": ("torchrun --nproc_per_node 8 pretrain_gpt.py --tokenizer-type HuggingFaceTokenizer --tokenizer-model {name} --seq-length {seq} --micro-batch-size {batch} --tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp} --sequence-parallel --bf16",),
        "unseen": ("load_hf_checkpoint: {name}\ntensor_model_parallel_size: {tp}\npipeline_model_parallel_size: {pp}\nsequence_parallel: true\nmicro_batch_size: {batch}\nseq_length: {seq}\nbf16: true\nmegatron/training/arguments.py",),
    },
    "torchtitan": {
        "wider": ('[job]\nmodel.name = "{name}"\n[training]\nlocal_batch_size = {batch}\nseq_len = {seq}\n[parallelism]\ndata_parallel_shard_degree = {ranks}\n# torchtitan/experiments',),
        "mending": ('[model]\nhf_assets_path = "./assets/hf/{name}"\n[training]\nlocal_batch_size = {batch}\nseq_len = {seq}\n[parallelism]\ndata_parallel_shard_degree = -1\ntensor_parallel_degree = 1\n# torchtitan/train.py',),
        "unseen": ("torchrun --nproc_per_node={ranks} -m torchtitan.train --training.local_batch_size {batch} --training.seq_len {seq} --model.hf_assets_path {name} --parallelism.tensor_parallel_degree 1",),
    },
    "vllm": {
        "wider": (
            "INFO [core.py:58] Initializing a V1 LLM engine (v0.10.2) with config: model='{name}', dtype=torch.bfloat16, max_seq_len=32768, tensor_parallel_size={tp}, pipeline_parallel_size=1\nINFO Chunked prefill is enabled with max_num_batched_tokens={tokens}.\nmax_num_seqs={sequences}\nINFO GPU KV cache size: {cached:,} tokens",
            "docker run vllm/vllm-openai --model {name} -tp {tp} --max-num-batched-tokens={tokens} --max-num-seqs={sequences}\nGPU KV cache size: {cached:,} tokens\n[gpu_worker.py:298]",
        ),
        "mending": ("vllm serve {name} --tensor-parallel-size {tp} --max-num-batched-tokens {tokens} --max-num-seqs {sequences}\nINFO GPU KV cache size: {cached:,} tokens",),
        "unseen": ('llm = LLM(model="{name}", tensor_parallel_size={tp}, max_num_batched_tokens={tokens}, max_num_seqs={sequences})\nINFO [kv_cache_utils.py:1087] GPU KV cache size: {cached:,} tokens',),
    },
    "sglang": {
        "wider": ("python3 -m sglang.launch_server --model {name} --tp {tp} --chunked-prefill-size={tokens} --max-running-requests={sequences}\n[TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: {cached}, K size: 9.00 GB, V size: 9.00 GB",),
        "mending": ("python -m sglang.launch_server --model-path {name} --tp-size {tp} --chunked-prefill-size {tokens} --max-running-requests {sequences}\nKV Cache is allocated. #tokens: {cached}",),
        "unseen": ("server_args=ServerArgs(model_path='{name}', tp_size={tp}, chunked_prefill_size={tokens}, max_running_requests={sequences}, max_total_tokens={cached}) sglang.srt",),
    },
}  # fmt: skip
KINDS = ("full", "full, no frames", "name", "name, no frames", "frames", "message")
SPARE = ("GPU 0 has a total capacity of 79.11 GiB of which {} MiB is free. Including non-PyTorch memory, this process has 79.00 GiB memory in use. "
         "Of the allocated memory 77.20 GiB is allocated by PyTorch, and 0.31 GiB is reserved by PyTorch but unallocated.")  # fmt: skip


def text_of(truth: Truth, which: str, kind: str, draw: random.Random) -> str:
    """A log that ends in the message of the request that failed."""
    parts = (
        []
        if kind in ("frames", "message")
        else [context_of(truth, which, "name" if kind.startswith("name") else "full", draw)]
    )
    if not kind.endswith("no frames") and kind != "message":
        parts.append("Traceback (most recent call last):")
        for file, line, function, code in truth.frames[-draw.choice((1, 2, 4, 6)) :]:
            parts += [
                f'  File "/x/site-packages/{file}", line {line}, in {function}',
                f"    {code}",
            ]
    said = SPARE.format(draw.choice(("8.12", "13.44", "11.06")))
    parts.append(
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {printed_size(truth.size)}. {said}"
    )
    return "\n".join(parts)
