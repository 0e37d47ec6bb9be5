"""Engines by name. Each is a folder of its own (``memsheet/engines``), which nobody else imports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
"""Engines whose memory is accounted so far. Of ``KNOWN_NAMES``, others are refused by name."""


KNOWN_NAMES = (
    "transformers", "torchtitan", "fsdp1", "fsdp2", "deepspeed", "megatron", "megatron-deepspeed", "torchtune", "litgpt", "llm-foundry",
    "ms-swift", "internevo", "nanotron", "vllm", "sglang", "llama.cpp", "gpt-fast", "autoawq",
)  # fmt: skip
"""The vocabulary of plans."""

PAGED_SERVER = "vllm"
"""Where nobody names a server: for models that are served in pages, and for prompts too long for one pass."""
ONE_GPU = "transformers"
"""Where nobody names an engine for one GPU, or a server for a model that no other serves."""
SHARDED = "fsdp2"
"""Where nobody names an engine for training on several GPUs."""
GGUF_SERVER = "llama.cpp"
"""Where nobody names a server for a GGUF file."""
CANDIDATES = ("vllm", "sglang", "llama.cpp", "transformers")
"""Servers that may be taken where nobody names one, after the usual one."""
HOST_LAYERS_SERVER = "llama.cpp"
"""The server that is offered where layers or experts have to stay on the host."""
SEVERAL_GPUS = "fsdp2"
"""Where nobody names an engine to train on several: it divides every state of any model."""
STAGE_ENGINES = ("transformers", "deepspeed", "deepspeed", "fsdp2")
"""What trains at each stage of ZeRO, where the engine that is asked for has it not."""


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


@cache
def rules_of(engine: str) -> EngineRules:
    """The rules of the engine of that name, which one that needs none has no file for."""
    from importlib.util import find_spec

    if find_spec(_module_path(engine, "defaults")) is None:
        from memsheet.plan.engine import EngineRules

        return EngineRules()
    rules: EngineRules = engine_module(engine, "defaults").RULES
    return rules


def modelled_engines() -> tuple[Engine, ...]:
    """All engines that are accounted."""
    return tuple(engine for name in MODELLED if (engine := find_engine(name)) is not None)


def searched_engines() -> tuple[str, ...]:
    """What a search for plans tries where nobody names an engine."""
    placed = [(engine.searched, engine.name) for engine in modelled_engines() if engine.searched is not None]
    return tuple(name for _, name in sorted(placed))


def with_own_adapters(names: Iterable[str], request: Mapping[str, Any]) -> tuple[str, ...]:
    """Of several engines that nobody named those that somebody can run as they are where a question asks for
    adapters; all where it does not.
    """
    adapted = any(request.get(key) for key in ("adapter.rank", "adapter.kind"))
    return tuple(
        name
        for name in names
        if not adapted or (engine := find_engine(name)) is None or not engine.adapters_apart
    )


def pool_servers() -> tuple[str, ...]:
    """Servers whose cache is a pool of pages."""
    return tuple(engine.name for engine in modelled_engines() if engine.serving.pools_cache)


def drafting_servers() -> tuple[str, ...]:
    """Servers that may be taken where nobody names one and that draft in any release that was read."""
    found = ((name, find_engine(name)) for name in CANDIDATES)
    return tuple(name for name, engine in found if engine is not None and engine.drafting.methods)


def sharding_counterpart(engine: Engine) -> str | None:
    """Who divides every state (ZeRO-3) of the model code that an engine runs as whole copies, if anybody."""
    others = (other.name for other in modelled_engines() if other.whole_copies_by == engine.name)
    return engine.name if 3 in engine.zero else next(others, None)


def engine_of(plan: Plan) -> Engine:
    """The engine of a whole plan, with its facts of one GPU, or of an adapter on several, where it has others
    there.
    """
    engine = find_engine(plan.engine)
    assert engine is not None
    if engine.alone is not None and isinstance(plan.mesh.gpus, int) and plan.mesh.gpus == 1:
        return engine.alone
    return engine.adapted if engine.adapted is not None and plan.adapter is not None else engine


def runs_on_ranks(plan: Plan) -> bool:
    """Whether it runs in a process group: on several ranks, or by an engine that is made for them."""
    runner = engine_of(plan).runner
    return bool(plan.mesh.gpus > 1) or (runner is not None and runner.needs_group)


def adapter_servers() -> tuple[str, ...]:
    """Engines whose served adapters are modelled, those with a pool of pages first."""
    found = [name for name in MODELLED if rules_of(name).served_adapters is not None]
    return tuple(sorted(found, key=_without_pool))


def _without_pool(name: str) -> bool:
    engine = find_engine(name)
    return engine is None or engine.served is None
