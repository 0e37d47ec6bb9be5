"""What configurations of trainers over transformers share: switches, dtypes, and DeepSpeed's configuration
where it stands inside one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memsheet.errors import Problem
from memsheet.exchange.shared.file_format import Format, Key, Moved, Values
from memsheet.frozen import replace

INSIDE = "deepspeed."
DTYPES = ("parameters", "compute", "gradients", "reduce", "moments")


def parse_switch(value: Any) -> bool:
    """A switch as pydantic reads it."""
    return value is True or str(value).lower() in ("true", "1", "on", "yes", "t", "y")


def comma_separated_names(value: Any) -> list[str]:
    """Names in a list, or in a text with commas between."""
    found = value if isinstance(value, list) else str(value).split(",")
    return [str(word).strip() for word in found]


def uniform_precision_keys(width: str, *, weak: bool = False) -> dict[str, Any]:
    """Everything that trains in one dtype. ``weak``: unless another file says it."""
    return {f"{'?' if weak else ''}precision.{name}": width for name in DTYPES}


def with_master(width: str) -> dict[str, Any]:
    """What DeepSpeed does with sixteen bits, where its own file leaves them to the trainer ("auto")."""
    return {
        **uniform_precision_keys(width, weak=True),
        "?precision.master_weights": "fp32" if width != "fp32" else None,
        "?precision.moments": "fp32",
    }


def plain_recompute(asked: Values) -> bool:
    """Whether it is each layer on its own or nothing, which is all that a switch can say."""
    return not any(asked.get(f"recompute.{key}") for key in ("every", "layers", "segments", "modules"))


def row_of(form: Format, at: str) -> Key:
    """One row of another format, whose keys a trainer takes over."""
    return next(key for key in form.keys if key.at == at)


def cannot_offload(asked: Values) -> Iterator[Problem]:
    """The host takes parameters in ZeRO-3 alone (DeepSpeed 0.19.8 runtime/zero/config.py:157)."""
    if asked["engine"] == "deepspeed" and asked.get("offload.parameters") and asked.get("zero") != 3:
        yield Problem(
            field="offload.parameters",
            value=asked["offload.parameters"],
            reason="is for zero 3 in DeepSpeed",
            hint="zero 3",
        )


def cast_by_deepspeed(asked: Values) -> Iterator[Problem]:
    """Adapters of another dtype than their base's: DeepSpeed casts the whole module (DeepSpeed 0.19.8
    runtime/engine.py, _configure_distributed_model).
    """
    kept = asked.get("adapter.dtype") if asked.get("adapter.rank") else None
    if asked["engine"] == "deepspeed" and kept not in (None, asked.get("precision.parameters")):
        base = str(asked.get("precision.parameters"))
        reason = f"is not kept beside DeepSpeed's {base}, to which it casts adapters too"
        yield Problem(field="adapter.dtype", value=kept, reason=reason, hint=base)


# ---- DeepSpeed's configuration inside ----------------------------------------------------------------------


def inline_deepspeed_values(values: Values) -> dict[str, Any]:
    """DeepSpeed's own values, where they stand in the file itself."""
    return {at.removeprefix(INSIDE): held for at, held in values.items() if at.startswith(INSIDE)}


def inside_rows(form: Format) -> tuple[Key, ...]:
    """Rows of DeepSpeed's format at their places inside; they are read and not written."""

    def row(key: Key) -> Key:
        def back(value: Any, values: Values) -> Mapping[str, Any]:
            own = inline_deepspeed_values(values)
            return key.read(value, own) if own else {}

        return replace(key, at=f"{INSIDE}{key.at}", out=lambda _: None, back=back)

    return tuple(map(row, form.keys))


def inside_names(form: Format) -> tuple[frozenset[str], dict[str, tuple[Any, ...]], frozenset[str]]:
    """Its other keys inside: those without bytes, those that are not modelled, and those whose bytes are
    weighed.
    """
    known = form.known | (form.removed - set(form.unmodelled))
    return (
        frozenset(f"{INSIDE}{at}" for at in known),
        {f"{INSIDE}{at}": harmless for at, harmless in form.unmodelled.items()},
        frozenset(f"{INSIDE}{at}" for at in form.weighed),
    )


def inside_renamed(form: Format) -> Callable[[str], str]:
    """A place inside by the name that DeepSpeed reads it by."""

    def renamed(at: str) -> str:
        own = at.removeprefix(INSIDE)
        return f"{INSIDE}{form.rename(own)}" if own != at and form.rename else at

    return renamed


def inside_moves(form: Format) -> Callable[[Values, Values], Iterator[Moved]]:
    """Buckets inside of other sizes than the sheet's."""

    def moves(values: Values, asked: Values) -> Iterator[Moved]:
        own = inline_deepspeed_values(values)
        if own and form.moves is not None:
            yield from (replace(one, at=f"{INSIDE}{one.at}") for one in form.moves(own, asked))

    return moves
