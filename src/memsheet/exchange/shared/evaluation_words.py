"""How evaluations are told their model: arguments in one text (``pretrained=a,dtype=auto``), after the name
of the engine that runs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from memsheet.frozen import dataclass
from memsheet.late import late_functions
from memsheet.patterns import late_pattern

with late_functions(__name__):
    from memsheet.exchange.shared.flag_words import flags_of


HARNESS, LIGHT = "lm_eval", "lighteval"
ENGINES_OF_LIGHT = ("vllm", "sglang", "accelerate")
PLAIN = "hf"
NAMES = ("pretrained", "model_name", "model", "model_path")
_PARTS = late_pattern(r"(\w+)=((?:\{[^{}]*\}|\[[^\[\]]*\]|[^,{}\[\]])*)")
MOST_PARTS = 64
FLAGS = {"--model": "model", "-M": "model", "--model_args": "args", "-a": "args", "--batch_size": "batch_size", "-b": "batch_size", "--max_batch_size": "max_batch_size"}  # fmt: skip
"""EleutherAI/lm-evaluation-harness 4e7e0d4 lm_eval/_cli/run.py:78-146."""

SWIFT, GENERATES, OWN_BACKENDS = "swift", ("infer", "deploy", "app"), ("transformers", "pt")
OF_SWIFT = {"max_batch_size": "batch_size", "torch_dtype": "dtype", "attn_impl": "attn_implementation", "max_new_tokens": "max_new_tokens"}  # fmt: skip
"""Flags of ms-swift's generation by transformers, which is what it runs where no backend is said and takes
one sequence at once (modelscope/ms-swift 3602360 swift/arguments/infer_args.py:152-158).
"""
FLASH = "attn_implementation"
UNREAD_OF_SWIFT = ("adapters", "device_map", "quant_bits", "quant_method")
"""Flags with bytes of which nothing is read: with one of them the command is none that is known."""
SEEN, RANKS = "CUDA_VISIBLE_DEVICES=", "NPROC_PER_NODE="


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
        if word.rpartition("/")[2] == SWIFT and words[at + 1 : at + 2] and words[at + 1] in GENERATES:
            return _of_swift(words[at + 2 :], words[:at])
        base = word.rpartition("/")[2].replace("-", "_")
        module = at > 0 and words[at - 1] in ("-m", "--module")
        if base == HARNESS and (module or word.rpartition("/")[2] in ("lm_eval", "lm-eval")):
            return _of_harness(words[at + 1 :])
        if base == LIGHT and words[at + 1 : at + 2] and words[at + 1] in ENGINES_OF_LIGHT:
            return _of_light(words[at + 1 :])
    return None


def _of_swift(words: Sequence[str], before: Sequence[str]) -> EvaluatedModel | None:
    """ms-swift's own generation, of one process a card: with more cards than processes it spreads layers over
    them (swift/model/utils.py, get_default_device_map), which is left unread.
    """
    given = flags_of(list(words))[0]
    seen = next((word for word in reversed(before) if word.startswith(SEEN)), "").removeprefix(SEEN)
    ranks = next((word for word in reversed(before) if word.startswith(RANKS)), "").removeprefix(RANKS)
    spread = not seen or seen.count(",") + 1 > (int(ranks) if ranks.isdecimal() else 1)
    backend = given.get("infer_backend", "transformers")
    model = given.get("model")
    unread = any(given.get(at) for at in UNREAD_OF_SWIFT)
    if backend not in OWN_BACKENDS or spread or unread or not isinstance(model, str):
        return None
    said = {own: given[at] for at, own in OF_SWIFT.items() if at in given}
    said |= {FLASH: "flash_attention_2"} if str(said.get(FLASH, "")).startswith("flash") else {}
    return EvaluatedModel("swift/cli/infer", PLAIN, model, said)


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
