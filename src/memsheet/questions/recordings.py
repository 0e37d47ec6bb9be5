"""When a model's own code is put on record, and where records are kept. What makes one is loaded where one
has to be made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from memsheet.errors import InputError
from memsheet.frozen import replace
from memsheet.handing import handing_from
from memsheet.plan.attention_package import check_attention_package
from memsheet.plan.packages import TRANSFORMERS
from memsheet.questions.user_cache import keep_document, key_of, read_kept
from memsheet.recording import (
    RecordedGeneration,
    RecordedRun,
    Recording,
    caches_from,
    recording_document,
    recording_from,
    run_from,
)

KIND = "recordings"
LIBRARIES = ("torch", TRANSFORMERS)
RECORDER = ("trace", "run")
NEVER_READ = (
    "_name_or_path",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "auto_map",
    "quantization_config",
)
"""Of a config.json: what changes nothing in what the code allocates."""

_made: dict[str, Recording] = {}


def recording_of(config: Mapping[str, Any]) -> Recording:
    """The record of a model's own code as it trains: of this process, of the user's cache, else made now by a
    process that builds the model on fake tensors. Raises InputError where that cannot be.
    """
    found = _whole_recording(config)
    return replace(found, caches=(), handing=None) if found.caches else found


def _whole_recording(config: Mapping[str, Any]) -> Recording:
    """With what serving asks of it, where that was asked before."""
    config = {key: value for key, value in config.items() if key not in NEVER_READ}
    name = config_key(config)
    if name not in _made:
        kept = _cached_recording(name)
        _made[name] = replace(kept or _described(config), make=partial(_make_run, config, name))
        if kept is None:
            _keep(name)
    return _made[name]


def serving_recording_of(config: Mapping[str, Any]) -> Recording:
    """As ``recording_of``, with what the model's layers keep between tokens and hand over to a server."""
    recording = _whole_recording(config)
    if recording.caches and recording.handing:
        return recording
    config = {key: value for key, value in config.items() if key not in NEVER_READ}
    name = config_key(config)
    asked = {"config": dict(config), "model": False, "ways": [], "caches": True}
    found = _recorder_answer(asked)
    _made[name] = replace(
        recording,
        caches=caches_from(found["caches"]),
        handing=handing_from(found.get("handing"), len(recording.layers)),
    )
    _keep(name)
    return _made[name]


def config_key(config: Mapping[str, Any]) -> str:
    """A name for everything that a recording depends on: the config, the versions of the libraries, and the
    code that records.
    """
    said = {key: value for key, value in config.items() if key not in NEVER_READ}
    return key_of(said, LIBRARIES, RECORDER)


def _recorder_answer(request: Mapping[str, Any]) -> dict[str, Any]:
    from memsheet.trace.recordings.process import ask_recorder

    return ask_recorder(request)


def _described(config: Mapping[str, Any]) -> Recording:
    return recording_from(_recorder_answer({"config": dict(config), "model": True, "ways": []})["recording"])


def _make_run(config: Mapping[str, Any], name: str, key: str) -> RecordedRun | RecordedGeneration | None:
    check_attention_package(json.loads(key).get("attention", ""))  # before a process is started to say so
    run = run_from(_recorder_answer({"config": dict(config), "model": False, "ways": [key]})["runs"][key])
    _made[name].runs[key] = run
    _keep(name)
    return run


def _cached_recording(name: str) -> Recording | None:
    """A record of the user's cache; None where there is none that can be read."""
    document = read_kept(KIND, name)
    try:
        return recording_from(document) if document is not None else None
    except InputError:  # a stranger's: it is made anew
        return None


def _keep(name: str) -> None:
    keep_document(KIND, name, recording_document(_made[name]))
