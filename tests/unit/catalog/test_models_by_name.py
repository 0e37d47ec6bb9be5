"""Names as people write them: every spelling, copy and stored form of a bundled model is that model, and a
name with a word nobody knows is none.
"""

from __future__ import annotations

import contextlib
import random
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memsheet
from memsheet import catalog
from memsheet.catalog.converted_copies import converted_config
from memsheet.catalog.name_forms import AskedName, parse_model_name
from memsheet.catalog.names import (
    MIRRORS,
    bundled_entry,
    bundled_match,
    held_name,
    matching_names,
    other_kind,
)
from memsheet.catalog.pipelines import generator_kind
from memsheet.catalog.stated_bases import STATED_BASES
from memsheet.catalog.stored_names import GGUF_TYPES
from memsheet.errors import InputError
from memsheet.plan.document import model_reference
from memsheet.readers.hf_config import read_hf_config
from memsheet.readers.model import read_model
from slow_cases import first_quick

NAMES = catalog.model_names()
SPELLINGS = sorted({alias for name in NAMES for alias in (name, *catalog.find_model(name)["aliases"])})
STORED = (
    "-FP8", "-FP8-dynamic", "-AWQ", "-AWQ-INT4", "-GPTQ-Int4", "-GPTQ-Int8", "-GPTQ", "-bnb-4bit", "-unsloth-bnb-4bit", "-bnb-8bit",
    "-NVFP4", "-MXFP4", "-MXFP8", "-NVFP4-QAD", "-qat-w4a16-ct", "-quantized.w4a16", "-quantized.w8a8", "-BF16", "-GGUF", "-Q8_0-GGUF", "-GGUF:Q4_K_M", "-GGUF:UD-Q4_K_XL", "-i1-GGUF",
    "-int4-AutoRound", "-AutoRound-GPTQ-4bit",
)  # fmt: skip
TUNED = ("", "-Instruct", "-Base", "-it", "-Chat", "-hf")
SHAPES = ("hidden_size", "num_hidden_layers", "vocab_size", "model_type", "text_config", "n_layer", "n_embd")


def shapes(entry) -> dict:
    return {key: entry["config"].get(key) for key in SHAPES}


@pytest.mark.parametrize("end", first_quick(["", *STORED], 3))
def test_every_copy_of_every_model_has_its_shapes(end: str) -> None:
    """Every bundled model, under every of its names, in every case, by every kind of owner, tuned and stored
    anyhow: as they are all of them, stored in another way each third.
    """
    chosen = random.Random(end)
    for spelling in SPELLINGS[STORED.index(end) % 3 :: 3] if end else SPELLINGS:
        home, _, bare = spelling.rpartition("/")
        meant = catalog.find_model(spelling)
        for tuned in chosen.sample(TUNED, 1 if end else 2):
            for owner in {"", home, chosen.choice(sorted(MIRRORS))}:
                name = f"{owner}/{bare}" if owner else bare
                for written in (f"{name}{tuned}{end}", f"{name}{tuned}".upper().replace("-", "_") + end):
                    found = bundled_entry(written)
                    assert found is not None, written
                    own = {**meant, "config": converted_config(name, meant["name"], meant["config"])[0]}
                    assert shapes(found) == shapes(own), written


@pytest.mark.parametrize("end", [*STORED, *(f":{kind}" for kind in sorted(GGUF_TYPES))])
def test_a_stored_form_is_read_and_said(end: str) -> None:
    spec = read_model(f"Qwen/Qwen3-8B{end}", catalog=bundled_entry)
    assert spec.hidden == 4096
    assert spec.source.assumed
    assert "Qwen/Qwen3-8B" in spec.source.assumed[0]
    if "BF16" not in end or ":" in end:
        assert spec.quantization is not None
    assert spec.in_gguf == ("GGUF" in end or ":" in end)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_stored_otherwise_is_read_as_bundled(name: str) -> None:
    entry = catalog.find_model(name)
    assert bundled_entry(name) == entry
    for alias in entry["aliases"]:
        assert bundled_entry(alias)["config"] == catalog.find_model(alias)["config"]
        if alias not in entry.get("released_configs", {}):
            assert catalog.find_model(alias)["config"] == entry["config"]


@pytest.mark.parametrize("name", [one for one in NAMES if catalog.find_model(one).get("released_configs")])
def test_a_release_is_read_back_by_what_a_plan_names_it(name: str) -> None:
    """Whose config.json says something else than the model that it is of."""
    for released in catalog.find_model(name)["released_configs"]:
        spec = read_model(released, catalog=bundled_entry)
        again = read_model(model_reference(spec), catalog=bundled_entry)
        assert again == spec
        assert again != read_model(name, catalog=bundled_entry)


def test_random_names_are_none() -> None:
    chosen, letters = random.Random(7), string.ascii_lowercase + string.digits + "-./_:@"
    for _ in range(3000):
        name = "".join(chosen.choices(letters, k=chosen.randint(1, 30)))
        with contextlib.suppress(InputError):
            assert bundled_match(name) is None, name


def test_a_family_in_anothers_size_is_none() -> None:
    """Every family with every size of the others: a name is of a model that is bundled so, of none, or holds
    one's own name and size and says so.
    """
    split = [re.fullmatch(r"(.*?)-((?:\d+x)?\d+(?:\.\d+)?[bm].*)", name) for name in NAMES]
    families, sizes = ({found[part] for found in split if found} for part in (1, 2))
    index = catalog.spelling_index()
    for family in families:
        for size in sizes:
            found = bundled_match(f"{family}-{size}")
            bare = re.sub(r"-(?:instruct|base|it|chat|hf|text)$", "", f"{family}-{size}")
            said = found is not None and found.held and (found.sure or found.name in f"{family}-{size}")
            assert found is None or not found.held or found.words
            assert found is None or said or index.get(f"{family}-{size}", index.get(bare)) == found.name, bare


@given(
    st.sampled_from(SPELLINGS),
    st.text(string.ascii_lowercase, min_size=5, max_size=9),
    st.sampled_from(STORED),
)
def test_an_unknown_word_is_never_passed_over_in_silence(spelling: str, word: str, end: str) -> None:
    """Not behind the name, not before it: it is a match of no surety that tells the word, or none."""
    bare = spelling.rpartition("/")[2]
    known = {part for each in SPELLINGS for part in each.lower().replace("/", "-").split("-")}
    if word in known | {"dequantized", "unquantized", "merged", "finetune", "finetuned", "linearized"}:
        return
    for name in (
        f"{bare}-{word}",
        f"{word}-{bare}",
        f"{bare}-{word}{end}",
        f"unsloth/{bare}-{word}",
        f"{bare}{end}-{word}",
    ):
        found = bundled_match(name)
        assert found is None or (not found.sure and word in found.words), name
        assert found is None or shapes(bundled_entry(name)) == shapes(catalog.find_model(spelling)), name


SIZED = [
    each
    for each in SPELLINGS
    if re.search(r"(?<![a-z0-9.])(?:\d+x)?e?\d+(?:\.\d+)?[bm](?![a-z0-9.])", each.lower())
]


@pytest.mark.parametrize("word", ["sudoku-grpo", "tldr-rm", "reward", "abliterated", "uncensored-v2"])
def test_what_somebody_made_of_a_model_is_that_model_and_said_so(word: str) -> None:
    """Every bundled model whose name says its size, under a stranger's name behind it and before it."""
    for spelling in SIZED:
        bare, meant = spelling.rpartition("/")[2], catalog.find_model(spelling)
        for name in (f"somebody/{bare}-{word}", f"somebody/my-{word}-{bare}"):
            found = bundled_entry(name)
            assert found is not None, name
            assert shapes(found) == shapes(meant), name
            assert found["sure"] is False
            assert all(part in found["assumed"][0] for part in word.split("-")), name
            assert ("one output" in found["assumed"][0]) == (word in ("reward", "tldr-rm"))


SPLIT = {
    "llama-3.1-8b": "Llama-3.1-{}-8B",
    "gemma-2-9b": "gemma-2-{}-9b-it",
    "qwen3-30b-a3b": "Qwen3-{}-30B-A3B-v2",
}


@pytest.mark.parametrize(("model", "form"), SPLIT.items())
def test_words_between_a_family_and_its_size_are_told(model: str, form: str) -> None:
    found = bundled_entry(f"somebody/{form.format('Storm-Chaser')}")
    assert found is not None
    assert found["copy_of"] == model
    assert not found["sure"]
    assert "storm, chaser" in found["assumed"][0]


@pytest.mark.parametrize("form", SPLIT.values())
@pytest.mark.parametrize(
    "word", ["H", "H1", "V4", "JP", "Next", "VL", "Mamba", "MoE", "Nemotron", "Coder", "mini", "7B", "8k"]
)
def test_words_between_that_may_stand_for_other_shapes_are_none(form: str, word: str) -> None:
    found = bundled_match(f"somebody/{form.format(word)}")
    assert found is None or not found.held


@pytest.mark.parametrize("owner", ["", "meta-llama/", "unsloth/"])
def test_words_between_of_a_publisher_or_its_mirrors_are_none(owner: str) -> None:
    assert bundled_match(f"{owner}Llama-3.1-Storm-8B") is None


def test_a_release_of_what_a_tuner_made_is_no_release_of_the_model() -> None:
    found = bundled_match("somebody/Sky-Reward-Llama-3.1-8B-v0.2")
    assert found is not None
    assert found.name == "llama-3.1-8b"
    assert "v0.2" in found.words
    for name in ("Llama-3.1-8B-v0.2", "Meta-Llama-3.1-8B-v2", "Sky-Mistral-7B-v0.9", "Sky-Llama-3.1-8B-2.0"):
        assert bundled_match(f"somebody/{name}") is None, name


@pytest.mark.parametrize(
    "word",
    [
        "VL", "vision", "omni", "audio", "embedding", "pruned", "width", "moe", "4x", "8x7b", "3b", "128k", "1M", "v3", "2507", "aqlm", "2bit", "merge",
        "mamba", "qwen9", "lora", "long", "distill", "eagle3", "dflash", "speculator.eagle3", "medusa", "draft", "japanese", "vocab", "FP8-KVx-int4",
    ],
)  # fmt: skip
def test_a_word_that_may_stand_for_other_shapes_is_none(word: str) -> None:
    """Behind every bundled model whose name says its size, unless that is a bundled name of its own."""
    index = catalog.spelling_index()
    for spelling in SIZED:
        bare = spelling.rpartition("/")[2]
        if word == "qwen9" or f"{bare}-{word}".lower() in index:
            continue
        found = bundled_match(f"somebody/{bare}-{word}")
        assert found is None or index.get(found.name) in index.values(), (bare, word)
        assert found is None or not found.held, (bare, word)


@pytest.mark.parametrize(
    "word", ["eagle3", "EAGLE", "speculator.eagle3", "dflash", "DSpark", "draft", "eagle3.1-mla"]
)
def test_a_draft_is_told_with_the_model_that_it_is_for(word: str) -> None:
    for name in NAMES:
        if name not in {each.lower() for each in SIZED}:
            continue
        kind, of = other_kind(f"somebody/{name}-{word}")
        assert kind == "draft"
        assert of == name, (name, word)
        assert bundled_match(f"somebody/{name}-{word}") is None
    with pytest.raises(InputError, match=r"drafts for llama-3\.1-8b"):
        read_model("Llama-3.1-8B-Instruct-speculator.eagle3", catalog=bundled_entry)


def test_an_adapter_is_told_with_its_base() -> None:
    assert other_kind("trl-lib/Qwen3-4B-Reward-LoRA") == ("adapter", "qwen3-4b")
    assert other_kind("somebody/roberta-large-peft-p-tuning") == ("adapter", "roberta-large")
    assert other_kind("alignment-handbook/zephyr-7b-sft-lora") == ("adapter", "mistral-7b")
    assert other_kind("somebody/Qwen3-8B-metamath-lora64") == ("adapter", "qwen3-8b")
    assert other_kind("somebody/flan-t5-large-phrases-lora") == ("adapter", "t5-v1.1-large")
    assert other_kind("somebody/mistral_lora_with_words") == ("adapter", "")
    with pytest.raises(InputError, match="an adapter for qwen3-4b"):
        read_model("Qwen3-4B-LoRA", catalog=bundled_entry)


def test_no_bundled_model_has_the_name_of_a_part() -> None:
    assert not [spelling for spelling in SPELLINGS if other_kind(spelling)[0]]


@pytest.mark.parametrize("repo", sorted(STATED_BASES))
def test_a_stated_base_is_bundled_sourced_and_said(repo: str) -> None:
    base = STATED_BASES[repo]
    assert repo == repo.lower().replace("_", "-")
    assert repo not in catalog.spelling_index()
    assert base.model in NAMES
    assert base.source
    for name in (
        repo,
        repo.rpartition("/")[2],
        f"{repo}-GGUF",
        f"unsloth/{repo.rpartition('/')[2]}-bnb-4bit",
    ):
        found = bundled_entry(name)
        assert found is not None, name
        assert shapes(found) == shapes(catalog.find_model(base.model)), name
        assert base.words in found["assumed"][0]
        assert found["sure"] is True
    assert bundled_match(f"somebody/{repo.rpartition('/')[2]}").sure is False


@pytest.mark.parametrize(
    "name",
    [
        "nvidia/Llama-3.1-Nemotron-8B", "Llama-3.1-8B-eagle3", "Llama-3.1-Minitron-4B-Width-Base", "somebody/llava-med-v1.5-mistral-7b", "mistral-7b-v0.9",
        "nvidia/NVIDIA-Nemotron-Nano-12B-v2-VL-BF16", "microsoft/Phi-4-multimodal-instruct", "gradientai/Llama-3-8B-Instruct-262k", "Qwen3-8B-Llama-3.1-8B",
        "google/gemma-4-31B-it-assistant", "Llama-3.1-8B-LoRA", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "llama3-1.8b", "qwen3-8b:foo", "qwen-38b",
        "Qwen3-30B", "qwen3-3b", "gemma-3-2b", "mistral", "llama", "8b", "-Instruct", ":Q4_K_M", "GGUF", "unsloth/GGUF", "x:y:z",
    ],
)  # fmt: skip
def test_what_may_have_other_shapes_is_none(name: str) -> None:
    assert bundled_match(name) is None


def test_what_a_tuned_name_holds_is_offered() -> None:
    assert held_name("huihui-ai/Llama-3.1-8B-Instruct-abliterated") == "llama-3.1-8b"
    assert held_name("Skywork/Skywork-Reward-V2-Qwen3-8B") == "qwen3-8b"
    assert held_name("nobody/nothing") == ""
    with pytest.raises(InputError, match=r"ask for llama-3\.1-8b"):
        read_model("Llama-3.1-8B-Instruct-262k", catalog=bundled_entry)
    told = read_model("Llama-3.1-8B-Instruct-abliterated", catalog=bundled_entry).source.assumed
    assert "abliterated" in told[0]


def test_an_owner_whom_nobody_knows_is_not_sure() -> None:
    assert bundled_match("somebody/Qwen3-8B-AWQ").sure is False
    assert bundled_match("RedHatAI/Qwen3-8B-FP8-dynamic").sure is True
    assert bundled_match("Qwen/Qwen3-8B-FP8").sure is True


@pytest.mark.parametrize(
    ("text", "repo", "revision", "tag"),
    [
        ("https://huggingface.co/org/name", "org/name", None, ""),
        ("http://www.huggingface.co/org/name/", "org/name", None, ""),
        ("https://huggingface.co/org/name/blob/main/config.json", "org/name", None, ""),
        ("https://huggingface.co/org/name/tree/v1.0", "org/name", "v1.0", ""),
        ("https://huggingface.co/org/name/tree/refs%2Fpr%2F3", "org/name", "refs/pr/3", ""),
        ("https://huggingface.co/org/name/resolve/refs/pr/3/config.json?download=true", "org/name", "refs/pr/3", ""),
        ("https://huggingface.co/org/name?library=transformers#usage", "org/name", None, ""),
        ("huggingface.co/org/name", "org/name", None, ""),
        ("hf.co/org/name:Q4_K_M", "org/name", None, "Q4_K_M"),
        ("hf.co/org/name-GGUF:UD-Q4_K_XL", "org/name-GGUF", None, "UD-Q4_K_XL"),
        ("hf://org/name", "org/name", None, ""),
        ("hf://org/name@v2", "org/name", "v2", ""),
        ("hf://models/org/name/config.json", "org/name", None, ""),
        ("https://hub.example:8443/org/name/tree/main", "org/name", None, ""),
        ("org/name@refs/pr/1", "org/name", "refs/pr/1", ""),
        ("org/name@q4_k_m", "org/name", None, "q4_k_m"),
        ("org/name-GGUF/name-Q5_K_M-00001-of-00002.gguf", "org/name-GGUF", None, "Q5_K_M"),
        ("https://huggingface.co/org/n/blob/main/n.Q6_K.gguf", "org/n", None, "Q6_K"),
        ("https://www.modelscope.cn/models/org/name/summary", "org/name", None, ""),
        ("https://huggingface.co/gpt2", "gpt2", None, ""),
    ],
)  # fmt: skip
def test_forms_of_a_hubs_name(text: str, repo: str, revision: str | None, tag: str) -> None:
    found = parse_model_name(text, endpoint="https://hub.example:8443")
    assert isinstance(found, AskedName)
    assert (found.repo, found.revision, found.tag, found.ollama) == (repo, revision, tag, False)


@pytest.mark.parametrize(
    "text",
    [
        "https://huggingface.co/datasets/a/b",
        "https://huggingface.co/spaces/a/b",
        "https://example.com/a/b",
        "ftp://hf.co/a/b",
    ],
)
def test_pages_that_are_no_models_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"not a model|no hub"):
        parse_model_name(text)


@pytest.mark.parametrize("text", ["", "..", "a/../b", "a" * 600, "a\x1bb", "a/b/c/d", "/a", "a b"])
def test_no_names(text: str) -> None:
    assert parse_model_name(text) is None


@pytest.mark.parametrize(
    ("text", "name", "weights"),
    [
        ("llama3.1:8b", "llama-3.1-8b", "gguf:Q4_K_M"), ("llama3.1:latest", "llama-3.1-8b", "gguf:Q4_K_M"), ("llama3.1:70b-instruct-q8_0", "llama-3.1-70b", "gguf:Q8_0"),
        ("qwen3:30b-a3b-q4_K_M", "qwen3-30b-a3b", "gguf:Q4_K_M"), ("qwen3:30b", "qwen3-30b-a3b", "gguf:Q4_K_M"), ("gemma3:27b-it-q4_K_M", "gemma-3-27b", "gguf:Q4_K_M"),
        ("gemma3:27b-it-fp16", "gemma-3-27b", "gguf:F16"), ("mixtral:8x7b", "mixtral-8x7b", "gguf:Q4_K_M"), ("gpt-oss:20b", "gpt-oss-20b", "gguf:BF16"),
        ("ollama.com/library/phi4:14b", "phi-4", "gguf:Q4_K_M"), ("https://ollama.com/library/qwen2.5:7b", "qwen2.5-7b", "gguf:Q4_K_M"), ("library/smollm2:135m", "smollm2-135m", "gguf:Q4_K_M"),
        ("gemma4:26b", "gemma-4-26b-a4b", "gguf:Q4_K_M"), ("deepseek-r1:8b", "qwen3-8b", "gguf:Q4_K_M"), ("llama3.1", "llama-3.1-8b", "gguf:Q4_K_M"),
        ("nemotron-3-nano:30b", "nemotron-3-nano-30b-a3b", "gguf:Q4_K_M"), ("devstral:24b", "mistral-small-3.1-24b", "gguf:Q4_K_M"), ("devstral:latest", "mistral-small-3.1-24b", "gguf:Q4_K_M"),
        ("mistral-small3.2", "mistral-small-3.1-24b", "gguf:Q4_K_M"), ("qwen3-coder:30b", "qwen3-coder-30b-a3b", "gguf:Q4_K_M"), ("gpt-oss:latest", "gpt-oss-20b", "gguf:BF16"),
        ("deepseek-r1:671b", "deepseek-r1", "gguf:Q4_K_M"), ("qwen2.5vl:7b", "qwen2.5-vl-7b", "gguf:Q4_K_M"), ("llama3.2-vision:11b", "llama-3.2-11b-vision", "gguf:Q4_K_M"),
    ],
)  # fmt: skip
def test_ollamas_names(text: str, name: str, weights: str) -> None:
    entry = bundled_entry(text)
    assert entry is not None
    assert bundled_match(text).name == name
    assert read_hf_config(entry["config"]).quantization.weights == weights


def test_words_search() -> None:
    assert {"qwen3-8b", "qwen3-32b"} <= set(matching_names("qwen qwen3"))
    assert matching_names("meta 3.1 8b") == ("llama-3.1-8b",)
    assert matching_names("unsloth/Qwen3-8B-bnb-4bit") == ("qwen3-8b",)
    assert matching_names("llama3.2:3b") == ("llama-3.2-3b",)
    assert matching_names("nothing-of-the-kind") == ()


@pytest.mark.parametrize(
    "name", ["mlx-community/Qwen3-8B-4bit", "lmstudio-community/Qwen3-8B-MLX-8bit", "mlx-community/gpt-oss-120b-MXFP4-Q4", "mlx-community/Qwen3-8B-4bit-DWQ"]
)  # fmt: skip
@pytest.mark.parametrize("engine", ["llama.cpp", "vllm", "transformers"])
def test_what_is_packed_for_mlx_is_no_file_of_another(name: str, engine: str) -> None:
    with pytest.raises(InputError, match="packed for MLX"):
        memsheet.infer(name, engine=engine)
    assert bundled_entry("mlx-community/Qwen3-8B-bf16") is not None


@pytest.mark.parametrize(
    ("name", "weights"),
    [("Qwen/Qwen3-30B-A3B-FP8", "fp8-block"), ("Qwen3-30B-A3B-FP8", "fp8-block"), ("RedHatAI/Qwen3-30B-A3B-FP8-block", "fp8-block"),
     ("RedHatAI/Qwen3-30B-A3B-FP8-dynamic", "fp8"), ("qtum/Qwen3-14B-FP8", "fp8"), ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8", "fp8")],
)  # fmt: skip
def test_eight_bits_share_scales_as_their_publisher_makes_them(name: str, weights: str) -> None:
    assert read_hf_config(bundled_entry(name)["config"]).quantization.weights == weights


@pytest.mark.parametrize(
    "asked", [{"model": "Qwen/Qwen3-30B-A3B-FP8"}, {"model": "qwen3-30b-a3b", "quantize": "fp8-block"}]
)
def test_a_cut_through_a_block_is_refused_of_names_and_flags(asked: dict[str, str]) -> None:
    question = {"engine": "sglang", "gpus": "4xH100-80GB", "tp": 4, **asked}
    with pytest.raises(InputError, match="192 elements"):
        memsheet.infer(**question)
    assert memsheet.infer(**question, ep=4).verdict is not None


# Whose frozen integers an adapter may be trained over.
TRAINED_UNDER_AN_ADAPTER = {"Qwen/Qwen3-8B-AWQ"}


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3-8B-AWQ",
        "qwen3:8b",
        "nvidia/Qwen3-8B-NVFP4",
        "nvidia/Qwen3-8B-NVFP4-QAD",
        "nvidia/Qwen3-8B-FP8",
    ],
)
def test_a_form_that_cannot_be_trained_names_the_model_that_can(name: str) -> None:
    with pytest.raises(InputError) as caught:
        memsheet.train(name, seq_len=128, **({} if name in TRAINED_UNDER_AN_ADAPTER else {"lora_rank": 8}))
    assert "base model, qwen3-8b" in str(caught.value)


@pytest.mark.parametrize("name", sorted(TRAINED_UNDER_AN_ADAPTER))
def test_frozen_integers_are_trained_under_an_adapter(name: str) -> None:
    assert memsheet.train(name, seq_len=128, lora_rank=8, gpus="1xH100-80GB").verdict is not None


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen-Image", "qwen/qwen_image-edit-2511", "https://huggingface.co/Wan-AI/Wan2.2-T2V-A14B-Diffusers", "Wan-AI/Wan2.2-TI2V-5B-Diffusers@main",
        "stabilityai/stable-diffusion-3.5-large", "black-forest-labs/FLUX.1-dev", "zai-org/GLM-Image", "meituan-longcat/LongCat-Image-Edit",
        "Tongyi-MAI/Z-Image-Turbo", "runwayml/stable-diffusion-v1-5", "OpenMOSS-Team/MOVA-720p", "Lightricks/ltxv-spatial-upscaler-0.9.7",
    ],
)  # fmt: skip
def test_a_pipeline_of_diffusers_is_refused_by_its_name_where_nobody_can_be_asked(name: str) -> None:
    with pytest.raises(InputError, match="pipeline of diffusers"):
        bundled_match(name)
    with pytest.raises(InputError, match="pipeline of diffusers"):
        memsheet.train(name, gpus="1xH100-80GB")


@pytest.mark.parametrize("name", ["nvidia/canary-1b", "nvidia/tts_hifigan", "nvidia/diar_sortformer_4spk-v1"])
def test_a_speech_model_of_nemo_is_refused_and_what_transformers_has_is_not(name: str) -> None:
    with pytest.raises(InputError, match="NeMo"):
        bundled_match(name)
    assert not generator_kind("nvidia/parakeet-rnnt-0.6b")
    assert not generator_kind("nvidia/canary-1b-v2")


def test_no_bundled_model_has_a_pipelines_name() -> None:
    assert not [spelling for spelling in SPELLINGS if generator_kind(spelling)]


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen3-TTS-12Hz-1.7B-Base", "zai-org/GLM-TTS", "hubertsiuzdak/snac_24khz"]
)
def test_what_makes_sound_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(InputError, match=r"speech generator|codec"):
        memsheet.infer(name, gpus="1xH100-80GB")


@pytest.mark.parametrize(
    "name",
    [
        "mistralai/Mistral-Small-24B-2501",
        "mistralai/Mistral-Small-24B-Base-2501",
        "unsloth/Mistral-Small-24B-Instruct-2501-bnb-4bit",
        "mistralai/Mistral-Small-3.1-24B-2503",
        "mistralai/Devstral-Small-2-24B-2512",
    ],
)
def test_a_release_is_known_without_what_it_was_tuned_for(name: str) -> None:
    found = bundled_match(name)
    assert found is not None
    assert found.name == ("devstral-small-2-24b" if "Devstral" in name else "mistral-small-3.1-24b")


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("vicuna-7b-v1-5", "vicuna-7b"),
        ("qwen25-7b-instruct", "qwen2.5-7b"),
        ("llama31_8b", "llama-3.1-8b"),
        ("phi35-mini-instruct", "phi-3.5-mini"),
        ("mistral-7b-v0-3", "mistral-7b-v0.3"),
    ],
)
def test_a_release_is_known_without_its_point(written: str, name: str) -> None:
    found = bundled_match(written)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize("name", ["Qwen3-8B-int8-AutoRound", "Qwen3-8B-int4-mixed-AutoRound", "qwen-32b"])
def test_bits_and_sizes_that_a_name_leaves_open_are_none(name: str) -> None:
    assert bundled_match(name) is None
