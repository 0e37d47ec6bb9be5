"""Servers of TensorRT-LLM's disaggregated serving: contexts on some, generation on others, each with its own
options (NVIDIA/TensorRT-LLM 00209af1 llmapi/disagg_utils.py, extract_disagg_cfg: what stands above holds for
both).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from memsheet.exchange.shared.named_server import NamedServer
from memsheet.exchange.shared.serve_pods import tree_of

KINDS = ("context_servers", "generation_servers")
OF_THE_PROXY = frozenset({"hostname", "port", "model", "num_instances", "urls", "router", *KINDS})


def disaggregated_servers(name: str, text: str, parse: Callable[[str, str], Any]) -> list[NamedServer]:
    """The servers of each kind; none where the text is no such configuration."""
    tree = tree_of(parse, name, text) if any(f"{kind}:" in text for kind in KINDS) else None
    model = tree.get("model") if tree else None
    if tree is None or not isinstance(model, str):
        return []
    shared = _engine_options(tree)
    held = {kind: tree[kind] for kind in KINDS if isinstance(tree.get(kind), Mapping)}
    return [
        NamedServer(kind, _server_line(str(one.get("model") or model), {**shared, **_engine_options(one)}))
        for kind, one in held.items()
    ]


def _engine_options(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {str(at): value for at, value in tree.items() if at not in OF_THE_PROXY}


def _server_line(model: str, options: Mapping[str, Any]) -> str:
    told = shlex.quote(json.dumps(options, default=str))
    return f"trtllm-serve serve {shlex.quote(model)} --override-engine-args {told}"
