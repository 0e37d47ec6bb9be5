"""What one engine does alone: its own model code, its server, adapters that it serves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from golden.symbols import LORAS, TENSOR, Cases, call, first, how, pass_shape, plan, serving, spec, symbol
from memsheet.catalog import find_device
from memsheet.engines.llama_cpp.buffers import Facts as LlamaFacts
from memsheet.engines.llama_cpp.options import LlamaCppOptions
from memsheet.engines.sglang.attention_state import StateSizes
from memsheet.engines.sglang.facts import release_of as sglang_release
from memsheet.engines.sglang.pool import Cell
from memsheet.engines.vllm.facts import release_of
from memsheet.engines.vllm.lora_releases import facts_of
from memsheet.engines.vllm.options import VllmOptions
from memsheet.engines.vllm.profiled import Peak
from memsheet.formulas.serving.drafts import draft_of
from memsheet.plan.device import cluster_of
from memsheet.plan.dtypes import BF16, FP16, GGUF, INT8, NF4
from memsheet.plan.model import Block, LatentAttention, Moe, Weight
from memsheet.plan.plan import Plan, Routing, Speculative, SpeculativeMethod, Spread
from memsheet.sheet import Bytes, Component, Derived, Instant, Item

MOE, LATENT, STATES = "qwen3-30b-a3b", "deepseek-v2-lite", "jamba-v0.1"
TOKENS, ROWS = symbol("tokens"), symbol("rows")
NEW, V0_11 = facts_of((9, 9)), facts_of((0, 11))


def adapted(engine: str, model: str = "llama-tiny") -> Plan:
    return replace(
        serving(engine, model),
        served_adapters=replace(LORAS, targets=None if model == MOE else LORAS.targets),
    )


def drafted(engine: str) -> Plan:
    how = Speculative(method=SpeculativeMethod.DRAFT, tokens=symbol("drafted"), model="llama-tiny")
    return replace(serving(engine), speculative=how)


def with_draft() -> object:
    return replace(spec(), draft=spec())


def spread(how: Spread, factor: float | None = None) -> Routing:
    return Routing(spread=how, capacity_factor=factor)


def moe() -> Moe:
    found: Moe = first(Moe, MOE)
    return found


def held(dtype: object) -> tuple[object, ...]:
    return (replace(TENSOR, dtype=dtype),)


SPLITS = Bytes(symbol("fewest_splits"), symbol("splits"), symbol("most_splits"))
TABLES = StateSizes(
    rows=ROWS,
    length=symbol("length"),
    sizes=symbol("sizes"),
    page=1,
    output=symbol("output"),
    heads=symbol("heads"),
    kinds=1,
    workspace=384 * 2**20,
    splits=SPLITS,
)
CELL = Cell(whole=symbol("whole"), window=symbol("window"), reach=4096)
SIZE = Bytes(symbol("low"), symbol("value"), symbol("high"))
PEAK = Peak(pictures=SIZE, resting=SIZE, sampler=SIZE, layer=SIZE)
LOADED = Item(
    Component.PARAMETERS,
    "draft",
    {Instant.LOAD: SIZE, Instant.PREFILL: SIZE, Instant.DECODE: SIZE},
    Derived("symbols"),
)
CARD = cluster_of(find_device("H100-80GB"), 1)
LLAMA = LlamaFacts.of(plan())
FORK = LlamaFacts(fork=True, recent=False, sparing=True)

SMALL: dict[str, Callable[[], Cases]] = {
    "gpt_fast.server.row_scale_bytes": lambda: {"int8": call(held(INT8), INT8)},
    "gpt_fast.server.unpacked_bytes": lambda: {"int8": call(held(INT8), serving("gpt-fast"), INT8)},
    "litgpt.layers.loss.named_logits": lambda: {"": call({"b": symbol("b"), "s": symbol("s"), "V": symbol("V"), "c": symbol("c")})},
    "litgpt.layers.rotary_table_buffers": lambda: {"": call(spec(), plan("litgpt"), pass_shape(), how("litgpt"))},
    "litgpt.server.layer_bytes": lambda: {"": call(first(Block), serving("litgpt"), TOKENS)},
    "litgpt.server.quantizing_bytes": lambda: {"nf4": call(held(NF4), serving("litgpt", quantization__weights="nf4"))},
    "litgpt.server.unpacked_bytes": lambda: {"nf4": call(held(NF4), serving("litgpt", quantization__weights="nf4"))},
    "autoawq.server.joined_bytes": lambda: {"q_proj": call((replace(TENSOR, path="q_proj.weight"),), symbol("layers"))},
    "transformers.assisted.compared_bytes": lambda: {"draft": call(with_draft(), drafted("transformers"))},
    "transformers.peft_lora.branch_width": lambda: {"": call(spec(), LORAS, BF16)},
    "transformers.peft_lora.pairs_of": lambda: {"": call(spec(), LORAS)},
}  # fmt: skip
LLAMA_CPP: dict[str, Callable[[], Cases]] = {
    "llama_cpp.buffers.cache_of": lambda: {
        "attention": call(first(Block), serving("llama.cpp"), LLAMA, symbol("ubatch")),
        "latent": call(first(Block, LATENT), serving("llama.cpp"), LLAMA, symbol("ubatch")),
        "window": call(first(Block, "gpt-oss-20b"), serving("llama.cpp"), LLAMA, symbol("ubatch")),
    },
    "llama_cpp.buffers.cells_of": lambda: {"": call(serving("llama.cpp"), LLAMA), "fork": call(serving("llama.cpp"), FORK)},
    "llama_cpp.buffers.window_cells": lambda: {"": call(serving("llama.cpp"), LLAMA, symbol("window"), symbol("ubatch"))},
    "llama_cpp.latent_fork.cell_bytes": lambda: {
        "no limit": call(first(LatentAttention, LATENT), 2, symbol("ubatch"), 0), "limit": call(first(LatentAttention, LATENT), 2, symbol("ubatch"), 512),
    },
    "llama_cpp.states.state_bytes": lambda: {"delta net": call(first(Block, "qwen3-next-80b-a3b"), serving("llama.cpp"))},
    "llama_cpp.weights._stored_tensor": lambda: {
        "Q4_K": call(0, "ffn_down", "down_proj", symbol("elements"), symbol("row"), GGUF["Q4_K"]), "F16": call(0, "ffn_down", "down_proj", symbol("elements"), symbol("row"), FP16),
    },
    "llama_cpp.lora.pairs_of": lambda: {"": call(spec(), LORAS)},
    "llama_cpp.lora.product_bytes": lambda: {"": call(spec(), adapted("llama.cpp"), symbol("computed"))},
    "llama_cpp.lora.lora_file_host_bytes": lambda: {"on the host": call(spec(), replace(adapted("llama.cpp"), options=LlamaCppOptions(gpu_layers=0)))},
}  # fmt: skip
MEGATRON: dict[str, Callable[[], Cases]] = {
    "megatron.layers.experts.capacity_of": lambda: {"factor 1.25": call(moe(), symbol("copies"), 1.25)},
    "megatron.layers.experts.expert_axes": lambda: {"": call(moe(), plan("megatron", MOE), pass_shape())},
    "megatron.layers.experts.local_experts": lambda: {"": call(moe(), plan("megatron", MOE))},
    "megatron.layers.experts.sent_copies": lambda: {
        "dropless": call(moe(), TOKENS, Routing()), "factor 1.25": call(moe(), TOKENS, Routing(capacity_factor=1.25)),
        "padded": call(moe(), TOKENS, Routing(capacity_factor=1.25, padded=True)),
    },
    "megatron.layers.experts.given_copies": lambda: {
        how.value: call(moe(), TOKENS, symbol("sent"), plan("megatron", MOE), Routing(spread=how)) for how in Spread
    },
}  # fmt: skip
SGLANG: dict[str, Callable[[], Cases]] = {
    "sglang.lora._embedding_lora_buffers": lambda: {"": call(spec(), serving("sglang").mesh, LORAS, frozenset({"embed_tokens", "lm_head"}))},
    "sglang.lora._expert_lora_buffers": lambda: {"": call(spec(MOE), serving("sglang", MOE).mesh, LORAS, frozenset({"gate_up_proj", "down_proj"}))},
    "sglang.lora.buffers_of": lambda: {"": call(spec(), serving("sglang").mesh, LORAS)},
    "sglang.lora.routed_bytes": lambda: {"": call(spec(MOE), serving("sglang", MOE), EXPERT_LORAS, TOKENS)},
    "sglang.attention_state.paged_tables": lambda: {"": call(TABLES)},
    "sglang.attention_state.flashinfer_bytes": lambda: {"": call(TABLES)},
    "sglang.attention_state.triton_bytes": lambda: {"": call(TABLES)},
    "sglang.graphs.kept_logits_bytes": lambda: {"160 sequences": call(160, symbol("width"))},
    "sglang.lora.routed_places_bytes": lambda: {"": call(spec(MOE), EXPERT_LORAS, symbol("captured"))},
    "sglang.lora.lora_pool_host_bytes": lambda: {"": call(spec(), adapted("sglang"))},
    "sglang.pool.cell_of": lambda: {
        "attention": call(spec(), serving("sglang"), sglang_release(None)),
        "latent": call(spec(LATENT), serving("sglang", LATENT), sglang_release(None)),
        "windows": call(spec("gpt-oss-20b"), serving("sglang", "gpt-oss-20b"), sglang_release(None)),
    },
    "sglang.pool.pool_bytes": lambda: {
        "whole": call(Cell(whole=symbol("whole"), window=0, reach=0), TOKENS, 1), "windows": call(replace(CELL, whole=0), TOKENS, symbol("page")),
        "both": call(CELL, TOKENS, symbol("page")),
    },
    "sglang.prefix.prefixed_layer": lambda: {"latent": call(spec(LATENT), serving("sglang", LATENT), sglang_release(None))},
    "sglang.server._token_pool_room_bytes": lambda: {"": call(serving("sglang"), SIZE, SIZE)},
    "sglang.server.host_bytes": lambda: {"": call(spec(), adapted("sglang"), None, 0)},
    "sglang.speculative.draft_buffer_bytes": lambda: {"draft": call(symbol("h"), drafted("sglang"), symbol("largest"))},
    "sglang.speculative.ahead_tokens": lambda: {"0.5": call(replace(drafted("sglang"), engine_version="0.5.4"))},
    "sglang.speculative.counted_layers": lambda: {"draft": call(with_draft(), drafted("sglang"), symbol("per_layer"))},
    "sglang.speculative.drafted_layer": lambda: {"draft": call(with_draft(), drafted("sglang"), TOKENS)},
    "sglang.speculative.loaded_first": lambda: {"draft": call(drafted("sglang"), [LOADED])},
    "sglang.states.states_of": lambda: {"": call(symbol("slot"), SIZE)},
    "sglang.states.slot_bytes": lambda: {"qwen3-next": call(spec("qwen3-next-80b-a3b"), serving("sglang", "qwen3-next-80b-a3b"))},
}  # fmt: skip
VLLM: dict[str, Callable[[], Cases]] = {
    "vllm.graphs.largest_recorded": lambda: {version: call(serving("vllm"), release_of(version), None) for version in ("0.6.4", "0.8", "0.33")},
    "vllm.graphs.recorded_bytes": lambda: {version: call(spec(), serving("vllm"), release_of(version), symbol("largest"), None) for version in ("0.6.4", "0.33")},
    "vllm.graphs.split_attention_bytes": lambda: {"": call(spec(), serving("vllm"), ROWS, None)},
    "vllm.graphs.split_result_bytes": lambda: {"": call(symbol("width"), ROWS, symbol("tp"))},
    "vllm.graphs.verified_rows": lambda: {"": call(drafted("vllm"), release_of(None))},
    "vllm.lora._embedding_lora_pairs": lambda: {"": call(spec(), replace(LORAS, targets=None), V0_11)},
    "vllm.lora._expert_lora_pairs": lambda: {"": call(spec(MOE), serving("vllm", MOE), LORAS)},
    "vllm.lora.adapter_bytes": lambda: {"": call(spec(), adapted("vllm"))},
    "vllm.lora.lora_host_bytes": lambda: {"": call(spec(), adapted("vllm"))},
    "vllm.server.host_bytes": lambda: {"": call(spec(), adapted("vllm"), None, 0)},
    "vllm.decode_context.gathered_bytes": lambda: {"latent": call(spec(LATENT), replace(serving("vllm", LATENT), options=VllmOptions(dcp=2)))},
    "vllm.lora.extra_words_bytes": lambda: {"0.11": call(spec(), adapted("vllm"), LORAS, V0_11)},
    "vllm.lora.lora_matrix_elements": lambda: {
        name: call(first(Weight), serving("vllm").mesh, replace(LORAS, sharded=sharded)) for name, sharded in (("half cut", False), ("fully sharded", True))
    },
    "vllm.lora.pairs_of": lambda: {"": call(spec(), adapted("vllm"), NEW)},
    "vllm.lora.places_bytes": lambda: {"": call(serving("vllm"), LORAS, symbol("tables"))},
    "vllm.lora_buffers.dense_bytes": lambda: {"": call(spec(), adapted("vllm"), NEW, TOKENS)},
    "vllm.lora_buffers.routed_bytes": lambda: {"in order": call(spec(MOE), adapted("vllm", MOE), NEW, TOKENS, in_order=True)},
    "vllm.server._available_kv_cache_bytes": lambda: {"": call(serving("vllm"), release_of(None), CARD, [LOADED])},
    "vllm.attention_buffers.latent_workspace_bytes": lambda: {"latent": call(spec(LATENT), serving("vllm", LATENT))},
    "vllm.attention_buffers.flashinfer_workspace_bytes": lambda: {"": call(spec(), serving("vllm"), NEW)},
    "vllm.attention_buffers.flashinfer_bytes": lambda: {"": call(spec(), serving("vllm"), NEW, symbol("largest"))},
    "vllm.speculative.decode_step_peak": lambda: {"": call(with_draft(), drafted("vllm"), release_of(None), TOKENS)},
    "vllm.speculative.drafting_run_peak": lambda: {"": call(PEAK, with_draft(), drafted("vllm"), TOKENS)},
    "vllm.speculative.proposer_bytes": lambda: {"": call(draft_of(with_draft(), drafted("vllm")), drafted("vllm"), second=False, embeds=True)},  # type: ignore[arg-type]
    "vllm.speculative.ahead_of": lambda: {"": call(drafted("vllm"))},
    "vllm.speculative.chunk_rows": lambda: {"": call(symbol("width"))},
}  # fmt: skip
EXPERT_LORAS = replace(LORAS, targets=("gate_proj", "up_proj", "down_proj"))
CASES = {**SMALL, **LLAMA_CPP, **MEGATRON, **SGLANG, **VLLM}
