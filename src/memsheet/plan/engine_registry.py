"""Engines by name. Each is a folder of its own (``memsheet/engines``), which nobody else imports."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from memsheet.plan.engine import Engine, EngineRules
from memsheet.plan.plan import Plan

MODELLED = (
    "transformers",
    "fsdp2",
    "deepspeed",
    "megatron",
    "torchtitan",
    "torchtune",
    "litgpt",
    "ms-swift",
    "fsdp1",
    "llm-foundry",
    "internevo",
    "vllm",
    "sglang",
    "llama.cpp",
    "autoawq",
    "gpt-fast",
)
"""Engines whose memory is accounted so far; the vocabulary of plans knows more and they are refused by name.
"""

PAGED_SERVER = "vllm"
"""Where nobody names a server: for models that are served in pages, and for prompts too long for one pass."""
ONE_GPU = "transformers"
"""Where nobody names an engine for one GPU, or a server for a model that no other serves."""
HOST_LAYERS_SERVER = "llama.cpp"
"""The server that is offered where layers or experts have to stay on the host."""


def find_engine(name: str) -> Engine | None:
    """The engine of that name, or None while it is not modelled."""
    if name not in MODELLED:
        return None
    engine: Engine = engine_module(name, "facts").ENGINE
    return engine


@cache
def engine_module(name: str, part: str) -> ModuleType:
    """A part of an engine's folder: ``facts``, ``defaults``, ``layers``, ``server``. Asked for many times by
    each formula, and the import system is slow to find what it has.
    """
    return import_module(_module_path(name, part))


def _module_path(name: str, part: str) -> str:
    return f"memsheet.engines.{name.replace('-', '_').replace('.', '_')}.{part}"


NO_RULES = EngineRules()


@cache
def rules_of(engine: str) -> EngineRules:
    """The rules of the engine of that name, which one that needs none has no file for."""
    if find_spec(_module_path(engine, "defaults")) is None:
        return NO_RULES
    rules: EngineRules = engine_module(engine, "defaults").RULES
    return rules


def engine_of(plan: Plan) -> Engine:
    """The engine of a whole plan, with its facts of one GPU where it has others there."""
    engine = find_engine(plan.engine)
    assert engine is not None
    return (
        engine.alone
        if engine.alone is not None and isinstance(plan.mesh.gpus, int) and plan.mesh.gpus == 1
        else engine
    )
