"""Flags of the LoRA adapters that a server's command keeps room for: rows of vLLM's and of SGLang's
(``exchange.shared.serve_command``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memsheet.errors import Problem
from memsheet.exchange.shared.file_format import Key, Values
from memsheet.exchange.shared.serve_command import DTYPES, SPELLED

ALL = "all"
LISTS = frozenset({"--lora-target-modules", "--lora-modules", "--lora-paths"})
"""Flags that take several words."""
BESIDE = frozenset({"adapter.kind"})
SGLANG_BESIDE = frozenset({"adapter.kind", "adapter.dtype"})
"""SGLang keeps adapters in what it computes in."""


def _value_words(value: Any) -> list[str]:
    return [str(word) for word in value] if isinstance(value, list) else [str(value)]


def _plan_keys_of_flags(values: Values, names: Mapping[str, str], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a plan by the flags that say them."""
    found = dict(usual)
    found.update({key: values[at] for at, key in names.items() if values.get(at) is not None})
    return found


# ---- vLLM 0.33.0 -------------------------------------------------------------------------------------------

VLLM_FLAGS = {
    "--max-loras": "serving.max_loras", "--max-lora-rank": "adapter.rank", "--max-cpu-loras": "serving.max_cpu_loras",
    "--fully-sharded-loras": "serving.fully_sharded_loras",
}  # fmt: skip


def _vllm_back(value: Any, values: Values) -> Mapping[str, Any]:
    """What the other flags say counts beside this one alone (engine/arg_utils.py create_engine_config:
    lora_config).
    """
    if value is not True:
        return {}
    found = _plan_keys_of_flags(values, VLLM_FLAGS, {"serving.max_loras": 1, "adapter.rank": 16})
    if values.get("--lora-dtype") is not None:
        found["adapter.dtype"] = SPELLED.get(str(values["--lora-dtype"]), str(values["--lora-dtype"]))
    if values.get("--lora-target-modules") is not None:
        found["adapter.targets"] = _value_words(values["--lora-target-modules"])
    return found


def _lora_switch(asked: Values) -> Any:
    return True if asked.get("serving.max_loras") else None


def _with_room(key: str) -> Callable[[Values], Any]:
    """A key's value where there is room for adapters at all."""
    return lambda asked: asked.get(key) if asked.get("serving.max_loras") else None


def _read_with_lora_switch(_: Any, __: Values) -> Mapping[str, Any]:
    """Read with the flag that turns adapters on."""
    return {}


VLLM_KEYS = (
    Key(at="--enable-lora", out=_lora_switch, back=_vllm_back, usual=False, source="engine/arg_utils.py:1609"),
    Key(at="--max-loras", out=_with_room("serving.max_loras"), back=_read_with_lora_switch, source="config/lora.py:36"),
    Key(at="--max-lora-rank", out=_with_room("adapter.rank"), back=_read_with_lora_switch, source="config/lora.py:34"),
    Key(at="--max-cpu-loras", out=_with_room("serving.max_cpu_loras"), back=_read_with_lora_switch, source="config/lora.py:42"),
    Key(at="--lora-dtype", out=lambda a: DTYPES.get(_with_room("adapter.dtype")(a) or ""), back=_read_with_lora_switch, source="engine/arg_utils.py:1617"),
    Key(
        at="--fully-sharded-loras", out=lambda a: True if _with_room("serving.fully_sharded_loras")(a) else None, back=_read_with_lora_switch,
        source="config/lora.py:38",
    ),
    Key(at="--lora-target-modules", out=_with_room("adapter.targets"), back=_read_with_lora_switch, source="engine/arg_utils.py:1629, config/lora.py:47"),
)  # fmt: skip

# ---- SGLang 0.5.23 -----------------------------------------------------------------------------------------

SGLANG_FLAGS = {
    "--max-loras-per-batch": "serving.max_loras",
    "--max-lora-rank": "adapter.rank",
    "--max-loaded-loras": "serving.max_cpu_loras",
}


def _sglang_back(value: Any, values: Values) -> Mapping[str, Any]:
    """On where it is said, or where adapters are named and it is not said off
    (arg_groups/lora_hook.py:38).
    """
    if value is False or (value is None and not values.get("--lora-paths")):
        return {}
    found = _plan_keys_of_flags(values, SGLANG_FLAGS, {"serving.max_loras": 8})
    words = (
        _value_words(values["--lora-target-modules"])
        if values.get("--lora-target-modules") is not None
        else [ALL]
    )
    return found if words == [ALL] else {**found, "adapter.targets": words}


def _sglang_paths(_: Any, values: Values) -> Mapping[str, Any]:
    return _sglang_back(None, values) if values.get("--enable-lora") is None else {}


def _sglang_targets(asked: Values) -> Any:
    return (asked.get("adapter.targets") or ALL) if asked.get("serving.max_loras") else None


SGLANG_KEYS = (
    Key(at="--enable-lora", out=_lora_switch, back=_sglang_back, source="lora.py:34"),
    Key(at="--lora-paths", out=lambda _: None, back=_sglang_paths, source="lora.py:54: adapters by name, which turn it on"),
    Key(at="--max-loras-per-batch", out=_with_room("serving.max_loras"), back=_read_with_lora_switch, source="lora.py:66"),
    Key(at="--max-lora-rank", out=_with_room("adapter.rank"), back=_read_with_lora_switch, source="lora.py:42"),
    Key(at="--max-loaded-loras", out=_with_room("serving.max_cpu_loras"), back=_read_with_lora_switch, source="lora.py:62"),
    Key(at="--lora-target-modules", out=_sglang_targets, back=_read_with_lora_switch, source="lora.py:46"),
)  # fmt: skip


def no_room(asked: Values) -> Iterator[Problem]:
    """An adapter that nobody keeps room for: trained, or a plan with a hole."""
    if asked.get("adapter.rank") is not None and not asked.get("serving.max_loras"):
        yield Problem(
            field="adapter.rank",
            value=asked["adapter.rank"],
            reason="has no room in the plan",
            hint="--max-loras, of infer",
        )
    dtype, computed = asked.get("adapter.dtype"), asked.get("precision.compute")
    if asked.get("engine") == "sglang" and dtype is not None and dtype != computed:
        yield Problem(
            field="adapter.dtype",
            value=dtype,
            reason=f"is not the {computed} that sglang keeps adapters in",
            hint="leave it out",
        )
