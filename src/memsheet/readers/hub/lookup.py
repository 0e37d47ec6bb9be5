"""A name of a hub → its model: what is in the local cache first, then the hub."""

from __future__ import annotations

from collections.abc import Callable

from memsheet.catalog.name_forms import AskedName
from memsheet.plan.model import ModelSpec
from memsheet.readers.hf_config import Config
from memsheet.readers.hub.contents import ADAPTER, CONFIG, PIPELINE, repository_contents
from memsheet.readers.hub.refusals import HubError
from memsheet.readers.hub.repository import find_cached, find_on_hub

BaseOf = Callable[[str], Config | ModelSpec]


def cached_model(text: str, asked: AskedName, base_of: BaseOf) -> Config | ModelSpec | None:
    """The model in the local cache; None where its files are not there, or not those that are meant."""
    cached = find_cached(text, asked.repo, asked.revision)
    if cached is None or not (
        cached.names & {CONFIG, ADAPTER, PIPELINE} or any(name.endswith(".gguf") for name in cached.names)
    ):
        return None
    try:
        return repository_contents(cached, asked, base_of)
    except HubError:  # a file of other types was downloaded, or a configuration without its weights
        return None


def model_on_hub(text: str, asked: AskedName, base_of: BaseOf) -> Config | ModelSpec:
    """The model as the hub has it now. Raises HubError where it does not give it."""
    return repository_contents(find_on_hub(text, asked.repo, asked.revision), asked, base_of)
