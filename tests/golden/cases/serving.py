"""What servers hold beside their weights: caches and pages, samplers, pictures, drafts, the widest layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from golden.cases.engines import LATENT, MOE, STATES, drafted, with_draft
from golden.symbols import TENSOR, Cases, call, first, numbers, serving, spec, symbol
from memsheet.engines.transformers.forward_work import Work
from memsheet.engines.vllm.facts import release_of
from memsheet.engines.vllm.pages import CacheReach, Kind, Layout
from memsheet.engines.vllm.releases import ProfiledPictures, Sampler
from memsheet.formulas.serving.packed_experts import MARLIN, TRITON, Packing
from memsheet.plan.dtypes import BF16, FP8, NF4
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.model import (
    Attention,
    Block,
    CrossAttention,
    Dense,
    LatentAttention,
    LinearAttention,
    ModelSpec,
    Moe,
    Picture,
    StateSpace,
)
from memsheet.plan.plan import AttentionKind, Plan, Quantization
from memsheet.sheet import Bytes

TOKENS, ROWS, WIDTH = symbol("tokens"), symbol("rows"), symbol("width")
SIZES = {"heads": symbol("a"), "kv_heads": symbol("k"), "head_dim": symbol("d"), "weights": ()}
WHOLE, WINDOW = Attention(path="self_attn", **SIZES), Attention(path="self_attn", window=4096, **SIZES)
CROSS = CrossAttention(path="cross", memory_hidden=8, **SIZES)
HYBRID, SEEING, RESIZED = "qwen3-next-80b-a3b", "gemma-3-4b", "qwen2.5-vl-3b"
WORK = Work(sequences=symbol("sequences"), tokens=TOKENS)
STEP = Work(sequences=symbol("sequences"), tokens=1, cached=symbol("cached"), growing=True)
PAGES = tuple(
    Kind(kept=kept, reach=4096, block_tokens=symbol(f"{kept.value}_block"), page_bytes=symbol(f"{kept.value}_page"), layers=2) for kept in CacheReach
)  # fmt: skip
LAYOUT = Layout(groups=PAGES, block_bytes=symbol("block_bytes"))
PICTURE = Picture(embeddings=symbol("embeddings"), places=symbol("places"), pixels=symbol("pixels"))


def plain(model: str = "llama-tiny", **request: object) -> Plan:
    return serving("transformers", model, **request)


def tied() -> ModelSpec:
    """A tied table in numbers, but for its width."""
    made = numbers("llama-3.2-1b")
    tables = tuple(replace(w, shape=(w.shape[0], symbol("hidden"))) for w in made.embeddings.weights)
    return replace(made, embeddings=replace(made.embeddings, weights=tables))


def eager(model: str = "llama-tiny") -> Plan:
    return replace(plain(model), attention=AttentionKind.EAGER)


CACHE: dict[str, Callable[[], Cases]] = {
    "kv_cache.kv_elements_per_token": lambda: {"attention": call(WHOLE, symbol("tp")), "latent": call(first(LatentAttention, LATENT), symbol("tp"))},
    "kv_cache.latent_elements_per_token": lambda: {"": call(first(LatentAttention, LATENT))},
    "kv_cache.kept_tokens": lambda: {"window": call(WINDOW, TOKENS), "whole": call(WHOLE, TOKENS)},
    "kv_cache.recurrent_elements": lambda: {"mamba": call(first(StateSpace, STATES))},
    "kv_cache.state_elements": lambda: {"mamba": call(first(StateSpace, STATES)), "cross": call(CROSS, symbol("tp"), symbol("memory"))},
    "serving.graphs.graph_sizes": lambda: {name: call(symbol("largest"), coarse=coarse) for name, coarse in (("fine", False), ("coarse", True))},
    "serving.graphs.with_driver_bytes": lambda: {
        name: call(Bytes(symbol("low"), symbol("value"), symbol("high")), symbol("kernels"), symbol("pieces"), symbol("whole"), symbol("sequences"), old=old)
        for name, old in (("newer", False), ("older", True))
    },
    "serving.states.convolution_elements": lambda: {
        "mamba": call(first(StateSpace, STATES), symbol("tp")), "mamba2": call(first(StateSpace, "mamba-codestral-7b"), symbol("tp")),
    },
    "pages.blocks_of": lambda: {kind.kept.value: call(kind, TOKENS, release_of(None), symbol("in_flight")) for kind in PAGES},
    "pages.sequence_blocks": lambda: {"": call(LAYOUT, TOKENS, release_of(None), symbol("in_flight"))},
    "pages._equal_pages": lambda: {"": call(PAGES)},
    "pages._enlarge_page_to_state": lambda: {"": call(PAGES[0], symbol("state_bytes"))},
    "pages.page_bytes": lambda: {
        "attention": call(WHOLE, BF16, TOKENS, symbol("tp")), "latent": call(first(LatentAttention, LATENT), BF16, TOKENS, symbol("tp")),
    },
    "sparse_index.index_token_bytes": lambda: {"": call(replace(first(LatentAttention, LATENT), index_dim=symbol("index_dim")))},
    "sparse_index.latent_token_bytes": lambda: {
        "": call(first(LatentAttention, LATENT), BF16), "packed": call(replace(first(LatentAttention, LATENT), index_dim=128), FP8),
    },
    "pages.memory_page_bytes": lambda: {"cross": call(CROSS, BF16, TOKENS, symbol("tp"))},
    "pages.state_page_bytes": lambda: {"mamba": call(first(StateSpace, STATES), BF16, symbol("tp"))},
    "capacity.shared_blocks": lambda: {"": call(LAYOUT, TOKENS)},
}  # fmt: skip
LOADED: dict[str, Callable[[], Cases]] = {
    "loaded.mla_absorbed_projection_bytes": lambda: {"latent": call(spec(LATENT), serving("vllm", LATENT), always=True)},
    "loaded.rope_bytes": lambda: {"latent": call(spec(LATENT), BF16)},
    "loaded.row_scales_bytes": lambda: {"fp8": call((replace(TENSOR, dtype=FP8),))},
    "online.unquantized_bytes": lambda: {"fp8": call(serving("vllm", "llama-3.2-1b", quantization__weights="fp8"), (replace(TENSOR, dtype=FP8),))},
    "packed_experts.swizzled_scales_bytes": lambda: {"": call((symbol("experts"), symbol("in"), symbol("out")))},
    "packed_experts.kernel_expert_bytes": lambda: {
        name: call((symbol("experts"), symbol("in"), symbol("out")), Packing(keeps_scales=False), kernel)
        for name, kernel in {"triton": TRITON, "marlin": MARLIN}.items()
    },
    "packed_experts.padded_block_elements": lambda: {
        name: call((symbol("experts"), symbol("out"), symbol("in")), 2, downward=down)
        for name, down in {"gates": False, "down": True}.items()
    },
    "untied_bytes": lambda: {"fp8": call(tied(), serving("vllm", "llama-3.2-1b", quantization__weights="fp8"))},
    "deepep.near_bytes": lambda: {f"{ranks} ranks": call(symbol("hidden"), ranks) for ranks in (8, 32)},
    "deepep.far_bytes": lambda: {f"{ranks} ranks": call(symbol("hidden"), ranks) for ranks in (8, 32)},
    "deepep.fast_bytes": lambda: {"": call(symbol("hidden"), symbol("experts"), TOKENS)},
    "draft_layers": lambda: {"draft": call(replace(with_draft(), draft=layered()), drafted("vllm"))},
    "drafts.verified_tokens": lambda: {"draft": call(drafted("vllm"))},
}  # fmt: skip


def layered() -> object:
    """A draft of as many layers as a symbol says."""
    stack = spec().stacks[0]
    return replace(spec(), stacks=(replace(stack, runs=(replace(stack.runs[0], count=symbol("layers")),)),))


PROFILED: dict[str, Callable[[], Cases]] = {
    "sampling.sampler_bytes": lambda: {how.value: call(how, ROWS, WIDTH, BF16) for how in Sampler},
    "sampling.unmasked_sampler_bytes": lambda: {"plain": call(ROWS, WIDTH, BF16, copied=False), "copied": call(ROWS, WIDTH, BF16, copied=True)},
    "pictures.copied_rows": lambda: {how.value: call(PICTURE, serving("vllm"), how) for how in (ProfiledPictures.BATCH, ProfiledPictures.WHOLE)},
    "pictures.kept_pictures": lambda: {SEEING: call(spec(SEEING), serving("vllm", SEEING), release_of(None))},
    "pictures.shown_pictures": lambda: {"": call(serving("vllm"), TOKENS), "more": call(serving("vllm"), TOKENS, more=True)},
    "pictures.deepstack_bytes": lambda: {"qwen3-vl": call(replace(spec("qwen2-vl-2b"), towers=(replace(spec("qwen2-vl-2b").towers[0], deepstack=3),)), serving("vllm"))},
    "pictures.unsized_bytes": lambda: {"qwen2-vl": call(spec("qwen2-vl-2b").towers[0], symbol("hidden"), serving("vllm"))},
    "all_logits.first_step_logits_bytes": lambda: {"4.40": call(spec(), replace(plain(), engine_version="4.40.0"), TOKENS, symbol("sequences"))},
    "_handed_bytes": lambda: {"4.40": call(spec(), replace(plain(), engine_version="4.40.0"), TOKENS, symbol("sequences"))},
    "all_logits.prompt_logits_bytes": lambda: {"4.40": call(spec(), replace(plain(), engine_version="4.40.0"), TOKENS, symbol("sequences"))},
    "_feed_forward_width": lambda: {"dense": call(first(Dense), serving("vllm")), "experts": call(first(Moe, MOE), serving("vllm", MOE))},
    "_mixer_widths": lambda: {
        "attention": call(first(Attention), serving("vllm")), "latent": call(first(LatentAttention, LATENT), serving("vllm", LATENT)),
    },
    "pictures.tower_run_bytes": lambda: {
        RESIZED: call(numbers(RESIZED), serving("vllm", RESIZED), release_of(None))
    },
    "pictures_bytes": lambda: {SEEING: call(numbers(SEEING), serving("vllm", SEEING), TOKENS)},
    "received_bytes": lambda: {"experts": call(first(Block, MOE), serving("vllm", MOE), TOKENS)},
}  # fmt: skip
WIDEST: dict[str, Callable[[], Cases]] = {
    "widest_layer._widest_elements_a_token": lambda: {"llama-tiny": call(first(Block), symbol("tp"))},
    "recurrent_operations._chunked_scan_bytes": lambda: {"mamba2": call(first(StateSpace, "mamba-codestral-7b"), WORK)},
    "recurrent_operations._state_step_bytes": lambda: {
        "mamba2": call(first(StateSpace, "mamba-codestral-7b"), plain(), STEP),
    },
    "recurrent_operations.delta_step_bytes": lambda: {"delta net": call(first(LinearAttention, HYBRID), STEP)},
    "widest_layer._scaled_elements_per_token": lambda: {"attention": call(WHOLE, 1)},
    "widest_layer._plain_score_bytes": lambda: {"attention": call(first(Block), first(Attention), plain(), WORK)},
    "widest_layer._dequantized_keys": lambda: {
        "fp8": call(first(Attention), plain(serving__kv_dtype="fp8"), symbol("kept"), passed=False),
        "passed": call(first(Attention), plain(serving__kv_dtype="fp8"), symbol("kept"), passed=True),
    },
    "widest_layer._gathered_expert_bytes": lambda: {"experts": call(first(Block, MOE), plain(MOE), WORK)},
    "widest_layer._over_cache": lambda: {
        "eager": call(first(Block), first(Attention), eager(), STEP), "latent": call(first(Block, LATENT), first(LatentAttention, LATENT), plain(LATENT), STEP),
    },
    "widest_layer._broadcast_head_bytes": lambda: {"falcon-7b": call(WHOLE, plain(), STEP, symbol("kept"))},
    "widest_layer._broadcast_elements": lambda: {"falcon-7b": call(WHOLE, STEP, symbol("kept"), 1)},
    "widest_layer._named_scores": lambda: {"eager": call(first(Block, MOE), eager(MOE), WORK)},
    "widest_layer._padded_prompt_bytes": lambda: {"sdpa": call(first(Attention), plain(), WORK)},
    "widest_layer.grown_bytes": lambda: {"attention": call(first(Attention), plain(), STEP)},
    "serving.widest_layer.unpacked_expert_bytes": lambda: {"nf4": call(first(Moe, MOE), replace(serving("vllm", MOE), quantization=Quantization(weights=NF4, experts=True)))},
    "widest_layer.layer_vector_bytes": lambda: {"": call(replace(spec(), embeddings=replace(spec().embeddings, layer_elements=symbol("layer_elements"))), serving("vllm"), TOKENS)},
    "widest_layer.largest_layer_bytes": lambda: {"experts": call(spec(MOE), plain(MOE), find_engine("transformers"), STEP)},
    "widest_layer.dequantized_bytes": lambda: {"nf4": call((replace(TENSOR, dtype=NF4),), plain(quantization__weights="nf4"))},
    "widest_layer.tower_bytes": lambda: {SEEING: call(numbers(SEEING), plain(SEEING), WORK)},
}  # fmt: skip
CASES = {**CACHE, **LOADED, **PROFILED, **WIDEST}
