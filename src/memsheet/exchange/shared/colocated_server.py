"""The share of a card that a trainer's own vLLM takes beside what trains, where both run in one process.

How much of it is there at the trainer's peak depends on whether the server sleeps then, so that it is told as
a range from nothing to all of its share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.file_format import UNSET, Moved, Values
from memsheet.exchange.shared.script_places import CARD

SHARE, SWITCH, MODE = "vllm_gpu_memory_utilization", "use_vllm", "vllm_mode"
"""TRL's own words (huggingface/trl f2cd577 trl/trainer/grpo_config.py:577-660)."""
SHARE_OF_TRL, SHARE_OF_UNSLOTH = 0.3, 0.5
"""Of the card, where nothing is said (TRL: ib., vllm_gpu_memory_utilization; unslothai/unsloth 0050c73
unsloth/models/loader.py, FastLanguageModel.from_pretrained: gpu_memory_utilization).
"""
ELSEWHERE = "server"


def trl_colocated_share(values: Mapping[str, Any]) -> Any:
    """The share that TRL gives its own vLLM on the training cards; nothing where it has none there. The mode
    that nobody says was that of a server elsewhere in older releases.
    """
    if values.get(SWITCH, False) in (False, None) or values.get(MODE) == ELSEWHERE:
        return None
    return UNSET if values[SWITCH] is not True else values.get(SHARE, SHARE_OF_TRL)


def unsloth_colocated_share(load: Mapping[str, Any]) -> Any:
    """The share of Unsloth's ``fast_inference``."""
    switch = load.get("fast_inference", False)
    if switch in (False, None):
        return None
    return UNSET if switch is not True else load.get("gpu_memory_utilization", SHARE_OF_UNSLOTH)


def colocated_moves(at: str, share: Any, asked: Values) -> Iterator[Moved]:
    """What such a server adds to the sheet, of a share that is known."""
    if not isinstance(share, int | float) or isinstance(share, bool) or not 0 < share <= 1:
        return
    why = (
        f"vLLM runs in the same process and takes up to {share:g} of the card (weights of its own, cache, "
        "graphs); the sheet is of what trains"
    )
    yield Moved(at=at, why=why, low_bytes=0, high_bytes=int(share * asked.get(CARD, 0)))
