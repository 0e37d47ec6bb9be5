"""Files that start servers without being a script themselves: each kind finds the servers in a text, as
commands that the engines' formats then read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memsheet.errors import input_error
from memsheet.exchange.servers.batch_tasks import batch_servers, task_servers
from memsheet.exchange.servers.chart_values import values_servers
from memsheet.exchange.servers.command_templates import template_servers
from memsheet.exchange.servers.disaggregated import disaggregated_servers
from memsheet.exchange.servers.dynamo import graph_servers
from memsheet.exchange.servers.engine_harnesses import harness_servers
from memsheet.exchange.servers.image_files import image_servers
from memsheet.exchange.servers.llama_swap import swapped_servers
from memsheet.exchange.servers.model_service import model_service_servers
from memsheet.exchange.servers.python_servers import python_servers
from memsheet.exchange.servers.ray_serve import ray_servers
from memsheet.exchange.servers.swift_commands import swift_servers
from memsheet.exchange.servers.target_files import target_servers
from memsheet.exchange.servers.vllm_recipes import recipe_servers
from memsheet.exchange.shared.named_server import NamedServer, with_own_names
from memsheet.exchange.shared.serve_charts import chart_servers
from memsheet.exchange.shared.serve_compose import compose_servers
from memsheet.exchange.shared.serve_pods import pod_servers
from memsheet.guard.budget import TooMuchError

MOST_STARTED = 128
"""Servers of one file that are named."""
Parse = Callable[[str, str], Any]
KINDS: tuple[Callable[[str, str, Parse], list[NamedServer]], ...] = (
    python_servers, swapped_servers, disaggregated_servers, graph_servers, ray_servers, recipe_servers, template_servers, model_service_servers, chart_servers, values_servers, pod_servers, compose_servers, image_servers, target_servers, task_servers, batch_servers, swift_servers, harness_servers,
)  # fmt: skip
"""In the order in which a text is tried; one that is of no kind of theirs has none."""


def servers_in_text(name: str, text: str, parse: Parse) -> tuple[NamedServer, ...]:
    """The servers that a text starts, in their order; none where it is a script, or no such file. ``parse``:
    YAML, from text and the file's name. Raises InputError where a text asks for more than a configuration
    does.
    """
    try:
        found = next((held for kind in KINDS if (held := kind(name, text, parse))), [])
    except TooMuchError as error:
        raise input_error("file", name, str(error)) from None
    return with_own_names(found[:MOST_STARTED])
