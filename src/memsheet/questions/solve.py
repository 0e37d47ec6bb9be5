"""The longest sequence, the largest micro-batch, the fewest GPUs, the largest model or the most users that
fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Unpack

from memsheet.budget import LibraryUse
from memsheet.catalog import find_device, model_names, rented_cards
from memsheet.errors import InputError, input_error, raise_if_problems
from memsheet.frozen import NamedTuple, replace
from memsheet.plan.aliases import ALIASES, LIBRARIES, library_named
from memsheet.plan.device import parse_gpus
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.library_defaults import without_implied_keys
from memsheet.plan.model import ModelSpec
from memsheet.plan.options import InferOptions, Model
from memsheet.plan.values import option_problems
from memsheet.questions.accounted import library_use, with_draft_model
from memsheet.questions.question_parts import (
    catalog_entry,
    parse_question,
    plan_document_of,
    read_named_model,
    task_of,
)
from memsheet.readers.hf_config import read_hf_config
from memsheet.readers.model import find_config
from memsheet.units import parse_bytes

if TYPE_CHECKING:
    from memsheet.readers.cluster_file import ClusterFile
    from memsheet.search.solve.sizes import Curve
    from memsheet.search.solve.targets import Solution, Target

USUAL_LENGTH = 4096
"""Tokens of a sequence where the largest model is asked for and no length is given: what Llama 2 was trained
on (arXiv:2307.09288).
"""
MACHINES = ("gpus", "nodes", "per_node", "host_memory", "cluster", "plan")
MOST_LOOKED = 2**26
"""As far as a search looks, in tokens, sequences or GPUs: the longest sequence of a plan
(``plan.check.RULES``).
"""
Say = Callable[[int | None], None]


class Solved(NamedTuple):
    """A solution, and of `parameters` the sizes that other clusters train, with what a picture of them says
    above and below.
    """

    solution: Solution
    curves: tuple[Curve, ...] = ()
    title: str = ""
    caption: str = ""


def solve(
    what: str, model: Model | None = None, *, most: int | None = None, **options: Unpack[InferOptions]
) -> Solution:
    """The largest (of GPUs: the smallest) value of ``what`` that fits, and what stands in the way of more.

    ``what``: "seq-len", "microbatch", "gpus", "parameters"; of serving "sequences", "max-model-len" and,
    where the engine or a word of serving says so, "gpus".
    ``most``: how far to look, in tokens, sequences or GPUs. ``model`` and keywords as for ``memsheet.train``;
    of "gpus" a card without a count, of "parameters" the model names the family that is scaled. Raises
    InputError with every problem of the question.
    """
    raise_if_problems(option_problems({**options, "most": most}))
    return solve_question(
        target_named(what), {"model": model, **dict.fromkeys(MACHINES), **options}, most=most
    ).solution


def target_named(what: str) -> Target:
    """What is solved for, by its name. Raises InputError for another one."""
    from memsheet.search.solve.targets import Target

    name = what.replace("_", "-") if isinstance(what, str) else ""
    keys = {meaning.key for meaning in ALIASES[name].meanings} if name in ALIASES else set()
    found = [target for target in Target if target.value == name or target.key in keys]
    if not found:
        raise input_error(
            "solve",
            what,
            "is nothing that is solved for",
            f"one of {', '.join(target.value for target in Target)}",
        )
    return next((target for target in found if target.value == name), found[0])


def solve_question(
    target: Target, asked: dict[str, Any], *, most: int | None = None, say: Say = lambda _: None
) -> Solved:
    """The answer to a question of keywords; ``say`` is told what is under way."""
    from memsheet.search.solve import targets as searches

    _check_question(target, asked, most)
    if target is searches.Target.GPUS:
        return Solved(_fewest_gpus(asked, most, say))
    searched = "the micro-batch" if target is searches.Target.MICROBATCH else ""
    name, request, cluster, where = parse_question(target.task, asked.pop("model"), asked, searched=searched)
    if target.key in where["said"]:
        raise input_error(
            target.key,
            where["said"][target.key],
            "is what is solved for",
            "leave it out; --most says how far to look",
        )
    request = {
        key: value for key, value in request.items() if key != target.key
    }  # a plan file's own value is what is asked for anew
    if cluster is None:
        raise input_error("gpus", None, "is missing", "for example --gpus 8xH100-80GB")
    library = library_use(where["library"])
    if target is searches.Target.PARAMETERS:
        largest = partial(_largest_model, name, cluster=cluster, say=say, library=library)
        solved = _with_recomputed(largest(request), lambda edits: largest({**request, **edits}, curves=False))
        return _with_assumptions(solved, where)
    request = without_implied_keys(where["library"], request, where["own"])
    search = (
        partial(searches.solve_sequence_length, at_once=where["wanted"] or 1)
        if target in (searches.Target.SEQ_LEN, searches.Target.MAX_MODEL_LEN)
        else searches.most_sequences
    )
    spec = with_draft_model(_read_named_model(name, target.task, request), request)

    def with_edits(edits: Mapping[str, Any]) -> Solved:
        return Solved(search(spec, {**request, **edits}, cluster, most=most, say=say, library=library))

    return _with_assumptions(_with_recomputed(with_edits({}), with_edits), where)


def _with_recomputed(solved: Solved, again: Callable[[Mapping[str, Any]], Solved]) -> Solved:
    """With what fits where every layer is recomputed, of training that is said nothing about it."""
    from memsheet.report.screen.recompute_phrase import UNSAID

    solution = solved.solution
    if solution.task != "train" or UNSAID not in solution.shown.assumed:
        return solved
    try:
        recomputed = again({"recompute.mode": "full"}).solution
    except InputError:
        return solved
    return solved._replace(solution=replace(solution, recomputed=recomputed))


def _with_assumptions(found: Solved, where: Mapping[str, Any]) -> Solved:
    """With what was taken for granted before any plan was made, but of what is solved for."""
    told = tuple(line for line in where["assumed"] if not line.startswith(f"{found.solution.target.key} = "))
    return found._replace(solution=replace(found.solution, assumed=(*told, *found.solution.assumed)))


def _check_question(target: Target, asked: Mapping[str, Any], most: int | None) -> None:
    """What has no meaning for the question."""
    if asked.get("parameters") is not None:
        raise input_error(
            "parameters",
            asked["parameters"],
            "has no activations, so nothing can be solved for it",
            "name a model",
        )
    if all(asked[where] is None for where in ("gpus", "cluster", "plan")):
        raise input_error(
            "gpus",
            None,
            "is missing",
            "--gpus H100-80GB" if target.short == "gpus" else "for example --gpus 8xH100-80GB",
        )
    if most is not None and not 1 <= most <= MOST_LOOKED:
        raise input_error(
            "most", most, f"is outside 1 to {MOST_LOOKED:,}", "no sequence, batch or cluster is near this"
        )
    if target.short == "parameters" and most is not None:
        raise input_error(
            "most", most, "has no meaning for parameters, which end with the family", "leave it out"
        )


def _read_named_model(name: Any, task: str, request: Mapping[str, Any]) -> ModelSpec:
    if name is None:
        raise input_error("model", None, "is missing", "a bundled name (`memsheet models`) or a config.json")
    return read_named_model(name, task, request.get("engine"))


def _fewest_gpus(asked: dict[str, Any], most: int | None, say: Say) -> Solution:
    """The device is named without a count; nodes are what is found."""
    from memsheet.search.solve.targets import solve_gpu_count

    if asked["nodes"] is not None:
        raise input_error(
            "nodes",
            asked["nodes"],
            "is what is solved for",
            "leave it out; --per-node says how many GPUs a node has",
        )
    plan = plan_document_of(asked["plan"])
    asked["plan"] = {key: value for key, value in plan.items() if key != "gpus"} or None
    task = "infer" if _only_serves(asked.get("engine") or plan.get("engine")) else task_of(asked)
    machines, most = _node_and_limit(
        {key: asked.pop(key) for key in ("gpus", "per_node", "host_memory", "cluster")},
        plan.get("gpus"),
        most,
    )
    searched = "the number of GPUs" if task == "train" else ""
    name, request, _, where = parse_question(task, asked.pop("model"), asked, searched=searched)
    solution = solve_gpu_count(
        with_draft_model(_read_named_model(name, task, request), request),
        request,
        machines.device,
        per_node=machines.per_node,
        host_bytes=machines.host_bytes,
        links=machines.links,
        most=most,
        say=say,
        library=library_use(where["library"]),
        at_once=where["wanted"] or 1,
    )
    return _with_assumptions(Solved(solution), where).solution


def _only_serves(engine: Any) -> bool:
    """Whether an engine, by its name or a library's, trains nothing."""
    library = library_named(engine) if isinstance(engine, str) else None
    found = find_engine(LIBRARIES[library][0] if library else str(engine))
    return found is not None and "train" not in found.tasks


def _node_and_limit(
    asked: Mapping[str, Any], planned: Any, most: int | None
) -> tuple[ClusterFile, int | None]:
    """The device, its node and its links, and how many there may be: of a cluster file no more than it
    has.
    """
    from memsheet.readers.cluster_file import ClusterFile, read_cluster

    if asked["cluster"] is not None:
        extra = next((key for key in ("gpus", "per_node", "host_memory") if asked[key] is not None), None)
        if extra:
            raise input_error(extra, asked[extra], "is what the cluster file says", "say it in one place")
        found = read_cluster(asked["cluster"])
        return found, most or (found.cluster().count if found.count or found.nodes else None)
    gpus, host = asked["gpus"] or planned, asked["host_memory"]
    rented = rented_cards(str(gpus))
    count, device = (None, rented.card) if rented and rented.cards is None else parse_gpus(str(gpus))
    if count is not None:
        raise input_error(
            "gpus", gpus, "has a count, and the count is what is solved for", f"--gpus {device}"
        )
    host_bytes = parse_bytes(host, "host_memory") if host is not None else None
    return ClusterFile(
        name="",
        device=find_device(device),
        per_node=asked["per_node"] or (rented.each if rented else None),
        host_bytes=host_bytes,
    ), most


def _largest_model(
    name: Any,
    request: Mapping[str, Any],
    *,
    cluster: Any,
    say: Say,
    library: LibraryUse | None,
    curves: bool = True,
) -> Solved:
    from memsheet.search.solve.family import USUAL, Family, family_of
    from memsheet.search.solve.sizes import trainable_sizes
    from memsheet.search.solve.targets import solve_model_size

    found = find_config(name or USUAL, catalog=catalog_entry, names=model_names())
    if isinstance(found, ModelSpec):
        raise input_error(
            "model",
            name,
            "is one model with no config that could be scaled",
            "a bundled name or a config.json",
        )
    family: Family = family_of(found.name, found.values)
    usual = () if request.get("seq_len") else (f"seq_len = {USUAL_LENGTH}",)
    request = {**request, "seq_len": request.get("seq_len") or USUAL_LENGTH}
    build = cache(
        lambda layers: read_hf_config(family.of_layers(layers), name=f"{family.name} of {layers} layers")
    )
    solution = solve_model_size(build, request, cluster, say=say, assumed=usual, library=library)
    if not curves:
        return Solved(solution)
    say(None)
    sizes = trainable_sizes(build, request, cluster, solution.found)
    under = (
        f"the family of {family.name}, sequences of {request['seq_len']:,} tokens; each point: the "
        "whole range of the need fits"
    )
    return Solved(solution, sizes, f"What trains on {cluster.device.name}", under)
