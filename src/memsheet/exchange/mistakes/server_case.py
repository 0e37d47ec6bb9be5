"""What a server's command is asked by: its flags by the engine's own words, and the facts of its pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.budget import Answer
from memsheet.exchange.mistakes.case import Case

FLAGS = {
    "vllm": {
        "fraction": "--gpu-memory-utilization", "length": "--max-model-len", "sequences": "--max-num-seqs", "batch": "--max-num-batched-tokens",
        "graphs": "--enforce-eager", "cache": "--kv-cache-dtype", "tp": "--tensor-parallel-size", "pp": "--pipeline-parallel-size", "page": "--block-size", "groups": "--data-parallel-size", "copies": "--data-parallel-size",
    },
    "sglang": {
        "fraction": "--mem-fraction-static", "length": "--context-length", "sequences": "--max-running-requests", "batch": "--chunked-prefill-size",
        "graphs": "--disable-cuda-graph", "cache": "--kv-cache-dtype", "tp": "--tp-size", "pp": "--pp-size", "page": "--page-size", "groups": "--attn-dp-size", "copies": "--dp-size",
    },
}  # fmt: skip


def server_commands(case: Case) -> Iterator[tuple[str, Mapping[str, Any], dict[str, str]]]:
    """Commands: the file, its values, and what its engine calls the flags."""
    for name, read in case.of(*FLAGS):
        yield name, read.values, FLAGS[read.form.name]


def server_pool_facts(case: Case) -> tuple[Answer, Mapping[str, Any]] | None:
    """The answer of a server with a pool on a card, and its facts."""
    answer = case.answer
    if answer is None or answer.cluster is None or not answer.serving or "short_bytes" not in answer.serving:
        return None
    return answer, answer.serving


def is_sized_pool(facts: Mapping[str, Any]) -> bool:
    """Whether a flag sizes the pool, whatever the fraction of the card is."""
    return bool(facts.get("budget", {}).get("pool_flag"))
