"""torchtitan's present configuration: a Python function. The older TOML is ``toml.py``.

``PYTHONPATH=. torchrun … -m torchtitan.train --module torchtitan_config --config memsheet``. The function
takes a configuration that torchtitan ships, or one of yours, for the model, its data and its learning rate,
and sets what the plan says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memsheet.errors import Problem
from memsheet.exchange.formats.torchtitan.both import (
    MIXED,
    QWEN3_FLAVORS,
    STEPS,
    is_count_above,
    read_async_tensor_parallel,
    read_mixed_precision_param,
    read_reshard_policy,
)
from memsheet.exchange.shared.file_format import Format, Key, Values, plan_word
from memsheet.exchange.shared.python_config import flatten_constructor, read_module, returned_configs
from memsheet.exchange.shared.python_values import BASE, CONFIG
from memsheet.exchange.shared.script_places import CLASS
from memsheet.plan.engine_registry import find_engine

COMMIT = "b5bcd76"  # every line below is of b5bcd76c66d0acb1a08b176d9639425bc55e0b2a, under torchtitan
VERSION = f"torchtitan {COMMIT}"
C = "config/configs.py"
P, T, AC, MODEL = "parallelism", "training", "activation_checkpoint", "model_spec"
PP, TP, CP = f"{P}.pipeline_parallel_degree", f"{P}.tensor_parallel_degree", f"{P}.context_parallel_degree"
TOKENS, LENGTH, STEP, ROUNDS = (
    f"{T}.num_tokens_per_microbatch_per_dp_rank", f"{T}.max_context_length", f"{T}.num_tokens_per_train_step", f"{P}.num_pp_microbatches",
)  # fmt: skip
BACKENDS = {"sdpa": "flex", "flash": "varlen"}
"""Both keep what the fused kernels keep: queries, keys, values, the output and one number a row. Language
models have no sdpa (models/common/ config_utils.py:97).
"""
MODULES = {"llama3": "torchtitan.models.llama3", "qwen3": "torchtitan.models.qwen3"}
_USUAL = {"loss": {CLASS: "ChunkedLossWrapper.Config"}, "optimizer": {CLASS: "default_adamw"}}
ASSETS = "hf_assets_path"


def _shipped_base_config(
    assets: str, sequences: int, recompute: str, *, length: int = 8192, flavor: str = "", **parallelism: Any
) -> dict[str, Any]:
    named = flavor or assets.partition("-")[2]
    return {
        **_USUAL, T: {"num_tokens_per_microbatch_per_dp_rank": sequences * length, "max_context_length": length}, AC: {CLASS: f"{recompute}.Config"},
        MODEL: {CLASS: "model_registry", "flavor": named}, P: parallelism, ASSETS: f"./assets/hf/{assets}",
    }  # fmt: skip


_LLAMAS, _QWENS = (f"{module}.config_registry" for module in MODULES.values())
BASES = {
    f"{_LLAMAS}.llama3_8b": _shipped_base_config("Llama-3.1-8B", 1, "SelectiveAC", flavor="8B"),
    f"{_LLAMAS}.llama3_70b": _shipped_base_config("Llama-3.1-70B", 8, "FullAC", flavor="70B", tensor_parallel_degree=8),
    f"{_LLAMAS}.llama3_405b": {
        **_shipped_base_config("Llama-3.1-405B", 2, "FullAC", flavor="405B", tensor_parallel_degree=8), "compile": {"enable": True, "enable_async_tensor_parallel": True},
        MODEL: {CLASS: "model_registry", "flavor": "405B", "converters": ["Float8LinearConverter.Config"]},
    },
    f"{_QWENS}.qwen3_0_6b": _shipped_base_config("Qwen3-0.6B", 4, "SelectiveAC", length=4096),
    f"{_QWENS}.qwen3_1_7b": _shipped_base_config("Qwen3-1.7B", 4, "SelectiveAC", length=4096),
    f"{_QWENS}.qwen3_14b": _shipped_base_config("Qwen3-14B", 4, "FullAC", length=4096),
    f"{_QWENS}.qwen3_32b": _shipped_base_config("Qwen3-32B", 2, "FullAC", length=4096),
    f"{_QWENS}.qwen3_30b_a3b": _shipped_base_config("Qwen3-30B-A3B", 2, "FullAC", length=4096),
}  # fmt: skip
"""What shipped configurations say (models/llama3/config_registry.py:194-355, models/qwen3/config_registry.py:
186-372).
"""
_OWN = {
    "0.6B": "qwen3_0_6b",
    "1.7B": "qwen3_1_7b",
    "14B": "qwen3_14b",
    "32B": "qwen3_32b",
    "30B-A3B": "qwen3_30b_a3b",
}
MODELS = {
    "llama-3.1-8b": ("llama3", "llama3_8b", "Llama-3.1-8B", "8B"),
    "llama-3.1-70b": ("llama3", "llama3_70b", "Llama-3.1-70B", "70B"),
    "llama-3.1-405b": ("llama3", "llama3_70b", "Llama-3.1-405B", "405B"),
    **{
        f"qwen3-{size.lower()}": ("qwen3", _OWN.get(size, "qwen3_14b"), f"Qwen3-{size}", size)
        for size in QWEN3_FLAVORS
    },
}
"""Models that torchtitan ships: their folder, the function's name, that of the assets and the flavor
(models/llama3/__init__.py:359-365, models/qwen3/__init__.py). That of 405B converts to fp8, on whatever card
it is made (models/llama3/config_registry.py:305-320), so that its sizes are put into another, as are those of
which there is none.
"""
OWNERS = {"Llama": "meta-llama", "Qwen3": "Qwen"}
"""Whose the models are that torchtitan's assets are named after."""
YOURS = "base_config"
FUNCTION, NONE = "function", "None"
_AC = {"selective": "SelectiveAC", "full": "FullAC"}
SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe"}


def _max_context_length(values: Values) -> Any:
    return values.get(LENGTH, 2048)


def _read_microbatch_tokens(value: Any, values: Values) -> Mapping[str, Any]:
    """Tokens of a rank as sequences of the longest (:36)."""
    length = _max_context_length(values)
    whole = is_count_above(value, 0) and is_count_above(length, 0) and value % length == 0
    return {"microbatch": value // length if whole else f"{value} tokens in sequences of {length}"}


def _read_step_tokens(value: Any, values: Values) -> Mapping[str, Any]:
    """-1 is one pass of every rank (:42)."""
    if value == -1:
        return {"@accumulation": values.get(ROUNDS, 1) if is_count_above(values.get(PP, 1), 1) else 1}
    length = _max_context_length(values)
    whole = is_count_above(value, 0) and is_count_above(length, 0) and value % length == 0
    return {"global_batch": value // length if whole else f"{value} tokens in sequences of {length}"}


def _read_sequence_parallel(value: Any, values: Values) -> Mapping[str, Any]:
    return {"sequence_parallel": value is True and is_count_above(values.get(TP, 1), 1)}


def _own_stages(layers: Sequence[int]) -> tuple[int, ...] | None:
    engine = find_engine("torchtitan")
    assert engine is not None
    assert engine.stages is not None
    return engine.stages(sum(layers), len(layers), COMMIT)


def _microbatch_tokens(asked: Values) -> Any:
    return (
        asked["microbatch"] * asked["seq_len"] if asked.get("microbatch") and asked.get("seq_len") else None
    )


def _all_tokens(asked: Values) -> Any:
    return (
        asked["global_batch"] * asked["seq_len"]
        if asked.get("global_batch") and asked.get("seq_len")
        else None
    )


def _read_loss_config(value: Any, values: Values) -> Mapping[str, Any]:
    """Whole logits are cut over tensor-parallel ranks wherever there are any (components/loss.py:36-55)."""
    if value == "ChunkedLossWrapper.Config":
        return {"loss": "chunked"}
    return (
        {"loss": "vocab_parallel" if is_count_above(values.get(TP, 1), 1) else "plain"}
        if value == "CrossEntropyLoss.Config"
        else {"loss": str(value)}
    )


def _read_ac_config(value: Any, _: Values) -> Mapping[str, Any]:
    mode = plan_word({"SelectiveAC.Config": "selective", "FullAC.Config": "full", NONE: "none"}, value)
    return {"recompute.mode": mode, **({"recompute.modules": ["op"]} if mode == "selective" else {})}


def _ac_config_class(asked: Values) -> str:
    mode = asked.get("recompute.mode")
    return f"{_AC[mode]}.Config" if mode in _AC else NONE


def _read_pipeline_schedule(value: Any, values: Values) -> Mapping[str, Any]:
    if not is_count_above(values.get(PP, 1), 1):
        return {}
    return {"schedule": next((own for own, name in SCHEDULES.items() if name == value), str(value).lower())}


def _read_context_parallel_degree(value: Any, _: Values) -> Mapping[str, Any]:
    """Keys and values are gathered from every rank (models/common/attention.py:798)."""
    return {"mesh.cp": value, **({"context_parallel_comm": "all_gather"} if is_count_above(value, 1) else {})}


def _read_assets(value: Any, values: Values) -> Mapping[str, Any]:
    """The folder of a model's tokenizer and weights, where the flavor is that model's size too."""
    name, flavor = str(value).rstrip("/").rpartition("/")[2], values.get(f"{MODEL}.flavor")
    family, _, size = name.partition("-")
    known = flavor and (size == flavor or size.endswith(f"-{flavor}")) and family in OWNERS
    return {"@model": f"{OWNERS[family]}/{name}"} if known else {}


def _model_flavor(asked: Values) -> Any:
    return MODELS[asked["@model"]][3] if asked.get("@model") in MODELS else None


def _attention_backend(asked: Values) -> Any:
    return BACKENDS.get(str(asked.get("attention"))) if _model_flavor(asked) else None


def _torchtitan_plan_problems(asked: Values) -> Iterator[Problem]:
    pieces = (asked.get("mesh.tp", 1) if asked.get("sequence_parallel") else 1) * (
        2 * asked["mesh.cp"] if asked.get("mesh.cp", 1) > 1 else 1
    )
    if (_microbatch_tokens(asked) or 0) % pieces:  # trainer.py:299
        reason = (
            f"makes {_microbatch_tokens(asked)} tokens of a micro-batch, which are not a multiple of {pieces}"
        )
        yield Problem(
            field="seq_len",
            value=asked["seq_len"],
            reason=reason,
            hint="a length that tp and twice cp divide",
        )
    pp, layers = asked.get("mesh.pp", 1), asked.get("layers_per_stage")
    if pp > 1 and layers and tuple(layers) != _own_stages(layers):
        yield Problem(
            field="layers_per_stage",
            value=list(layers),
            reason="is not how torchtitan cuts by itself",
            hint="leave it out",
        )
    if pp > 1 and asked.get("zero") not in (2, 3):
        yield Problem(
            field="zero",
            value=asked.get("zero"),
            reason="is not what torchtitan does in a pipeline",
            hint="zero 2 or 3",
        )
    if asked.get("attention") not in (*BACKENDS, None):
        yield Problem(
            field="attention",
            value=asked["attention"],
            reason="is none of torchtitan's",
            hint=f"one of {', '.join(BACKENDS)}",
        )


_MAKES = {
    "loss": {
        "ChunkedLossWrapper.Config": "ChunkedLossWrapper.Config(\n        loss_fn=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(config.model_spec)),\n    )",
        "CrossEntropyLoss.Config": "CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(config.model_spec))",
    },
}  # fmt: skip


def _compose_trainer_config(values: Values, asked: Values) -> str:
    """Constants alone: numbers, switches and words of the tables above, so that nothing of a name stands in
    the code.
    """
    named = MODELS.get(str(asked.get("@model")))
    imports = [
        "from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss  # noqa: F401",
        "from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC  # noqa: F401",
        "from torchtitan.models.common.config_utils import decoder_vocab_size",
        *(
            (
                f"from {MODULES[named[0]]}.config_registry import {named[1]} as base",
                f"from {MODULES[named[0]]} import model_registry",
            )
            if named
            else ()
        ),
        *(
            ()
            if named
            else (
                (
                    f"from {YOURS} import config as base  # yours: a function that returns the "
                    "Trainer.Config "
                    "of your model and data"
                ),
            )
        ),
    ]
    lines = ["config = base()  # data, tokenizer and learning rate are its own"]
    if named:
        lines.append(f'config.hf_assets_path = "./assets/hf/{named[2]}"')
        lines.append(
            f'config.model_spec = model_registry("{values[f"{MODEL}.flavor"]}", '
            f'attn_backend="{values[f"{MODEL}.attn_backend"]}")'
        )
    for at, value in values.items():
        place, _, name = at.rpartition(".")
        if name == CLASS:
            lines.append(
                f"config.{place} = "
                f"{_MAKES.get(place, {}).get(value) or (value if value == NONE else f'{value}()')}"
            )
        elif place != MODEL:
            lines.append(f"config.{at} = {value!r}")
    body = "\n".join(f"    {line}" for line in (*lines, "return config"))
    return "\n".join([*imports, "", "", f"def memsheet():\n{body}", ""])


def _parse_trainer_config(text: str) -> Mapping[str, Any]:
    """The configuration that the last function returns that no other one calls; nothing where there is
    none.
    """
    if "torchtitan" not in text:
        return {}
    made = {
        name: found
        for name, found in returned_configs(read_module(text, BASES))
        if isinstance(found, dict) and found.get(CLASS) == CONFIG
    }
    if not made:
        return {}
    name, found = list(made.items())[-1]
    told = {FUNCTION: name if len(made) == 1 else f"{name} (the last of {len(made)})"}
    return {
        **told,
        **{
            key: flatten_constructor(value) if value is not None else {CLASS: NONE}
            for key, value in found.items()
            if key != CLASS
        },
    }


def _config_switch_row(at: str, key: str, line: int) -> Key:
    return Key(
        at=at, out=lambda a: bool(a.get(key)), back=lambda v, _: {key: v}, usual=False, source=f"{C}:{line}"
    )


KEYS = (
    Key(at=ASSETS, out=lambda _: None, back=_read_assets, source="models/qwen3/config_registry.py:278"),
    Key(at=f"{MODEL}.flavor", out=_model_flavor, back=lambda *_: {"?attention": "sdpa"}, source="models/llama3/__init__.py:369-371: flex"),
    Key(
        at=f"{MODEL}.attn_backend", out=_attention_backend, source="models/llama3/__init__.py:371",
        back=lambda v, _: {"attention": next((own for own, name in BACKENDS.items() if name == str(v).removesuffix("_flash")), v)},
    ),
    Key(at=TOKENS, out=_microbatch_tokens, back=_read_microbatch_tokens, usual=16384, source=f"{C}:36"),
    Key(at=LENGTH, says="seq_len", usual=2048, source=f"{C}:50"),
    Key(at=STEP, out=_all_tokens, back=_read_step_tokens, usual=-1, source=f"{C}:42"),
    Key(
        at=f"{T}.mixed_precision_param", out=lambda a: next((name for name, own in MIXED.items() if own == a.get("precision.compute")), None),
        back=read_mixed_precision_param, usual="bfloat16", source=f"{C}:103",
    ),
    Key(at=f"{P}.data_parallel_replicate_degree", says="mesh.dp_replicate", usual=1, source=f"{C}:132"),
    Key(
        at=f"{P}.data_parallel_shard_degree", says="mesh.dp_shard", back=lambda v, _: {} if v == -1 else {"mesh.dp_shard": v}, usual=-1,
        source=f"{C}:143",
    ),
    Key(
        at=f"{P}.fsdp_reshard_after_forward", out=lambda a: {3: "always", 2: "never"}.get(a.get("zero", 0)), back=read_reshard_policy, usual="default",
        source=f"{C}:155",
    ),
    Key(at=TP, says="mesh.tp", usual=1, source=f"{C}:177"),
    Key(
        at=f"{P}.enable_sequence_parallel", out=lambda a: bool(a.get("sequence_parallel")) if a.get("mesh.tp", 1) > 1 else None, back=_read_sequence_parallel,
        usual=True, source=f"{C}:180",
    ),
    Key(at=CP, says="mesh.cp", back=_read_context_parallel_degree, usual=1, source=f"{C}:238"),
    Key(at=PP, says="mesh.pp", usual=1, source=f"{C}:191"),
    Key(
        at=f"{P}.pipeline_parallel_schedule", out=lambda a: SCHEDULES.get(str(a.get("schedule"))) if a.get("mesh.pp", 1) > 1 else None,
        back=_read_pipeline_schedule, usual="1F1B", source=f"{C}:219",
    ),
    Key(at=ROUNDS, out=lambda a: a["@accumulation"] if a.get("mesh.pp", 1) > 1 else None, back=lambda *_: {}, source=f"{C}:231"),
    _config_switch_row("compile.enable", "compile", 297),
    Key(
        at="compile.enable_async_tensor_parallel", out=lambda a: bool(a.get("async_tp")), back=read_async_tensor_parallel, usual=False, source=f"{C}:299",
    ),
    Key(at=f"{AC}.{CLASS}", out=_ac_config_class, back=_read_ac_config, usual="SelectiveAC.Config", source="trainer.py:101"),
    Key(
        at=f"loss.{CLASS}", out=lambda a: "ChunkedLossWrapper.Config" if a.get("loss") == "chunked" else "CrossEntropyLoss.Config", back=_read_loss_config,
        source="components/loss.py:274, 501",
    ),
    Key(at="optimizer.implementation", says="optimizer.implementation", names=STEPS, usual="fused", source="components/optimizer/optimizer.py:109"),
)  # fmt: skip

FORMAT = Format(
    name="torchtitan", file="torchtitan_config.py", kind="python", tested=VERSION, engines=("torchtitan",), keys=KEYS, problems=_torchtitan_plan_problems,
    compose=_compose_trainer_config, parse=_parse_trainer_config, marks=frozenset({FUNCTION}), older={"820504e": "torchtitan-toml"},
    fixed=lambda _: {f"{T}.disable_cuda_graphs": True},  # recorded steps are not in the sheet
    said={"task": "train", "engine": "torchtitan", "engine_version": COMMIT},  # others have other files, and other bytes
    beside=frozenset({"attention", "allocator.expandable_segments", "optimizer.name", "layers_per_stage"}),
    absent=lambda values: {
        **({f"{T}.disable_cuda_graphs": False} if f"{T}.disable_cuda_graphs" not in values else {}),
        **({f"loss.{CLASS}": "the base's"} if f"loss.{CLASS}" not in values and BASE not in values else {}),
    },
    unmodelled={
        f"{T}.disable_cuda_graphs": (True,), f"{T}.enable_cpu_offload": (False,), f"{T}.dtype": ("float32",), f"{T}.mixed_precision_reduce": ("float32",),
        f"{MODEL}.converters": ([],), f"{MODEL}.tp_gemm_backend": ("default",), f"{MODEL}.num_mtp_layers": (),
        f"{MODEL}.moe_comm_backend": (), f"{MODEL}.non_blocking_capacity_factor": (), f"{P}.module_fqns_per_model_part": (), f"{P}.pipeline_parallel_layers_per_stage": (),
        f"{P}.pipeline_parallel_first_stage_less_layers": (1,), f"{P}.pipeline_parallel_last_stage_less_layers": (1,),
        f"{P}.pipeline_parallel_schedule_csv": ("",), f"{P}.expert_parallel_degree": (1,), f"{P}.enable_fsdp_symm_mem": (False,),
        f"optimizer.{CLASS}": ("default_adamw",), "optimizer.param_groups": (), "compile.components": (["model", "loss"],), "override.imports": ([],),
        "loss.num_chunks": (8,), BASE: tuple(BASES),
    },
    known=frozenset({
        FUNCTION, "dump_folder", MODEL, *(f"{table}.*" for table in (
            "profiler", "metrics", "tokenizer", "dataloader", "lr_scheduler", "checkpoint", "comm", "validator", "debug",
        )), "profiler", "metrics", "tokenizer", "dataloader", "lr_scheduler", "checkpoint", "comm", "validator", "debug", "override", "override.class",
        *(f"{table}.{CLASS}" for table in (T, P, "compile", MODEL)), "compile.backend", "loss.loss_fn", "loss.global_vocab_size", "optimizer.lr",
        *(f"{AC}.{name}" for name in ("preserve_rng_state", "determinism_check", "debug", "force_recompute_mm_shapes_by_fqns")),
        *(f"{T}.{name}" for name in ("max_norm", "steps", "gc_freq", "gc_debug")),
        *(f"{P}.{name}" for name in ("spmd_backend", "context_parallel_load_balancer", "context_parallel_ptrr_mask_key")),
    }),
)  # fmt: skip
