"""Measurements worth having, as many as the minutes allow: each case in a process of its own, one record a case, resumable.

    python benchmarks/gpu_suite.py --minutes M --out DIR [--device cuda|cpu] [--only WORDS] [--json]

A record (``memsheet/record/1``) holds what was asked, the environment and the measured sheet; a case whose record is there is not run
again, and one that fails leaves a record that says how. On a processor tiny cases of the same shapes are run, so that the suite
itself is known to work.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any

RECORD = "memsheet/record/1"
LIMIT_S = 300
PACKAGES = ("torch", "transformers", "peft", "memsheet")

Flags = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement: a bundled model and the flags of ``memsheet measure``."""

    model: str
    flags: Flags

    @property
    def name(self) -> str:
        return "-".join((self.model, *self.flags.values())).replace("/", "-").replace(".", "_")

    @property
    def words(self) -> list[str]:
        return [self.model, *(word for flag, value in self.flags.items() for word in (f"--{flag}", value))]


def cases(*, small: bool) -> Iterator[Case]:
    """By worth: what most people train first, then what separates formulas that are wrong from those that are right."""
    main, others = (
        ("llama-tiny", ("llama-tiny",))
        if small
        else ("llama-3.2-1b", ("qwen2.5-0.5b", "gemma-3-1b", "gpt2", "phi-1.5", "qwen3-1.7b", "granite-3.1-1b-a400m", "mamba-130m"))
    )
    lengths = ("128", "256") if small else ("1024", "4096")
    for precision, recompute, length in product(("bf16-autocast", "bf16-pure"), ("none", "full"), lengths):
        yield Case(model=main, flags={"seq-len": length, "precision": precision, "recompute": recompute})
    for implementation in ("foreach", "fused", "loop"):
        yield Case(model=main, flags={"seq-len": lengths[0], "precision": "bf16-pure", "optimizer-implementation": implementation})
    for attention, microbatch in product(("sdpa", "eager"), ("1", "4")):
        yield Case(model=main, flags={"seq-len": lengths[0], "precision": "bf16-pure", "attention": attention, "microbatch": microbatch})
    for precision, recompute in product(("bf16-autocast", "bf16-pure"), ("none", "full")):
        yield Case(model=main, flags={"seq-len": lengths[0], "precision": precision, "recompute": recompute, "lora-rank": "16"})
    for model, precision, recompute in product(others, ("bf16-autocast", "bf16-pure"), ("none", "full")):
        yield Case(model=model, flags={"seq-len": lengths[0], "precision": precision, "recompute": recompute, "microbatch": "2"})
    for model in () if small else ("llama-3.2-3b", "llama-3.1-8b", "qwen2.5-7b", "mistral-7b"):
        for recompute, length in product(("none", "full"), lengths):
            yield Case(model=model, flags={"seq-len": length, "precision": "bf16-pure", "recompute": recompute, "lora-rank": "16"})


def measured(case: Case, device: str) -> dict[str, Any]:
    """The record of a case, run now."""
    command = [sys.executable, "-m", "memsheet", "measure", *case.words, "--device", device, "--json"]
    start = time.time()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return _record(case, start, failure=f"took more than {LIMIT_S} s")
    if done.returncode or not done.stdout:
        return _record(case, start, failure=done.stderr.strip() or f"exit code {done.returncode}")
    return _record(case, start, sheet=json.loads(done.stdout))


def _record(case: Case, start: float, **found: Any) -> dict[str, Any]:
    versions = {name: metadata.version(name) for name in PACKAGES if _installed(name)}
    return {
        "schema": RECORD, "name": case.name, "asked": case.words, "at": int(start), "seconds": round(time.time() - start, 1),
        "environment": {"python": platform.python_version(), "machine": platform.machine(), **versions}, **found,
    }  # fmt: skip


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def run(minutes: float, out: Path, device: str, only: str) -> Iterator[dict[str, Any]]:
    """Cases that have no record yet, until the minutes are over."""
    out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * minutes
    seen = set[str]()
    for case in cases(small=device == "cpu"):
        file = out / f"{case.name}.json"
        if case.name in seen or file.exists() or not all(word in case.name for word in only.split()):
            continue
        seen.add(case.name)
        if time.monotonic() >= end:
            return
        record = measured(case, device)
        partial = file.with_suffix(".part")
        partial.write_text(json.dumps(record))
        partial.replace(file)  # nothing is half written
        yield record


def line(record: Mapping[str, Any]) -> str:
    """A record as text."""
    if "failure" in record:
        return f"{record['name']:70} failed: {record['failure'].splitlines()[0]}"
    (rank,) = record["sheet"]["ranks"]
    return f"{record['name']:70} {rank['allocated_bytes']:>15,} bytes allocated {record['seconds']:6.1f} s"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default=None, help="cuda where torch sees one")
    parser.add_argument("--only", default="", help="cases whose names hold these words")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    done = []
    for record in run(given.minutes, given.out, given.device or _device(), given.only):
        done.append(record)
        print(json.dumps(record) if given.json else line(record), flush=True)
    if not given.json:
        print(f"{len(done)} cases, {sum('failure' in record for record in done)} failed; records in {given.out}")
    return 0


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


if __name__ == "__main__":
    sys.exit(main())
