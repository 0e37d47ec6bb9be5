"""A question taken apart: the model's name, the request, the cluster, and what is no option of a plan."""

from __future__ import annotations

import marshal
import os
from collections.abc import Container, Iterable, Mapping
from functools import partial
from os import PathLike
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from memsheet.catalog import find_device, find_model, model_names, rented_cards
from memsheet.errors import InputError, Problem, input_error, raise_if_problems
from memsheet.frozen import replace
from memsheet.guard import MAX_JSON_BYTES, is_file, parse_json, read_bytes
from memsheet.late import late_functions
from memsheet.plan.accumulated_batch import ACCUMULATION, refuse_counts, with_accumulated_batch
from memsheet.plan.aliases import FAMILY, OLDER_CARD
from memsheet.plan.check import flatten_document
from memsheet.plan.device import ONE_NODE, Cluster, Device, cluster_of, parse_gpus
from memsheet.plan.hardware import BF16_UNITS, is_older_device
from memsheet.plan.model import ModelSpec, Source
from memsheet.plan.overriding import without_overridden
from memsheet.plan.values import option_problems
from memsheet.plan.words import ReadOptions, in_our_words, of_serving, sequences_at_once
from memsheet.readers.hf_config import model_on_record, read_hf_config
from memsheet.readers.model import find_config, read_model
from memsheet.units import parse_bytes

with late_functions(__name__):
    from memsheet.plan.library_defaults import assumed_value_text, library_defaults_for, of_library
    from memsheet.questions.recordings import recording_of, serving_recording_of
    from memsheet.questions.released_embedders import embedder_as_served
    from memsheet.questions.trained_embedders import as_trained_embedder

if TYPE_CHECKING:
    from pathlib import Path

    from memsheet.readers.hf_config import Config, Recorder

REPLAY, BOUNDS, SHARE = SLACKS = ("replay", "bounds", "share")
"""How what the allocator reserves beyond tensors is found (``plan.options.Slack``)."""


def parse_question(
    task: str,
    model: Any,
    options: dict[str, Any],
    *,
    searched: str = "",
    varied: Container[str] = (),
    settled: Iterable[str] = (),
) -> tuple[Any, dict[str, Any], Cluster | None, dict[str, Any]]:
    """What is asked, taken apart: the model's name, the request, the cluster, and what is no option of a
    plan. What is not said is as a named library does it, by every command. ``searched``: the counts that a
    search varies, in words; ``varied``: groups of keys of which it tries every value, a library's own among
    them; ``settled``: keys that are spoken of elsewhere.
    """
    raise_if_problems(option_problems(options))
    where = {
        key: options.pop(key, None)
        for key in (
            "gpus",
            "nodes",
            "per_node",
            "host_memory",
            "cluster",
            "plan",
            "parameters",
            "fix",
            "slack",
        )
    }
    if where["slack"] not in (None, *SLACKS):
        raise input_error("slack", where["slack"], "is no way to find it", f"one of {', '.join(SLACKS)}")
    document = flatten_document(plan_document_of(where["plan"]))
    asked = in_our_words(options, task, document)
    request = {**without_overridden(document, asked.request), **asked.request, "task": task}
    where["wanted"] = sequences_at_once(asked) if task == "infer" else None
    model = model if model is not None else request.pop("model", None)
    cluster = (
        _cluster_from_gpus(where["gpus"] or request.pop("gpus", None), where)
        if where["cluster"] is None
        else _in_file(where)
    )
    for described in ("model", "gpus", "schema"):
        request.pop(described, None)
    if searched:
        refuse_counts(request, searched)
    before, own = request, tuple[str, ...]()
    if task == "train" and where["parameters"] is None:
        of_question = asked._replace(settled=asked.settled | set(settled))
        beside = card_and_family(cluster.device if cluster else None, model) if asked.library else {}
        request, own = with_defaults(request, of_question, searched, varied, beside)
    request, counted = with_accumulated_batch(request, cluster.count if cluster else None)
    told = {
        "assumed": (*asked.assumed, *own, *counted),
        "own": [key for key in request if key not in before],
        "said": asked.request,
    }
    return model, request, cluster, {**where, **told, "library": asked.library}


def card_and_family(device: Device | None, model: Any) -> dict[str, Any]:
    """What a library looks at beside a plan: the model's family, on a card that is older than Ampere."""
    if device is None or model is None or not is_older_device(device, BF16_UNITS):
        return {}
    try:
        found = find_config(model, catalog=catalog_entry, names=model_names())
    except InputError:
        return {}  # which is told where the model is read
    family = found.model_type if isinstance(found, ModelSpec) else found.values.get("model_type")
    return {OLDER_CARD: True, FAMILY: family}


def task_of(options: Mapping[str, Any]) -> str:
    """What a plan says it is; else inference where something of what is served is given, training
    elsewhere.
    """
    plan = options.get("plan")
    said = plan.get("task") if isinstance(plan, Mapping) else None
    return said if said in ("train", "infer") else "infer" if _has_serving_options(options) else "train"


def _has_serving_options(options: Mapping[str, Any]) -> bool:
    given = [name for name, value in options.items() if value is not None]
    return any(options.get(name) for name in _SERVED) or any(map(of_serving, given))


_SERVED = ("max_model_len", "prompt_tokens", "output_tokens", "sequences", "kv_dtype")


def with_defaults(
    request: dict[str, Any],
    asked: ReadOptions,
    searched: str = "",
    varied: Container[str] = (),
    beside: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The request with what the named library does where nothing is said, and that in words. A search that is
    of sizes counts no accumulation.
    """
    filled, words = dict(request), list[str]()
    if not asked.library:
        return filled, ()
    for default, keys in library_defaults_for(asked.library, request, asked.settled, beside):
        if (searched and ACCUMULATION in keys) or any(key.partition(".")[0] in varied for key in keys):
            continue
        filled |= keys
        words += [
            f"{key} = {assumed_value_text(value)} ({of_library(asked.library)} own default)"
            for key, value in keys.items()
            if key[0] != "@"
        ]
        words += [f"{default.name} = {default.value} ({of_library(asked.library)} own default)"] * (
            ACCUMULATION in keys
        )
    return filled, tuple(words)


def catalog_entry(name: str) -> Mapping[str, Any] | None:
    """The bundled model that a name is of, as ``bundled_entry`` finds it."""
    if (found := find_model(name)) is not None:
        return found
    from memsheet.catalog.names import bundled_entry

    return bundled_entry(name, endpoint=os.environ.get("HF_ENDPOINT", ""))


def read_named_model(model: Any, task: str, engine: object = None) -> ModelSpec:
    """The model that a person names. Its own code is put on record where its family is not written down, or
    where only its weights and caches are and it is to train, under ``engine`` where one is named.
    """
    recorder = recording_of if task == "train" else serving_recording_of
    found = find_config(model, catalog=catalog_entry, names=model_names())
    if isinstance(found, ModelSpec):
        return found
    spec = _model_of_config(found, recorder)
    if task == "infer" and engine is not None:
        return embedder_as_served(spec, engine)
    if task != "train" or spec.recording is not None:
        return spec
    spec = as_trained_embedder(spec, found.values)
    from memsheet.formulas.model_code.transformers.plan_problems import has_written_layers

    return (
        spec
        if has_written_layers(spec, str(engine or ""))
        else model_on_record(found.values, recording_of, name=found.name, source=found.source)
    )


_recent_models: dict[tuple[bytes, str, Source], ModelSpec] = {}
"""The last models that were read, by all that their configs say: an object that is asked about again knows
what was made for it.
"""
MOST_MODELS, MOST_CONFIG_BYTES = 16, 1 << 16
EXACT = 2
"""The format of marshal in which equal values are equal bytes: it knows no references."""


def _model_of_config(found: Config, recorder: Recorder) -> ModelSpec:
    """The model of a config, read once. One whose own code is put on record is looked for again: its record
    may be another.
    """
    global _recent_models  # noqa: PLW0603 - one value, replaced as a whole
    read = partial(read_hf_config, found.values, name=found.name, source=found.source, recorder=recorder)
    try:
        said = marshal.dumps(cast("Any", found.values), EXACT)
    except ValueError:  # no plain values, which the reader says
        return read()
    key = (said, found.name, found.source)
    known = _recent_models.get(key)
    if known is not None:
        return known
    made = read()
    if made.recording is None and len(said) <= MOST_CONFIG_BYTES:
        _recent_models = {**dict([*_recent_models.items()][1 - MOST_MODELS :]), key: made}
    return made


def read_written_model(name: str) -> ModelSpec | None:
    """A bundled model whose family is written down; None for one that would have to be put on record."""
    try:
        return read_model(name, catalog=catalog_entry)
    except InputError:
        return None


def plan_document_of(plan: Any) -> Mapping[str, Any]:
    """The object that a plan file or a dict holds; an empty one where there is no plan."""
    if isinstance(plan, str | PathLike):
        from pathlib import Path

        plan = _read_plan(Path(plan))
    if plan is None:
        return {}
    if not isinstance(plan, Mapping) or not all(isinstance(key, str) for key in plan):
        raise input_error("plan", plan, "is not an object of memsheet/plan/1")
    return plan


def _read_plan(path: Path) -> Any:
    if not is_file(path):
        raise input_error("plan", str(path), "is not a file")
    return parse_json(read_bytes(path, MAX_JSON_BYTES), str(path))


def _cluster_from_gpus(gpus: Any, where: Mapping[str, Any]) -> Cluster | None:
    host = where["host_memory"]
    if gpus is None:
        described = [key for key in ("nodes", "per_node", "host_memory") if where[key] is not None]
        raise_if_problems(
            Problem(
                field=key,
                value=where[key],
                reason="describes a cluster, and none is named",
                hint="add --gpus 8xH100-80GB",
            )
            for key in described
        )
        return None
    rented = rented_cards(str(gpus))
    count, name = parse_gpus(rented.gpus if rented else str(gpus))
    device = find_device(name)
    if rented:
        device = replace(
            device, assumed=(*device.assumed, f"gpus {gpus} = {rented.gpus}, {rented.each} a node")
        )
    if count is None:
        count, words = _uncounted_cards(device, where["nodes"], where["per_node"])
        device = replace(device, assumed=(*device.assumed, f"gpus = {count}x{device.name} ({words})"))
    return cluster_of(
        device,
        count,
        per_node=where["per_node"] or (rented.each if rented and where["nodes"] is None else None),
        nodes=where["nodes"],
        host_bytes=parse_bytes(str(host), "host_memory") if host is not None else None,
    )


def _uncounted_cards(device: Device, nodes: int | None, per_node: int | None) -> tuple[int, str]:
    """How many cards there are where the count is not said beside their name, and of what that follows."""
    if nodes is None:
        return per_node or 1, "one node of as many" if per_node else "no count was given"
    each = per_node or device.per_node or ONE_NODE
    return nodes * each, f"{nodes} nodes of {each}" + ("" if per_node else ", which a node usually has")


def _in_file(where: Mapping[str, Any]) -> Cluster:
    from memsheet.readers.cluster_file import read_described_cluster

    return read_described_cluster(where["cluster"], where)
