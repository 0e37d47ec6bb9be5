"""How many plans a second the search accounts, each case in a process of its own: one line of JSON. Seconds
are of one core (its own CPU time).

    python benchmarks/search_rates.py NAME

``grid_*`` searches a whole space: strata are made, resolved and accounted (``seconds``), then those that fit
are timed (``timed_s``). ``array_*`` accounts one stratum again whose rows are repeated until it is full,
which is what the arrays can do where a space has that many plans of one kind.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import dataclass
from typing import Any

MODEL, CARD = "llama-3.1-70b", "H100-80GB"
RESIDENT_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A space to search: the devices and what is asked."""

    what: str
    gpus: int
    request: dict[str, Any]
    wanted: str
    model: str = MODEL
    one_stratum: bool = False


_STEP = {"seq_len": 8192, "global_batch": 1024}
CASES = {
    "grid_megatron": Case(what=f"{MODEL} on 512 cards, every megatron plan", gpus=512, request={"engine": "megatron", **_STEP}, wanted="≤ 2 s"),
    "grid_fsdp2": Case(what=f"{MODEL} on 512 cards, every fsdp2 plan", gpus=512, request={"engine": "fsdp2", **_STEP}, wanted="≤ 2 s"),
    "grid_large": Case(
        what=f"{MODEL} on 16,384 cards, every megatron plan", gpus=16384, request={"engine": "megatron", **_STEP, "global_batch": 16384},
        wanted="≤ 10 s, ≤ 500 MB",
    ),
    "grid_experts": Case(
        what="deepseek-v3 on 2,048 cards, every megatron plan", model="deepseek-v3", gpus=2048, wanted="≤ 500 MB",
        request={"engine": "megatron", "seq_len": 4096, "global_batch": 15360},
    ),
    "array_whole": Case(
        what="a full stratum of megatron plans without a pipeline", gpus=512, wanted="≥ 500,000 plans/s", one_stratum=True,
        request={"engine": "megatron", **_STEP, "mesh.pp": 1, "recompute.mode": "full"},
    ),
    "array_stages": Case(
        what="a full stratum of megatron plans of four stages", gpus=512, wanted="≥ 500,000 plans/s", one_stratum=True,
        request={"engine": "megatron", **_STEP, "mesh.pp": 4, "mesh.vpp": 1, "recompute.mode": "full"},
    ),
}  # fmt: skip


def measured(case: Case) -> dict[str, Any]:
    """Plans, seconds and peak memory of a case."""
    from memsheet.catalog import find_device, find_model
    from memsheet.plan.device import cluster_of
    from memsheet.readers.hf_config import read_hf_config
    from memsheet.search.train.grid import account_plan_grid, account_stratum
    from memsheet.search.train.space import space_of
    from memsheet.search.train.timed import timed_strata

    described = find_model(case.model)
    assert described is not None
    space = space_of(
        read_hf_config(described["config"], name=case.model),
        cluster_of(find_device(CARD), case.gpus),
        case.request,
    )
    start = time.process_time()
    searched = account_plan_grid(space)
    seconds, plans, strata = time.process_time() - start, searched.plans, len(searched.graded)
    start = time.process_time()
    timed = 0 if case.one_stratum else sum(len(one.fit) for one in timed_strata(searched, None))
    timed_s = time.process_time() - start
    if case.one_stratum:
        full = max((one.stratum for one in searched.graded), key=len).full()
        account_stratum(full)
        start = time.process_time()
        account_stratum(full)
        seconds, plans, strata = time.process_time() - start, len(full), 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RESIDENT_UNIT
    found = {
        "plans": plans,
        "strata": strata,
        "seconds": seconds,
        "plans_per_s": plans / seconds,
        "peak_bytes": peak,
    }
    return {**found, "timed": timed, "timed_s": timed_s}


if __name__ == "__main__":
    print(json.dumps(measured(CASES[sys.argv[1]])))
