"""A Hugging Face config.json → ModelSpec. Read as data: nothing in it is imported, called or looked up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from memsheet.errors import InputError, input_error, nearest_words
from memsheet.frozen import dataclass, replace
from memsheet.late import late_functions
from memsheet.plan.model import ModelSpec, Source, StoredQuantization
from memsheet.readers.fields import Fields
from memsheet.readers.label_heads import with_head_of_class
from memsheet.readers.quantization import stored_quantization
from memsheet.readers.registry import FAMILIES
from memsheet.readers.rope_lengths import scaled_positions, windows_rotate_apart

with late_functions(__name__):
    from memsheet.readers.hub_code import library_values
    from memsheet.readers.nested import is_decoder_alone
    from memsheet.readers.recorded import model_from_recording


AHEAD = {"qwen3_next": 1}
"""Layers for further tokens that a family's checkpoints have where the config does not say (``READ_IN``)."""
MOST_AHEAD = 64


@dataclass(frozen=True, slots=True)
class Config:
    """A parsed config.json, what its model is called and where it came from."""

    values: Mapping[str, Any]
    name: str
    source: Source


def library_config(found: Config) -> Config:
    """A config in the words of the library, where its family's code lies on the hub."""
    own = found.values.get("model_type") if isinstance(found.values, Mapping) else None
    if (
        not isinstance(own, str)
        or own in FAMILIES
        or (values := library_values(found.values)) is found.values
    ):
        return found
    return Config(values, found.name, replace(found.source, own_code=str(own)))


if TYPE_CHECKING:
    from memsheet.recording import Recording

    Recorder = Callable[[Mapping[str, Any]], Recording]
    """Puts a model's own code on record, of its config."""


def read_hf_config(
    data: Mapping[str, Any], *, name: str = "", source: Source | None = None, recorder: Recorder | None = None
) -> ModelSpec:
    """The model that ``data`` (a parsed config.json) describes. ``recorder``: reads the model's own code, for
    a family that is not written down.

    Raises InputError with every problem at once: an unknown model_type (with the nearest known one), a
    missing or absurd size, a value of the wrong type.
    """
    model_type = data.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise input_error(
            "model_type",
            model_type,
            "a config.json names its model_type as text",
            "is this a model's config.json?",
        )
    data, own_code = data if model_type in FAMILIES else library_values(data), model_type
    model_type = str(data["model_type"])
    if model_type not in FAMILIES and recorder is not None:
        return model_on_record(data, recorder, name=name, source=source)
    if model_type not in FAMILIES:
        near = _nearest_family(model_type)
        hint = f"{near}; `memsheet trace` runs any model that transformers can build" if near else ""
        raise input_error("model_type", model_type, "is not one memsheet knows; nothing is guessed", hint)
    config = Fields(data)
    spec: ModelSpec = import_module(f"memsheet.readers.families.{FAMILIES[model_type]}").read(config)
    if recorder is not None and is_decoder_alone(config):
        return model_on_record(data, recorder, name=name, source=source)
    stored = stored_quantization(config)
    dtype = config.text("dtype", "torch_dtype", default="") or None
    ahead = config.count("num_nextn_predict_layers", default=AHEAD.get(model_type, 0), low=0, high=MOST_AHEAD)
    config.done()
    where = source or Source(kind="dict")
    where = where if own_code == model_type else replace(where, own_code=own_code)
    found = replace(
        spec,
        name=name or model_type,
        dtype=dtype,
        quantization=_of_words_alone(stored, spec) if "quantization_config" not in data else stored,
        ahead=ahead or spec.ahead,
        source=replace(where, notes=(*where.notes, *_code_notes(data), *_own_code_notes(where, model_type))),
        scaled_positions=scaled_positions(data, spec.max_positions),
        windows_rotate_apart=windows_rotate_apart(data),
    )
    return with_head_of_class(found, data)


def _of_words_alone(stored: StoredQuantization | None, spec: ModelSpec) -> StoredQuantization | None:
    """A format that the text model's part of a config names, which towers and what joins them do not have."""
    if stored is None:
        return None
    beside = (
        ".".join(weight.path.split(".")[:2])
        for tower in spec.towers
        for weight in (*tower.embeddings, *tower.projector)
    )
    whole = (*(tower.path for tower in spec.towers), *beside)
    return replace(stored, skip=tuple(dict.fromkeys((*stored.skip, *whole))))


def model_on_record(
    data: Mapping[str, Any], recorder: Recorder, *, name: str = "", source: Source | None = None
) -> ModelSpec:
    """The model that ``data`` describes, as its own code makes it. Raises InputError where that cannot be put
    on record.
    """
    where = source or Source(kind="dict")
    said = replace(where, notes=where.notes + _code_notes(data))
    return model_from_recording(_put_on_record(recorder, data), data, name=name, source=said)


def _put_on_record(recorder: Recorder, data: Mapping[str, Any]) -> Recording:
    """The record of a family's own code. Raises InputError where there can be none, with the family that is
    nearest by name.
    """
    try:
        return recorder(data)
    except InputError as error:
        near = _nearest_family(data["model_type"])
        raise InputError(
            tuple(
                replace(problem, hint="; ".join(filter(None, (problem.hint, near))))
                if problem.field == "model_type"
                else problem
                for problem in error.problems
            )
        ) from None


def _nearest_family(model_type: str) -> str:
    if model_type in FAMILIES:  # one that servers alone have code for that is written down
        return ""
    near = nearest_words(model_type, FAMILIES, n=1, cutoff=0.0)
    return f"the nearest known one is {near[0]}" if near else ""


def _own_code_notes(where: Source, family: str) -> tuple[str, ...]:
    if not where.own_code:
        return ()
    return (
        f"its own code ({where.own_code}), beside its weights, is accounted as {family}'s of the same layers",
    )


def _code_notes(data: Mapping[str, Any]) -> tuple[str, ...]:
    notes = ("the config names custom code (auto_map); it was not run",) if "auto_map" in data else ()
    thinks = ("its thinker is what is read; what speaks beside it is not counted",)
    return (*notes, *thinks) if "thinker_config" in data else notes
