"""Jobs in pods of Kubernetes: the scripts that their containers run, as files beside theirs, and the cards
that their nodes are chosen by.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from memsheet.catalog import find_gpus
from memsheet.errors import InputError
from memsheet.exchange.shared.file_format import Read
from memsheet.exchange.shared.pod_trainings import COMMAND, PodTraining, pod_training
from memsheet.guard import parse_yaml
from memsheet.questions.common_cards import cards_of_launch

YAML = (".yaml", ".yml")
VARIANT = re.compile(r"[-_](?:mega|nvlink)(?=[-_]|$)", re.IGNORECASE)
"""Words of labels for how cards are linked, which change nothing of their memory."""


def with_pod_commands(texts: Mapping[str, str]) -> dict[str, str]:
    """Texts by their names, with the script of each pod's training behind its object's."""
    found: dict[str, str] = {}
    for name, text in texts.items():
        found[name] = text
        if (training := _training_of(name, text)) is not None:
            found[command_name(name)] = training.script
    return found


def command_name(name: str) -> str:
    """How the script is called that an object's container runs."""
    return f"{name}: {COMMAND}"


def cards_of_pods(texts: Mapping[str, str], reads: Mapping[str, Read]) -> tuple[str, str] | None:
    """The cards that a pod's node must have, as many as the files start processes, and by what; None where
    none are named that anybody knows.
    """
    for name, text in texts.items():
        training = _training_of(name, text)
        if training is None or not training.card:
            continue
        try:
            count, device = find_gpus(VARIANT.sub("", training.card))
        except InputError:
            continue
        started = any(isinstance(read.request.get("@gpus"), int) for read in reads.values())
        held = device.name if started or count is None else f"{count}x{device.name}"
        return cards_of_launch(reads, held), f"{name}: {training.label} = {training.card}"
    return None


def _training_of(name: str, text: str) -> PodTraining | None:
    return pod_training(name, text, parse_yaml) if name.endswith(YAML) else None
