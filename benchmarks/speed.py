"""How long memsheet takes, beside something known run on the same machine a moment later. Ratios are printed, nothing is asserted.

    python benchmarks/speed.py [--runs N] [--json]

``--runs``: how often each is measured; the median is shown, and the fastest and slowest beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

RUNS = 7
DEMO = (
    "train",
    "llama-3-70b",
    "--gpus",
    "8xA100-80GB",
    "--engine",
    "fsdp2",
    "--zero",
    "3",
    "--seq-len",
    "2048",
    "--microbatch",
    "4",
    "--json",
)
BUDGET = {"estimate_train": "≤ 1 ms", "cold": "≤ 0.2 s, ≤ 60 MB"}
WARM, IN_PROCESS = 20, 20  # calls before the clock starts, and calls measured for each of --runs
VERDICTS = (0, 10, 11)  # exit codes that are answers

# What a peer of accelerate's kind does before it can estimate: build the model without storage. Sizes of Llama-3 70B, no file is read.
PEER = """
from accelerate import init_empty_weights
from transformers import AutoModelForCausalLM, LlamaConfig
config = LlamaConfig(hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8, vocab_size=128256)
with init_empty_weights():
    model = AutoModelForCausalLM.from_config(config)
print(sum(p.numel() * p.element_size() for p in model.parameters()))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of several runs of one thing; ``peak_bytes`` of a process, None in process; ``skipped`` says why there are none."""

    name: str
    what: str
    median_s: float | None = None
    fastest_s: float | None = None
    slowest_s: float | None = None
    peak_bytes: int | None = None
    skipped: str | None = None


def _of(name: str, what: str, seconds: Sequence[float], peak: int | None = None) -> Timing:
    return Timing(
        name=name, what=what, median_s=statistics.median(seconds), fastest_s=min(seconds), slowest_s=max(seconds), peak_bytes=peak
    )


def in_process(runs: int) -> list[Timing]:
    """One question each, the model already read; reading one config; all in this process, warm."""
    from memsheet.api import answer
    from memsheet.catalog import find_gpus, find_model
    from memsheet.readers.hf_config import read_hf_config
    from memsheet.spec.device import cluster_of

    def question(model: str, gpus: str, request: dict[str, Any]) -> Callable[[], object]:
        found = find_model(model)
        assert found is not None
        spec = read_hf_config(found["config"], name=model)
        count, device = find_gpus(gpus)
        cluster = cluster_of(device, count or 1)
        return lambda: answer(spec, request, cluster, fix=False)

    fsdp2 = {"task": "train", "engine": "fsdp2", "zero": 3, "seq_len": 2048, "microbatch": 4}
    served = {"task": "infer", "serving.max_model_len": 8192, "serving.max_sequences": 8}
    config = (find_model("llama-3-70b") or {})["config"]
    return [
        _timed(
            "estimate_train",
            "one estimate, llama-3-70b on 8 GPUs (resolve, account, judge)",
            question("llama-3-70b", "8xA100-80GB", fsdp2),
            runs,
        ),
        _timed("estimate_infer", "one estimate, deepseek-v3 serving on 8 GPUs", question("deepseek-v3", "8xH200", served), runs),
        _timed("read", "read llama-3-70b's config into a model", lambda: read_hf_config(config, name="llama-3-70b"), runs),
    ]


def _timed(name: str, what: str, run: Callable[[], object], runs: int) -> Timing:
    try:
        for _ in range(WARM):
            run()  # caches, imports, and the interpreter's own specialization
    except Exception as error:  # noqa: BLE001 - a line of the table says so
        return Timing(name=name, what=what, skipped=str(error).partition("\n")[0])
    return _of(name, what, [_seconds(run) for _ in range(IN_PROCESS * runs)])


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def process(name: str, what: str, command: Sequence[str], runs: int, answers: Sequence[int] = (0,)) -> Timing:
    """Wall time and peak resident memory of a process, its output thrown away."""
    found = [_spawn(command) for _ in range(runs)]
    failed = next((code for _, _, code in found if code not in answers), None)
    if failed is not None:
        return Timing(name=name, what=what, skipped=f"exits with {failed}")
    return _of(name, what, [wall for wall, _, _ in found], max(peak for _, peak, _ in found))


def _spawn(command: Sequence[str]) -> tuple[float, int, int]:
    """Seconds, peak resident bytes and exit code of one run."""
    nowhere = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (1, 2)]
    start = time.perf_counter()
    child = os.posix_spawn(command[0], list(command), {**os.environ, "HF_HUB_OFFLINE": "1"}, file_actions=nowhere)
    _, status, usage = os.wait4(child, 0)
    wall = time.perf_counter() - start
    return wall, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024), os.waitstatus_to_exitcode(status)


def cold(runs: int) -> list[Timing]:
    """Fresh processes: the command line, the interpreter alone, and a peer that has to build the model first."""
    python = sys.executable
    timings = [
        process("cold", "memsheet " + " ".join(DEMO[:2]) + " … --json, cold", [python, "-m", "memsheet", *DEMO], runs, VERDICTS),
        process("bare", "python -c pass", [python, "-c", "pass"], runs),
    ]
    what = "accelerate's way: the same 70B built on the meta device, its bytes summed"
    if find_spec("accelerate") is None or find_spec("transformers") is None:
        return [*timings, Timing(name="peer", what=what, skipped="accelerate and transformers are not installed")]
    return [*timings, process("peer", what, [python, "-c", PEER], min(runs, 3))]


def searches() -> list[dict[str, Any]]:
    """The search's cases, each in a fresh process: plans, seconds of one core, peak memory."""
    from search_rates import CASES

    script, found = str(Path(__file__).with_name("search_rates.py")), []
    for name, case in CASES.items():
        ran = subprocess.run([sys.executable, script, name], capture_output=True, text=True, check=False)
        row = json.loads(ran.stdout) if ran.returncode == 0 else {"skipped": (ran.stderr.strip() or "no word").splitlines()[-1]}
        found.append({"name": name, "what": case.what, "wanted": case.wanted, **row})
    return found


def search_screen(rows: Sequence[dict[str, Any]]) -> str:
    lines = ["", "plans searched, on one core"]
    for row in rows:
        lines.append(f"{row['what']}   (wanted {row['wanted']})")
        if "skipped" in row:
            lines.append(f"    not measured: {row['skipped']}")
            continue
        plans, rate, strata = row["plans"], row["plans_per_s"], row["strata"]
        lines.append(
            f"    {plans:,} plans in {strata:,} strata, {_shown(row['seconds'])}, {rate:,.0f} plans/s, peak {row['peak_bytes'] / 1e6:.0f} MB"
        )
    return "\n".join(lines)


def ratios(timings: Sequence[Timing]) -> dict[str, float | None]:
    """Wall times against one another; None where one of the two was not measured."""
    taken = {timing.name: timing.median_s for timing in timings}

    def of(one: str, other: str) -> float | None:
        above, below = taken.get(one), taken.get(other)
        return above / below if above and below else None

    return {
        "cold over bare python": of("cold", "bare"),
        "peer over cold": of("peer", "cold"),
        "cold over one estimate": of("cold", "estimate_train"),
    }


def screen(timings: Sequence[Timing]) -> str:
    lines = []
    for timing in timings:
        lines.append(timing.what)
        if timing.skipped or timing.median_s is None:
            lines.append(f"    not measured: {timing.skipped}")
            continue
        peak = f", peak {timing.peak_bytes / 1e6:.0f} MB" if timing.peak_bytes else ""
        bar = f"   (wanted {BUDGET[timing.name]})" if timing.name in BUDGET else ""
        lines.append(f"    {_shown(timing.median_s)}  ({_shown(timing.fastest_s)} to {_shown(timing.slowest_s)}){peak}{bar}")
    lines += ["", "ratios of medians"]
    lines += [f"    {name:<24} {'not measured' if value is None else f'{value:,.1f} x'}" for name, value in ratios(timings).items()]
    return "\n".join(lines)


def _shown(seconds: float | None) -> str:
    assert seconds is not None
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Times of memsheet beside a bare interpreter and a peer.")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    runs = max(1, chosen.runs)
    fresh = cold(runs)  # first: on Linux a child's peak is never below what its parent held when it was started
    timings = [*in_process(runs), *fresh]
    searched = searches()
    if chosen.json:
        answer = {"runs": runs, "timings": [asdict(timing) for timing in timings], "ratios": ratios(timings), "searches": searched}
        print(json.dumps(answer, indent=1))
    else:
        print(screen(timings))
        print(search_screen(searched))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
