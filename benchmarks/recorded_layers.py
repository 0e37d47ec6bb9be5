"""Records of the library's own code, beside a fresh trace of it, and beside the layers that are written down.

    python benchmarks/recorded_layers.py [--against trace | layers] [--only WORDS] [--families 40]
                                         [--plans 20] [--seed 0] [--workers 2] [--json]

Against ``trace``: families without a reader, default configurations, plans drawn at random (sequences,
tokens, precision, attention, recompute, optimizer, adapter, engine) at sizes that no record was solved from.
Against ``layers``: every family whose layers are written down, put on record all the same. A row is a plan:
the two peaks and how far they are apart. Nothing is asserted. It needs the ``trace`` extra.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any

from families import HEADS, default_config, tokens_of, type_names

import memsheet
from memsheet.errors import InputError
from memsheet.formulas.model_code.transformers.plan_problems import has_written_layers
from memsheet.questions.accounted import answer_for_model
from memsheet.questions.question_parts import parse_question
from memsheet.readers.hf_config import read_hf_config
from memsheet.readers.recorded import model_from_recording
from memsheet.readers.registry import FAMILIES
from memsheet.recording import recording_from, run_from
from memsheet.trace.recordings.process import ask_recorder

Row = dict[str, Any]
Options = dict[str, Any]
BAR = 0.001
MOST_SEQUENCES, FEWEST_TOKENS, MOST_TOKENS = 4, 128, 3000
PLACES: tuple[Options, ...] = ({}, {"lora_rank": 8}, {"engine": "fsdp2", "gpus": "8xH200"})
DEEPSPEED: Options = {"engine": "deepspeed", "zero": 3, "gpus": "8xH200", "optimizer": "adamw"}
PRECISIONS = ("fp32", "bf16-autocast", "bf16-pure")
ATTENTIONS = ("sdpa", "eager")
RECOMPUTES = ("none", "full")
OPTIMIZERS = ("adamw", "sgd", "sgd_momentum")
EIGHT_BIT = "adamw8bit"


def runs_here(package: str) -> bool:
    """Whether a trace can run a package's own code."""
    return find_spec(package) is not None


def drawn_plan(draw: random.Random, most_tokens: int, *, traced: bool) -> Options:
    """One plan of a training step that both authors know. Engines of several GPUs choose their own
    precision.
    """
    place = draw.choice((*PLACES, DEEPSPEED) if not traced or runs_here("deepspeed") else PLACES)
    eights = (EIGHT_BIT,) if not traced or runs_here("bitsandbytes") else ()
    plan = {
        "gpus": "1xH200",
        "microbatch": draw.randint(1, MOST_SEQUENCES),
        "seq_len": draw.randint(min(FEWEST_TOKENS, most_tokens), min(MOST_TOKENS, most_tokens)),
        "attention": draw.choice(ATTENTIONS),
        "recompute": draw.choice(RECOMPUTES),
        "optimizer": draw.choice((*OPTIMIZERS, *eights)),
        **place,
    }
    return plan if "engine" in place else {**plan, "precision": draw.choice(PRECISIONS)}


INSTEAD: Mapping[str, Options] = {
    "attention: does not exist": {"attention": "eager"},
    "cannot recompute its layers": {"recompute": "none"},
}
"""Of what a family's own code has not, in the words of a refusal: what it has."""


def or_instead(row: Callable[[Options], Row], plan: Options) -> Row:
    """A plan's row; of what the family's code has where it has not what was drawn."""
    found = row(plan)
    known = next((more for words, more in INSTEAD.items() if words in found.get("refused", "")), {})
    changed = {**plan, **known}
    return found if changed == plan else or_instead(row, changed)


def against_trace(family: str, seed: int, plans: int) -> list[Row]:
    """A family's plans, each predicted from its record and traced."""
    warnings.simplefilter("ignore")
    config = default_config(family)
    draw = random.Random(f"{seed} {family}")
    most = tokens_of(config, MOST_TOKENS)
    drawn = [drawn_plan(draw, most, traced=True) for _ in range(plans)]
    return [or_instead(partial(traced_row, family, config), plan) for plan in drawn]


def traced_row(family: str, config: Mapping[str, Any], plan: Options) -> Row:
    """One plan, predicted and traced: peaks in bytes, or which of both refused it."""
    start = time.perf_counter()
    row: Row = {"family": family, "plan": plan}
    targets: Options = {}  # a trace asks for them where no family's default is written down
    for name, call, more in (("predicted", memsheet.train, {"fix": False}), ("other", memsheet.trace, {})):
        try:
            answer = call(dict(config), **plan, **more, **targets)
            row[name] = peak_bytes(answer)
            adapter = answer.plan.adapter
            targets = {"lora_targets": list(adapter.targets)} if adapter else {}
        except InputError as error:
            return {**row, "refused": f"{name}: {error.problems[0].field}: {error.problems[0].reason}"}
        except Exception as error:  # noqa: BLE001 - a defect of ours is a row of the table
            return {**row, "refused": f"{name}: DEFECT {type(error).__name__}: {error}"}
    return {**row, "seconds": round(time.perf_counter() - start, 1)}


def against_layers(family: str, seed: int, plans: int) -> list[Row]:
    """A family's plans, by its record and by the layers that are written down, and its parameters."""
    warnings.simplefilter("ignore")
    config = default_config(family)
    draw = random.Random(f"{seed} {family}")
    asked = [drawn_plan(draw, tokens_of(config, MOST_TOKENS), traced=False) for _ in range(plans)]
    try:
        written = read_hf_config(config)
        if not has_written_layers(written):
            return []  # its weights and caches alone are: a recording answers for it
        recorded = recorded_model(config)
    except InputError as error:
        return [{"family": family, "plan": {}, "refused": error.problems[0].reason}]
    return [or_instead(partial(layers_row, family, recorded, written), plan) for plan in asked]


def recorded_model(config: Mapping[str, Any]) -> Any:
    """The model of a config by its record, whoever else has written it down."""

    def make(key: str) -> Any:
        found = ask_recorder({"config": dict(config), "model": False, "ways": [key]})["runs"][key]
        return None if found is None else run_from(found)

    found = recording_from(ask_recorder({"config": dict(config), "model": True, "ways": []})["recording"])
    return model_from_recording(replace(found, make=make), dict(config))


def layers_row(family: str, recorded: Any, written: Any, plan: Options) -> Row:
    """One plan by both authors, as ``train`` answers it: the step's peak in bytes."""
    row: Row = {"family": family, "plan": plan}
    start = time.perf_counter()
    for name, model in (("other", written), ("predicted", recorded)):
        try:
            _, request, cluster, _ = parse_question("train", None, dict(plan))
            row[name] = peak_bytes(answer_for_model(model, request, cluster, fix=False))
        except InputError as error:
            return {**row, "refused": f"{name}: {error.problems[0].field}: {error.problems[0].reason}"}
        except Exception as error:  # noqa: BLE001 - likewise
            return {**row, "refused": f"{name}: DEFECT {type(error).__name__}: {error}"}
    return {**row, "seconds": round(time.perf_counter() - start, 1)}


def peak_bytes(answer: Any) -> int:
    """What PyTorch has allocated at the peak of an answer, on the rank that has most."""
    return max(int(sheet.allocated.value) for sheet in answer.sheets)


def rows_of(names: list[str], against: str, seed: int, plans: int, workers: int) -> Iterator[Row]:
    """Rows as they come, each worker with a recording process of its own."""
    ask = against_trace if against == "trace" else against_layers
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for one in [pool.submit(ask, name, seed, plans) for name in names]:
            yield from one.result()


def row_words(row: Row) -> str:
    """One line of the table."""
    plan = " ".join(f"{key}={value}" for key, value in row["plan"].items())
    if "refused" in row:
        return f"{row['family']:24} refused: {row['refused'][:200]}  {plan}"
    off = row["predicted"] / row["other"] - 1
    beyond = " BEYOND" if abs(off) > BAR else ""
    return f"{row['family']:24} {row['predicted']:>16,} {row['other']:>16,} {off:+9.4%}{beyond}  {plan}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--against", choices=("trace", "layers"), default="trace")
    parser.add_argument("--only", default="")
    parser.add_argument("--families", type=int, default=40)
    parser.add_argument("--plans", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    start = time.perf_counter()
    written = given.against == "layers"
    names = [name for name in type_names(HEADS) if (name in FAMILIES) == written]
    if given.only:
        names = given.only.split(",")
    elif not written:
        names = sorted(random.Random(given.seed).sample(names, min(given.families, len(names))))
    done: list[Row] = []
    for row in rows_of(names, given.against, given.seed, given.plans, given.workers):
        done.append(row)
        print(json.dumps(row) if given.json else row_words(row), flush=True)
    run = [row for row in done if "refused" not in row]
    within = sum(abs(row["predicted"] / row["other"] - 1) <= BAR for row in run)
    print(f"{within} of {len(run)} plans within {BAR:.1%} of the peak; {len(done) - len(run)} refused; "
          f"{time.perf_counter() - start:.0f} s", file=sys.stderr)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
