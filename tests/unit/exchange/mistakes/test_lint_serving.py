"""Every rule for a server's command finds its mistake, says what cures it, and is silent where there is
none.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.exchange.mistakes.serving import SERVING
from memsheet.exchange.mistakes.serving_pool import cache_bytes
from memsheet.questions.check import check_configuration_files
from memsheet.report.json.checked import checked_document
from memsheet.report.screen.checked import render_checked
from memsheet.report.shared.checked import Checked
from memsheet.report.shared.look import Look

WHERE = {
    "nodes": None,
    "per_node": None,
    "host_memory": None,
    "cluster": None,
    "parameters": None,
    "plan": None,
}
V, S = "vllm serve m", "python -m sglang.launch_server --model-path m"
SMALL = "--max-model-len 8192 --max-num-seqs 64"


def checked(
    folder: Path, command: str, model: str = "llama-3.1-8b", gpus: str | None = "1xH100-80GB", **flags: Any
) -> Checked:
    (folder / "serve.sh").write_text(f"{command}\n")
    return check_configuration_files((str(folder / "serve.sh"),), model, {**WHERE, "gpus": gpus}, flags)


def rules(found: Checked) -> set[str]:
    return {rule.id for rule, _ in found.mistakes}


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "fraction-above-free": (f"{V} {SMALL} --gpu-memory-utilization 0.998", {}),
    "fraction-leaves-too-little": (f"{S} --context-length 8192 --mem-fraction-static 0.97", {}),
    "length-without-room": (
        f"{V} -tp 2 --max-num-seqs 64",
        {"model": "llama-3.1-70b", "gpus": "2xH100-80GB"},
    ),
    "length-beyond-model": (f"{V} --max-model-len 262144", {}),
    "copied-cache": (f"{S} --tp 8 --context-length 8192", {"model": "deepseek-v3", "gpus": "8xH200"}),
    "preempted-sequences": (f"{V} --max-model-len 32768 --max-num-seqs 2048", {}),
    "no-graphs": (f"{V} {SMALL} --enforce-eager", {}),
    "fp8-without-units": (f"{V} {SMALL} --kv-cache-dtype fp8", {"gpus": "1xA100-80GB"}),
    "batch-below-length": (f"{V} {SMALL} --no-enable-chunked-prefill --max-num-batched-tokens 4096", {}),
    "batch-below-sequences": (
        f"{V} --max-model-len 2048 --max-num-seqs 512 --max-num-batched-tokens 256",
        {},
    ),
    "chunk-of-broken-pages": (f"{S} --context-length 8192 --page-size 64 --chunked-prefill-size 4000", {}),
    "idle-memory": (f"{V} --max-model-len 8192 --gpu-memory-utilization 0.5", {}),
    "bf16-on-old-card": (f"{V} {SMALL} --dtype bfloat16", {"gpus": "1xT4", "attention": "sdpa"}),
    "rows-without-split-buffers": ("llama-server -m m.gguf -sm row -c 8192", {"gpus": "2xA100-80GB"}),
    "ranks-above-cards": (f"CUDA_VISIBLE_DEVICES=0 {V} {SMALL} -tp 2", {"gpus": "2xH100-80GB"}),
    "no-experts-to-deal": (f"{V} {SMALL} -tp 2 --enable-expert-parallel", {"gpus": "2xH100-80GB"}),
}


def test_every_rule_has_a_case() -> None:
    assert set(CASES) == {rule.id for rule in SERVING}
    assert all(rule.source for rule in SERVING)


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_finds_its_mistake(rule: str, tmp_path: Path) -> None:
    command, options = CASES[rule]
    found = checked(tmp_path, command, **options)
    assert rule in rules(found)
    assert all(one.cure and one.says and one.where for _, one in found.mistakes)
    assert f"[{rule}]" in render_checked(found, Look(width=100))


OF_EITHER = (
    "--kv-cache-dtype fp8_e4m3", "--kv-cache-dtype fp8_e5m2", "--quantization fp8", "--dtype bfloat16", "--tp 8", "--context-length 262144",
    "--max-model-len 262144", "--max-running-requests 2048 --context-length 32768", "--max-num-seqs 2048 --max-model-len 32768",
    "--mem-fraction-static 0.999", "--gpu-memory-utilization 0.998", "--disable-cuda-graph", "--enforce-eager", "--nonsense 1",
)  # fmt: skip


@pytest.mark.parametrize("gpus", ["1xT4", "1xA100-80GB", "8xL4"])
@pytest.mark.parametrize(("start", "other"), [(V, "SGLang"), (S, "vLLM")])
def test_a_finding_says_something_and_its_source_is_of_the_engine_that_runs(
    start: str, other: str, gpus: str, tmp_path: Path
) -> None:
    seen = 0
    for flags in OF_EITHER:
        for one in checked_document(checked(tmp_path, f"{start} {flags}", gpus=gpus))["mistakes"]:
            assert all(one[key] for key in ("says", "cure", "where", "source")), one
            assert other not in one["source"], one
            seen += 1
    assert seen > 3


@pytest.mark.parametrize("start", [V, S])
def test_five_bits_of_exponent_are_no_mistake_on_an_older_card(start: str, tmp_path: Path) -> None:
    """Triton has that format on every card; what is left out would take twice the bytes."""
    found = checked(tmp_path, f"{start} --kv-cache-dtype fp8_e5m2", gpus="1xA100-80GB")
    assert "fp8-without-units" not in rules(found)


@pytest.mark.parametrize("command", [f"{V} {SMALL}", f"{S} --context-length 8192 --max-running-requests 64"])
def test_a_sound_command_has_no_mistakes(command: str, tmp_path: Path) -> None:
    found = checked(tmp_path, command)
    assert rules(found) == set()
    assert found.result is not None
    assert found.result.value == "fits"


@pytest.mark.parametrize(
    "command", [f"{V} {SMALL} -tp 2", f"{S} --context-length 8192 --tp 2 --mem-fraction-static 0.97"]
)
def test_rules_of_training_say_nothing_of_a_server(command: str, tmp_path: Path) -> None:
    """The allocator's segments, whole logits and ZeRO are of a training step."""
    found = rules(checked(tmp_path, command, "llama-3.1-70b", "2xH100-80GB"))
    assert found <= {rule.id for rule in SERVING}
    assert "fragmentation" not in found


@pytest.mark.parametrize(
    "rule",
    [
        "fraction-above-free",
        "fraction-leaves-too-little",
        "length-beyond-model",
        "batch-below-sequences",
        "chunk-of-broken-pages",
    ],
)
def test_the_cure_cures(rule: str, tmp_path: Path) -> None:
    command, options = CASES[rule]
    found = checked(tmp_path, command, **options)
    (one,) = [one for held, one in found.mistakes if held.id == rule]
    flag, value = one.cure.split(",")[0].split(" ")[:2]
    cured = checked(tmp_path, f"{command} {flag} {value}", **options)
    assert rule not in rules(cured)


@pytest.mark.parametrize("count", [16, 32, 33, 64, 200])
def test_fewer_sequences_are_fewer(count: int, tmp_path: Path) -> None:
    found = checked(
        tmp_path,
        f"{V} --max-model-len 32768 --max-num-seqs {count}",
        gpus="1xL4",
        **{"serving.kv_dtype": "fp8"},
    )
    ours = [one for rule, one in found.mistakes if rule.id == "preempted-sequences"]
    assert all(int(one.changes["serving.max_sequences"]) < count for one in ours)
    assert ours or count < 64


@pytest.mark.parametrize("gpus", ["1xL4", "1xA100-40GB", "1xH100-80GB"])
def test_as_many_sequences_as_have_room_are_named(gpus: str, tmp_path: Path) -> None:
    """Not half of what may start: the cure, typed, leaves none to be preempted, of its length or shorter."""
    command = f"{V} --max-model-len 32768"
    before = checked(tmp_path, f"{command} --max-num-seqs 200", gpus=gpus)
    cure = next(one.cure for rule, one in before.mistakes if rule.id == "preempted-sequences")
    count, tokens = re.fullmatch(
        r"--max-num-seqs (\d+), or requests of up to ([\d,]+) tokens, which all have room", cure
    ).groups()
    fewer = checked(tmp_path, f"{command} --max-num-seqs {count}", gpus=gpus).answer
    assert fewer is not None
    assert not fewer.serving["capacity"]["preempts"]
    length = int(tokens.replace(",", ""))
    shorter = checked(tmp_path, f"{V} --max-model-len {length} --max-num-seqs 200", gpus=gpus).answer
    assert shorter is not None
    assert not shorter.serving["capacity"]["preempts"]


LONG = (
    (f"{V} --max-model-len 131072", "llama-3.1-8b", "1xL4"),
    (f"{V} -tp 2 --max-num-seqs 64", "llama-3.1-70b", "2xH100-80GB"),
    (f"{V} --max-model-len 131072", "gemma-3-12b", "1xRTX-5090"),
    (f"{S} --context-length 131072", "llama-3.1-8b", "1xL4"),
)


@pytest.mark.parametrize(("command", "model", "gpus"), LONG)
def test_every_length_and_cache_of_a_cure_is_sure_to_start(
    command: str, model: str, gpus: str, tmp_path: Path
) -> None:
    """Whatever is proposed was accounted: typed as it stands, it fits, and nothing is found missing any
    more.
    """
    found = checked(tmp_path, command, model, gpus)
    ours = [one for rule, one in found.mistakes if rule.id == "length-without-room"]
    ways = [way for one in ours for way in one.cure.split(", or ") if way.startswith("--")]
    assert all(one.cure for one in ours)
    assert ways or "vllm" not in command
    for way in ways:
        cured = checked(tmp_path, f"{command} {way}", model, gpus)
        assert "length-without-room" not in rules(cured)
        assert cured.result is not None
        assert cured.result.value == "fits", way


OFF_THE_CARD = (
    "--offload-group-size 4 --offload-num-in-group 2",
    '--quantization-config {"a":1}',
)
ON_THE_CARD = (
    '--compilation-config {"cudagraph_mode":"PIECEWISE"}', "--enable-sleep-mode",
    "--enable-eplb", "--attention-backend TRITON_ATTN", "--max-cudagraph-capture-size 8",
)  # fmt: skip


@pytest.mark.parametrize("flags", OFF_THE_CARD)
@pytest.mark.parametrize(
    ("model", "gpus", "flag"), [("llama-3.1-8b", "1xL4", ""), ("llama-3.1-70b", "4xL4", " -tp 4")]
)
def test_nothing_is_surely_missing_where_a_flag_may_take_weights_off_the_card(
    flags: str, model: str, gpus: str, flag: str, tmp_path: Path
) -> None:
    found = checked(tmp_path, f"{V}{flag} --max-model-len 131072 {flags}", model, gpus)
    shown = " ".join(render_checked(found, Look(width=100)).split())
    assert found.result is not None
    assert found.result.value == "uncertain"
    assert "length-without-room" not in rules(found)
    assert "vllm may refuse to start" in shown
    assert "vllm refuses to start" not in shown
    assert " may lack " in shown


@pytest.mark.parametrize("flags", ON_THE_CARD)
def test_a_flag_that_moves_no_weights_leaves_them_in_the_least_that_is_needed(
    flags: str, tmp_path: Path
) -> None:
    kept, moved = (checked(tmp_path, f"{V} {SMALL} {more}").answer for more in (flags, "--offload-params a"))
    assert kept is not None
    assert moved is not None
    assert kept.verdict is not None
    assert moved.verdict is not None
    assert kept.verdict.device.low > 14 * 2**30  # 8.03 G parameters of two bytes
    assert moved.verdict.device.low > 16 * 2**30  # its share of the card: a cache takes what weights leave


@pytest.mark.parametrize(("gpus", "gib", "result"), [("1xL4", 8, "fits"), ("1x16GB", 6, "fits"), ("1x16GB", 0.5, "does_not_fit")])  # fmt: skip
def test_weights_that_a_server_puts_on_the_host_make_room(
    gpus: str, gib: float, result: str, tmp_path: Path
) -> None:
    found = checked(tmp_path, f"{V} --max-model-len 4096 --cpu-offload-gb {gib}", "llama-3.1-8b", gpus)
    assert found.result is not None
    assert found.result.value == result
    assert ("length-without-room" in rules(found)) == (result != "fits")


@pytest.mark.parametrize(
    ("command", "model", "gpus", "copied"),
    [
        (f"{S} --tp 8 --context-length 8192", "deepseek-v3", "8xH200", True),
        (f"{S} --tp 8 --attn-dp-size 8 --context-length 8192", "deepseek-v3", "8xH200", False),
        (f"{V} {SMALL} -tp 8", "llama-3.1-8b", "8xH100-80GB", False),
        (f"{V} {SMALL} -tp 8", "qwen2.5-7b", "8xH100-80GB", None),
        (f"{V} {SMALL} -tp 8", "qwen3-30b-a3b", "8xH100-80GB", True),
    ],
)
def test_ranks_that_are_more_than_heads_keep_copies(
    command: str, model: str, gpus: str, copied: bool | None, tmp_path: Path
) -> None:
    """Llama 3.1 has 8 key/value heads, Qwen3-30B-A3B 4, DeepSeek one latent; 28 heads of Qwen2.5 are not cut
    by 8 at all.
    """
    found = checked(tmp_path, command, model, gpus)
    if copied is None:
        assert found.answer is None
        return
    assert ("copied-cache" in rules(found)) is copied
    for rule, one in found.mistakes:
        if rule.id == "copied-cache":
            assert "data-parallel attention" in one.cure, "both have experts that groups can share"


def test_what_a_cure_gives_is_the_caches(tmp_path: Path) -> None:
    command, options = CASES["idle-memory"]
    found = checked(tmp_path, command, **options)
    (one,) = [one for rule, one in found.mistakes if rule.id == "idle-memory"]
    cured = checked(tmp_path, command.replace("0.5", "0.9"), **options)
    assert found.answer is not None
    assert cured.answer is not None
    assert one.gains_bytes == cache_bytes(cured.answer) - cache_bytes(found.answer) > 0
    told = next(one for one in checked_document(found)["mistakes"] if one["rule"] == "idle-memory")
    assert (told["gains_bytes"], told["saves_bytes"]) == (one.gains_bytes, None)
    assert "gives its cache" in render_checked(found, Look(width=200))


@pytest.mark.parametrize(
    "flag", ["--swap-space 4", "--num-scheduler-steps 8", "--disable-log-requests", "--preemption-mode swap"]
)
def test_flags_that_were_removed_stop(flag: str, tmp_path: Path) -> None:
    for release, stops in (("0.33.0", True), (None, False)):
        found = checked(tmp_path, f"{V} {SMALL} {flag}", engine_version=release)
        assert rules(found) == {"removed-key"}
        assert found.stops is stops


@pytest.mark.parametrize(
    "rule", ["batch-below-length", "batch-below-sequences", "length-beyond-model", "no-experts-to-deal"]
)
def test_what_the_engine_refuses_stops(rule: str, tmp_path: Path) -> None:
    command, options = CASES[rule]
    assert checked(tmp_path, command, **options).stops


def test_a_batch_that_the_engine_chooses_is_as_long_as_a_prompt(tmp_path: Path) -> None:
    found = checked(tmp_path, f"{V} {SMALL} --no-enable-chunked-prefill --max-model-len 16384")
    assert not found.stops


def test_without_cards_the_flags_are_looked_at(tmp_path: Path) -> None:
    found = checked(tmp_path, CASES["batch-below-sequences"][0], gpus=None)
    assert rules(found) == {"batch-below-sequences"}


RANKS = {
    f"CUDA_VISIBLE_DEVICES=0 {V} {SMALL} -tp 2": True,
    f"export CUDA_VISIBLE_DEVICES=0,1,2\n{V} {SMALL} -tp 2 -pp 2": True,
    f"docker run --gpus '\"device=0\"' vllm/vllm-openai:v0.11.0 --model m {SMALL} -tp 2": True,
    f"docker run --gpus 1 vllm/vllm-openai --model m {SMALL} -tp 2": True,
    f"CUDA_VISIBLE_DEVICES=0 {S} --context-length 8192 --tp 2": True,
    f"CUDA_VISIBLE_DEVICES=0,1 {V} {SMALL} -tp 2": False,
    f"docker run --gpus all vllm/vllm-openai --model m {SMALL} -tp 2": False,
    f"CUDA_VISIBLE_DEVICES=0 {V} {SMALL} -tp 2 --distributed-executor-backend ray": False,
    f"ray start --head\nexport CUDA_VISIBLE_DEVICES=0\n{V} {SMALL} -tp 2": False,
    f"CUDA_VISIBLE_DEVICES=0 {S} --context-length 8192 --tp 2 --nnodes 2 --node-rank 0": False,
    f"CUDA_VISIBLE_DEVICES=0 python warm.py\n{V} {SMALL} -tp 2": False,
    f"if test $ONE; then\nexport CUDA_VISIBLE_DEVICES=0\nfi\n{V} {SMALL} -tp 2": False,
}


@pytest.mark.parametrize("command", RANKS)
def test_ranks_beyond_the_cards_of_a_process_stop_it_where_nothing_gives_more(
    command: str, tmp_path: Path
) -> None:
    found = checked(tmp_path, command, gpus="4xH100-80GB")
    assert ("ranks-above-cards" in rules(found) and found.stops) is RANKS[command]


def test_a_cure_of_a_limit_is_below_the_limit(tmp_path: Path) -> None:
    """Groups of attention share a limit among them, so that a cure is of all of them."""
    command = f"{S} --tp 8 --dp 8 --enable-dp-attention --max-running-requests 256"
    found = checked(tmp_path, command, model="deepseek-v3", gpus="8xH200")
    assert not any(one.cure.startswith("--max-running-requests 256") for _, one in found.mistakes)


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve Qwen/Qwen3-0.6B",
        "python -m sglang.launch_server --model-path Qwen/Qwen3-0.6B",
        "llama-server -m Qwen3-0.6B-Q8_0.gguf -c 2048 -np 1 -ngl 99",
    ],
)
def test_a_flag_that_is_not_known_is_never_sure_to_start(tmp_path: Path, command: str) -> None:
    def verdict_of(line: str, **more: str) -> tuple[bool, Result | None, str]:
        (tmp_path / "serve.sh").write_text(f"{line}\n")
        found = memsheet.check(tmp_path / "serve.sh", gpus="1xH100-80GB", **more)
        return found.stops, found.result, " ".join(one.says for _, one in found.mistakes)

    assert verdict_of(command)[:2] == (False, Result.FITS)
    stops, result, says = verdict_of(f"{command} --foo-bar 3")
    assert (stops, result) == (False, Result.UNCERTAIN)
    assert "another release may know it" in says
    assert "refuses to start" not in says


def test_a_flag_of_no_release_stops_where_the_release_is_said(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text("vllm serve Qwen/Qwen3-0.6B --foo-bar 3\n")
    found = memsheet.check(tmp_path / "serve.sh", gpus="1xH100-80GB", engine_version="0.33.0")
    assert found.stops


def test_a_cure_that_makes_a_verdict_worse_says_so(tmp_path: Path) -> None:
    command = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8"

    def checked(more: str) -> Checked:
        (tmp_path / "serve.sh").write_text(f"{command} {more}\n")
        return memsheet.check(tmp_path / "serve.sh", gpus="8xH200")

    found, cured = checked(""), checked("--attn-dp-size 8")
    (cure,) = (one.cure for rule, one in found.mistakes if rule.id == "copied-cache")
    assert (found.result, cured.result) == (Result.FITS, Result.UNCERTAIN)
    assert "then whether it fits is uncertain" in cure
