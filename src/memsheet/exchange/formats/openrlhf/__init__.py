"""OpenRLHF's launches: reinforcement learning on Ray (``python3 -m openrlhf.cli.train_ppo_ray …``), and
fine-tuning, DPO and reward models that DeepSpeed starts (``deepspeed --module openrlhf.cli.train_dpo …``).

Of several models on the cards the sheet is of the one that trains; the others are told, and make a job with
it. Lines are of OpenRLHF/OpenRLHF at 3c3be62, under openrlhf. Everything trains by DeepSpeed, whose "auto"
values are its own defaults (deepspeedai/DeepSpeed edaa7221 runtime/config_utils.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from memsheet.exchange import find_format
from memsheet.exchange.formats.openrlhf.groups import (
    ACTOR,
    BATCH,
    CRITIC,
    REFERENCE,
    ROLLOUT,
    SCORER,
    group_ranks,
    is_rl,
    longest_row,
    own_group,
    packs_rows,
    placed_roles,
    rank_micro_batch,
    shared_ranks,
    step_batch,
    training_program,
)
from memsheet.exchange.formats.openrlhf.launches import (
    DPO,
    KD,
    KTO,
    LAUNCHES,
    REWARD,
    openrlhf_values,
)
from memsheet.exchange.formats.openrlhf.names import KNOWN, UNMODELLED
from memsheet.exchange.shared.file_format import Format, Moved, Values
from memsheet.exchange.shared.launched_script import PROGRAM
from memsheet.exchange.shared.read_only_rows import read_elsewhere, read_only_row
from memsheet.exchange.shared.trainers import with_master
from memsheet.late import late_functions
from memsheet.sheet import Instant

if TYPE_CHECKING:
    from memsheet.exchange.shared.preference_methods import Preferences
with late_functions(__name__):
    from memsheet.exchange.shared.launch_values import is_switched_on, least_one
    from memsheet.exchange.shared.preference_methods import preferences_of


DEEPSPEED = find_format("deepspeed")
VERSION = "OpenRLHF 3c3be62"
CLI, DS = "cli/train_ppo_ray.py", "utils/deepspeed"
ROLES, RING = "$.roles", "$.ring"
GROUPS = ("actor", "model")
LEARNT = (6, 20)
"""Bytes of a logit beyond a loss without whole ones, at the least and the most: as it is computed and in
fp32, and with its gradients in both and without Flash-Attention's kernel (models/actor.py:267,
models/utils.py:139-163).
"""
IN_WORDS = {REFERENCE: "the reference", CRITIC: "the critic", SCORER: "the reward model", ROLLOUT: "vLLM"}


def _read_group_ranks(_: Any, values: Values) -> Mapping[str, Any]:
    """DeepSpeed on as many processes as the model's group has, or the launcher starts."""
    ranks = group_ranks(values)
    return {"engine": "deepspeed", **({"@gpus": ranks} if ranks else {})}


def _read_update_batch(_: Any, values: Values) -> Mapping[str, Any]:
    return rank_micro_batch(values, "train")


def _read_step(_: Any, values: Values) -> Mapping[str, Any]:
    """Rows of a step, of ranks that have rows of their own."""
    size, shared = step_batch(values), shared_ranks(values)
    return {"global_batch": size} if size and shared == 1 else {}


def _read_group_hpz(value: Any, values: Values) -> Mapping[str, Any]:
    return {"secondary_shard": value} if value != 1 and values.get("ds.zero_stage", 2) == 3 else {}


def _of_own_group(group: str, back: Any) -> Any:
    return lambda value, values: back(value, values) if own_group(values) == group else {}


def _read_recompute(value: Any, _: Values) -> Mapping[str, Any]:
    return {"recompute.mode": "full"} if value is True else {"recompute.mode": "none"}


def _read_packed_attention(value: Any, values: Values) -> Mapping[str, Any]:
    """Flash-Attention where rows are packed, whatever is said (cli/train_ppo_ray.py:652-658)."""
    word = str(value)
    return {"attention": "flash" if "flash" in word or packs_rows(values) else word}


def _read_cast_adapter(value: Any, values: Values) -> Mapping[str, Any]:
    """LoRA of a rank above 0 (models/actor.py:161); DeepSpeed casts it as the base."""
    if type(value) is not int or value < 1:
        return {}
    held = values.get("ds.lora.target_modules", "all-linear")
    targets = held if isinstance(held, list) else [held]
    dropout = values.get("ds.lora.dropout", 0)
    return {
        "adapter.kind": "lora", "adapter.rank": value, "adapter.targets": targets, "adapter.dtype": values.get("ds.param_dtype", "bf16"),
        **({"adapter.dropout": dropout} if dropout else {}),
    }  # fmt: skip


def _optimizer_by_word(value: Any) -> Mapping[str, Any]:
    """DeepSpeed's own Adam (utils/deepspeed/deepspeed.py:385-393)."""
    return {"optimizer.name": "adamw" if value == "adam" else value}


def _placement_notes(values: Values) -> Mapping[str, Any]:
    """What shares the cards or has others, and what of a row other ranks run, in words."""
    rings = least_one(values, "ds.ring_attn_size", 1) or 1
    ring = {RING: f"{rings} (the sheet is of one rank's part of each row, without what ring attention passes on)"} if rings > 1 else {}  # fmt: skip
    told = _roles_in_words(values)
    return {**ring, **({ROLES: told} if told else {})}


def _roles_in_words(values: Values) -> str:
    """Which models a step has besides the one that trains; nothing where there are none."""
    method = _method_of_program(values)
    if training_program(values) == KD:
        return "distillation: the model alone, without its teacher"
    if not is_rl(values):
        return (
            f"{method.method}: the model alone, without {IN_WORDS[REFERENCE]}"
            if method and method.reference
            else ""
        )
    placed = placed_roles(values) or {}
    own = placed.get(ACTOR)
    others = {word: placed[role] for role, word in IN_WORDS.items() if role in placed}
    shared = [word for word, place in others.items() if place == own]
    apart = [word for word, place in others.items() if place != own]
    estimator = str(values.get("algo.advantage.estimator", "gae"))
    words = [f"{'PPO' if estimator == 'gae' else estimator}: the actor alone"]
    words += [f"{', '.join(shared)} on the same cards"] if shared else []
    words += [f"{', '.join(apart)} on others"] if apart else []
    return "; ".join(words)


def _method_of_program(values: Values) -> Preferences | None:
    """The method of the program; a reference of its own also where adapters train (cli/train_dpo.py:42)."""
    word = {DPO: "dpo", REWARD: "reward", KTO: "kto"}.get(training_program(values))
    return preferences_of(word, own_copy=True)


def _buckets_and_logits(values: Values, asked: Values) -> Iterator[Moved]:
    """DeepSpeed's second bucket, and whole logits."""
    own = {"zero_optimization.stage": values.get("ds.zero_stage", 2)}
    if is_switched_on(values, "ds.overlap_comm") and DEEPSPEED.moves is not None:
        yield from DEEPSPEED.moves({**own, "zero_optimization.overlap_comm": True}, asked)
    if training_program(values) == REWARD:
        return
    low, high = (asked.get("@tokens", 0) * asked.get("@vocab", 0) * each for each in LEARNT)
    why = "logits of all tokens stand in the model's dtype and in fp32 (models/actor.py:267)"
    yield Moved(at="logits", why=why, low_bytes=low, high_bytes=high, instant=Instant.LOSS)


KEYS = (
    *(read_only_row(f"{group}.model_name_or_path", _of_own_group(group, lambda v, _: {"@model": v}), f"{CLI}:579; cli/train_sft.py:214") for group in GROUPS),
    read_only_row(PROGRAM, _read_group_ranks, f"{CLI}; {DS}/deepspeed.py:400"),
    read_only_row("ds.zero_stage", lambda v, _: {"zero": v}, f"{CLI}:306", 2), read_only_row("ds.param_dtype", lambda v, _: with_master(str(v)), f"{CLI}:310", "bf16"),
    read_only_row("ds.adam_offload", lambda v, _: {"offload.optimizer": 1} if v is True else {}, f"{CLI}:321"), read_only_row("ds.zpg", _read_group_hpz, f"{CLI}:320"),
    *(read_only_row(f"{group}.gradient_checkpointing_enable", _of_own_group(group, _read_recompute), f"{CLI}:307; cli/train_sft.py:168", False) for group in GROUPS),
    read_only_row("ds.attn_implementation", _read_packed_attention, f"{CLI}:323", "flash_attention_2"),
    *(read_only_row(at, read_elsewhere, f"{CLI}:360-371") for at in ("ds.packing_samples", "train.dynamic_batch_enable", "ds.lora.target_modules", "ds.lora.dropout")),
    read_only_row("data.max_len", _read_update_batch, f"{CLI}:379; cli/train_dpo.py:318", "2,048, and 512 of pairs"),
    *(read_only_row(at, _read_update_batch, f"{CLI}:362-394") for at in ("train.micro_batch_size", "train.max_tokens_per_gpu")),
    read_only_row("train.batch_size", _read_step, f"{CLI}:394", BATCH),
    read_only_row("ds.lora.rank", _read_cast_adapter, f"{CLI}:366", 0),
    read_only_row("ds.load_in_4bit", lambda v, _: {"quantization.weights": "nf4", "quantization.double_quant": True} if v is True else {}, "models/actor.py:111"),
    read_only_row("actor.optim", lambda v, values: _optimizer_by_word(v) if is_rl(values) else {}, f"{CLI}:454", "adam"),
    read_only_row("optim", lambda v, values: {} if is_rl(values) else _optimizer_by_word(v), "cli/train_sft.py:223", "adam"),
)  # fmt: skip
FORMAT: Format = Format(
    name="openrlhf", file="run.sh", kind="shell", tested=VERSION, engines=(), keys=KEYS, said={"task": "train", "loss": "fused"}, marks=frozenset({PROGRAM}),
    parse=openrlhf_values, absent=_placement_notes, preferences=_method_of_program, moves=_buckets_and_logits, weighed=frozenset({"ds.overlap_comm"}), gradient_sync="every", row=longest_row,
    program_known=lambda values: PROGRAM in values, strict=("",), keys_complete=False, own_processes=True,
    unmodelled={ROLES: (), RING: (), LAUNCHES: (), **UNMODELLED}, known=KNOWN - {key.at for key in KEYS},
)  # fmt: skip
