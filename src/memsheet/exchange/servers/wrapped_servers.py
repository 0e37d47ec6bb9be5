"""Servers that a shell starts by a script of somebody's own, which is not there and hands on the flags that
it is given (``apptainer exec vllm.sif /plugins/vllm_entrypoint.sh --model … --tensor-parallel-size 8``).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from memsheet.exchange.servers.batch_tasks import batch_servers
from memsheet.exchange.shared.named_server import NamedServer
from memsheet.exchange.shared.serve_pods import starts_a_server
from memsheet.frozen import replace
from memsheet.guard.budget import is_long_script
from memsheet.patterns import late_pattern

OTHERS = (".py", ".ipynb", ".json", ".yaml", ".yml", ".toml")
ENGINES = {
    "vllm": "python3 -m vllm.entrypoints.openai.api_server",
    "sglang": "python3 -m sglang.launch_server",
}
_STARTED = late_pattern(
    r"(?P<before>(?:^|[\s\"']))(?P<script>[\w./-]{0,200}?(?P<engine>vllm|sglang)[\w.-]{0,64}\.sh)\"?"
    r"(?=(?:[ \t]|\\\n)+--?\w)(?=(?:[^\n;|\\]|\\\n|\\.){0,4096}?--model(?:-path)?[ =])",
    re.MULTILINE,
)
SEVERAL = late_pattern(r"--(?:tensor-parallel-size|tp|max-model-len|context-length|served-model-name|gpu-memory-utilization|mem-fraction-static)\b")  # fmt: skip
"""Flags of servers, of which a script that hands its own on is given one at least beside the model."""


def wrapped_servers(name: str, text: str, parse: Callable[[str, str], Any]) -> list[NamedServer]:
    """The server of the first such script; none of a text that starts a server by itself."""
    found = None if name.endswith(OTHERS) or is_long_script(text) else _STARTED.search(text)
    line = text[found.start() :].lstrip().replace("\\\n", " ").partition("\n")[0] if found else ""
    if found is None or not SEVERAL.search(line) or starts_a_server(text):
        return []
    own = found["script"].rpartition("/")[2]
    started = f"{text[: found.start()]}{found['before']}{ENGINES[found['engine']]}{text[found.end() :]}"
    left = (own, "hands its flags on, and what it does besides is not known")
    batch = batch_servers(name, started, parse) or [NamedServer(own, started, together=True)]
    return [replace(one, left_out=(*one.left_out, left)) for one in batch]
