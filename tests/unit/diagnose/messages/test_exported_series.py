"""What a card held over a run, in the columns of an export."""

from __future__ import annotations

import pytest

import memsheet
from memsheet.diagnose.cleaned import cleaned_log
from memsheet.diagnose.interval import size_words
from memsheet.diagnose.messages.exported_series import exported_growth

GIB = 2**30
CARD = "GPU 0 has a total capacity of 40.00 GiB of which 0.10 GiB is free."
NAMES = {
    "system/gpu.0.memoryAllocatedBytes": lambda gib: str(int(gib * GIB)),
    "llama-3-8b-r2 - system/gpu.0.memoryAllocatedBytes": lambda gib: str(int(gib * GIB)),
    "system/gpu.0.memoryAllocated": lambda gib: f"{gib / 40 * 100:.1f}",
    "gpu 0 memory used (%)": lambda gib: f"{gib / 40 * 100:.1f}",
    "memory.used [MiB]": lambda gib: f"{gib * 1024:.0f} MiB",
    "gpu_mem_gb": lambda gib: f"{gib:.2f}",
    "system/gpu_0_memory_usage_megabytes": lambda gib: f"{gib * 1024:.0f}",
}


def _table(name: str, sizes: list[float]) -> str:
    rows = (f'"{100 * at}","{NAMES[name](size)}"' for at, size in enumerate(sizes))
    return "\n".join((f'"Step","{name}"', *rows))


@pytest.mark.parametrize("name", NAMES)
def test_a_column_that_only_grows_is_a_leak(name: str) -> None:
    text = f"{_table(name, [8, 14, 20, 26, 32, 38])}\nRuntimeError: CUDA error: out of memory\n{CARD}"
    assert memsheet.diagnose(text).cause.value == "leak"
    grown = exported_growth(cleaned_log([text], ()))
    assert size_words(grown[-1]) == "38.00 GiB"


@pytest.mark.parametrize("name", NAMES)
def test_a_column_that_stays_is_none(name: str) -> None:
    assert not exported_growth(cleaned_log([f"{_table(name, [30, 31, 30, 31, 30, 31])}\n{CARD}"], ()))


@pytest.mark.parametrize("name", ["host memory used (GB)", "gpu peak memory (GB)", "gpu memory clock (MHz)"])
def test_what_is_no_card_s_memory_is_not_read(name: str) -> None:
    rows = "\n".join(f"{at},{8 + 4 * at}" for at in range(6))
    assert not exported_growth(cleaned_log([f"step,{name}\n{rows}\n{CARD}"], ()))


@pytest.mark.parametrize(
    "row",
    [
        '{{"_step": {at}00, "system.gpu.0.memoryAllocatedBytes": {bytes}}}',
        "10:{at}0 {gib}.0G",
        "[10:{at}0:00] {gib} GiB / 40 GiB",
        "| {at}00 | {mib} MiB |",
    ],
)
def test_records_clocks_and_rows_are_read_alike(row: str) -> None:
    head = "| step | gpu memory used |\n|---|---|\n" if row[0] == "|" else ""
    rows = "\n".join(row.format(at=at, gib=8 + 5 * at, mib=(8 + 5 * at) * 1024, bytes=(8 + 5 * at) * GIB) for at in range(6))  # fmt: skip
    text = f"{head}{rows}\nRuntimeError: CUDA error: out of memory\n{CARD}"
    assert memsheet.diagnose(text).cause.value == "leak"


def test_what_the_host_held_by_the_clock_is_not_the_card_s() -> None:
    rows = "\n".join(f"10:{at}0 {8 + 5 * at}G" for at in range(6))
    assert not exported_growth(cleaned_log([f"RSS of the python process:\n{rows}\n{CARD}"], ()))
