"""The question of plans: the best way to train or to serve a model on a cluster, of every legal one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from memsheet.errors import Problem, input_error, missing_package, raise_if_problems
from memsheet.frozen import replace
from memsheet.plan.engine_registry import find_engine, searched_engines, with_own_adapters
from memsheet.plan.library_defaults import implied_library_keys
from memsheet.plan.options import InferOptions, Method, Model, Seconds, TrainOptions
from memsheet.plan.values import option_problems
from memsheet.questions.accounted import library_use
from memsheet.questions.question_parts import parse_question, read_named_model

if TYPE_CHECKING:
    from memsheet.search.advice import Advice
    from memsheet.search.serve.cuts import Deployment

VARIED = frozenset({"microbatch", "recompute", "offload", "optimizer", "global_batch"})
"""Of which a search for plans tries every value that saves memory, whatever a library does by itself."""
METHOD_KEYS = frozenset({"adapter.rank", "adapter.kind", "adapter.targets", "quantization.weights"})
"""Keys that a method of training settles."""


def plan(
    model: Model | None = None, *, method: Method | None = None, top: int = 5, **options: Unpack[TrainOptions]
) -> Advice:
    """The best plans for a cluster, and why: of every legal combination of what ``options`` leave open.

    Arguments as for ``train``; ``gpus`` are needed, and what is given is pinned; without ``seq_len`` or
    ``global_batch`` usual ones are taken and said. ``engine``: one by name; without it (or ``any``) those
    that train any model from its configuration. ``method``: full, lora or qlora; without one what is said, or
    a named library does, decides. ``top``: how many plans are accounted one by one. Raises InputError with
    every problem of the question.
    """
    try:
        from memsheet.readers.calibration import efficiency_of
        from memsheet.search.advice import METHODS, training_advice
        from memsheet.search.batch_sweep import advise_on_batches, with_length
        from memsheet.search.library_bytes import doubted_advice
    except ModuleNotFoundError as error:
        raise (missing_package(error) or error) from error

    raise_if_problems(
        option_problems({"top": top})
        if top is not None
        else (Problem(field="top", reason="is no number of plans", hint="for example 5"),)
    )
    if method is not None and (not isinstance(method, str) or method not in METHODS):
        raise input_error("method", method, "is none", f"one of {', '.join(METHODS)}")
    if options.get("parameters") is not None:
        raise input_error(
            "parameters",
            options["parameters"],
            "has no activations, so no plan can be searched",
            "name a model",
        )
    name, request, cluster, where = parse_question(
        "train",
        model,
        dict(options),
        searched="micro-batches and the mesh",
        varied=VARIED,
        settled=METHOD_KEYS if method else (),
    )
    if method is not None:
        request |= implied_library_keys(where["library"], {**request, **METHODS[method]})
    if cluster is None:
        raise input_error("gpus", None, "is missing", "for example --gpus 8xH100-80GB")
    if name is None:
        raise input_error("model", None, "is missing", "a bundled name (`memsheet models`) or a config.json")
    wanted, device = request.pop("engine", None), cluster.device.name
    every = searched_engines() if wanted in (None, "any") else (str(wanted),)
    engines = with_own_adapters(every, {**request, **METHODS[method or "full"]}) if len(every) > 1 else every
    spec = read_named_model(name, "train")
    request, said = with_length(spec, request)
    asks = training_advice if request.get("global_batch") is not None else advise_on_batches
    found = asks(
        spec,
        cluster,
        request,
        engines,
        top=top,
        method=method or "full",
        scaled=lambda engine: efficiency_of(device, engine),
    )
    said += (*where["assumed"], *cluster.device.assumed)
    apart = (find_engine(one) for one in every if one not in engines)
    said += tuple(f"{one.adapters_apart}: --engine {one.name} plans for them" for one in apart if one)
    if (library := library_use(where["library"])) is not None:
        found = doubted_advice(found, library)
    return (
        replace(found, ranking=replace(found.ranking, notes=(*said, *found.ranking.notes))) if said else found
    )


def plan_serving(
    model: Model | None = None,
    *,
    context: int | None = None,
    users: int | None = None,
    ttft: Seconds | None = None,
    tpot: Seconds | None = None,
    any_precision: bool = False,
    **options: Unpack[InferOptions],
) -> Deployment:
    """How to serve ``model`` on a cluster: every cut with what it holds and how long its tokens take, the
    best first.

    ``context``: tokens of each of ``users``' sequences at its longest; ``ttft`` and ``tpot``: seconds to the
    first token and between tokens, or texts such as "50ms"; ``any_precision``: weights and caches in eight
    bits too. The other arguments are those of ``infer``, and what is given is pinned. Raises InputError with
    every problem of the question.
    """
    from memsheet.search.serve.question import read_serving_question

    name, request, cluster, where = parse_question("infer", model, dict(options))
    if where["parameters"] is not None:
        raise input_error(
            "parameters", where["parameters"], "has no layers, so no cut can be planned", "name a model"
        )
    if cluster is None:
        raise input_error("gpus", None, "is missing", "for example --gpus 4xH100-80GB")
    if name is None:
        raise input_error("model", None, "is missing", "a bundled name (`memsheet models`) or a config.json")
    if request.get("speculative.method"):
        reason = (
            "makes as many tokens a step as are accepted, which nobody knows beforehand: its memory "
            "is modelled, its speed is not"
        )
        raise input_error(
            "speculative.method",
            request["speculative.method"],
            reason,
            "leave it out; `memsheet infer` tells what drafting takes",
        )
    spec = read_named_model(name, "infer")
    return read_serving_question(
        spec,
        cluster,
        request,
        {"context": context, "users": users, "ttft": ttft, "tpot": tpot},
        any_precision=any_precision,
    )
