"""`memsheet solve`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memsheet import api
from memsheet.catalog import find_device, model_names
from memsheet.cli import job as jobs
from memsheet.cli import screen
from memsheet.cli.line import Given
from memsheet.errors import refuse
from memsheet.readers.hf_config import read_hf_config
from memsheet.readers.model import find_config, read_model
from memsheet.spec.device import parse_gpus
from memsheet.spec.model import ModelSpec
from memsheet.units import parse_bytes

if TYPE_CHECKING:
    from memsheet.readers.cluster_file import ClusterFile
    from memsheet.search.sizes import Curve
    from memsheet.search.solve import Solution, Target

FOUND, NOTHING, UNSURE = 0, 10, 11
USUAL_LENGTH = 4096
"""Tokens of a sequence where the largest model is asked for and no length is given: what Llama 2 was trained on (arXiv:2307.09288)."""


def solve(asked: Given) -> int:
    """The longest sequence, the largest micro-batch, the fewest GPUs or the largest model that fits."""
    decimal, target = screen.decimal(asked.units), _target(asked.what)
    _check(target.value, asked)
    question = jobs.question(asked)
    if target is not target.GPUS and question.get(target.short) is not None:
        raise refuse(target.key, question[target.short], "is what is solved for", "leave it out; --most says how far to look")
    solution, curves = _solved(target, question, asked)
    _silence()
    return _shown(solution, curves, asked, decimal=decimal)


def _target(what: str) -> Target:
    from memsheet.search.solve import Target

    try:
        return Target(what.replace("_", "-"))
    except ValueError:
        raise refuse("solve", what, "is nothing that is solved for", f"one of {', '.join(target.value for target in Target)}") from None


def _check(what: str, asked: Given) -> None:
    """What has no meaning for the question, and whether the picture can be drawn."""
    if asked.parameters is not None:
        raise refuse("parameters", asked.parameters, "has no activations, so nothing can be solved for it", "name a model")
    if asked.gpus is None and asked.cluster is None and asked.plan is None:
        raise refuse("gpus", None, "is missing", "--gpus H100-80GB" if what == "gpus" else "for example --gpus 8xH100-80GB")
    if what == "parameters" and asked.most is not None:
        raise refuse("most", asked.most, "has no meaning for parameters, which end with the family", "leave it out")
    if what == "parameters" and asked.model is not None and asked.family is not None:
        raise refuse("model", asked.family, "is named twice", "once is enough")
    if what != "parameters":
        for field, value in (("model", asked.family), ("picture", asked.picture)):
            if value is not None:
                raise refuse(field, value, "belongs to `solve parameters`", "leave it out")
    if asked.picture:
        from memsheet.report.files import check_folder
        from memsheet.report.picture import check

        check(Path(asked.picture))
        check_folder(Path(asked.picture).parent, "picture")


def _solved(target: Target, asked: dict[str, Any], line: Given) -> tuple[Solution, tuple[Curve, ...]]:
    from memsheet.search import solve as searches

    most = jobs.number("most", line.most)
    if target is searches.Target.GPUS:
        return _fewest(asked, most), ()
    name, request, cluster, _ = api.question(target.task, asked.pop("model"), asked)
    request = {key: value for key, value in request.items() if key != target.key}  # a plan file's own value is what is asked for anew
    if cluster is None:
        raise refuse("gpus", None, "is missing", "for example --gpus 8xH100-80GB")
    if target is searches.Target.PARAMETERS:
        return _largest(name or line.family, request, cluster, line.picture)
    search = searches.longest if target in (searches.Target.SEQ_LEN, searches.Target.MAX_MODEL_LEN) else searches.most_sequences
    return search(api.drafted(_model(name), request), request, cluster, most=most, say=_say), ()


def _model(name: Any) -> ModelSpec:
    if name is None:
        raise refuse("model", None, "is missing", "a bundled name (`memsheet models`) or a config.json")
    return read_model(name, catalog=api.catalogued, names=model_names())


def _fewest(asked: dict[str, Any], most: int | None) -> Solution:
    """The device is named without a count; nodes are what is found."""
    from memsheet.search.solve import fewest

    if asked["nodes"] is not None:
        raise refuse("nodes", asked["nodes"], "is what is solved for", "leave it out; --per-node says how many GPUs a node has")
    plan = dict(asked["plan"] or {})
    asked["plan"] = {key: value for key, value in plan.items() if key != "gpus"} or None
    machines, most = _machines({key: asked.pop(key) for key in ("gpus", "per_node", "host_memory", "cluster")}, plan.get("gpus"), most)
    name, request, _, _ = api.question("train", asked.pop("model"), asked)
    return fewest(
        _model(name),
        request,
        machines.device,
        per_node=machines.per_node,
        host_bytes=machines.host_bytes,
        links=machines.links,
        most=most,
        say=_say,
    )


def _machines(asked: Mapping[str, Any], planned: Any, most: int | None) -> tuple[ClusterFile, int | None]:
    """The device, its node and its links, and how many there may be: of a cluster file no more than it has."""
    from memsheet.readers.cluster_file import ClusterFile, read_cluster

    if asked["cluster"] is not None:
        extra = next((key for key in ("gpus", "per_node", "host_memory") if asked[key] is not None), None)
        if extra:
            raise refuse(extra, asked[extra], "is what the cluster file says", "say it in one place")
        found = read_cluster(asked["cluster"])
        return found, most or (found.cluster().count if found.count or found.nodes else None)
    gpus, host = asked["gpus"] or planned, asked["host_memory"]
    count, device = parse_gpus(str(gpus))
    if count is not None:
        raise refuse("gpus", gpus, "has a count, and the count is what is solved for", f"--gpus {device}")
    host_bytes = parse_bytes(host, "host_memory") if host is not None else None
    return ClusterFile(name="", device=find_device(device), per_node=asked["per_node"], host_bytes=host_bytes), most


def _largest(name: Any, request: Mapping[str, Any], cluster: Any, picture: str | None) -> tuple[Solution, tuple[Curve, ...]]:
    from memsheet.search.family import USUAL, Family, family_of
    from memsheet.search.sizes import trainable_sizes
    from memsheet.search.solve import largest

    found = find_config(name or USUAL, catalog=api.catalogued, names=model_names())
    if isinstance(found, ModelSpec):
        raise refuse("model", name, "is one model with no config that could be scaled", "a bundled name or a config.json")
    family: Family = family_of(found.name, found.values)
    usual = () if request.get("seq_len") else (f"seq_len = {USUAL_LENGTH}",)
    request = {**request, "seq_len": request.get("seq_len") or USUAL_LENGTH}
    build = cache(lambda layers: read_hf_config(family.of_layers(layers), name=f"{family.name} of {layers} layers"))
    solution = largest(build, request, cluster, say=_say, assumed=usual)
    _say(None)
    curves = trainable_sizes(build, request, cluster, solution.found)
    if picture:
        from memsheet.report.picture_sizes import draw_sizes

        under = f"the family of {family.name}, sequences of {request['seq_len']:,} tokens; each point: the whole range of the need fits"
        draw_sizes(curves, Path(picture), title=f"What trains on {cluster.device.name}", under=under)
    return solution, curves


def _shown(solution: Solution, curves: tuple[Curve, ...], output: Given, *, decimal: bool) -> int:
    from memsheet.report import solve as report

    if output.json:
        screen.write_json(report.solution_document(solution, curves))
    else:
        from memsheet.report.bars import Look

        look = Look(width=screen.width(), decimal=decimal, full=output.full, colour=screen.colour(), ascii=screen.plain_ascii())
        screen.write(report.render_solution(solution, look, curves))
    if solution.found is not None:
        return FOUND
    return NOTHING if solution.expected is None else UNSURE


def _say(value: int | None) -> None:
    """How far the search is, on one line of stderr, where a person looks."""
    if sys.stderr.isatty():
        words = "clusters of other sizes" if value is None else f"replaying a step at {value:,}"
        print(f"\r\033[K{words} …", end="", file=sys.stderr, flush=True)


def _silence() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
