"""A bare count of parameters in place of a model: its states, or its weights where it is served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.account import account_bare
from memsheet.budget import Answer, Result, judge_on
from memsheet.errors import Problem, input_error, raise_if_problems
from memsheet.frozen import replace
from memsheet.plan.device import Cluster
from memsheet.plan.engine_registry import ONE_GPU
from memsheet.plan.model import Embeddings, Head, ModelSpec
from memsheet.plan.plan import Plan
from memsheet.resolve import Resolved, resolve_request

MAX_PARAMETERS = 10**15
COUNTED_SERVING = (
    "task",
    "engine",
    "engine_version",
    "mesh.tp",
    "mesh.pp",
    "precision.",
    "quantization.",
    "phase",
)
"""Keys that mean something of a bare count that is served: how its weights are stored and divided."""
SHOWN_DTYPES = ("fp32", "bf16", "int8", "nf4")


def bare_answer(parameters: int, request: Mapping[str, Any], cluster: Cluster | None) -> Answer:
    served = request["task"] == "infer"
    resolved = _bare_plan(request, cluster)
    resolved = (
        replace(resolved, assumed=(*cluster.device.assumed, *resolved.assumed)) if cluster else resolved
    )
    sheet = account_bare(parameters, resolved.plan, cluster)
    nothing = ModelSpec(
        name=f"{parameters:,} parameters",
        model_type="",
        hidden=0,
        vocab=0,
        embeddings=Embeddings(weights=()),
        stacks=(),
        head=Head(kind="none", width=0),
    )
    verdict = judge_on((sheet,), cluster) if cluster else None
    if verdict and verdict.result is Result.FITS:  # everything but the states is still to come
        verdict = replace(verdict, result=Result.UNCERTAIN)
    why = (
        "weights only: the cache, activations and what is left whole by a quantization need a model's config"
    )
    notes = (
        (why,) if served else ("states only: activations, gathered layers and buffers need a model's config",)
    )
    return Answer(
        model=nothing,
        parameters=parameters,
        active_parameters=parameters,
        plan=resolved.plan,
        assumed=resolved.assumed,
        cluster=cluster,
        sheets=(sheet,),
        verdict=verdict,
        notes=notes,
        serving=_weights_by_dtype(parameters, resolved.plan) if served else None,
    )


def _bare_plan(request: Mapping[str, Any], cluster: Cluster | None) -> Resolved:
    """The plan of a bare count. What is served of it is its weights, and whatever needs a model's layers is
    refused.
    """
    if request["task"] == "train":
        return resolve_request(request, None, cluster)
    raise_if_problems(
        Problem(
            field=key,
            value=value,
            reason="needs a model's layers, and a count has none",
            hint="leave it out, or name a model",
        )
        for key, value in request.items()
        if value is not None and not key.startswith(COUNTED_SERVING)
    )
    found = resolve_request({"engine": ONE_GPU, **request, "phase": "load"}, None, cluster)
    return replace(found, assumed=tuple(line for line in found.assumed if line.startswith(COUNTED_SERVING)))


def _weights_by_dtype(parameters: int, plan: Plan) -> Mapping[str, Any]:
    """Bytes of the weights on one GPU in the dtypes that people ask about."""
    from memsheet.formulas.sharding.bare_tensor import rank_parameters
    from memsheet.plan.dtypes import BY_NAME

    return {
        "weights_by_dtype": {
            name: BY_NAME[name].nbytes(rank_parameters(parameters, plan)) for name in SHOWN_DTYPES
        }
    }


TIMES = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
"""What a model's size ends with, as its name has it."""


def count_of(text: Any, field: str = "parameters") -> int:
    """``7e9``, ``7B`` or 7000000000, exactly."""
    from decimal import Decimal, DecimalException

    plain = str(text).replace("_", "").replace(",", "").strip()
    times = TIMES.get(plain[-1:].lower(), 1)
    try:
        number = Decimal(plain[:-1]) * times if times > 1 else Decimal(plain)
    except DecimalException:
        raise input_error(field, text, "is not a number", "write for example 7e9") from None
    if not number.is_finite() or not 1 <= number <= MAX_PARAMETERS or number != number.to_integral_value():
        raise input_error(
            field, text, f"is not a whole number from 1 to {MAX_PARAMETERS:,}", "write for example 7e9"
        )
    return int(number)
