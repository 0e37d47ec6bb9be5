"""What a shell's script gives a program of verl: Hydra's overrides (``key=value``, ``+key=value``,
``++key=value``, ``~key``), the name of the configuration that they change, and the flags of ``torchrun``
where that starts it. Read as text, never run.

Rules of the overrides are Hydra 1.3's (hydra/core/override_parser): the last of several counts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memsheet.exchange.shared.file_format import MORE, UNSET
from memsheet.exchange.shared.launched_script import PROGRAM
from memsheet.exchange.shared.serve_script import OPEN_WORD
from memsheet.late import late_functions
from memsheet.patterns import late_pattern

with late_functions(__name__):
    from memsheet.exchange.shared.flag_words import flags_of, plain_value
    from memsheet.exchange.shared.started_programs import module_index, started_programs


CONFIG, STOCK, LAUNCHES = "--config-name", "$.config", "$.launches"
"""Where the values have the name of a configuration of somebody's own, and of one of verl's."""
STOCK_CONFIGS = frozenset({"ppo_trainer", "ppo_megatron_trainer", "sft_trainer", "sft_trainer_engine"})
"""Configurations of verl itself, whose defaults are known here (verl/trainer/config)."""
STOCK_OF_TRAINER = "ppo_trainer"
OWN = late_pattern(r"(verl|recipe)(\.\w+)+")
FOREIGN = late_pattern(r"(\w+\.)+(main_(ppo|dapo|grpo)\w*|\w*sft_trainer)")
MODULE = late_pattern(f"{OWN.pattern}|{FOREIGN.pattern}")
"""Its own programs, and those of others' packages that are called as they are."""
SCRIPT_FILE = late_pattern(r"(.*/)?(main_(ppo|dapo|grpo)\w*|\w*sft_trainer)\.py")
ANY_MODULE, ANY_FILE = late_pattern(r"[A-Za-z_]\w*(\.\w+)*"), late_pattern(r"[\w./{}$-]*\.py")
NAMES_ACTOR, TRAINER = (
    late_pattern(r"\+{0,2}(actor_rollout_ref|trainer\.policy)\.model\.path=.*", re.DOTALL),
    "main_ppo",
)
"""What tells a program of anybody's that is given verl's keys, and the one of verl's that it stands for."""
OVERRIDE = late_pattern(r"(\+{0,2})([A-Za-z_][\w.@/]*)=(.*)", re.DOTALL)
REMOVED = late_pattern(r"~([A-Za-z_][\w.]*)(=.*)?")
FLOAT = late_pattern(r"[+-]?\d{1,12}(\.\d{0,12}(e[+-]?\d{1,2})?|e[+-]?\d{1,2})")
OF_WORKER, OF_POLICY = "worker.", "trainer.policy."
"""Groups of programs of its kind (``easy_r1``, ``skyrl``)."""
ROOTS = ("actor_rollout_ref.", "model.")
"""Groups that name the trained model: of reinforcement learning, and of fine-tuning."""
PATHS = ("actor_rollout_ref.model.path", "model.path", "model.partial_pretrain")
"""Keys whose last parts tell the model, whatever folder a variable names before them."""
NO_TRAINERS = ("main_generation", "main_eval")
"""Programs of the same keys that generate and score (verl/trainer)."""
COUNTS = ("nnodes", "nproc_per_node")
MOST_LAUNCHES, MOST_LIST = 16, 256


def verl_values(text: str) -> dict[str, Any]:
    """The values of the first program of verl's that a text starts with a model, by their places; nothing
    where there is none.
    """
    if not any(
        word in text for word in ("verl", "recipe.", "main_ppo", "actor_rollout_ref.model.path", OF_POLICY)
    ):
        return {}
    found = [one for one in _launched_values(text) if _names_trained_model(one)][:MOST_LAUNCHES]
    if not found:
        return {}
    several = {} if len(found) == 1 else {LAUNCHES: f"{len(found)} (the first is read)"}
    return {**found[0], **several}


def _names_trained_model(values: Mapping[str, Any]) -> bool:
    """Whether a program is given what only those that train read; ``main_generation`` names a model, too."""
    named = any(
        at.startswith(("actor_rollout_ref.actor.", OF_WORKER, OF_POLICY)) or at in PATHS for at in values
    )
    return named and not str(values[PROGRAM]).startswith(NO_TRAINERS)


def _launched_values(text: str) -> Iterator[dict[str, Any]]:
    for one in started_programs(text, _program_index):
        yield _values_of_words(one.before, one.program, one.given)


def _program_index(words: Sequence[str]) -> int | None:
    """Where the name of a program stands that is one of verl's, or takes the keys of its trainer."""
    at = module_index(words, MODULE, SCRIPT_FILE)
    if at is not None:
        return at
    at = module_index(words, ANY_MODULE, ANY_FILE)
    takes = at is not None and any(NAMES_ACTOR.fullmatch(word) for word in words[at + 1 :])
    return at if takes else None


def _values_of_words(before: Sequence[str], program: str, given: Sequence[str]) -> dict[str, Any]:
    """Values by place of one launch. ``before``: the launcher's own words."""
    values: dict[str, Any] = {PROGRAM: program.removesuffix(".py").rpartition("/")[2].rpartition(".")[2]}
    own = OWN.fullmatch(program) or SCRIPT_FILE.fullmatch(program)
    if not own:
        values[MORE] = f"of {program}, which is called as a program of verl's"
        values[PROGRAM] = values[PROGRAM] if FOREIGN.fullmatch(program) else TRAINER
    launcher = flags_of([word for word in before if word not in ("-m", program)])[0]
    values |= {f"--{at.replace('_', '-')}": launcher[at] for at in COUNTS if at in launcher}
    words = list(_unpacked_overrides(given))
    values |= _config_file(words)
    for word in words:
        removed, override = REMOVED.fullmatch(word), OVERRIDE.fullmatch(word)
        if removed:
            values.pop(removed[1], None)
        elif override:
            values[override[2]] = override_value(override[2], override[3])
        elif OPEN_WORD.fullmatch(word):
            values[MORE] = word
    return values


def stock_file(values: Mapping[str, Any]) -> str:
    """Where verl's tree, or another's that has a copy of it, has the defaults of a launch; empty where it
    names a file of its own.
    """
    if PROGRAM not in values or CONFIG in values or MORE in values:
        return ""
    learns = any(at.startswith(ROOTS[0]) for at in values)
    name = values.get(STOCK, STOCK_OF_TRAINER if learns else "")
    return f"verl/trainer/config/{name}.yaml" if name else ""


def _unpacked_overrides(words: Sequence[str]) -> Iterator[str]:
    """Words, and those that one of them holds as a text (``OVERRIDES="a=1 b=2"``)."""
    for word in words:
        if re.match(r"\s*[+~]{0,2}[\w.]+=\S*\s+[+~]{0,2}[\w.]+=", word):
            try:
                yield from shlex.split(word)
                continue
            except ValueError:
                pass
        yield word


def _config_file(words: Sequence[str]) -> dict[str, Any]:
    """The configuration that the overrides change: verl's own by its name, another by where its file lies as
    far as the last folder of ``--config-path`` tells.
    """
    name = _flag_text(words, CONFIG).removesuffix(".yaml")
    if not name or "$" in name:
        return {CONFIG: UNSET} if name else {}
    if name in STOCK_CONFIGS:
        return {STOCK: name}
    folder = _flag_text(words, "--config-path").rstrip("/").rpartition("/")[2]
    inside = f"{folder}/" if re.fullmatch(r"\w[\w.-]*", folder) else ""
    return {CONFIG: f"{inside}{name}.yaml"}


def _flag_text(words: Sequence[str], flag: str) -> str:
    """What a flag is given, behind it or as the next word; nothing where it does not stand there."""
    for at, word in enumerate(words):
        name, equals, text = word.partition("=")
        if name == flag:
            return (text if equals else "".join(words[at + 1 : at + 2])).strip("'\" ")
    return ""


def override_value(at: str, text: str) -> Any:
    """A value as Hydra's grammar reads it: a list, a quoted text, ``null``, a switch, a number, or a text."""
    bare = text.strip()
    if at in PATHS and not re.fullmatch(r"\$\{?\w+\}?", bare):
        return bare.strip("'\"") or None
    if bare.lower() in ("null", "~", ""):
        return None
    if bare[:1] == "[" and bare[-1:] == "]" and "$" not in bare:
        inner = bare[1:-1].strip()
        parts = inner.split(",")[:MOST_LIST] if inner else []
        return [plain_value(part.strip().strip("'\"")) for part in parts]
    if bare[:1] in "'\"" and bare[-1:] == bare[:1] and len(bare) > 1:
        return UNSET if "$" in bare else bare[1:-1]
    return float(bare) if FLOAT.fullmatch(bare) else plain_value(bare)
