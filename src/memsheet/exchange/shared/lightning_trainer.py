"""What a script gives Lightning's ``Trainer`` or ``Fabric``: the strategy that divides or copies the model,
the precision, the devices, and how many micro-batches a step has. Lines are of Lightning-AI/pytorch-lightning
2.5, under src/lightning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.file_format import KEYWORDS, UNSET
from memsheet.exchange.shared.flat_gathers import wrapped_gathers
from memsheet.exchange.shared.gathered_outputs import DATA_PARALLEL
from memsheet.exchange.shared.python_config import named_calls
from memsheet.exchange.shared.python_module import Module, Tree
from memsheet.exchange.shared.python_values import BASE
from memsheet.exchange.shared.read_only_rows import positive_count
from memsheet.exchange.shared.script_places import CLASS
from memsheet.patterns import late_pattern

DRIVES, MODULES = late_pattern(r"\bLightningModule\b"), "LightningModule"
ARGUMENTS = frozenset({"accelerator", "devices", "gpus", "strategy", "precision", "max_epochs", "max_steps", "accumulate_grad_batches", "num_nodes"})  # fmt: skip
"""Of which Lightning's Trainer has one at least, and transformers' has none."""
OLDER = ("distributed_backend", "accelerator")
"""What names the strategy before 1.5, beside ``gpus`` in the place of devices."""
STAGE = late_pattern(r"deepspeed(?:_stage_([123]))?(_offload(?:_nvme)?)?$")
BUCKETS = {
    "allgather_bucket_size": 200_000_000, "reduce_bucket_size": 200_000_000, "contiguous_gradients": True, "overlap_comm": True,
}  # fmt: skip
"""What its strategy for DeepSpeed writes by itself (pytorch/strategies/deepspeed.py, __init__)."""
WIDTHS = {"bf16": "bf16", "16": "fp16", "32": "no", "64": "no"}
IN_TORCH = {"bf16": "bfloat16", "fp16": "float16"}
OTHER_STRATEGY, ONE_UNIT = "other_strategy", "one_unit"
"""A strategy that nobody accounts, by its name; and that FSDP is given no policy, so that the whole model is
one unit unless the module wraps its parts itself (pytorch/strategies/fsdp.py, _setup_model).
"""
WRAPS_PARTS = ("wrap", "auto_wrap", "enable_wrap", "fully_shard")
FSDP, DDP = "fsdp1", "ddp"


def lightning_call(module: Module) -> Tree | None:
    """The call that makes the driver of a script, if Lightning's drives it."""
    fabric = next(named_calls(module, ("Fabric",), local=True), None)
    if fabric is not None:
        return fabric
    trainers = named_calls(module, ("Trainer",), local=True)
    return next((held for held in trainers if ARGUMENTS & held.keys()), None)


def lightning_keys(module: Module, call: Tree) -> dict[str, Any]:
    """What wraps the model, in which dtypes a step is, its micro-batches and its processes."""
    older = next((call[at] for at in OLDER if str(call.get(at)).startswith(("ddp", "dp"))), "auto")
    made = _strategy_keys(module, call.get("strategy", older))
    asked = call.get("precision")
    asked = asked if asked is not None else UNSET if "plugins" in call else "32-true"
    made |= _half_keys(asked, made["wrap"])
    if isinstance(made.get("deepspeed"), dict):  # pytorch/strategies/deepspeed.py, _format_precision_config
        word = {"bf16": "bf16", "fp16": "fp16"}.get(made["autocast"])
        made["deepspeed"] = {**({word: {"enabled": True}} if word else {}), **made["deepspeed"]}
    rounds = call.get("accumulate_grad_batches")
    if rounds is not None:
        made["accumulation"] = positive_count(rounds) or UNSET
    if cards := _process_count(call):
        made["processes"] = cards
    return made


def _process_count(call: Tree) -> int | None:
    """Processes that it starts, one a device; None where as many as there are cards."""
    devices, nodes = call.get("devices", call.get("gpus")), positive_count(call.get("num_nodes", 1))
    if isinstance(devices, str) and devices.isdecimal():
        devices = int(devices)
    count = len(devices) if isinstance(devices, list) else positive_count(devices)
    return count * nodes if count and nodes else None


def _strategy_keys(module: Module, strategy: Any) -> dict[str, Any]:
    """By the strategy's name, or by what is made of its class (pytorch/trainer/connectors/
    accelerator_connector.py; strategies/{ddp,fsdp,deepspeed}.py).
    """
    said: Mapping[str, Any] = strategy if isinstance(strategy, dict) else {}
    name = str(said.get(BASE, said.get(CLASS))).rpartition(".")[2] if said else str(strategy).lower()
    found = STAGE.match(name)
    if found or name == "DeepSpeedStrategy":
        away = found[2] if found else None
        stage = int(found[1] or 2) if found else said.get("stage", 2)
        return _deepspeed_keys(stage, said, away=bool(away))
    if name.startswith("fsdp") or name == "FSDPStrategy":
        return _fsdp_keys(module, said, away=name.endswith("offload"))
    if name == "dp":
        return {"wrap": DATA_PARALLEL}
    if name.startswith(("ddp", "auto", "none", "single_device")) or name in (
        "DDPStrategy",
        "SingleDeviceStrategy",
    ):
        return {"wrap": DDP}
    return {"wrap": "none", OTHER_STRATEGY: UNSET if strategy == UNSET else name}


def _fsdp_keys(module: Module, said: Mapping[str, Any], *, away: bool) -> dict[str, Any]:
    sharding = said.get("sharding_strategy", "FULL_SHARD")
    moved = said.get("cpu_offload", away)
    offload = moved.get("offload_params", moved.get("0", False)) if isinstance(moved, dict) else moved
    recomputes = any(said.get(at) for at in ("activation_checkpointing_policy", "activation_checkpointing"))
    policy = (
        said.get("auto_wrap_policy") is not None or KEYWORDS in said or any(named_calls(module, WRAPS_PARTS))
    )
    return {
        "wrap": FSDP,
        "strategy": str(sharding).rpartition(".")[2],
        **wrapped_gathers(said),
        **({"offload": offload} if offload in (True, UNSET) else {}),
        **({"recompute": True} if recomputes else {}),
        **({} if policy else {ONE_UNIT: True}),
    }


def _deepspeed_keys(stage: Any, said: Mapping[str, Any], *, away: bool) -> dict[str, Any]:
    """Its configuration as the strategy writes it, or the one that it is given."""
    own = said.get("config")
    if isinstance(own, str) and own != UNSET:
        return {"wrap": "deepspeed", "deepspeed_file": own}
    if isinstance(own, dict):
        return {"wrap": "deepspeed", "deepspeed": own}
    optimizer, parameters = (said.get(at, away) for at in ("offload_optimizer", "offload_parameters"))
    kept = {at: said.get(at, held) for at, held in BUCKETS.items()}
    moved = {
        **({"offload_optimizer": {"device": "cpu"}} if optimizer is True else {}),
        **({"offload_param": {"device": "cpu"}} if parameters is True and stage == 3 else {}),
    }
    return {"wrap": "deepspeed", "deepspeed": {"zero_optimization": {"stage": stage, **kept, **moved}}}


def _half_keys(asked: Any, wrap: str) -> dict[str, Any]:
    """Autocast, or a model that is cast as a whole; what FSDP gathers and reduces is in the same half
    (pytorch/plugins/precision/{amp,half,fsdp,deepspeed}.py).
    """
    if asked == UNSET:
        return {"autocast": UNSET}
    width, _, how = str(asked).partition("-")
    word = WIDTHS.get(width)
    if word is None:
        return {"autocast": UNSET}
    half = word in IN_TORCH
    if wrap == "deepspeed":  # which casts the model itself (pytorch/strategies/deepspeed.py, _set_config)
        return {"autocast": word}
    if half and how == "true":
        return {"autocast": "no", "cast": IN_TORCH[word]}
    return {"autocast": word, **({"gathered": word, "reduced": word} if half and wrap == FSDP else {})}
