"""Programs that a shell starts with a YAML of settings and words over it, in OmegaConf's way (``uv run
examples/run_grpo.py --config grpo.yaml policy.train_micro_batch_size=2``): NeMo-RL's, AReaL's and ROLL's.
Read as text, never run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memsheet.exchange.shared.file_format import UNSET
from memsheet.frozen import NamedTuple
from memsheet.guard import parse_yaml
from memsheet.late import late_functions
from memsheet.patterns import late_pattern

with late_functions(__name__):
    from memsheet.exchange.shared.flag_words import plain_value
    from memsheet.exchange.shared.started_programs import started_programs


MENTIONS = late_pattern(r"--config(?:_path|_name)?[ =]|\brun_\w+\.py\b")
"""Whether a text may start one."""
SCRIPT = late_pattern(r"(?:.*/)?\w[\w-]*\.py")
OVER = late_pattern(r"\+{0,2}([A-Za-z_][\w.]{0,200})=(.*)", re.DOTALL)
WITHOUT = late_pattern(r"~([A-Za-z_][\w.]{0,200})(?:=.*)?", re.DOTALL)
USUAL: Mapping[str, str] = {
    "run_grpo.py": "grpo_math_1B.yaml", "run_sft.py": "sft.yaml", "run_dpo.py": "dpo.yaml", "run_rm.py": "rm.yaml", "run_ppo.py": "ppo_math_1B.yaml",
    "run_distillation.py": "distillation_math.yaml", "run_vlm_grpo.py": "vlm_grpo_3B.yaml",
}  # fmt: skip
"""What NeMo-RL's programs read where no file is named, of the folder ``configs`` beside them
(NVIDIA-NeMo/RL 7ea279a examples/run_*.py).
"""
NAMED = ("--config", "--config_path", "--config_name", "--config-path", "--config-name")
YAML = (".yaml", ".yml")
MOST_WORDS = 200


class SettingsLaunch(NamedTuple):
    """Where the YAML may lie, the likeliest first, and the words over it: values by their places, and places
    that are left out.
    """

    files: tuple[str, ...]
    over: tuple[tuple[str, Any], ...]
    without: tuple[str, ...]


def settings_launches(text: str) -> Iterator[SettingsLaunch]:
    """Starts in order."""
    if MENTIONS.search(text) is None:
        return
    for started in started_programs(text, _script_index):
        files = tuple(_places_of_file(started.program, _named_words(started.given)))
        if files:
            words = started.given[:MOST_WORDS]
            over = tuple(
                (found[1], _word_value(found[2])) for word in words if (found := OVER.fullmatch(word))
            )
            without = tuple(found[1] for word in words if (found := WITHOUT.fullmatch(word)))
            yield SettingsLaunch(files, over, without)


def _script_index(words: Sequence[str]) -> int | None:
    return next((at for at, word in enumerate(words) if SCRIPT.fullmatch(word)), None)


def _named_words(given: Sequence[str]) -> dict[str, str]:
    """Flags that name the file, and what they say."""
    found: dict[str, str] = {}
    for at, word in enumerate(given):
        flag, equals, value = word.partition("=")
        if flag in NAMED:
            said = value if equals else given[at + 1] if at + 1 < len(given) else ""
            found[flag.replace("-", "_").replace("__", "--", 1)] = said
    return found


def _places_of_file(program: str, named: Mapping[str, str]) -> Iterator[str]:
    """One file by its name; a folder and a name in it, which Hydra reads beside its program (alibaba/ROLL
    8eb27cc examples/start_rlvr_pipeline.py); or what the program reads by itself.
    """
    home = program.rpartition("/")[0]
    if (name := named.get("--config_name")) is not None:
        file = f"{name.removesuffix('.yaml')}.yaml"
        folder = named.get("--config_path", "")
        if folder and plain_value(folder) != UNSET:
            yield from (f"{home}/{folder}/{file}", f"{folder}/{file}") if home else (f"{folder}/{file}",)
        yield file
    elif (whole := named.get("--config")) is not None:
        said = plain_value(whole)
        if isinstance(said, str) and said.endswith(YAML):
            yield said
    elif (usual := USUAL.get(program.rpartition("/")[2])) is not None:
        yield f"{home}/configs/{usual}" if home else f"configs/{usual}"


def _word_value(text: str) -> Any:
    """A word's value as YAML reads it, which is how OmegaConf does."""
    said = plain_value(text)
    if said == UNSET or not isinstance(said, str):
        return said
    try:
        return parse_yaml(text, "word")
    except ValueError:
        return text


def with_words_over(tree: Mapping[str, Any], launch: SettingsLaunch) -> dict[str, Any]:
    """The settings as the command changes them, one word after another."""
    whole = dict(tree)
    for place, value in launch.over:
        whole = _placed_value(whole, place.split("."), value)
    for place in launch.without:
        whole = _left_out_value(whole, place.split("."))
    return whole


def _placed_value(tree: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    first, *rest = path
    if not rest:
        return {**tree, first: value}
    below = tree.get(first)
    return {**tree, first: _placed_value(below if isinstance(below, Mapping) else {}, rest, value)}


def _left_out_value(tree: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    first, *rest = path
    below = tree.get(first)
    if rest and isinstance(below, Mapping):
        return {**tree, first: _left_out_value(below, rest)}
    return dict(tree) if rest else {at: held for at, held in tree.items() if at != first}
