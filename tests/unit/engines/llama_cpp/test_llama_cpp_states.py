"""llama.cpp's hybrid models: what layers with a recurrent state store, keep and compute in."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.engines.llama_cpp.small_models import compute_mib

import memsheet
from memsheet import infer
from memsheet.engines.llama_cpp.weights import stored_tensors
from memsheet.errors import InputError
from memsheet.exchange import find_format
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.joined_files import written_request
from memsheet.exchange.plan_files import write_format_files
from memsheet.plan.document import plan_document
from memsheet.questions.recognised_files import PARSERS
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.sheet import Component, Instant

MIB = 2**20
DELTA = {
    "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "max_position_embeddings": 8192, "tie_word_embeddings": False, "linear_num_key_heads": 4, "linear_num_value_heads": 8,
    "linear_key_head_dim": 64, "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4,
}  # fmt: skip
ROUTED = {
    "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 96,
}  # fmt: skip
NEMOTRON = {
    "model_type": "nemotron_h", "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 8192, "hybrid_override_pattern": "M-M*-M",
    "mamba_num_heads": 8, "mamba_head_dim": 64, "ssm_state_size": 32, "n_groups": 2, "conv_kernel": 4, "use_conv_bias": True,
    "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS = {
    "hybrid_override_pattern": "MEM*EM", "n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 128,
    "moe_shared_expert_intermediate_size": 192, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
}  # fmt: skip
SMALL: dict[str, dict[str, Any]] = {
    "nemotron": NEMOTRON,
    "nemotron_moe": {**NEMOTRON, **EXPERTS},
    "nemotron_latent": {**NEMOTRON, **EXPERTS, "moe_latent_size": 96},
    "qwen35": {**DELTA, "model_type": "qwen3_5_text"},
    "qwen35moe": {**DELTA, **ROUTED, "model_type": "qwen3_5_moe_text"},
    "qwen3next": {**DELTA, **ROUTED, "model_type": "qwen3_next"},
}
PRINTED = [
    ("qwen35", 4096, 512, True, 1, 11.5411), ("qwen35", 4096, 512, False, 1, 43.5137), ("qwen35", 8192, 64, True, 1, 1.9632),
    ("qwen35", 1024, 512, True, 1, 8.5411), ("qwen35", 4096, 256, True, 4, 4.3526), ("qwen35moe", 4096, 512, True, 1, 11.5919),
    ("qwen35moe", 4096, 512, False, 1, 44.5762), ("qwen35moe", 8192, 64, True, 1, 2.0218), ("qwen35moe", 4096, 256, True, 4, 4.5870),
    ("qwen3next", 4096, 512, True, 1, 12.7110), ("qwen3next", 4096, 512, False, 1, 44.5704), ("qwen3next", 8192, 64, True, 1, 2.2711),
    ("qwen3next", 1024, 512, True, 1, 9.7110), ("qwen3next", 4096, 256, True, 4, 5.5840), ("nemotron", 4096, 512, True, 1, 12.3599),
    ("nemotron", 4096, 512, False, 1, 42.5059), ("nemotron", 8192, 64, True, 1, 1.9866), ("nemotron", 4096, 256, True, 4, 4.4464),
    ("nemotron_moe", 4096, 512, True, 1, 11.5255), ("nemotron_moe", 1024, 512, True, 1, 8.5255), ("nemotron_moe", 4096, 256, True, 4, 4.4464),
    ("nemotron_latent", 4096, 512, True, 1, 11.2901), ("nemotron_latent", 1024, 512, True, 1, 8.2901),
]  # fmt: skip
"""MiB that llama.cpp 0c1e5709 printed as its compute buffer on a processor for files of these models in fp16:
cells of all sequences, tokens of a batch, flash attention, sequences.
"""


@pytest.mark.parametrize(("name", "cells", "ubatch", "flash", "sequences", "printed"), PRINTED)
def test_the_compute_buffer_of_hybrids_is_the_printed_one(
    name: str, cells: int, ubatch: int, flash: bool, sequences: int, printed: float
) -> None:
    found = compute_mib(SMALL[name], cells=cells, ubatch=ubatch, flash=flash, sequences=sequences)
    assert found == pytest.approx(printed, abs=3e-4)


def held(answer: Any, component: Component, sheet: int = 0) -> int:
    return int(answer.sheets[sheet].of(component, instant=Instant.DECODE).value)


NINE, CODER, NANO = "Qwen/Qwen3.5-9B", "Qwen/Qwen3-Next-80B-A3B-Instruct", "nemotron-3-nano-30b-a3b"
SERVED = [(NINE, "1xRTX4090"), (CODER, "4xRTX4090"), (NANO, "1xRTX4090")]


def served(model: Any, gpus: str | None = None, **options: Any) -> Any:
    asked = {"engine": "llama.cpp", "quantize": "gguf:Q4_K_M", "max_model_len": 8192, **options}
    return infer(model, gpus=gpus, **asked)


@pytest.mark.parametrize("sequences", [1, 3])
def test_a_hybrid_keeps_keys_and_values_and_a_state_a_sequence(sequences: int) -> None:
    """Qwen3.5 9B: 8 layers of 4 heads of 256, and 24 whose convolution of 4 tokens runs over 8,192 channels
    and whose 32 heads carry 128 x 128.
    """
    answer = served(NINE, sequences=sequences, max_model_len=3072 * sequences)
    cells = 8 * 3072 * sequences * 2 * 4 * 256 * 2
    states = 24 * sequences * (3 * 8192 + 32 * 128 * 128) * 4
    assert held(answer, Component.KV_CACHE) == cells + states
    assert answer.serving["kv_bytes_per_sequence"] == cells + states
    assert answer.serving["kv_bytes_per_token"] == 8 * 2 * 4 * 256 * 2
    assert any("RS buffer size" in line for line in answer.serving["start_up"])


def test_a_file_has_the_tensors_of_a_delta_net() -> None:
    """Names and numbers of src/models/qwen35.cpp and qwen3next.cpp, load_arch_tensors."""
    shared = {
        "attn_qkv": 1024 * 256,
        "attn_gate": 512 * 256,
        "ssm_conv1d": 1024 * 4,
        "ssm_dt": 8,
        "ssm_a": 8,
        "ssm_norm": 64,
        "ssm_out": 256 * 512,
    }
    gates = {"qwen35": {"ssm_beta": 8 * 256, "ssm_alpha": 8 * 256}, "qwen3next": {"ssm_ba": 16 * 256}}
    for name, own in gates.items():
        spec = read_hf_config(SMALL[name], name=name)
        plan = resolve_request({"task": "infer", "engine": "llama.cpp"}, spec).plan
        tensors = {t.kind: t for t in stored_tensors(spec, plan) if t.layer == 0}
        for kind, elements in {**shared, **own}.items():
            wide = kind.startswith("ssm") and kind not in {"ssm_out", *own}
            assert tensors[kind].nbytes == elements * (4 if wide else 2), kind


@pytest.mark.parametrize("sequences", [1, 3])
def test_nemotron_3_keeps_keys_and_values_of_six_layers_and_states_of_its_mambas(sequences: int) -> None:
    """Nano 30B: 6 layers of 2 heads of 128, and 23 whose convolution of 4 tokens runs over 64 heads of 64 and
    twice 8 groups of 128, and which carry 4,096 x 128.
    """
    answer = served(NANO, sequences=sequences, max_model_len=3072 * sequences)
    cells = 6 * 3072 * sequences * 2 * 2 * 128 * 2
    states = 23 * sequences * (3 * (64 * 64 + 2 * 8 * 128) + 4096 * 128) * 4
    assert held(answer, Component.KV_CACHE) == cells + states


def test_a_file_has_the_tensors_of_a_mamba() -> None:
    """Names and numbers of src/models/nemotron-h.cpp, load_arch_tensors."""
    spec = read_hf_config(SMALL["nemotron_latent"], name="latent")
    plan = resolve_request({"task": "infer", "engine": "llama.cpp"}, spec).plan
    tensors = {(t.layer, t.kind, t.expert): t.nbytes for t in stored_tensors(spec, plan)}
    channels = 512 + 2 * 2 * 32
    mamba = {
        "ssm_in": (512 + channels + 8) * 256 * 2,
        "ssm_conv1d": channels * 4 * 4,
        "ssm_out": 512 * 256 * 2,
    }
    mamba |= {"ssm_norm": 512 * 4, "ssm_a": 8 * 4, "ssm_d": 8 * 4, "ssm_dt": 8 * 4}
    assert {kind: tensors[0, kind, False] for kind in mamba} == mamba
    assert tensors[1, "ffn_latent_down", False] == tensors[1, "ffn_latent_up", False] == 96 * 256 * 2
    assert tensors[1, "ffn_up", True] == tensors[1, "ffn_down", True] == 16 * 128 * 96 * 2


@pytest.mark.parametrize(("model", "gpus"), SERVED)
def test_a_hybrids_range_encloses_its_value(model: str, gpus: str) -> None:
    for version in (None, "b8500"):
        for sheet in served(model, gpus, engine_version=version).sheets:
            for component in (Component.PARAMETERS, Component.TEMPORARIES, Component.WORKSPACES):
                size = sheet.of(component, instant=Instant.PREFILL)
                assert 0 <= size.low <= size.value <= size.high
    assert size.low < size.high


def test_builds_that_may_write_a_delta_net_out_may_need_more() -> None:
    fused, older = (
        served(NINE, engine_version=version).sheets[0].of(Component.TEMPORARIES, instant=Instant.PREFILL)
        for version in ("b11549", "b9000")
    )
    assert older.high - older.value > 100 * MIB > fused.high - fused.value


def test_layers_on_the_host_may_have_a_delta_net_written_out() -> None:
    size = served(NINE, gpu_layers=20).sheets[0].of(Component.TEMPORARIES, instant=Instant.PREFILL)
    assert size.high - size.value > 100 * MIB


@pytest.mark.parametrize("model", [NINE, CODER, NANO])
def test_more_context_never_needs_less_of_a_hybrid(model: str) -> None:
    sizes = [served(model, max_model_len=n).sheets[0].peak for n in (256, 1024, 4096, 8192, 32768, 131072)]
    assert sizes == sorted(sizes, key=lambda size: size.value)
    assert [size.high for size in sizes] == sorted(size.high for size in sizes)


@pytest.mark.parametrize("model", [NINE, CODER, NANO])
def test_two_cards_hold_a_hybrids_weights_and_states_once(model: str) -> None:
    one, two = served(model, "1xH200"), served(model, "2xH200")
    for component in (Component.PARAMETERS, Component.KV_CACHE):
        assert held(one, component) == sum(held(two, component, n) for n in (0, 1))


@pytest.mark.parametrize("version", ["ik_llama.cpp", "b7342"])
def test_versions_of_which_a_hybrids_graph_is_not_known_are_refused(version: str) -> None:
    with pytest.raises(
        InputError, match="no list of operations here for layers of qwen3_5_text in that version"
    ):
        served(NINE, engine_version=version)


def test_a_hybrids_command_reads_back() -> None:
    answer = served(NINE, "1xRTX4090", sequences=2)
    document = plan_document(answer.plan, model="unsloth/Qwen3.5-9B-GGUF:Q4_K_M", cluster=None)
    asked = written_request(document, gpus=1, nodes=1, accumulation=1)
    form = find_format("llama.cpp")
    found = read_text(form.file, write_format_files(form, asked)[form.file], PARSERS)
    assert (found.unknown, found.unmodelled) == ((), ())
    again = {key: value for key, value in found.request.items() if key != "@model"}
    assert again == {key: asked[key] for key in again}
    name = str(found.request["@model"]).partition("@")[0]
    assert memsheet.infer(name, engine="llama.cpp", gpus="1xRTX4090").model.layers == 32
