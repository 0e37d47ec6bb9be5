"""When a model's own code is put on record, and where records are kept. What makes one is loaded where one
has to be made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from memsheet.errors import InputError
from memsheet.frozen import replace
from memsheet.guard import is_file, read_bytes, read_json
from memsheet.handing import handing_from
from memsheet.plan.packages import TRANSFORMERS
from memsheet.recording import (
    RecordedGeneration,
    RecordedRun,
    Recording,
    caches_from,
    recording_document,
    recording_from,
    run_from,
)

VARIABLE = "MEMSHEET_CACHE"
OFF = "off"
LIBRARIES = ("torch", TRANSFORMERS)
PACKAGE = Path(__file__).parents[1]
RECORDER = ("trace", "run")
MAX_BYTES = 64 * 2**20
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
        _made[name] = _kept(name) or _described(config)
        _made[name] = replace(_made[name], make=partial(_make_run, config, name))
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
    text = json.dumps([said, installed_versions(), _recorder_digest()], sort_keys=True, default=str)
    from hashlib import sha256

    return sha256(text.encode()).hexdigest()[:32]


@cache
def _recorder_digest() -> str:
    """Of the sources that run a model's code and cut it: a record of others is made anew."""
    from hashlib import sha256

    found = sha256()
    for folder in RECORDER:
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            found.update(read_bytes(path, MAX_BYTES))
    return found.hexdigest()


def installed_versions() -> dict[str, str]:
    """The libraries whose code is recorded, without importing them; those that are not installed are left
    out.
    """
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def cache_folder() -> Path | None:
    """Where records are kept (XDG Base Directory Specification). None: switched off."""
    named = os.environ.get(VARIABLE)
    if named is not None and named.strip().lower() == OFF:
        return None
    home = named or str(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memsheet")
    return Path(home) / "recordings"


def _recorder_answer(request: Mapping[str, Any]) -> dict[str, Any]:
    from memsheet.trace.recordings.process import ask_recorder

    return ask_recorder(request)


def _described(config: Mapping[str, Any]) -> Recording:
    return recording_from(_recorder_answer({"config": dict(config), "model": True, "ways": []})["recording"])


def _make_run(config: Mapping[str, Any], name: str, key: str) -> RecordedRun | RecordedGeneration | None:
    run = run_from(_recorder_answer({"config": dict(config), "model": False, "ways": [key]})["runs"][key])
    _made[name].runs[key] = run
    _keep(name)
    return run


def _kept(name: str) -> Recording | None:
    """A record of the user's cache; None where there is none that can be read."""
    folder = cache_folder()
    if folder is None or not is_file(folder / f"{name}.json"):
        return None
    try:
        return recording_from(read_json(folder / f"{name}.json", max_bytes=MAX_BYTES))
    except InputError:  # a stranger's, or half of one: it is made anew
        return None


def _keep(name: str) -> None:
    """Write a record whole or not at all; a folder that cannot be written to keeps none."""
    folder = cache_folder()
    if folder is None:
        return
    from tempfile import NamedTemporaryFile

    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=folder, suffix=".part", delete=False, encoding="utf-8") as file:
            json.dump(recording_document(_made[name]), file, separators=(",", ":"))
        Path(file.name).replace(folder / f"{name}.json")
