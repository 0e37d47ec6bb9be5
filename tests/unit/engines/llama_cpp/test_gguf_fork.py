"""The types that ik_llama.cpp's quantizer gives, and where its experts are computed with."""

from __future__ import annotations

from typing import Any

import pytest

from memsheet.engines.llama_cpp.buffers import buffers_of
from memsheet.engines.llama_cpp.gguf_fork import FORK_MIXES, fork_end, fork_type
from memsheet.engines.llama_cpp.gguf_mixes import Where, gguf_named, matrix_type
from memsheet.engines.llama_cpp.placement import LayerDevices, placed_tensors
from memsheet.engines.llama_cpp.weights import stored_tensors
from memsheet.errors import InputError
from memsheet.plan.dtypes import GGUF
from memsheet.plan.plan import Plan
from memsheet.questions.accounted import infer
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request

FORK = "ik_llama.cpp fork, 2025"
LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8,
}  # fmt: skip
MOE: dict[str, Any] = {
    "model_type": "qwen3_moe", "vocab_size": 4096, "hidden_size": 1024, "intermediate_size": 2048, "moe_intermediate_size": 512,
    "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64, "num_experts": 64, "num_experts_per_tok": 8,
    "max_position_embeddings": 8192,
}  # fmt: skip
EIGHT = Where(layer=9, layers=32, grouped=4, experts=0, family="llama", vocab=128256)
SPARSE = Where(layer=9, layers=48, grouped=8, experts=128, family="qwen3_moe", vocab=151936)


def asked(config: dict[str, Any], **keys: Any) -> Any:
    spec = read_hf_config(config, name="m")
    request = {
        "task": "infer",
        "engine": "llama.cpp",
        "serving.max_model_len": 4096,
        **{k.replace("__", "."): v for k, v in keys.items()},
    }
    return spec, resolve_request(request, spec).plan


def test_five_bits_of_a_model_of_eight_billion() -> None:
    """Values in six bits, queries in four, and so less than its main type."""
    assert [
        fork_type("Q5_K_S", kind, EIGHT, 4096) for kind in ("attn_q", "attn_k", "attn_v", "ffn_down")
    ] == [
        "Q4_K",
        "Q5_K",
        "Q6_K",
        "Q5_K",
    ]
    assert matrix_type("Q5_K_S", "attn_q", EIGHT, 4096) == "Q5_K"
    spec, plan = asked(LLAMA, engine_version=FORK, quantization__weights="gguf:Q5_K_S")
    _, main = asked(LLAMA, quantization__weights="gguf:Q5_K_S")
    here, there = (sum(t.nbytes for t in stored_tensors(spec, p)) for p in (plan, main))
    assert there - here == 32 * (4096 * 4096 * (176 - 144) - 4096 * 1024 * (210 - 176)) // 256


@pytest.mark.parametrize(("words", "layers"), [(32000, 32), (128256, 28), (49152, 32)])
def test_other_sizes_keep_their_main_type(words: int, layers: int) -> None:
    where = Where(layer=3, layers=layers, grouped=1, experts=0, family="llama", vocab=words)
    assert [fork_type("Q5_K_S", kind, where, 4096) for kind in ("attn_q", "attn_v")] == ["Q5_K", "Q5_K"]


def test_attention_beside_many_experts_is_in_eight_bits() -> None:
    found = [
        fork_type("Q4_K_M", kind, SPARSE, 2048)
        for kind in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate")
    ]
    assert found == ["Q8_0", "Q8_0", "Q5_K", "Q5_K", "Q4_K"]
    assert fork_type("Q8_0", "attn_q", SPARSE, 2048) == "Q8_0"


@pytest.mark.parametrize("mix", FORK_MIXES)
def test_every_mix_names_types_that_exist(mix: str) -> None:
    for where in (
        EIGHT,
        SPARSE,
        Where(layer=0, layers=80, grouped=8, experts=8, family="llama", vocab=128256),
    ):
        for kind in (
            "attn_q",
            "attn_k",
            "attn_v",
            "attn_qkv",
            "attn_output",
            "ffn_gate",
            "ffn_up",
            "ffn_down",
        ):
            for row in (4096, 2880):
                assert fork_type(mix, kind, where, row) in GGUF
    assert {fork_end(mix, output=o, tied=t, row=4096) for o in (True, False) for t in (True, False)} <= set(
        GGUF
    )
    assert gguf_named(mix) is not None


def test_a_table_of_tokens_is_never_interleaved() -> None:
    assert fork_end("IQ4_K_R4", output=False, tied=False, row=4096) == "IQ4_K"
    assert fork_end("IQ3_K", output=True, tied=False, row=4096) == "Q5_K"


def test_rows_side_by_side_take_no_more() -> None:
    assert all(GGUF[f"IQ{bits}_K_R4"].bits == GGUF[f"IQ{bits}_K"].bits for bits in (2, 3, 4, 5))


def test_a_share_of_experts_is_off_every_device() -> None:
    spec, plan = asked(MOE, mesh__pp=2, offload__parameters=0.5, engine_version=FORK)
    tensors = stored_tensors(spec, plan)
    where = LayerDevices(layers=(0, 0, 0, 0, 1, 1, 1, 1), output=1, host=2)

    def layers_on_host(counted: Plan) -> set[int]:
        return {t.layer for t in placed_tensors(spec, counted, tensors, where) if t.device == where.host}

    layers = layers_on_host(plan)
    assert len(layers) % 2 == 0
    assert (
        {layer - 4 for layer in layers if layer > 3}
        == {layer for layer in layers if layer < 4}
        == set(range(len(layers) // 2))
    )
    _, counted = asked(MOE, mesh__pp=2, serving__host_experts=3)
    assert layers_on_host(counted) == {0, 1, 2}


def test_types_that_cards_compute_with_in_both_layouts_are_copied() -> None:
    """Others may be, or are, in a layout of the host's alone, and are computed with there."""
    common = {"offload__parameters": 0.4, "engine_version": FORK, "serving__max_batched_tokens": 512}
    sizes = {}
    for kind in ("IQ4_K", "IQ4_K_R4", "Q4_K_M"):
        spec, plan = asked(MOE, quantization__weights=f"gguf:{kind}", **common)
        sizes[kind] = buffers_of(spec, plan).compute[0]
    for kind in ("Q4_K_M", "IQ4_K_R4"):
        assert sizes[kind].low == sizes[kind].value < sizes[kind].high
    assert (sizes["IQ4_K"].low, sizes["IQ4_K"].high) == (sizes["IQ4_K_R4"].low, sizes["IQ4_K_R4"].high)
    assert sizes["IQ4_K"].low < sizes["IQ4_K"].value <= sizes["IQ4_K"].high


def test_its_own_flash_attention_runs_on_older_cards() -> None:
    assert infer(
        "llama-3.2-1b", gpus="1xT4", engine="llama.cpp", attention="flash", max_model_len=4096
    ).sheets
    with pytest.raises(InputError, match="compute capability"):
        infer("llama-3.2-1b", gpus="1xT4", engine="transformers", attention="flash", max_model_len=4096)
