"""Which engines a configuration of AReaL has, on which cards, and how many tokens they take at once.

Lines are of inclusionAI/AReaL at 4aef98d, under areal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.file_format import Values
from memsheet.frozen import NamedTuple
from memsheet.guard import parse_yaml
from memsheet.late import late_functions

with late_functions(__name__):
    from memsheet.exchange.shared.config_references import with_references
    from memsheet.exchange.shared.launch_values import least_one


ACTOR, ROLLOUT, REFERENCE, CRITIC, TEACHER = "actor", "rollout", "ref", "critic", "teacher"
TRAINERS, SERVERS = ("fsdp", "megatron", "archon"), ("sglang", "vllm")
BACKEND = re.compile(r"(\w+)[:.](.+)")
HYBRID = re.compile(r"\(attn:(\w+)\|ffn:(\w+)\)")
DEGREE = re.compile(r"([dtpce])(\d{1,6})")
ALLOCATION = "allocation_mode"
PROMPT, ANSWER, WHOLE_ROW = "train_dataset.max_length", "gconfig.max_new_tokens", "gconfig.max_tokens"
ANSWERS, MOST_TOKENS = 16384, 32768
"""``gconfig.max_new_tokens`` and ``max_tokens`` (api/cli_args.py:169-180)."""


class Engine(NamedTuple):
    """An engine's name, and its degrees by their letters, those of experts among them
    (api/alloc_mode.py:33-155, 900-1035).
    """

    name: str
    degrees: Mapping[str, int]
    of_experts: Mapping[str, int]

    @property
    def is_megatron(self) -> bool:
        """Whether it is the backend of that name; the others divide a model over all their ranks."""
        return self.name == "megatron"

    @property
    def cards(self) -> int:
        return self.degrees["d"] * self.degrees["t"] * self.degrees["p"] * self.degrees["c"]


def areal_settings(text: str) -> Mapping[str, Any]:
    """Values of a training's configuration, with what their names stand for in place; nothing of any other.

    Raises ValueError for text that is no YAML.
    """
    if "\nactor:" not in f"\n{text}" or "experiment_name:" not in text:
        return {}
    tree = parse_yaml(text, "file", aliases=True)
    if not isinstance(tree, Mapping):
        return {}
    actor = tree.get(ACTOR)
    if not isinstance(actor, Mapping) or "path" not in actor or not {"mb_spec", "backend"} & actor.keys():
        return {}
    return with_references(_with_backends(tree))


def _with_backends(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """The older way to say all engines at once, at its places: servers, a plus, and what trains, which is
    FSDP where nobody says it (areal v1.0 api/alloc_mode.py, from_str).
    """
    parts = str(tree.get(ALLOCATION) or "").split("+")
    if len(parts) != 2 or "backend" in tree[ACTOR]:
        return tree
    trained = parts[1] if BACKEND.fullmatch(parts[1]) else f"fsdp:{parts[1]}"
    held = tree.get(ROLLOUT)
    served = held if isinstance(held, Mapping) else {}
    return {**tree, ACTOR: {**tree[ACTOR], "backend": trained}, ROLLOUT: {**served, "backend": parts[0]}}


def engine_at(values: Values, role: str) -> Engine | None:
    """The engine of a role; None where its text is none."""
    held = BACKEND.fullmatch(str(values.get(f"{role}.backend", "")))
    if held is None or held[1] not in (*TRAINERS, *SERVERS):
        return None
    both = HYBRID.fullmatch(held[2])
    degrees = _degrees_of(both[1] if both else held[2])
    experts = _degrees_of(both[2]) if both else {}
    if degrees is None or experts is None:
        return None
    return Engine(held[1], {**dict.fromkeys("dtpc", 1), **degrees}, experts)


def _degrees_of(text: str) -> dict[str, int] | None:
    found = {letter: int(count) for letter, count in DEGREE.findall(text)}
    whole = "".join(f"{letter}{count}" for letter, count in DEGREE.findall(text))
    return found if whole == text and found and all(found.values()) else None


def has_role(values: Values, role: str) -> bool:
    return any(at.startswith(f"{role}.") for at in values)


def loads_reference(values: Values) -> bool:
    """Whether a reference is loaded: where KL weighs anything, and of pairs always
    (trainer/rl_trainer.py:179, trainer/dpo_trainer.py).
    """
    weight = values.get("actor.kl_ctl", 0.1 if has_role(values, ROLLOUT) else 1)
    return has_role(values, REFERENCE) and not (isinstance(weight, int | float) and weight <= 0)


def shares_with(values: Values, role: str) -> str | None:
    """The role whose cards another has (api/cli_args.py:939)."""
    at = f"{role}.scheduling_strategy"
    return str(values.get(f"{at}.target")) if values.get(f"{at}.type") == "colocation" else None


def is_colocated(values: Values) -> bool:
    """Whether servers run on the trainer's cards (trainer/rl_trainer.py:395)."""
    return shares_with(values, ROLLOUT) == ACTOR or shares_with(values, ACTOR) == ROLLOUT


def prompt_and_answer(values: Values) -> int | None:
    """Tokens of the longest row: a prompt and an answer, no more than both may have together."""
    if not has_role(values, ROLLOUT):
        return least_one(values, PROMPT, None)
    prompt, answer = least_one(values, PROMPT, None), least_one(values, ANSWER, ANSWERS)
    most = least_one(values, WHOLE_ROW, MOST_TOKENS)
    whole = prompt + answer if prompt and answer else None
    return min(whole, most) if whole and most else whole or most


def packed_tokens(values: Values, role: str) -> int | None:
    """Tokens of a role's micro-batch, packed (utils/data.py:696-760): as many as it is said to take, or a row
    that is longer. None where nobody bounds them: all rows of a rank are one micro-batch then.
    """
    budget = least_one(values, f"{role}.mb_spec.max_tokens_per_mb", None)
    row = prompt_and_answer(values)
    return max(budget, row or 0) if budget else None


def part_tokens(values: Values, role: str) -> int | None:
    """Those of one rank, where ranks share rows."""
    tokens, engine = packed_tokens(values, role), engine_at(values, role)
    return -(-tokens // engine.degrees["c"]) if tokens and engine and not engine.is_megatron else tokens
