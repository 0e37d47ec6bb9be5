"""litgpt's configuration, whichever way it is given: a YAML with the arguments of one of its programs, or a
shell's command with them as flags (``litgpt finetune_lora CHECKPOINT --train.micro_batch_size 4``).

Rules of the flags are jsonargparse's as Lightning-AI/litgpt 2685705 litgpt/utils.py, CLI, sets it up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memsheet.exchange.formats.litgpt.programs import METHOD, METHODS, PRETRAIN
from memsheet.exchange.shared.launched_script import filled_commands
from memsheet.guard import parse_yaml
from memsheet.late import late_functions

with late_functions(__name__):
    from memsheet.exchange.shared.flag_words import flags_of


CONFIG = "$.config"
TRAINED = frozenset(
    [
        "save_interval",
        "log_interval",
        "global_batch_size",
        "micro_batch_size",
        "lr_warmup_steps",
        "lr_warmup_fraction",
        "epochs",
        "max_tokens",
        "max_steps",
        "max_time",
        "max_seq_length",
        "tie_embeddings",
        "max_norm",
        "min_lr",
    ]
)
"""Arguments of training (litgpt/args.py:9-41)."""
SURE = {"micro_batch_size", "global_batch_size", "max_seq_length"}
WORDS_BEFORE = 12
REDIRECTED = (">", "<", "2>", "&>", "1>", "|")


def parse_litgpt_text(text: str) -> Mapping[str, Any]:
    """Values of the first training command of litgpt that a text starts, else of a YAML with its arguments;
    nothing where there is neither. Raises ValueError for text that is neither.
    """
    if "litgpt " in text and (found := _command_values(text)):
        return found
    if "train:" not in text and '"train"' not in text:
        return {}
    tree = parse_yaml(text, "file")
    return tree if isinstance(tree, Mapping) and _has_litgpt_arguments(tree) else {}


def _has_litgpt_arguments(tree: Mapping[str, Any]) -> bool:
    """Whether a tree names a model as litgpt does, and trains with its arguments and no other's."""
    train = tree.get("train")
    if not isinstance(train, Mapping) or not isinstance(
        tree.get("checkpoint_dir", tree.get("model_name")), str
    ):
        return False
    names = {str(name) for name in train}
    return bool(names & SURE) and len(names - TRAINED) <= 1


def _command_values(text: str) -> dict[str, Any]:
    for words in filled_commands(text):
        found = _method_and_arguments(words)
        if found is not None:
            method, rest = found
            flags, left = flags_of(list(_until_output(rest)))
            model = {"model_name" if method == PRETRAIN else "checkpoint_dir": left[0]} if left else {}
            config = {CONFIG: flags.pop("config")} if "config" in flags else {}
            return {METHOD: method, **config, **model, **flags}
    return {}


def _method_and_arguments(words: Sequence[str]) -> tuple[str, Sequence[str]] | None:
    """The program that a command starts and what it is given; older releases wrote it as two words."""
    for at, word in enumerate(words[:WORDS_BEFORE]):
        if word.rpartition("/")[2] != "litgpt":
            continue
        name, method = words[at + 1 : at + 2], "_".join(words[at + 1 : at + 3])
        if method in METHODS and method not in name:
            return METHODS[method], words[at + 3 :]
        if name and name[0] in METHODS:
            return METHODS[name[0]], words[at + 2 :]
    return None


def _until_output(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        if word.startswith(REDIRECTED):
            return
        yield word
