"""Growth by arithmetic: figures that reach what was held, whatever they are called, and no settings."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from memsheet.diagnose.message import Cause
from memsheet.diagnose.verdict import diagnose_texts

FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 23.65 GiB of which "
    "201.38 MiB is free. Including non-PyTorch memory, this process has 23.45 GiB memory in use. Of the allocated memory "
    "22.80 GiB is allocated by PyTorch, and 140.00 MiB is reserved by PyTorch but unallocated."
)  # fmt: skip
PIECES = FULL.replace("22.80 GiB is alloc", "10.20 GiB is alloc").replace("140.00 MiB", "12.73 GiB")
UNTIL_FULL, SHORT_OF_IT = (7.2, 11.1, 15.0, 18.9), (1.2, 1.9, 2.6, 3.3)


def cause_of(*texts: str) -> Cause:
    return diagnose_texts({"log": "\n".join(texts)}).cause


FORMS: tuple[Callable[[int, float], str], ...] = (
    lambda n, size: f"epoch {n}: {size:.1f} GB",
    lambda n, size: f"{n} 0.{9 - n} {size * 1024:.0f}",
    lambda n, size: f"| {n}00 | {size * 1024:.0f} MiB | 2.{9 - n} |",
    lambda n, size: f"1{n}:00  {size * 2**30:.0f}",
    lambda n, size: f"req={n}000 vram_used_mb={size * 1024:.0f}",
    lambda n, size: f"эпоха {n}: {size:.1f} ГБ",
    lambda n, size: f"[epoch {n}] loss={9 - n}.5 显存已分配={size:.2f} GiB 峰值={size + 2.05:.2f} GiB",
    lambda n, size: f"round {n} holds {size:.2f} GiB, top {size + 1.5:.2f} GiB",
)


@pytest.mark.parametrize("form", FORMS)
def test_lines_that_reach_what_was_held(form: Callable[[int, float], str]) -> None:
    assert cause_of(*(form(n, size) for n, size in enumerate(UNTIL_FULL, 1)), FULL) is Cause.LEAK


@pytest.mark.parametrize("form", FORMS[1:5])
def test_lines_that_do_not(form: Callable[[int, float], str]) -> None:
    assert cause_of(*(form(n, size) for n, size in enumerate(SHORT_OF_IT, 1)), FULL) is Cause.REAL_NEED


@pytest.mark.parametrize(
    "said",
    [
        "Memory after each image: 7.2 / 11.1 / 15.0 / 18.9 GB, then", "i=0 7.2 GiB, i=50 11.1 GiB, i=100 15.0 GiB, i=150 18.9 GiB",
        "nvidia-smi says 7.2, 11.1, 15.0, 18.9 GiB", "after trial 0 7.2GB, after trial 1 11.1GB, after trial 2 15.0GB, after trial 3 18.9GB. trial 4 dies",
    ],
)  # fmt: skip
def test_lists_that_reach_what_was_held(said: str) -> None:
    assert cause_of(said, FULL) is Cause.LEAK


@pytest.mark.parametrize(
    "said",
    [
        "bs=2: 7.2 GB, bs=4: 11.1 GB, bs=6: 15.0 GB, bs=8: 18.9 GB and with bs=10:", "bs 2 7.2 GB\nbs 4 11.1 GB\nbs 6 15.0 GB\nbs 8 18.9 GB",
        "4k 7.2 GB, 8k 11.1 GB, 12k 15.0 GB, 16k 18.9 GB, 20k dies", "after block 0: 7.2 GB\nafter block 8: 11.1 GB\nafter block 16: 15.0 GB\nafter block 24: 18.9 GB",
        "GPU 0: 7.2 GB, GPU 1: 11.1 GB, GPU 2: 15.0 GB, GPU 3: 18.9 GB", "reserved: 7.2, 11.1, 15.0, 18.9 GB", "peak: 7.2, 11.1, 15.0, 18.9 GB",
        "step 500 lr 1\nstep 1000 lr 1\nstep 1500 lr 1\nstep 2000 lr 1", "each image takes 1.2 GB and I have 12 images per batch",
    ],
)  # fmt: skip
def test_sweeps_of_settings_and_counters_are_no_growth(said: str) -> None:
    assert cause_of(said, FULL) is Cause.REAL_NEED


@pytest.mark.parametrize(
    "said",
    [
        "every request adds 0.18 GB; it died at request 95", "Cada petición (Flask) deja unos 180 MB sin liberar; tras 95 peticiones:",
        "Каждые 100 шагов memory_allocated() прибавляет примерно 350 МБ. На шаге 4200 падает.", "+180 MB per epoch, epoch 95 dies",
    ],
)  # fmt: skip
def test_rounds_that_fill_what_was_held(said: str) -> None:
    assert cause_of(said, FULL) is Cause.LEAK
    assert cause_of(said, PIECES) is not Cause.REAL_NEED


def test_pieces_are_no_growth_of_tensors() -> None:
    lines = [f"step {n} reserved {size} GiB" for n, size in enumerate((14, 17, 20, 23))]
    assert cause_of(*lines, "memory_allocated is 10.2 GiB at each step", PIECES) is Cause.FRAGMENTATION
