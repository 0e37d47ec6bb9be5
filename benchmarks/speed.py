"""How long memsheet takes, beside something known run on the same machine a moment later. Ratios are printed,
nothing is asserted.

    python benchmarks/speed.py [--runs N] [--json | --page FOLDER] [--peer PYTHON]

``--runs``: how often each is measured; the median is shown, and the fastest and slowest beside it.
``--page``: docs/speed.md, written there. ``--peer`` (or MEMSHEET_PEER): a Python that can import SimuMax
(https://github.com/MooreThreads/SimuMax: clone it, put its folder on that Python's path, install numpy,
pandas, sympy, tabulate, matplotlib and tqdm there); it weighs plans of the same grid in the same minute.
Without it there is a line that says so.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from compileall import compile_dir
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

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
PEER_PYTHON = "MEMSHEET_PEER"
BUDGET = {"estimate_train": "≤ 1 ms", "cold": "≤ 0.2 s, ≤ 60 MB"}
CARDS = ("--gpus", "8xH100-80GB", "--json")
COMMANDS: dict[str, tuple[tuple[str, ...], float]] = {
    "--help": (("--help",), 5),
    "explain": (("explain", "zero"), 5),
    "models": (("models",), 5),
    "infer": (("infer", "llama3-8b", "--gpus", "1xH100-80GB", "--json"), 8),
    "check": (("check", "{file}", "--gpus", "1xH100-80GB", "--json"), 8),
    "train": (("train", "llama3-8b", "--seq-len", "2048", *CARDS), 10),
    "train, of no length": (("train", "llama3-8b", *CARDS), 10),
}
"""Commands, and how many times a bare interpreter's CPU time each may take; ``{file}``: a launch of a
server.
"""
PLANS: dict[str, tuple[tuple[str, ...], float]] = {
    "70B on 512 GPUs": (("llama-3-70b", "--gpus", "512xH100-80GB", "--seq-len", "4096", "--global-batch", "2048"), 1),
    "the demo's: 70B on 8 GPUs": (("llama-3-70b", "--gpus", "8xA100-80GB", "--seq-len", "2048", "--global-batch", "32"), 2),
    "DeepSeek-V3 on 2,048 GPUs": (("deepseek-v3", "--gpus", "2048xH100-80GB", "--seq-len", "4096", "--global-batch", "8192"), 4),
}  # fmt: skip
"""Searches as whole commands, and the seconds by the clock that are wanted."""
BARE_S = 9.7e-3
"""What `python -c pass` took where the bars that are seconds were set: a bar of 1 s is one of 1 s / 9.7 ms =
103 bare interpreters anywhere.
"""
SERVER = "vllm serve meta-llama/Meta-Llama-3-8B --max-model-len 8192\n"
MEGATRON = {"task": "train", "engine": "megatron", "seq_len": 4096}
CUT = {**MEGATRON, "mesh.tp": 8, "mesh.pp": 8, "global_batch": 64}
DEEPSPEED = {"task": "train", "engine": "deepspeed", "zero": 3, "seq_len": 2048}
WHOLE = {"task": "train", "engine": "fsdp2", "zero": 3, "seq_len": 8192, "recompute.mode": "full"}
QUESTIONS: dict[str, tuple[str, str, dict[str, Any], str, float]] = {
    "8B, replayed": ("llama-3-8b", "8xH100-80GB", DEEPSPEED, "replay", 20),
    "70B in 8 stages, replayed": ("llama-3-70b", "64xH100-80GB", CUT, "replay", 60),
    "405B, replayed": ("llama-3.1-405b", "512xH100-80GB", WHOLE, "replay", 60),
    "8B, bounds": ("llama-3-8b", "8xH100-80GB", DEEPSPEED, "bounds", 0.5),
    "70B in 8 stages, bounds": ("llama-3-70b", "64xH100-80GB", CUT, "bounds", 1),
    "mixtral of 8 expert ranks, bounds": (
        "mixtral-8x7b",
        "8xH100-80GB",
        {**MEGATRON, "mesh.ep": 8},
        "bounds",
        1.5,
    ),
    "8B that does not fit, and its cures": (
        "llama-3-8b",
        "1xRTX4090",
        {"task": "train", "seq_len": 4096},
        "cures",
        20,
    ),
}
"""Questions that are asked in one process: model, cards, request, how slack is found (``cures``: replayed,
with changes looked for), and the milliseconds that are wanted. What is kept of steps that were played is
forgotten before each; ``bounds`` that may fit are played, and kept. Each is asked at so many lengths in turn
that no answer is that of the question before.
"""
LENGTHS, LENGTH_STEP = 24, 64
BARE_EVERY = 6  # questions from one bare interpreter to the next, which leaves a processor's caches cold
WARM, IN_PROCESS = 20, 20  # calls before the clock starts, and calls measured for each of --runs
VERDICTS = (0, 10, 11)  # exit codes that are answers

# What a peer of accelerate's kind does before it can estimate: build the model without storage. Sizes of
# Llama-3 70B, no file is read.
PEER = """
from accelerate import init_empty_weights
from transformers import AutoModelForCausalLM, LlamaConfig
config = LlamaConfig(hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8, vocab_size=128256)
with init_empty_weights():
    model = AutoModelForCausalLM.from_config(config)
print(sum(p.numel() * p.element_size() for p in model.parameters()))
"""


# Plans of Llama-3 70B on 512 cards as SimuMax weighs them one by one, bytes and time together, for as many
# seconds as it is given.
PLANNER = """
import contextlib, io, itertools, json, resource, sys, time, warnings
from simumax.core.config import ModelConfig, StrategyConfig, SystemConfig
from simumax.core.perf_llm import PerfLLM
from simumax.utils import get_simu_model_config, get_simu_strategy_config, get_simu_system_config
warnings.simplefilter("ignore")
model, system = get_simu_model_config("llama3-70b"), get_simu_system_config("a100_pcie")
base = StrategyConfig.read_json_file(get_simu_strategy_config("tp1_pp2_dp4_mbs1"))
def weigh(tp, pp, size, again):
    ranks = 512 // (tp * pp)
    asked = {
        "tp_size": tp, "pp_size": pp, "world_size": 512, "micro_batch_size": size, "micro_batch_num": 1024 // (size * ranks), "seq_len": 8192,
        "enable_sequence_parallel": tp > 1, "enable_recompute": again, "recompute_granularity": "full_block" if again else None,
        "recompute_layer_num": 80 // pp if again else 0,
    }
    plan = PerfLLM()
    plan.configure(
        strategy_config=StrategyConfig.init_from_dict({**base, **asked}), model_config=ModelConfig.init_from_config_file(model),
        system_config=SystemConfig.init_from_config_file(system),
    )
    plan.run_estimate()
    plan.analysis_mem()
plans, start, limit = 0, time.process_time(), float(sys.argv[1])
for asked in itertools.product((1, 2, 4, 8), (1, 2, 4, 8), (1, 2), (False, True)):
    with contextlib.redirect_stdout(io.StringIO()):
        weigh(*asked)
    plans += 1
    if time.process_time() - start > limit:
        break
seconds = time.process_time() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(json.dumps({"plans": plans, "seconds": seconds, "plans_per_s": plans / seconds, "peak_bytes": peak}))
"""
PLANNER_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of several runs of one thing; ``peak_bytes`` of a process, None in process; ``skipped`` says
    why there are none.
    """

    name: str
    what: str
    median_s: float | None = None
    fastest_s: float | None = None
    slowest_s: float | None = None
    peak_bytes: int | None = None
    skipped: str | None = None


def _of(name: str, what: str, seconds: Sequence[float], peak: int | None = None) -> Timing:
    return Timing(
        name=name,
        what=what,
        median_s=statistics.median(seconds),
        fastest_s=min(seconds),
        slowest_s=max(seconds),
        peak_bytes=peak,
    )


def in_process(runs: int) -> list[Timing]:
    """One question each, the model already read; reading one config; all in this process, warm."""
    from memsheet.catalog import find_gpus, find_model
    from memsheet.plan.device import cluster_of
    from memsheet.questions.accounted import answer_for_model
    from memsheet.readers.hf_config import read_hf_config

    def question(model: str, gpus: str, request: dict[str, Any]) -> Callable[[], object]:
        found = find_model(model)
        assert found is not None
        spec = read_hf_config(found["config"], name=model)
        count, device = find_gpus(gpus)
        cluster = cluster_of(device, count or 1)
        return lambda: answer_for_model(spec, request, cluster, fix=False)

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
        _timed(
            "estimate_infer",
            "one estimate, deepseek-v3 serving on 8 GPUs",
            question("deepseek-v3", "8xH200", served),
            runs,
        ),
        _timed(
            "read",
            "read llama-3-70b's config into a model",
            lambda: read_hf_config(config, name="llama-3-70b"),
            runs,
        ),
    ]


class BarTiming(NamedTuple):
    """What something took, the median, and what is wanted, in one unit (seconds or milliseconds); and how
    many bare interpreters it took, run among its own runs.
    """

    name: str
    taken: float
    wanted: float
    in_bare: float

    def wanted_in_bare(self, unit_s: float) -> float:
        """The bar in bare interpreters, where a unit is so many seconds."""
        return self.wanted * unit_s / BARE_S


def questions(runs: int) -> list[BarTiming]:
    """CPU milliseconds of each of ``QUESTIONS``."""
    from memsheet import account
    from memsheet.catalog import find_gpus, find_model
    from memsheet.formulas.replay import steps
    from memsheet.plan.device import cluster_of
    from memsheet.questions.accounted import answer_for_model
    from memsheet.readers.hf_config import read_hf_config
    from memsheet.search.fixes import cheapest

    rows = []
    for name, (model, gpus, request, slack, wanted) in QUESTIONS.items():
        entry = find_model(model)
        assert entry is not None
        spec, (count, device) = read_hf_config(entry["config"], name=model), find_gpus(gpus)
        cluster, cures = cluster_of(device, count or 1), slack == "cures"
        taken, bare = list[float](), list[float]()
        for asked in range(LENGTHS + max(runs, LENGTHS)):
            if asked % BARE_EVERY == 0:
                bare.append(_bare().cpu)
            cheapest.judged_sheets.cache_clear()
            if slack != "bounds":
                account.replayed_rank_sheet.cache_clear()
                steps._replayed.clear()  # noqa: SLF001 - a harness may
            another = {**request, "seq_len": request["seq_len"] - LENGTH_STEP * (asked % LENGTHS)}
            start = time.process_time()
            answer_for_model(spec, another, cluster, fix=cures, slack="replay" if cures else slack)
            if asked >= LENGTHS:  # the first of each warm caches and the interpreter
                taken.append(time.process_time() - start)
        typical = statistics.median(taken)
        rows.append(BarTiming(name, 1e3 * typical, wanted, typical / statistics.median(bare)))
    return rows


def _bare_seconds(runs: int) -> float:
    """CPU seconds of a bare interpreter, the median."""
    return statistics.median(_bare().cpu for _ in range(runs * MOST_SEARCHES))


def _bare() -> Spawned:
    """A bare interpreter, started and ended."""
    return _spawn([sys.executable, "-c", "pass"], tempfile.gettempdir())


def commands(runs: int) -> list[tuple[str, float, float]]:
    """CPU time of each of ``COMMANDS`` over that of a bare interpreter just before it, the median of pairs;
    and what is wanted.
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "serve.sh"
        file.write_text(SERVER, encoding="utf-8")
        for name, (words, wanted) in COMMANDS.items():
            line = [sys.executable, "-m", "memsheet", *(word.format(file=file) for word in words)]
            pairs = [(_bare().cpu, _spawn(line, folder).cpu) for _ in range(runs + 1)]
            rows.append((name, statistics.median(took / alone for alone, took in pairs[1:]), wanted))
    return rows


def plans(runs: int) -> list[tuple[BarTiming, float]]:
    """Of each of ``PLANS`` the seconds by the clock, and the seconds of all processors together."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (words, wanted) in PLANS.items():
            line = [sys.executable, "-m", "memsheet", "plan", "train", *words]
            pairs = [(_bare(), _spawn(line, folder)) for _ in range(min(runs, MOST_SEARCHES) + 1)][1:]
            waited = statistics.median(one.wall for _, one in pairs)
            spent = statistics.median(one.cpu for _, one in pairs)
            in_bare = statistics.median(one.wall / alone.wall for alone, one in pairs)
            rows.append((BarTiming(name, waited, wanted, in_bare), spent))
    return rows


MOST_SEARCHES = 3


def bars(rows: Sequence[tuple[str, float, float]], title: str, unit: str) -> str:
    """What was taken beside what is wanted."""
    lines = [f"{name:<38}{taken:>10,.2f}{wanted:>10g}" for name, taken, wanted in rows]
    return "\n".join(["", f"{title:<38}{unit:>10}{'wanted':>10}", *lines])


def bars_beside_bare(rows: Sequence[BarTiming], title: str, unit: str, unit_s: float) -> str:
    """The same of what is wanted in seconds, with both as numbers of bare interpreters."""
    heads = f"{title:<38}{unit:>10}{'wanted':>10}{'x bare':>10}{'wanted':>10}"
    lines = [
        f"{row.name:<38}{row.taken:>10,.2f}{row.wanted:>10g}"
        f"{row.in_bare:>10,.2f}{row.wanted_in_bare(unit_s):>10,.2f}"
        for row in rows
    ]
    return "\n".join(["", heads, *lines])


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
    """Wall time and peak resident memory of a process, its output thrown away; its modules are compiled
    before, as pip leaves them.
    """
    with tempfile.TemporaryDirectory() as compiled:
        _spawn(command, compiled)
        found = [_spawn(command, compiled) for _ in range(runs)]
    failed = next((one.code for one in found if one.code not in answers), None)
    if failed is not None:
        return Timing(name=name, what=what, skipped=f"exits with {failed}")
    return _of(name, what, [one.wall for one in found], max(one.peak for one in found))


class Spawned(NamedTuple):
    """Seconds by the clock and of a processor, peak resident bytes and exit code of one run."""

    wall: float
    cpu: float
    peak: int
    code: int


def _spawn(command: Sequence[str], compiled: str) -> Spawned:
    """One run; ``compiled``: where bytecode is."""
    nowhere = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (1, 2)]
    around = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    child = os.posix_spawn(
        command[0],
        list(command),
        {**around, "HF_HUB_OFFLINE": "1", "PYTHONPYCACHEPREFIX": compiled},
        file_actions=nowhere,
    )
    _, status, usage = os.wait4(child, 0)
    wall = time.perf_counter() - start
    return Spawned(
        wall,
        usage.ru_utime + usage.ru_stime,
        usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        os.waitstatus_to_exitcode(status),
    )


def cold(runs: int) -> list[Timing]:
    """Fresh processes: the command line, the interpreter alone, and a peer that has to build the model
    first.
    """
    python = sys.executable
    timings = [
        process(
            "cold",
            "memsheet " + " ".join(DEMO[:2]) + " … --json, cold",
            [python, "-m", "memsheet", *DEMO],
            runs,
            VERDICTS,
        ),
        process("bare", "python -c pass", [python, "-c", "pass"], runs),
    ]
    what = "accelerate's way: the same 70B built on the meta device, its bytes summed"
    if find_spec("accelerate") is None or find_spec("transformers") is None:
        return [
            *timings,
            Timing(name="peer", what=what, skipped="accelerate and transformers are not installed"),
        ]
    return [*timings, process("peer", what, [python, "-c", PEER], min(runs, 3))]


def searches() -> list[dict[str, Any]]:
    """The search's cases, each in a fresh process: plans, seconds of one core, peak memory."""
    from search_rates import CASES

    script, found = str(Path(__file__).with_name("search_rates.py")), []
    for name, case in CASES.items():
        ran = subprocess.run([sys.executable, script, name], capture_output=True, text=True, check=False)
        row = (
            json.loads(ran.stdout)
            if ran.returncode == 0
            else {"skipped": (ran.stderr.strip() or "no word").splitlines()[-1]}
        )
        found.append({"name": name, "what": case.what, "wanted": case.wanted, **row})
    return found


def planner(python: str | None) -> dict[str, Any]:
    """A peer's rate, measured by its own Python on this core a moment later."""
    row = {
        "name": "peer_planner",
        "what": "SimuMax, plans of the same grid one by one, bytes and time",
        "wanted": "to compare with",
    }
    if not python:
        return {
            **row,
            "skipped": f"no peer: --peer PYTHON or {PEER_PYTHON} names one that can import simumax",
        }
    try:
        ran = subprocess.run(
            [python, "-c", PLANNER, str(PLANNER_S)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60 * PLANNER_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {**row, "skipped": str(error)}
    if ran.returncode:
        return {**row, "skipped": (ran.stderr.strip() or "no word").splitlines()[-1]}
    return {**row, **json.loads(ran.stdout.splitlines()[-1])}


def over_peer(rows: Sequence[dict[str, Any]]) -> float | None:
    """Plans a second of the first grid, beside the peer's; the grid's time is of bytes and of the seconds of
    all plans that fit.
    """
    taken = {row["name"]: row for row in rows if "skipped" not in row}
    ours, theirs = taken.get("grid_megatron"), taken.get("peer_planner")
    if ours is None or theirs is None:
        return None
    return float(ours["plans"] / (ours["seconds"] + ours["timed_s"]) / theirs["plans_per_s"])


def search_screen(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "",
        f"{'plans searched, on one core':<30}{'plans':>10}{'seconds':>12}{'plans/s':>12}{'peak':>10}",
    ]
    for row in rows:
        lines.append(f"{row['what']}   (wanted {row['wanted']})")
        if "skipped" in row:
            lines.append(f"    not measured: {row['skipped']}")
            continue
        strata = f"{row['strata']:,} strata" if row.get("strata") else "one by one"
        peak = f"{row['peak_bytes'] / 1e6:.0f} MB"
        lines.append(
            f"    {strata:<26}{row['plans']:>10,}{_shown(row['seconds']):>12}"
            f"{row['plans_per_s']:>12,.0f}{peak:>10}"
        )
        if row.get("timed"):
            lines.append(
                f"    and {_shown(row['timed_s'])} for the step times of the {row['timed']:,} that fit"
            )
    beside = over_peer(rows)
    lines.append(
        "    the first grid, bytes and step times, beside the peer: "
        f"{'not measured' if beside is None else f'{beside:,.0f} x its plans a second'}"
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
        lines.append(
            f"    {_shown(timing.median_s)}  ({_shown(timing.fastest_s)} to "
            f"{_shown(timing.slowest_s)}){peak}{bar}"
        )
    lines += ["", "ratios of medians"]
    lines += [
        f"    {name:<24} {'not measured' if value is None else f'{value:,.1f} x'}"
        for name, value in ratios(timings).items()
    ]
    return "\n".join(lines)


def _shown(seconds: float | None) -> str:
    assert seconds is not None
    return (
        f"{seconds:.2f} s"
        if seconds >= 1
        else f"{seconds * 1e3:.2f} ms"
        if seconds >= 1e-3
        else f"{seconds * 1e6:.0f} µs"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Times of memsheet beside a bare interpreter and a peer.")
    parser.add_argument("--runs", type=int, default=RUNS)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true")
    form.add_argument("--page", metavar="FOLDER", help="docs/speed.md, written there")
    parser.add_argument(
        "--peer", default=os.environ.get(PEER_PYTHON), metavar="PYTHON", help="one that can import simumax"
    )
    chosen = parser.parse_args(arguments)
    runs = max(1, chosen.runs)
    # as an installer leaves it: a shell that keeps no bytecode has every command compile the package anew
    found = find_spec("memsheet")
    for folder in (found and found.submodule_search_locations) or ():
        compile_dir(folder, quiet=2)
    fresh = cold(
        runs
    )  # first: on Linux a child's peak is never below what its parent held when it was started
    ratio, searched_whole, taken = commands(runs), plans(runs), questions(runs)
    timings = [*in_process(runs), *fresh]
    searched = [*searches(), planner(chosen.peer)]
    answer = {
        "runs": runs,
        "timings": [asdict(timing) for timing in timings],
        "ratios": ratios(timings),
        "commands": ratio,
        "bare": _bare_seconds(runs),
        "plans": searched_whole,
        "questions": taken,
        "searches": searched,
        "over peer": over_peer(searched),
    }
    if chosen.json:
        print(json.dumps(answer, indent=1))
    elif chosen.page:
        from speed_text import speed_page

        (Path(chosen.page) / "speed.md").write_text(speed_page(answer), encoding="utf-8")
    else:
        print(screen(timings))
        print(bars(ratio, "commands, CPU time", "x bare"))
        waited = [row for row, _ in searched_whole]
        print(bars_beside_bare(waited, "plan train, whole commands", "s", 1.0))
        from memsheet.allocator.compiled import compiled_loops

        how = "in C" if compiled_loops else "in Python"
        print(bars_beside_bare(taken, f"questions, steps played {how}", "CPU ms", 1e-3))
        print(search_screen(searched))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
