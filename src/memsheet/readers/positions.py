"""How the layers of a decoder differ in what they attend to: which have a sliding window, which rotate their
positions.
"""

from __future__ import annotations

from collections.abc import Callable

from memsheet.frozen import NamedTuple
from memsheet.readers.fields import Fields


class Position(NamedTuple):
    """What one layer's attention sees."""

    window: int | None = None
    rotary: bool = True


Positions = Callable[[Fields, int], tuple[Position, ...]]
"""(config, number of layers) → one Position a layer."""

_KINDS = ("full_attention", "sliding_attention")


def sliding_window_tokens(config: Fields, default: int | None, key: str = "sliding_window") -> int | None:
    """The window in tokens; a null switches it off, a missing key takes ``default``."""
    return config.optional(key) if key in config.data else default


def sliding_layers(config: Fields, layers: int, default: Callable[[int], bool]) -> tuple[bool, ...]:
    """Which layers slide: the ``layer_types`` list where the config has one, else ``default`` of the layer's
    index.
    """
    kinds = config.texts("layer_types")
    if "layer_types" not in config.data or config.data["layer_types"] is None:
        return tuple(default(i) for i in range(layers))
    if len(kinds) != layers or any(kind not in _KINDS for kind in kinds):
        config.wrong(
            "layer_types", list(kinds)[:8], f"is not one of {', '.join(_KINDS)} for each of {layers} layers"
        )
        return (False,) * layers
    return tuple(kind == "sliding_attention" for kind in kinds)


def everywhere_full(config: Fields, layers: int) -> tuple[Position, ...]:  # noqa: ARG001 - one signature for all
    return (Position(),) * layers


def everywhere_sliding(default: int | None) -> Positions:
    """One window for all layers (mistral, phi3, starcoder2)."""

    def read(config: Fields, layers: int) -> tuple[Position, ...]:
        return (Position(window=sliding_window_tokens(config, default)),) * layers

    return read


def sliding_unless_listed(default: int) -> Positions:
    """One window for all layers but those that ``layer_types`` calls full (ministral)."""

    def read(config: Fields, layers: int) -> tuple[Position, ...]:
        size = sliding_window_tokens(config, default)
        slides = sliding_layers(config, layers, lambda _: size is not None)
        return tuple(Position(window=size if slide else None) for slide in slides)

    return read


def sliding_after(config: Fields, layers: int) -> tuple[Position, ...]:
    """Qwen: a window only when asked for, and only from ``max_window_layers`` on."""
    size = sliding_window_tokens(config, 4096) if config.flag("use_sliding_window", default=False) else None
    first = config.count("max_window_layers", default=28, low=0)
    slides = sliding_layers(config, layers, lambda i: i >= first)
    return tuple(Position(window=size if slide else None) for slide in slides)


def sliding_from_max_window(default: int, first: int) -> Positions:
    """A window from layer ``max_window_layers`` on (dots1)."""

    def read(config: Fields, layers: int) -> tuple[Position, ...]:
        size = sliding_window_tokens(config, default)
        begin = config.count("max_window_layers", default=first, low=0)
        slides = sliding_layers(config, layers, lambda i: size is not None and i >= begin)
        return tuple(Position(window=size if slide else None) for slide in slides)

    return read


def every_nth_full(
    period: int,
    size: int,
    *,
    rotate_full: bool = True,
    fixed: bool = False,
    bidirectional: bool = False,
    key: str = "sliding_window_pattern",
) -> Positions:
    """Windows everywhere but in every ``sliding_window_pattern``-th layer (default ``period``; gemma,
    cohere2, exaone4).

    ``rotate_full=False``: the layers without a window have no rotary positions either, unless no layer has a
    window. ``fixed``: the config has no such key, only ``layer_types`` changes the period (gemma2).
    ``key``: what it calls the period. ``bidirectional``: gemma3 halves the window when it attends both ways.
    """

    def read(config: Fields, layers: int) -> tuple[Position, ...]:
        wide = sliding_window_tokens(config, size)
        if bidirectional and wide and config.flag("use_bidirectional_attention", default=False):
            wide = wide // 2 + 1
        every = period if fixed else _sliding_window_period(config, period, key)
        slides = sliding_layers(config, layers, lambda i: wide is not None and (i + 1) % every != 0)
        return tuple(
            Position(window=wide if slide else None, rotary=rotate_full or slide) for slide in slides
        )

    return read


def _sliding_window_period(config: Fields, default: int, key: str) -> int:
    """``sliding_window_pattern``, or another key: a number, or letters (LLLG) beside a ``layer_types`` list
    that says the same.
    """
    return default if isinstance(config.data.get(key), str) else config.count(key, default=default)


def exaone4_layer_positions(config: Fields, layers: int) -> tuple[Position, ...]:
    """Full layers rotate only in a model without any window."""
    alternating = every_nth_full(4, 4096, rotate_full=sliding_window_tokens(config, 4096) is None)
    return alternating(config, layers)


def smollm3_layer_positions(config: Fields, layers: int) -> tuple[Position, ...]:
    """Every fourth layer has no rotary positions, and those may slide."""
    every = config.count("no_rope_layer_interval", default=4)
    rotary = config.counts(
        "no_rope_layers", default=[int((i + 1) % every != 0) for i in range(layers)], high=1
    )
    if len(rotary) < layers:
        config.wrong("no_rope_layers", list(rotary)[:8], f"does not name each of {layers} layers")
        return (Position(),) * layers
    size = sliding_window_tokens(config, None) if config.flag("use_sliding_window", default=False) else None
    slides = sliding_layers(config, layers, lambda i: size is not None and not rotary[i])
    return tuple(Position(window=size if slides[i] else None, rotary=bool(rotary[i])) for i in range(layers))
