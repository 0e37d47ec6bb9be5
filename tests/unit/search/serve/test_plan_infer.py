"""How to serve: cuts, what they hold, their order, and the screen, JSON and picture of it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.questions.plan import plan_serving
from memsheet.report.json.serve_plans import serving_document
from memsheet.report.schema.documents import DOCUMENTS, document_model
from memsheet.report.screen.plans.serving import render_serving
from memsheet.report.shared.look import Look
from memsheet.report.shared.plans.serving_words import parallel_group_words, serving_command
from memsheet.report.shared.plans.shown_cuts import select_table_plans
from memsheet.search.serve.cuts import Deployment, best_plan_per_cut, rank_key
from memsheet.search.serve.load import Holds, format_latency, most_within_latency, parse_latency_s

FOUR: dict[str, Any] = {"model": "qwen2.5-7b", "gpus": "4xH100-80GB", "context": 32768}
LLAMA: dict[str, Any] = {"model": "llama-3.1-70b", "gpus": "8xH100-80GB", "context": 8192}


@pytest.fixture(scope="module")
def four() -> Deployment:
    return plan_serving(**FOUR)


@pytest.fixture(scope="module")
def crowd() -> Deployment:
    return plan_serving(**LLAMA, users=200, tpot="50ms")


def test_four_replicas_two_pairs_one_group(four: Deployment) -> None:
    found = list(best_plan_per_cut(four))
    assert [parallel_group_words(one.plan) for one in found] == ["4 replicas", "2 pairs", "1 group of 4"]
    weights = [one.weights_bytes for one in found]
    assert weights[0] > 1.9 * weights[1] > 3.7 * weights[2]
    assert [one.in_all for one in found] == sorted(one.in_all for one in found)
    assert all(one.in_all == one.sequences[1] * one.replicas for one in found)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_says_what_infer_says(four: Deployment, place: int) -> None:
    """The same plan asked of ``memsheet.infer``: bytes and sequences are equal."""
    one = list(best_plan_per_cut(four))[place]
    mesh = one.plan.mesh
    answer = memsheet.infer(
        "qwen2.5-7b",
        gpus="4xH100-80GB",
        engine=one.plan.engine,
        max_model_len=32768,
        tp=int(mesh.tp),
        dp_replicate=int(mesh.dp_replicate),
    )
    assert answer.verdict is not None
    assert answer.serving is not None
    assert answer.verdict.device == one.verdict.device
    assert answer.serving["max_sequences"]["32768"] == one.serving["max_sequences"]["32768"]


@pytest.mark.parametrize(("pp", "tp"), [(4, 2), (8, 1), (2, 4)])
def test_stages_left_out_do_not_decide(crowd: Deployment, pp: int, tp: int) -> None:
    one = next(one for one in crowd.plans if one.plan.mesh.pp == pp and one.plan.mesh.tp == tp)
    asked = one.request.get("serving.max_sequences")
    answer = memsheet.infer(
        "llama-3.1-70b", gpus="8xH100-80GB", engine="vllm", max_model_len=8192, tp=tp, pp=pp, sequences=asked
    )
    assert answer.verdict is not None
    assert answer.verdict.device == one.verdict.device


def test_who_does_not_hold_says_why_and_what_would(crowd: Deployment) -> None:
    assert crowd.best is None
    assert all(one.holds is Holds.NO for one in crowd.plans)
    reasons = {
        parallel_group_words(one.plan): [r.words for r in one.reasons if r.holds is Holds.NO]
        for one in crowd.plans
    }
    assert reasons["8 replicas"] == ["needs 135.8 GiB of a GPU that gives 79.1 GiB"]
    assert any("has room for" in words for words in reasons["1 group of 8"])
    words = [way.words for way in crowd.ways]
    assert "a cache in fp8" in words
    assert "16 GPUs" in words
    for way in crowd.ways:
        assert way.found.best is not None
        assert way.found.best.in_all >= 200


def test_holds_only_what_the_low_ends_hold() -> None:
    """Surely held: the fewest sequences and the slowest token; perhaps: as expected; a load between the two
    is never surely held.
    """
    found = plan_serving(**LLAMA)
    best = next(one for one in found.plans if one.gpus_each == 8 and one.plan.mesh.pp == 1)
    low, value = best.sequences
    assert low < value
    for users, holds in (
        (low, Holds.YES),
        (low + 1, Holds.PERHAPS),
        (value, Holds.PERHAPS),
        (best.at_most, Holds.PERHAPS),
        (best.at_most + 1, Holds.NO),
    ):
        one = next(
            o
            for o in plan_serving(
                **LLAMA, users=users, tp=8, pp=1, sequences=best.plan.serving.max_sequences
            ).plans
        )
        assert one.holds is holds
    decode = best.decode
    assert decode is not None
    for tpot, holds in (
        (decode.high * 1.01, Holds.YES),
        (decode.value * 1.01, Holds.PERHAPS),
        (decode.value * 0.99, Holds.NO),
    ):
        one = plan_serving(**LLAMA, users=best.batch, tpot=tpot, tp=8, pp=1).plans[0]
        assert max(reason.holds for reason in one.reasons if reason.asks == "tpot") is holds


def test_a_latency_limits_users() -> None:
    """Without a number of users: as many as surely keep it, which is what is timed then."""
    loose, tight = (plan_serving(**LLAMA, tpot=tpot, tp=8, pp=1).plans[0] for tpot in (1.0, 0.03))
    assert loose.within == loose.sequences
    assert 0 < tight.within[0] < tight.within[1] < loose.within[1]
    assert tight.batch == tight.within[0]
    assert tight.decode is not None
    assert tight.decode.high <= 0.03
    assert tight.holds is Holds.YES


def test_gpus_that_would_do_are_sure() -> None:
    found = plan_serving("llama-3.1-70b", gpus="64xH100-80GB", context=8192, users=500)
    best = found.plans[0]
    gpus = best.gpus_for(500)
    assert gpus is not None
    assert gpus < 64
    assert gpus // best.gpus_each * best.sequences[0] >= 500


def test_order(four: Deployment) -> None:
    keys = [rank_key(one, four.load) for one in four.plans]
    assert keys == sorted(keys)
    assert four.plans[0].users_per_gpu == max(one.users_per_gpu for one in four.plans)
    asked = plan_serving(**FOUR, tpot="100ms", users=20)
    held = [one for one in asked.plans if one.holds is Holds.YES]
    assert held[0].decode == min((one.decode for one in held if one.decode), key=lambda time: time.value)


def test_what_is_pinned_is_kept() -> None:
    found = plan_serving(**FOUR, tp=2)
    assert {one.plan.mesh.tp for one in found.plans} == {2}
    eight = plan_serving(**FOUR, kv_dtype="fp8")
    assert all(
        one.plan.cache.kv_dtype is not None and one.plan.cache.kv_dtype.name == "fp8" for one in eight.plans
    )
    assert eight.plans[0].in_all > 1.8 * plan_serving(**FOUR).plans[0].in_all


def test_a_context_shorter_than_what_the_server_takes() -> None:
    """Room for it is its own, and more than that of a longer one."""
    short = plan_serving("qwen2.5-7b", gpus="1xH100-80GB", context=5000, max_model_len=16384).plans[0]
    longer, full = (
        plan_serving("qwen2.5-7b", gpus="1xH100-80GB", context=size, max_model_len=16384).plans[0]
        for size in (8192, 16384)
    )
    assert short.sequences > longer.sequences > full.sequences
    assert 5000 * short.sequences[1] <= 8192 * (longer.sequences[1] + 1)


def test_eight_bits_only_where_asked(four: Deployment) -> None:
    assert all(one.plan.quantization is None for one in four.plans)
    found = plan_serving(**FOUR, any_precision=True)
    assert {one.plan.quantization is None for one in found.plans} == {True, False}
    assert len(found.plans) > 2 * len(four.plans)


def test_heads_that_do_not_divide_are_told() -> None:
    found = plan_serving("qwen2.5-7b", gpus="8xH100-80GB", context=8192)
    assert any("28 attention heads" in one.words for one in found.refused)
    with pytest.raises(InputError, match="28 attention heads"):
        plan_serving("qwen2.5-7b", gpus="8xH100-80GB", context=8192, tp=8)


def test_experts_over_all_replicas_leave_room() -> None:
    """Data-parallel attention with experts dealt over all ranks: each expert once, so more cache than in
    replicas.
    """
    found = plan_serving("qwen3-30b-a3b", gpus="4xH100-80GB", context=8192)
    by = {(int(o.plan.mesh.attention_tp), int(o.plan.mesh.pp), int(o.plan.mesh.ep)): o for o in found.plans}
    assert by[1, 1, 4].plan.mesh.attn_dp == 4
    assert by[1, 1, 4].in_all > 2 * by[1, 1, 1].in_all
    assert by[1, 1, 4].weights_bytes < by[1, 1, 1].weights_bytes


def test_prompts_and_answers() -> None:
    found = plan_serving("llama-3.1-8b", gpus="2xH100-80GB", users=32, prompt_tokens=2048, output_tokens=256)
    assert found.load.context == 2304
    best = found.plans[0]
    alone = plan_serving(
        "llama-3.1-8b",
        gpus="2xH100-80GB",
        users=32,
        context=2304,
        tp=int(best.plan.mesh.tp),
        pp=int(best.plan.mesh.pp),
    )
    assert best.decode is not None
    assert alone.plans[0].decode is not None
    assert best.decode.value > alone.plans[0].decode.value


@pytest.mark.parametrize("engine", ["sglang", "transformers"])
def test_other_engines(engine: str) -> None:
    found = plan_serving("llama-3.1-8b", gpus="2xH100-80GB", context=4096, engine=engine)
    assert found.engine == engine
    assert found.best is not None
    assert found.best.in_all > 1


def test_a_large_cluster_and_a_large_model() -> None:
    found = plan_serving("deepseek-v3", gpus="64xH200", context=8192)
    assert found.best is not None
    assert found.best.verdict.result is Result.FITS
    assert all(one.plan.mesh.gpus == 64 for one in found.plans)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"context": 0}, "whole number"),
        ({"users": True}, "whole number"),
        ({"tpot": "50"}, "with its unit"),
        ({"ttft": "-1ms"}, "is no time"),
        ({"tpot": 0.0}, "between nothing"),
        ({"engine": "gpt-fast"}, "not planned for"),
        ({"context": 100, "max_model_len": 50}, "exceeds max_model_len"),
        ({"context": 100, "prompt_tokens": 90, "output_tokens": 20}, "exceed"),
        ({"gpus": None}, "is missing"),
    ],
)
def test_what_makes_no_question_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        plan_serving("llama-3.1-8b", **{"gpus": "1xH100-80GB", **options})
    assert any(words in f"{p.reason} {p.hint}" for p in caught.value.problems)


def test_what_is_no_task_is_refused(capsys) -> None:
    assert main(["plan", "serve", "llama-3.1-8b", "--gpus", "1xH100-80GB"]) == 2
    assert "memsheet plan infer" in capsys.readouterr().err


def test_latencies_read_and_said() -> None:
    assert parse_latency_s("50ms", "tpot") == pytest.approx(0.05)
    assert parse_latency_s("1.5 s", "ttft") == pytest.approx(1.5)
    assert parse_latency_s(None, "ttft") is None
    assert [format_latency(s) for s in (0.0042, 0.042, 0.42, 4.2, 42.0)] == [
        "4.2 ms",
        "42 ms",
        "420 ms",
        "4.2 s",
        "42 s",
    ]


def test_most() -> None:
    assert [most_within_latency(limit, float, 7.0) for limit in (0, 1, 7, 8, 1000)] == [0, 1, 7, 7, 7]
    assert most_within_latency(10, lambda _: 2.0, 1.0) == 0
    stairs = (
        lambda n: float(n // 16),
        lambda n: n**3.0,
        lambda n: n**0.25,
        lambda n: 0.0 if n < 77 else 9.0 + n,
    )
    for seconds in (
        stairs
    ):  # whatever the line between two counts is like, the edge is the one that looking at each of them finds
        for asked in (0.0, 1.0, 2.5, 3.0, 500.0):
            kept = [n for n in range(1, 200) if seconds(n) <= asked]
            assert most_within_latency(199, seconds, asked) == max(kept, default=0)


@pytest.mark.parametrize("width", [80, 120])
def test_screen(four: Deployment, crowd: Deployment, width: int) -> None:
    text = render_serving(four, Look(width=width))
    assert text.startswith("HOLDS")
    for words in (
        "4 replicas",
        "2 pairs",
        "1 group of 4",
        "at least",
        serving_command(four, four.plans[0]).split(" --")[0],
    ):
        assert words in text
    refused = render_serving(crowd, Look(width=width))
    assert refused.startswith("DOES NOT HOLD")
    assert "Would hold" in refused
    assert all(len(line) <= width for line in (*text.splitlines(), *refused.splitlines()))


def test_json(crowd: Deployment) -> None:
    document = serving_document(crowd, seconds=0.1)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    document_model(DOCUMENTS["serve-plans"]).model_validate_json(json.dumps(document))
    assert document["holds"] == "no"
    assert [document["plans"][place]["cut"] for place in document["comparison"]] == [
        "8 replicas",
        "4 pairs",
        "2 groups of 4",
        "1 group of 8",
    ]
    first = document["plans"][0]
    assert first["decode_s"]["low"] <= first["decode_s"]["value"] <= first["decode_s"]["high"]
    assert sum(first["decode_parts_s"].values()) == pytest.approx(first["decode_s"]["value"])
    again = memsheet.infer(plan=first["plan"])
    assert again.verdict is not None
    assert again.verdict.device.value == first["device_bytes"]


@pytest.mark.parametrize("place", [0, 1, 3])
def test_the_command_that_is_printed_shows_that_plan(
    crowd: Deployment, place: int, capsys: pytest.CaptureFixture[str]
) -> None:
    one = crowd.plans[place]
    assert main([*shlex.split(serving_command(crowd, one))[1:], "--json"]) in (0, 10, 11)
    document = json.loads(capsys.readouterr().out)
    assert max(rank["device_bytes"] for rank in document["ranks"]) == one.verdict.device.value
    assert document["plan"]["mesh"]["tp"] == one.plan.mesh.tp
    assert document["serving"]["max_sequences"]["8192"] == one.serving["max_sequences"]["8192"]


def test_picture(four: Deployment, tmp_path: Path) -> None:
    from memsheet.report.chart.serve import draw_serving

    for name in ("cuts.svg", "cuts.png"):
        draw_serving(four, tmp_path / name)
    text = (tmp_path / "cuts.svg").read_text(encoding="utf-8")
    for one in select_table_plans(four):
        assert parallel_group_words(one.plan) in text


def test_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = ["plan", "infer", "qwen2.5-7b", "--gpus", "4xH100-80GB", "--context", "32768"]
    assert main(asked) == 0
    assert "1 group of 4" in capsys.readouterr().out
    assert main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "memsheet/serve-plans/1"
    assert main([*asked, "--users", "100000"]) == 10
    assert main([*asked, "--picture", str(tmp_path / "a.svg")]) == 0
    assert (tmp_path / "a.svg").stat().st_size > 1000
    capsys.readouterr()
    for wrong in (["--method", "lora"], ["--show", "heat"], ["--context", "many"], ["--tpot", "soon"]):
        assert main([*asked[:5], *wrong]) == 2
    assert (
        main(
            [
                "plan",
                "train",
                "llama-tiny",
                "--gpus",
                "1xH100-80GB",
                "--seq-len",
                "128",
                "--global-batch",
                "1",
                "--users",
                "3",
            ]
        )
        == 2
    )
    assert "plan infer" in capsys.readouterr().err


def test_groups_of_one_server_are_not_had_one_by_one():
    found = memsheet.plan_serving("deepseek-v3", gpus="16xH200", engine="vllm", context=8192, users=500)
    grouped = [
        one for one in found.plans if one.plan.mesh.attn_dp > 1 and min(one.sequences[0], one.within[0])
    ]
    assert grouped
    for one in grouped:
        needed = one.gpus_for(500)
        assert needed is not None
        assert needed % int(one.plan.mesh.tp * one.plan.mesh.pp) == 0


CROWDS = (
    ("mixtral-8x7b", "4xH100-80GB", "vllm", 500),
    ("mixtral-8x7b", "4xH100-80GB", "vllm", 100),
    ("mixtral-8x7b", "16xH100-80GB", "vllm", 1500),
    ("llama-3.1-8b", "4xH100-80GB", "sglang", 900),
    ("llama-3.1-8b", "2xA100-80GB", "sglang", 40),
    ("llama-3.1-8b", "2xH100-80GB", "transformers", 400),
)


@pytest.mark.parametrize(("model", "gpus", "engine", "users"), CROWDS)
def test_a_line_to_run_asks_for_the_users_and_is_answered_as_the_plan_is(
    model: str, gpus: str, engine: str, users: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every plan's line carries the users of one replica; what surely does not hold them does not fit, and
    what surely does fits.
    """
    found = plan_serving(model=model, gpus=gpus, engine=engine, context=8192, users=users)
    codes = {Holds.YES: (0,), Holds.PERHAPS: (0, 10, 11), Holds.NO: (10, 11)}
    for one in found.plans[:3]:
        words = shlex.split(serving_command(found, one))
        share = int(words[words.index("--sequences") + 1])
        servers = int(one.plan.mesh.dp_replicate * (1 if engine == "sglang" else one.plan.mesh.attn_dp))
        assert share * servers >= users > (share - 1) * servers
        assert main([*words[1:], "--json"]) in codes[one.holds], words
    capsys.readouterr()
