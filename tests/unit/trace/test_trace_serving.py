"""The trace of inference: real code and the library's own caches on fake tensors. Small models, worked by
hand.
"""

import json
from pathlib import Path

import pytest

import warm_children

pytest.importorskip("torch")
pytest.importorskip("transformers")

from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.questions.traced import Options, trace_with_timelines

pytestmark = pytest.mark.usefixtures("warm_children")
FOLLOWED = [
    "llama", "llama batch", "llama long prompt", "llama whole", "llama fp8", "llama fp32", "llama eager", "gpt2", "gemma", "gemma short",
    "gemma static", "mixtral", "deepseek",
]  # fmt: skip
"""All but a static cache, which holds its full length while the prompt is read: no plan says that it is
static.
"""
HERE = Path(__file__).parents[2]
TOKENS, PROMPT, BF16 = 96, 48, 2
A_TOKEN = {"llama": 3 * 2 * 2 * 16, "gpt2": 3 * 2 * 64, "mixtral": 2 * 2 * 2 * 16}
"""Elements of a cached token: layers · keys and values · heads · head dim, of the models of serving_cases.py.
"""


@pytest.fixture(scope="module")
def found():
    return json.loads(warm_children.printed(HERE / "serving_cases.py"))


@pytest.fixture(scope="module")
def cases(found):
    return found["cases"]


@pytest.mark.slow
def test_fake_tensors_tell_of_a_cpu_what_real_ones_do(found):
    """Every allocation and release of prefill, jump and decode, in order and size."""
    assert found["alike"] == dict.fromkeys(found["alike"], True)


@pytest.mark.slow
def test_our_loop_holds_what_generate_holds(found):
    """On a CPU, of three prompts; generate keeps flags of a few bytes for each sequence besides."""
    for name, sizes in found["generated"].items():
        for theirs, own in sizes:
            assert own <= theirs <= own + 128, name


def test_items_add_up_to_the_peak_of_every_instant(cases):
    assert all(case["sums"] for case in cases.values())
    assert all(list(case["peaks"]) == ["load", "prefill", "decode"] for case in cases.values())


@pytest.mark.parametrize(
    "name", ["llama", "gpt2", "mixtral", "llama long prompt", "llama whole", "llama eager", "llama static"]
)
def test_a_full_cache_is_layers_times_heads_times_tokens(cases, name):
    size = A_TOKEN[name.split()[0]] * TOKENS * BF16
    assert cases[name]["cached_at_the_end"] == size
    assert cases[name]["components"]["decode"]["kv_cache"] == size


def test_a_cache_counts_its_sequences_and_its_format(cases):
    size = cases["llama"]["cached_at_the_end"]
    assert cases["llama batch"]["cached_at_the_end"] == 3 * size
    assert cases["llama fp32"]["cached_at_the_end"] == 2 * size
    assert cases["llama fp8"]["cached_at_the_end"] == size // 2


def test_a_latent_is_cached_once_for_all_heads(cases):
    """3 layers of one latent of 32 and one rotary key of 16."""
    assert cases["deepseek"]["cached_at_the_end"] == 3 * (32 + 16) * TOKENS * BF16


def test_a_dynamic_cache_holds_the_prompt_first_and_a_static_one_everything(cases):
    a_token = A_TOKEN["llama"] * BF16
    assert cases["llama"]["components"]["prefill"]["kv_cache"] == a_token * PROMPT
    assert cases["llama static"]["components"]["prefill"]["kv_cache"] == a_token * TOKENS
    assert cases["llama static"]["cached_between"] == a_token * TOKENS
    assert cases["llama"]["cached_between"] == 0  # the prompt's keys are gone before the longer ones are made


def test_windows_are_bounded_in_decode_but_hold_the_whole_prompt_before(cases):
    """Three layers with a window of 32 and one without; a layer that is cut to its window is a view of all it
    had.
    """
    a_token = 2 * 16 * BF16
    assert cases["gemma"]["cached_at_the_end"] == a_token * (3 * 32 + TOKENS)
    assert cases["gemma"]["components"]["prefill"]["kv_cache"] == a_token * 4 * PROMPT
    assert cases["gemma static"]["cached_between"] == a_token * (3 * 32 + TOKENS)
    assert cases["gemma short"]["cached_at_the_end"] == a_token * 4 * 24  # shorter than the window


def test_a_growing_cache_is_there_twice_in_one_layer(cases):
    """The values of the last layer while they are made anew, one token shorter; a static cache is written in
    place.
    """
    assert cases["llama"]["growth"] == A_TOKEN["llama"] // 6 * (TOKENS - 1) * BF16
    assert cases["llama batch"]["growth"] == 3 * cases["llama"]["growth"]
    assert cases["llama static"]["growth"] == 0


def test_a_prompt_costs_by_its_length(cases):
    """Between prompts of 48, 64 and 96 the peak of prefill is a straight line, for nothing in it is squared
    with flash attention.
    """
    short, middle, whole = (
        cases[name]["peaks"]["prefill"] for name in ("llama", "llama long prompt", "llama whole")
    )
    assert short < middle < whole
    assert (middle - short) / (64 - 48) == pytest.approx((whole - middle) / (96 - 64), rel=0.01)


def test_eager_attention_makes_score_matrices(cases):
    assert cases["llama eager"]["peaks"]["prefill"] > cases["llama"]["peaks"][
        "prefill"
    ] + 4 * PROMPT * PROMPT * (4 + BF16)


def test_chosen_experts_are_copied_in_decode(cases):
    """Two choices of 3 · 64 · 160 elements."""
    assert cases["mixtral"]["components"]["decode"]["temporaries"] >= 2 * 3 * 64 * 160 * BF16


def test_paths_are_the_attention_layers(cases):
    assert cases["llama"]["paths"] == cases["gemma"]["paths"] == ["model.layers.*.self_attn"]
    assert cases["gpt2"]["paths"] == ["transformer.h.*.attn"]


@pytest.mark.parametrize("name", FOLLOWED)
def test_formulas_and_trace_agree(cases, name):
    """Within 3 % of totals so small that a token's logits are a share of them."""
    for instant, size in cases[name]["peaks"].items():
        assert cases[name]["predicted"][instant][1] == pytest.approx(size, rel=0.03), instant


@pytest.mark.parametrize(
    ("name", "words"),
    [("integers", "hqq"), ("contradiction", "static"), ("several", "not traced yet")],
)
def test_what_cannot_be_traced_is_refused_by_name(found, name, words):
    assert words in found["refused"][name]


def test_the_command_prints_a_traced_sheet_of_inference(capsys):
    assert (
        main(
            [
                "trace",
                "llama-tiny",
                "--max-model-len",
                "64",
                "--prompt-tokens",
                "16",
                "--cache",
                "static",
                "--json",
            ]
        )
        == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "memsheet/sheet/1"
    assert document["witness"] == "traced"
    assert document["plan"]["task"] == "infer"
    (rank,) = document["ranks"]
    assert list(rank["instants"]) == ["load", "prefill", "decode"]
    cached = sum(item["at"]["decode"] for item in rank["items"] if item["component"] == "kv_cache")
    assert cached == 4 * 2 * 4 * 32 * 64 * BF16
    assert any("lengthened" in line for line in document["assumed"])


def test_a_cache_is_of_inference():
    with pytest.raises(InputError, match="trains"):
        trace_with_timelines("llama-tiny", Options(cache="static"), seq_len=64)


def test_a_cache_that_is_not_there_is_refused(capsys):
    assert main(["trace", "llama-tiny", "--max-model-len", "64", "--cache", "paged"]) == 2
    assert "none of transformers' caches" in capsys.readouterr().err
