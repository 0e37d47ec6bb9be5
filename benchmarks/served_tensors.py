"""Tensors that vLLM and SGLang allocate, on one rank: truths for ``tensor_names.py``.

vLLM v0.10: model_executor/layers/linear.py, vocab_parallel_embedding.py, fused_moe/layer.py and fused_moe.py,
v1/worker/gpu_model_runner.py, v1/sample/sampler.py; SGLang v0.5: srt/layers, srt/mem_cache/memory_pool.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tensor_truths import Frame, Truth, bundled_spec

from memsheet.plan.model import Block, LatentAttention, Moe

ROWS = 64
"""Of which a vocabulary's rows are a multiple (vocab_parallel_embedding.py, DEFAULT_VOCAB_PADDING_SIZE)."""
LAYERS = {"vllm": "vllm/model_executor/layers", "sglang": "sglang/srt/layers"}
FRAMES: dict[str, Frame] = {
    "weight": ("linear.py", 1180, "create_weights", "weight = Parameter(torch.empty(sum(output_partition_sizes),"),
    "experts": ("fused_moe/layer.py", 460, "create_weights", "w13_weight = torch.nn.Parameter(torch.empty("),
    "table": ("vocab_parallel_embedding.py", 33, "create_weights", "weight = Parameter(torch.empty(sum(output_partition_sizes),"),
    "product": ("linear.py", 150, "apply", "return dispatch_unquantized_gemm()(layer, x, layer.weight, bias)"),
    "activation": ("activation.py", 88, "forward_cuda", "out = torch.empty(output_shape, dtype=x.dtype, device=x.device)"),
    "norm": ("layernorm.py", 170, "forward_cuda", "return rms_norm(x, self.weight.data, self.variance_epsilon)"),
    "fused experts": ("fused_moe/fused_moe.py", 1540, "fused_experts_impl", "intermediate_cache13 = torch.empty("),
}  # fmt: skip
STEPS: dict[str, Frame] = {
    "vllm": ("vllm/v1/worker/gpu_worker.py", 262, "determine_available_memory", "self.model_runner.profile_run()"),
    "sglang": ("sglang/srt/model_executor/model_runner.py", 1670, "forward", "output = self._forward_raw("),
}  # fmt: skip
CACHES: dict[str, Frame] = {
    "vllm": ("vllm/v1/worker/gpu_model_runner.py", 4100, "_allocate_kv_cache_tensors", "tensor = torch.zeros("),
    "sglang": ("sglang/srt/mem_cache/memory_pool.py", 640, "_create_buffers", "torch.zeros("),
}  # fmt: skip
SAMPLERS: tuple[Frame, ...] = (
    ("vllm/v1/sample/sampler.py", 80, "forward", "logits = logits.to(torch.float32)"),
    ("vllm/v1/sample/ops/topk_topp_sampler.py", 240, "apply_top_k_top_p", "logits_sort, logits_idx = logits.sort(dim=-1, descending=False)"),
)  # fmt: skip


def served_tensors(engine: str, model: str, words: Mapping[str, Any]) -> Iterator[Truth]:
    """Weights as servers keep them, the cache of a layer, a step of as many tokens as it takes at once, the
    sampler's logits. ``words``: tp, tokens of a step, sequences, tokens that the cache has room for.
    """
    spec, tp = bundled_spec(model), int(words["tp"])
    if spec.head.kind != "causal_lm":
        return
    hidden, rows = spec.stacks[-1].hidden, -(-spec.vocab // ROWS) * ROWS // tp
    sized = [("weight", "embed_tokens", (rows, hidden), "table")]
    for block in {block.kind: block for block in spec.blocks()}.values():
        sized += [*_of_attention(engine, block, words), *_of_feed_forward(block, words)]
    sized.append(("activation", "hidden states", (int(words["tokens"]), hidden), "norm"))
    for kind, part, shape, asked in sized:
        step = (STEPS[engine],) if kind == "activation" else ()
        if asked in FRAMES:
            file, *rest = FRAMES[asked]
            last: Frame = (f"{LAYERS[engine]}/{file}", *rest)  # type: ignore[assignment]
        else:
            last = CACHES[engine]
        said = {"activation": ("lengths",), "cache": ("cache",)}.get(kind, ("parts",) if tp > 1 else ())
        yield Truth(engine, model, kind, part, shape, "bfloat16", (*step, last), words, said)
    for last in SAMPLERS if engine == "vllm" else ():
        shape = (int(words["sequences"]), spec.vocab)
        yield Truth(engine, model, "logits", "sampler", shape, "float32", (STEPS[engine], last), words)


Sized = tuple[str, str, tuple[int, ...], str]


def _of_attention(engine: str, block: Block, words: Mapping[str, Any]) -> Iterator[Sized]:
    tp, tokens, held = (int(words[name]) for name in ("tp", "tokens", "cached"))
    mixer = next(iter(block.mixers), None)
    if isinstance(mixer, LatentAttention):
        if engine == "sglang":
            yield "cache", "latents", (held + 1, 1, mixer.kv_lora_rank + mixer.qk_rope_head_dim), "cache"
        return
    heads, groups, wide = (getattr(mixer, name, 0) for name in ("heads", "kv_heads", "head_dim"))
    if heads and groups and wide and heads % tp == 0:
        joined = (heads + 2 * max(groups, tp)) * wide // tp
        yield "weight", "qkv_proj", (joined, block.hidden), "weight"
        yield "weight", "o_proj", (block.hidden, heads * wide // tp), "weight"
        yield "activation", "qkv_proj output", (tokens, joined), "product"
        each = (max(1, groups // tp), wide)
        yield "cache", "layer", (2, held, *each) if engine == "vllm" else (held + 1, *each), "cache"


def _of_feed_forward(block: Block, words: Mapping[str, Any]) -> Iterator[Sized]:
    tp, tokens, inner = int(words["tp"]), int(words["tokens"]), block.feed_forward
    if inner is None or inner.intermediate % tp or not inner.gated:
        return
    part = inner.intermediate // tp
    if isinstance(inner, Moe):
        yield "weight", "w13", (inner.experts, 2 * part, block.hidden), "experts"
        yield "weight", "w2", (inner.experts, block.hidden, part), "experts"
        widest = max(2 * part, block.hidden)
        yield "activation", "cache13", (tokens, inner.experts_per_token, widest), "fused experts"
    else:
        yield "weight", "gate_up_proj", (2 * part, block.hidden), "weight"
        yield "weight", "down_proj", (block.hidden, part), "weight"
        yield "activation", "gate_up_proj output", (tokens, 2 * part), "product"
        yield "activation", "activation", (tokens, part), "activation"
