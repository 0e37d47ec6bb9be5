"""Seconds of a token and of a prompt: laws, the ends of the interval, and the measured groups."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from memsheet.catalog import find_device, find_model, hardware_rates, model_names, serving_rates
from memsheet.errors import InputError
from memsheet.formulas.serving_time import Seconds, decode_time, prefill_time, token_time
from memsheet.formulas.serving_time.operators import experts_activated, max_rank_load
from memsheet.formulas.serving_time.speeds import End, format_of, speeds_of
from memsheet.formulas.step_time.rates import rates_of
from memsheet.plan.device import Cluster, cluster_of
from memsheet.plan.dtypes import AWQ_INT4, BF16, FP8, GGUF, INT8, MXFP4, NF4
from memsheet.plan.model import ModelSpec, Run
from memsheet.plan.plan import Plan
from memsheet.questions.question_parts import parse_question
from memsheet.readers.model import read_model
from memsheet.resolve import resolve_request

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"


def asked(model: str, gpus: str = "8xH100-80GB", **options: Any) -> tuple[ModelSpec, Plan, Cluster]:
    name, request, cluster, _ = parse_question(
        "infer", model, {"gpus": gpus, "engine": "vllm", "max_model_len": 32768, **options}
    )
    spec = read_model(name, catalog=find_model, names=model_names())
    assert cluster is not None
    return spec, resolve_request(request, spec, cluster).plan, cluster


def decode(model: str, batch: int = 8, context: int = 4096, **options: Any) -> Seconds:
    return decode_time(*asked(model, **options), batch, context)


MODELS = (
    "llama-3.1-8b",
    "qwen3-30b-a3b",
    "deepseek-v3",
    "gemma-3-27b",
    "mamba-2.8b",
    "jamba-v0.1",
    "gpt-oss-20b",
)


@pytest.mark.parametrize("model", MODELS)
def test_grows_with_batch_and_context(model: str) -> None:
    engine = {"engine": "transformers", "tp": 1, "pp": 8} if model in ("mamba-2.8b", "jamba-v0.1") else {}
    job = asked(model, **engine)
    batches = [decode_time(*job, batch, 2048) for batch in (1, 2, 7, 32, 128, 512)]
    contexts = [decode_time(*job, 16, context) for context in (1, 128, 2048, 16384)]
    for row in (batches, contexts):
        for end in ("low", "value", "high"):
            ends = [getattr(one, end) for one in row]
            assert ends == sorted(ends)
            assert ends[0] > 0


@pytest.mark.parametrize("model", MODELS[:4])
def test_low_value_high_in_order_and_parts_add_up(model: str) -> None:
    for time in (decode(model), prefill_time(*asked(model), 4096)):
        assert time.low < time.value < time.high
        assert sum(time.parts.values()) == pytest.approx(time.value)


def test_grows_with_layers() -> None:
    spec, plan, cluster = asked("llama-3.1-8b")
    stack = spec.stacks[0]
    more = replace(
        spec,
        stacks=(
            replace(stack, runs=tuple(Run(pattern=run.pattern, count=2 * run.count) for run in stack.runs)),
        ),
    )
    once, twice = decode_time(spec, plan, cluster, 8, 4096), decode_time(more, plan, cluster, 8, 4096)
    assert once.value < twice.value < 2 * once.value


@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3.1-70b", "qwen2.5-7b", "qwen3-30b-a3b"])
def test_more_ranks_are_slower_by_no_more_than_their_exchanges(model: str) -> None:
    times = [decode(model, gpus=f"{tp}xH100-80GB", tp=tp, batch=16) for tp in (1, 2, 4)]
    for fewer, more in pairwise(times):
        assert more.value - more.parts["exchange"] <= fewer.value


@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3.1-70b", "qwen2.5-32b"])
def test_fewer_bits_are_not_slower_to_read(model: str) -> None:
    whole = decode(model, batch=1, gpus="1xH200")
    eight = decode(model, batch=1, gpus="1xH200", quantize="fp8")
    assert eight.value < whole.value
    assert eight.low < whole.low


def test_a_shorter_cache_is_read_sooner_in_eight_bits_where_kernels_do() -> None:
    job: dict[str, Any] = {"batch": 64, "context": 32768, "gpus": "8xB200"}
    assert decode("llama-3.1-70b", kv_dtype="fp8", **job).value < decode("llama-3.1-70b", **job).value


def test_windows_and_latents_read_less() -> None:
    """A windowed layer's cache stops growing; a latent is read once for all heads."""
    window = [
        decode("gemma-3-27b", context=context, batch=32).parts["attention"] for context in (1024, 16384)
    ]
    full = [
        decode("llama-3.1-70b", context=context, batch=32).parts["attention"] for context in (1024, 16384)
    ]
    assert window[1] / window[0] < full[1] / full[0]


def test_keys_that_are_copied_are_read_by_every_rank() -> None:
    """Four key heads over eight ranks: each rank reads one, as over four."""
    four = decode("qwen3-30b-a3b", gpus="4xH100-80GB", tp=4, batch=64, context=16384).parts["attention"]
    eight = decode("qwen3-30b-a3b", gpus="8xH100-80GB", tp=8, batch=64, context=16384).parts["attention"]
    assert eight == pytest.approx(four, rel=0.01)


def test_experts_touched() -> None:
    assert experts_activated(128, 128, 8, 1) == pytest.approx(8)
    assert experts_activated(128, 32, 8, 1) == pytest.approx(2)
    assert experts_activated(128, 128, 8, 10_000) == pytest.approx(128)
    assert experts_activated(8, 8, 8, 1) == 8
    assert experts_activated(128, 128, 8, 16) == pytest.approx(128 * (1 - (1 - 8 / 128) ** 16))


def test_the_busiest_rank_of_experts_is_in_the_slow_end() -> None:
    """Experts dealt to ranks whole: as expected the same as cut, at the slow end more."""
    whole, cut = (
        decode("qwen3-30b-a3b", gpus="4xH100-80GB", tp=4, batch=64, **more) for more in ({"ep": 4}, {})
    )
    assert whole.value == pytest.approx(cut.value, rel=0.02)
    assert whole.high > cut.high
    assert max_rank_load(100, 1) == 100
    assert max_rank_load(100, 8) == pytest.approx(100 + (2 * 2.0794 * 100) ** 0.5, rel=1e-3)


def test_parts_of_a_prompt_may_follow_one_another_through_stages() -> None:
    spec, plan, cluster = asked("llama-3.1-70b", pp=8, tp=1)
    one, many = (
        prefill_time(
            spec, replace(plan, workload=replace(plan.serving, max_batched_tokens=size)), cluster, 16384
        )
        for size in (16384, 2048)
    )
    assert many.low < 0.5 * one.low
    assert many.value > 0.9 * one.value


def test_a_layer_is_bound_by_its_matrices() -> None:
    """By hand: 32 layers of 8B on one H100, and its head, at the rates of the table."""
    spec, plan, cluster = asked("llama-3.1-8b", gpus="1xH100-80GB")
    start, share, _, _ = serving_rates()["product"]["H100-80GB"]["bf16"]
    matrices = 2 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
    few = 2 * 1 * (4096 + 6144 + 2 * 4096 + 1024 * 0 + 4 * 14336 + 8 * 4096)
    by_hand = 32 * (4 * start * 1e-6 + matrices / (share * 3.35e12))
    found = decode_time(spec, plan, cluster, 1, 128).parts["products"]
    assert by_hand < found < by_hand + 32 * few / 1e12


def test_prompts_in_parts_and_all_at_once() -> None:
    spec, plan, cluster = asked("llama-3.1-8b", gpus="1xH100-80GB")
    parts = prefill_time(
        spec, replace(plan, workload=replace(plan.serving, max_batched_tokens=2048)), cluster, 16384
    )
    whole = prefill_time(
        spec, replace(plan, workload=replace(plan.serving, max_batched_tokens=16384)), cluster, 16384
    )
    assert (
        0.95 * whole.value < parts.value < 1.5 * whole.value
    )  # the longest products reach a little less of the dense rate
    assert prefill_time(spec, plan, cluster, 8192).value < prefill_time(spec, plan, cluster, 16384).value
    flops = 2 * 7.5e9 * 16384
    assert flops / 989e12 < whole.low


def test_others_prompts_lengthen_a_token() -> None:
    job = asked("llama-3.1-8b", gpus="1xH100-80GB")
    token, prompt = decode_time(*job, 32, 1024), prefill_time(*job, 1024)
    mixed = token_time(token, prompt, 32, 256)
    assert mixed.value == pytest.approx(token.value + 32 / 256 * prompt.value)
    assert mixed.low <= mixed.value <= mixed.high


def test_captured_graphs_save_the_hosts_time() -> None:
    spec, plan, cluster = asked("qwen2.5-0.5b", gpus="1xH100-80GB")
    eager = decode_time(spec, replace(plan, options=replace(plan.options, captures=False)), cluster, 1, 128)
    assert decode_time(spec, plan, cluster, 1, 128).value < eager.value
    assert eager.parts["waiting"] > 0


def test_formats() -> None:
    found = [
        format_of(dtype)
        for dtype in (BF16, FP8, INT8, AWQ_INT4, NF4, MXFP4, GGUF["Q4_K"], GGUF["Q8_0"], GGUF["Q6_K"])
    ]
    assert found == ["bf16", "fp8", "int8", "int4", "int4", "mxfp4", "int4", "int8", "int8"]


@pytest.mark.parametrize(
    "card", ["A100-80GB", "H100-80GB", "H200", "H20", "B200", "L40S", "RTX4090", "MI300X", "A10"]
)
def test_every_cards_ends_are_in_order(card: str) -> None:
    cluster = cluster_of(find_device(card), 1)
    fast, value, slow = (speeds_of(cluster, end) for end in End)
    for kind, line in value.product.items():
        assert fast.product[kind].seconds(10**8) <= line.seconds(10**8) <= slow.product[kind].seconds(10**8)
        assert (
            fast.experts[kind].seconds(10**8)
            <= value.experts[kind].seconds(10**8)
            <= slow.experts[kind].seconds(10**8)
        )
    for low in (False, True):
        assert (
            fast.attention[low].seconds(10**8)
            <= value.attention[low].seconds(10**8)
            <= slow.attention[low].seconds(10**8)
        )


def test_fewer_multiprocessors_read_less() -> None:
    """H20 has more bandwidth than H100 and fewer of the same multiprocessors: its range reaches from its
    bandwidth down to what they read on H100.
    """
    h20, h100 = (cluster_of(find_device(card), 1) for card in ("H20", "H100-80GB"))
    assert (
        speeds_of(h20, End.FAST).product["bf16"].bytes_per_s
        > speeds_of(h100, End.FAST).product["bf16"].bytes_per_s
    )
    assert (
        speeds_of(h20, End.SLOW).product["bf16"].bytes_per_s
        < speeds_of(h100, End.SLOW).product["bf16"].bytes_per_s
    )


def test_passes_over_memory_reach_what_a_training_steps_do() -> None:
    """The share of the bandwidth that kernels reach is counted once, on every card; fewer multiprocessors
    than the bandwidth asks for (H20) reach less.
    """
    machines = {name: cluster_of(find_device(name), 1) for name in hardware_rates()["device"]}
    served = {name: speeds_of(one, End.VALUE).memory for name, one in machines.items()}
    trained = {name: rates_of(one).memory_bytes for name, one in machines.items()}
    assert {name for name in machines if served[name] != pytest.approx(trained[name])} == {"H20"}
    assert served["H20"] < trained["H20"]


def test_what_is_not_timed_is_refused() -> None:
    spec, plan, cluster = asked(
        "t5-small" if "t5-small" in model_names() else "t5-large", gpus="1xH100-80GB", engine="transformers"
    )
    with pytest.raises(InputError, match="another sequence"):
        decode_time(spec, plan, cluster, 1, 128)


@pytest.mark.parametrize("group", ["gptfast_v", "qwen3_sglang_v"])
def test_measured_speeds_lie_inside(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine of ten measured runs, and nineteen pairs of twenty in their order."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("serve_time", "asking"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import serve_time

    cases = [
        c
        for c in json.loads((BENCHMARKS / "data" / "cases.json").read_text(encoding="utf-8"))["cases"]
        if c["group"] == group
    ]
    refused: dict[str, str] = {}
    rows = list(serve_time.rows_of(cases, refused))
    assert not refused
    assert len(rows) == 12
    assert sum(row.inside for row in rows) >= 0.9 * len(rows)
    apart = list(serve_time.pairs(rows))
    assert sum(serve_time.ordered(a, b) for a, b in apart) >= 0.95 * len(apart)
