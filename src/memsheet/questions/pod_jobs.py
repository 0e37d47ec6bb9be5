"""Jobs in pods of Kubernetes: the scripts that their containers run, as files beside theirs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from memsheet.errors import InputError
from memsheet.guard import parse_yaml
from memsheet.late import late_functions

with late_functions(__name__):
    from memsheet.exchange.shared.dstack_tasks import dstack_script
    from memsheet.exchange.shared.pod_trainings import config_scripts, pod_training, starts_anything
    from memsheet.exchange.shared.serve_pods import config_maps, object_documents
    from memsheet.exchange.shared.shell_text import named_programs


YAML = (".yaml", ".yml")


def with_pod_commands(
    texts: Mapping[str, str], text_of: Callable[[str], str | None] = lambda _: None
) -> dict[str, str]:
    """Texts by their names, with the script of each pod's training behind its object's. ``text_of``: that of
    a shell script which a container starts, by its name, where it lies beside.
    """
    found: dict[str, str] = {}
    for name, text in texts.items():
        found[name] = text
        if (task := _dstack_script_of(name, text)) is not None:
            del found[name]
            found[command_name(name)] = task
        elif (script := _training_of(name, text, text_of)) is not None:
            found[command_name(name)] = script
    return found


def with_config_maps(texts: Mapping[str, str]) -> dict[str, str]:
    """Texts by their names, where a pod takes a ConfigMap of another file with that behind its own objects; a
    file of nothing but such is left out.
    """
    whole = {
        name: object_documents(text)
        for name, text in texts.items()
        if name.endswith(YAML) and "ConfigMap" in text and "apiVersion" in text
    }
    found, taken = dict(texts), set[str]()
    for home, documents in whole.items():
        for document in documents:
            named = config_maps([_parse_object(document, home)])
            takers = [
                name
                for name, text in texts.items()
                if name.endswith(YAML) and name != home and any(_takes_map(text, at) for at in named)
            ]
            for name in takers:
                found[name] = f"{found[name].rstrip()}\n---\n{document}"
            taken |= {document} if takers else set()
    return {name: text for name, text in found.items() if not taken.issuperset(whole.get(name, ("",)))}


def _takes_map(text: str, name: str) -> bool:
    """Whether an object's text names a ConfigMap: in its variables, or as a folder."""
    return "configMap" in text and re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", text) is not None


def pod_scripts(texts: Mapping[str, str]) -> dict[str, str]:
    """Python scripts that ConfigMaps among the texts hold, by their names."""
    found: dict[str, str] = {}
    for name, text in texts.items():
        if name.endswith(YAML) and "ConfigMap" in text and "apiVersion" in text:
            held = config_scripts(name, text, _parse_objects)
            found |= {at: script for at, script in held.items() if at.endswith(".py")}
    return found


def command_name(name: str) -> str:
    """How the script is called that an object's container runs."""
    return f"{name}: command"


def _training_of(name: str, text: str, text_of: Callable[[str], str | None]) -> str | None:
    return pod_training(name, text, _parse_objects, text_of) if name.endswith(YAML) else None


def _dstack_script_of(name: str, text: str) -> str | None:
    """What a configuration of dstack runs, where a training or a server is started there."""
    if not name.endswith(YAML) or "commands:" not in text or "apiVersion" in text or "type:" not in text:
        return None
    script = dstack_script(_parse_object(text, name))
    return named_programs(script) if script and starts_anything(script) else None


def _parse_object(text: str, name: str) -> Mapping[str, Any]:
    try:
        held = _parse_objects(text, name)
    except InputError:
        return {}
    return held if isinstance(held, Mapping) else {}


def _parse_objects(text: str, name: str) -> Any:
    """An object as kubectl has it, which takes anchors and aliases."""
    try:
        return parse_yaml(text, name)
    except InputError:
        return parse_yaml(text, name, aliases=True)
