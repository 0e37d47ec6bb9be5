"""Mistakes of how a job is cut and what it recomputes, whatever file says so. Each cure is accounted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.mistakes.case import Case, FoundMistake, Rule, answer_fits
from memsheet.plan.plan import Schedule

_ALL_OF_RECOMPUTE = ("modules", "every", "layers", "segments")


def _starved_pipeline(case: Case) -> Iterator[FoundMistake]:
    """(pp − 1) of every so many slots of a pipeline are empty; layers that one process spreads are none: no
    number of micro-batches fills their stages.
    """
    plan = case.trained
    if plan is None or plan.mesh.pp == 1 or plan.schedule is Schedule.NAIVE:
        return
    rounds, stages = int(plan.accumulation), int(plan.mesh.pp)
    chunks = int(plan.mesh.vpp)
    if rounds < stages:
        idle = 100 * (stages - 1) // (chunks * rounds + stages - 1)
        yield FoundMistake(
            where="mesh.pp",
            says=f"{rounds} micro-batches for {stages} stages: a stage waits {idle} % of a step",
            cure=f"a global batch of {stages} or more micro-batches, or fewer stages",
        )


def _across_nodes(case: Case) -> Iterator[FoundMistake]:
    cluster, plan = (case.answer.cluster, case.answer.plan) if case.answer else (None, None)
    if (
        cluster is not None
        and plan is not None
        and cluster.nodes > 1
        and int(plan.mesh.tp) > cluster.per_node
    ):
        yield FoundMistake(
            where="mesh.tp",
            says=(
                f"{int(plan.mesh.tp)} ranks on nodes of {cluster.per_node}: every layer's sums cross the "
                "network"
            ),
            cure=f"tp {cluster.per_node} or fewer, and pp for the rest",
        )


def _needless_recompute(case: Case) -> Iterator[FoundMistake]:
    none = {"recompute.mode": "none", **{f"recompute.{key}": None for key in _ALL_OF_RECOMPUTE}}
    if case.request.get("offload.activations"):  # of what recompute keeps
        none["offload.activations"] = None
    if (
        case.request.get("recompute.mode") == "full"
        and answer_fits(case.answer)
        and answer_fits(case.ask(none))
    ):
        yield FoundMistake(
            where="recompute",
            says=_forward_twice(case),
            cure="leave recompute out",
            changes=none,
            fits="without",
        )


def _forward_twice(case: Case) -> str:
    """The layers that are recomputed, and what that costs each."""
    asked, stacks = case.request.get("recompute.layers"), case.model.stacks if case.model else ()
    layers = sum(len(run.pattern) * run.count for stack in stacks for run in stack.runs)
    if isinstance(asked, int) and asked < layers:
        return f"{asked} of {layers} layers run forward twice, a third more work of theirs"
    return "every layer runs forward twice, a third more work"


def _beyond_positions(case: Case) -> Iterator[FoundMistake]:
    length, most = _longest_row(case), case.model.max_positions if case.model else None
    if isinstance(length, int) and most and length > most:
        yield FoundMistake(
            where="seq_len",
            says=(
                f"{length:,} tokens, and {case.model.name if case.model else 'the model'} has positions "
                f"for {most:,}"
            ),
            cure=f"{most:,}, or another rope_scaling in the model's configuration",
        )


def _longest_row(case: Case) -> Any:
    """Positions begin anew in each row of those that are packed together."""
    rows = [read.form.row(read.values) for read in case.reads.values() if read.form.row]
    return max((row for row in rows if row), default=None) if rows else case.request.get("seq_len")


def _whole_vocabulary(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values("torchtitan", "torchtitan-toml"):
        if (
            values.get("parallelism.disable_loss_parallel") is True
            and (case.request.get("mesh.tp") or 1) != 1
        ):
            yield FoundMistake(
                where=f"{name}: parallelism.disable_loss_parallel",
                says="gathers every tensor-parallel rank's part of the logits",
                cure="leave it out",
                changes={"loss": "vocab_parallel"},
            )


def _async_tp_uncompiled(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values("torchtitan", "torchtitan-toml"):
        parts = values.get("compile.components", ["model"])
        compiled = values.get("training.compile") is True or (
            values.get("compile.enable") is True and "model" in parts
        )
        older = values.get("parallelism.enable_async_tensor_parallel") is True and not compiled
        newer = values.get("compile.enable_async_tensor_parallel") is True and not compiled
        if older or newer:
            yield FoundMistake(
                where=f"{name}: enable_async_tensor_parallel",
                says="needs the model compiled; torchtitan stops",
                cure="training.compile = true" if older else "compile enable=True",
                stops=True,
            )


def _unconverted(case: Case) -> Iterator[FoundMistake]:
    """Its oldest releases had a switch in the table itself."""
    for name, values in case.values("torchtitan-toml"):
        named = str(values.get("model.converters", "")) + str(values.get("float8.enable_float8_linear", ""))
        table = next((t for t in ("quantize.linear.float8", "float8") if _has_table(values, t)), None)
        if table and "float8" not in named and "True" not in named:
            yield FoundMistake(
                where=f"{name}: {table}",
                says="is read where model.converters names it; as it is, no product is in eight bits",
                cure=f'model.converters = ["{table}"]',
            )


def _has_table(values: Mapping[str, Any], table: str) -> bool:
    return any(at.startswith(f"{table}.") for at in values)


_NARAYANAN = "Narayanan et al. 2021, Efficient Large-Scale Language Model Training on GPU Clusters"
SHAPE = (
    Rule(id="starved-pipeline", source=f"{_NARAYANAN}, section 2.2", looks=_starved_pipeline),
    Rule(id="tp-across-nodes", source=f"{_NARAYANAN}, section 3.2, takeaway 1", looks=_across_nodes),
    Rule(id="recompute-without-need", source="Korthikanti et al. 2022, section 1: 30 to 40 % more time", looks=_needless_recompute, only_if_whole=True),
    Rule(id="beyond-positions", source="Chen et al. 2023, Extending Context Window of Large Language Models via Positional Interpolation, section 1", looks=_beyond_positions),
    Rule(id="gathered-logits", source="torchtitan 820504e torchtitan/config_manager.py:298", looks=_whole_vocabulary),
    Rule(id="unconverted-float8", source="pytorch/torchtitan pull request 823: docs/float8.md", looks=_unconverted),
    Rule(id="async-tp-uncompiled", source="torchtitan 820504e models/llama3/parallelize_llama.py:54; b5bcd76 config/configs.py:306", looks=_async_tp_uncompiled),
)  # fmt: skip
