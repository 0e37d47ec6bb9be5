"""The global batch where people say steps of accumulation or replicas, as other tools do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.errors import Problem, raise_if_problems

ACCUMULATION, REPLICAS = "@accumulation", "@data_parallel"
"""What other tools' words come to that no key of a plan says: it is gone once the GPUs are known."""


def with_accumulated_batch(
    request: dict[str, Any], gpus: int | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The request with the global batch for steps of accumulation: micro-batch × steps × data-parallel ranks,
    and what that took for granted.

    Raises InputError where that contradicts what is said, or cannot be told.
    """
    steps, replicas = request.pop(ACCUMULATION, None), request.pop(REPLICAS, None)
    if steps is None and replicas is None:
        return request, ()
    degrees = {
        axis: request.get(f"mesh.{axis}") or 1 for axis in ("tp", "pp", "cp", "dp_replicate", "dp_shard")
    }
    if not all(isinstance(degree, int) for degree in degrees.values()):
        return request, ()  # which is told where meshes are checked
    model = degrees["tp"] * degrees["pp"] * degrees["cp"]
    ranks = (
        gpus // model
        if gpus
        else degrees["dp_replicate"] * degrees["dp_shard"]
        if replicas is None
        else replicas
    )
    request, microbatch = dict(request), request.get("microbatch") or 1
    if replicas is not None and gpus is None:
        hint = (
            "--gpus, or --dp-shard where ranks split the states and --dp-replicate where each has a "
            "whole copy"
        )
        raise_if_problems(
            [
                Problem(
                    field="data_parallel_size",
                    value=replicas,
                    reason="does not say whether ranks split the states",
                    hint=hint,
                )
            ]
        )
    if replicas is not None and replicas != ranks:
        reason = f"times {model} for tensor, pipeline and context parallel are not the {gpus} GPUs"
        raise_if_problems(
            [
                Problem(
                    field="data_parallel_size",
                    value=replicas,
                    reason=reason,
                    hint=f"{ranks}, or leave it out",
                )
            ]
        )
    if steps is None or not isinstance(microbatch, int):
        return request, ()
    total = microbatch * steps * ranks
    if request.setdefault("global_batch", total) != total:
        reason = f"is not {microbatch} × {steps} steps of accumulation × {ranks} ranks, which are {total}"
        raise_if_problems(
            [
                Problem(
                    field="global_batch",
                    value=request["global_batch"],
                    reason=reason,
                    hint="say one of the two",
                )
            ]
        )
    return request, (
        (
            f"global_batch = {total} ({microbatch} × {steps} steps of accumulation × {ranks} data-parallel "
            "ranks)"
        ),
    )


def refuse_counts(request: Mapping[str, Any], searched: str) -> None:
    """Raises InputError for numbers of micro-batches or replicas where what they multiply is ``searched``
    for.
    """
    names = {ACCUMULATION: "gradient_accumulation_steps", REPLICAS: "data_parallel_size"}
    raise_if_problems(
        Problem(
            field=name,
            value=request[key],
            reason=f"multiplies {searched}, which is searched for",
            hint="--global-batch, or leave it out",
        )
        for key, name in names.items()
        if key in request
    )
