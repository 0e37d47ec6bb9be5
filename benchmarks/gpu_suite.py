"""Measurements worth having, as many as the minutes allow: each case in a process of its own, one record a
case, resumable.

    python benchmarks/gpu_suite.py --minutes M --out DIR [--device cuda|cpu] [--only WORDS] [--retry] [--list]
    [--json]

A record (``memsheet/record/1``) holds what was asked, the environment and the measured sheet; a case whose
record is there is not run again, and one that fails leaves a record that says how. Of a few, the allocator's
own history lies beside it. On a processor tiny models of the same kinds are run with the same flags, so that
the suite itself is known to work; what that leaves unmeasured is said at the end.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from suite_cases import OWN, Case, cases

from memsheet.report.json.record import record_of, write_record

LIMIT_S = 300
HISTORY = {
    "cuda": lambda name: ["--snapshot", f"{name}.history.json.gz"],  # the allocator's own
    "cpu": lambda name: ["--events", f"{name}.events.json.gz"],
}
UNMEASURED = (
    (
        "on a processor nothing is reserved: allocated, reserved and device totals of a GPU, its kernels' "
        "scratch and workspaces,"
    ),
    (
        "the driver's context, fragmentation as the real caching allocator makes it (here replayed), speed, "
        "and flash-attn, bitsandbytes"
    ),
    "and other kernels of GPUs are still unmeasured. --device cuda measures them.",
)


def measured(case: Case, device: str, out: Path) -> dict[str, Any]:
    """The record of a case, run now, with where its history lies."""
    name = out / f"{case.name}.json"
    with_history = HISTORY[device](case.name) if case.snapshot else []
    command = [
        sys.executable,
        "-m",
        "memsheet",
        "measure",
        _model(case, out),
        *case.words,
        "--device",
        device,
        *with_history,
        "--record",
        name.name,
    ]
    start = time.time()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=out)
    except subprocess.TimeoutExpired:
        return _failed(case, device, f"took more than {LIMIT_S} s", name)
    if not name.exists():  # exit codes 0 and 10 (it ran out of memory) leave a record
        return _failed(case, device, _last_words(done), name)
    record: dict[str, Any] = json.loads(name.read_text(encoding="utf-8"))
    return {**record, "seconds": round(time.time() - start, 1)}


def _model(case: Case, out: Path) -> str:
    """The model as the command line takes it: a bundled name, or a config written beside the records."""
    if case.model not in OWN:
        return case.model
    file = out / "configs" / f"{case.model}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(case.config), encoding="utf-8")
    return f"configs/{case.model}.json"


def _failed(case: Case, device: str, why: str, file: Path) -> dict[str, Any]:
    environment = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": device,
    }
    record = record_of(
        None, asked={"model": case.model, "flags": case.words}, environment=environment, failure=why
    )
    write_record(record, file)
    return record


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("measuring ")]
    return "\n".join(lines[-8:]) or f"exit code {done.returncode}"


def forget_failures(out: Path) -> int:
    """Records of failures go, so that their cases are run again. How many there were."""
    failed = [
        file
        for file in out.glob("*.json")
        if json.loads(file.read_text(encoding="utf-8")).get("failure") is not None
    ]
    for file in failed:
        file.unlink()
    return len(failed)


def run(minutes: float, out: Path, device: str, only: str) -> Iterator[tuple[Case, dict[str, Any]]]:
    """Cases that have no record yet, until the minutes are over."""
    out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * minutes
    for case in _chosen(device, only):
        if (out / f"{case.name}.json").exists():
            continue
        if time.monotonic() >= end:
            return
        yield case, measured(case, device, out)


def _chosen(device: str, only: str) -> list[Case]:
    return [case for case in cases(small=device == "cpu") if all(word in case.name for word in only.split())]


def line(case: Case, record: Mapping[str, Any]) -> str:
    """A record as text."""
    if record.get("failure") is not None:
        return f"{case.name} failed: {str(record['failure']).splitlines()[0]}"
    ranks, trace = record["sheet"]["ranks"], record["sheet"]["trace"]
    word = "ran out of memory" if "died" in trace else "allocated"
    return (
        f"{max(rank['allocated_bytes'] for rank in ranks):>16,} bytes {word} "
        f"{record.get('seconds', 0):6.1f} s  {case.name}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default=None, help="cuda where torch sees one")
    parser.add_argument("--only", default="", help="cases whose names hold these words")
    parser.add_argument("--retry", action="store_true", help="run again what failed")
    parser.add_argument("--list", action="store_true", help="what would be run, in order")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    device = given.device or ("cuda" if _cuda() else "cpu")
    if not 0 < given.minutes < math.inf:
        parser.error(f"--minutes {given.minutes:g} is not a positive number")
    if given.out.exists() and not given.out.is_dir():
        parser.error(f"--out {given.out} is not a folder")
    if given.list:
        print("\n".join(case.name for case in _chosen(device, given.only)))
        return 0
    if device == "cuda" and not _cuda():  # else every case would leave a record of that
        parser.error("--device cuda: this torch sees no CUDA device")
    if given.retry:
        print(f"{forget_failures(given.out)} failures are run again", file=sys.stderr)
    done: list[dict[str, Any]] = []
    with suppress(KeyboardInterrupt):  # what is done is kept
        for case, record in run(given.minutes, given.out, device, given.only):
            done.append(record)
            print(json.dumps(record) if given.json else line(case, record), flush=True)
    if not given.json:
        print(summary(done, device, given.only, given.out))
    return 0


def summary(done: Sequence[Mapping[str, Any]], device: str, only: str, out: Path) -> str:
    """What was done, what is left, and what no processor can measure."""
    every = _chosen(device, only)
    left = [case for case in every if not (out / f"{case.name}.json").exists()]
    failed = sum(record.get("failure") is not None for record in done)
    lines = [
        (
            f"{len(done)} cases now, {failed} failed; {len(every) - len(left)} of {len(every)} have a record "
            f"in {out}"
        )
    ]
    if left:
        lines.append(f"not run yet, the next {left[0].name}: the same command goes on with it")
    return "\n".join([*lines, *(UNMEASURED if device == "cpu" else ())])


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    sys.exit(main())
