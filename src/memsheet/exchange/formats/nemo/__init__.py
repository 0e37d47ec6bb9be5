"""NeMo 1's YAML of language models (``megatron_gpt_pretraining.py --config-name megatron_gpt_config``), which
trains with Megatron-Core under Lightning's Trainer.

Lines are of NVIDIA/NeMo at 8cfedd7, examples/nlp/language_modeling; what the model makes of them is in
nemo/collections/nlp/models/language_modeling/megatron_base_model.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.formats.nemo.words import (
    FLAGS,
    MEGATRON,
    SIZES,
    SWITCHED,
    in_megatron_words,
    is_other_kind,
    nemo_described_sizes,
)
from memsheet.exchange.shared.file_format import Format, Key, Values
from memsheet.exchange.shared.read_only_rows import Back, positive_count, read_elsewhere, read_only_row
from memsheet.exchange.shared.trainers import row_of
from memsheet.guard import parse_yaml
from memsheet.late import late_functions
from memsheet.patterns import late_pattern

with late_functions(__name__):
    from memsheet.exchange.shared.config_references import with_references


VERSION = "NeMo 1"  # of its configurations at commit 8cfedd7
G = "megatron_gpt_config.yaml"
NODES, DEVICES, PRECISION, O2 = (
    "trainer.num_nodes",
    "trainer.devices",
    "trainer.precision",
    "model.megatron_amp_O2",
)
SCHEME, LORA = "model.peft.peft_scheme", "model.peft.lora_tuning"
OPTIMIZER, NAMED = "model.optim.name", "model.restore_from_path"
WEIGHTS, STATES, LOADED, KIND = "$.precision", "$.optimizer", "$.peft", "$.kind"
METHOD = "$.method"
ALIGNED: Mapping[str, tuple[str, str]] = {
    "dpo": ("DPO", "the reference's weights lie on the host and are switched in"),
    "spin": ("SPIN", "the reference's weights lie on the host and are switched in, and it generates"),
    "kto": ("KTO", "the reference's weights lie on the host and are switched in"),
    "ppo": ("PPO", "an engine generates on the same cards, and the critic is a server's"),
    "reinforce": ("REINFORCE", "an engine generates on the same cards"),
    "rs": ("rejection sampling", "an engine generates on the same cards"),
    "knowledge_distillation": ("distillation", "logits of a teacher stand beside the student's"),
    "reward_model_type": ("reward", "the head is of one value"),
}
"""Methods of NeMo-Aligner by the group of its configuration that says them, and what the sheet leaves out
(NVIDIA/NeMo-Aligner af2b3bd examples/nlp/gpt/conf; nemo_aligner/utils/utils.py:430, cpu_weight_swap).
"""
PAIRED = ("dpo", "spin", "reward_model_type")
"""Whose row is two sequences (ib. nemo_aligner/models/nlp/gpt/megatron_gpt_dpo_model.py:429-432;
megatron_gpt_reward_model.py, get_forward_output_and_loss_func).
"""
OF_ROWS = ("--micro-batch-size", "--global-batch-size")
SHARDED = ("distributed_fused_adam", "mcore_distributed_optim")
TARGETS = {
    "attention_qkv": ("q_proj", "k_proj", "v_proj"), "attention_dense": ("o_proj",), "mlp_fc1": ("gate_proj", "up_proj"), "mlp_fc2": ("down_proj",),
}  # fmt: skip
GROUPS = {
    "attention": ("attention_qkv", "attention_dense"),
    "mlp": ("mlp_fc1", "mlp_fc2"),
    "all": tuple(TARGETS),
}


SAYS_NEMO = late_pattern(r"tensor_model_parallel_size|mcore_gpt")


def parse_nemo_text(text: str) -> Mapping[str, Any]:
    """Values of a training configuration, without what is left to whoever runs it (``???``); nothing where it
    is none. Raises ValueError for text that is no YAML.
    """
    if "trainer:" not in text or "optim:" not in text or not SAYS_NEMO.search(text):
        return {}
    tree = parse_yaml(text, "file")
    if not isinstance(tree, Mapping) or not all(
        isinstance(tree.get(at), Mapping) for at in ("trainer", "model")
    ):
        return {}
    model = tree["model"]
    aligned = "mcore_gpt" in model and any(isinstance(model.get(name), Mapping) for name in ALIGNED)
    asked = ("tensor_model_parallel_size" in model and "inference" not in tree) or aligned
    return _without_unfilled(with_references(tree)) if asked and "optim" in model else {}


def _without_unfilled(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {
        at: _without_unfilled(held) if isinstance(held, Mapping) else held
        for at, held in tree.items()
        if not (isinstance(held, str) and (held == "???" or held.startswith("${")))
    }


def _read_as_megatron(flag: str) -> Back:
    row = row_of(MEGATRON, flag)
    return lambda value, values: row.read(
        2 * value if flag in OF_ROWS and positive_count(value) and aligned_by(values) in PAIRED else value,
        in_megatron_words(values),
    )


def aligned_by(values: Values) -> str | None:
    """The group of a configuration that says a method of NeMo-Aligner's; None of pretraining and tuning."""
    own = (at.partition(".")[2].partition(".")[0] for at in values if at.startswith("model."))
    return next((name for name in own if name in ALIGNED), None)


def _read_trainer_devices(value: Any, values: Values) -> Mapping[str, Any]:
    each, nodes = positive_count(value), positive_count(values.get(NODES) or 1)
    return {"@per_node": each, "@nodes": nodes, "@gpus": each * nodes} if each and nodes else {}


def _read_trainer_precision(_: Any, values: Values) -> Mapping[str, Any]:
    """Sixteen-bit weights with fp32 copies and sums; what is otherwise is told (megatron_base_model.py:
    configure_optimizers).
    """
    half = _half_word(values)
    return row_of(MEGATRON, "--bf16").read(
        half == "bf16", {"--fp16": True, "--accumulate-allreduce-grads-in-fp32": True}
    )


def _half_word(values: Values) -> str:
    """bf16 or fp16 as it is computed in; bf16 stands for fp32."""
    return "fp16" if str(values.get(PRECISION, 32)) in ("16", "16-mixed", "fp16") else "bf16"


def _read_optimizer_name(value: Any, _: Values) -> Mapping[str, Any]:
    known = ("fused_adam", "adam", "adamw", *SHARDED)
    return {"zero": int(value in SHARDED), "optimizer.name": "adamw" if value in known else str(value)}


def _read_data_length(value: Any, values: Values) -> Mapping[str, Any]:
    """Of finetuning, whose samples are no longer than that."""
    return {} if values.get("model.encoder_seq_length") else {"seq_len": value, "?seq_len_kind": "maximum"}


def _read_restored_model(value: Any, values: Values) -> Mapping[str, Any]:
    """The file that a model is loaded from, by its name."""
    name = str(value).rstrip("/").rpartition("/")[2].removesuffix(".nemo")
    return {"@model": name} if name and nemo_described_sizes(values) is None else {}


def _tunes_lora(values: Values) -> bool:
    return values.get(SCHEME) == "lora"


def _read_lora_dimension(value: Any, values: Values) -> Mapping[str, Any]:
    if not _tunes_lora(values):
        return {}
    named = values.get(f"{LORA}.target_modules", ["attention_qkv"])
    parts = [
        part
        for name in (named if isinstance(named, list) else [named])
        for part in GROUPS.get(str(name), (str(name),))
    ]
    targets = [one for part in dict.fromkeys(parts) for one in TARGETS.get(part, (part,))]
    return {
        "adapter.rank": value,
        "adapter.targets": targets,
        "adapter.dropout": values.get(f"{LORA}.adapter_dropout", 0.0),
    }


def _left_to_nemo(values: Values) -> Mapping[str, Any]:
    """What the sheet has otherwise than the file: weights under autocast, Apex's optimizer, other adapters,
    and what Megatron-LM's own reader leaves open.
    """
    told = {at: held for at, held in MEGATRON.absent(in_megatron_words(values)).items() if at in OPEN}
    precision = str(values.get(PRECISION, 32))
    if precision in ("32", "32-true"):
        told[WEIGHTS] = "is fp32, and the sheet is of bf16, whose activations are half as large"
    elif values.get(O2) is not True:
        told[WEIGHTS] = "has fp32 weights under autocast, and the sheet has sixteen bits with fp32 copies"
    if values.get(OPTIMIZER) == SHARDED[0]:
        told[STATES] = "is Apex's, with gradients divided and copies in sixteen bits, and the sheet's is not"
    if values.get(SCHEME) not in (None, "none", "lora"):
        told[LOADED] = f"trains by {values[SCHEME]}, and the sheet is of every parameter"
    if method := aligned_by(values):
        named, beside = ALIGNED[method]
        rows = "each row is counted as two; " if method in PAIRED else ""
        told[METHOD] = f"{named}: {rows}{beside}"
    if is_other_kind(values):
        told[KIND] = f"is {values['name']}, which is no stack of decoder layers"
    return told


OPEN = ("$.vocabulary", "$.objective", "$.dispatcher")
DATA_LENGTH = "model.data.train_ds.max_seq_length"
KEYS = (
    *(
        Key(at=f"model.{name}", out=lambda _: None, back=_read_as_megatron(flag), source=f"conf/{G}; {row_of(MEGATRON, flag).source}",
            usual={"hidden_dropout": 0.1, "sequence_parallel": False, "activations_checkpoint_granularity": "none"}.get(name))
        for name, flag in FLAGS.items()
    ),
    read_only_row(DEVICES, _read_trainer_devices, f"conf/{G}:4"), read_only_row(NODES, read_elsewhere, f"conf/{G}:5"),
    read_only_row(PRECISION, _read_trainer_precision, f"conf/{G}:7", 32), read_only_row(O2, read_elsewhere, f"conf/{G}"),
    read_only_row(OPTIMIZER, _read_optimizer_name, f"conf/{G}", "fused_adam"), read_only_row(NAMED, _read_restored_model, f"conf/{G}"),
    read_only_row(f"pretrained_checkpoint.{NAMED.partition('.')[2]}", _read_restored_model, "NVIDIA/NeMo-Aligner af2b3bd examples/nlp/gpt/conf/gpt_dpo.yaml"),
    read_only_row(DATA_LENGTH, _read_data_length, "tuning/conf/megatron_gpt_finetuning_config.yaml:120"),
    read_only_row(f"{LORA}.adapter_dim", _read_lora_dimension, "tuning/conf/megatron_gpt_finetuning_config.yaml:88"),
    *(read_only_row(f"{LORA}.{name}", read_elsewhere, "tuning/conf/megatron_gpt_finetuning_config.yaml:88") for name in ("target_modules", "adapter_dropout")),
    read_only_row(SCHEME, read_elsewhere, "tuning/conf/megatron_gpt_finetuning_config.yaml:75"),
)  # fmt: skip

FORMAT = Format(
    name="nemo", file="config.yaml", kind="yaml", tested=VERSION, engines=(), keys=KEYS, said={"task": "train", "engine": "megatron"}, marks=frozenset({"trainer"}), parse=parse_nemo_text,
    absent=_left_to_nemo, model=nemo_described_sizes, own_processes=True, program_known=lambda _: False,
    unmodelled={
        WEIGHTS: (), STATES: (), LOADED: (), KIND: (), METHOD: (), **dict.fromkeys(OPEN, ()), "model.fp8": (False,), "model.fsdp": (False,), "model.transformer_engine": (True,),
        "model.cpu_offloading": (False,), "model.fp32_residual_connection": (False,), "model.num_micro_batches_with_partial_activation_checkpoints": (),
        "model.activations_checkpoint_layers_per_pipeline": (), "model.ub_tp_comm_overlap": (False,), "model.window_size": (), "model.logits_soft_cap": (),
        "model.transformer_block_type": ("pre_ln",), "model.headscale": (False,), "model.mcore_customization_config": (), "model.mcore_gpt": (True,),
        "model.moe_expert_capacity_factor": (), "model.use_flash_attention": (True,),
    },
    known=frozenset({"name", "hydra", "defaults", "restore_from_path", *(f"model.{name}" for name in (*SIZES, *SWITCHED, "activation")), "model.*", "trainer.*", "exp_manager.*", "hydra.*", "run.*", "s3_checkpointing.*", "pretrained_checkpoint.*", "remote_rm.*", "remote_critic_rm.*", "precision", "inference.*", "cluster_type"})
    - {key.at for key in KEYS},
)  # fmt: skip
