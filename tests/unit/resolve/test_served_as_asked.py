"""What a person asks of a server, taken as the engine takes it: lengths, versions, cuts, switches; and what
is said where it is not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet import catalog
from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.formulas.serving.dp_attention import group_plan
from memsheet.readers.model import read_model
from memsheet.readers.rope_lengths import scaled_positions
from memsheet.resolve.cut import cuts_heads, most_ranks
from memsheet.search.serve.load import Holds

H100 = "1xH100-80GB"
NAMES = ("llama-3.1-8b", "qwen2.5-7b", "deepseek-v3", "gemma-3-27b")


def model(name: str) -> Any:
    return read_model(name, catalog=catalog.find_model, names=catalog.model_names())


def refused(ask: Any, *named: Any, **asked: Any) -> dict[str, tuple[str, str]]:
    with pytest.raises(InputError) as found:
        ask(*named, **asked)
    return {problem.field: (problem.reason, problem.hint) for problem in found.value.problems}


# lengths ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_length_beyond_the_model_is_refused_in_every_way(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reason, hint = refused(memsheet.infer, "llama-3.1-8b", gpus=H100, engine=engine, max_model_len=131073)[
        "serving.max_model_len"
    ]
    assert "131,072 positions" in reason
    assert "--max-model-len 131072" in hint
    assert "rope_scaling" in hint
    planned = refused(
        memsheet.plan_serving, "llama-3.1-8b", gpus="4xH100-80GB", engine=engine, context=200000
    )
    assert "131,072 positions" in planned["context"][0]
    script = tmp_path / "serve.sh"
    words = {
        "vllm": "vllm serve m --max-model-len",
        "sglang": "sglang serve --model-path m --context-length",
    }[engine]
    script.write_text(f"{words} 262144\n")
    assert main(["check", str(script), "--model", "llama-3.1-8b", "--gpus", H100]) != 0
    assert "length-beyond-model" in capsys.readouterr().out
    assert memsheet.infer("llama-3.1-8b", gpus=H100, engine=engine, max_model_len=131072).verdict is not None


def test_sglang_went_on_once() -> None:
    asked = {"gpus": H100, "engine": "sglang", "max_model_len": 140000}
    assert "serving.max_model_len" in refused(memsheet.infer, "llama-3.1-8b", **asked)
    assert "goes on" in " ".join(memsheet.infer("llama-3.1-8b", **asked, engine_version="0.4.6.post1").notes)


@pytest.mark.parametrize("engine", ["transformers", "llama.cpp"])
def test_an_engine_that_goes_on_says_so(engine: str) -> None:
    asked = {"quantize": "gguf:Q4_K_M"} if engine == "llama.cpp" else {}
    notes = [
        " ".join(
            memsheet.infer("llama-3.1-8b", gpus=H100, engine=engine, max_model_len=tokens, **asked).notes
        )
        for tokens in (131072, 131073)
    ]
    assert ["beyond the 131,072" in said for said in notes] == [False, True]


@pytest.mark.parametrize(
    ("rope", "found"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072), ({"type": "linear", "factor": 2.0}, 65536),
        ({"rope_type": "dynamic", "factor": 3.0}, 98304), ({"rope_type": "llama3", "factor": 8.0}, None), ({"rope_type": "default"}, None),
        ({"rope_type": "yarn", "factor": "x"}, None), ({"rope_type": "linear", "factor": float("inf")}, None), ([], None), (None, None),
        ({"rope_type": "yarn", "factor": 0.5, "original_max_position_embeddings": 32768}, None),
        ({"rope_type": "linear", "factor": True}, None),
    ],
)  # fmt: skip
def test_what_a_scaling_gives(rope: Any, found: int | None) -> None:
    for key in ("rope_scaling", "rope_parameters"):
        assert scaled_positions({key: rope}, 32768) == found
        assert scaled_positions({"text_config": {key: rope}}, 32768) == found
        assert scaled_positions({key: rope}, None) is None
    assert (
        scaled_positions(
            {"model_type": "gemma3_text", "rope_scaling": {"type": "linear", "factor": 8.0}}, 131072
        )
        is None
    )


def test_a_scaled_model_is_served_as_long() -> None:
    config = {**(catalog.find_model("qwen2.5-7b") or {})["config"], "max_position_embeddings": 32768}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    asked = {"gpus": H100, "engine": "vllm", "max_model_len": 131072}
    assert "serving.max_model_len" in refused(memsheet.infer, config, **asked)
    assert memsheet.infer({**config, "rope_scaling": yarn}, **asked).plan.serving.max_model_len == 131072
    usual = {key: value for key, value in asked.items() if key != "max_model_len"}
    assert (
        memsheet.infer({**config, "rope_scaling": yarn}, **usual).plan.serving.max_model_len == 131072
    )  # what vLLM derives
    assert memsheet.infer(config, **usual).plan.serving.max_model_len == 32768


# versions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "version", "known"),
    [
        ("vllm", "banana", False), ("vllm", "0.11.0", True), ("vllm", "V1 2025", True), ("vllm", "2025", False), ("sglang", "0.5", False),
        ("sglang", "0.5.12", True), ("llama.cpp", "latest", False), ("llama.cpp", "b7342 era", True), ("transformers", "new", False),
        ("transformers", "5.13.1 (torch 2.13.0)", True),
    ],
)  # fmt: skip
def test_a_version_names_a_release(engine: str, version: str, known: bool) -> None:
    asked = {"engine": engine, "engine_version": version, "max_model_len": 2048}
    if known:
        assert memsheet.infer("llama-tiny", **asked).plan.engine_version == version
    else:
        reason, hint = refused(memsheet.infer, "llama-tiny", **asked)["engine_version"]
        assert "names no release" in reason
        assert "for example" in hint


def test_one_newer_than_what_was_read_says_so() -> None:
    notes = {
        version: " ".join(
            memsheet.infer("llama-tiny", engine="vllm", engine_version=version, max_model_len=64).notes
        )
        for version in ("0.33.0", "0.34.0")
    }
    assert "newer" not in notes["0.33.0"]
    assert "newer than 0.33.0" in notes["0.34.0"]


# cuts -------------------------------------------------------------------------------------------------------


def test_gpus_that_nobody_spoke_of_cut_the_model_as_far_as_its_heads_go() -> None:
    found = memsheet.infer("qwen2.5-7b", gpus="8xH100-80GB", engine="vllm", max_model_len=8192)
    assert (found.plan.mesh.tp, found.plan.mesh.dp_replicate) == (4, 2)
    assert any("28 attention heads" in line for line in found.assumed)
    told = memsheet.infer(
        "qwen2.5-7b", gpus="8xH100-80GB", engine="vllm", max_model_len=8192, tp=4, dp_replicate=2
    )
    assert told.sheets == found.sheets
    assert (
        memsheet.infer("llama-3.1-8b", gpus="8xH100-80GB", engine="vllm", max_model_len=8192).plan.mesh.tp
        == 8
    )


def test_a_cut_that_was_asked_for_is_refused_with_one_that_is_none() -> None:
    reason, hint = refused(
        memsheet.infer, "qwen2.5-7b", gpus="8xH100-80GB", engine="vllm", tp=8, max_model_len=64
    )["mesh.tp"]
    assert "28 attention heads" in reason
    assert hint.startswith("--tp 4")
    assert "plan infer" in hint


@pytest.mark.parametrize("name", NAMES)
def test_the_most_ranks_are_the_most(name: str) -> None:
    spec = model(name)
    for ranks in range(1, 33):
        most = most_ranks(spec, ranks)
        assert ranks % most == 0
        assert most == 1 or cuts_heads(spec, most)
        assert not any(cuts_heads(spec, more) for more in range(most + 1, ranks + 1) if ranks % more == 0)


def test_an_old_card_has_what_the_engine_has_there() -> None:
    asked = {"gpus": "1xT4", "engine": "sglang", "max_model_len": 2048}
    found = memsheet.infer("qwen2.5-1.5b", **asked)
    assert found.plan.attention.value == "sdpa"
    assert "attention = sdpa" in found.assumed
    assert "attention" in refused(memsheet.infer, "qwen2.5-1.5b", **asked, attention="flash")
    assert memsheet.infer("qwen2.5-1.5b", **{**asked, "gpus": H100}).plan.attention.value == "flash"


@pytest.mark.parametrize(("asked", "own"), [(4096, 512), (512, 64), (7, 1)])
def test_requests_of_a_group(asked: int, own: int) -> None:
    """SGLang divides what is asked for over the groups, and each prints its own (v0.5.23
    mem_cache/kv_cache_configurator.py:3128).
    """
    found = memsheet.infer(
        "deepseek-v3", gpus="8xH200", engine="sglang", attn_dp=8, max_model_len=8192, sequences=asked
    )
    assert group_plan(found.plan).serving.max_sequences == own
    assert f"max_running_requests={own}," in (found.serving or {})["start_up"][-1]


# switches ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"engine": "vllm", "compile": False}, "compile"), ({"engine": "sglang", "compile": True}, "compile"),
        ({"engine": "vllm", "engine_version": "0.6.4", "compile": True}, "compile"),
        ({"engine": "vllm", "fully_sharded_loras": True}, "serving.fully_sharded_loras"), ({"engine": "vllm", "max_cpu_loras": 4}, "serving.max_cpu_loras"),
        ({"engine": "sglang", "max_cpu_loras": 4}, "serving.max_cpu_loras"), ({"engine": "vllm", "image_tokens": 9}, "image_tokens"),
    ],
)  # fmt: skip
def test_what_changes_nothing_is_not_taken_silently(asked: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as found:
        memsheet.infer("llama-3.1-8b", gpus=H100, max_model_len=8192, **asked)
    assert [problem.field for problem in found.value.problems] == [field]
    assert found.value.problems[0].hint


@pytest.mark.parametrize(
    "asked", [{"engine": "vllm", "compile": True}, {"engine": "vllm", "engine_version": "0.6.4", "compile": False}, {"engine": "sglang", "compile": False}]
)  # fmt: skip
def test_what_the_engine_does_anyway_may_be_said(asked: dict[str, Any]) -> None:
    usual = {key: value for key, value in asked.items() if key != "compile"}
    one, other = (
        memsheet.infer("llama-3.1-8b", gpus=H100, max_model_len=8192, **options) for options in (asked, usual)
    )
    assert one.sheets == other.sheets


def test_a_draft_that_is_named_drafts() -> None:
    asked = {
        "gpus": H100,
        "engine": "vllm",
        "max_model_len": 8192,
        "draft_model": "llama-3.2-1b",
        "speculative_tokens": 3,
    }
    found = memsheet.infer("llama-3.1-8b", **asked)
    assert found.sheets == memsheet.infer("llama-3.1-8b", **asked, speculative="draft").sheets
    assert any(line.startswith("speculative.method = draft") for line in found.assumed)


# words ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--memory-fraction", "1.5"), "for example 0.9"), (("--max-model-len", "8x"), "for example 8192, or 8k"),
        (("--max-model-len=-5",), "for example 8192"), (("--mem-fraction-static", "0.9"), "--memory-fraction says it here"),
        (("--gpu-memory-utilization", "9"), "for example 0.9"), (("--kv-dtypee", "fp8"), "did you mean --kv-dtype?"),
        (("--kv-dtype", "fp9"), "for example bf16"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_has_an_example(
    flags: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["infer", "llama-tiny", "--engine", "vllm", *flags]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("flags", [("--engine", "trtllm"), ("--engine", "vllm", "--frobnicate", "3")])
def test_only_what_is_near_is_offered(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["infer", "llama-tiny", *flags]) == 2
    assert "did you mean" not in capsys.readouterr().err


def test_lengths_may_be_said_in_thousands(capsys: pytest.CaptureFixture[str]) -> None:
    main(["infer", "llama-3.1-8b", "--gpus", H100, "--engine", "vllm", "--max-model-len", "128k"])
    assert "131072 tokens" in capsys.readouterr().out


def test_without_a_card_the_headline_is_of_weights_and_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    def first(*flags: str) -> str:
        main(["infer", "llama-3.1-8b", "--engine", "vllm", *flags])
        return " ".join(capsys.readouterr().out.split("\n\n")[0].split())

    assert first().startswith(
        "PREDICTED 14.96 GiB of weights · 128.00 KiB of cache for a token · 16.00 GiB for a sequence of "
        "131,072 tokens"
    )
    assert "of tensors" in first("--max-model-len", "8192", "--sequences", "4")  # a sum that was asked for


def test_headline_and_table_round_alike(capsys: pytest.CaptureFixture[str]) -> None:
    main(["infer", "llama-3.1-8b", "--gpus", H100, "--engine", "vllm"])
    out = capsys.readouterr().out
    needs = out.split("needs ")[1].split(" GiB")[0]
    row = next(line for line in out.splitlines() if "= device" in line)
    assert needs == row.split()[2]


def test_a_pool_that_is_too_small_is_told_of() -> None:
    with pytest.raises(memsheet.DoesNotFitError) as found:
        memsheet.assert_fits("llama-3.1-8b", gpus=H100, task="infer", engine="vllm", memory_fraction=0.35)
    assert "the cache lacks" in str(found.value)
    assert "131,072 tokens" in str(found.value)
    assert "too much" not in str(found.value)


def test_of_latencies_that_all_miss_the_nearest_comes_first() -> None:
    found = memsheet.plan_serving("llama-3.1-8b", gpus="4xL40S", users=50, tpot="10ms")
    assert found.plans[0].holds is Holds.NO
    with_room = [one.decode.value for one in found.plans if one.decode and one.in_all >= 50]
    assert with_room == sorted(with_room)
    assert len(set(with_room)) > 1
