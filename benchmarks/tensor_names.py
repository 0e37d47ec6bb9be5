"""How often ``memsheet diagnose`` names the tensor behind a failed request, where the truth is known.

    python benchmarks/tensor_names.py                       rates by engine and kind of context, of both sets
    python benchmarks/tensor_names.py --traced FILE         with what traced_tensors.py has written, too
    python benchmarks/tensor_names.py --set mending --show wrong        the cases of one outcome

The truth is a tensor that a step of an engine allocates: by the accounts that are kept of its code (tapes of
operations), by the arithmetic of its own source files, cited at each, or by a trace of a model's own code. Its
size is printed as torch prints it, among more or less of what a log holds. Rules of ``diagnose`` are written
beside the first set; the second has other models, lengths and texts, and is only counted.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import memsheet
from memsheet.budget import Answer
from memsheet.catalog import find_model
from memsheet.diagnose.message import Term
from memsheet.diagnose.verdict import diagnose_texts
from memsheet.errors import InputError
from memsheet.formulas.activations import check_modelled, run_config_of
from memsheet.formulas.model_code import engine_for, model_code
from memsheet.formulas.recordings import record_block, record_head, record_loss
from memsheet.frozen import replace
from memsheet.plan.model import LatentAttention, ModelSpec, Moe, Role, Weight
from memsheet.readers.model import read_model
from memsheet.units import GIB, MIB

PAGE, LEAST = 2 * MIB, 16 * MIB
"""What the allocator rounds larger requests up to (c10/cuda/CUDACachingAllocator.h, kRoundLarge), and the
smallest that are asked about.
"""
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "bool": 1, "uint8": 1, "int8": 1, "int64": 8, "int32": 4}
SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "bool": "bool", "int64": "int64", "fp8": "uint8", "int32": "int32"}
WEIGHTS = ("parameters", "optimizer_states", "unsharded_parameters", "master_weights", "gradients")
OUTCOMES = ("exact", "among", "unnamed", "wrong", "wrong as certain")
"""The truth alone, or among others that are named with it; nothing; another tensor as what it may be, and
another called certain.
"""
Frame = tuple[str, int, str, str]


class Truth(NamedTuple):
    """A tensor that a step allocates. ``kind``: activation, logits, scores, weight (or what is as large as
    one), unit (many weights as one), cache; ``said``: what its text has to say for arithmetic to name it.
    """

    engine: str
    model: str
    kind: str
    part: str
    shape: tuple[int, ...]
    dtype: str
    frames: tuple[Frame, ...]
    options: Mapping[str, Any]
    said: tuple[str, ...] = ("lengths",)

    @property
    def size(self) -> int:
        return math.prod(self.shape) * BYTES[self.dtype]


def printed_size(size: int) -> str:
    """A request as torch prints it (c10/cuda/CUDACachingAllocator.cpp, format_size)."""
    pages = -(-size // PAGE) * PAGE
    return f"{pages / GIB:.2f} GiB" if pages >= GIB else f"{pages / MIB:.2f} MiB"


def is_told_apart(size: int) -> bool:
    """Whether a message says a request's own size: smaller ones are made 20 MiB."""
    return size >= LEAST and -(-size // PAGE) * PAGE != 20 * MIB


# ---- truths of a training step -------------------------------------------------------------------------------

TRAINED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("transformers", {"precision": "bf16-autocast"}),
    ("transformers", {"precision": "bf16-pure", "attention": "eager"}),
    ("megatron", {"tp": 2, "gpus": "8xH100-80GB"}),
    ("megatron", {"tp": 4, "pp": 2, "gpus": "16xH100-80GB"}),
    ("torchtitan", {"gpus": "8xH100-80GB"}),
    ("deepspeed", {"zero": 2, "gpus": "8xH100-80GB"}),
    ("deepspeed", {"zero": 3, "gpus": "16xH100-80GB"}),
    ("fsdp1", {"zero": 3, "gpus": "8xH100-80GB"}),
)
MODELS = {
    "mending": ("llama-3.1-8b", "qwen2.5-7b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite", "gemma-2-9b", "mistral-7b", "llama-2-13b",
                "gpt2-xl", "falcon-h1-3b", "bert-large", "qwen2.5-vl-7b", "phi-2", "llama-3-70b"),
    "wider": ("qwen2.5-0.5b", "qwen2-72b", "command-r", "gemma-2b", "phi-3-mini", "gpt-j-6b", "opt-1.3b", "bloom-3b", "falcon3-7b", "deepseek-v3",
              "qwen1.5-moe-a2.7b", "jamba-v0.1", "exaone-4.0-32b", "ernie-4.5-21b-a3b", "glm-4-9b", "nemotron-h-4b", "t5-large", "llava-1.5-7b"),
    "unseen": ("llama-3.2-3b", "qwen3-14b", "gemma-3-12b", "olmo-2-7b", "starcoder2-7b", "phi-3.5-moe", "olmoe-1b-7b", "glm-4.7-flash", "granite-3.1-8b",
               "mistral-nemo-12b", "qwen2.5-32b", "granite-4.0-h-tiny", "roberta-large", "pythia-6.9b", "mixtral-8x22b", "yi-34b", "qwen2.5-vl-3b"),
}  # fmt: skip
LENGTHS = {"wider": (2048, 7000, 12288, 32768), "mending": (1024, 2048, 4096, 8192, 3000), "unseen": (1536, 2048, 4096, 6144, 16384, 5000)}
BATCHES = {"wider": (1, 2, 5, 16), "mending": (1, 2, 4, 8), "unseen": (1, 2, 3, 6)}
ROW = ("torch/nn/modules/linear.py", 134, "forward", "return F.linear(input, self.weight, self.bias)")
BACK = (
    ("torch/_tensor.py", 648, "backward", "torch.autograd.backward("),
    ("torch/autograd/__init__.py", 353, "backward", "_engine_run_backward("),
    ("torch/autograd/graph.py", 824, "_engine_run_backward", "return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass"),
)  # fmt: skip
STEP = (("torch/optim/optimizer.py", 493, "wrapper", "out = func(*args, **kwargs)"),)


@lru_cache(maxsize=256)
def planned_answer(model: str, words: tuple[tuple[str, Any], ...]) -> Answer | None:
    try:
        return memsheet.train(model, **dict(words))
    except InputError:
        return None


def taped_tensors(engine: str, model: str, words: Mapping[str, Any]) -> Iterator[Truth]:
    """What the tapes of a step's blocks and ends hold on one rank."""
    answer = planned_answer(model, tuple({"engine": engine, **words}.items()))
    if answer is None:
        return
    spec, plan = answer.model, answer.plan
    if spec.recording is not None:
        return
    found = engine_for(spec, plan)
    try:
        check_modelled(spec, plan, found)
    except InputError:
        return
    code, shape = model_code(found.layers), plan.training.shape
    for block in {id(b): b for stack in spec.stacks for run in stack.runs for b in run.pattern}.values():
        how = code.block_numerics(block, plan, shape, run_config_of(plan, found))
        try:
            tape, axes = record_block(code.on_rank(block, plan), how), code.axes(block, plan, shape)
        except (InputError, KeyError, ValueError):  # layers that another module records
            continue
        yield from _truths_of_tape(tape, axes, engine, model, words)
    stack = spec.stacks[-1]
    if spec.head.kind == "none":
        return
    how = code.at_ends(replace(run_config_of(plan, found), positions_each=code.positions_each(spec), head=spec.head.kind))
    axes = code.end_axes(spec, plan, shape)
    for tape in (
        record_head(stack.final_norms, spec.head, how, plan.loss, "", "lm_head"),
        record_loss(how, plan.loss, "lm_head"),
    ):
        yield from _truths_of_tape(tape, axes, engine, model, words, end=True, vocabulary=spec.vocab)


def _truths_of_tape(tape: Any, axes: Mapping[str, Any], engine: str, model: str, words: Mapping[str, Any], *, end: bool = False, vocabulary: int = 0) -> Iterator[Truth]:
    from memsheet.formulas.tapes.tape import Event

    weights = weights_of_model(model)
    forward = {number for event, number in tape.forward if event is Event.ALLOC}
    seen = set()
    for number, entry in enumerate(tape.entries):
        if entry.terms is not None or entry.dtype.name not in SHORT:
            continue
        sizes = tuple(int(axis if isinstance(axis, int) else axes[axis]) for axis in entry.shape)
        back = number not in forward
        if (sizes, entry.dtype.name, entry.path, back) in seen:
            continue
        seen.add((sizes, entry.dtype.name, entry.path, back))
        module = entry.path.partition("/")[0]
        weight = entry.gradient or entry.weight_cast
        weight = weight and not end or (len(sizes) == 2 and tuple(sorted(sizes)) in weights)
        wide = end and any(abs(size * int(words.get("tp", 1)) - vocabulary) <= 1024 for size in sizes)
        kind = "weight" if weight else "logits" if wide else "activation"
        if not weight and len(sizes) == 4 and sizes[3] - sizes[2] in (0, 1) and sizes[2] == words["seq_len"]:
            kind = "scores"
        yield Truth(
            engine, model, kind, entry.path, sizes, SHORT[entry.dtype.name], BACK if back else _frames_of_path(engine, entry.path, kind), words,
            () if kind == "weight" else ("lengths",),
        )  # fmt: skip


@lru_cache(maxsize=64)
def weights_of_model(model: str) -> frozenset[tuple[int, ...]]:
    entry = find_model(model)
    spec = read_model(dict(entry["config"]), catalog=find_model) if entry else None
    return frozenset(tuple(sorted(w.shape)) for w in _weights_of(spec)) if spec else frozenset()


def _frames_of_path(engine: str, path: str, kind: str) -> tuple[Frame, ...]:
    """Frames by what makes it, as far as they are known; else the module's own forward."""
    module, _, part = path.partition("/")
    for pattern, frames in FRAMES_OF.get("megatron" if engine == "megatron" else "", {}).items():
        if re.search(pattern, path):
            return frames
    if engine == "megatron":
        return (("megatron/core/transformer/transformer_layer.py", 512, "forward", "hidden_states = self._forward_mlp(hidden_states)"),)
    if part.endswith("output") and ("proj" in module or "lm_head" in module or "dense" in module):
        return (ROW,)
    if kind == "scores":
        return (("transformers/models/llama/modeling_llama.py", 178, "eager_attention_forward", "attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query.dtype)"),)  # fmt: skip
    if "norm" in module:
        return (("transformers/models/llama/modeling_llama.py", 64, "forward", "return self.weight * hidden_states.to(input_dtype)"),)
    return (("torch/nn/modules/module.py", 1784, "_call_impl", "return forward_call(*args, **kwargs)"),)


FRAMES_OF: dict[str, dict[str, tuple[Frame, ...]]] = {"megatron": {
    r"linear_qkv|linear_fc1": (("transformer_engine/pytorch/module/layernorm_linear.py", 310, "forward", "gemm_out, *_, reduce_scatter_out = general_gemm("),),
    r"linear_proj|linear_fc2": (("transformer_engine/pytorch/module/linear.py", 340, "forward", "gemm_out, *_, reduce_scatter_out = general_gemm("),),
    r"activation": (("megatron/core/fusions/fused_bias_swiglu.py", 18, "swiglu", "return F.silu(y_1) * y_2"),),
    r"permuted|sorted": (("megatron/core/transformer/moe/moe_utils.py", 260, "permute", "permuted_input = tokens.index_select(0, sorted_indices)"),),
    r"output_layer|logits": (("megatron/core/tensor_parallel/layers.py", 880, "forward", "output_parallel = self._forward_impl("),),
    r"loss|softmax|exp": (("megatron/core/tensor_parallel/cross_entropy.py", 133, "forward", "vocab_parallel_logits, logits_max = VocabParallelCrossEntropy.calculate_logits_max("),),
}}  # fmt: skip


def _weights_of(spec: ModelSpec) -> Iterator[Weight]:
    yield from spec.embeddings.weights
    for stack in spec.stacks:
        for run in stack.runs:
            for block in run.pattern:
                yield from block.weights
    if not spec.head.tied:
        yield from spec.head.weights


def _layer_elements(spec: ModelSpec) -> list[int]:
    blocks = [block for stack in spec.stacks for run in stack.runs for block in run.pattern]
    return [sum(w.elements for w in block.weights if w.role is not Role.BUFFER) for block in blocks]


def _outer_elements(spec: ModelSpec) -> int:
    outer = sum(w.elements for w in (*spec.embeddings.weights, *spec.head.weights) if w.role is not Role.BUFFER)
    norms = (*spec.embeddings.norms, *(norm for stack in spec.stacks for norm in stack.final_norms))
    return outer + sum(w.elements for norm in norms for w in norm.weights)


def _all_elements(spec: ModelSpec) -> int:
    total = _outer_elements(spec)
    for stack in spec.stacks:
        for run in stack.runs:
            total += run.count * sum(w.elements for block in run.pattern for w in block.weights if w.role is not Role.BUFFER)
    return total


def _world(words: Mapping[str, Any]) -> int:
    return int(str(words.get("gpus", "1x")).partition("x")[0])


def state_tensors(engine: str, model: str, words: Mapping[str, Any]) -> Iterator[Truth]:
    """States, whole weights and flat buffers, by the source of each wrapper."""
    answer = planned_answer(model, tuple({"engine": engine, **words}.items()))
    if answer is None:
        return
    spec, ranks = answer.model, _world(words)
    if spec.towers:
        return
    whole, said = _all_elements(spec) + sum(w.elements for w in spec.extras if w.role is not Role.BUFFER), ("ranks",)

    def made(kind: str, part: str, shape: tuple[int, ...], dtype: str, *frames: Frame, said: tuple[str, ...] = ()) -> Truth:
        return Truth(engine, model, kind, part, shape, dtype, frames, words, said)

    if engine == "deepspeed" and words.get("zero") in (1, 2):
        share = -(-whole // ranks)
        file = "deepspeed/runtime/zero/stage_1_and_2.py"
        yield made("unit", "fp32 partition", (share,), "float32", ("deepspeed/runtime/engine.py", 1532, "_configure_zero_optimizer", "optimizer = DeepSpeedZeroOptimizer("), (file, 395, "__init__", "weights_partition = self.parallel_partitioned_bit16_groups[i][partition_id].to(self.device).clone().float().detach()"), said=said)
        yield made("unit", "states", (share,), "float32", (file, 692, "initialize_optimizer_states", "self.optimizer.step()"), ("torch/optim/adam.py", 178, "_init_group", 'state["exp_avg"] = torch.zeros_like('), said=said)
        yield made("unit", "bit16 group", (whole,), "bfloat16", (file, 352, "__init__", "self.bit16_groups_flat.append(self.flatten_dense_tensors_aligned("))
        yield made("unit", "bucket", (500_000_000,), "bfloat16", (file, 1060, "average_tensor", "tensor = self.flatten(bucket)"), (file, 880, "setup_buckets", "buf_0 = torch.empty(int(self.reduce_bucket_size), dtype=self.dtype, device=get_accelerator().current_device_name())"))
    if engine == "deepspeed" and words.get("zero") == 3:
        file = "deepspeed/runtime/zero/stage3.py"
        share = -(-whole // ranks)
        if share < 1_000_000_000:
            yield made("unit", "fp32 partition", (share,), "float32", (file, 780, "_create_fp32_partitions", "self.fp32_partitioned_groups_flat.append(self.fp16_partitioned_groups_flat[i].to(self.subgroup_to_device[i]).clone().float().detach())"), said=said)
        for weight in _matrices(spec):
            yield made("weight", weight.path, weight.shape, "bfloat16", ("deepspeed/runtime/zero/partitioned_param_coordinator.py", 326, "fetch_sub_module", "self.__all_gather_params(params_to_fetch, forward)"), ("deepspeed/runtime/zero/partition_parameters.py", 1248, "all_gather_coalesced", "param_buffer = torch.empty("))
    if engine == "fsdp1":
        file = "torch/distributed/fsdp/_flat_param.py"
        for part, elements in (("layer", max(_layer_elements(spec))), ("outer", _outer_elements(spec) + sum(w.elements for w in spec.extras if w.role is not Role.BUFFER))):
            padded = -(-elements // ranks) * ranks
            yield made("unit", f"{part} unit", (padded,), "bfloat16", ("torch/distributed/fsdp/_runtime_utils.py", 290, "_unshard", "handle.unshard()"), (file, 1330, "_alloc_padded_unsharded_flat_param", "_alloc_storage(unsharded_flat_param, flat_param._padded_unsharded_size)  # type: ignore[attr-defined]"))
            yield made("unit", f"{part} states", (padded // ranks,), "float32", *STEP, ("torch/optim/adamw.py", 148, "_init_group", 'state["exp_avg"] = torch.zeros_like('), said=said)
    if engine == "transformers":
        for weight in _matrices(spec):
            low = "bfloat16" if words.get("precision") == "bf16-pure" else "float32"
            yield made("weight", weight.path, weight.shape, low, *STEP, ("torch/optim/adamw.py", 148, "_init_group", 'state["exp_avg"] = torch.zeros_like('))
            yield made("weight", weight.path, weight.shape, low, *STEP, ("torch/optim/adamw.py", 600, "_multi_tensor_adamw", "exp_avg_sq_sqrt = torch._foreach_sqrt(device_exp_avg_sqs)"))
            yield made("weight", weight.path, weight.shape, low, ("transformers/modeling_utils.py", 5048, "from_pretrained", ") = cls._load_pretrained_model("), ("transformers/modeling_utils.py", 920, "_load_state_dict_into_meta_model", "param = param.to(device)"))
    if engine == "megatron" and words.get("pp", 1) == 1 and not any(isinstance(b.feed_forward, Moe) for b in spec.blocks()):
        tp = int(words.get("tp", 1))
        held = sum(count * (w.elements // (tp if w.cut is not None else 1)) for count, w in _counted(spec))
        yield made("unit", "gradient buffer", (held,), "float32", ("megatron/core/distributed/param_and_grad_buffer.py", 620, "__init__", "self.grad_data = torch.zeros("), said=("parts",))


def _counted(spec: ModelSpec) -> Iterator[tuple[int, Weight]]:
    yield from ((1, w) for w in (*spec.embeddings.weights, *spec.head.weights) if w.role is not Role.BUFFER)
    for stack in spec.stacks:
        yield from ((1, w) for norm in (*spec.embeddings.norms, *stack.final_norms) for w in norm.weights)
        for run in stack.runs:
            yield from ((run.count, w) for block in run.pattern for w in block.weights if w.role is not Role.BUFFER)


def _matrices(spec: ModelSpec) -> list[Weight]:
    roles = (Role.LINEAR, Role.EMBEDDING, Role.HEAD, Role.EXPERT)
    return list({w.shape: w for w in _weights_of(spec) if w.role in roles}.values())


# ---- truths of servers ---------------------------------------------------------------------------------------

SERVED = (("vllm", {"tp": 1}), ("vllm", {"tp": 2}), ("vllm", {"tp": 4}), ("sglang", {"tp": 1}), ("sglang", {"tp": 2}))
STEP_TOKENS = {"wider": (2048, 8192, 5000), "mending": (2048, 8192, 4096), "unseen": (16384, 8192, 6144)}
SEQUENCES = {"wider": (256, 384, 48), "mending": (256, 128, 1024), "unseen": (512, 200, 64)}


def served_tensors(engine: str, model: str, words: Mapping[str, Any]) -> Iterator[Truth]:
    """Weights as servers keep them, the cache of a layer, a step of as many tokens as it takes at once, the
    sampler's logits.
    """
    entry = find_model(model)
    if entry is None:
        return
    spec = read_model(dict(entry["config"]), catalog=find_model)
    if spec.head.kind != "causal_lm":
        return
    tp, tokens, sequences = int(words["tp"]), int(words["tokens"]), int(words["sequences"])
    root = "vllm/model_executor/layers" if engine == "vllm" else "sglang/srt/layers"
    load: Frame = (f"{root}/linear.py", 1180, "create_weights", "weight = Parameter(torch.empty(sum(output_partition_sizes),")
    run: Frame = ("vllm/v1/worker/gpu_worker.py", 262, "determine_available_memory", "self.model_runner.profile_run()") if engine == "vllm" else ("sglang/srt/model_executor/model_runner.py", 1670, "forward", "output = self._forward_raw(")

    def made(kind: str, part: str, shape: tuple[int, ...], dtype: str, *frames: Frame, said: tuple[str, ...] = ()) -> Truth:
        return Truth(engine, model, kind, part, shape, dtype, frames, words, said or (("parts",) if tp > 1 else ()))

    hidden, vocab = spec.stacks[-1].hidden, spec.vocab
    rows = -(-vocab // 64) * 64 // tp
    yield made("weight", "embed_tokens", (rows, hidden), "bfloat16", (f"{root}/vocab_parallel_embedding.py", 33, "create_weights", "weight = Parameter(torch.empty(sum(output_partition_sizes),"))
    block = next(iter(spec.blocks()))
    for block in {b.kind: b for b in spec.blocks()}.values():
        mixer, inner = next(iter(block.mixers), None), block.feed_forward
        heads, groups, wide = (getattr(mixer, name, 0) for name in ("heads", "kv_heads", "head_dim"))
        if heads and groups and wide and heads % tp == 0:
            qkv = (heads + 2 * max(groups, tp)) * wide // tp
            yield made("weight", "qkv_proj", (qkv, hidden), "bfloat16", load)
            yield made("weight", "o_proj", (hidden, heads * wide // tp), "bfloat16", load)
            yield made("activation", "qkv_proj output", (tokens, qkv), "bfloat16", run, (f"{root}/linear.py", 150, "apply", "return dispatch_unquantized_gemm()(layer, x, layer.weight, bias)"), said=("lengths",))
            held = int(words["cached"])
            kept = max(1, groups // tp)
            if engine == "vllm":
                yield made("cache", "layer", (2, held, kept, wide), "bfloat16", ("vllm/v1/worker/gpu_model_runner.py", 4100, "_allocate_kv_cache_tensors", "tensor = torch.zeros("), said=("cache",))
            else:
                yield made("cache", "layer keys", (held + 1, kept, wide), "bfloat16", ("sglang/srt/mem_cache/memory_pool.py", 640, "_create_buffers", "torch.zeros("), said=("cache",))
        elif isinstance(mixer, LatentAttention) and engine == "sglang":
            held = int(words["cached"])
            yield made("cache", "latents", (held + 1, 1, mixer.kv_lora_rank + mixer.qk_rope_head_dim), "bfloat16", ("sglang/srt/mem_cache/memory_pool.py", 940, "_create_buffers", "torch.zeros("), said=("cache",))
        if isinstance(inner, Moe) and inner.intermediate % tp == 0:
            part = inner.intermediate // tp
            moe: Frame = (f"{root}/fused_moe/layer.py" if engine == "vllm" else f"{root}/moe/fused_moe_triton/layer.py", 460, "create_weights", "w13_weight = torch.nn.Parameter(torch.empty(")
            yield made("weight", "w13", (inner.experts, 2 * part, hidden), "bfloat16", moe)
            yield made("weight", "w2", (inner.experts, hidden, part), "bfloat16", moe)
            fused: Frame = (f"{root}/fused_moe/fused_moe.py", 1540, "fused_experts_impl", "intermediate_cache13 = torch.empty(")
            yield made("activation", "cache13", (tokens, inner.experts_per_token, max(2 * part, hidden)), "bfloat16", run, fused, said=("lengths",))
        elif inner is not None and not isinstance(inner, Moe) and inner.gated and inner.intermediate % tp == 0:
            part = inner.intermediate // tp
            yield made("weight", "gate_up_proj", (2 * part, hidden), "bfloat16", load)
            yield made("weight", "down_proj", (hidden, part), "bfloat16", load)
            yield made("activation", "gate_up_proj output", (tokens, 2 * part), "bfloat16", run, (f"{root}/linear.py", 150, "apply", "return dispatch_unquantized_gemm()(layer, x, layer.weight, bias)"), said=("lengths",))
            yield made("activation", "activation", (tokens, part), "bfloat16", run, (f"{root}/activation.py", 88, "forward_cuda", "out = torch.empty(output_shape, dtype=x.dtype, device=x.device)"), said=("lengths",))
    yield made("activation", "hidden states", (tokens, hidden), "bfloat16", run, (f"{root}/layernorm.py", 170, "forward_cuda", "return rms_norm(x, self.weight.data, self.variance_epsilon)"), said=("lengths",))
    if engine == "vllm":
        yield made("logits", "sampler", (sequences, vocab), "float32", ("vllm/v1/worker/gpu_model_runner.py", 3600, "_dummy_sampler_run", "raise RuntimeError("), ("vllm/v1/sample/sampler.py", 80, "forward", "logits = logits.to(torch.float32)"), said=("lengths",))
        yield made("logits", "sampler", (sequences, vocab), "float32", ("vllm/v1/sample/ops/topk_topp_sampler.py", 240, "apply_top_k_top_p", "logits_sort, logits_idx = logits.sort(dim=-1, descending=False)"), said=("lengths",))


# ---- texts ---------------------------------------------------------------------------------------------------


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
        "name": name, "seq": words.get("seq_len", 0), "batch": words.get("microbatch", 1), "ranks": _world(words), "tp": words.get("tp", 1), "pp": words.get("pp", 1),
        "zero": words.get("zero", 0), "tokens": words.get("tokens", 0), "sequences": words.get("sequences", 0), "cached": words.get("cached", 0),
        "attention": words.get("attention", "sdpa"), "rank": words.get("lora_rank", 0),
    }  # fmt: skip
    text = template(values) if callable(template) else template.format(**values)
    if words.get("lora_rank"):
        text += f"\nlora_rank: {words['lora_rank']}" + ("\nload_in_4bit: true" if words.get("quantize") else "")
    return text


def _deepspeed_json(values: Mapping[str, Any]) -> str:
    settings = {"train_micro_batch_size_per_gpu": values["batch"], "bf16": {"enabled": True}, "zero_optimization": {"stage": values["zero"]}}
    return f"deepspeed --num_gpus {values['ranks']} train.py --model_name_or_path {values['name']} --max_seq_length {values['seq']} --deepspeed ds.json\n{json.dumps(settings, indent=2)}\n[INFO] world size: {values['ranks']}"


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
            "model = AutoModelForCausalLM.from_pretrained(\"{name}\", torch_dtype=torch.bfloat16, attn_implementation=\"{attention}\")\ntraining_args = SFTConfig(per_device_train_batch_size={batch}, max_length={seq}, bf16=True)",
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
        "wider": ("[job]\nmodel.name = \"{name}\"\n[training]\nlocal_batch_size = {batch}\nseq_len = {seq}\n[parallelism]\ndata_parallel_shard_degree = {ranks}\n# torchtitan/experiments",),
        "mending": ("[model]\nhf_assets_path = \"./assets/hf/{name}\"\n[training]\nlocal_batch_size = {batch}\nseq_len = {seq}\n[parallelism]\ndata_parallel_shard_degree = -1\ntensor_parallel_degree = 1\n# torchtitan/train.py",),
        "unseen": ("torchrun --nproc_per_node={ranks} -m torchtitan.train --training.local_batch_size {batch} --training.seq_len {seq} --model.hf_assets_path {name} --parallelism.tensor_parallel_degree 1",),
    },
    "vllm": {
        "wider": (
            "INFO [core.py:58] Initializing a V1 LLM engine (v0.10.2) with config: model='{name}', dtype=torch.bfloat16, max_seq_len=32768, tensor_parallel_size={tp}, pipeline_parallel_size=1\nINFO Chunked prefill is enabled with max_num_batched_tokens={tokens}.\nmax_num_seqs={sequences}\nINFO GPU KV cache size: {cached:,} tokens",
            "docker run vllm/vllm-openai --model {name} -tp {tp} --max-num-batched-tokens={tokens} --max-num-seqs={sequences}\nGPU KV cache size: {cached:,} tokens\n[gpu_worker.py:298]",
        ),
        "mending": ("vllm serve {name} --tensor-parallel-size {tp} --max-num-batched-tokens {tokens} --max-num-seqs {sequences}\nINFO GPU KV cache size: {cached:,} tokens",),
        "unseen": ("llm = LLM(model=\"{name}\", tensor_parallel_size={tp}, max_num_batched_tokens={tokens}, max_num_seqs={sequences})\nINFO [kv_cache_utils.py:1087] GPU KV cache size: {cached:,} tokens",),
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
    parts = [] if kind in ("frames", "message") else [context_of(truth, which, "name" if kind.startswith("name") else "full", draw)]
    if not kind.endswith("no frames") and kind != "message":
        parts.append("Traceback (most recent call last):")
        for file, line, function, code in truth.frames[-draw.choice((1, 2, 4, 6)) :]:
            parts += [f'  File "/opt/env/lib/python3.11/site-packages/{file}", line {line}, in {function}', f"    {code}"]
    said = SPARE.format(draw.choice(("8.12", "13.44", "11.06")))
    parts.append(f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {printed_size(truth.size)}. {said}")
    return "\n".join(parts)


# ---- judging -------------------------------------------------------------------------------------------------

_SHAPE = re.compile(r"\[([\d, ]+)\] (\w+)")


def named_tensors(term: Term | None) -> list[tuple[Term, tuple[int, ...], str]]:
    """What a term names: the tensor, its axes and dtype."""
    terms = () if term is None else (term, *getattr(term, "others", ()))
    return [
        (each, tuple(int(axis) for axis in axes.split(",")), SHORT.get(dtype, dtype))
        for each in terms for axes, dtype in _SHAPE.findall(each.shape)
    ]  # fmt: skip


def kinds_of_term(term: Term) -> tuple[str, ...]:
    if "scores" in term.path or "mask" in term.path:
        return ("scores",)
    if "logits" in term.words or term.path.partition("/")[0] in ("loss", "sampler", "prompt_logprobs"):
        return ("logits",)
    if term.component == "kv_cache":
        return ("cache",)
    if term.component in WEIGHTS or term.path == "optimizer/step":
        return ("weight", "unit")
    return ("activation",)


def outcome_of(truth: Truth, term: Term | None) -> str:
    """One of ``OUTCOMES``."""
    named = named_tensors(term)
    right = [
        each for each, axes, dtype in named
        if truth.kind in kinds_of_term(each) and is_called(truth, each) and BYTES.get(dtype) == BYTES[truth.dtype] and _as_large(math.prod(axes), math.prod(truth.shape))
    ]  # fmt: skip
    if right:
        return "exact" if len(named) == 1 else "among"
    if named:
        return "wrong as certain" if term is not None and term.exact else "wrong"
    return "unnamed"


def is_told(truth: Truth, kind: str, text: str) -> bool:
    """Whether a text says all that arithmetic needs to name a tensor."""
    if not kind.startswith(("full", "name")) or (kind.startswith("name") and truth.said):
        return False
    if truth.kind == "unit" and kind == "name, no frames":
        return False  # nothing says what joins weights
    ranks = rf"(?<!\d){_world(truth.options)}(?!\d)"
    return "ranks" not in truth.said or re.search(ranks, text.partition("Traceback")[0]) is not None


_PROJECTION = re.compile(r"(?:^|[./])([a-z_0-9]*(?:proj|fc\d?|w\d+|dense\w*|c_attn|linear_\w+|query_key_value))(?=[./]|$)")
NAMED_OTHERWISE = {
    "linear_qkv": "qkv|q_proj", "linear_fc1": "gate_up|up_proj|fc1|c_fc|dense", "linear_proj": "o_proj|out|dense|c_proj",
    "linear_fc2": "down_proj|fc2|c_proj|dense", "linear_q_down_proj": "q_a_proj", "linear_q_up_proj": "q_b_proj", "linear_q_proj": "q_proj",
    "linear_kv_down_proj": "kv_a_proj", "linear_kv_up_proj": "kv_b_proj", "o_proj": "o_proj|out_proj|dense|c_proj",
    "qkv_proj": "qkv|c_attn|query_key_value|[Ww]qkv", "gate_up_proj": "gate_up|gate_and_up",
}  # fmt: skip
"""Modules of one program by another's names."""


def is_called(truth: Truth, term: Term) -> bool:
    """Whether a term's words have the module that a weight is of, or that makes an activation from its input;
    of hidden states any that are called so.
    """
    found = _PROJECTION.search(truth.part.partition("/aten.")[0])
    if found is None or truth.kind not in ("weight", "activation") or "experts" in truth.part or "w13" in truth.part or found[1] == "w2":
        return True
    back = truth.frames[-1][2] == "_engine_run_backward"
    makes = not back and ("output" in truth.part or truth.part.endswith(("mm", "addmm")))
    if truth.kind == "activation" and not makes:
        return True  # of what lies in a module by another name, or is its input's
    return "hidden states" in term.words or re.search(NAMED_OTHERWISE.get(found[1], re.escape(found[1])), term.words) is not None


def _as_large(named: int, true: int) -> bool:
    return abs(named - true) * 4096 <= true


def truths_of(which: str, draw: random.Random, traced: Path | None) -> Iterator[Truth]:
    """A few tensors of each case of a set."""
    for model in MODELS[which]:
        for engine, words in TRAINED:
            asked = {**words, "seq_len": draw.choice(LENGTHS[which]), "microbatch": draw.choice(BATCHES[which])}
            if model.startswith(("bert", "roberta", "gpt2", "pythia")):
                asked["seq_len"] = 512
            found = [t for t in (*taped_tensors(engine, model, asked), *state_tensors(engine, model, asked)) if is_told_apart(t.size)]
            yield from draw.sample(found, min(3, len(found)))
        for engine, words in SERVED:
            asked = {**words, "tokens": draw.choice(STEP_TOKENS[which]), "sequences": draw.choice(SEQUENCES[which]), "cached": draw.randrange(2000, 40000) * 16, "gpus": f"{words['tp']}x"}
            found = [t for t in served_tensors(engine, model, asked) if is_told_apart(t.size)]
            yield from draw.sample(found, min(3, len(found)))
    if traced is not None:
        for case in json.loads(traced.read_text()):
            found = [t for t in traced_truths(case) if is_told_apart(t.size)]
            yield from draw.sample(found, min(8, len(found)))


def traced_truths(case: Mapping[str, Any]) -> Iterator[Truth]:
    """Those of a trace, with what kind each is."""
    words, entry = case["options"], find_model(case["model"])
    spec = read_model(dict(entry["config"]), catalog=find_model) if entry else None
    assert spec is not None
    engine = f"{words.get('engine', 'transformers')}, traced"
    weights = weights_of_model(case["model"])
    tokens = words["seq_len"] * words["microbatch"]
    for each in case["tensors"]:
        shape, dtype = tuple(each["shape"]), each["dtype"]
        if dtype not in BYTES:
            continue
        whole = tuple(sorted(shape)) in weights
        kind = "activation"
        if each["component"] in WEIGHTS or each["instant"] in ("load", "optimizer_step") or (whole and len(shape) == 2 and each["op"] in ("aten._to_copy", "aten.empty", "aten.mm", "aten.t") and tokens not in shape):
            kind = "weight" if whole else "unit"
        elif spec.vocab in shape or spec.vocab in (shape[-1], shape[0]):
            kind = "weight" if whole and each["op"] != "aten.mm" else "logits"
        elif len(shape) > 2 and shape[-2] == words["seq_len"] and shape[-1] - shape[-2] in (0, 1) and (len(shape) == 4 or (len(shape) == 3 and shape[0] > words["microbatch"])):
            kind = "scores"
        elif len(shape) == 1:
            kind = "unit"
        if kind == "activation" and math.prod(shape) % words["seq_len"]:
            continue  # of experts' weights, or of positions
        frames = tuple(tuple(frame) for frame in each["frames"] if frame[0] != "torch/utils/_device.py")
        if each["instant"] == "load":
            frames = (("transformers/modeling_utils.py", 4260, "from_pretrained", "model = cls._load_pretrained_model("),)
        said = ("ranks",) if kind == "unit" else () if kind == "weight" else ("lengths",)
        yield Truth(engine, case["model"], kind, f"{each['module']}/{each['op']}", shape, dtype, frames, words, said)  # type: ignore[arg-type]


class Judged(NamedTuple):
    truth: Truth
    kind: str
    text: str
    term: Term | None
    outcome: str
    told: bool


def judged_cases(which: str, seed: int, traced: Path | None = None, share: float = 1.0) -> Iterator[Judged]:
    """Each truth in one kind of context, drawn by a seed."""
    draw = random.Random(f"{which} {seed}")
    for truth in truths_of(which, draw, traced):
        kind = draw.choice(KINDS)
        text = text_of(truth, which, kind, draw)
        if draw.random() <= share:
            term = diagnose_texts({"log": text}).term
            yield Judged(truth, kind, text, term, outcome_of(truth, term), is_told(truth, kind, text))


def rate_table(found: list[Judged], key: Callable[[Judged], str]) -> Iterator[str]:
    """Outcomes of those that are told, the share that is right, and of those that are not told."""
    groups: dict[str, list[Judged]] = {}
    for each in found:
        groups.setdefault(key(each), []).append(each)
    yield f"{'':24}" + "".join(f"{name:>18}" for name in OUTCOMES) + "  right of told | not told: right, named wrong, as certain"
    for name, group in (*sorted(groups.items()), ("all", found)):
        told = Counter(each.outcome for each in group if each.told)
        other = Counter(each.outcome for each in group if not each.told)
        right, all_told = told["exact"] + told["among"], sum(told.values())
        share = f"{right / all_told:7.1%} of {all_told:4}" if all_told else f"{'-':>15}"
        beside = f"{other['exact'] + other['among']}, {other['wrong']}, {other['wrong as certain']} of {sum(other.values())}"
        yield f"{name:24}" + "".join(f"{told[each]:18}" for each in OUTCOMES) + f"{share} | {beside}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=tuple(MODELS), action="append")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--traced", type=Path, action="append", help="a file of traced_tensors.py, of each set in turn")
    parser.add_argument("--show", choices=OUTCOMES, action="append", default=[])
    asked = parser.parse_args()
    for number, which in enumerate(asked.set or MODELS):
        found = list(judged_cases(which, asked.seed, asked.traced[number] if asked.traced else None))
        print(f"\n{which}: {len(found)} messages")
        for key in (lambda each: each.truth.engine, lambda each: each.kind, lambda each: each.truth.kind):
            print("\n".join(rate_table(found, key)), "\n")
        for each in found:
            if each.outcome in asked.show:
                t = each.truth
                print(f"{each.outcome} {'told' if each.told else 'not told'} | {t.engine} | {each.kind} | {t.model} {t.kind} {t.part} {list(t.shape)} {t.dtype} {printed_size(t.size)} | {t.options.get('seq_len')}x{t.options.get('microbatch')} | {t.frames[-1][2]}: {t.frames[-1][3][:60]} | → {each.term and (each.term.component, each.term.path, each.term.shape, each.term.exact)}")


if __name__ == "__main__":
    main()
