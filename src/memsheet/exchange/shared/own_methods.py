"""Which method of preference or policy training a settings file of people's own trains by, as far as its
names and words tell one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from memsheet.exchange.shared.colocated_server import MODE, SHARE, SWITCH, trl_colocated_share
from memsheet.exchange.shared.row_lengths import both_parts
from memsheet.patterns import late_pattern

KNOWN = {
    "dpo": "DPO", "ipo": "IPO", "kto": "KTO", "orpo": "ORPO", "cpo": "CPO", "simpo": "SimPO", "grpo": "GRPO", "grpo_vllm": "GRPO", "rloo": "RLOO",
}  # fmt: skip
"""Methods that train one model with at most a frozen copy of it beside, by the words that people have for
them.
"""
OTHERS = frozenset({"ppo", "gkd", "reward", "rm", "rlhf", "online_dpo", "distillation", "preference", "pairwise"})  # fmt: skip
"""Words for trainings of several models, or of more than one kind."""
METHOD_KEYS = frozenset({"trainer", "trainer_type", "trainer_class", "method", "training_method", "algorithm", "algo", "stage", "training_type", "train_type", "type", "task", "objective", "mode", "loss_type"})  # fmt: skip
"""Keys whose values say how a file's training trains."""
_METHOD = late_pattern(
    r"(?<![a-z])(dpo|ipo|grpo|ppo|kto|orpo|gkd|rloo|simpo|cpo|rlhf|reinforce|distil\w*)"
    r"(?:trainer|config)?(?![a-z])"
)
"""A word of the same in a name: ``dpo_beta``, ``DPOTrainer``."""
_STAGE = late_pattern(r"(?<![a-z])(sft|dpo|ipo|grpo|ppo|kto|orpo|rloo|simpo|cpo)(?![a-z])")
_OF_ONE = late_pattern(
    r"^(?:beta|kl_\w+|\w+_kl|num_generations|max_(?:prompt|completion)_length)$|rollout"
    r"|^reward|^chosen|^rejected|^ref(?:erence)?_(?:model|policy)"
)
"""Keys and groups that a training with a method has, and that do not tell which."""
GROUPS, _PAIRS = "num_generations", late_pattern(r"^chosen|^rejected")
"""Answers to one prompt that are judged together: where nothing says the method, it is taken for the one that
most people train so (huggingface/trl f2cd577 trl/trainer/grpo_config.py; RLOO has the same key).
"""
GROUP_NAMES = ("rollout_n", "num_rollouts", "n_rollouts")
"""How people call the answers to one prompt otherwise."""
PAIR_LOSSES = frozenset({"sigmoid", "hinge", "exo_pair", "nca_pair", "robust", "sppo_hard", "aot", "aot_pair", "apo_zero", "apo_down", "discopop"})  # fmt: skip
"""Losses of pairs that only preferences have: where nothing says the method, it is taken for the one that
holds most, with a frozen copy (huggingface/trl f2cd577 trl/trainer/dpo_config.py: loss_type).
"""
_FURTHER_MODELS = late_pattern(r"^critic|^teacher|^student|^value_(?:model|function)|reward_model")
REFERENCE = late_pattern(r"^ref(?:erence)?(?:_|$)")
"""Groups and keys of the frozen copy."""


class OtherTrainingError(ValueError):
    """A training that is none of one model, or whose method the file does not tell."""


def stage_of_name(name: str) -> str:
    """The kind of training that a group or key is named for, nothing of any other."""
    found = _STAGE.search(name.lower())
    return found[1] if found else ""


def method_of_names(names: Iterable[str], words: Iterable[tuple[str, str]]) -> str:
    """The method by its name in TRL, nothing of a plain fine-tuning. ``names``: of keys and groups;
    ``words``: values that are words, each with its key.

    Raises OtherTrainingError where it trains several models, by several methods, or by one that is not told.
    """
    names, words = [*names], [*words]
    found = [one[1] for name in names if (one := _METHOD.search(name))]
    for key, word in words:
        if word in KNOWN or word in OTHERS:
            found.append(word)
        elif key in METHOD_KEYS and (one := _METHOD.search(word)):
            found.append(one[1])
    methods = {KNOWN.get(one, "") for one in found}
    if len(methods) > 1 or "" in methods or any(_FURTHER_MODELS.search(name) for name in names):
        raise OtherTrainingError
    if (
        not methods
        and not {GROUPS, *GROUP_NAMES}.isdisjoint(names)
        and not any(_PAIRS.search(name) for name in names)
    ):
        return "GRPO"
    if not methods and "beta" in names and any(("loss_type", word) in words for word in PAIR_LOSSES):
        return "DPO"
    if not methods and any(_OF_ONE.search(name) for name in names):
        raise OtherTrainingError
    return next(iter(methods), "")


def method_values(method: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """What a training by that method has beside a fine-tuning's: its name and its own values, the length of
    both parts of a row and the share of a server on the same cards. ``said``: values of the file by their
    keys that a fine-tuning does not have.
    """
    if not method:
        return {}
    group = next((said[at] for at in (GROUPS, *GROUP_NAMES) if at in said), None)
    said = {**said, GROUPS: group} if group is not None else said
    asked = {SWITCH: True, **said} if SHARE in said or MODE in said else dict(said)
    share = trl_colocated_share(asked)
    length = both_parts(said)
    return {
        "method": method,
        "of_method": asked,
        **({"max_length": length} if length else {}),
        **({"colocated": share} if share is not None else {}),
    }
