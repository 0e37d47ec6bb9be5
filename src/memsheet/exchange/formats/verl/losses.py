"""What verl holds at the loss beyond the sheet's, and beside the trained model on the same cards.

Log-probabilities of the answers take the place of a mean cross-entropy: without entropy the logits stand
once and their gradient is written over them (utils/torch_functional.py:73-110), with it the probabilities
stand beside them (:215-231). Lines are of volcengine/verl at b178a3cd5, under verl.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.formats.verl.strategies import (
    ACTOR,
    MODEL,
    OF_ENGINES,
    ROLLOUT,
    SUPERVISED,
    VEOMNI,
    engine_place,
    held_value,
    is_on,
    is_sharded,
    model_place,
    parallel_degree,
    program_of,
    release_of,
    sequence_ranks,
    strategy_of,
    trains_actor,
    verl_row,
)
from memsheet.exchange.shared.file_format import Key, Moved, Values

ROLES = "$.roles"
ULYSSES = "$.ulysses"
ENTROPY = ("entropy_coeff", "calculate_entropy", "entropy_checkpointing", "entropy_from_logits_with_chunking")
WEIGHED = frozenset(
    {f"{ACTOR}.{name}" for name in ENTROPY} | {f"{place}.{name}" for place in (f"{ACTOR}.fsdp_config", "engine") for name in ENTROPY}
)  # fmt: skip
MOVED_BACK = ("param_offload", "optimizer_offload", "grad_offload")
OFFLOADS = frozenset(
    f"{place}.{name}"
    for place in (f"{ACTOR}.fsdp_config", f"{ACTOR}.megatron", "engine")
    for name in MOVED_BACK
)
LOGIT, WIDE = 2, 4
"""Bytes of a logit in sixteen bits, and of its probability in fp32 (autocast of softmax)."""
Range = tuple[int, int, int]
WHOLE, COMPILED, EAGER, OPEN = "whole", "compiled", "eager", "open"
"""How entropy is made of logits: not at all, by a compiled function, by operations one by one, or nobody
knows which.
"""
OF_ENTROPY: Mapping[str, Range] = {
    WHOLE: (0, 0, 0),
    COMPILED: (0, 0, 0),
    EAGER: (12, 12, 14),
    OPEN: (0, 0, 14),
}
LEARNT: Mapping[str, Range] = {WHOLE: (4, 4, 4), COMPILED: (6, 6, 6), EAGER: (26, 28, 32), OPEN: (6, 16, 32)}
"""Bytes that entropy adds to a logit where it is only read, and of a logit where it is learnt from, counted
of the same operations. Autocast's probabilities in fp32 and what log-sum-exp makes beside them are three
copies of four bytes (utils/torch_functional.py:226-228). Compiled, the forward makes none of them and the
backward the gradient alone: pytorch/pytorch v2.13.0 torch/_inductor/ir.py, should_realize_on_reuse, inlines
them into their reductions on a GPU.
"""
COPIED, SPARED = (0, 9), (0, 9, 1)
"""The releases since which logits are divided by the temperature into a second tensor, beside which the first
is there as long as they are read, and are left alone where it is one (verl 0.9.0
verl/workers/engine/fsdp/transformer_impl.py:1352, 0.9.1 :98-103); in place before (0.8.0 :1112; 0.3.0
verl/workers/actor/dp_actor.py:117).
"""
TEMPERATURE = f"{ROLLOUT}.temperature"
CHUNK, OF_CHUNK = 2048, 16
"""Rows of logits that entropy in chunks is made of at once, and bytes of one of them: in fp32, its
probability, their product, and the exponential (utils/torch_functional.py:233-251).
"""
CRITICS = ("gae",)
"""Estimators of advantages that train a critic (trainer/ppo/core_algos.py)."""


def _advantage_estimator(values: Values) -> str:
    return str(held_value(values, "algorithm.adv_estimator", "gae")).rpartition(".")[2]


def has_critic(values: Values) -> bool:
    """Whether a model of values trains beside the actor: as it is said, else where the estimator has one
    (trainer/ppo/utils.py:86-97).
    """
    usual = _advantage_estimator(values) in CRITICS
    return is_on(values, "critic.enable", usual=usual)


def roles_beside(values: Values) -> Mapping[str, Any]:
    """Which models share the cards with the actor, in words (trainer/ppo/ray_trainer.py: one pool of GPUs for
    all of them); nothing in fine-tuning.
    """
    if not trains_actor(values):
        return {}
    hybrid = is_on(values, "actor_rollout_ref.hybrid_engine", usual=True)
    others = ["the rollout engine"] if hybrid else []
    if is_on(values, f"{ACTOR}.use_kl_loss", usual=False) or is_on(
        values, "algorithm.use_kl_in_reward", usual=False
    ):
        others.append("the reference")
    others += ["the critic"] if has_critic(values) else []
    others += ["the reward model"] if is_on(values, "reward_model.enable", usual=False) else []
    estimator = _advantage_estimator(values)
    method = "PPO" if estimator in CRITICS else estimator.upper()
    apart = "" if hybrid else ", whose rollout engine has cards of its own"
    return {ROLES: f"{method}: the actor alone{apart}{_on_top(others)}"}


def _on_top(others: list[str]) -> str:
    """That models share the cards, in words; nothing where there are none."""
    if len(others) < 2:
        return f": {others[0]} shares the same cards and comes on top" if others else ""
    return f": {', '.join(others[:-1])} and {others[-1]} share the same cards and come on top"


def shared_sequences(values: Values) -> Mapping[str, Any]:
    """Ulysses' ranks, whose exchanges the sheet does not hold (utils/ulysses.py)."""
    ranks = sequence_ranks(values)
    words = "(the sheet is of one rank's part of each sequence, without the exchange of heads)"
    return {ULYSSES: f"{ranks} {words}"} if ranks and ranks > 1 else {}


def _reads_loss(values: Values) -> bool:
    """Whether the loss is made of log-probabilities of whole logits, by FSDP's actor or engine."""
    return is_sharded(values) and program_of(values) != SUPERVISED


def _has_fused_kernels(values: Values) -> bool:
    of_model = is_on(values, f"{model_place(values)}.use_fused_kernels", usual=False)
    return is_on(values, f"{ACTOR}.use_fused_kernels", usual=of_model)


def _read_fused_kernels(value: Any, values: Values) -> Mapping[str, Any]:
    """A loss without whole logits stands for both: what whole ones add is told beside the sheet. In
    Megatron-Core the logits of a rank's part of the vocabulary in fp32.
    """
    if program_of(values) == SUPERVISED:
        return {"loss": "plain"}
    if not is_sharded(values):
        return {"loss": "fused" if str(value).lower() == "true" else "plain"}
    return {"loss": "fused"}


def _says_entropy(values: Values) -> bool:
    """Whether entropy is part of the update (workers/actor/dp_actor.py:570)."""
    coefficient = held_value(values, f"{ACTOR}.entropy_coeff", 0)
    return is_on(values, f"{ACTOR}.calculate_entropy", usual=False) or coefficient not in (0, 0.0)


def _makes_entropy(values: Values) -> str:
    """How entropy is made where it is (workers/actor/dp_actor.py:80-93, of padded rows never compiled;
    1dda039 trainer/config/engine/fsdp.yaml:54, veomni.yaml:41); those that are read as verl's make none of
    what is read (hiyouga/EasyR1 b44b311 workers/actor/dp_actor.py:130), or in chunks.
    """
    if _is_chunked(values):
        return OPEN
    usual = strategy_of(values) != VEOMNI
    of_actor = is_on(values, f"{ACTOR}.use_torch_compile", usual=usual)
    compiles = is_on(values, f"{engine_place(values)}.use_torch_compile", usual=of_actor)
    padless = is_on(values, f"{MODEL}.use_remove_padding", usual=True)
    return COMPILED if compiles and padless else EAGER


def _is_chunked(values: Values) -> bool:
    name = "entropy_from_logits_with_chunking"
    return any(is_on(values, f"{place}.{name}", usual=False) for place in (ACTOR, engine_place(values)))


def _divided_logit_bytes(values: Values) -> Range:
    """Bytes of a logit that is divided by the temperature: once or twice in sixteen bits, by the release.
    Where padding stays, what is read is sliced and copied once more.
    """
    release, spared = release_of(values), held_value(values, TEMPERATURE, 1) == 1
    least, most = LOGIT, 2 * LOGIT
    if release:
        least = most = 2 * LOGIT if release >= COPIED and not (spared and release >= SPARED) else LOGIT
    usual = least if spared else most
    return least, usual, most if is_on(values, f"{MODEL}.use_remove_padding", usual=True) else 2 * LOGIT


def read_logit_bytes(values: Values, tokens: int, *, entropy: bool) -> Range:
    """Bytes of a logit of FSDP's actor that is read, of a pass of so many ``tokens``."""
    divided = _divided_logit_bytes(values)
    low, value, high = (
        own + more
        for own, more in zip(divided, OF_ENTROPY[_makes_entropy(values) if entropy else WHOLE], strict=True)
    )
    if entropy and _is_chunked(values) and tokens:
        high = min(high, divided[2] + -(-OF_CHUNK * min(CHUNK, tokens) // tokens))
    return low, value, high


def learnt_logit_bytes(values: Values) -> Range:
    """Bytes of a logit of FSDP's actor that is learnt from, with entropy where it is part of the update."""
    return LEARNT[_makes_entropy(values) if _says_entropy(values) else WHOLE]


def logits_moved(values: Values, asked: Values) -> Iterator[Moved]:
    """Bytes of whole logits beyond a sheet without them. ``asked``: ``@tokens`` of a rank's micro-batch and
    the model's ``@vocab``.
    """
    elements = asked.get("@tokens", 0) * asked.get("@vocab", 0)
    if not elements:
        return
    if not is_sharded(values):
        if trains_actor(values) and _says_entropy(values) and not _has_fused_kernels(values):
            why = (
                "with entropy the logits are copied and their probabilities stand beside them "
                "(workers/actor/megatron_actor.py:649-657)"
            )
            ranks = (parallel_degree(values, "tensor_model") or 1) * (parallel_degree(values, "context") or 1)
            most = elements // ranks * (LOGIT + 2 * WIDE)
            yield Moved(at=f"{ACTOR}.entropy_coeff", why=why, low_bytes=0, high_bytes=most)
        return
    if not _reads_loss(values) or _has_fused_kernels(values):
        return
    once = elements * LOGIT
    why = (
        "logits of all tokens stand once in sixteen bits, their gradient is written over them "
        "(utils/torch_functional.py:104) and divided by the temperature once more"
    )
    if not (trains_actor(values) and _says_entropy(values)):
        copied = 2 if program_of(values) == OF_ENGINES else 1
        yield Moved(at="logits", why=why, low_bytes=once, high_bytes=once * (copied + 1))
        return
    why = (
        "logits of all tokens, their gradient, and what entropy is made of "
        "(workers/actor/dp_actor.py:262-276)"
    )
    least, _, most = learnt_logit_bytes(values)
    yield Moved(at=f"{ACTOR}.entropy_coeff", why=why, low_bytes=elements * least, high_bytes=elements * most)


def offload_moved(values: Values) -> Iterator[Moved]:
    """Offload by hand, which ends where the update begins: nothing of it is off the card then
    (workers/fsdp_workers.py:895-898, workers/megatron_workers.py:744-748).
    """
    named = [
        f"{engine_place(values)}.{name}"
        for name in MOVED_BACK
        if is_on(values, f"{engine_place(values)}.{name}", usual=False)
    ]
    if named:
        why = (
            "the actor's parameters and states are on the card again while it is updated "
            f"({'workers/fsdp_workers.py:895' if is_sharded(values) else 'workers/megatron_workers.py:744'})"
        )
        yield Moved(at=", ".join(named), why=why, low_bytes=0, high_bytes=0)


def verl_bytes_beside(values: Values, asked: Values) -> Iterator[Moved]:
    yield from logits_moved(values, asked)
    yield from offload_moved(values)


def _loss_row(place: str) -> Key:
    def read_loss(value: Any, values: Values) -> Mapping[str, Any]:
        return _read_fused_kernels(value, values) if (place == MODEL) is trains_actor(values) else {}

    return verl_row(
        f"{place}.use_fused_kernels", read_loss, "trainer/config/model/hf_model.yaml:61", usual=False
    )


LOSS_KEYS = tuple(_loss_row(place) for place in (MODEL, "model"))
