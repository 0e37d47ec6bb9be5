"""Files that start servers without being a script themselves: each kind finds the servers in a text, as
commands that the engines' formats then read. A kind's room is loaded for texts that may be of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from memsheet.errors import InputError, input_error
from memsheet.exchange.shared.named_server import NamedServer, with_own_names
from memsheet.exchange.shared.script_places import NOTEBOOK
from memsheet.frozen import NamedTuple, replace
from memsheet.guard import ANCHORED, TWICE, parse_yaml
from memsheet.guard.budget import TooMuchError
from memsheet.late import late_functions

with late_functions(__name__):
    from memsheet.exchange.servers.batch_tasks import batch_servers, task_servers
    from memsheet.exchange.servers.chart_values import values_servers
    from memsheet.exchange.servers.command_templates import template_servers
    from memsheet.exchange.servers.command_texts import text_servers
    from memsheet.exchange.servers.disaggregated import disaggregated_servers
    from memsheet.exchange.servers.dynamo import graph_servers
    from memsheet.exchange.servers.engine_harnesses import harness_servers
    from memsheet.exchange.servers.image_files import image_servers
    from memsheet.exchange.servers.llama_swap import swapped_servers
    from memsheet.exchange.servers.model_service import model_service_servers
    from memsheet.exchange.servers.python_servers import python_servers
    from memsheet.exchange.servers.ray_serve import ray_servers
    from memsheet.exchange.servers.srt_recipes import recipe_workers
    from memsheet.exchange.servers.swift_commands import swift_servers
    from memsheet.exchange.servers.target_files import target_servers
    from memsheet.exchange.servers.vllm_recipes import recipe_servers
    from memsheet.exchange.servers.wrapped_servers import wrapped_servers
    from memsheet.exchange.shared.serve_charts import chart_servers
    from memsheet.exchange.shared.serve_compose import compose_servers
    from memsheet.exchange.shared.serve_pods import pod_servers

MOST_STARTED = 128
"""Servers of one file that are named."""
REPEATED = "a key that stands twice = the last of them, which PyYAML's loader takes"
Parse = Callable[[str, str], Any]


class Kind(NamedTuple):
    """``find``: the servers of a file by its name and text, none where it is of another kind. ``words`` and
    ``names``: of the text and of the file's name, in lower case, those of which each file of this kind has
    one at least; where there are none, any may be.
    """

    find: Callable[[str, str, Parse], list[NamedServer]]
    words: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


KINDS = (
    Kind(python_servers, names=(".py", NOTEBOOK)),
    Kind(swapped_servers, ("cmd",)),
    Kind(disaggregated_servers, ("context_servers:", "generation_servers:")),
    Kind(graph_servers, ("dynamographdeployment",)),
    Kind(ray_servers, ("model_loading_config", "model_id:")),
    Kind(recipe_servers, ("variants:",)),
    Kind(recipe_workers, ("sglang_config:", "vllm_config:", "trtllm_config:")),
    Kind(template_servers, ("defaults:",)),
    Kind(model_service_servers, ("modelartifacts",)),
    Kind(chart_servers, ("servingenginespec", "repository", "inferenceservice", "vllmruntime", "kubeai.org", "resourceprofile")),
    Kind(values_servers, ("image",), (".yaml", ".yml")),
    Kind(pod_servers, ("apiversion",)),
    Kind(compose_servers, ("services",)),
    Kind(image_servers, ("cmd", "entrypoint")),
    Kind(target_servers, names=("makefile", ".mk", "justfile", ".just", ".ps1")),
    Kind(task_servers, ("run:",)),
    Kind(batch_servers, ("#sbatch",)),
    Kind(wrapped_servers, (".sh",)),
    Kind(text_servers, ("vllm", "sglang", "llama-server", "text-generation", "trtllm-serve", "lmdeploy"), (".yaml", ".yml", ".json")),
    Kind(swift_servers, ("swift",)),
    Kind(harness_servers, ("bench", "lm_eval", "lm-eval", "lighteval")),
)  # fmt: skip
"""In the order in which a text is tried; one that is of no kind of theirs has none."""


def servers_in_text(name: str, text: str, parse: Parse) -> tuple[NamedServer, ...]:
    """The servers that a text starts, in their order; none where it is a script, or no such file. ``parse``:
    YAML, from text and the file's name. Raises InputError where a text asks for more than a configuration
    does.
    """
    low, low_name = text.lower(), name.lower()
    likely = (kind.find for kind in KINDS if _holds_any(low, kind.words) and _holds_any(low_name, kind.names))
    try:
        told: list[str] = []
        loads = partial(_load_as_tools_do, parse, told)
        found = next((held for find in likely if (held := find(name, text, loads))), [])
    except TooMuchError as error:
        raise input_error("file", name, str(error)) from None
    remarks = tuple(dict.fromkeys(told))
    own = [replace(one, remarks=(*one.remarks, *remarks)) for one in found] if remarks else found
    return with_own_names(own[:MOST_STARTED])


def _holds_any(text: str, words: tuple[str, ...]) -> bool:
    return not words or any(word in text for word in words)


def _load_as_tools_do(parse: Parse, told: list[str], text: str, name: str) -> Any:
    """What a YAML holds; of one with a key that stands twice, or with anchors, as most tools' loader has it,
    and ``told`` what is taken for granted then.
    """
    try:
        return parse(text, name)
    except InputError as error:
        said = " ".join(one.reason for one in error.problems)
        if TWICE in said:
            told.append(REPEATED)
            return parse_yaml(text, name, last_wins=True)
        if ANCHORED in said:
            return parse_yaml(text, name, aliases=True)
        raise
