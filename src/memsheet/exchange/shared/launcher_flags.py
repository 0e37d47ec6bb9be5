"""What a shell's command says beside its launcher: the launcher's own flags as its configuration, and the
script's as the arguments it reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any

from memsheet.exchange import find_format
from memsheet.exchange.shared.config_commands import (
    AXOLOTL,
    ENDINGS,
    FACTORY,
    OF_FILES,
    TUNE,
    factory_command,
)
from memsheet.exchange.shared.dotted_places import flatten_tree
from memsheet.exchange.shared.file_format import UNSET, FileReading, Format, is_key, read_format_values
from memsheet.exchange.shared.launched_script import (
    ACCELERATE,
    DEEPSPEED,
    METHODS,
    PROGRAM,
    PYTHON,
    TORCHRUN,
    TRL,
    Launch,
    script_launches,
    values_given,
)
from memsheet.exchange.shared.read_only_rows import positive_count
from memsheet.exchange.shared.role_words import ROLES
from memsheet.exchange.shared.script_defaults import NAMED_SETTINGS
from memsheet.exchange.shared.script_places import (
    ABSENT,
    LOOP,
    ONE_PROCESS,
    OWN_SCRIPT,
    OWN_TRAINER,
    SCRIPT,
    SEEN_CARDS,
    UNREAD_FLAGS,
)
from memsheet.exchange.shared.trainer_names import own_trainers
from memsheet.frozen import replace
from memsheet.guard.budget import TooMuchError
from memsheet.late import late_functions
from memsheet.patterns import late_pattern

with late_functions(__name__):
    from memsheet.exchange.shared.loop_commands import command_loop_values, is_described
    from memsheet.exchange.shared.role_names import command_values, role_value, task_of_script
    from memsheet.exchange.shared.row_lengths import example_length


NO_TEXTS: Mapping[str, str] = {}
SHELLS = ("torchrun", "slurm", "skypilot")
"""Formats that a script's start stands in, and that leave its flags to it."""
FACTORY_SCRIPT = late_pattern(r"llama-?factory[^/]*/src/(train|llamafactory/launcher)\.py$", re.IGNORECASE)
RUNS_FACTORY = late_pattern(r"^from llamafactory\.train\.tuner import\b.*\brun_exp\b", re.MULTILINE)
"""How the script's path ends, and a line of its text."""
UNDER_LAUNCHER = late_pattern(r"(^|/)swift/cli/\w+\.py$")
"""Scripts whose flags a format reads in the shell's own text, with what starts them beside."""
COUNTED = ("nproc_per_node", "nnodes")
LEAST = 2
"""Flags of transformers' that a script must be given to be taken for one of its trainers."""
OF_TYPE = {"use_deepspeed": "DEEPSPEED", "use_fsdp": "FSDP", "multi_gpu": "MULTI_GPU"}
OF_ZERO = (
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "gradient_accumulation_steps",
    "deepspeed_config_file",
)
"""Flags of ``accelerate launch`` by where its file has them (accelerate 1.15.0 commands/launch.py:160-560).
"""


OWN_FLAGS = ("open-instruct", "deepspeed-chat", "llamafactory")
"""Formats that are the flags of some project's scripts."""
OTHERS = late_pattern(r"(^|/)open_instruct/\w+\.py$")
"""Scripts beside those that are read, whose flags are called alike."""
OF_TRAINER = late_pattern(r"(^|/)open_instruct/finetune_trainer\.py$")
"""Of them the one whose flags are the Trainer's."""
COUNTS_RANKS = late_pattern(r"(^|/)open_instruct/grpo(_fast)?\.py$")
"""Scripts that say themselves which of the GPUs train."""
EXAMPLE = late_pattern(
    r"(^|/)run_(clm|mlm|plm|fim|glue|classification|xnli|qa|ner|swag|summarization|translation)\.py$"
)
"""Example scripts of transformers, whose flags are the Trainer's and their own."""
WITHOUT_TRAINER = late_pattern(r"(^|/)run_\w+_no_trainer\.py$")
"""Those with a loop of their own, whose flags are called as the Trainer's, with other defaults."""
PREPARE = ("cache_dataset_only",)
"""Switches with which a script ends before it loads a model (open_instruct/olmo_core_finetune.py:154)."""
OF_TRL = late_pattern(r"(^|/)(trl/scripts|examples/scripts|examples/scripts/\w+)/\w+\.py$")
"""TRL's own, each with the dataclasses of its trainer (huggingface/trl f2cd577)."""
OF_OWN_SCRIPTS = ("transformers", "trl")
"""Formats whose flags people's own scripts take, too."""
UNTOLD = "whose text is not understood"
OWN_OPTIONS = "class ModelConfig"
FILLS_OPTIONS = late_pattern(r"\bget_peft_config\(|\bModelConfig\b")
"""What a script's text holds that takes TRL's own options of models and adapters."""
LOADED_BARE = late_pattern(r"(^|/)examples/scripts/(bco|cpo|kto|orpo)\.py$")
"""Of them those that load the model as it is stored, whatever ``--dtype`` says
(examples/scripts/{bco.py:114, cpo.py:74, kto.py:71, orpo.py:74}).
"""


def launched_reads(
    name: str, text: str, own: FileReading | None, beside: Mapping[str, str] = NO_TEXTS
) -> tuple[dict[str, FileReading], tuple[str, ...]]:
    """Further files that a script's text stands for, by name, and what of it nobody reads. ``own``: what its
    text is itself; ``beside``: texts of scripts, by name.
    """
    if own is not None and own.form.name not in SHELLS:
        return _accelerate_beside(name, text, own), ()
    launches = [_as_factory_command(one, beside) for one in script_launches(text)]
    launches = [one for one in launches if not any(one.arguments.get(at) for at in PREPARE)] or launches
    if not launches:
        return {}, ()
    found = next((one for one in launches if _script_flag_format(one) is not None), None)
    if found is None:
        return _by_flag_names(name, launches, own, beside)
    reads = {f"{name}: {found.launcher}": said for said in _of_launcher(found, own)}
    form = _script_flag_format(found)
    if form is not None:
        text = beside.get(found.script, "")
        if form.name in OF_OWN_SCRIPTS and not _is_known_script(found, text):
            if values := _trainer_values(found, text):
                form = find_format("transformers")
                values = {**values, **_of_one_process(found, form, values)}
                values |= _unread_own_flags(found, form, lambda one: _trainer_values(one, text))
                values |= _unsaid_method(found, values)
                read = read_format_values(form, dict(flatten_tree(values, whole=form.whole)))
                return {**reads, f"{name}: {found.script}": read}, ()
            unread = {f"{SCRIPT}.{OWN_SCRIPT}": UNTOLD if text else ABSENT}
        else:
            own_trainer = own_trainers(text)
            unread = {f"{SCRIPT}.{OWN_TRAINER}": own_trainer} if own_trainer else {}
        told = {PROGRAM: found.script.rpartition("/")[2]} if is_key(form, PROGRAM) else {}
        told |= unread
        told |= example_length(found.script, found.arguments) if form.name == "transformers" else {}
        told |= _of_one_process(found, form, found.arguments)
        others = [one for one in launches if _is_another(one, found)]
        told |= {"dtype": "auto"} if form.name == TRL and LOADED_BARE.search(found.script) else {}
        read = read_format_values(form, {**_as_fields(form, found.arguments), **told})
        first = (f"the first of {len(others) + 1} trainings that it starts",) if others else ()
        return {**reads, f"{name}: {found.script}": replace(read, assumed=(*first, *read.assumed))}, ()
    return reads, ()


def _is_known_script(found: Launch, text: str) -> bool:
    """Whether what a script does with its flags is known without its text: a project's own, or one whose
    text fills the classes of arguments that the flags are fields of.
    """
    of_config = _is_method_script(found.script) and "config" in found.arguments
    if found.launcher == TRL or found.script in OF_FILES or of_config:
        return True
    known = (OTHERS, OF_TRAINER, EXAMPLE, WITHOUT_TRAINER, OF_TRL)
    fills = FILLS_OPTIONS.search(text) is not None and OWN_OPTIONS not in text
    return fills or any(pattern.search(found.script) for pattern in known)


def _is_method_script(script: str) -> bool:
    """Whether a script is called as one of TRL's commands."""
    return script.rpartition("/")[2].removesuffix(".py") in METHODS


def _is_another(one: Launch, found: Launch) -> bool:
    """Whether it is a training of other arguments than the one that is read."""
    return one.arguments != found.arguments and _script_flag_format(one) is not None


def _as_factory_command(one: Launch, beside: Mapping[str, str]) -> Launch:
    """A start of LLaMA-Factory's own script with a file as what its command is given (hiyouga/LLaMA-Factory
    ff6d4d1 src/train.py; hparams/parser.py, read_args).
    """
    own = FACTORY_SCRIPT.search(one.script) or RUNS_FACTORY.search(beside.get(one.script, ""))
    if not own or not one.left or not one.left[0].endswith(ENDINGS):
        return one
    told = factory_command((), ("train", *one.left))
    return replace(one, script=told.at, arguments=told.arguments, left=told.left)


def _accelerate_beside(name: str, text: str, own: FileReading) -> dict[str, FileReading]:
    """What accelerate is given that starts the script whose flags the text is read as."""
    started = script_launches(text) if "accelerate" in text else ()
    found = next(
        (one for one in started if one.launcher == ACCELERATE and UNDER_LAUNCHER.search(one.script)), None
    )
    return {f"{name}: {ACCELERATE}": said for said in (_of_launcher(found, own) if found else ())}


def _by_flag_names(
    name: str, launches: list[Launch], own: FileReading | None, beside: Mapping[str, str]
) -> tuple[dict[str, FileReading], tuple[str, ...]]:
    """The first start whose flags tell a job by their names, or by the script's own text; else what nobody
    reads of the first.
    """
    for one in launches:
        text = beside.get(one.script, "")
        values = _trainer_values(one, text)
        form = find_format("transformers" if values else "pytorch")
        of_text = _trainer_values if values else command_loop_values
        values = values or command_loop_values(one, text)
        if values:
            values = {**values, **_of_one_process(one, form, values)}
            if text:
                values |= _unread_own_flags(one, form, partial(_values_of_text, of_text, text))
            read = read_format_values(form, dict(flatten_tree(values, whole=form.whole)))
            return {
                **{f"{name}: {one.launcher}": said for said in _of_launcher(one, own)},
                f"{name}: {one.script}": read,
            }, ()
    told = [one for one in launches if READS_SETTINGS.search(beside.get(one.script, "yaml"))]
    configured = next((one for one in told if _settings_file(one, beside)), None)
    found = configured or launches[0]
    words = (*(f"--{at}" for at in found.arguments), *found.left)
    reads = {f"{name}: {found.launcher}": said for said in _of_launcher(found, own)}
    if configured is not None:
        given = {NAMED_SETTINGS: _settings_file(configured, beside), f"{SCRIPT}.{OWN_SCRIPT}": BY_SETTINGS}
        return {**reads, f"{name}: {found.script}": read_format_values(_bare_form(), given)}, ()
    return reads, (
        f"{name}: what {found.script} is given ({', '.join(words)}), which that script alone reads",
    ) if words else ()


SETTINGS = ("config", "config_path", "config_file", "cfg", "config_name", "cfg_path")
READS_SETTINGS = late_pattern(r"yaml|config|parse|hydra", re.IGNORECASE)
"""What a script's text holds that reads such a file; of a text that nobody has it is granted."""
BY_SETTINGS = "which is given a file of settings, and whose own text was not understood"


def _bare_form() -> Format:
    """The form of a start that says nothing itself but the file that says the rest, whatever that is."""
    return replace(
        find_format(TRL),
        keys=(),
        refers=(NAMED_SETTINGS,),
        known=frozenset({NAMED_SETTINGS}),
        absent=lambda _: {},
        moves=None,
        said={"task": "train"},
        preferences=lambda _: None,
    )


def _settings_file(found: Launch, beside: Mapping[str, str]) -> str:
    """The YAML of settings that a training's script is given by a flag, or alone where its text is there;
    nothing of any other start.
    """
    if task_of_script(found.script, found.arguments) != "train":
        return ""
    left = found.left if found.script in beside else ()
    given = (*(found.arguments.get(at) for at in SETTINGS), *left)
    return next((one for one in given if isinstance(one, str) and one.endswith((".yaml", ".yml"))), "")


def _of_one_process(found: Launch, form: Format, values: Mapping[str, Any]) -> dict[str, Any]:
    """That nothing starts the Trainer more than once, where its cards are not divided otherwise."""
    alone = form.name in (TRL, "transformers") and found.flags.get(ONE_PROCESS) is True
    return {f"{SCRIPT}.{ONE_PROCESS}": True} if alone and not values.get("deepspeed") else {}


LENGTH = f"{SCRIPT}.max_length"


class _FrozenFlags(dict[str, Any]):
    """Flags that nobody changes, by what they are written as."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(repr(sorted(self.items())))


@lru_cache(maxsize=32)
def _started_values(text: str, given: _FrozenFlags) -> Mapping[str, Any]:
    """What a script for the Trainer says with flags; a job's files are read more than once, and a text for
    each of its own flags.
    """
    started = find_format("transformers").started
    try:
        return started(text, given) if started else {}
    except (ValueError, TooMuchError):
        return {}


def _trainer_values(found: Launch, text: str) -> Mapping[str, Any]:
    """What a script for the Trainer says with the flags that it is started with: those that are the Trainer's
    own arguments, and those of its own that stand for one; nothing of any other script.
    """
    form = find_format("transformers")
    said = _started_values(text, _FrozenFlags(values_given(found, text))) if text else {}
    if not said:
        return {}
    flat = dict(flatten_tree(said, whole=form.whole))
    flat = {at: held for at, held in flat.items() if at not in found.arguments or is_key(form, at)}
    given, own = _as_fields(form, found.arguments), dict[str, Any]()
    length = role_value("length", command_values(found.arguments))
    if length is not None and positive_count(length.value) and flat.get(LENGTH) in (None, UNSET):
        own[LENGTH] = length.value
    return {**flat, **{name: held for name, held in given.items() if is_key(form, name)}, **own}


def _unsaid_method(found: Launch, values: Mapping[str, Any]) -> dict[str, Any]:
    """That a script's name says a method of several models or rows, of which its text was read without."""
    word = OF_SEVERAL.search(found.script.rpartition("/")[2])
    if word is None or values.get(f"{SCRIPT}.method"):
        return {}
    return {f"{SCRIPT}.{OWN_SCRIPT}": f"whose name says {word[0]}, and whose text was read without"}


OF_SEVERAL = late_pattern(
    r"(?<![a-z])(?:dpo|grpo|ppo|kto|orpo|gkd|rloo|rlhf|reward|rm|distil\w*)(?![a-z])", re.IGNORECASE
)


def _values_of_text(
    read: Callable[[Launch, str], Mapping[str, Any]], text: str, found: Launch
) -> Mapping[str, Any]:
    return read(found, text)


def _unread_own_flags(
    found: Launch, form: Format, read: Callable[[Launch], Mapping[str, Any]]
) -> dict[str, Any]:
    """Flags of a script's own that by their names change what is held, and without which its text reads the
    same. ``read``: the values that the text has with the flags of a start.
    """
    given = found.arguments
    asked = [
        at
        for at, held in given.items()
        if (MOVES.search(at) or at.lower() in OF_SIZE) and held not in OFF and not is_key(form, at)
    ]
    whole = read(found) if asked else {}
    if (
        dict(flatten_tree(whole)).get(f"{LOOP}.task") == "infer"
    ):  # adapters of a model that generates are little beside it
        asked = [at for at in asked if not OF_ADAPTERS.search(at)]
    unread = [
        at
        for at in asked[:MOST_ASKED]
        if all(read(replace(found, arguments=other)) == whole for other in _other_starts(given, at))
    ]
    words = ", ".join(f"--{at}" for at in unread)
    return (
        {f"{SCRIPT}.{UNREAD_FLAGS}": f"{words}, of which the text was read without effect"} if unread else {}
    )


def _other_starts(given: Mapping[str, Any], flag: str) -> Iterator[dict[str, Any]]:
    """Flags without one of them, and with another number in its place, as it may be given at its default."""
    yield {name: held for name, held in given.items() if name != flag}
    if str(given[flag]).isdecimal():
        yield {**given, flag: type(given[flag])(int(given[flag]) + 1)}


MOVES = late_pattern(
    r"(?:lora|peft|adapter|quant|(?:^|_)(?:k?bits?|[48]bit)(?:_|$)|freez|frozen|trainable|prefix|pre_seq|p_?tuning|prompt_tun|offload|shard|fsdp"
    r"|zero|ref(?:erence)?_model|reward|teacher|critic|(?:^|_)ema(?:_|$)|(?:tensor|pipeline|sequence)_parallel|(?:^|_)(?:tp|pp|sp|cp)(?:_size)?$"
    r"|checkpointing|modules_to_save|(?:^|_)moe(?:_|$))(?!.*(?:alpha|dropout|scal|_name$|_weight$))",
    re.IGNORECASE,
)  # fmt: skip
"""In the names of flags of people's own that change what a training holds: adapters, frozen and quantized
weights, shards, further models."""
OF_SIZE = frozenset(name for role in ("model", "batch", "length") for name in ROLES[role])
"""Names of flags by which the model is told, or how large a micro-batch of it is."""
OF_ADAPTERS = late_pattern(r"lora|peft|adapter", re.IGNORECASE)
OFF = (False, None, "False", "false", "none", "None", 0, "no", "")
MOST_ASKED = 8


def _as_fields(form: Format, given: Mapping[str, Any]) -> dict[str, Any]:
    """Flags as the fields that they set: ``--no_x`` switches off what is on by itself (transformers 5.23.0
    hf_argparser.py, _parse_dataclass_field).
    """
    found: dict[str, Any] = {}
    for at, held in given.items():
        own = at.removeprefix("no_")
        off = own != at and not is_key(form, at) and is_key(form, own)
        found |= {own: False} if off else {at: held}
    return found


def _of_launcher(found: Launch, own: FileReading | None) -> list[FileReading]:
    if found.launcher == ACCELERATE or (found.launcher == TRL and found.flags):
        return [read_format_values(find_format(ACCELERATE), accelerate_values(found.flags))]
    if found.launcher == DEEPSPEED and "num_gpus" in found.flags:
        return [
            read_format_values(
                find_format(TORCHRUN),
                {"--nproc-per-node": found.flags["num_gpus"], "--nnodes": found.flags.get("num_nodes", 1)},
            )
        ]
    if "nproc_per_node" in found.flags and found.launcher in (FACTORY, AXOLOTL, TUNE, PYTHON, DEEPSPEED):
        seen = found.flags.get(SEEN_CARDS) is True
        return (
            []
            if COUNTS_RANKS.search(found.script)
            else [
                read_format_values(
                    _seen_cards_form() if seen else find_format(TORCHRUN),
                    {f"--{at.replace('_', '-')}": found.flags[at] for at in COUNTED if at in found.flags},
                )
            ]
        )
    if found.launcher == TORCHRUN and (own is None or own.form.name != TORCHRUN):
        flags = {f"--{at.replace('_', '-')}": held for at, held in found.flags.items()}
        return [read_format_values(find_format(TORCHRUN), flags)] if "--nproc-per-node" in flags else []
    return []


def _seen_cards_form() -> Format:
    """The form of what the environment leaves a program to see, which starts its processes itself if it
    starts any: cards, and no ranks that something else has started.
    """
    return replace(find_format(TORCHRUN), name=SEEN_CARDS, own_processes=True, said={})


def accelerate_values(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Flags of the launcher at the places that its file has for them."""
    kind = next((kind for at, kind in OF_TYPE.items() if flags.get(at) is True), None)
    said: dict[str, Any] = {"distributed_type": kind} if kind else {}
    for at, held in flags.items():
        group = "fsdp_config." if at.startswith("fsdp_") else "deepspeed_config." if at in OF_ZERO else ""
        said |= {} if at in (*OF_TYPE, ONE_PROCESS) else {f"{group}{at}": held}
    return said


TRAINS = frozenset({
    "per_device_train_batch_size", "per_gpu_train_batch_size", "learning_rate", "num_train_epochs", "max_steps", "do_train", "warmup_ratio",
    "warmup_steps", "lr_scheduler_type", "gradient_accumulation_steps", "gradient_checkpointing", "save_steps", "save_strategy", "optim",
    "deepspeed", "fsdp", "use_peft", "lora_r", "max_grad_norm", "weight_decay", "resume_from_checkpoint",
})  # fmt: skip
"""Flags of which a script that trains is given one, and those that generate or evaluate none."""
OF_MANY = frozenset({"dataset_name"})
"""Flags that other scripts have, too. A YAML with one and a model is TRL's: transformers' examples take none.
"""


def _script_flag_format(found: Launch) -> Format | None:
    """The format of a script's flags: TRL's where it is started so, or has flags that nothing else has; the
    Trainer's; nobody's.
    """
    if found.script in OF_FILES:
        return find_format(OF_FILES[found.script])
    formats = map(find_format, OWN_FLAGS)
    own_flags = next((form for form in formats if form.starts(found.script, found.arguments)), None)
    if OF_TRAINER.search(found.script):
        return find_format("transformers")
    if own_flags or OTHERS.search(found.script) or WITHOUT_TRAINER.search(found.script):
        return own_flags
    trl, trainer = find_format(TRL), find_format("transformers")
    given = found.arguments.keys()
    if EXAMPLE.search(found.script) and "model_name_or_path" in given:
        return trainer
    own = _is_method_script(found.script) and "config" in given
    own = own or (OF_TRL.search(found.script) is not None and "model_name_or_path" in given)
    trains = not TRAINS.isdisjoint(given)
    of_trl = trains and "model_name_or_path" in given and not (trl.marks - OF_MANY).isdisjoint(given)
    if found.launcher == TRL or own or of_trl:
        return trl
    known = [at for at in given if is_key(trainer, trainer.rename(at) if trainer.rename else at)]
    flags = command_values(found.arguments)
    named = "model_name_or_path" in given or not (role_value("model", flags) or is_described(flags))
    if len(known) < LEAST or not trainer.marks & given or not named or not trains:
        return None
    return trl if "use_peft" in given else trainer
