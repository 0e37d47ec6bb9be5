"""What a person's step may ask of ``torch.cuda`` besides computing: counters, the card's name, caches, waits,
ranges for a profiler.

Nothing of it changes a tensor, so all of it is answered: sizes from what has been recorded so far, everything
else as an idle H100 with nobody beside this process answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

from memsheet.catalog import find_device
from memsheet.trace.fake_streams import Streams, cuda_runtime_patches, ignore_call, no_state
from memsheet.trace.patches import Patch
from memsheet.trace.recorder import Recorder

CARD = "H100-80GB"
"""Of the compute capability that is answered (``patches.CUDA``)."""
WHY = "the CUDA runtime would be asked"
_SIZES = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
_COUNTS = ("allocation", "segment", "active", "inactive_split", "inactive_split_bytes")
_POOLS = ("all", "small_pool", "large_pool")
_ONCE = (
    "num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free", "max_split_size",
)  # fmt: skip


class Counters:
    """The caching allocator's counters, of an allocator that reserves what is asked for. torch reads its
    other figures off these.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._since = 0  # the event after which peaks count

    def held_bytes(self) -> Iterator[int]:
        """Bytes held before the first event and after each."""
        size, rows = 0, self._recorder.rows
        yield size
        for event in self._recorder.events:
            size += rows[event].bytes if event >= 0 else -rows[~event].bytes
            yield size

    def nested(self, *_: Any, **__: Any) -> dict[str, Any]:
        """As ``torch.cuda.memory_stats_as_nested_dict``. Everything counts as large."""
        curve = list(self.held_bytes())
        here = {"current": curve[-1], "peak": max(curve[self._since :]), "allocated": 0, "freed": 0}
        none = dict.fromkeys(here, 0)
        sizes = {
            (name, pool): none if pool == "small_pool" else here for name, pool in product(_SIZES, _POOLS)
        }
        return {
            **{name: {pool: sizes[name, pool] for pool in _POOLS} for name in _SIZES},
            **{name: dict.fromkeys(_POOLS, none) for name in _COUNTS}, **dict.fromkeys(_ONCE, 0),
            "oversize_allocations": none, "oversize_segments": none,
        }  # fmt: skip

    def reset(self, *_: Any, **__: Any) -> None:
        """Peaks count from here."""
        self._since = len(self._recorder.events)

    def info(self, *_: Any, **__: Any) -> tuple[int, int]:
        """As ``torch.cuda.mem_get_info``: bytes that are free, and of the card."""
        *_before, now = self.held_bytes()
        whole = int(find_device(CARD).framework_bytes)
        return whole - now, whole

    def used(self, *_: Any, **__: Any) -> int:
        """As ``torch.cuda.device_memory_used``."""
        free, whole = self.info()
        return whole - free


class _Runtime:
    """``torch.cuda.cudart()``: whatever is called succeeds."""

    def __getattr__(self, _: str) -> Callable[..., int]:
        return _constant_function(0)


def _constant_function(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _h100_device_properties(*_: Any, **__: Any) -> SimpleNamespace:
    """Of an H100 SXM (NVIDIA's data sheet: 132 multiprocessors, 50 MB of L2)."""
    return SimpleNamespace(
        name="NVIDIA H100 80GB HBM3",
        major=9,
        minor=0,
        total_memory=int(find_device(CARD).framework_bytes),
        multi_processor_count=132,
        warp_size=32,
        is_integrated=0,
        is_multi_gpu_board=0,
        max_threads_per_multi_processor=2048,
        L2_cache_size=50 * 2**20,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=232448,
        gcnArchName="",
    )


def cuda_driver_patches(recorder: Recorder) -> tuple[Patch, ...]:
    """What ``torch.cuda`` answers a step while ``recorder`` listens; allocations are filed under the streams
    that the step works on.
    """
    streams, counters = Streams(), Counters(recorder)
    recorder.stream = streams.number
    resets = (
        "reset_peak_memory_stats",
        "reset_accumulated_memory_stats",
        "reset_max_memory_allocated",
        "reset_max_memory_cached",
    )
    memory: dict[str, Any] = {
        **dict.fromkeys(resets, counters.reset), "memory_stats_as_nested_dict": counters.nested, "mem_get_info": counters.info,
        **dict.fromkeys(
            (
                "empty_cache", "set_per_process_memory_fraction", "reset_peak_host_memory_stats", "reset_accumulated_host_memory_stats",
                "_record_memory_history", "_dump_snapshot", "_save_memory_usage", "_save_segment_usage",
            ),
            ignore_call,
        ),
        "get_per_process_memory_fraction": _constant_function(1.0), "host_memory_stats_as_nested_dict": lambda *_, **__: {},
        "memory_snapshot": lambda *_, **__: [], "_snapshot": lambda *_, **__: {"segments": [], "device_traces": []},
        "list_gpu_processes": _constant_function("GPU:0\nno processes are running"), "get_allocator_backend": _constant_function("native"),
    }  # fmt: skip
    whole: dict[str, Any] = {
        "is_available": _constant_function(True), "is_initialized": _constant_function(True), "device_count": _constant_function(1), "init": ignore_call, "_exchange_device": _constant_function(0), "_maybe_exchange_device": _constant_function(0), "get_device_properties": _h100_device_properties, "get_device_name": _constant_function(_h100_device_properties().name),
        "get_arch_list": lambda *_, **__: ["sm_90"], "get_gencode_flags": _constant_function(""), "cudart": _constant_function(_Runtime()), "check_error": ignore_call,
        "can_device_access_peer": _constant_function(False), "is_current_stream_capturing": _constant_function(False), "ipc_collect": ignore_call,
        "is_tf32_supported": _constant_function(True), "get_sync_debug_mode": _constant_function(0), "set_sync_debug_mode": ignore_call,
        "current_blas_handle": _constant_function(0), "device_memory_used": counters.used,
        **dict.fromkeys(("utilization", "memory_usage", "temperature", "power_draw", "clock_rate"), _constant_function(0)),
    }  # fmt: skip
    seeds = {
        **dict.fromkeys(("manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state_all"), ignore_call),
        "initial_seed": _constant_function(0), "get_rng_state": no_state, "set_rng_state": ignore_call, "get_rng_state_all": lambda *_, **__: [],
    }  # fmt: skip
    ranges = {
        **dict.fromkeys(("range_push", "range_pop", "range_start"), _constant_function(0)),
        **dict.fromkeys(("range_end", "mark"), ignore_call),
    }
    accelerator = {
        "is_available": _constant_function(True),
        "device_count": _constant_function(1),
        "synchronize": ignore_call,
        "set_device_index": ignore_call,
        "set_stream": streams.switch,
        "get_device_capability": lambda *_, **__: {"supported_dtypes": set()},
    }
    accelerated = {
        "memory_stats": lambda *_, **__: _flatten_dotted_keys(counters.nested()), "get_memory_info": counters.info,
        **dict.fromkeys(("empty_cache", "empty_host_cache"), ignore_call),
        **dict.fromkeys(("reset_peak_memory_stats", "reset_accumulated_memory_stats"), counters.reset),
    }  # fmt: skip
    tables = {
        "torch.cuda": {**memory, **whole, **seeds}, "torch.cuda.memory": memory, "torch.cuda.random": {**seeds, "current_device": _constant_function(0)},
        "torch.cuda.profiler": {**dict.fromkeys(("start", "stop", "init", "check_error"), ignore_call), "cudart": whole["cudart"]}, "torch.cuda.nvtx": ranges,
        "torch.accelerator": {**accelerator, **accelerated}, "torch.accelerator.memory": accelerated,
    }  # fmt: skip
    answered = (
        Patch(home, name, answer, WHY, optional=True)
        for home, table in tables.items()
        for name, answer in table.items()
    )
    return (*cuda_runtime_patches(streams), *answered)


def _flatten_dotted_keys(found: dict[str, Any], prefix: str = "") -> dict[str, int]:
    """A nested table with its keys joined by dots."""
    flat = dict[str, int]()
    for key, value in found.items():
        flat.update(
            _flatten_dotted_keys(value, f"{prefix}{key}.")
            if isinstance(value, dict)
            else {f"{prefix}{key}": value}
        )
    return flat
