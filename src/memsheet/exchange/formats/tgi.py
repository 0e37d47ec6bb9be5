"""A ``text-generation-launcher`` command in a script, or a container of its image that takes the flags or
their variables. Flags of huggingface/text-generation-inference db931fcf, launcher/src/main.rs,
docs/source/reference/launcher.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared import serve_command as serving
from memsheet.exchange.shared import stand_in_server as beside
from memsheet.exchange.shared.file_format import Format, Key, Values, is_key
from memsheet.exchange.shared.serve_command import Command
from memsheet.exchange.shared.serve_script import IMAGES

VERSION = "text-generation-inference db931fcf"
ARGS = "launcher/src/main.rs, Args"
NAME = "text-generation-inference"
POOL = "server/text_generation_server/models/flash_causal_lm.py:1556, globals.py:32"
KEPT, KEPT_AT = 0.9, "TGI_WIGGLE_ROOM"
"""The share of the fraction up to which the cache fills the card, and the variable that says another."""
LONGEST = "--max-total-tokens"
"""Where nobody says it, as many as the cache holds, up to the model's own (flash_causal_lm.py:1555)."""
STORED = {
    "awq": "awq-int4", "gptq": "gptq-int4", "marlin": "gptq-int4", "eetq": "int8", "bitsandbytes": "int8", "bitsandbytes-nf4": "nf4", "bitsandbytes-fp4": "nf4",
    "fp8": "fp8",
}  # fmt: skip
OWN = frozenset({"compressed-tensors"})
"""Formats that are a checkpoint's own, of which no flag says more."""
VARIABLES = (
    "model-id", "revision", "sharded", "num-shard", "quantize", "dtype", "kv-cache-dtype", "max-concurrent-requests", "max-input-tokens", "max-input-length",
    "max-total-tokens", "max-batch-prefill-tokens", "max-batch-total-tokens", "max-batch-size", "cuda-graphs", "cuda-memory-fraction", "speculate",
    "lora-adapters",
)  # fmt: skip
HOW = Command(
    model="--model-id", package="tgi", image=IMAGES["tgi"], partition="", dashed=True, launches=(("text-generation-launcher",),), aliases={"-p": "--port"},
    switches=frozenset({
        "--json-output", "--otlp", "--ngrok", "--env", "--trust-remote-code", "--disable-custom-kernels", "--enable-prefill-logprobs",
        "--disable-grammar-support", "--disable-usage-stats", "--disable-crash-reports",
    }),
    words=frozenset({"--revision", "--cuda-graphs", "--hostname", "--lora-adapters", "--tokenizer-config-path"}),
    variables={KEPT_AT: KEPT_AT} | {name.upper().replace("-", "_"): f"--{name}" for name in VARIABLES},
)  # fmt: skip


def _parse_launcher(text: str) -> Mapping[str, Any]:
    """The launcher's flags, and those that the environment says in their place."""
    if "text-generation" not in text:
        return {}
    found = serving.as_typed(
        serving.parse_server_command(HOW, text, (key.at for key in KEYS)), lambda at: is_key(FORMAT, at)
    )
    return {LONGEST: -1, **found, beside.ACCOUNTING: NAME} if found else {}


def _read_shards(value: Any, _: Values) -> Mapping[str, Any]:
    return {"mesh.tp": value, **({"@gpus": value} if isinstance(value, int) and value > 0 else {})}


def _read_sharded(value: Any, values: Values) -> Mapping[str, Any]:
    """Off, it is one card; on, all of them, as where nobody says (find_num_shards)."""
    off = str(value).lower() == "false" and values.get("--num-shard") is None
    return {"mesh.tp": 1} if off else {}


def _read_quantization(value: Any, _: Values) -> Mapping[str, Any]:
    word = str(value)
    return {} if word in OWN else {"quantization.weights": STORED.get(word, word)}


def _read_graphs(value: Any, _: Values) -> Mapping[str, Any]:
    """Sizes of batches; nothing but a zero is none."""
    return {"serving.cuda_graphs": str(value).strip() not in ("0", "")}


def _read_fraction(value: Any, values: Values) -> Mapping[str, Any]:
    kept = values.get(KEPT_AT, KEPT)
    known = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (value, kept))
    return {"serving.memory_fraction": round(kept * value, 6) if known else value}


def _filled_share(text: str) -> tuple[str, ...]:
    """What is open in a text, and of what the cache fills a part."""
    left = serving.variable_default_remarks(text)
    return (
        left if KEPT_AT in text else (*left, f"the cache fills {KEPT} of --cuda-memory-fraction ({KEPT_AT})")
    )


def _launcher_row(at: str, says: str = "", **more: Any) -> Key:
    return Key(at=f"--{at}", says=says, **{"out": lambda _: None, "source": ARGS, **more})


KEYS = (
    beside.stand_in_row(),
    _launcher_row("model-id", "@model", back=lambda v, _: {"@model": str(v)}),
    _launcher_row("num-shard", "mesh.tp", back=_read_shards),
    _launcher_row("sharded", back=_read_sharded),
    _launcher_row("quantize", back=_read_quantization, holds=("awq", "gptq", "marlin", "fp8", *OWN), instead="what vLLM brings into such a format as it loads"),
    _launcher_row("dtype", back=serving.dtype_back),
    _launcher_row("kv-cache-dtype", back=serving.cache_back(("fp8_e4m3fn",))),
    _launcher_row("max-total-tokens", "serving.max_model_len", decides=(-1,)),
    _launcher_row("max-batch-prefill-tokens", "serving.max_batched_tokens", usual=4096, source="launcher/src/main.rs:2114-2150: what is left where a card's own is unknown"),
    _launcher_row("max-concurrent-requests", "serving.max_sequences", usual=128),
    _launcher_row("max-batch-size", "serving.max_sequences"),
    _launcher_row("cuda-graphs", back=_read_graphs),
    _launcher_row("cuda-memory-fraction", back=_read_fraction, usual=1.0, source=POOL),
)  # fmt: skip
_KNOWN = """
revision validation-workers trust-remote-code max-best-of max-stop-sequences max-top-n-tokens max-input-tokens max-input-length waiting-served-ratio
max-batch-total-tokens max-waiting-tokens hostname port prometheus-port shard-uds-path master-addr master-port huggingface-hub-cache
weights-cache-override disable-custom-kernels json-output otlp-endpoint otlp-service-name cors-allow-origin api-key watermark-gamma watermark-delta
ngrok ngrok-authtoken ngrok-edge tokenizer-config-path disable-grammar-support env max-client-batch-size usage-stats payload-limit
enable-prefill-logprobs graceful-termination-timeout disable-usage-stats disable-crash-reports
"""
"""Of the router and its logs, of who is served first, of files: no byte of a GPU."""

FORMAT: Format = Format(
    name="tgi", file="tgi.sh", kind="shell", tested=VERSION, engines=(), keys=KEYS, marks=frozenset({"--model-id"}), known=frozenset({"version", KEPT_AT, *(f"--{name}" for name in _KNOWN.split())}),
    unmodelled={**serving.OPEN_PLACES, "--speculate": (0,), "--lora-adapters": (), "--rope-scaling": (), "--rope-factor": ()},
    taken=_filled_share, strict=("",), opens=serving.is_open_flag, said={"task": "infer", "engine": "vllm"}, parse=_parse_launcher,
)  # fmt: skip
