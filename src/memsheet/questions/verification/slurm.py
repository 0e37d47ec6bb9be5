"""The whole plan as a job of a cluster's own queue: submitit asks Slurm for nodes, and torchrun starts the
ranks on each of them.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from memsheet.errors import input_error
from memsheet.frozen import dataclass
from memsheet.guard import read_json
from memsheet.trace.parent import PYTHON
from memsheet.units import GIB

PORT = 29500
"""torch.distributed's own default (torch/distributed/run.py)."""
SAFE = ("PYTHONSAFEPATH", "1")
"""submitit starts ``python -m`` of its own, in the folder that the command was given in: nothing is imported
from there.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Where a job goes. ``per_node``: ranks of one node. ``kind``: "slurm", or "local" for this machine,
    which submitit has for trials.
    """

    partition: str | None
    per_node: int
    time_s: float
    kind: str = "slurm"


def measured_by_job(
    given: Mapping[str, Any], ranks: int, words: Sequence[str], folder: Path, queue: Queue
) -> dict[str, Any]:
    """The record (``memsheet/record/1``) of a plan that ran on a cluster. ``given``: ``model`` as a config
    and ``plan``; ``words``: further flags of ``memsheet measure``; ``folder``: one that every node sees.

    Raises InputError where the queue's library is missing, ranks do not fill nodes, or the job failed, with
    the end of what it said.
    """
    try:
        import submitit
    except ImportError:
        raise input_error(
            "slurm", queue.partition, "needs an extra", "pip install 'memsheet[slurm]'"
        ) from None
    if ranks % min(queue.per_node, ranks):
        raise input_error("per_node", queue.per_node, f"does not divide {ranks} ranks", "whole nodes")
    here = min(queue.per_node, ranks)
    folder.mkdir(parents=True, exist_ok=True)
    model, plan, record = (folder.resolve() / name for name in ("model.json", "plan.json", "record.json"))
    model.write_text(json.dumps(given["model"]), encoding="utf-8")
    plan.write_text(json.dumps(given["plan"]), encoding="utf-8")
    try:
        executor = submitit.AutoExecutor(folder=folder / "logs", cluster=queue.kind)
    except RuntimeError as error:  # no srun on this machine
        raise input_error(
            "slurm",
            queue.partition,
            f"cannot be asked: {_last_message_line(str(error))}",
            "a login node of a cluster",
        ) from None
    executor.update_parameters(
        nodes=ranks // here, tasks_per_node=1, timeout_min=-(-int(queue.time_s) // 60), name="memsheet"
    )
    if queue.kind == "slurm":
        executor.update_parameters(
            gpus_per_node=here,
            slurm_partition=queue.partition,
            slurm_mem=0,
            slurm_setup=[f"export {'='.join(SAFE)}"],
        )
    with _safe_path():
        job = executor.submit(
            run_node_ranks,
            here,
            ["measure", str(model), "--plan", str(plan), "--record", str(record), *words],
        )
    try:
        job.results()
    except Exception as error:  # noqa: BLE001 - whatever the queue raises: the job did not run
        raise input_error(
            "slurm",
            queue.partition,
            f"the job failed: {_last_message_line(str(job.stderr() or error))}",
            f"its logs are in {folder / 'logs'}",
        ) from None
    return read_json(record, max_bytes=GIB)


@contextmanager
def _safe_path() -> Iterator[None]:
    """A time in which processes that are started import nothing from the current folder."""
    name, value = SAFE
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def run_node_ranks(ranks: int, words: Sequence[str]) -> None:
    """On one node of the job: start its ranks, which find the others by the first node's name."""
    import submitit

    place = submitit.JobEnvironment()
    launch = [
        "--nnodes", place.num_nodes, "--node-rank", place.node, "--nproc-per-node", ranks, "--master-addr", place.hostnames[0],
        "--master-port", PORT,
    ]  # fmt: skip
    subprocess.run(  # noqa: S603 - ours
        [*PYTHON, "-m", "torch.distributed.run", *map(str, launch), "-m", "memsheet", *words],
        env={**os.environ, **dict([SAFE])},
        check=True,
    )


def _last_message_line(text: str) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it said nothing")[
        :300
    ]
