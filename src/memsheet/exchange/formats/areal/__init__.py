"""AReaL's configurations (``python3 examples/math/gsm8k_rl.py --config grpo.yaml``): a trainer on FSDP2,
Megatron-Core or Archon, and SGLang's or vLLM's servers, on other cards unless it is said otherwise.

The sheet is of the actor; what trains or reads beside it is told, and makes a job with it. Lines are of
inclusionAI/AReaL at 4aef98d, under areal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from memsheet.exchange.formats.areal.engines import (
    ACTOR,
    ALLOCATION,
    CRITIC,
    REFERENCE,
    ROLLOUT,
    TEACHER,
    areal_settings,
    engine_at,
    has_role,
    is_colocated,
    loads_reference,
    part_tokens,
    prompt_and_answer,
)
from memsheet.exchange.shared.file_format import Format, Moved, Values
from memsheet.exchange.shared.fused_modules import layers_of_modules
from memsheet.exchange.shared.read_only_rows import Back, read_elsewhere, read_only_row
from memsheet.exchange.shared.trainers import uniform_precision_keys
from memsheet.late import late_functions
from memsheet.sheet import Instant

if TYPE_CHECKING:
    from memsheet.exchange.shared.preference_methods import Preferences
with late_functions(__name__):
    from memsheet.exchange.shared.preference_methods import preferences_of


VERSION = "AReaL 4aef98d"
ROLES, SHARED, PADDED = "$.roles", "$.sequence_ranks", "$.recompute"
ARGS, FSDP, MEGATRON = "api/cli_args.py", "engine/fsdp_engine.py", "engine/megatron_engine.py"
WORDS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
OPTIMIZERS = {"adam": "adamw", "adam_bf16": "adamw"}


def _on(name: str, back: Back) -> Back:
    """A row of the actor's engine of that name."""
    return lambda value, values: back(value, values) if _engine_name(values) == name else {}


def _engine_name(values: Values) -> str:
    engine = engine_at(values, ACTOR)
    return engine.name if engine else ""


def _read_actor_backend(value: Any, values: Values) -> Mapping[str, Any]:
    """Degrees of what trains; the ranks of Ulysses share a row, of which each runs a part."""
    engine = engine_at(values, ACTOR)
    if engine is None:
        return {"engine": str(value)}
    degrees, experts = engine.degrees, engine.of_experts
    found: dict[str, Any] = {
        "@gpus": engine.cards,
        "mesh.tp": degrees["t"],
        "zero": 3,
        "engine": "fsdp2",
        "loss": "fused",
    }
    if not engine.is_megatron:
        return {**found, "gradient_sync": "every", **({"loss": "plain"} if degrees["t"] > 1 else {})}
    stages = {"mesh.pp": degrees["p"], "schedule": "1f1b"} if degrees["p"] > 1 else {}
    whole = {"mesh.cp": degrees["c"], "mesh.ep": experts.get("e", 1), "mesh.etp": experts.get("t", 1)}
    return {
        **found,
        "engine": "megatron",
        "zero": 1,
        "sequence_parallel": degrees["t"] > 1,
        **whole,
        **stages,
    }


def _read_actor_widths(value: Any, values: Values) -> Mapping[str, Any]:
    """FSDP2 holds and steps all in the dtype of the weights, and reduces in another
    (engine/fsdp_engine.py:976, 1125); Megatron-Core has masters and gradients in fp32.
    """
    held = WORDS.get(str(value), str(value))
    if _engine_name(values) == "megatron":
        wide = values.get("actor.megatron.ddp.grad_reduce_in_fp32", True) is True
        summed = "fp32" if wide else held
        masters = {"precision.master_weights": "fp32"} if held != "fp32" else {}
        return {
            **uniform_precision_keys(held), **masters, "precision.moments": "fp32", "precision.gradients": summed, "precision.reduce": summed,
        }  # fmt: skip
    reduced = str(values.get("actor.grad_reduce_dtype", "float32"))
    return {**uniform_precision_keys(held), "precision.reduce": WORDS.get(reduced, reduced)}


def _read_actor_checkpointing(value: Any, values: Values) -> Mapping[str, Any]:
    if value is not True:
        return {"recompute.mode": "none"}
    if _engine_name(values) == "archon" and values.get("actor.archon.ac_mode", "selective") != "full":
        return {"recompute.mode": "none"}
    kind = values.get("actor.megatron.recompute_granularity", "full")
    if _engine_name(values) == "megatron" and kind != "full":
        modules = values.get("actor.megatron.recompute_modules") or ["core_attn"]
        return (
            {"recompute.mode": "selective", "recompute.modules": modules}
            if kind
            else {"recompute.mode": "none"}
        )
    return {"recompute.mode": "full"}


def _read_tokens(_: Any, values: Values) -> Mapping[str, Any]:
    tokens = part_tokens(values, ACTOR)
    return {"microbatch": 1, "seq_len": tokens, "?seq_len_kind": "maximum"} if tokens else {}


def _read_actor_optimizer(value: Any, values: Values) -> Mapping[str, Any]:
    """torch's, fused, or Megatron-Core's (engine/fsdp_engine.py:1125-1150, megatron_engine.py:1280)."""
    name = OPTIMIZERS.get(str(value), str(value))
    if name != "adamw":
        return {"optimizer.name": name}
    made = {"megatron": "distributed"}.get(_engine_name(values), "loop" if value == "adam_bf16" else "fused")
    return {"optimizer.name": name, "optimizer.implementation": made}


def _read_lora(value: Any, values: Values) -> Mapping[str, Any]:
    if values.get("actor.use_lora") is not True:
        return {}
    named = values.get("actor.target_modules")
    targets = layers_of_modules(named) if isinstance(named, list) and named else ["all-linear"]
    held = WORDS.get(str(values.get("actor.dtype", "bfloat16")), "bf16")  # engine/fsdp_engine.py:1098
    return {"adapter.kind": "lora", "adapter.rank": value, "adapter.targets": targets, "adapter.dtype": held}


def _engine_notes(values: Values) -> Mapping[str, Any]:
    """What shares the cards or has others, in words, and what of the actor no plan says."""
    engine = engine_at(values, ACTOR)
    found: dict[str, Any] = {}
    if engine and not engine.is_megatron and engine.degrees["c"] > 1:
        found[SHARED] = (
            f"{engine.degrees['c']} (the sheet is of one rank's part of a row, without the exchange of heads)"
        )
    if _engine_name(values) == "archon" and values.get("actor.gradient_checkpointing") is True:
        kind = values.get("actor.archon.ac_mode", "selective")
        found |= {PADDED: f"{kind} (the sheet is of nothing that is recomputed)"} if kind != "full" else {}
    if _engine_name(values) == "archon" and values.get("actor.archon.enable_compile") is True:
        found["actor.archon.enable_compile"] = True
    others = {REFERENCE: "the reference"} if loads_reference(values) else {}
    others |= {
        role: words
        for role, words in ((CRITIC, "the critic"), (TEACHER, "the teacher"))
        if has_role(values, role)
    }
    servers = values.get("rollout.backend")
    places = f"servers {'on the same cards' if is_colocated(values) else 'on cards of their own'}"
    parts = [*others.values(), *([places] if servers else [])]
    return {**found, **({ROLES: f"the actor alone; {', '.join(parts)}"} if parts else {})}


def _method_of_experiment(values: Values) -> Preferences | None:
    """Pairs and rewards, by what the actor is told (api/cli_args.py:2766-2825); both sequences of a pair are
    among the tokens of a micro-batch.
    """
    if has_role(values, ROLLOUT):
        return None
    if values.get("actor.is_critic") is True:
        return preferences_of("reward", rows=1)
    return preferences_of("dpo", own_copy=True, rows=1) if has_role(values, REFERENCE) else None


def _actor_logits_moved(values: Values, asked: Values) -> Iterator[Moved]:
    """Logits of all tokens, with log-probabilities of a part of them at once and their gradients
    (utils/functional/vocab_parallel.py:14-80).
    """
    if values.get("actor.is_critic") is True:
        return
    elements = asked.get("@tokens", 0) * asked.get("@vocab", 0)
    why = "logits of all tokens, with their gradients (utils/functional/vocab_parallel.py:14-80)"
    yield Moved(at="logits", why=why, low_bytes=4 * elements, high_bytes=20 * elements, instant=Instant.LOSS)


A = "actor"
KEYS = (
    read_only_row(f"{A}.path", lambda v, _: {"@model": v}, f"{ARGS}:1053"), read_only_row(f"{A}.backend", _read_actor_backend, "api/alloc_mode.py:33"),
    read_only_row(f"{A}.dtype", _read_actor_widths, f"{ARGS}:1098", "bfloat16"), read_only_row(f"{A}.grad_reduce_dtype", read_elsewhere, f"{ARGS}:1099"),
    read_only_row(f"{A}.attn_impl", lambda v, _: {"attention": "flash" if "flash" in str(v) else v}, f"{ARGS}:1054", "flash_attention_2"),
    read_only_row(f"{A}.gradient_checkpointing", _read_actor_checkpointing, f"{ARGS}:1095", False),
    *(read_only_row(at, _read_tokens, f"{ARGS}:114") for at in (f"{A}.mb_spec.max_tokens_per_mb", "train_dataset.max_length", "gconfig.max_new_tokens")),
    read_only_row(f"{A}.optimizer.type", _read_actor_optimizer, f"{ARGS}:338", "adam"), read_only_row(f"{A}.lora_rank", _read_lora, f"{ARGS}:1130", 32),
    *(read_only_row(f"{A}.{name}", read_elsewhere, f"{ARGS}:1124") for name in (
        "use_lora", "target_modules", "megatron.recompute_granularity", "megatron.recompute_modules", "megatron.ddp.grad_reduce_in_fp32", "archon.ac_mode",
    )),
    read_only_row(f"{A}.fsdp.offload_params", _on("fsdp", lambda v, _: {"offload.parameters": 1, "offload.optimizer": 1} if v is True else {}), f"{ARGS}:421"),
    read_only_row(f"{A}.archon.offload_params", _on("archon", lambda v, _: {"offload.parameters": 1, "offload.optimizer": 1} if v is True else {}), f"{ARGS}:551"),
)  # fmt: skip
OF_ACTOR: Mapping[str, tuple[Any, ...]] = {
    "fsdp.per_layer_optim_step": (False,), "archon.fp8_config.mode": ("disabled",), "megatron.fp8_config": (None,), "megatron.fp8_config.mode": (None,),
    "megatron.use_precision_aware_optimizer": (False,), "megatron.virtual_pipeline_parallel_size": (1, None), "enable_tree_training": (False,), "is_critic": (False, True),
    "megatron.moe_enable_deepep": (False,), "megatron.moe_shared_expert_overlap": (False,), "megatron.use_custom_fsdp": (False,), "use_kernels": (False,),
    "archon.enable_compile": (False,), "megatron.exp_avg_dtype": ("float32",), "megatron.exp_avg_sq_dtype": ("float32",), "megatron.main_params_dtype": ("float32",),
    "megatron.main_grads_dtype": ("float32",), "megatron.ddp.use_distributed_optimizer": (True,),
}  # fmt: skip
UNMODELLED: Mapping[str, tuple[Any, ...]] = {
    ROLES: (),
    SHARED: (),
    PADDED: (),
    **{f"{A}.{name}": held for name, held in OF_ACTOR.items()},
}
GROUPS = (
    "cluster", "scheduler", "rollout", "gconfig", "eval_gconfig", "actor", "ref", "critic", "teacher", "sglang", "vllm", "train_dataset", "valid_dataset", "saver", "recover", "evaluator",
    "stats_logger", "perf_tracer", "checkpointer", "launcher", "econfig", "workflow", "agent", "data_service",
)  # fmt: skip
FORMAT: Format = Format(
    name="areal", file="grpo.yaml", kind="yaml", tested=VERSION, engines=(), keys=KEYS, said={"task": "train", "dropout": 0.0}, marks=frozenset({ACTOR}), parse=areal_settings, absent=_engine_notes,
    preferences=_method_of_experiment, moves=_actor_logits_moved, own_processes=True, row=prompt_and_answer, keys_complete=False, unmodelled=UNMODELLED,
    known=frozenset({
        ALLOCATION, ROLLOUT, "experiment_name", "trial_name", "seed", "enable_offload", "total_train_epochs", "total_train_steps", "total_train_n_seqs", "tokenizer_path", "async_training", "dynamic_bs",
        "weight_update_mode", *GROUPS, *(f"{group}.*" for group in GROUPS),
    }) - set(UNMODELLED) - {key.at for key in KEYS},
)  # fmt: skip
