"""NeMo-RL's configurations (``uv run examples/run_grpo.py --config grpo.yaml``), with those that they stand
on: a policy on FSDP2 or on Megatron-Core, and servers on its cards or on others.

The sheet is of the policy; what shares its cards is told, and makes a job with it. Lines are of
NVIDIA-NeMo/RL at 7ea279a, under nemo_rl.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from memsheet.exchange.formats.nemo_rl.settings import (
    ALGORITHMS,
    CLUSTER,
    DTENSOR,
    GENERATION,
    KL,
    LENGTH,
    MEGATRON,
    MICRO,
    MODEL,
    POLICY,
    algorithm_of,
    cluster_places,
    degree_of,
    divides_logits,
    micro_tokens,
    nemo_rl_settings,
    runs_megatron,
    says_true,
    shares_cards,
    update_rounds,
)
from memsheet.exchange.shared.file_format import Format, Moved, Values
from memsheet.exchange.shared.read_only_rows import Back, read_elsewhere, read_only_row
from memsheet.exchange.shared.trainers import uniform_precision_keys, with_master
from memsheet.late import late_functions
from memsheet.sheet import Instant

if TYPE_CHECKING:
    from memsheet.exchange.shared.preference_methods import Preferences
with late_functions(__name__):
    from memsheet.exchange.shared.launch_values import least_one
    from memsheet.exchange.shared.preference_methods import preferences_of


VERSION = "NeMo-RL 7ea279a"
ROLES, PARENTS, OTHER_OPTIMIZER = "$.roles", "defaults", "$.optimizer"
POLICY_SETUP, MEGATRON_SETUP = "models/automodel/setup.py", "models/megatron/setup.py"
WORDS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
LORA = f"{DTENSOR}.lora_cfg"
OPTIMIZER, PRECISION_AWARE = f"{POLICY}.optimizer.name", f"{MEGATRON}.optimizer.use_precision_aware_optimizer"


def _read_backend(_: Any, values: Values) -> Mapping[str, Any]:
    if runs_megatron(values):
        return {"engine": "megatron", "zero": 1, "dropout": 0.0}
    return {"engine": "fsdp2", "zero": 3, **({"loss": "plain"} if divides_logits(values) else {})}


def _read_cluster(_: Any, values: Values) -> Mapping[str, Any]:
    places = cluster_places(values)
    return {"@gpus": places[0]} if places else {}


def _read_widths(value: Any, values: Values) -> Mapping[str, Any]:
    """FSDP2's shards are fp32 and computed in sixteen bits, reduced in fp32 (models/automodel/setup.py:330,
    484-487); Megatron-Core's are of sixteen bits with fp32 beside them, of which a precision-aware optimizer
    keeps the half that bf16 lacks: its recipe of eight bits is not handed on (models/megatron/setup.py:1381),
    and TransformerEngine 2.14.1 knows remainders (pyproject.toml:134; NVIDIA/Megatron-LM d98e8a6
    megatron/core/optimizer/optimizer_config.py:192, 407-438).
    """
    word = WORDS.get(str(value), str(value))
    if runs_megatron(values):
        wide = says_true(values, f"{MEGATRON}.distributed_data_parallel_config.grad_reduce_in_fp32")
        summed = "fp32" if wide else word
        halves = word == "bf16" and says_true(values, PRECISION_AWARE)
        master = {"?precision.master_weights": "int16-remainder"} if halves else {}
        return {**with_master(word), **master, "precision.gradients": summed, "precision.reduce": summed}
    return {**uniform_precision_keys("fp32"), "precision.compute": word, "precision.reduce": "fp32"}


def _read_degree(key: str, name: str) -> Back:
    return lambda _, values: {key: degree_of(values, name)}


def _on_megatron(back: Back) -> Back:
    return lambda value, values: back(value, values) if runs_megatron(values) else {}


def _on_dtensor(back: Back) -> Back:
    return lambda value, values: {} if runs_megatron(values) else back(value, values)


def _read_pipeline(value: Any, _: Values) -> Mapping[str, Any]:
    return {"mesh.pp": value, **({"schedule": "1f1b"} if isinstance(value, int) and value > 1 else {})}


def _read_recomputed(value: Any, values: Values) -> Mapping[str, Any]:
    """Every layer, or modules of each on Megatron-Core where that is said (examples/configs,
    recompute_granularity).
    """
    if value is not True:
        return {"recompute.mode": "none"}
    if runs_megatron(values) and values.get(f"{MEGATRON}.recompute_granularity") == "selective":
        modules = values.get(f"{MEGATRON}.recompute_modules") or ["core_attn"]
        return {"recompute.mode": "selective", "recompute.modules": modules}
    return {"recompute.mode": "full"}


def _read_micro_tokens(_: Any, values: Values) -> Mapping[str, Any]:
    rounds = update_rounds(values)
    return {
        **micro_tokens(values, "train"),
        "?seq_len_kind": "maximum",
        **({"@accumulation": rounds} if rounds else {}),
    }


PLAIN_OPTIMIZERS = ("adamw", "adam", "sgd")


def _optimizer_class(value: Any) -> str:
    return str(value).rpartition(".")[2].lower()


def _read_optimizer_path(value: Any, values: Values) -> Mapping[str, Any]:
    """A class by its path, of torch in plain loops (examples/configs, foreach and fused)."""
    if runs_megatron(values):
        return {}
    name = _optimizer_class(value)
    if name not in PLAIN_OPTIMIZERS:
        return {"optimizer.name": "adamw"}
    fused = says_true(values, f"{POLICY}.optimizer.kwargs.fused")
    each = says_true(values, f"{POLICY}.optimizer.kwargs.foreach")
    return {
        "optimizer.name": name,
        "optimizer.implementation": "fused" if fused else "foreach" if each else "loop",
    }


def _read_lora_dim(value: Any, values: Values) -> Mapping[str, Any]:
    if not says_true(values, f"{LORA}.enabled"):
        return {}
    named = values.get(f"{LORA}.target_modules")
    every = says_true(values, f"{LORA}.match_all_linear") or not isinstance(named, list) or not named
    return {
        "adapter.kind": "lora",
        "adapter.rank": value,
        "adapter.targets": ["all-linear"] if every else named,
    }


def _role_notes(values: Values) -> Mapping[str, Any]:
    """What shares the cards, in words; nothing where one model trains alone."""
    name = algorithm_of(values)
    other = _optimizer_class(values.get(OPTIMIZER, "adamw"))
    stands = not runs_megatron(values) and other not in PLAIN_OPTIMIZERS
    told = {OTHER_OPTIMIZER: f"{other} (the sheet is of adamw)"} if stands else {}
    if name in ("sft", "rm", ""):
        return told
    if name == "dpo":
        return {**told, ROLES: "DPO: the policy alone; the pass of its reference over both rows of a pair"}
    others = {
        "ppo": ["the values"],
        "distillation": ["the teacher"],
        "xtoken_distillation": ["the teachers"],
    }.get(name, [])
    backend = str(values.get(f"{GENERATION}.backend", "vllm"))
    served = (
        []
        if name == "xtoken_distillation"
        else [f"{backend} {'on the same cards' if shares_cards(values) else 'on cards of its own'}"]
    )
    return {**told, ROLES: f"{name.upper()}: the policy alone; {', '.join([*others, *served])}"}


def _method_of_group(values: Values) -> Preferences | None:
    """Probabilities of DPO's reference are made of its weights on the host (algorithms/dpo.py:316)."""
    return preferences_of({"dpo": "dpo", "rm": "rm"}.get(algorithm_of(values)), reference=False)


def _loss_beside(values: Values, asked: Values) -> Iterator[Moved]:
    """Logits in fp32 with a log-softmax and gradients beside them, of a rank's part of the vocabulary
    (algorithms/loss/utils.py:85, distributed/model_utils.py:120-190).
    """
    if algorithm_of(values) == "rm" or says_true(values, f"{MEGATRON}.use_fused_linear_logprobs"):
        return
    ranks = degree_of(values, "tensor") * degree_of(values, "context")
    low, high = (0, 12) if divides_logits(values) else (4, 20)
    elements = asked.get("@tokens", 0) * asked.get("@vocab", 0) // ranks
    why = (
        "logits of all tokens in fp32, with a log-softmax and gradients (distributed/model_utils.py:120-190)"
    )
    yield Moved(
        at="logits", why=why, low_bytes=low * elements, high_bytes=high * elements, instant=Instant.LOSS
    )


M, D = MEGATRON, DTENSOR
KEYS = (
    read_only_row(MODEL, lambda v, _: {"@model": v}, "examples/configs/grpo_math_1B.yaml"),
    read_only_row(f"{M}.enabled", _read_backend, "models/policy/lm_policy.py", False), read_only_row(f"{D}.enabled", read_elsewhere, "models/policy/lm_policy.py"),
    *(read_only_row(f"{CLUSTER}.{name}", _read_cluster, "algorithms/grpo.py:857") for name in ("gpus_per_node", "num_nodes")),
    read_only_row(f"{POLICY}.precision", _read_widths, f"{POLICY_SETUP}:289", "bfloat16"),
    *(read_only_row(at, _read_micro_tokens, "models/policy/lm_policy.py") for at in (LENGTH, MICRO)),
    read_only_row(f"{D}.tensor_parallel_size", _on_dtensor(_read_degree("mesh.tp", "tensor")), POLICY_SETUP),
    read_only_row(f"{D}.context_parallel_size", _on_dtensor(_read_degree("mesh.cp", "context")), POLICY_SETUP),
    read_only_row(f"{D}.activation_checkpointing", _on_dtensor(_read_recomputed), POLICY_SETUP),
    read_only_row(f"{D}.cpu_offload", _on_dtensor(lambda v, _: {"offload.parameters": 1, "offload.optimizer": 1} if v is True else {}), f"{POLICY_SETUP}:489"),
    read_only_row(f"{D}.sequence_parallel", _on_dtensor(lambda v, values: {"sequence_parallel": True} if v is True and degree_of(values, "tensor") > 1 else {}), POLICY_SETUP),
    read_only_row(f"{LORA}.dim", _on_dtensor(_read_lora_dim), f"{POLICY_SETUP}:671"), read_only_row(f"{LORA}.enabled", read_elsewhere, POLICY_SETUP),
    read_only_row(OPTIMIZER, _read_optimizer_path, f"{POLICY_SETUP}:806", "torch.optim.AdamW"),
    *(read_only_row(f"{M}.{at}", _on_megatron(_read_degree(key, name)), MEGATRON_SETUP) for at, key, name in (
        ("tensor_model_parallel_size", "mesh.tp", "tensor"), ("context_parallel_size", "mesh.cp", "context"),
        ("expert_model_parallel_size", "mesh.ep", "expert_model"), ("expert_tensor_parallel_size", "mesh.etp", "expert_tensor"),
    )),
    read_only_row(f"{M}.pipeline_model_parallel_size", _on_megatron(_read_pipeline), MEGATRON_SETUP),
    read_only_row(f"{M}.sequence_parallel", _on_megatron(lambda v, values: {"sequence_parallel": v is True and degree_of(values, "tensor") > 1}), MEGATRON_SETUP),
    read_only_row(f"{M}.activation_checkpointing", _on_megatron(_read_recomputed), MEGATRON_SETUP),
    read_only_row(f"{M}.optimizer.optimizer", _on_megatron(lambda v, _: {"optimizer.name": {"adam": "adamw"}.get(str(v), v), "optimizer.implementation": "distributed"}), MEGATRON_SETUP, "adam"),
    read_only_row(PRECISION_AWARE, read_elsewhere, f"{MEGATRON_SETUP}:1381"),
    read_only_row(f"{M}.optimizer.optimizer_cpu_offload", _on_megatron(lambda v, _: {"offload.optimizer": 1} if v is True else {}), MEGATRON_SETUP),
)  # fmt: skip
OF_MEGATRON: Mapping[str, tuple[Any, ...]] = {
    "peft.enabled": (False,), "fp8_cfg.enabled": (False,), "fine_grained_activation_offloading": (False,), "cuda_graph_impl": ("none",), "mtp_num_layers": (0,),
    "num_layers_in_first_pipeline_stage": (), "num_layers_in_last_pipeline_stage": (), "moe_enable_deepep": (False,), "moe_shared_expert_overlap": (False,),
    "optimizer.store_param_remainders": (True,), "optimizer.main_params_dtype": (), "optimizer.exp_avg_dtype": (), "optimizer.exp_avg_sq_dtype": (), "model_overrides": ({},), "freeze_moe_router": (True, False), "gradient_accumulation_fusion": (False,),
}  # fmt: skip
OF_POLICY: Mapping[str, tuple[Any, ...]] = {
    "draft.enabled": (False,), "hf_config_overrides": ({},), "dtensor_cfg.expert_parallel_size": (1,), "quant_cfg": (), "dtensor_cfg.custom_parallel_plan": (),
    "dtensor_cfg.data_parallel_size": (), "router_replay.enabled": (False,), "is_vlm": (False,),
}  # fmt: skip
UNMODELLED: Mapping[str, tuple[Any, ...]] = {
    ROLES: (), PARENTS: (), OTHER_OPTIMIZER: (), **{f"{M}.{name}": held for name, held in OF_MEGATRON.items()},
    **{f"{POLICY}.{name}": held for name, held in OF_POLICY.items()},
}  # fmt: skip


def _row_tokens(values: Values) -> int | None:
    return least_one(values, LENGTH, None)


FORMAT: Format = Format(
    name="nemo-rl", file="grpo.yaml", kind="yaml", tested=VERSION, engines=(), keys=KEYS, said={"task": "train", "loss": "fused"}, marks=frozenset({POLICY}),
    parse=nemo_rl_settings, absent=_role_notes, preferences=_method_of_group, moves=_loss_beside, own_processes=True, row=_row_tokens, keys_complete=False, unmodelled=UNMODELLED,
    known=frozenset({
        f"{POLICY}.*", f"{CLUSTER}.*", "data.*", "env.*", "logger.*", "checkpointing.*", "loss_fn.*", "reward_penalties.*", "data_plane.*", "value.*", "value_loss_fn.*",
        "on_policy_distillation", "data_plane", "async_rl.*", "teacher", "teachers", "teacher.*", "teachers.*", "distillation.*", "reward_model.*", "on_policy_distillation.*", "nemo_gym.*", "ft_launcher.*", KL, *(f"{name}.*" for name in ALGORITHMS),
    }) - set(UNMODELLED) - {key.at for key in KEYS},
)  # fmt: skip
