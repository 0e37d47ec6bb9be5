"""Which files are configurations: those named one by one must be, and of a folder those that are known; and
what an engine does unasked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from memsheet.errors import InputError, input_error
from memsheet.exchange import NAMES, find_format
from memsheet.exchange.file_texts import Parser, read_text
from memsheet.exchange.servers import REPEATED
from memsheet.exchange.shared.config_commands import trl_launcher_flags
from memsheet.exchange.shared.dotted_places import flatten_tree
from memsheet.exchange.shared.file_format import FileReading
from memsheet.exchange.shared.file_format import read_format_values as read_values
from memsheet.exchange.shared.inherited_yaml import absent_parents
from memsheet.exchange.shared.launched_script import (
    ACCELERATE,
    TRL,
    described_launches,
    first_script_launch,
    values_given,
)
from memsheet.exchange.shared.launcher_flags import NO_TEXTS, accelerate_values, launched_reads
from memsheet.exchange.shared.named_server import FOREIGN, NO_SERVER
from memsheet.exchange.shared.plain_shell import PlainScript, plain_script
from memsheet.exchange.shared.script_defaults import KINDS, LAUNCHED
from memsheet.exchange.shared.script_places import (
    DEFAULTS,
    FURTHER_TRAININGS,
    INLINE,
    LOOP,
    NOTEBOOK,
    OF_ENVIRONMENT,
    SCRIPT,
)
from memsheet.exchange.shared.shell_text import unix_lines
from memsheet.exchange.shared.written_files import written_files
from memsheet.frozen import replace
from memsheet.guard import ANCHORED, TWICE, is_folder, parse_json, parse_yaml
from memsheet.guard.budget import TooMuchError, is_long_script
from memsheet.late import late_functions
from memsheet.questions.pod_jobs import command_name

with late_functions(__name__):
    from memsheet.exchange.shared.beaker_jobs import experiment_script
    from memsheet.exchange.shared.environment_defaults import environment_defaults
    from memsheet.exchange.shared.notebook import notebook_commands
    from memsheet.exchange.shared.started_scripts import own_text_by_start
    from memsheet.exchange.shared.training_starts import texts_of_starts
    from memsheet.plan.library_defaults import assumed_value_text


PARSERS: Mapping[str, Parser] = {"json": parse_json, "yaml": parse_yaml}
ALIASED: Mapping[str, Parser] = {"json": parse_json, "yaml": partial(parse_yaml, aliases=True)}
LAST_WINS: Mapping[str, Parser] = {"json": parse_json, "yaml": partial(parse_yaml, last_wins=True)}
AGAIN: Mapping[str, Mapping[str, Parser]] = {TWICE: LAST_WINS, ANCHORED: ALIASED}
"""How a YAML is read again for which a plain one is refused, as most tools' loader has it."""
UNKNOWN = "is not recognised as a configuration"
YAML = (".yaml", ".yml")
ENDINGS = (".json", ".toml", *YAML)
BESIDE = f"{SCRIPT}."
OF_FLAGS = f"{BESIDE}{DEFAULTS}."
DESCRIBED = "flags = those of the first command that the script's text says it is started by"
CODE = (".py", NOTEBOOK)
NOT_READ = (UNKNOWN, FOREIGN, NO_SERVER)
"""How a reason ends for which a folder is read without the file."""


def recognise_files(
    texts: Mapping[str, str],
    in_folder: Collection[str],
    server: str = "",
    scripts: Mapping[str, str] = NO_TEXTS,
) -> tuple[dict[str, FileReading], tuple[str, ...]]:
    """Files read, and those of a folder that are nothing known, each with why; of a shell's script what it
    starts, too. ``server``: the one that is read of those that a file starts; ``scripts``: texts of those
    that lie beside, by name.

    Raises InputError where a file was named itself, or nothing is known.
    """
    reads: dict[str, FileReading] = {}
    left: list[str] = []
    flags: dict[str, Collection[str]] = {}
    texts = {name: unix_lines(text) for name, text in texts.items()}
    plain = {name: shell_as_plain(name, text, server) for name, text in texts.items()}
    whole = {name: script.text for name, script in plain.items()}
    for name, text in whole.items():
        own, error = _read_or_error(name, text, server)
        shell = is_shell(name)
        told = own is not None and own.request.get("@model") is not None
        named = name.endswith(".py")
        given = named and _shell_given_flags(name, whole)  # in place of an example of a command in its text
        if own is not None and given:
            flags[name] = _flags_of(own).keys()
            own = _as_started(own, text, given)
        if told and named and not given and own is not None:
            own, launcher = _as_described(name, own, text, scripts)
            reads |= launcher
        asks = own is not None and name.endswith(NOTEBOOK) and own.request.get("task") == "infer"
        silent = not asks and (told or given or (own and not named))
        said = text if shell else "" if silent else _documented_command(name, text)
        started = {**own_text_by_start(name, text, said), **scripts} if named else scripts
        further, unread = _launched_files(name, said, own if shell else None, started)
        if asks:
            own, further = (None, further) if _trains_a_model(further) else (own, {})
        if said and named:
            further = {at: replace(read, assumed=(*read.assumed, DESCRIBED)) for at, read in further.items()}
            own = None if further else own  # whose flags they are
        if shell and (own or further):
            further = {**further, **_written_configurations(name, text)}
        found = {**(_with_inline_file(name, own) if own else {}), **further}
        if shell and found:
            found |= _submitted_ranks(name, found, text)
            found = _with_further_trainings(found, several_trainings(name, text, scripts))
        reads |= _with_remarks(found, plain[name].remarks)
        left += unread
        read_by_command = given or command_name(name) in texts
        if error is not None and not further and not read_by_command:
            problem = error.problems[0]
            synthetic = any(name == command_name(other) for other in texts)
            if (name not in in_folder and not synthetic) or not problem.reason.endswith(NOT_READ):
                raise _absent_script(name, text, scripts) or absent_parents(name, text) or error
            why = problem.hint.partition("; ")[2] if problem.reason == UNKNOWN else ""
            left.append(f"{name}: {problem.reason}" + f" ({why})" * bool(why))
    if left and not reads:
        raise input_error(
            "file",
            ", ".join(left_name.partition(":")[0] for left_name in left),
            UNKNOWN,
            f"known: {', '.join(NAMES)}",
        )
    for name, own in reads.items():
        given = _shell_given_flags(name, whole)
        reads[name] = _with_flags(own, given)
        if given and given.keys() <= {*flags.get(name, ())}:
            left = [line for line in left if f": what {Path(name).name} is given" not in line]
    return _one_script(reads, in_folder, left), tuple(left)


def _with_environment_defaults(
    own: FileReading, text: str, given: Mapping[str, Any] = NO_TEXTS
) -> FileReading:
    """What a script says, with the defaults of variables of the environment that are among it told, but of
    those that are ``given``.
    """
    said = {str(held) for held in (*own.values.values(), *own.request.values())}
    defaults = environment_defaults(text)
    told = [
        words
        for name, default, words in defaults
        if str(default) in said and f"{OF_ENVIRONMENT}{name}" not in given
    ]
    fresh = [words for words in dict.fromkeys(told) if words not in own.assumed]
    return replace(own, assumed=(*own.assumed, *fresh)) if fresh else own


def _trains_a_model(reads: Mapping[str, FileReading]) -> bool:
    """Whether a notebook's cells train: that is its job then, and what they ask later is not."""
    return any(read.request.get("task") == "train" and read.request.get("@model") for read in reads.values())


def _absent_script(name: str, text: str, scripts: Mapping[str, str]) -> InputError | None:
    """That the script which a command starts lies nowhere, where that is all that a shell's text says."""
    try:
        start = first_script_launch(text) if is_shell(name) and not is_long_script(text) else None
    except TooMuchError:
        return None
    if start is None or not start.script.endswith(".py") or start.script in scripts:
        return None
    reason = "is not there, and what it does with its flags is not known"
    return input_error(
        "file", start.script, reason, "ask from the folder that it lies in, or name its settings"
    )


def is_shell(name: str) -> bool:
    """Whether a file may be a shell's script, by its name."""
    return not name.endswith((".py", NOTEBOOK, *ENDINGS))


def shell_as_plain(name: str, text: str, chosen: str = "") -> PlainScript:
    """A shell's script without its lists, loops and conditions; any other text as it is. ``chosen``: of
    several values of its loops those that are read.
    """
    if not is_shell(name):
        return PlainScript("", text)
    found = plain_script(text.rstrip().removesuffix("\\") if text.rstrip().endswith("\\") else text, chosen)
    alone = texts_of_starts(found.text).get(chosen) if chosen and found.name != chosen else None
    return found if alone is None else PlainScript(chosen, alone, found.remarks)


def several_trainings(name: str, text: str, scripts: Mapping[str, str] = NO_TEXTS) -> tuple[str, ...]:
    """The starts of a shell's plain script, by their names, that are different trainings; of those that
    differ in nothing a sheet is made of (seeds, rates) the first alone. Nothing where there are no two.
    """
    told: dict[str, str] = {}
    for start, alone in texts_of_starts(text).items() if is_shell(name) else ():
        try:
            own, _ = _read_or_error(name, alone, "")
        except TooMuchError:
            continue
        further, _ = _launched_files(name, alone, own, scripts)
        found = (*([own] if own else ()), *further.values())
        tasks = {read.request.get("task") for read in found if read.form.name not in LAUNCHED}
        if tasks == {"train"}:
            told.setdefault(repr([sorted(read.request.items()) for read in found]), start)
    return tuple(told.values()) if len(told) > 1 else ()


def _with_further_trainings(
    reads: Mapping[str, FileReading], trainings: Sequence[str]
) -> dict[str, FileReading]:
    """What was read of a script that starts several trainings: those that are not read keep any verdict from
    being sure.
    """
    first = next((name for name, read in reads.items() if read.request.get("task") == "train"), None)
    if first is None or len(trainings) < 2:
        return dict(reads)
    words = f"{len(trainings)} that the script starts: {', '.join(trainings)}; the sheet is of one"
    told = (FURTHER_TRAININGS, words)
    return {
        name: replace(read, unmodelled=(*read.unmodelled, told)) if name == first else read
        for name, read in reads.items()
    }


def _with_remarks(reads: Mapping[str, FileReading], remarks: tuple[str, ...]) -> dict[str, FileReading]:
    """What was read of a script, the first of it with what was taken for granted."""
    first = next(iter(reads), None)
    return {
        name: replace(read, assumed=(*read.assumed, *remarks)) if name == first else read
        for name, read in reads.items()
    }


def _written_configurations(name: str, text: str) -> dict[str, FileReading]:
    """Configurations that a shell's script writes itself, of kinds that a script is started with."""
    found: dict[str, FileReading] = {}
    for file, body in written_files(text).items() if not is_long_script(text) else ():
        own, _ = _read_or_error(Path(file).name, body, "")
        trains = own is not None and own.form.name in KINDS.values() and own.request.get("task") == "train"
        if own is not None and (trains or own.form.name in LAUNCHED):
            found[f"{name}: {Path(file).name}"] = own
    return found


def _with_inline_file(name: str, own: FileReading) -> dict[str, FileReading]:
    """A training script, and apart from it the DeepSpeed configuration that it holds in place of a file."""
    if own.form.name == TRL and ACCELERATE_NAMED in own.values:
        return _with_launcher(name, own)
    inside = f"{INLINE}."
    held = {at.removeprefix(inside): value for at, value in own.values.items() if at.startswith(inside)}
    if INLINE not in own.form.refers or not held:
        return {name: own}
    rest = {at: value for at, value in own.values.items() if not at.startswith(inside)}
    script = replace(read_values(own.form, {**rest, INLINE: INLINE}), release=own.release)
    return {name: script, f"{name}: {INLINE}": read_values(find_format(INLINE), held)}


def _submitted_ranks(name: str, found: Mapping[str, FileReading], text: str) -> dict[str, FileReading]:
    """What the header of a batch script asks for, and the tasks that its step starts, beside a training that
    says nothing of its ranks.
    """
    trains = any(read.request.get("task") == "train" for read in found.values())
    counted = any("@gpus" in read.request or read.form.own_processes for read in found.values())
    header = find_format(SLURM)
    if not trains or counted or header.parse is None or ("SBATCH" not in text and "srun" not in text):
        return {}
    read = read_values(header, header.parse(text))
    return {f"{name}: {SUBMITTED}": read} if "@gpus" in read.request else {}


SLURM, SUBMITTED = "slurm", "sbatch"
ACCELERATE_NAMED = "accelerate_config"


def _with_launcher(name: str, own: FileReading) -> dict[str, FileReading]:
    """A YAML of ``trl sft --config``, and apart from it accelerate's configuration that it names."""
    rest = dict(own.values)
    flags = accelerate_values(trl_launcher_flags(rest))
    launcher = read_values(find_format(ACCELERATE), flags)
    return {
        name: replace(read_values(own.form, rest), release=own.release),
        f"{name}: {ACCELERATE}": launcher,
    }


def _documented_command(name: str, text: str) -> str:
    """The command that a Python script's own text says it is started by, that a notebook's cells give a
    shell, or that a job's YAML starts.
    """
    if is_long_script(text):
        return ""
    if name.endswith(".py"):
        return described_launches(text, Path(name).name)
    if name.endswith(NOTEBOOK):
        return notebook_commands(text)
    return experiment_script(name, text, parse_yaml) if name.endswith(YAML) else ""


def _as_described(
    name: str, own: FileReading, text: str, scripts: Mapping[str, str]
) -> tuple[FileReading, Mapping[str, FileReading]]:
    """A script that names its model, started as its own text says: with the flags of the command, and what
    starts its processes apart from it.
    """
    said = _documented_command(name, text)
    start = first_script_launch(said) if said and not is_long_script(text) else None
    if start is None or Path(start.script).name != Path(name).name:
        return own, {}
    further, _ = _launched_files(name, said, None, scripts)
    launcher = {at: read for at, read in further.items() if read.form.name in LAUNCHED}
    if not launcher:
        return own, {}
    started = _as_started(own, text, start.arguments)
    return replace(started, assumed=(*started.assumed, DESCRIBED)), launcher


def _as_started(own: FileReading, text: str, given: Mapping[str, Any]) -> FileReading:
    """A script's text with the flags that a command gives it in the place of its own defaults."""
    if own.form.started is None or (
        f"{SCRIPT}.reads" not in own.values and f"{LOOP}.reads" not in own.values
    ):
        return own
    said = own.form.started(text, given)
    again = read_values(own.form, dict(flatten_tree(said, whole=own.form.whole)))
    return _with_environment_defaults(replace(again, release=own.release), text, given)


def _shell_given_flags(name: str, texts: Mapping[str, str]) -> Mapping[str, Any]:
    """The flags that a shell's script among the texts gives a script of that name."""
    shells = (
        text
        for other, text in texts.items()
        if Path(other).suffix not in (".py", *ENDINGS) and not is_long_script(text)
    )
    started = (first_script_launch(text) for text in shells) if name.endswith(".py") else ()
    return next(
        (
            values_given(found, texts.get(name, ""))
            for found in started
            if found is not None and Path(found.script).name == Path(name).name
        ),
        {},
    )


def _flags_of(own: FileReading) -> Mapping[str, tuple[str, str, str]]:
    """Flags of a training script whose values are its arguments', by their names: the argument, the flag as
    it is typed, and its line.
    """
    told = {
        at.removeprefix(OF_FLAGS): str(held).split(" ")
        for at, held in own.values.items()
        if at.startswith(OF_FLAGS)
    }
    return {flag.lstrip("-").replace("-", "_"): (at, flag, line) for at, (flag, line) in told.items()}


def _with_flags(own: FileReading, given: Mapping[str, Any]) -> FileReading:
    """A training script with the flags that a command gives it; what its own parser says of the others is an
    assumption.
    """
    flags = _flags_of(own)
    over = {at: given[name] for name, (at, *_) in flags.items() if name in given and at in own.values}
    found = replace(read_values(own.form, {**own.values, **over}), release=own.release) if over else own
    left = {at: (flag, line) for at, flag, line in flags.values() if at not in over and at in own.values}
    said = {at: assumed_value_text(own.values[at]) for at in left}
    words = (
        f"{at.removeprefix(BESIDE)} = {said[at]} (line {line}: the default of {flag})"
        for at, (flag, line) in left.items()
    )
    # what other values are made of, which the command changes
    lost = (
        (flag, given[name]) for name, (at, flag, _) in flags.items() if name in given and at not in own.values
    )
    return replace(found, assumed=(*found.assumed, *words), unmodelled=(*found.unmodelled, *lost))


def _launched_files(
    name: str, text: str, own: FileReading | None, scripts: Mapping[str, str]
) -> tuple[Mapping[str, FileReading], tuple[str, ...]]:
    """What a shell's script starts; one that asks for more than is spent on a file starts nothing that is
    known, and that is said.
    """
    if not text or is_long_script(text):
        return {}, ()
    try:
        return launched_reads(name, text, own, scripts)
    except TooMuchError as error:
        return {}, (f"{name}: {error}",)


def _read_or_error(name: str, text: str, server: str) -> tuple[FileReading | None, InputError | None]:
    """A file, or why it is none; a YAML with anchors, or a key that stands twice, as most tools' loader has
    it.
    """
    try:
        found = read_text(name, text, PARSERS, server)
        return _with_environment_defaults(found, text) if name.endswith(CODE) else found, None
    except InputError as error:
        said = " ".join(f"{one.reason} {one.hint}" for one in error.problems)
        again = next((parsers for why, parsers in AGAIN.items() if why in said), None)
        if not name.endswith(YAML) or again is None:
            return None, error
    try:
        found = read_text(name, text, again, server)
    except InputError as error:
        return None, error
    told = (REPEATED,) if again is LAST_WINS else ()
    return replace(found, assumed=(*found.assumed, *told)), None


def _one_script(
    reads: dict[str, FileReading], in_folder: Collection[str], left: list[str]
) -> dict[str, FileReading]:
    """Files read, without the training scripts of a folder where it has several: nobody knows which of them
    is meant.
    """
    scripts = [
        name
        for name, read in reads.items()
        if name in in_folder and name.endswith(".py") and f"{SCRIPT}.reads" in read.values
    ]
    if len(scripts) > 1:
        left += [
            f"{name}: one of {len(scripts)} training scripts of the folder: name the one that runs"
            for name in scripts
        ]
        return {name: read for name, read in reads.items() if name not in scripts}
    return reads


def of_folders(files: tuple[str, ...], texts: Mapping[str, str]) -> frozenset[str]:
    """The texts that came with a folder and were not named themselves."""
    folders = [Path(file) for file in files if is_folder(Path(file))]
    if len(files) == 1:
        return frozenset(texts) if folders else frozenset()
    return frozenset(
        name for name in texts if Path(name).parent in folders and Path(name) not in map(Path, files)
    )


def engine_default_places(read: FileReading) -> Iterator[str]:
    """Places that nobody wrote: what the engine does by itself where the file does not say otherwise."""
    said = {at.split(".")[0] for at in read.values}
    return (at for at, _ in read.unmodelled if at not in read.values and at.split(".")[0] not in said)
