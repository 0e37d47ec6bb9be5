"""Values of the chart of vLLM's production stack: one model, on the GPUs of one pod (``helm install … -f
values.yaml``). They are read as the ``vllm serve`` command that the chart makes of them.

Keys of vllm-project/production-stack a6c01db0 helm/templates/deployment-vllm-multi.yaml, helm/values.yaml.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memsheet.errors import Problem
from memsheet.exchange import find_format
from memsheet.exchange.shared.file_format import Format, Values
from memsheet.exchange.shared.serve_charts import CHART
from memsheet.exchange.shared.serve_drafts import collapse_speculative_config
from memsheet.frozen import replace
from memsheet.patterns import late_pattern

SERVER = find_format("vllm")
IMAGE, TAG = "vllm/vllm-openai", f"v{SERVER.tested.rpartition(' ')[2]}"
OPTIONS = {
    "--max-model-len": "maxModelLen", "--dtype": "dtype", "--tensor-parallel-size": "tensorParallelSize", "--max-num-seqs": "maxNumSeqs",
    "--gpu-memory-utilization": "gpuMemoryUtilization",
}  # fmt: skip
"""Flags by the chart's own keys for them; others are given as they are."""
EXPONENT = 10**6
"""Numbers from here on the chart prints with an exponent, as Helm reads them for floats."""
HOST = {"requestCPU": 8, "requestMemory": "64Gi"}
"""Of the pod's host, which a plan says nothing of: stand-ins."""
_PLAIN = late_pattern(r"[^a-z0-9-]+")


def _deployment_name(asked: Values) -> str:
    """Part of names of objects: small letters, digits and dashes, short enough for what stands around it."""
    plain = _PLAIN.sub("-", str(asked["@model"]).rpartition("/")[2].lower())[:30].strip("-")
    return plain or "model"


def _own_option(at: str, value: Any) -> bool:
    return at in OPTIONS and not (isinstance(value, int) and value >= EXPONENT)


def _flag_words(at: str, value: Any) -> Iterator[str]:
    if isinstance(value, list):
        yield from (at, *map(str, value))
    elif isinstance(value, bool):
        yield at if value else f"--no-{at[2:]}"
    else:
        yield f"{at}={value}"


def _compose_chart_values(values: Values, asked: Values) -> str:
    import yaml

    held = collapse_speculative_config(values)
    flags = {at: value for at, value in held.items() if at.startswith("--") and at != "--model"}
    options = {OPTIONS[at]: value for at, value in flags.items() if _own_option(at, value)}
    more = [
        word for at, value in flags.items() if not _own_option(at, value) for word in _flag_words(at, value)
    ]
    named = [{"name": at, "value": str(value)} for at, value in held.items() if not at.startswith("--")]
    model = {
        "name": _deployment_name(asked), "repository": IMAGE, "tag": TAG, "modelURL": values["--model"], "replicaCount": 1, **HOST, CHART: asked["@per_node"],
        **({"env": named} if named else {}), "vllmConfig": {"enablePrefixCaching": True, **options, **({"extraArgs": more} if more else {})},
    }  # fmt: skip
    return str(
        yaml.safe_dump({"servingEngineSpec": {"modelSpec": [model]}}, sort_keys=False, allow_unicode=False)
    )


def _chart_plan_problems(asked: Values) -> Iterator[Problem]:
    yield from SERVER.problems(asked)
    for key in ("@model", "speculative.model"):
        if "$(" in str(asked.get(key) or ""):
            reason = "has a place that Kubernetes fills in"
            yield Problem(field=key.removeprefix("@"), value=asked[key], reason=reason, hint="another folder")


FORMAT: Format = replace(
    SERVER, name="helm", file="values.yaml", kind="yaml", tested="the chart of vLLM's production stack a6c01db0", marks=frozenset(), parse=lambda _: {}, also=None,
    refers=(), released=None, taken=None, compose=_compose_chart_values, problems=_chart_plan_problems,
    notes=("requests of CPU and host memory are stand-ins: put your own", "run it: `helm install vllm vllm/vllm-stack -f values.yaml`"),
)  # fmt: skip
