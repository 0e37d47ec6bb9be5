"""Servers of a job as their engines are started with options by vLLM's and SGLang's own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange import find_format
from memsheet.exchange.shared.dotted_places import nest_dotted_keys
from memsheet.exchange.shared.file_format import Values, read_format_values
from memsheet.exchange.shared.launch_values import least_one
from memsheet.frozen import NamedTuple
from memsheet.jobs.templates.planned import known_share

SHARE = 0.9
"""Of the card, where vLLM is told nothing (vLLM 0.33.0 vllm/config/cache.py)."""
SGLANG_KEPT = "SGLang's graphs leave the card with its cache, and are counted as kept"
VLLM_COUNTS = {
    "max_model_len": "max_model_len", "max_num_seqs": "max_sequences", "max_num_batched_tokens": "max_batched_tokens",
}  # fmt: skip
"""Keys of a plan's serving by vLLM's names."""
VLLM_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "quantization": (None,), "kv_cache_dtype": (None, "auto"), "cpu_offload_gb": (None, 0), "enable_expert_parallel": (None, False), "speculative_config": (None,),
    "hf_overrides": (None,), "enable_lora": (None, False), "data_parallel_size": (None, 1), "compilation_config": (None,),
}  # fmt: skip
"""vLLM's options that move bytes and that no such server's plan says, with what leaves them out."""


class Server(NamedTuple):
    """The plan of one engine, its cards, and what of its options is not read, in words."""

    plan: dict[str, Any]
    cards: int
    left_words: tuple[str, ...]


def option_group(values: Values, place: str) -> dict[str, Any]:
    """Options of a group by their names."""
    before = f"{place}."
    return {at.removeprefix(before): held for at, held in values.items() if at.startswith(before)}


def vllm_server(
    given: Mapping[str, Any], place: str, *, accounted: frozenset[str] = frozenset()
) -> Server | None:
    """VLLM by options; None where its share of the card or its ranks are no numbers. ``accounted``: options
    that the job accounts in another way.
    """
    tensor, stages = (least_one(given, f"{name}_parallel_size", 1) for name in ("tensor", "pipeline"))
    share = known_share(given.get("gpu_memory_utilization", SHARE), SHARE)
    if tensor is None or stages is None or share is None:
        return None
    counts = {key: found for name, key in VLLM_COUNTS.items() if (found := least_one(given, name, None))}
    eager = {"cuda_graphs": False} if given.get("enforce_eager") is True else {}
    mesh = {"tp": tensor, **({"pp": stages} if stages > 1 else {})}
    plan = {
        "task": "infer", "engine": "vllm", "mesh": mesh, "precision": {"parameters": "bf16", "compute": "bf16"},
        "serving": {"memory_fraction": share, **counts, **eager},
    }  # fmt: skip
    left = [
        name for name, plain in VLLM_PLAIN.items() if given.get(name) not in plain and name not in accounted
    ]
    return Server(plan, tensor * stages, tuple(f"{place}.{name} is not read" for name in left))


def sglang_server(given: Mapping[str, Any], place: str, cards: int) -> Server:
    """SGLang by options, of which flags have their names. ``cards``: of one engine."""
    flags = {
        f"--{name.replace('_', '-')}": held
        for name, held in given.items()
        if held is not None and "." not in name
    }
    stages = least_one(given, "pp_size", 1) or 1
    read = read_format_values(find_format("sglang"), {**flags, "--tp-size": max(1, cards // stages)})
    asked = {key: held for key, held in read.request.items() if key[0] not in "@?"}
    left = dict.fromkeys(
        f"{place}.{at.removeprefix('--').replace('-', '_')} is not read"
        for at, _ in (*read.unmodelled, *read.unknown)
    )
    return Server(nest_dotted_keys(asked), cards, tuple(left))
