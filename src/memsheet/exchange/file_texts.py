"""A stranger's file, by the format that recognises it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from memsheet.errors import InputError, input_error
from memsheet.exchange import NAMES, find_format
from memsheet.exchange.file_releases import as_released
from memsheet.exchange.servers import servers_in_text
from memsheet.exchange.shared.dotted_places import flatten_tree
from memsheet.exchange.shared.file_format import MORE, FileReading, Format, read_format_values
from memsheet.exchange.shared.named_server import NamedServer, joined_script
from memsheet.exchange.shared.plain_shell import plain_script
from memsheet.exchange.shared.program_releases import stated_release
from memsheet.exchange.shared.script_places import BY_NAMES, NOTEBOOK
from memsheet.exchange.shared.serve_script import OTHERS, starts_servers_alone, unread_servers
from memsheet.exchange.shared.visible_cards import given_to
from memsheet.frozen import replace
from memsheet.guard.budget import MOST_LINES, MOST_SCRIPT, TooMuchError, is_long_script
from memsheet.late import late_functions
from memsheet.patterns import late_pattern

with late_functions(__name__):
    from memsheet.exchange.servers.swift_commands import swift_servers
    from memsheet.exchange.shared.config_references import environment_remarks, with_environment_defaults
    from memsheet.exchange.shared.script_settings import script_settings
    from memsheet.exchange.shared.template_places import with_open_places
    from memsheet.exchange.shared.tracked_runs import tracked_values
    from memsheet.exchange.shared.trainer_script import trains_nothing
    from memsheet.guard.toml import parse_toml

MARK = "{{"
"""How a place of a template begins (``shared/template_places.py``)."""
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
TRAINING = late_pattern(
    r"^[^#\n]*\b(?:(?:swift|megatron)\s+(?:rlhf|sft|pt)|trl\s+(?:sft|dpo|grpo|kto|reward|rloo)"
    r"|accelerate\s+launch)\s",
    re.MULTILINE,
)
"""A training that a file starts beside a server, whose sheet it then has."""
OWN_TRAINING = late_pattern(r"^[^#\n]*\b(?:swift|megatron)\s+(?:rlhf|sft|pt)\s", re.MULTILINE)
TRAINS_TOO = ("training_beside", "(the file starts a training, too, which the server's sheet is without)")
OF_SCRIPTS = ("transformers",)
"""Formats in whose names scripts say what another file of theirs trains with."""
OF_OWN_KEYS = ("trl", "transformers")
"""Formats whose keys people write in TOML, too, for scripts of their own."""
Parser = Callable[[str, str], Any]


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
                values = dict(flatten_tree(tree, whole=form.whole))
                by_name = form.named(name, values) if form.named else {}
                known = read_format_values(form, {**values, **by_name})
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
    if not reason and name.endswith(".py") and trains_nothing(text):
        reason = "it makes no trainer and runs no backward pass, so nothing trains in it by itself"
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
    told = told and (form.names_itself is None or form.names_itself(found))
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
