"""Served models that nobody chose: small configurations of every family with sizes drawn at random, and what
is asked of their servers; the sheet beside the library's own code, and beside itself.

    python benchmarks/random_served.py [--count N] [--seed S] [--family NAME …] [--laws] [--json]

A case is its family and its number, as in ``random_plans.py``. The library's own model generates on fake
tensors (``trace/serving_job.py``), with its own cache: parameters, buffers and the full cache are compared as
they are, peaks with the sheet's range. ``--laws`` holds each engine's sheets to what must be true of any, and
prints what is not (``laws_broken``). Nothing is asserted; it needs the ``trace`` extra, and no card.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from random_plans import ATTEMPTS, UNBUILT, Config, Options, drawn_config

from memsheet.account import account_rank
from memsheet.errors import InputError, input_error
from memsheet.formulas.model_code.transformers.plan_problems import has_written_layers
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.plan.words import request_from
from memsheet.readers.hf_config import read_hf_config
from memsheet.readers.registry import FAMILIES
from memsheet.resolve import resolve_request
from memsheet.sheet import Component, Instant, Sheet
from memsheet.timeline import Timeline, live_storages, sheet_of

PEAK_BAR, BUFFER_BAR = 0.002, 0.0005
"""What a peak, and what is known exactly, may be off, as shares of the peak: rotary frequencies are on no
sheet.
"""
OUTSIDE = (Component.ALLOCATOR_SLACK, Component.CONTEXT, Component.UNEXPLAINED)
"""What no tensor is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Off:
    """A figure of the sheet that the library's code does not bear out, in bytes."""

    instant: str
    what: str
    traced_bytes: int
    low_bytes: int
    high_bytes: int

    @property
    def less(self) -> bool:
        """The sheet says less than there is."""
        return self.traced_bytes > self.high_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One case: how far a traced peak lies beyond the sheet's range, as a share of it, and what is off."""

    family: str
    number: int
    options: Options
    beyond: float = 0.0
    width: float = 0.0  # of the widest range, as a share of the peak
    off: tuple[Off, ...] = field(default=())
    refused: str | None = None


def drawn_serving(draw: random.Random) -> Options:
    """Options of a generation by the library, by short names."""
    prompt = draw.choice((draw.randint(1, 40), draw.randint(40, 700), 64 * draw.randint(1, 8)))
    asked: Options = {
        "engine": "transformers", "prompt_tokens": prompt, "max_model_len": prompt + draw.choice((1, 2, draw.randint(3, 500))),
        "sequences": draw.choice((1, 1, 2, 3, 5)), "precision": draw.choice(("bf16-pure", "bf16-pure", "fp32")), "attention": draw.choice(("sdpa", "sdpa", "eager")),
    }  # fmt: skip
    return asked | ({"kv_dtype": "fp8"} if draw.random() < 0.12 else {})


def drawn_cases(
    count: int, seed: int, families: Sequence[str] = ()
) -> Iterator[tuple[str, int, Config, Options]]:
    """Families drawn at random, of those alone that are named, each with the first draw that it takes."""
    known = tuple(families) or tuple(name for name in FAMILIES if name not in UNBUILT)
    for number in range(seed * 1000, seed * 1000 + count):
        family = random.Random(f"served {number}").choice(known)
        yield (family, number, *drawn_case(family, number))


def drawn_case(family: str, number: int) -> tuple[Config, Options]:
    """The first of a few draws of a family that a sheet is made of."""
    for attempt in range(ATTEMPTS):
        draw = random.Random(f"served {family} {number} {attempt}")
        config, options = drawn_config(family, draw), drawn_serving(draw)
        try:
            asked_plan(config, options)
        except InputError:
            continue
        break
    return config, options


def asked_plan(config: Mapping[str, Any], options: Options) -> tuple[ModelSpec, Plan]:
    """What a configuration and options say. Raises InputError where there is no sheet of them."""
    spec = read_hf_config(config, name=str(config["model_type"]))
    if not has_written_layers(spec):
        raise input_error("model", spec.name, "has layers that are not written down")
    return spec, resolve_request({**request_from(options), "task": "infer"}, spec, real=True).plan


def compared(family: str, number: int, config: Config, options: Options) -> Row:
    """The sheet of a generation beside the trace of it."""
    try:
        spec, plan = asked_plan(config, options)
        predicted = account_rank(spec, plan)
        traced = traced_timeline(config, plan)
    except InputError as error:
        return Row(family=family, number=number, options=options, refused=" ".join(str(error).split()))
    except Exception as error:  # noqa: BLE001 - what the library's own code does not run is a row of the table
        why = f"trace: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return Row(family=family, number=number, options=options, refused=why)
    return _row_of(Row(family=family, number=number, options=options), predicted, traced)


def _row_of(row: Row, predicted: Sheet, timeline: Timeline) -> Row:
    traced = sheet_of(timeline)
    off, beyond, width = list(exact_differences(predicted, traced, timeline)), 0.0, 0.0
    for instant in traced.instants:
        said, peak = predicted.at(instant, without=OUTSIDE), int(traced.at(instant).value)
        low, high = int(said.low), int(said.high)
        share = (peak - min(max(peak, low), high)) / peak
        width, beyond = max(width, (high - low) / peak), max(beyond, share, key=abs)
        if abs(share) > PEAK_BAR:
            off.append(
                Off(instant=instant.value, what="peak", traced_bytes=peak, low_bytes=low, high_bytes=high)
            )
    return replace(row, off=tuple(off), beyond=beyond, width=width)


def exact_differences(predicted: Sheet, traced: Sheet, timeline: Timeline) -> Iterator[Off]:
    """Components that are known exactly, and are not what was traced: a cache when it is full, what a model
    brings with it once it is loaded.
    """
    peak = int(traced.peak.value)
    for component, instant in (
        (Component.PARAMETERS, Instant.LOAD),
        (Component.BUFFERS, Instant.LOAD),
        (Component.KV_CACHE, Instant.DECODE),
    ):
        if instant not in traced.instants:
            continue
        said = predicted.of(component, instant=instant)
        found = (
            full_cache_bytes(timeline)
            if component is Component.KV_CACHE
            else int(traced.of(component, instant=instant).value)
        )
        if abs(found - min(max(found, int(said.low)), int(said.high))) > BUFFER_BAR * peak:
            yield Off(
                instant=instant.value,
                what=component.value,
                traced_bytes=found,
                low_bytes=int(said.low),
                high_bytes=int(said.high),
            )


def full_cache_bytes(timeline: Timeline) -> int:
    """What the cache holds when the last token is made."""
    return sum(
        timeline.storages[n].bytes
        for n in live_storages(timeline, len(timeline.events))
        if timeline.storages[n].component is Component.KV_CACHE
    )


def traced_timeline(config: Config, plan: Plan) -> Timeline:
    """What the library's model allocates on fake tensors while it generates."""
    from memsheet.trace.job import How
    from memsheet.trace.scans import stand_ins
    from memsheet.trace.serving_job import trace_serving

    how = How(scratch=False)
    with warnings.catch_warnings(action="ignore"), stand_ins(config, how.device):
        return trace_serving(config, plan, how)


# ---- laws --------------------------------------------------------------------------------------------------

SERVERS = ("transformers", "vllm", "sglang", "llama.cpp")
TP_DEGREES, STAGES = (2, 4, 8), 2
Broken = tuple[str, str, int, int]
"""Engine, law, and the two sizes that do not stand to each other as it says, bytes."""


def laws_broken(config: Config) -> Iterator[Broken]:
    """What does not hold of a configuration's sheets, by engine; a plan that is refused breaks none."""
    for engine in SERVERS:
        whole = held_bytes(config, engine)
        if whole is None:
            continue
        yield from ((engine, law, *sizes) for law, sizes in _broken_of_engine(config, engine, whole))


def _broken_of_engine(config: Config, engine: str, whole: Held) -> Iterator[tuple[str, tuple[int, int]]]:
    longer = held_bytes(config, engine, max_model_len=2 * LENGTH)
    if longer and longer.cache < whole.cache:
        yield "longer never less", (longer.cache, whole.cache)
    last = whole.weights
    for tp in TP_DEGREES:
        part = held_bytes(config, engine, tp=tp)
        if part is None:
            continue
        if tp * part.weights < whole.weights:
            yield f"shards of tp {tp} hold the whole", (tp * part.weights, whole.weights)
        if part.weights > last:
            yield f"tp {tp} never needs more a GPU", (part.weights, last)
        last = part.weights
    stages = [held_bytes(config, engine, stage=stage, pp=STAGES) for stage in range(STAGES)]
    held = [stage.weights for stage in stages if stage]
    if len(held) == STAGES and sum(held) < whole.weights:
        yield "stages hold the whole", (sum(held), whole.weights)


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of a rank: weights once they are loaded, and the cache when it is full."""

    weights: int
    cache: int


LENGTH = 512


def held_bytes(config: Config, engine: str, *, stage: int = 0, **more: Any) -> Held | None:
    """What a rank of ``stage`` holds; None where there is no such plan."""
    try:
        spec, plan = asked_plan(config, {"engine": engine, "max_model_len": LENGTH, "sequences": 2, **more})
        sheet = account_rank(spec, plan, stage=stage)
    except InputError:
        return None
    cache = sheet.of(Component.KV_CACHE, instant=sheet.instants[-1])
    return Held(int(sheet.of(Component.PARAMETERS, instant=Instant.LOAD).value), int(cache.value))


def line(row: Row) -> str:
    """A row as text."""
    head = f"{row.family:22s} {row.number:6d} " + ", ".join(f"{k}={v}" for k, v in row.options.items())
    if row.refused:
        return f"{head} refused: {row.refused[:140]}"
    told = "; ".join(
        f"{one.instant} {one.what} {one.traced_bytes:,} of {one.low_bytes:,}..{one.high_bytes:,}"
        for one in row.off
    )
    less = "LESS " if any(one.less for one in row.off) else ""
    return f"{head} {row.beyond:+.4%} (range {row.width:.2%}) {less}{told}"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line a case, and how many hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", nargs="*", default=())
    parser.add_argument(
        "--laws", action="store_true", help="each engine's sheets beside one another, no trace"
    )
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(argv)
    if asked.laws:
        for family, number, config, _ in drawn_cases(asked.count, asked.seed, asked.family):
            for engine, law, less, more in laws_broken(config):
                print(f"{family:22s} {number:6d} {engine}: {law}: {less:,} and {more:,}", flush=True)
        return 0
    done = []
    for case in drawn_cases(asked.count, asked.seed, asked.family):
        row = compared(*case)
        done.append(row)
        print(json.dumps(asdict(row)) if asked.json else line(row), flush=True)
    if not asked.json:
        run = [row for row in done if row.refused is None]
        less = sum(any(one.less for one in row.off) for row in run)
        print(f"{len(run)} of {len(done)} run; {sum(not row.off for row in run)} held; {less} say less")
    return 0


if __name__ == "__main__":
    sys.exit(main())
