"""vLLM: pages, groups, the profiling run's peak, the pool that takes the rest, and the lines it starts
with.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from laws import every
from memsheet import catalog
from memsheet.budget import Answer, Result, verdict_on_start
from memsheet.cli import main
from memsheet.engines.vllm.facts import RELEASES, release_of, stage_layer_counts
from memsheet.engines.vllm.pages import CacheReach, kinds_of, layout_of, sequence_blocks, state_page_bytes
from memsheet.engines.vllm.sampling import sort_scratch_bytes, sorted_sampler_bytes
from memsheet.errors import InputError
from memsheet.formulas.serving.kv_cache import caching_layers
from memsheet.formulas.serving.mixture import request_mix_facts
from memsheet.plan.dtypes import BF16
from memsheet.plan.model import LinearAttention, ModelSpec, StateSpace
from memsheet.questions.accounted import infer
from memsheet.readers.model import read_model
from memsheet.readers.request_lengths import read_lengths
from memsheet.resolve import resolve_request
from memsheet.sheet import Bytes, Component, Instant
from memsheet.units import GIB

OLD = {"engine_version": "0.11.0", "page_tokens": 128, "max_model_len": 16000}


def model(name: str) -> ModelSpec:
    return read_model(name, catalog=catalog.find_model, names=catalog.model_names())


def served(name: str = "llama-3.1-8b", gpus: str = "1xH100-80GB", **options: Any) -> Answer:
    return infer(name, gpus=gpus, engine="vllm", **{"max_model_len": 8192, **options})


def facts(*args: Any, **options: Any) -> dict[str, Any]:
    return dict(served(*args, **options).serving or {})


def layout(name: str, version: str = "0.11.0", **keys: Any) -> Any:
    spec = model(name)
    request = {
        "task": "infer",
        "engine": "vllm",
        "serving.max_model_len": 8192,
        **{k.replace("__", "."): v for k, v in keys.items()},
    }
    release = release_of(version)
    return layout_of(kinds_of(spec, resolve_request(request, spec).plan, release), release)


# pages ------------------------------------------------------------------------------------------------------

PER_TOKEN = {  # layers · (2 · key/value heads · head size, or latent and rotary key) · 2 bytes, from the released configurations
    "llama-3.1-8b": 32 * 2 * 8 * 128 * 2, "llama-2-7b": 32 * 2 * 32 * 128 * 2, "qwen3-0.6b": 28 * 2 * 8 * 128 * 2,
    "qwen2.5-7b": 28 * 2 * 4 * 128 * 2, "mixtral-8x7b": 32 * 2 * 8 * 128 * 2, "gemma-3-27b": 62 * 2 * 16 * 128 * 2,
    "gpt-oss-20b": 24 * 2 * 8 * 64 * 2, "deepseek-v3": 61 * (512 + 64) * 2, "jamba-v0.1": 4 * 2 * 8 * 128 * 2, "mamba-2.8b": 0,
}  # fmt: skip


@pytest.mark.parametrize(("name", "per_token"), PER_TOKEN.items())
def test_cache_bytes_a_token(name: str, per_token: int) -> None:
    assert facts(name, gpus="4xH200", max_model_len=2048)["kv_bytes_per_token"] == per_token


def test_a_block_of_a_uniform_model_has_a_page_of_every_layer() -> None:
    found = layout("llama-3.1-8b", serving__page_tokens=16)
    assert found.block_bytes == 16 * PER_TOKEN["llama-3.1-8b"]
    assert [group.layers for group in found.groups] == [32]


def test_heads_are_copied_where_ranks_are_more() -> None:
    assert layout("qwen2.5-7b", mesh__tp=4).block_bytes == layout("qwen2.5-7b", mesh__tp=2).block_bytes // 2
    assert (
        facts("qwen2.5-7b", gpus="4xH100-80GB", tp=4)["kv_bytes_per_token_per_rank"] == 28 * 2 * 1 * 128 * 2
    )
    assert (
        layout("deepseek-v3", mesh__tp=8).block_bytes == layout("deepseek-v3").block_bytes
    )  # a latent is whole on every rank


def test_windows_have_groups_of_as_many_layers_as_the_rarest_kind() -> None:
    gemma = layout("gemma-3-27b")
    assert [(group.kept, group.layers) for group in gemma.groups] == [(CacheReach.WINDOW, 10)] * 6 + [
        (CacheReach.ALL, 10)
    ]  # 52 windows, 8 of padding
    assert gemma.block_bytes == 10 * 16 * 2 * 16 * 128 * 2
    assert [group.kept for group in layout("gpt-oss-20b").groups] == [CacheReach.WINDOW, CacheReach.ALL]


def test_before_groups_windows_were_kept_whole() -> None:
    assert {group.kept for group in layout("gemma-3-27b", "0.8.5").groups} == {CacheReach.ALL}


def test_groups_take_the_larger_size_where_kinds_are_nearly_as_many() -> None:
    release, spec = release_of("0.33.0"), model("gpt-oss-20b")
    plan = resolve_request({"task": "infer", "engine": "vllm", "serving.max_model_len": 8192}, spec).plan
    window, whole = kinds_of(spec, plan, release)
    uneven = (
        window.__class__(**{**fields(window), "layers": 12}),
        window.__class__(**{**fields(whole), "layers": 13}),
    )
    assert [group.layers for group in layout_of(uneven, release).groups] == [13, 13]
    assert [group.layers for group in layout_of(uneven, release_of("0.11.0")).groups] == [12, 12, 12]


def fields(kind: Any) -> dict[str, Any]:
    return {name: getattr(kind, name) for name in ("kept", "reach", "block_tokens", "page_bytes", "layers")}


def test_beside_states_a_page_of_attention_holds_a_state() -> None:
    found = layout("jamba-v0.1")
    state = 8192 * 16 * 2 + 8192 * 4 * 2  # recurrent and convolution state of a mamba layer
    attention = next(group for group in found.groups if group.kept is CacheReach.ALL)
    assert attention.page_bytes >= state > (attention.block_tokens - 16) * 2 * 8 * 128 * 2
    assert {group.page_bytes for group in found.groups} == {attention.page_bytes}


@every("name", ["llama-3.1-8b", "gemma-3-27b", "gpt-oss-20b", "jamba-v0.1"])
@every("release", RELEASES, ids=lambda release: release.tag)
def test_longer_sequences_never_take_fewer_blocks(name: str, release: Any) -> None:
    found = layout(name, release.tag)
    sizes = [sequence_blocks(found, tokens, release) for tokens in (1, 16, 17, 1000, 8192, 32768)]
    assert sizes == sorted(sizes)
    if {group.kept for group in found.groups} == {CacheReach.WINDOW, CacheReach.ALL}:
        full = sum(1 for group in found.groups if group.kept is CacheReach.ALL)
        grown = sequence_blocks(found, 32768, release) - sequence_blocks(found, 16384, release)
        assert grown == full * 16384 // 16  # beyond its window only full attention grows


@pytest.mark.parametrize("name", ["t5-small", "llama-3.2-11b-vision"])
def test_what_reads_another_sequence_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"does not serve (t5|mllama_cross) here"):
        served(name, max_model_len=512)


# the profiling run ------------------------------------------------------------------------------------------


def test_rows_are_sorted_as_segments_or_as_a_whole() -> None:
    assert sort_scratch_bytes(1024, 1000) == 1024 * 1000 * (8 + 4 + 8)
    assert sort_scratch_bytes(64, 1000) == 64 * 1000 * (8 + 8 + 4 + 4 + 8)
    assert sort_scratch_bytes(1, 1000) == 1000 * 20
    assert sorted_sampler_bytes(1024, 128256, BF16) == 38 * 1024 * 128256


PEAKS = {  # GiB of "peak activation" and weights that vLLM 0.11.0 printed on H100 (llm-d-incubation/llm-d-planner e50305af docs)
    "llama-3.1-8b": (4.76, 14.99), "qwen3-0.6b": (5.56, 1.12), "qwen3-32b": (5.64, 61.03), "gpt-oss-20b": (7.38, 13.47),
}  # fmt: skip


@pytest.mark.parametrize(("name", "printed"), PEAKS.items())
def test_the_peak_and_the_weights_are_what_the_engine_prints(name: str, printed: tuple[float, float]) -> None:
    budget = facts(name, **OLD)["budget"]
    assert budget["peak_activation"].value / GIB == pytest.approx(printed[0], abs=0.011)
    assert budget["weights"].value / GIB == pytest.approx(printed[1], rel=0.005)


def test_fewer_sequences_make_a_smaller_sampler_and_a_larger_pool() -> None:
    many, few = facts(**OLD), facts(**OLD, sequences=64)
    assert few["budget"]["peak_activation"].value < many["budget"]["peak_activation"].value
    assert few["kv_tokens"] > many["kv_tokens"]


# the pool ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.6.4.post1", "0.8.5", "0.11.0", "0.14.0", "0.21.0", "0.33.0"])
def test_the_fraction_is_filled_to_a_block(version: str) -> None:
    """What the engine counts and its pool add up to the fraction of the card, at the expected value."""
    answer = served(engine_version=version)
    budget, (sheet,) = (answer.serving or {})["budget"], answer.sheets
    pool = sheet.of(Component.KV_CACHE, instant=Instant.PREFILL)
    assert 0 <= budget["kv_cache"].value - pool.value < (answer.serving or {})["page_bytes_per_rank"]
    assert (
        budget["kv_cache"].value
        < budget["requested_bytes"] - budget["weights"].value - budget["peak_activation"].value
    )


def test_what_others_take_more_the_pool_takes_less() -> None:
    """The range of the whole is narrower than that of its parts: the ends of the pool are those of the jobs
    at the ends.
    """
    (sheet,) = served(engine_version="0.33.0").sheets
    pool = sheet.of(Component.KV_CACHE, instant=Instant.PREFILL)
    whole = sheet.at(Instant.PREFILL, without=())
    assert pool.low > pool.value > pool.high
    assert pool.ordered.low < pool.ordered.high
    assert whole.high - whole.low < pool.low - pool.high
    assert whole.low <= whole.value <= whole.high


def test_blocks_given_what_was_measured() -> None:
    """30,279,519,437 bytes of cache were 1444 blocks of 128 tokens of a model of 40 layers and 8 heads of 128
    (the same document).
    """
    page = 2 * 128 * 8 * 128 * 2
    assert abs(1444 * 40 * page - 30279519437) < 0.005 * GIB
    assert layout("llama-3.1-8b", serving__page_tokens=128).block_bytes == 32 * page


def test_a_pool_too_small_for_one_sequence_is_no_start() -> None:
    answer = served("qwen3-32b", max_model_len=40960)
    assert answer.verdict is not None
    assert answer.verdict.result is Result.DOES_NOT_FIT
    assert answer.verdict.headroom_bytes < 0
    assert served("qwen3-32b", max_model_len=8192).verdict.result is Result.FITS  # type: ignore[union-attr]


def test_more_of_the_card_is_more_pool_and_never_more_than_the_card() -> None:
    tokens = [facts(memory_fraction=share)["kv_tokens"] for share in (0.5, 0.7, 0.9)]
    assert tokens == sorted(set(tokens))
    with pytest.raises(InputError, match="leaves the engine nothing"):
        served(memory_fraction=0)


def test_ranks_share_weights_and_experts_are_cut_or_dealt() -> None:
    cut = served("qwen3-30b-a3b", gpus="2xH100-80GB")
    dealt = served("qwen3-30b-a3b", gpus="2xH100-80GB", tp=2, ep=2)
    assert cut.plan.mesh.etp == 2
    assert dealt.plan.mesh.etp == 1
    assert cut.sheets[0].of(Component.PARAMETERS).value == dealt.sheets[0].of(Component.PARAMETERS).value
    with pytest.raises(InputError, match="over all ranks or none"):
        served("qwen3-30b-a3b", gpus="4xH100-80GB", tp=4, ep=2)


def test_a_pipeline_has_as_many_blocks_on_every_stage() -> None:
    answer = served("llama-3.1-8b", gpus="4xH100-80GB", pp=4, tp=1)
    pools = [sheet.of(Component.KV_CACHE, instant=Instant.DECODE).value for sheet in answer.sheets]
    assert len(pools) == 4
    assert len(set(pools)) == 1
    assert stage_layer_counts(62, 4, None) == (15, 16, 16, 15)


# words ------------------------------------------------------------------------------------------------------


LINES = {  # format strings of the releases: worker/model_runner.py, gpu_worker.py, gpu_executor.py, kv_cache_utils.py
    "0.6.4.post1": (r"Loading model weights took \d+\.\d{4} GB", r"# GPU blocks: \d+, # CPU blocks: \d+", r"Maximum concurrency for 8192 tokens per request: \d+\.\d\dx"),
    "0.6.6": (r"Loading model weights took \d+\.\d{4} GB", r".*the rest of the memory reserved for KV Cache is \d+\.\d\dGiB\.", r"# GPU blocks: \d+, # CPU blocks: \d+", r"Maximum concurrency for 8192 .*"),
    "0.7.3": (r"Loading model weights took .*", r".*reserved for KV Cache is .*", r"# cuda blocks: \d+, # CPU blocks: \d+", r"Maximum concurrency for 8192 .*"),
    "0.8.5": (r"Model loading took \d+\.\d{4} GiB and … seconds", r"GPU KV cache size: [\d,]+ tokens", r"Maximum concurrency for 8,192 tokens per request: \d+\.\d\dx"),
    "0.9.2": (r"Model loading took \d+\.\d{4} GiB and … seconds", r"Available KV cache memory: \d+\.\d\d GiB", r"GPU KV cache size: [\d,]+ tokens", r"Maximum concurrency for 8,192 .*"),
    "0.12.0": (r"Model loading took \d+\.\d{4} GiB memory and … seconds", r"Available KV cache memory: .*", r"GPU KV cache size: .*", r"Maximum concurrency .*"),
    "0.18.0": (r"Model loading took \d+\.\d{1,2} GiB memory and … seconds", r"Available KV cache memory: \d+\.\d{1,2} GiB", r"GPU KV cache size: .*", r"Maximum concurrency .*"),
    "0.33.0": (r"Model loading took \d+\.\d{1,2} GiB memory and … seconds", r"Available KV cache memory: \d+\.\d{1,2} GiB", r"GPU KV cache size: [\d,]+ tokens, Maximum concurrency for 8,192 tokens per request: \d+\.\d\dx"),
}  # fmt: skip


@pytest.mark.parametrize(("version", "lines"), LINES.items())
def test_start_up_lines_by_release(version: str, lines: tuple[str, ...]) -> None:
    said = facts(engine_version=version)["start_up"]
    assert len(said) == len(lines)
    for line, form in zip(said, lines, strict=True):
        assert re.fullmatch(form, line), line


def test_tokens_and_concurrency_agree() -> None:
    found = facts(**OLD)
    assert found["kv_tokens"] == found["pages"] * 128
    assert f"{found['pages'] / 125:.2f}x" in found["start_up"][-1]  # 16,000 tokens are 125 blocks


def test_lengths_that_are_asked_about() -> None:
    held = facts(prompt_tokens=2000, output_tokens=500, sequences=512)["capacity"]
    assert held["worst"] <= held["expected"] <= held["limit"] == 512
    few = facts(sequences=4)["capacity"]
    assert (few["worst"], few["preempts"]) == (4, False)


def test_defaults_follow_the_card_and_the_release() -> None:
    def chosen(gpus: str, version: str) -> tuple[int, int, float]:
        plan = served(gpus=gpus, engine_version=version).plan
        return (
            int(plan.serving.max_sequences or 0),
            int(plan.serving.max_batched_tokens or 0),
            plan.cache.memory_fraction or 0.0,
        )

    assert chosen("1xH100-80GB", "0.11.0") == (1024, 8192, 0.9)
    assert chosen("1xA100-80GB", "0.11.0") == (256, 2048, 0.9)
    assert chosen("1xH100-80GB", "0.33.0") == (1024, 8192, 0.92)
    assert chosen("1xB200", "0.33.0") == (1024, 16384, 0.92)
    assert chosen("1xH100-80GB", "0.6.4.post1") == (256, 8192, 0.9)
    assert chosen("1xGB10", "0.32.0") == (1024, 8192, 0.92)
    assert chosen("1xGB10", "0.33.0") == (256, 2048, 0.92)


def chosen_batch(version: str, **said: Any) -> tuple[int, int]:
    """Sequences and a batch's tokens where one of them, or neither, is said."""
    workload = served(gpus="1xH100-80GB", engine_version=version, **said).plan.serving
    return int(workload.max_sequences or 0), int(workload.max_batched_tokens or 0)


@pytest.mark.parametrize("version", [release.tag.removeprefix("v") for release in RELEASES])
def test_what_nobody_says_of_a_batch_is_bounded_by_what_somebody_says(version: str) -> None:
    since = release_of(version).since
    sequences, batch = chosen_batch(version, max_batched_tokens=128)
    assert batch == 128
    assert sequences == (128 if since >= (0, 10) else chosen_batch(version)[0])
    for few, length in ((1, 512), (4, 1024), (64, 4096)):
        usual = chosen_batch(version, max_model_len=length)[1]
        sequences, batch = chosen_batch(version, sequences=few, max_model_len=length)
        assert sequences == few
        assert batch == (min(usual, few * length) if since >= (0, 12) else usual)


@pytest.mark.parametrize(
    ("name", "version", "tokens"),
    [
        ("gemma-4-26b-a4b", "0.33.0", 2496),
        ("gemma-4-12b", "0.33.0", 2496),
        ("gemma-4-26b-a4b", "0.20.2", 2048),
        ("gemma-4-e4b", "0.33.0", 2048),
        ("gemma-3-4b", "0.33.0", 2048),
    ],
)
def test_a_batch_holds_an_item_that_is_read_whole(name: str, version: str, tokens: int) -> None:
    assert served(name, gpus="2xL40S", tp=2, engine_version=version).plan.serving.max_batched_tokens == tokens


def test_a_text_that_is_read_whole_sets_the_batch() -> None:
    def batch(version: str) -> int | None:
        plan = served("bge-m3", gpus="1xL4", engine_version=version, max_model_len=8192).plan
        return plan.serving.max_batched_tokens

    assert (batch("0.11.0"), batch("0.33.0")) == (8192, 8192)


@pytest.mark.parametrize(("version", "tag"), [("0.11.0", "v0.11.0"), ("0.11.2", "v0.11.0"), ("0.6.4.post1 (V0)", "v0.6.4.post1"), (None, "v0.33.0"), ("V1 2025", "v0.11.0")])  # fmt: skip
def test_the_release_that_stands_for_a_version(version: str | None, tag: str) -> None:
    assert release_of(version).tag == tag


# a file of requests -----------------------------------------------------------------------------------------


def test_requests_alike_run_as_many_as_have_room_half_done() -> None:
    def room(tokens: int) -> Bytes:
        return Bytes.exact(100_000 // tokens)

    found = request_mix_facts(room, [(1000, 500)] * 20, limit=10_000)
    assert (found["expected"], found["worst"], found["median_tokens"], found["longest_tokens"]) == (
        100_000 // 1250,
        100_000 // 1500,
        1500,
        1500,
    )
    assert request_mix_facts(room, [(1000, 500)] * 20, limit=8)["expected"] == 8
    assert (
        request_mix_facts(room, [(200_000, 1), (10, 10)], limit=8)["expected"] == 0
    )  # one has no room at all


def test_long_answers_weigh_more_than_long_prompts_that_are_soon_done() -> None:
    def room(tokens: int) -> Bytes:
        return Bytes.exact(10**9 // tokens)

    mostly_short = request_mix_facts(room, [(100, 1000), (10_000, 1)], limit=10**9)["expected"]
    mostly_long = request_mix_facts(room, [(100, 1), (10_000, 1000)], limit=10**9)["expected"]
    assert mostly_short > 10 * mostly_long


def test_a_file_of_requests_is_read_as_data(tmp_path: Path) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text("prompt,answer\n# a comment\n1200,300\n\n 800 ; 20\n5\t7\n")
    assert read_lengths(file) == ((1200, 300), (800, 20), (5, 7))
    for text in ("", "1,2\nthree,4\n", "0,0\n", "99999999999,1\n", "1\n"):
        file.write_text(text)
        with pytest.raises(InputError):
            read_lengths(file)


def test_the_command_takes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text("1500,500\n" * 10)
    words = [
        "infer",
        "llama-3.1-8b",
        "--gpus",
        "1xH100-80GB",
        "--engine",
        "vllm",
        "--max-model-len",
        "8192",
        "--lengths",
        str(file),
    ]
    assert main([*words, "--json"]) == 0
    mix = json.loads(capsys.readouterr().out)["serving"]["lengths"]
    assert mix["requests"] == 10
    assert mix["expected"] == facts(prompt_tokens=1500, output_tokens=500)["capacity"]["expected"]


# weights ----------------------------------------------------------------------------------------------------


def buffers(name: str, path: str, **options: Any) -> int:
    (sheet, *_) = served(name, **options).sheets
    return int(
        sum(
            item.largest.value
            for item in sheet.items
            if item.component is Component.BUFFERS and item.path == path
        )
    )


def test_one_table_of_rotations_a_kind() -> None:
    assert buffers("qwen3-0.6b", "rotary_emb") == 40960 * 128 * 2
    assert buffers("deepseek-v3", "rotary_emb", gpus="8xH200") == 163840 * 64 * 2


def test_quantized_latent_projections_are_copied_in_sixteen_bits() -> None:
    layers, heads = 61, 128 // 8
    assert buffers("deepseek-v3", "absorbed", gpus="8xH200") == layers * heads * (128 + 128) * 512 * 2
    assert (
        buffers(
            "deepseek-v2-lite" if "deepseek-v2-lite" in catalog.model_names() else "deepseek-v2",
            "absorbed",
            gpus="8xH200",
        )
        == 0
    )


def test_experts_in_four_bits_are_a_range_of_what_kernels_make_of_them() -> None:
    (sheet,) = served("gpt-oss-20b", **OLD).sheets
    experts = next(item.largest for item in sheet.items if item.path.endswith("mlp.experts"))
    values, biases = 24 * 32 * (5760 + 2880) * 2880, 24 * 32 * (5760 + 2880)
    of_triton = values // 2 + values // 32 + 24 * 32 * (90 * 5888 + 90 * 3072)  # scales again
    assert experts.value == of_triton + biases * 4
    assert experts.low == of_triton + 24 * 32 * (5888 + 3072) * 2  # Marlin's biases, padded in 16 bits
    of_marlin = 24 * 32 * (5888 + 2944) * 3072
    assert experts.high == of_marlin // 2 + of_marlin // 32 + biases * 4


def test_a_vocabulary_is_padded_and_shared() -> None:
    (alone,), (shared,) = (
        served("gpt2", max_model_len=1024, gpus=f"{n}xH100-80GB", tp=n).sheets for n in (1, 2)
    )
    table = next(item.largest.value for item in alone.items if item.path == "transformer.wte")
    half = next(item.largest.value for item in shared.items if item.path == "transformer.wte")
    assert table == 50304 * 768 * 2  # 50,257 words, a multiple of 64
    assert half * 2 == table


def test_a_server_that_may_lack_room_is_uncertain() -> None:
    verdict = served().verdict
    assert verdict is not None
    assert verdict_on_start(verdict, Bytes(-3, -2, -1)) is verdict
    assert verdict_on_start(verdict, Bytes(-1, 0, 1)).result is Result.UNCERTAIN
    assert verdict_on_start(verdict, Bytes(1, 2, 3)).result is Result.DOES_NOT_FIT
    assert verdict_on_start(verdict, Bytes(1, 2, 3)).headroom_bytes == -2


@pytest.mark.parametrize(("name", "tp", "elements"), [
    ("mamba-2.8b", 1, 5120 * 3 + 5120 * 16), ("mamba-codestral-7b", 2, (8192 + 2 * 8 * 128) // 2 * 3 + 8192 * 128 // 2),
    ("bamba-9b", 4, (8192 + 2 * 4 * 128) // 4 * 3 + 8192 * 128 // 4),  # one group, repeated on every rank
    ("qwen3-next-80b-a3b", 4, (2 * 16 * 128 + 32 * 128) // 4 * 3 + 32 * 128 * 128 // 4),
])  # fmt: skip
def test_a_state_is_the_shapes_that_the_engine_allocates(name: str, tp: int, elements: int) -> None:
    """mamba1, mamba2 and gated_delta_net_state_shape of v0.11.0 (mamba_utils.py:97-186), two bytes each."""
    assert {
        state_page_bytes(m, BF16, tp)
        for _, m, _ in caching_layers(model(name))
        if isinstance(m, StateSpace | LinearAttention)
    } == {2 * elements}


# what is counted --------------------------------------------------------------------------------------------


def test_a_release_stands_for_all_until_the_next() -> None:
    tags = {
        version: release_of(version).tag
        for version in ("0.6.4.post1", "0.6.5", "0.6.6", "0.7.0", "0.26.0", "V0", "V1", "")
    }
    assert tags == {
        "0.6.4.post1": "v0.6.4.post1", "0.6.5": "v0.6.6", "0.6.6": "v0.6.6", "0.7.0": "v0.7.3", "0.26.0": "v0.24.0", "V0": "v0.7.3", "V1": "v0.11.0",
        "": RELEASES[-1].tag,
    }  # fmt: skip


def test_what_was_used_before_is_counted_until_a_release_takes_it_off() -> None:
    """v0.6.4 counts the driver's context, v0.6.6 what came after it was there."""
    sizes = [facts(engine_version=version)["budget"]["kv_cache"] for version in ("0.6.4.post1", "0.6.6")]
    assert sizes[1].value - sizes[0].value == 300 * 2**20


def test_gaps_between_segments_are_counted_where_others_memory_is_what_is_not_allocated() -> None:
    counted = {release.tag for release in RELEASES if release.counts_gaps}
    assert counted == {"v0.6.4.post1", "v0.6.6", "v0.8.5", "v0.27.0", "v0.30.0", "v0.33.0"}
    gaps = served("qwen2.5-1.5b", engine_version="0.26.0").sheets[0]
    slack = next(i for i in gaps.items if i.path == "weights").at[Instant.LOAD].value
    held = [
        facts("qwen2.5-1.5b", engine_version=version)["budget"]["kv_cache"].value
        for version in ("0.7.3", "0.6.6")
    ]
    assert held[0] - held[1] == slack > 0


@pytest.mark.parametrize(("version", "flashinfer"), [("0.7.3", False), ("0.11.0", True), ("0.12.0", False)])
def test_flashinfer_draws_tokens_where_a_release_takes_it_unasked(version: str, flashinfer: bool) -> None:
    peak = facts(engine_version=version)["budget"]["peak_activation"]
    assert (peak.low < peak.value) is flashinfer


@pytest.mark.parametrize(
    ("gpus", "options", "sure"),
    [
        ("1xH100-80GB", {}, True),
        ("1xB200", {}, False),
        ("1xRTX4090", {"kv_dtype": "fp8"}, False),
        ("1xRTX4090", {}, True),
    ],
)
def test_flashinfers_buffer_is_where_a_release_may_take_it(
    gpus: str, options: dict[str, Any], sure: bool
) -> None:
    answer = served("qwen2.5-1.5b", gpus=gpus, **options)
    space = next(i for i in answer.sheets[0].items if i.path == "attention").at[Instant.PREFILL]
    assert (space.high == 0) is sure


@pytest.mark.parametrize("version", ["0.6.6", "0.9.2"])
def test_ggufs_tables_of_words_stay_packed(version: str) -> None:
    answer = served(engine_version=version, quantize="gguf:Q8_0")
    sizes = {i.path: i.at[Instant.LOAD].value for i in answer.sheets[0].items if Instant.LOAD in i.at}
    assert sizes["model.embed_tokens"] == sizes["lm_head"] == 128256 * 4096 // 32 * 34


def test_the_weights_line_counts_what_a_block_keeps() -> None:
    """The table of words ends 0.875 MiB before a whole 2 MiB, which is no block of its own."""
    answer = served("qwen2.5-1.5b", gpus="1xRTX4090")
    items = {i.path: i.at[Instant.LOAD] for i in answer.sheets[0].items if Instant.LOAD in i.at}
    assert items["weights.rests"] == Bytes.exact(446 * 2**20 - 151936 * 1536 * 2)
    tensors = sum(
        i.at[Instant.LOAD].value
        for i in answer.sheets[0].items
        if i.component in (Component.PARAMETERS, Component.BUFFERS) and Instant.LOAD in i.at
    )
    assert dict(answer.serving or {})["budget"]["weights"].value == tensors + items["weights.rests"].value


@pytest.mark.parametrize(
    ("name", "last", "first_without"),
    [
        ("mpt-7b", "0.28.0", "0.29.0"),
        ("bamba-9b", "0.23.0", "0.24.0"),
        ("qwen-7b", "0.23.0", "0.24.0"),
        ("baichuan2-7b", "0.23.0", "0.33.0"),
        ("internlm-7b", "0.23.0", "0.33.0"),
        ("bart-base", None, "0.11.0"),
        ("llama-3.2-11b-vision", None, "0.11.0"),
        ("t5-base", None, "0.6.6"),
    ],
)
def test_a_family_is_served_to_its_last_release_and_not_after_it(
    name: str, last: str | None, first_without: str
) -> None:
    asked = {"engine": "vllm", "max_model_len": 512, "gpus": "1xH100-80GB"}
    with pytest.raises(InputError, match="does not serve"):
        infer(name, engine_version=first_without, **asked)
    if last is not None:
        assert infer(name, engine_version=last, **asked).sheets
