"""How evaluations are told their model: arguments in one text (``pretrained=a,dtype=auto``), after the name
of the engine that runs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from memsheet.frozen import dataclass

HARNESS, LIGHT = "lm_eval", "lighteval"
ENGINES_OF_LIGHT = ("vllm", "sglang", "accelerate")
PLAIN = "hf"
NAMES = ("pretrained", "model_name", "model", "model_path")
_PARTS = re.compile(r"(\w+)=((?:\{[^{}]*\}|\[[^\[\]]*\]|[^,{}\[\]])*)")
MOST_PARTS = 64
FLAGS = {"--model": "model", "-M": "model", "--model_args": "args", "-a": "args", "--batch_size": "batch_size", "-b": "batch_size", "--max_batch_size": "max_batch_size"}  # fmt: skip
"""EleutherAI/lm-evaluation-harness 4e7e0d4 lm_eval/_cli/run.py:78-146."""


@dataclass(frozen=True, slots=True)
class EvaluatedModel:
    """An evaluation's program, engine and model, with what else the engine is given."""

    program: str
    engine: str
    model: str
    arguments: Mapping[str, Any]


def model_arguments(words: Sequence[str]) -> EvaluatedModel | None:
    """What an evaluation is told of its model, None where a command is no evaluation that is known."""
    for at, word in enumerate(words):
        base = word.rpartition("/")[2].replace("-", "_")
        module = at > 0 and words[at - 1] in ("-m", "--module")
        if base == HARNESS and (module or word.rpartition("/")[2] in ("lm_eval", "lm-eval")):
            return _of_harness(words[at + 1 :])
        if base == LIGHT and words[at + 1 : at + 2] and words[at + 1] in ENGINES_OF_LIGHT:
            return _of_light(words[at + 1 :])
    return None


def _of_harness(words: Sequence[str]) -> EvaluatedModel | None:
    said: dict[str, list[str]] = {}
    inside = ""
    for word in words:
        flag, equals, value = word.partition("=")
        if word.startswith("-") and not word[1:2].isdigit():
            inside = FLAGS.get(flag, "")
            said.setdefault(inside, [])
            said[inside] += [value] if equals else []
        else:
            said.setdefault(inside, []).append(word)
    engine = (said.get("model") or [PLAIN])[0]
    beside = {
        at: _argument_value(held[0]) for at in ("batch_size", "max_batch_size") if (held := said.get(at))
    }
    return _named(HARNESS, engine, {**beside, **_parts_of(said.get("args", ()))})


def _of_light(words: Sequence[str]) -> EvaluatedModel | None:
    texts = [word for word in words[1:] if re.match(rf"(?:{'|'.join(NAMES)})=", word)]
    return _named(LIGHT, PLAIN if words[0] == "accelerate" else words[0], _parts_of(texts[:1]))


def _named(program: str, engine: str, arguments: Mapping[str, Any]) -> EvaluatedModel | None:
    at = next((name for name in NAMES if isinstance(arguments.get(name), str)), None)
    if at is None:
        return None
    rest = {name: held for name, held in arguments.items() if name != at}
    return EvaluatedModel(program, engine, str(arguments[at]), rest)


def _parts_of(texts: Iterable[str]) -> dict[str, Any]:
    found = [part for text in texts for part in _PARTS.findall(text)[:MOST_PARTS]]
    return {name: _argument_value(value) for name, value in found}


def _argument_value(text: str) -> Any:
    """A value as these programs read it: a switch, a number, else a text."""
    switch = {"true": True, "false": False}.get(text.strip().lower())
    if switch is not None:
        return switch
    return int(text) if re.fullmatch(r"-?\d{1,12}", text) else text.strip("\"' ")
