"""A server that shares its card, or its process, with the trainer that it writes for.

The words are those of verl (verl/trainer/config/rollout/rollout.yaml), TRL (trl/trainer/grpo_config.py),
OpenRLHF (openrlhf/cli/train_ppo_ray.py), vLLM (vllm/v1/worker/gpu_worker.py, vllm/device_allocator/cumem.py)
and torch_memory_saver.
"""

from __future__ import annotations

import re

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.interval import Interval, printed_bytes
from memsheet.diagnose.message import MAYBE, NUMBER, Cure

_MARKS = re.compile(
    r"\bactor_rollout_ref\b|\bWorkerDict\b|/verl/workers/|\bvllm_mode[\"']?\s{0,3}[=:]\s{0,3}[\"']?colocate|\bcolocate_all_models\b|Sleep mode freed|CuMemAllocator: sleep"
    r"|\b(?:enable_sleep_mode|free_cache_engine)[\"']?\s{0,3}[=:]\s{0,3}True|torch_memory_saver"
    r"|/trl/trainer/\w{1,40}\.py\"?, line \d{1,9}, in __init__\s{1,20}self\.llm\b"
)  # fmt: skip
SHARE, SLEEP = "gpu_memory_utilization", "enable_sleep_mode=True"
PLACES = (
    *((mark, "actor_rollout_ref.rollout.gpu_memory_utilization", "actor_rollout_ref.rollout.free_cache_engine=True")
      for mark in ("actor_rollout_ref", "WorkerDict", "/verl/workers/")),
    ("/trl/", "vllm_gpu_memory_utilization", "vllm_enable_sleep_mode=True"),
    ("vllm_mode", "vllm_gpu_memory_utilization", "vllm_enable_sleep_mode=True"),
    ("sglang-mem-fraction-static", "--sglang-mem-fraction-static", "--offload"),
    ("colocate_all_models", "--vllm_gpu_memory_utilization", "--vllm_enable_sleep"),
)  # fmt: skip
"""By what a trainer's log alone holds: where it is told of the server's share of the card and its sleep."""
FREED_NOTHING = 8 * 2**20
"""What a server that gave its memory back gave more than."""


_TOLD = re.compile(
    rf"memoryallocated\(GB\):(?P<held>{NUMBER}),memoryreserved\(GB\):(?P<kept>{NUMBER})"
    rf"|'allocated_GB':(?P<held_too>{NUMBER}),'reserved_GB':(?P<kept_too>{NUMBER})"
)
"""What trainers print of their allocator around a hand-over, in 2^30 bytes (verl, utils/debug/performance.py,
log_gpu_memory_usage; THUDM/slime, slime/utils/memory_utils.py, available_memory).
"""


def handed_over_facts(log: Log) -> dict[str, Interval]:
    """What the trainer's last such line says, and what it keeps beyond tensors there."""
    lines = list(_TOLD.finditer(log.squeezed))
    if not lines:
        return {}
    last = lines[-1]
    held, kept = (printed_bytes(last[name] or last[f"{name}_too"], "GB") for name in ("held", "kept"))
    if held is None or kept is None:
        return {}
    return {
        "allocated_before_bytes": held, "reserved_before_bytes": kept, "kept_before_bytes": (kept - held).positive,
    }  # fmt: skip


def shares_a_card(text: str) -> bool:
    """Whether a log is of a trainer and a server on the same card."""
    return bool(_MARKS.search(text))


def place_of_share(text: str, unknown: str = SHARE) -> str:
    """Where the trainer is told of the server's share of the card; ``unknown`` where its name is not read."""
    return next((share for mark, share, _ in PLACES if mark in text), unknown)


def cures_of_colocated(text: str, freed: Interval | None) -> tuple[Cure, ...]:
    """What leaves a trainer more of the card beside its server. ``freed``: what the server said that it gave
    back when it was put to sleep.
    """
    smaller = Cure(
        change="a smaller share of the card for the server", helps=MAYBE, where=place_of_share(text)
    )
    if freed is not None and freed.high < FREED_NOTHING:
        return Cure(
            change="no expandable segments where the server sleeps", helps=MAYBE, where="unset PYTORCH_CUDA_ALLOC_CONF",
            why="the log says that its sleep gave nothing back, as it is where they are on",
        ), smaller  # fmt: skip
    sleep = next((where for mark, _, where in PLACES if mark in text), SLEEP)
    return Cure(
        change="a server that gives its memory back while the trainer trains", helps=MAYBE, where=sleep,
        why="its weights and cache stand outside the trainer's allocator",
    ), smaller  # fmt: skip
