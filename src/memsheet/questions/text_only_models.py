"""Models that see or hear, whose server is told to take neither: towers that it then leaves out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from memsheet.exchange.shared.file_format import FileReading
from memsheet.frozen import replace
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.hardware import version_of
from memsheet.plan.model import ModelSpec, Tower
from memsheet.questions.named_models import model_of

LIMITS, TEXT_ALONE = "--limit-mm-per-prompt", "--language-model-only"
PICTURES, SOUNDS = ("image", "video"), ("audio",)


def without_unused_towers(
    name: str | ModelSpec | None,
    reads: Mapping[str, FileReading],
    release_of: Callable[[FileReading], str | None],
) -> tuple[str | ModelSpec | None, dict[str, FileReading]]:
    """The model without the towers of what its server takes none of, and the files without the flags that say
    so; both as they are where a flag says something else, or the release keeps its towers. ``release_of``:
    the release that is told of a file's engine.
    """
    held = {
        at: read for at, read in reads.items() if any(read.values.get(flag) for flag in (LIMITS, TEXT_ALONE))
    }
    if name is None or len(held) != 1:
        return name, dict(reads)
    at, read = next(iter(held.items()))
    model, none_of = model_of(name), _refused_inputs(read)
    engine = find_engine(str(read.request.get("engine")))
    if model is None or not model.towers or not none_of or engine is None:
        return name, dict(reads)
    since = engine.serving.leaves_towers_since
    if since is None or version_of(release_of(read) or engine.tested) < since:
        return name, dict(reads)
    alone = engine.serving.sees_pictures_alone
    if not all(_inputs_of(tower, model, alone) <= none_of for tower in model.towers):
        return name, dict(reads)
    gone = tuple(f"{tower.path}." for tower in model.towers)
    note = "the server leaves out what sees or hears, as it is to take neither"
    found = replace(
        model,
        towers=(),
        extras=tuple(weight for weight in model.extras if not weight.path.startswith(gone)),
        source=replace(model.source, notes=(*model.source.notes, note)),
    )
    kept = tuple((flag, value) for flag, value in read.unmodelled if flag not in (LIMITS, TEXT_ALONE))
    return found, {**reads, at: replace(read, unmodelled=kept)}


def _refused_inputs(read: FileReading) -> frozenset[str]:
    """Of pictures, videos and sounds those of which a prompt may have none."""
    if read.values.get(TEXT_ALONE) is True:
        return frozenset({*PICTURES, *SOUNDS})
    said = _limits(read.values.get(LIMITS))
    return frozenset(kind for kind in (*PICTURES, *SOUNDS) if said.get(kind) in (0, "0"))


def _limits(value: Any) -> Mapping[str, Any]:
    """Items of each kind that a prompt may have: an object, its text, or ``image=0,video=0`` of older
    releases.
    """
    if isinstance(value, str) and "=" in value and "{" not in value:
        return dict(part.strip().split("=", 1) for part in value.split(",") if "=" in part)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    if not isinstance(value, Mapping):
        return {}
    return {str(kind): one.get("count") if isinstance(one, Mapping) else one for kind, one in value.items()}


def _inputs_of(tower: Tower, model: ModelSpec, pictures_alone: frozenset[str]) -> frozenset[str]:
    """What a tower is for: sounds, or pictures and videos, or pictures alone."""
    if "audio" in tower.path:
        return frozenset(SOUNDS)
    return frozenset(PICTURES[:1] if model.model_type in pictures_alone else PICTURES)
