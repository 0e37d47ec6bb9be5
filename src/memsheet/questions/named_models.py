"""Which model the files of a job name, and whether anybody knows it: no path in a stranger's file is
opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memsheet.errors import InputError
from memsheet.exchange.file_releases import as_stored
from memsheet.exchange.shared.file_format import AUTO, FileReading, runs_alone
from memsheet.exchange.shared.script_places import UNSAID
from memsheet.exchange.shared.serve_script import PRINTED, UNTOLD, unset_variables
from memsheet.exchange.verdict_doubts import stand_in
from memsheet.frozen import NamedTuple, replace
from memsheet.late import late_functions
from memsheet.patterns import late_pattern
from memsheet.plan.model import ModelSpec

if TYPE_CHECKING:
    from memsheet.questions.sized_models import SizedModel
with late_functions(__name__):
    from memsheet.questions.sized_models import sized_model


DRAFT = "speculative.model"
NO_TEXTS: Mapping[str, str] = {}
PLAIN_NAME = late_pattern(r"[A-Za-z_]\w{0,80}")
CACHED = late_pattern(r"(?:^|/)models--([\w.-]+?)--([\w.-]+)(?:/snapshots/[\w.-]+)?/?$", holds=("models--",))
TAKEN_FOR = "is taken for"
"""How it is told of a model that its name alone tells."""
EMPTY = "True"
"""A flag's value where a variable that holds nothing stands behind it."""
MOST_PARTS = 6
IN_WORDS = {PRINTED: "what a command prints", UNTOLD: "what the text does not tell"}


def named_model(reads: Mapping[str, FileReading]) -> str | None:
    """The model that a server's command names, where it is a bundled one or surely a copy of one, in whatever
    form it is stored; of one that is trained, the one that it is of as far as its name tells. No path in a
    stranger's file is opened, and no hub is asked.
    """
    named = served_model(reads)
    return named if named and is_surely_bundled(named) else likely_trained(reads)


def likely_trained(reads: Mapping[str, FileReading]) -> str | None:
    """The bundled model that a trained one's name, or a part of its path, is of, whoever published it."""
    named = _unsure_name_parts(reads, "train")[:1]
    return likely_by_path(named[0]) if named else None


def likely_by_path(named: str) -> str | None:
    """The bundled model that a name, or a part of a path, is of, whoever published it."""
    parts = _parts_of_path(named)
    whole = next(
        (found for part in (named, *_whole_names(parts)) if part and (found := likely_name(part))), None
    )
    return whole or likely_of_path(parts)


def _whole_names(parts: Sequence[str]) -> Iterator[str]:
    """The parts of a path, the last first, that may be a model's whole name: none that says no size before
    one that does (``llama2_models/70B``).
    """
    from memsheet.catalog.sized_names import size_in_name

    sized = False
    for part in parts:
        says_size = size_in_name(part) is not None
        if says_size or not sized:
            yield part
        sized = sized or says_size


def _unsure_name_parts(reads: Mapping[str, FileReading], task: str) -> list[str]:
    """The name of the model of a job of that task and the parts of its path, the last first; none where it is
    surely a bundled one.
    """
    asked = any(read.request.get("task") == task for read in reads.values())
    named = served_model(reads) if asked else None
    if not named or is_surely_bundled(named):
        return []
    return [named, *_parts_of_path(named)]


def _parts_of_path(named: str) -> list[str]:
    """The parts of a path, the last first."""
    return [part for part in reversed(named.replace("\\", "/").strip("/").split("/")) if part][:MOST_PARTS]


def likely_of_path(parts: Sequence[str]) -> str | None:
    """The bundled model that parts of a path are of, the last first: without the words of a run, else a size
    in one of them and the family in one before it.
    """
    from memsheet.catalog.path_names import family_and_size_names, without_run_words

    bare = (without_run_words(part) for part in _whole_names(parts))
    if found := next((name for part in bare if part and (name := likely_name(part))), None):
        return found
    told = {name for spelt in family_and_size_names(parts) if (name := likely_name(spelt))}
    return told.pop() if len(told) == 1 else None


def described_model(reads: Mapping[str, FileReading]) -> tuple[ModelSpec | None, tuple[str, ...]]:
    """The model that a file's own sizes describe, where one does; and what is wrong with them."""
    sizes = next((held for read in reads.values() if (held := read.form.model(read.values))), None)
    try:
        return _read_sizes(sizes) if sizes else None, ()
    except InputError as error:
        return None, tuple(str(problem).replace("\n  ", "; ") for problem in error.problems)


def _read_sizes(sizes: Mapping[str, Any]) -> ModelSpec:
    """A model of sizes in the library's words, which name its family, or in Megatron-LM's."""
    from memsheet.readers.hf_config import read_hf_config
    from memsheet.readers.megatron_sizes import read_megatron_sizes

    if "model_type" not in sizes:
        return read_megatron_sizes(sizes)
    found = read_hf_config(sizes)
    name = f"{found.model_type} of {found.layers} layers, hidden {found.hidden:,}"
    note = "the model is what the file's own sizes describe"
    return replace(found, name=name, source=replace(found.source, notes=(*found.source.notes, note)))


class LikelyModel(NamedTuple):
    """The bundled model that a name is likely of, and its layers stored as the name says."""

    name: str
    spec: ModelSpec


def likely_served(reads: Mapping[str, FileReading]) -> LikelyModel | None:
    """The bundled model that a served one's name, or a part of its path, is of, whoever published it."""
    found = _unsure_name_parts(reads, "infer")
    names = (*found[:1], *_whole_names(found[1:]))
    whole = next((likely for part in names if (likely := _likely_spec(part))), None)
    if whole is not None:
        return whole
    name = likely_of_path(found[1:])
    spec = model_of(name) if name else None
    return LikelyModel(str(name), spec) if spec is not None else None


def _likely_spec(served: str) -> LikelyModel | None:
    """The bundled model that a name is of, stored as it says; None where nobody can account it."""
    from memsheet.catalog.names import bundled_entry
    from memsheet.questions.recordings import serving_recording_of
    from memsheet.readers.hf_config import read_hf_config

    try:
        entry = bundled_entry(served)
        if entry is None:
            return None
        spec = read_hf_config(entry["config"], name=served.rpartition("/")[2], recorder=serving_recording_of)
        spec = replace(spec, source=replace(spec.source, positions_open=bool(entry.get("positions_open"))))
    except InputError:
        return None
    return LikelyModel(str(entry.get("copy_of", entry["name"])), spec)


def sized_stand_in(reads: Mapping[str, FileReading]) -> SizedModel | None:
    """The plain model that stands in for the one that files name, where nothing is known of it but the size
    that its name says.
    """
    served = served_model(reads)
    unknown = (
        served
        and named_model(reads) is None
        and described_model(reads) == (None, ())
        and likely_served(reads) is None
    )
    serves = any(read.request.get("task") == "infer" for read in reads.values())
    return sized_model(served, stored=serves) if served and unknown else None


def is_guessed_model(reads: Mapping[str, FileReading], model: Any) -> bool:
    """Whether a job's model is what the name that its files say is likely of, and no more of it is known."""
    served = served_model(reads)
    if not served or is_surely_bundled(served) or described_model(reads)[0] is not None:
        return False
    return isinstance(model, ModelSpec) or model == likely_trained(reads)


FOLDERS = late_pattern(r"^(?:/|~|\.{1,2}/|\$|[A-Za-z]:\\)|^(?!\w+://)[^/]*/[^/]*/.")
"""How a path begins that is no repository's name on a hub, which has one stroke in its middle."""


def is_named_folder(named: str) -> bool:
    """Whether a path's last folder has the whole name of a bundled model, with its size, as a copy of it has
    that somebody keeps: nothing is known of the copy itself.
    """
    from memsheet.catalog.sized_names import size_in_name

    last = _parts_of_path(named)[:1] if FOLDERS.search(named) else []
    return any(size_in_name(part) is not None and is_surely_bundled(part) for part in last)


def folder_words(reads: Mapping[str, FileReading]) -> str:
    """Which model the files' own is taken for by its folder's name, in words; nothing of any other."""
    served = served_model(reads)
    if not served or not is_named_folder(served):
        return ""
    likely = likely_trained(reads) or getattr(likely_served(reads), "name", "")
    return f"model = {likely}, by the name of its folder ({served}): --model names another" if likely else ""


def is_surely_bundled(name: str) -> bool:
    """Whether a name is a bundled model's, or of a copy by somebody who publishes such."""
    from memsheet.questions.question_parts import catalog_entry

    try:
        found = catalog_entry(name)
    except InputError:  # the page of something that is no model
        return False
    return found is not None and bool(found.get("sure", True))


def model_of_files(reads: Mapping[str, FileReading]) -> tuple[str | ModelSpec | None, tuple[str, ...]]:
    """The model that files name, else the one that they describe; and why it cannot be accounted, where it
    cannot.
    """
    name = named_model(reads)
    if name is None:
        described, problems = described_model(reads)
        if described is not None or problems:
            return described, problems
        if (likely := likely_served(reads)) is not None:
            return likely.spec, ()
        sized = sized_stand_in(reads)
        return sized.spec if sized else None, ()
    try:
        model_of(name)
    except InputError as error:
        return None, tuple(str(problem).replace("\n  ", "; ") for problem in error.problems)
    return name, ()


def _words_of_meant_variable(name: str, texts: Mapping[str, str]) -> str:
    """What a script sets a variable to that its model is called by without the ``$``, in words; nothing where
    it sets none.
    """
    if not PLAIN_NAME.fullmatch(name):
        return ""
    sets = re.compile(rf"^[ \t]*(?:export[ \t]+)?{name}=[\"']?([^\s\"';#$]+)", re.MULTILINE)
    found = [held for text in texts.values() for held in sets.findall(text)]
    return (
        f"the script sets a variable of that name, ${name}: --model {found[-1]} is its value" if found else ""
    )


def bundled_draft(read: FileReading) -> FileReading:
    """The file with who drafts by the bundled name, where it is one of those."""
    from memsheet.catalog import find_model

    name = str(read.request.get(DRAFT) or "")
    found = None if {"@", ":"} & {*name} else find_model(name)  # types of a file stay with its name
    return replace(read, request={**read.request, DRAFT: found["name"]}) if found else read


def bundled_name(served: str) -> str | None:
    from memsheet.catalog import find_model

    found = find_model(served) if served else None
    return str(found["name"]) if found else None


def likely_name(served: str) -> str | None:
    """The bundled model that a name is of, whoever published it."""
    from memsheet.catalog.names import bundled_match

    try:
        found = bundled_match(served)
    except InputError:
        return None
    return found.name if found else None


def strange_draft(reads: Mapping[str, FileReading], told: Mapping[str, Any]) -> str:
    """What the sheet is without: a stranger's file names who drafts by a path or a hub's name, which nobody
    looks up for it; empty where it names none.
    """
    named = [str(read.request[DRAFT]) for read in reads.values() if read.request.get(DRAFT)]
    unknown = [name for name in named if told.get(DRAFT) is None and not is_surely_bundled(name)]
    return next(
        (
            f"{name} drafts and is no bundled model: its weights and cache are not in the sheet: "
            "--draft-model names another, or its config.json"
            for name in unknown
        ),
        "",
    )


def served_model(reads: Mapping[str, FileReading]) -> str | None:
    named = (str(read.request["@model"]) for read in reads.values() if read.request.get("@model"))
    return next((without_cache_path(name) for name in named if name != EMPTY), None)


def without_cache_path(name: str) -> str:
    """A model's name on the hub, where a path into the hub's local cache names it
    (huggingface_hub 1.24 file_download.py, repo_folder_name).
    """
    found = CACHED.search(name)
    return f"{found[1]}/{found[2]}" if found else name


def names_no_model(read: FileReading) -> bool:
    """Whether a file is of a kind that configures a job whose model another file names."""
    form = read.form
    plain = form.kind in ("json", "yaml") and form.along is runs_alone
    return plain and all(row.says != "@model" for row in form.keys) and "@model" not in read.request


def unnamed_words(reads: Mapping[str, FileReading], texts: Mapping[str, str] = NO_TEXTS) -> str:
    """Why no model is known of files, and what names one. ``texts``: of theirs, by name."""
    served = served_model(reads)
    if not served:
        return "no model is named: --model"
    if unset := unset_variables(served):
        words = [IN_WORDS.get(name, f"${name}, which nobody set") for name, _ in unset]
        return f"the model is named by {' and '.join(dict.fromkeys(words))}: --model names one"
    meant = _words_of_meant_variable(served, texts) or stand_in(served, likely_name)
    return f"{served} is no bundled model: {meant or '--model names one, or its config.json'}"


def stored_dtype(read: FileReading, name: str | ModelSpec | None) -> FileReading:
    """The file with the dtype that the model's checkpoint has, where it takes that."""
    model = model_of(name) if read.values.get(read.form.stored) in (AUTO, UNSAID) else None
    known = model is not None and (
        model.dtype or not model.quantization
    )  # one that is stored quantized computes in bf16
    return as_stored(read, model.dtype if model and known else "bfloat16")


def model_of(name: Any) -> ModelSpec | None:
    """The model of a job that is no plan as it stands."""
    from memsheet.questions.question_parts import read_named_model

    return read_named_model(name, "infer") if name else None
