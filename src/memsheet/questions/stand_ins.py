"""What is accounted in the place of what somebody's file asks for and nobody accounts: the nearest kernel,
engine or part that is. What stands in is told, and no verdict is sure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memsheet.errors import Problem
from memsheet.exchange.verdict_doubts import BY_SIZE
from memsheet.frozen import NamedTuple
from memsheet.patterns import late_pattern
from memsheet.plan.adapter_targets import LINEAR_MODULES, PART
from memsheet.plan.defaults import ALL_LINEAR

Request = Mapping[str, Any]
OVER_STAGES = late_pattern(r"does not divide (\d{1,4}) layers over (\d{1,4}) stages")
USUAL_RANK = 8
"""Of peft's LoRA where nobody says one (tuners/lora/config.py)."""
Changes = Callable[[Request, Problem], Request | None]


class StandIn(NamedTuple):
    """``reason``: words of the refusal; ``changes``: keys that stand in, None where nothing does."""

    field: str
    reason: str
    changes: Changes


def _next_attention(request: Request, _: Problem) -> Request | None:
    """The kernel that keeps what the asked one keeps, else the plain one."""
    asked = request.get("attention")
    other = {"flash": "sdpa", "xformers": "sdpa", "sdpa": "eager", None: "eager"}.get(asked)
    return {"attention": other} if other else None


def _per_parameter_shards(request: Request, problem: Problem) -> Request | None:
    """The engine that the refusal names, whose shards are of single parameters, in place of others."""
    named = problem.hint.removeprefix("engine ")
    engine = named if named != problem.hint else problem.reason.rpartition(" and ")[2]
    zero = request.get("zero")
    if zero in (0, 1) or request.get("engine") == engine:
        return None
    kept = {key: None for key in request if key in ("precision.master_weights", "precision.moments")}
    return {"engine": engine, "zero": 3 if zero is None else zero, **kept}


def _named_engine(request: Request, problem: Problem) -> Request | None:
    """The engine that the refusal names, in place of one that has no such layers or divides states
    otherwise.
    """
    engine = problem.hint.removeprefix("engine ").partition(" ")[0]
    named = problem.hint.startswith("engine ")
    return {"engine": engine} if named and engine != request.get("engine") else None


def _whole_sequences(request: Request, _: Problem) -> Request | None:
    """A rank of context parallelism as one that has the whole sequence, and as many of its states."""
    degree = request.get("mesh.cp")
    if not isinstance(degree, int):
        return None
    more = {key: request.get(key) for key in ("mesh.dp_shard", "global_batch")}
    return {
        "mesh.cp": None,
        **({"context_parallel_comm": None} if "context_parallel_comm" in request else {}),
        **{key: held * degree for key, held in more.items() if isinstance(held, int)},
    }


def _divided_states(request: Request, _: Problem) -> Request | None:
    """Tensor-parallel ranks of states that are divided anyway as so many more of those ranks, each of which
    has a micro-batch and its layers whole.
    """
    degree = request.get("mesh.tp")
    if not isinstance(degree, int) or request.get("zero") != 3:
        return None
    more = {key: request.get(key) for key in ("mesh.dp_shard", "global_batch")}
    return {
        "mesh.tp": None,
        **{key: held * degree for key, held in more.items() if isinstance(held, int)},
    }


def _named_targets(_: Request, problem: Problem) -> Request | None:
    """The layers that the refusal names, in place of those that are asked for."""
    names = problem.hint.removeprefix("--lora-targets ")
    return {"adapter.targets": names.split(",")} if names != problem.hint else None


def _every_linear_layer(request: Request, problem: Problem) -> Request | None:
    """All linear layers, where the tool's word for them is one of several, or where none of the names is one
    of a model that stands in for another.
    """
    known = set(problem.hint.removeprefix("it has ").partition(";")[0].split(", "))
    asked = [str(name) for name in request.get("adapter.targets") or ()]
    strange = problem.reason.endswith(BY_SIZE) and not known.intersection(asked)
    return {"adapter.targets": [LINEAR_MODULES]} if strange or ALL_LINEAR in asked else None


def _plain_adapter(request: Request, _: Problem) -> Request | None:
    """LoRA of the same rank in place of a method that nobody accounts."""
    return {"adapter.kind": None, "adapter.rank": request.get("adapter.rank") or USUAL_RANK}


def _last_names(request: Request, problem: Problem) -> Request | None:
    """All layers that are called so, in the place of a part of them."""
    names = problem.hint.removeprefix("--lora-targets ").partition(" ")[0].split(",")
    rest = [name for name in request.get("adapter.targets") or () if name != problem.value]
    return {"adapter.targets": [*dict.fromkeys([*rest, *names])]}


def _names_of_pattern(request: Request, problem: Problem) -> Request | None:
    """The layers whose last names a pattern holds, where its paths are none that are known."""
    from memsheet.plan.target_patterns import is_pattern, names_at_end

    if not is_pattern(str(problem.value)):
        return None
    known = problem.hint.removeprefix("it has ").partition(";")[0].split(", ")
    names = names_at_end(str(problem.value), known)
    rest = [name for name in request.get("adapter.targets") or () if name != problem.value]
    return {"adapter.targets": [*dict.fromkeys([*rest, *names])]} if names else None


def _base_in_few_bits(request: Request, problem: Problem) -> Request | None:
    """The model that a checkpoint was quantized from, in the width that adapters are modelled over, in place
    of one whose format is not.
    """
    base = problem.hint.partition("give the base model, ")[2].partition(",")[0]
    if not base or request.get("adapter.rank") is None:
        return None
    return {"model": base, "quantization.weights": "int8" if "int8" in str(problem.value) else "nf4"}


def _usual_precision(_: Request, problem: Problem) -> Request | None:
    """The precision that an engine is mostly run in, in place of fp32, which it has and nobody accounts."""
    named = problem.hint.removeprefix("it has ").partition(",")[0]
    return {"precision.name": named} if problem.value == "fp32" and named != problem.hint else None


def _even_stages(request: Request, problem: Problem) -> Request | None:
    """Stages that differ by one layer at the most, the first and the last having fewer, in place of those
    that the file divides itself.
    """
    told = OVER_STAGES.search(problem.reason)
    if told is None or request.get("layers_per_stage") is not None:
        return None
    layers, stages = int(told[1]), int(told[2])
    if stages > layers:
        return None
    most, short = -(-layers // stages), -layers % stages
    fewer = (0, stages - 1, *range(1, stages - 1))[:short]
    return {"layers_per_stage": [most - (at in fewer) for at in range(stages)]}


def _own_micro_batch(request: Request, _: Problem) -> Request | None:
    """The micro-batch alone, where the whole batch is of another number of ranks."""
    return {"global_batch": None} if isinstance(request.get("microbatch"), int) else None


STAND_INS = (
    StandIn("global_batch", "is not a multiple of", _own_micro_batch),
    StandIn("attention", r"not installed|does not exist for|not modelled|fp16 or bf16 only", _next_attention),
    StandIn("model", r"real code under \w+ attention|has no sdpa", _next_attention),
    StandIn("loss", "is not known for", lambda *_: {"loss": None}),
    StandIn("zero", r"does not exist in fsdp1", _named_engine),
    StandIn("model", r"is no model of|is not built of|is not modelled of", _named_engine),
    StandIn("adapter.targets", "takes the routed experts|its adapter never runs", _named_targets),
    StandIn("adapter.kind", "is none of|is not modelled|is not recorded", _plain_adapter),
    StandIn("precision.reduce", r"is not how \S+ reduces", lambda *_: {"precision.reduce": None}),
    StandIn("adapter.rank", "has room for no rank by itself", lambda *_: {"adapter.rank": USUAL_RANK}),
    StandIn("adapter.rank", "part of a flat parameter", _per_parameter_shards),
    StandIn("quantization.weights", "in a flat parameter", _per_parameter_shards),
    StandIn("engine", "vision tower is not modelled", _per_parameter_shards),
    StandIn("precision", r"is not how \S+ trains", _usual_precision),
    StandIn("mesh.cp", "not modelled", _whole_sequences),
    StandIn("context_parallel_comm", "not modelled", _whole_sequences),
    StandIn(
        "optimizer.implementation", "takes no DTensor", lambda *_: {"optimizer.implementation": "torchao"}
    ),
    StandIn("layers_per_stage", "is not a list of whole numbers", lambda *_: {"layers_per_stage": None}),
    StandIn(
        "mesh.tp",
        "not compared with its real code|a tied table has|(?:host|adapters) are not modelled over its ranks",
        _divided_states,
    ),
    StandIn("mesh.pp", OVER_STAGES.pattern, _even_stages),
    StandIn("adapter.targets", PART, _last_names),
    StandIn("quantization_config", "stored format that is not modelled for training", _base_in_few_bits),
    StandIn("adapter.targets", "names no linear layer", _names_of_pattern),
    StandIn("adapter.targets", "names no linear layer", _every_linear_layer),
)


def stood_in(problem: Problem, request: Request, said: Mapping[str, Any]) -> tuple[Request, str] | None:
    """The request with what stands in for what a problem is about, and what is told of it; None where nothing
    does, or where flags ask for it. ``said``: what flags ask for.
    """
    for row in STAND_INS:
        if problem.field != row.field or not re.search(row.reason, problem.reason):
            continue
        changes = row.changes(request, problem)
        if changes is None or any(key in said for key in changes):
            continue
        kept = {key: held for key, held in {**request, **changes}.items() if held is not None}
        return kept, f"{_changes_text(changes)}: {problem.field} = {problem.value} {problem.reason}"
    return None


def _changes_text(changes: Request) -> str:
    return f"the sheet is {', '.join(_words(changes))}"


def _words(changes: Request) -> Iterator[str]:
    for key, held in changes.items():
        shown = ",".join(map(str, held)) if isinstance(held, list) else held
        yield f"without {key}" if held is None else f"of {key} = {shown}"
