"""torchtune's YAML of PPO, whose policy trains beside a model of values, a reference and a reward: the sheet
is of the policy while it is updated, and the others are told. Lines are of pytorch/torchtune at bd2a0fc.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.formats.torchtune import FORMAT as TRAINED
from memsheet.exchange.formats.torchtune import RECIPE
from memsheet.exchange.formats.torchtune.checkpoints import MODEL, read_only_key
from memsheet.exchange.shared.file_format import Format, Key, Values
from memsheet.frozen import replace

PPO = "recipes/ppo_full_finetune_single_device.py"
POLICY, BATCH, STEP_BATCH, ROUNDS = (
    "policy_model",
    "batch_size",
    "ppo_batch_size",
    "gradient_accumulation_steps",
)
ROLES = (
    "PPO: the policy alone: the model of values, which trains with it, the reference and the reward model "
    "share the card and come on top"
)


def _read_step_batch(value: Any, values: Values) -> Mapping[str, Any]:
    """Sequences of a pass: a step's, divided into the passes that add their gradients up."""
    rounds = values.get(ROUNDS, 1)
    counts = isinstance(value, int) and isinstance(rounds, int) and rounds > 0
    return {"microbatch": value // rounds if counts else value}


def _on_one_card(row: Key) -> Key:
    """A row of the one recipe, which is of one device and divides nothing."""

    def read_undivided(value: Any, values: Values) -> Mapping[str, Any]:
        found = {key: held for key, held in row.read(value, values).items() if key != "zero"}
        return {
            **found,
            "@gpus": 1,
            "engine": "transformers" if found.get("engine") == "fsdp2" else found["engine"],
        }

    return replace(row, back=read_undivided) if row.at == MODEL else row


def _of_policy(at: str) -> str:
    """The policy by the name that the model of other recipes has."""
    return at.replace(POLICY, "model", 1) if at.startswith(f"{POLICY}.") else at


def _other_models(values: Values) -> Mapping[str, Any]:
    return {**TRAINED.absent(values), RECIPE: ROLES}


KEYS = (
    *(_on_one_card(row) for row in TRAINED.keys if row.at != BATCH),
    read_only_key(STEP_BATCH, _read_step_batch, f"{PPO}:409"),
)
FORMAT: Format = replace(
    TRAINED, name="torchtune-ppo", keys=KEYS, marks=frozenset({POLICY}), needs={POLICY: ..., "optimizer": ...}, rename=_of_policy, absent=_other_models,
    known=(TRAINED.known | {
        BATCH, "ref_policy_checkpointer.*", "value_checkpointer.*", "reward_checkpointer.*", "enable_kv_cache", "min_response_length", "penalise_no_eos",
        "reward_penalty", "stop_token_ids", "whiten_rewards", "gamma", "lmbda", "kl_coeff",
    }) - {key.at for key in KEYS},
)  # fmt: skip
