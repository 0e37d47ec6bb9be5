"""Commands of trtllm-serve and options of the LLM API, whose sheet is of vLLM's accounting and says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memsheet
from laws import every
from memsheet import catalog
from memsheet.budget import Result
from memsheet.errors import InputError
from memsheet.exchange import find_format
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.joined_files import join_files, written_request
from memsheet.exchange.plan_files import write_format_files
from memsheet.exchange.shared.stand_in_server import ACCOUNTING, share_of_card
from memsheet.plan.device import cluster_of
from memsheet.plan.document import plan_document
from memsheet.questions.recognised_files import PARSERS
from memsheet.readers.model import read_model
from memsheet.resolve import resolve_request

MODEL = "meta-llama/Llama-3.1-8B-Instruct"


def said(text: str, name: str = "serve.sh") -> dict[str, Any]:
    return dict(read_text(name, text, PARSERS).request)


@pytest.mark.parametrize(
    "line",
    [
        f"trtllm-serve {MODEL} --max_batch_size 64 --max_num_tokens 4096 --max_seq_len 8192 --tp_size 2",
        (
            f"trtllm-serve serve {MODEL} --max_batch_size=64 --max_num_tokens 4096 --max_seq_len 8192 "
            "--tensor_parallel_size 2 --kv_cache_free_gpu_memory_fraction 0.9 --backend pytorch"
        ),
        (
            f"mpirun -n 2 trtllm-llmapi-launch trtllm-serve {MODEL} --max-batch-size 64 "
            "--max-num-tokens 4096 "
            "--max-seq-len 8192 --tp_size 2 --host 0.0.0.0"
        ),
        (
            f"python3 -m dynamo.trtllm --model-path {MODEL} --max-batch-size 64 --tensor-parallel-size 2 "
            """--override-engine-args '{"max_num_tokens": 4096, "max_seq_len": 8192}'"""
        ),
    ],
)
def test_flags_in_every_spelling_say_the_same(line: str) -> None:
    assert said(line) == {
        "task": "infer", "engine": "vllm", "@model": MODEL, "mesh.tp": 2, "mesh.pp": 1, "mesh.ep": 1, "serving.max_sequences": 64,
        "serving.max_batched_tokens": 4096, "serving.max_model_len": 8192, "serving.memory_fraction": 0.9, "serving.page_tokens": 32, "@gpus": 2,
    }  # fmt: skip


def test_what_nobody_said_is_the_servers_own_default() -> None:
    found = read_text("a.sh", f"trtllm-serve {MODEL}\n", PARSERS)
    assert (found.request["serving.max_sequences"], found.request["serving.max_batched_tokens"]) == (
        2048,
        8192,
    )
    assert any("max_batch_size = 2048" in one for one in found.assumed)


OPTIONS = """tensor_parallel_size: 8
moe_expert_parallel_size: 8
enable_attention_dp: {}
kv_cache_free_gpu_memory_fraction: {}
kv_cache_config: {{dtype: fp8}}
cuda_graph_config: {}
speculative_config: {{decoding_type: MTP, num_nextn_predict_layers: 2}}
"""


def test_options_of_a_file() -> None:
    found = said(OPTIONS.format("false", 0.85, "{max_batch_size: 64}"), "a.yaml")
    assert found["speculative.method"] == "mtp"
    assert (found["speculative.tokens"], found["serving.kv_dtype"], found["mesh.ep"]) == (2, "fp8", 8)
    assert (found["serving.memory_fraction"], "serving.cuda_graphs" in found) == (0.85, False)
    groups = read_text("a.yaml", OPTIONS.format("true", 0.3, "null"), PARSERS)
    assert (groups.request["mesh.attn_dp"], groups.request["serving.cuda_graphs"]) == (8, False)
    assert "serving.memory_fraction" not in groups.request
    assert dict(groups.unmodelled).keys() >= {"speculative_config", ACCOUNTING}


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9])
def test_a_share_of_what_is_free_leaves_that_to_the_cache(share: float, tmp_path: Path) -> None:
    """llmapi/llm_args.py, KvCacheConfig: of the memory that is free, and not of the card."""
    (tmp_path / "a.sh").write_text(
        f"trtllm-serve {MODEL} --max_seq_len 4096 --kv_cache_free_gpu_memory_fraction {share}\n"
    )
    answer = memsheet.check(tmp_path / "a.sh", gpus="1xH100-80GB").answer
    assert answer is not None
    assert answer.serving
    budget, total = answer.serving["budget"], answer.cluster.device.framework_bytes
    kept = int(budget["kv_cache"].value)
    used = budget["requested_bytes"] - kept
    assert kept == pytest.approx(share * (total - used), rel=1e-3)


def test_a_share_of_nothing_is_what_lives_beside() -> None:
    assert share_of_card(0.5, 100, 60, 20) == pytest.approx(0.7)  # 40 beside, and half of 60
    assert share_of_card(0.5, 100, 60, -80) == 1


def test_a_command_and_the_file_it_names_are_one(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"trtllm-serve {MODEL} --extra_llm_api_options options.yaml\n")
    (tmp_path / "options.yaml").write_text(
        "max_batch_size: 16\nkv_cache_config: {dtype: fp8}\nmax_seq_len: 4096\n"
    )
    found = memsheet.check(tmp_path, gpus="1xH100-80GB")
    (read,) = found.reads.values()
    assert (read.request["serving.max_sequences"], read.request["serving.kv_dtype"]) == (16, "fp8")
    assert found.answer is not None


@pytest.mark.parametrize(
    ("model", "gpus", "result", "words"),
    [
        (MODEL, "1xH100-80GB", Result.UNCERTAIN, "by these it fits"),
        ("meta-llama/Llama-3.1-70B-Instruct", "1xRTX4090", Result.DOES_NOT_FIT, ""),
    ],
)
def test_the_verdict_is_told_with_whose_it_is(
    tmp_path: Path, model: str, gpus: str, result: Result, words: str
) -> None:
    (tmp_path / "a.sh").write_text(f"trtllm-serve {model} --max_batch_size 8 --max_seq_len 4096\n")
    found = memsheet.check(tmp_path / "a.sh", gpus=gpus)
    assert found.result is result
    assert words in found.doubt
    assert "graphs of vLLM beside" in found.doubt


@pytest.mark.parametrize(
    "text", ["trtllm-serve disaggregated -c a.yaml\n", "pip install trtllm-serve\n", "max_batch_size: 4\nbackend: x\n"]
)  # fmt: skip
def test_other_commands_are_not_read(text: str) -> None:
    with pytest.raises(InputError, match="not recognised"):
        said(text, "a.yaml")


def test_no_line_of_another_servers_log_is_promised(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(f"trtllm-serve {MODEL} --max_batch_size 8\n")
    answer = memsheet.check(tmp_path / "a.sh", gpus="1xH100-80GB").answer
    assert answer is not None
    assert answer.serving
    assert "start_up" not in answer.serving


MESHES = ({}, {"mesh.tp": 2}, {"mesh.tp": 2, "mesh.pp": 2}, {"mesh.tp": 4, "mesh.attn_dp": 4, "mesh.ep": 4}, {"mesh.tp": 2, "mesh.ep": 2})  # fmt: skip
OPTIONS_OF_A_PLAN = (
    {}, {"serving.kv_dtype": "fp8"}, {"serving.memory_fraction": 0.85, "serving.page_tokens": 32}, {"serving.cuda_graphs": False, "serving.max_sequences": 7},
    {"serving.max_batched_tokens": 4096},
)  # fmt: skip
NGRAMS = {"speculative.method": "ngram", "speculative.tokens": 3}


@every(
    "mesh, options",
    [
        *((mesh, options) for mesh in MESHES for options in OPTIONS_OF_A_PLAN),
        *((mesh, NGRAMS) for mesh in MESHES[:2]),
    ],
)
def test_a_command_that_is_written_reads_back_as_the_plan(mesh: Any, options: Any) -> None:
    name = "mixtral-8x7b" if "mesh.ep" in mesh else "llama-3.1-8b"
    request = {"task": "infer", "engine": "vllm", "serving.max_model_len": 4096, **mesh, **options}
    plan, wanted, served, machines = _resolved(name, request)
    form = find_format("tensorrt-llm")
    found = read_text(form.file, write_format_files(form, wanted)[form.file], PARSERS)
    assert found.form.name == "tensorrt-llm"
    assert (found.unknown, found.problems, {at for at, _ in found.unmodelled}) == ((), (), {ACCOUNTING})
    assert resolve_request(join_files({"a.sh": found}, {}, {}, machines.count).request, served, machines).plan == plan  # fmt: skip


def _resolved(name: str, request: dict[str, Any]) -> tuple[Any, dict[str, Any], Any, Any]:
    count = request.get("mesh.tp", 1) * request.get("mesh.pp", 1)
    machines = cluster_of(catalog.find_device("H100-80GB"), count, nodes=1)
    served = read_model(name, catalog=catalog.find_model, names=catalog.model_names())
    plan = resolve_request(request, served, machines).plan
    document = plan_document(plan, model=name, cluster=machines)
    return plan, written_request(document, gpus=count, nodes=1, accumulation=1), served, machines


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"serving.memory_fraction": 0.5}, "serving.memory_fraction"), ({"serving.kv_dtype": "fp8_e5m2"}, "serving.kv_dtype"),
        ({"quantization.weights": "fp8"}, "quantization.weights"), ({"@nodes": 2}, "nodes"), ({"mesh.dp_replicate": 2}, "mesh.dp_replicate"),
        ({"@model": "-rf"}, "model"),
    ],
)  # fmt: skip
def test_what_its_command_cannot_say_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    request = {"task": "infer", "engine": "vllm", "serving.max_model_len": 4096}
    wanted = _resolved("llama-3.1-8b", request)[1]
    with pytest.raises(InputError) as refused:
        write_format_files(find_format("tensorrt-llm"), {**wanted, **changes})
    assert field in {problem.field for problem in refused.value.problems}
