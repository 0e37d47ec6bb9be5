"""What the laws are tried on: small real models, plans of every modelled kind, counts that are odd on
purpose.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from memsheet import catalog
from memsheet.plan.device import Cluster, cluster_of
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.readers.model import read_model
from memsheet.resolve import resolve_request

TRAINED = ("llama-tiny", "llama-3.2-1b", "qwen2.5-0.5b", "gpt2")
SERVED = (
    *TRAINED,
    "mistral-7b",
    "gemma-3-1b",
    "deepseek-v2",
    "mamba-2.8b",
    "jamba-v0.1",
    "qwen3-30b-a3b",
    "gpt-oss-20b",
)
CARDS = ("A100-40GB", "A100-80GB", "H200-141GB")


def law(examples: int = 50) -> settings:
    """The same examples every time, and as many as said."""
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        database=None,
    )


@cache
def model(name: str) -> ModelSpec:
    return read_model(name, catalog=catalog.find_model, names=catalog.model_names())


@cache
def cluster(card: str, count: int) -> Cluster:
    return cluster_of(catalog.find_device(card), count, nodes=1)


def plan_of(name: str, request: dict[str, Any]) -> Plan:
    return resolve_request(request, model(name)).plan


def with_counts(plan: Plan, **counts: Any) -> Plan:
    """The plan with other counts (ints or arrays), those of its groups included; nothing is checked again."""
    for group in ("mesh", "workload", "cache"):
        own = {key: counts.pop(key) for key in tuple(counts) if hasattr(getattr(plan, group), key)}
        plan = replace(plan, **{group: replace(getattr(plan, group), **own)})
    return replace(plan, **counts)


microbatches = st.integers(1, 9)
lengths = st.integers(1, 1024)
ranks = st.integers(1, 70)
engines = st.sampled_from(("transformers", "fsdp2"))
recomputes = st.sampled_from(
    ({}, {"recompute.mode": "full"}, {"recompute.every": 2}, {"recompute.segments": 2})
)
optimizers = st.sampled_from(("adamw", "adamw_8bit", "sgd", "sgd_momentum"))
attentions = st.sampled_from(("sdpa", "eager", "flash"))
adapters = st.sampled_from(({}, {}, {"adapter.rank": 8}, {"adapter.rank": 4, "quantization.weights": "nf4"}))
losses = st.sampled_from(("plain", "fused"))
precisions = st.sampled_from(("fp32", "bf16-pure", None))


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A model and a legal training request on one data-parallel rank."""
    name = draw(st.sampled_from(TRAINED))
    adapter = draw(adapters)
    request: dict[str, Any] = {
        "task": "train", "engine": draw(engines), "microbatch": draw(microbatches), "seq_len": draw(lengths),
        "optimizer.name": draw(optimizers), "attention": draw(attentions), "loss": draw(losses), **draw(recomputes), **adapter,
    }  # fmt: skip
    precision = draw(precisions)
    if precision and not adapter:
        request["precision.name"] = precision
    if draw(st.booleans()):
        request["global_batch"] = 2 * request["microbatch"]
    return name, request
