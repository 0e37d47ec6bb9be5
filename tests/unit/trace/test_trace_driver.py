"""A step of one's own may ask torch.cuda whatever it likes: it gets an answer, and allocates what it
allocates without asking.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from memsheet.questions.traced import Options, trace_file
from memsheet.timeline import highest_peak

pytestmark = pytest.mark.usefixtures("warm_children")
STEP = """
import torch
from torch import nn

def asked():
    pass

{asks}

def build():
    model = nn.Sequential(nn.Linear(256, 1024, bias=False), nn.ReLU(), nn.Linear(1024, 256, bias=False))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    rows = torch.randn(64, 256)

    def step():
        asked()
        loss = model(rows).square().mean()
        asked()
        loss.backward()
        asked()
        optimizer.step()
        optimizer.zero_grad()
        asked()

    return model, optimizer, step
"""

EVERYTHING = """
import inspect, warnings
import torch.cuda.nvtx, torch.cuda.profiler
GIVEN = {
    "set_device": (0,), "set_stream": (lambda: torch.cuda.current_stream(),), "set_per_process_memory_fraction": (0.5,), "set_sync_debug_mode": (0,),
    "manual_seed": (1,), "manual_seed_all": (1,), "can_device_access_peer": (0, 0), "set_rng_state": (None,), "set_rng_state_all": ([],),
    "range_push": ("a",), "range": ("a",), "mark": ("a",), "range_start": ("a",), "range_end": (0,), "stream": (None,), "device": (0,),
    "device_of": (None,), "check_error": (0,),
}
CHANGES = {  # what an allocator, a graph, a kernel or a process would be made or changed by
    "caching_allocator_alloc", "caching_allocator_delete", "caching_allocator_enable", "caching_allocator_disabled", "change_current_allocator",
    "use_mem_pool", "graph", "graph_pool_handle", "make_graphed_callables", "get_stream_from_external", "current_solver_handle", "cast",
    "classproperty", "lru_cache", "device_count_nvml", "start_range", "device_range_start", "device_range_end", "profile", "init", "NewType",
    "dataclass", "contextmanager",
}

def functions():
    for home in (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.nvtx, torch.cuda.profiler, torch.accelerator):
        for name, found in vars(home).items():
            mine = getattr(found, "__module__", "").startswith(("torch.cuda", "torch.accelerator", "memsheet")) or home is torch.cuda.nvtx
            if not name.startswith("_") and callable(found) and not inspect.isclass(found) and mine and name not in CHANGES:
                yield home.__name__ + "." + name, found, GIVEN.get(name, ())

def asked():
    warnings.simplefilter("ignore")
    failed = []
    for name, found, given in list(functions()):
        if name.startswith("torch.accelerator.set_") or name.endswith("device_index"):
            given = (0,) if name.startswith("torch.accelerator.set_device") else given
        given = tuple(value() if callable(value) else value for value in given)
        try:
            found(*given)
        except Exception as error:
            failed.append(name + ": " + type(error).__name__ + " " + str(error)[:80])
    assert not failed, "; ".join(failed)
"""

USUAL = """
from torch.cuda import empty_cache, memory_allocated, synchronize

def asked():
    empty_cache(); synchronize(); assert memory_allocated() == torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats(); torch.cuda.empty_cache(); torch.cuda.synchronize()
    free, whole = torch.cuda.mem_get_info()
    now, top = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
    assert 0 < now <= top <= torch.cuda.max_memory_reserved() < whole and free == whole - now
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.current"] == now and "allocated" in torch.cuda.memory_summary().lower()
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
    assert torch.cuda.get_device_properties(0).total_memory == whole and "H100" in torch.cuda.get_device_name()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record(); end.record(); start.elapsed_time(end)
    with torch.cuda.stream(torch.cuda.Stream()), torch.cuda.nvtx.range("step"), torch.cuda.device(0):
        torch.cuda.manual_seed_all(0)
    with torch.cuda.amp.autocast(enabled=False):
        torch.cuda.nvtx.mark("here")
    torch.cuda.cudart().cudaProfilerStart(); torch.cuda.memory._record_memory_history(); torch.accelerator.synchronize()
"""

AMP = """
SCALER = []

def asked():
    with torch.cuda.amp.autocast():
        pass
    SCALER or SCALER.append(torch.cuda.amp.GradScaler(enabled=False))
"""


@pytest.fixture(scope="module")
def unasked(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, int, str]]:
    return events(tmp_path_factory.mktemp("plain"), "")


def events(folder: Path, asks: str) -> list[tuple[int, int, str]]:
    file = folder / "asking.py"
    file.write_text(STEP.format(asks=asks))
    _, (timeline,) = trace_file(f"{file}:build", Options())
    assert highest_peak(timeline).bytes
    return [
        (
            event < 0,
            timeline.storages[event if event >= 0 else ~event].bytes,
            timeline.storages[event if event >= 0 else ~event].op,
        )
        for event in timeline.events
    ]


@pytest.mark.parametrize(
    "asks", [EVERYTHING, USUAL, AMP], ids=["every public function", "the usual ones", "amp"]
)
def test_a_step_that_asks_allocates_what_it_does_without_asking(
    unasked: list[tuple[int, int, str]], tmp_path: Path, asks: str
) -> None:
    assert events(tmp_path, asks) == unasked


MADE = """
import torch

def build():
    rows = torch.zeros(64, 256, requires_grad=True)

    def step():
        scale = torch.tensor({values}, device="cuda")
        (rows * scale).sum().backward()

    return step
"""


@pytest.mark.parametrize(("values", "size"), [("0.5", 4), ("[0.5] * 256", 1024)])
def test_a_step_makes_tensors_of_values_on_the_card_as_their_code_does(
    values: str, size: int, tmp_path: Path
) -> None:
    file = tmp_path / "made.py"
    file.write_text(MADE.format(values=values))
    _, (timeline,) = trace_file(f"{file}:build", Options())
    assert size in {one.bytes for one in timeline.storages if one.op == "aten._to_copy"}
