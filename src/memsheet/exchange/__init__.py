"""Plans as the files that engines run, and back. One file an engine, data: its keys, where each stands, and
their source.

``write_format_files``: what is asked → files, read back before anyone sees them, so that a file never says
another plan than it was made of. ``read_text``: a stranger's file, recognised by what it holds →
``exchange.shared.file_format.FileReading``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from memsheet.errors import InputError, Problem, input_error, raise_if_problems
from memsheet.exchange.servers import servers_in_text
from memsheet.exchange.shared.file_format import AUTO, MORE, FileReading, Format, Values, read_format_values
from memsheet.exchange.shared.named_server import NamedServer, joined_script
from memsheet.exchange.shared.plain_shell import plain_script
from memsheet.exchange.shared.program_releases import stated_release
from memsheet.exchange.shared.script_places import BY_NAMES, NOTEBOOK, OF_RELEASE_5, UNSAID
from memsheet.exchange.shared.serve_script import OTHERS, starts_servers_alone, unread_servers
from memsheet.exchange.shared.visible_cards import given_to
from memsheet.frozen import replace
from memsheet.guard.budget import MOST_LINES, MOST_SCRIPT, TooMuchError, is_long_script
from memsheet.late import late_functions
from memsheet.patterns import late_pattern
from memsheet.plan.plan import Schedule

with late_functions(__name__):
    from memsheet.exchange.servers.swift_commands import swift_servers
    from memsheet.exchange.shared.config_references import environment_remarks, with_environment_defaults
    from memsheet.exchange.shared.script_settings import script_settings
    from memsheet.exchange.shared.template_places import with_open_places
    from memsheet.exchange.shared.tracked_runs import tracked_values
    from memsheet.guard.toml import parse_toml

MARK = "{{"
"""How a place of a template begins (``shared/template_places.py``)."""
NAMES = (
    "deepspeed",
    "accelerate",
    "roll",
    "llamafactory-v1",
    "axolotl",
    "llamafactory",
    "verl",
    "openrlhf",
    "slime",
    "nemo-rl",
    "prime-rl",
    "areal",
    "open-instruct",
    "torchtune",
    "torchtune-ppo",
    "torchtune-async",
    "torchtune-serve",
    "trl",
    "transformers",
    "unsloth",
    "litgpt",
    "llm-foundry",
    "nanotron",
    "nemo",
    "nemo-recipe",
    "megatron-bridge",
    "skypilot",
    "trainjob",
    "kubernetes",
    "swift",
    "swift-megatron",
    "deepspeed-chat",
    "megatron-generation",
    "megatron",
    "torchtitan",
    "torchtitan-toml",
    "pytorch",
    "slurm",
    "torchrun",
    "vllm",
    "helm",
    "sglang",
    "llama.cpp",
    "ollama",
    "tensorrt-llm",
    "tgi",
    "tei",
    "lmdeploy",
    "lm-studio",
)
"""In the order in which a file is tried: a batch script holds a launch, too."""
DATA = {
    "deepspeed": "json",
    **dict.fromkeys(
        (
            "accelerate", "llamafactory-v1", "axolotl", "llamafactory", "open-instruct", "torchtune", "torchtune-ppo", "torchtune-async", "torchtune-serve", "trl", "nanotron",
            "skypilot", "trainjob", "kubernetes",
        ),
        "yaml",
    ),
}  # fmt: skip
"""Formats that are data and no script's, and its kind: a text that holds no object is none of them, which are
not loaded for it.
"""
SERVING = NAMES[NAMES.index("vllm") :]
"""Formats of servers: a shell's script that starts nothing else is none of the others, which are not loaded
for it.
"""
OTHER_TEXTS = (".py", ".ipynb", ".json", ".yaml", ".yml", ".toml")
"""Ends of the names of texts that are no shell's scripts."""
MODULES = {
    "llamafactory-v1": "llamafactory.v1",
    "torchtitan-toml": "torchtitan.toml",
    "swift-megatron": "swift.megatron",
    "megatron-generation": "megatron.generation",
    "torchtune-ppo": "torchtune.policies",
    "torchtune-async": "torchtune.orchestrated",
    "torchtune-serve": "torchtune.served",
    "llama.cpp": "llama_cpp",
    "tensorrt-llm": "tensorrt_llm",
    "lm-studio": "lm_studio",
    "open-instruct": "open_instruct",
    "deepspeed-chat": "deepspeed_chat",
    "llm-foundry": "llm_foundry",
    "nemo-rl": "nemo_rl",
    "prime-rl": "prime_rl",
    "nemo-recipe": "nemo.recipe_scripts",
    "megatron-bridge": "nemo.bridge",
}
DESCRIBED = ("schema", "model", "gpus", "task", "engine_version")
"""Keys of a plan's document that no file needs to say."""
DERIVED = ("reshard_after_forward", "precision.name", "seq_len_kind")
Files = dict[str, str]
MOST_COMMENT = 300
TRAINING = late_pattern(
    r"^[^#\n]*\b(?:(?:swift|megatron)\s+(?:rlhf|sft|pt)|trl\s+(?:sft|dpo|grpo|kto|reward|rloo)"
    r"|accelerate\s+launch)\s",
    re.MULTILINE,
)
"""A training that a file starts beside a server, whose sheet it then has."""
OWN_TRAINING = late_pattern(r"^[^#\n]*\b(?:swift|megatron)\s+(?:rlhf|sft|pt)\s", re.MULTILINE)
TRAINS_TOO = ("training_beside", "(the file starts a training, too, which the server's sheet is without)")
Parser = Callable[[str, str], Any]


def find_format(name: str) -> Format:
    """The format of that name. Raises InputError with the names there are."""
    if name not in NAMES:
        raise input_error("to", name, "is no format", f"one of {', '.join(written_formats())}")
    found: Format = import_module(f"memsheet.exchange.formats.{MODULES.get(name, name)}").FORMAT
    return found


def written_formats() -> list[str]:
    """The names of the formats that plans are written in; the others are read alone."""
    return sorted(name for name in NAMES if find_format(name).engines)


def format_to_write(name: str) -> Format:
    """The format of that name. Raises InputError where no plan is written in it."""
    form = find_format(name)
    if not form.engines:
        raise input_error(
            "to", name, "is read, and no plan is written in it", f"one of {', '.join(written_formats())}"
        )
    return form


def of_version(form: Format, asked: Values) -> Format:
    """The format that the engine's version has, where an older one has another."""
    older = form.older.get(str(asked.get("engine_version")))
    return find_format(older) if older else form


# ---- out ---------------------------------------------------------------------------------------------------


def write_format_files(form: Format, asked: Values, comments: Iterable[str] = ()) -> Files:
    """The files of one format. Raises InputError for a plan that its engine cannot run as it stands."""
    form = of_version(form, asked)
    if asked.get("engine") not in form.engines:
        own = _own_formats(str(asked.get("engine")), str(asked.get("task")))
        raise input_error(
            "engine",
            asked.get("engine"),
            f"is not what {form.name} runs",
            f"it runs {', '.join(form.engines)}{own}",
        )
    values = values_of(form, asked)
    if problems := _plan_problems(form, asked):
        from memsheet.exchange.flags_to_export import with_flags_to_export

        found, made = partial(_plan_problems, form), partial(engine_request, form)
        raise_if_problems(with_flags_to_export(problems, asked, found, made, form.name))
    lines = [
        _printable_comment(line)
        for line in (*comments, f"written for {form.tested}", *form.notes, *engine_differences(form, asked))
    ]
    text = form.compose(values, asked) if form.compose else RENDER[form.kind](nest_dotted_keys(values))
    files = {form.file: _prepend_comments(form.kind, lines, text)}
    if form.more is not None:
        files |= {
            name: _prepend_comments("python", lines, held)
            for name, held in form.more(nest_dotted_keys(values)).items()
        }
    return files


def _own_formats(engine: str, task: str) -> str:
    """The formats that an engine's plans are written in, in words."""
    found = (
        name
        for name in NAMES
        if engine in (form := find_format(name)).engines and _can_write_task(form, task)
    )
    names = ", ".join(found)
    return f"; {engine}'s plans are written with --to {names}" if names else ""


def _can_write_task(form: Format, task: str) -> bool:
    """Whether plans of a task are written in a format."""
    return form.said.get("task") in (None, task) and (bool(form.compose) or form.kind in RENDER)


def engine_request(form: Format, asked: Values) -> Mapping[str, Any]:
    """What the engine runs of the files that are written of a plan."""
    return read_format_values(form, values_of(form, asked)).request


def _plan_problems(form: Format, asked: Values) -> list[Problem]:
    """What of a plan the format's files do not say, or say otherwise."""
    made = engine_request(form, asked)
    return [
        *form.problems(asked),
        *_unsaid_key_problems(form, asked, made),
        *_changed_key_problems(form, asked, made),
    ]


def _printable_comment(line: str) -> str:
    """One line of a comment, whatever a name in it holds."""
    return "".join(c if c.isprintable() else "?" for c in line[:MOST_COMMENT])


def values_of(form: Format, asked: Values) -> Values:
    """What is asked as the file's values."""
    return {
        **form.fixed(asked),
        **{key.at: held for key in form.keys if (held := key.write(asked)) is not None},
    }


def engine_differences(form: Format, asked: Values) -> Iterator[str]:
    """What the engine runs otherwise than the plan says, in words."""
    made = read_format_values(form, values_of(form, asked)).request
    for key, where in form.differs.items():
        if key in made and made[key] != asked.get(key):
            yield f"{key} = {asked.get(key)} in the plan, {made[key]} here: {where}"


def _unsaid_key_problems(form: Format, asked: Values, made: Mapping[str, Any]) -> Iterator[Problem]:
    """Keys that are asked for and that neither the file nor the training script beside it says."""
    spreads = form.spreads and asked.get("schedule") == Schedule.NAIVE.value
    beside = {*form.beside, *(SPREAD if spreads else ())}
    for key, value in asked.items():
        left_out = key[0] in "@?" or key in DESCRIBED or key in DERIVED or key in made or beside & {key, "*"}
        own = key == GRADIENT_SYNC and form.gradient_sync in (
            "",
            value,
        )  # what the tool does, or another file
        if not left_out and not own and not says_nothing(key, value):
            yield Problem(
                field=key,
                value=value,
                reason=f"cannot be said to {form.tested}",
                hint="another format, or leave it out",
            )


GRADIENT_SYNC = "gradient_sync"
SPREAD = ("schedule", "mesh.pp", "layers_per_stage", "end_stages")
"""What a script says that loads a model over several cards (``device_map``), for formats that leave it to
one.
"""


def says_nothing(key: str, value: Any) -> bool:
    """Whether a key is at what every engine does without being told."""
    return value in (None, False, 0, "none", [], ()) or (
        value == 1 and (key.startswith("mesh.") or key == "vocab_multiple")
    )


def _changed_key_problems(form: Format, asked: Values, made: Mapping[str, Any]) -> Iterator[Problem]:
    """Where what is written reads as another plan."""
    for key, value in made.items():
        wanted = asked.get(key)
        same = _says_the_same(value, wanted) or (says_nothing(key, value) and says_nothing(key, wanted))
        if not same and not key.startswith("?") and key not in form.differs:
            yield Problem(
                field=key, value=wanted, reason=f"cannot be said to {form.tested}, which would run {value}"
            )


def _says_the_same(value: Any, wanted: Any) -> bool:
    """Names of layers stand in any order."""
    lists = isinstance(value, list) and isinstance(wanted, list)
    return sorted(map(str, value)) == sorted(map(str, wanted)) if lists else bool(value == wanted)


def nest_dotted_keys(values: Values) -> dict[str, Any]:
    """Dotted places as objects in one another."""
    tree: dict[str, Any] = {}
    for at, value in values.items():
        *path, last = at.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    return tree


def _render_json(tree: Mapping[str, Any]) -> str:
    return json.dumps(tree, indent=2, allow_nan=False) + "\n"


def _render_yaml(tree: Mapping[str, Any]) -> str:
    import yaml

    return str(yaml.safe_dump(tree, sort_keys=False, default_flow_style=False, allow_unicode=False))


RENDER: dict[str, Callable[[Mapping[str, Any]], str]] = {"json": _render_json, "yaml": _render_yaml}


def _prepend_comments(kind: str, lines: Iterable[str], text: str) -> str:
    """Comments on top, where the format has any; after the first line of a script."""
    block = "".join(f"# {line.encode('ascii', 'replace').decode()}\n" for line in lines)
    if kind == "json":
        return text
    first, _, rest = text.partition("\n")
    return f"{first}\n{block}{rest}" if first.startswith("#!") else block + text


# ---- in ----------------------------------------------------------------------------------------------------


def read_text(name: str, text: str, parsers: Mapping[str, Parser], server: str = "") -> FileReading:
    """A file's text by the format that recognises it. ``parsers``: of ``json`` and ``yaml``, from text and
    the file's name; ``server``: the one of several that a file starts, the first where none is named.
    """
    servers = servers_in_text(name, text, parsers["yaml"])
    if not server and (trained := _training_beside(name, text, servers, parsers)):
        return trained
    if not servers:
        return given_to(_recognise_format(name, text, parsers), None)
    own = [one for one in servers if one.name == server]
    script, first = joined_script(tuple(own) or servers), (own or servers)[0]
    found = given_to(_recognise_format(name, plain_script(script).text, parsers), first.gpus, first.at)
    others = (
        ((OTHERS, unread_servers([one.name for one in servers if one is not first])),)
        if own and first.together and len(servers) > 1
        else ()
    )
    others = (*others, *first.left_out, *([TRAINS_TOO] if TRAINING.search(text) else ()))
    return replace(
        found,
        container=first.container,
        unmodelled=(*found.unmodelled, *others),
        assumed=(*found.assumed, *first.remarks),
    )


def _training_beside(
    name: str, text: str, servers: Sequence[NamedServer], parsers: Mapping[str, Parser]
) -> FileReading | None:
    """The training of a script that starts engines of the same program beside it or before it, which has
    what it shares with none of them; None of any other file.
    """
    if not servers or not OWN_TRAINING.search(text):
        return None
    if not {one.name for one in servers} <= {one.name for one in swift_servers(name, text, parsers["yaml"])}:
        return None
    found = _recognise_format(name, text, parsers)
    told = ", ".join(dict.fromkeys(f"{one.name} of {name}" for one in servers))
    return replace(found, assumed=(*found.assumed, f"{told} has cards or a time of its own: not counted"))


def _with_own_defaults(
    name: str, text: str, tree: Mapping[str, Any]
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """A YAML's tree with the defaults that it says itself of variables of the environment, and these in
    words.
    """
    if not name.endswith((".yaml", ".yml")) or "${oc.env:" not in text:
        return tree, ()
    return with_environment_defaults(tree), environment_remarks(text)


def _recognise_format(name: str, text: str, parsers: Mapping[str, Parser]) -> FileReading:
    held: dict[str, Any] = {}

    def data_of(kind: str) -> Any:
        if kind not in held:
            held[kind] = _parse_data(kind, name, text, parsers)
        return held[kind]

    named = NAMES if name.endswith(OTHER_TEXTS) or not starts_servers_alone(text) else SERVING
    to_try = (one for one in named if one not in DATA or isinstance(data_of(DATA[one]), Mapping))
    refused: list[TooMuchError] = []
    for form in map(find_format, to_try):
        for found in _readings(form, text, data_of):
            if isinstance(found, TooMuchError):
                refused.append(found)
            if (
                isinstance(found, Mapping)
                and form.marks & {str(key) for key in found}
                and _has_needed_keys(form, found)
            ):
                tree, remarks = _with_own_defaults(name, text, found)
                known = read_format_values(form, dict(flatten_tree(tree, whole=form.whole)))
                return _resolve_release(form, text, replace(known, assumed=(*known.assumed, *remarks)))
    why = data_of("json" if name.endswith(".json") else "yaml")
    if name.endswith(".toml"):
        why = _parse_own_tables(text, name)
        if isinstance(why, Mapping) and (read := _read_own_keys(why)):
            return read
    if isinstance(why, Mapping) and (read := _read_by_groups(why)):
        return read
    if name.endswith((".py", NOTEBOOK)) and (read := _read_by_groups(script_settings(text), OF_SCRIPTS)):
        return read
    told = isinstance(why, ValueError) and name.endswith((".json", ".yaml", ".yml"))
    large = next((str(one) for one in (*refused, *held.values()) if isinstance(one, TooMuchError)), "")
    reason = str(why).splitlines()[0] if told else large
    raise input_error(
        "file",
        name,
        "is not recognised as a configuration",
        f"{reason}; " * bool(reason) + f"known: {', '.join(NAMES)}",
    )


def _readings(form: Format, text: str, data_of: Callable[[str], Any]) -> Iterator[Any]:
    """What a format makes of a text, and of one that is a script which says the same, one after the other."""
    yield _parse_by_format(form, text) if form.parse else data_of(form.kind)
    if form.also:
        yield _parse_embedded_script(form, text)


OF_SCRIPTS = ("transformers",)
"""Formats in whose names scripts say what another file of theirs trains with."""
OF_OWN_KEYS = ("trl", "transformers")
"""Formats whose keys people write in TOML, too, for scripts of their own."""


def _parse_own_tables(text: str, name: str) -> Any:
    """The table that a TOML file describes, or why it is none."""
    try:
        return parse_toml(text.encode(), name)
    except InputError as error:
        return error


def _read_own_keys(tree: Mapping[str, Any]) -> FileReading | None:
    """A table whose keys at its top are a trainer's, which a script of people's own loads."""
    for form in map(find_format, OF_OWN_KEYS):
        if form.marks & tree.keys() and _has_needed_keys(form, tree):
            values = {**dict(flatten_tree(tree, whole=form.whole)), MORE: BY_NAMES}
            return read_format_values(form, values)
    return None


def _read_by_groups(tree: Mapping[str, Any], names: Iterable[str] = NAMES) -> FileReading | None:
    """A file that no key at its top tells, by what its groups hold."""
    for form in map(find_format, names):
        if form.by_groups is not None and (values := form.by_groups(tree)):
            return read_format_values(form, dict(flatten_tree(values, whole=form.whole)))
    return None


def _has_needed_keys(form: Format, found: Mapping[str, Any]) -> bool:
    """Whether a file has what each of its format has, and nothing that none has; ``...`` stands for any
    value.
    """
    told = all(at in found and (value is ... or found[at] == value) for at, value in form.needs.items())
    told = told and not form.never & found.keys()
    return told and (not form.needs_one or any(_stands_in(found, at) for at in form.needs_one))


def _stands_in(found: Mapping[str, Any], at: str) -> bool:
    """Whether a file has a key at its top, or as ``a.b`` in an object there."""
    group, _, key = at.rpartition(".")
    held = found.get(group) if group else found
    return isinstance(held, Mapping) and key in held


def _resolve_release(form: Format, text: str, found: FileReading) -> FileReading:
    """What was read, as the release has it that the file names, with what the text leaves open."""
    found = as_released(found, found.request.get("engine_version") or stated_release(form, text))
    return replace(found, assumed=(*found.assumed, *form.taken(text))) if form.taken else found


def as_released(found: FileReading, version: Any) -> FileReading:
    """A file read as an engine's release has it: the flags it has, and whose defaults they are."""
    form = found.form
    if not version:
        return found
    if form.released is None:
        return replace(found, release=str(version))
    again, before = (
        read_format_values(one, found.values) for one in (form.released(form, str(version)), form)
    )
    beside = found.assumed[len(before.assumed) :]
    more = tuple(one for one in found.unmodelled if one not in before.unmodelled)
    return replace(
        again,
        assumed=(*again.assumed, *beside),
        unmodelled=(*again.unmodelled, *more),
        release=str(version),
        container=found.container,
    )


DTYPE_UNKNOWN = (
    "the model's config names no dtype, and transformers 5 takes the weights' own: fp32, at its most"
)


def as_stored(found: FileReading, dtype: str | None) -> FileReading:
    """A file read with the dtype that a model is loaded in where none is named, or the checkpoint's own is:
    transformers 5 takes that by itself, and 4 fp32 (modeling_utils.py, from_pretrained: dtype). ``dtype``:
    what the model's configuration says; where it says none, 5 takes the weights' own (_get_dtype,
    get_state_dict_dtype), which is fp32 at most.
    """
    said = found.values.get(found.form.stored)
    if said not in (AUTO, UNSAID):
        return found
    older = said == UNSAID and re.match(r"[0-4]\.", found.release)
    taken = "float32" if older or dtype is None else dtype.removeprefix("torch.")
    why = (
        f"transformers {found.release}'s default"
        if older
        else DTYPE_UNKNOWN
        if dtype is None
        else "the checkpoint's" + OF_RELEASE_5 * (said == UNSAID)
    )
    again = read_format_values(found.form, {**found.values, found.form.stored: taken})
    left = tuple(one for one in found.assumed if not one.startswith(f"{found.form.stored} = {AUTO}"))
    told = (*left, f"dtype = {taken}: {why}")
    return replace(again, release=found.release, container=found.container, assumed=told)


def in_sixteen_bits(found: FileReading) -> Mapping[str, Any]:
    """What a file asks for where weights of unknown dtype are of sixteen bits, as changes; nothing where
    their dtype is known.
    """
    if not any(DTYPE_UNKNOWN in one for one in found.assumed):
        return {}
    return _changes_of_dtype(found, "bfloat16")


def in_earlier_dtype(found: FileReading) -> Mapping[str, Any]:
    """What a file asks for where transformers before 5 loads its model, as changes; nothing where its dtype
    or the release is said.
    """
    left = not found.release and any(one.endswith(OF_RELEASE_5) for one in found.assumed)
    return _changes_of_dtype(found, "float32") if left else {}


def _changes_of_dtype(found: FileReading, dtype: str) -> dict[str, Any]:
    other = read_format_values(found.form, {**found.values, found.form.stored: dtype}).request
    return {
        key: other.get(key) for key in {**found.request, **other} if found.request.get(key) != other.get(key)
    }


def _of_bounded_length(text: str) -> str:
    if is_long_script(text):
        raise TooMuchError(
            f"is longer than the {MOST_SCRIPT:,} characters or {MOST_LINES:,} lines of a script that are read"
        )
    return text


def _parse_embedded_script(form: Format, text: str) -> Any:
    """What a script says that makes such a configuration; why it makes none."""
    try:
        return form.also(_of_bounded_length(text)) if form.also else None
    except ValueError as error:
        return error


def _parse_by_format(form: Format, text: str) -> Any:
    """What a format makes of a text itself; why it is none of it."""
    assert form.parse
    try:
        return form.parse(_of_bounded_length(text))
    except ValueError as error:  # InputError is one
        return error


def _parse_data(kind: str, name: str, text: str, parsers: Mapping[str, Parser]) -> Any:
    """What a text holds, read as a kind of data; why it is none of that kind."""
    try:
        return tracked_values(parsers[kind](text, name))
    except ValueError as error:
        if kind != "yaml" or MARK not in text or (filled := with_open_places(text)) == text:
            return error
        again = _parse_data(kind, name, filled, parsers)
        return error if isinstance(again, ValueError) else again


def flatten_tree(
    tree: Mapping[str, Any], before: str = "", whole: frozenset[str] = frozenset()
) -> Iterator[tuple[str, Any]]:
    """Dotted places of everything that is no object; an empty object is a place of its own, as those of
    ``whole`` are.
    """
    for key, value in tree.items():
        at = f"{before}{key}"
        if isinstance(value, Mapping) and value and at not in whole:
            yield from flatten_tree(value, f"{at}.", whole)
        else:
            yield at, value
