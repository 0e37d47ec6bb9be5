"""Which workers a configuration of ROLL has, on which cards, and the plan of each.

Lines are of alibaba/ROLL at 8eb27cc, under roll; Megatron-Core is run by its mcore_adapter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.formats.roll.names import TOP
from memsheet.exchange.shared.file_format import Values
from memsheet.exchange.shared.fused_modules import layers_of_modules
from memsheet.exchange.shared.trainers import comma_separated_names, uniform_precision_keys
from memsheet.guard import parse_yaml
from memsheet.late import late_functions

with late_functions(__name__):
    from memsheet.exchange.shared.config_references import with_references
    from memsheet.exchange.shared.launch_values import least_one


ACTOR, STUDENT_TRAIN, STUDENT, SUPERVISED = "actor_train", "student_train", "student", "sft_train"
TRAINED = (ACTOR, STUDENT_TRAIN, STUDENT, SUPERVISED)
"""Workers that train, one of each program's (pipeline/*/*_config.py)."""
REFERENCE, TEACHER, CRITIC, REWARDS = "reference", "teacher", "critic", "rewards"
SERVERS = ("actor_infer", "student_infer")
MEGATRON, FSDP2 = ("megatron_train", "megatron_infer"), ("fsdp2_train", "fsdp2_infer")
SPAN = re.compile(r"\s*list\(\s*range\(\s*(\d{1,6})\s*,\s*(\d{1,6})\s*\)\s*\)\s*")
LISTED = re.compile(r"\s*(?:list\()?\[([\d,\s]{0,4000})\]\)?\s*")
WORDS = {
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "fp32": "fp32",
    "float32": "fp32",
}
MOST_CARDS = 2**14
ROWS, READ_ROWS = 8, 16
"""``per_device_train_batch_size`` (configs/training_args.py:46) and ``infer_batch_size``
(configs/worker_config.py:121).
"""
KL, PROMPT = 0.2, 1024
"""``init_kl_coef`` and ``prompt_length`` (configs/base_config.py:536, 186)."""
MODELS = {
    ACTOR: "pretrain",
    STUDENT_TRAIN: "pretrain",
    SUPERVISED: "pretrain",
    STUDENT: "student_pretrain",
    TEACHER: "teacher_pretrain",
    CRITIC: "reward_pretrain",
    REFERENCE: "pretrain",
}
"""Where the model of a worker is named that names none itself (pipeline/*/*_config.py, __post_init__)."""


def roll_settings(text: str) -> Mapping[str, Any]:
    """Values of a pipeline's configuration, with what their names stand for in place; nothing of any other.

    Raises ValueError for text that is no YAML.
    """
    if "strategy_args:" not in text or "device_mapping:" not in text:
        return {}
    tree = parse_yaml(text, "file", aliases=True)
    if not isinstance(tree, Mapping) or not any(isinstance(tree.get(at), Mapping) for at in TRAINED):
        return {}
    whole = with_references(tree)
    worker = next(whole[at] for at in TRAINED if isinstance(whole.get(at), Mapping))
    if not worker.get("device_mapping"):
        return {}  # it generates, and trains nothing
    return {
        at: held
        for at, held in whole.items()
        if at in TOP or isinstance(held, Mapping) or f"${{{at}}}" not in text
    }


def trained_worker(values: Values) -> str:
    """The worker that trains."""
    return next((at for at in TRAINED if has_worker(values, at)), ACTOR)


def has_worker(values: Values, worker: str) -> bool:
    return any(at.startswith(f"{worker}.") for at in values)


def server_worker(values: Values) -> str | None:
    return next((at for at in SERVERS if has_worker(values, at)), None)


def worker_config(values: Values, worker: str, name: str, usual: Any = None) -> Any:
    """A value of a worker's strategy."""
    found = values.get(f"{worker}.strategy_args.strategy_config.{name}")
    return usual if found is None else found


def worker_strategy(values: Values, worker: str) -> str:
    return str(values.get(f"{worker}.strategy_args.strategy_name", ""))


def worker_degree(values: Values, worker: str, name: str) -> int:
    """A degree of a worker by Megatron-Core's word."""
    found = worker_config(values, worker, f"{name}_parallel_size", 1)
    return found if type(found) is int and found > 0 else 1


def worker_cards(values: Values, worker: str) -> tuple[int, int] | None:
    """The first card of a worker and how many, with cards renumbered so that those of each worker lie
    together; None where nobody says any, or they cannot (configs/worker_config.py:119).
    """
    own = _device_numbers(values.get(f"{worker}.device_mapping"))
    if not own:
        return None
    others = dict.fromkeys(
        found
        for at, held in values.items()
        if at.endswith(".device_mapping") and (found := _device_numbers(held))
    )
    if all(_lies_together(one) for one in others):
        return min(own), len(own)
    alike = sorted(set().union(*others), key=lambda card: ([card not in one for one in others], card))
    numbers = {card: number for number, card in enumerate(alike)}
    if not all(_lies_together(frozenset(numbers[card] for card in one)) for one in others):
        return None
    return min(numbers[card] for card in own), len(own)


def _lies_together(cards: frozenset[int]) -> bool:
    return max(cards) - min(cards) + 1 == len(cards)


def _device_numbers(held: Any) -> frozenset[int]:
    """Cards by their numbers, as a list or as a sum of lists and spans in Python's words."""
    if isinstance(held, list):
        return frozenset(held) if all(type(one) is int for one in held) else frozenset()
    found: list[int] = []
    for part in str(held).split("+") if isinstance(held, str) else ():
        span, listed = SPAN.fullmatch(part), LISTED.fullmatch(part)
        if span is not None and int(span[2]) - int(span[1]) <= MOST_CARDS:
            found += range(int(span[1]), int(span[2]))
        elif listed is not None:
            found += [int(one) for one in listed[1].split(",") if one.strip()]
        else:
            return frozenset()
    return frozenset(found)


def worker_model(values: Values, worker: str) -> str | None:
    """The model of a worker: its own, else that of its kind; of three workers all have the common one where
    one of them names none (configs/base_config.py:606-614).
    """
    own = values.get(f"{worker}.model_args.model_name_or_path")
    named = values.get(MODELS.get(worker, "pretrain"))
    return str(own or named) if own or named else None


def padded_length(values: Values) -> int | None:
    """Tokens of a row: as said, or of a prompt and an answer (configs/base_config.py:292-299)."""
    whole = least_one(values, "sequence_length", None)
    prompt, answer = least_one(values, "prompt_length", PROMPT), least_one(values, "response_length", None)
    return whole or (prompt + answer if prompt and answer else None)


def micro_rows(values: Values, worker: str, kind: str) -> dict[str, int]:
    """The micro-batch of an update (``train``) or of a pass that reads (``infer``): tokens that are counted
    or packed, else rows of the longest (distributed/strategy/megatron_strategy.py:185-205, 1271-1292;
    utils/sequence_packing.py). Ranks of Ulysses each run a part of a row.
    """
    length = padded_length(values)
    rows = (
        least_one(values, f"{worker}.training_args.per_device_train_batch_size", ROWS)
        if kind == "train"
        else least_one(values, f"{worker}.infer_batch_size", READ_ROWS)
    )
    if length is None or rows is None:
        return {}
    pairs = 2 if is_of_pairs(values) else 1  # pipeline/dpo/dpo_config.py, __post_init__
    counted = least_one(values, f"{worker}.max_tokens_per_microbatch_in_{kind}", None)
    if values.get(f"{worker}.use_dynamic_batching_in_{kind}") is True and counted:
        return {"microbatch": 1, "seq_len": max(counted, length)}
    shared = row_ranks(values, worker)
    if values.get(f"{worker}.use_sequence_packing") is True and worker_strategy(values, worker) in MEGATRON:
        side = "forward" if kind == "infer" else "train"
        most = least_one(values, f"{worker}.sequence_packing_args.max_packed_sequence_length_{side}", None)
        return {"microbatch": 1, "seq_len": max(most, length) if most else rows * length}
    return {"microbatch": rows * pairs, "seq_len": -(-length // shared)}


def row_ranks(values: Values, worker: str) -> int:
    """Ranks of Ulysses, which share a row."""
    if worker_strategy(values, worker) not in FSDP2:
        return 1
    return least_one(values, f"{worker}.model_args.ulysses_size", 1) or 1


def is_of_pairs(values: Values) -> bool:
    """Whether it is DPO, which has no server and no student."""
    return trained_worker(values) == ACTOR and server_worker(values) is None and has_worker(values, REFERENCE)


def has_lora_target(values: Values, worker: str) -> bool:
    return values.get(f"{worker}.model_args.lora_target") is not None


def enables_reference(values: Values) -> bool:
    """Whether a reference is read (configs/base_config.py:628)."""
    if is_of_pairs(values):
        return True
    weight = values.get("init_kl_coef", KL)
    weighed = isinstance(weight, int | float) and weight > 0
    return weighed or any(values.get(at) is True for at in ("use_kl_loss", "enable_reference"))


def has_critic_worker(values: Values) -> bool:
    """Whether a critic trains (pipeline/rlvr/rlvr_pipeline.py:505)."""
    return str(values.get("adv_estimator", "gae")) == "gae" and server_worker(values) is not None


def serves_beside(values: Values) -> bool:
    """Whether servers go on while the trainer works (configs/base_config.py, async_pipeline)."""
    ratio = values.get("async_generation_ratio", 0)
    return isinstance(ratio, int | float) and ratio > 0


def teacher_workers(values: Values) -> tuple[str, ...]:
    """One teacher, or several by their names (configs/base_config.py:578, teacher)."""
    if values.get(f"{TEACHER}.device_mapping") is not None:
        return (TEACHER,)
    names = dict.fromkeys(at.split(".")[1] for at in values if at.startswith(f"{TEACHER}."))
    several = (f"{TEACHER}.{name}" for name in names)
    return tuple(at for at in several if values.get(f"{at}.device_mapping") is not None)


def reward_workers(values: Values) -> Iterator[str]:
    """Workers that reward with a model on cards of the job."""
    names = dict.fromkeys(
        at.split(".")[1] for at in values if at.startswith(f"{REWARDS}.") and at.count(".") > 1
    )
    yield from (
        f"{REWARDS}.{name}" for name in names
        if values.get(f"{REWARDS}.{name}.device_mapping") is not None and worker_strategy(values, f"{REWARDS}.{name}")
    )  # fmt: skip
    for at in ("reward", "reward_model"):
        if values.get(f"{at}.device_mapping") is not None and worker_strategy(values, at):
            yield at


def worker_request(values: Values, worker: str) -> dict[str, Any]:
    """The plan of a worker as a request: of Megatron-Core, of FSDP2, or of transformers alone."""
    strategy = worker_strategy(values, worker)
    if strategy in MEGATRON:
        made = _megatron_request(values, worker)
    elif strategy in FSDP2:
        made = _fsdp2_request(values, worker)
    else:
        held = WORDS.get(str(values.get(f"{worker}.model_args.dtype", "bf16")), "bf16")
        made = {"engine": "transformers", "zero": 0, **uniform_precision_keys(held)}
    made = {"task": "train", "dropout": 0.0, "loss": "fused", "attention": "flash", **made}
    if not has_lora_target(values, worker):
        return made
    adapters = _adapter_request(values, worker)
    own = made["precision.parameters"] if "adapter.dtype" not in adapters else "fp32"
    states = dict.fromkeys(("precision.gradients", "precision.moments"), own) if strategy in FSDP2 else {}
    return {**made, **states, **adapters}


def _megatron_request(values: Values, worker: str) -> dict[str, Any]:
    """Gradients and masters in fp32 beside sixteen bits (mcore_adapter training_args.py:432-447)."""
    held = WORDS.get(str(values.get(f"{worker}.model_args.dtype", "bf16")), "bf16")
    tensor, stages = (worker_degree(values, worker, name) for name in ("tensor_model", "pipeline_model"))
    parts = worker_config(values, worker, "virtual_pipeline_model_parallel_size")
    several = type(parts) is int and parts > 1
    experts = worker_degree(values, worker, "expert_model")
    kind = worker_config(values, worker, "recompute_granularity")
    modules = comma_separated_names(worker_config(values, worker, "recompute_modules", "core_attn"))
    recompute = {
        "recompute.mode": str(kind or "none"),
        **({"recompute.modules": modules} if kind == "selective" else {}),
    }
    return {
        "engine": "megatron", "zero": 1 if worker_config(values, worker, "use_distributed_optimizer", False) is True else 0, "mesh.tp": tensor, "mesh.pp": stages,
        "mesh.cp": worker_degree(values, worker, "context"), "mesh.ep": experts, "mesh.etp": worker_degree(values, worker, "expert_tensor"),
        **({"schedule": "interleaved" if several else "1f1b"} if stages > 1 else {}), **({"mesh.vpp": parts} if several and stages > 1 else {}),
        "sequence_parallel": tensor > 1 and worker_config(values, worker, "sequence_parallel", False) is True,
        **uniform_precision_keys(held), "precision.gradients": "fp32", "precision.reduce": "fp32", "precision.moments": "fp32",
        **({"precision.master_weights": "fp32"} if held != "fp32" else {}), **recompute, "optimizer.name": "adamw",
        **({"optimizer.implementation": "distributed"} if worker_config(values, worker, "use_distributed_optimizer", False) is True else {}),
        **({"moe.grouped_gemm": True} if experts > 1 and worker_config(values, worker, "moe_grouped_gemm", False) is True else {}),
    }  # fmt: skip


def _fsdp2_request(values: Values, worker: str) -> dict[str, Any]:
    """Shards and states as the weights are loaded: in fp32 where nobody says a dtype, which what trains is
    computed in as well (distributed/strategy/fsdp2_strategy.py:828, 1004-1018, 1366, 1395).
    """
    said = worker_config(values, worker, "param_dtype")
    held = WORDS.get(str(said or ("fp32" if worker in TRAINED else "bf16")), "bf16")
    reduced = WORDS.get(str(worker_config(values, worker, "reduce_dtype", "float32")), "fp32")
    cards, size = worker_cards(values, worker), worker_config(values, worker, "fsdp_size", 1)
    groups = (
        cards[1] // size
        if cards and type(size) is int and 1 < size < cards[1] and cards[1] % size == 0
        else 1
    )
    copies = {"mesh.dp_replicate": groups, "mesh.dp_shard": size} if groups > 1 else {}
    away = (
        {"offload.parameters": 1, "offload.optimizer": 1}
        if worker_config(values, worker, "offload_policy", False) is True
        else {}
    )
    plain = values.get(f"{worker}.model_args.disable_gradient_checkpointing") is True
    reshards = worker_config(values, worker, "reshard_after_forward", True)
    return {
        "engine": "fsdp2", "zero": 3 if reshards is not False else 2, **copies, **uniform_precision_keys(held),
        "precision.compute": WORDS.get(str(said or "bf16"), "bf16"), "precision.reduce": reduced, "recompute.mode": "none" if plain else "full",
        "optimizer.name": "adamw", "optimizer.implementation": "foreach", "gradient_sync": "every", **away,
    }  # fmt: skip


def _adapter_request(values: Values, worker: str) -> dict[str, Any]:
    """LoRA by PEFT, cast to fp32 by itself (models/model_providers.py:148-180)."""
    named = values.get(f"{worker}.model_args.lora_target")
    targets = layers_of_modules(comma_separated_names(named))
    cast = values.get(f"{worker}.model_args.autocast_adapter_dtype", True) is not False
    rank = least_one(values, f"{worker}.model_args.lora_rank", 8)
    return {
        "adapter.kind": "lora",
        "adapter.rank": rank,
        "adapter.targets": targets,
        **({"adapter.dtype": "fp32"} if cast else {}),
    }
