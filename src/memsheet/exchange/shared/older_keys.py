"""Keys that TRL took by another name, or took at all, before a release that stops at them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memsheet.exchange.shared.trainer_names import METHODS, SFT, keys_left_to_release
from memsheet.frozen import NamedTuple

TRAINERS_OWN = "tokenizer"
"""The argument of trainers themselves among those keys."""


class OlderKey(NamedTuple):
    """A key of configurations, by their classes. ``last``, ``since``: the newest release that takes it, and
    the first that stops at it; ``now``: what does the same there.
    """

    classes: tuple[str, ...]
    key: str
    last: tuple[int, int]
    since: tuple[int, int]
    now: str


_CUT = "no key (the data set's prompts are cut before)"
OLDER = (
    OlderKey((SFT,), "max_seq_length", (0, 19), (0, 20), "max_length"),
    OlderKey((SFT, "DPOConfig"), TRAINERS_OWN, (0, 15), (0, 16), "processing_class"),
    OlderKey(("GRPOConfig", "DPOConfig", "KTOConfig"), "use_liger_loss", (0, 27), (0, 28), "use_liger_kernel"),
    OlderKey(
        ("GRPOConfig", "ORPOConfig", "CPOConfig", "BCOConfig", "PRMConfig"), "max_prompt_length", (0, 27), (0, 28), _CUT
    ),
    OlderKey(("DPOConfig", "RLOOConfig"), "max_prompt_length", (0, 28), (0, 29), _CUT),
)  # fmt: skip
"""The wheels of TRL 0.15.2, 0.16.0, 0.19.1, 0.20.0, 0.27.2, 0.28.0 and 0.29.0: trl/trainer/*_config.py,
sft_trainer.py and dpo_trainer.py (deprecate_kwarg), trl/experimental/*/*_config.py.
"""
LIGER_LOSS = "use_liger_loss"
RECOMPUTES_SINCE, AUTOCASTS_SINCE = (0, 22), (0, 19)
"""Releases since when configurations recompute, and compute in bf16, where nothing is said (the wheels of TRL
0.18.2, 0.19.1, 0.21.0 and 0.22.0: trl/trainer/*_config.py).
"""


def older_keys(name: str, said: Mapping[str, Any]) -> Iterator[OlderKey]:
    """Those of a configuration of class ``name`` that are said."""
    return (one for one in OLDER if name in one.classes and said.get(one.key) is not None)


def class_of_method(method: str) -> str:
    """The configuration of a method, by the method's name."""
    return next((name for name, short in METHODS.items() if short == method), SFT if method == "SFT" else "")


def left_to_release(said: Mapping[str, Any], older: Sequence[OlderKey]) -> list[str]:
    """Keys that nobody says and whose default TRL has changed since the releases that take ``older`` ones."""
    left = keys_left_to_release(said) if not older else ["gradient_checkpointing"]
    settled = bool(older) and (not recomputes_by_itself(older) or "gradient_checkpointing" in said)
    return [] if settled else left


def recomputes_by_itself(older: Sequence[OlderKey]) -> bool:
    """Whether the newest release that takes such keys recomputes where nothing is said."""
    return _is_since(_newest_release(older), RECOMPUTES_SINCE)


def autocasts_by_itself(older: Sequence[OlderKey]) -> bool:
    """Whether that release computes in bf16 where nothing is said."""
    return _is_since(_newest_release(older), AUTOCASTS_SINCE)


def _newest_release(older: Sequence[OlderKey]) -> tuple[int, int] | None:
    return min((one.last for one in older), default=None)


def _is_since(newest: tuple[int, int] | None, since: tuple[int, int]) -> bool:
    return newest is None or newest >= since
