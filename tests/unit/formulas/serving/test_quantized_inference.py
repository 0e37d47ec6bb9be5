"""Engines that generate from packed weights: AutoAWQ's fused modules, gpt-fast, litgpt's script; and logits
of whole prompts of old versions.
"""

from __future__ import annotations

from typing import Any

import pytest

import memsheet
from memsheet import infer
from memsheet.account import account_rank
from memsheet.engines.transformers.releases import (
    LATER_CACHES,
    LATER_LOGITS,
    MONTHS,
    SCORES_BEFORE,
    USUAL_CACHE,
    USUAL_LOGITS,
    hands_tuples,
    is_before,
    makes_all_logits,
)
from memsheet.errors import InputError
from memsheet.frozen import replace
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.sheet import Bytes, Component, Instant

LAYERS, HIDDEN, INNER, VOCAB, KEYS = 4, 1024, 2816, 32000, 512  # 8 heads of 128, 4 of keys
LLAMA = {
    "model_type": "llama", "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
    "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
MATRICES = LAYERS * (2 * HIDDEN * HIDDEN + 2 * KEYS * HIDDEN + 3 * HIDDEN * INNER)
TABLE, NORMS = VOCAB * HIDDEN, (2 * LAYERS + 1) * HIDDEN


def at(answer: Any, component: Component, instant: Instant = Instant.DECODE) -> int:
    return int(answer.sheets[0].of(component, instant=instant).value)


def item(answer: Any, path: str, instant: Instant) -> int:
    return next(int(i.at[instant].value) for i in answer.sheets[0].items if i.path == path)


# ---- AutoAWQ -----------------------------------------------------------------------------------------------


def awq(**options: Any) -> Any:
    asked = {
        "engine": "autoawq",
        "quantize": "awq-int4",
        "precision": "fp16-autocast",
        "max_model_len": 256,
        **options,
    }
    del asked["precision"]
    return infer({**LLAMA, "torch_dtype": "float16"}, **asked)


def test_packed_matrices_with_a_scale_and_a_zero_a_group():
    answer = awq()
    assert at(answer, Component.PARAMETERS) == MATRICES * (4 * 128 + 16 + 4) // (8 * 128) + 2 * (
        2 * TABLE + NORMS
    )


def test_joined_projections_stand_beside_their_parts_while_it_loads():
    parts = LAYERS * (HIDDEN + 2 * KEYS) * HIDDEN * (4 * 128 + 20) // (8 * 128)
    assert item(awq(), "joining_projections", Instant.LOAD) == parts + parts // LAYERS


def test_the_cache_is_as_long_as_the_answer_and_the_prompt_has_to_fit():
    per_token = LAYERS * 2 * KEYS * 2
    for prompt, output, tokens in ((64, 192, 192), (192, 64, 192)):
        answer = awq(prompt_tokens=prompt, output_tokens=output)
        assert at(answer, Component.KV_CACHE) == per_token * tokens
        assert answer.sheets[0].of(Component.KV_CACHE, instant=Instant.DECODE).high == per_token * 256
    assert at(awq(), Component.KV_CACHE) == per_token * 256


def test_scores_in_three_copies_two_of_them_in_fp32():
    short, long = (
        item(awq(prompt_tokens=n, output_tokens=64, max_model_len=16384), "widest_layer", Instant.PREFILL)
        for n in (4096, 8192)
    )
    scores = 8 * 10 + 2  # heads in 2 + 4 + 4 bytes, and the mask
    assert long - 2 * short == (8192**2 - 2 * 4096**2) * scores


@pytest.mark.parametrize("options", [{"quantize": "gptq-int4"}, {"tp": 2}, {"attention": "sdpa"}])
def test_what_autoawq_does_not_load_is_refused(options: dict[str, Any]):
    with pytest.raises(InputError):
        awq(**options)


def test_families_without_fused_modules_are_refused():
    with pytest.raises(InputError, match="not modelled for qwen2"):
        infer({**LLAMA, "model_type": "qwen2"}, engine="autoawq", quantize="awq-int4", max_model_len=64)


# ---- gpt-fast ----------------------------------------------------------------------------------------------


def fast(**options: Any) -> Any:
    return infer(LLAMA, engine="gpt-fast", max_model_len=205, prompt_tokens=5, **options)


def test_int8_has_a_scale_a_row_and_the_output_is_quantized_too():
    rows = LAYERS * (2 * HIDDEN + 2 * KEYS + 2 * INNER + HIDDEN) + VOCAB
    assert at(fast(quantize="int8"), Component.PARAMETERS) == MATRICES + TABLE + 2 * rows + 2 * (
        TABLE + NORMS
    )


def test_int4_has_a_scale_and_a_zero_in_bf16_for_32_elements():
    size = (MATRICES + TABLE) * (4 * 32 + 32) // (8 * 32) + 2 * (TABLE + NORMS)
    assert at(fast(quantize="int4"), Component.PARAMETERS) == size
    wide = fast(plan={"quantization": {"weights": "int4", "group_size": 128}})
    assert at(wide, Component.PARAMETERS) == (MATRICES + TABLE) * (4 * 128 + 32) // (8 * 128) + 2 * (
        TABLE + NORMS
    )


def test_the_length_is_a_multiple_of_eight_and_heads_are_divided():
    one, two = fast(), fast(tp=2, gpus="2xA100-80GB")
    assert at(one, Component.KV_CACHE) == LAYERS * 2 * KEYS * 208 * 2
    assert 2 * at(two, Component.KV_CACHE) == at(one, Component.KV_CACHE)
    assert at(two, Component.PARAMETERS) == MATRICES + 2 * (2 * TABLE + NORMS)  # the ends stay whole


def test_a_compiled_step_keeps_something_of_its_own():
    assert at(fast(compile=True), Component.CUDA_GRAPHS) > 0 == at(fast(), Component.CUDA_GRAPHS)


# ---- litgpt ------------------------------------------------------------------------------------------------


def lit(**options: Any) -> Any:
    return infer(LLAMA, engine="litgpt", max_model_len=256, prompt_tokens=8, **options)


def test_litgpt_holds_weights_alone_while_it_loads() -> None:
    """No cache, and nothing at any other instant."""
    spec = read_hf_config(LLAMA, name="m")
    plan = resolve_request({"task": "infer", "engine": "litgpt", "phase": "load"}, spec).plan
    found = account_rank(spec, plan)
    asked = infer(LLAMA, engine="litgpt", max_model_len=256).sheets[0]
    loading, serving = ({when for item in one.items for when in item.at} for one in (found, asked))
    assert loading == {Instant.LOAD}
    assert serving > loading


def test_four_bits_of_everything_but_the_table_of_tokens():
    answer = lit(plan={"quantization": {"weights": "nf4", "double_quant": False, "skip": ["embed_tokens"]}})
    assert at(answer, Component.PARAMETERS) == (MATRICES + TABLE) * 9 // 16 + 2 * (TABLE + NORMS)


def test_the_output_matrix_is_unpacked_for_a_prompt_in_two_dtypes():
    plan = {"quantization": {"weights": "nf4", "double_quant": False, "skip": ["embed_tokens"]}}
    packed, plain = lit(plan=plan), lit()
    assert (
        item(packed, "widest_layer", Instant.PREFILL) - item(plain, "widest_layer", Instant.PREFILL)
        == 4 * TABLE
    )


def test_eight_bits_are_made_twice_while_they_load():
    answer = lit(plan={"quantization": {"weights": "int8", "skip": ["embed_tokens"]}})
    assert item(answer, "quantizing", Instant.LOAD) == 4 * TABLE


def test_keys_are_repeated_in_the_cache_unless_all_queries_share_one():
    assert at(lit(), Component.KV_CACHE) == LAYERS * 2 * HIDDEN * 256 * 2
    shared = infer({**LLAMA, "num_key_value_heads": 1}, engine="litgpt", max_model_len=256)
    assert at(shared, Component.KV_CACHE) == LAYERS * 2 * 128 * 256 * 2


# ---- transformers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "whole"),
    [("4.44.2", True), ("4.45.0", False), ("4.51.3 (torch 2.6.0)", False), ("2023-11 (torch 2.0.1)", True), ("2024-09", False), (None, False), ("main", False)],
)  # fmt: skip
def test_versions_that_made_logits_of_every_position(version: str | None, whole: bool):
    assert makes_all_logits(read_hf_config(LLAMA), version) is whole


@pytest.mark.parametrize(
    ("family", "version", "tuples"),
    [("llama", "4.41.2", True), ("llama", "4.42.0", False), ("llama", None, False), ("gpt2", "4.51.3", True), ("gpt2", "4.52.0", False),
     ("opt", "2025-01", True), ("opt", "2025-02", False), ("mamba", "4.30.0", False)],
)  # fmt: skip
def test_versions_that_handed_caches_on_as_tuples(family: str, version: str | None, tuples: bool):
    assert hands_tuples(replace(read_hf_config(LLAMA), model_type=family), version) is tuples


@pytest.mark.parametrize(
    ("model", "version", "kind"),
    [("llama-2-7b", "4.35.2", "eager"), ("llama-2-7b", "4.36.0", "sdpa"), ("gpt2", "2024-05", "eager"), ("gpt2", None, "sdpa"), ("qwen-7b", "4.32.0", "sdpa")],
)  # fmt: skip
@pytest.mark.parametrize("task", ["train", "infer"])
def test_attention_where_nobody_says_is_the_releases(model: str, version: str | None, kind: str, task: str):
    lengths: dict[str, Any] = {"seq_len": 512} if task == "train" else {"max_model_len": 512}
    answer = getattr(memsheet, task)(model, engine="transformers", engine_version=version, **lengths)
    assert answer.plan.attention.value == kind


def test_months_lie_with_their_releases():
    assert is_before("2024-05", (4, 42))
    assert not is_before("2024-06", (4, 42))
    assert not is_before("1.9", (4, 42))  # TRL's
    assert list(MONTHS) == sorted(MONTHS)
    assert list(MONTHS.values()) == sorted(MONTHS.values())
    assert {USUAL_CACHE, USUAL_LOGITS, *LATER_CACHES, *LATER_LOGITS, *SCORES_BEFORE} <= set(MONTHS)


@pytest.mark.parametrize("sequences", [1, 3])
def test_tuples_are_there_twice_at_the_end_of_a_step(sequences: int):
    old, new = (
        infer(LLAMA, max_model_len=2048, prompt_tokens=1, sequences=sequences, engine_version=version)
        for version in ("4.41.2", "4.42.0")
    )
    cache, of_one_token = at(new, Component.KV_CACHE), at(new, Component.KV_CACHE) // 2048
    assert at(old, Component.KV_CACHE) == cache
    grown = next(i.at[Instant.DECODE] for i in old.sheets[0].items if i.path == "cache_growth")
    assert grown == Bytes.exact(cache - of_one_token)
    assert at(old, Component.TEMPORARIES) > at(new, Component.TEMPORARIES)


def test_a_prompts_logits_outlive_its_pass_where_outputs_were_not_deleted():
    old, new = (
        infer(LLAMA, max_model_len=2049, prompt_tokens=2048, engine_version=version)
        for version in ("4.41.2", "4.42.0")
    )
    logits = next(i.at[Instant.DECODE].value for i in old.sheets[0].items if i.path == "logits")
    a_token = at(new, Component.KV_CACHE) // 2049
    assert logits == 2048 * VOCAB * 4 - 2 * a_token
    assert next(i.at[Instant.DECODE].value for i in new.sheets[0].items if i.path == "logits") < logits // 100


def test_the_first_qwen_hands_tuples_on_by_its_own_code():
    own, library = (
        memsheet.infer(name, engine="transformers", max_model_len=4096, prompt_tokens=1).sheets[0]
        for name in ("qwen-7b", "qwen1.5-7b")
    )
    token = 32 * 2 * 4096 * 2
    assert next(i.at[Instant.DECODE].value for i in own.items if i.path == "cache_growth") == 4095 * token
    assert next(i.at[Instant.DECODE].value for i in library.items if i.path == "cache_growth") < 100 * token


def test_a_long_prompt_ends_in_its_logits():
    old, new = (
        infer(LLAMA, max_model_len=2048, prompt_tokens=2048, engine_version=version)
        for version in ("4.44.0", "4.50.0")
    )
    assert at(old, Component.TEMPORARIES, Instant.PREFILL) == 2048 * VOCAB * 6
    assert at(new, Component.TEMPORARIES, Instant.PREFILL) < 2048 * VOCAB * 6
    assert at(old, Component.TEMPORARIES) == at(new, Component.TEMPORARIES)


def test_experts_in_bitsandbytes_four_bits_by_release_of_the_server() -> None:
    def weights_of(version: str, quantize: str | None = "nf4") -> tuple[float, float]:
        options = {"quantize": quantize, "max_model_len": 2048, "engine_version": version}
        sheet = memsheet.infer("qwen3-30b-a3b", engine="vllm", **options).sheets[0]
        held, more = (sheet.of(one) for one in (Component.PARAMETERS, Component.TEMPORARIES))
        return held.value, more.value

    whole, older, newer = weights_of("0.33.0", None), weights_of("0.9.2"), weights_of("0.33.0")
    assert older[0] > 0.9 * whole[0]  # 128 experts a layer stay as they are
    assert newer[0] < 0.32 * whole[0]  # four and a half bits of sixteen, beside tables
    one_layer = 128 * 3 * 2048 * 768 * 2  # all experts of a layer in bf16, while it runs
    assert whole[1] < one_layer < newer[1]
