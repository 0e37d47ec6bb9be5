"""A plan as the actor of verl's reinforcement learning: Hydra's overrides in a script (``bash verl.sh``).

What a plan does not say (the rollout, the estimator of advantages, how a row divides into prompt and answer)
is a stand-in. Lines are of volcengine/verl at b178a3cd5, under verl.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memsheet.errors import Problem
from memsheet.exchange.formats.verl.batches import ANSWER, DYNAMIC, MICRO, MINI, PROMPT, SAMPLES
from memsheet.exchange.formats.verl.overrides import PATHS, STOCK
from memsheet.exchange.formats.verl.pipelined import LORA, OPTIMIZER_OVERRIDES, OVERRIDES
from memsheet.exchange.formats.verl.sharded import FUSED, OPTIMIZER_CLASSES
from memsheet.exchange.formats.verl.strategies import ACTOR, ENGINES, MODEL, ROLLOUT
from memsheet.exchange.shared.file_format import Values
from memsheet.exchange.shared.fused_modules import HELD
from memsheet.exchange.shared.launched_script import PROGRAM
from memsheet.exchange.shared.serve_command import DTYPES
from memsheet.exchange.shared.trainers import plain_recompute
from memsheet.patterns import late_pattern

Out = Callable[[Values], Any]
FSDP, MCORE = f"{ACTOR}.fsdp_config", f"{ACTOR}.megatron"
KERNELS = {"flash": "flash_attention_2", "sdpa": "sdpa", "eager": "eager"}
BACKENDS = {"flash": "flash", "cudnn": "fused", "eager": "unfused"}
WRITTEN_ENGINES = ("fsdp1", "fsdp2", "megatron")
MOST_ANSWERS = 8
SAFE_NAME = late_pattern(r"[\w./:@+-]+", re.ASCII)
"""Texts that Hydra's grammar takes as they stand (hydra/grammar/OverrideLexer.g4)."""
APPENDED = (f"{MODEL}.override_config.", f"{FSDP}.mixed_precision.", f"{MCORE}.{OVERRIDES}.moe_", f"{OPTIMIZER_OVERRIDES[0]}.")  # fmt: skip
"""Places that verl's own configurations have not, which Hydra adds (trainer/config/engine/*.yaml)."""


def _answers_of_a_prompt(asked: Values) -> int:
    """As many as divide a step's rows, up to eight: one group of them is GRPO's baseline."""
    rows = asked.get("global_batch") or 1
    return next(count for count in range(MOST_ANSWERS, 0, -1) if rows % count == 0)


def _prompts_of_a_step(asked: Values) -> int | None:
    return asked["global_batch"] // _answers_of_a_prompt(asked) if asked.get("global_batch") else None


def _of_fsdp(make: Out) -> Out:
    return lambda asked: make(asked) if asked["engine"] != "megatron" else None


def _of_mcore(make: Out) -> Out:
    return lambda asked: make(asked) if asked["engine"] == "megatron" else None


def _value_if_set(key: str) -> Out:
    return lambda asked: asked.get(key) if asked.get(key) not in (None, 1) else None


def _where(key: str, value: Any) -> Out:
    return lambda asked: True if asked.get(key) == value else None


def _reduced_otherwise(key: str) -> Out:
    return lambda asked: asked.get(key) if asked.get("precision.reduce") != "fp32" else None


def _shard_ranks(asked: Values) -> Any:
    return asked.get("mesh.dp_shard", 1) if asked.get("mesh.dp_replicate", 1) > 1 else None


def _offload_policy(asked: Values) -> bool | None:
    both = asked.get("offload.optimizer") == 1 and asked.get("offload.parameters") == 1
    return True if both and asked["engine"] == "fsdp2" else None


def _recomputes_layers(asked: Values) -> bool:
    return asked.get("recompute.mode") == "full" and plain_recompute(asked)


def _optimizer_class(asked: Values) -> tuple[str, str] | None:
    """Of FSDP the library and the class."""
    held = asked.get("optimizer.implementation")
    own = (asked.get("optimizer.name"), "foreach" if held == "fused" else held)
    return next((names for names, pair in OPTIMIZER_CLASSES.items() if pair == own), None)


def _optimizer_word(asked: Values) -> str | None:
    if asked["engine"] != "megatron":
        return (_optimizer_class(asked) or (None, None))[1]
    own = (asked.get("optimizer.name"), asked.get("optimizer.implementation"))
    return "adam" if own == ("adamw", "distributed") else None


def _granularity(asked: Values) -> Any:
    mode = asked.get("recompute.mode")
    return mode if mode in ("full", "selective") else None


def _of_full_recompute(make: Out) -> Out:
    return _of_mcore(lambda asked: make(asked) if asked.get("recompute.mode") == "full" else None)


def _recomputed_layers(asked: Values) -> int:
    return int(asked.get("recompute.layers") or asked.get("recompute.every") or 1)


def _of_experts(key: str) -> Out:
    return _of_mcore(lambda asked: asked.get(key) if asked.get("mesh.ep", 1) > 1 else None)


def _host_share(asked: Values) -> Any:
    return asked.get("offload.optimizer") or None


def _fused_modules(asked: Values) -> list[str] | None:
    """Megatron-Core's modules, where each has all of its layers or none."""
    targets = {*asked.get("adapter.targets", ())}
    chosen = [module for module, layers in HELD.items() if targets & {*layers}]
    return chosen if targets == {layer for module in chosen for layer in HELD[module]} else None


def _with_an_adapter(make: Out) -> Out:
    return lambda asked: (
        make(asked) if asked.get("adapter.rank") and asked.get("adapter.kind") == "lora" else None
    )


WRITTEN: Mapping[str, Out] = {
    PROGRAM: lambda _: "main_ppo", PATHS[0]: lambda asked: asked["@model"], "trainer.nnodes": lambda asked: asked["@nodes"],
    "trainer.n_gpus_per_node": lambda asked: asked["@per_node"], f"{ACTOR}.strategy": lambda asked: next(word for word, engine in ENGINES.items() if engine == asked["engine"]),
    PROMPT: lambda asked: asked["seq_len"] - asked["seq_len"] // 2, ANSWER: lambda asked: asked["seq_len"] // 2 or None,
    DYNAMIC: lambda _: False, MICRO: lambda asked: asked.get("microbatch"), MINI: _prompts_of_a_step, SAMPLES: _answers_of_a_prompt,
    f"{FSDP}.model_dtype": _of_fsdp(lambda asked: asked.get("precision.parameters")),
    f"{FSDP}.dtype": _of_fsdp(lambda asked: DTYPES.get(str(asked.get("precision.compute")))),
    f"{FSDP}.mixed_precision.param_dtype": _of_fsdp(_reduced_otherwise("precision.compute")),
    f"{FSDP}.mixed_precision.reduce_dtype": _of_fsdp(_reduced_otherwise("precision.reduce")),
    f"{FSDP}.fsdp_size": _of_fsdp(_shard_ranks), f"{FSDP}.reshard_after_forward": _of_fsdp(lambda asked: asked.get("zero") == 3),
    f"{FSDP}.offload_policy": _of_fsdp(_offload_policy), f"{MODEL}.enable_gradient_checkpointing": _of_fsdp(_recomputes_layers),
    f"{MODEL}.enable_activation_offload": _of_fsdp(_where("offload.activations", True)),
    f"{MODEL}.lora_rank": _of_fsdp(_with_an_adapter(lambda asked: asked["adapter.rank"])),
    f"{MODEL}.target_modules": _of_fsdp(_with_an_adapter(lambda asked: asked.get("adapter.targets"))),
    f"{MODEL}.override_config.attn_implementation": _of_fsdp(lambda asked: KERNELS.get(str(asked.get("attention")))),
    f"{ACTOR}.optim.optimizer": _optimizer_word, f"{ACTOR}.optim.optimizer_impl": _of_fsdp(lambda asked: (_optimizer_class(asked) or (None,))[0]),
    f"{MODEL}.use_fused_kernels": lambda asked: asked.get("loss") == "fused",
    f"{ACTOR}.optim.{FUSED}": _of_fsdp(_where("optimizer.implementation", "fused")),
    f"{MCORE}.tensor_model_parallel_size": _of_mcore(lambda asked: asked.get("mesh.tp", 1)),
    f"{MCORE}.pipeline_model_parallel_size": _of_mcore(lambda asked: asked.get("mesh.pp", 1)),
    f"{MCORE}.virtual_pipeline_model_parallel_size": _of_mcore(_value_if_set("mesh.vpp")), f"{MCORE}.context_parallel_size": _of_mcore(lambda asked: asked.get("mesh.cp", 1)),
    f"{MCORE}.expert_model_parallel_size": _of_mcore(_value_if_set("mesh.ep")), f"{MCORE}.expert_tensor_parallel_size": _of_experts("mesh.etp"),
    f"{MCORE}.sequence_parallel": _of_mcore(lambda asked: bool(asked.get("sequence_parallel"))),
    f"{MCORE}.use_distributed_optimizer": _of_mcore(lambda asked: asked.get("zero") == 1),
    f"{MCORE}.dtype": _of_mcore(lambda asked: DTYPES.get(str(asked.get("precision.parameters")))),
    f"{MCORE}.{OVERRIDES}.recompute_granularity": _of_mcore(_granularity),
    f"{MCORE}.{OVERRIDES}.recompute_method": _of_full_recompute(lambda asked: "block" if asked.get("recompute.layers") else "uniform"),
    f"{MCORE}.{OVERRIDES}.recompute_num_layers": _of_full_recompute(_recomputed_layers),
    f"{MCORE}.{OVERRIDES}.recompute_modules": _of_mcore(lambda asked: asked.get("recompute.modules")),
    f"{MCORE}.{OVERRIDES}.attention_backend": _of_mcore(lambda asked: BACKENDS.get(str(asked.get("attention")))),
    f"{MCORE}.{OVERRIDES}.moe_token_dispatcher_type": _of_experts("moe.dispatch"), f"{MCORE}.{OVERRIDES}.moe_grouped_gemm": _of_experts("moe.grouped_gemm"),
    f"{MCORE}.{OVERRIDES}.moe_permute_fusion": _of_experts("moe.permute_fusion"),
    f"{OPTIMIZER_OVERRIDES[0]}.optimizer_cpu_offload": _of_mcore(lambda asked: True if _host_share(asked) else None),
    f"{OPTIMIZER_OVERRIDES[0]}.optimizer_offload_fraction": _of_mcore(_host_share),
    f"{LORA}.rank": _of_mcore(_with_an_adapter(lambda asked: asked["adapter.rank"])), f"{LORA}.target_modules": _of_mcore(_with_an_adapter(_fused_modules)),
}  # fmt: skip
"""By place of the values that are read, what is written there."""


def required_verl_values(asked: Values) -> Mapping[str, Any]:
    """What it does not start without (trainer/config/rollout/rollout.yaml:5; utils/config.py,
    validate_config), and an estimator that trains no second model.
    """
    stock = {STOCK: "ppo_megatron_trainer"} if asked["engine"] == "megatron" else {}
    alone = {f"{ROLLOUT}.tensor_model_parallel_size": 1} if asked["@gpus"] % 2 else {}
    return {
        **stock, "algorithm.adv_estimator": "grpo", "data.train_batch_size": _prompts_of_a_step(asked), f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": asked.get("microbatch"), **alone,
    }  # fmt: skip


def verl_plan_problems(asked: Values, made: Mapping[str, Any]) -> Iterator[Problem]:
    """What the overrides cannot say. ``made``: the request that they read back as."""
    if not SAFE_NAME.fullmatch(str(asked.get("@model") or "")):
        reason = "is no name that an override can be given"
        yield Problem(
            field="model", value=asked.get("@model"), reason=reason, hint="--model of a hub or a folder"
        )
    if (asked.get("seq_len") or 0) < 2:
        yield Problem(
            field="seq_len",
            value=asked.get("seq_len"),
            reason="has no room for a prompt and its answer",
            hint="longer rows",
        )
    padded = made.get("?vocab_multiple", 1)
    if asked.get("vocab_multiple", 1) != padded:
        reason = (
            f"cannot be said to verl, which pads words to {padded} (models/mcore/model_initializer.py:77)"
        )
        value = asked.get("vocab_multiple")
        yield Problem(field="vocab_multiple", value=value, reason=reason, hint=str(padded))


def _override_text(at: str, value: Any) -> str:
    added = "++" if at.startswith(APPENDED) else ""
    word = f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)
    return shlex.quote(f"{added}{at}={word}")


def compose_verl_script(values: Values, _: Values) -> str:
    """Shell text around one command: every override is quoted."""
    stock = [f"--config-name={values[STOCK]}"] if STOCK in values else []
    said = [_override_text(at, value) for at, value in values.items() if at not in (PROGRAM, STOCK)]
    lines = " \\\n  ".join([f"exec python3 -m verl.trainer.{values[PROGRAM]}", *stock, *said, '"$@"'])
    return f"#!/usr/bin/env bash\nset -euo pipefail\n{lines}\n"


NOTES = (
    "the rollout's memory comes on top: its keys, the estimator and data.* are stand-ins or verl's defaults",
    "halves of a row are prompt and answer; run it: `bash verl.sh data.train_files=FILE data.val_files=FILE`",
)
