"""Whatever a person calls a model → ModelSpec: a bundled name, a config.json or its folder, a .gguf or
.safetensors file, a hub id.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from os import PathLike
from typing import TYPE_CHECKING, Any, BinaryIO

from memsheet.errors import InputError, input_error, nearest_words, printable_line
from memsheet.frozen import dataclass
from memsheet.guard import is_file, is_folder, read_json
from memsheet.plan.model import ModelSpec, Source
from memsheet.readers.hf_config import Config, library_config, read_hf_config
from memsheet.readers.quantization import BESIDE

__all__ = ["Catalog", "Config", "find_config", "read_model"]

ADAPTERS_DEEP = 3
if TYPE_CHECKING:
    from pathlib import Path

    from memsheet.catalog.name_forms import AskedName
    from memsheet.readers.hf_config import Recorder

_SUFFIXES = (".json", ".gguf", ".safetensors")


Catalog = Callable[[str], Mapping[str, Any] | None]


def read_model(
    text: str | Path | Mapping[str, Any],
    *,
    catalog: Catalog,
    names: Iterable[str] = (),
    recorder: Recorder | None = None,
) -> ModelSpec:
    """The model that ``text`` names, as ``find_config`` finds it. ``recorder``: for a family that is not
    written down.
    """
    found = find_config(text, catalog=catalog, names=names)
    return (
        found
        if isinstance(found, ModelSpec)
        else read_hf_config(found.values, name=found.name, source=found.source, recorder=recorder)
    )


def find_config(
    text: str | Path | Mapping[str, Any] | ModelSpec, *, catalog: Catalog, names: Iterable[str] = ()
) -> Config | ModelSpec:
    """The config of the model that ``text`` names, or the model itself where a file describes it without one
    (GGUF). ``catalog`` finds the entry of a bundled name, whose ``config`` is read; ``names`` are offered
    when nothing fits.

    A path (one that ends like a model's file, starts with ``.``, ``/`` or ``~``, or exists with a separator
    in it) is read as a file; then a bundled name; then a hub's name in any form, ``org/name@revision`` or the
    address of its page. Raises InputError otherwise.
    """
    if isinstance(text, ModelSpec):
        return text
    found = _given_config(text, catalog, names)
    return found if isinstance(found, ModelSpec) else library_config(found)


def _given_config(
    text: str | Path | Mapping[str, Any], catalog: Catalog, names: Iterable[str]
) -> Config | ModelSpec:
    """The config as it is given."""
    if isinstance(text, Mapping) and set(text) == {"gguf"}:
        return _from_gguf_header(text["gguf"])
    if isinstance(text, Mapping):
        return Config(text, _config_model_name(text), Source(kind="dict"))
    if not isinstance(text, str | PathLike):
        raise input_error(
            "model",
            text,
            "is neither a name, a path nor a configuration",
            "`memsheet models` lists the bundled names",
        )
    if not isinstance(text, str) or _is_path(text):
        return _from_path(_path_of(text))
    entry = catalog(text)
    if entry is not None and not entry.get("assumed"):
        return _from_entry(entry, text)
    if _is_on_disk(text):
        return _from_path(_path_of(text))
    return _from_hub_name(text, entry, Lookup(catalog, tuple(names)))


def _from_hub_name(text: str, entry: Mapping[str, Any] | None, lookup: Lookup) -> Config | ModelSpec:
    """The model of a hub's name: as the local cache has it, as its name says where that is sure, as the hub
    has it, or as its name says where nobody can be asked.
    """
    asked = _parts_of_name(text)
    if asked is None or "/" not in asked.repo:
        if entry is not None:
            return _from_entry(entry, text)
        raise _unknown_name_error(text, lookup.names)
    from memsheet.readers.hub.lookup import cached_model, model_on_hub
    from memsheet.readers.hub.refusals import HubError

    if (cached := cached_model(text, asked, lookup.base_of)) is not None:
        return cached
    if entry is not None and entry.get("sure", True):
        return _from_entry(entry, text)
    try:
        return model_on_hub(text, asked, lookup.base_of)
    except HubError as error:
        if entry is not None and not error.decided:
            return _from_entry(entry, text)
        hint = _held_hint(text)
        raise (error.with_hint(hint) if hint else error) from None


@dataclass(frozen=True, slots=True)
class Lookup:
    """Where names are looked up, and how many adapters deep."""

    catalog: Catalog
    names: tuple[str, ...]
    deep: int = 0

    def base_of(self, name: str) -> Config | ModelSpec:
        """The model that an adapter names: a bundled or a hub's, never a file."""
        if self.deep >= ADAPTERS_DEEP:
            raise input_error(
                "model", name, "is an adapter of an adapter of an adapter", "name the base model"
            )
        entry = self.catalog(name)
        deeper = Lookup(self.catalog, self.names, self.deep + 1)
        bundled = entry is not None and not entry.get("assumed")
        return _from_entry(entry, name) if entry and bundled else _from_hub_name(name, entry, deeper)


def _from_entry(entry: Mapping[str, Any], text: str) -> Config:
    name = str(entry.get("name") or text)
    source = Source(
        kind="bundled",
        path=str(entry.get("released") or name) if entry.get("copy_of", name) == name else name,
        assumed=tuple(entry.get("assumed", ())),
        base=str(entry.get("copy_of", "")),
        attention_open=bool(entry.get("attention_open")),
        positions_open=bool(entry.get("positions_open")),
    )
    return Config(entry["config"], name, source)


def _unknown_name_error(text: str, names: Iterable[str]) -> InputError:
    """That nobody knows a name; one that holds a bundled model's may have other shapes, which are not
    guessed.
    """
    if hint := _held_hint(text):
        hint = f"{hint}; or give its config.json"
    elif near := nearest_words(text, list(names), n=3, cutoff=0.5):
        hint = f"did you mean {' or '.join(near)}? `memsheet models` lists all"
    else:
        hint = "`memsheet models` lists the bundled names"
    return input_error("model", text, "is no bundled model, no file and no hub id (org/name)", hint)


def _held_hint(text: str) -> str:
    """What a name says that it is or holds; empty where it says nothing that is known."""
    from memsheet.catalog.names import held_name, other_kind

    kind, of = other_kind(text)
    if kind == "draft":
        return f"its name says that it drafts{_of_model(of)}: ask for that, and name this with --draft-model"
    if kind == "adapter":
        return f"its name says that it is an adapter{_of_model(of)}: ask for the model, with --lora-rank"
    inside = held_name(text)
    return f"its name holds {inside}: if it has that model's shapes, ask for {inside}" if inside else ""


def _of_model(name: str) -> str:
    return f" for {name}" if name else ""


def _config_model_name(config: Mapping[str, Any]) -> str:
    name = config.get("_name_or_path")
    return printable_line(name) if isinstance(name, str) and name else ""


def _is_path(text: str) -> bool:
    """Whether a file or a folder is meant. The address of a file on a hub ends like one, too."""
    if text.startswith((".", "/", "~", os.sep)):
        return True
    there = _is_on_disk(text)
    if text.endswith(_SUFFIXES):
        return there or not _is_hub_file(text)
    return there and ("/" in text or os.sep in text)


def _is_on_disk(text: str) -> bool:
    """Whether there is a file or a folder of that name, as pathlib reads it, which a name alone is not worth
    loading for.
    """
    name = text.rstrip(f"/{os.sep}") or text[:1] or os.curdir
    return is_file(name) or is_folder(name)


def _path_of(text: str | PathLike[str]) -> Path:
    from pathlib import Path

    return Path(text).expanduser() if _has_home(text) else Path(text)


def _is_hub_file(text: str) -> bool:
    asked = _parts_of_name(text)
    return asked is not None and "/" in asked.repo and (bool(asked.file) or "://" in text)


def _parts_of_name(text: str) -> AskedName | None:
    from memsheet.catalog.name_forms import parse_model_name

    return parse_model_name(text, endpoint=os.environ.get("HF_ENDPOINT", ""))


def _has_home(text: str | PathLike[str]) -> bool:
    """Only a plain ``~``: another user's home may not exist."""
    return str(text) == "~" or str(text).startswith(("~/", f"~{os.sep}"))


def _from_path(path: Path) -> Config | ModelSpec:
    if is_folder(path):
        return _from_folder(path)
    if path.suffix == ".gguf":
        return _from_gguf(path)
    if path.suffix == ".safetensors":
        return _from_safetensors(path)
    return _from_config(path, "file", path)


def _from_folder(folder: Path) -> Config | ModelSpec:
    """A checkpoint's folder: its config.json, else its only GGUF file."""
    if is_file(folder / "model_index.json"):
        from memsheet.readers.hub.contents import diffusers_error

        raise diffusers_error(str(folder))
    if is_file(folder / "config.json"):
        return _from_config(folder / "config.json", "file", folder)
    files = sorted(
        file
        for file in folder.glob("*.gguf")
        if not re.search(r"-\d{5}-of-\d{5}\.gguf$", file.name) or "-00001-of-" in file.name
    )
    if len(files) == 1:
        return _from_gguf(files[0])
    reason = f"holds {len(files)} GGUF models" if files else "holds no config.json and no GGUF file"
    raise input_error(
        "model",
        str(folder),
        reason,
        "name one of them" if files else "is this the folder of a model's checkpoint?",
    )


def _from_gguf(path: Path) -> ModelSpec:
    from memsheet.readers.gguf_model import model_from_gguf

    return model_from_gguf(path)


def _from_gguf_header(held: Any) -> ModelSpec:
    """A GGUF file that is elsewhere: its ``name``, how many ``bytes`` it has, and its ``header`` in base64,
    whose tokens may be bytes in place of texts.
    """
    from base64 import b64decode

    from memsheet.readers.gguf_model import model_from_gguf

    held = held if isinstance(held, Mapping) else {}
    name, size, text = held.get("name"), held.get("bytes"), held.get("header")
    if not isinstance(name, str) or not isinstance(text, str) or type(size) is not int:
        raise input_error("model.gguf", None, "has not name, bytes and header")
    try:
        header = b64decode(text, validate=True)
    except ValueError:
        raise input_error("model.gguf.header", None, "is no base64") from None

    @contextmanager
    def opened(_: Path) -> Iterator[tuple[BinaryIO, int]]:
        yield BytesIO(header + bytes(max(0, min(size - len(header), AHEAD)))), size

    from pathlib import Path

    return model_from_gguf(Path(Path(name).name or "model.gguf"), opened, lambda _: False)


AHEAD = 2**18
"""Bytes that are read at once beyond a header."""


def _from_safetensors(path: Path) -> Config:
    from memsheet.readers import safetensors

    safetensors.read_header(path)  # a broken file is refused before its neighbour is believed
    config = path.with_name("config.json")
    if not is_file(config):
        hint = "put the model's config.json beside it, or name the model itself"
        raise input_error("model", str(path), "stores tensors but not the model's configuration", hint)
    return _from_config(config, "safetensors", path)


def _from_config(file: Path, kind: str, named: Path) -> Config:
    config = _with_modelopt(read_json(file), file)
    name = printable_line(
        (file.resolve().parent if file.name == "config.json" else file).stem if kind == "file" else named.stem
    )
    return Config(config, _config_model_name(config) or name, Source(kind=kind, path=str(named)))


def _with_modelopt(config: Any, file: Path) -> Any:
    """A config with what ModelOpt writes into a file beside it (older exports; ``READ_IN``)."""
    beside = file.with_name(BESIDE)
    if not isinstance(config, dict) or config.get("quantization_config") is not None or not is_file(beside):
        return config
    found = read_json(beside)
    return (
        {**config, "quantization_config": {**found, "quant_method": "modelopt"}}
        if isinstance(found, dict)
        else config
    )
