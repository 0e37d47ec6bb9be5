"""LLaMA-Factory's YAML: transformers' arguments beside its own. Model and data stand in the file too; how
many processes, and FSDP, are accelerate's, with which it is launched then.

It differs from transformers itself in that everything that trains is raised to fp32
(``model/adapter.py:337-349``), that layers are recomputed unless that is switched off
(``model/model_utils/checkpointing.py:184``), and that batches are padded to a multiple of eight tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from memsheet.errors import Problem
from memsheet.exchange.formats.llamafactory.names import (
    KNOWN,
    SHIPPED,
    TOWERS,
    TRANSFORMERS,
    UNMODELLED,
    factory_implied_keys,
)
from memsheet.exchange.formats.llamafactory.rows import DEEPSPEED, KEYS, VERSION
from memsheet.exchange.shared.config_commands import FACTORY_FILE, OF_SWIFT, OF_TORCHTUNE
from memsheet.exchange.shared.file_format import Format, Moved, Values
from memsheet.exchange.shared.frozen_towers import frozen_tower_moves
from memsheet.exchange.shared.smoothed_losses import smoothing_moves
from memsheet.exchange.shared.trainers import (
    cannot_offload,
    inside_moves,
    inside_names,
    inside_renamed,
    parse_switch,
)
from memsheet.late import late_functions

if TYPE_CHECKING:
    from memsheet.exchange.shared.preference_methods import Preferences
with late_functions(__name__):
    from memsheet.exchange.formats.llamafactory.partly import frozen_layer_moves, whole_module_moves
    from memsheet.exchange.shared.preference_methods import preferences_of


def _required_factory_keys(_: Values) -> dict[str, Any]:
    """What it stops without (hparams/parser.py:478); names are of its own examples' data."""
    own: dict[str, Any] = {
        "stage": "sft",
        "do_train": True,
        "dataset": "identity",
        "template": "default",
        "packing": True,
    }
    return {**own, "output_dir": "output"}


_inside = inside_renamed(DEEPSPEED)
INSIDE_KNOWN, INSIDE_UNMODELLED, INSIDE_WEIGHED = inside_names(DEEPSPEED)


def _rename_factory_key(at: str) -> str:
    """As the Trainer, and DeepSpeed inside, take one name for another."""
    return _inside(TRANSFORMERS.rename(at) if TRANSFORMERS.rename else at)


def _factory_moves(values: Values, asked: Values) -> Iterator[Moved]:
    """Buckets inside, and the states of a tower that stays frozen beside a model that trains whole."""
    yield from inside_moves(DEEPSPEED)(values, asked)
    yield from whole_module_moves(values, asked)
    yield from frozen_layer_moves(values, asked)
    yield from smoothing_moves(values, asked)
    tower, projector = (parse_switch(values.get(at, True)) for at in TOWERS)
    if tower and values.get("finetuning_type") == "full":
        yield from frozen_tower_moves(TOWERS[0], asked, whole=projector is True)


def _factory_preferences(values: Values) -> Preferences | None:
    """The method, without a reference for two of its losses (hparams/finetuning_args.py:593); a reference
    that is named is a model of its own beside adapters too (train/trainer_utils.py, create_ref_model).
    """
    word = str(values.get("stage"))
    if word == "dpo" and values.get("pref_loss") in ("orpo", "simpo"):
        return preferences_of(values["pref_loss"])
    return preferences_of(word, own_copy=word in ("dpo", "kto") and bool(values.get("ref_model")))


def _factory_plan_problems(asked: Values) -> Iterator[Problem]:
    yield from cannot_offload(asked)
    if asked["engine"] == "transformers" and asked.get("mesh.dp_shard", 1) > 1:
        yield Problem(
            field="mesh.dp_shard",
            value=asked["mesh.dp_shard"],
            reason="is what FSDP or DeepSpeed divides over",
            hint="engine fsdp2",
        )
    if "${" in str(asked.get("@model")):  # OmegaConf 2.3 grammar
        yield Problem(
            field="model",
            value=asked["@model"],
            reason="holds ${, with which LLaMA-Factory's reader starts a reference",
        )


FORMAT = Format(
    name="llamafactory", gradient_sync="last", file="llamafactory.yaml", kind="yaml", tested=VERSION, engines=("transformers", "fsdp2", "deepspeed"), keys=KEYS,
    fixed=_required_factory_keys, problems=_factory_plan_problems, said={"task": "train"}, marks=frozenset({"finetuning_type", "cutoff_len", "template", "lora_target"}),
    never=OF_SWIFT | OF_TORCHTUNE, absent=factory_implied_keys, refers=("deepspeed", FACTORY_FILE), inlines=("fsdp_config",), ships=SHIPPED, strict=("",),  # hparams/parser.py:154: parse_dict without allow_extra_keys
    rename=_rename_factory_key, known=(KNOWN | INSIDE_KNOWN | {FACTORY_FILE}) - {key.at for key in KEYS} - set(UNMODELLED), unmodelled={**UNMODELLED, **INSIDE_UNMODELLED},
    weighed=INSIDE_WEIGHED, preferences=_factory_preferences, moves=_factory_moves, starts=lambda _, given: given.keys() >= {"stage", "finetuning_type", "model_name_or_path"},
    differs={
        "precision.reduce": "FSDP reduces in the dtype it computes in (accelerate utils/dataclasses.py:2137)",
        "seq_len": "batches are padded to a multiple of 8 tokens (train/sft/workflow.py:65)",
    },
    beside=frozenset({
        "engine", "zero", "global_batch", "mesh.dp_shard", "mesh.dp_replicate", "mesh.tp", "allocator.expandable_segments", "offload.optimizer",
        "offload.parameters", "precision.parameters", "precision.compute", "precision.gradients", "precision.reduce", "precision.moments",
        "precision.master_weights", "recompute.mode", "quantization.storage",  # model/model_utils/quantization.py:189: the dtype that is computed in
    }),
    notes=(
        "data and template are stand-ins, and the learning rate is transformers' own: put yours",
        "run it with `llamafactory-cli train llamafactory.yaml`; FSDP with `accelerate launch --config_file accelerate.yaml src/train.py llamafactory.yaml`",
    ),
    along=lambda asked: {"deepspeed": ("deepspeed",), "fsdp2": ("accelerate",)}.get(str(asked["engine"]), ()),
)  # fmt: skip
