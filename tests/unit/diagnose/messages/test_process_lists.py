"""Whoever lists the processes of a card, in whatever order and unit: each is read once, and named where a
change is to look who holds it.
"""

from __future__ import annotations

import pytest

from memsheet.diagnose.cleaned import cleaned_log
from memsheet.diagnose.message import Cause
from memsheet.diagnose.messages.nvidia_smi import listed_holders
from memsheet.diagnose.verdict import Diagnosis, diagnose_texts

GIB = 2**30


def found_in(*lines: str) -> Diagnosis:
    return diagnose_texts({"log": "\n".join(lines)})


OF_VLLM = "ValueError: Free memory on device (18.40/39.50 GiB) on startup is less than desired GPU memory utilization (0.9, 35.55 GiB)."  # fmt: skip
OF_OLLAMA = """msg="inference compute" id=GPU-1 library=CUDA description="NVIDIA RTX A6000" total="48.0 GiB" available="2.1 GiB"
ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9011.00 MiB on device 0: cudaMalloc failed: out of memory
alloc_tensor_range: failed to allocate CUDA0 buffer of size 9448718336"""
LISTS = {
    "nvidia-smi's table": "|    0   N/A  N/A      4711      C   /srv/x/bin/python3                  20480MiB |",
    "an older table": "|    0      4711      C   /srv/x/bin/python3                         20480MiB |",
    "a query": "pid, process_name, used_gpu_memory [MiB]\n4711, /srv/x/bin/python3, 20480 MiB",
    "a query without units": "pid, used_memory [MiB]\n4711, 20480",
    "a query in another order": "gpu_uuid, used_gpu_memory [MiB], pid, name\nGPU-1a2b, 20480 MiB, 4711, python3 serve.py",
    "a query without a header": "4711, python3 serve.py, 20480 MiB",
    "gpustat": "[0] NVIDIA A100-SXM4-80GB | 45'C,   0 % | 21000 / 81920 MB | ana:python3/4711(20480M)",
    "rocm-smi": "PID     PROCESS NAME    GPU(s)  VRAM USED       SDMA USED    CU OCCUPANCY\n4711    python3         1       21474836480     0            UNKNOWN",
    "nvtop": "PID  USER DEV    TYPE  GPU        GPU MEM    CPU  HOST MEM Command\n4711 ana 0 Compute  98%  20480MiB  94%   100%   3210MiB /srv/x/bin/python3 serve.py",
    "nvitop": "│ GPU     PID      USER  GPU-MEM %SM  %CPU  %MEM      TIME  COMMAND │\n│   0    4711 C   ana  20.00GiB  99 101.2   3.1  2:11:01  /srv/x/bin/python3 -m serve │",
    "npu-smi": "| NPU     Chip   | Process id    | Process name   | Process memory(MB)  |\n+=====+=====+\n| 0       0      | 4711          | python3        | 20480               |",
    "JSON": '{"pid": 4711, "cmd": "python3 serve.py", "used_gpu_memory": "20480 MiB"}',
    "anybody's words": "the card is used by pid 4711 (python3 serve.py): 20480 MiB",
}  # fmt: skip


@pytest.mark.parametrize("text", LISTS.values(), ids=LISTS)
def test_a_process_and_what_it_holds_are_read_once(text: str) -> None:
    ((_, pid, _, size),) = listed_holders(cleaned_log([text], ()))
    assert (pid, size.middle) == (4711, 20 * GIB)


@pytest.mark.parametrize("text", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("message", [OF_VLLM, OF_OLLAMA], ids=["vLLM", "Ollama"])
def test_who_holds_a_card_is_named_where_a_change_is_to_look_for_it(text: str, message: str) -> None:
    found = found_in(message, text)
    assert found.cause is Cause.OTHER_PROCESS
    assert any("4711" in cure.change for cure in found.cures if cure.where.startswith("nvidia-smi"))


@pytest.mark.parametrize("text", [
    "step, loss, pid\n1, 2.0, 4711", "Process 4711 has 3.00 GiB memory in use.", "Killed process 4711 (python3) total-vm:1kB, anon-rss:20480 MB", "device 0 [RTX 3090] MEM 23.7Gi/24.0Gi", "epoch, name, 20 MiB", "pid, process_name, used_gpu_memory [MiB]\n", "[0] NVIDIA A100 | idle",
])  # fmt: skip
def test_a_table_of_something_else_lists_nobody(text: str) -> None:
    assert not listed_holders(cleaned_log([text], ()))


def test_what_ollama_found_on_the_host_is_no_card() -> None:
    found = found_in(
        'msg="inference compute" id=cpu library=cpu name=cpu total="32.0 GiB" available="2.1 GiB"',
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9011.00 MiB on device 0: cudaMalloc failed: out of memory",
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 9448718336",
    )  # fmt: skip
    assert found.cause is Cause.UNKNOWN


@pytest.mark.parametrize(
    ("held", "cause"), [(22000, Cause.OTHER_PROCESS), (3000, Cause.REAL_NEED), (900, Cause.REAL_NEED)]
)
def test_of_a_card_that_nobody_knows_those_that_are_listed_hold_it(held: int, cause: Cause) -> None:
    found = found_in(
        "llama_model_load_from_file_impl: using device CUDA0 (a card of tomorrow) - 1200 MiB free",
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9011.00 MiB on device 0: cudaMalloc failed: out of memory",
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 9448718336", f"4711, python3 serve.py, {held} MiB",
    )  # fmt: skip
    assert found.cause is cause


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("my pid is 902", Cause.OTHER_PROCESS),
        ("my process is 902", Cause.OTHER_PROCESS),
        ("the failing job (pid 902)", Cause.OTHER_PROCESS),
        ("my pid is 4711", Cause.UNKNOWN),
        ("my old pid is 902, which has ended", Cause.UNKNOWN),
        ("", Cause.UNKNOWN),
    ],
)
def test_who_holds_next_to_nothing_itself_lacks_what_others_hold(said: str, cause: Cause) -> None:
    held = "[0] NVIDIA A40 | 60'C,  99 % | 45100 / 46068 MB | li:python/4711(44870M) me:python/902(210M)"
    assert found_in("RuntimeError: CUDA error: out of memory", "one A40", held, said).cause is cause


NEAR_FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB (GPU 0; 23.69 GiB total capacity; 1.02 GiB already allocated; 60.44 MiB free; 1.10 GiB reserved in total by PyTorch)"  # fmt: skip
BARE = 'File "infer.py", line 12, in <module>\nRuntimeError: CUDA error: out of memory\n'


@pytest.mark.parametrize("text", LISTS.values(), ids=LISTS)
def test_a_process_of_any_list_is_the_neighbour_of_an_allocator(text: str) -> None:
    """What it holds explains what the message names nobody for."""
    found = found_in(NEAR_FULL, text.replace("81920", "24258"))
    assert found.cause is Cause.OTHER_PROCESS
    assert "4711" in " ".join((found.because, *(cure.change for cure in found.cures)))


@pytest.mark.parametrize(("script", "cause"), [
    ("train_unet.py", Cause.OTHER_PROCESS), ("infer.py", Cause.UNKNOWN), ("", Cause.UNKNOWN),
])  # fmt: skip
def test_a_full_card_that_another_script_holds_is_that_ones(script: str, cause: Cause) -> None:
    table = (
        "PID  USER DEV    TYPE  GPU        GPU MEM    CPU  HOST MEM Command\n"
        f"29117 ana 0 Compute 98% 23120MiB 94% 100% 3210MiB python {script} --bs 8\n"
        "device 0 [RTX 3090] MEM 23.7Gi/24.0Gi"
    )
    assert found_in(BARE, table).cause is cause


WINDOWS = (
    "| NVIDIA-SMI 576.80                 Driver Version: 576.80         CUDA Version: 12.9     |\n"
    "|  0%   51C    P2             44W /  285W |    {used}MiB /  16376MiB |      3%      Default |\n"
    "|    0   N/A  N/A            6120    C+G   C:\\Windows\\explorer.exe                  N/A    |\n"
    "|    0   N/A  N/A           18844      C   ...forge\\system\\python\\python.exe  N/A |\n"
)
REFUSED = (
    "error loading model: unable to allocate CUDA0 buffer\n\n\n\nlog:\n"
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating {asked}.00 MiB on device 0: cudaMalloc failed: out of memory\n"
    "alloc_tensor_range: failed to allocate CUDA0 buffer of size 1\nllama_model_load: error loading model: unable to allocate CUDA0 buffer\n"
)  # fmt: skip


@pytest.mark.parametrize(("used", "asked", "cause"), [
    (9371, 11172, Cause.OTHER_PROCESS), (9371, 15900, Cause.UNKNOWN), (900, 11172, Cause.UNKNOWN), (3900, 11172, Cause.UNKNOWN),
])  # fmt: skip
def test_weights_that_a_card_has_room_for_lack_what_others_hold_of_it(
    used: int, asked: int, cause: Cause
) -> None:
    """Though the driver does not say what each holds; the failure is told twice, first without its size."""
    found = found_in(REFUSED.format(asked=asked), WINDOWS.format(used=used))
    assert found.cause is cause
    assert ("18844" in found.cures[0].change) is (cause is Cause.OTHER_PROCESS)
    assert "6120" not in found.cures[0].change


GPUSTAT = "$ gpustat\n[0] NVIDIA RTX A5000 | 61'C,  99 % | 24114 / 24564 MB | ana(23980M)"
STARTED = "$ CUDA_VISIBLE_DEVICES=0 python run.py\nRuntimeError: CUDA error: out of memory"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (f"{GPUSTAT}\n{STARTED}", Cause.OTHER_PROCESS),
        (f"{GPUSTAT.replace('$', 'ana@box:~$', 1)}\n{STARTED.replace('$', 'ana@box:~$', 1)}", Cause.OTHER_PROCESS),
        (f"$ CUDA_VISIBLE_DEVICES=0 python run.py &\n{GPUSTAT}\nRuntimeError: CUDA error: out of memory", Cause.UNKNOWN),
    ],
)  # fmt: skip
def test_who_held_a_card_before_a_program_was_started_is_not_it(text: str, cause: Cause) -> None:
    found = found_in(*text.split("\n"))
    assert found.cause is cause
    assert any("ana's" in cure.change for cure in found.cures)
    assert "-1" not in str(found.cures)


@pytest.mark.parametrize(
    ("holder", "cause"),
    [("...ollama_llama_server", Cause.OTHER_PROCESS), ("python", Cause.UNKNOWN), ("/srv/x/bin/python3", Cause.UNKNOWN)],
)  # fmt: skip
def test_a_program_that_is_none_of_python_s_did_not_raise_its_error(holder: str, cause: Cause) -> None:
    text = (
        "| NVIDIA-SMI 550.54 |\n|   0  NVIDIA GeForce RTX 3060  |  11702MiB / 12288MiB |\n"
        f"|    0   N/A  N/A      2211      C   {holder}      11380MiB |\n"
        "RuntimeError: CUDA failed with error out of memory"
    )
    assert found_in(*text.split("\n")).cause is cause
