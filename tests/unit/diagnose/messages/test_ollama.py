"""Ollama's messages, and those of llama.cpp below it: changes are those that its users can make."""

from __future__ import annotations

import pytest

from memsheet.diagnose.message import MAYBE, Cause
from memsheet.diagnose.verdict import Diagnosis, diagnose_texts


def found_in(*lines: str) -> Diagnosis:
    return diagnose_texts({"log": "\n".join(lines)})


def offered(found: Diagnosis) -> list[str]:
    return [cure.where or cure.change for cure in found.cures if cure.helps == MAYBE]


PLACING = (
    'level=INFO source=server.go:138 msg=offload library=cuda layers.requested=-1 layers.model=49 layers.offload=33 layers.split="" memory.available="[{free}]" '
    'memory.gpu_overhead="0 B" memory.required.full="21.7 GiB" memory.required.partial="{placed}" memory.required.kv="3.5 GiB" memory.required.allocations="[{placed}]"'
)  # fmt: skip
REFUSED = (
    "CUDA error: out of memory\n in function alloc at //ml/backend/ggml/ggml/src/ggml-cuda/ggml-cuda.cu:511"
)
GRAPH = "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 3221225472"


@pytest.mark.parametrize(("free", "placed", "cause"), [
    ("15.1 GiB", "14.9 GiB", Cause.ENGINE_OVERCOMMIT),
    ("15.1 GiB", "9.8 GiB", Cause.UNKNOWN),  # what it left should have been enough
])  # fmt: skip
def test_what_it_placed_on_the_card_is_read(free: str, placed: str, cause: Cause) -> None:
    found = found_in(PLACING.format(free=free, placed=placed), REFUSED)
    assert found.cause is cause
    assert not any(where.startswith("-") for where in offered(found))


def test_its_changes_are_in_its_own_words() -> None:
    found = found_in(PLACING.format(free="15.1 GiB", placed="14.9 GiB"), REFUSED)
    assert "14.90 GiB" in found.because
    assert "15.10 GiB" in found.because
    assert any("OLLAMA_GPU_OVERHEAD" in where for where in offered(found))


@pytest.mark.parametrize(("count", "first"), [(6, "OLLAMA_NUM_PARALLEL=1"), (1, "OLLAMA_FLASH_ATTENTION=1")])
def test_requests_at_once_come_first_where_there_are_several(count: int, first: str) -> None:
    assert offered(found_in(GRAPH, f"OLLAMA_NUM_PARALLEL={count}, num_ctx 16384"))[0] == first


def test_host_memory_is_told_in_its_own_words() -> None:
    found = found_in("Error: model requires more system memory (51.0 GiB) than is available (29.5 GiB)")
    assert found.cause is Cause.NOT_GPU_MEMORY
    assert found.missing is not None
    told = " ".join(f"{cure.change} {cure.where}" for cure in found.cures)
    assert "swap" in told
    assert "num_ctx" in told
    assert "read ahead" not in told


@pytest.mark.parametrize("text", [
    "Error: 500 Internal Server Error: model runner has unexpectedly stopped, this may be due to resource limitations or an internal error, check ollama server logs for details",
    "Error: model failed to load, this may be due to resource limitations or an internal error, check ollama server logs for details",
    "Error: llama runner process has terminated: exit status 2",
])  # fmt: skip
def test_an_end_without_its_reason_asks_for_the_server_s_log(text: str) -> None:
    found = found_in(text)
    assert found.cause is Cause.FOLLOW_UP_ERROR
    assert "server.log" in found.because


def test_its_reason_speaks_where_it_is_told() -> None:
    told = "llama runner process has terminated: cudaMalloc failed: out of memory"
    assert found_in(GRAPH, told).cause is Cause.REAL_NEED


@pytest.mark.parametrize("process", ["llama runner", "llama-server"])
def test_a_reason_without_figures_leaves_the_changes(process: str) -> None:
    found = found_in(f"Error: {process} process has terminated: cudaMalloc failed: out of memory")
    assert found.cause is Cause.UNKNOWN
    assert Cause.REAL_NEED in found.open_between
    assert "num_gpu N" in offered(found)


LOAD = (
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 27311.08 MiB on device 0: cudaMalloc failed: out of memory",
    "alloc_tensor_range: failed to allocate CUDA0 buffer of size 28637757440",
    "llama_model_load: error loading model: unable to allocate CUDA0 buffer",
)  # fmt: skip


@pytest.mark.parametrize(("model", "told"), [
    ("llama-server -m Qwen3-30B-A3B-Q6_K.gguf -ngl 99", True),
    ("llama-server -m Mixtral-8x7B-Instruct.Q4_K_M.gguf -ngl 99", True),
    ("print_info: n_expert         = 128", True),
    ("print_info: n_expert         = 0", False),
    ("llama-server -m Llama-3.3-70B-Q4_K_M.gguf -ngl 99", False),
    ("ollama run qwen3:30b-a3b # Qwen3-30B-A3B", False),  # which has no such setting
])  # fmt: skip
def test_experts_go_to_the_host_before_whole_layers(model: str, told: bool) -> None:
    """Where the model has any, and the program can."""
    places = offered(found_in(model, *LOAD))
    assert places[0].startswith("--n-cpu-moe") is told
    assert ("--n-cpu-moe" in " ".join(places)) is told


def test_pages_that_are_not_locked_are_a_warning() -> None:
    warning = "warning: failed to mlock 51539607552-byte buffer (after previously locking 0 bytes): ENOMEM"
    assert found_in(warning).cause is Cause.NOT_GPU_MEMORY
    assert not found_in(warning, "main: server is listening on http://127.0.0.1:8080").found
    assert found_in(warning, *LOAD).cause is not Cause.NOT_GPU_MEMORY
    assert (
        found_in("llama_model_load: error loading model: mmap failed: Cannot allocate memory").cause
        is Cause.NOT_GPU_MEMORY
    )
