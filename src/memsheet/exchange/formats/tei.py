"""A ``text-embeddings-router`` command in a script, or a container of its image that takes the flags or their
variables. Flags of huggingface/text-embeddings-inference v1.8 router/src/main.rs,
docs/source/en/cli_arguments.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared import serve_command as serving
from memsheet.exchange.shared import stand_in_server as beside
from memsheet.exchange.shared.file_format import Format, Key, is_key
from memsheet.exchange.shared.serve_command import Command
from memsheet.exchange.shared.serve_script import IMAGES

VERSION = "text-embeddings-inference 1.8"
NAME = "text-embeddings-inference"
ARGS = "router/src/main.rs, Args"
VARIABLES = (
    "model-id",
    "revision",
    "dtype",
    "pooling",
    "max-concurrent-requests",
    "max-batch-tokens",
    "max-batch-requests",
)
HOW = Command(
    model="--model-id", package="tei", image=IMAGES["tei"], partition="", dashed=True, launches=(("text-embeddings-router",),), aliases={"-p": "--port"},
    switches=frozenset({"--auto-truncate", "--json-output", "--disable-spans"}), words=frozenset({"--revision", "--hostname"}),
    variables={name.upper().replace("-", "_"): f"--{name}" for name in VARIABLES},
)  # fmt: skip


def _parse_router(text: str) -> Mapping[str, Any]:
    """The router's flags, and those that the environment says in their place."""
    if "text-embeddings" not in text:
        return {}
    found = serving.as_typed(
        serving.parse_server_command(HOW, text, (key.at for key in KEYS)), lambda at: is_key(FORMAT, at)
    )
    return {**found, beside.ACCOUNTING: NAME, beside.WHOLE_TEXTS: True} if found else {}


def _router_row(at: str, says: str = "", **more: Any) -> Key:
    return Key(at=f"--{at}", says=says, **{"out": lambda _: None, "source": ARGS, **more})


KEYS = (
    beside.stand_in_row(),
    _router_row("model-id", "@model", back=lambda v, _: {"@model": str(v)}),
    _router_row(
        "dtype", back=serving.dtype_back, usual="float16", source="router/src/lib.rs, get_dtype: on GPUs"
    ),
    _router_row("max-batch-tokens", "serving.max_batched_tokens", usual=16384),
    _router_row("max-batch-requests", "serving.max_sequences"),
)
_KNOWN = """
revision tokenization-workers pooling served-model-name max-concurrent-requests max-client-batch-size auto-truncate default-prompt-name default-prompt
dense-path hf-token hf-api-token hostname port uds-path huggingface-hub-cache payload-limit api-key json-output disable-spans otlp-endpoint
otlp-service-name prometheus-port cors-allow-origin
"""
"""Of the router and its logs, of who is served first: no byte of a GPU."""

FORMAT: Format = Format(
    name="tei", file="tei.sh", kind="shell", tested=VERSION, engines=(), keys=KEYS, marks=frozenset({"--model-id"}), needs={beside.ACCOUNTING: NAME},
    known=frozenset({"version", beside.WHOLE_TEXTS, *(f"--{name}" for name in _KNOWN.split())}), unmodelled={**serving.OPEN_PLACES}, taken=serving.variable_default_remarks, strict=("",), opens=serving.is_open_flag,
    said={"task": "infer", "engine": "vllm", "mesh.tp": 1, "mesh.pp": 1, "serving.cuda_graphs": False},  # backends/candle records none
    parse=_parse_router,
)  # fmt: skip
