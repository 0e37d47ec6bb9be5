"""An ``lmdeploy serve api_server`` command in a script or behind its image. Flags of InternLM/lmdeploy
v0.10.1 lmdeploy/cli/serve.py (add_parser_api_server), lmdeploy/cli/utils.py (ArgumentHelper),
lmdeploy/messages.py (TurbomindEngineConfig, PytorchEngineConfig).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared import serve_command as serving
from memsheet.exchange.shared import stand_in_server as beside
from memsheet.exchange.shared.file_format import Format, Key, Values, is_key
from memsheet.exchange.shared.serve_command import Command
from memsheet.exchange.shared.serve_script import IMAGES

VERSION = "LMDeploy 0.10.1"
NAME = "LMDeploy"
ARGS = "cli/utils.py, ArgumentHelper"
SHARE, POLICY = "--cache-max-entry-count", "--quant-policy"
STORED = {"awq": "awq-int4", "gptq": "gptq-int4", "fp8": "fp8", "mxfp4": "mxfp4"}
OWN = frozenset({"hf"})
"""Formats that are a checkpoint's own, of which no flag says more."""
HOW = Command(
    model="model_path", package="lmdeploy", image=IMAGES["lmdeploy"], partition="", dashed=True,
    launches=(("lmdeploy", "serve", "api_server"), ("lmdeploy", "chat")), aliases={},
    switches=frozenset({
        "--allow-credentials", "--ssl", "--eager-mode", "--enable-prefix-caching", "--enable-microbatch", "--enable-eplb", "--disable-fastapi-docs",
        "--allow-terminate-by-client", "--enable-metrics", "--disable-metrics", "--enable-abort-handling", "--async", "--disable-vision-encoder",
        "--trust-remote-code",
    }),
    words=frozenset({"--revision", "--model-name", "--server-name"}), lists=frozenset({"--adapters", "--api-keys", "--allow-origins", "--allow-methods", "--allow-headers"}),
)  # fmt: skip


def _parse_lmdeploy_command(text: str) -> Mapping[str, Any]:
    """The command's flags, with the share of what is free at the place that servers' shares stand at."""
    if "lmdeploy" not in text:
        return {}
    found = serving.as_typed(
        serving.parse_server_command(HOW, text, (key.at for key in KEYS)), lambda at: is_key(FORMAT, at)
    )
    if not found:
        return {}
    share = found.get(SHARE, USUAL_SHARE)
    if isinstance(share, float) and 0 < share < 1:
        found.pop(SHARE, None)
        found[beside.FREE_SHARE] = share
    policy = {at: str(found[at]) for at in (POLICY,) if at in found}  # a word: its number says no size
    return {**found, **policy, beside.ACCOUNTING: NAME}


USUAL_SHARE = 0.8
"""Of what is free beside the weights (messages.py, cache_max_entry_count)."""


def _read_ranks(value: Any, _: Values) -> Mapping[str, Any]:
    return {"mesh.tp": value, **({"@gpus": value} if isinstance(value, int) and value > 1 else {})}


def _read_format(value: Any, _: Values) -> Mapping[str, Any]:
    word = str(value)
    return {} if word in OWN else {"quantization.weights": STORED.get(word, word)}


def _read_policy(value: Any, _: Values) -> Mapping[str, Any]:
    """Bits of the cache; four are taken for eight, which are no less."""
    return {"serving.kv_dtype": "fp8"} if value in ("4", "8") else {}


def _server_row(at: str, says: str = "", **more: Any) -> Key:
    return Key(at=f"--{at}", says=says, **{"out": lambda _: None, "source": ARGS, **more})


KEYS = (
    beside.stand_in_row(),
    Key(at="model_path", says="@model", out=lambda _: None, back=lambda v, _: {"@model": str(v)}, source=ARGS),
    _server_row("tp", "mesh.tp", back=_read_ranks, usual=1),
    _server_row("dtype", back=serving.dtype_back),
    _server_row("session-len", "serving.max_model_len"),
    _server_row("max-batch-size", "serving.max_sequences", usual=128, source="utils.py, get_max_batch_size: of most cards; 384 of an A100, 1,024 of an H100"),
    _server_row("max-prefill-token-num", "serving.max_batched_tokens", usual=8192, source="messages.py, max_prefill_token_num"),
    _server_row("cache-block-seq-len", "serving.page_tokens", usual=64),
    Key(at=beside.FREE_SHARE, out=lambda _: None, back=beside.cache_share, source="messages.py, cache_max_entry_count"),
    _server_row("quant-policy", back=_read_policy, holds=("0",), instead="a cache of eight bits without its scales, of which four have room for nearly twice the tokens"),
    _server_row("model-format", back=_read_format, holds=(*STORED, *OWN)),
    _server_row("eager-mode", back=lambda v, _: {"serving.cuda_graphs": False} if v is True else {}),
)  # fmt: skip
_KNOWN = """
server-name server-port allow-origins allow-credentials allow-methods allow-headers proxy-url max-concurrent-requests backend log-level api-keys ssl
model-name max-log-len disable-fastapi-docs allow-terminate-by-client chat-template tool-call-parser reasoning-parser revision download-dir device
enable-prefix-caching role migration-backend node-rank num-tokens-per-iter max-prefill-iters communicator enable-metrics disable-metrics
enable-abort-handling async trust-remote-code meta-instruction cap hf-overrides logprobs-mode
"""
"""Of the server and its logs, of names, of who is served first: no byte of a GPU."""

FORMAT: Format = Format(
    name="lmdeploy", file="lmdeploy.sh", kind="shell", tested=VERSION, engines=(), keys=KEYS, marks=frozenset({"model_path"}), needs={beside.ACCOUNTING: NAME},
    known=frozenset({"version", *(f"--{name}" for name in _KNOWN.split())}),
    unmodelled={
        **serving.OPEN_PLACES, SHARE: (), "--dp": (1,), "--ep": (1,), "--cp": (1,), "--nnodes": (1,), "--adapters": (), "--enable-eplb": (False,), "--enable-microbatch": (False,),
        "--rope-scaling-factor": (0, 0.0), "--vision-max-batch-size": (1,), "--disable-vision-encoder": (False,), "--dllm-block-length": (),
        "--speculative-algorithm": (), "--speculative-draft-model": (), "--speculative-num-draft-tokens": (),
    },
    taken=serving.variable_default_remarks, strict=("",), opens=serving.is_open_flag, said={"task": "infer", "engine": "vllm"}, parse=_parse_lmdeploy_command,
)  # fmt: skip
