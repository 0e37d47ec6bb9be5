"""Recipes of NVIDIA's srtctl for Slurm: an engine's flags by the work of its workers, who prefill, decode or
do both (NVIDIA/srt-slurm c88ef731 docs/config-reference.md, src/srtctl/backends/sglang.py, vllm.py,
trtllm.py: ``_config_to_cli_args``). A worker is a server of its own.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.named_server import NamedServer
from memsheet.exchange.shared.serve_pods import tree_of

ENGINES: Mapping[str, str] = {
    "sglang_config": "python -m sglang.launch_server --model-path",
    "vllm_config": "vllm serve",
    "trtllm_config": "trtllm-serve serve",
}
WORKS = ("prefill", "decode", "aggregated", "agg")
SERVED = ("served-model-name", "served_model_name")
ELSEWHERE = frozenset({*SERVED, "model-path", "model_path", "model"})
"""Keys that the program gives the server itself, each by the recipe's model."""
HUB = "hf:"
NAMES: Mapping[str, str] = {
    **dict.fromkeys(("dsr1", "dsr1-fp8", "dsfp8", "deepseek-r1", "deepseek-r1-fp8"), "deepseek-ai/DeepSeek-R1-0528"),
    **dict.fromkeys(("dsr1-fp4", "dsfp4", "deepseek-r1-fp4"), "nvidia/DeepSeek-R1-0528-FP4"),
    **dict.fromkeys(("dsv4-pro", "deepseek-v4-pro", "deepseekv4-fp4"), "deepseek-ai/DeepSeek-V4-Pro"),
    "dsv4-flash": "deepseek-ai/DeepSeek-V4-Flash",
}  # fmt: skip
"""What a cluster's own file of paths is to hold by those names (srtslurm.yaml.example,
docs/installation.md).
"""
FOUR_BITS = {"deepseek-ai/DeepSeek-R1-0528": "nvidia/DeepSeek-R1-0528-FP4"}


def recipe_workers(name: str, text: str, parse: Callable[[str, str], Any]) -> list[NamedServer]:
    """A worker of each kind that a recipe starts; none of texts of other kinds."""
    tree = tree_of(parse, name, text) if any(f"{key}:" in text for key in ENGINES) else None
    model, backend = (tree or {}).get("model"), (tree or {}).get("backend")
    if not isinstance(model, Mapping) or not isinstance(backend, Mapping) or "path" not in model:
        return []
    return list(_workers_of(model, backend))


def _workers_of(model: Mapping[str, Any], backend: Mapping[str, Any]) -> Iterator[NamedServer]:
    for key, start in ENGINES.items():
        groups = backend.get(key)
        for work in WORKS if isinstance(groups, Mapping) else ():
            held = groups.get(work) if isinstance(groups, Mapping) else None
            if isinstance(held, Mapping):
                told, sure = _model_told(model, held)
                flags = {str(at): value for at, value in held.items() if str(at) not in ELSEWHERE}
                given = (
                    f"--override-engine-args {shlex.quote(json.dumps(flags, default=str))}"
                    if key == "trtllm_config"
                    else " ".join(map(shlex.quote, _flag_words(flags)))
                )
                why = f"{model['path']} is a name of the cluster's own, and is taken for {told}"
                left = () if sure else (("model.path", why),)
                yield NamedServer(work, f"{start} {shlex.quote(told)} {given}", left_out=left)


def _model_told(model: Mapping[str, Any], held: Mapping[str, Any]) -> tuple[str, bool]:
    """The model by its name on the hub, and whether the recipe says just that: else what the cluster's name
    of a path, or the name that the server goes by, is taken for.
    """
    path = str(model["path"])
    if path.startswith(HUB):
        return path.removeprefix(HUB), True
    served = next((str(held[at]) for at in SERVED if "/" in str(held.get(at, ""))), "")
    name = NAMES.get(path.lower()) or served or path
    return (FOUR_BITS.get(name, name) if model.get("precision") == "fp4" else name), False


def _flag_words(flags: Mapping[str, Any]) -> Iterator[str]:
    """Flags as the program makes them: a switch that is off is none."""
    for at, value in sorted(flags.items()):
        flag = f"--{at.replace('_', '-')}"
        if isinstance(value, list):
            yield from (flag, *map(str, value))
        elif isinstance(value, Mapping):
            yield from (flag, json.dumps(value, default=str))
        elif value is True:
            yield flag
        elif value is not None and value is not False:
            yield from (flag, str(value))
