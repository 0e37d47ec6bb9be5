"""Predicted decode speeds beside measured ones: errors, how many lie inside the interval, and the order of
plans.

python benchmarks/serve_time.py [--group GROUP] [--rows]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from asking import cluster_for

from memsheet.errors import InputError
from memsheet.formulas.serving_time import Seconds, decode_time, prefill_time
from memsheet.plan.check import flatten_document
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request

GROUPS = ("gptfast_v", "qwen3_sglang_v")
APART = 0.03
"""Rows nearer than this have no order."""
Case = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A run of one batch from its prompts to its last tokens: ``found`` and ``measured_s`` are of the whole
    of it.
    """

    case: Case
    found: Seconds
    measured_s: float

    @property
    def error(self) -> float:
        return self.found.value / self.measured_s - 1

    @property
    def inside(self) -> bool:
        return self.found.low <= self.measured_s <= self.found.high


def row_of(case: Case) -> Row:
    """The row of a case; its figure counts generated tokens, or the prompt's as well."""
    serving, truth = case["plan"]["serving"], case["truth"]
    prompt, output, batch = serving["prompt_tokens"], serving["output_tokens"], serving["batch"]
    spec = read_hf_config(case["config"], name=case["model"] or "model")
    cluster = cluster_for(case["hardware"])
    assert cluster is not None
    request = {
        key: value
        for key, value in flatten_document(case["plan"]).items()
        if key not in ("schema", "model", "gpus")
    }
    plan = resolve_request(request, spec, cluster).plan
    decode = decode_time(spec, plan, cluster, batch, prompt + output // 2)
    counts_prompt = case.get("tokens_counted") == "prompt+generated"
    nothing = Seconds(low=0.0, value=0.0, high=0.0, parts={})
    prefill = prefill_time(spec, plan, cluster, prompt) if counts_prompt else nothing
    tokens = batch * (output + (prompt if counts_prompt else 0))
    return Row(case=case, found=prefill.plus(decode, output), measured_s=tokens / truth["tokens_per_s"])


def rows_of(cases: Sequence[Case], refused: dict[str, str]) -> Iterator[Row]:
    for case in sorted(cases, key=lambda c: str(c["id"])):
        if case["plan"].get("task") != "infer" or not case["truth"].get("tokens_per_s"):
            continue
        try:
            yield row_of(case)
        except InputError as error:
            refused[case["id"]] = (
                f"{error.problems[0].field} {error.problems[0].value} {error.problems[0].reason}"[:100]
            )


def pairs(rows: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    """Rows with as much to do, further apart than ``APART``."""
    for a, b in combinations(rows, 2):
        same = all(
            a.case["plan"]["serving"][key] == b.case["plan"]["serving"][key]
            for key in ("prompt_tokens", "output_tokens", "batch")
        )
        if same and abs(a.measured_s / b.measured_s - 1) > APART:
            yield a, b


def ordered(a: Row, b: Row) -> bool:
    return bool((a.found.value < b.found.value) == (a.measured_s < b.measured_s))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--group", action="append")
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--data", default=str(Path(__file__).parent / "data" / "cases.json"))
    options = parser.parse_args()
    cases = json.loads(Path(options.data).read_text(encoding="utf-8"))["cases"]
    for group in options.group or GROUPS:
        refused: dict[str, str] = {}
        rows = list(rows_of([c for c in cases if c["group"] == group], refused))
        apart = list(pairs(rows))
        right = sum(ordered(a, b) for a, b in apart)
        mean = sum(abs(row.error) for row in rows) / max(1, len(rows))
        print(
            f"{group:20} rows {len(rows):3} refused {len(refused):2}  mean {mean:6.1%}  inside "
            f"{sum(r.inside for r in rows)}/{len(rows)}"
            f"  pairs {right}/{len(apart)}"
        )
        if options.rows:
            for row in rows:
                f = row.found
                named = " ".join(
                    f"{key} {value / f.value:.2f}" for key, value in f.parts.items() if value > 0
                )
                print(
                    f"   {row.case['id'][-44:]:44} {row.measured_s:8.3f} {f.low:8.3f} {f.value:8.3f} "
                    f"{f.high:8.3f} {row.error:+6.1%}"
                    f" {'' if row.inside else 'OUT'} | {named}"
                )
            for a, b in apart:
                if not ordered(a, b):
                    print(
                        f"   wrong order: {a.case['id']} {a.measured_s:.3f} {a.found.value:.3f} | "
                        f"{b.case['id']} {b.measured_s:.3f} {b.found.value:.3f}"
                    )
            for name, why in refused.items():
                print(f"   refused {name[-50:]}: {why}")


if __name__ == "__main__":
    main()
