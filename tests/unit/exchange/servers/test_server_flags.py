"""Flags of servers: as they are typed, by the start of their names, and what graphs they ask for."""

from __future__ import annotations

from typing import Any

import pytest

from memsheet import check
from memsheet.budget import Result
from memsheet.exchange.file_texts import read_text
from memsheet.questions.accounted import infer
from memsheet.questions.recognised_files import PARSERS
from memsheet.sheet import Component

LAUNCHES = {
    "vllm": "vllm serve Qwen/Qwen3-8B",
    "sglang": "python -m sglang.launch_server --model-path Qwen/Qwen3-8B",
    "llama.cpp": "llama-server -hf ggml-org/Qwen3-8B-GGUF:Q4_K_M",
    "tgi": "text-generation-launcher --model-id Qwen/Qwen3-8B",
    "lmdeploy": "lmdeploy serve api_server Qwen/Qwen3-8B",
    "tei": "text-embeddings-router --model-id BAAI/bge-m3",
}


def reading(text: str) -> Any:
    return read_text("serve.sh", text, PARSERS)


@pytest.mark.parametrize("launch", LAUNCHES.values(), ids=list(LAUNCHES))
@pytest.mark.parametrize("flag", ["--such-flag", "--no-such-flag"])
def test_a_flag_that_nobody_knows_is_named_as_it_was_typed_and_leaves_the_verdict_open(
    launch: str, flag: str
) -> None:
    found = reading(f"{launch} {flag}")
    assert [at for at, _ in found.unknown] == [flag]
    assert flag in [at for at, _ in found.unmodelled]


def test_a_switch_that_is_known_is_still_switched_off() -> None:
    found = reading(f"{LAUNCHES['vllm']} --no-enforce-eager --no-enable-prefix-caching")
    assert not found.unknown
    assert found.request["serving.cuda_graphs"] is True


@pytest.mark.parametrize(
    ("launch", "short", "key", "value"),
    [
        ("sglang", "--tensor-parallel 2", "mesh.tp", 2),
        ("sglang", "--mem-frac 0.7", "serving.memory_fraction", 0.7),
        ("sglang", "--pipeline-parallel 2", "mesh.pp", 2),
        ("vllm", "--tensor-parallel 2", "mesh.tp", 2),
        ("vllm", "--gpu-mem 0.7", "serving.memory_fraction", 0.7),
    ],
)
def test_the_start_of_a_name_is_the_flag_where_no_other_begins_so(
    launch: str, short: str, key: str, value: float
) -> None:
    found = reading(f"{LAUNCHES[launch]} {short}")
    assert not found.unknown
    assert found.request[key] == value


def test_a_start_that_several_names_have_is_none_of_them() -> None:
    found = reading(f"{LAUNCHES['sglang']} --enable-d 1")
    assert [at for at, _ in found.unknown] == ["--enable-d"]


OBJECT = '--compilation-config \'{"cudagraph_capture_sizes": [1, 2, 4, 8], "mode": 3}\''


@pytest.mark.parametrize(
    "said",
    [
        OBJECT,
        OBJECT.replace("--compilation-config", "-cc"),
        "--cudagraph-capture-sizes 1 2 4 8",
        "--max-cudagraph-capture-size 8",
        "--compilation-config.max_cudagraph_capture_size=8",
        "--cudagraph-capture-sizes 1 2 4 8 --max-cudagraph-capture-size 8",
    ],
)
def test_sizes_of_graphs_are_the_same_however_they_are_said(said: str) -> None:
    found = reading(f"{LAUNCHES['vllm']} {said}")
    assert found.request["serving.graph_sequences"] == 8
    assert not found.unmodelled


@pytest.mark.parametrize(
    "flag", ["--cuda-graph-bs 1 2 4 8", "--cuda-graph-bs-decode 8 1", "--cuda-graph-max-bs 8"]
)
def test_sglang_records_up_to_the_largest_of_a_list(flag: str) -> None:
    found = reading(f"{LAUNCHES['sglang']} {flag}")
    assert found.request["serving.graph_sequences"] == 8
    assert not found.unmodelled


def test_no_graphs_by_the_object_are_no_graphs_by_the_flag() -> None:
    by_object = reading(f'{LAUNCHES["vllm"]} -cc \'{{"cudagraph_mode": "NONE"}}\'')
    assert dict(by_object.request) == dict(reading(f"{LAUNCHES['vllm']} --enforce-eager").request)


def test_parts_of_the_object_that_nobody_accounts_are_left_open() -> None:
    found = reading(f'{LAUNCHES["vllm"]} -cc \'{{"mode": 0, "cudagraph_mode": "FULL"}}\'')
    assert sorted(at for at, _ in found.unmodelled) == [
        "--compilation-config.cudagraph_mode",
        "--compilation-config.mode",
    ]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_larger_graphs_take_no_less_and_leave_no_more_cache(engine: str) -> None:
    answers = [
        infer("qwen3-8b", gpus="1xH100-80GB", engine=engine, max_model_len=8192, graph_sequences=size)
        for size in (1, 8, 64, 256)
    ]
    graphs = [answer.sheets[0].of(Component.CUDA_GRAPHS).value for answer in answers]
    tokens = [(answer.serving or {})["kv_tokens"] for answer in answers]
    assert graphs == sorted(graphs)
    assert graphs[0] < graphs[-1]
    assert tokens == sorted(tokens, reverse=True)


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve google/gemma-3-12b-it --max-model-len 8192 --limit-mm-per-prompt '{\"image\": 2}'",
        "vllm serve google/gemma-3-12b-it --max-model-len 8192 --language-model-only",
        "vllm serve Qwen/Qwen3-Embedding-0.6B --runner pooling",
        "python -m sglang.launch_server --model-path Qwen/Qwen3-Embedding-0.6B --is-embedding",
    ],
)
def test_what_fits_without_a_flag_that_only_lessens_fits_with_it(command: str, tmp_path: Any) -> None:
    (tmp_path / "serve.sh").write_text(command + "\n")
    checked = check(tmp_path / "serve.sh", gpus="1xH100-80GB")
    assert checked.answer.verdict.result is Result.FITS


YARN = '{"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}'
STRETCHED = {
    "vllm": f"{LAUNCHES['vllm']} --max-model-len 131072 --hf-overrides",
    "sglang": f"{LAUNCHES['sglang']} --context-length 131072 --json-model-override-args",
}


def verdict_of(command: str, folder: Any) -> Any:
    (folder / "serve.sh").write_text(command + "\n")
    return check(folder / "serve.sh", gpus="1xH100-80GB").answer.verdict.result


@pytest.mark.parametrize("command", STRETCHED.values(), ids=list(STRETCHED))
def test_positions_that_a_command_stretches_move_no_byte_where_it_says_the_length(
    command: str, tmp_path: Any
) -> None:
    assert verdict_of(f"{command} '{YARN}'", tmp_path) is Result.FITS
    other = YARN[:-1] + ', "num_hidden_layers": 4}'
    assert verdict_of(f"{command} '{other}'", tmp_path) is Result.UNCERTAIN


def test_positions_without_a_length_leave_the_verdict_open(tmp_path: Any) -> None:
    assert verdict_of(f"{LAUNCHES['vllm']} --hf-overrides '{YARN}'", tmp_path) is Result.UNCERTAIN
