"""The files of a repository → the configuration that describes its model, or the model itself. Headers of
weights are read, never weights; code that a repository brings is never run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from memsheet.catalog.name_forms import AskedName, parse_model_name
from memsheet.errors import InputError, input_error, printable_line
from memsheet.frozen import replace
from memsheet.plan.model import ModelSpec, Source
from memsheet.readers import safetensors
from memsheet.readers.hf_config import Config, read_hf_config
from memsheet.readers.hub.gguf_choice import choose_gguf
from memsheet.readers.hub.refusals import unusable_error
from memsheet.readers.hub.repository import Repository, read_object
from memsheet.readers.quantization import BESIDE

CONFIG, ADAPTER, PIPELINE, GENERATION = (
    "config.json",
    "adapter_config.json",
    "model_index.json",
    "generation_config.json",
)
PACKED = ("quantize_config.json", "quant_config.json")
"""Where older quantizers wrote what config.json holds today: AutoGPTQ's, AutoAWQ's."""
MOST_SHARDS = 32
"""Files whose headers are read one by one; of more, the hub's own count is told."""
_BITS_APART = 0.005


def repository_contents(
    files: Repository, asked: AskedName, base_of: Callable[[str], Config | ModelSpec]
) -> Config | ModelSpec:
    """What a repository holds. ``base_of`` finds the model that an adapter is of."""
    if PIPELINE in files.names:
        raise diffusers_error(files.asked)
    if _means_gguf(files, asked):
        return _gguf_contents(files, asked)
    if ADAPTER in files.names and CONFIG not in files.names:
        return _adapter_contents(files, base_of)
    if CONFIG not in files.names:
        raise unusable_error(
            files.asked, f"holds no {CONFIG}, no GGUF file and no {ADAPTER}", _files_hint(files)
        )
    config = _with_packed(read_object(files, CONFIG), files)
    notes = (_whence(files), *_generation_notes(files), *_stored_notes(files, config))
    source = Source(kind="hub", path=files.repo, revision=files.revision, notes=notes)
    return Config(config, files.repo, source)


def diffusers_error(asked: str) -> InputError:
    """That a folder is a pipeline of several models."""
    return input_error(
        "model",
        asked,
        "is a pipeline of diffusers (model_index.json): several models for pictures, none accounted here",
        "a model for text, or for pictures and text",
    )


def _whence(files: Repository) -> str:
    at = f" at {files.revision[:12]}" if files.revision else ""
    return f"configuration of {files.repo}{at}, from {files.whence}"


def _files_hint(files: Repository) -> str:
    shown = ", ".join(printable_line(name) for name in sorted(files.names)[:6])
    return f"it holds {shown or 'nothing'}; give the base model's name, or a config.json"


def _means_gguf(files: Repository, asked: AskedName) -> bool:
    has = any(name.endswith(".gguf") for name in files.names)
    named = bool(asked.tag) or asked.file.endswith(".gguf")
    whole = CONFIG in files.names and any(name.endswith(".safetensors") for name in files.names)
    return named or (has and not whole)


def _gguf_contents(files: Repository, asked: AskedName) -> ModelSpec:
    from memsheet.readers.gguf_model import model_from_gguf

    chosen = choose_gguf(files.names, files.asked, asked.tag, asked.file)
    spec = model_from_gguf(Path(chosen), files.opened, is_there=lambda path: path.as_posix() in files.names)
    notes = (f"header of {printable_line(chosen)} of {_whence(files).removeprefix('configuration of ')}",)
    source = replace(
        spec.source,
        path=_written_name(asked, chosen),
        revision=files.revision,
        notes=(*notes, *spec.source.notes),
    )
    return replace(spec, name=files.repo, source=source)


def _written_name(asked: AskedName, chosen: str) -> str:
    """A name that finds the same file again."""
    return asked.text if asked.tag else f"{asked.repo}/{chosen}"


def _with_packed(config: dict[str, Any], files: Repository) -> dict[str, Any]:
    """With what stands in a file of its own where config.json names no quantization."""
    if config.get("quantization_config") is not None:
        return config
    if BESIDE in files.names:
        return {**config, "quantization_config": {**read_object(files, BESIDE), "quant_method": "modelopt"}}
    for name, method in zip(PACKED, ("gptq", "awq"), strict=True):
        if name in files.names:
            return {**config, "quantization_config": {"quant_method": method, **read_object(files, name)}}
    return config


def _generation_notes(files: Repository) -> tuple[str, ...]:
    """How long answers get where nobody says, as servers take it."""
    if GENERATION not in files.names:
        return ()
    said = read_object(files, GENERATION).get("max_new_tokens")
    known = isinstance(said, int) and not isinstance(said, bool) and said > 0
    return (
        (f"{GENERATION} ends an answer after {said:,} tokens where nobody says (max_new_tokens)",)
        if known
        else ()
    )


def _adapter_contents(files: Repository, base_of: Callable[[str], Config | ModelSpec]) -> Config | ModelSpec:
    """The model that an adapter is of; the adapter is said, with the flag that counts it."""
    adapter = read_object(files, ADAPTER)
    base = adapter.get("base_model_name_or_path")
    named = parse_model_name(base) if isinstance(base, str) else None
    if named is None or "/" not in named.repo:
        reason = f"is an adapter whose base is no hub's name ({printable_line(base)})"
        raise unusable_error(files.asked, reason, "name the base model, with --lora-rank")
    found = base_of(named.text)
    note = f"{files.repo} is an adapter of {named.text}, which is what is counted{_adapter_words(adapter)}"
    source = replace(found.source, notes=(note, *found.source.notes))
    return (
        replace(found, source=source)
        if isinstance(found, ModelSpec)
        else Config(found.values, found.name, source)
    )


def _adapter_words(adapter: Mapping[str, Any]) -> str:
    rank = adapter.get("r")
    targets = adapter.get("target_modules")
    if not isinstance(rank, int) or isinstance(rank, bool) or not 0 < rank < 2**20:
        return ""
    listed = isinstance(targets, list) and all(isinstance(each, str) for each in targets)
    more = f" --lora-targets {printable_line(','.join(sorted(targets)))}" if listed and targets else ""
    return f"; to train one like it add --lora-rank {rank}{more}"


def _stored_notes(files: Repository, config: Mapping[str, Any]) -> tuple[str, ...]:
    """What the headers of its safetensors files store, and where that is not what its configuration says."""
    elements, nbytes, count = _stored_sizes(files)
    if not count:
        return ()
    whole = sum(nbytes.values())
    kinds = (
        ", ".join(f"{kind.lower()} {size / whole:.0%}" for kind, size in nbytes.most_common(4))
        if whole
        else ""
    )
    note = f"its headers store {whole / 2**30:.2f} GiB in {count} file{'s' * (count > 1)}: {kinds}"
    return (note, *_count_notes(config, elements.total(), set(elements)))


def _count_notes(config: Mapping[str, Any], stored: int, kinds: set[str]) -> tuple[str, ...]:
    """Whether the files hold as many numbers as the configuration describes, where none is packed."""
    from memsheet.formulas.states.params import parameter_count

    if config.get("quantization_config") is not None or not kinds <= {"BF16", "F16", "F32", "F64"}:
        return ()
    try:
        described = parameter_count(read_hf_config(config))
    except InputError:  # whoever reads the configuration says so
        return ()
    if abs(stored - described) <= _BITS_APART * described:
        return ()
    words = f"its files store {stored:,} parameters and its configuration describes {described:,}"
    return (f"{words}: what is more or less is not in the sheet",)


def _stored_sizes(files: Repository) -> tuple[Counter[str], Counter[str], int]:
    """Elements and bytes by dtype, and of how many files. Many shards are not read one by one."""
    elements, nbytes = Counter[str](), Counter[str]()
    shards = _shards(files)
    if len(shards) > MOST_SHARDS:
        counts: Mapping[str, int] = getattr(files, "counts", {})
        known = {kind: count for kind, count in counts.items() if kind in safetensors.BITS}
        elements.update(known)
        nbytes.update({kind: count * safetensors.BITS[kind] // 8 for kind, count in known.items()})
        return elements, nbytes, len(shards) if known else 0
    for shard, wanted in shards.items():
        for tensor in safetensors.read_header(Path(shard), files.opened).tensors:
            if wanted is None or tensor.name in wanted:
                elements[tensor.dtype] += tensor.elements
                nbytes[tensor.dtype] += tensor.nbytes
    return elements, nbytes, len(shards)


def _shards(files: Repository) -> Mapping[str, set[str] | None]:
    """Files of the model's weights and the tensors that count in each (all: None); none where one is missing,
    as the sum would lie.
    """
    if safetensors.INDEX in files.names:
        limits = {"max_bytes": safetensors.MAX_INDEX_BYTES, "max_values": safetensors.MAX_INDEX_VALUES}
        index = safetensors.index_of(read_object(files, safetensors.INDEX, **limits), Path())
        found: dict[str, set[str]] = {shard: set() for shard in index.shards}
        for name, shard in index.weight_map.items():
            found[shard].add(name)
        return found if found.keys() <= files.names else {}
    single = "model.safetensors"
    return {single: None} if single in files.names else {}
