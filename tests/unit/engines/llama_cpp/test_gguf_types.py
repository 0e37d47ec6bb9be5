"""What a file's name leaves open of its types: an importance matrix, the rules of its maker, the version of
the quantizer.
"""

from __future__ import annotations

from typing import Any

import pytest

from laws import every
from memsheet.catalog.stored_names import GGUF_TYPES, near_types, storage_of_tag
from memsheet.engines.llama_cpp.gguf_mixes import MIXES, Where, gguf_named, matrix_type
from memsheet.engines.llama_cpp.gguf_types import RULED, Mix, type_range, types_of_end, types_of_matrix
from memsheet.plan.dtypes import GGUF
from memsheet.questions.accounted import infer
from memsheet.sheet import Component, Instant

FORK = "ik_llama.cpp"
KINDS = ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
PLACES = tuple(
    Where(layer=layer, layers=layers, grouped=grouped, experts=experts, family="llama", vocab=128256)
    for layers in (32, 80)
    for layer in (0, 9, layers - 1)
    for grouped in (1, 2, 8)
    for experts in (0, 8, 128)
)
OWN = ("UD-Q4_K_XL", "UD-IQ2_M", "Q4_K_L", "UD-Q8_K_XL", "UD-Q2_K_XL")


def weights(quantize: str, model: Any = "qwen3-8b", **asked: Any) -> Any:
    answer = infer(model, engine="llama.cpp", max_model_len=4096, quantize=quantize, **asked)
    return answer.sheets[0].of(Component.PARAMETERS, instant=Instant.LOAD)


@pytest.mark.parametrize(
    ("mix", "plain", "weighted"),
    [
        ("IQ4_XS", "Q5_K", "IQ4_XS"), ("IQ4_NL", "Q5_K", "IQ4_NL"), ("Q4_0", "Q4_0", "Q4_1"), ("Q5_0", "Q5_0", "Q5_1"),
        ("IQ3_XXS", "Q4_K", "IQ3_XXS"), ("Q4_K_M", "Q6_K", "Q6_K"),
    ],
)  # fmt: skip
def test_an_importance_matrix_changes_the_first_down_projections(mix: str, plain: str, weighted: str):
    """llama_tensor_get_type_impl, FFN_DOWN: the branches that ask has_imatrix."""
    found = types_of_matrix(Mix.of(mix, fork=False), "ffn_down", PLACES[0], 4096)
    assert set(found) == {plain, weighted}
    assert found[0] == plain


@pytest.mark.parametrize(
    ("mix", "kind", "where", "found"),
    [
        ("IQ2_M", "attn_v", {"grouped": 4}, "Q4_K"), ("IQ2_M", "attn_v", {}, "IQ3_S"), ("IQ2_XXS", "attn_v", {}, "Q2_K"),
        ("IQ2_S", "ffn_up", {}, "IQ2_XS"), ("IQ2_S", "ffn_down", {"layer": 3}, "IQ3_S"), ("IQ1_M", "attn_output", {}, "IQ2_XXS"),
        ("IQ3_XS", "ffn_up", {"layer": 3}, "IQ3_S"), ("IQ3_XS", "ffn_up", {"layer": 4}, "IQ3_XXS"), ("IQ3_XS", "attn_q", {}, "IQ3_XXS"),
        ("IQ3_M", "ffn_down", {"layer": 30, "experts": 8}, "Q4_K"), ("IQ3_M", "ffn_down", {"layer": 30}, "IQ3_S"),
        ("IQ3_XXS", "attn_k", {}, "IQ2_S"), ("Q2_K_S", "ffn_down", {"layer": 0}, "Q4_K"), ("Q6_K", "attn_k", {"experts": 8}, "Q8_0"),
        ("F16", "attn_k", {"experts": 8}, "F16"),
    ],
)  # fmt: skip
def test_which_matrices_of_few_bits_get_more(mix: str, kind: str, where: dict[str, int], found: str):
    place = Where(**{"layer": 9, "layers": 32, "grouped": 1, "experts": 0, **where})
    assert matrix_type(mix, kind, place, 4096) == found


@every("mix", [*MIXES, *OWN])
@every("fork", [False, True])
def test_the_engines_own_choice_lies_within_the_range(mix: str, fork: bool):
    named = Mix.of(mix, fork=fork)
    for kind in KINDS:
        for where in PLACES:
            types = types_of_matrix(named, kind, where, 4096)
            low, high = type_range(named, kind, types, 2**20)
            assert all(low <= GGUF[name].nbytes(2**20) <= high for name in types)
    for output in (True, False):
        assert set(types_of_end(named, output=output, tied=output, row=4096)) <= set(GGUF)


def test_every_name_of_a_file_is_a_type_or_a_mix():
    for tag in (*GGUF_TYPES, *OWN, "Q4_K", "MXFP4_MOE", "UD-TQ1_0"):
        storage = storage_of_tag(tag)
        assert storage is not None
        assert storage.quantization is not None
        assert gguf_named(f"gguf:{storage.quantization['weights']}") is not None
    assert storage_of_tag("Q9_K") is None
    assert gguf_named("gguf:UD-Q9_K") is None


@pytest.mark.parametrize("name", OWN)
def test_a_makers_own_rules_are_a_wider_range(name: str):
    """Around the same value as the mix that it is near to."""
    near, own_rules = near_types(name)
    assert own_rules
    by_rules, by_maker = weights(f"gguf:{near}"), weights(f"gguf:{name}")
    assert by_maker.value == by_rules.value
    assert by_maker.low <= by_rules.low
    assert by_maker.high > by_rules.high


@pytest.mark.parametrize("name", RULED)
def test_types_of_which_nobody_makes_another_are_exact(name: str):
    size = weights(f"gguf:{name}")
    assert size.low == size.value == size.high


def test_a_fork_reads_the_main_projects_files():
    main, fork = weights("gguf:Q4_K_M"), weights("gguf:Q4_K_M", engine_version=FORK)
    assert fork.low <= main.value <= fork.high
    assert weights("gguf:IQ4_K", engine_version=FORK).high > weights("gguf:IQ4_K", engine_version=FORK).value


def test_a_file_with_an_importance_matrix_by_hand():
    """GLM-4 of 32 billion in IQ4_XS has its first seven down projections of 61 in Q5_K without one, 176 bytes
    for 256 elements in place of 136.
    """
    config = {
        "model_type": "glm4", "vocab_size": 151552, "hidden_size": 6144, "intermediate_size": 23040, "num_hidden_layers": 61,
        "num_attention_heads": 48, "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 32768, "tie_word_embeddings": False,
    }  # fmt: skip
    size = weights("gguf:IQ4_XS", config)
    assert size.value == size.high
    assert size.low <= size.value - 7 * 6144 * 23040 * (176 - 136) // 256


@pytest.mark.parametrize(
    ("name", "types"),
    [("ggml-org/gpt-oss-20b-GGUF", "MXFP4"), ("unsloth/gpt-oss-20b-GGUF:Q4_K_M", "Q4_K_M"), ("unsloth/Qwen3-8B-GGUF", "Q4_K_M")],
)  # fmt: skip
def test_a_repository_that_names_no_types_has_the_released_ones_first(name: str, types: str):
    answer = infer(name, engine="llama.cpp", max_model_len=4096)
    assert answer.plan.quantization is not None
    assert answer.plan.quantization.weights.name == f"gguf:{types}"
