"""Files that were cut, doubled or filled with the wrong kind of value are read or refused, and nothing
else.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from memsheet.errors import InputError
from memsheet.questions.check import check_configuration_files
from memsheet.report.json.checked import checked_document
from memsheet.report.screen.checked import render_checked
from memsheet.report.shared.look import Look

WHERE = {
    "nodes": None,
    "per_node": None,
    "host_memory": None,
    "cluster": None,
    "parameters": None,
    "plan": None,
}
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    3,
    1.5,
    1e300,
    2**62,
    "",
    "auto",
    "x",
    "cpu",
    [],
    [1],
    {},
    {"a": 1},
    "true",
    "1e9",
)
SOUND: dict[str, Any] = {
    "ds.json": {
        "train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "bf16": {"enabled": True},
        "fp16": {"enabled": False, "loss_scale": 0}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {
            "stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 1}, "offload_param": {"device": "none"}, "overlap_comm": False,
            "reduce_bucket_size": 1000, "stage3_prefetch_bucket_size": 10, "stage3_max_live_parameters": 10,
        },
    },
    "a.yaml": {
        "distributed_type": "FSDP", "mixed_precision": "bf16", "num_processes": 2, "num_machines": 1, "parallelism_config": {"parallelism_config_tp_size": 1},
        "fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": True, "fsdp_offload_params": False, "fsdp_activation_checkpointing": False},
    },
    "t.yaml": {
        "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "bf16": True, "optim": "adamw_torch", "fsdp": True, "deepspeed": None,
        "gradient_checkpointing": False, "fsdp_config": {"version": 2, "reshard_after_forward": True, "cpu_offload": False},
    },
}  # fmt: skip


def mutated(tree: dict[str, Any], random_: random.Random) -> dict[str, Any]:
    """One place of an object with another value."""
    key = random_.choice(list(tree) or ["x"])
    inner = isinstance(tree.get(key), dict) and random_.random() < 0.7
    return {**tree, key: mutated(tree[key], random_) if inner else random_.choice(VALUES)}


@pytest.mark.parametrize("name", SOUND)
def test_any_value_anywhere(name: str, tmp_path: Path) -> None:
    random_ = random.Random(7)
    read = 0
    for _ in range(60):
        path = tmp_path / name
        path.write_text(json.dumps(mutated(mutated(SOUND[name], random_), random_)))
        try:
            found = check_configuration_files(
                (str(path),), "llama-tiny", {**WHERE, "gpus": "2xA100-80GB"}, {"seq_len": 32}
            )
        except InputError:
            continue
        read += 1
        json.dumps(checked_document(found), allow_nan=False)
        assert render_checked(found, Look(width=80))
    assert read > 10
