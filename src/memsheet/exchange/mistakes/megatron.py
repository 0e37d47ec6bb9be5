"""Mistakes of Megatron-LM's flags: what it refuses, what it overrules in silence, what is kept on every rank
without need.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.formats.megatron import DEALT_MUON, SHARDS, graphs
from memsheet.exchange.mistakes.case import Case, FoundMistake, Rule, device_bytes

TP = "--tensor-model-parallel-size"
FULL = "--recompute-granularity"
LEGACY = "--use-legacy-models"


def _megatron_scripts(case: Case) -> Iterator[tuple[str, Mapping[str, Any]]]:
    return case.values("megatron")


def _data_ranks(case: Case) -> int:
    mesh = case.answer.plan.mesh if case.answer else None
    return int(mesh.data_parallel) if mesh else 0


DIVIDES = ("--use-megatron-fsdp", "--use-torch-fsdp2", "--deepspeed")
"""What else divides states, or leaves it to a file of its own, than the distributed optimizer."""


def _whole_states(case: Case) -> Iterator[FoundMistake]:
    """Muon has a name of its own with its matrices dealt to ranks, which every release that has it takes."""
    for name, values in _megatron_scripts(case):
        own = any(values.get(at) for at in (SHARDS, *DIVIDES))
        if not own and values.get("--optimizer") != DEALT_MUON and _data_ranks(case) > 1:
            muon = values.get("--optimizer") == "muon"
            yield FoundMistake(
                where=f"{name}: {'--optimizer muon' if muon else SHARDS}",
                says=(
                    f"{'is not dealt' if muon else 'is left out'}: each of {_data_ranks(case)} data-parallel "
                    "ranks keeps all optimizer states"
                ),
                cure=f"--optimizer {DEALT_MUON}" if muon else SHARDS,
                changes={"zero": 1},
            )


def _muon_with_shards(case: Case) -> Iterator[FoundMistake]:
    for name, values in _megatron_scripts(case):
        if values.get("--optimizer") in ("muon", DEALT_MUON) and values.get(SHARDS) is True:
            yield FoundMistake(
                where=f"{name}: {SHARDS}",
                says="is refused with muon by core 0.16 and 0.17, and taken since core 0.18",
                cure=f"--optimizer {DEALT_MUON}, which deals its matrices in all of them, without it",
            )


def _whole_norms(case: Case) -> Iterator[FoundMistake]:
    for name, values in _megatron_scripts(case):
        if (values.get(TP) or 1) != 1 and not values.get("--sequence-parallel"):
            yield FoundMistake(
                where=f"{name}: --sequence-parallel",
                says="is left out: every tensor-parallel rank keeps the norms' and dropouts' whole inputs",
                cure="--sequence-parallel",
                changes={"sequence_parallel": True},
            )


def _overruled_granularity(case: Case) -> Iterator[FoundMistake]:
    """``--recompute-activations`` sets selective, whatever the granularity said; a method beside it is
    refused then.
    """
    for name, values in _megatron_scripts(case):
        if values.get("--recompute-activations") and values.get(FULL) == "full":
            yield FoundMistake(
                where=f"{name}: --recompute-activations",
                says="makes recompute selective, over --recompute-granularity full",
                cure="leave --recompute-activations out",
                changes={"recompute.mode": "full", "recompute.modules": None},
                stops="--recompute-method" in values or "--recompute-num-layers" in values,
            )


def _incomplete_options(case: Case) -> Iterator[FoundMistake]:
    for name, values in _megatron_scripts(case):
        mode = "selective" if values.get("--recompute-activations") else values.get(FULL)
        needs = [at for at in ("--recompute-method", "--recompute-num-layers") if at not in values]
        if mode == "full" and needs:
            yield FoundMistake(
                where=f"{name}: {FULL} full",
                says=f"needs {' and '.join(needs)}",
                cure="--recompute-method uniform --recompute-num-layers 1",
                stops=True,
            )
        elif mode == "selective" and len(needs) < 2 and values.get(FULL) == "selective":
            yield FoundMistake(
                where=f"{name}: {FULL} selective",
                says="takes neither --recompute-method nor --recompute-num-layers",
                cure="leave them out",
                stops=True,
            )


def _scope_alone(case: Case) -> Iterator[FoundMistake]:
    """What of a layer is captured, and nobody who captures it."""
    for name, values in _megatron_scripts(case):
        scopes = [at for at in (graphs.SCOPE, graphs.MODULES) if at in values]
        if scopes and not graphs.is_captured(values):
            step = graphs.STEP in graphs.captured_scopes(values)
            yield FoundMistake(
                where=f"{name}: {scopes[0]}",
                says=(
                    "captures the whole step since core 0.18, and nothing before without --enable-cuda-graph"
                    if step
                    else f"has no effect without {graphs.BY}, which is none by default: nothing is captured"
                ),
                cure=f"{graphs.BY} {graphs.STEP if step else 'transformer_engine'}",
            )


_NEEDS: tuple[tuple[str, str, bool], ...] = (
    ("--overlap-param-gather", "--overlap-grad-reduce", True),
    ("--overlap-param-gather", SHARDS, True),
    ("--overlap-param-gather-with-optimizer-step", "--overlap-param-gather", True),
    ("--tp-comm-overlap", "--sequence-parallel", True),
    ("--distribute-saved-activations", "--sequence-parallel", False),
)
"""A switch, another one, and whether it must be there or must not (arguments.py:559-600, 844;
transformer_config.py:860; dist_muon shards by itself: core_v0.17.0 training/arguments.py:858).
"""


def _needs_another(case: Case) -> Iterator[FoundMistake]:
    for name, values in _megatron_scripts(case):
        for switch, other, there in _NEEDS:
            has = bool(values.get(other)) or (
                other == SHARDS
                and (bool(values.get("--use-megatron-fsdp")) or values.get("--optimizer") == DEALT_MUON)
            )
            if values.get(switch) and has is not there:
                yield FoundMistake(
                    where=f"{name}: {switch}",
                    says=f"{'needs' if there else 'cannot go with'} {other}",
                    cure=f"{other}, or leave {switch} out"
                    if there
                    else f"one of the two: leave {switch} out",
                    stops=True,
                )


def _missing_max_connections(case: Case) -> Iterator[FoundMistake]:
    for name, values in _megatron_scripts(case):
        split = any((values.get(at) or 1) != 1 for at in (TP, "--context-parallel-size"))
        if (
            split
            and "CUDA_DEVICE_MAX_CONNECTIONS" not in case.texts[name]
            and not values.get("--use-megatron-fsdp")
        ):
            yield FoundMistake(
                where=f"{name}: CUDA_DEVICE_MAX_CONNECTIONS",
                says=(
                    "is not set in the script; with tensor or context parallelism Megatron-LM stops "
                    "without it before Blackwell"
                ),
                cure="export CUDA_DEVICE_MAX_CONNECTIONS=1",
            )


def _old_switch(case: Case) -> Iterator[FoundMistake]:
    for name, values in _megatron_scripts(case):
        if values.get("--use-flash-attn") and not values.get(LEGACY):
            yield FoundMistake(
                where=f"{name}: --use-flash-attn",
                says="is read by the legacy models alone",
                cure="--attention-backend flash (Transformer Engine)",
            )


def _keeps_scores(case: Case) -> Iterator[FoundMistake]:
    """The local implementation's attention has its scores in memory, whatever the length, as the unfused
    backend has.
    """
    for name, values in _megatron_scripts(case):
        if values.get("--transformer-impl") == "local" and not values.get(LEGACY):
            eager = case.ask({"attention": "eager"})
            more = (
                device_bytes(eager) - device_bytes(case.answer)
                if eager is not None and case.answer is not None
                else None
            )
            yield FoundMistake(
                where=f"{name}: --transformer-impl local",
                says="has no flash attention: each layer keeps the scores of every pair of tokens",
                cure="--transformer-impl transformer_engine, its default",
                saves_bytes=more,
            )


_MASKS = ("--eod-mask-loss", "--sft")


def _mean_of_means(case: Case) -> Iterator[FoundMistake]:
    """Each micro-batch is divided by its own tokens, and then by how many micro-batches there are."""
    rounds = int(case.trained.accumulation) if case.trained else 2
    for name, values in _megatron_scripts(case):
        masked = [at for at in _MASKS if values.get(at)]
        if masked and not values.get("--calculate-per-token-loss") and rounds * max(1, _data_ranks(case)) > 1:
            yield FoundMistake(
                where=f"{name}: {masked[0]}",
                says=(
                    "leaves tokens out, and each micro-batch's loss is divided by its own count: short "
                    "ones weigh more"
                ),
                cure="--calculate-per-token-loss",
            )


def _default_dropout(case: Case) -> Iterator[FoundMistake]:
    for name, values in _megatron_scripts(case):
        taken = [at for at in ("--hidden-dropout", "--attention-dropout") if at not in values]
        if len(taken) == 2:
            yield FoundMistake(
                where=f"{name}: {taken[0]}, {taken[1]}",
                says="are not said, and the default is 0.1: a mask is kept at each place",
                cure="--hidden-dropout 0 --attention-dropout 0",
                changes={"dropout": 0.0},
            )


_ARGS = "NVIDIA/Megatron-LM 23e00ed megatron/training/arguments.py"
_CORE = "NVIDIA/Megatron-LM 23e00ed megatron/core"
MEGATRON = (
    Rule(
        id="states-on-every-rank",
        source=f"{_ARGS}:2412; Rajbhandari et al. 2020, ZeRO, section 5.1",
        looks=_whole_states,
    ),
    Rule(
        id="muon-with-shards",
        source="NVIDIA/Megatron-LM core_v0.17.1 megatron/training/arguments.py:1490; core_v0.18.0 :1552-1563",
        looks=_muon_with_shards,
    ),
    Rule(
        id="no-sequence-parallel",
        source=f"{_ARGS}:1996; Korthikanti et al. 2022, section 4.2.2",
        looks=_whole_norms,
    ),
    Rule(id="recompute-overruled", source=f"{_ARGS}:416, 828", looks=_overruled_granularity),
    Rule(
        id="recompute-half-said",
        source=f"{_CORE}/transformer/transformer_config.py:838-858; {_ARGS}:828",
        looks=_incomplete_options,
    ),
    Rule(
        id="switch-needs-another",
        source=f"{_ARGS}:559-600, 844; {_CORE}/transformer/transformer_config.py:860",
        looks=_needs_another,
    ),
    Rule(
        id="graphs-not-captured",
        source="NVIDIA/Megatron-LM d98e8a64 megatron/training/arguments.py:263-294; 23e00ed :1288",
        looks=_scope_alone,
    ),
    Rule(id="one-connection", source=f"{_ARGS}:849-875", looks=_missing_max_connections),
    Rule(
        id="legacy-flash-switch",
        source=f"{_ARGS}:1960; megatron/legacy/model/transformer.py:541",
        looks=_old_switch,
    ),
    Rule(
        id="attention-keeps-scores",
        source=f"{_CORE}/transformer/dot_product_attention.py:155-175",
        looks=_keeps_scores,
    ),
    Rule(
        id="loss-per-microbatch",
        source=f"{_CORE}/pipeline_parallel/schedules.py:235-240; {_ARGS}:1899",
        looks=_mean_of_means,
    ),
    Rule(id="dropout-by-default", source=f"{_ARGS}:1714-1716", looks=_default_dropout),
)
