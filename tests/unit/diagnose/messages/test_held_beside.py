"""What a server, a pool or a neighbour holds beside what lacks room, by what their programs say at their
start.
"""

from __future__ import annotations

import pytest
from tests.unit.diagnose.corpus import FULL_CARD, brackets, modern, traced

from memsheet.diagnose.message import NO, YES, Cause
from memsheet.diagnose.verdict import Diagnosis, diagnose_texts

TGI = "site-packages/text_generation_server/models/cache_manager.py"


def found_in(*lines: str) -> Diagnosis:
    return diagnose_texts({"log": "\n".join(lines)})


def changes_of(found: Diagnosis) -> str:
    return "\n".join(f"{cure.change} | {cure.where}" for cure in found.cures if cure.helps != NO)


def loads(card: str, free: int, asked: int) -> tuple[str, ...]:
    return (
        f"llama_model_load_from_file_impl: using device CUDA0 ({card}) - {free} MiB free",
        f"ggml_backend_cuda_buffer_type_alloc_buffer: allocating {asked}.00 MiB on device 0: cudaMalloc failed: out of memory",
        f"alloc_tensor_range: failed to allocate CUDA0 buffer of size {asked * 2**20}",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("card", "free", "asked", "cause"),
    [
        ("NVIDIA GeForce RTX 3090", 5912, 8148, Cause.OTHER_PROCESS),
        ("NVIDIA GeForce RTX 4090", 3120, 9148, Cause.OTHER_PROCESS),
        ("NVIDIA GeForce RTX 4090", 23120, 29148, Cause.REAL_NEED),
        ("NVIDIA GeForce RTX 3060", 11020, 11500, Cause.REAL_NEED),
        ("a card that nobody knows", 3120, 9148, Cause.REAL_NEED),
    ],
)
def test_what_is_not_free_before_a_program_loads_is_held_by_others(
    card: str, free: int, asked: int, cause: Cause
) -> None:
    found = found_in(*loads(card, free, asked))
    assert found.cause is cause
    assert ("nvidia-smi" in changes_of(found)) is (cause is Cause.OTHER_PROCESS)


def test_who_holds_it_is_named_by_the_table_beside() -> None:
    table = "|    0   N/A  N/A     51940      C   /srv/ComfyUI/venv/bin/python            17848MiB |"
    found = found_in(*loads("NVIDIA GeForce RTX 3090", 5912, 8148), table)
    assert "process 51940 (/srv/ComfyUI/venv/bin/python)" in changes_of(found)


@pytest.mark.parametrize(
    ("share", "cause"),
    [
        ('env:\n - name: XLA_PYTHON_CLIENT_MEM_FRACTION\n   value: ".25"', Cause.LIMIT_SET),
        ('os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.25"', Cause.LIMIT_SET),
        ("XLA_PYTHON_CLIENT_MEM_FRACTION=.25 python train.py", Cause.LIMIT_SET),
        ("", Cause.REAL_NEED),
    ],
)
def test_a_share_of_a_pool_is_read_however_it_is_set(share: str, cause: Cause) -> None:
    message = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9663676416 bytes."
    found = found_in("A100 80GB", share, message, "Limit: 21247033344", "InUse: 14102364672")
    assert found.cause is cause


@pytest.mark.parametrize(("total", "decided"), [("37.60GiB", True), ("20.60GiB", False)])
def test_a_program_of_nine_tenths_of_a_named_card_needs_no_neighbour(total: str, decided: bool) -> None:
    message = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 35562329088 bytes."
    found = found_in("A100 40 GB", message, f"total allocation: {total}")
    assert (found.cause is Cause.REAL_NEED) is decided


@pytest.mark.parametrize(("launcher", "alike"), [("torchrun --nproc_per_node 4 train.py", True), ("", False)])
def test_large_processes_that_are_alike_are_ranks_where_a_launcher_started_several(
    launcher: str, alike: bool
) -> None:
    others = tuple((10 + n, f"19.5{n} GiB") for n in range(3))
    message = modern("112.00 MiB", "79.18 GiB", "72.00 MiB", "19.90 GiB", "19.00 GiB", "20.00 MiB", others=others)  # fmt: skip
    found = found_in(launcher, message)
    assert found.cause is Cause.OTHER_PROCESS
    assert ("let every rank choose its own card first" in changes_of(found)) is alike
    assert any(cure.helps == YES for cure in found.cures) is not alike


def test_the_cache_of_a_trial_run_says_that_too_little_is_left() -> None:
    frames = traced("warmup", "set_cache_manager", "__init__", module=TGI)
    message = brackets("32.00 MiB", "21.99 GiB", "21.62 GiB", "8.75 MiB", "21.63 GiB")
    found = found_in("text_generation_launcher: Warming up model", frames, message)
    assert found.cause is Cause.ENGINE_UNDERPROVISION
    assert "--max-batch-prefill-tokens" in changes_of(found)
    assert "--cuda-memory-fraction" not in changes_of(found)


@pytest.mark.parametrize(
    "said",
    ["TurbomindEngineConfig(cache_max_entry_count=0.8)", "[TM][INFO] [BlockManager] max_block_count = 781", ""],
)  # fmt: skip
def test_a_server_whose_cache_stands_outside_took_too_much_for_it(said: str) -> None:
    message = modern("1.25 GiB", "23.65 GiB", "389.31 MiB", "23.27 GiB", "2.34 GiB", "61.00 MiB")
    found = found_in(said, message)
    assert found.cause is (Cause.ENGINE_OVERCOMMIT if said else Cause.OUTSIDE_ALLOCATOR)
    assert ("a smaller share for the cache" in changes_of(found)) is bool(said)


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("kv_cache_config: {max_tokens: 65536, dtype: fp8}", Cause.ENGINE_UNDERPROVISION),
        ("kv_cache_config: {free_gpu_memory_fraction: 0.9}", Cause.ENGINE_OVERCOMMIT),
    ],
)
def test_a_cache_of_so_many_tokens_has_no_room_and_one_of_a_share_took_it(said: str, cause: Cause) -> None:
    found = found_in(
        "The following component could not be created: KV cache", "Total GPU memory (GiB): 79.18",
        "Free GPU memory before component creation attempt (GiB): 2.06", said,
    )  # fmt: skip
    assert found.cause is cause


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("g_loss.backward()\nepoch_g_loss += g_loss  # mean", Cause.LEAK),
        ("loss_G.backward()\ntotal_G_loss += loss_G", Cause.LEAK),
        ("g_loss.backward()\nepoch_g_loss += g_loss.item()", Cause.REAL_NEED),
        ("total_loss += kl_loss\ntotal_loss += ce_loss\ntotal_loss.backward()", Cause.REAL_NEED),
    ],
)
def test_a_sum_of_losses_is_one_by_any_name_and_parts_of_a_loss_are_none(code: str, cause: Cause) -> None:
    assert found_in(code, FULL_CARD).cause is cause


@pytest.mark.parametrize(
    ("said", "where"),
    [
        ("keras: for fold in range(5)", "clear_session"), ("optuna study, 20 trials", "torch.cuda.empty_cache()"), ("a loop of mine over one model", "_snapshot()"),
    ],
)  # fmt: skip
def test_what_is_let_go_is_told_by_what_runs_again(said: str, where: str) -> None:
    found = found_in(said, "After each run: 4 GB → 8 GB → 12 GB → 16 GB", FULL_CARD)
    assert found.cause is Cause.LEAK
    assert where in found.cures[0].where


def test_a_frame_that_a_box_wraps_before_its_name_is_whole() -> None:
    box = (
        "│ /venv/lib/python3.11/site-packages/trl/trainer/grpo_trainer.py:596 in        │",
        "│ _get_per_token_logps                                                         │",
    )
    found = found_in(*box, FULL_CARD)
    assert found.term is not None
    assert found.term.path == "loss/log_probs"
