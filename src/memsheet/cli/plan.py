"""`memsheet plan`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Group, Parameter

from memsheet import api
from memsheet.catalog import model_names
from memsheet.cli import job as jobs
from memsheet.cli import screen
from memsheet.cli.flags import JobFlags, ModelName, OutputFlags, PlanFlags
from memsheet.errors import refuse
from memsheet.readers.model import read_model

SEARCH = Group("Search", sort_key=8)
FOUND, NOTHING = 0, 10
ANY = ("megatron", "fsdp2", "deepspeed", "transformers")
"""Engines that train any model of theirs from its configuration; others are asked by name."""
SHOWN = 5
METHODS: dict[str, dict[str, Any]] = {
    "full": {},
    "lora": {"adapter.rank": 16},
    "qlora": {"adapter.rank": 16, "quantization.weights": "nf4"},
}


@dataclass(frozen=True, kw_only=True)
class SearchFlags:
    """What is searched, and how much of it is shown."""

    method: Annotated[str, Parameter(help="full, lora or qlora.", group=SEARCH, metavar="NAME")] = "full"
    top: Annotated[str | None, Parameter(help="How many plans to show.", group=SEARCH, metavar="N", show_default=False)] = None


Task = Annotated[str, Parameter(help="train", metavar="TASK")]


def plan(
    task: Task,
    model: ModelName = None,
    /,
    *,
    job: Annotated[JobFlags | None, Parameter(name="*")] = None,
    plan: Annotated[PlanFlags | None, Parameter(name="*")] = None,
    flags: Annotated[SearchFlags | None, Parameter(name="*")] = None,
    output: Annotated[OutputFlags | None, Parameter(name="*")] = None,
) -> int:
    """The fastest plans that fit, of every legal one, and why the others do not."""
    job, flags, output = job or JobFlags(), flags or SearchFlags(), output or OutputFlags()
    decimal, top = screen.decimal(output.units), jobs.number("top", flags.top) or SHOWN
    if task != "train":
        raise refuse("plan", task, "is not searched yet", "memsheet plan train MODEL --gpus … --seq-len … --global-batch …")
    if flags.method not in METHODS:
        raise refuse("method", flags.method, "is none", f"one of {', '.join(METHODS)}")
    asked = jobs.question(model, plan, job)
    if asked.get("parameters") is not None:
        raise refuse("parameters", asked["parameters"], "has no activations, so no plan can be searched", "name a model")
    name, request, cluster, _ = api.question("train", asked.pop("model"), asked)
    if cluster is None:
        raise refuse("gpus", None, "is missing", "for example --gpus 8xH100-80GB")
    if name is None:
        raise refuse("model", None, "is missing", "a bundled name (`memsheet models`) or a config.json")
    from memsheet.readers.calibration import efficiency_of
    from memsheet.search.rank import ranked

    wanted = request.pop("engine", None)
    engines = ANY if wanted in (None, "any") else (str(wanted),)
    spec = read_model(name, catalog=api.catalogued, names=model_names())
    found = ranked(
        spec,
        cluster,
        {**METHODS[flags.method], **request},
        engines,
        top=top,
        scaled=lambda engine: efficiency_of(cluster.device.name, engine),
    )
    from memsheet.report import plans as report

    if output.json:
        screen.write_json(report.plans_document(found))
    else:
        from memsheet.report.bars import Look

        look = Look(width=screen.width(), decimal=decimal, full=output.full, colour=screen.colour(), ascii=screen.plain_ascii())
        screen.write(report.render_plans(found, look))
    return FOUND if found.plans else NOTHING
