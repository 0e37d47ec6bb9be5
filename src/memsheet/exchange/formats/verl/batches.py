"""How many tokens of how many sequences a rank of verl's trainers runs at once, and how often before a step.

Rows of reinforcement learning are as long as the longest prompt and answer together; packed ones are at
most as long. Lines are of volcengine/verl at b178a3cd5, under verl.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memsheet.exchange.formats.verl.strategies import (
    ACTOR,
    MODEL,
    OF_ENGINES,
    ROLLOUT,
    SUPERVISED,
    data_ranks,
    engine_place,
    is_on,
    is_sharded,
    parallel_degree,
    program_of,
    rank_count,
    round_count,
    sequence_ranks,
    trains_actor,
    verl_row,
    whole_number,
)
from memsheet.exchange.shared.file_format import Key, Values

DEFAULTS = "trainer/config"
BUDGET, MICRO, OLD_MICRO, MINI = (
    f"{ACTOR}.{name}"
    for name in ("ppo_max_token_len_per_gpu", "ppo_micro_batch_size_per_gpu", "ppo_micro_batch_size", "ppo_mini_batch_size")
)  # fmt: skip
PROMPT, ANSWER, SAMPLES = "data.max_prompt_length", "data.max_response_length", f"{ROLLOUT}.n"
DYNAMIC, SFT_DYNAMIC, SFT_BUDGET = (
    f"{ACTOR}.use_dynamic_bsz",
    "data.use_dynamic_bsz",
    "data.max_token_len_per_gpu",
)
SFT_LENGTH, SFT_MICRO, SFT_BATCH = "data.max_length", "data.micro_batch_size_per_gpu", "data.train_batch_size"
Relevant = Callable[[Values], bool]


def row_length(values: Values) -> int | None:
    """Tokens of the longest row (config/data/legacy_data.yaml:35-39, config/sft_trainer.yaml:24)."""
    if not trains_actor(values):
        return whole_number(values, SFT_LENGTH, 1024)
    parts = whole_number(values, PROMPT, 512), whole_number(values, ANSWER, 512)
    return parts[0] + parts[1] if parts[0] and parts[1] else None


def with_rows_of(values: Values, length: int) -> Values:
    """The values with rows of ``length`` tokens, a prompt and an answer together, whatever the file says."""
    if not trains_actor(values):
        return {**values, SFT_LENGTH: length}
    prompt = min(whole_number(values, PROMPT, 512) or 1, max(1, length - 1))
    return {**values, PROMPT: prompt, ANSWER: max(1, length - prompt)}


def packs_by_tokens(values: Values) -> bool:
    """Whether a micro-batch is as many rows as its tokens allow (workers/actor/dp_actor.py:550;
    workers/engine/utils.py:74).
    """
    if trains_actor(values):
        return is_on(values, DYNAMIC, usual=False)
    return program_of(values) == OF_ENGINES and is_on(values, SFT_DYNAMIC, usual=True)


def removes_padding(values: Values) -> bool:
    """Whether padding is taken out before the model runs (config/model/hf_model.yaml:40,
    config/engine/megatron.yaml; trainer/fsdp_sft_trainer.py:391 does so for Ulysses alone).
    """
    if program_of(values) == SUPERVISED:
        return is_on(values, "use_remove_padding", usual=False) and (sequence_ranks(values) or 1) > 1
    if not is_sharded(values):
        return is_on(values, f"{engine_place(values)}.use_remove_padding", usual=True)
    return is_on(values, f"{MODEL if trains_actor(values) else 'model'}.use_remove_padding", usual=True)


def rank_rows(values: Values) -> int | None:
    """Rows of a step that one rank, or a group that shares sequences, runs: prompts of a mini-batch times
    their answers, over the ranks (workers/fsdp_workers.py:235-236).
    """
    ranks = data_ranks(values)
    rows = _mini_batch_rows(values)
    return max(1, rows // ranks) if rows and ranks else None


def _mini_batch_rows(values: Values) -> int | None:
    if not trains_actor(values):
        return whole_number(values, SFT_BATCH, 256)
    mini, samples = whole_number(values, MINI, 256), whole_number(values, SAMPLES, 1)
    return mini * samples if mini and samples else None


def _rows_at_once(values: Values) -> int | None:
    """Rows of a micro-batch; the older key counts those of all ranks (workers/fsdp_workers.py:242-246)."""
    if not trains_actor(values):
        return whole_number(values, SFT_MICRO, 4)
    old, ranks = whole_number(values, OLD_MICRO, None), data_ranks(values)
    if old and whole_number(values, MICRO, None) is None:
        return old // ranks or None if ranks else None
    return whole_number(values, MICRO, None)


def read_batch(values: Values) -> Mapping[str, Any]:
    """The micro-batch of a plan: tokens of a rank, rows, and micro-batches of a step. Ranks of Ulysses have
    their part of every row.
    """
    length, shared = row_length(values), sequence_ranks(values)
    if length is None or shared is None:
        micro = None if packs_by_tokens(values) else _rows_at_once(values)
        return {"microbatch": micro} if micro else {}
    if packs_by_tokens(values):
        return _token_budget(values, length, shared)
    micro, rows = _rows_at_once(values), rank_rows(values)
    kind = {"?seq_len_kind": "maximum"} if removes_padding(values) else {}
    accumulation = {"@accumulation": round_count(rows, micro)} if rows and micro else {}
    return {
        "seq_len": _padded_tokens(values, -(-length // shared)),
        "microbatch": micro,
        **accumulation,
        **kind,
    }


def _padded_tokens(values: Values, tokens: int) -> int:
    """Tokens padded to a multiple that Megatron-Core's ranks can divide (models/mcore/util.py:52-53)."""
    if is_sharded(values):
        return tokens
    tensor, context = parallel_degree(values, "tensor_model") or 1, parallel_degree(values, "context") or 1
    multiple = tensor * context * 2 if context > 1 else tensor
    return -(-tokens // multiple) * multiple


def _token_budget(values: Values, length: int, shared: int) -> Mapping[str, Any]:
    """As many tokens as a GPU is said to take, one row's at the least, and no more than a step has."""
    own = (
        whole_number(values, BUDGET, 16384)
        if trains_actor(values)
        else whole_number(values, SFT_BUDGET, 8192)
    )
    if own is None:
        return {}
    group = own * shared * (1 if is_sharded(values) else parallel_degree(values, "context") or 1)
    rows = rank_rows(values)
    tokens = max(length, group if rows is None else min(group, rows * length))
    accumulation = {"@accumulation": round_count(rows * length, tokens)} if rows else {}
    size = _padded_tokens(values, -(-tokens // shared))
    return {"seq_len": size, "microbatch": 1, **accumulation, "?seq_len_kind": "maximum"}


def _read_batch_if(relevant: Relevant) -> Any:
    return lambda _, values: read_batch(values) if relevant(values) else {}


def _batch_row(at: str, usual: Any, source: str, relevant: Relevant) -> Key:
    return verl_row(at, _read_batch_if(relevant), source, usual)


def _learner_counts_rows(values: Values) -> bool:
    return trains_actor(values) and not packs_by_tokens(values)


def _tunes_rows(values: Values) -> bool:
    return not trains_actor(values) and not packs_by_tokens(values)


def _tunes_tokens(values: Values) -> bool:
    return not trains_actor(values) and packs_by_tokens(values)


def _learner_counts_ranks(values: Values) -> bool:
    return trains_actor(values) and rank_count(values) is not None


BATCH_KEYS = (
    _batch_row(PROMPT, 512, f"{DEFAULTS}/data/legacy_data.yaml:35", trains_actor),
    _batch_row(ANSWER, 512, f"{DEFAULTS}/data/legacy_data.yaml:39", trains_actor),
    _batch_row(DYNAMIC, None, f"{DEFAULTS}/actor/actor.yaml:28", trains_actor),
    _batch_row(BUDGET, 16384, f"{DEFAULTS}/actor/actor.yaml:33", lambda values: trains_actor(values) and packs_by_tokens(values)),
    _batch_row(MICRO, None, f"{DEFAULTS}/actor/actor.yaml:24", _learner_counts_rows),
    _batch_row(OLD_MICRO, None, "workers/fsdp_workers.py:242", _learner_counts_rows),
    _batch_row(MINI, 256, f"{DEFAULTS}/actor/actor.yaml:18; workers/fsdp_workers.py:235", _learner_counts_ranks),
    _batch_row(SAMPLES, 1, f"{DEFAULTS}/rollout/rollout.yaml:108", _learner_counts_ranks),
    _batch_row(SFT_LENGTH, 1024, f"{DEFAULTS}/sft_trainer.yaml:24", lambda values: not trains_actor(values)),
    _batch_row(SFT_MICRO, 4, f"{DEFAULTS}/sft_trainer.yaml:8", _tunes_rows),
    _batch_row(SFT_BUDGET, 8192, f"{DEFAULTS}/sft_trainer_engine.yaml:19", _tunes_tokens),
    _batch_row(SFT_DYNAMIC, None, f"{DEFAULTS}/sft_trainer_engine.yaml:20", lambda values: not trains_actor(values)),
    _batch_row(SFT_BATCH, None, f"{DEFAULTS}/sft_trainer.yaml:6", lambda values: not trains_actor(values)),
)  # fmt: skip
