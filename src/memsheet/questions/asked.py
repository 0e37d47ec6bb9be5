"""What a question may hold, as JSON Schema: made from the table of options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.catalog import model_names
from memsheet.jobs.limits import BATCH, ROWS, SHARE
from memsheet.jobs.templates import TEMPLATES
from memsheet.plan.options import TemplateOptions
from memsheet.questions.form import form_document

TYPES = {
    "count": ["integer", "string"],
    "flag": ["boolean"],
    "number": ["number", "string"],
    "share": ["number", "string"],
    "counts": ["string"],
    "texts": ["string"],
}
"""JSON types of an option by its kind; all others are texts."""
TEXT, WHOLE, OBJECT = {"type": "string"}, {"type": "integer"}, {"type": "object"}
MODEL = {
    "anyOf": [{"enum": sorted(model_names())}, {"type": ["string", "object"]}],
    "description": "A bundled name, a hub id, or a config.json as it is.",
}
GPUS = {
    "anyOf": [
        {"pattern": "^[1-9][0-9]?x(T4|L4|A100-80GB|H100-80GB|RTX4090)$", "type": "string"},
        {"type": "string"},
    ],
    "description": "Cards: 8xH100-80GB.",
}
JOB: Mapping[str, Any] = {
    "model": MODEL,
    "gpus": GPUS,
    "nodes": WHOLE,
    "per_node": WHOLE,
    "host_memory": TEXT,
    "plan": OBJECT,
    "cluster": OBJECT,
    "fix": {"type": "boolean"},
    "slack": {"enum": ["replay", "bounds", "share"]},
    "view": {"type": "boolean", "description": "Beside the document the words of the screen."},
}
VALUES = {"type": "array", "items": {"type": ["integer", "string"]}}
FILES = {
    "type": "array",
    "items": {"type": "object", "properties": {"name": TEXT, "text": TEXT}, "required": ["name", "text"]},
}
SERVED = {"context": WHOLE, "users": WHOLE, "ttft": TEXT, "tpot": TEXT, "any_precision": {"type": "boolean"}}
WORD = {"type": ["string", "number", "boolean"]}
OF_JOB: Mapping[str, Any] = {
    "job": {"type": ["string", "object"], "description": f"An object of memsheet/job/1, or a template ({', '.join(TEMPLATES)}), whose options are the further keys."},
    **{key: JOB[key] for key in ("gpus", "nodes", "per_node", "host_memory", "cluster", "view")},
    **dict.fromkeys(TemplateOptions.__annotations__, WORD),
}  # fmt: skip
ASKED: Mapping[str, tuple[str, Mapping[str, Any], tuple[str, ...], str]] = {
    "train": ("Does this training job fit, and what takes the room?", JOB, (), "sheet"),
    "infer": ("Does this model fit for inference, and how much cache is left?", JOB, (), "sheet"),
    "solve": ("The longest sequence, largest micro-batch, fewest GPUs or largest model that fits.", {"what": TEXT, "most": WHOLE, **JOB}, ("what",), "solution"),
    "plan": ("The fastest plans that fit, of every legal one.", {**JOB, "method": TEXT, "top": WHOLE}, (), "plans"),
    "plan-serving": ("How to serve a model on a cluster.", {**JOB, **SERVED}, (), "serve-plans"),
    "grid": ("A table of two options: what a GPU needs, and whether it fits.", {"task": TEXT, "x": TEXT, "y": TEXT, "xs": VALUES, "ys": VALUES, **JOB}, (), ""),
    "check": ("Configuration files of an engine: their sheet, verdict and mistakes.", {"files": FILES, "model_otherwise": MODEL, **JOB}, ("files",), "checked"),
    "export": ("A plan as the configuration of the engine that runs it.", {"plan": OBJECT, "to": TEXT, "pick": WHOLE}, ("plan", "to"), ""),
    "compare": ("Two sheets side by side.", {"left": OBJECT, "right": OBJECT, "instant": TEXT, "rank": WHOLE}, ("left", "right"), ""),
    "diagnose": ("What a job died of, from its error message or its log, and what would have helped.", {"text": TEXT, **JOB}, ("text",), "diagnosis"),
    "job": ("What every phase of a job of several models (RL, preference, distillation) needs on the same cards.", OF_JOB, ("job",), "sheet"),
    "solve-job": ("The largest share of a job's server, or the most tokens of a row or a micro-batch, with which every phase fits.", {"what": {"enum": [SHARE, ROWS, BATCH]}, **OF_JOB}, ("what", "job"), ""),
    "explain": ("What a word on a sheet means, with its source.", {"term": TEXT}, ("term",), ""),
    "read": ("What a pasted text is, and the question that asks about it.", {"text": TEXT}, ("text",), ""),
}  # fmt: skip
"""Each question: what it is, its keys, those that it needs, and the schema of its document."""
OF_PLAN = ("train", "infer", "solve", "plan", "plan-serving", "grid", "check", "diagnose")
"""Questions that take every option of a plan."""


def request_schema(question: str) -> dict[str, Any]:
    """JSON Schema (2020-12) of the object that asks a question."""
    _, keys, needs, _ = ASKED[question]
    properties = {**(_option_schemas() if question in OF_PLAN else {}), **keys}
    return {"type": "object", "properties": properties, **({"required": list(needs)} if needs else {})}


def _option_schemas() -> dict[str, Any]:
    return {row["name"]: _option_schema(row) for row in form_document()["options"]}


def _option_schema(row: Mapping[str, Any]) -> dict[str, Any]:
    offered = [{"enum": row["choices"]}] if row["choices"] else []
    return {
        "anyOf": [*offered, {"type": TYPES.get(row["kind"], ["string"])}],
        "description": row["words"],
    }
