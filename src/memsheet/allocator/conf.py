"""``PYTORCH_ALLOC_CONF`` (before torch 2.9: ``PYTORCH_CUDA_ALLOC_CONF``) as text, read into Settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from memsheet.allocator.settings import INTERVALS, Settings
from memsheet.errors import InputError, Problem, input_error, nearest_words, raise_if_problems
from memsheet.units import MIB

_PAIR = re.compile(r"([^,:\[\]]+):(\[[^\]]*\]|[^,:\[\]]+)(?:,|$)")
_MAX_MB = 2**44


def settings_from(text: str) -> Settings:
    """The settings of ``key:value,key:[value:value,…]``; of a key given twice the last counts, as in torch.

    Keys of pinned host memory and of locks are accepted and change nothing here. Raises InputError, naming
    key and value, for unknown keys, values that torch refuses, and what is not modelled.
    """
    fields: dict[str, Any] = {}
    problems: list[Problem] = []
    for key, value in _conf_pairs("".join(text.split())):
        try:
            fields.update(_parse_setting(key, value))
        except InputError as error:
            problems += error.problems
    raise_if_problems(problems)
    return Settings(**fields)


def _conf_pairs(text: str) -> Iterator[tuple[str, str]]:
    """Keys and values, spaces gone (ConfigTokenizer, c10/core/AllocatorConfig.h:34-57)."""
    at = 0
    while at < len(text):
        found = _PAIR.match(text, at)
        if found is None:
            raise input_error(
                "allocator settings",
                text[at:],
                "is not key:value",
                "for example expandable_segments:True,max_split_size_mb:128",
            )
        yield found[1], found[2]
        at = found.end()


def _parse_setting(key: str, value: str) -> dict[str, Any]:
    if key in _IGNORED:
        return {}
    if key not in _KEYS:
        close = nearest_words(key, (*_KEYS, *_IGNORED))
        raise input_error(
            key, value, "is no key of torch 2.13's allocator", f"did you mean {close[0]}?" if close else ""
        )
    name, read = _KEYS[key]
    found = read(key, value)
    return {name: found} if name else {}


def _parse_bool(key: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise input_error(key, value, "must be True or False, so written")
    return value == "True"


def _parse_integer(key: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= 20):
        raise input_error(key, value, "must be a whole number")
    return int(value)


def _parse_mib(key: str, value: str) -> int:
    """Keys in _mb mean MiB (kMB, c10/core/AllocatorConfig.cpp)."""
    return min(_parse_integer(key, value), _MAX_MB) * MIB


def _parse_fraction(key: str, value: str) -> float:
    if re.fullmatch(r"\d{1,9}(\.\d{0,18})?|\.\d{1,18}", value, re.ASCII) is None:
        raise input_error(key, value, "must be a number between 0 and 1")
    return float(value)


def _parse_gc_threshold(key: str, value: str) -> float:
    threshold = _parse_fraction(key, value)
    if not 0 < threshold < 1:
        raise input_error(key, value, "must lie between 0 and 1, both excluded")
    return threshold


def _parse_power_of_two(key: str, value: str, *, zero: bool = False) -> int:
    number = _parse_integer(key, value)
    if number & (number - 1) or not (number or zero):
        raise input_error(key, value, "must be a power of two" + (", or 0 for none" if zero else ""))
    return number


def _parse_roundup_divisions(key: str, value: str) -> tuple[int, ...]:
    """One number for all sizes, or pairs of MiB and number; parseRoundUpPower2Divisions,
    c10/core/AllocatorConfig.cpp.

    The first pair counts for all sizes below it too, ``>`` for all above the pair before it; between two
    pairs there is none.
    """
    if not value.startswith("["):
        return (_parse_power_of_two(key, value),) * INTERVALS
    table, last, first = [0] * INTERVALS, 0, True
    for pair in filter(None, value[1:-1].split(",")):
        boundary, colon, text = pair.partition(":")
        if not colon:
            raise input_error(key, value, f"{pair} is not MiB:divisions", "for example [256:1,512:2,>:4]")
        number = _parse_power_of_two(key, text, zero=True)
        if boundary == ">":
            table[last + 1 :] = [number] * (INTERVALS - last - 1)
            continue
        last = min(_parse_power_of_two(key, boundary).bit_length() - 1, INTERVALS - 1)
        table[: last + 1] = [number] * (last + 1) if first else [*table[:last], number]
        first = False
    return tuple(table)


def _check_native_backend(key: str, value: str) -> None:
    if value != "native":
        raise input_error(
            key,
            value,
            "has other rules than the caching allocator, which alone is modelled",
            "backend:native",
        )


def _refuse_if_enabled(key: str, value: str) -> None:
    if _parse_bool(key, value):
        raise input_error(key, value, "is not modelled")


_KEYS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "expandable_segments": ("expandable_segments", _parse_bool),
    "max_split_size_mb": ("max_split_size_bytes", _parse_mib),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _parse_mib),
    "large_segment_size_mb": ("large_segment_bytes", _parse_mib),
    "roundup_power2_divisions": ("roundup_power2_divisions", _parse_roundup_divisions),
    "garbage_collection_threshold": ("garbage_collection_threshold", _parse_gc_threshold),
    "per_process_memory_fraction": ("per_process_memory_fraction", _parse_fraction),
    "backend": ("", _check_native_backend),
    "throw_on_cudamalloc_oom": ("", _refuse_if_enabled),
}
_IGNORED = frozenset({
    "pinned_use_background_threads", "pinned_max_round_threshold_mb", "pinned_max_cached_size_mb", "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register", "pinned_reserve_segment_size_mb", "pinned_num_register_threads", "pinned_free_catch_all",
    "release_lock_on_cudamalloc", "release_lock_on_hipmalloc", "graph_capture_record_stream_reuse",
})  # fmt: skip
"""Of pinned host memory, of locks, of graph captures (AcceleratorAllocatorConfig and
CUDAAllocatorConfig::getKeys).
"""
