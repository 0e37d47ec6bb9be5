"""The formulas beside the trace: what memsheet predicts and what the real code allocates on fake tensors,
item by item.

    python benchmarks/agreement.py [--model NAME …] [--place NAME …] [--every | --pairs] [--small] [--device
    cpu] [--processes N] [--json]
    python benchmarks/agreement.py --jobs [--json]
    python benchmarks/agreement.py --random N [--seed S] [--family NAME …] [--json]
    python benchmarks/agreement.py --jobs --random N [--seed S] [--family NAME …] [--method NAME …] [--json]

Every row is one plan: both peaks, how far apart they are, and the item (component and module) that differs
most at any instant, as a share of the traced peak. Optimizers take turns; ``--every`` runs each plan with
each of them; with ``--pairs`` models take turns too, so that every two options of a row meet and no plan is
run twice; ``--small`` shrinks the models. Nothing is asserted; ``--device cpu`` compares a processor's
kernels and gloo; rows beyond the bars (0.5 % of the peak, 1 % for an item) are marked. ``--jobs`` compares
the passes and updates of jobs of several models (``job_agreement.py``; 0.2 % of the peak). ``--random``
compares configurations and plans that nobody chose (``random_plans.py``), and counts their parameters; with
``--jobs`` words of TRL's trainers and every pass of theirs (``random_jobs.py``), for which TRL is installed.
It needs the ``trace`` extra.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import count, product
from multiprocessing import get_context
from typing import Any

from memsheet.account import account_rank
from memsheet.catalog import find_model
from memsheet.errors import InputError
from memsheet.plan.document import plan_document
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.plan.words import request_from
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.sheet import AGREEMENT_PER_MILLE, NOTHING, Sheet, bytes_by_module
from memsheet.timeline import sheet_of, timeline_from
from memsheet.units import GIB

MODELS = ("llama-2-7b", "llama-3.1-8b", "qwen2.5-7b", "llama-3.1-70b")
SEQ_LEN = 2048
SMALL = {
    "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 8,
    "vocab_size": 4000, "layer_types": None, "head_dim": 32,
}  # fmt: skip
"""What a model's config is shrunk to: the same code, seconds in place of minutes."""
PEAK_BAR, ITEM_BAR = AGREEMENT_PER_MILLE / 1000, 0.01
RANDOM_BAR = 0.002

Options = dict[str, Any]

ADAPTER = {"lora_rank": 16}
PLACES: dict[str, tuple[Options, tuple[str, ...]]] = {
    "1 gpu": ({}, ("fp32", "bf16-autocast", "bf16-pure")),
    "fsdp2 1": ({"engine": "fsdp2", "zero": 3}, ("fsdp2-mixed",)),
    "fsdp2 2x4": ({"engine": "fsdp2", "zero": 3, "dp_replicate": 2, "dp_shard": 4}, ("fsdp2-mixed",)),
    "fsdp2 8": ({"engine": "fsdp2", "zero": 3, "dp_shard": 8}, ("fsdp2-mixed", "bf16-pure")),
    "fsdp2 64 tp 8": ({"engine": "fsdp2", "zero": 3, "dp_shard": 8, "tp": 8}, ("fsdp2-mixed", "bf16-pure")),
    "fsdp2 64 tp 4": ({"engine": "fsdp2", "zero": 3, "dp_shard": 16, "tp": 4}, ("fsdp2-mixed", "bf16-pure")),
    "fsdp2 8 lora": ({"engine": "fsdp2", "zero": 3, "dp_shard": 8, **ADAPTER}, ("fsdp2-mixed", "bf16-pure")),
    "lora": (ADAPTER, ("bf16-autocast", "bf16-pure")),
    "qlora": ({**ADAPTER, "quantize": "nf4"}, ("bf16-autocast", "bf16-pure")),
}
"""Where a plan runs and with what, and the precisions it is run in."""

OPTIMIZERS: tuple[Options, ...] = (
    {"optimizer": "adamw", "optimizer_implementation": "foreach"},
    {"optimizer": "adamw", "optimizer_implementation": "fused"},
    {"optimizer": "adamw", "optimizer_implementation": "loop"},
    {"optimizer": "sgd_momentum", "optimizer_implementation": "foreach"},
)


COMPUTED = (("sdpa", "eager"), ("none", "full"))
"""Attention, and recomputation."""

EVERY_MODEL = {("fsdp2 8 lora", "bf16-pure", "full")}
"""(place, precision, recompute) that models do not take turns in: a checkpoint's input beside parameters that
are gathered in the width that they are kept in, which the sharded adapter alone has.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """The largest difference of a row. ``share``: (predicted - traced) / traced peak."""

    instant: str
    component: str
    path: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One plan. ``error``: (predicted - traced) / traced peak; ``refused``: why there are no figures."""

    model: str
    plan: str
    traced_bytes: int = 0
    predicted_bytes: int = 0
    error: float = 0.0
    item: Item | None = None
    seconds: float = 0.0
    refused: str | None = None
    parameters_off: int = 0  # predicted less built, where they are compared

    @property
    def holds(self) -> bool:
        """Within both bars."""
        return (
            not self.refused
            and abs(self.error) <= PEAK_BAR
            and (self.item is None or abs(self.item.share) <= ITEM_BAR)
        )


def plans(places: Iterable[str], *, every: bool) -> Iterator[tuple[str, Options]]:
    """(its name, its options) of every plan."""
    turn = 0
    for place in places:
        for precision, attention, recompute in product(PLACES[place][1], *COMPUTED):
            for optimizer in OPTIMIZERS if every else (OPTIMIZERS[turn % len(OPTIMIZERS)],):
                yield named_plan(place, precision, attention, recompute, optimizer)
            turn += 1


def covering_plans(models: Sequence[str], places: Iterable[str]) -> Iterator[tuple[str, str, Options]]:
    """(model, its plan's name, its options): each place, precision and recomputation once, attention, models
    and optimizers in turn.

    Every two of model, place, precision, attention, recomputation and optimizer meet (a covering array of
    strength 2), and every three of place, precision and recomputation, and of place, attention and
    recomputation. A place of one precision, and a precision of one place, would else be in too few plans for
    that: they have all four of what is computed.
    """
    for begin, place in zip(count(0, 2), places, strict=False):  # so that none keeps step with the rest
        for turn, (precision, attention, recompute) in enumerate(_computed_in_turn(PLACES[place][1]), begin):
            plan = named_plan(place, precision, attention, recompute, OPTIMIZERS[turn % len(OPTIMIZERS)])
            whole = (place, precision, recompute) in EVERY_MODEL
            yield from ((model, *plan) for model in (models if whole else (models[turn % len(models)],)))


def _computed_in_turn(precisions: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """(precision, attention, recomputation) of the plans of a place."""
    attentions, recomputes = COMPUTED
    for number, precision in enumerate(precisions):
        for other, recompute in enumerate(recomputes):
            turn = (number + other) % len(attentions)
            every = len(precisions) == 1 or sum(precision in kinds for _, kinds in PLACES.values()) == 1
            yield from (
                (precision, each, recompute) for each in (attentions if every else (attentions[turn],))
            )


def named_plan(
    place: str, precision: str, attention: str, recompute: str, optimizer: Options
) -> tuple[str, Options]:
    """A plan's name and options."""
    name = ", ".join((place, precision, attention, f"recompute {recompute}", *optimizer.values()))
    return name, {
        **PLACES[place][0],
        "precision": precision,
        "attention": attention,
        "recompute": recompute,
        **optimizer,
    }


def compared(model: str, name: str, config: Mapping[str, Any], options: Options, device: str = "cuda") -> Row:
    """One plan, predicted and traced in this process: of its stages the one that is farthest apart.
    ``options``: a request; ``device``: "cuda" or "cpu".
    """
    start = time.perf_counter()
    spec = read_hf_config(config, name=model)
    try:
        plan = resolve_request({**options, "task": "train"}, spec, real=True).plan
        stages = range(plan.mesh.pp)
        predicted = [account_rank(spec, plan, stage=stage, device=device) for stage in stages]
        traced = _traced(config, spec, plan, device)
    except InputError as error:
        return Row(model=model, plan=name, refused=" ".join(str(error).split()))
    rows = [
        _row_of_stage(Row(model=model, plan=name), *sheets) for sheets in zip(traced, predicted, strict=True)
    ]
    worst = max(rows, key=lambda row: abs(row.error))
    return replace(worst, seconds=time.perf_counter() - start)


def _row_of_stage(named: Row, traced: Sheet, predicted: Sheet) -> Row:
    peak, guess = int(traced.peak.value), int(predicted.peak.value)
    return replace(
        named,
        traced_bytes=peak,
        predicted_bytes=guess,
        error=(guess - peak) / peak,
        item=_worst(traced, predicted),
    )


def _traced(config: Mapping[str, Any], spec: ModelSpec, plan: Plan, device: str) -> list[Sheet]:
    """Of the first rank of each pipeline stage."""
    from memsheet.questions.traced import repeated_layer_depth
    from memsheet.trace.requests import answer

    stages = int(plan.mesh.pp)
    asked = {
        "config": dict(config), "plan": plan_document(plan), "device": device, "scratch": False,
        "ranks": [stage * int(plan.mesh.gpus) // stages for stage in range(stages)], "depth": repeated_layer_depth(spec),
    }  # fmt: skip
    with warnings.catch_warnings(action="ignore"):
        found = answer(asked)["timelines"]
    return [sheet_of(timeline_from(each["events"])) for each in found]


def _worst(traced: Sheet, predicted: Sheet) -> Item:
    """The item that differs most, over all instants."""
    peak, found = int(traced.peak.value), Item(instant="", component="", path="", share=0.0)
    for instant in traced.instants:
        left, right = bytes_by_module(traced, instant), bytes_by_module(predicted, instant)
        for key in left | right:
            share = (int(right.get(key, NOTHING).value) - int(left.get(key, NOTHING).value)) / peak
            if abs(share) > abs(found.share):
                found = Item(instant=instant.value, component=key[0].value, path=key[1], share=share)
    return found


def asked_plans(
    models: Sequence[str], places: Sequence[str], *, every: bool, pairs: bool
) -> Iterator[tuple[str, str, Options]]:
    """(model, its plan's name, its options) of all that is asked."""
    if pairs:
        yield from covering_plans(models, places)
    else:
        yield from (
            (model, name, options) for model in models for name, options in plans(places, every=every)
        )


def rows(
    models: Sequence[str], asked: Iterable[tuple[str, str, Options]], *, small: bool, device: str, jobs: int
) -> Iterator[Row]:
    """Every plan that is asked, as they are done."""
    shrunk = SMALL if small else {}
    configs = {model: {**find_model(model)["config"], **shrunk} for model in models}
    shapes = {"seq_len": 512 if small else SEQ_LEN}
    cases = [
        (model, name, configs[model], request_from({**options, **shapes}), device)
        for model, name, options in asked
    ]
    if jobs == 1:
        yield from map(compared, *zip(*cases, strict=True))
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(compared, *zip(*cases, strict=True))


def line(row: Row) -> str:
    """A row as text."""
    head = f"{row.model:14s} {row.plan:70s}"
    if row.refused:
        return f"{head} refused: {row.refused[:100]}"
    assert row.item is not None
    worst = (
        f"{row.item.share:+.3%} {row.item.component} {row.item.path} at {row.item.instant}"
        if row.item.share
        else "none"
    )
    sizes = f"{row.traced_bytes / GIB:9.3f} {row.predicted_bytes / GIB:9.3f} GiB {row.error:+9.4%}"
    return f"{head} {sizes}  {'' if row.holds else 'BEYOND '}item {worst}  {row.seconds:.1f} s"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", nargs="*", default=MODELS)
    parser.add_argument("--place", nargs="*", default=tuple(PLACES), choices=tuple(PLACES))
    parser.add_argument("--every", action="store_true", help="each plan with each optimizer")
    parser.add_argument(
        "--pairs",
        action="store_true",
        help="each plan once, models and optimizers in turn: every two options meet",
    )
    parser.add_argument("--small", action="store_true", help="small models of the same families")
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda",
        help="whose kernels, and whose network: cpu has gloo",
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--jobs", action="store_true", help="phases of jobs of several models")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="models and plans drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", nargs="*", default=(), help="of those that are drawn")
    parser.add_argument("--method", nargs="*", default=(), help="of the trainers' that are drawn")
    options = parser.parse_args(argv)
    if options.random and options.jobs:
        from random_jobs import random_table

        asked_jobs = (options.random, options.seed, tuple(options.method), tuple(options.family))
        return random_table(*asked_jobs, as_json=options.json)
    if options.random:
        found = list(random_rows(options.random, options.seed, tuple(options.family), as_json=options.json))
        if not options.json:
            print(random_summary(found))
        return 0
    if options.jobs:
        return job_table(as_json=options.json)
    done = []
    asked = asked_plans(options.model, options.place, every=options.every, pairs=options.pairs)
    for row in rows(options.model, asked, small=options.small, device=options.device, jobs=options.processes):
        done.append(row)
        print(json.dumps(asdict(row)) if options.json else line(row), flush=True)
    if not options.json:
        print(summary(done))
    return 0


def random_rows(count: int, seed: int, families: tuple[str, ...], *, as_json: bool) -> Iterator[Row]:
    """Cases that nobody chose, in this process, each printed as it is done."""
    from random_plans import drawn_cases

    for case in drawn_cases(count, seed, families):
        row = _random_row(case)
        print(json.dumps(asdict(row)) if as_json else line(row), flush=True)
        yield row


def _random_row(case: Any) -> Row:
    from random_plans import parameters_off, plan_of_case, request_of

    if case.refused is not None:
        return Row(
            model=case.family, plan=case.name, refused=case.refused or "its layers are not written down"
        )
    try:
        row = compared(case.family, case.name, case.config, request_of(case.options))
        off = parameters_off(case.config, plan_of_case(case.config, case.options))
    except Exception as error:  # noqa: BLE001 - what the library's own code does not run is a row of the table
        return Row(model=case.family, plan=case.name, refused=f"trace: {type(error).__name__}: {error}")
    return replace(row, parameters_off=off)


def random_summary(done: Sequence[Row]) -> str:
    """How many agree, and how closely."""
    run = [row for row in done if not row.refused]
    counts = ", ".join(
        f"{sum(abs(row.error) <= bar for row in run)} within {bar:.2%}" for bar in (0.0005, RANDOM_BAR)
    )
    own = sum(row.parameters_off != 0 for row in run)
    return f"{len(done)} drawn, {len(done) - len(run)} refused; of {len(run)} {counts}; parameters off: {own}"


def job_table(*, as_json: bool) -> int:
    """Phases of jobs, each with its line, and how many hold."""
    from job_agreement import BAR, table

    found = []
    for row, told in table():
        found.append(row)
        print(json.dumps({**asdict(row), "error": row.error}) if as_json else told, flush=True)
    if not as_json:
        worst = max(found, key=lambda row: abs(row.error))
        held = sum(row.holds for row in found)
        print(f"{held} of {len(found)} within {BAR:.1%} of the peak; worst {worst.error:+.4%} ({worst.name})")
    return 0


def summary(done: Sequence[Row]) -> str:
    """How many hold, and the worst of them."""
    run = [row for row in done if not row.refused]
    if not run:
        return f"0 of {len(done)} plans were compared"
    peak = max(run, key=lambda row: abs(row.error))
    item = max(run, key=lambda row: abs(row.item.share) if row.item else 0.0)
    share = item.item.share if item.item else 0.0
    return (
        f"{sum(row.holds for row in run)} of {len(run)} plans within {PEAK_BAR:.1%} of the peak and "
        f"{ITEM_BAR:.0%} for every item; "
        f"{len(done) - len(run)} refused; worst peak {peak.error:+.4%} ({peak.model}, {peak.plan}); worst "
        f"item {share:+.3%} "
        f"({item.model}, {item.plan})"
    )


if __name__ == "__main__":
    sys.exit(main())
