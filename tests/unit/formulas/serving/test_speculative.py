"""Speculative decoding: who drafts, what is loaded and shared, whose pool its layers join, what is verified
at once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memsheet import catalog
from memsheet.budget import Answer
from memsheet.engines.sglang.drafting import kept_of
from memsheet.engines.sglang.facts import reserved_mib
from memsheet.engines.vllm.speculative import chunk_rows
from memsheet.formulas.serving.drafts import PREFIX, mtp_heads
from memsheet.formulas.states.params import parameter_count
from memsheet.plan.model import ModelSpec
from memsheet.questions.accounted import infer
from memsheet.readers.model import read_model
from memsheet.sheet import Component, Instant
from memsheet.units import GIB, MIB

HIDDEN, INNER, WORDS, OWN_WORDS = 4096, 14336, 128256, 32000
HEAD = {
    "model_type": "llama", "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": HIDDEN, "intermediate_size": INNER,
    "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 1, "vocab_size": WORDS, "max_position_embeddings": 2048,
    "torch_dtype": "float16",
}  # fmt: skip
"""A head for llama-3.1-8b, by the key names of published ones."""
DRAFT = {"speculative": "draft", "draft_model": "llama-3.2-1b", "speculative_tokens": 3}
A_LAYER = (
    2 * HIDDEN * HIDDEN + 2 * 1024 * HIDDEN + 3 * HIDDEN * INNER
)  # queries, output, keys, values, feed-forward


def model(name: str) -> ModelSpec:
    return read_model(name, catalog=catalog.find_model, names=catalog.model_names())


def head(folder: Path, **changes: Any) -> str:
    """A head's config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps({**HEAD, **changes}))
    return str(file)


def eagle3(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "speculative": "eagle3",
        "draft_model": head(folder, draft_vocab_size=OWN_WORDS, **changes),
        "speculative_tokens": 3,
    }


def served(
    engine: str = "vllm", name: str = "llama-3.1-8b", gpus: str = "1xH100-80GB", **options: Any
) -> Answer:
    return infer(name, gpus=gpus, engine=engine, **{"max_model_len": 8192, **options})


def facts(answer: Answer) -> dict[str, Any]:
    return dict(answer.serving or {})


def held(
    answer: Answer,
    component: Component = Component.PARAMETERS,
    when: Instant = Instant.DECODE,
    stage: int = -1,
) -> int:
    """Bytes of the draft's rows of a component."""
    items = answer.sheets[stage].items
    return sum(
        int(i.at[when].value)
        for i in items
        if i.component is component and i.path.startswith(PREFIX) and when in i.at
    )


def pool(answer: Answer) -> int:
    return int(answer.sheets[0].of(Component.KV_CACHE, instant=Instant.DECODE).value)


# weights, by hand -------------------------------------------------------------------------------------------


def test_the_weights_of_an_eagle_3_head(tmp_path: Path) -> None:
    """vLLM v0.33.0 models/llama_eagle3.py: queries, keys and values of two vectors, three hidden states into
    one, an output of its own, norms.
    """
    elements = A_LAYER + HIDDEN * (HIDDEN + 2 * 1024) + 3 * HIDDEN * HIDDEN + OWN_WORDS * HIDDEN + 4 * HIDDEN
    for engine in ("vllm", "sglang"):
        assert held(served(engine, **eagle3(tmp_path))) == 2 * elements
    places = {i.path: i for i in served(**eagle3(tmp_path)).sheets[0].items}["draft.d2t"]
    assert places.at[Instant.DECODE].value == 8 * OWN_WORDS


def test_an_eagle_head_takes_the_embedding_and_the_output_of_the_model(tmp_path: Path) -> None:
    """vLLM v0.11.0 models/llama_eagle.py: a matrix of both inputs, a layer without its first norm, no norm at
    the end.
    """
    asked = {"speculative": "eagle", "draft_model": head(tmp_path), "speculative_tokens": 3}
    assert held(served(**asked)) == 2 * (A_LAYER + 2 * HIDDEN * HIDDEN + HIDDEN)


def test_a_narrower_head_keeps_its_own_embedding(tmp_path: Path) -> None:
    wide, narrow = (
        eagle3(tmp_path / str(n), hidden_size=n, target_hidden_size=HIDDEN)
        for n in (_made(tmp_path, HIDDEN), _made(tmp_path, 2048))
    )
    paths = [{i.path for i in served(**asked).sheets[0].items} for asked in (wide, narrow)]
    assert ["draft.model.embed_tokens" in found for found in paths] == [False, True]


def _made(folder: Path, size: int) -> int:
    (folder / str(size)).mkdir()
    return size


def test_a_draft_model_shares_nothing_and_is_cut_as_the_model_is() -> None:
    whole = 2 * parameter_count(model("llama-3.2-1b"))
    one, two = (served(gpus=f"{n}xH100-80GB", **DRAFT) for n in (1, 2))
    assert held(one) == whole
    norms = 2 * (2 * 16 + 1) * 2048
    assert 2 * held(two) == whole + norms  # each rank has the norms whole


GLM_LAYER = 129 * 3 * 4096 * 1408 + 128 * 4096 + 2 * 4096 * (96 + 8) * 128 + 2 * 4096 * 4096
"""Experts and one for all tokens, their router, attention of 96 heads and 8, the matrix of two inputs."""


@pytest.mark.parametrize(("name", "own"), [("deepseek-v3", 11.5e9), ("glm-4.5-air", GLM_LAYER)])
def test_layers_for_further_tokens_are_no_part_of_the_model_unless_asked(name: str, own: float) -> None:
    """DeepSeek-V3's README_WEIGHTS.md counts 11.5 B of its own beside the shared embedding and output. The
    model's count leaves them out.
    """
    spec = model(name)
    assert spec.ahead == 1
    heads = mtp_heads(spec)
    shared = sum(weight.elements for weight in (*heads.embeddings.weights, *heads.head.weights))
    norm = spec.hidden  # the model's last norm stands in the description, not in the stack of heads
    assert parameter_count(heads) - shared - norm * bool(heads.stacks[0].final_norms) == pytest.approx(
        own, rel=0.01
    )
    assert not any(path.startswith("mtp") for path in _paths(spec))


def test_a_layer_for_further_tokens_is_the_librarys_last_layer_and_what_joins() -> None:
    """The layer of transformers 5.23 itself, without storage; two inputs of 7,168 into one, and three
    norms.
    """
    torch = pytest.importorskip("torch")
    library = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    config = pytest.importorskip("transformers.models.deepseek_v3").DeepseekV3Config()
    with torch.device("meta"):
        layer = library.DeepseekV3DecoderLayer(config, config.num_hidden_layers - 1)
    own = sum(weight.numel() for weight in layer.parameters()) + 2 * 7168 * 7168 + 3 * 7168
    heads = mtp_heads(model("deepseek-v3"))
    from memsheet.formulas.states.params import parameter_tensors

    assert (
        sum(
            weight.elements * times
            for path, weight, times in parameter_tensors(heads)
            if path.startswith("mtp")
        )
        == own
    )


def _paths(spec: ModelSpec) -> list[str]:
    from memsheet.formulas.states.params import parameter_tensors

    return [path for path, _, _ in parameter_tensors(spec)]


def test_a_multi_token_layer_by_hand() -> None:
    """A layer like the last, two norms, a matrix of two inputs and a norm (vLLM v0.33.0
    models/deepseek_mtp.py:70); fp8 in blocks, the matrix not.
    """
    answer = served("vllm", "deepseek-v3", "8xH200", speculative="mtp")
    by_path = {
        i.path: int(i.at[Instant.DECODE].value) for i in answer.sheets[0].items if i.path.startswith(PREFIX)
    }
    assert by_path["draft.mtp.*.eh_proj"] == 2 * 7168 * 2 * 7168
    experts = 256 * 3 * 7168 * 2048 // 8
    assert by_path["draft.mtp.layers.*.mlp.experts"] == experts + 4 * experts // 128**2
    assert by_path["draft.mtp.*.enorm"] == 2 * 7168
    assert answer.plan.speculative is not None
    assert answer.plan.speculative.tokens == 1


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(("model", "indexes", "per_token"), [
    ("deepseek-v3.2", True, 576 * 2 + 128 + 4),
    ("glm-5.2", True, 576 * 2 + 128 + 4),
    ("glm-4.7-flash", False, 576 * 2),
])  # fmt: skip
def test_a_multi_token_layer_has_an_indexer_where_any_layer_has(engine, model, indexes, per_token) -> None:
    """vLLM v0.33.0 models/deepseek_v2.py:1168 ``is_mtp_layer``, SGLang v0.5.23 models/deepseek_v2.py:2117
    ``is_nextn``; the last layer of GLM-5.2 takes what an earlier one picked, and its layer for further tokens
    does not.
    """
    asked = {"max_model_len": 8192, "memory_fraction": 0.9, "kv_dtype": "bf16"}
    gpus = "16xH200" if model != "glm-4.7-flash" else "4xH200"
    drafted = served(engine, model, gpus, speculative="mtp", **asked)
    alone = served(engine, model, gpus, **asked)
    indexed = {
        item.path for item in drafted.sheets[0].items if "draft.mtp" in item.path and ".indexer." in item.path
    }
    assert bool(indexed) is indexes
    more = drafted.serving["kv_bytes_per_token"] - alone.serving["kv_bytes_per_token"]
    assert more == per_token


@pytest.mark.parametrize(("version", "own"), [("0.11.0", True), ("0.33.0", False)])
def test_older_releases_give_a_multi_token_layer_an_output_of_its_own(version: str, *, own: bool) -> None:
    paths = {
        i.path
        for i in served("vllm", "deepseek-v3", "8xH200", speculative="mtp", engine_version=version)
        .sheets[0]
        .items
    }
    assert ("draft.mtp.*.shared_head.head" in paths) is own


def test_the_draft_lies_on_the_last_stage_with_an_embedding_of_its_own(tmp_path: Path) -> None:
    answer = served(gpus="2xH100-80GB", tp=1, pp=2, **eagle3(tmp_path))
    assert held(answer, stage=0) == 0
    elements = A_LAYER + HIDDEN * (HIDDEN + 2 * 1024) + 3 * HIDDEN * HIDDEN + OWN_WORDS * HIDDEN + 4 * HIDDEN
    assert held(answer, stage=1) == 2 * (elements + WORDS * HIDDEN)


# the cache --------------------------------------------------------------------------------------------------


def test_the_drafts_layers_join_the_pool_of_vllm(tmp_path: Path) -> None:
    """32 layers of 2 · 8 · 128 · 2 bytes, and one more."""
    found = facts(served(**eagle3(tmp_path)))
    assert found["kv_bytes_per_token"] == 33 * 4096
    assert found["page_bytes_per_rank"] == 16 * 33 * 4096
    assert found["speculative"]["kv_bytes_per_token"] == 4096
    assert facts(served(**DRAFT))["kv_bytes_per_token"] == 32 * 4096 + 16 * 2 * 8 * 64 * 2
    assert (
        facts(served("vllm", "deepseek-v3", "8xH200", speculative="mtp"))["kv_bytes_per_token"]
        == 62 * 576 * 2
    )


def test_states_of_all_drafted_tokens_are_kept() -> None:
    """v0.33.0 v1/kv_cache_interface.py:1135: two pages and one for each drafted token."""
    plain, drafting = (
        facts(served("vllm", "qwen3-next-80b-a3b", "4xH100-80GB", **asked))
        for asked in ({}, {"speculative": "mtp"})
    )
    assert drafting["max_sequences"]["8192"] < plain["max_sequences"]["8192"]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_more_layers_never_take_less(engine: str, tmp_path: Path) -> None:
    weights, tokens = [], []
    for layers in (1, 2, 4):
        (tmp_path / str(layers)).mkdir()
        answer = served(engine, **eagle3(tmp_path / str(layers), num_hidden_layers=layers))
        weights.append(held(answer))
        tokens.append(facts(answer)["kv_tokens"])
    assert weights == sorted(set(weights))
    assert tokens == sorted(set(tokens), reverse=True)
    assert weights[1] - weights[0] == 2 * (A_LAYER + 2 * HIDDEN)  # later layers read one vector


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_words_of_the_prompt_take_no_weights_and_no_cache(engine: str) -> None:
    asked = {"sequences": 48, "memory_fraction": 0.8}
    plain, drafting = (
        served(engine, **asked, **more) for more in ({}, {"speculative": "ngram", "speculative_tokens": 4})
    )
    assert held(drafting) == 0
    assert facts(drafting)["kv_bytes_per_token"] == facts(plain)["kv_bytes_per_token"]
    assert abs(pool(drafting) - pool(plain)) < 2 * GIB  # graphs are of more tokens


# what is verified at once -----------------------------------------------------------------------------------


def test_as_many_rows_of_logits_as_tokens_are_verified(tmp_path: Path) -> None:
    """64 sequences of 4 tokens in 16 bits; the second runner of vLLM raises at most 1 GiB of them to fp32 at
    a time.
    """
    found = facts(served(sequences=64, **eagle3(tmp_path)))["speculative"]
    assert found["verified_rows"] == 64 * 4
    assert found["logits_bytes"] == 64 * 4 * WORDS * 2
    assert chunk_rows(WORDS) == 2**30 // (WORDS * 4)
    plain, drafting = (served(sequences=64, **asked) for asked in ({}, eagle3(tmp_path)))
    drawn = [
        next(
            i for i in a.sheets[0].items if i.component is Component.TEMPORARIES and i.path != "hidden_states"
        )
        for a in (plain, drafting)
    ]
    assert drawn[1].at[Instant.DECODE].value > 3 * drawn[0].at[Instant.DECODE].value
    most = served(sequences=1024, **eagle3(tmp_path)).sheets[0].items
    high = max(int(i.at[Instant.DECODE].high) for i in most if i.component is Component.TEMPORARIES)
    assert high < 4096 * WORDS * 2 + 2**30 * 4  # not a copy of all in fp32


def test_more_tokens_never_take_less(tmp_path: Path) -> None:
    sizes = [
        int(
            served(sequences=256, **{**eagle3(tmp_path), "speculative_tokens": n})
            .sheets[0]
            .at(Instant.DECODE, without=())
            .high
        )
        for n in (1, 3, 7)
    ]
    assert sizes == sorted(sizes)


# SGLang -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "method", "mib"),
    [
        ("0.4.6", "eagle3", 0), ("0.4.8", "eagle3", 2048), ("0.5.4", "draft", 6144), ("0.5.4", "eagle3", 2048), ("0.5.4", "ngram", 0),
        ("0.5.12", "eagle3", 4096), ("0.5.23", "draft", 0), ("0.5.23", None, 0),
    ],
)  # fmt: skip
def test_what_sglang_keeps_free_for_a_draft(version: str, method: str | None, mib: int) -> None:
    assert reserved_mib(version, method) == mib


def test_the_reserve_lowers_the_fraction(tmp_path: Path) -> None:
    """v0.5.4.post3 server_args.py:809, of a card of 81,559 MiB."""
    plain, drafting = (
        served("sglang", engine_version="0.5.4", **asked).plan for asked in ({}, eagle3(tmp_path))
    )
    assert (plain.cache.memory_fraction or 0) - (drafting.cache.memory_fraction or 0) == pytest.approx(
        2048 / 81559, abs=0.001
    )
    assert (plain.serving.max_sequences, drafting.serving.max_sequences) == (4096, 48)
    assert (
        served(
            "sglang",
            engine_version="0.4.3",
            speculative="eagle",
            draft_model=head(tmp_path),
            speculative_tokens=3,
        ).plan.serving.max_sequences
        == 32
    )


def test_sglangs_draft_has_a_pool_as_long_as_the_models(tmp_path: Path) -> None:
    answer = served("sglang", **eagle3(tmp_path))
    tokens = facts(answer)["kv_tokens"]
    assert held(answer, Component.KV_CACHE) == (tokens + 1) * 4096
    assert pool(answer) == (tokens + 1) * 33 * 4096
    assert sum("KV Cache is allocated" in line for line in facts(answer)["start_up"]) == 2


@pytest.mark.parametrize("version", ["0.4.6.post1", "0.5.8", "0.5.12", "0.5.23"])
def test_the_room_of_sglangs_pools_by_release(version: str, tmp_path: Path) -> None:
    """Before 0.5.20 the draft is loaded after the pool, whose tokens the model's layers alone decide; until
    0.5.4 places for drafts are added.
    """
    answer = served("sglang", engine_version=version, memory_fraction=0.8, sequences=48, **eagle3(tmp_path))
    found = facts(answer)
    budget, kept = found["budget"], kept_of(version)
    room = 0.8 * budget["free_before_loading"].value - budget["weights"].value
    if kept.first:
        own = sum(
            int(i.at[Instant.LOAD].value)
            for i in answer.sheets[0].items
            if i.path.startswith(PREFIX) and Instant.LOAD in i.at
        )
        room -= own
    counted = 4096 * (33 if kept.first else 32)
    ahead = 48 * 3 + 48 * 4 + 100 if kept.ahead else 0
    assert found["kv_tokens"] == pytest.approx(room // counted + ahead, abs=2)


def test_sglang_counts_a_draft_models_layers_as_if_they_were_the_models() -> None:
    """v0.5.23 model_executor/pool_configurator.py:311: 16 more layers of 4,096 bytes each, though they keep
    2,048.
    """
    answer = served("sglang", **DRAFT)
    found = facts(answer)
    assert held(answer, Component.KV_CACHE) == (found["kv_tokens"] + 1) * 16 * 2048
    assert found["budget"]["kv_cache"].value // (48 * 4096) == found["kv_tokens"]


# llama.cpp and transformers ---------------------------------------------------------------------------------

LLAMA = {"quantize": "gguf:Q4_K_M", "sequences": 4, **DRAFT}


def test_llama_cpps_draft_has_contexts_of_its_own() -> None:
    """16 layers of 2 · 512 values in fp16, 8,192 cells: 256 MiB; in one context since it was reworked, before
    in one a slot.
    """
    now, then = (
        served("llama.cpp", gpus="1xRTX4090", engine_version=version, **LLAMA) for version in (None, "b7342")
    )
    assert held(now, Component.KV_CACHE) == held(then, Component.KV_CACHE) == 256 * MIB
    assert facts(now)["speculative"]["contexts"] == 1
    assert facts(then)["speculative"]["contexts"] == 4
    one = served(
        "llama.cpp",
        gpus="1xRTX4090",
        engine_version="b7342",
        **{**LLAMA, "sequences": 1, "max_model_len": 2048},
    )
    assert held(then, Component.TEMPORARIES) == 4 * held(one, Component.TEMPORARIES)
    assert facts(now)["kv_bytes_per_token"] == (32 * 2 * 1024 + 16 * 2 * 512) * 2
    assert sum("model buffer size" in line for line in facts(now)["start_up"]) == 4


def test_llama_cpps_draft_keeps_fp16_whatever_the_models_cache_is() -> None:
    answer = served(
        "llama.cpp", gpus="1xRTX4090", **{**LLAMA, "kv_dtype": "gguf:Q8_0", "k_dtype": "gguf:Q8_0"}
    )
    assert held(answer, Component.KV_CACHE) == 256 * MIB


def test_a_draft_leaves_room_for_fewer_sequences() -> None:
    plain = {key: value for key, value in LLAMA.items() if key not in DRAFT}
    rooms = [
        facts(served("llama.cpp", gpus="1xRTX4090", **asked))["max_sequences"]["4096"]
        for asked in (plain, LLAMA)
    ]
    assert rooms[1] < rooms[0]


def test_transformers_assists_one_sequence() -> None:
    """5.23 generation/utils.py:4084: six rows in 16 bits, in fp32 and a copy of that, and the assistant's
    five in fp32.
    """
    answer = served("transformers", **{**DRAFT, "speculative_tokens": 5})
    assert held(answer) == 2 * parameter_count(model("llama-3.2-1b"))
    assert held(answer, Component.TEMPORARIES) == WORDS * (6 * (2 + 4 + 4) + 5 * 4)
    assert set(facts(answer)["max_sequences"].values()) <= {0, 1}
    assert facts(answer)["kv_bytes_per_token"] == 32 * 4096 + 16 * 2048
