"""Servers that say of their cache how large it is, or for what it is too small; what other programs name."""

from __future__ import annotations

import pytest
from tests.unit.diagnose.corpus import modern

from memsheet.diagnose.message import MAYBE, NO, Cause
from memsheet.diagnose.verdict import Diagnosis, diagnose_texts
from memsheet.frozen import replace
from memsheet.units import MIB

DIES = "what():  [TM][ERROR] CUDA runtime error: out of memory /x/turbomind/core/allocator.cc:74"


def found_in(*lines: str) -> Diagnosis:
    return diagnose_texts({"log": "\n".join(lines)})


def places(found: Diagnosis, helps: str = MAYBE) -> str:
    return "\n".join(cure.where for cure in found.cures if cure.helps == helps)


def blocks(size: int, count: int) -> str:
    return (
        f"[TM][INFO] [BlockManager] block_size = {size} MB\n"
        f"[TM][INFO] [BlockManager] max_block_count = {count}\n"
        f"[TM][INFO] [BlockManager] chunk_size = {count}"
    )


@pytest.mark.parametrize(
    "reads",
    [
        "[TM][INFO] [ProcessInferRequests] Request for 3, received.",
        "[TM][INFO] [Forward] [0, 5), dc_bsz = 4, pf_bsz = 1, n_tok = 2052",
        "INFO:     Uvicorn running on http://0.0.0.0:23333",
    ],
)
def test_a_request_that_dies_beside_a_cache_that_stands_lacks_what_the_cache_took(reads: str) -> None:
    found = found_in("lmdeploy serve api_server x --cache-max-entry-count 0.9", blocks(8, 2048), reads, DIES)
    assert found.cause is Cause.ENGINE_OVERCOMMIT
    assert "--cache-max-entry-count 0.85" in places(found)
    assert "16.00 GiB at least" in found.because


@pytest.mark.parametrize("said", [(), (blocks(8, 2048),), ("Uvicorn running on http://0.0.0.0:1",)])
def test_without_a_cache_that_serves_a_refusal_stays_open(said: tuple[str, ...]) -> None:
    """A cache may be what was refused itself, and a weight before it."""
    assert found_in(*said, DIES).cause is Cause.UNKNOWN


ANSWERED = 'INFO:     172.18.0.1:51544 - "POST /v1/chat/completions HTTP/1.1" 200 OK'


@pytest.mark.parametrize(
    "said", [(), ("[TM][INFO] [BlockManager] block_size = 12582912, max_block_count = 3431",)]
)
def test_a_server_that_has_answered_has_its_cache(said: tuple[str, ...]) -> None:
    found = found_in("lmdeploy serve api_server x --cache-max-entry-count 0.9", *said, ANSWERED, DIES)
    assert found.cause is Cause.ENGINE_OVERCOMMIT
    assert "--cache-max-entry-count 0.85" in places(found)
    assert ("40.20 GiB" in found.because) is bool(said)


def too_long(length: int) -> str:
    return f"ERROR text_generation_launcher: Not enough memory to handle `max_total_tokens={length}`"


@pytest.mark.parametrize(("count", "size"), [(9000, 1), (600, 16)])
def test_a_length_beyond_the_cache_is_cut_to_what_it_holds(count: int, size: int) -> None:
    found = found_in(f"KV-cache blocks: {count}, size: {size}", too_long(32768))
    assert found.cause is Cause.ENGINE_UNDERPROVISION
    assert found.term is not None
    assert found.term.component == "kv_cache"
    assert f"{count * size:,} tokens" in found.because
    assert f"--max-total-tokens {count * size} " in places(found)


def test_a_cache_whose_size_is_not_said_offers_no_number() -> None:
    for said in ((), ("KV-cache blocks: 99999, size: 1",)):  # the other is of another start
        assert "--max-total-tokens N" in places(found_in(*said, too_long(32768)))


REFUSED = (
    "ggml_backend_cuda_alloc_buffer: allocating 7000.00 MiB on device 0: cudaMalloc failed: out of memory\n"
    f"ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size {7000 * MIB}\n"
    "graph_reserve: failed to allocate compute buffers"
)


@pytest.mark.parametrize(
    ("program", "told", "untold"),
    [
        ("llama-server -m x.gguf -ub 1024", "-ub 512", "n_ubatch"),
        ("from llama_cpp import Llama\nllm = Llama('x.gguf', n_ubatch=1024)", "n_ubatch=512", "-ub"),
        ("ollama run x", "num_batch N", "-ub"),
    ],
)  # fmt: skip
def test_a_change_is_told_in_the_words_of_what_runs(program: str, told: str, untold: str) -> None:
    where = places(found_in(program, REFUSED))
    assert told in where
    assert untold not in where


LOAD = (
    "allocating 31000.00 MiB on device 0: cudaMalloc failed: out of memory\n"
    "alloc_tensor_range: failed to allocate CUDA0 buffer of size 1"
)


@pytest.mark.parametrize(
    "card", ["no luck. 3090.", "it used to load (slowly). 3090. any idea", "two cards? 3090!"]
)
def test_a_card_that_is_a_sentence_of_its_own_is_one(card: str) -> None:
    assert found_in(LOAD, card).cause is Cause.REAL_NEED


@pytest.mark.parametrize(
    "count", ["step 3. 3090 samples.", "loss 3090.5", "it took 3090. then", "at 12. 3090.7 MiB"]
)
def test_a_count_is_no_card(count: str) -> None:
    assert found_in(LOAD, count).cause is Cause.UNKNOWN


def test_buffers_of_a_library_are_named_where_memory_lies_outside_the_allocator() -> None:
    found = found_in(
        "buffer = deep_ep.Buffer(group, num_nvl_bytes=int(5e9), num_rdma_bytes=int(1e9))",
        modern("2.00 GiB", "79.10 GiB", "1.00 GiB", "78.10 GiB", "65.00 GiB", "100.00 MiB"),
    )
    assert found.cause is Cause.OUTSIDE_ALLOCATOR
    assert "num_nvl_bytes" in places(found)


@pytest.mark.parametrize(
    ("said", "sliced"),
    [("MIG 1g.10gb     Device  0: (UUID: MIG-...)", True), ("an A100, no MIG here", False)],
)
def test_a_slice_that_is_full_may_be_a_larger_one(said: str, sliced: bool) -> None:
    found = found_in(
        said,
        modern("100.00 MiB", "9.50 GiB", "20.00 MiB", "9.48 GiB", "9.10 GiB", "4.00 MiB"),
    )
    assert found.cause is Cause.REAL_NEED
    assert ("MIG" in places(found)) is sliced


COUNTED = """Ran out of memory in memory space hbm. Used {used}G of 15.75G hbm.
  Largest program allocations in hbm:

  1. Size: 4.00G
     Operator: op_name="{made}"
     Shape: f32[{axes}]{{1,0:T(8,128)}}
     Unpadded size: 4.00G
"""


@pytest.mark.parametrize(
    ("made", "axes", "flash"),
    [
        ("jit(step)/jvp(Layer)/attention/softmax/sub", "8,8,4096,4096", True),
        ("jit(step)/Mlp/gate/dot_general", "32,4096,8192", False),
        ("jit(step)/lm_head/dot_general", "8192,131072", False),
    ],
)
def test_the_largest_allocation_is_called_as_the_operator_that_makes_it(
    made: str, axes: str, flash: bool
) -> None:
    found = found_in(COUNTED.format(used="19.11", made=made, axes=axes))
    assert found.cause is Cause.REAL_NEED
    assert found.term is not None
    assert not found.term.exact
    assert made in found.term.words
    assert found.term.shape.startswith(f"[{axes.replace(',', ', ')}]")
    assert ("flash_attention" in places(found)) is flash


def test_a_compiler_that_lists_no_allocation_names_no_tensor() -> None:
    assert found_in("Ran out of memory in memory space hbm. Used 19.1G of 15.75G hbm.").term is None


@pytest.mark.parametrize(("said", "component"), [
    ("vocab 151936, hidden 5120", "parameters"), ("rows 151936 and columns 5120", "temporaries"),
])  # fmt: skip
def test_a_host_s_request_of_vocabulary_and_width_is_an_embedding(said: str, component: str) -> None:
    asked = 151936 * 5120 * 4
    found = found_in(
        f"RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate {asked} bytes.",
        said,
    )
    assert found.cause is Cause.NOT_GPU_MEMORY
    assert found.term is not None
    assert found.term.component == component
    assert NO in {cure.helps for cure in found.cures}


LMDEPLOY = "lmdeploy serve api_server x --backend pytorch --cache-max-entry-count 0.97"
ANSWERED = 'INFO:     172.20.0.1:55614 - "POST /v1/chat/completions HTTP/1.1" 200 OK'
IN_LAYER = 'File "x/lmdeploy/pytorch/models/x.py", line 148, in forward\n    gate_up = self.gate_up_proj(x)'
SHORT = modern("1.75 GiB", capacity="79.11 GiB", free="1.28 GiB", own="77.83 GiB", allocated="76.72 GiB", kept="215.04 MiB")  # fmt: skip


@pytest.mark.parametrize(("before", "cause"), [(ANSWERED, Cause.ENGINE_OVERCOMMIT), ("", Cause.UNKNOWN)])
def test_a_server_that_had_answered_had_made_its_cache(before: str, cause: Cause) -> None:
    """And a line of code that calls a projection of the feed-forward layer says that it is that one's."""
    found = found_in(LMDEPLOY, before, SHORT, "Traceback (most recent call last):", IN_LAYER)
    assert found.cause is cause
    assert found.term is not None
    assert found.term.path == "mlp"
    assert "--cache-max-entry-count" in places(found)


PREFILL = "Server error: Not enough memory to handle 65536 prefill tokens. You need to decrease `--max-batch-prefill-tokens`"  # fmt: skip
OF_TGI = 'File "x/text_generation_server/models/x.py", line 345, in forward\n    h = self.c_fc(h)'


def test_a_servers_words_and_the_allocators_figures_are_of_one_failure_in_either_order() -> None:
    failure = ("Traceback (most recent call last):", OF_TGI, SHORT)
    ends = [found_in(PREFILL, *failure), found_in(*failure, PREFILL)]
    assert replace(ends[0], notes=()) == ends[1]
    assert ends[0].term is not None
    assert ends[0].term.path == "mlp"
    assert ends[0].cause is Cause.REAL_NEED


ON_HOST = "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 34359738368\nalloc_tensor_range: failed to allocate CPU buffer of size 34359738368\n"  # fmt: skip


@pytest.mark.parametrize(("behind", "path"), [
    ("llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache", "kv_cache"),
    ("llama_model_load: error loading model: unable to allocate CPU buffer", "parameters"),
])  # fmt: skip
def test_a_buffer_of_the_host_is_named_by_what_failed_behind_it(behind: str, path: str) -> None:
    found = found_in(ON_HOST + behind)
    assert found.cause is Cause.NOT_GPU_MEMORY
    assert found.term is not None
    assert found.term.component == path
    assert ("-ngl" in places(found)) is (path == "parameters")
    assert ("-ctk" in places(found)) is (path == "kv_cache")


def test_a_card_that_a_server_fills_on_purpose_is_no_shortage() -> None:
    found = found_in("a small model fills my card", "Available KV cache memory: 69.55 GiB", ANSWERED)
    assert not found.found
    assert "69.55 GiB" in found.notes[0]
    assert "--gpu-memory-utilization" in found.notes[0]
