"""Latent attention in ik_llama.cpp: what it unpacks at once, what it caches, and the halves of the matrix
that unpacks.
"""

from __future__ import annotations

from typing import Any

import pytest

from memsheet.engines.llama_cpp.buffers import Buffers, buffers_of
from memsheet.engines.llama_cpp.latent_fork import cell_bytes, heads_at_once
from memsheet.engines.llama_cpp.options import llama_cpp_options
from memsheet.engines.llama_cpp.weights import stored_tensors
from memsheet.errors import InputError
from memsheet.plan.document import plan_document
from memsheet.plan.model import LatentAttention
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_document, resolve_request
from memsheet.units import MIB

DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "tie_word_embeddings": False,
}  # fmt: skip
FEW = {**DEEPSEEK, "num_hidden_layers": 4, "n_routed_experts": 16}
FORK = "ik_llama.cpp fork, 2025"


def asked(config: dict[str, Any], **serving: Any) -> tuple[Any, Any]:
    spec = read_hf_config(config, name="m")
    keys = {"serving.max_model_len": 32768, **{f"serving.{key}": value for key, value in serving.items()}}
    common = {
        "task": "infer",
        "engine": "llama.cpp",
        "engine_version": FORK,
        "attention": "flash",
        "quantization.weights": "gguf:Q8_0",
    }
    return spec, resolve_request({**common, **keys}, spec).plan


def buffers(config: dict[str, Any] = FEW, **serving: Any) -> Buffers:
    return buffers_of(*asked(config, **{"mla_mode": 3, **serving}))


@pytest.mark.parametrize(
    ("options", "devices"),
    [
        ({"kv_dtype": "q8_0", "attn_max_batch": 512, "max_batched_tokens": 512}, (3425.0, 176.01)),
        ({"attn_max_batch": 512, "max_batched_tokens": 4096}, (4104.02, 1408.05)),
    ],
)
def test_the_buffer_is_the_one_that_the_fork_printed(
    options: dict[str, Any], devices: tuple[float, float]
) -> None:
    """Experts computed with on the host; where they are copied it printed the same on the card, and 624.05 on
    the host.
    """
    found = buffers(DEEPSEEK, host_experts=61, **options)
    ends = {round(end / MIB, 2) for end in (found.compute[0].low, found.compute[0].value)}
    assert (ends, round(found.compute[1].value / MIB, 2)) == ({devices[0]}, devices[1])
    if options["max_batched_tokens"] > 512:
        assert round(found.compute[1].low / MIB, 2) == 624.05


def test_heads_are_halved_until_they_are_few_enough() -> None:
    [mixer] = {
        m for s in read_hf_config(FEW, name="m").stacks for r in s.runs for b in r.pattern for m in b.mixers
    }
    assert isinstance(mixer, LatentAttention)
    assert [heads_at_once(mixer, 32768, limit) for limit in (0, 4096, 2048, 512, 1)] == [128, 128, 64, 16, 1]


def test_fewer_heads_at_once_take_less() -> None:
    sizes = [buffers(attn_max_batch=limit).compute[0].value for limit in (0, 1024, 512)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[1] > sizes[2]


@pytest.mark.parametrize("limit", [0, 512])
def test_a_cell_grows_the_buffer_by_no_more_than_it_is_said_to(limit: int) -> None:
    """Sequences that have room are counted with it: 65,536 cells more, against buffers of both lengths."""
    spec, plan = asked(FEW, mla_mode=3, attn_max_batch=limit)
    [mixer] = set(spec.mixers())
    assert isinstance(mixer, LatentAttention)
    short, long = (buffers(attn_max_batch=limit, max_model_len=n).compute[0].value for n in (65536, 131072))
    column = 6 * (plan.serving.max_batched_tokens or 512)
    assert long - short <= 65536 * (cell_bytes(mixer, 3, 512, limit) + column)
    assert long - short >= 65536 * 2 * 128 * (192 + 128)
    assert cell_bytes(mixer, 1, 512, limit) == cell_bytes(mixer, 3, 64, limit) == 0


def test_short_batches_and_the_first_mode_unpack_nothing() -> None:
    absorbed = buffers(mla_mode=1, attn_max_batch=512).compute[0].value
    assert absorbed < buffers(attn_max_batch=512).compute[0].value
    assert buffers(max_batched_tokens=64) == buffers(max_batched_tokens=64, mla_mode=1)


@pytest.mark.parametrize("mode", [1, 2, 3])
def test_latents_are_cached_alone(mode: int) -> None:
    keys, values = buffers(mla_mode=mode).caches[0]
    assert (keys, values) == (4 * 32768 * (512 + 64) * 2, 0)


def test_the_halves_lie_beside_the_matrix() -> None:
    spec, plan = asked(FEW, mla_mode=3)
    _, plain = asked(FEW)
    more = sum(t.nbytes for t in stored_tensors(spec, plan)) - sum(
        t.nbytes for t in stored_tensors(spec, plain)
    )
    assert more == 4 * 128 * (128 + 128) * 512 * 34 // 32
    assert {t.kind for t in stored_tensors(spec, plan)} - {t.kind for t in stored_tensors(spec, plain)} == {
        "attn_k_b",
        "attn_v_b",
    }


def test_all_but_the_experts_in_eight_bits_is_what_was_printed() -> None:
    spec, plan = asked(DEEPSEEK, mla_mode=3)
    on_card = sum(t.on_device for t in stored_tensors(spec, plan) if not t.expert and t.kind != "token_embd")
    assert abs(on_card / MIB - 17744.02) < 0.05


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"attention": "eager", "serving.mla_mode": 3}, "without flash attention"),
        ({"serving.mla_mode": 0}, "without --mla-mode"),
        ({"serving.mla_mode": 3, "engine_version": "b9999"}, "the fork's alone"),
        ({"serving.attn_max_batch": 512, "engine_version": "b9999"}, "the fork's alone"),
        ({"serving.mla_mode": 4}, "mla_mode"),
    ],
)
def test_ways_that_are_not_written_out_are_refused(keys: dict[str, Any], match: str) -> None:
    spec = read_hf_config(FEW, name="m")
    common = {
        "task": "infer",
        "engine": "llama.cpp",
        "engine_version": FORK,
        "attention": "flash",
        "serving.max_model_len": 4096,
    }
    with pytest.raises(InputError, match=match):
        buffers_of(spec, resolve_request({**common, **keys}, spec).plan)


def test_a_plan_reads_back() -> None:
    spec, plan = asked(FEW, mla_mode=2, attn_max_batch=256)
    assert (llama_cpp_options(plan).mla_mode, llama_cpp_options(plan).attn_max_batch) == (2, 256)
    assert resolve_document(plan_document(plan), spec) == plan
