"""slime's launches (``python3 train.py --colocate … ${MODEL_ARGS[@]}``): a trainer on Megatron-Core and
SGLang's servers, in one command's flags.

The sheet is of the trainer; what shares its cards is told, and makes a job with it. Lines are of THUDM/slime
at 624b824, under slime.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange import find_format
from memsheet.exchange.formats.slime.launches import (
    LAUNCHES,
    MODEL,
    SWITCHES,
    VALUED,
    slime_values,
)
from memsheet.exchange.formats.slime.roles import (
    COLOCATE,
    actor_ranks,
    has_servers,
    longest_sequence,
    packed_batch,
    reads_reference,
    trains_values,
)
from memsheet.exchange.shared.file_format import Format, Moved, Values
from memsheet.exchange.shared.read_only_rows import read_only_row
from memsheet.frozen import replace
from memsheet.late import late_functions
from memsheet.sheet import Instant

with late_functions(__name__):
    from memsheet.exchange.shared.launch_values import is_switched_on, least_one


MEGATRON = find_format("megatron")
VERSION = "slime 624b824"
ARGS, OWN_ARGS = "utils/arguments.py", "backends/megatron_utils/arguments.py"
ROLES = "$.roles"
FUSION, FUSED_BY = "--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl"
"""Of Megatron-LM's own loss, which slime's stands for."""
LEFT_OUT = (
    "--nnodes",
    "--nproc-per-node",
    "--micro-batch-size",
    "--seq-length",
    "--global-batch-size",
    FUSION,
)
USUAL: Mapping[str, Any] = {"--use-distributed-optimizer": True, "--bf16": True, "--moe-token-dispatcher-type": "alltoall"}  # fmt: skip
"""What it sets whatever is said (backends/megatron_utils/arguments.py:96, 151-157)."""


def _read_actor_ranks(_: Any, values: Values) -> Mapping[str, Any]:
    ranks = actor_ranks(values)
    return {"@gpus": ranks} if ranks else {}


def _read_packed_batch(_: Any, values: Values) -> Mapping[str, Any]:
    return {**packed_batch(values), "?seq_len_kind": "maximum"}


def _logits_moved(values: Values, asked: Values) -> Iterator[Moved]:
    """What its own loss holds beyond logits in sixteen bits: fp32 and their softmax, of a rank's part
    (utils/ppo_utils.py:215-330).
    """
    degrees = [least_one(values, f"--{name}-parallel-size", 1) or 1 for name in ("tensor-model", "context")]
    elements = asked.get("@tokens", 0) * asked.get("@vocab", 0) // (degrees[0] * degrees[1])
    why = "logits of all tokens stand in fp32, and their softmax beside them (utils/ppo_utils.py:215-330)"
    yield Moved(at="logits", why=why, low_bytes=4 * elements, high_bytes=8 * elements, instant=Instant.LOSS)


def _server_notes(values: Values) -> Mapping[str, Any]:
    """What shares the cards, in words, and what of Megatron-LM's flags the sheet is without."""
    taken = {**USUAL, **values}
    of_megatron = {at: held for at, held in MEGATRON.absent(taken).items() if at != "$.vocabulary"}
    if not has_servers(values):
        return of_megatron
    others = ["SGLang"] + (["the critic"] if trains_values(values) else [])
    passes = ", and the reference's weights are switched in" if reads_reference(values) else ""
    where = "on the same cards" if is_switched_on(values, COLOCATE) else "on cards of its own"
    name = str(values.get("--advantage-estimator", "grpo")).upper()
    return {**of_megatron, ROLES: f"{name}: the actor alone; {' and '.join(others)} {where}{passes}"}


KEYS = (
    read_only_row(MODEL, lambda v, _: {"@model": v}, f"{ARGS}:307"),
    *(read_only_row(f"--actor-num-{name}", _read_actor_ranks, f"{ARGS}:39-43", usual) for name, usual in (("nodes", 1), ("gpus-per-node", 8))),
    *(read_only_row(at, _read_packed_batch, f"{ARGS}:747-780") for at in (
        "--use-dynamic-batch-size", "--max-tokens-per-gpu", "--micro-batch-size", "--rollout-max-response-len", "--rollout-max-context-len", "--rollout-max-prompt-len",
    )),
    *(replace(row, out=lambda _: None, usual=USUAL.get(row.at, row.usual)) for row in MEGATRON.keys if row.at not in LEFT_OUT),
)  # fmt: skip
UNMODELLED: Mapping[str, tuple[Any, ...]] = {
    ROLES: (), LAUNCHES: (), **MEGATRON.unmodelled,
    **{f"--{name}": (False,) for name in (
        "balance-by-flops", "enable-mtp-training", "use-stateless-adam", "use-routing-replay", "use-rollout-routing-replay", "release-train",
        "recompute-loss-function", "allgather-cp", "freeze-indexer",
    )},
    **{f"--{name}": () for name in (
        "freeze-params-name-list", "only-train-params-name-list", "custom-model-provider-path", "megatron-config-path", "custom-config-path", "multimodal-keys",
        "megatron-deepgemm-forward-layers", "megatron-deepgemm-forward-modules", "megatron-deepgemm-moe-forward-layers", "megatron-deepgemm-moe-forward-modules",
        "train-env-vars", "rollout-external-engine-addrs",
    )},
    "--qwen-gdn-backend": ("fla",),
}  # fmt: skip
FORMAT: Format = Format(
    name="slime", file="run.sh", kind="shell", tested=VERSION, engines=(), keys=KEYS, said={**MEGATRON.said, "loss": "fused"}, moves=_logits_moved, marks=frozenset({MODEL}), parse=slime_values,
    absent=_server_notes, model=MEGATRON.model, program_known=lambda _: True, row=longest_sequence, own_processes=True, keys_complete=False, unmodelled=UNMODELLED,
    known=(MEGATRON.known | SWITCHES | VALUED | {"--global-batch-size", "--seq-length", "sglang.*", FUSION, FUSED_BY, "--use-gated-attention"}) - set(UNMODELLED) - {key.at for key in KEYS},
)  # fmt: skip
