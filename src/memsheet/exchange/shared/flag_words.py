"""Flags of a command by their names, with what they are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memsheet.exchange.shared.file_format import MORE, UNSET
from memsheet.exchange.shared.serve_command import parse_human_number
from memsheet.exchange.shared.serve_script import (
    ARGUMENTS,
    GIVES_WORDS,
    OPEN_WORD,
    has_unset_placeholder,
    joined_parts,
)
from memsheet.patterns import late_pattern

SWITCHES = frozenset({"bf16", "fp16", "tf32", "gradient_checkpointing", "packing", "do_train", "do_eval", "load_in_4bit", "load_in_8bit", "use_peft", "overwrite_output_dir", "trust_remote_code"})  # fmt: skip
"""Flags of the Trainer's scripts that have a value or none (transformers 5.23.0 hf_argparser.py, nargs of
a bool): a variable behind one may be further arguments.
"""


def flags_of(words: Sequence[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """``--a b``, ``--a=b``, ``--a b c`` and switches by their names with underscores; and the words that
    belong to none. A variable that nobody set, and that is no flag's first value, holds further arguments.
    """
    found: dict[str, Any] = {}
    left: list[str] = []
    name, filled = "", False
    for word in joined_parts(words):
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name, filled = name.replace("-", "_"), False
            found[name] = plain_value(value) if equals else True
            if found[name] == UNSET and name in NAMES_MODEL:
                found[name] = path_with_places(value)
            name = "" if equals else name
        elif OPEN_WORD.fullmatch(word) and (filled or not (name or _is_numbered(word))):
            found[MORE] = word
        elif word in ARGUMENTS or (filled and not word):
            continue
        elif not name:
            left.append(word)
        elif filled:
            held = found[name]
            found[name] = [*(held if isinstance(held, list) else [held]), plain_value(word)]
        else:
            opens = OPEN_WORD.fullmatch(word) is not None
            known = UNSET if opens else plain_value(word)
            known = path_with_places(word) if known == UNSET and name in NAMES_MODEL else known
            found[name], filled = known, True
            found |= {MORE: word} if opens and (name in SWITCHES or GIVES_WORDS.match(word)) else {}
    return found, tuple(left)


NAMES_MODEL = frozenset({"model", "model_path", "model_name", "model_name_or_path", "base_model", "base_model_path", "checkpoint_path", "ckpt_path"})  # fmt: skip
_VARIABLE = late_pattern(r"\$(?:\{[^{}]*+\}|\w++)")


def path_with_places(text: str) -> Any:
    """A path of which some folders are variables, with a pattern for each, where one before them has a number
    in its name, as a model's has; else ``UNSET``.
    """
    known = text.partition("$")[0].rpartition("/")[0]
    made = _VARIABLE.sub("*", text)
    return made if any(letter.isdigit() for letter in known) and "$" not in made else UNSET


def _is_numbered(word: str) -> bool:
    """Whether a word is what the script itself is given: alone, a file as often as an option."""
    return word.strip("${}").isdigit()


def plain_value(text: str) -> Any:
    """A word as a script's parser reads it: a switch's two words, a number, or a text; ``UNSET`` where a
    variable is left. A path under a folder that a variable names is one whose end is known.
    """
    if has_unset_placeholder(text):
        end = text.rpartition("/")[2]
        return text if end not in ("", text) and not has_unset_placeholder(end) else UNSET
    switch = {"true": True, "false": False}.get(text.lower())
    if switch is not None:
        return switch
    try:
        return parse_human_number(text) if text[-1:] not in "kKmMgGtT" else text
    except ValueError:
        return text
