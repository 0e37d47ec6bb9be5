"""Which parts a configuration of prime-rl has, and on which cards: what trains, and servers on others.

Lines are of PrimeIntellect-ai/prime-rl at 559b447, defaults of its packages/prime-rl-configs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.file_format import Values
from memsheet.guard.toml import parse_toml
from memsheet.late import late_functions

with late_functions(__name__):
    from memsheet.exchange.shared.launch_values import least_one


PROGRAM, SERVES = "$.program", "$.serves"
RL, SFT = "rl", "sft"
TABLES = re.compile(r"^\[(?:orchestrator|data)[\].]", re.MULTILINE)
SFT_TOP = frozenset(
    [
        "model",
        "env_vars",
        "tokenizer",
        "renderer",
        "data",
        "val",
        "eval",
        "inference",
        "weight_broadcast",
        "optim",
        "scheduler",
        "ckpt",
        "resume",
        "log",
        "monitors",
        "run",
        "output_dir",
        "clean",
        "matmul_precision",
        "max_steps",
        "memory_profiler_path",
        "gc",
        "trace_path",
        "dist_timeout_seconds",
        "heartbeat",
        "deployment",
        "slurm",
        "dry_run",
    ]
)
"""Keys at the top of a supervised training (sft.py, SFTConfig)."""
DEPLOYMENT, VLLM = "deployment", "inference.vllm"
ROW = {RL: 2048, SFT: 128}
"""``trainer.model.seq_len`` (trainer.py, ModelConfig) and ``data.seq_len`` (sft.py, BaseDataConfig)."""


def prime_rl_settings(text: str) -> Mapping[str, Any]:
    """Values of a training's configuration, and which program reads it; nothing of any other text.

    Raises ValueError for text that is no TOML.
    """
    if TABLES.search(text) is None:
        return {}
    tree = parse_toml(text.encode(), "file")
    program = _program_of(tree)
    if not program:
        return {}
    whole = {**tree, "$": {"program": program, "serves": isinstance(tree.get("inference"), Mapping)}}
    if program == SFT:
        return {**whole, "model": _with_adapter_rank(tree["model"])}
    trainer = tree.get("trainer")
    model = trainer.get("model") if isinstance(trainer, Mapping) else None
    return (
        {**whole, "trainer": {**trainer, "model": _with_adapter_rank(model)}} if trainer and model else whole
    )


def _with_adapter_rank(model: Any) -> Any:
    """The model with the rank of adapters that their table alone switches on (trainer.py, LoRAConfig)."""
    held = model.get("lora") if isinstance(model, Mapping) else None
    return {**model, "lora": {"rank": 16, **held}} if isinstance(held, Mapping) else model


def _program_of(tree: Mapping[str, Any]) -> str:
    if isinstance(tree.get("orchestrator"), Mapping):
        return RL
    data, model = tree.get("data"), tree.get("model")
    whole = isinstance(data, Mapping) and isinstance(model, Mapping) and tree.keys() <= SFT_TOP
    return SFT if whole else ""


def is_supervised(values: Values) -> bool:
    return values.get(PROGRAM) == SFT


def trainer_place(values: Values) -> str:
    """Where the model that trains stands."""
    return "model" if is_supervised(values) else "trainer.model"


def trainer_value(values: Values, name: str, usual: Any) -> Any:
    """A value of the model that trains; a part that is said to be none is False."""
    found = values.get(f"{trainer_place(values)}.{name}", usual)
    return False if found == "None" else found


def row_tokens(values: Values) -> int | None:
    """Tokens of a micro-batch's row, which rows of the data are packed into: the trainer's own, else those of
    all parts (rl.py, seq_len).
    """
    if is_supervised(values):
        return least_one(values, "data.seq_len", ROW[SFT])
    own = least_one(values, "trainer.model.seq_len", None)
    return own or least_one(values, "seq_len", ROW[RL])


def row_count(values: Values) -> int | None:
    """Rows of a micro-batch: one of packed samples, or as many as supervised training is told
    (trainer/rl/data.py; sft.py, micro_batch_size).
    """
    return least_one(values, "data.micro_batch_size", 1) if is_supervised(values) else 1


def trained_cards(values: Values) -> int | None:
    """Cards that train (rl.py, sft.py, DeploymentConfig)."""
    if values.get(f"{DEPLOYMENT}.type") != "multi_node":
        return least_one(values, f"{DEPLOYMENT}.num_train_gpus", 1)
    nodes = least_one(values, f"{DEPLOYMENT}.num_train_nodes", 2)
    each = least_one(values, f"{DEPLOYMENT}.gpus_per_node", 8)
    return nodes * each if nodes and each else None


def served_cards(values: Values) -> int | None:
    """Cards of all servers (rl.py, auto_setup_infer_nodes): none where nobody starts any, None where it is
    not said in numbers.
    """
    if values.get(SERVES) is not True or is_supervised(values):
        return 0
    if values.get(f"{DEPLOYMENT}.type") != "multi_node":
        return least_one(values, f"{DEPLOYMENT}.num_infer_gpus", 1)
    copies = least_one(values, f"{DEPLOYMENT}.num_infer_replicas", 1)
    each = least_one(values, f"{DEPLOYMENT}.gpus_per_node", 8)
    nodes = least_one(values, f"{DEPLOYMENT}.num_infer_nodes", _nodes_of_copy(values))
    return copies * each * nodes if copies and each and nodes else None


def _nodes_of_copy(values: Values) -> int | None:
    own = "inference.deployment"
    if values.get(f"{own}.type") == "multi_node":
        return least_one(values, f"{own}.num_nodes", 2)
    if values.get(f"{own}.type") != "disaggregated":
        return 1
    parts = [
        (least_one(values, f"{own}.{kind}_nodes_per_replica", 1) or 0)
        * (least_one(values, f"{own}.num_{kind}_replicas", 1) or 0)
        for kind in ("prefill", "decode")
    ]
    return sum(parts) or None


def replica_count(values: Values) -> int:
    """Copies of the shards: as said, or one a group of nodes (rl.py, nodes_per_fsdp_group)."""
    group = least_one(values, f"{DEPLOYMENT}.nodes_per_fsdp_group", None)
    nodes = least_one(values, f"{DEPLOYMENT}.num_train_nodes", None)
    own = trainer_value(values, "dp_replicate", 1)
    if group and nodes and nodes % group == 0:
        return nodes // group
    return own if type(own) is int and own > 0 else 1


def keeps_states_away(values: Values) -> bool:
    """Whether moments are on the card for the optimizer's step alone (trainer/optim/state_offload.py:9)."""
    return not trains_on_host(values) and trainer_value(values, "optim_cpu_offload", True) is True


def trains_on_host(values: Values) -> bool:
    """Whether the optimizer steps on the host while gradients come (trainer/optim/offload.py)."""
    place = f"{trainer_place(values)}.full_offload"
    held = values.get(place)
    return held not in (None, False, "None") or any(at.startswith(f"{place}.") for at in values)


def head_chunk(values: Values) -> int | None:
    """Tokens that the output matrix is multiplied by at once; None where all are (trainer.py,
    fused_lm_head_token_chunk_size; supervised training has whole logits).
    """
    held = trainer_value(values, "fused_lm_head_token_chunk_size", 8192)
    return held if type(held) is int and held > 0 and not is_supervised(values) else None
