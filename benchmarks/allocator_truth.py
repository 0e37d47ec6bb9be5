"""The simulated caching allocator beside real ones: recorded requests replayed, reserved bytes compared.
Printed, nothing asserted.

    python benchmarks/allocator_truth.py DIR [--json]

DIR holds histories as `memsheet measure --device cuda --snapshot FILE` and gpu_suite.py write them
(``memsheet/snapshot/1``), or torch.cuda.memory._snapshot() dumped as JSON; other files are left alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from memsheet.allocator.recorded import compare_with_replay
from memsheet.errors import InputError
from memsheet.readers.snapshot import read_snapshot

ENDINGS = (".json", ".json.gz")
BAR = 0.01


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    """One a history: the figures, or why there are none. A file that is no history says nothing."""
    for path in sorted(folder.rglob("*")):
        if not path.name.endswith(ENDINGS):
            continue
        try:
            recorded = read_snapshot(path)
        except InputError as error:
            if ".history" in path.name:
                yield {"name": path.name, "failure": error.problems[0].reason}
            continue
        if recorded.events:
            truth = compare_with_replay(recorded)
            yield {
                "name": path.name,
                **asdict(truth),
                "error": truth.error,
                "other_pools": recorded.other_pools,
            }


def line(row: dict[str, Any]) -> str:
    if "failure" in row:
        return f"{row['name']:60} {row['failure']}"
    notes = [
        *([f"{row['before_bytes']:,} bytes were there before"] if row["before_bytes"] else []),
        *([f"{row['other_pools']} events of private pools left out"] if row["other_pools"] else []),
    ]
    figures = (
        f"{row['requests']:8} {row['recorded_peak_bytes']:>16,} {row['replayed_peak_bytes']:>16,} "
        f"{row['error']:+9.3%} {row['worst_bytes']:>14,}"
    )
    return f"{row['name']:60} {figures}  {'; '.join(notes)}".rstrip()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    if not given.folder.is_dir():
        parser.error(f"{given.folder} is not a folder")
    found = list(rows(given.folder))
    if given.json:
        print(json.dumps(found))
        return 0
    if not found:
        print(
            f"no history of a GPU's allocator in {given.folder}: memsheet measure --device cuda "
            "--snapshot FILE makes one"
        )
        return 0
    print(
        f"{'history':60} {'requests':>8} {'recorded peak':>16} {'replayed peak':>16} {'error':>9} "
        f"{'worst gap':>14}"
    )
    print("\n".join(map(line, found)))
    done = [row for row in found if "failure" not in row]
    print(f"{len(done)} histories, {sum(abs(row['error']) <= BAR for row in done)} within 1 %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
