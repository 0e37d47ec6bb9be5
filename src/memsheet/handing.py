"""How a model's own code would be run by a server that runs the library's: which of its modules hand their
attention over, and how its tensor-parallel plan cuts matrices. Plain data, a part of a recording.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.frozen import dataclass

Styles = tuple[tuple[str, str], ...]
"""(a linear module's path, how the plan cuts it: the library's word); what is in no plan is left out."""


@dataclass(frozen=True, slots=True)
class HandedAttention:
    """A layer's one module that calls the library's table of attention functions, by its path in the
    layer.
    """

    path: str
    heads: int
    kv_heads: int
    head_dim: int


Sizes = tuple[tuple[str, int], ...]
"""(a key of a config, how much it says) of what a layer keeps that is no key and value of a head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handing:
    """``architecture``: the model's class; ``declares``: it says that others may run its attention;
    ``dispatches``: its file calls the table of attention functions; ``plan_words``: those of its
    tensor-parallel plan, none where it has none; ``causal``: no module attends both ways; ``latent``: its
    config has a latent's rank. By kind of layer: ``attention``, None where not exactly one module hands over,
    ``styles``, and ``sizes`` of latents and states.
    """

    architecture: str
    declares: bool
    dispatches: bool
    plan_words: tuple[str, ...]
    causal: bool
    latent: bool
    experts_per_token: int | None
    attention: tuple[HandedAttention | None, ...]
    styles: tuple[Styles, ...]
    sizes: tuple[Sizes, ...] = ()


def handing_document(one: Handing) -> dict[str, Any]:
    """As JSON."""
    return {
        "architecture": one.architecture, "declares": one.declares, "dispatches": one.dispatches,
        "plan_words": list(one.plan_words), "causal": one.causal, "latent": one.latent, "experts_per_token": one.experts_per_token,
        "attention": [found and [found.path, found.heads, found.kv_heads, found.head_dim] for found in one.attention],
        "styles": [[list(pair) for pair in styles] for styles in one.styles],
        "sizes": [[list(pair) for pair in sizes] for sizes in one.sizes],
    }  # fmt: skip


def handing_from(document: Mapping[str, Any] | None, kinds: int) -> Handing | None:
    """Of ``handing_document``; None of none. Raises KeyError, TypeError, ValueError for others."""
    if document is None:
        return None
    found = Handing(
        architecture=str(document["architecture"]),
        **{name: bool(document[name]) for name in ("declares", "dispatches", "causal", "latent")},
        plan_words=tuple(map(str, document["plan_words"])),
        experts_per_token=document["experts_per_token"] and _positive(document["experts_per_token"]),
        attention=tuple(map(_attention_from, document["attention"])),
        styles=tuple(
            tuple((str(path), str(style)) for path, style in styles) for styles in document["styles"]
        ),
        sizes=tuple(
            tuple((str(key), _positive(value)) for key, value in sizes)
            for sizes in document.get("sizes") or [()] * kinds
        ),
    )
    if not len(found.attention) == len(found.styles) == len(found.sizes) == kinds:
        raise ValueError(kinds)
    return found


def _attention_from(row: Any) -> HandedAttention | None:
    if row is None:
        return None
    path, *sizes = row
    heads, kv_heads, head_dim = map(_positive, sizes)
    return HandedAttention(str(path), heads, kv_heads, head_dim)


def _positive(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(value)
    return value
