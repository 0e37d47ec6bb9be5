"""llama.cpp's buffers: the allocator's rules on small graphs, the sums a reader can do, and what is
refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gguf_files import GROUPED, write_gguf
from memsheet import infer
from memsheet.catalog.names import bundled_entry
from memsheet.catalog.stored_names import storage_of_tag
from memsheet.engines.llama_cpp.buffers import Facts, blocks_of, cache_of
from memsheet.engines.llama_cpp.build import Reserved
from memsheet.engines.llama_cpp.facts import device_layer_counts
from memsheet.engines.llama_cpp.ggml import LARGEST, Buffer, Graph, Tensor, buffer_sizes
from memsheet.engines.llama_cpp.ggml_devices import compute_buffers
from memsheet.engines.llama_cpp.gguf_mixes import LOW_OUTPUT, MIXES, Where, end_type, gguf_named, matrix_type
from memsheet.engines.llama_cpp.graph import reserved_graph
from memsheet.engines.llama_cpp.splits import dealt_layers, device_at, split_points
from memsheet.engines.llama_cpp.weights import Stored, stored_tensors
from memsheet.errors import InputError
from memsheet.plan.document import plan_document
from memsheet.readers.hf_config import read_hf_config
from memsheet.report.screen.table import render_answer
from memsheet.report.shared.look import Look
from memsheet.resolve import resolve_document, resolve_request
from memsheet.sheet import Component, Instant

MIB = 2**20
LLAMA = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "tie_word_embeddings": False,
}  # fmt: skip
GEMMA = {
    "model_type": "gemma3_text", "vocab_size": 262208, "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512, "max_position_embeddings": 32768,
    "layer_types": [*["sliding_attention"] * 5, "full_attention"], "tie_word_embeddings": True,
}  # fmt: skip
MOE = {
    "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 4,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 16, "num_experts_per_tok": 4,
    "moe_intermediate_size": 768, "tie_word_embeddings": False, "max_position_embeddings": 40960,
}  # fmt: skip


def served(config: dict[str, Any], **options: Any) -> Any:
    asked = {"engine": "llama.cpp", "max_model_len": 4096, "attention": "flash", **options}
    return infer(config, **asked)


def held(answer: Any, component: Component, sheet: int = 0) -> int:
    return int(answer.sheets[sheet].of(component, instant=Instant.DECODE).value)


# ---- the allocator -----------------------------------------------------------------------------------------


def test_the_smallest_gap_that_holds_a_tensor_takes_it():
    buffer = Buffer()
    places = [buffer.place(size) for size in (1024, 128, 512, 128, 256)]
    buffer.free(places[0], 1024)
    buffer.free(places[2], 512)
    assert buffer.place(384) == places[2]  # not the gap of 1024 before it
    assert buffer.place(2048) == buffer.size - 2048  # behind everything


def test_everything_freed_is_one_gap_again():
    buffer = Buffer()
    sizes = (100, 300, 5000, 1)
    places = [buffer.place(size) for size in sizes]
    for number in (1, 3, 0, 2):
        buffer.free(places[number], sizes[number])
    assert buffer.gaps == [(0, LARGEST)]


def chain(*ops: str, nbytes: int = 1024) -> Graph:
    graph, last = Graph(), Tensor(nbytes=nbytes, layout=("f32", 256), given=True, device=0)
    for op in ops:
        last = Tensor(nbytes=nbytes, layout=("f32", 256), op=op, sources=[last], device=0)
    graph.expand(last)
    return graph


def test_operations_that_write_over_their_operand_take_no_room():
    graph = chain("mul", "scale", "add")
    assert buffer_sizes(graph.nodes, graph.leaves, 1) == [1024]
    graph = chain("mul_mat", "mul_mat")
    assert buffer_sizes(graph.nodes, graph.leaves, 1) == [2048]


def test_an_operand_that_is_read_later_is_not_written_over():
    graph = Graph()
    x = Tensor(nbytes=1024, layout=("f32", 256), given=True, device=0)
    doubled = Tensor(nbytes=1024, layout=("f32", 256), op="mul", sources=[x], device=0)
    graph.expand(Tensor(nbytes=1024, layout=("f32", 256), op="add", sources=[doubled, x], device=0))
    assert buffer_sizes(graph.nodes, graph.leaves, 1) == [2048]


def test_weights_on_the_host_are_copied_where_a_batch_is_long():
    for rows, expected in ((32, 5 * 2**10), (31, 0)):
        graph = Graph()
        weight = Tensor(nbytes=2**12, held=1, weight=True)
        x = Tensor(nbytes=512, layout=("f32", 128), given=True)
        graph.expand(Tensor(nbytes=512, layout=("f32", 128), op="mul_mat", sources=[weight, x], rows=rows))
        assert compute_buffers(graph, 2)[0] == expected


# ---- whole models ------------------------------------------------------------------------------------------


def test_the_three_buffers_of_a_model_that_a_reader_can_add_up():
    answer = served(LLAMA, quantize="gguf:Q8_0", max_model_len=8192, engine_version="b7342")
    matrices = 32 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 4096 * 14336) + 128256 * 4096
    assert (
        held(answer, Component.PARAMETERS) == matrices * 34 // 32 + 4 * 4096 * 65
    )  # the table of tokens stays on the host
    assert held(answer, Component.KV_CACHE) == 8192 * 32 * 2 * 1024 * 2
    assert held(answer, Component.TEMPORARIES) == 512 * 4 * (128256 + 4096)  # logits behind the last norm


def test_one_position_a_sequence_gives_logits_since_june_2026():
    sizes = [
        held(served(LLAMA, engine_version=version), Component.TEMPORARIES)
        for version in ("b7342", "b9993", None)
    ]
    assert sizes[0] > 512 * 4 * 128256 > 2 * sizes[1]
    assert sizes[1] == sizes[2]


def test_the_fork_has_one_more_hidden_state_before_its_logits():
    answer = served(LLAMA, quantize="gguf:Q8_0", engine_version="ik_llama.cpp")
    assert held(answer, Component.TEMPORARIES) == 512 * 4 * (128256 + 2 * 4096)


def test_scores_of_all_heads_without_flash_attention():
    plain, flash = (
        held(served(LLAMA, attention=how, max_model_len=32768), Component.TEMPORARIES)
        for how in ("eager", "flash")
    )
    assert plain > 32 * 512 * 32768 * 4 > flash


def test_sequences_share_or_divide_a_context():
    one, four = (served(LLAMA, sequences=n) for n in (1, 4))
    assert held(one, Component.KV_CACHE) == held(four, Component.KV_CACHE)
    assert one.serving["kv_bytes_per_token"] == four.serving["kv_bytes_per_token"] == 32 * 2 * 1024 * 2
    assert any("together" in line for line in four.assumed)
    cells = {
        ("b7342", 4): 32768 + 5 * 2560,
        (None, 4): 32768 + 4 * 5 * 1024,
        (None, 1): 32768 + 5 * 1024,
    }  # windows of 512 and a batch of 512
    for (version, sequences), expected in cells.items():
        answer = served(GEMMA, sequences=sequences, max_model_len=32768, engine_version=version)
        assert held(answer, Component.KV_CACHE) == 1024 * expected


def test_contexts_are_padded_to_256_cells():
    assert held(served(LLAMA, max_model_len=1000), Component.KV_CACHE) == held(
        served(LLAMA, max_model_len=1024), Component.KV_CACHE
    )


def test_keys_and_values_of_two_types():
    both = held(served(LLAMA, kv_dtype="q8_0"), Component.KV_CACHE)
    keys = held(served(LLAMA, k_dtype="q8_0"), Component.KV_CACHE)
    plain = held(served(LLAMA), Component.KV_CACHE)
    assert both * 32 == plain * 17
    assert 2 * keys == both + plain


def test_layers_are_dealt_with_the_output_counted_as_one():
    assert device_layer_counts(48, 2, None) == (25, 23)
    assert device_layer_counts(2, 4, None) is None
    answer = served(LLAMA, gpus="2xRTX4090")
    assert answer.plan.mesh.pp == 2
    caches = [held(answer, Component.KV_CACHE, n) for n in (0, 1)]
    assert [c * 32 // sum(caches) for c in caches] == [17, 15]


@pytest.mark.parametrize(
    ("shares", "layers", "output"),
    [
        ("3,1", (25, 7), 1),
        ("1/1", (17, 15), 1),
        ("1", (32, 0), 0),
        ("0,1", (0, 32), 1),
        ("32,1", (32, 0), 1),
        ("0.7,0.3", (24, 8), 1),
    ],
)
def test_shares_deal_layers_and_the_output(shares: str, layers: tuple[int, ...], output: int):
    """llama-model.cpp load_tensors: the first device whose part ends behind a layer's place among all and the
    output.
    """
    assert dealt_layers(32, 2, {"serving.tensor_split": shares}) == layers
    ends = split_points(shares, 2)
    assert ends is not None
    assert device_at(ends, 32, 33) == output
    answer = served(LLAMA, gpus="2xRTX4090", tensor_split=shares)
    found = [held(answer, Component.KV_CACHE, number) for number in range(2)]
    assert found == [count * 2 * 1024 * 2 * 4096 for count in layers]


def test_one_device_has_all_and_the_other_a_context_at_most():
    answer = served(LLAMA, gpus="2xRTX4090", split_mode="none", main_gpu=1)
    first, second = answer.sheets
    assert {item.component for item in first.items} == {Component.CONTEXT}
    alone = served(LLAMA, gpus="1xRTX4090").sheets[0]
    assert second.device == alone.device
    assert (first.host_bytes, second.host_bytes) == (0, alone.host_bytes)


@pytest.mark.parametrize(
    "split",
    [{}, {"tensor_split": "1,3"}, {"tensor_split": "3,1"}, *({"split_mode": "none", "main_gpu": n} for n in (0, 1))],
)  # fmt: skip
def test_host_memory_is_said_however_layers_are_dealt(split: dict[str, Any]):
    answer = served(LLAMA, gpus="2xRTX4090", **split)
    assert "Host memory: " in render_answer(answer, Look(width=100))


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"tensor_split": "much"}, "tensor_split"),
        ({"tensor_split": "3,1", "split_mode": "none"}, "tensor_split"),
        ({"main_gpu": 1}, "main_gpu"),
        ({"split_mode": "none", "main_gpu": 2}, "main_gpu"),
    ],
)
def test_shares_that_deal_nothing_are_refused(asked: dict[str, Any], field: str):
    with pytest.raises(InputError, match=field):
        served(LLAMA, gpus="2xRTX4090", **asked)


def test_a_pipeline_holds_four_copies_of_its_inputs():
    one, two = (
        served(LLAMA, gpus="1xRTX4090", max_model_len=65536),
        served(LLAMA, gpus="2xRTX4090", max_model_len=65536),
    )
    mask = 512 * 65536 * 2
    assert held(two, Component.TEMPORARIES, 0) > 4 * mask
    assert held(two, Component.TEMPORARIES, 1) > held(one, Component.TEMPORARIES) + 2 * mask


def test_fewer_layers_on_the_device_take_less_there():
    weights = [held(served(LLAMA, gpu_layers=n), Component.PARAMETERS) for n in (0, 1, 16, 33)]
    assert weights[0] == 0 < weights[1] < weights[2] < weights[3]
    assert weights[1] == 128256 * 4096 * 2 + 4096 * 4  # the output goes first
    older = held(served(LLAMA, gpu_layers=1, engine_version="b7342"), Component.PARAMETERS)
    assert older * 32 == (held(served(LLAMA, gpu_layers=32, engine_version="b7342"), Component.PARAMETERS))


def test_experts_on_the_host():
    here, there = (held(served(MOE, host_experts=n), Component.PARAMETERS) for n in (0, 4))
    assert here - there == 4 * 16 * 3 * 2048 * 768 * 2


def test_the_lines_that_llama_cpp_prints():
    lines = "\n".join(served(LLAMA, quantize="gguf:Q8_0", gpus="1xRTX4090").serving["start_up"])
    assert "CUDA0 KV buffer size =   512.00 MiB" in lines
    assert "CUDA0 compute buffer size =   120.01 MiB" in lines
    assert "CUDA_Host compute buffer size" in lines


# ---- files and mixes ---------------------------------------------------------------------------------------


def small_file(path: Path) -> Path:
    rows = {
        "attn_q": (64, 64),
        "attn_k": (32, 64),
        "attn_v": (32, 64),
        "attn_output": (64, 64),
        "ffn_gate": (160, 64),
        "ffn_up": (160, 64),
        "ffn_down": (64, 160),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (96, 64),
        "output.weight": (96, 64),
        "output_norm.weight": (64,),
    }
    for layer in range(3):
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in rows.items()}
        shapes |= {f"blk.{layer}.{name}.weight": (64,) for name in ("attn_norm", "ffn_norm")}
    write_gguf(path, "llama", GROUPED, shapes, quantized=True)
    return path


def test_a_file_is_held_as_it_is_stored(tmp_path: Path):
    answer = served(str(small_file(tmp_path / "m.gguf")), max_model_len=128)  # type: ignore[arg-type]

    def taken(rows: int, width: int) -> int:
        """With the last row to 512 elements, from a multiple of 128 bytes to the next."""
        return -(-(rows * width + -width % 512) * 18 // 32 // 128) * 128

    matrices = 2 * taken(64, 64) + 2 * taken(32, 64) + 2 * taken(160, 64) + taken(64, 160)
    assert held(answer, Component.PARAMETERS) == 3 * matrices + taken(96, 64) + 7 * 64 * 4
    size = answer.sheets[0].of(Component.PARAMETERS, instant=Instant.LOAD)
    assert size.low == size.value == size.high


def test_a_mix_is_more_than_its_main_type():
    plain, mixed = (
        served(LLAMA, quantize=f"gguf:{name}").sheets[0].of(Component.PARAMETERS, instant=Instant.LOAD)
        for name in ("Q4_K", "Q4_K_M")
    )
    assert plain.value < mixed.value == mixed.high
    assert mixed.low <= plain.value


@pytest.mark.parametrize("mix", MIXES)
def test_every_mix_names_types_that_exist(mix: str):
    where = [
        Where(layer=n, layers=80, grouped=g, experts=e)
        for n in range(0, 80, 9)
        for g in (1, 8)
        for e in (0, 8)
    ]
    for kind in ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_down", "ffn_up"):
        for row in (4096, 160):
            assert all(gguf_named(matrix_type(mix, kind, w, row)) for w in where)
    assert gguf_named(mix) is not None
    assert end_type(mix, output=True, row=4096) == ("Q5_K" if mix in LOW_OUTPUT else "Q6_K")
    assert gguf_named(end_type(mix, output=False, row=160)) is not None


FILES = ("gguf:BF16", "gguf:F16", "gguf:MXFP4", "gguf:Q8_0", "gguf:Q6_K", "gguf:Q4_K_M", "gguf:Q2_K", "mxfp4")


@pytest.mark.parametrize("weights", FILES)
def test_every_file_of_gpt_oss_keeps_its_experts(weights: str):
    tensors = read_tensors("gpt-oss-120b", **{"quantization.weights": weights})
    held = sum(t.nbytes for t in tensors if t.expert)
    assert held == 36 * 128 * 3 * 2880**2 * 17 // 32
    assert {t.type_name for t in tensors if t.expert and t.kind.startswith("ffn") and t.nbytes > 2**29} == {
        "gguf:MXFP4"
    }


@pytest.mark.parametrize("tag", ["F16", "Q4_K_M", "Q8_0", "UD-Q4_K_XL", "MXFP4"])
def test_a_name_with_types_is_the_model_stored_so(tag: str):
    types = storage_of_tag(tag).quantization["weights"]
    named = read_tensors(f"unsloth/gpt-oss-20b-GGUF:{tag}")
    assert sum(t.nbytes for t in named) == sum(
        t.nbytes for t in read_tensors("gpt-oss-20b", **{"quantization.weights": f"gguf:{types}"})
    )


def test_a_file_in_mxfp4_has_the_experts_alone_in_it():
    kinds = {
        (t.expert, t.type_name)
        for t in read_tensors(MOE, **{"quantization.weights": "gguf:MXFP4"})
        if t.type_name != "fp32"
    }
    assert kinds == {(True, "gguf:MXFP4"), (False, "gguf:Q8_0")}


def read_tensors(model: Any, **asked: Any) -> tuple[Stored, ...]:
    """The tensors that llama.cpp reads of a model."""
    spec = read_hf_config(bundled_entry(model)["config"] if isinstance(model, str) else model)
    request = {"task": "infer", "engine": "llama.cpp", **asked}
    return stored_tensors(spec, resolve_request(request, spec).plan)


def test_the_last_eighths_and_every_third_layer_get_more_bits():
    types = [
        matrix_type("Q4_K_M", "ffn_down", Where(layer=n, layers=32, grouped=4, experts=0), 14336)
        for n in range(32)
    ]
    assert types.count("Q6_K") == 16
    assert types[:4] == types[28:] == ["Q6_K"] * 4


@pytest.mark.parametrize(
    ("mix", "layers", "wide"),
    [
        ("Q4_K_M", 32, [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]),
        ("Q4_K_M", 26, [0, 1, 2, 5, 8, 11, 14, 17, 20, 22, 23, 24, 25]),
        ("Q4_K_S", 32, [0, 1, 2, 3]),
        ("Q4_K_S", 26, [0, 1, 2]),
        ("Q3_K_M", 32, [0, 1]),
        ("Q3_K_M", 26, [0]),
    ],
)
def test_which_layers_get_more_bits(mix: str, layers: int, wide: list[int]):
    """src/llama-quant.cpp, use_more_bits: i < n/8, i >= 7n/8 or (i - n/8) % 3 == 2, in whole numbers: of 26
    the first 3, those from 182/8 = 22 on, and every third from 5. Q4_K_S: i < n/8; Q3_K_M: i < n/16.
    """
    more = {"Q4_K_M": "Q6_K", "Q4_K_S": "Q5_K", "Q3_K_M": "Q5_K"}[mix]
    types = [
        matrix_type(mix, "ffn_down", Where(layer=n, layers=layers, grouped=4, experts=0), 14336)
        for n in range(layers)
    ]
    assert [n for n, found in enumerate(types) if found == more] == wide


@pytest.mark.parametrize(
    ("mix", "kind", "where", "found"),
    [
        ("Q3_K_M", "attn_v", {"layer": 1}, "Q5_K"), ("Q3_K_M", "attn_v", {"layer": 2}, "Q4_K"),
        ("Q4_K_S", "attn_v", {"layer": 3}, "Q5_K"), ("Q4_K_S", "attn_v", {"layer": 4}, "Q4_K"),
        ("Q2_K", "attn_v", {"grouped": 4}, "Q4_K"), ("Q2_K", "attn_v", {"grouped": 3}, "Q3_K"),
        ("Q4_K_M", "attn_output", {"experts": 8}, "Q5_K"), ("Q4_K_M", "attn_output", {"experts": 16}, "Q4_K"),
    ],
)  # fmt: skip
def test_which_matrices_get_more_bits(mix: str, kind: str, where: dict[str, int], found: str):
    """src/llama-quant.cpp, llama_tensor_get_type: the first two or four layers' values, those that four query
    heads share, outputs beside eight experts.
    """
    assert (
        matrix_type(mix, kind, Where(**{"layer": 9, "layers": 32, "grouped": 1, "experts": 0, **where}), 4096)
        == found
    )


# ---- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"kv_dtype": "q8_0", "attention": "eager"}, "serving.kv_dtype"),
        ({"kv_dtype": "fp8"}, "serving.kv_dtype"),
        ({"page_tokens": 16}, "serving.page_tokens"),
        ({"tp": 2}, "mesh.tp"),
        ({"plan": {"serving": {"max_sequences": 257}}}, "serving.max_sequences"),
        ({"quantize": "gguf:Q9_Z"}, "quantization.weights"),
        ({"plan": {"serving": {"mla_mode": 2}}}, "serving.mla_mode"),
        ({"plan": {"serving": {"fused_moe": True}}}, "serving.fused_moe"),
    ],
)
def test_what_llama_cpp_does_not_have_is_refused_by_name(options: dict[str, Any], field: str):
    with pytest.raises(InputError) as caught:
        served(LLAMA, **options)
    assert field in [problem.field for problem in caught.value.problems]


def test_a_mix_belongs_to_llama_cpp():
    with pytest.raises(InputError, match="mix of types"):
        infer(LLAMA, engine="transformers", max_model_len=128, quantize="gguf:Q4_K_M")


def test_transformers_unpacks_what_llama_cpp_keeps_packed():
    packed, plain = infer(LLAMA, max_model_len=128, quantize="gguf:Q8_0"), infer(LLAMA, max_model_len=128)
    assert held(packed, Component.PARAMETERS) == held(plain, Component.PARAMETERS)
    assert any("unpacks a GGUF file" in line for line in packed.assumed)


def test_layers_without_a_list_of_operations_are_refused():
    with pytest.raises(InputError, match=r"no list of operations here for .*: llama.cpp may run them"):
        served(
            {
                "model_type": "mamba",
                "vocab_size": 50280,
                "hidden_size": 768,
                "num_hidden_layers": 2,
                "state_size": 16,
                "intermediate_size": 1536,
                "conv_kernel": 4,
                "time_step_rank": 48,
            }
        )


def test_reading_needs_no_file():
    assert read_hf_config(LLAMA, name="x").source.tensors == ()


def test_a_context_that_nobody_names_is_the_training_context():
    answer = infer(LLAMA, engine="llama.cpp")
    assert answer.plan.serving.max_model_len == LLAMA["max_position_embeddings"]
    assert any("max_model_len = 131072" in line for line in answer.assumed)
    assert held(answer, Component.KV_CACHE) == 32 * 131072 * 2 * 1024 * 2


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"gpus": "2xRTX4090", "tensor_split": "3,1"},
        {"gpus": "2xRTX4090", "split_mode": "none", "main_gpu": 1},
    ],
)
def test_a_plan_reads_back_as_it_was_written(more: dict[str, Any]):
    asked = {
        "quantize": "gguf:Q4_K_M",
        "k_dtype": "q8_0",
        "gpu_layers": 20,
        "max_batched_tokens": 1024,
        **more,
    }
    answer = served(LLAMA, **asked)
    again = resolve_document(plan_document(answer.plan), answer.model)
    assert again == answer.plan


LATENT = {
    "model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 2048, "intermediate_size": 4096, "num_hidden_layers": 3,
    "num_attention_heads": 16, "num_key_value_heads": 16, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 16, "num_experts_per_tok": 4, "n_shared_experts": 1,
    "moe_intermediate_size": 512, "first_k_dense_replace": 1, "tie_word_embeddings": False, "max_position_embeddings": 163840,
}  # fmt: skip


def test_latents_are_cached_once_with_their_rotary_part():
    answer = served(LATENT)
    assert held(answer, Component.KV_CACHE) == 3 * 4096 * 576 * 2
    assert answer.serving["kv_bytes_per_token"] == 3 * 576 * 2
    older = served(LATENT, engine_version="b7342")
    assert held(older, Component.KV_CACHE) == 3 * 4096 * (576 + 512) * 2


def test_the_forks_latent_attention_is_refused():
    with pytest.raises(InputError, match="latent attention in the fork"):
        served(LATENT, engine_version="ik_llama.cpp")


def test_what_the_devices_do_not_hold_is_on_the_host():
    whole, none = served(LLAMA, quantize="gguf:Q8_0"), served(LLAMA, quantize="gguf:Q8_0", gpu_layers=0)
    table = 128256 * 4096 * 34 // 32
    assert table < whole.sheets[0].host_bytes < table + 64 * MIB
    moved = held(whole, Component.PARAMETERS) + held(whole, Component.KV_CACHE)
    assert none.sheets[0].host_bytes - whole.sheets[0].host_bytes >= moved


SMALL = {
    "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip
SMALL_LATENT = {
    **SMALL, "model_type": "deepseek_v3", "num_attention_heads": 8, "num_key_value_heads": 8, "kv_lora_rank": 128, "q_lora_rank": 192,
    "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 128, "first_k_dense_replace": 1,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "llama": {**SMALL, "model_type": "llama"},
    "qwen2": {**SMALL, "model_type": "qwen2"},
    "qwen3": {**SMALL, "model_type": "qwen3"},
    "qwen3_moe": {
        **SMALL,
        "model_type": "qwen3_moe",
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 128,
    },
    "mixtral": {**SMALL, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
    "gemma3": {
        **SMALL,
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "sliding_window": 512,
        "tie_word_embeddings": True,
        "layer_types": GEMMA["layer_types"],
    },
    "deepseek_v3": SMALL_LATENT,
}
PRINTED = [
    ("llama", 4096, 512, True, 11.0176), ("llama", 4096, 512, False, 43.5137), ("llama", 8192, 64, True, 1.8772), ("llama", 2048, 256, False, 11.7569),
    ("qwen2", 4096, 512, True, 11.0176), ("qwen2", 4096, 512, False, 43.5137), ("qwen3", 1024, 512, True, 8.0176), ("qwen3", 2048, 256, False, 11.7569),
    ("qwen3_moe", 4096, 512, True, 9.5176), ("qwen3_moe", 8192, 64, True, 1.6897), ("qwen3_moe", 1024, 512, True, 6.5176),
    ("mixtral", 4096, 512, True, 15.5176), ("mixtral", 4096, 512, False, 43.5137), ("gemma3", 4096, 512, True, 12.0274),
    ("gemma3", 4096, 512, False, 45.5196), ("gemma3", 8192, 64, True, 1.9722), ("gemma3", 1024, 512, True, 9.0274),
    ("deepseek_v3", 4096, 512, False, 79.5137), ("deepseek_v3", 1024, 512, True, 8.5137),
]  # fmt: skip
"""MiB that llama.cpp b11549 printed as its compute buffer on a processor for these models, in fp16 with one
sequence.
"""


@pytest.mark.parametrize(("name", "cells", "ubatch", "flash", "printed"), PRINTED)
def test_the_compute_buffer_is_the_one_that_llama_cpp_printed(
    name: str, cells: int, ubatch: int, flash: bool, printed: float
):
    spec = read_hf_config(MODELS[name], name=name)
    layers = spec.layers
    how = Reserved(
        ubatch=ubatch,
        cells=cells,
        window_cells=min(cells, -(-(512 + ubatch) // 256) * 256),
        flash=flash,
        layer_devices=(0,) * layers,
        output_device=0,
        host=0,
        fused=False,
        half_mask=True,
        outputs=1,
    )
    assert compute_buffers(reserved_graph(spec, how, {}), 1)[0] / MIB == pytest.approx(printed, abs=2e-4)


WIDE_MOE = {**MOE, "num_experts": 64, "moe_intermediate_size": 4096}


def test_a_share_on_the_host_is_experts_and_they_may_be_copied():
    share = served(WIDE_MOE, plan={"offload": {"parameters": 0.3}}, engine_version="ik_llama.cpp")
    experts = 64 * 3 * 2048 * 4096 * 2
    assert (
        held(served(WIDE_MOE, engine_version="ik_llama.cpp"), Component.PARAMETERS)
        - held(share, Component.PARAMETERS)
    ) % experts == 0
    size = share.sheets[0].of(Component.TEMPORARIES, instant=Instant.DECODE)
    assert size.low == size.value < size.high
    main = served(WIDE_MOE, host_experts=2).sheets[0].of(Component.TEMPORARIES, instant=Instant.DECODE)
    assert main.value == main.high > main.low
    with pytest.raises(InputError, match="has none"):
        served(LLAMA, plan={"offload": {"parameters": 0.3}})


WINDOW = {
    "vocab_size": 1000, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 64, "sliding_window": 512, "max_position_embeddings": 8192, "pad_token_id": 0,
}  # fmt: skip


@pytest.mark.parametrize("family", ["phi3", "mistral", "mixtral", "starcoder2", "ministral", "ministral3"])
def test_a_window_that_llama_cpp_does_not_read_shortens_no_cache(family):
    """Whole contexts, as of the same model without a window (src/models/phi3.cpp switches its own off)."""
    asked = {"engine": "llama.cpp", "max_model_len": 8192}
    windowed, whole = (
        infer({"model_type": family, **WINDOW, "sliding_window": size}, **asked) for size in (512, None)
    )
    assert windowed.serving["kv_bytes_per_sequence"] == whole.serving["kv_bytes_per_sequence"]
    assert windowed.sheets[0].peak.value == whole.sheets[0].peak.value


CELL = 2 * 256 * 2
"""Bytes of a layer's cell: keys and values of one head of 256 in fp16."""


@pytest.mark.parametrize(
    ("options", "cells"),
    [
        ({}, 4 * 1024), ({"kv_unified": True}, 4 * 512 + 512), ({"swa_full": True}, 4 * 4096),
        ({"kv_unified": True, "swa_full": True}, 4 * 4096), ({"sequences": 1}, 1024), ({"sequences": 1, "kv_unified": True}, 1024),
    ],
)  # fmt: skip
def test_windows_are_of_each_sequence_beside_one_batch_of_a_cache(options, cells):
    """Sequences of one cache share a batch: n_swa * n_seq_max + n_ubatch (llama-kv-cache-iswa.cpp)."""
    answer = served(GEMMA, **{"max_model_len": 16384, "sequences": 4, "max_batched_tokens": 512, **options})
    assert held(answer, Component.KV_CACHE) == (5 * cells + 16384) * CELL


@pytest.mark.parametrize(
    "more", [{}, {"gpus": "2xRTX4090"}, {"attention": "eager"}, {"gpu_layers": 3}, {"kv_dtype": "gguf:Q8_0"}]
)
def test_a_cache_on_the_host_is_on_no_device(more):
    asked = {"gpus": "1xRTX4090", "sequences": 2, **more}
    there, host = served(GEMMA, **asked), served(GEMMA, host_cache=True, **asked)
    assert all(held(host, Component.KV_CACHE, stage) == 0 for stage in range(len(host.sheets)))
    assert all(
        held(host, Component.PARAMETERS, stage) == held(there, Component.PARAMETERS, stage)
        for stage in range(len(host.sheets))
    )
    moved = sum(held(there, Component.KV_CACHE, stage) for stage in range(len(there.sheets)))
    assert host.sheets[0].host_bytes >= moved  # and what computes with it there


def test_states_are_of_every_sequence_whoever_shares_the_cache():
    one, four, shared = (
        infer("qwen3-next-80b-a3b", engine="llama.cpp", quantize="gguf:Q4_K_M", max_model_len=4096, **options)
        for options in ({}, {"sequences": 4}, {"sequences": 4, "kv_unified": True})
    )
    names = ("cache.r", "cache.s")
    rows = [
        sum(item.at[Instant.DECODE].value for item in answer.sheets[0].items if item.path in names)
        for answer in (one, four, shared)
    ]
    assert rows == [rows[0], 4 * rows[0], 4 * rows[0]]


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "cohere2", "olmo3", "gpt_oss", "exaone4"])
def test_a_window_that_llama_cpp_reads_shortens_the_cache(family):
    held = [
        buffers_of_cache({"model_type": family, **WINDOW, "sliding_window": size}) for size in (512, 8192)
    ]
    assert held[0] < held[1]


def buffers_of_cache(config):
    spec = read_hf_config(config)
    plan = resolve_request({"task": "infer", "engine": "llama.cpp", "serving.max_model_len": 8192}, spec).plan
    return sum(sum(cache_of(block, plan, Facts.of(plan), 512)) for block in blocks_of(spec))


@pytest.mark.parametrize(
    ("name", "stored"),
    [("ministral-3-8b-instruct", "fp8"), ("deepseek-v3", "fp8-block"), ("kimi-k2.5", "int4")],
)
def test_a_release_that_no_gguf_type_holds_is_whole_in_its_file_and_smaller_where_quantized(
    name: str, stored: str
) -> None:
    asked = {"gpus": "1xH100-80GB", "engine": "llama.cpp", "max_model_len": 2048, "fix": False}
    whole = infer(name, **asked)
    told = [line for line in whole.assumed if line.startswith("quantization.weights = none")]
    assert len(told) == 1
    assert f"released in {stored}," in told[0]
    packed = infer(name, **asked, quantize="gguf:Q8_0")
    sizes = [answer.sheets[0].of(Component.PARAMETERS).value for answer in (whole, packed)]
    assert sizes[0] > 1.8 * sizes[1]  # of 16 bits and 8.5
