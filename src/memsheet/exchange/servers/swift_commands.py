"""Engines that ms-swift starts: ``swift infer``, ``deploy``, ``rollout`` and kin with a backend of their own,
whose flags stand behind that backend's name (modelscope/ms-swift 3602360 swift/arguments/infer_args.py,
swift/rlhf_trainers/args_mixin.py).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from memsheet.exchange.shared.named_server import NamedServer
from memsheet.exchange.shared.shell_text import ShellScript
from memsheet.late import late_functions

with late_functions(__name__):
    from memsheet.exchange.shared.flag_words import flags_of


METHODS = ("infer", "deploy", "app", "eval", "sample", "rollout")
VLLM, SGLANG = "vllm", "sglang"
STARTS = {VLLM: "vllm serve", SGLANG: "python -m sglang.launch_server --model-path"}
OWN_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    VLLM: {"gpu_memory_utilization": 0.9, "max_num_seqs": 256, "disable_custom_all_reduce": True},
    SGLANG: {"disable_custom_all_reduce": True},
}
"""Of ms-swift where they are not the engine's (args_mixin.py:37-56, infer_args.py: SglangArguments)."""
ITS_OWN = frozenset({"mode", "server_host", "server_port", "server_timeout", "server_pass_dataset", "use_async_engine", "engine_kwargs"})  # fmt: skip
"""Flags behind a backend's name that the engine does not have."""
SHARED = {"torch_dtype": "dtype", "max_model_len": "max_model_len"}
SEEN = "CUDA_VISIBLE_DEVICES="


def swift_servers(name: str, text: str, parse: Callable[[str, str], Any]) -> list[NamedServer]:
    """The engines that a shell's commands start through ms-swift; none of other texts."""
    del parse
    if name.endswith((".py", ".yaml", ".yml", ".json")) or "swift" not in text:
        return []
    try:
        return list(_started_engines(text))
    except ValueError:
        return []


def _started_engines(text: str) -> Iterator[NamedServer]:
    for words in ShellScript(text).commands():
        found = _method_and_flags(words)
        if found is None:
            continue
        method, flags = found
        backend = str(flags.get("infer_backend", VLLM if method == "rollout" else ""))
        if backend in STARTS and flags.get("model"):
            yield NamedServer(f"swift {method}", _engine_command(backend, flags), _seen_cards(words))


def _method_and_flags(words: Sequence[str]) -> tuple[str, Mapping[str, Any]] | None:
    for at, word in enumerate(words[:24]):
        if word.rpartition("/")[2] == "swift" and words[at + 1 : at + 2] and words[at + 1] in METHODS:
            return words[at + 1], flags_of(list(words[at + 2 :]))[0]
    return None


def _engine_command(backend: str, flags: Mapping[str, Any]) -> str:
    """The engine's own command."""
    prefix = f"{backend}_"
    own = {at.removeprefix(prefix): held for at, held in flags.items() if at.startswith(prefix)}
    shared = {SHARED[at]: held for at, held in flags.items() if at in SHARED}
    asked = {**OWN_DEFAULTS[backend], **shared, **own}
    words = [_flag_words(at, held) for at, held in asked.items() if at not in ITS_OWN]
    return " ".join([STARTS[backend], shlex.quote(str(flags["model"])), *filter(None, words)])


def _flag_words(name: str, value: Any) -> str:
    flag = f"--{name.replace('_', '-')}"
    if value in (True, "true", "True"):
        return flag
    return "" if value in (False, None, "false", "False") else f"{flag} {shlex.quote(str(value))}"


def _seen_cards(words: Sequence[str]) -> int | None:
    seen = next((word.removeprefix(SEEN) for word in words if word.startswith(SEEN)), "")
    return len([one for one in seen.split(",") if one.strip()]) or None
