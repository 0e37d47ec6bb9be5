"""A plan as a ``trtllm-serve`` command, with the options of the LLM API that have no flag in a file that the
script writes itself. Flags of NVIDIA/TensorRT-LLM 00209af1 commands/serve.py, keys of llmapi/llm_args.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memsheet.errors import Problem
from memsheet.exchange.shared.dotted_places import nest_dotted_keys
from memsheet.exchange.shared.file_format import Values
from memsheet.exchange.shared.serve_command import dtype_out, one_node, unservable_problems
from memsheet.exchange.shared.stand_in_server import ACCOUNTING

OPTIONS_FILE, END = "trtllm.yaml", "OPTIONS"
FLAGS = {
    "tensor_parallel_size": "--tp_size", "pipeline_parallel_size": "--pp_size", "moe_expert_parallel_size": "--ep_size", "max_batch_size": "--max_batch_size",
    "max_num_tokens": "--max_num_tokens", "max_seq_len": "--max_seq_len",
}  # fmt: skip
"""Keys that the command has flags for and that no object of the file stands over."""
CACHE_DTYPES = ("fp8", "nvfp4")
"""Of a cache that is not in the weights' own dtype (_torch/pyexecutor/model_loader.py)."""
GRAPHS_OFF = "none"
DRAFT = "speculative_config"
METHOD_WORDS = {"mtp": "MTP", "eagle3": "Eagle", "ngram": "NGram", "draft": "Draft_Target"}
BESIDE = frozenset({"serving.kv_dtype", "serving.cuda_graphs", "layers_per_stage"})
"""What is not said where it is the server's own: a cache like the weights, graphs, stages of equal size."""
NOTES = (
    "the sheet is of vLLM's accounting: weights and cache are the same bytes, the rest is the other's",
    "free_gpu_memory_fraction is of what weights leave, so that the cache gets a little more than planned",
)
Out = Callable[[Values], Any]


def _above_one(key: str) -> Out:
    return lambda asked: asked.get(key) if asked.get(key, 1) > 1 else None


def _grouped_attention(asked: Values) -> bool | None:
    """Attention by requests, in as many groups as there are ranks of tensor parallelism."""
    groups = asked.get("mesh.attn_dp", 1)
    return True if groups > 1 and groups == asked.get("mesh.tp", 1) else None


def _cache_dtype(asked: Values) -> Any:
    dtype = asked.get("serving.kv_dtype")
    return dtype if dtype in CACHE_DTYPES else None


def _draft_length(*methods: str) -> Out:
    return lambda asked: (
        asked.get("speculative.tokens") if asked.get("speculative.method") in methods else None
    )


def _draft_model(asked: Values) -> Any:
    return asked.get("speculative.model") if asked.get("speculative.method") in ("eagle3", "draft") else None


WRITTEN: Mapping[str, Out] = {
    "model": lambda asked: asked["@model"], "tensor_parallel_size": lambda asked: asked.get("mesh.tp", 1), "pipeline_parallel_size": _above_one("mesh.pp"),
    "moe_expert_parallel_size": _above_one("mesh.ep"), "enable_attention_dp": _grouped_attention, "dtype": dtype_out,
    "max_batch_size": lambda asked: asked.get("serving.max_sequences"), "max_num_tokens": lambda asked: asked.get("serving.max_batched_tokens"),
    "max_seq_len": lambda asked: asked.get("serving.max_model_len"), "kv_cache_config.free_gpu_memory_fraction": lambda asked: asked.get("serving.memory_fraction"),
    "kv_cache_config.dtype": _cache_dtype, "kv_cache_config.tokens_per_block": lambda asked: asked.get("serving.page_tokens"),
    "cuda_graph_config": lambda asked: GRAPHS_OFF if asked.get("serving.cuda_graphs") is False else None,
    f"{DRAFT}.decoding_type": lambda asked: METHOD_WORDS.get(str(asked.get("speculative.method"))),
    f"{DRAFT}.max_draft_len": _draft_length("eagle3", "ngram", "draft"), f"{DRAFT}.num_nextn_predict_layers": _draft_length("mtp"),
    f"{DRAFT}.speculative_model": _draft_model,
}  # fmt: skip
"""By place of the values that are read, what is written there."""


def required_server_values(_: Values) -> Mapping[str, Any]:
    return {ACCOUNTING: "TensorRT-LLM"}


def trtllm_plan_problems(asked: Values) -> Iterator[Problem]:
    yield from unservable_problems(asked)
    yield from one_node(asked)
    cache, own = asked.get("serving.kv_dtype"), asked.get("precision.compute")
    if cache not in (None, own, *CACHE_DTYPES):
        reason = f"is no cache of TensorRT-LLM's beside weights computed in {own}"
        yield Problem(field="serving.kv_dtype", value=cache, reason=reason, hint=", ".join((str(own), *CACHE_DTYPES)))  # fmt: skip
    stages = asked.get("layers_per_stage") or ()
    if len({*stages}) > 1:
        reason = "are not of equal size, as TensorRT-LLM's stages are"
        yield Problem(field="layers_per_stage", value=stages, reason=reason, hint="stages of equal size")


def _options_text(values: Values) -> str:
    """Keys of the file, whose graphs are off where they are null."""
    import yaml

    held = {at: value for at, value in values.items() if at not in (*FLAGS, "model", ACCOUNTING)}
    held |= {"cuda_graph_config": None} if held.get("cuda_graph_config") == GRAPHS_OFF else {}
    return str(yaml.safe_dump(nest_dotted_keys(held), sort_keys=False, allow_unicode=False))


def compose_trtllm_script(values: Values, _: Values) -> str:
    """A quoted text for the file, in which the shell replaces nothing, and the command: every value is
    quoted.
    """
    flags = [f"{flag} {shlex.quote(str(values[at]))}" for at, flag in FLAGS.items() if at in values]
    command = f"exec trtllm-serve serve {shlex.quote(str(values['model']))}"
    lines = " \\\n  ".join([command, *flags, f"--extra_llm_api_options {OPTIONS_FILE}", '"$@"'])
    written = f"cat > {OPTIONS_FILE} <<'{END}'\n{_options_text(values)}{END}"
    return f"#!/usr/bin/env bash\nset -euo pipefail\n{written}\n{lines}\n"
