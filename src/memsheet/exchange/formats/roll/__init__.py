"""ROLL's configurations (``python examples/start_rlvr_pipeline.py --config_name rlvr_config``): workers that
train, read and serve, each on cards that it names.

The sheet is of the worker that trains; what shares its cards is told, and makes a job with it. Lines are of
alibaba/ROLL at 8eb27cc, under roll.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from memsheet.exchange.formats.roll.names import TOP
from memsheet.exchange.formats.roll.workers import (
    CRITIC,
    FSDP2,
    MEGATRON,
    MODELS,
    REFERENCE,
    SERVERS,
    STUDENT,
    SUPERVISED,
    TEACHER,
    TRAINED,
    enables_reference,
    has_critic_worker,
    has_lora_target,
    has_worker,
    is_of_pairs,
    micro_rows,
    padded_length,
    reward_workers,
    roll_settings,
    row_ranks,
    server_worker,
    trained_worker,
    worker_cards,
    worker_config,
    worker_model,
    worker_request,
    worker_strategy,
)
from memsheet.exchange.shared.file_format import Format, Moved, Values
from memsheet.exchange.shared.read_only_rows import Back, read_elsewhere, read_only_row
from memsheet.late import late_functions
from memsheet.sheet import Instant

if TYPE_CHECKING:
    from memsheet.exchange.shared.preference_methods import Preferences
with late_functions(__name__):
    from memsheet.exchange.shared.preference_methods import preferences_of


VERSION = "ROLL 8eb27cc"
ROLES, SHARED, LAYOUT, TILED = "$.roles", "$.sequence_ranks", "$.pipeline_layout", "$.tiled_mlp"
CONFIGS, STRATEGY = "configs/worker_config.py", "distributed/strategy"
READ_CONFIG = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size",
    "virtual_pipeline_model_parallel_size", "sequence_parallel", "use_distributed_optimizer", "recompute_granularity", "recompute_modules", "param_dtype", "reduce_dtype",
    "fsdp_size", "offload_policy", "reshard_after_forward", "moe_grouped_gemm",
)  # fmt: skip
UNREAD_CONFIG: Mapping[str, tuple[Any, ...]] = {
    "account_for_embedding_in_pipeline_split": (False,), "account_for_loss_in_pipeline_split": (False,), "pipeline_model_parallel_layout": (), "moe_layer_recompute": (False,),
    "ep_size": (1,), "apply_tiled_mlp": (False,), "recompute_num_layers": (), "moe_expert_capacity_factor": (), "fp8": (), "moe_shared_expert_overlap": (False,),
    "overlap_grad_reduce": (False,), "optimizer": ("adam",), "use_precision_aware_optimizer": (False,), "optimizer_cpu_offload": (False,), "additional_configs": (),
}  # fmt: skip
"""Of a strategy, what changes bytes and is not modelled."""


def _of_worker(worker: str, back: Back) -> Back:
    """A row of the worker that trains."""
    return lambda value, values: back(value, values) if trained_worker(values) == worker else {}


def _read_worker_strategy(_: Any, values: Values) -> Mapping[str, Any]:
    return worker_request(values, trained_worker(values))


def _read_worker_cards(_: Any, values: Values) -> Mapping[str, Any]:
    cards = worker_cards(values, trained_worker(values))
    return {"@gpus": cards[1]} if cards else {}


def _read_rows(_: Any, values: Values) -> Mapping[str, Any]:
    return {**micro_rows(values, trained_worker(values), "train"), "?seq_len_kind": "maximum"}


def _read_model(_: Any, values: Values) -> Mapping[str, Any]:
    named = worker_model(values, trained_worker(values))
    return {"@model": named} if named else {}


def _worker_notes(values: Values) -> Mapping[str, Any]:
    """What shares the cards or has others, in words, and what of the worker no plan says."""
    worker = trained_worker(values)
    found: dict[str, Any] = {}
    if (ranks := row_ranks(values, worker)) > 1:
        found[SHARED] = (
            f"{ranks} (the sheet is of one rank's part of each row, without the exchange of heads)"
        )
    parts = []
    server = server_worker(values)
    if server is not None:
        shared = _share_cards(values, worker, server)
        parts.append(
            f"{worker_strategy(values, server)} {'on the same cards' if shared else 'on cards of its own'}"
        )
    others = (
        ("the reference", enables_reference(values) and has_worker(values, REFERENCE) and not has_lora_target(values, worker)),
        ("the critic", has_critic_worker(values) and has_worker(values, CRITIC)), ("the teacher", has_worker(values, TEACHER)),
        ("a model that rewards", any(True for _ in reward_workers(values))),
    )  # fmt: skip
    parts += [words for words, there in others if there]
    if worker != SUPERVISED and parts:
        found[ROLES] = f"{worker} alone; {', '.join(parts)}"
    return found


def _share_cards(values: Values, one: str, other: str) -> bool:
    places = [worker_cards(values, at) for at in (one, other)]
    if places[0] is None or places[1] is None:
        return False
    (first, count), (start, many) = places[0], places[1]
    return first < start + many and start < first + count


def _method_of_pipeline(values: Values) -> Preferences | None:
    return preferences_of("dpo", own_copy=True, rows=1) if is_of_pairs(values) else None


def _worker_logits_moved(values: Values, asked: Values) -> Iterator[Moved]:
    """Logits of all tokens in fp32 with a log-softmax and gradients, of a rank's part of the vocabulary
    (utils/functionals.py:214; mcore_adapter parallel_functions/vocab_parallel.py:95-150).
    """
    worker = trained_worker(values)
    tensor = (
        worker_config(values, worker, "tensor_model_parallel_size", 1)
        if worker_strategy(values, worker) in MEGATRON
        else 1
    )
    context = (
        worker_config(values, worker, "context_parallel_size", 1)
        if worker_strategy(values, worker) in MEGATRON
        else 1
    )
    ranks = (
        tensor * context if type(tensor) is int and type(context) is int and tensor > 0 and context > 0 else 1
    )
    elements = asked.get("@tokens", 0) * asked.get("@vocab", 0) // ranks
    why = "logits of all tokens in fp32, with a log-softmax and gradients (utils/functionals.py:214)"
    yield Moved(at="logits", why=why, low_bytes=4 * elements, high_bytes=20 * elements, instant=Instant.LOSS)


def _rows_of_worker(worker: str) -> Iterator[Any]:
    strategy, config, model = (
        f"{worker}.strategy_args",
        f"{worker}.strategy_args.strategy_config",
        f"{worker}.model_args",
    )
    yield read_only_row(
        f"{strategy}.strategy_name",
        _of_worker(worker, _read_worker_strategy),
        f"{CONFIGS}:30",
        "fsdp2_train" if worker == TRAINED[0] else None,
    )
    yield read_only_row(f"{worker}.device_mapping", _of_worker(worker, _read_worker_cards), f"{CONFIGS}:112")
    yield read_only_row(
        f"{model}.model_name_or_path", _of_worker(worker, _read_model), "configs/model_args.py"
    )
    yield read_only_row(
        f"{worker}.training_args.per_device_train_batch_size",
        _of_worker(worker, _read_rows),
        "configs/training_args.py:46",
        8 if worker == TRAINED[0] else None,
    )
    yield from (read_only_row(f"{config}.{name}", read_elsewhere, STRATEGY) for name in READ_CONFIG)
    yield from (
        read_only_row(f"{model}.{name}", read_elsewhere, "configs/model_args.py")
        for name in (
            "dtype",
            "lora_target",
            "lora_rank",
            "ulysses_size",
            "disable_gradient_checkpointing",
            "autocast_adapter_dtype",
        )
    )
    yield from (
        read_only_row(f"{worker}.{name}", read_elsewhere, CONFIGS)
        for name in (
            "use_dynamic_batching_in_train",
            "max_tokens_per_microbatch_in_train",
            "use_sequence_packing",
            "sequence_packing_args.max_packed_sequence_length_train",
            "infer_batch_size",
        )
    )


LENGTHS = ("sequence_length", "prompt_length", "response_length")
KEYS = (
    *(read_only_row(at, _read_model, "configs/base_config.py:606") for at in dict.fromkeys((MODELS[TRAINED[0]], MODELS[STUDENT]))),
    *(row for worker in TRAINED for row in _rows_of_worker(worker)),
    *(read_only_row(at, _read_rows, "configs/base_config.py:292") for at in LENGTHS),
)  # fmt: skip
UNMODELLED: Mapping[str, tuple[Any, ...]] = {
    ROLES: (), SHARED: (), **{f"{worker}.strategy_args.strategy_config.{name}": held for worker in TRAINED for name, held in UNREAD_CONFIG.items()},
    **{f"{worker}.{name}": held for worker in TRAINED for name, held in (("mtp_training_mode", ("disabled",)), ("router_replay.mode", ("disable",)), ("logits_in_fp32", (False,)))},
}  # fmt: skip
WORKERS = (
    *TRAINED,
    *SERVERS,
    REFERENCE,
    TEACHER,
    CRITIC,
    "rewards",
    "reward",
    "reward_model",
    "validation",
    "train_env_manager",
    "val_env_manager",
)
GROUPS = (
    *WORKERS,
    "hydra",
    "system_envs",
    "checkpoint_config",
    "tracker_kwargs",
    "custom_envs",
    "reward_normalization",
    "train_infer_correction",
    "rollout_mock",
    "router_args",
    "transfer_backend",
    "tag_to_template",
)


def _is_of_pipeline(values: Values) -> bool:
    return worker_strategy(values, trained_worker(values)) in (*MEGATRON, *FSDP2)


FORMAT: Format = Format(
    name="roll", file="rlvr_config.yaml", kind="yaml", tested=VERSION, engines=(), keys=KEYS, said={"task": "train"}, marks=frozenset(TRAINED), parse=roll_settings, absent=_worker_notes,
    preferences=_method_of_pipeline, moves=_worker_logits_moved, own_processes=True, row=padded_length, keys_complete=False, unmodelled=UNMODELLED, program_known=_is_of_pipeline,
    known=frozenset({*TOP, *GROUPS, *(f"{group}.*" for group in GROUPS)}) - set(UNMODELLED) - {key.at for key in KEYS},
)  # fmt: skip
